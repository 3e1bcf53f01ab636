"""Peak learning rate as a function of model size and number of experts, and its fit.

    LR = exp(intercept + slope_n ln N + slope_e ln E)          Ludziejewski et al. 2025, Eq. "lr_scaling"

The paper says N is the active non-embedding parameters. The code of the paper's runs counted attention, active
feed-forward, embedding, head and a 512 × d positional table that the models do not have; only that reading agrees with
the learning rates of their grid. Both are here under the names "paper" and "code"; "code" is the default.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from scaling_law.architecture import VOCAB_SIZE, Architecture, active_parameters, non_embedding_parameters

Reading = Literal["code", "paper"]
READINGS = ("code", "paper")
FORMAT, VERSION = "learning_rate_law", 1
PHANTOM_POSITIONS = 512  # rows of the positional table that the code counted


@dataclass(frozen=True)
class LearningRateLaw:
    """Peak LR = exp(intercept + slope_n ln N + slope_e ln E), with N counted as `reading` says.

    `source` records where the coefficients come from; `rmse` is that of ln LR for a fitted law.
    """

    intercept: float
    slope_n: float
    slope_e: float
    reading: Reading = "code"
    source: str = ""
    rmse: float | None = None

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise ValueError(f"reading={self.reading!r} must be 'code' or 'paper'")
        for name in ("intercept", "slope_n", "slope_e"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, (int, float)):
                raise ValueError(f"{name}={value!r} is not a number")
            if not math.isfinite(value):
                raise ValueError(f"{name}={value!r} must be finite")

    @classmethod
    def published(cls, reading: Reading = "code") -> LearningRateLaw:
        """The paper's law: 'code' as the runs used it (full precision), 'paper' as the text prints and words it."""
        if reading == "paper":
            return cls(8.39, -0.81, -0.25, "paper", "Ludziejewski et al. 2025, text")
        return cls(8.391640956, -0.8121798244, -0.25, reading, "Ludziejewski et al. 2025, code of the runs")

    @classmethod
    def named(cls, name: str | Path) -> LearningRateLaw:
        """The published law for "code" and "paper", else the fitted one of this file (see `load`)."""
        return cls.published(str(name)) if str(name) in READINGS else cls.load(name)  # type: ignore[arg-type]

    def save(self, path: str | Path) -> Path:
        """Write the law as JSON, atomically; `train.py --optimizer.learning_rate_law PATH` takes it."""
        from hub.atomic import write_bytes

        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        write_bytes(Path(path), (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> LearningRateLaw:
        """Read what `save` wrote. OSError; ValueError that names the file and the field for anything else."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: not valid JSON ({error})") from None
        if not isinstance(data, Mapping) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
            raise ValueError(f"{path}: not a learning-rate law: format must be {FORMAT!r} and version {VERSION}")
        names = {"format", "version", *cls.__dataclass_fields__}
        if set(data) != names:
            raise ValueError(f"{path}: the fields must be exactly {sorted(names)}, here are {sorted(data)}")
        try:
            return cls(**{name: data[name] for name in cls.__dataclass_fields__})
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def counted_parameters(
        self, d_model: ArrayLike, n_blocks: ArrayLike | None = None, vocab_size: float = VOCAB_SIZE
    ) -> Any:
        """The N that this law's reading counts, for models of width d_model (broadcasts)."""
        if self.reading == "paper":
            return non_embedding_parameters(d_model, n_blocks)
        return active_parameters(d_model, n_blocks, vocab_size) + PHANTOM_POSITIONS * np.asarray(d_model, float)

    def at(self, counted_parameters: ArrayLike, experts: ArrayLike) -> Any:
        """Peak LR for N as counted by this reading (broadcasts)."""
        log_n, log_e = np.log(np.asarray(counted_parameters, float)), np.log(np.asarray(experts, float))
        return np.exp(self.intercept + self.slope_n * log_n + self.slope_e * log_e)

    def log_errors(self, counted_parameters: ArrayLike, experts: ArrayLike, learning_rates: ArrayLike) -> Any:
        """ln of predicted over best learning rate for each model: errors inside (interpolation) or outside a fit."""
        return np.log(self.at(counted_parameters, experts)) - np.log(np.asarray(learning_rates, float))

    def counted(self, architecture: Architecture) -> float:
        """The N that this law's reading counts, for an architecture."""
        return float(self.counted_parameters(architecture.d_model, architecture.blocks, architecture.vocab_size))

    def learning_rate(self, architecture: Architecture) -> float:
        """Peak LR of an architecture."""
        return float(self.at(self.counted(architecture), architecture.experts))


def best_of_grid(learning_rates: ArrayLike, losses: ArrayLike) -> float:
    """The LR of lowest loss of one model's grid, by a parabola in ln LR through the best point and its neighbours.

    The best point itself where it lies at an end of the grid. Non-finite losses (diverged runs) are left out.
    """
    rates, values = np.asarray(learning_rates, float), np.asarray(losses, float)
    kept = np.isfinite(values)
    if not kept.any() or np.any(rates <= 0):
        raise ValueError("learning_rates must be positive and at least one loss finite")
    rates, values = rates[kept], values[kept]
    order = np.argsort(rates)
    x, y = np.log(rates[order]), values[order]
    best = int(np.argmin(y))
    if not 0 < best < len(x) - 1:
        return float(np.exp(x[best]))
    a, b, _ = np.polyfit(x[best - 1 : best + 2] - x[best], y[best - 1 : best + 2], 2)
    return float(np.exp(x[best] - b / (2 * a))) if a > 0 else float(np.exp(x[best]))


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
    columns = {"counted_parameters": counted_parameters, "experts": experts, "learning_rates": learning_rates}
    logs = {}
    for name, column in columns.items():
        values = np.asarray(column, float)
        if values.ndim != 1 or np.any(~np.isfinite(values)) or np.any(values <= 0):
            raise ValueError(f"{name} must be one column of positive finite numbers")
        logs[name] = np.log(values)
    log_n, log_e, target = logs.values()
    if not len(log_n) == len(log_e) == len(target):
        raise ValueError("counted_parameters, experts and learning_rates must have the same length")
    design = np.stack([np.ones_like(log_n), log_n, *([log_e] if with_experts else [])], axis=1)
    if len(target) < design.shape[1] or np.linalg.matrix_rank(design - [0, *design[:, 1:].mean(0)]) < design.shape[1]:
        what = "model sizes and numbers of experts" if with_experts else "model sizes"
        raise ValueError(f"{len(target)} rows with too few different {what} to determine the learning-rate law")
    solution = np.linalg.lstsq(design, target, rcond=None)[0]
    rmse = math.sqrt(float(np.mean((design @ solution - target) ** 2)))
    slope_e = float(solution[2]) if with_experts else 0.0
    source = f"least squares on {len(target)} models"
    return LearningRateLaw(float(solution[0]), float(solution[1]), slope_e, reading, source, rmse)
