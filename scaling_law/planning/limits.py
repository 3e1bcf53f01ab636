"""Limits and costs of a model, made once from what a user types; `Limits` answers for them from there on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import Unpack

from hub.base.errors import InputError, given
from hub.base.fields import fields_of, reads
from hub.base.notices import Notice
from hub.base.tables import join_words
from hub.base.types import Fields
from scaling_law.formulas import Formula
from scaling_law.formulas.conditions import RangeCheck
from scaling_law.formulas.designs import draw_design_factors, find_ignored, find_most_experts, read_findings
from scaling_law.formulas.repeated import Models
from scaling_law.formulas.roots import find_root
from scaling_law.planning.question import LimitFields
from scaling_law.size.architecture import (
    VOCAB_SIZE,
    Architecture,
    affordable_tokens,
    inference_flops,
    training_flops,
)
from scaling_law.size.arrays import FloatArray, Variables
from scaling_law.size.family import Family
from scaling_law.size.ladder import Ladder, PaperLadder
from scaling_law.size.widths import Widths

# d_model that are searched where no budget of FLOPs limits them.
WIDTHS = (1.0, 2e6)
# d_model between which limits of memory or parameters lie.
NARROWEST = 1e-25
WIDEST = 1e25


@partial(reads, types=fields_of(LimitFields))
@dataclass(frozen=True)
class Limits:
    """Limits and costs of a model; None means no limit. `Limits.of(memory="80GB")` reads text, too.

    `max_parameters` limits N_total, `memory` (bytes) the weights and the key-value cache, `kv_tokens` over all
    sequences; `inference_tokens` are served over the model's life. `kv_heads_ratio` is key-value heads / heads: below
    1 for grouped queries, the parameter count left as it is. `granularity` G splits every expert into G and activates
    G times as many, a part `shared_ratio` of them shared. More than `unique_tokens` are repetitions: these, and the
    parameters in excess of what the unique ones call for, are worth less (`formulas.repeated`). ValueError names the
    field, the value and what is allowed.
    """

    max_parameters: float | None = None
    memory: float | None = None
    kv_tokens: float = 0.0
    bytes_per_parameter: float = 2.0
    bytes_per_kv: float = 2.0
    inference_tokens: float = 0.0
    kv_heads_ratio: float = 1.0
    granularity: float = 1.0
    shared_ratio: float = 0.0
    unique_tokens: float | None = None
    vocab_size: int = VOCAB_SIZE
    like: Family | None = None

    @classmethod
    def of(cls, law: Formula | None = None, **limits: Unpack[LimitFields]) -> Limits:
        """Read numbers, or text such as "80GB", "7B", "16k"; without a vocabulary, that of the law or the family."""
        values: Any = dict(limits)
        vocab_size = VOCAB_SIZE if law is None else law.vocab_size
        if values.get("like") is not None:
            _refuse_shape(values)
            family = Family.read(values["like"]).with_vocabulary(values.get("vocab_size"), vocab_size)
            values["like"] = family
            vocab_size = family.own_vocab_size
        if values.get("vocab_size") is None:
            values["vocab_size"] = vocab_size
        return cls(**values)

    def __post_init__(self) -> None:
        for spec in fields(self):
            if getattr(self, spec.name) is None:
                object.__setattr__(self, spec.name, spec.default)

    @cached_property
    def ladder(self) -> Ladder:
        """The models that are compared: of the paper's shape, or of a family."""
        return self.like or PaperLadder(self.granularity, self.shared_ratio, self.vocab_size)

    def architecture(self, d_model: float, experts: float) -> Architecture:
        """Return the architecture of a width that exists and E. ValueError where its experts cannot be split so."""
        return self.ladder.architecture(d_model, experts)

    def widths(self, d_model: ArrayLike, experts: ArrayLike) -> Widths:
        """Return the models of these widths and E as arrays; broadcasts."""
        return self.ladder.widths(d_model, experts)

    def kv_bytes(self, d_model: ArrayLike) -> Any:
        return self.kv_heads_ratio * self.ladder.cache_bytes(d_model, self.kv_tokens, self.bytes_per_kv)

    def memory_bytes(self, d_model: ArrayLike, experts: ArrayLike) -> Any:
        """Return the bytes of weights and KV cache; broadcasts."""
        return self.bytes_per_parameter * self.widths(d_model, experts).n_total + self.kv_bytes(d_model)

    def width_limit(self, experts: ArrayLike) -> Any:
        """Return the largest (fractional) d_model that both limits allow, for each E; infinite without limits."""
        limit = np.full(np.shape(experts), np.inf)
        if self.max_parameters is not None:
            limit = np.minimum(limit, self.width_of_parameters(self.max_parameters, experts))
        if self.memory is not None:
            limit = np.minimum(limit, self.width_of_memory(self.memory, experts))
        return limit

    def width_of_parameters(self, n_total: ArrayLike, experts: ArrayLike) -> Any:
        """Return the (fractional) d_model of this N_total; broadcasts."""
        return self._width_where(lambda d_model: self.widths(d_model, experts).n_total, n_total, experts)

    def width_of_memory(self, memory_bytes: ArrayLike, experts: ArrayLike) -> Any:
        """Return the (fractional) d_model whose weights and KV cache take `memory_bytes`; broadcasts."""
        return self._width_where(lambda d_model: self.memory_bytes(d_model, experts), memory_bytes, experts)

    def _width_where(self, size: Callable[[Any], Any], value: ArrayLike, experts: ArrayLike) -> Any:
        """Find the d_model at which a `size` of models with these E, which grows with the width, is `value`.

        0 where every model is larger, as with a cache that does not grow with the width.
        """
        shape = np.broadcast_shapes(np.shape(value), np.shape(experts))
        low = np.full(shape, np.log(NARROWEST))
        high = np.full(shape, np.log(WIDEST))
        width = np.exp(find_root(lambda log_width: np.log(size(np.exp(log_width)) / value), low, high))
        return np.where(np.isnan(width), 0.0, width)

    def variables(self, d_model: Any, experts: Any, flops: Any) -> Fields:
        """Return what a law may depend on, for models of these widths that spend the budget; broadcasts."""
        variables = self.ladder.variables(d_model, experts)
        tokens = affordable_tokens(flops, variables["own_n_active"], self.inference_tokens)
        return {**variables, "tokens": tokens}

    def flops(self, d_model: Any, experts: Any, tokens: Any) -> FloatArray:
        """Return 6 N_act D + 2 N_act D_inf of these models; broadcasts."""
        n_active = self.widths(d_model, experts).n_active
        return np.asarray(training_flops(n_active, tokens) + inference_flops(n_active, self.inference_tokens))

    def models(self, law: Formula, d_model: Any, experts: Any, tokens: Any) -> Fields:
        """Return N_act, D, E and the law's other variables, for models of these widths and tokens; broadcasts."""
        return of_law(law, {**self.variables(d_model, experts, 1.0), "tokens": tokens})

    def loss(self, law: Formula, coefficients: Any, variables: Variables) -> FloatArray:
        """Compute the loss of models on the unique tokens there are; coefficients and variables broadcast."""
        if self.unique_tokens is not None:
            models = self._models(variables["experts"])
            variables = law.effective(coefficients, variables, self.unique_tokens, models)
        return np.asarray(law.evaluate(coefficients, variables))

    def size_called_for(self, law: Formula, coefficients: Any, variables: Variables, tokens: Any) -> FloatArray:
        """Return N_act of the models with these E for which `tokens` are compute-optimal, NaN where there is none."""
        return law.size_called_for(coefficients, variables, np.asarray(tokens), self._models(variables["experts"]))

    def ignored_design(self, law: Formula) -> Fields:
        """Return the fields in which models with experts differ from the paper's, and that the law ignores."""
        return find_ignored(self.ladder.design, law.variables)

    def check(self, law: Formula, variables: Variables) -> RangeCheck:
        """Check how far these models lie from the law's runs, and their epochs from those of the runs."""
        check = law.check(**variables, unique_tokens=self.unique_tokens)
        return replace(check, most_experts=find_most_experts(self.ladder.design))

    def drawn_losses(self, law: Formula, losses: FloatArray, variables: Variables) -> FloatArray:
        """Add to losses under the law's draws, [n_draws, n], the errors of extrapolation and of what it ignores."""
        extrapolated = law.add_extrapolation(losses, variables, 1)
        factors = draw_design_factors(self.ignored_design(law), variables["experts"], len(losses))
        return np.asarray(extrapolated * factors)

    def to_question(self, experts: ArrayLike) -> Any:
        """Return these E as a question has them: of a family as numbers of routed experts."""
        return np.round(self.like.routed_experts(experts), 6) if self.like else experts

    def routed_column(self, experts: ArrayLike) -> Fields:
        """Return the column of a family's routed experts for these E; none of the paper's shape."""
        return {"routed_experts": self.to_question(experts)} if self.like else {}

    def to_fields(self) -> Fields:
        """Return the fields with which a question has these limits."""
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}

    def _models(self, experts: Any) -> Models:
        """Return the models of one design, by ln d_model."""

        def models(log_width: Any) -> Fields:
            return self.ladder.variables(np.exp(log_width), experts)

        return models


