"""Effective speed-up: what a baseline must spend for the loss of a model, over what the model spends.

    factor = C_baseline / C_model   where   L_baseline(C_baseline) = L_model(C_model)

Also called compute-equivalent gain (Davidson et al. 2023, arXiv 2312.07413). Marin's gate for a variant takes L_b(C) =
L∞ + A C^−α with a pinned L∞ and α (marin-community/marin, experiments/grug/moe/agent.md; issue 8096 asks for the
interval). The best models of a law m N^μ + n D^ν + c lie on just that curve, with L∞ = c and α = μν / −(μ + ν). The
factor depends on L∞, which no run measures, and grows without bound as L_model comes down to it: both are
shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from hub.base.errors import InputError, given
from hub.base.inputs import reads
from hub.base.notices import about
from hub.base.types import Fields, Strings
from hub.base.units import format_count, format_ends, format_flops
from scaling_law.answer.answer import Answer, Row, columns_of
from scaling_law.formulas import Formula
from scaling_law.formulas.law import one_positive, positive
from scaling_law.planning.budget import Budget, Cluster, read_costs
from scaling_law.planning.inverse import ENDLESS, floor, reaching, tokens_needed
from scaling_law.planning.limits import Limits, explain_ignored_design, of_law
from scaling_law.planning.minimiser import least
from scaling_law.planning.optimum import coefficients_of, optimal_widths
from scaling_law.planning.question import LimitFields, Quantity, QuestionFields, lists_keywords
from scaling_law.planning.trusted import LEAST_SHARE, find_trusted
from scaling_law.size.architecture import Architecture, affordable_tokens, is_size, training_flops, width_of_active
from scaling_law.size.arrays import FloatArray, Interval, Variables
from scaling_law.size.widths import Sized, Widths

if TYPE_CHECKING:
    from typing_extensions import Unpack

Model = float | Architecture
# Widths are searched from the start divided by this to the start times this, at so many points.
AROUND = 50.0
POINTS = 33
# Columns of a printed row.
SHOWN = (
    "n_active",
    "tokens",
    "flops",
    "compute",
    "compute_interval",
    "data",
    "data_interval",
    "time",
    "time_interval",
    "floor",
    "trusted",
)
# Limits that go with a speed-up, whose models nothing limits or serves.
ALLOWED_LIMITS = ("granularity", "shared_ratio", "vocab_size")


class SpeedupRow(Row):
    """One way for the baseline to reach the model's loss: at its "best size", or at one size with more tokens.

    `compute`, `data` and `time` are the baseline's FLOPs, tokens and hours over the model's, each with 95 % of its
    values under the draws; infinite where its loss ends at `floor` nats per token, however many tokens it gets, as in
    the part `unreached` of the draws. `n_active`, `tokens`, `flops`, `hours` are the baseline's; without step times
    `hours` and `time` are None. `trusted`: no further outside the fitted ranges than backtests support.
    """

    def _headline(self) -> str:
        flops = f"{_format_factor(self.compute)} times the FLOPs"
        return f"{self.size}: {flops} and {_format_factor(self.data)} times the tokens"


@dataclass(frozen=True, eq=False, repr=False)
class EffectiveSpeedup(Answer):
    """What the baseline needs for the model's loss: a row for each way, the first the headline.

    `model` and `baseline` name the two. Parameters, tokens, FLOPs, nats: `n_active` … `loss` are the model's.
    `asymptote` is the baseline's loss at endless size and tokens with 95 % of its values under the draws, `exponent`
    the α of L∞ + A C^−α along its best models, `baseline_loss` that of the best one at the model's FLOPs; both are
    None where the baseline is one architecture.
    """

    _row: ClassVar[type[Row]] = SpeedupRow

    model: str
    baseline: str
    n_active: float
    tokens: float
    flops: float
    loss: float
    law: str
    asymptote: float
    asymptote_interval: Interval | None
    exponent: float | None = None
    baseline_loss: float | None = None

    @property
    def best(self) -> SpeedupRow:
        return cast(SpeedupRow, self.rows[0])

    @property
    def trusted(self) -> bool:
        return super().trusted and self.best.trusted

    @property
    def verdict(self) -> str:
        flops = f"{_format_factor(self.best.compute)} times the FLOPs"
        tokens = f"{_format_factor(self.best.data)} times the tokens"
        return f"{self.baseline} needs {flops} and {tokens} of {self.model} for its loss of {self.loss:.3f}"

    @property
    def factor(self) -> float:
        """Times the model's FLOPs that the baseline needs, of the first row."""
        return self.best.compute

    def at_asymptote(self, asymptote: float) -> float:
        """Return the factor if L∞ were `asymptote`, with α and `baseline_loss` as they are (Marin's rule).

        Infinite where the model's loss is not above it. ValueError where the baseline is one architecture.
        """
        if self.exponent is None or self.baseline_loss is None:
            raise InputError(f"baseline={self.baseline} is one size: only the best models of an E follow L∞ + A C^−α")
        if self.loss <= asymptote:
            return float("inf")
        ratio = (self.baseline_loss - asymptote) / (self.loss - asymptote)
        return float(ratio ** (1.0 / self.exponent))

    @property
    def warnings(self) -> Strings:
        warnings = list(self.notes)
        for row in self.rows:
            if np.isinf(row.compute):
                warnings.append(
                    f"{row.size}: {self.baseline} ends at {row.floor:.4f} nats, above the {self.loss:.4f} of "
                    f"{self.model}: no number of tokens reaches it"
                )
            elif row.unreached:
                warnings.append(f"{row.size}: out of reach in {row.unreached:.0%} of the draws")
            warnings += [about(row.size, warning) for warning in row.warnings]
        return tuple(warnings)

    def facts(self) -> Fields:
        return {**super().facts(), "factor": self.factor}

    def _lines(self) -> str:
        model = f"{format_count(self.n_active)} active on {format_count(self.tokens)} tokens"
        cost = f"{model}, {format_flops(self.flops)} FLOPs"
        return f"{self.verdict}\n{self.model}: {cost}, loss {self.loss:.4f}  ({self.law})"

    def _cells(self) -> list[Fields]:
        return [{self.baseline: row.size, **row.cells(*SHOWN)} for row in self.rows]

    def _footnotes(self) -> list[str]:
        return [self._describe_asymptote()]

    def _describe_asymptote(self) -> str:
        """Name the baseline's asymptote, and the factors that its other values would give."""
        interval = " ({}…{})".format(*format_ends(*self.asymptote_interval)) if self.asymptote_interval else ""
        text = f"Asymptote of {self.baseline}: {self.asymptote:.3f}{interval} nats"
        if self.exponent is None or not np.isfinite(self.factor):
            return text
        ends = self.asymptote_interval or (self.asymptote - 0.05, self.asymptote + 0.05)
        factors = " or ".join(_format_factor(self.at_asymptote(end)) for end in ends)
        limits = "its 95 % limits" if self.asymptote_interval else "0.05 nats below or above"
        places = ", ".join(format_ends(*ends))
        other = f"With the asymptote at {limits} ({places}) the compute multiplier would be {factors}."
        return f"{text}, α = {self.exponent:.4f}. {other}"


