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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from hub.base.errors import InputError
from hub.base.inputs import reads
from scaling_law.formulas.law import Formula
from scaling_law.size.arrays import FloatArray

# No forecast is made before this share of the tokens and this many log lines.
FIRST_SHARE = 0.1
MIN_LINES = 3
# Weights of lines in the smoothed loss: (t / sD) to this power, from this share of sD on.
SHARPNESS = 6.0
OLDEST_SHARE = 0.3
# Lines from the first warm-ups do not count.
WARMUPS = 2.0
# Standard deviation of a peer's weight in ln D, ln N and ln E.
NEARNESS = 2.0
# Prior standard deviations of r and of z − r, which count as one run.
LAW_SCATTER = 0.02
GAP_SCATTER = 0.05
# Standard deviation of r and degrees of freedom where no run has finished.
UNCHECKED = 0.03
FREEDOM = 4.0
# Prior mean of z − r before a decay, and the standard deviation that is left at its end.
GAP = 0.05
GAP_SCATTER_AT_END = 0.015
# Prior standard deviations of the slopes of r and of z − r.
SLOPES = (0.03, 0.1)
# Without a law: slope of ln L in ln D and ln N, and its standard deviation.
NO_LAW = -0.1
NO_LAW_SLOPE = 0.15
# Without a law, nothing is said beyond this factor times the longest finished run and the range of N and E.
LONGER = 1.25
# Decays that differ by less than this share of the tokens are one schedule.
SAME_DECAY = 0.02
# A law whose losses are off by more than this factor (in ln L) may be of another unit.
OTHER_UNIT = 0.35
# Runs that the prior means of r and of z − r count as.
PRIOR_RUNS = (1e-6, 0.5)
# Largest factor by which the variance of a mean adds to that of a run.
MAX_WIDENING = 4.0


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
        tokens = np.atleast_1d(np.asarray(self.tokens, float))
        losses = np.atleast_1d(np.asarray(self.losses, float))
        if tokens.shape != losses.shape or tokens.ndim != 1:
            raise InputError(f"losses have shape {losses.shape}; tokens have {tokens.shape}, one loss each is needed")
        if not (np.all(np.diff(tokens) > 0) and np.all(tokens > 0)):
            raise InputError("tokens must be positive and increase: a curve is one run")
        _check_losses("losses", losses)
        if self.final is not None:
            _check_losses("final", np.array([self.final]))
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
        """Share of its tokens that it has trained."""
        return float(self.tokens[-1] / self.horizon) if len(self.tokens) else 0.0

    def until(self, share: float) -> TrainingCurve:
        """Return the run as it stood at a share of its tokens."""
        is_trained = self.tokens <= share * self.horizon * (1 + 1e-9)
        return replace(self, tokens=self.tokens[is_trained], losses=self.losses[is_trained], final=None)


class LiveEstimate(NamedTuple):
    """Forecast of a run's final loss at a share of its tokens; spreads are standard deviations of ln L.

    `law` is the forecast without this run's curve, by the `basis`: "law", which finished runs have corrected, or
    "finished runs". `ahead` is how far the run's smoothed loss lies above what was expected by now, in ln L. Intervals
    are those of t distributions with `freedom` degrees of freedom.
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
        """Return the losses between which the final loss lies with probability `level`."""
        half_width = self._quantile(level) * self.spread
        return float(self.loss * np.exp(-half_width)), float(self.loss * np.exp(half_width))

    def off_track(self, level: float = 0.99) -> bool:
        """Return whether the run's smoothed loss left the band in which the forecast expects it now."""
        return abs(self.ahead) > self._quantile(level) * self.ahead_spread

    def __str__(self) -> str:
        low, high = self.interval()
        return f"final loss {self.loss:.3f} ± {(high - low) / 2:.3f} (forecast; {self.basis} alone {self.law:.3f})"

    def _quantile(self, level: float) -> float:
        return float(stdtrit(self.freedom, 0.5 + level / 2))


class _Peer(NamedTuple):
    """A finished run with the `tokens` and the `excess` ln(loss / law's loss) of its lines, and r at its end."""

    curve: TrainingCurve
    tokens: FloatArray
    excess: FloatArray
    law_error: float


