"""Crossings in words: a number of tokens, or that it lies below or above those that were searched."""

from __future__ import annotations

import numpy as np

from hub.plain.units import format_count
from studies.crossing.gaps import Gap
from studies.crossing.prediction import Interval


def tokens_in_words(value: float | None, between: tuple[float, float]) -> str:
    """0 lies below and None or infinity above the D of `between`."""
    if value is None or value == np.inf:
        return f"above {format_count(between[1])}"
    return f"below {format_count(between[0])}" if value == 0 else format_count(float(f"{value:.3g}"))


def interval_in_words(found: Interval, between: tuple[float, float]) -> str:
    value, low, high = (tokens_in_words(v, between) for v in found)
    return f"{value} ({low} to {high})"


def crossing_in_words(gap: Gap) -> str:
    """Without its interval; a single D can only be ahead or behind."""
    if len(gap.tokens) == 1:
        return f"{'ahead' if gap.mean[0] < 0 else 'behind'} at {format_count(float(gap.tokens[0]))}"
    return tokens_in_words(gap.crossing[0], _ends(gap))


def measured_in_words(gap: Gap) -> str:
    """The crossing, with its interval where seeds were repeated and there are several D."""
    if len(gap.tokens) == 1:
        return crossing_in_words(gap)
    if np.isnan(gap.crossing[1]):
        return f"{crossing_in_words(gap)} (no seed repeated)"
    return interval_in_words(gap.crossing, _ends(gap))


def _ends(gap: Gap) -> tuple[float, float]:
    return float(gap.tokens[0]), float(gap.tokens[-1])
