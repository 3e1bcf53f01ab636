"""The final loss of a run while it trains: a law and the run's own curve, each weighed by what it has shown.

ln of a run's training loss is taken as that of the law at the run's end, with its slope in ln D, plus

    level + slope · fall + bend · bending + gap · heat + lag · lagging + shift

`fall`, `bending`, `heat` and `lagging` follow from its schedule (`schedules`); shift is how far training loss lies
above the final one where that is held out. The six coefficients are normal: their means are those of all runs, with
a drift in ln D, ln N and ln E of which near runs tell most, and runs scatter around these. Priors say what is known
before any run has finished, finished runs with their whole curves move means and scatter (expectation maximisation),
and the lines of the run itself its own coefficients: what the end is expected to be, and how surely, follows.

A law is of the run's corpus and recipe (its level is right to 1.5 %), or of another (13 %, as between laboratories),
and the final losses of finished runs are of their training text or of a text that is held out: each hypothesis is
weighed by how well it predicts the lines and the finished runs. docs/studies/live.md measures errors and coverage.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, product
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from hub.base.errors import InputError
from hub.base.fields import reads
from hub.base.types import Fields
from scaling_law.forecasting.curves import LAST_SHARE, TrainingCurve, curve_of_lines
from scaling_law.forecasting.normals import Evidence, Mixture, learn, measure
from scaling_law.formulas.law import Formula
from scaling_law.size.arrays import FloatArray, Interval

logger = logging.getLogger(__name__)
# No forecast is made before this share of the tokens and this many log lines.
FIRST_SHARE = 0.1
MIN_LINES = 3
# Lines older than this share of those seen, and lines from the first warm-ups, do not count.
OLDEST_SHARE = 0.15
WARMUPS = 2.0
# Weights of lines in the smoothed loss: (t / sD) to this power.
SHARPNESS = 6.0
# Lines whose tokens differ by less than this factor are averaged.
STEP = 1.01
# Lines of the run itself that those of finished runs count as in the scatter of its lines. A run of fewer is not said
# to be off its track: neither their scatter nor the form of so young a curve is known.
USUAL_LINES = 10
# Misfit of a curve's form in lines within a factor of e^0.08, as a number and as a share of the scatter of lines; both
# grow with the distance to the run's end in ln t, by this much per unit.
MISFIT = 0.0004
MISFIT_OF_SCATTER = 0.2
MISFIT_SPAN = 0.08
MISFIT_GROWTH = 2.0
# The final loss scatters by this around a run's curve.
END_SCATTER = 0.0004
END_OF_SCATTER = 0.1
# The coefficients: level, slope, bend, gap, lag, shift.
GAP = 0.045
GAP_SPREAD = 0.013
LAG_SPREAD = 0.01
# Without finished runs, the shift is about the scatter of a line.
SHIFT = 0.0002
# Standard deviations between runs: these times the scatter of lines, and SEEDS.
BETWEEN_RUNS = np.array([0.5, 0.2, 0.45, 0.3, 0.2, 0.03])
SEEDS = 0.004
# Prior standard deviations of the coefficients' drifts in ln D, ln N and ln E: slope, bend, gap and lag.
DRIFTS = np.array([0.006, 0.04, 0.01, 0.003])
# Standard deviation of a finished run's weight in ln D, ln N and ln E.
NEARNESS = 1.5
# Degrees of freedom where no run has finished.
FREEDOM = 8.0
# Runs are of one size and length whose ln of D, N and E differ by less.
SAME_RUN = 0.01
# Smoothed losses are the same within this part of the spread with which they are expected.
SAME_LOSS = 0.25
# Without a law: slope of ln L in ln D and ln N.
NO_LAW = -0.1
# Without a law, nothing is said beyond this factor times the longest finished run and the range of N and E.
LONGER = 1.25
# A law whose losses are off by more than this factor (in ln L) may be of another unit.
OTHER_UNIT = 0.35
# The law's slope is taken over this factor of D.
LAW_STEP = 1.1
# A law is said to be of another corpus when that is as probable as this.
IS_OTHER = 0.9
# Most finished runs of a sweep to learn from, the nearest in N and D.
MOST_RUNS = 32
FOREIGN = "the law is of another corpus, unit or recipe than this run: the forecast follows the run's own curve"


class LiveEstimate(NamedTuple):
    """Forecast of a run's final loss at a share of its tokens; spreads are standard deviations of ln L.

    `law` is the forecast without this run's curve, by the `basis`: "law", which finished runs have corrected, or
    "finished runs". `ahead` is how far the run's smoothed loss lies above what was expected by now, in ln L, or above
    that of a finished run of its size and length that departed as much. Intervals are those of t distributions with
    `freedom` degrees of freedom. `other_corpus` is the probability that the law is of another corpus, unit or recipe
    than the run: its level then tells little, and the curve carries the forecast. `lines` is how many lines of the run
    it is made from.
    """

    share: float
    loss: float
    spread: float
    law: float
    law_spread: float
    ahead: float
    ahead_spread: float
    freedom: float
    basis: str
    other_corpus: float = 0.0
    lines: int = USUAL_LINES

    def interval(self, level: float = 0.9) -> Interval:
        """Return the losses between which the final loss lies with probability `level`."""
        half_width = self._quantile(level) * self.spread
        low, high = (self.loss * np.exp([-half_width, half_width])).tolist()
        return low, high

    def off_track(self, level: float = 0.99) -> bool:
        """Return whether the run's smoothed loss left the band in which the forecast expects it now.

        False where there are fewer than ten lines to tell it from.
        """
        return self.lines >= USUAL_LINES and abs(self.ahead) > self._quantile(level) * self.ahead_spread

    @property
    def distance(self) -> str:
        """Distance of its smoothed loss from what was expected by now: "3.2% above"."""
        return f"{abs(np.expm1(self.ahead)):.1%} {'above' if self.ahead > 0 else 'below'}"

    def is_law_foreign(self, level: float = IS_OTHER) -> bool:
        """Return whether the law is of another corpus, unit or recipe with at least this probability."""
        return self.other_corpus >= level

    def __str__(self) -> str:
        low, high = self.interval()
        return f"final loss {self.loss:.3f} ± {(high - low) / 2:.3f} (forecast; {self.basis} alone {self.law:.3f})"

    def _quantile(self, level: float) -> float:
        return float(stdtrit(self.freedom, 0.5 + level / 2))


class _Corpus(NamedTuple):
    """A hypothesis about the law: standard deviations of coefficients, and its probability.

    `level`, its drift in ln D, ln N and ln E, `slope` over that of the law, and `bend`.
    """

    level: float
    level_drift: float
    slope: float
    bend: float
    probability: float


class _Text(NamedTuple):
    """A hypothesis about the final loss of finished runs: standard deviations of shift and of its drifts."""

    shift: float
    drift: float
    probability: float


# The final loss is that of the training text, or of a text that is held out.
TRAINING_TEXT = _Text(0.0005, 0.0002, 0.5)
HELD_OUT_TEXT = _Text(0.03, 0.015, 0.5)
TEXTS = (TRAINING_TEXT, HELD_OUT_TEXT)
# The law is of this corpus and recipe; of another one; or there is none.
SAME_CORPUS = _Corpus(0.015, 0.03, 0.15, 0.06, 0.6)
OTHER_CORPUS = _Corpus(0.13, 0.03, 0.5, 0.06, 0.4)
NO_LAW_CORPUS = _Corpus(3.0, 0.15, 0.5, 0.06, 1.0)


class Lines(NamedTuple):
    """The lines of a run: evidence of its coefficients, and its smoothed loss.

    `level` is how far the smoothed loss lies above the law's in ln L, `noise` the standard deviation of that, and
    `basis` [6] what the coefficients are multiplied by in it. `scatter` is the standard deviation of one line around
    the curve, and `n_lines` how many there are.
    """

    evidence: Evidence
    level: float
    noise: float
    basis: FloatArray
    scatter: float
    n_lines: int

    def departure(self, expected: Mixture) -> tuple[float, float]:
        """Return how far the smoothed loss lies above what is expected of it, and the spread of that."""
        mean, spread = expected.project(self.basis, self.noise)
        return self.level - mean, spread


@reads
@dataclass(frozen=True)
class LiveForecast:
    """Forecasts of runs that train, by a law and `finished` runs of any schedule: ask `of(curve)`.

    Without a law, a power law takes its place, which finished runs correct. Finished runs must have the run's recipe,
    text and unit. Without finished runs, the final loss is that of the training text. InputError for a finished run
    that has no final loss.
    """

    finished: Sequence[TrainingCurve] = ()
    law: Formula | None = None

    def __post_init__(self) -> None:
        for curve in self.finished:
            if not isinstance(curve, TrainingCurve):
                raise InputError(f"finished: {curve!r} must be a TrainingCurve")
            if curve.final is None:
                raise InputError(f"finished: run {curve.trunk!r} of {curve.horizon:g} tokens has no final loss yet")

    def warnings(self, curve: TrainingCurve) -> list[str]:
        """Say how far this run lies outside of the law's runs, and whether the law is of its corpus and unit."""
        if self.law is None:
            return []
        warnings = self.law.warnings(**self._law_inputs(curve, curve.horizon))
        if not self.finished:
            estimate = self.of(curve)
            return [*warnings, FOREIGN] if estimate is not None and estimate.is_law_foreign() else warnings
        errors = [np.log(peer.final or np.nan) - self._law_terms(peer)[0] for peer in self.finished]
        typical_error = float(np.median(errors))
        if abs(typical_error) < OTHER_UNIT:
            return warnings
        factor = f"losses of finished runs are ×{np.exp(typical_error):.2g} the law's"
        question = "are both nats per token of one tokenizer?"
        return [*warnings, f"{factor}: {question} Forecasts follow the finished runs"]

    @reads
    def of(self, curve: TrainingCurve) -> LiveEstimate | None:
        """Forecast the final loss of a run.

        None before its first tenth, and without a law where no run like it has finished.
        """
        lines = self._lines(curve, self._usual_scatter)
        distances = np.reshape([peer.position - curve.position for peer in self.finished], (-1, 3))
        if lines is None or curve.share < FIRST_SHARE or (self.law is None and not _is_covered(distances)):
            return None
        law = self._law_terms(curve)
        corpora = (SAME_CORPUS, OTHER_CORPUS) if self.law else (NO_LAW_CORPUS,)
        # Without finished runs nothing can tell the hypotheses about the text apart.
        texts = TEXTS if self.finished else (_Text(float(np.hypot(SHIFT, lines.scatter)), 0.003, 1.0),)
        hypotheses = [*product(corpora, texts)]
        weights = _weigh(distances, [peer.trunk or str(i) for i, peer in enumerate(self.finished)])
        between = np.diag(BETWEEN_RUNS**2 * (SEEDS**2 + (self._usual_scatter or lines.scatter) ** 2))
        before = learn(_prior(hypotheses, law[1]), self._evidence, distances, weights, between)
        after = before.given(lines.evidence)
        end = _end(curve)
        law_excess, law_spread = before.project(end)
        end_scatter = np.hypot(END_SCATTER, END_OF_SCATTER * lines.scatter) * _misfit_growth(curve.share)
        excess, spread = after.project(end, float(end_scatter))
        ahead, ahead_spread = lines.departure(before)
        # A run that is like a finished one of its size and length is on its track, even where the form misses both.
        is_twin = np.abs(distances).max(axis=1) < SAME_RUN
        twins = [peer.until(curve.share) for peer in compress(self.finished, is_twin)]
        lines_of_twins = [self._lines(twin, self._usual_scatter) for twin in twins]
        differences = [ahead - recent.departure(before)[0] for recent in lines_of_twins if recent is not None]
        nearest = min(differences, key=abs, default=ahead)
        if abs(nearest) < SAME_LOSS * ahead_spread:
            ahead = nearest
        return LiveEstimate(
            share=curve.share,
            loss=float(np.exp(end @ law + excess)),
            spread=spread,
            law=float(np.exp(end @ law + law_excess)),
            law_spread=law_spread,
            ahead=ahead,
            ahead_spread=ahead_spread,
            freedom=FREEDOM + float(weights.sum()),
            basis="law" if self.law else "finished runs",
            other_corpus=float(after.weights @ [corpus is OTHER_CORPUS for corpus, _ in hypotheses]),
            lines=lines.n_lines,
        )

    @cached_property
    def _evidence(self) -> Evidence:
        """Evidence of the coefficients of each finished run."""
        pieces = []
        for peer in self.finished:
            end = _end(peer)
            excess = np.log([peer.final or np.nan]) - end @ self._law_terms(peer)
            of_end = measure(end[None, :], excess, np.array([END_SCATTER**2]))
            lines = self._lines(peer)
            pieces.append(of_end.plus(lines.evidence) if lines else of_end)
        size = len(BETWEEN_RUNS)
        precision = np.reshape([piece.precision for piece in pieces], (-1, size, size))
        return Evidence(precision, np.reshape([piece.vector for piece in pieces], (-1, size)))

    @cached_property
    def _usual_scatter(self) -> float | None:
        """Typical scatter of the lines of finished runs; None without any."""
        scatters = [lines.scatter for lines in map(self._lines, self.finished) if lines is not None]
        return float(np.median(scatters)) if scatters else None

    def _lines(self, curve: TrainingCurve, usual_scatter: float | None = None) -> Lines | None:
        """Average the lines of near tokens since the warm-up; None for too few.

        `usual_scatter` is that of lines of runs like it, which a run of few lines hardly shows itself.
        """
        now = curve.share
        shares = curve.tokens / curve.horizon
        is_recent = (curve.tokens >= WARMUPS * curve.warmup_tokens) & (shares > OLDEST_SHARE * now)
        if is_recent.sum() < MIN_LINES:
            return None
        shares = shares[is_recent]
        log_losses = np.log(curve.losses[is_recent])
        scatter = _scatter(log_losses, usual_scatter)
        steps_ago = np.round(np.log(shares / now) / np.log(STEP))
        _, groups, counts = np.unique(steps_ago, return_inverse=True, return_counts=True)
        shares = np.exp(np.bincount(groups, np.log(shares)) / counts)
        misfit = np.hypot(MISFIT, MISFIT_OF_SCATTER * scatter) * _misfit_growth(shares)
        basis = np.column_stack([curve.basis(shares), np.ones(len(counts))])
        excess = np.bincount(groups, log_losses) / counts - basis @ self._law_terms(curve)
        # Neighbours depart together: a misfit counts once in each span.
        variances = scatter**2 / counts + MISFIT_SPAN / np.log(STEP) * misfit**2
        weights = counts * (shares / now) ** SHARPNESS
        weights /= weights.sum()
        return Lines(
            evidence=measure(basis, excess, variances),
            level=float(weights @ excess),
            noise=float(np.sqrt(weights**2 @ variances)),
            basis=weights @ basis,
            scatter=scatter,
            n_lines=len(log_losses),
        )

    def _law_terms(self, curve: TrainingCurve) -> FloatArray:
        """Return the law's coefficients [6]: ln of its loss at the run's end, and its fall there with ln D."""
        tokens = curve.horizon * np.array([1.0, 1 / LAW_STEP])
        if self.law is None:
            log_losses = NO_LAW * (np.log(tokens) + np.log(curve.model["n_active"]))
        else:
            log_losses = np.log(self.law.loss(**self._law_inputs(curve, tokens)))
        slope = (log_losses[1] - log_losses[0]) / np.log(LAW_STEP)
        return np.array([log_losses[0], slope, 0.0, 0.0, 0.0, 0.0])

    def _law_inputs(self, curve: TrainingCurve, tokens: ArrayLike) -> Fields:
        variables = self.law.variables if self.law else ()
        return {**{name: curve.model[name] for name in variables if name in curve.model}, "tokens": tokens}


