"""One factor on the gain of the joint law, each laboratory left out, and an interval for gains of the next one.

The law's gain of a pair is p = ln L(N, D, E₁) − ln L(N, D, E₂). Measured gains are taken to be φ p + ε: φ is the slope
of a laboratory, ε what a pair errs besides. Laboratories count alike, however many pairs they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from scaling_law import JointLaw, Law, PublishedLaw, laws
from studies.anatomy.pairs import EXPERTS, PAPER_VOCABULARY, ROUTED, Pairs, Side
from studies.common import FloatArray, rms

# The share of gains that an interval is to hold, and between which shares it counts as calibrated.
LEVEL = 0.9
CALIBRATED = (0.85, 0.95)
# Variables that differ by less are the same: E of 65/6 and 11, and tokens of a last step.
SAME = 0.02
# The largest E of the law's runs, and that of Marin's and Step Law's models, which is asked for.
LAW_EXPERTS = 32.0
ASKED_EXPERTS = 45.0
# The share of blocks with experts from which a model is of their shape.
NEARLY_ALL = 0.9
# The paper's, with which the law counts N.
# The N that the law is asked with. Everything but the table of counts uses the first, as the paper does.
COUNTS: Mapping[str, Callable[[Side], FloatArray]] = {
    "own embeddings": lambda side: side["n_active"],
    "the law's vocabulary": lambda side: side["n_active_non_embedding"] + 2.0 * PAPER_VOCABULARY * side["d_model"],
    "no embeddings": lambda side: side["n_active_non_embedding"],
}
PAPER = "own embeddings"


# ------------------------------------------------------------------ what laws say


def joint_gains(pairs: Pairs, count: str = PAPER) -> FloatArray:
    """Return the gain of each pair by the joint law as published."""
    law = JointLaw.published()
    losses = []
    for side in (pairs.before, pairs.after):
        losses.append(law.loss(COUNTS[count](side), side["tokens"], side["experts"]))
    return np.asarray(np.log(losses[0] / losses[1]))


def answered(pairs: Pairs) -> Pairs:
    """Return the pairs that the joint law answers without `force`: neither model is beyond its guard."""
    law = JointLaw.published()
    is_answered = np.full(len(pairs), True)
    for side in (pairs.before, pairs.after):
        check = law.check(n_active=side["n_active"], tokens=side["tokens"], experts=side["experts"])
        is_answered &= ~check.beyond
    return pairs.subset(is_answered)


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
    is_known = all(np.isfinite(pairs.after.get(name, np.nan)).all() for name in law.variables)
    has_other_experts = not _is_same(pairs, "experts")
    if not is_known or (has_other_experts and _has_one_e(law)):
        return None
    if all(_is_same(pairs, name) for name in law.variables):
        return None
    losses = []
    for side in (pairs.before, pairs.after):
        inputs = {name: side[name] for name in law.variables}
        losses.append(law.loss(**inputs))
    return np.asarray(np.log(losses[0] / losses[1]))


def _is_same(pairs: Pairs, name: str) -> bool:
    """Return whether both models of each pair have the same value of a variable."""
    return np.allclose(pairs.before[name], pairs.after[name], rtol=SAME)


def _has_one_e(law: Law) -> bool:
    """Return whether a law was fitted at a single E."""
    limits = law.conditions.fitted_limits() if law.conditions else {}
    low, high = limits.get("E", (0.0, 1.0))
    return low == high


# ------------------------------------------------------------------ laboratories


@dataclass(frozen=True)
class Interval:
    """The interval of a gain: `spread` between laboratories, relative to the law's gain, and `noise` of a pair."""

    spread: float
    noise: float

    def half_width(self, predicted: FloatArray) -> FloatArray:
        """Return half the width at gains that the law predicts."""
        z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
        return np.asarray(z * np.hypot(self.spread * predicted, self.noise))


@dataclass(frozen=True)
class Laboratory:
    """Pairs that differ in E alone and that the law answers: gains, the law's gains, the larger E, share of blocks."""

    name: str
    gains: FloatArray
    predicted: FloatArray
    experts: FloatArray
    routed_share: FloatArray

    def __len__(self) -> int:
        return len(self.gains)

    @property
    def slope(self) -> float:
        """The measured gain over the law's, by least squares."""
        return float(self.gains @ self.predicted / (self.predicted @ self.predicted))

    @property
    def scatter(self) -> float:
        """The standard deviation of its gains about its own slope."""
        residuals = self.gains - self.slope * self.predicted
        return float(np.sqrt(residuals @ residuals / (len(self) - 1)))

    def errors(self, factor: float = 1.0) -> FloatArray:
        """Return what the law with a factor misses, predicted minus measured."""
        return factor * self.predicted - self.gains

    def is_within(self, factor: float, interval: Interval) -> NDArray[np.bool_]:
        """Return which gains an interval about the law with a factor holds."""
        return np.abs(self.errors(factor)) <= interval.half_width(self.predicted)


def laboratory_of(name: str, pairs: Sequence[Pairs], count: str = PAPER) -> Laboratory:
    """Return the pairs of a laboratory that differ in E."""
    tables = []
    for p in map(answered, pairs):
        tables.append((p.gains, joint_gains(p, count), p.after["experts"], p.after["routed_share"]))
    return Laboratory(name, *np.concatenate(tables, axis=1))


