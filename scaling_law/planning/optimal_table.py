"""Which model for this budget: one row for each number of experts, with intervals, and which E can be told apart.

Intervals and comparisons take the losses of the same models under every draw, also of one without an optimum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError, given
from hub.base.inputs import reads
from hub.base.tables import Table, enumerated, rows_of
from hub.base.units import UNKNOWN, format_bytes, format_count, format_flops, listed_experts
from scaling_law.formulas import Formula
from scaling_law.formulas.accuracy import accuracy_cells, describe_accuracies, parse_tasks, predict_accuracies
from scaling_law.formulas.answers import Answer, plain, plain_fields
from scaling_law.formulas.law import numbers, one_positive, percentile_interval
from scaling_law.formulas.learning_rate import LearningRateLaw, peak_rate, source_of_rate
from scaling_law.machine.gpus import named_gpu
from scaling_law.machine.layout import DoesNotFit, Placement
from scaling_law.machine.serving import seconds_of_token
from scaling_law.planning.budget import Budget, Cluster, QuestionFields, read_question
from scaling_law.planning.limits import Limits, Quantity
from scaling_law.planning.optimum import (
    WidthOptimum,
    drawn_losses,
    explain_left_out,
    explain_undiscounted,
    optimal_widths,
    parse_experts,
    why_no_optimum,
)
from scaling_law.size.architecture import (
    HEAD_DIM,
    Architecture,
    active_parameters,
    affordable_tokens,
    inference_flops,
    total_parameters,
    training_flops,
)
from scaling_law.size.arrays import FloatArray
from scaling_law.size.recipe import PAPER, BatchRamp

if TYPE_CHECKING:
    from typing_extensions import Unpack

MOST_SHOWN = 6  # E of which a comparison says how often each wins, or which is ahead
# Columns of a row.
SHOWN: tuple[str, ...] = ("experts", "d_model", "n_active", "n_total", "tokens", "tokens_per_parameter")
SHOWN += ("training_flops", "epochs", "weight_bytes", "kv_cache_bytes", "loss", "loss_interval", "behind")
SHOWN += ("at equal FLOPs", "wins", "GPU-s per M", "price per M", "learning_rate", "limited_by", "")
# Columns that a narrow terminal shows above the rest.
FIRST = ("d_model", "N_act", "tokens", "loss", "")


@dataclass(frozen=True)
class OptimalRow:
    """The best model with `experts` experts. Parameters, tokens, bytes, FLOPs, nats per token; intervals hold 95 %.

    Unless the table is integral, `d_model` is fractional and `architecture` None. `limited_by`: "compute" or "time",
    "memory" (to serve or train), or "smallest" for one below d_model 64. `trusted`: no further outside the fitted
    ranges than backtests support (`RangeCheck`); `beyond_guard`: too far outside to compare; `warnings` say how far.
    `learning_rate` is by the law whose source is `learning_rate_law`, for a batch of `learning_rate_batch` tokens
    (None: a law without the batch); None where the model is too far from the runs of that law. `distrust` names what
    is further outside than backtests support: "D ×62". `epochs`: tokens over the unique ones, where these are limited.
    `decode_seconds`: GPU-seconds of one generated token, where a batch was given. `accuracy`: task → what to expect of
    it, where asked.
    """

    experts: float
    d_model: float
    n_active: float
    n_total: float
    tokens: float
    tokens_per_parameter: float
    weight_bytes: float
    kv_cache_bytes: float
    training_flops: float
    inference_flops: float
    loss: float
    loss_interval: tuple[float, float] | None
    learning_rate: float | None
    limited_by: str
    warnings: tuple[str, ...]
    trusted: bool
    architecture: Architecture | None
    epochs: float | None = None
    decode_seconds: float | None = None
    beyond_guard: bool = False
    accuracy: Mapping[str, Mapping[str, float]] | None = None
    learning_rate_interval: tuple[float, float] | None = None
    learning_rate_law: str = ""
    learning_rate_batch: int | None = None
    learning_rate_warnings: tuple[str, ...] = ()
    distrust: str = ""
    learning_rate_from: LearningRateLaw | None = field(default=None, repr=False, compare=False)

    @property
    def memory_bytes(self) -> float:
        return self.weight_bytes + self.kv_cache_bytes

    def to_dict(self) -> dict[str, Any]:
        fields = plain_fields(self, "learning_rate_from", *(["accuracy"] if self.accuracy is None else []))
        return fields | {"memory_bytes": self.memory_bytes}

    def config_arguments(self) -> dict[str, int]:
        """Keyword arguments of `SwitchMoeConfig`; ValueError for a fractional or another architecture."""
        a = self.architecture
        if a is None:
            raise InputError("this row has a fractional d_model: ask for optimal(..., integral=True)")
        if not a.is_of_the_paper:
            raise InputError("SwitchMoeConfig has only unsplit top-1 experts; `plan` writes other configurations")
        names = {"hidden_size": a.d_model, "num_hidden_layers": a.blocks, "num_attention_heads": a.heads}
        return names | {"num_experts": a.experts, "vocab_size": a.vocab_size}


@dataclass(frozen=True)
class Comparison:
    """The two E of lowest loss, and every E that is `tied` with the best; losses in nats per token.

    `difference` is the runner-up's loss minus the best's, `interval` 95 % of its values within one draw each, `error`
    the RMSE of the law's fit. E is tied where the interval of its difference reaches zero, or without draws where the
    difference is below the error. `win_shares`: E → share of the draws in which its row has the lowest loss.
    """

    best: float
    runner_up: float
    difference: float
    interval: tuple[float, float] | None
    error: float | None
    tied: tuple[float, ...]
    win_shares: Mapping[float, float]

    def __str__(self) -> str:
        if len(self.tied) == 1:
            return f"E = {self.best:g} is {self.difference:.4f} nats better than E = {self.runner_up:g}"
        tied = sorted(self.tied)
        text = f"E = {enumerated(listed_experts(tied))} cannot be told apart"
        between = f"{self.difference:.4f} nats between the best two"
        if self.win_shares:
            often = sorted(tied, key=lambda e: -self.win_shares[e])[:MOST_SHOWN]
            shares = ", ".join(f"{e:g} in {self.win_shares[e]:.0%}" for e in sorted(often))
            return f"{text}: {between}; lowest loss: E = {shares} of the draws"
        return f"{text} ({between}; the law's error is {self.error:.2g})"


@dataclass(frozen=True)
class OptimalTable(Answer):
    """Rows in the order asked for; prints as a table with rich and in notebooks, and as text with str().

    `law` is its provenance, `law_error` the RMSE of its fit in nats. `experts_without_optimum`: E → why. `draw_losses`
    [n_draws, rows] are the rows' losses under each draw. `forced`: rows beyond the range guard are compared, too.
    With a budget of hours, draws are those of law and step times together, `flops` those of the best row, and
    `equal_flops` the answer for that many FLOPs. `largest` says that no larger E than the best was considered.
    """

    rows: tuple[OptimalRow, ...]
    flops: float
    budget: Budget
    limits: Limits
    integral: bool
    experts_that_do_not_fit: tuple[float, ...]
    law: str
    experts_without_optimum: Mapping[float, str] = field(default_factory=dict)
    forced: bool = False
    law_error: float | None = None
    draw_losses: FloatArray | None = field(default=None, repr=False, compare=False)
    largest: str | None = None
    equal_flops: OptimalTable | None = field(default=None, repr=False, compare=False)

    @cached_property
    def compared(self) -> tuple[OptimalRow, ...]:
        """The rows among which the best is chosen: trusted ones, or where none is those within the range guard.

        All rows of a forced answer, and where none is within the guard.
        """
        if self.forced:
            return self.rows
        trusted = tuple(row for row in self.rows if row.trusted)
        return trusted or tuple(row for row in self.rows if not row.beyond_guard) or self.rows

    @cached_property
    def best(self) -> OptimalRow:
        """The row of lowest loss among those compared."""
        return min(self.compared, key=lambda row: row.loss)

    @property
    def trusted(self) -> bool:
        """Whether the best row is trusted."""
        return self.best.trusted

    @property
    def verdict(self) -> str:
        best, tied = self.best, self.comparison.tied if self.comparison else ()
        size = f"E = {best.experts:g} of {format_count(best.n_total)} parameters"
        text = f"{size if best.experts > 1 else f'dense, {format_count(best.n_total)} parameters'}, "
        text += f"{format_count(best.tokens)} tokens: loss {best.loss:.3f}"
        text += " ({:.3f} to {:.3f})".format(*best.loss_interval) if best.loss_interval else ""
        text += f"; E = {enumerated(listed_experts(sorted(tied)))} are a tie" if len(tied) > 1 else ""
        text += "" if best.trusted else "; not trusted"
        fitted = self.check.conditions.fitted_limits() if self.check and self.check.conditions else {}
        low, high = fitted.get("E", (0.0, math.inf))
        if not low <= best.experts <= high:
            text += f": no run of the law has E beyond {low:g} to {high:g}"
        return f"{text}; {self.ahead_untrusted}" if self.ahead_untrusted else text

    @property
    def ahead_untrusted(self) -> str:
        """Which E that was not compared has the lowest loss, in words; empty where the best row has."""
        others = [row for row in self.rows if row not in self.compared and not row.beyond_guard]
        lowest = min(others, key=lambda row: row.loss, default=self.best)
        if lowest.loss >= self.best.loss:
            return ""
        return f"E = {lowest.experts:g} is {self.best.loss - lowest.loss:.3f} lower, but not trusted"

    @cached_property
    def comparison(self) -> Comparison | None:
        """How far the best row is ahead, and which E the law cannot tell from it; None for a single row."""
        best, *others = sorted(self.compared, key=lambda row: row.loss)
        if not others:
            return None
        shares, interval, drawn_ahead = {}, None, None
        if self.draw_losses is not None:
            drawn = dict(zip((row.experts for row in self.rows), self.draw_losses.T, strict=True))
            losses = np.stack([drawn[row.experts] for row in self.compared])
            wins = np.argmin(losses[:, np.isfinite(losses).all(axis=0)], axis=0)
            shares = {row.experts: float(np.mean(wins == i)) for i, row in enumerate(self.compared)}
            drawn_ahead = np.stack([drawn[row.experts] - drawn[best.experts] for row in others], axis=-1)
            interval = percentile_interval(drawn_ahead[:, 0])
        ahead = np.array([row.loss - best.loss for row in others])
        tied = as_good(ahead, drawn_ahead, self.law_error)
        named = (best.experts, *(row.experts for row, tie in zip(others, tied, strict=True) if tie))
        second = others[0].experts
        return Comparison(best.experts, second, float(ahead[0]), interval, self.law_error, named, shares)

    @property
    def reordered(self) -> str | None:
        """How the order of the E in hours differs from that at equal FLOPs; None where it does not."""
        if self.equal_flops is None:
            return None
        flops = {row.experts: row.loss for row in self.equal_flops}
        rows = [row for row in self.compared if row.experts in flops]
        hours = [row.experts for row in sorted(rows, key=lambda row: row.loss)]
        if (by_flops := sorted(hours, key=lambda e: flops[e])) == hours:
            return None
        budget = f"{format_flops(self.flops)} FLOPs each"
        first, other = (", ".join(f"{e:g}" for e in order[:MOST_SHOWN]) for order in (hours, by_flops))
        return f"best E first: {first} in {self.budget.hours:.3g} hours, but {other} for {budget}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about the best row, about the comparison itself, and about learning rates."""
        return (*self.loss_warnings, *self.rate_warnings)

    @property
    def rate_warnings(self) -> tuple[str, ...]:
        """What to know of the learning rate of the best row, and which rows have none."""
        best = self.best
        notes = [f"best row (E = {best.experts:g}): {warning}" for warning in best.learning_rate_warnings]
        without = _listed(row.experts for row in self.rows if row.learning_rate is None)
        if without and best.learning_rate is not None:
            notes.append(f"E = {without} have no peak LR: too far outside the runs of its law")
        return tuple(notes)

    @property
    def loss_warnings(self) -> tuple[str, ...]:
        """The warnings about the best row, and about the comparison itself."""
        notes = [*self.notes, *([self.reordered] if self.reordered else [])]
        notes += [f"best row (E = {self.best.experts:g}): {warning}" for warning in self.best.warnings]
        notes += [self.largest] if self.largest else []
        if self.comparison is not None and len(self.comparison.tied) > 1:
            notes.append(str(self.comparison))
        if beyond := _listed(row.experts for row in self.rows if row.beyond_guard):
            what = "compared anyway, do not act on it" if self.forced else "not compared"
            notes.append(f"E = {beyond} {what}: too far outside the fitted range")
        others = [row.experts for row in self.rows if row not in self.compared and not row.beyond_guard]
        if others:
            notes.append(f"E = {_listed(others)} not compared: further outside the runs than backtests support")
        notes += explain_left_out(self.experts_without_optimum)
        if self.experts_that_do_not_fit:
            notes.append(f"E = {_listed(self.experts_that_do_not_fit)} do not fit at any size")
        return tuple(notes)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[OptimalRow]:
        return iter(self.rows)

    def __getitem__(self, experts: float) -> OptimalRow:
        """The row with that many experts; KeyError if there is none."""
        for row in self.rows:
            if row.experts == experts:
                return row
        raise KeyError(f"no row for experts={experts}; there are {[row.experts for row in self.rows]}")

    def facts(self) -> dict[str, Any]:
        of_hours = {name: plain(getattr(self, name)) for name in ("budget", "reordered", "placement", "equal_flops")}
        hidden = ("rows", "check", "notes", "law_error", "draw_losses", "largest", "budget", "equal_flops")
        facts = plain_fields(self, *hidden) | {"comparison": plain(self.comparison)}
        return facts | (of_hours if self.budget.cluster is not None else {})

    def to_rows(self) -> list[dict[str, Any]]:
        """The values of each row, whether it is the `best`, and its `win_share` (None for a law without draws)."""
        shares = self.comparison.win_shares if self.comparison else {}
        return [row.to_dict() | {"best": row is self.best, "win_share": shares.get(row.experts)} for row in self.rows]

    @cached_property
    def placement(self) -> Placement | None:
        """How GPUs train the best model (of a fractional one the next that exists); None without estimated steps."""
        best, cluster = self.best, self.budget.cluster
        if cluster is not None and cluster.throughput.is_assumed:
            with suppress(DoesNotFit):
                width = HEAD_DIM * max(1, int(best.d_model / HEAD_DIM))
                return cluster.place(self.limits.architecture(width, math.ceil(best.experts)))
        return None

    def summary(self) -> Table:
        return Table.of(
            [self._cells(row) for row in self.rows],
            first=FIRST,
            styles=["bold green" if row is self.best else ("" if row.trusted else "dim") for row in self.rows],
            title=f"{self.verdict}\n{self._subtitle()}",
            notes=[self.rates],
            warnings=self.warnings,
        )

    @property
    def rates(self) -> str:
        """The law of the peak learning rates and the batches that they are for, in words."""
        source = source_of_rate(self.best.learning_rate_law, (row.learning_rate_batch for row in self.rows))
        return f"peak LR: {source}"

    def _subtitle(self) -> str:
        c, served = self.limits, format_count(self.limits.inference_tokens)
        parts = {
            f"of which inference on {served} tokens": c.inference_tokens,
            f"N_total ≤ {format_count(c.max_parameters or 0)}": c.max_parameters,
            f"≤ {format_bytes(c.memory or 0)}": c.memory,
            f"KV cache of {c.kv_tokens:,.0f} tokens": c.kv_tokens,
            f"granularity {c.granularity:g}": c.granularity != 1,
            f"{format_count(c.unique_tokens or 0)} unique tokens": c.unique_tokens,
        }
        limits = [text for text, applies in parts.items() if applies]
        placed = f"\nbest row: {self.placement}; {self.placement.advice}" if self.placement else ""
        return f"{', '.join([str(self.budget), *limits])}  ({self.law}){placed}"

    def _cells(self, row: OptimalRow) -> dict[str, object]:
        shares, tied = (c.win_shares, c.tied) if (c := self.comparison) else ({}, ())
        same = {r.experts: r.loss for r in self.equal_flops} if self.equal_flops else {}
        values = vars(row) | {"at equal FLOPs": same.get(row.experts), "wins": shares.get(row.experts)}
        values["learning_rate"] = row.learning_rate or UNKNOWN
        values["behind"] = row.loss - self.best.loss if row in self.compared and row is not self.best else None
        values[""] = (
            "best" if row is self.best else "not trusted" if not row.trusted else "tie" * (row.experts in tied)
        )
        if self.budget.cluster is None:
            del values["training_flops"]
        # The cost of a million generated tokens.
        elif row.decode_seconds is not None:
            seconds, price = 1e6 * row.decode_seconds, self.budget.cluster.price
            values |= {"GPU-s per M": seconds} if price is None else {"price per M": price * seconds / 3600}
        if not self.limits.kv_tokens:
            del values["kv_cache_bytes"]
        return (
            {name: "" if (value := values.get(name)) is None else value for name in SHOWN[:-1]}
            | accuracy_cells(row.accuracy)
            | {"": values[""]}
        )