@lists_keywords
@reads
def speedup(
    law: Formula,
    model: Model,
    baseline: Model = 1.0,
    *,
    flops: Quantity | None = None,
    tokens: Quantity | None = None,
    force: bool = False,
    **question: Unpack[QuestionFields],
) -> EffectiveSpeedup:
    """Say how many times the model's compute and tokens a baseline needs for its loss, with 95 % of the law's draws.

    Args:
        model, baseline: an E, which stands for its compute-optimal model, or an `Architecture`.
        flops: that the model spends (6 N_act D), a number or text such as "1e22"; or, for an architecture, its
            `tokens`.
        question: `gpu` or `throughput` with `gpus`, for hours, too (the best size is still that of least FLOPs);
            `granularity`, `shared_ratio` and `vocab_size` of the models that an E stands for: as in `law.optimal`.

    An E as baseline answers at its best size and at the model's N_act, an architecture at its own. ValueError for a
    law without tokens and unless exactly one of flops and tokens is given; ExtrapolationError where the model is
    beyond the range guard, unless `force`.
    """
    if "tokens" not in law.variables:
        raise InputError(f"the {law.name} law does not depend on tokens and cannot say how many are needed")
    for name in LimitFields.__annotations__:
        value = question.get(name)
        if value is not None and name not in ALLOWED_LIMITS:
            raise InputError(f"{name}={value!r} does not go with a speed-up, of models that nothing limits or serves")
    cluster, limits = read_costs(law, **question)
    variables, width = _read_spending(law, model, flops, tokens, limits, force)
    check = law.check(**variables)
    check.refuse(force)
    name = _describe(model)
    sized = model if isinstance(model, Architecture) else limits.widths(width, variables["experts"])
    notes = [] if cluster is None else [*cluster.warnings(sized, float(variables["tokens"]))]
    if cluster is not None and not np.any(cluster.fits_run(sized, variables["tokens"])):
        notes.append(f"{name}: training takes more memory than {cluster.hardware} have")
        cluster = None
    notes += [about(name, warning) for warning in check.warnings]
    notes += explain_ignored_design(law, limits)
    target = _Target.of(law, variables, sized, cluster)
    if isinstance(baseline, Architecture):
        curve = target.asymptote(baseline.variables())
        rows = [target.row("as given", baseline.variables(), baseline)]
    else:
        experts = _read_experts("baseline", baseline)
        same_width = width_of_active(variables["n_active"], limits.vocab_size)
        of_same_size = target.of_baseline(limits.variables(same_width, experts, 1.0))
        best_width = of_same_size.cheapest(same_width, experts, limits)
        curve = target.frontier(experts, limits)
        rows = [
            target.row("best size", *target.models(best_width, experts, limits), least_loss=curve["asymptote"]),
            target.row("same N_act", *target.models(same_width, experts, limits)),
        ]
    return EffectiveSpeedup(
        columns=columns_of(rows),
        model=name,
        baseline=_describe(baseline),
        n_active=float(variables["n_active"]),
        tokens=float(variables["tokens"]),
        flops=target.flops,
        loss=float(target.loss[0, 0]),
        law=law.conditions.provenance if law.conditions else "fitted law",
        check=check,
        notes=tuple(notes),
        **curve,
    )


