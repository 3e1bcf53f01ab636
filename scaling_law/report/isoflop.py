"""What the runs themselves say at a budget, without a law: isoFLOP profiles, as in Hoffmann et al. 2022.

The branches of a trunk measure the loss of one model at several token counts. Between them the loss is interpolated
at the tokens that the budget buys, D = F / (6 N_act); the best size is the lowest point of a parabola in ln N.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling_law.runs.table import Runs

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
        points = [
            (n, flops / (6 * n), loss)
            for n, tokens, losses in _curves(runs, experts)
            if np.isfinite(loss := _between(tokens, losses, flops / (6 * n)))
        ]
        if points:
            n_active, tokens, losses = (np.array(column) for column in zip(*points, strict=True))
            found.append(Profile(float(experts), float(flops), n_active, tokens, losses, *_lowest(n_active, losses)))
    return found


def repeat_scatter(runs: Runs) -> tuple[float, int]:
    """(standard deviation, degrees of freedom) of the loss between runs of the same N, D and E, pooled; nats.

    Runs that differ in their seed only show how far a single loss may be from the mean of its kind. (nan, 0) without
    repeats.
    """
    squares, freedom = 0.0, 0
    for losses in _repeats(runs).values():
        if len(losses) > 1:
            squares += float(np.sum((losses - losses.mean()) ** 2))
            freedom += len(losses) - 1
    return (float(np.sqrt(squares / freedom)), freedom) if freedom else (float("nan"), 0)


def _repeats(runs: Runs) -> dict[tuple[float, float, float], FloatArray]:
    keys = list(zip(runs.experts.tolist(), runs.n_active.tolist(), runs.tokens.tolist(), strict=True))
    return {key: runs.loss[[other == key for other in keys]] for key in dict.fromkeys(keys)}


def _curves(runs: Runs, experts: float) -> Iterator[tuple[float, FloatArray, FloatArray]]:
    """(N_act, tokens ascending, mean losses) for each size of this E."""
    means = {key: float(losses.mean()) for key, losses in _repeats(runs).items() if key[0] == experts}
    for n in sorted({key[1] for key in means}):
        tokens = sorted(key[2] for key in means if key[1] == n)
        yield n, np.array(tokens), np.array([means[experts, n, d] for d in tokens])


def _between(tokens: FloatArray, losses: FloatArray, at: float) -> float:
    """Loss at a token count by a monotone cubic in ln D; NaN outside the runs."""
    if not tokens[0] <= at <= tokens[-1]:
        return float("nan")
    if len(tokens) == 1:
        return float(losses[0])
    from scipy.interpolate import PchipInterpolator

    return float(PchipInterpolator(np.log(tokens), losses)(np.log(at)))


def _lowest(n_active: FloatArray, losses: FloatArray) -> tuple[float, float, bool]:
    i = int(np.argmin(losses))
    if not 0 < i < len(losses) - 1:
        return float(n_active[i]), float(losses[i]), True
    x = np.log(n_active[i - 1 : i + 2]) - np.log(n_active[i])
    a, b, c = np.polyfit(x, losses[i - 1 : i + 2], 2)
    at = -b / (2 * a)
    return float(n_active[i] * np.exp(at)), float(c + at * (b + a * at)), False
