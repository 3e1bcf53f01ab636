"""The numbers of docs/studies/live.md: error and coverage of forecasts against the share of tokens seen.

Errors are of held-out losses, in nats per byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hub.base.units import UNKNOWN
from scaling_law import JointLaw, Law, LiveEstimate, LiveForecast, Runs, TrainingCurve, fit, published
from scaling_law.figures import drawing
from studies.common import Page, Part, rms
from studies.live import left_out as by_model
from studies.live import schedules as under_schedules
from studies.live import trunks
from studies.live.trunks import SHORTEST, Logged, Sweep
from studies.live.trunks import take as take

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
TRUNK = "the trunk"
SIZE = "all of its size"
FIRST = "all logs: the law alone"
LAWLESS = "the trunk; without a law"
WAYS = (TRUNK, SIZE, FIRST, LAWLESS)
# The shares in the table of the page.
SHOWN_SHARES = (0.1, 0.5, 0.9)
# The threshold of the crossing.
HUBER = 0.05
# Losses are raised from this share of the tokens on, and a trunk is looked at 14 times.
RAISED_FROM = 0.4
LOOKS = np.linspace(0.1, 0.75, 14)
SHOWN = "crossing-d48-b3-h3-E4-seed1"


class Judged(NamedTuple):
    """A forecast at a share of a run, with its final loss, the law's and the last logged loss; nats per byte."""

    left_out: str
    run: Logged
    share: float
    final: float
    last: float
    law: float
    forecast: LiveEstimate


@dataclass(frozen=True)
class Results:
    """The sweeps, and their forecasts when they are asked for."""

    sweeps: Sequence[Sweep]

    @cached_property
    def judged(self) -> list[Judged]:
        """The forecasts of every run, at every share, with everything left out in turn."""
        return [judged for sweep in self.sweeps for judged in _judge(sweep)]

    def at(self, left_out: str, share: float) -> list[Judged]:
        """Return the forecasts at a share with this left out."""
        return [row for row in self.judged if row.left_out == left_out and row.share == share]

    @cached_property
    def under_schedules(self) -> list[under_schedules.Judged]:
        """The forecasts of the models under nine schedules."""
        return [*under_schedules.judge(under_schedules.read())]

    @cached_property
    def by_model(self) -> list[by_model.LeftOut]:
        """The forecasts of each model by constants that the other one's curves choose."""
        return [*by_model.judge_left_out(under_schedules.read())]

    @cached_property
    def logged(self) -> list[Logged]:
        """The runs with a log."""
        return [run for sweep in self.sweeps for run in sweep.logged]


# A law fitted without what is left out, and the curves that are not left out.
Sources = tuple[Law | None, list[TrainingCurve]]


def _judge(sweep: Sweep) -> Iterator[Judged]:
    """Forecast every run of a sweep with each of `WAYS` left out."""
    base = _fit(sweep.runs, JointLaw.published()) or JointLaw.published()
    for trunk in sorted({run.trunk for run in sweep.logged}):
        runs_of_trunk = [run for run in sweep.logged if run.trunk == trunk]
        law, peers = _without(sweep, runs_of_trunk[0], base, TRUNK)
        # Without another trunk there is no law to forecast by.
        if law is None:
            continue
        size_law, size_peers = _without(sweep, runs_of_trunk[0], base, SIZE)
        sources: dict[str, Sources] = {TRUNK: (law, peers), FIRST: (law, []), LAWLESS: (None, peers)}
        if size_law is not None:
            sources[SIZE] = (size_law, size_peers)
        for run in runs_of_trunk:
            if run.curve.horizon > SHORTEST:
                yield from _judge_run(run, law, sources)


def _judge_run(run: Logged, trunk_law: Law, sources: Mapping[str, Sources]) -> Iterator[Judged]:
    """Forecast a run at every share; the law without its trunk stands in where there is none."""
    final = run.curve.final or np.nan
    inputs = {name: run.curve.model[name] for name in trunk_law.variables if name != "tokens"}
    for left_out in WAYS:
        if left_out not in sources:
            continue
        law, peers = sources[left_out]
        if not peers and left_out != FIRST:
            continue
        forecast = LiveForecast(peers, law)
        law_loss = float((law or trunk_law).loss(**inputs, tokens=run.curve.horizon))
        for share in SHARES:
            curve = _seen(run.curve, share)
            estimate = forecast.of(curve)
            if estimate:
                yield Judged(left_out, run, share, final, float(curve.losses[-1]), law_loss, estimate)


