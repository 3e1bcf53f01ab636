"""The final loss of a run while it trains: the law's forecast, updated by the run's own curve.

Two logarithms say how a run stands at a share s of its tokens D, beside what the law predicts for its model:

    r = ln(final loss) − ln law(D)                     how far the law misses the run
    z = mean of ln(training loss at t) − ln law(t)     over the last lines before s·D, weighted by (t / sD)^6

At a constant learning rate, z is above r: by what the decay will gain, by how held-out text differs from the training
text, and by what is left of the fall. Finished runs at the same share say by how much, z − r, and how (r, z − r)
scatter between runs; z of the run itself then moves r, as far as z has told of r in those runs (normal distributions,
a conditional mean). Both are straight lines in ln D, ln N and ln E, by ridge regression around the run that is asked,
where near runs count most and the branches of a trunk together as one run. Widths are those of a t distribution.
docs/studies/live.md measures errors and coverage on trunks left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from hub.base.errors import InputError
from hub.base.inputs import reads
from scaling_law.formulas.law import Formula
from scaling_law.size.arrays import FloatArray

FIRST_SHARE, LEAST_LINES = 0.1, 3  # of the tokens and of log lines, before anything is said
SHARPNESS, OLDEST = 6.0, 0.3  # power of t / sD in the weight of a line, and the share of sD from which lines count
WARMUPS = 2.0  # lines from before so many warm-ups do not count
NEAR = 2.0  # standard deviation of the weight of a run, in ln D, ln N and ln E
LAW_SCATTER, GAP_SCATTER = 0.02, 0.05  # standard deviations of r and z − r that count as one run
UNCHECKED, FREEDOM = 0.03, 4.0  # of r, and its degrees of freedom, where no run has finished
GAP, GAP_LEFT = 0.05, 0.015  # of z − r before a decay; the standard deviation that is left at its end
SLOPES = (0.03, 0.1)  # standard deviations of the slopes of r and z − r
NO_LAW, NO_LAW_SLOPE = -0.1, 0.15  # without a law: slopes of ln L in ln D and ln N, and their standard deviation
LONGER = 1.25  # without a law: times the longest finished run, and the range of N and E, beyond which nothing is said
SAME_DECAY = 0.02  # shares of the tokens that are one schedule
OTHER_UNIT = 0.35  # ln of the factor between a law's losses and those of finished runs beyond which it is said


@reads
@dataclass(frozen=True, eq=False)
class TrainingCurve:
    """Training losses [k] after `tokens` [k], of a run that ends at `horizon` tokens.

    `model` holds what laws ask, at least n_active; E is 1 where it has no `experts`. The rate falls over the last
    share `decay` of the tokens. `final` is the loss at the end, held out or not, as the law's; None while it trains.
    Branches of one `trunk` count as one run. InputError for a run without an end, and values that cannot be.
    """

    tokens: FloatArray
    losses: FloatArray
    horizon: float
    model: Mapping[str, float]
    decay: float = 0.2
    final: float | None = None
    trunk: str = ""
    warmup_tokens: float = 0.0

    def __post_init__(self) -> None:
        tokens, losses = np.atleast_1d(np.asarray(self.tokens, float)), np.atleast_1d(np.asarray(self.losses, float))
        if tokens.shape != losses.shape or tokens.ndim != 1:
            raise InputError(f"losses have shape {losses.shape}; tokens have {tokens.shape}, one loss each is needed")
        if not (np.all(np.diff(tokens) > 0) and np.all(tokens > 0)):
            raise InputError("tokens must be positive and increase: a curve is one run")
        for name, values in (("losses", losses), ("final", np.array([1.0 if self.final is None else self.final]))):
            if (wrong := values[~(np.isfinite(values) & (values > 0))]).size:
                raise InputError(f"{name}={wrong[0]:g} must be positive and finite")
        if not 0 < (self.horizon or 0) < np.inf:
            raise InputError(f"horizon={self.horizon} must be the tokens at which the run ends: it has no schedule")
        if not 0 < self.decay <= 1:
            raise InputError(f"decay={self.decay} must be a share of the tokens, above 0 and at most 1")
        if not self.model.get("n_active", 0) > 0:
            raise InputError(f"model={dict(self.model)} must have a positive n_active")
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "losses", losses)

    @property
    def share(self) -> float:
        """Of its tokens that it has trained."""
        return float(self.tokens[-1] / self.horizon) if len(self.tokens) else 0.0

    def until(self, share: float) -> TrainingCurve:
        """The run as it stood at a share of its tokens."""
        seen = self.tokens <= share * self.horizon * (1 + 1e-9)
        fields = {**vars(self), "tokens": self.tokens[seen], "losses": self.losses[seen], "final": None}
        return TrainingCurve(**fields)


class LiveEstimate(NamedTuple):
    """The final loss that a run will have, said at a share of its tokens; spreads are of ln L.

    `law` is what is said without this run's curve, by the `basis`: "law", which finished runs have corrected, or
    "finished runs". `ahead` is how far the run's smoothed loss lies above what was expected of it by now, in ln L; t
    distributions of `freedom` give all intervals.
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

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """The losses between which the final one lies with probability `level`."""
        reach = self._reach(level) * self.spread
        return float(self.loss * np.exp(-reach)), float(self.loss * np.exp(reach))

    def off_track(self, level: float = 0.99) -> bool:
        """Whether the run's smoothed loss left the band in which the forecast expects it now."""
        return abs(self.ahead) > self._reach(level) * self.ahead_spread

    def __str__(self) -> str:
        low, high = self.interval()
        return f"final loss {self.loss:.3f} ± {(high - low) / 2:.3f} (forecast; {self.basis} alone {self.law:.3f})"

    def _reach(self, level: float) -> float:
        return float(stdtrit(self.freedom, 0.5 + level / 2))


