"""One factor on the gain of the joint law, each laboratory left out, and an interval for gains of the next one.

The gain that the law predicts for a pair is p = ln L(N, D, E₁) − ln L(N, D, E₂). Measured gains are taken to be φ p + ε:
φ is the slope of a laboratory, ε what a pair errs besides. Laboratories count alike, however many pairs they have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_law import JointLaw, Law, PublishedLaw, laws
from studies.anatomy.pairs import EXPERTS, ROUTED, Pairs, Side
from studies.common import FloatArray, rms

# The share of gains that an interval is to hold, and where it counts as calibrated.
LEVEL = 0.9
CALIBRATED = (0.85, 0.95)
# Variables that differ by less are the same.
SAME = 0.02
# The largest E of the law's runs, and that of Marin's and Step Law's models, which are asked for.
LAW_EXPERTS = 32.0
ASKED_EXPERTS = 45.0


# ------------------------------------------------------------------ what laws say


def count_with(side: Side) -> FloatArray:
    """Return N with the model's own embedding and head, as the paper counts."""
    return side["n_active"]


def count_own(side: Side) -> FloatArray:
    """Return N with the embedding and head that the model has with the vocabulary of the law."""
    vocabulary = JointLaw.published().conditions.vocab_size
    return np.asarray(side["n_active_non_embedding"] + 2.0 * vocabulary * side["d_model"])


def count_without(side: Side) -> FloatArray:
    """Return N without embedding and head."""
    return side["n_active_non_embedding"]


Count = Callable[[Side], FloatArray]
COUNTS: Mapping[str, Count] = {
    "own embeddings": count_with,
    "the law's vocabulary": count_own,
    "no embeddings": count_without,
}


def joint_gains(pairs: Pairs, count: Count = count_with) -> FloatArray:
    """Return the gain of each pair by the joint law as published."""
    law = JointLaw.published()
    first, second = (law.loss(count(side), side["tokens"], side["experts"]) for side in (pairs.before, pairs.after))
    return np.asarray(np.log(first / second))


def is_answered(pairs: Pairs) -> NDArray[np.bool_]:
    """Return which pairs the joint law answers without `force`: neither model is beyond its guard."""
    law = JointLaw.published()
    is_beyond = np.zeros(len(pairs), bool)
    for side in (pairs.before, pairs.after):
        check = law.check(n_active=count_with(side), tokens=side["tokens"], experts=side["experts"])
        is_beyond |= check.beyond
    return ~is_beyond


def gains_by_law(pairs: Pairs) -> dict[str, FloatArray]:
    """Return the gains by each law of the shelf that has something to say of these pairs."""
    gains = {}
    for entry in laws().entries:
        if entry.answers == "loss" and entry.published:
            values = _law_gains(entry, pairs)
            if values is not None:
                gains[entry.name] = values
    return gains


def _law_gains(entry: PublishedLaw, pairs: Pairs) -> FloatArray | None:
    """Return the gains by a law; None if it lacks a variable, or takes both for the same model."""
    law = entry.law()
    sides = (pairs.before, pairs.after)
    inputs = [{name: side[name] for name in law.variables} for side in sides]
    if not all(np.isfinite(values).all() for variables in inputs for values in variables.values()):
        return None
    if all(_is_same(inputs[0][name], inputs[1][name]) for name in law.variables):
        return None
    if _has_one_e(law) and not _is_same(pairs.before["experts"], pairs.after["experts"]):
        return None
    return np.asarray(np.log(law.loss(**inputs[0]) / law.loss(**inputs[1])))


def _is_same(before: FloatArray, after: FloatArray) -> bool:
    """Return whether a variable is the same for both models, but for tokens of a last step and roundings of shapes."""
    return np.allclose(before, after, rtol=SAME)


def _has_one_e(law: Law) -> bool:
    """Return whether a law was fitted at a single E."""
    low, high = (0.0, 1.0)
    if law.conditions:
        low, high = law.conditions.fitted_limits().get("E", (0.0, 1.0))
    return low == high


