"""Which model for this budget: one row for each number of experts, with intervals, and which E can be told apart.

`planning.optimum` finds the optimum (Ludziejewski et al. 2025, Section "Compute and Memory Optimality"); this module
adds memory, learning rate, interval and range check. Intervals and comparisons keep the models of the rows and take
their losses under every draw of the law, so they also exist for draws without an optimum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.plain.tables import ResultTable, Table, as_text
from hub.plain.units import format_bytes, format_count, format_flops
from scaling_law.fitting.learning_rate import LearningRateLaw
from scaling_law.fitting.uncertainty import percentile_interval
from scaling_law.laws import ChinchillaForm
from scaling_law.laws.conditions import UNGUARDED, refuse_extrapolation
from scaling_law.planning.constraints import Constraints, Limits, asked_experts, name_limits, positive
from scaling_law.planning.optimum import WidthOptimum, optimal_widths, why_no_optimum
from scaling_law.size.architecture import (
    HEAD_DIM,
    Architecture,
    active_parameters,
    affordable_tokens,
    inference_flops,
    total_parameters,
    training_flops,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

FloatArray = NDArray[np.float64]
FIRST = ("d_model", "N_act", "tokens", "loss", "")  # what a narrow terminal shows above the rest


@dataclass(frozen=True)
class OptimalRow:
    """The best model with `experts` experts. Parameters, tokens, bytes, FLOPs, nats per token.

    `d_model` is fractional unless the table is integral, and then `architecture` exists. `loss_interval` holds 95 % of
    the law's draws. `limited_by` is "compute" where the compute optimum fits, "memory" where it does not, and
    "smallest" where it is smaller than d_model 64. `trusted` is False beyond the range guard, where a row is not
    compared with others; `warnings` say how far outside each quantity is.
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
    learning_rate: float
    limited_by: str
    warnings: tuple[str, ...]
    trusted: bool
    architecture: Architecture | None

    @property
    def memory_bytes(self) -> float:
        """Weights and key-value cache."""
        return self.weight_bytes + self.kv_cache_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self) | {"memory_bytes": self.memory_bytes, "warnings": list(self.warnings)}

    def config_arguments(self) -> dict[str, int]:
        """Keyword arguments of `modeling_switch_moe.SwitchMoeConfig`; ValueError for a fractional architecture."""
        a = self.architecture
        if a is None:
            raise ValueError("this row is no architecture that exists: ask for optimal(..., integral=True)")
        names = {"hidden_size": a.d_model, "num_hidden_layers": a.blocks, "num_attention_heads": a.heads}
        return names | {"num_experts": a.experts, "vocab_size": a.vocab_size}


