"""Effective speed-up: what a baseline must spend for the loss of a model, over what the model spends.

    factor = C_baseline / C_model   where   L_baseline(C_baseline) = L_model(C_model)

Also called compute-equivalent gain (Davidson et al. 2023, arXiv 2312.07413). Marin's gate for a variant takes L_b(C) =
L∞ + A C^−α with a pinned L∞ and α (marin-community/marin, experiments/grug/moe/agent.md; issue 8096 asks for the
interval). The best models of a law m N^μ + n D^ν + c lie on just that curve, with L∞ = c and α = μν / −(μ + ν). The
factor depends on L∞, which no run measures, and grows without bound as L_model comes down to it: both are
shown.

In the joint law (Ludziejewski et al. 2025, Eq. 5) experts lower the term in N and raise that in D, ω > 0, which wanes
as D grows (ζ < 0): at equal N_act, which costs the same to serve, few tokens favour the dense model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import Unpack

from hub.base.errors import InputError, given
from hub.base.fields import UNREAD, field, parse_numbers, reads
from hub.base.notices import about
from hub.base.tables import cell, join_words
from hub.base.types import Fields, Strings
from hub.base.units import format_count, format_ends, format_flops
from scaling_law.answer.answer import Answer, Row, columns_of, span
from scaling_law.answer.columns import COLUMNS
from scaling_law.formulas import Formula
from scaling_law.formulas.law import positive
from scaling_law.planning.budget import Budget, Cluster, read_costs
from scaling_law.planning.inverse import ENDLESS, floor, reaching, tokens_needed
from scaling_law.planning.limits import Limits, explain_ignored_design, of_law
from scaling_law.planning.minimiser import choose_inner, minima
from scaling_law.planning.optimum import coefficients_of, optimal_widths, parse_experts, parse_positive
from scaling_law.planning.question import BudgetFlops, Force, LimitFields, QuestionFields, Tokens, refuse
from scaling_law.planning.trusted import find_trusted, spend_enough
from scaling_law.size.architecture import (
    Architecture,
    affordable_tokens,
    is_size,
    training_flops,
)
from scaling_law.size.arrays import FloatArray, Interval, Variables
from scaling_law.size.widths import Sized

Model = float | Architecture
Match = Literal["flops", "hours", "memory", "served"]
MATCH_MEANING = "What the baseline is chosen by: flops, hours, memory (equal N_total), or served (equal N_act)."
# Widths are searched from the start divided by this to the start times this, at so many points.
AROUND = 50.0
POINTS = 33
# Limits that go with a speed-up, and the others, since nothing limits or serves its models.
SHAPE = ("granularity", "shared_ratio", "vocab_size", "like")
REFUSED_LIMITS = tuple(name for name in LimitFields.__annotations__ if name not in SHAPE)
# Tokens between which a crossover is searched, at so many points; a line between two is off by less than 0.1 %.
TOKENS_RANGE = (1e3, 1e15)
CROSSOVER_POINTS = 400
# The factors of a row, and what they multiply.
FACTORS = {"compute": "FLOPs", "data": "tokens", "time": "hours"}


class SpeedupRow(Row):
    """One way for the baseline to reach the model's loss: at its "best size", or at a given one with more tokens.

    `compute`, `data` and `time` are the baseline's FLOPs, tokens and hours over the model's, each with 95 % of its
    values under the draws; infinite where its loss ends at `floor` nats per token, however many tokens it gets, as in
    the part `unreached` of the draws. `n_active`, `tokens`, `flops`, `hours` are the baseline's; without step times
    `hours` and `time` are None. `trusted`: no further outside the fitted ranges than backtests support.
    """


@dataclass(frozen=True, eq=False, repr=False)
class Speedup(Answer):
    """The worth of a model or of measured runs, by what a baseline needs for their loss.

    Of a law: a `SpeedupRow` for each way, the first the headline. `n_active` … `loss` are the model's (parameters,
    tokens, FLOPs, nats); `asymptote` is the baseline's loss at endless size and tokens with 95 % of its values under
    the draws, `exponent` the α of L∞ + A C^−α along its best models, `baseline_loss` that of the best one at the
    model's FLOPs; both are None where the baseline is one architecture.

    Of crossovers: a dict for each size and E, with the `tokens` from which the model is ahead, 0 where it leads
    throughout the tokens searched, infinite where it does not at the last; `tokens_low` and `tokens_high` are the
    95 % interval over the law's draws, NaN without draws. Of measured runs: a dict for each evaluation set and run,
    with its `factor` and the interval from `low` to `high`.
    """

    _question: ClassVar[Strings] = ("size", "set", "run", "n_active", "experts")
    _row: ClassVar[type[Row]] = SpeedupRow
    _unprinted = ("hours", "unreached", "warnings")

    claim: str = dataclasses.field(repr=False)
    match: str
    model: str | None = None
    baseline: str | None = None
    n_active: float | None = None
    tokens: float | None = None
    flops: float | None = None
    loss: float | None = None
    law: str | None = None
    factor: float | None = None
    asymptote: float | None = None
    asymptote_interval: Interval | None = None
    exponent: float | None = None
    baseline_loss: float | None = None

    @property
    def verdict(self) -> str:
        return self.claim

    @property
    def best(self) -> SpeedupRow | None:
        """The first way of the baseline; None where rows are not compared."""
        return self.rows[0] if self.model else None

    @property
    def warnings(self) -> Strings:
        # Those on the model name it, where there are others.
        return self.notes if self.model else super().warnings

    @property
    def trusted(self) -> bool:
        return super().trusted and (self.best is None or self.best.trusted)

    def at_asymptote(self, asymptote: float) -> float:
        """Return the factor if L∞ were `asymptote`, with α and `baseline_loss` as they are (Marin's rule).

        Infinite where the model's loss is not above it. ValueError where the baseline is one architecture.
        """
        if self.exponent is None or self.baseline_loss is None or self.loss is None:
            raise InputError(f"baseline={self.baseline} is one size: only the best models of an E follow L∞ + A C^−α")
        if self.loss <= asymptote:
            return float("inf")
        ratio = (self.baseline_loss - asymptote) / (self.loss - asymptote)
        return float(ratio ** (1.0 / self.exponent))

    def facts(self) -> Fields:
        return {name: value for name, value in super().facts().items() if value is not None}

    def _lines(self) -> str:
        if self.n_active is None:
            return self.claim
        size = f"{format_count(self.n_active)} active on {format_count(self.tokens)} tokens"
        model = f"{self.model}: {size}, {format_flops(self.flops)} FLOPs, loss {self.loss:.4f}  ({self.law})"
        return f"{self.claim}\n{model}"

    def _footnotes(self) -> list[str]:
        """Name the baseline's asymptote, and the factors that its other values would give."""
        asymptote = self.asymptote
        if asymptote is None:
            return []
        text = f"Asymptote of {self.baseline}: {asymptote:.3f} nats"
        bounds = self.asymptote_interval or (asymptote - 0.05, asymptote + 0.05)
        places = "{} to {}".format(*format_ends(*bounds))
        if self.exponent is None or self.factor == np.inf:
            return [f"{text}, 95 % of its draws {places}" if self.asymptote_interval else text]
        factors = " to ".join(cell(self.at_asymptote(bound), COLUMNS["compute"]) for bound in bounds)
        return [
            f"{text}, α = {self.exponent:.4f}. With the asymptote at {places} it would take {factors} times the FLOPs."
        ]


@reads
def speedup(
    law: Formula,
    model: Annotated[Any, UNREAD] = None,
    baseline: Annotated[Model, field("E of the baseline, which must reach its loss. [default: 1]")] = 1.0,
    *,
    match: Annotated[Match | None, field(f"{MATCH_MEANING} [default: flops]")] = None,
    flops: BudgetFlops = None,
    tokens: Tokens | None = None,
    n_active: ArrayLike | None = None,
    between: Interval = TOKENS_RANGE,
    force: Force = False,
    **question: Unpack[QuestionFields],
) -> Speedup:
    """Say how many times the model's compute and tokens a baseline needs for its loss, with 95 % of the law's draws.

    Args:
        model, baseline: an E, which stands for its compute-optimal model, or an `Architecture`. A model of None has
            E = 8; with `n_active`, each E of the law above 1.
        match: what the baseline is chosen by: "flops", the size of least FLOPs (the default), "hours", the size of
            fewest hours on the GPUs, "memory", the model's N_total, or "served", the model's N_act, with which each
            served token costs the same.
        flops: that the model spends (6 N_act D), a number or text such as "1e22"; or, for an architecture, its
            `tokens`.
        n_active: instead of both, sizes of models that are matched as "served": the answer is the token count at
            which an MoE of each E overtakes the dense model of the same N_act.
        between: tokens in which this crossover is searched: ask the law of a small sweep no further than its runs.
        question: `gpu` or `throughput` with `gpus`, for hours, too; `granularity`, `shared_ratio` and `vocab_size` of
            the models that an E stands for: as in `law.optimal`.

    ValueError for a law without tokens and unless one of flops, tokens and n_active is given; ExtrapolationError
    where the model is beyond the range guard, unless `force`.
    """
    if "tokens" not in law.variables:
        raise InputError(f"the {law.name} law does not depend on tokens and cannot say how many are needed")
    if n_active is not None:
        foreign: Fields = {"flops": flops, "tokens": tokens, **question}
        foreign["match"] = None if match == "served" else match
        foreign["baseline"] = None if baseline == 1 else baseline
        reason = ", which asks from how many tokens on models that are served alike are ahead"
        refuse(foreign, foreign, " does not go with ", given("n_active"), reason)
        return _find_crossovers(law, n_active, model, between, force)
    refuse(question, REFUSED_LIMITS, " does not go with a speed-up, of models that nothing limits or serves")
    match = match or "flops"
    cluster, limits = read_costs(law, **question)
    if match == "hours" and cluster is None:
        raise InputError(given("match", match), " takes step times: give ", given("gpus"), " and ", given("gpu"))
    usual_experts = (limits.like.experts or 1) if limits.like else 8
    model = _read_model("experts", usual_experts if model is None else model, limits)
    baseline = _read_model("baseline", baseline, limits)
    if isinstance(baseline, Architecture) and match in ("memory", "served"):
        raise InputError(given("match", match), " sets the size of the baseline: give its E, no Architecture")
    variables, sized = _read_spending(law, model, flops, tokens, limits, force)
    check = limits.check(law, variables)
    check.refuse(force)
    name = _describe(model)
    notes = [] if cluster is None else [*cluster.warnings(sized, float(variables["tokens"]))]
    if cluster is not None and not np.any(cluster.fits_run(sized, variables["tokens"])):
        notes.append(f"{name}: training takes more memory than {cluster.hardware} have")
        if match == "hours":
            raise InputError(notes[-1])
        cluster = None
    notes += [about(name, warning) for warning in check.warnings]
    notes += explain_ignored_design(law, limits)

    # A baseline of the same design errs alike.
    target = _Target.of(law, variables, sized, cluster, limits if baseline == 1 else Limits())
    loss = float(target.loss[0, 0])
    rows, curve = target.rows(baseline, limits, match, sized)
    headline = "time" if match == "hours" else "compute"
    for row in rows:
        notes += [about(row.size, warning) for warning in row.warnings]
    costs = join_words(_describe_costs(rows[0], headline))
    return Speedup(
        columns=columns_of(rows),
        claim=f"{_describe(baseline)} needs {costs} of {name} for its loss of {loss:.3f}",
        match=match,
        model=name,
        baseline=_describe(baseline),
        n_active=float(np.ravel(sized.n_active)[0]),
        tokens=float(target.costs["data"][0]),
        flops=float(target.costs["compute"][0]),
        loss=loss,
        law=law.conditions.provenance if law.conditions else "fitted law",
        factor=getattr(rows[0], headline),
        check=check,
        notes=tuple(notes),
        **curve,
    )


def _describe_costs(row: SpeedupRow, headline: str) -> list[str]:
    """Say how many times the FLOPs, tokens and hours the baseline needs, the headline first."""
    costs = []
    for name in sorted(FACTORS, key=lambda name: name != headline):
        factor = getattr(row, name)
        if factor is not None:
            costs.append(f"{cell(factor, COLUMNS['compute'])} times the {FACTORS[name]}")
    return costs


@dataclass(frozen=True)
class _Target:
    """The loss of the model, for others to reach: under the law itself, and under each of its draws.

    `coefficients` [n_coefficients, 1 + n_draws, 1] are the law's own, then those of the draws, in whose order are
    `loss` [1 + n_draws, 1] and the `costs` [1 + n_draws] of `FACTORS`. Losses of draws have the error of
    extrapolation.
    """

    law: Formula
    cluster: Cluster | None
    coefficients: FloatArray
    loss: FloatArray
    costs: dict[str, FloatArray]

    @classmethod
    def of(cls, law: Formula, variables: Variables, model: Sized, cluster: Cluster | None, limits: Limits) -> _Target:
        coefficients = coefficients_of(law)
        loss = np.asarray(law.evaluate(coefficients, variables), float)
        loss[1:] = limits.drawn_losses(law, loss[1:], {name: np.ravel(values) for name, values in variables.items()})
        tokens = np.full(len(loss), float(variables["tokens"]))
        return cls(law, cluster, coefficients, loss, _costs(cluster, model, tokens))

    def rows(self, baseline: Model, limits: Limits, match: str, model: Sized) -> tuple[list[SpeedupRow], Fields]:
        """List the ways of a baseline, the one that is matched first, and describe the curve of its best models."""
        if isinstance(baseline, Architecture):
            variables = baseline.variables()
            return [self.row("as given", variables, baseline)], self.asymptote(variables)
        equal_size = "same N_act"
        width = float(limits.width_of_parameters(model.n_active, 1.0))
        if match == "memory":
            equal_size = "same N_total"
            width = float(limits.width_of_parameters(model.n_total, baseline))
        curve = self.asymptote(limits.variables(width, baseline, 1.0))
        rows = [self.row(equal_size, *_models(width, baseline, limits))]
        if match in ("flops", "hours"):
            curve.update(self.frontier(baseline, limits, curve["asymptote"]))
            best = self.cheapest(width, baseline, limits, self.cluster if match == "hours" else None)
            rows.insert(0, self.row("best size", *_models(best, baseline, limits), curve["asymptote"]))
        return rows, curve

    def asymptote(self, variables: Variables) -> Fields:
        """Return L∞ of endlessly large models with the same E, and 95 % of its values under the draws."""
        endless = {name: value * ENDLESS if is_size(name) else value for name, value in variables.items()}
        floors = floor(self.law, self.coefficients, endless)[:, 0]
        return {"asymptote": float(floors[0]), "asymptote_interval": _interval(floors[1:])}

    def frontier(self, experts: float, limits: Limits, asymptote: float) -> Fields:
        """Return α and the loss at the model's FLOPs, along the best models with E experts."""
        budgets = Budget.each(self.costs["compute"][0] * np.array([1.0, 2.0]))
        widths = optimal_widths(self.law, budgets, experts, limits).free
        loss, loss_of_twice = self.law.loss(**budgets.models(self.law, widths, experts, limits))
        exponent = np.log2((loss - asymptote) / (loss_of_twice - asymptote))
        return {"exponent": float(exponent), "baseline_loss": float(loss)}

    def loss_for(self, variables: Variables) -> FloatArray:
        """Return the loss less the error of extrapolation of a baseline, so that what both share cancels.

        It is that of the model by the law itself, of the first of these `variables`.
        """
        model = {name: np.ravel(values)[:1] for name, values in variables.items()}
        tokens = tokens_needed(self.law, self.coefficients[:, :1], self.loss[:1], model, Limits())
        loss = self.loss.copy()
        # No number of tokens may be enough.
        if np.isfinite(tokens).all():
            models = of_law(self.law, {**model, "tokens": np.ravel(tokens)})
            loss[1:] /= self.law.add_extrapolation(np.ones_like(loss[1:]), models, 1)
        return loss

    def cheapest(self, start: float, experts: float, limits: Limits, cluster: Cluster | None) -> FloatArray:
        """Find the d_model of least FLOPs that reaches the loss under each draw, [1 + n_draws, 1]; NaN for none.

        With a cluster it is that of fewest seconds, under the law itself.
        """
        loss = self.loss_for(limits.variables(start, experts, 1.0))
        n = 1 if cluster else len(loss)
        models = reaching(self.law, self.coefficients[:, :n], loss[:n], experts, limits, cluster)
        low = np.full((n, 1), np.log(start / AROUND))
        high = np.full((n, 1), np.log(start * AROUND))

        def cost(log_width: FloatArray) -> FloatArray:
            return models(np.exp(log_width))[1]

        width = np.exp(choose_inner(*minima(cost, low, high, POINTS), low, high))
        return np.broadcast_to(width, loss.shape)

    def row(self, size: str, variables: Variables, model: Sized, least_loss: float | None = None) -> SpeedupRow:
        """Say what these models need, under the law itself and as intervals; `least_loss` where the size is free."""
        if least_loss is None:
            least_loss = float(floor(self.law, self.coefficients, variables)[0, 0])
        loss = self.loss_for(variables)
        tokens = tokens_needed(self.law, self.coefficients, loss, variables, Limits())
        tokens = np.broadcast_to(tokens, loss.shape)[:, 0]
        costs = _costs(self.cluster, model, tokens)
        sizes = {name: np.ravel(values)[0] for name, values in variables.items()}
        first = of_law(self.law, {**sizes, "tokens": tokens[0]})
        check = self.law.check(**first)
        warnings = check.warnings
        drawn_tokens = tokens[1:]
        unreached = float(np.isinf(drawn_tokens).sum() / max(1, len(drawn_tokens)))
        if np.isinf(tokens[0]):
            end = f"ends at {least_loss:.4f} nats, above the {float(self.loss[0, 0]):.4f} of the model"
            warnings = (f"{end}: no number of tokens reaches it", *warnings)
        elif unreached:
            warnings = (f"out of reach in {unreached:.0%} of the draws", *warnings)
        hours = None
        if self.cluster is not None:
            hours = float(costs["time"][0] / 3600.0)
            if np.isinf(hours) and np.isfinite(tokens[0]):
                warnings = (*warnings, f"training takes more memory than {self.cluster.hardware} have")
        factors: Fields = dict.fromkeys(
            ("compute", "compute_interval", "data", "data_interval", "time", "time_interval")
        )
        for name, values in costs.items():
            ratios = values / self.costs[name]
            factors[name] = float(ratios[0])
            factors[f"{name}_interval"] = _interval(ratios[1:])
        return SpeedupRow(
            size=size,
            n_active=float(np.ravel(model.n_active)[0]),
            tokens=float(tokens[0]),
            flops=float(costs["compute"][0]),
            **factors,
            hours=hours,
            floor=least_loss,
            unreached=unreached,
            trusted=bool(check.trusted),
            warnings=warnings,
        )


def _models(d_model: Any, experts: float, limits: Limits) -> tuple[Fields, Sized]:
    """Return the variables of models of one width, or of one for each draw [n, 1], and the models themselves."""
    return limits.variables(d_model, experts, 1.0), limits.widths(np.ravel(d_model), experts)


def _costs(cluster: Cluster | None, model: Sized, tokens: FloatArray) -> dict[str, FloatArray]:
    """Return what models take to train on the tokens [1 + n_draws]: FLOPs, tokens and, of a cluster, seconds.

    The seconds are those of the step times, then those of their draws, which are repeated where they are fewer.
    """
    n_active = np.broadcast_to(np.ravel(model.n_active), len(tokens))
    costs = {"compute": np.asarray(training_flops(n_active, tokens)), "data": tokens}
    if cluster is not None:
        seconds = cluster.seconds(model, tokens)
        if cluster.throughput.draws is not None:
            draws = cluster.seconds(model, tokens, drawn=True)
            draw = np.arange(1, len(tokens))
            seconds[1:] = draws[(draw - 1) % len(draws), draw]
        costs["time"] = seconds
    return costs


def _read_spending(
    law: Formula, model: Model, flops: Any, tokens: Any, limits: Limits, force: bool
) -> tuple[Fields, Sized]:
    """Read the variables of the model and its training tokens (N_act, D, E, and those of the law), and its sizes.

    An E stands for its best trusted model, as in `optimal`, unless forced.
    """
    if (flops is None) == (tokens is None):
        advice = ": give one of them, what the model spends"
        raise InputError(given("flops", flops), ", ", given("tokens", tokens), advice)
    if isinstance(model, Architecture):
        if tokens is None:
            tokens = affordable_tokens(flops, model.n_active)
        return of_law(law, {**model.variables(), "tokens": np.asarray(tokens, float)}), model
    if flops is None:
        raise InputError(f"tokens={tokens!r} goes with an Architecture: E = {model:.5g} alone has no size; give flops")
    most = float(flops)
    budget = Budget.each(np.array([most]))
    # The model is as free as the baseline, also below d_model 64.
    width = optimal_widths(law, budget, model, limits).free
    variables: Variables = budget.models(law, width, model, limits)
    check = limits.check(law, variables)
    if not (force or check.unknown or check.trusted):
        trusted = find_trusted(law, budget, np.array([model]), limits, integral=False)
        if spend_enough(budget, limits, trusted):
            width = trusted.d_model
            variables = trusted.variables
    return {name: values[0] for name, values in variables.items()}, limits.widths(float(width[0]), model)


def _interval(draws: FloatArray) -> Interval | None:
    """Return the 95 % interval of the draws, with infinite ones, without those that have no optimum; None for none."""
    values = draws[~np.isnan(draws)]
    if not values.size:
        return None
    # The method cannot fall between a number and infinity.
    low, high = np.quantile(values, (0.025, 0.975), method="inverted_cdf")
    return float(low), float(high)


def _read_model(name: str, value: Any, limits: Limits) -> Model:
    """Read an architecture or a single E, of a family its routed experts; ValueError for anything else."""
    if isinstance(value, Architecture):
        return value
    counts = positive(name, value, 1.0).ravel()
    if counts.size != 1:
        several = given("experts", value, f"--experts {','.join(f'{count:g}' for count in counts)}")
        raise InputError(several, ": one E goes with ", given("flops"), ", several with ", given("n_active"))
    return float(limits.like.read_experts(counts[0])) if limits.like else float(counts[0])


def _describe(model: Model) -> str:
    if not isinstance(model, Architecture):
        return f"E = {model:.5g}"
    return f"d_model {model.d_model}, E = {model.experts_equivalent:.4g}"


def _find_crossovers(law: Formula, n_active: Any, experts: Any, between: Interval, force: bool) -> Speedup:
    """Find the token count at which an MoE overtakes the dense model of equal N_act, for each size and E.

    ValueError for a law that does not depend on N_act, D and E, and for E of 1 or less.
    """
    missing = {"n_active", "tokens", "experts"} - {*law.variables}
    if missing:
        variables = ", ".join(sorted(missing))
        raise InputError(f"a crossover needs a law that depends on {variables}; the {law.name} law does not")
    bounds = parse_numbers(between, "between")
    if bounds.shape != (2,) or not 0 < bounds[0] < bounds[1] < np.inf:
        raise InputError(f"between={between!r} must be two increasing positive numbers of tokens")
    size = parse_positive("n_active", n_active)
    e = parse_experts(law, experts)
    if experts is None:
        e = e[e > 1]
    if not (e.size and np.all(e > 1)):
        raise InputError(f"experts={e.tolist()!r} must be above 1: they are compared with the dense model")
    n, e = np.broadcast_arrays(size.reshape(size.shape + (1,) * e.ndim), e)
    tokens = find_crossovers(law.loss, n, e, between)
    low = high = np.full(n.shape, np.nan)
    if law.draws is not None:
        drawn = find_crossovers(law.loss_draws, n, e, between)
        # Some may be infinite, between which and a number no quantile can fall.
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0, method="nearest")
    is_crossed = np.isfinite(tokens) & (tokens > 0)
    check = law.check(n, np.where(is_crossed, tokens, np.nan), e)
    check.refuse(force)
    if np.isinf(tokens).all():
        claim = "dense models stay ahead within the searched tokens"
    elif not tokens.any():
        claim = "ahead of dense models throughout the searched tokens"
    else:
        claim = f"dense models are overtaken at {span(tokens[np.isfinite(tokens)], format_count)} tokens"
    columns = {"n_active": n, "experts": e, "tokens": tokens, "tokens_low": low, "tokens_high": high}
    return Speedup(
        columns=columns,
        claim=f"{span(n, format_count)} active parameters, E = {span(e, '{:g}'.format)}: {claim}",
        match="served",
        check=check,
    )


def find_crossovers(
    loss: Callable[..., FloatArray], n_active: FloatArray, experts: FloatArray, between: Interval
) -> FloatArray:
    """Find the D from which MoE models are ahead of dense ones of equal N_act, as `find_crossing` does.

    `loss` is that of a law or of its draws; N_act and E have one shape, behind the axis of draws.
    """
    tokens = np.geomspace(*between, CROSSOVER_POINTS)
    size = np.asarray(n_active)[..., None]
    gaps = loss(size, tokens, np.asarray(experts)[..., None]) - loss(size, tokens, 1.0)
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