@dataclass
class Watch:
    """The forecast of one run: call it with each new line of its log for the fields that it adds to it.

    `plan` has the fields of the run's `TrainingCurve` besides its points. What earlier `lines` of the log warn of is
    not said again.
    """

    live: LiveForecast
    plan: Fields
    lines: list[Fields]
    advice: str = ""
    estimate: LiveEstimate | None = None

    @property
    def curve(self) -> TrainingCurve:
        """The run so far."""
        return curve_of_lines(self.lines, **self.plan)

    def __call__(self, line: Fields) -> Fields:
        """Return the forecast after a line, with what is said for the first time; nothing without a forecast."""
        self.lines.append({name: line[name] for name in ("tokens", "loss", "loss_spike") if name in line})
        self.estimate = estimate = self.live.of(self.curve)
        if estimate is None:
            return {}
        low, high = estimate.interval()
        fields = {"forecast_loss": estimate.loss, "forecast_low": low, "forecast_high": high, "law_loss": estimate.law}
        warnings = {}
        if estimate.is_law_foreign():
            warnings["law_foreign"] = FOREIGN
        if estimate.off_track() and not line.get("loss_spike"):
            reference = "runs like it had" if self.live.finished else "the law says"
            where = f"off the track: its loss lies {estimate.distance} what {reference} here"
            warnings["off_track"] = where + self.advice
        for name, warning in warnings.items():
            if not any(name in earlier for earlier in self.lines):
                logger.warning("step %d: %s", line["step"], warning)
                self.lines[-1][name] = fields[name] = True
        return fields


