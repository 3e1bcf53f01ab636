"""Break-even: the token count at which an MoE overtakes the dense model with the same active parameters.

In the joint law (Ludziejewski et al. 2025, Eq. 5) experts lower the term in N and raise that in D, ω > 0, which wanes
as D grows (ζ < 0): few tokens favour the dense model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError
from hub.base.inputs import numbers_of, reads
from hub.base.units import format_count
from scaling_law.formulas import Formula
from scaling_law.formulas.answers import ArrayAnswer, span
from scaling_law.planning.optimum import parse_experts, parse_positive
from scaling_law.size.arrays import FloatArray

# Tokens that are searched.
TOKENS_RANGE = (1e3, 1e15)
# Points in D; a straight line between two is off by less than 0.1 %.
POINTS = 400


@dataclass(frozen=True)
class BreakEven(ArrayAnswer):
    """The D at which an MoE overtakes the dense model of equal N_act: arrays of shape n_active.shape + experts.shape.

    `tokens` is 0 where it leads throughout the searched D, infinite where it does not at the last; `tokens_low` and
    `tokens_high` are the 95 % interval over the law's draws, NaN for a law without draws.
    """

    _question: ClassVar[tuple[str, ...]] = ("n_active", "experts")

    n_active: FloatArray
    experts: FloatArray
    tokens: FloatArray
    tokens_low: FloatArray
    tokens_high: FloatArray

    @property
    def verdict(self) -> str:
        size = f"E = {span(self.experts, '{:g}'.format)} of {span(self.n_active, format_count)} active parameters"
        if np.isinf(self.tokens).all():
            return f"{size}: never overtakes the dense model within the searched tokens"
        if not self.tokens.any():
            return f"{size}: ahead of the dense model throughout the searched tokens"
        tokens = span(self.tokens[np.isfinite(self.tokens)], format_count)
        return f"{size}: overtakes the dense model at {tokens} tokens"


@reads
def break_even(
    law: Formula,
    n_active: ArrayLike,
    experts: ArrayLike | None = None,
    *,
    between: tuple[float, float] = TOKENS_RANGE,
    force: bool = False,
) -> BreakEven:
    """Token count at which an MoE overtakes the dense model of equal N_act (experts None: the law's own above 1).

    D is searched in `between`: ask the law of a small sweep no further than its runs reach.
    ValueError for a law that does not depend on N_act, D and E, and for E of 1 or less; ExtrapolationError where
    an answer lies beyond the law's range guard, unless `force`.
    """
    if missing := {"n_active", "tokens", "experts"} - {*law.variables}:
        raise InputError(
            f"break-even needs a law that depends on {', '.join(sorted(missing))}; the {law.name} law does not"
        )
    ends = numbers_of("between", between)
    if ends.shape != (2,) or not 0 < ends[0] < ends[1] < np.inf:
        raise InputError(f"between={between!r} must be two increasing positive numbers of tokens")
    size, e = parse_positive("n_active", n_active), parse_experts(law, experts)
    e = e[e > 1] if experts is None else e
    if not (e.size and np.all(e > 1)):
        raise InputError(f"experts={e.tolist()!r} must be above 1: they are compared with the dense model")
    n, e = np.broadcast_arrays(size.reshape(size.shape + (1,) * e.ndim), e)
    tokens = _overtaken(law.loss, n, e, between)
    low = high = np.full(n.shape, np.nan)
    if law.draws is not None:  # some may be infinite
        low, high = np.quantile(drawn_break_even(law, n, e, between), [0.025, 0.975], axis=0, method="nearest")
    finite = np.isfinite(tokens) & (tokens > 0)
    (check := law.check(n, np.where(finite, tokens, np.nan), e)).refuse(force)
    return BreakEven(n, e, tokens, low, high, check=check)


def drawn_break_even(
    law: Formula, n_active: ArrayLike, experts: ArrayLike, between: tuple[float, float]
) -> FloatArray:
    """The tokens of `break_even` for each of the law's draws, [n_draws, ...]; N_act and E broadcast."""
    n, e = np.broadcast_arrays(np.asarray(n_active, float), np.asarray(experts, float))
    return _overtaken(law.loss_draws, n, e, between)


def _overtaken(
    loss: Callable[..., FloatArray], n: FloatArray, e: FloatArray, between: tuple[float, float]
) -> FloatArray:
    """The tokens from which models of `n` and `e` have the lower `loss`, searched `between`."""
    tokens = np.geomspace(*between, POINTS)
    gaps = loss(n[..., None], tokens, e[..., None]) - loss(n[..., None], tokens, 1.0)
    return overtaking(np.log(tokens), gaps)


def overtaking(log_tokens: FloatArray, gaps: FloatArray) -> FloatArray:
    """The D beyond which `gaps` [..., k], MoE minus dense losses at ascending ln D [k], stay below 0.

    Linear in ln D between two points; 0 where all gaps are below 0, infinite where the last is not.
    """
    behind = gaps >= 0
    last = np.where(behind.any(axis=-1), gaps.shape[-1] - 1 - np.argmax(behind[..., ::-1], axis=-1), -1)
    at = np.clip(last, 0, gaps.shape[-1] - 2)
    above, below = (np.take_along_axis(gaps, i[..., None], axis=-1)[..., 0] for i in (at, at + 1))
    # Some rows have no two gaps that bracket zero.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = above / (above - below)
        crossing = np.exp(log_tokens[at] + share * (log_tokens[at + 1] - log_tokens[at]))
    return np.where(last < 0, 0.0, np.where(last == gaps.shape[-1] - 1, np.inf, crossing))
