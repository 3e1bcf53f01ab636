"""The conditions a law was fitted under, which tell extrapolation from interpolation.

A `RangeCheck` tells how far an answer extrapolates, and which ranges are unknown. An answer is trusted inside the
fitted ranges and, beyond them, as far as backtests of other labs' laws went (`EVIDENCE`). Beyond the range guard,
searches refuse to answer unless forced: far below its fitted sizes, the paper's law prefers sparse models with
thousands of tokens per parameter. A law without ranges is never refused, nor trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hub.base import strict_json
from hub.base.errors import InputError, given
from hub.base.notices import Notice, condense
from hub.base.tables import Summarised, Table, join_words
from hub.base.types import Fields, Strings
from hub.base.units import format_count
from scaling_law.size.architecture import is_size, training_flops
from scaling_law.size.arrays import BoolArray, FloatArray, Interval, Intervals, Variables

# Factors beyond the fitted range, either way, at which an answer is refused.
GUARD = {"N_act": 1000.0, "D": 1000.0, "D/N": 100.0, "E": 4.0, "flops": 1e6, "C": 1e6}
# Guards of other variables of a law.
SIZE_GUARD = 1000.0
DESIGN_GUARD = 4.0
# What other variables are called in `EVIDENCE`: sizes of a model, and its design.
SIZES = "sizes"
DESIGNS = "designs"
# How far outside the fitted ranges backtests went.
EVIDENCE = Path(__file__).with_name("evidence.json")
FORMAT = "evidence"
VERSION = 1
# Factors outside the range of its law up to which a learning rate is given: of N as it counts, of D and of the batch.
RATE_GUARD = 10.0
RATE_GUARDS = {"E": 4.0, "flops": 100.0}
UNGUARDED = "this law carries no fitted ranges: nothing checks how far an answer extrapolates"
UNKNOWN = "range of {} unknown: nothing checks how far an answer extrapolates there"
# Quantities that grow in proportion to D.
PROPORTIONAL = ("D", "D/N", "C", "epochs")
# Names of variables in `fitted_limits`.
LABELS = {"n_active": "N_act", "tokens": "D", "tokens_per_parameter": "D/N", "experts": "E"}
# The short form of warnings, and of names in them.
EXTRAPOLATES = "Extrapolates"
BRIEF = {"N_act": "N"}
# Slack at the bounds of a range: a question that is rounded to a digit less is inside.
SLACK = 1e-3
# The ln of the largest number, which no distance from a range exceeds.
FARTHEST = 700.0
# A question at the guard itself is inside.
ROUNDING = 1e-9
DATASET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
# These are left out of a file where they are empty: older versions read it.
OPTIONAL = ("dataset", "commit", "vocab_size", "where", "variables", "omitted", "doubts", "prior_limits")
# What `draws` says of a law under a prior: these draws have the error of extrapolation.
POSTERIOR = "the posterior under the prior, in which several runs count as one"
# Number of runs that count as one in these draws.
DEPENDENCE = 8.0
# Earlier versions joined the ranges of a prior's runs to those of the fitted runs.
JOINED = "an earlier version saved this law with the ranges of its runs and of its prior's together: fit it again"


class ExtrapolationError(InputError):
    """The answer lies beyond `GUARD`; `force=True` (`--force`) answers anyway."""

    @property
    def reason(self) -> str:
        """Say what lies beyond, without the advice to force an answer."""
        return str(self.args[0]).removesuffix("; ")


@dataclass(frozen=True)
class FittedRange:
    """The ranges that the runs with `experts` experts (None: all runs) cover."""

    experts: float | None
    runs: int
    n_active: Interval
    tokens: Interval
    tokens_per_parameter: Interval
    training_flops: Interval


@dataclass(frozen=True)
class Excess:
    """The value of a quantity furthest outside one of its limits, `times` beyond, at E = `experts`."""

    name: str
    value: float
    low: float
    high: float
    times: float
    experts: float

    def __str__(self) -> str:
        is_experts = self.name == "E"
        form = "{:g}".format if is_experts else format_count
        name = "E =" if is_experts else self.name
        limits = f"{form(self.low)}…{form(self.high)}"
        return f"{name} {form(self.value)} is outside the fitted {limits} ({self.factor})"

    @property
    def sign(self) -> str:
        """The direction in which the value leaves its limits."""
        return "×" if self.value > self.high else "÷"

    @property
    def factor(self) -> str:
        """The factor by which the value leaves its limits, in words."""
        digits = float(f"{self.times:.3g}")
        return f"{self.sign}{digits:,g}" if digits < 1e6 else f"{self.sign}{digits:.3g}"


def guard_of(name: str) -> float:
    """Return how many times beyond the fitted range of this quantity an answer is refused."""
    return GUARD.get(name, SIZE_GUARD if is_size(name) else DESIGN_GUARD)


@cache
def evidence() -> Fields:
    """Read how far outside the fitted ranges backtests of laws went."""
    return strict_json.read(EVIDENCE, FORMAT, VERSION)


@cache
def support_of(name: str) -> Interval:
    """Return how many times below and above the fitted range of this quantity an answer is trusted (`EVIDENCE`)."""
    supports = {}
    for row in evidence()["trusted"]:
        for variable in row["variables"]:
            supports[variable] = (row["below"], row["above"])
    return supports.get(name) or supports[SIZES if is_size(name) else DESIGNS]


def rate_guard_of(name: str) -> float:
    """Return how many times beyond the range of this quantity no learning rate is given."""
    return RATE_GUARDS.get(name, RATE_GUARD)


def describe_support() -> str:
    """Say how far outside the fitted ranges answers are trusted: those that are at all."""
    return ", ".join(row["brief"].format(**row) for row in evidence()["trusted"] if row["brief"])


@dataclass(frozen=True, repr=False)
class Conditions(Summarised):
    """The circumstances of a fit: `load_runs(dataset, revision=commit, where=where)` reads the same runs.

    `draws` describes the draws if they are not the bootstrap of the fit. `set_aside` are the outliers left out,
    `warmup_tokens` is the longest warm-up, `vocab_size` is None if unknown or mixed, and `variables` has the ranges of
    variables other than N_act, D and E. `omitted` has a sentence on each variable that the errors depend on but the
    law lacks, and `doubts` on each oddity of the runs, such as their units or settings in which they differ; every
    answer repeats both. `prior_limits` has the ranges of the runs behind a prior: answers are given there, too, but
    not trusted.
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
    set_aside: Strings = ()
    warmup_tokens: float | None = None
    vocab_size: int | None = None
    where: str | None = None
    variables: Mapping[str, Interval] | None = None
    omitted: Strings = ()
    doubts: Strings = ()
    prior_limits: Mapping[str, Interval] | None = None

    @property
    def overall(self) -> FittedRange | None:
        """The range of all runs; None if unknown."""
        return next((fitted_range for fitted_range in self.ranges if fitted_range.experts is None), None)

    @property
    def experts(self) -> tuple[float, ...]:
        """E of the runs, ascending; empty if unknown."""
        values = [fitted_range.experts for fitted_range in self.ranges if fitted_range.experts is not None]
        return tuple(sorted(values))

    def fitted_limits(self) -> dict[str, Interval]:
        """Return the known (lowest, highest) N_act, D, D/N, E and other variables of all runs."""
        limits = dict(self.variables or {})
        overall = self.overall
        if overall is not None:
            limits["N_act"] = overall.n_active
            limits["D"] = overall.tokens
            limits["D/N"] = overall.tokens_per_parameter
        if self.experts:
            limits["E"] = (self.experts[0], self.experts[-1])
        return limits

    def known_limits(self) -> dict[str, Interval]:
        """Return the (lowest, highest) values of the fitted runs and of those behind the prior, if there is one."""
        limits = self.fitted_limits()
        for name, (low, high) in (self.prior_limits or {}).items():
            fitted_low, fitted_high = limits.get(name, (low, high))
            limits[name] = (min(fitted_low, low), max(fitted_high, high))
        return limits

    def with_prior(self) -> Conditions:
        """Return the conditions of runs that will be measured: as if those of the prior were among the fitted ones."""
        if not self.prior_limits:
            return self
        return replace(self, ranges=(), variables=self.known_limits(), prior_limits=None)

    def _headline(self) -> str:
        if self.n_runs is None:
            return self.provenance
        return f"{self.provenance}, {self.n_runs} runs"

    def summary(self) -> Table:
        """Show the lowest and the highest N, D, D/N and E of the runs."""
        rows = []
        for name, limits in self.fitted_limits().items():
            form = "{:g}".format if name == "E" else format_count
            rows.append((name, *map(form, limits)))
        warnings = (*self.doubts, *self.omitted)
        return Table(("", "from", "to"), rows, title=self._headline(), warnings=warnings)

    def to_dict(self) -> Fields:
        """Return plain JSON values that `from_dict` reads."""
        return {name: value for name, value in asdict(self).items() if value or name not in OPTIONAL}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Conditions:
        """Read what `to_dict` wrote; ValueError for unknown keys and wrong forms."""
        for name, pattern in (("dataset", DATASET), ("commit", COMMIT)):
            value = data.get(name)
            if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
                raise InputError(f"conditions: {name}={value!r} must have the form {pattern.pattern}")
        vocabulary = data.get("vocab_size")
        if vocabulary is not None and (type(vocabulary) is not int or vocabulary < 1):
            raise InputError(f"conditions: vocab_size={vocabulary!r} must be an integer of at least 1")
        try:
            values = _tuples(data)
            values["ranges"] = tuple(FittedRange(**_tuples(fitted_range)) for fitted_range in data.get("ranges", ()))
            for name in ("variables", "prior_limits"):
                values[name] = _tuples(data[name]) if data.get(name) else None
            conditions = cls(**values)
        except TypeError as error:
            raise InputError(f"conditions: {error}") from None
        overall = conditions.overall
        if overall is None or conditions.n_runs is None or overall.runs <= conditions.n_runs:
            return conditions
        # Ranges that count more runs than were fitted are also those of a prior: which are of which is unknown.
        doubts = (*conditions.doubts, JOINED)
        limits = conditions.fitted_limits()
        return replace(conditions, ranges=(), variables=None, prior_limits=limits, doubts=doubts)


