"""Predictions written down before the runs: from how many tokens on experts pay, for sizes and E that no fit has seen.

The interval covers how the fit moves with other trunks, and how far the crossings measured so far, of the same E where
there are enough, lie from its own. Beside it the stack of `scaling_law.forecast` says the losses, in a ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hub.base import strict_json
from hub.base.errors import InputError
from scaling_law import Architecture, forecast
from scaling_law.fitting import finite
from scaling_law.forecasting import ledger
from scaling_law.planning import drawn_break_even
from studies.common import LEVEL, write_once
from studies.crossing.cells import Gap
from studies.crossing.laws import Results
from studies.crossing.records import BLOCKS, EXPERTS, HEAD, VOCABULARY, WIDTHS

FORMAT = "crossing_prediction"
LEAST = 3  # crossings that say how far a law is off
FORECAST_AT = (5e5, 1e6, 2e6, 4e6, 8e6)  # bytes
STACKED = ("chinchilla", "prior", "prior by compute", "joint")  # not the published law: its losses have another unit


def write(results: Results, asked: Iterable[tuple[int, ...]], records: Path, path: Path) -> Path:
    """FileExistsError if there is a prediction; ValueError for a size and E that are fitted, or measured already."""
    wanted, measured = [*asked], {(gap.d_model, gap.experts) for gap in results.all_gaps}
    for d_model, experts in wanted:
        if (d_model in WIDTHS and experts in EXPERTS) or (d_model, experts) in measured:
            raise InputError(
                f"d_model={d_model}, experts={experts}: fitted or measured already; predict another model"
            )
    fields = {
        "runs": len(results.sweep.runs),
        "sha256": hashlib.sha256(records.read_bytes()).hexdigest(),
        "between": results.between,
        "laws": {name: law.coefficients for name, law in results.laws.items()},
        "models": [_prediction(results, *model) for model in wanted],
    }
    return write_once(path, FORMAT, fields)


def register(results: Results, asked: Iterable[tuple[int, ...]], folder: Path) -> list[str]:
    """Keep forecasts of the losses of these models and of their dense twins in a ledger; the names of its records."""
    models = dict.fromkeys((d_model, e) for d_model, experts in asked for e in (1, experts))
    points = [{"n_active": _size(d), "tokens": tokens, "experts": e} for d, e in models for tokens in FORECAST_AT]
    runs, level = results.sweep.runs, LEVEL[1] - LEVEL[0]
    return ledger.register(folder, forecast(runs, points, kinds=STACKED, level=level).rows, level, runs)


def load(path: Path) -> dict[str, Any]:
    """What `write` wrote; 0 is below the D searched, None above it."""
    return strict_json.read(path, FORMAT, 1)


def holds(model: dict[str, Any], gap: Gap) -> bool:
    """Whether the crossing measured can lie inside the interval predicted."""
    low, high = (np.inf if end is None else end for end in model["interval"][1:])
    return bool(low <= np.clip(gap.crossing, *gap.between) <= high)


def _prediction(results: Results, d_model: int, experts: int) -> dict[str, Any]:
    n_active = _size(d_model)
    *others, fitted = results.laws
    said = {name: finite(float(results.asked(law, n_active, experts))) for name, law in results.laws.items()}
    drawn = drawn_break_even(results.drawn.law, n_active, experts, results.between)
    bracketed = [gap for gap in results.gaps if gap.bracketed]
    same = [gap for gap in bracketed if gap.experts == experts]
    bracketed = same if len(same) >= LEAST else bracketed
    predicted = [float(results.asked(results.laws[fitted], gap.n_active, gap.experts)) for gap in bracketed]
    ratios = np.array([said / gap.crossing for said, gap in zip(predicted, bracketed, strict=True)])
    ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
    if len(ratios) >= LEAST:
        drawn = np.outer(drawn, 1.0 / ratios).ravel()
    interval = said[fitted], *map(finite, np.quantile(drawn, LEVEL, method="nearest"))
    model = {"d_model": d_model, "experts": experts, "n_active": n_active}
    return model | {"interval": interval, "others": {name: said[name] for name in others}}


def _size(d_model: int) -> int:
    """Active parameters of a model of the sweep, whatever its E."""
    return Architecture(d_model, 1, BLOCKS, d_model // HEAD, VOCABULARY).n_active
