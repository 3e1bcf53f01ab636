"""Why to believe an answer, and how far: what was fitted, how far the answer lies from it, and what would help."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from hub.base.errors import InputError
from hub.base.tables import join_words
from hub.base.types import Fields, Strings
from hub.base.units import format_count, format_ends, format_flops
from scaling_law.answer.answer import Listed, Row
from scaling_law.formulas import Formula
from scaling_law.formulas.conditions import Conditions, RangeCheck, evidence
from scaling_law.formulas.law import percentile_interval
from scaling_law.planning.design import LEAST_RUNS, candidate_grid, next_runs, predicted_loss
from scaling_law.planning.limits import Limits
from scaling_law.size.arrays import Interval

# Runs that would make an answer surer take this share of its FLOPs, and are so many at most.
SHARE = 0.1
MOST_RUNS = 3


@dataclass(frozen=True, repr=False)
class Why(Listed):
    """The grounds of an answer, in sentences: the `fit` of its law, how far `outside` the answer lies, what
    its `interval` counts, what `backtests` missed at that distance, which runs are `nearest`, and what is `surer`.
    """

    answer: str
    fit: str
    outside: Strings
    interval: str
    backtests: Strings
    nearest: str
    surer: str
    trusted: bool

    def to_dict(self) -> Fields:
        """Return plain JSON values."""
        return asdict(self)


def explain(law: Formula, row: Row, check: RangeCheck, limits: Limits) -> Why:
    """Say what supports the answer of a row; `check` is of its model alone, `limits` are those of the question."""
    conditions = law.conditions or Conditions("a law without records of its runs")
    fit = conditions._headline()
    if conditions.rmse is not None:
        fit += f", RMSE {conditions.rmse:.2g} nats"
    return Why(
        answer=f"{row.model}: loss {row.loss:.3f}",
        fit=fit,
        outside=row.warnings or ("inside the fitted ranges",),
        interval=_explain_interval(law, row, check, limits),
        backtests=_list_backtests(check),
        nearest=_describe_nearest(conditions, row),
        surer=_propose_runs(law, row, limits),
        trusted=row.trusted,
    )


def _explain_interval(law: Formula, row: Row, check: RangeCheck, limits: Limits) -> str:
    """Say how much of the interval is of the coefficients, and what else it counts."""
    if law.draws is None or row.loss_interval is None:
        return "none: the law has no draws"
    variables = {name: np.atleast_1d(values) for name, values in check.at.items() if values is not None}
    losses = limits.loss(law, law.columns_of_draws(1), variables)
    by_draws = _write_interval(percentile_interval(losses[:, 0]))
    text = f"95 %: {_write_interval(row.loss_interval)}; draws of the coefficients alone {by_draws}"
    causes = ["the error of extrapolation"] if check.warnings else []
    causes += [f"the spread of {name}, which the law ignores" for name in limits.ignored_design(law)]
    if row.layout is not None:
        causes.append("the step times")
    return f"{text}; the rest is {join_words(causes)}" if causes else text


def _write_interval(bounds: Interval) -> str:
    return "{} to {}".format(*format_ends(*bounds))


def _list_backtests(check: RangeCheck) -> Strings:
    """List what was measured of extrapolation in the quantities that lie outside the fitted ranges."""
    backtests = []
    for rule in evidence()["trusted"]:
        distances = check.distances(rule["variables"], of_same_experts=True).values()
        if any(np.any(distance > 0) for distance in distances):
            backtests.append(f"{rule['quantity']}: trusted up to ×{rule['above']:g}; {rule['because']}")
    return tuple(backtests) or ("none are needed inside the fitted ranges",)


def _describe_nearest(conditions: Conditions, row: Row) -> str:
    """Describe the runs whose E is nearest to that of the model."""
    if not conditions.experts:
        return "unknown: the law does not record its runs"
    experts = min(conditions.experts, key=lambda e: abs(np.log(row.experts / e)))
    nearest = next(ranges for ranges in conditions.ranges if ranges.experts == experts)
    sizes = "…".join(map(format_count, nearest.n_active))
    tokens = "…".join(map(format_count, nearest.tokens))
    return f"{nearest.runs} runs with E = {nearest.experts:g}: {sizes} active on {tokens} tokens"


def _propose_runs(law: Formula, row: Row, limits: Limits) -> str:
    """Propose runs for a share of the model's FLOPs that would narrow the draws of its loss most."""
    flops = SHARE * row.training_flops
    ask = predicted_loss(row.n_active, row.tokens, row.experts)
    try:
        grid = candidate_grid(flops / LEAST_RUNS, vocab_size=law.vocab_size, like=limits.like)
        design = next_runs(law, ask, flops, grid, max_runs=MOST_RUNS, force=True)
    except InputError as error:
        return f"unknown: {error}"
    runs = []
    for run in design.rows:
        model = f"E = {run.experts:g}"
        if run.routed_experts:
            model = f"{run.routed_experts} experts"
        runs.append(f"d_model {run.d_model}, {model} on {format_count(run.tokens)} tokens")
    change = f"{design.deviation_before:.2g} to {design.deviation_after:.2g} nats"
    return f"{'; '.join(runs)}: {format_flops(design.flops)} FLOPs take the draws' deviation from {change}"