def as_good(ahead: FloatArray, drawn_ahead: FloatArray | None, error: float | None) -> NDArray[np.bool_]:
    """Where a model is a tie with the best: the interval [n_draws, ...] of its difference `ahead` reaches zero.

    Without draws, where the difference is below the `error` of the law.
    """
    if drawn_ahead is None:
        return np.asarray(ahead < (error or 0.0))
    return np.asarray(percentile_interval(drawn_ahead)[0] <= 0)


@reads
def optimal(
    law: Formula,
    flops: Quantity | None = None,
    experts: ArrayLike | None = None,
    *,
    decode_batch: float | None = None,
    integral: bool = False,
    learning_rate_law: LearningRateLaw | str | None = None,
    batch_ramp: BatchRamp | None = None,
    force: bool = False,
    accuracy: str | Sequence[str] = (),
    **question: Unpack[QuestionFields],
) -> OptimalTable:
    """The best model for each E under compute and memory limits, and the best of all.

    Args:
        flops: of training (6 N_act D) and inference (2 N_act D_inf); a number or text such as "1e22".
        hours, money: of training, instead of flops, on `gpus` GPUs; money by a `price` per GPU-hour.
        gpu, mfu, throughput: how fast they train: a GPU such as "h100", by rates of public runs or an MFU that is
            given; or a `Throughput` or throughput.json.
        decode_batch: with these, also the cost of serving so many sequences at once (`machine.serving`), which
            hold `kv_tokens` together.
        experts: one E or several; None asks for those of `default_experts`.
        integral: only architectures that exist, d_model = 64 n_blocks = 64 n_heads.
        learning_rate_law: one, or its name or file; None asks that of the public grids at the level of the paper.
        batch_ramp: its last batch goes into learning-rate laws that have a batch, its batches into step times;
            None: the paper's.
        force: compare answers beyond the range guard, too.
        accuracy: tasks whose accuracy to expect at each loss: "arc_easy,hellaswag" (docs/planning.md#accuracy).
        question: the fields of `Limits`: memory="80GB" and so on.

    ValueError where nothing fits, the law has no optimum, or not exactly one budget is given; ExtrapolationError
    where no answer is within the range guard. Ludziejewski et al. 2025, Section "Compute and Memory Optimality".
    """
    tasks = parse_tasks(accuracy)
    budgets = [] if flops is None else numbers("flops", flops).tolist()
    if flops is not None and isinstance(budgets, list):
        raise InputError(f"flops={budgets!r}: optimal takes one budget; ask once for each, or compute_optimal for all")
    budget, limits = read_question(law, flops, batch_ramp, **question)
    e = np.atleast_1d(parse_experts(law, experts))
    if e.ndim != 1:
        raise InputError(f"experts={e.tolist()!r} must be one number or a list of them")
    e = np.array(list(dict.fromkeys(e.tolist())))  # one row for an E that is named twice
    if integral and np.any(e != np.round(e)):
        raise InputError(given("experts", e), ": ", given("integral", True), " needs whole numbers")
    optimum = optimal_widths(law, budget, e, limits, integral)
    inside = optimum.fits
    if not inside.any():
        raise InputError(_nothing_fits(budget, e[optimum.exists], limits))
    at = budget.models(law, optimum.d_model[inside], e[inside], limits)
    if (check := law.check(**at, unique_tokens=limits.unique_tokens)).beyond.all():
        check.refuse(force)
    draws = drawn_losses(law, budget, at, optimum.d_model[inside], limits)
    intervals = [None if draws is None else percentile_interval(draws[:, i]) for i in range(len(at["tokens"]))]
    ramp = batch_ramp or BatchRamp(PAPER.batch_ramp, PAPER.sequence_length)
    if budget.cluster is not None:
        ramp = budget.cluster.ramp
    if isinstance(learning_rate_law, str):
        learning_rate_law = LearningRateLaw.named(learning_rate_law)
    sizes = _sizes(law, optimum, at, budget, limits, decode_batch)
    rows = []
    for i, row in enumerate(rows_of(sizes)):
        worth = _worth(law, {name: values[i] for name, values in at.items()}, row, limits, learning_rate_law, ramp)
        worth["accuracy"] = predict_accuracies(tasks, row["loss"], intervals[i], 0.95)
        built = limits.architecture(row["d_model"], row["experts"]) if integral else None
        rows.append(OptimalRow(**row, **worth, loss_interval=intervals[i], architecture=built))
    notes = (*describe_accuracies(tasks, [row.loss for row in rows]), *explain_undiscounted(law, e[inside], limits))
    if (tiny := e[inside & (optimum.free < HEAD_DIM)]).size:
        smallest = format_count(float(active_parameters(HEAD_DIM, vocab_size=limits.vocab_size)))
        least = f"d_model {HEAD_DIM} with a vocabulary of {limits.vocab_size:,} (N_act {smallest})"
        assumed = budget.cluster is not None and budget.cluster.throughput.is_assumed
        if assumed and tiny.size == inside.sum() and not force:
            raise InputError(
                f"hours={budget.hours:g} are too few: every compute optimum on {budget.cluster} is smaller than "
                f"{least}, whose step times are unknown; give more hours, fewer gpus or a smaller vocab_size"
            )
        note = f"E = {_listed(tiny)}: the compute optimum is smaller than {least}, which is taken instead; "
        note += "vocab_size (--vocab-size) sets it"
        notes = (note, *notes)
    table = OptimalTable(
        tuple(rows),
        float("nan") if budget.flops is None else budget.flops,
        budget,
        limits,
        integral,
        experts_that_do_not_fit=tuple(e[optimum.exists & ~inside].tolist()),
        law=law.conditions.provenance if law.conditions else "fitted law",
        experts_without_optimum={e: why_no_optimum(law, e) for e in e[~optimum.exists].tolist()},
        forced=force,
        law_error=law.conditions.rmse if law.conditions else None,
        draw_losses=draws,
        check=check,
        notes=notes,
    )
    table = replace(table, largest=_largest_wins(table, e, law, experts is None))
    if budget.cluster is None:
        return table
    same: Any = {"integral": integral, "learning_rate_law": learning_rate_law, "batch_ramp": ramp, **asdict(limits)}
    equal_flops = optimal(law, table.best.training_flops, e, force=True, **same)
    return _trainable(replace(table, flops=equal_flops.flops, equal_flops=equal_flops), budget.cluster)


