"""The learning-rate law's fit to a grid of runs: the best rate of each model, then least squares.

The paper fits on E = 1 and 8 (Ludziejewski et al. 2025, Appendix B).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError
from hub.base.inputs import numbers_of, optional, reads
from hub.base.tables import Table
from hub.base.units import format_count
from hub.record.names import size_name
from scaling_law.fitting.rate_surface import RATE_COLUMNS, counted_sizes, rate_column
from scaling_law.formulas.learning_rate import LearningRateLaw, Reading
from scaling_law.runs.recipes import check_mix
from scaling_law.runs.rows import RunsError
from scaling_law.runs.table import Runs, load_runs
from scaling_law.runs.tuning import best_rate, loss_between, models_of
from scaling_law.size.architecture import Architecture

_SLOPES = {  # column of a fit: the law's coefficient and range, and what the column holds
    "counted_parameters": ("slope_n", "n_range", "model sizes"),
    "experts": ("slope_e", "experts_range", "numbers of experts"),
    "tokens": ("slope_d", "tokens_range", "numbers of tokens"),
    "batch_tokens": ("slope_batch", "batch_range", "batches"),
}
_SHAPE = ("d_model", "n_blocks", "n_heads", "vocab_size")  # of a model of a grid


@reads(
    counted_parameters=numbers_of,
    experts=numbers_of,
    learning_rates=numbers_of,
    tokens=optional(numbers_of),
    batch_tokens=optional(numbers_of),
)
def fit_learning_rate(
    counted_parameters: ArrayLike,
    experts: ArrayLike,
    learning_rates: ArrayLike,
    *,
    tokens: ArrayLike | None = None,
    batch_tokens: ArrayLike | None = None,
    with_experts: bool = True,
    reading: Reading = "code",
) -> LearningRateLaw:
    """Least squares of ln LR on the logarithms of what is given, over the best rate of each model, as in the paper.

    N is as `reading` counts it; `with_experts=False` leaves E out, `tokens` (D) and `batch_tokens` put theirs in.
    ValueError for non-positive entries and columns that do not determine the law.
    """
    arguments = {"counted_parameters": counted_parameters, "experts": experts, "learning_rates": learning_rates}
    arguments |= {} if tokens is None else {"tokens": tokens}
    arguments |= {} if batch_tokens is None else {"batch_tokens": batch_tokens}
    columns = {name: np.asarray(values, float) for name, values in arguments.items()}
    rates = columns["learning_rates"]
    for name, values in columns.items():
        if values.shape != (rates.size,) or not np.all((values > 0) & np.isfinite(values)):
            raise InputError(f"{name} must be a column of {rates.size} positive finite numbers")
    used = [name for name in _SLOPES if name in columns and (with_experts or name != "experts")]
    design = np.stack([np.ones_like(rates), *(np.log(columns[name]) for name in used)], axis=1)
    if len(rates) < design.shape[1] or np.linalg.matrix_rank(design - [0, *design[:, 1:].mean(0)]) < design.shape[1]:
        what = " and ".join(_SLOPES[name][2] for name in used)
        raise InputError(f"{len(rates)} rows with too few distinct {what} to determine the learning-rate law")
    solution = np.linalg.lstsq(design, np.log(rates), rcond=None)[0]
    rmse = math.sqrt(float(np.mean((design @ solution - np.log(rates)) ** 2)))
    intercept, *slopes = solution.tolist()
    fields: dict[str, Any] = {"slope_e": 0.0} | {
        _SLOPES[name][0]: slope for name, slope in zip(used, slopes, strict=True)
    }
    fields |= {_SLOPES[name][1]: (float(v.min()), float(v.max())) for name, v in columns.items() if name in _SLOPES}
    source = f"least squares on {len(rates)} models"
    return LearningRateLaw(intercept, **fields, reading=reading, source=source, rmse=rmse)


@dataclass(frozen=True)
class ModelGrid:
    """The runs of one model and token count: peak LRs, ascending, and losses, nats per token.

    `architecture` is None where the runs do not tell it. `counted` has N as the readings of a law count it, for those
    that the runs tell.
    """

    architecture: Architecture | None
    n_active: float
    experts: float
    counted: Mapping[str, float]
    tokens: int
    learning_rates: tuple[float, ...]
    losses: tuple[float, ...]

    @cached_property
    def best(self) -> float:
        return best_rate(self.learning_rates, self.losses)

    @property
    def name(self) -> str:
        """Its shape, such as d128-E4, or else its size, such as 13.7M-E1."""
        a = self.architecture
        if a is None:
            return f"{format_count(self.n_active)}-E{self.experts:g}"
        return size_name(a.d_model, int(a.experts), a.blocks, a.heads)

    @property
    def size(self) -> tuple[float, str]:
        """Its width, or else N, as a number and in words."""
        if self.architecture is None:
            return self.n_active, f"N_act {format_count(self.n_active)}"
        return float(self.architecture.d_model), f"d_model {self.architecture.d_model}"

    def rate_of(self, law: LearningRateLaw) -> float:
        """Return the law's rate. RunsError where the runs do not tell N as the law counts it."""
        return float(law.at(self.counted_by(law.reading), self.experts, self.tokens))

    def counted_by(self, reading: Reading) -> float:
        """Return N as this reading counts it. RunsError where the runs do not tell it."""
        if reading not in self.counted:
            needed = "n_active_non_embedding, or d_model and n_blocks, are needed"
            raise RunsError(f"{self.name}: {needed}: reading {reading!r} counts N without embeddings")
        return self.counted[reading]

    @property
    def at_edge(self) -> bool:
        """Whether the lowest loss lies at an end of the grid."""
        return int(np.argmin(self.losses)) in (0, len(self.losses) - 1)

    def loss_at(self, learning_rate: float) -> float:
        """Loss in nats between the runs; NaN outside the grid."""
        return loss_between(math.log(learning_rate), np.log(self.learning_rates), np.array(self.losses))