def _seen(curve: TrainingCurve, share: float) -> TrainingCurve:
    """Cut a run at a share of its tokens.

    At the first share, before which nothing is said, the next line of its log is part of the run.
    """
    if share > SHARES[0]:
        return curve.until(share)
    later_tokens = curve.tokens[curve.tokens >= share * curve.horizon]
    if not len(later_tokens):
        return curve
    return curve.until(later_tokens[0] / curve.horizon)


def _without(sweep: Sweep, run: Logged, base: Law, left_out: str) -> Sources:
    """Fit a law to the other runs of the sweep, and return it with their curves."""
    if left_out == SIZE:
        is_other = sweep.runs["d_model"] != run.d_model
        peers = [peer.curve for peer in sweep.logged if peer.d_model != run.d_model]
    else:
        is_other = np.array([sweep.trunks[run_id] != run.trunk for run_id in sweep.runs.run_id])
        peers = [peer.curve for peer in sweep.logged if peer.trunk != run.trunk]
    return _fit(sweep.runs.subset(is_other), base), peers


def _fit(runs: Runs, start: Law) -> Law | None:
    """Fit the joint law; None where nothing is left to fit to."""
    if not len(runs):
        return None
    return fit(runs, "joint", huber_delta=HUBER, prior=JointLaw.published(), starts=[start]).law


# ------------------------------------------------------------------ the page


def errors(r: Results) -> Iterator[Part]:
    """List errors and coverage by what is left out and the share seen."""
    head = ("left out", "tokens seen", "trunks", "n")
    yield *head, "last loss", "law", "forecast", "within 50 %", "90 %", "99 %", "± of 90 %"
    for left_out in WAYS:
        for share in SHOWN_SHARES:
            rows = r.at(left_out, share)
            if not rows:
                continue
            half_widths = [np.ptp(row.forecast.interval()) / 2 for row in rows]
            yield (
                left_out,
                f"{share:.0%}",
                len({row.run.trunk for row in rows}),
                len(rows),
                f"{last_error(rows):.3f}",
                UNKNOWN if left_out == LAWLESS else f"{law_error(rows):.4f}",
                f"{forecast_error(rows):.4f}",
                *(f"{coverage(rows, level):.0%}" for level in (0.5, 0.9, 0.99)),
                f"{np.mean(half_widths):.3f}",
            )


def schedules(r: Results) -> Iterator[Part]:
    """List errors and coverage under nine schedules by the runs that had finished."""
    yield from under_schedules.summarize(r.under_schedules)


def without_rates(r: Results) -> Iterator[Part]:
    """List errors and coverage where the schedule is not known."""
    yield from under_schedules.without_rates(under_schedules.read())


def each_schedule(r: Results) -> Iterator[Part]:
    """List errors under each schedule."""
    yield from under_schedules.by_schedule(r.under_schedules)


def left_out_models(r: Results) -> Iterator[Part]:
    """List errors under nine schedules by constants that the other model's curves choose."""
    yield from by_model.summarize(r.by_model)


def _off_track_rate(r: Results, raised: float) -> float:
    """Return the share of trunks said to be off the track when their losses are raised from 40 % of the tokens on."""
    verdicts = []
    for sweep in r.sweeps:
        for trunk in sorted({run.trunk for run in sweep.logged}):
            curves = [run.curve for run in sweep.logged if run.trunk == trunk]
            peers = [run.curve for run in sweep.logged if run.trunk != trunk]
            forecast = LiveForecast(peers)
            longest = max(curves, key=lambda curve: curve.horizon)
            is_late = longest.tokens > RAISED_FROM * longest.horizon
            factors = np.where(is_late, 1.0 + raised, 1.0)
            curve = replace(longest, losses=longest.losses * factors)
            estimates = [forecast.of(curve.until(share)) for share in LOOKS]
            verdicts.append(any(estimate is not None and estimate.off_track() for estimate in estimates))
    return float(np.mean(verdicts))


def off_track(r: Results) -> Iterator[Part]:
    """List how many trunks are said to be off the track when their losses are raised."""
    yield "raised by", "said to be off the track"
    for raised in (0.0, 0.05, 0.1, 0.2):
        yield f"{raised:.0%}", f"{_off_track_rate(r, raised):.0%}"


