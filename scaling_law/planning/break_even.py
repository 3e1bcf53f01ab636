"""Break-even: the token count at which an MoE overtakes the dense model with the same active parameters.

In the joint law (Ludziejewski et al. 2025, Eq. 5) experts lower the term in N and raise that in D, ω > 0, which wanes
as D grows (ζ < 0): few tokens favour the dense model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError
from hub.base.inputs import numbers_of, reads
from hub.base.units import format_count
from scaling_law.answer.answer import Answer, span
from scaling_law.formulas import Formula
from scaling_law.planning.optimum import parse_experts, parse_positive
from scaling_law.size.arrays import FloatArray, Interval

# Tokens that are searched.
TOKENS_RANGE = (1e3, 1e15)
# Points in D; a straight line between two is off by less than 0.1 %.
POINTS = 400


class BreakEven(Answer):
    """The D at which an MoE overtakes the dense model of equal N_act: arrays of shape n_active.shape + experts.shape.

    `tokens` is 0 where it leads throughout the searched D, infinite where it does not at the last; `tokens_low` and
    `tokens_high` are the 95 % interval over the law's draws, NaN for a law without draws.
    """

    _question: ClassVar[tuple[str, ...]] = ("n_active", "experts")

    @property
    def verdict(self) -> str:
        size = f"{span(self.n_active, format_count)} active parameters, E = {span(self.experts, '{:g}'.format)}"
        if np.isinf(self.tokens).all():
            return f"{size}: dense models stay ahead within the searched tokens"
        if not self.tokens.any():
            return f"{size}: ahead of dense models throughout the searched tokens"
        tokens = span(self.tokens[np.isfinite(self.tokens)], format_count)
        return f"{size}: dense models are overtaken at {tokens} tokens"


@reads
def break_even(
    law: Formula,
    n_active: ArrayLike,
    experts: ArrayLike | None = None,
    *,
    between: Interval = TOKENS_RANGE,
    force: bool = False,
) -> BreakEven:
    """Find the token count at which an MoE overtakes the dense model of equal N_act, for each E.

    With experts None for the law's own above 1.

    D is searched in `between`: ask the law of a small sweep no further than its runs reach.
    ValueError for a law that does not depend on N_act, D and E, and for E of 1 or less; ExtrapolationError where
    an answer lies beyond the law's range guard, unless `force`.
    """
    missing = {"n_active", "tokens", "experts"} - {*law.variables}
    if missing:
        raise InputError(
            f"break-even needs a law that depends on {', '.join(sorted(missing))}; the {law.name} law does not"
        )
    limits = numbers_of("between", between)
    if limits.shape != (2,) or not 0 < limits[0] < limits[1] < np.inf:
        raise InputError(f"between={between!r} must be two increasing positive numbers of tokens")
    size = parse_positive("n_active", n_active)
    e = parse_experts(law, experts)
    if experts is None:
        e = e[e > 1]
    if not (e.size and np.all(e > 1)):
        raise InputError(f"experts={e.tolist()!r} must be above 1: they are compared with the dense model")
    n, e = np.broadcast_arrays(size.reshape(size.shape + (1,) * e.ndim), e)
    tokens = _find_crossings(law.loss, n, e, between)
    low = high = np.full(n.shape, np.nan)
    if law.draws is not None:
        # Some may be infinite, between which and a number no quantile can fall.
        low, high = np.quantile(drawn_break_even(law, n, e, between), [0.025, 0.975], axis=0, method="nearest")
    is_crossing = np.isfinite(tokens) & (tokens > 0)
    check = law.check(n, np.where(is_crossing, tokens, np.nan), e)
    check.refuse(force)
    columns = {"n_active": n, "experts": e, "tokens": tokens, "tokens_low": low, "tokens_high": high}
    return BreakEven(columns=columns, check=check)


def drawn_break_even(law: Formula, n_active: ArrayLike, experts: ArrayLike, between: Interval) -> FloatArray:
    """Find the tokens of `break_even` for each of the law's draws, [n_draws, ...]; N_act and E broadcast."""
    n, e = np.broadcast_arrays(np.asarray(n_active, float), np.asarray(experts, float))
    return _find_crossings(law.loss_draws, n, e, between)


def _find_crossings(loss: Callable[..., FloatArray], n: FloatArray, e: FloatArray, between: Interval) -> FloatArray:
    """Find the tokens from which models of `n` and `e` have the lower `loss`, searched `between`."""
    tokens = np.geomspace(*between, POINTS)
    gaps = loss(n[..., None], tokens, e[..., None]) - loss(n[..., None], tokens, 1.0)
    return find_crossing(np.log(tokens), gaps)


def find_crossing(log_tokens: FloatArray, gaps: FloatArray) -> FloatArray:
    """Find the D beyond which `gaps` [..., k], MoE minus dense losses at ascending ln D [k], stay below 0.

    Linear in ln D between two points; 0 where all gaps are below 0, infinite where the last is not.
    """
    is_behind = gaps >= 0
    end = gaps.shape[-1] - 1
    last_behind = np.where(is_behind.any(axis=-1), end - np.argmax(is_behind[..., ::-1], axis=-1), -1)
    place = np.clip(last_behind, 0, end - 1)
    before = np.take_along_axis(gaps, place[..., None], axis=-1)[..., 0]
    after = np.take_along_axis(gaps, place[..., None] + 1, axis=-1)[..., 0]
    # Some rows have no two gaps that bracket zero.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = before / (before - after)
        crossing = np.exp(log_tokens[place] + share * (log_tokens[place + 1] - log_tokens[place]))
    return np.where(last_behind < 0, 0.0, np.where(last_behind == end, np.inf, crossing))
