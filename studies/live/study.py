"""The numbers of docs/studies/live.md: error and coverage of forecasts against the share of tokens seen.

Errors are of held-out losses, in nats per byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hub.base.units import UNKNOWN
from scaling_law import JointLaw, Law, LiveEstimate, LiveForecast, Runs, TrainingCurve, fit
from scaling_law.figures import drawing
from studies.common import Page, Part, rms
from studies.live import trunks
from studies.live.trunks import SHORTEST, Logged, Sweep
from studies.live.trunks import take as take

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
TRUNK, SIZE, FIRST, LAWLESS = "the trunk", "all of its size", "all logs: the law alone", "the trunk; without a law"
WAYS = TRUNK, SIZE, FIRST, LAWLESS
SHOWN_SHARES = (0.1, 0.5, 0.9)  # in the table of the page
HUBER = 0.05  # as in the crossing
SHOWN = "crossing-d48-b3-h3-E4-seed1"


class Judged(NamedTuple):
    """A forecast at a share of a run, with its final loss, the law's and the last logged loss; nats per byte."""

    left_out: str
    run: Logged
    share: float
    final: float
    last: float
    law: float
    said: LiveEstimate


@dataclass(frozen=True)
class Results:
    sweeps: Sequence[Sweep]

    @cached_property
    def judged(self) -> list[Judged]:
        return [judged for sweep in self.sweeps for judged in _judge(sweep)]

    def at(self, left_out: str, share: float) -> list[Judged]:
        return [one for one in self.judged if one.left_out == left_out and one.share == share]

    @cached_property
    def logged(self) -> list[Logged]:
        return [one for sweep in self.sweeps for one in sweep.logged]


def _judge(sweep: Sweep) -> Iterator[Judged]:
    base = _fitted(sweep.runs, JointLaw.published()) or JointLaw.published()
    for trunk in sorted({one.trunk for one in sweep.logged}):
        of_it = [one for one in sweep.logged if one.trunk == trunk]
        law, finished = _without(sweep, of_it[0], base, TRUNK)
        if law is None:  # no other trunk
            continue
        ways = {TRUNK: (law, finished), SIZE: _without(sweep, of_it[0], base, SIZE)}
        ways |= {FIRST: (law, []), LAWLESS: (None, finished)}
        for one in (one for one in of_it if one.curve.horizon > SHORTEST):
            for left_out, (way, peers) in ways.items():
                if (not peers and left_out != FIRST) or (left_out == SIZE and way is None):
                    continue
                forecast, final = LiveForecast(peers, way), one.curve.final or np.nan
                asked = {name: one.curve.model[name] for name in law.variables if name != "tokens"}
                bare = float((way or law).loss(**asked, tokens=one.curve.horizon))
                for share in SHARES:
                    seen = _seen(one.curve, share)
                    if said := forecast.of(seen):
                        yield Judged(left_out, one, share, final, float(seen.losses[-1]), bare, said)


def _seen(curve: TrainingCurve, share: float) -> TrainingCurve:
    """The run at a share of its tokens; at the first, before which nothing is said, with the next line of its log."""
    if share > SHARES[0]:
        return curve.until(share)
    after = curve.tokens[curve.tokens >= share * curve.horizon]
    return curve.until(after[0] / curve.horizon) if len(after) else curve


def _without(sweep: Sweep, one: Logged, base: Law, left_out: str) -> tuple[Law | None, list[TrainingCurve]]:
    """A law fitted to the other runs of the sweep, and their curves."""
    if left_out == SIZE:
        kept, others = sweep.runs["d_model"] != one.d_model, [o for o in sweep.logged if o.d_model != one.d_model]
    else:
        kept = np.array([sweep.trunks[run] != one.trunk for run in sweep.runs.run_id])
        others = [other for other in sweep.logged if other.trunk != one.trunk]
    return _fitted(sweep.runs.subset(kept), base), [other.curve for other in others]


def _fitted(runs: Runs, start: Law) -> Law | None:
    """None where nothing is left to fit to."""
    return fit(runs, "joint", huber_delta=HUBER, prior=JointLaw.published(), starts=[start]).law if len(runs) else None


# ------------------------------------------------------------------ the page


def errors(r: Results) -> Iterator[Part]:
    about = "left out", "tokens seen", "trunks", "n"
    yield *about, "last loss", "law", "forecast", "within 50 %", "90 %", "99 %", "± of 90 %"
    for left_out in WAYS:
        for share in SHOWN_SHARES:
            if many := r.at(left_out, share):
                misses = last_error(many), law_error(many), forecast_error(many)
                texts = [f"{misses[0]:.3f}", *(f"{miss:.4f}" for miss in misses[1:])]
                texts[1] = UNKNOWN if left_out == LAWLESS else texts[1]
                texts += [f"{held(many, level):.0%}" for level in (0.5, 0.9, 0.99)]
                texts.append(f"{np.mean([np.ptp(one.said.interval()) / 2 for one in many]):.3f}")
                yield left_out, f"{share:.0%}", len({one.run.trunk for one in many}), len(many), *texts