@dataclass(frozen=True, eq=False, repr=False)
class RangeCheck(Summarised):
    """The distance of an answer's models from the runs of its law; each answer makes one (`law.check`) and keeps it.

    `at` are the models' variables, which broadcast; `needs` names those that decide the answer: it is not trusted if
    the range of one of them is unknown. `guard` returns the factor outside the range of a quantity up to which it is
    answered; up to which it is trusted say backtests, or the guard, too, if `trusts_guard`.
    """

    conditions: Conditions
    needs: Strings
    at: Variables
    guard: Callable[[str], float] = guard_of
    trusts_guard: bool = False
    # The most E that pairs of models of one shape carry, whatever the range of the law.
    most_experts: float = 0.0

    def support(self, name: str) -> Interval:
        """Return how many times below and above the range of this quantity an answer is trusted."""
        below, above = (self.guard(name), self.guard(name)) if self.trusts_guard else support_of(name)
        if name == "E" and self.most_experts:
            _, most = self.conditions.known_limits()[name]
            above = max(above, self.most_experts / most)
        return below, above

    def row(self, index: Any) -> RangeCheck:
        """Return the check of the models at this index of the broadcast variables."""
        variables = {name: values for name, values in self.at.items() if values is not None}
        arrays = np.broadcast_arrays(*variables.values())
        selected = {name: array[index] for name, array in zip(variables, arrays, strict=True)}
        return replace(self, at=selected)

    @property
    def unknown(self) -> list[str]:
        """The variables that decide the answer and have no known range."""
        limits = self.conditions.fitted_limits()
        labels = [LABELS.get(name, name) for name in self.needs]
        return [label for label in labels if label not in limits]

    @cached_property
    def beyond(self) -> BoolArray:
        """True where a model is known to lie beyond the guard."""
        bounds = {}
        for name, (low, high) in self.conditions.known_limits().items():
            guard = self.guard(name)
            bounds[name] = _widen(low / guard, high * guard, ROUNDING)
        return ~self._within(bounds)

    @cached_property
    def trusted(self) -> BoolArray:
        """False where a model lies further outside than backtests went, and everywhere if a range is unknown."""
        return self._within(self.trusted_region)

    @cached_property
    def trusted_region(self) -> dict[str, Intervals] | None:
        """The (lowest, highest) N_act, D, D/N, C, E and other variables that are trusted; None if a range is unknown.

        The most N_act and D depend on E: they have the shape of the models' E.
        """
        if self.unknown:
            return None
        region = {}
        for name, (low, high) in self._supported_limits.items():
            below, above = self.support(name)
            region[name] = _widen(low / below, high * above, SLACK)
        return region

    def distances(self, names: Iterable[str], of_same_experts: bool = False) -> dict[str, FloatArray]:
        """Return the ln of how far each model lies outside the fitted ranges of these quantities: 0 inside.

        The ranges are those of all runs, or those from which trust in models of the same E counts. For a law that
        lacks N_act, that is its first size.
        """
        limits = self._supported_limits
        if not of_same_experts:
            limits = {**limits, **self.conditions.fitted_limits()}
        sizes = [name for name in self._quantities if name in limits and (name == "N_act" or is_size(name))]
        distances = {}
        for name in names:
            quantity = sizes[0] if name == "N_act" and sizes else name
            if quantity in limits and quantity in self._quantities:
                low, high = _widen(*limits[quantity], SLACK)
                with np.errstate(divide="ignore", invalid="ignore"):
                    values = np.log(self._quantities[quantity])
                outside = np.maximum(np.log(low) - values, values - np.log(high))
                distances[name] = np.clip(outside, 0.0, FARTHEST)
        return distances

    @property
    def doublings(self) -> Any:
        """log2 of the models' E over the least E of the runs; 0 for a law without E."""
        limits = self.conditions.fitted_limits()
        if "E" not in self._quantities or "E" not in limits:
            return 0.0
        return np.log2(self._quantities["E"] / limits["E"][0])

    def supported(self, name: str) -> Intervals:
        """Return the least and the largest trusted value of a quantity, for each model; 0 and infinite without one."""
        low, high = (self.trusted_region or {}).get(name, (0.0, np.inf))
        # Models at the ends are trusted, however their quantities round.
        return low * (1 + ROUNDING), high * (1 - ROUNDING)

    def trusted_tokens(self) -> Intervals:
        """Return the fewest and the most D with which each model is trusted, NaN where it is with none.

        `at` has the most D that are considered, from which D/N, C and epochs follow in proportion.
        """
        tokens = self._quantities["D"]
        fewest = np.zeros(self.beyond.shape)
        most = np.full(self.beyond.shape, np.nan if self.unknown else np.inf)
        for name, values in self._quantities.items():
            low, high = self.supported(name)
            if name not in PROPORTIONAL:
                most = np.where((values >= low) & (values <= high), most, np.nan)
                continue
            with np.errstate(divide="ignore", invalid="ignore"):
                most = np.minimum(most, tokens * (high / values))
                if name != "epochs":
                    fewest = np.maximum(fewest, tokens * (low / values))
        return np.where(np.isnan(most), np.nan, fewest), most

    @property
    def inside(self) -> BoolArray:
        """True where a model lies within the fitted ranges, those of its E where it has some."""
        limits = {name: _widen(*interval, SLACK) for name, interval in self._limits_of_each.items()}
        return self._within(None if self.unknown else limits)

    def _within(self, bounds: Mapping[str, Intervals] | None) -> BoolArray:
        """Return where a model lies within all bounds; nowhere where these are None."""
        shape = np.broadcast_shapes(*map(np.shape, self._quantities.values()))
        within = np.full(shape, bounds is not None)
        for name, (low, high) in (bounds or {}).items():
            if name in self._quantities:
                values = self._quantities[name]
                # A value that is unknown is not outside.
                within = within & ~((values < low) | (values > high))
        return np.asarray(within)

    @cached_property
    def warnings(self) -> Strings:
        """A sentence on each doubt about its runs, what it omits, and each quantity outside its range or without one.

        N and D are compared with the runs of the same E, where there are any.
        """
        conditions = self.conditions
        sentences: list[str] = [*conditions.doubts, *conditions.omitted]
        if not conditions.known_limits():
            return (*sentences, UNGUARDED)
        for excess in self._excesses(self._limits_of_each, SLACK):
            sentence = str(excess)
            if excess.name in ("N_act", "D") and excess.experts in conditions.experts:
                sentence += f" at E = {excess.experts:.5g}"
            notice = Notice(
                sentence,
                EXTRAPOLATES,
                BRIEF.get(excess.name, excess.name),
                excess.factor,
                excess.times,
            )
            sentences.append(notice)
        for name in dict.fromkeys(excess.name for excess in self._beyond_guard()):
            sentence = f"{name} is over {self.guard(name):,g} times outside its range: do not act on this prediction"
            sentences.append(Notice(sentence, "do not act on this prediction"))
        if self.unknown:
            sentences.append(UNKNOWN.format(", ".join(self.unknown)))
        elif self.distrust and not np.any(self.beyond):
            # Headlines and rows say that an answer is not trusted.
            sentences.append(Notice(f"not trusted: {self.distrust}; backtests support {describe_support()}"))
        return tuple(sentences)

    @property
    def distrust(self) -> str:
        """The quantities further outside than backtests went, "C ×54.6 and E ×2", or that ranges are unknown."""
        reasons = dict[str, None]()
        for excess in self._excesses(self._supported_limits, SLACK):
            below, above = self.support(excess.name)
            supported = above if excess.value > excess.high else below
            if excess.times > supported * (1 + SLACK):
                reasons[f"{excess.name} {excess.factor}"] = None
        if not reasons and self.unknown:
            return "ranges unknown"
        return join_words(tuple(reasons))

    def _headline(self) -> str:
        if not np.all(self.trusted):
            return f"not trusted: {self.distrust}"
        return condense(self.warnings) or "inside the fitted ranges"

    def summary(self) -> Table:
        """Show the fitted ranges of the law, under how far the models leave them."""
        return replace(self.conditions.summary(), title=self._headline(), warnings=self.warnings)

    def refuse(self, force: bool = False, alternative: str = "") -> None:
        """Raise ExtrapolationError if any of the models lies beyond the guard, unless `force`.

        The message names the `alternative`.
        """
        if self.far and not force:
            answer = f"too far from the runs of this law to answer: {self.far}{alternative}; "
            raise ExtrapolationError(answer, given("force", True), " answers anyway")

    @property
    def far(self) -> str:
        """The quantities beyond the guard, in words; empty where there are none."""
        reasons = []
        for excess in self._beyond_guard():
            reason = str(excess)
            if excess.name != "E" and not np.isnan(excess.experts):
                reason += f" at E = {excess.experts:.5g}"
            reasons.append(f"{reason}, beyond the limit of {excess.sign}{self.guard(excess.name):,g}")
        return "; ".join(reasons)

    def _beyond_guard(self) -> Iterator[Excess]:
        for excess in self._excesses(self.conditions.known_limits()):
            if excess.times > self.guard(excess.name) * (1 + ROUNDING):
                yield excess

    @cached_property
    def _limits_of_each(self) -> dict[str, Intervals]:
        """Fitted limits for each model: N_act and D have those of the runs of the same E, where there are any."""
        limits: dict[str, Intervals] = dict(self.conditions.fitted_limits())
        experts = np.asarray(self.at.get("experts"), float)
        for fitted_range in self.conditions.ranges:
            is_same = experts == fitted_range.experts
            own_limits = {"N_act": fitted_range.n_active, "D": fitted_range.tokens}
            for name, (own_low, own_high) in own_limits.items():
                low, high = limits.get(name, (own_low, own_high))
                limits[name] = (
                    np.where(is_same, own_low, low),
                    np.where(is_same, own_high, high),
                )
        return limits

    @cached_property
    def _supported_limits(self) -> dict[str, Intervals]:
        """Fitted limits from which `support` counts: of all runs, except that the most N_act and D are of the same E.

        An E between the fitted ones has the lesser of its neighbours' limits. C is 6 N D of any run.
        """
        limits: dict[str, Intervals] = dict(self.conditions.fitted_limits())
        conditions = self.conditions
        if conditions.overall is None:
            return limits
        limits["C"] = conditions.overall.training_flops
        experts = self.at.get("experts")
        if experts is None or not conditions.experts:
            return limits
        last = len(conditions.experts) - 1
        below = np.maximum(np.searchsorted(conditions.experts, experts, "right") - 1, 0)
        above = np.minimum(np.searchsorted(conditions.experts, experts, "left"), last)
        ranges = {fitted_range.experts: fitted_range for fitted_range in conditions.ranges}
        for name, field_name in (("N_act", "n_active"), ("D", "tokens")):
            highest = np.array([getattr(ranges[e], field_name)[1] for e in conditions.experts])
            low, _ = limits[name]
            limits[name] = low, np.minimum(highest[below], highest[above])
        return limits

    @cached_property
    def _quantities(self) -> dict[str, FloatArray]:
        """The models' variables that are not None, by their names in `fitted_limits`, D/N and C."""
        quantities = {}
        for name, values in self.at.items():
            if values is not None:
                quantities[LABELS.get(name, name)] = np.asarray(values, float)
        if "N_act" in quantities and "D" in quantities:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                quantities["D/N"] = quantities["D"] / quantities["N_act"]
                quantities["C"] = np.asarray(training_flops(quantities["N_act"], quantities["D"]))
        return quantities

    def _excesses(self, limits: Mapping[str, Intervals], slack: float = 0.0) -> Iterator[Excess]:
        """Yield for each quantity and side of its `limits` the value that leaves them by the largest factor."""
        for name, (low, high) in limits.items():
            if name not in self._quantities:
                continue
            inputs = (self._quantities[name], low, high, self.at.get("experts"))
            arrays = np.broadcast_arrays(*(np.asarray(values, float) for values in inputs))
            value, low, high, experts = (array.ravel() for array in arrays)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                below = low / value
                above = value / high
            for factors in (below, above):
                times = np.where(np.isfinite(value), factors, 0.0)
                if np.any(times > 1 + slack):
                    place = int(np.argmax(times))
                    yield Excess(name, *(float(array[place]) for array in (value, low, high, times, experts)))


def _widen(low: Any, high: Any, slack: float) -> Intervals:
    return low * (1 - slack), high * (1 + slack)


def _tuples(data: Mapping[str, Any]) -> Fields:
    values = dict(data)
    for name, value in data.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    return values


def fitted_ranges(n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> tuple[FittedRange, ...]:
    """Return the range of all runs first, then one for each E."""
    n = np.asarray(n_active, float)
    d = np.asarray(tokens, float)
    e = np.asarray(experts, float)

    columns = (n, d, d / n, np.asarray(training_flops(n, d)))
    if not len(n):
        return ()
    ranges = []
    # Not by `np.unique`, whose first call imports numpy.ma.
    for value in (None, *sorted(set(e.tolist()))):
        is_within = np.ones(len(n), bool) if value is None else e == value
        intervals = [(float(column[is_within].min()), float(column[is_within].max())) for column in columns]
        ranges.append(FittedRange(value, int(is_within.sum()), *intervals))
    return tuple(ranges)
