"""What the runs themselves say at a budget, without a law: isoFLOP profiles, as in Hoffmann et al. 2022.

The branches of a trunk measure the loss of one model at several token counts. Between them the loss is interpolated
at the tokens that the budget buys, D = F / (6 N_act); the best size is the lowest point of a parabola in ln N.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling_law.runs.table import Runs
from scaling_law.size.architecture import affordable_tokens

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Profile:
    """Models of one E at one budget, by ascending N_act.

    Attributes:
        experts: E.
        flops: the budget, 6 N_act D.
        n_active, tokens: sizes and the tokens that the budget buys, [n].
        loss: interpolated between the runs of the size, nats per token, [n].
        best_n_active, best_loss: of the parabola through the lowest size and its neighbours; of the lowest size itself
            where it is the smallest or the largest.
        at_edge: whether the lowest size is the smallest or the largest, so that the best one may lie outside.
    """

    experts: float
    flops: float
    n_active: FloatArray
    tokens: FloatArray
    loss: FloatArray
    best_n_active: float
    best_loss: float
    at_edge: bool


def isoflop_profiles(runs: Runs, flops: float) -> list[Profile]:
    """A profile for each E of which at least one size has runs on both sides of the budget; by ascending E.

    Losses of several runs with the same N, D and E (seeds) are averaged first.
    """
    found = []
    for experts in np.unique(runs.experts):
        sizes = np.unique(runs.n_active[runs.experts == experts])
        curves = [_mean_losses(runs, (runs.experts == experts) & (runs.n_active == n)) for n in sizes]
        tokens = affordable_tokens(flops, sizes)
        losses = np.array([_between(*curve, at) for curve, at in zip(curves, tokens, strict=True)])
        if (known := np.isfinite(losses)).any():
            sizes, tokens, losses = sizes[known], tokens[known], losses[known]
            found.append(Profile(float(experts), float(flops), sizes, tokens, losses, *_lowest(sizes, losses)))
    return found


def repeat_scatter(runs: Runs) -> tuple[float, int]:
    """(standard deviation, degrees of freedom) of the loss between runs of the same N, D and E, pooled; nats.

    Runs that differ in their seed only show how far a single loss may be from the mean of its kind. (nan, 0) without
    repeats.
    """
    kinds, kind = np.unique([runs.experts, runs.n_active, runs.tokens], axis=1, return_inverse=True)
    freedom = len(runs) - kinds.shape[1]
    means = np.bincount(kind, runs.loss) / np.bincount(kind)
    squares = float(np.sum((runs.loss - means[kind]) ** 2))
    return (float(np.sqrt(squares / freedom)), freedom) if freedom else (float("nan"), 0)


def _mean_losses(runs: Runs, chosen: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    """(token counts, ascending; the mean loss at each) of the chosen runs."""
    tokens, which = np.unique(runs.tokens[chosen], return_inverse=True)
    return tokens, np.bincount(which, runs.loss[chosen]) / np.bincount(which)


def _between(tokens: FloatArray, losses: FloatArray, at: float) -> float:
    """Loss at a token count by a monotone cubic in ln D; NaN outside the runs."""
    if not tokens[0] <= at <= tokens[-1]:
        return float("nan")
    if len(tokens) == 1:
        return float(losses[0])
    from scipy.interpolate import PchipInterpolator

    return float(PchipInterpolator(np.log(tokens), losses)(np.log(at)))


def _lowest(n_active: FloatArray, losses: FloatArray) -> tuple[float, float, bool]:
    """(best N_act, its loss, whether it is at an end) of a profile."""
    i = int(np.argmin(losses))
    if not 0 < i < len(losses) - 1:
        return float(n_active[i]), float(losses[i]), True
    x = np.log(n_active[i - 1 : i + 2] / n_active[i])
    a, b, c = np.polyfit(x, losses[i - 1 : i + 2], 2)
    at = -b / (2 * a)
    return float(n_active[i] * np.exp(at)), float(c + at * (b + a * at)), False