def _refuse_shape(fields: Fields) -> None:
    """Raise ValueError for a field of the paper's shape beside a family, which has its own."""
    for name in ("granularity", "shared_ratio", "kv_heads_ratio"):
        if fields.get(name) not in (None, getattr(Limits, name)):
            raise InputError(given(name, fields[name]), " is of the paper's shape: ", given("like"), " has its own")


def explain_ignored_design(law: Formula, limits: Limits) -> list[str]:
    """Write a sentence on the parts of a design that change nothing in the law's loss, and what they were measured
    to be worth; [] for none.
    """
    ignored = limits.ignored_design(law)
    if not ignored:
        return []
    names = join_words([f"{name} {value:.3g}" for name, value in ignored.items()])
    meanings = "; ".join(read_findings()[name]["finding"] for name in ignored)
    return [Notice(f"the {law.name} law ignores {names}: no loss depends on it; {meanings}", f"ignores {names}")]


def of_law(law: Formula, variables: Variables) -> Fields:
    """Pick N_act, D, E and the law's other variables, broadcast to one shape. ValueError for one that is missing."""
    names = dict.fromkeys(("n_active", "tokens", "experts", *law.variables))
    for name in names:
        if name not in variables:
            raise InputError(f"the {law.name} law depends on {name}; what is asked has {', '.join(variables)}")
    arrays = np.broadcast_arrays(*(variables[name] for name in names))
    return dict(zip(names, arrays, strict=True))
