"""The answer for one budget: a row for each number of experts with its interval, and which E cannot be told apart.

Intervals and comparisons take the losses of the same models under every draw, also of one without an optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar

import numpy as np

from hub.base.errors import InputError
from hub.base.notices import Notice, about
from hub.base.tables import join_words
from hub.base.types import Fields, Strings
from hub.base.units import UNKNOWN, bracket_interval, format_count, format_experts, format_flops
from scaling_law.answer.answer import Answer, Row, plain
from scaling_law.formulas import Formula
from scaling_law.formulas.accuracy import accuracy_cells
from scaling_law.formulas.law import percentile_interval
from scaling_law.machine.gpus import describe_memory
from scaling_law.machine.layout import DoesNotFit, Placement
from scaling_law.planning.budget import Budget, Cluster
from scaling_law.planning.limits import Limits
from scaling_law.planning.optimum import explain_left_out, list_experts
from scaling_law.planning.why import Why, explain
from scaling_law.rates.batch import PublishedBatch, cite, describe_batches, published_batches
from scaling_law.rates.law import source_of_rate
from scaling_law.size.architecture import name_size
from scaling_law.size.arrays import BoolArray, FloatArray, Interval
from scaling_law.size.recipe import BatchRamp

# E of which a comparison says how often each wins, or which is ahead.
MOST_SHOWN = 6
# Columns of a printed row, in their order; those without a value are left out.
SHOWN: Strings = (
    "routed_experts",
    "experts",
    "d_model",
    "n_active",
    "n_total",
    "tokens",
    "tokens_per_parameter",
    "training_flops",
    "hours",
    "mfu",
    "layout",
    "epochs",
    "weight_bytes",
    "kv_cache_bytes",
    "loss",
    "loss_interval",
    "behind",
    "equal_flops_loss",
    "win_share",
    "serving_share",
    "gpu_seconds_per_million",
    "price_per_million",
    "learning_rate",
    "limited_by",
)
# Columns that describe a row and do not decide between rows.
DETAILS: Strings = (
    "d_model",
    "tokens_per_parameter",
    "training_flops",
    "weight_bytes",
    "kv_cache_bytes",
    "equal_flops_loss",
    "win_share",
    "learning_rate",
    "limited_by",
)
# Share of the draws that the E of a tie win together.
TIE_SHARE = 0.9
# Shares that differ by less are equal.
ROUNDING = 1e-9
# What limits a model that would not be trusted with more tokens or parameters.
EVIDENCE = "evidence"
# What the JSON of a table has beside its fields, always and with a budget of time.
FACTS = ("comparison", "trusted_loss", "batch_tokens", "batch_source", "batches")
TIMED_FACTS = ("budget", "reordered", "placement", "equal_flops")
# Limits as the subtitle of a table names them, where they are given, and the format of each.
LIMITS_IN_WORDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "inference_tokens": ("serving {} tokens", format_count),
    "max_parameters": ("N_total ≤ {}", format_count),
    "memory": ("≤ {}", describe_memory),
    "kv_tokens": ("KV cache of {} tokens", "{:,.0f}".format),
    "like": ("like {}", str),
    "granularity": ("granularity {}", "{:g}".format),
    "unique_tokens": ("{} unique tokens", format_count),
}


class OptimalRow(Row):
    """The best model with `experts` experts. Parameters, tokens, bytes, FLOPs, nats per token; intervals hold 95 %.

    Sizes are `d_model`, `n_active`, `n_total` and, of an integral table, the `architecture`; else `d_model` is
    fractional. `tokens`, `tokens_per_parameter`, `training_flops`, `inference_flops`, `weight_bytes`,
    `kv_cache_bytes`, `memory_bytes` of both, `loss` and `loss_interval` follow. `limited_by`: "compute" or "time",
    "memory" (to serve or train), "evidence" where more would not be trusted, or "smallest" for one below d_model 64.
    `trusted`: no further outside the fitted
    ranges than backtests support (`RangeCheck`); `beyond_guard`: too far outside to compare; `warnings` say how far.
    `learning_rate` is by the law whose source is `learning_rate_law`, for a batch of `learning_rate_batch` tokens
    (None: a law without the batch); None where the model is too far from the runs of that law. `distrust` names what
    is further outside than backtests support: "D ×62". `epochs`: tokens over the unique ones, where these are limited.
    `decode_seconds`: GPU-seconds of one generated token, where a batch was given; `serving_share`: of what the model
    spends, where tokens are served. `accuracy`: task → what to expect of
    it, where asked. `mfu`: mean model FLOPs utilization of the steps on the GPUs named, attention counted; `hours`: of
    training on them, for a budget of FLOPs; `layout`: how they share the model. `batch_tokens`: of
    the last batch, in sequences of `sequence_length`.
    """

    _hidden = ("learning_rate_from", "gpu_seconds_per_million", "price_per_million")

    def _headline(self) -> str:
        return f"{self.model}, loss {self.loss:.3f}"

    @property
    def model(self) -> str:
        """The sizes and the tokens."""
        size = name_size(self.experts, self.n_active, self.n_total, self.routed_experts)
        return f"{size}, {format_count(self.tokens)} tokens"

    def config_arguments(self) -> dict[str, int]:
        """Return keyword arguments of `SwitchMoeConfig`; ValueError for a fractional or another architecture."""
        a = self.architecture
        if a is None:
            raise InputError("this row has a fractional d_model: ask for optimal(..., integral=True)")
        if not a.is_of_the_paper:
            raise InputError("SwitchMoeConfig has only unsplit top-1 experts; `plan` writes other configurations")
        return {
            "hidden_size": a.d_model,
            "num_hidden_layers": a.blocks,
            "num_attention_heads": a.heads,
            "num_experts": a.experts,
            "vocab_size": a.vocab_size,
        }


@dataclass(frozen=True)
class Comparison:
    """The two E of lowest loss, and every E that is `tied` with the best; losses in nats per token.

    `difference` is the runner-up's loss minus the best's, `interval` 95 % of its values within one draw each, `error`
    the RMSE of the law's fit. `win_shares`: E → share of the draws in which its row has the lowest loss. Tied are the
    best E and the smallest set whose shares add up to 90 %, or without draws those closer than the error.
    """

    best: float
    runner_up: float
    difference: float
    interval: Interval | None
    error: float | None
    tied: tuple[float, ...]
    win_shares: Mapping[float, float]

    def __str__(self) -> str:
        if len(self.tied) == 1:
            return f"E = {self.best:.5g} is {self.difference:.4f} nats better than E = {self.runner_up:.5g}"
        tied = sorted(self.tied)
        claim = f"E = {join_words(format_experts(tied))} cannot be told apart"
        difference = f"{self.difference:.4f} nats between the best two"
        if not self.win_shares:
            return f"{claim} ({difference}; the law's error is {self.error:.2g})"
        most_frequent = sorted(tied, key=lambda e: -self.win_shares[e])[:MOST_SHOWN]
        shares = ", ".join(f"{e:g} in {self.win_shares[e]:.0%}" for e in sorted(most_frequent))
        return f"{claim}: {difference}; lowest loss: E = {shares} of the draws"


@dataclass(frozen=True, eq=False, repr=False)
class OptimalTable(Answer):
    """Rows in the order asked for; prints as a table with rich and in notebooks, and as text with str().

    `law` is its provenance. `experts_without_optimum`: E → why. `draw_losses`
    [n_draws, rows] are the rows' losses under each draw. `forced`: rows beyond the range guard are compared, too.
    With a budget of hours, draws are those of law and step times together, `flops` those of the best row, and
    `equal_flops` the answer for that many FLOPs. `cluster` are the GPUs named beside a budget of FLOPs, to serve or to
    train. `largest` says that no larger E than the best was considered. `trusted_losses`: E → least loss of its
    trusted models that the budget and the limits allow; `losses_without_evidence`: the same of all models within the
    range guard. `edge` is the best trusted model where none spends half of the budget: then rows are the best models,
    trusted or not.
    """

    _row: ClassVar[type[Row]] = OptimalRow
    _first = ("loss", "", "n_active", "n_total", "tokens", "loss_interval", "behind", "hours", "mfu", "layout")
    _details = DETAILS

    flops: float
    limits: Limits
    integral: bool
    experts_that_do_not_fit: tuple[float, ...]
    law: str
    experts_without_optimum: Mapping[float, str]
    forced: bool
    edge: OptimalRow | None
    trusted_losses: Mapping[float, float]
    budget: Budget = field(repr=False)
    draw_losses: FloatArray | None = field(repr=False)
    losses_without_evidence: Mapping[float, float] = field(repr=False)
    cluster: Cluster | None
    formula: Formula = field(repr=False)
    largest: str | None = field(default=None, repr=False)
    equal_flops: OptimalTable | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[OptimalRow]:
        return iter(self.rows)

    def __getitem__(self, experts: float) -> OptimalRow:
        """Return the row with that many experts, routed ones of a family; KeyError if there is none."""
        return self.row(routed_experts=experts) if self.limits.like else self.row(experts=experts)

    @cached_property
    def compared(self) -> tuple[OptimalRow, ...]:
        """The rows among which the best is chosen: trusted ones, or beyond the edge those within the range guard.

        All rows of a forced answer, and where none is within the guard.
        """
        if self.forced:
            return self.rows
        trusted = () if self.edge else tuple(row for row in self.rows if row.trusted)
        within_guard = tuple(row for row in self.rows if not row.beyond_guard)
        return trusted or within_guard or self.rows

    @cached_property
    def best(self) -> OptimalRow:
        """The row of lowest loss among those compared."""
        return min(self.compared, key=lambda row: row.loss)

    @property
    def trusted(self) -> bool:
        """True if the best row is trusted."""
        return self.best.trusted

    def why(self) -> Why:
        """Say what supports the best row, how far it lies from it, and which runs would make it surer."""
        check = self.check.row(self.rows.index(self.best))
        return explain(self.formula, self.best, check, self.limits)

    @property
    def trusted_loss(self) -> float | None:
        """The least loss of all trusted models that the budget and the limits allow; None where there is none.

        It never rises with the budget, nor with a limit.
        """
        return min(self.trusted_losses.values(), default=None)

    @cached_property
    def comparison(self) -> Comparison | None:
        """The lead of the best row, and the E that the law cannot tell from it; None for a single row."""
        ordered = sorted(self.compared, key=lambda row: row.loss)
        if len(ordered) == 1:
            return None
        experts = [row.experts for row in ordered]
        differences = np.array([row.loss - ordered[0].loss for row in ordered])
        shares = None
        interval = None
        win_shares: dict[float, float] = {}
        if self.draw_losses is not None:
            losses = self.draw_losses[:, [self.rows.index(row) for row in ordered]]
            shares = share_wins(losses[np.isfinite(losses).all(axis=-1)])
            interval = percentile_interval(losses[:, 1] - losses[:, 0])
            win_shares = dict(zip(experts, shares.tolist(), strict=True))
        error = self.formula.conditions.rmse if self.formula.conditions else None
        ties = find_ties(differences, shares, error)
        return Comparison(
            best=experts[0],
            runner_up=experts[1],
            difference=float(differences[1]),
            interval=interval,
            error=error,
            tied=tuple(compress(experts, ties)),
            win_shares={row.experts: win_shares[row.experts] for row in self.compared if win_shares},
        )

    @property
    def _tied(self) -> tuple[float, ...]:
        return self.comparison.tied if self.comparison else ()

    @property
    def _win_shares(self) -> Mapping[float, float]:
        return self.comparison.win_shares if self.comparison else {}

    @property
    def verdict(self) -> str:
        best = self.best
        text = best.model
        if self.budget.cluster is not None:
            text += f" in batches of {format_count(self.batch_tokens)}"
        text += f": loss {best.loss:.3f}{bracket_interval(best.loss_interval)}"
        if best.mfu is not None:
            text += f"; MFU {best.mfu:.0%}"
        if best.serving_share is not None:
            text += f"; {1 - best.serving_share:.0%} training, {best.serving_share:.0%} serving"
        if len(self._tied) > 1:
            text += f"; E = {join_words(format_experts(sorted(self._tied)))} are a tie"
        if not best.trusted:
            text += "; not trusted"
        limits = self.formula.conditions.fitted_limits() if self.formula.conditions else {}
        lowest, highest = limits.get("E", (0.0, math.inf))
        if not lowest <= best.experts <= highest:
            text += f": no run of the law has E beyond {lowest:g} to {highest:g}"
        if self.ahead_untrusted:
            text += f"; {self.ahead_untrusted}"
        return text

    @property
    def ahead_untrusted(self) -> str:
        """The E that would have a lower loss than a trusted best row, were it trusted; empty where none has."""
        losses = self.losses_without_evidence
        lowest = min(losses, key=lambda e: losses[e], default=self.best.experts)
        gain = round(self.best.loss - losses.get(lowest, self.best.loss), 3)
        if not self.best.trusted or gain <= 0:
            return ""
        return f"E = {lowest:.5g} is {gain:.3f} lower outside the trusted region"

    @property
    def limit_of_trust(self) -> str:
        """Say how far models can be trusted, where the best of them spends too little of the budget; else empty."""
        edge = self.edge
        if edge is None:
            return ""
        size = f"{format_count(edge.n_active)} active on {format_count(edge.tokens)} tokens"
        return f"trusted up to {size} (E = {edge.experts:.5g}): loss {edge.loss:.3f}"

    @property
    def reordered(self) -> str | None:
        """The orders of the E in hours and at equal FLOPs; None where they agree."""
        losses = {row.experts: row.loss for row in self.equal_flops or ()}
        rows = [row for row in self.compared if row.experts in losses]
        by_hours = [row.experts for row in sorted(rows, key=lambda row: row.loss)]
        by_flops = sorted(by_hours, key=lambda e: losses[e])
        if by_flops == by_hours:
            return None
        in_hours = ", ".join(f"{e:g}" for e in by_hours[:MOST_SHOWN])
        at_equal_flops = ", ".join(f"{e:g}" for e in by_flops[:MOST_SHOWN])
        return (
            f"Ranking by wall clock ({self.budget.hours:.3g} h): E = {in_hours}; "
            f"at equal compute ({format_flops(self.flops)} FLOPs): {at_equal_flops}"
        )

    @property
    def warnings(self) -> Strings:
        """The warnings about the best row, about the comparison itself, and about learning rates."""
        best = self.best
        warnings = list(self.loss_warnings)
        warnings += [about(self._best_name, warning) for warning in best.learning_rate_warnings]
        without_rate = list_experts(row.experts for row in self.rows if row.learning_rate is None)
        if without_rate and best.learning_rate is not None:
            # Their cells are empty.
            sentence = f"E = {without_rate} have no peak LR: too far outside the runs of its law"
            warnings.append(Notice(sentence))
        return tuple(warnings)

    @property
    def _best_name(self) -> str:
        return f"best row (E = {self.best.experts:.5g})"

    @property
    def loss_warnings(self) -> Strings:
        """The warnings about the best row, and about the comparison itself."""
        warnings = list(self.notes)
        if self.reordered:
            warnings.append(Notice(self.reordered, "the ranking differs at equal compute"))
        warnings += [about(self._best_name, warning) for warning in self.best.warnings]
        if self.largest:
            warnings.append(Notice(self.largest, f"no E above {self.best.experts:.5g} compared"))
        if len(self._tied) > 1:
            # The verdict names ties.
            warnings.append(Notice(str(self.comparison)))
        beyond_guard = list_experts(row.experts for row in self.rows if row.beyond_guard)
        if beyond_guard:
            consequence = "compared anyway, do not act on it" if self.forced else "not compared"
            subject = f"E = {beyond_guard} {consequence}"
            warnings.append(Notice(f"{subject}: too far outside the fitted range", subject))
        passed_over = []
        for row in self.rows:
            if row not in self.compared and not row.beyond_guard:
                passed_over.append(row.experts)
        if passed_over:
            # Others are trusted, and rows say that these are not.
            sentence = f"E = {list_experts(passed_over)} not compared: further outside the runs than backtests support"
            warnings.append(Notice(sentence))
        warnings += explain_left_out(self.experts_without_optimum)
        if self.experts_that_do_not_fit:
            subject = f"E = {list_experts(self.experts_that_do_not_fit)} do not fit"
            warnings.append(Notice(f"{subject} at any size", subject))
        return tuple(warnings)

    @property
    def batch_tokens(self) -> int:
        """Tokens of the last batch of the best row."""
        return self.best.batch_tokens

    @property
    def batch_source(self) -> str:
        """The source of the batch of the best row: "given", "paper", or a published law."""
        return self.budget.rule.source(self.best.n_active, self.best.tokens)

    @property
    def ramp(self) -> BatchRamp:
        """The batches of the best row."""
        return self.budget.rule.run(self.best.n_active, self.best.tokens)

    @property
    def batches(self) -> tuple[PublishedBatch, ...]:
        """The batches of published laws for the run of the best row."""
        best = self.best
        return published_batches(best.training_flops, best.tokens, best.loss)

    @cached_property
    def placement(self) -> Placement | None:
        """The layout of the best model (of a fractional one the next that exists); None without estimated steps."""
        cluster = self.budget.cluster
        if cluster is None or not cluster.throughput.is_assumed:
            return None
        width, _ = self.limits.ladder.beside(np.array(self.best.d_model))
        experts = self.best.experts if self.limits.like else math.ceil(self.best.experts)
        architecture = self.limits.architecture(float(width), experts)
        with suppress(DoesNotFit):
            return cluster.of_run(architecture, self.best.tokens).place(architecture)
        return None

    def facts(self) -> Fields:
        is_timed = self.budget.cluster is not None
        facts = super().facts()
        for name in FACTS + TIMED_FACTS if is_timed else FACTS:
            facts[name] = plain(getattr(self, name))
        facts["sequence_length"] = self.best.sequence_length
        if is_timed:
            facts["bottleneck"] = self.placement and self.placement.bottleneck
        return facts

    def to_rows(self) -> list[Fields]:
        """Return the values of each row, whether it is the `best`, and its `win_share` (None without draws)."""
        rows = []
        for row in self.rows:
            values = row.to_dict()
            values["best"] = row is self.best
            values["trusted_loss"] = self.trusted_losses.get(row.experts)
            values["win_share"] = self._win_shares.get(row.experts)
            rows.append(values)
        return rows

    def _lines(self) -> str:
        """Name the budget, the limits, the law and how GPUs train the best row, below the verdict."""
        conditions = [str(self.budget)]
        if self.cluster is not None and self.best.hours is not None:
            conditions.append(f"on {self.cluster}")
        for name, (text, form) in LIMITS_IN_WORDS.items():
            value = getattr(self.limits, name)
            if value and value != getattr(Limits, name):
                conditions.append(text.format(form(value)))
        lines = [self.verdict, self.limit_of_trust, f"{', '.join(conditions)}  ({self.law})"]
        if self.placement:
            lines.append(f"best row: {self.placement}. {self.placement.advice}")
        return "\n".join(filter(None, lines))

    def _footnotes(self) -> list[str]:
        """Say where the batch and the peak learning rates come from, and what the cost of serving is of."""
        best = self.best
        size = f"{format_count(self.batch_tokens)} tokens in sequences of {best.sequence_length:,}"
        published = describe_batches(self.batches)
        notes = [f"batch: {size} ({cite(self.batch_source)}); by published laws: {published}"]
        if any(row.learning_rate is not None for row in self.rows):
            source = source_of_rate(best.learning_rate_law, (row.learning_rate_batch for row in self.rows))
            notes.append(f"peak LR: {source}")
        cluster = self.budget.cluster or self.cluster
        if cluster is not None and best.decode_seconds is not None:
            unit = "seconds" if cluster.price is None else "the price"
            device = cluster.throughput.device
            notes.append(f"serving: {unit} of one {device} for a million generated tokens, at least")
        return notes

    def _styles(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        styles = super()._styles(self.rows)
        styles[self.rows.index(self.best)] = "bold green"
        return styles

    def _cells(self) -> list[Fields]:
        """Return the rows as they are printed: with what sets one beside the others, and the cost of serving."""
        equal_flops = {row.experts: row.loss for row in self.equal_flops or ()}
        printed_rows = []
        for row in self.rows:
            cells = row.cells(*SHOWN)
            if self.budget.cluster is None:
                cells["training_flops"] = ""
            if not self.limits.kv_tokens:
                cells["kv_cache_bytes"] = ""
            cells["learning_rate"] = row.learning_rate or UNKNOWN
            cells["win_share"] = self._win_shares.get(row.experts, "")
            cells["equal_flops_loss"] = equal_flops.get(row.experts, "")
            remarks = []
            if row is self.best:
                remarks.append("best")
            elif row in self.compared:
                cells["behind"] = row.loss - self.best.loss
            if row.experts in self._tied and row is not self.best:
                remarks.append("tie")
            if not row.trusted:
                remarks.append("not trusted")
            printed_rows.append({**cells, **accuracy_cells(row.accuracy), "": ", ".join(remarks)})
        return printed_rows


def share_wins(drawn_losses: FloatArray) -> FloatArray:
    """Return the share of the draws [n_draws, ..., E] in which each E has the lowest loss, [..., E]."""
    winners = np.argmin(drawn_losses, axis=-1)[..., None]
    return np.asarray(np.mean(winners == np.arange(drawn_losses.shape[-1]), axis=0))


def find_ties(differences: FloatArray, shares: FloatArray | None, error: float | None) -> BoolArray:
    """Find the best E, whose `differences` [..., E] are 0, and those that tie with it.

    The smallest set of E whose `shares` of wins add up to `TIE_SHARE`, or without draws those with a difference below
    the `error` of the law.
    """
    is_best = differences == 0
    if shares is None:
        return np.asarray(is_best | (differences < (error or 0.0)))
    order = np.argsort(-shares, axis=-1, kind="stable")
    ordered = np.take_along_axis(shares, order, -1)
    is_needed = np.cumsum(ordered, axis=-1) - ordered < TIE_SHARE * (1 - ROUNDING)
    ties = np.zeros(shares.shape, bool)
    np.put_along_axis(ties, order, is_needed & (ordered > 0), -1)
    return np.asarray(ties | is_best)