@reads
@dataclass(frozen=True)
class LiveForecast:
    """Forecasts of runs that train, by a law and `finished` runs: ask `of(curve)`.

    Without a law, a power law takes its place, which finished runs correct. Finished runs must have the run's recipe,
    text and unit. InputError for one that has no final loss, and for runs of several schedules.
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
        """Say how far this run lies outside of the law's runs, and whether the losses can have one unit."""
        if self.law is None:
            return []
        warnings = self.law.warnings(**self._law_inputs(curve, curve.horizon))
        if not self.finished:
            return warnings
        typical_error = float(np.median([peer.law_error for peer in self._peers]))
        if abs(typical_error) < OTHER_UNIT:
            return warnings
        factor = f"losses of finished runs are ×{np.exp(typical_error):.2g} the law's"
        question = "are both nats per token of one tokenizer?"
        return [*warnings, f"{factor}: {question} Forecasts follow the finished runs"]

    @reads
    def of(self, curve: TrainingCurve) -> LiveEstimate | None:
        """Forecast the final loss of a run.

        None before its first tenth, and without a law where no run like it has finished. InputError for a run of
        another schedule than the finished ones'.
        """
        self._check_schedule(curve)
        share = curve.share
        tokens, excess = self._excess(curve)
        z = _smooth(tokens, excess, share * curve.horizon)
        peers: list[_Peer] = []
        peer_z: list[float] = []
        for peer in self._peers:
            smoothed = _smooth(peer.tokens, peer.excess, share * peer.curve.horizon)
            if smoothed is not None:
                peers.append(peer)
                peer_z.append(smoothed)
        if z is None or share < FIRST_SHARE:
            return None
        if self.law is None and not _is_covered(curve, [peer.curve for peer in peers]):
            return None

        mean, covariance, freedom = self._pool_peers(curve, share, peers, np.array(peer_z))
        # The sum of r and z − r is z, whose variance is the sum of all entries.
        z_variance = covariance.sum()
        r_with_z = covariance[0].sum()
        r_on_z = r_with_z / z_variance
        r_variance = max(covariance[0, 0] - r_on_z * r_with_z, 1e-12)
        ahead = z - mean.sum()
        expected = self._log_law(curve, np.array(curve.horizon)) + mean[0]
        return LiveEstimate(
            share=share,
            loss=float(np.exp(expected + r_on_z * ahead)),
            spread=float(np.sqrt(r_variance)),
            law=float(np.exp(expected)),
            law_spread=float(np.sqrt(covariance[0, 0])),
            ahead=float(ahead),
            ahead_spread=float(np.sqrt(z_variance)),
            freedom=freedom,
            basis="law" if self.law else "finished runs",
        )

    @cached_property
    def _peers(self) -> list[_Peer]:
        peers = []
        for curve in self.finished:
            tokens, excess = self._excess(curve)
            predicted = self._log_law(curve, np.array(curve.horizon))
            peers.append(_Peer(curve, tokens, excess, float(np.log(curve.final or np.nan) - predicted)))
        return peers

    def _check_schedule(self, curve: TrainingCurve) -> None:
        if not self.finished:
            return
        decay = self.finished[0].decay
        if abs(curve.decay - decay) > SAME_DECAY:
            raise InputError(f"decay={curve.decay:g}: finished runs decay over {decay:g} of their tokens")

    def _pool_peers(
        self,
        curve: TrainingCurve,
        share: float,
        peers: Sequence[_Peer],
        peer_z: FloatArray,
    ) -> tuple[FloatArray, FloatArray, float]:
        """Pool the errors of finished runs: how far the law missed them (r), and how far they moved since (z − r).

        Return mean [2] and covariance [2, 2] of (r, z − r) for this run, and the degrees of freedom.
        """
        decay_left = min(1.0, (1 - share) / curve.decay)
        prior_gap = GAP * decay_left
        gap_scatter = GAP_SCATTER_AT_END + (GAP_SCATTER - GAP_SCATTER_AT_END) * decay_left
        prior_variance = np.array([LAW_SCATTER, gap_scatter]) ** 2
        if not peers:
            return np.array([0.0, prior_gap]), np.diag([UNCHECKED**2, prior_variance[1]]), FREEDOM

        distance = np.array([_position(peer.curve) - _position(curve) for peer in peers])
        law_errors = np.array([peer.law_error for peer in peers])
        trunks = [peer.curve.trunk or str(i) for i, peer in enumerate(peers)]
        weights = _weigh(distance, trunks)
        slopes = (SLOPES[0] if self.law else NO_LAW_SLOPE, SLOPES[1])
        mean = np.zeros(2)
        leverage = np.zeros(2)
        residuals = np.zeros((len(peers), 2))
        prior_means = (0.0, prior_gap)
        for j, values in enumerate((law_errors, peer_z - law_errors)):
            slope_weight = prior_variance[j] / slopes[j] ** 2
            ridge = np.array([PRIOR_RUNS[j], slope_weight, slope_weight, slope_weight])
            mean[j], leverage[j], residuals[:, j] = _ridge_at_origin(distance, values, weights, ridge, prior_means[j])

        runs = weights.sum()
        products = (weights[:, None] * residuals).T @ residuals
        covariance = (products + np.diag(prior_variance)) / (runs + 1)
        if self.law:
            # The law was fitted to such runs, or is of another corpus: an error that cannot be told from 0 is 0.
            noise_share = covariance[0, 0] * leverage[0] / (mean[0] ** 2 + 1e-12)
            mean[0] *= max(0.0, 1.0 - noise_share)
        widening = np.sqrt(1 + leverage)
        return mean, covariance * np.outer(widening, widening), float(runs + 1)

    def _excess(self, curve: TrainingCurve) -> tuple[FloatArray, FloatArray]:
        """Return the tokens of the lines after the warm-up [k], and ln(loss / law's loss) there [k]."""
        is_warm = curve.tokens >= WARMUPS * curve.warmup_tokens
        tokens = curve.tokens[is_warm]
        log_losses = np.log(curve.losses[is_warm])
        if not len(tokens):
            return tokens, log_losses
        return tokens, log_losses - self._log_law(curve, tokens)

    def _log_law(self, curve: TrainingCurve, tokens: FloatArray) -> Any:
        if self.law is None:
            return NO_LAW * (np.log(tokens) + np.log(curve.model["n_active"]))
        return np.log(self.law.loss(**self._law_inputs(curve, tokens)))

    def _law_inputs(self, curve: TrainingCurve, tokens: ArrayLike) -> dict[str, Any]:
        variables = self.law.variables if self.law else ()
        inputs: dict[str, Any] = {name: curve.model[name] for name in variables if name in curve.model}
        inputs["tokens"] = tokens
        return inputs