@dataclass(frozen=True)
class LearningRateGrid:
    """The grids of all models, ordered by E, active parameters and tokens.

    `vocab_size` is None if unknown or mixed. `size_is_given`: without d_model, N is n_active as the runs have it.
    """

    models: tuple[ModelGrid, ...]
    vocab_size: int | None = None
    size_is_given: bool = False

    @classmethod
    def load(cls, source: Any, mix: str | Collection[str] = ()) -> LearningRateGrid:
        """Read final runs from a `Runs`, or any source that `load_runs` takes.

        Without d_model, n_blocks, n_heads and vocab_size, models are told apart by n_active. RunsError if there are
        no runs, one lacks a rate, a model has a rate twice, or recipes differ in more than the columns `mix`
        (`runs.recipes`).
        """
        runs = source if isinstance(source, Runs) else load_runs(source)
        check_mix(runs.recipe, (), mix, runs.source)
        has_shape = all(name in runs for name in _SHAPE)
        shapes = np.stack([runs.positive(name) for name in _SHAPE], axis=1).astype(int).tolist() if has_shape else []
        readings = _readings_of(runs)
        counted = {reading: counted_sizes(runs, reading) for reading in readings}
        rates, models = runs.positive(rate_column(runs)), []
        for group in models_of(runs, RATE_COLUMNS, by=_SHAPE):
            group = group[np.argsort(rates[group])]
            if twice := [i for i, j in pairwise(group) if rates[i] == rates[j]]:
                name = f"{runs.source}: {runs.run_id[twice[0]]}"
                what = f"the learning rate {rates[twice[0]]:g} appears twice for its model"
                several = "fit_learning_rate_grid (--with tokens,batch) takes grids of several batches"
                raise RunsError(f"{name}: {what}; {several}")
            at = group[0]
            e: Any = float(runs.experts[at])
            architecture = None
            if has_shape:
                d, blocks, heads, vocabulary = shapes[at]
                architecture = Architecture(d, int(e) if e.is_integer() else e, blocks, heads, vocabulary)
            size = {str(reading): float(values[at]) for reading, values in counted.items()}
            settings = tuple(rates[group].tolist()), tuple(runs.loss[group].tolist())
            models.append(ModelGrid(architecture, float(runs.n_active[at]), e, size, int(runs.tokens[at]), *settings))
        models.sort(key=lambda model: (model.experts, model.n_active, model.tokens))
        return cls(tuple(models), runs.vocab_size, "d_model" not in runs)

    def of(self, experts: Collection[float] | None) -> list[ModelGrid]:
        """The grids of these E; None for all."""
        return [model for model in self.models if experts is None or model.experts in experts]

    def fit(self, experts: Collection[float] | None = None, reading: Reading = "code") -> LearningRateLaw:
        """The law through the best rates of the models of these E (None: all); see `fit_learning_rate`.

        RunsError where a grid has fewer than three rates.
        """
        models = self.of(experts)
        for model in models:
            if len(model.learning_rates) < 3:
                rates = ", ".join(f"{rate:g}" for rate in model.learning_rates)
                raise RunsError(f"{model.name}: learning rates {rates}; a grid needs at least three")
        expert_counts = [model.experts for model in models]
        sizes, best = [model.counted_by(reading) for model in models], [model.best for model in models]
        law = fit_learning_rate(sizes, expert_counts, best, with_experts=len({*expert_counts}) > 1, reading=reading)
        if self.size_is_given and reading == "code":
            law = replace(law, source=f"{law.source}, N as given")
        return law if self.vocab_size is None else replace(law, vocab_size=self.vocab_size)

    def errors(self, law: LearningRateLaw, experts: Collection[float] | None = None) -> np.ndarray:
        """ln of the law's rate over the best rate, for each grid of these E (None: all)."""
        rates = [model.rate_of(law) for model in self.of(experts)]
        return np.log(rates) - np.log([model.best for model in self.of(experts)])

    def to_dicts(self, law: LearningRateLaw) -> list[dict[str, Any]]:
        rows = []
        for model in self.models:
            a = model.architecture
            row: dict[str, Any] = {"d_model": a and a.d_model, "n_blocks": a and a.blocks}
            row |= {"experts": a.experts if a else model.experts, "n_active": a.n_active if a else model.n_active}
            row |= {name: getattr(model, name) for name in ("tokens", "learning_rates", "losses")}
            row |= {"best_learning_rate": model.best, "at_edge": model.at_edge}
            rows.append(row | {"law_learning_rate": model.rate_of(law)})
        return rows

    def table(self, law: LearningRateLaw) -> Table:
        """Each model's best rate, the law's, and the loss that the law's rate costs."""
        rows = []
        for model, row in zip(self.models, self.to_dicts(law), strict=True):
            cost = model.loss_at(row["law_learning_rate"]) - min(model.losses)
            best = f"{model.best:.3g}{' (end of the grid)' if model.at_edge else ''}"
            sizes = format_count(row["n_active"]), format_count(model.tokens)
            cost_text = "outside the grid" if math.isnan(cost) else f"{cost:+.4f}"
            rows.append((model.name, *sizes, best, f"{row['law_learning_rate']:.3g}", cost_text))
        notes = ["no d_model: N is n_active as given"] * self.size_is_given
        return Table(("model", "N_act", "D", "best of the grid", "law", "loss it costs"), rows, notes=notes)


def _readings_of(runs: Runs) -> list[Reading]:
    """Return the readings whose N these runs tell."""
    has_shape = "d_model" in runs and "n_blocks" in runs
    return ["code", "paper"] if has_shape or "n_active_non_embedding" in runs else ["code"]