# ------------------------------------------------------------------ laboratories


@dataclass(frozen=True)
class Laboratory:
    """The pairs of a laboratory that differ in E: gains measured and by the joint law, the larger E and the sets, [n]."""

    name: str
    measured: FloatArray
    predicted: FloatArray
    experts: FloatArray
    routed_share: FloatArray
    sets: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.measured)

    @property
    def slope(self) -> float:
        """The measured gain over the law's, by least squares."""
        return float(self.measured @ self.predicted / (self.predicted @ self.predicted))

    @property
    def scatter(self) -> float:
        """The standard deviation of its gains about its own slope."""
        residuals = self.measured - self.slope * self.predicted
        return float(np.sqrt(residuals @ residuals / (len(self) - 1)))

    def errors(self, factor: float = 1.0) -> FloatArray:
        """Return what the law with a factor misses, predicted minus measured."""
        return factor * self.predicted - self.measured

    def within(self, factor: float, interval: Interval) -> NDArray[np.bool_]:
        """Return which gains an interval about the law with a factor holds."""
        return np.abs(self.errors(factor)) <= interval.half_width(self.predicted)


@dataclass(frozen=True)
class Interval:
    """The 90 % interval of a gain: `spread` between laboratories, relative to the law's gain, and `noise` of a pair."""

    spread: float
    noise: float

    def half_width(self, predicted: FloatArray) -> FloatArray:
        """Return half the width at gains that the law predicts."""
        z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
        return np.asarray(z * np.hypot(self.spread * predicted, self.noise))


def laboratories_of(pairs: Sequence[Pairs], count: Count = count_with) -> list[Laboratory]:
    """Return the laboratories of the pairs that differ in E alone and that the law answers."""
    names = dict.fromkeys(p.laboratory for p in pairs if p.field == EXPERTS)
    laboratories = []
    for name in names:
        rows = []
        for p in pairs:
            if p.laboratory == name and p.field == EXPERTS:
                columns = (p.gains, joint_gains(p, count), p.after["experts"], p.after["routed_share"])
                sets = np.full(len(p), p.name, object)
                rows.append(np.stack([*columns, sets])[:, is_answered(p)])
        values = np.concatenate(rows, axis=1)
        laboratories.append(Laboratory(name, *values[:4].astype(float), values[4]))
    return laboratories


def factor_of(laboratories: Sequence[Laboratory]) -> float:
    """Return the factor on the law's gain, the mean of the slopes of laboratories."""
    return float(np.mean([laboratory.slope for laboratory in laboratories]))


def interval_of(laboratories: Sequence[Laboratory], factor: float | None = None) -> Interval:
    """Return the interval about the law as it is, or about the law with a factor that these laboratories gave."""
    slopes = np.array([laboratory.slope for laboratory in laboratories])
    freedom = len(slopes) - (factor is not None)
    deviations = slopes - (1.0 if factor is None else factor)
    spread = float(np.sqrt(deviations @ deviations / max(freedom, 1)))
    return Interval(spread, rms(np.array([laboratory.scatter for laboratory in laboratories])))


@dataclass(frozen=True)
class LeftOut:
    """A laboratory, and what the others say of it: a factor, and intervals without and with this factor."""

    laboratory: Laboratory
    factor: float
    interval: Interval
    interval_with: Interval

    @property
    def error(self) -> float:
        """The RMSE of the law as it is."""
        return rms(self.laboratory.errors())

    @property
    def error_with(self) -> float:
        """The RMSE of the law with the factor of the other laboratories."""
        return rms(self.laboratory.errors(self.factor))

    def within(self, uses_factor: bool = False) -> NDArray[np.bool_]:
        """Return which of its gains the interval holds."""
        if uses_factor:
            return self.laboratory.within(self.factor, self.interval_with)
        return self.laboratory.within(1.0, self.interval)