def _largest_wins(table: OptimalTable, experts: FloatArray, law: Formula, by_default: bool) -> str | None:
    """A sentence where the best E is the largest of several: a larger one may be better."""
    best = table.best.experts
    if experts.size == 1 or best < experts.max():
        return None
    ends = "the default list" if by_default else "the list asked for"
    if law.conditions and law.conditions.fitted_limits().get("E", (0, 0))[1] == best:
        ends = "the fitted range"
    return f"E = {best:g} is the largest considered ({ends} ends there); {2 * best:g} was not tried"


def _trainable(table: OptimalTable, cluster: Cluster) -> OptimalTable:
    """The table with what GPUs can train of each row, in the next smaller size that exists, and of the size above."""
    best, experts = table.best, np.array([math.ceil(row.experts) for row in table], float)
    width = np.array([HEAD_DIM * max(1, int(row.d_model / HEAD_DIM)) for row in table], float)
    try:
        fits, wider = (cluster.fits(table.limits.widths(d, experts)) for d in (width, width + HEAD_DIM))
    # `plan` says which GPUs cannot share a batch equally.
    except ValueError:
        fits = wider = np.full(len(table), True)
    notes = [*table.notes, *cluster.warnings(table.limits.widths(best.d_model, best.experts))]
    for which, what in (
        (~fits, f"training takes more memory than {cluster.hardware} have: see max_parameters"),
        (fits & ~wider, f"the largest model that the memory of {cluster.hardware} can train"),
    ):
        notes += [f"E = {_listed(experts[which])}: {what}"] if which.any() else []
    ends = zip(table, fits & ~wider, strict=True)
    rows = tuple(replace(row, limited_by="memory") if end else row for row, end in ends)
    return replace(table, rows=rows, notes=tuple(notes))