def last_error(rows: Sequence[Judged]) -> float:
    """Return the RMS difference of the last logged loss and the final one."""
    return rms(np.array([row.last - row.final for row in rows]))


def forecast_error(rows: Sequence[Judged]) -> float:
    """Return the RMS error of the forecasts."""
    return rms(np.array([row.forecast.loss - row.final for row in rows]))


def law_error(rows: Sequence[Judged]) -> float:
    """Return the RMS error of the law."""
    return rms(np.array([row.law - row.final for row in rows]))


def coverage(rows: Sequence[Judged], level: float) -> float:
    """Return the share of the final losses that the intervals hold."""
    is_inside = []
    for row in rows:
        low, high = row.forecast.interval(level)
        is_inside.append(low < row.final < high)
    return float(np.mean(is_inside))


def _without_trunk(r: Results) -> list[Judged]:
    return [row for row in r.judged if row.left_out == TRUNK]


def values(r: Results) -> dict[str, str]:
    """Return the numbers in the page's sentences."""
    tenth, half, end = (r.at(TRUNK, share) for share in SHOWN_SHARES)
    lawless_half = r.at(LAWLESS, 0.5)
    lawless_end = r.at(LAWLESS, 0.9)
    alone_half = r.at(FIRST, 0.5)
    alone_end = r.at(FIRST, 0.9)
    return {
        "trunks": str(len({run.trunk for run in r.logged})),
        "tenth": str(len({row.run.trunk for row in tenth})),
        "law": f"{law_error(half):.3f}",
        "half": f"{forecast_error(half):.3f}",
        "end": f"{forecast_error(end):.3f}",
        "last": f"{last_error(end):.3f}",
        "lawless-half": f"{forecast_error(lawless_half):.3f}",
        "lawless-end": f"{forecast_error(lawless_end):.3f}",
        "alone-law-half": f"{forecast_error(alone_half):.3f}",
        "alone-law-end": f"{forecast_error(alone_end):.3f}",
        "foreign": f"{_foreign_rate(r):.0%}",
        "left-out-half": f"{_left_out_error(r):.2f}%",
        **_under_schedules(r),
        "held": f"{coverage(_without_trunk(r), 0.9):.0%}",
    }


def _under_schedules(r: Results) -> dict[str, str]:
    """Return the errors under nine schedules at half and at 90 % of the tokens."""
    numbers = {}
    for name, way in (("alone", under_schedules.ALONE), ("one", under_schedules.ONE)):
        for share, word in ((0.5, "half"), (0.9, "end")):
            rows = [row for row in r.under_schedules if row.finished == way and row.share == share]
            numbers[f"{name}-{word}"] = f"{under_schedules.rms_percent([row.error for row in rows]):.2f}%"
    return numbers


def _left_out_error(r: Results) -> float:
    """Return the error at half of the tokens with one finished run, in percent, by constants of the other model."""
    errors = [by_model.error_at(row, 0.5) for row in r.by_model if row.chosen_on != by_model.SHIPPED]
    return rms(np.array(errors))


def _foreign_rate(r: Results) -> float:
    """Return the share of runs at half of their tokens for which a law 15 % above is said to be of another corpus."""
    law = published("chinchilla")
    verdicts = []
    for run in under_schedules.read():
        inputs = {"n_active": run.curve.model["n_active"], "tokens": run.curve.horizon}
        law_loss = float(law.loss(**inputs))
        factor = law_loss / (run.curve.final or np.nan) / 1.15
        curve = replace(run.curve, losses=run.curve.losses * factor)
        estimate = LiveForecast(law=law).of(curve.until(0.5))
        verdicts.append(estimate is not None and estimate.is_law_foreign())
    return float(np.mean(verdicts))


def live_errors(r: Results) -> Any:
    """Draw RMSE against the share of tokens seen; and one trunk with its forecast and interval as it trains."""
    axes = drawing.panels_or_new(None, 2, 9.6, 4.4)
    _draw_errors(axes[0], r)
    _draw_trunk(axes[1], r)
    for ax in axes:
        drawing.legend(ax, fontsize="small")
    return axes


