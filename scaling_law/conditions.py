"""The conditions a law was fitted under; they travel with its coefficients and say where it may be believed.

A law outside the range of its runs still returns numbers. `Conditions.warnings` says how far outside a question is,
and `Conditions.beyond_guard` marks answers no one should act on: the paper's own law prefers sparse models again,
with thousands of tokens per parameter, for models far smaller than those it was fitted on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_law.units import format_count

GUARD_FACTOR = 100.0  # an answer with D/N this many times beyond the largest fitted is not compared with others


@dataclass(frozen=True)
class FittedRange:
    """What the runs with `experts` experts (None: all runs together) covered. Parameters, tokens, FLOPs."""

    experts: float | None
    runs: int
    n_active: tuple[float, float]
    tokens: tuple[float, float]
    tokens_per_parameter: tuple[float, float]
    training_flops: tuple[float, float]


@dataclass(frozen=True)
class Conditions:
    """Objective, number of runs, errors and ranges of a fit, and where the runs came from.

    `draws` says how the draws of the law were made, where that needs saying.
    """

    provenance: str
    objective: Mapping[str, Any] = field(default_factory=dict)
    n_runs: int | None = None
    rmse: float | None = None
    ranges: tuple[FittedRange, ...] = ()
    status: str | None = None
    draws: str | None = None

    @property
    def overall(self) -> FittedRange | None:
        """The range of all runs together."""
        return next((r for r in self.ranges if r.experts is None), None)

    def tokens_per_parameter_limit(self) -> float:
        """D/N beyond which an answer is not compared with others (infinite if the ranges are unknown)."""
        return GUARD_FACTOR * self.overall.tokens_per_parameter[1] if self.overall else float("inf")

    def beyond_guard(self, n_active: ArrayLike, tokens: ArrayLike) -> Any:
        """True where D/N is more than GUARD_FACTOR times the largest that was fitted."""
        return np.asarray(tokens, float) > self.tokens_per_parameter_limit() * np.asarray(n_active, float)

    def warnings(self, n_active: float, tokens: float, experts: float) -> list[str]:
        """Sentences, one for each quantity that leaves the fitted range; empty when inside (or when unknown)."""
        if self.overall is None:
            return []
        fitted = sorted({r.experts for r in self.ranges if r.experts is not None})
        found = []
        if fitted and not fitted[0] <= experts <= fitted[-1]:
            found.append(f"E = {experts:g} is outside the fitted {fitted[0]:g}…{fitted[-1]:g}")
        own = next((r for r in self.ranges if r.experts == experts), self.overall)
        whose = "" if own.experts is None else f" at E = {own.experts:g}"
        asked = {
            "N_act": (n_active, own.n_active),
            "D": (tokens, own.tokens),
            "D/N": (tokens / n_active, self.overall.tokens_per_parameter),
        }
        for name, (value, (low, high)) in asked.items():
            if not low * (1 - 1e-3) <= value <= high * (1 + 1e-3):
                where = f" (×{value / high:.3g})" if value > high else f" (÷{low / value:.3g})"
                limits = f"{format_count(low)}…{format_count(high)}"
                found.append(
                    f"{name} {format_count(value)} is outside the fitted {limits}{whose * (name != 'D/N')}{where}"
                )
        if bool(self.beyond_guard(n_active, tokens)):
            found.append(f"D/N is over {GUARD_FACTOR:g}× the fitted maximum: do not act on this prediction")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self) | {"objective": dict(self.objective), "ranges": [asdict(r) for r in self.ranges]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Conditions:
        """Read back what `to_dict` wrote; unknown keys raise ValueError (metadata is data, and is checked)."""
        try:
            ranges = tuple(FittedRange(**_tuples(r)) for r in data.get("ranges", ()))
            return cls(**{**data, "ranges": ranges})
        except TypeError as error:
            raise ValueError(f"conditions: {error}") from None


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def fitted_ranges(n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> tuple[FittedRange, ...]:
    """The ranges of runs given as columns: all together first, then one for each number of experts."""
    n, d, e = (np.asarray(v, float) for v in (n_active, tokens, experts))
    groups: Iterable[tuple[float | None, NDArray[np.bool_]]] = [(None, np.ones(len(n), bool))]
    groups = [*groups, *((float(value), e == value) for value in np.unique(e))]

    def span(values: NDArray[Any]) -> tuple[float, float]:
        return float(values.min()), float(values.max())

    return tuple(
        FittedRange(
            value, int(mask.sum()), span(n[mask]), span(d[mask]), span(d[mask] / n[mask]), span(6 * n[mask] * d[mask])
        )
        for value, mask in groups
        if mask.any()
    )
