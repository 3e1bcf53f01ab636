"""Peak learning rate as a function of model size and number of experts, and its fit to a grid of runs.

    LR = exp(intercept + slope_n ln N + slope_e ln E)          Ludziejewski et al. 2025, Eq. "lr_scaling"

Reading "paper": N is the active non-embedding parameters, as the text says. Reading "code", the default: the code of
the paper's runs counted attention, active feed-forward, embedding, head and a 512 × d positional table that the models
do not have; only this agrees with the rates of their grid. The paper fits on E = 1 and 8 (Appendix B).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from hub.plain import strict_json
from hub.plain.tables import Table
from hub.plain.units import format_count
from hub.record.names import size_name
from scaling_law.laws.conditions import Excess, advice, excesses
from scaling_law.runs.table import RunsError, read_rows
from scaling_law.size.architecture import VOCAB_SIZE, Architecture, active_parameters, non_embedding_parameters
from scaling_law.size.recipe import PAPER, ROWS

Reading = Literal["code", "paper"]
READINGS = ("code", "paper")
FORMAT, VERSION = "learning_rate_law", 3
SINCE = {"n_range": 2, "experts_range": 2, "vocab_size": 3}  # the version of a file from which on it has a field
UNGUARDED = "this learning-rate law carries no ranges: nothing checks how far it extrapolates"
PHANTOM_POSITIONS = 512  # rows of the positional table that the code counted
_COLUMNS = ("d_model", "n_blocks", "n_heads", "experts", "vocab_size", "tokens")  # of a model of a grid


@dataclass(frozen=True)
class LearningRateLaw:
    """Peak LR = exp(intercept + slope_n ln N + slope_e ln E), with N counted as `reading` says.

    `rmse` is that of ln LR. `n_range` (N so counted), `experts_range` and `vocab_size` are those of the models behind
    it; if unknown, the ranges are None and the vocabulary GPT-2's.
    """

    intercept: float
    slope_n: float
    slope_e: float
    reading: Reading = "code"
    source: str = ""
    rmse: float | None = None
    n_range: tuple[float, float] | None = None
    experts_range: tuple[float, float] | None = None
    vocab_size: int = VOCAB_SIZE

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise ValueError(f"reading={self.reading!r} must be 'code' or 'paper'")
        for name in ("intercept", "slope_n", "slope_e"):
            if not _is_finite(value := getattr(self, name)):
                raise ValueError(f"{name}={value!r} must be a finite number")
        if type(self.vocab_size) is not int or self.vocab_size < 1:
            raise ValueError(f"vocab_size={self.vocab_size!r} must be an integer of at least 1")
        for name in ("n_range", "experts_range"):
            if (ends := getattr(self, name)) is None:
                continue
            pair = isinstance(ends, (tuple, list)) and len(ends) == 2 and all(map(_is_finite, ends))
            if not pair or not 0 < ends[0] <= ends[1]:
                raise ValueError(f"{name}={ends!r} must be two positive numbers, the lower first")
            object.__setattr__(self, name, (float(ends[0]), float(ends[1])))

    @classmethod
    @lru_cache(maxsize=4)
    def published(cls, reading: Reading = "code") -> LearningRateLaw:
        """The paper's law, with the ranges of its runs: 'code' in full precision, 'paper' as the text prints it."""
        source = "text" if reading == "paper" else "code of the runs"
        coefficients = PAPER.learning_rate.get(reading, (0.0, 0.0, 0.0))  # the law refuses an unknown reading
        law = cls(*coefficients, reading, f"Ludziejewski et al. 2025, {source}")
        counted = [law.counted(row.architecture) for row in ROWS]
        experts = [float(row.experts) for row in ROWS]
        return replace(law, n_range=(min(counted), max(counted)), experts_range=(min(experts), max(experts)))

    @classmethod
    def named(cls, name: str | Path) -> LearningRateLaw:
        """The published law for "code" and "paper", else that of a file."""
        return cls.published(str(name)) if str(name) in READINGS else cls.load(name)

    def save(self, path: str | Path) -> Path:
        """Write the law as JSON, atomically; `train.py --optimizer.learning_rate_law PATH` takes it."""
        return strict_json.write(path, FORMAT, VERSION, asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> LearningRateLaw:
        """Read what `save` wrote. ValueError names the file and the field."""
        data = strict_json.read(path, FORMAT, VERSION)
        names = [name for name in cls.__dataclass_fields__ if SINCE.get(name, 1) <= data["version"]]
        if sorted(data) != sorted(["format", "version", *names]):
            wanted = f"format, version, {', '.join(names)}"
            raise ValueError(f"{path}: the fields must be exactly {wanted}; here are {', '.join(data)}")
        try:
            return cls(**{name: data[name] for name in names})
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def counted_parameters(
        self, d_model: ArrayLike, n_blocks: ArrayLike | None = None, vocab_size: float | None = None
    ) -> Any:
        """N as this reading counts it (broadcasts); vocab_size None: the law's own."""
        if self.reading == "paper":
            return non_embedding_parameters(d_model, n_blocks)
        vocabulary = self.vocab_size if vocab_size is None else vocab_size
        return active_parameters(d_model, n_blocks, vocabulary) + PHANTOM_POSITIONS * np.asarray(d_model, float)

    def at(self, counted_parameters: ArrayLike, experts: ArrayLike) -> Any:
        """Peak LR for N as this reading counts it (broadcasts)."""
        return np.exp(self.intercept + self.slope_n * np.log(counted_parameters) + self.slope_e * np.log(experts))

    def counted(self, architecture: Architecture) -> float:
        """N as this reading counts it."""
        return float(self.counted_parameters(architecture.d_model, architecture.blocks, architecture.vocab_size))

    def learning_rate(self, architecture: Architecture) -> float:
        """Peak LR. Never refused: `warnings` and `beyond_guard` say how far it extrapolates."""
        return float(self.at(self.counted(architecture), architecture.experts))

    def warnings(self, architecture: Architecture) -> list[str]:
        """How far an architecture lies outside what this law rests on; [] inside."""
        return self.warnings_at(self.counted(architecture), architecture.experts)

    def warnings_at(self, counted_parameters: float, experts: float) -> list[str]:
        """As `warnings`, for N as counted by this reading."""
        if self.n_range is None and self.experts_range is None:
            return [UNGUARDED]
        found = self._excesses(counted_parameters, experts)
        return [f"learning rate: {text}" for text in (*map(str, found), *advice(found))]

    def beyond_guard(self, architecture: Architecture) -> bool:
        """Whether N or E lies too far outside to train at this rate (`conditions.GUARD`); False if unknown."""
        return any(excess.beyond for excess in self._excesses(self.counted(architecture), architecture.experts))

    def _excesses(self, counted_parameters: float, experts: float) -> list[Excess]:
        limits = {name: ends for name, ends in (("N", self.n_range), ("E", self.experts_range)) if ends}
        return list(excesses({"N": counted_parameters, "E": experts}, limits, experts, slack=1e-3))


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def fit_learning_rate(
    counted_parameters: ArrayLike,
    experts: ArrayLike,
    learning_rates: ArrayLike,
    *,
    with_experts: bool = True,
    reading: Reading = "code",
) -> LearningRateLaw:
    """Least squares of ln LR on ln N and (`with_experts`) ln E over the best rate of each model, as in the paper.

    N is as `reading` counts it. ValueError for non-positive entries and columns that do not determine the law.
    """
    n, e, rates = (np.asarray(column, float) for column in (counted_parameters, experts, learning_rates))
    for name, values in (("counted_parameters", n), ("experts", e), ("learning_rates", rates)):
        if values.shape != (rates.size,) or not np.all((values > 0) & np.isfinite(values)):
            raise ValueError(f"{name} must be a column of {rates.size} positive finite numbers")
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
    """The LR of lowest loss, by a parabola in ln LR through the best point and its neighbours.

    At an end of the grid, the best point itself. Non-finite losses (diverged runs) are left out.
    """
    rates, values = np.asarray(learning_rates, float), np.asarray(losses, float)
    if not np.isfinite(values).any() or np.any(rates <= 0):
        raise ValueError("learning_rates must be positive and at least one loss finite")
    order = [i for i in np.argsort(rates) if np.isfinite(values[i])]
    x, y = np.log(rates[order]), values[order]
    best = int(np.argmin(y))
    near = slice(best - 1, best + 2)
    a, b = np.polyfit(x[near] - x[best], y[near], 2)[:2] if 0 < best < len(x) - 1 else (0.0, 0.0)
    return float(np.exp(x[best] - b / (2 * a))) if a > 0 else float(np.exp(x[best]))


@dataclass(frozen=True)
class ModelGrid:
    """The runs of one architecture and token count: peak LRs, ascending, and losses, nats per token."""

    architecture: Architecture
    tokens: int
    learning_rates: tuple[float, ...]
    losses: tuple[float, ...]

    @cached_property
    def best(self) -> float:
        return best_of_grid(self.learning_rates, self.losses)

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
        """Loss in nats, linear in ln LR between the runs; NaN outside the grid."""
        x = np.log(self.learning_rates)
        return float(np.interp(math.log(learning_rate), x, self.losses, left=math.nan, right=math.nan))


@dataclass(frozen=True)
class LearningRateGrid:
    """The grids of all models, ordered by E, active parameters and tokens."""

    models: tuple[ModelGrid, ...]

    @classmethod
    def load(cls, source: Any, loss: str = "eval_loss") -> LearningRateGrid:
        """Read final runs from any source that `load_runs` takes.

        RunsError if there are none, one lacks a field, or a model has a rate twice.
        """
        table = read_rows(source)
        found: dict[tuple[Any, ...], dict[float, float]] = {}
        for row in table.rows:
            if (row.get("status") or "final") != "final":
                continue
            scheduled = (row.get("schedule") or {}).get("peak_learning_rate")
            if scheduled is None:  # as in runs.parquet
                scheduled = row.get("schedule_peak_learning_rate")
            values = {name: row.get(name) for name in (*_COLUMNS, loss)} | {"schedule.peak_learning_rate": scheduled}
            name = f"{table.name}: {row.get('run_id', 'a run')}"
            if missing := [name for name, value in values.items() if value is None]:
                raise RunsError(f"{name} has no {', '.join(missing)}")
            *model, value, rate = values.values()
            losses = found.setdefault(tuple(model), {})
            if rate in losses:
                raise RunsError(f"{name}: the learning rate {rate:g} appears twice for its model")
            losses[rate] = float(value)
        if not found:
            raise RunsError(f"{table.name}: no final runs")
        models = [
            ModelGrid(Architecture(d, e, blocks, heads, vocab), tokens, *zip(*sorted(losses.items()), strict=True))
            for (d, blocks, heads, e, vocab, tokens), losses in found.items()
        ]
        models.sort(key=lambda model: (model.architecture.experts, model.architecture.n_active, model.tokens))
        return cls(tuple(models))

    def of(self, experts: Collection[float] | None) -> list[ModelGrid]:
        """The grids of these E; None for all."""
        return [model for model in self.models if experts is None or model.architecture.experts in experts]

    def fit(self, experts: Collection[float] | None = None, reading: Reading = "code") -> LearningRateLaw:
        """The law through the best rates of the models of these E (None: all); see `fit_learning_rate`.

        RunsError where a grid has fewer than three rates.
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
        """ln of the law's rate over the best rate, for each grid of these E (None: all)."""
        return np.array([math.log(law.learning_rate(model.architecture) / model.best) for model in self.of(experts)])

    def to_dicts(self, law: LearningRateLaw) -> list[dict[str, Any]]:
        rows = []
        for model in self.models:
            a = model.architecture
            row = {"d_model": a.d_model, "n_blocks": a.blocks, "experts": a.experts, "n_active": a.n_active}
            row |= {name: getattr(model, name) for name in ("tokens", "learning_rates", "losses")}
            rows.append(row | {"best_learning_rate": model.best, "at_edge": model.at_edge})
            rows[-1]["law_learning_rate"] = law.learning_rate(a)
        return rows

    def table(self, law: LearningRateLaw) -> Table:
        """Each model's best rate, the law's, and the loss that the law's rate costs."""
        rows = []
        for model in self.models:
            rate = law.learning_rate(model.architecture)
            cost = model.loss_at(rate) - min(model.losses)
            shown = "outside the grid" if math.isnan(cost) else f"{cost:+.4f}"
            best = f"{model.best:.3g}{' (end of the grid)' if model.at_edge else ''}"
            sizes = format_count(model.architecture.n_active), format_count(model.tokens)
            rows.append((model.name, *sizes, best, f"{rate:.3g}", shown))
        return Table(("model", "N_act", "D", "best of the grid", "law", "loss it costs"), rows)