def laboratories_of(pairs: Sequence[Pairs], count: str = PAPER) -> list[Laboratory]:
    """Return all laboratories of these pairs, in their order."""
    sets: dict[str, list[Pairs]] = {}
    for p in pairs:
        if p.field == EXPERTS:
            sets.setdefault(p.laboratory, []).append(p)
    return [laboratory_of(name, tables, count) for name, tables in sets.items()]


def factor_of(laboratories: Sequence[Laboratory]) -> float:
    """Return the factor on the law's gain: the mean of the slopes."""
    return float(np.mean([laboratory.slope for laboratory in laboratories]))


def interval_of(laboratories: Sequence[Laboratory], factor: float) -> Interval:
    """Return the interval about the law with a factor: how slopes deviate from that, and gains from their slope."""
    slopes = np.array([laboratory.slope for laboratory in laboratories])
    scatters = np.array([laboratory.scatter for laboratory in laboratories])
    return Interval(rms(slopes - factor), rms(scatters))


@dataclass(frozen=True)
class LeftOut:
    """A laboratory, and those from which a factor and an interval are estimated for it."""

    laboratory: Laboratory
    training: Sequence[Laboratory]

    @property
    def factor(self) -> float:
        """The factor of the others."""
        return factor_of(self.training)

    @property
    def error(self) -> float:
        """The RMSE of the law as it is."""
        return rms(self.laboratory.errors())

    @property
    def error_with(self) -> float:
        """The RMSE of the law with the factor of the others."""
        return rms(self.laboratory.errors(self.factor))


@dataclass(frozen=True)
class Estimate:
    """The verdict of laboratories on a factor on the law's gain in E, and the interval of the next one's gains."""

    laboratories: Sequence[Laboratory]

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """Each laboratory left out."""
        rows = []
        for laboratory in self.laboratories:
            training = [candidate for candidate in self.laboratories if candidate is not laboratory]
            rows.append(LeftOut(laboratory, training))
        return rows

    @property
    def worse(self) -> list[LeftOut]:
        """The laboratories left out on which the factor does not beat the law as it is."""
        return [row for row in self.left_out if row.error_with >= row.error]

    @property
    def factor(self) -> float:
        """The factor in use: that of all laboratories if it beats the law on each that is left out, otherwise 1."""
        return 1.0 if self.worse else factor_of(self.laboratories)

    @property
    def interval(self) -> Interval:
        """The interval of a gain at the next laboratory."""
        return interval_of(self.laboratories, self.factor)

    @cached_property
    def is_within(self) -> list[NDArray[np.bool_]]:
        """True for each gain of a laboratory left out that the interval of the others holds."""
        masks = []
        for row in self.left_out:
            factor = 1.0 if self.worse else row.factor
            masks.append(row.laboratory.is_within(factor, interval_of(row.training, factor)))
        return masks

    @property
    def coverage(self) -> float:
        """The share of all gains of laboratories left out that intervals hold."""
        return float(np.concatenate(self.is_within).mean())


@dataclass(frozen=True)
class Carried:
    """Gains of models with experts in all blocks but the first: those above the law's E, and its error there."""

    is_within: NDArray[np.bool_]
    error_above: float
    error_up_to: float

    @property
    def holds(self) -> bool:
        """True if intervals hold the gains above the law's E, and the law errs no more there than up to it."""
        return bool(self.is_within.mean() >= CALIBRATED[0] and self.error_above <= self.error_up_to)


def carried_by(estimate: Estimate) -> Carried:
    """Return how laboratories with experts in nearly every block bear out E up to `ASKED_EXPERTS`."""
    is_within = []
    above = []
    up_to = []
    for laboratory, mask in zip(estimate.laboratories, estimate.is_within, strict=True):
        if laboratory.routed_share.min() > NEARLY_ALL:
            is_above = (laboratory.experts > LAW_EXPERTS) & (laboratory.experts <= ASKED_EXPERTS)
            errors = laboratory.errors(estimate.factor)
            is_within.append(mask[is_above])
            above.append(errors[is_above])
            up_to.append(errors[laboratory.experts <= LAW_EXPERTS])
    return Carried(np.concatenate(is_within), rms(np.concatenate(above)), rms(np.concatenate(up_to)))


# ------------------------------------------------------------------ the share of blocks with experts


@dataclass(frozen=True)
class RoutedShare:
    """Gains over those of models with experts in every second block, with the share of blocks and E, [n]."""

    ratios: FloatArray
    shares: FloatArray
    experts: FloatArray

    @property
    def exponent(self) -> float:
        """The exponent of the gain in the share, by least squares in logarithms."""
        x = np.log(self.shares / 0.5)
        return float(x @ np.log(self.ratios) / (x @ x))

    def errors(self, laboratory: Laboratory, factor: float) -> tuple[float, float]:
        """Return the RMSE of a laboratory without and with the exponent; the paper's models have a share of 1."""
        scale = laboratory.routed_share**self.exponent
        return rms(laboratory.errors(factor)), rms(factor * scale * laboratory.predicted - laboratory.gains)


def routed_share_of(pairs: Iterable[Pairs]) -> RoutedShare:
    """Return the gains of the models that differ in the share of blocks."""
    (p,) = (p for p in pairs if p.field == ROUTED)
    return RoutedShare(p.gains / p.twins, p.after["routed_share"], p.after["experts"])