@dataclass(frozen=True)
class Comparison:
    """The best row against the others that are compared with it; differences of loss in nats per token.

    Attributes:
        best: its E; runner_up: the E of the next lower loss.
        difference: loss of the runner-up minus that of the best; `interval` holds 95 % of the draws' differences, each
            taken within one draw (None without draws).
        error: RMSE of the law's fit, None if unknown.
        tied: every E that cannot be told from the best, that one first; it alone where there is none. With draws: the
            interval of the difference reaches zero. Without: the difference is below the error.
        win_shares: E → share of the draws in which its row has the lowest loss; empty without draws.
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
        names = [f"{e:g}" for e in sorted(self.tied)]
        head = f"E = {', '.join(names[:-1])} and {names[-1]} cannot be told apart"
        if self.win_shares:
            shares = ", ".join(f"{e:g} in {self.win_shares[e]:.0%}" for e in sorted(self.tied))
            return f"{head}: {self.difference:.4f} nats between the best two; lowest loss: E = {shares} of the draws"
        return f"{head} ({self.difference:.4f} nats between the best two; the law's error is {self.error:.2g})"


@dataclass(frozen=True)
class OptimalTable(ResultTable):
    """Rows in the order asked for; prints as a table with rich and in notebooks, and as text with str().

    Attributes:
        law: where its coefficients come from; law_error: RMSE of its fit in nats, if known.
        experts_that_do_not_fit: at any size; experts_without_optimum: E → why the law has none there.
        forced: rows beyond the range guard are compared, too.
        draw_losses: the rows' losses under each draw of the law, [n_draws, rows], or None.
    """

    rows: tuple[OptimalRow, ...]
    flops: float
    constraints: Constraints
    integral: bool
    experts_that_do_not_fit: tuple[float, ...]
    law: str
    experts_without_optimum: Mapping[float, str] = field(default_factory=dict)
    forced: bool = False
    law_error: float | None = None
    draw_losses: FloatArray | None = field(default=None, repr=False, compare=False)
    notes: tuple[str, ...] = ()

    @cached_property
    def compared(self) -> tuple[OptimalRow, ...]:
        """The rows among which the best is chosen: those within the range guard, or all of a forced answer."""
        return self.rows if self.forced else tuple(row for row in self.rows if row.trusted)

    @cached_property
    def best(self) -> OptimalRow:
        """The row of lowest loss among those compared."""
        return min(self.compared, key=lambda row: row.loss)

    @cached_property
    def comparison(self) -> Comparison | None:
        """How far the best row is ahead, and which E the law cannot tell from it; None for a single row."""
        best, *others = sorted(self.compared, key=lambda row: row.loss)
        if not others:
            return None
        intervals, shares = {}, {}
        if self.draw_losses is not None:
            drawn = {row.experts: losses for row, losses in zip(self.rows, self.draw_losses.T, strict=True)}
            intervals = {row.experts: percentile_interval(drawn[row.experts] - drawn[best.experts]) for row in others}
            losses = np.stack([drawn[row.experts] for row in self.compared])
            wins = np.argmin(losses[:, np.isfinite(losses).all(axis=0)], axis=0)
            shares = {row.experts: float(np.mean(wins == i)) for i, row in enumerate(self.compared)}

        def as_good(row: OptimalRow) -> bool:
            interval = intervals.get(row.experts)
            return interval[0] <= 0 if interval else row.loss - best.loss < (self.law_error or 0.0)

        return Comparison(
            best=best.experts,
            runner_up=others[0].experts,
            difference=others[0].loss - best.loss,
            interval=intervals.get(others[0].experts),
            error=self.law_error,
            tied=(best.experts, *(row.experts for row in others if as_good(row))),
            win_shares=shares,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about the best row, and about the comparison itself."""
        found = [*self.notes, *(f"best row: {warning}" for warning in self.best.warnings)]
        if self.comparison is not None and len(self.comparison.tied) > 1:
            found.append(str(self.comparison))
        if untrusted := _listed(row.experts for row in self.rows if not row.trusted):
            what = "compared anyway, do not act on it" if self.forced else "not compared"
            found.append(f"E = {untrusted} {what}: too far outside the fitted range")
        found += [f"E = {e:g} is left out: {reason}" for e, reason in self.experts_without_optimum.items()]
        if self.experts_that_do_not_fit:
            found.append(f"E = {_listed(self.experts_that_do_not_fit)} do not fit at any size")
        return tuple(found)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[OptimalRow]:
        return iter(self.rows)

    def __getitem__(self, experts: float) -> OptimalRow:
        """The row with so many experts; KeyError if there is none."""
        for row in self.rows:
            if row.experts == experts:
                return row
        raise KeyError(f"no row for experts={experts}; there are {[row.experts for row in self.rows]}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: law, flops, constraints, rows, best, comparison, warnings."""
        shares = self.comparison.win_shares if self.comparison else {}
        names = ("law", "flops", "integral", "forced")
        return {name: getattr(self, name) for name in names} | {
            "constraints": asdict(self.constraints),
            "rows": [row.to_dict() | {"win_share": shares.get(row.experts)} for row in self.rows],
            "best": self.best.to_dict(),
            "comparison": self.comparison
            and asdict(self.comparison) | {"win_shares": {f"{e:g}": share for e, share in shares.items()}},
            "experts_without_optimum": {f"{e:g}": reason for e, reason in self.experts_without_optimum.items()},
            "experts_that_do_not_fit": list(self.experts_that_do_not_fit),
            "warnings": list(self.warnings),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """The fields of each OptimalRow, `best`, and `win_share` where the law has draws."""
        names = [f.name for f in fields(OptimalRow) if f.name != "architecture"]
        shares = self.comparison.win_shares if self.comparison else {}
        return [
            {name: getattr(row, name) for name in names}
            | {"best": row is self.best}
            | ({"win_share": shares.get(row.experts)} if shares else {})
            for row in self.rows
        ]

    def summary(self) -> Table:
        """For rich to print."""
        return Table.of(
            [self._cells(row) for row in self.rows],
            keys=("E",),
            first=FIRST,
            styles=["bold green" if row is self.best else ("" if row.trusted else "dim") for row in self.rows],
            title=self._headline(),
            warnings=self.warnings,
        )

    def __str__(self) -> str:
        return as_text(self)

    def _headline(self) -> str:
        c, parts = self.constraints, [f"{format_flops(self.flops)} FLOPs"]
        if c.inference_tokens:
            parts.append(f"of which inference on {format_count(c.inference_tokens)} tokens")
        if c.max_parameters is not None:
            parts.append(f"N_total ≤ {format_count(c.max_parameters)}")
        if c.max_memory_bytes is not None:
            parts.append(f"≤ {format_bytes(c.max_memory_bytes)}")
        if c.kv_cache_tokens:
            parts.append(f"KV cache of {c.kv_cache_tokens:,.0f} tokens")
        return f"{', '.join(parts)}  ({self.law})"

    def _cells(self, row: OptimalRow) -> dict[str, str]:
        shares = self.comparison.win_shares if self.comparison else {}
        tied = self.comparison.tied if self.comparison else ()
        mark = "best" if row is self.best else "not trusted" if not row.trusted else "tie" * (row.experts in tied)
        behind = row.loss - self.best.loss if row in self.compared and row is not self.best else None
        return {
            "E": f"{row.experts:g}",
            "d_model": f"{row.d_model:.0f}",
            "N_act": format_count(row.n_active),
            "N_total": format_count(row.n_total),
            "tokens": format_count(row.tokens),
            "D/N": f"{row.tokens_per_parameter:.3g}",
            "weights": format_bytes(row.weight_bytes),
            "KV cache": format_bytes(row.kv_cache_bytes) if self.constraints.kv_cache_tokens else "",
            "loss": f"{row.loss:.4f}",
            "95 %": "{:.4f}…{:.4f}".format(*row.loss_interval) if row.loss_interval else "",
            "behind": "" if behind is None else f"{behind:.4f}",
            "wins": f"{shares[row.experts]:.0%}" if row.experts in shares else "",
            "peak LR": f"{row.learning_rate:.2e}",
            "limited by": row.limited_by,
            "": mark,
        }


@name_limits
def optimal(
    law: ChinchillaForm,
    flops: Any,
    experts: ArrayLike | None = None,
    *,
    integral: bool = False,
    learning_rate_law: LearningRateLaw | None = None,
    force: bool = False,
    **limits: Unpack[Limits],
) -> OptimalTable:
    """The best model for each E under compute and memory constraints, and the best of all.

    Args:
        flops: FLOPs of training (6 N_act D) and inference (2 N_act D_inf); a number or text such as "1e22".
        experts: one E or several; None asks for those of `default_experts`.
        integral: only architectures that exist, d_model = 64 n_blocks = 64 n_heads.
        learning_rate_law: of the learning rates; None for the published one.
        force: compare and name answers beyond the range guard, too.
        limits: the fields of `planning.constraints.Constraints`: max_memory_bytes="80GB" and so on.

    Raises ValueError for bad input, where nothing fits and where the law has no optimum; ExtrapolationError where
    no answer lies within the range guard. Ludziejewski et al. 2025, Section "Compute and Memory Optimality".
    """
    if np.ndim(flops):
        budgets = np.asarray(flops).tolist()
        raise ValueError(f"flops={budgets!r}: optimal takes one budget; ask once for each, or compute_optimal for all")
    budget, constraints = float(positive("flops", flops)), Constraints.of(law, **limits)
    columns = np.atleast_1d(asked_experts(law, experts))
    if columns.ndim != 1 or not columns.size:
        raise ValueError(f"experts={columns.tolist()!r} must be one number or a list of them")
    if integral and np.any(columns != np.round(columns)):
        raise ValueError(f"experts={columns.tolist()!r}: integral=True needs whole numbers")
    found = optimal_widths(law, budget, columns, constraints, integral)
    if not found.fits.any():
        raise ValueError(_nothing_fits(budget, columns[found.exists], constraints))
    shown = np.flatnonzero(found.fits)
    at = found.n_active[shown], found.tokens[shown], columns[shown]
    trusted = ~law.beyond_guard(*at)
    if not trusted.any():
        refuse_extrapolation(law.conditions, *at, force)
    draws = None if law.draws is None else law.loss_draws(*at)
    rates = learning_rate_law or LearningRateLaw.published()
    rows = _rows(law, found, shown, columns[shown], constraints, rates, trusted)
    for i, row in enumerate(rows):
        row["loss_interval"] = None if draws is None else percentile_interval(draws[:, i])
        shape = round(row["d_model"]), int(row["experts"])
        row["architecture"] = Architecture(*shape, vocab_size=constraints.vocab_size) if integral else None
    small = columns[shown][found.free[shown] < HEAD_DIM]
    return OptimalTable(
        tuple(OptimalRow(**row) for row in rows),
        budget,
        constraints,
        integral,
        experts_that_do_not_fit=tuple(columns[found.exists & ~found.fits].tolist()),
        law=law.conditions.provenance if law.conditions else "fitted law",
        experts_without_optimum={e: why_no_optimum(law, e) for e in columns[~found.exists].tolist()},
        forced=force,
        law_error=law.conditions.rmse if law.conditions else None,
        draw_losses=draws,
        notes=(*([] if _guarded(law) else [UNGUARDED]), *_smallest_width(small, constraints)),
    )


def _rows(
    law: ChinchillaForm,
    found: WidthOptimum,
    shown: NDArray[np.int64],
    e: FloatArray,
    constraints: Constraints,
    rates: LearningRateLaw,
    trusted: NDArray[np.bool_],
) -> list[dict[str, Any]]:
    """The fields of the rows `shown`, but for intervals and architectures."""
    d, n, tokens, free = found.d_model[shown], found.n_active[shown], found.tokens[shown], found.free[shown]
    vocab = constraints.vocab_size
    counted = np.asarray(rates.counted_parameters(d, vocab_size=vocab))
    columns = {
        "experts": e,
        "d_model": d,
        "n_active": n,
        "n_total": total_parameters(d, e, vocab_size=vocab),
        "tokens": tokens,
        "tokens_per_parameter": tokens / n,
        "weight_bytes": constraints.weight_bytes(d, e),
        "kv_cache_bytes": constraints.kv_bytes(d),
        "training_flops": training_flops(n, tokens),
        "inference_flops": inference_flops(n, constraints.inference_tokens),
        "loss": found.loss[shown],
        "learning_rate": rates.at(counted, e),
        "limited_by": np.where(found.truncated[shown], "memory", np.where(free < HEAD_DIM, "smallest", "compute")),
        "trusted": trusted,
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*(v.tolist() for v in columns.values()), strict=True)]
    for i, row in enumerate(rows):
        warnings = law.warnings(n[i], tokens[i], e[i]) if _guarded(law) else []  # else noted once, for the table
        warnings += rates.warnings_at(float(counted[i]), float(e[i]))
        row["warnings"] = tuple(dict.fromkeys(warnings))
    return rows


def _guarded(law: ChinchillaForm) -> bool:
    return law.conditions is not None and law.conditions.overall is not None


def _smallest_width(experts: FloatArray, constraints: Constraints) -> list[str]:
    """A note where the optimum is smaller than any model that is counted: often another vocabulary is meant."""
    smallest = format_count(float(active_parameters(HEAD_DIM, vocab_size=constraints.vocab_size)))
    note = (
        f"E = {_listed(experts)}: the compute optimum is smaller than d_model {HEAD_DIM} with a vocabulary of "
        f"{constraints.vocab_size:,} (N_act {smallest}), which is taken instead; vocab_size (--vocab-size) sets it"
    )
    return [note] if experts.size else []


def _nothing_fits(flops: float, experts: FloatArray, constraints: Constraints) -> str:
    """Why, with what would be needed."""
    e, vocab = float(experts.min()), constraints.vocab_size
    smallest = active_parameters(HEAD_DIM, vocab_size=vocab)
    if affordable_tokens(flops, smallest, constraints.inference_tokens) <= 0:
        needed = float(inference_flops(smallest, constraints.inference_tokens))
        return (
            f"nothing fits: inference_tokens={constraints.inference_tokens:g} alone cost at least "
            f"{format_flops(needed)} FLOPs, which leaves nothing of flops={flops:g} for training"
        )
    memory = float(constraints.weight_bytes(HEAD_DIM, e) + constraints.kv_bytes(HEAD_DIM))
    parameters = format_count(float(total_parameters(HEAD_DIM, e, vocab_size=vocab)))
    return (
        f"nothing fits: the smallest model (d_model {HEAD_DIM}, E = {e:g}) has {parameters} parameters and needs at "
        f"least {format_bytes(memory)} ({memory:.0f} bytes) with its KV cache"
    )


def _listed(experts: Any) -> str:
    return ", ".join(f"{e:g}" for e in experts)