def _sizes(
    law: Formula,
    optimum: WidthOptimum,
    at: Mapping[str, FloatArray],
    budget: Budget,
    limits: Limits,
    decode_batch: float | None,
) -> dict[str, Any]:
    """The columns of the rows: of each E with a model that fits, whose variables are `at`."""
    cluster, further = budget.cluster, dict[str, Any]()
    spent = "time" if cluster else "compute"
    limited = np.where(optimum.truncated, "memory", np.where(optimum.free < HEAD_DIM, "smallest", spent))
    d, loss, limited = (values[optimum.fits] for values in (optimum.d_model, optimum.loss, limited))
    n, tokens, e = at["n_active"], at["tokens"], at["experts"]
    if decode_batch is not None:
        size = one_positive("decode_batch", decode_batch)
        if cluster is None:
            raise InputError(f"decode_batch={decode_batch!r} goes with hours or money, whose throughput names the GPU")
        gpu, models = named_gpu(cluster.throughput.device), limits.widths(d, e)
        cost = seconds_of_token(models, gpu, size, limits.kv_bytes(d), limits.bytes_per_parameter)
        further["decode_seconds"] = cost
    return further | {
        "experts": e,
        "d_model": d,
        "n_active": n,
        "n_total": total_parameters(d, e, vocab_size=limits.vocab_size),
        "tokens": tokens,
        "tokens_per_parameter": tokens / n,
        "weight_bytes": limits.weight_bytes(d, e),
        "kv_cache_bytes": limits.kv_bytes(d),
        "training_flops": training_flops(n, tokens),
        "inference_flops": inference_flops(n, limits.inference_tokens),
        "loss": loss,
        "limited_by": limited,
        "epochs": tokens / limits.unique_tokens if limits.unique_tokens else None,
    }