def _prior(hypotheses: Sequence[tuple[_Corpus, _Text]], law_slope: float) -> Mixture:
    """Return the prior of the coefficients' means and drifts under each hypothesis."""
    odds = []
    spreads = []
    for corpus, text in hypotheses:
        drifts = [corpus.level_drift, *DRIFTS, text.drift]
        of_means = [corpus.level, corpus.slope * law_slope, corpus.bend, GAP_SPREAD, LAG_SPREAD, text.shift]
        odds.append(corpus.probability * text.probability)
        spreads.append([*of_means, *drifts, *drifts, *drifts])
    variances = np.square(spreads)
    expected = np.zeros_like(variances)
    expected[:, 3] = GAP
    return Mixture(np.log(odds), expected, variances[:, :, None] * np.eye(variances.shape[1]))


def _scatter(log_losses: FloatArray, usual_scatter: float | None) -> float:
    """Estimate the standard deviation of a line around the curve.

    Second differences of independent normal errors have six times their variance. A mean of few is uncertain.
    """
    differences = np.abs(np.diff(log_losses, 2))
    scatter = float(np.sqrt(np.pi / 12) * differences.mean())
    count = len(differences)
    if usual_scatter is None:
        return scatter * (1.0 + 2.0 / count)
    squares = count * scatter**2 + USUAL_LINES * usual_scatter**2
    return float(np.sqrt(squares / (count + USUAL_LINES)))