@dataclass(frozen=True)
class Estimate:
    """Everything that laboratories say of the law's gain in E, and what follows from that."""

    laboratories: Sequence[Laboratory]

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """Each laboratory left out."""
        rows = []
        for laboratory in self.laboratories:
            rest = [other for other in self.laboratories if other is not laboratory]
            factor = factor_of(rest)
            rows.append(LeftOut(laboratory, factor, interval_of(rest), interval_of(rest, factor)))
        return rows

    @property
    def better_with(self) -> list[LeftOut]:
        """The laboratories left out on which the factor beats the law as it is."""
        return [row for row in self.left_out if row.error_with < row.error]

    @property
    def uses_factor(self) -> bool:
        """True if the factor beats the law on every laboratory left out."""
        return len(self.better_with) == len(self.left_out)

    @property
    def errors(self) -> tuple[float, float]:
        """The RMSE without and with the factor; laboratories count alike."""
        errors = np.array([(row.error, row.error_with) for row in self.left_out])
        return rms(errors[:, 0]), rms(errors[:, 1])

    @cached_property
    def factor(self) -> float:
        """The factor in use: that of all laboratories, or 1."""
        return factor_of(self.laboratories) if self.uses_factor else 1.0

    @cached_property
    def interval(self) -> Interval:
        """The interval of a gain at the next laboratory."""
        return interval_of(self.laboratories, self.factor if self.uses_factor else None)

    @property
    def coverage(self) -> float:
        """The share of all gains of laboratories left out that intervals hold."""
        return float(np.concatenate([row.within(self.uses_factor) for row in self.left_out]).mean())

    @property
    def is_calibrated(self) -> bool:
        """True if intervals hold about as many gains as they should."""
        low, high = CALIBRATED
        return low <= self.coverage <= high

    def carried(self) -> tuple[int, int]:
        """Count the gains above the law's E, up to the E asked for, that intervals hold, and all of them."""
        n_within = 0
        n_pairs = 0
        for row in self.left_out:
            e = row.laboratory.experts
            is_asked = (e > LAW_EXPERTS) & (e <= ASKED_EXPERTS)
            n_within += int(row.within(self.uses_factor)[is_asked].sum())
            n_pairs += int(is_asked.sum())
        return n_within, n_pairs


# ------------------------------------------------------------------ the share of blocks with experts


@dataclass(frozen=True)
class RoutedShare:
    """The exponent of the gain in the share of blocks with experts, r^β, from models that differ in r alone."""

    ratios: FloatArray
    shares: FloatArray
    experts: FloatArray

    @property
    def exponent(self) -> float:
        """The slope of the ln of the gain over that at r = 1/2, through that point."""
        x = np.log(self.shares / 0.5)
        return float(x @ np.log(self.ratios) / (x @ x))

    @property
    def scatter(self) -> float:
        """The standard deviation of the ln of a ratio about that line."""
        residuals = np.log(self.ratios) - self.exponent * np.log(self.shares / 0.5)
        return float(np.sqrt(residuals @ residuals / (len(residuals) - 1)))

    def errors(self, laboratory: Laboratory, factor: float) -> tuple[float, float]:
        """Return the RMSE of a laboratory without and with the coefficient; the paper's models have r = 1."""
        scale = laboratory.routed_share**self.exponent
        with_share = factor * scale * laboratory.predicted - laboratory.measured
        return rms(laboratory.errors(factor)), rms(with_share)


def routed_share_of(pairs: Sequence[Pairs]) -> RoutedShare:
    """Return the gains over those of the twins with experts in every second block."""
    tables: list[Any] = [p for p in pairs if p.field == ROUTED]
    ratios = np.concatenate([p.gains / p.twins for p in tables])
    shares = np.concatenate([p.after["routed_share"] for p in tables])
    experts = np.concatenate([p.after["experts"] for p in tables])
    return RoutedShare(ratios, shares, experts)