def _worth(
    law: Formula,
    at: Mapping[str, Any],
    row: Mapping[str, Any],
    limits: Limits,
    rates: LearningRateLaw | None,
    ramp: BatchRamp,
) -> dict[str, Any]:
    """The learning rate of a model, and how far law and rate extrapolate for it."""
    check, tokens = law.check(**at, unique_tokens=limits.unique_tokens), row["tokens"]
    peak = peak_rate(rates, row["d_model"], row["experts"], tokens, ramp.last_batch_tokens(tokens), limits.vocab_size)
    return {
        "learning_rate": peak.learning_rate,
        "learning_rate_interval": peak.interval,
        "learning_rate_law": peak.law.source,
        "learning_rate_batch": peak.batch_tokens,
        "learning_rate_from": peak.law,
        "learning_rate_warnings": peak.warnings,
        "warnings": check.warnings,
        "trusted": bool(check.trusted),
        "distrust": check.distrust,
        "beyond_guard": bool(check.beyond),
    }


def _nothing_fits(budget: Budget, experts: FloatArray, limits: Limits) -> str:
    """Say why nothing fits, and what would be needed."""
    e, served = float(experts.min()), limits.inference_tokens
    smallest = active_parameters(HEAD_DIM, vocab_size=limits.vocab_size)
    if budget.flops is not None and affordable_tokens(budget.flops, smallest, served) <= 0:
        needed = format_flops(float(inference_flops(smallest, served)))
        return (
            f"nothing fits: inference_tokens={served:g} alone cost at least {needed} FLOPs of flops={budget.flops:g}"
        )
    memory = float(limits.weight_bytes(HEAD_DIM, e) + limits.kv_bytes(HEAD_DIM))
    parameters = format_count(float(total_parameters(HEAD_DIM, e, vocab_size=limits.vocab_size)))
    return (
        f"nothing fits: the smallest model (d_model {HEAD_DIM}, E = {e:g}) has {parameters} parameters and needs at "
        f"least {format_bytes(memory)} ({memory:.0f} bytes) with its KV cache"
    )


def _listed(experts: Any) -> str:
    return ", ".join(listed_experts(experts))