class _Peer(NamedTuple):
    """A finished run: tokens and ln(loss / law's loss) of its lines, and the law's miss at its end, in ln L."""

    curve: TrainingCurve
    excess: tuple[FloatArray, FloatArray]
    miss: float


@reads
@dataclass(frozen=True)
class LiveForecast:
    """What `finished` runs and a law say of a run that trains: ask `of(curve)`.

    Without a law, a power law stands for it that finished runs correct. These must be of the run's recipe, text and
    unit. InputError for one that has no final loss, and for runs of several schedules.
    """

    finished: Sequence[TrainingCurve] = ()
    law: Formula | None = None

    def __post_init__(self) -> None:
        for curve in self.finished:
            if not isinstance(curve, TrainingCurve):
                raise InputError(f"finished: {curve!r} must be a TrainingCurve")
            if curve.final is None:
                raise InputError(f"finished: run {curve.trunk!r} of {curve.horizon:g} tokens has no final loss yet")
            self._check_schedule(curve)

    def warnings(self, curve: TrainingCurve) -> list[str]:
        """How far this run lies outside of the law's runs, and whether losses can be of one unit, a sentence each."""
        if self.law is None:
            return []
        beyond = self.law.warnings(**self._asked(curve, curve.horizon))
        off = float(np.median([peer.miss for peer in self._peers])) if self.finished else 0.0
        if abs(off) < OTHER_UNIT:
            return beyond
        unit = f"losses of finished runs are ×{np.exp(off):.2g} the law's: are both nats per token of one tokenizer?"
        return [*beyond, f"{unit} Forecasts follow the finished runs"]

    @reads
    def of(self, curve: TrainingCurve) -> LiveEstimate | None:
        """The estimate for a run; None before its first tenth, and without a law where no run like it has finished.

        InputError for a run of another schedule than the finished ones'.
        """
        share = curve.share
        self._check_schedule(curve)
        z = _smoothed(*self._excess(curve), share * curve.horizon)
        levels = [(_smoothed(*peer.excess, share * peer.curve.horizon), peer) for peer in self._peers]
        useful = [(level, peer) for level, peer in levels if level is not None]
        if z is None or share < FIRST_SHARE or not (self.law or _within(curve, [peer.curve for _, peer in useful])):
            return None
        mean, scatter, freedom = self._seen(curve, share, useful)
        whole = scatter.sum()  # the variance of z
        told = scatter[0].sum() / whole  # how far z tells of r
        ahead = z - mean.sum()
        variance = max(scatter[0, 0] - told * scatter[0].sum(), 1e-12)
        expected = self._log_law(curve, np.array(curve.horizon)) + mean[0]
        return LiveEstimate(
            share,
            float(np.exp(expected + told * ahead)),
            float(np.sqrt(variance)),
            float(np.exp(expected)),
            float(np.sqrt(scatter[0, 0])),
            float(ahead),
            float(np.sqrt(whole)),
            freedom,
            "law" if self.law else "finished runs",
        )

    @cached_property
    def _peers(self) -> list[_Peer]:
        ends = [self._log_law(curve, np.array(curve.horizon)) for curve in self.finished]
        pairs = zip(self.finished, ends, strict=True)
        return [_Peer(curve, self._excess(curve), float(np.log(curve.final or np.nan) - end)) for curve, end in pairs]

    def _check_schedule(self, curve: TrainingCurve) -> None:
        if self.finished and abs(curve.decay - self.finished[0].decay) > SAME_DECAY:
            other = self.finished[0].decay
            raise InputError(f"decay={curve.decay:g}: finished runs decay over {other:g} of their tokens")

    def _seen(
        self, curve: TrainingCurve, share: float, peers: Sequence[tuple[float, _Peer]]
    ) -> tuple[FloatArray, FloatArray, float]:
        """Mean [2] and covariance [2, 2] of (r, z − r) for this run from its peers, and the degrees of freedom."""
        left = min(1.0, (1 - share) / curve.decay)  # of the decay
        gap, prior = GAP * left, np.array([LAW_SCATTER, GAP_LEFT + (GAP_SCATTER - GAP_LEFT) * left]) ** 2
        if not peers:
            return np.array([0.0, gap]), np.diag([UNCHECKED**2, prior[1]]), FREEDOM
        apart = np.array([_position(peer.curve) - _position(curve) for _, peer in peers])
        x = np.column_stack([np.ones(len(peers)), apart])
        y = np.array([(peer.miss, level - peer.miss) for level, peer in peers])
        weights = _weights(apart, [peer.curve.trunk or str(i) for i, (_, peer) in enumerate(peers)])
        runs, mean, grown = weights.sum(), np.zeros(2), np.zeros(2)
        rest = np.zeros_like(y)
        slopes = (SLOPES[0] if self.law else NO_LAW_SLOPE, SLOPES[1])
        for j, (start, held) in enumerate(((0.0, 1e-6), (gap, 0.5))):  # held: runs that the start counts as
            ridge = np.array([held, *[prior[j] / slopes[j] ** 2] * 3])
            inverse = np.linalg.inv((x * weights[:, None]).T @ x + np.diag(ridge))
            line = inverse @ ((x * weights[:, None]).T @ y[:, j] + ridge * np.array([start, 0, 0, 0]))
            mean[j], grown[j], rest[:, j] = line[0], min(inverse[0, 0], 4.0), y[:, j] - x @ line
        scatter = ((weights[:, None] * rest).T @ rest + np.diag(prior)) / (runs + 1)
        if self.law:  # it was fitted to such runs or is of another corpus: what cannot be told from 0 is 0
            mean[0] *= max(0.0, 1.0 - scatter[0, 0] * grown[0] / (mean[0] ** 2 + 1e-12))
        widening = np.sqrt(1 + grown)
        return mean, scatter * np.outer(widening, widening), float(runs + 1)

    def _excess(self, curve: TrainingCurve) -> tuple[FloatArray, FloatArray]:
        """Tokens of the lines after the warm-up [k], and ln(loss / law's loss) there [k]."""
        counted = curve.tokens >= WARMUPS * curve.warmup_tokens
        tokens = curve.tokens[counted]
        return tokens, np.log(curve.losses[counted]) - (self._log_law(curve, tokens) if len(tokens) else 0.0)

    def _log_law(self, curve: TrainingCurve, tokens: FloatArray) -> Any:
        if self.law is None:
            return NO_LAW * (np.log(tokens) + np.log(curve.model["n_active"]))
        return np.log(self.law.loss(**self._asked(curve, tokens)))

    def _asked(self, curve: TrainingCurve, tokens: ArrayLike) -> dict[str, Any]:
        names = self.law.variables if self.law else ()
        return {name: curve.model[name] for name in names if name in curve.model} | {"tokens": tokens}