def last_error(many: Sequence[Judged]) -> float:
    return rms(np.array([one.last - one.final for one in many]))


def forecast_error(many: Sequence[Judged]) -> float:
    return rms(np.array([one.said.loss - one.final for one in many]))


def law_error(many: Sequence[Judged]) -> float:
    return rms(np.array([one.law - one.final for one in many]))


def held(many: Sequence[Judged], level: float) -> float:
    """The part of the final losses that the intervals hold."""
    return float(np.mean([low < one.final < high for one in many for low, high in [one.said.interval(level)]]))


def values(r: Results) -> dict[str, str]:
    tenth, half, end = (r.at(TRUNK, share) for share in (0.1, 0.5, 0.9))
    every = [one for one in r.judged if one.left_out == TRUNK]
    return {
        "trunks": str(len({one.trunk for one in r.logged})),
        "tenth": str(len({one.run.trunk for one in tenth})),
        "law": f"{law_error(half):.3f}",
        "half": f"{forecast_error(half):.3f}",
        "end": f"{forecast_error(end):.3f}",
        "last": f"{last_error(end):.3f}",
        "held": f"{held(every, 0.9):.0%}",
    }


def live_errors(r: Results) -> Any:
    """RMSE against the share of tokens seen; and one trunk with its forecast and 90 % interval as it trains."""
    left, right = axes = drawing.panels_or_new(None, 2, 9.6, 4.4)
    for left_out, colour in zip(WAYS, ("#0072B2", "#E69F00", "#D55E00", "0.5"), strict=True):
        missed = {share: forecast_error(many) for share in SHARES if (many := r.at(left_out, share))}
        left.plot([*missed], [*missed.values()], "o-", color=colour, label=f"without {left_out}")
    of_law = {share: law_error(many) for share in SHARES if (many := r.at(TRUNK, share))}
    left.plot([*of_law], [*of_law.values()], "k--", label="law, without the trunk")
    left.set(xlabel="share of tokens seen", ylabel="RMSE (nats per byte)", ylim=(0, None))
    (sweep,) = (sweep for sweep in r.sweeps if sweep.name == "crossing")
    one = max((one for one in sweep.logged if one.trunk == SHOWN), key=lambda one: one.curve.horizon)
    law, peers = _without(sweep, one, JointLaw.published(), TRUNK)
    said = [e for share in np.linspace(0.1, 1.0, 91) if (e := LiveForecast(peers, law).of(one.curve.until(share)))]
    at, band = np.array([e.share for e in said]), np.array([e.interval() for e in said]).T
    style = {"color": "0.7", "linewidth": 0.8}
    right.plot(one.curve.tokens / one.curve.horizon, one.curve.losses, label="training loss", **style)
    right.fill_between(at, *band, color="#0072B2", alpha=0.25, linewidth=0, label="90 %")
    right.plot(at, [e.loss for e in said], color="#0072B2", label="forecast of the final loss")
    right.axhline(one.curve.final or np.nan, color="k", linewidth=0.8, label="final loss, held out")
    right.set(xlabel="share of tokens seen", ylabel="loss (nats per byte)", ylim=(1.2, 2.4))
    for ax in axes:
        drawing.legend(ax, fontsize="small")
    return axes


def live(r: Results) -> Iterator[Part]:
    yield "left_out", "trunk", "tokens", "share", "final", "last", "law", "forecast", "low", "high"
    for one in r.judged:
        numbers = (one.final, one.last, one.law, one.said.loss, *one.said.interval())
        yield one.left_out, one.run.trunk, int(one.run.curve.horizon), one.share, *(f"{x:.4f}" for x in numbers)


def _error(r: Results, left_out: str, share: float) -> float:
    """Of the forecast over that of the law."""
    return forecast_error(r.at(left_out, share)) / law_error(r.at(left_out, share))


CLAIMS = {
    "the forecast is far nearer than the last loss": lambda r: all(
        forecast_error(many) < 0.5 * last_error(many)
        for left_out in WAYS
        for share in SHARES
        if (many := r.at(left_out, share))
    ),
    "against a law of the sweep it gains only late": lambda r: (
        0.9 < _error(r, TRUNK, 0.5) < 1.25 and _error(r, TRUNK, 0.9) < 0.9
    ),
    "it does without a law": lambda r: all(
        forecast_error(r.at(LAWLESS, share)) < 1.5 * law_error(r.at(TRUNK, share)) for share in SHARES[1:]
    ),
    "its intervals hold": lambda r: held([one for one in r.judged if one.left_out == TRUNK], 0.9) > 0.87,
    "a young run moves an unchecked law too far": lambda r: min(_error(r, FIRST, 0.25), _error(r, FIRST, 0.5)) > 1.0,
}


PAGE = Page(
    read=lambda: Results(trunks.read()),
    blocks=(errors,),
    tables=(live,),
    figures=(live_errors,),
    values=values,
    claims=CLAIMS,
)
