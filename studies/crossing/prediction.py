"""Predictions written down before the runs: from how many tokens on experts pay, for sizes and E that no fit has seen.

The interval covers how the fit moves with other trunks, and how far the crossings measured so far lie from its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hub import RecordError
from hub.plain import strict_json
from scaling_law import Architecture, Law
from scaling_law.planning import drawn_break_even
from studies.crossing.gaps import LEVEL, Gap
from studies.crossing.laws import FITTED, Results
from studies.crossing.records import BLOCKS, EXPERTS, HEAD, VOCABULARY, WIDTHS

FORMAT, VERSION = "crossing_prediction", 1
ASKED = ((80, 12), (80, 3))  # d_model, E: one beyond the E of the sweep, one between them, of the same dense models
LEAST = 3  # crossings that say how far a law is off
Interval = tuple[float | None, float | None, float | None]


@dataclass(frozen=True)
class Prediction:
    """The D from which on experts pay, by the law fitted to the sweep with its 95 % interval, and by the other laws.

    0 is below the D searched, None above it.
    """

    d_model: int
    experts: int
    n_active: int
    interval: Interval
    others: Mapping[str, float | None]

    def holds(self, gap: Gap) -> bool:
        """Whether the crossing measured can lie inside the interval."""
        _, low, high = (np.inf if end is None else end for end in self.interval)
        at = np.clip(gap.crossing[0], gap.tokens[0], gap.tokens[-1])
        return bool(low <= at <= high)


@dataclass(frozen=True)
class Predictions:
    """All made at one time, by laws of `runs` runs of a file with this sha256, asked for a D in `between`."""

    runs: int
    sha256: str
    between: tuple[float, float]
    laws: Mapping[str, Mapping[str, float]]
    models: tuple[Prediction, ...]


def predict(results: Results, records: Path, asked: Iterable[tuple[int, int]] = ASKED) -> Predictions:
    """ValueError for a size and E that are fitted, or measured already, and for runs that determine no law."""
    wanted, measured = [*asked], {(gap.d_model, gap.experts) for gap in results.all_gaps}
    for d_model, experts in wanted:
        if d_model in WIDTHS and experts in EXPERTS:
            raise ValueError(
                f"d_model={d_model}, experts={experts}: part of the sweep; a prediction must be of another"
            )
        if (d_model, experts) in measured:
            raise ValueError(f"d_model={d_model}, experts={experts}: measured already; too late for a prediction")
    if results.drawn is None:
        raise ValueError(f"{records}: these runs do not determine the law that predicts")
    models = tuple(_prediction(results, results.drawn.law, *model) for model in wanted)
    laws = {name: law.coefficients for name, law in results.laws.items()}
    sha256 = hashlib.sha256(records.read_bytes()).hexdigest()
    return Predictions(len(results.sweep.runs), sha256, results.between, laws, models)


def _prediction(results: Results, drawn: Law, d_model: int, experts: int) -> Prediction:
    n_active = Architecture(d_model, experts, BLOCKS, d_model // HEAD, VOCABULARY).n_active
    tokens = {name: _known(float(results.asked(law, n_active, experts))) for name, law in results.laws.items()}
    interval = tokens.pop(FITTED), *_interval(results, drawn, n_active, experts)
    return Prediction(d_model, experts, n_active, interval, tokens)


def _interval(results: Results, law: Law, n_active: int, experts: int) -> tuple[float | None, float | None]:
    """Of every draw of the law, times every factor by which a crossing measured lies off its own."""
    drawn = drawn_break_even(law, n_active, experts, results.between)
    ratios = results.comparison(law).ratios
    if len(ratios) >= LEAST:
        drawn = np.outer(drawn, 1.0 / ratios).ravel()
    low, high = np.quantile(drawn, LEVEL, method="nearest")
    return _known(low), _known(high)


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def save(predictions: Predictions, path: Path) -> Path:
    """Write them, unless there are some already: FileExistsError, since a prediction is made once."""
    if path.exists():
        raise FileExistsError(f"{path}: predictions are made once; remove the file to make them again")
    return strict_json.write(path, FORMAT, VERSION, asdict(predictions))


def load(path: Path) -> Predictions | None:
    """None if there are none yet. RecordError for a file that holds no predictions."""
    if not path.exists():
        return None
    data = strict_json.read(path, FORMAT, VERSION)
    try:
        models = tuple(
            Prediction(m["d_model"], m["experts"], m["n_active"], tuple(m["interval"]), m["others"])
            for m in data["models"]
        )
        low, high = data["between"]
        return Predictions(data["runs"], data["sha256"], (low, high), data["laws"], models)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: no predictions of a crossing ({error!r})") from None