def curve_of(record: Any, lines: Iterable[Mapping[str, Any]]) -> TrainingCurve:
    """Make the curve of a `RunRecord` and the lines of its log: trunk up to the branch point, then its branch.

    Lines of spikes and of steps that were skipped do not count. `final` is the held-out loss, else that of training.
    """
    model = {name: value for name, value in record.to_dict().items() if isinstance(value, (int, float))}
    model["experts"] = model.get("experts_equivalent", model["experts"])
    schedule = record.schedule
    tokens, losses = points_of(lines)
    final = None
    if record.status == "final":
        final = record.train_loss if record.eval_loss is None else record.eval_loss
    return TrainingCurve(
        tokens,
        losses,
        schedule.horizon_tokens,
        model,
        decay=schedule.decay_tokens / schedule.horizon_tokens,
        final=final,
        trunk=record.parent_run_id or record.run_id,
        warmup_tokens=schedule.warmup_tokens,
    )


def points_of(lines: Iterable[Mapping[str, Any]]) -> tuple[FloatArray, FloatArray]:
    """Read the tokens and losses of the lines of a step log, without spikes and skipped steps."""
    losses = {line["tokens"]: line["loss"] for line in lines if line.get("loss") and not line.get("loss_spike")}
    return np.array([*losses], float), np.array([*losses.values()], float)


def _check_losses(name: str, values: FloatArray) -> None:
    """Raise InputError for a loss that is not positive and finite."""
    wrong = values[~(np.isfinite(values) & (values > 0))]
    if wrong.size:
        raise InputError(f"{name}={wrong[0]:g} must be positive and finite")


def _smooth(
    tokens: FloatArray,
    values: FloatArray,
    now: float,
) -> float | None:
    """Average the last values before `now` tokens, the latest with most weight; None for too few lines."""
    is_recent = (tokens <= now * (1 + 1e-9)) & (tokens > OLDEST_SHARE * now)
    if is_recent.sum() < MIN_LINES:
        return None
    weights = (tokens[is_recent] / now) ** SHARPNESS
    return float(weights @ values[is_recent] / weights.sum())


def _is_covered(curve: TrainingCurve, peers: Sequence[TrainingCurve]) -> bool:
    """Return whether a run is hardly longer than its longest peer, and its N and E hardly outside of theirs."""
    if not peers:
        return False
    distance = np.array([_position(peer) for peer in peers]) - _position(curve)
    room = np.log(LONGER)
    is_short_and_small = np.all(distance.max(axis=0) >= -room)
    is_large = np.all(distance[:, 1:].min(axis=0) <= room)
    return bool(is_short_and_small and is_large)


def _position(curve: TrainingCurve) -> FloatArray:
    """Return ln of D, N and E."""
    return np.log([curve.horizon, curve.model["n_active"], curve.model.get("experts", 1.0)])


def _weigh(distance: ArrayLike, trunks: Sequence[str]) -> FloatArray:
    """Weigh runs by their distance [n, 3]; those of one trunk weigh together what the nearest of them does."""
    weights = np.exp(-0.5 * np.sum(np.square(distance), axis=1) / NEARNESS**2)
    for trunk in {*trunks}:
        is_of_trunk = np.array([name == trunk for name in trunks])
        weights[is_of_trunk] *= weights[is_of_trunk].max() / weights[is_of_trunk].sum()
    return np.asarray(weights)


def _ridge_at_origin(
    distance: FloatArray,
    values: FloatArray,
    weights: FloatArray,
    ridge: FloatArray,
    prior_mean: float,
) -> tuple[float, float, FloatArray]:
    """Fit a plane by weighted ridge regression.

    Args:
        distance: positions of the runs [n, 3].
        values: their values [n].
        weights: their weights [n].
        ridge: the prior's weight on the constant and the slopes [4].
        prior_mean: the prior mean of the constant.

    Returns:
        The plane's value at distance 0, its leverage there, and the residuals [n].
    """
    design = np.column_stack([np.ones(len(values)), distance])
    weighted = (design * weights[:, None]).T
    inverse = np.linalg.inv(weighted @ design + np.diag(ridge))
    prior = ridge * np.array([prior_mean, 0.0, 0.0, 0.0])
    plane = inverse @ (weighted @ values + prior)
    return float(plane[0]), min(float(inverse[0, 0]), MAX_WIDENING), values - design @ plane