def _draw_errors(ax: Any, r: Results) -> None:
    """Draw the errors of forecasts, and of the law, by the share of tokens seen."""
    for left_out, colour in zip(WAYS, ("#0072B2", "#E69F00", "#D55E00", "0.5"), strict=True):
        shares = [share for share in SHARES if r.at(left_out, share)]
        forecast_errors = [forecast_error(r.at(left_out, share)) for share in shares]
        ax.plot(shares, forecast_errors, "o-", color=colour, label=f"without {left_out}")
    shares = [share for share in SHARES if r.at(TRUNK, share)]
    ax.plot(shares, [law_error(r.at(TRUNK, share)) for share in shares], "k--", label="law, without the trunk")
    ax.set(xlabel="share of tokens seen", ylabel="RMSE (nats per byte)", ylim=(0, None))


def _draw_trunk(ax: Any, r: Results) -> None:
    """Draw the longest run of one trunk with its forecast and 90 % interval as it trains."""
    (sweep,) = (sweep for sweep in r.sweeps if sweep.name == "crossing")
    run = max((run for run in sweep.logged if run.trunk == SHOWN), key=lambda run: run.curve.horizon)
    law, peers = _without(sweep, run, JointLaw.published(), TRUNK)
    forecast = LiveForecast(peers, law)
    estimates = []
    for share in np.linspace(0.1, 1.0, 91):
        estimate = forecast.of(run.curve.until(share))
        if estimate:
            estimates.append(estimate)
    shares = np.array([estimate.share for estimate in estimates])
    low, high = np.array([estimate.interval() for estimate in estimates]).T
    shares_logged = run.curve.tokens / run.curve.horizon
    ax.plot(shares_logged, run.curve.losses, label="training loss", color="0.7", linewidth=0.8)
    ax.fill_between(shares, low, high, color="#0072B2", alpha=0.25, linewidth=0, label="90 %")
    losses = [estimate.loss for estimate in estimates]
    ax.plot(shares, losses, color="#0072B2", label="forecast of the final loss")
    ax.axhline(run.curve.final or np.nan, color="k", linewidth=0.8, label="final loss, held out")
    ax.set(xlabel="share of tokens seen", ylabel="loss (nats per byte)", ylim=(1.2, 2.4))


def live(r: Results) -> Iterator[Part]:
    """List every forecast."""
    yield "left_out", "trunk", "tokens", "share", "final", "last", "law", "forecast", "low", "high"
    for row in r.judged:
        numbers = (row.final, row.last, row.law, row.forecast.loss, *row.forecast.interval())
        texts = [f"{number:.4f}" for number in numbers]
        yield row.left_out, row.run.trunk, int(row.run.curve.horizon), row.share, *texts


def _relative_error(r: Results, left_out: str, share: float) -> float:
    """Return the error of the forecast over that of the law."""
    return forecast_error(r.at(left_out, share)) / law_error(r.at(left_out, share))


def is_nearer_than_last_loss(r: Results) -> bool:
    """Return whether forecasts are far nearer than the last loss, whatever is left out."""
    for left_out in WAYS:
        for share in SHARES:
            rows = r.at(left_out, share)
            if rows and not forecast_error(rows) < 0.5 * last_error(rows):
                return False
    return True


CLAIMS = {
    "under every schedule the forecast is nearer than the smoothed last loss": lambda r: (
        under_schedules.is_always_nearer(r.under_schedules)
    ),
    "the forecast is far nearer than the last loss": is_nearer_than_last_loss,
    "against a law of the sweep it gains only late": lambda r: (
        0.9 < _relative_error(r, TRUNK, 0.5) < 1.1 and _relative_error(r, TRUNK, 0.9) < 0.8
    ),
    "from half of the tokens on it does without a law": lambda r: all(
        forecast_error(r.at(LAWLESS, share)) < 1.5 * law_error(r.at(TRUNK, share)) for share in SHARES if share >= 0.5
    ),
    "its intervals hold": lambda r: coverage(_without_trunk(r), 0.9) > 0.87,
    "a young run moves an unchecked law a little too far": lambda r: (
        1.0 < max(_relative_error(r, FIRST, share) for share in SHARES) < 1.45
    ),
}


PAGE = Page(
    read=lambda: Results(trunks.read()),
    blocks=(schedules, each_schedule, without_rates, left_out_models, errors, off_track),
    tables=(live,),
    figures=(live_errors,),
    values=values,
    claims=CLAIMS,
)
