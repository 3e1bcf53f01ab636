"""The conditions a law was fitted under, which tell extrapolation from interpolation.

A `RangeCheck` says what an answer is worth: how far the question extrapolates, and which ranges are unknown. It is
trusted inside the fitted ranges, and beyond them as far as backtests of other labs' laws go (`SUPPORT`). Beyond the
range guard, searches refuse to answer unless forced: far below its fitted sizes, the paper's own law prefers sparse
models with thousands of tokens per parameter. A law without ranges is never refused, nor trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError, given
from hub.base.tables import enumerated
from hub.base.units import format_count
from scaling_law.size.architecture import is_size, training_flops
from scaling_law.size.arrays import FloatArray

# How many times beyond the fitted range, either way, an answer is refused.
GUARD = {"N_act": 1000.0, "D": 1000.0, "D/N": 100.0, "E": 4.0, "flops": 1e6, "C": 1e6}
# Guards of other variables of a law.
SIZE_GUARD, DESIGN_GUARD = 1000.0, 4.0
# How many times below and above the fitted range an answer is trusted: as far as the cuts of
# studies/forecasts/splits.csv go. Laws of the runs up to a thirtieth of the largest compute forecast those above it
# (docs/studies/forecasts.md), and cuts at a third of N or D move D/N by three. Nothing below a range was forecast, and
# no E or design outside. C is 6 N D.
FURTHEST, RATIO = 30.0, 3.0
SUPPORT = {"D/N": (RATIO, RATIO), "E": (1.0, 1.0), "flops": (1.0, FURTHEST), "C": (1.0, FURTHEST)}
SUPPORTED = f"C, N_act and D up to {FURTHEST:g} times above the runs, D/N {RATIO:g} times outside"
# A learning rate is told this many times outside the range of its law, either way: N as it counts, D and the batch.
RATE_GUARD, RATE_GUARD_OF_EXPERTS, RATE_GUARD_OF_FLOPS = 10.0, 4.0, 100.0
UNGUARDED = "this law carries no fitted ranges: nothing checks how far an answer extrapolates"
UNKNOWN = "range of {} unknown: nothing checks how far an answer extrapolates there"
# variable → its name in `fitted_limits`
LABELS = {"n_active": "N_act", "tokens": "D", "tokens_per_parameter": "D/N", "experts": "E"}
# Slack of the ends of a range: a question that is rounded to a digit less is inside.
SLACK = 1e-3
ROUNDING = 1e-9  # a question at the guard itself is inside
DATASET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
SPANS = ("n_active", "tokens", "tokens_per_parameter", "training_flops")
# left out of a file where they are empty: older versions read it
OPTIONAL = ("dataset", "commit", "vocab_size", "where", "variables", "omitted", "doubts")


class ExtrapolationError(InputError):
    """The answer lies beyond `GUARD`; `force=True` (`--force`) answers anyway."""


@dataclass(frozen=True)
class FittedRange:
    """What the runs with `experts` experts (None: all runs) covered."""

    experts: float | None
    runs: int
    n_active: tuple[float, float]
    tokens: tuple[float, float]
    tokens_per_parameter: tuple[float, float]
    training_flops: tuple[float, float]


@dataclass(frozen=True)
class Excess:
    """The value of a quantity furthest outside its limits at one end, `times` beyond, at E = `experts`."""

    name: str
    value: float
    low: float
    high: float
    times: float
    experts: float

    def __str__(self) -> str:
        sign = "×" if self.value > self.high else "÷"
        values = (self.value, self.low, self.high)
        value, low, high = (f"{v:g}" if self.name == "E" else format_count(v) for v in values)
        name = "E =" if self.name == "E" else self.name
        return f"{name} {value} is outside the fitted {low}…{high} ({sign}{self.times:.3g})"


def guard_of(name: str) -> float:
    """Return how many times beyond the fitted range of this quantity an answer is refused."""
    return GUARD.get(name, SIZE_GUARD if is_size(name) else DESIGN_GUARD)


def support_of(name: str) -> tuple[float, float]:
    """Return how many times below and above the fitted range of this quantity an answer is trusted."""
    is_amount = name in ("N_act", "D") or is_size(name)
    return SUPPORT.get(name, (1.0, FURTHEST if is_amount else 1.0))


def measured_support_of(name: str) -> tuple[float, float]:
    """Return how far outside the range of this quantity a run may lie that will be measured: as far as the guard."""
    return guard_of(name), guard_of(name)


def rate_guard_of(name: str) -> float:
    """Return how many times beyond the range of this quantity no learning rate is told."""
    return {"E": RATE_GUARD_OF_EXPERTS, "flops": RATE_GUARD_OF_FLOPS}.get(name, RATE_GUARD)


def rate_support_of(name: str) -> tuple[float, float]:
    """Return how many times below and above the range of this quantity a learning rate is trusted: if it is told."""
    return rate_guard_of(name), rate_guard_of(name)


@dataclass(frozen=True)
class Conditions:
    """How a law was fitted: `load_runs(dataset, revision=commit, where=where)` reads the same runs.

    `draws` says how the draws were made, if not by the bootstrap of the fit. `set_aside` are outliers left out,
    `warmup_tokens` is the longest warm-up, `vocab_size` is None if unknown or mixed, and `variables` has the ranges of
    a law's variables besides N_act, D and E. `omitted` has a sentence on each variable of the runs that the law lacks
    but its errors depend on, and `doubts` on what is odd about the runs themselves, their units or settings in which
    they differ; every answer repeats both.
    """

    provenance: str
    objective: Mapping[str, Any] = field(default_factory=dict)
    n_runs: int | None = None
    rmse: float | None = None
    ranges: tuple[FittedRange, ...] = ()
    status: str | None = None
    draws: str | None = None
    dataset: str | None = None
    commit: str | None = None
    trunks: int | None = None
    trunk_source: str | None = None
    set_aside: tuple[str, ...] = ()
    warmup_tokens: float | None = None
    vocab_size: int | None = None
    where: str | None = None
    variables: Mapping[str, tuple[float, float]] | None = None
    omitted: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def overall(self) -> FittedRange | None:
        return next((r for r in self.ranges if r.experts is None), None)

    @property
    def experts(self) -> tuple[float, ...]:
        """E of the runs, ascending; empty if unknown."""
        return tuple(sorted(r.experts for r in self.ranges if r.experts is not None))

    def fitted_limits(self) -> dict[str, tuple[float, float]]:
        """(lowest, highest) N_act, D, D/N, E and other variables of all runs; without those that are unknown."""
        limits = dict(self.variables or {})
        if (r := self.overall) is not None:
            limits |= {"N_act": r.n_active, "D": r.tokens, "D/N": r.tokens_per_parameter}
        return limits | ({"E": (self.experts[0], self.experts[-1])} if self.experts else {})

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self) | {"objective": dict(self.objective), "ranges": [asdict(r) for r in self.ranges]}
        return {name: value for name, value in data.items() if value or name not in OPTIONAL}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Conditions:
        """Read back what `to_dict` wrote; ValueError for unknown keys and wrong forms."""
        for name, allowed in (("dataset", DATASET), ("commit", COMMIT)):
            value = data.get(name)
            if value is not None and not (isinstance(value, str) and allowed.fullmatch(value)):
                raise InputError(f"conditions: {name}={value!r} must have the form {allowed.pattern}")
        vocabulary = data.get("vocab_size")
        if vocabulary is not None and (type(vocabulary) is not int or vocabulary < 1):
            raise InputError(f"conditions: vocab_size={vocabulary!r} must be an integer of at least 1")
        try:
            ranges = tuple(FittedRange(**_tuples(r)) for r in data.get("ranges", ()))
            variables = _tuples(data["variables"]) if data.get("variables") else None
            return cls(**{**_tuples(data), "ranges": ranges, "variables": variables})
        except TypeError as error:
            raise InputError(f"conditions: {error}") from None


@dataclass(frozen=True, eq=False)
class RangeCheck:
    """What an answer about models is worth. Whoever answers from a law makes one (`law.check`) and keeps it.

    `at` are the models' variables, which broadcast; `needs` those that decide the answer: it is not trusted where the
    range of one of them is unknown. `guard` and `support` say how far outside the range of a quantity it is refused,
    and trusted.
    """

    conditions: Conditions | None
    needs: tuple[str, ...]
    at: Mapping[str, Any]
    guard: Callable[[str], float] = guard_of
    support: Callable[[str], tuple[float, float]] = support_of

    def row(self, index: Any) -> RangeCheck:
        """Return the check of the models at this index of the broadcast variables."""
        named = {name: values for name, values in self.at.items() if values is not None}
        arrays = np.broadcast_arrays(*named.values())
        chosen = {name: array[index] for name, array in zip(named, arrays, strict=True)}
        return replace(self, at=chosen)

    @property
    def unknown(self) -> list[str]:
        """The variables that decide the answer and have no known range."""
        return [label for name in self.needs if (label := LABELS.get(name, name)) not in self._limits]

    @cached_property
    def beyond(self) -> NDArray[np.bool_]:
        """True where a model is known to lie beyond the guard."""
        guards = {name: (self.guard(name), self.guard(name)) for name in self._limits}
        return self._outside(self._limits, guards, ROUNDING)

    @cached_property
    def trusted(self) -> NDArray[np.bool_]:
        """False where a model lies further outside than backtests went, and everywhere if a range is unknown."""
        if self.unknown:
            return np.zeros(self.beyond.shape, bool)
        limits = self._supported_limits
        return ~self._outside(limits, {name: self.support(name) for name in limits}, SLACK)

    @property
    def inside(self) -> NDArray[np.bool_]:
        """True where a model lies within the fitted ranges, those of its E where it has some."""
        if self.unknown:
            return np.zeros(self.beyond.shape, bool)
        limits = self._limits_of_each
        return ~self._outside(limits, dict.fromkeys(limits, (1.0, 1.0)), SLACK)

    def _outside(
        self, limits: Mapping[str, tuple[Any, Any]], times: Mapping[str, tuple[float, float]], slack: float
    ) -> NDArray[np.bool_]:
        """True where a model lies more than so many `times` below or above one of the limits."""
        outside = np.zeros(np.broadcast_shapes(*map(np.shape, self._quantities.values())), bool)
        for name, (low, high) in limits.items():
            if name in self._quantities:
                values = self._quantities[name]
                below, above = times[name]
                outside |= (values < low / below * (1 - slack)) | (values > high * above * (1 + slack))
        return outside

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """A sentence on each doubt about its runs, what it omits, and each quantity outside its range or without one.

        N and D are held against the runs of the same E, where there are any.
        """
        known = self.conditions or Conditions("unknown")
        of_runs, fitted = (*known.doubts, *known.omitted), known.experts
        if not self._limits:
            return (*of_runs, UNGUARDED)
        sentences = []
        for excess in self._excesses(self._limits_of_each, SLACK):
            of_e = excess.name in ("N_act", "D") and excess.experts in fitted
            sentences.append(f"{excess}{f' at E = {excess.experts:g}' * of_e}")
        for name in dict.fromkeys(excess.name for excess in self._beyond_guard()):
            sentences.append(f"{name} is over {self.guard(name):g}× outside its range: do not act on this prediction")
        if self.unknown:
            sentences.append(UNKNOWN.format(", ".join(self.unknown)))
        elif self.distrust and not np.any(self.beyond):
            sentences.append(f"not trusted: {self.distrust}; backtests support {SUPPORTED}")
        return (*of_runs, *sentences)

    @property
    def distrust(self) -> str:
        """What lies further outside than backtests went, "C ×54.6 and E ×2", or that ranges are unknown; else ""."""
        reasons = dict[str, None]()
        for excess in self._excesses(self._supported_limits, SLACK):
            below, above = self.support(excess.name)
            is_above = excess.value > excess.high
            if excess.times > (above if is_above else below) * (1 + SLACK):
                reasons[f"{excess.name} {'×' if is_above else '÷'}{excess.times:.3g}"] = None
        return enumerated(tuple(reasons)) or "ranges unknown" * bool(self.unknown)

    def refuse(self, force: bool = False) -> None:
        """Raise ExtrapolationError if any of the models lies beyond the guard, unless `force`."""
        if self.far and not force:
            answer = "too far from the runs of this law to answer"
            raise ExtrapolationError(f"{answer}: {self.far}; ", given("force", True), " answers anyway")

    @property
    def far(self) -> str:
        """What lies beyond the guard, in words; empty where nothing does."""
        what = []
        for excess in self._beyond_guard():
            where = "" if excess.name == "E" or np.isnan(excess.experts) else f" at E = {excess.experts:g}"
            what.append(f"{excess}{where}, beyond the guard of {self.guard(excess.name):g} times")
        return "; ".join(what)

    def _beyond_guard(self) -> Iterator[Excess]:
        for excess in self._excesses(self._limits):
            if excess.times > self.guard(excess.name) * (1 + ROUNDING):
                yield excess

    @cached_property
    def _limits(self) -> dict[str, tuple[float, float]]:
        return self.conditions.fitted_limits() if self.conditions else {}

    @cached_property
    def _limits_of_each(self) -> dict[str, tuple[Any, Any]]:
        """Fitted limits for each model: N_act and D have those of the runs of the same E, where there are any."""
        limits: dict[str, tuple[Any, Any]] = dict(self._limits)
        for r in self.conditions.ranges if self.conditions else ():
            of_e = np.asarray(self.at.get("experts"), float) == r.experts
            for name, ends in (("N_act", r.n_active), ("D", r.tokens)):
                low, high = limits.get(name, ends)
                limits[name] = np.where(of_e, ends[0], low), np.where(of_e, ends[1], high)
        return limits

    @cached_property
    def _supported_limits(self) -> dict[str, tuple[Any, Any]]:
        """Fitted limits from which `support` counts: those of all runs, but the most N_act and D are of the same E.

        An E between those of the runs has the lesser of its neighbours'. C is 6 N D of any run.
        """
        limits: dict[str, tuple[Any, Any]] = dict(self._limits)
        overall = self.conditions.overall if self.conditions else None
        if self.conditions is None or overall is None:
            return limits
        limits["C"] = overall.training_flops
        of_each = [r for r in self.conditions.ranges if r.experts is not None]
        experts = self.at.get("experts")
        if experts is None or not of_each:
            return limits
        of_each.sort(key=lambda r: r.experts or 0.0)
        fitted = np.array([r.experts for r in of_each], float)
        values = np.asarray(experts, float)
        last = len(fitted) - 1
        below = np.clip(np.searchsorted(fitted, values, "right") - 1, 0, last)
        above = np.clip(np.searchsorted(fitted, values, "left"), 0, last)
        for name, ends in (("N_act", [r.n_active[1] for r in of_each]), ("D", [r.tokens[1] for r in of_each])):
            most = np.minimum(np.array(ends)[below], np.array(ends)[above])
            limits[name] = limits[name][0], most
        return limits

    @cached_property
    def _quantities(self) -> dict[str, FloatArray]:
        """The models' variables that are not None, by their names in `fitted_limits`, D/N and C."""
        quantities = {LABELS.get(name, name): np.asarray(v, float) for name, v in self.at.items() if v is not None}
        if "N_act" in quantities and "D" in quantities:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                quantities["D/N"] = quantities["D"] / quantities["N_act"]
                quantities["C"] = np.asarray(training_flops(quantities["N_act"], quantities["D"]))
        return quantities

    def _excesses(self, limits: Mapping[str, tuple[Any, Any]], slack: float = 0.0) -> Iterator[Excess]:
        """Yield for each quantity and end the value that leaves its `limits` by the largest factor."""
        for name, ends in limits.items():
            if name not in self._quantities:
                continue
            arrays = (self._quantities[name], *ends, self.at.get("experts"))
            value, low, high, e = (v.ravel() for v in np.broadcast_arrays(*(np.asarray(v, float) for v in arrays)))
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                beyond = (low / value, value / high)
            for times in beyond:
                times = np.where(np.isfinite(value), times, 0.0)
                if times.size and times[i := int(np.argmax(times))] > 1 + slack:
                    yield Excess(name, float(value[i]), float(low[i]), float(high[i]), float(times[i]), float(e[i]))


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def fitted_ranges(n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> tuple[FittedRange, ...]:
    """The range of all runs first, then one for each E."""
    n, d, e = (np.asarray(v, float) for v in (n_active, tokens, experts))

    def of(value: float | None, mask: NDArray[np.bool_]) -> FittedRange:
        columns = (n[mask], d[mask], d[mask] / n[mask], training_flops(n[mask], d[mask]))
        spans = ((float(column.min()), float(column.max())) for column in columns)
        return FittedRange(value, int(mask.sum()), *spans)

    whole = [of(None, np.ones(len(n), bool))] if len(n) else []
    # Not by `np.unique`, whose first call imports numpy.ma.
    return (*whole, *(of(value, e == value) for value in sorted(set(e.tolist()))))


def joined_limits(first: Conditions, second: Conditions) -> dict[str, Any]:
    """The `ranges` and `variables` of conditions that cover what either set of runs did, where both are known."""
    if not (first.fitted_limits() and second.fitted_limits()):
        source = second if second.fitted_limits() else first
        return {"ranges": source.ranges, "variables": source.variables}
    # A law from the literature may have limits, but no runs.
    if not (first.ranges and second.ranges):
        return {"ranges": (), "variables": _joined(first.fitted_limits(), second.fitted_limits())}
    ranges = {r.experts: r for r in first.ranges}
    for fitted in second.ranges:
        if other := ranges.get(fitted.experts):
            hull = _joined(*({name: getattr(r, name) for name in SPANS} for r in (fitted, other)))
            fitted = FittedRange(fitted.experts, fitted.runs + other.runs, **hull)
        ranges[fitted.experts] = fitted
    variables = _joined(first.variables or {}, second.variables or {}) or None
    return {"ranges": tuple(sorted(ranges.values(), key=lambda r: r.experts or 0.0)), "variables": variables}


def _joined(
    first: Mapping[str, tuple[float, float]], second: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """The hull of each span; one that only one of the two has as it is."""
    both = {name: (first[name], second[name]) for name in first if name in second}
    hull = {name: (min(a[0], b[0]), max(a[1], b[1])) for name, (a, b) in both.items()}
    return {**first, **second, **hull}
