"""The learning-rate law's fit to a grid of runs: the best rate of each model, then least squares.

The paper fits on E = 1 and 8 (Ludziejewski et al. 2025, Appendix B).
"""

from __future__ import annotations

import math
from collections.abc import Collection
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
from scaling_law.formulas.learning_rate import LearningRateLaw, Reading
from scaling_law.runs.recipes import check_mix
from scaling_law.runs.rows import RunsError
from scaling_law.runs.table import load_runs
from scaling_law.runs.tuning import best_rate, loss_between, models_of
from scaling_law.size.architecture import Architecture

_SLOPES = {  # column of a fit: the law's coefficient and range, and what the column holds
    "counted_parameters": ("slope_n", "n_range", "model sizes"),
    "experts": ("slope_e", "experts_range", "numbers of experts"),
    "tokens": ("slope_d", "tokens_range", "numbers of tokens"),
    "batch_tokens": ("slope_batch", "batch_range", "batches"),
}
_SHAPE = ("d_model", "n_blocks", "n_heads", "vocab_size")  # of a model of a grid
_RATE = "schedule_peak_learning_rate"


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
    """The runs of one architecture and token count: peak LRs, ascending, and losses, nats per token."""

    architecture: Architecture
    tokens: int
    learning_rates: tuple[float, ...]
    losses: tuple[float, ...]

    @cached_property
    def best(self) -> float:
        return best_rate(self.learning_rates, self.losses)

    @property
    def name(self) -> str:
        """Its shape, such as d128-E4."""
        a = self.architecture
        return size_name(a.d_model, int(a.experts), a.blocks, a.heads)

    @property
    def at_edge(self) -> bool:
        """Whether the lowest loss lies at an end of the grid."""
        return int(np.argmin(self.losses)) in (0, len(self.losses) - 1)

    def loss_at(self, learning_rate: float) -> float:
        """Loss in nats between the runs; NaN outside the grid."""
        return loss_between(math.log(learning_rate), np.log(self.learning_rates), np.array(self.losses))


@dataclass(frozen=True)
class LearningRateGrid:
    """The grids of all models, ordered by E, active parameters and tokens."""

    models: tuple[ModelGrid, ...]

    @classmethod
    def load(cls, source: Any, loss: str = "eval_loss", mix: str | Collection[str] = ()) -> LearningRateGrid:
        """Read final runs from any source that `load_runs` takes.

        RunsError if there are none, one lacks a field, a model has a rate twice, or recipes differ in more than the
        columns `mix` (`runs.recipes`).
        """
        runs = load_runs(source, loss)
        check_mix(runs.recipe, (), mix, runs.source)
        shapes = np.stack([runs.positive(name) for name in _SHAPE], axis=1).astype(int).tolist()
        rates, models = runs.positive(_RATE), []
        for group in models_of(runs, [_RATE], by=_SHAPE):
            group = group[np.argsort(rates[group])]
            if twice := [i for i, j in pairwise(group) if rates[i] == rates[j]]:
                name = f"{runs.source}: {runs.run_id[twice[0]]}"
                raise RunsError(f"{name}: the learning rate {rates[twice[0]]:g} appears twice for its model")
            d, blocks, heads, vocabulary = shapes[group[0]]
            e: Any = float(runs.experts[group[0]])
            architecture = Architecture(d, int(e) if e.is_integer() else e, blocks, heads, vocabulary)
            settings = tuple(rates[group].tolist()), tuple(runs.loss[group].tolist())
            models.append(ModelGrid(architecture, int(runs.tokens[group[0]]), *settings))
        models.sort(key=lambda model: (model.architecture.experts, model.architecture.n_active, model.tokens))
        return cls(tuple(models))

    def of(self, experts: Collection[float] | None) -> list[ModelGrid]:
        """The grids of these E; None for all."""
        return [model for model in self.models if experts is None or model.architecture.experts in experts]

    def fit(self, experts: Collection[float] | None = None, reading: Reading = "code") -> LearningRateLaw:
        """The law through the best rates of the models of these E (None: all); see `fit_learning_rate`.

        RunsError where a grid has fewer than three rates.
        """
        models = self.of(experts)
        for model in models:
            if len(model.learning_rates) < 3:
                rates = ", ".join(f"{rate:g}" for rate in model.learning_rates)
                raise RunsError(f"{model.name}: learning rates {rates}; a grid needs at least three")
        counted = LearningRateLaw.published(reading).counted
        expert_counts = [model.architecture.experts for model in models]
        sizes, best = [counted(model.architecture) for model in models], [model.best for model in models]
        law = fit_learning_rate(sizes, expert_counts, best, with_experts=len({*expert_counts}) > 1, reading=reading)
        vocabularies = {model.architecture.vocab_size for model in models}
        return replace(law, vocab_size=vocabularies.pop()) if len(vocabularies) == 1 else law

    def errors(self, law: LearningRateLaw, experts: Collection[float] | None = None) -> np.ndarray:
        """ln of the law's rate over the best rate, for each grid of these E (None: all)."""
        rates = [law.learning_rate(model.architecture, model.tokens) for model in self.of(experts)]
        return np.log(rates) - np.log([model.best for model in self.of(experts)])

    def to_dicts(self, law: LearningRateLaw) -> list[dict[str, Any]]:
        rows = []
        for model in self.models:
            a = model.architecture
            row: dict[str, Any] = {"d_model": a.d_model, "n_blocks": a.blocks}
            row |= {"experts": a.experts, "n_active": a.n_active}
            row |= {name: getattr(model, name) for name in ("tokens", "learning_rates", "losses")}
            row |= {"best_learning_rate": model.best, "at_edge": model.at_edge}
            rows.append(row | {"law_learning_rate": law.learning_rate(a, model.tokens)})
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
        return Table(("model", "N_act", "D", "best of the grid", "law", "loss it costs"), rows)