@dataclass(frozen=True)
class _Target:
    """The loss of the model, for others to reach: under the law itself, and under each of its draws.

    `coefficients` [n_coefficients, 1 + n_draws, 1] are the law's own, then those of the draws, in whose order are
    `loss` [1 + n_draws, 1] and `seconds` [1 + n_draws]. Losses of draws have the error of extrapolation.
    """

    law: Formula
    coefficients: FloatArray
    loss: FloatArray
    tokens: float
    flops: float
    seconds: FloatArray | None
    cluster: Cluster | None

    @classmethod
    def of(cls, law: Formula, variables: Variables, model: Sized, cluster: Cluster | None) -> _Target:
        coefficients = coefficients_of(law)
        tokens = float(variables["tokens"])
        flops = float(training_flops(variables["n_active"], tokens))
        loss = np.asarray(law.evaluate(coefficients, variables), float)
        loss[1:] = law.add_extrapolation(loss[1:], variables, 1)
        seconds = None if cluster is None else _seconds(cluster, model, np.full(len(loss), tokens))
        return cls(law, coefficients, loss, tokens, flops, seconds, cluster)

    def asymptote(self, variables: Variables) -> Fields:
        """Return L∞ of endlessly large models with the same E, and 95 % of its values under the draws."""
        endless = {name: value * ENDLESS if is_size(name) else value for name, value in variables.items()}
        floors = floor(self.law, self.coefficients, endless)[:, 0]
        return {"asymptote": float(floors[0]), "asymptote_interval": _interval(floors[1:])}

    def frontier(self, experts: float, limits: Limits) -> Fields:
        """Return L∞, α and the loss at the model's FLOPs, along the best models with E experts."""
        curve = self.asymptote(limits.variables(64.0, experts, 1.0))
        budgets = Budget.each(self.flops * np.array([1.0, 2.0]))
        widths = optimal_widths(self.law, budgets, experts, limits).free
        loss, loss_of_twice = self.law.loss(**budgets.models(self.law, widths, experts, limits))
        ratio = (loss - curve["asymptote"]) / (loss_of_twice - curve["asymptote"])
        return {**curve, "exponent": float(np.log2(ratio)), "baseline_loss": float(loss)}

    def of_baseline(self, variables: Variables) -> _Target:
        """Return the target less the error of extrapolation of a baseline, so that what both share cancels.

        It is that of the model by the law itself, of the first of these `variables`.
        """
        model = {name: np.ravel(values)[:1] for name, values in variables.items()}
        tokens = tokens_needed(self.law, self.coefficients[:, :1], self.loss[:1], model, Limits())
        own = of_law(self.law, {**model, "tokens": np.ravel(tokens)})
        loss = self.loss.copy()
        # No number of tokens may be enough.
        if np.isfinite(own["tokens"]).all():
            loss[1:] /= self.law.add_extrapolation(np.ones_like(loss[1:]), own, 1)
        return replace(self, loss=loss)

    def cheapest(self, start: float, experts: float, limits: Limits) -> FloatArray:
        """Find the d_model of least FLOPs that reaches the loss under each draw, [1 + n_draws, 1]; NaN for none."""
        of_training = replace(limits, inference_tokens=0.0, unique_tokens=None)
        models = reaching(self.law, self.coefficients, self.loss, experts, of_training)
        low = np.full(self.loss.shape, np.log(start / AROUND))
        high = np.full(self.loss.shape, np.log(start * AROUND))
        return np.exp(least(lambda log_width: models(np.exp(log_width))[2], low, high, POINTS))

    def models(self, d_model: Any, experts: float, limits: Limits) -> tuple[Fields, Widths]:
        """Return the variables of models of one width, or of one for each draw, and the models themselves."""
        widths = np.broadcast_to(d_model, self.loss.shape)
        return limits.variables(widths, experts, 1.0), limits.widths(widths[:, 0], experts)

    def row(self, size: str, variables: Variables, model: Sized, least_loss: float | None = None) -> SpeedupRow:
        """Say what these models need, under the law itself and as intervals; `least_loss` where the size is free."""
        if least_loss is None:
            least_loss = float(floor(self.law, self.coefficients, variables)[0, 0])
        target_loss = self.of_baseline(variables).loss
        needed = tokens_needed(self.law, self.coefficients, target_loss, variables, Limits())
        tokens = np.broadcast_to(needed, self.loss.shape)[:, 0]
        flops = training_flops(np.broadcast_to(variables["n_active"], self.loss.shape)[:, 0], tokens)
        every = of_law(self.law, {**variables, "tokens": tokens})
        own = {name: float(values.flat[0]) for name, values in every.items()}
        check = self.law.check(**own)

        warnings = check.warnings
        costs: Fields = dict.fromkeys(("hours", "time", "time_interval"))
        factors = {"compute": flops / self.flops, "data": tokens / self.tokens}
        if self.cluster is not None and self.seconds is not None:
            seconds = _seconds(self.cluster, model, tokens)
            factors["time"] = seconds / self.seconds
            costs["hours"] = float(seconds[0] / 3600.0)
            if np.isinf(seconds[0]) and np.isfinite(tokens[0]):
                warnings = (*warnings, f"training takes more memory than {self.cluster.hardware} have")
        for name, values in factors.items():
            costs[name] = float(values[0])
            costs[f"{name}_interval"] = _interval(values[1:])
        return SpeedupRow(
            size=size,
            n_active=own["n_active"],
            tokens=own["tokens"],
            flops=float(flops[0]),
            floor=least_loss,
            unreached=float(np.mean(np.isinf(tokens[1:]))) if len(tokens) > 1 else 0.0,
            trusted=bool(check.trusted),
            warnings=warnings,
            **costs,
        )


