"""A grid of learning rates, read from the records of its runs: the best rate of each model, and the law through them.

grid = LearningRateGrid.load("out/lr-runs.jsonl")
law = grid.fit(experts=(1, 8))          # the paper fits on E = 1 and 8
grid.errors(law)                        # and looks at how it interpolates to others (Appendix B)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hub.plain.units import format_count
from hub.record.names import size_name
from scaling_law.fitting.learning_rate import LearningRateLaw, Reading, best_of_grid, fit_learning_rate
from scaling_law.runs.sources import read_rows
from scaling_law.runs.table import RunsError
from scaling_law.size.architecture import Architecture

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("d_model", "n_blocks", "n_heads", "experts", "vocab_size", "tokens")


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
        """The best peak learning rate; see `learning_rate.best_of_grid`."""
        return best_of_grid(self.learning_rates, self.losses)

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
        rows, origin = read_rows(source)
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

    def of(self, experts: Collection[float] | None) -> Iterable[ModelGrid]:
        """The grids of these numbers of experts; None for all."""
        return [model for model in self.models if experts is None or model.architecture.experts in experts]

    def fit(self, experts: Collection[float] | None = None, reading: Reading = "code") -> LearningRateLaw:
        """The law through the best rates of the models of these numbers of experts (None: all).

        Raises RunsError where a grid has fewer than three rates, ValueError where the models do not determine the law.
        """
        chosen = list(self.of(experts))
        for model in chosen:
            if len(model.learning_rates) < 3:
                rates = ", ".join(f"{rate:g}" for rate in model.learning_rates)
                raise RunsError(f"{_name(model)}: learning rates {rates}; a grid needs three")
        published = LearningRateLaw.published(reading)
        law = fit_learning_rate(
            [published.counted(model.architecture) for model in chosen],
            [model.architecture.experts for model in chosen],
            [model.best for model in chosen],
            with_experts=len({model.architecture.experts for model in chosen}) > 1,
            reading=reading,
        )
        vocabularies = {model.architecture.vocab_size for model in chosen}
        return replace(law, vocab_size=vocabularies.pop()) if len(vocabularies) == 1 else law

    def errors(self, law: LearningRateLaw, experts: Collection[float] | None = None) -> np.ndarray:
        """ln of the law's rate over the best rate, for each grid of these numbers of experts (None: all)."""
        return np.array([math.log(law.learning_rate(model.architecture) / model.best) for model in self.of(experts)])

    def to_dicts(self, law: LearningRateLaw) -> list[dict[str, Any]]:
        """A plain row for each model: its sizes, its grid, the best rate and the law's."""
        return [
            {
                "d_model": model.architecture.d_model,
                "n_blocks": model.architecture.blocks,
                "experts": model.architecture.experts,
                "n_active": model.architecture.n_active,
                "tokens": model.tokens,
                "learning_rates": model.learning_rates,
                "losses": model.losses,
                "best_learning_rate": model.best,
                "at_edge": model.at_edge,
                "law_learning_rate": law.learning_rate(model.architecture),
            }
            for model in self.models
        ]

    def table(self, law: LearningRateLaw | None = None) -> Table:
        """Best rate of each model, beside the law's and the loss that the law's rate costs where a law is given."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD)
        for column in ("model", "N_act", "D", "best of the grid", *(("law", "loss it costs") if law else ())):
            table.add_column(column, justify="right", no_wrap=column == "model")
        for model in self.models:
            best = f"{model.best:.3g}{' (end of the grid)' if model.at_edge else ''}"
            cells = [_name(model), format_count(model.architecture.n_active), format_count(model.tokens), best]
            if law:
                rate = law.learning_rate(model.architecture)
                cost = model.loss_at(rate) - min(model.losses)
                cells += [f"{rate:.3g}", "outside the grid" if math.isnan(cost) else f"{cost:+.4f}"]
            table.add_row(*cells)
        return table


def _name(model: ModelGrid) -> str:
    a = model.architecture
    return size_name(a.d_model, int(a.experts), a.blocks, a.heads)
