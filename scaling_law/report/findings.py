"""The findings of Ludziejewski et al. 2025, asked of any runs: confirmed, not confirmed, or undecided by them.

Every draw of the cluster bootstrap answers each question. A finding is confirmed if at least 97.5 % of the draws
agree with it and reversed if at most 2.5 % do; in between, these runs cannot decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scaling_law.fitting.learning_rate import LearningRateGrid
from scaling_law.laws import JointLaw
from scaling_law.planning.matched import drawn_gain
from scaling_law.planning.optimum import drawn_optimum

FloatArray = NDArray[np.float64]
Verdict = Literal["confirmed", "not confirmed: the opposite holds", "cannot be decided"]
LEVEL = 0.95  # of the two-sided interval
GAIN = "by {:+.4f} nats ({:+.4f} to {:+.4f})"


@dataclass(frozen=True)
class Finding:
    """One question and its answer.

    Attributes:
        name: such as "Finding 1".
        claim: what the paper says, at this budget.
        share: part of the draws in which it holds; for a coefficient, the probability that it has the claimed sign.
        evidence: the numbers behind it, in words.
    """

    name: str
    claim: str
    share: float
    evidence: str

    @property
    def verdict(self) -> Verdict:
        """What the share says at the level of 95 %."""
        if self.share >= 0.5 + LEVEL / 2:
            return "confirmed"
        return "not confirmed: the opposite holds" if self.share <= 0.5 - LEVEL / 2 else "cannot be decided"


def more_tokens_per_parameter(law: JointLaw, flops: float, experts: Sequence[float]) -> Finding:
    """Finding 1: at a fixed budget, more experts want fewer active parameters and more tokens each."""
    few, many = min(experts), max(experts)
    n_active, tokens, _ = drawn_optimum(law, flops, (few, many))
    claim = f"at {flops:.0e} FLOPs the best D/N is larger for E = {many:g} than for E = {few:g}"
    ratio = tokens / n_active
    return _asked("Finding 1", claim, ratio[:, 1] / ratio[:, 0], 1, "D/N is {:.2f} times as large ({:.2f} to {:.2f})")


def better_with_experts(law: JointLaw, flops: float, experts: float) -> Finding:
    """Finding 2: at a fixed budget, the best model of E experts is better than the best dense one."""
    _, _, loss = drawn_optimum(law, flops, (1.0, experts))
    claim = f"at {flops:.0e} FLOPs the best model with E = {experts:g} is better than the best dense one"
    return _asked("Finding 2", claim, loss[:, 0] - loss[:, 1], 0, GAIN)


def better_in_memory(law: JointLaw, flops: float, experts: float, *, times_tokens: bool = False) -> Finding:
    """Finding 3, or the rule of thumb: an MoE of the same total parameters beats the compute-optimal dense model.

    Args:
        times_tokens: train it on E times the tokens (the rule of thumb), not on those of the same budget.
    """
    spent = f"on {experts:g} times the tokens" if times_tokens else "and the same FLOPs"
    claim = f"a model with E = {experts:g} of the same total parameters {spent} beats the dense model that is best "
    claim += f"at {flops:.0e} FLOPs"
    name = "Rule of thumb" if times_tokens else "Finding 3"
    return _asked(name, claim, drawn_gain(law, flops, experts, times_tokens), 0, GAIN)


def _asked(name: str, claim: str, values: FloatArray, threshold: float, evidence: str) -> Finding:
    """The share of the draws whose value exceeds the threshold; one without a value counts as half."""
    known = np.isfinite(values)
    share = float((np.sum(values[known] > threshold) + 0.5 * np.sum(~known)) / len(values))
    low, middle, high = np.quantile(values[known], [0.5 - LEVEL / 2, 0.5, 0.5 + LEVEL / 2])
    return Finding(name, claim, share, evidence.format(middle, low, high))


def lower_learning_rate(grid: LearningRateGrid, experts: Sequence[float] | None = None) -> Finding:
    """Finding 4: more experts want a lower peak learning rate, the sign of slope_e in a fit to the grid's best rates.

    The probability is that of Student's t of the least-squares fit. ValueError for too few models.
    """
    from scipy.stats import t

    law = grid.fit(experts)
    models = list(grid.of(experts))
    design = np.array([[1.0, np.log(law.counted(m.architecture)), np.log(m.architecture.experts)] for m in models])
    freedom = len(models) - design.shape[1]
    if freedom < 1:
        raise ValueError(f"{len(models)} models; the error of the learning-rate law needs at least four")
    residual = grid.errors(law, experts)
    covariance = np.linalg.inv(design.T @ design) * float(residual @ residual) / freedom
    error = float(np.sqrt(covariance[2, 2]))
    half = error * float(t.ppf(0.5 + LEVEL / 2, freedom))
    return Finding(
        "Finding 4",
        "more experts want a lower peak learning rate",
        float(t.cdf(-law.slope_e / error, freedom)) if error else float(law.slope_e < 0),
        f"the best rate goes with E to the power {law.slope_e:+.2f} ({law.slope_e - half:+.2f} to "
        f"{law.slope_e + half:+.2f}), over {len(models)} models",
    )
