"""A grid of learning rates, read from the records of its runs: the best rate of each model, and the law through them.

grid = LearningRateGrid.load("out/lr-runs.jsonl")
law = grid.fit(experts=(1, 8))          # the paper fits on E = 1 and 8
grid.errors(law)                        # and checks how the law interpolates to others (Appendix B)
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hub.plain.tables import Table
from hub.plain.units import format_count
from hub.record.names import size_name
from scaling_law.fitting.learning_rate import LearningRateLaw, Reading
from scaling_law.runs.table import RunsError, read_rows
from scaling_law.size.architecture import Architecture

_COLUMNS = ("d_model", "n_blocks", "n_heads", "experts", "vocab_size", "tokens")


def fit_learning_rate(
    counted_parameters: ArrayLike,
    experts: ArrayLike,
    learning_rates: ArrayLike,
    *,
    with_experts: bool = True,
    reading: Reading = "code",
) -> LearningRateLaw:
    """Least squares of ln LR on ln N and (`with_experts`) ln E, as the paper fits the best rates of its grid.

    The three columns hold one row per model: N as `reading` counts it, E, and the best learning rate found.
    ValueError for non-positive entries or columns that do not determine the coefficients (say, a single size).
    """
    given = {"counted_parameters": counted_parameters, "experts": experts, "learning_rates": learning_rates}
    columns = {name: np.asarray(column, float) for name, column in given.items()}
    for name, values in columns.items():
        if values.ndim != 1 or np.any(~np.isfinite(values)) or np.any(values <= 0):
            raise ValueError(f"{name} must be one column of positive finite numbers")
    n, e, rates = columns.values()
    if not len(n) == len(e) == len(rates):
        raise ValueError("counted_parameters, experts and learning_rates must have the same length")
    design = np.stack([np.ones_like(n), np.log(n), *([np.log(e)] if with_experts else [])], axis=1)
    if len(n) < design.shape[1] or np.linalg.matrix_rank(design - [0, *design[:, 1:].mean(0)]) < design.shape[1]:
        what = "model sizes and numbers of experts" if with_experts else "model sizes"
        raise ValueError(f"{len(n)} rows with too few different {what} to determine the learning-rate law")
    solution = np.linalg.lstsq(design, np.log(rates), rcond=None)[0]
    rmse = math.sqrt(float(np.mean((design @ solution - np.log(rates)) ** 2)))
    intercept, slope_n, slope_e = (*solution.tolist(), 0.0)[:3]
    n_range, experts_range = ((float(values.min()), float(values.max())) for values in (n, e))
    source = f"least squares on {len(n)} models"
    return LearningRateLaw(intercept, slope_n, slope_e, reading, source, rmse, n_range, experts_range)


def best_of_grid(learning_rates: ArrayLike, losses: ArrayLike) -> float:
    """The LR of lowest loss of one model's grid, by a parabola in ln LR through the best point and its neighbours.

    The best point itself where it lies at an end of the grid. Non-finite losses (diverged runs) are left out.
    """
    rates, values = np.asarray(learning_rates, float), np.asarray(losses, float)
    if not np.isfinite(values).any() or np.any(rates <= 0):
        raise ValueError("learning_rates must be positive and at least one loss finite")
    rates, values = rates[np.isfinite(values)], values[np.isfinite(values)]
    order = np.argsort(rates)
    x, y = np.log(rates[order]), values[order]
    best = int(np.argmin(y))
    if not 0 < best < len(x) - 1:
        return float(np.exp(x[best]))
    a, b, _ = np.polyfit(x[best - 1 : best + 2] - x[best], y[best - 1 : best + 2], 2)
    return float(np.exp(x[best] - b / (2 * a))) if a > 0 else float(np.exp(x[best]))


@dataclass(frozen=True)
class ModelGrid:
    """The runs of one architecture and token count that differ in their peak learning rate.

    Attributes:
        tokens: training tokens of each run.
        learning_rates, losses: a peak learning rate and a loss (nats per token) for each run, by ascending rate.
    """

    architecture: Architecture
    tokens: int
    learning_rates: tuple[float, ...]
    losses: tuple[float, ...]

    @cached_property
    def best(self) -> float:
        """The best peak learning rate; see `best_of_grid`."""
        return best_of_grid(self.learning_rates, self.losses)

    @property
    def name(self) -> str:
        """Its shape, such as d128-E4."""
        a = self.architecture
        return size_name(a.d_model, int(a.experts), a.blocks, a.heads)

    @property
    def at_edge(self) -> bool:
        """Whether the lowest loss lies at an end of the grid, so that the best rate may lie outside."""
        return int(np.argmin(self.losses)) in (0, len(self.losses) - 1)

    def loss_at(self, learning_rate: float) -> float:
        """Loss at a learning rate, by straight lines in ln LR between the runs (nats); NaN outside the grid."""
        x = np.log(self.learning_rates)
        return float(np.interp(math.log(learning_rate), x, self.losses, left=math.nan, right=math.nan))


@dataclass(frozen=True)
class LearningRateGrid:
    """The grids of all models, ordered by E, active parameters and tokens."""

    models: tuple[ModelGrid, ...]

    @classmethod
    def load(cls, source: Any, loss: str = "eval_loss") -> LearningRateGrid:
        """Read final runs from any source that `load_runs` takes; the runs of one model differ in the learning rate.

        Raises RunsError where there are no such runs, where one lacks a field, or where a rate appears twice.
        """
        table = read_rows(source)
        rows, origin = table.rows, table.name
        found: dict[tuple[Any, ...], dict[float, float]] = {}
        for row in rows:
            if (row.get("status") or "final") != "final":
                continue
            name = row.get("run_id", "a run")
            rate: float | None = (row.get("schedule") or {}).get("peak_learning_rate")
            rate = row.get("schedule_peak_learning_rate") if rate is None else rate  # as a column of runs.parquet
            missing = [column for column in (*_COLUMNS, loss) if row.get(column) is None]
            missing += ["schedule.peak_learning_rate"] if rate is None else []
            if missing or rate is None:
                raise RunsError(f"{origin}: {name} has no {', '.join(missing)}")
            losses = found.setdefault(tuple(row[column] for column in _COLUMNS), {})
            if rate in losses:
                raise RunsError(f"{origin}: {name}: the learning rate {rate:g} appears twice for its model")
            losses[rate] = float(row[loss])
        if not found:
            raise RunsError(f"{origin}: no final runs")
        models = [
            ModelGrid(Architecture(d, e, blocks, heads, vocab), tokens, *zip(*sorted(losses.items()), strict=True))
            for (d, blocks, heads, e, vocab, tokens), losses in found.items()
        ]
        models.sort(key=lambda model: (model.architecture.experts, model.architecture.n_active, model.tokens))
        return cls(tuple(models))

    def of(self, experts: Collection[float] | None) -> list[ModelGrid]:
        """The grids of these numbers of experts; None for all."""
        return [model for model in self.models if experts is None or model.architecture.experts in experts]

    def fit(self, experts: Collection[float] | None = None, reading: Reading = "code") -> LearningRateLaw:
        """The law through the best rates of the models of these numbers of experts (None: all).

        Raises RunsError where a grid has fewer than three rates, ValueError where the models do not determine the law.
        """
        chosen = self.of(experts)
        for model in chosen:
            if len(model.learning_rates) < 3:
                rates = ", ".join(f"{rate:g}" for rate in model.learning_rates)
                raise RunsError(f"{model.name}: learning rates {rates}; a grid needs three")
        counted = LearningRateLaw.published(reading).counted
        own = [model.architecture.experts for model in chosen]
        sizes, best = [counted(model.architecture) for model in chosen], [model.best for model in chosen]
        law = fit_learning_rate(sizes, own, best, with_experts=len({*own}) > 1, reading=reading)
        vocabularies = {model.architecture.vocab_size for model in chosen}
        return replace(law, vocab_size=vocabularies.pop()) if len(vocabularies) == 1 else law

    def errors(self, law: LearningRateLaw, experts: Collection[float] | None = None) -> np.ndarray:
        """ln of the law's rate over the best rate, for each grid of these numbers of experts (None: all)."""
        return np.array([math.log(law.learning_rate(model.architecture) / model.best) for model in self.of(experts)])

    def to_dicts(self, law: LearningRateLaw) -> list[dict[str, Any]]:
        """A plain row for each model: its sizes, its grid, the best rate and the law's."""
        sizes, grid = ("d_model", "blocks", "experts", "n_active"), ("tokens", "learning_rates", "losses")
        return [
            {name.replace("blocks", "n_blocks"): getattr(model.architecture, name) for name in sizes}
            | {name: getattr(model, name) for name in grid}
            | {"best_learning_rate": model.best, "at_edge": model.at_edge}
            | {"law_learning_rate": law.learning_rate(model.architecture)}
            for model in self.models
        ]

    def table(self, law: LearningRateLaw) -> Table:
        """Best rate of each model, beside the law's and the loss that the law's rate costs."""
        rows = []
        for model in self.models:
            rate = law.learning_rate(model.architecture)
            cost = model.loss_at(rate) - min(model.losses)
            shown = "outside the grid" if math.isnan(cost) else f"{cost:+.4f}"
            best = f"{model.best:.3g}{' (end of the grid)' if model.at_edge else ''}"
            sizes = format_count(model.architecture.n_active), format_count(model.tokens)
            rows.append((model.name, *sizes, best, f"{rate:.3g}", shown))
        return Table(("model", "N_act", "D", "best of the grid", "law", "loss it costs"), rows)