def _seconds(cluster: Cluster, model: Sized, tokens: FloatArray) -> FloatArray:
    """Return the training seconds of each of the tokens, [1 + n_draws]: by the step times, then by their draws."""
    seconds = cluster.seconds(model, tokens)
    if cluster.throughput.draws is None:
        return seconds
    drawn = cluster.seconds(model, tokens, drawn=True)
    i = np.arange(len(tokens))
    return np.where(i == 0, seconds, drawn[(i - 1) % len(drawn), i])


def _read_spending(
    law: Formula, model: Model, flops: Any, tokens: Any, limits: Limits, force: bool
) -> tuple[Fields, float]:
    """Read the variables of the model and its training tokens (N_act, D, E, and those of the law), and its d_model.

    An E stands for its best trusted model, as in `optimal`, unless forced.
    """
    if (flops is None) == (tokens is None):
        advice = ": give one of them, what the model spends"
        raise InputError(given("flops", flops), ", ", given("tokens", tokens), advice)
    if isinstance(model, Architecture):
        width = float(model.d_model)
        variables: Fields = dict(model.variables())
        if tokens is None:
            tokens = affordable_tokens(one_positive("flops", flops), variables["n_active"])
        variables["tokens"] = tokens
    elif flops is None:
        raise InputError(f"tokens={tokens!r} goes with an Architecture: E = {model:g} alone has no size; give flops")
    else:
        experts = _read_experts("model", model)
        budget = np.array(one_positive("flops", flops))
        # The model is as free as the baseline, also below d_model 64.
        width = float(optimal_widths(law, Budget.each(budget), experts, limits).free)
        variables = limits.variables(width, experts, budget)
        check = law.check(**variables)
        if not (force or check.unknown or check.trusted):
            trusted = find_trusted(law, Budget.each(budget), np.array(experts), limits, integral=False)
            if training_flops(trusted.n_active, trusted.tokens) >= LEAST_SHARE * budget:
                width = float(trusted.d_model)
                variables = {**limits.variables(width, experts, 1.0), "tokens": trusted.tokens}
    return of_law(law, {**variables, "tokens": positive("tokens", variables["tokens"])}), width


def _interval(draws: FloatArray) -> Interval | None:
    """Return the 95 % interval of the draws, with infinite ones, without those that have no optimum; None for none."""
    values = draws[~np.isnan(draws)]
    if not values.size:
        return None
    # The method cannot fall between a number and infinity.
    low, high = np.quantile(values, (0.025, 0.975), method="inverted_cdf")
    return float(low), float(high)


def _read_experts(name: str, value: Any) -> float:
    """Read a single E; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InputError(f"{name}={value!r} must be a number of experts or an Architecture")
    return one_positive(name, value, 1.0)


def _describe(model: Model) -> str:
    if not isinstance(model, Architecture):
        return f"E = {model:g}"
    return f"d_model {model.d_model}, E = {model.experts_equivalent:.4g}"


def _format_factor(factor: float) -> str:
    return "∞" if np.isinf(factor) else f"{factor:.3g}"