def curve_of(record: Any, lines: Iterable[Mapping[str, Any]]) -> TrainingCurve:
    """The curve of a `RunRecord` and the lines of its log: trunk up to the branch point, then its branch.

    Lines of spikes and of steps that were skipped do not count. `final` is the held-out loss, else that of training.
    """
    values = {name: value for name, value in record.to_dict().items() if isinstance(value, (int, float))}
    values["experts"] = values.get("experts_equivalent", values["experts"])
    schedule, final = record.schedule, record.train_loss if record.eval_loss is None else record.eval_loss
    tokens, losses = points_of(lines)
    return TrainingCurve(
        tokens,
        losses,
        schedule.horizon_tokens,
        values,
        decay=schedule.decay_tokens / schedule.horizon_tokens,
        final=final if record.status == "final" else None,
        trunk=record.parent_run_id or record.run_id,
        warmup_tokens=schedule.warmup_tokens,
    )


def points_of(lines: Iterable[Mapping[str, Any]]) -> tuple[FloatArray, FloatArray]:
    """(tokens, losses) of the lines of a step log that tell the loss of a usual step."""
    sound = {line["tokens"]: line["loss"] for line in lines if line.get("loss") and not line.get("loss_spike")}
    return np.array([*sound], float), np.array([*sound.values()], float)


def _smoothed(tokens: FloatArray, values: FloatArray, now: float) -> float | None:
    inside = (tokens <= now * (1 + 1e-9)) & (tokens > OLDEST * now)
    weights = (tokens[inside] / now) ** SHARPNESS
    return float(weights @ values[inside] / weights.sum()) if inside.sum() >= LEAST_LINES else None


def _within(curve: TrainingCurve, others: Sequence[TrainingCurve]) -> bool:
    """Whether a run is hardly longer than the longest of others, and its N and E hardly outside of theirs."""
    if not others:
        return False
    apart, room = np.array([_position(other) for other in others]) - _position(curve), np.log(LONGER)
    return bool(np.all(apart.max(axis=0) >= -room) and np.all(apart[:, 1:].min(axis=0) <= room))


def _position(curve: TrainingCurve) -> FloatArray:
    return np.log([curve.horizon, curve.model["n_active"], curve.model.get("experts", 1.0)])


def _weights(apart: ArrayLike, trunks: Sequence[str]) -> FloatArray:
    """Of runs this far apart [n, 3]; those of one trunk weigh together what the nearest of them does."""
    weights = np.exp(-0.5 * np.sum(np.square(apart), axis=1) / NEAR**2)
    for trunk in {*trunks}:
        of_it = np.array([name == trunk for name in trunks])
        weights[of_it] *= weights[of_it].max() / weights[of_it].sum()
    return np.asarray(weights)