def _misfit_growth(share: ArrayLike) -> FloatArray:
    """Return by how much more than at its end a run departs from the form of its curve after a share of its tokens."""
    return np.asarray(1.0 - MISFIT_GROWTH * np.log(share))


def _end(curve: TrainingCurve) -> FloatArray:
    """Return what the six coefficients are multiplied by in the final loss [6], which is without the shift."""
    return np.append(curve.basis(1.0 - LAST_SHARE / 2)[0], 0.0)


def _is_covered(distances: FloatArray) -> bool:
    """Return whether a run is hardly longer than its longest peer, and its N and E hardly outside of theirs."""
    room = np.log(LONGER)
    has_longer = np.any(distances >= -room, axis=0)
    has_smaller = np.any(distances[:, 1:] <= room, axis=0)
    return bool(has_longer.all() and has_smaller.all())


def _weigh(distances: FloatArray, trunks: Sequence[str]) -> FloatArray:
    """Weigh runs by their distance [n, 3]; those of one trunk weigh together what the nearest of them does."""
    weights = np.exp(-0.5 * np.sum(distances**2, axis=1) / NEARNESS**2)
    for trunk in {*trunks}:
        is_of_trunk = np.array([name == trunk for name in trunks])
        weights[is_of_trunk] *= weights[is_of_trunk].max() / weights[is_of_trunk].sum()
    return np.asarray(weights)
