"""Forecasts of two models under nine learning-rate schedules, without a finished run, with one, and with all others.

The curves are those of Luo et al. (2025, arXiv 2503.12811), under the MIT licence. The law is of another corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hub.base.tables import Part
from scaling_law import LiveEstimate, LiveForecast, TrainingCurve, published
from studies.common import read_csv, rms

CURVES = Path(__file__).parent / "schedules.csv"
SHARES = (0.5, 0.7, 0.9)
ALONE = "none: a law of another corpus"
ONE = "one decayed run of the model"
ALL = "all others of the model"
WAYS = (ALONE, ONE, ALL)
N_ACTIVE = {"25M": 25e6, "400M": 400e6}
TOKENS_PER_STEP = 5e5
# Steps of the linear warm-up, from where the first row is.
WARMUP_STEPS = 2160
# The final loss is the mean of this last share of the rows; the smoothed last loss that of twice as many.
LAST_SHARE = 0.01
RATES = 1001


@dataclass(frozen=True)
class Row:
    """A line of a curve."""

    model: str
    schedule: str
    step: int
    rate: float
    loss: float


class Run(NamedTuple):
    """A finished run of a model under a schedule."""

    model: str
    schedule: str
    curve: TrainingCurve


class Judged(NamedTuple):
    """A forecast at a share of a run, with the smoothed loss there, in ln L from the final loss."""

    finished: str
    run: Run
    share: float
    smoothed_error: float
    error: float
    estimate: LiveEstimate

    @property
    def half_width(self) -> float:
        """Half of the 90 % interval, in ln L."""
        low, high = self.estimate.interval()
        return float(np.log(high / low) / 2)


def read() -> list[Run]:
    """Read the curves."""
    rows: dict[tuple[str, str], list[Row]] = {}
    for row in read_csv(CURVES, Row):
        rows.setdefault((row.model, row.schedule), []).append(row)
    return [Run(model, schedule, _curve(lines)) for (model, schedule), lines in rows.items()]


def _curve(rows: Sequence[Row]) -> TrainingCurve:
    """Make a curve with its whole schedule, and the mean of its last rows as the final loss."""
    steps = np.array([row.step for row in rows], float)
    losses = np.array([row.loss for row in rows])
    is_decaying = steps > WARMUP_STEPS
    known_steps = np.concatenate([[0, WARMUP_STEPS], steps[is_decaying]])
    peak = max(row.rate for row in rows)
    known_rates = np.concatenate([[0, peak], np.array([row.rate for row in rows])[is_decaying]])
    rates = np.interp(np.linspace(0, steps[-1], RATES), known_steps, known_rates)
    return TrainingCurve(
        steps * TOKENS_PER_STEP,
        losses,
        float(steps[-1] * TOKENS_PER_STEP),
        {"n_active": N_ACTIVE[rows[0].model]},
        final=float(np.mean(losses[-_last_rows(losses) :])),
        trunk=f"{rows[0].model} {rows[0].schedule}",
        rates=rates,
    )


def _last_rows(losses: np.ndarray, share: float = LAST_SHARE) -> int:
    return int(np.ceil(share * len(losses)))


def judge(
    runs: Sequence[Run],
    ways: Sequence[str] = WAYS,
    shares: Sequence[float] = SHARES,
) -> Iterator[Judged]:
    """Forecast every run at every share, from no finished run, each decayed one of its model, and all of them."""
    law = published("chinchilla")
    for run in runs:
        peers = [peer for peer in runs if peer.model == run.model and peer is not run]
        forecasts = [
            (ALONE, LiveForecast(law=law)),
            (ALL, LiveForecast([peer.curve for peer in peers], law)),
        ]
        for peer in peers:
            if not peer.schedule.startswith("constant"):
                forecasts.append((ONE, LiveForecast([peer.curve], law)))
        asked_forecasts = [(way, forecast) for way, forecast in forecasts if way in ways]
        for share in shares:
            yield from _judge_at(run, share, asked_forecasts)


def _judge_at(run: Run, share: float, forecasts: Sequence[tuple[str, LiveForecast]]) -> Iterator[Judged]:
    """Forecast a run at a share."""
    final = run.curve.final or np.nan
    curve = run.curve.until(share)
    n_recent = _last_rows(run.curve.losses, 2 * LAST_SHARE)
    smoothed_error = float(np.log(curve.losses[-n_recent:].mean() / final))
    for finished, forecast in forecasts:
        estimate = forecast.of(curve)
        if estimate:
            error = float(np.log(estimate.loss / final))
            yield Judged(finished, run, share, smoothed_error, error, estimate)


def guess_schedule(run: Run, decay: float) -> Run:
    """Return a run of which only this is taken to be known: a decay to 0 over the last share of the tokens."""
    warmup_tokens = WARMUP_STEPS * TOKENS_PER_STEP
    return run._replace(curve=replace(run.curve, rates=None, decay=decay, warmup_tokens=warmup_tokens))


def without_rates(runs: Sequence[Run]) -> Iterator[Part]:
    """List errors and coverage where the schedule is not known and a decay is taken for it."""
    yield "taken for the schedule", *(f"at {share:.0%}: error, held by 90 %" for share in SHARES)
    for name, decay in (("the true rates", None), ("a decay over the last fifth", 0.2), ("a decay over all", 1.0)):
        guesses = runs
        if decay is not None:
            guesses = [guess_schedule(run, decay) for run in runs]
        judged = [*judge(guesses, (ALONE, ONE))]
        cells = []
        for share in SHARES:
            rows = [row for row in judged if row.share == share]
            error = rms_percent([row.error for row in rows])
            cells.append(f"{error:.2f}%, {coverage(rows):.0%}")
        yield name, *cells


def rms_percent(errors: Sequence[float]) -> float:
    """Return the RMS of errors of ln L, in percent."""
    return 100 * rms(np.array(errors))


def coverage(rows: Sequence[Judged]) -> float:
    """Return the share of final losses that the 90 % intervals hold."""
    return float(np.mean([abs(row.error) < row.half_width for row in rows]))


def width(rows: Sequence[Judged]) -> float:
    """Return the mean width of the 90 % intervals in RMS errors."""
    widths = [2 * row.half_width for row in rows]
    return float(np.mean(widths) / rms(np.array([row.error for row in rows])))


def summarize(judged: Sequence[Judged]) -> Iterator[Part]:
    """List errors, coverage and widths by what had finished and the share seen."""
    yield "finished runs", "tokens seen", "n", "smoothed last loss", "forecast", "90 % holds", "its width"
    for finished in WAYS:
        for share in SHARES:
            rows = [row for row in judged if row.finished == finished and row.share == share]
            yield (
                finished,
                f"{share:.0%}",
                len(rows),
                f"{rms_percent([row.smoothed_error for row in rows]):.2f}%",
                f"{rms_percent([row.error for row in rows]):.2f}%",
                f"{coverage(rows):.0%}",
                f"{width(rows):.1f} RMSE",
            )


def by_schedule(judged: Sequence[Judged]) -> Iterator[Part]:
    """List errors by schedule: of the smoothed last loss, without a finished run, and with one."""
    yield "schedule", *(f"at {share:.0%}: last, none, one" for share in SHARES)
    for schedule in dict.fromkeys(row.run.schedule for row in judged):
        cells = []
        for share in SHARES:
            rows = [row for row in judged if row.run.schedule == schedule and row.share == share]
            alone = [row for row in rows if row.finished == ALONE]
            with_one = [row for row in rows if row.finished == ONE]
            smoothed = rms_percent([row.smoothed_error for row in alone])
            error_alone = rms_percent([row.error for row in alone])
            error_with_one = rms_percent([row.error for row in with_one])
            cells.append(f"{smoothed:.2f}, {error_alone:.2f}, {error_with_one:.2f}%")
        yield schedule, *cells


def is_always_nearer(judged: Sequence[Judged]) -> bool:
    """Return whether forecasts are nearer than the smoothed last loss, for each schedule, share and way."""
    for schedule in {row.run.schedule for row in judged}:
        for share in SHARES:
            for way in WAYS:
                cell = (schedule, share, way)
                rows = [row for row in judged if (row.run.schedule, row.share, row.finished) == cell]
                error = rms_percent([row.error for row in rows])
                smoothed_error = rms_percent([row.smoothed_error for row in rows])
                if error > smoothed_error:
                    return False
    return True
