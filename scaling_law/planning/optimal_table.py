"""The answer to "which model for this budget?": one row per number of experts, and the best named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hub.plain.tables import Summarised, Table, as_text
from hub.plain.units import format_bytes, format_count
from scaling_law.size.architecture import Architecture

if TYPE_CHECKING:
    import pandas

    from scaling_law.planning.constraints import Constraints

FloatArray = NDArray[np.float64]
FIRST = ("d_model", "N_act", "tokens", "loss", "")  # what a narrow terminal shows above the rest


def percentile_interval(draws: FloatArray) -> tuple[float, float] | None:
    """95 % of the finite ones of these values, one for each draw; None if there is none."""
    finite = draws[np.isfinite(draws)]
    if not finite.size:
        return None
    low, high = np.quantile(finite, [0.025, 0.975])
    return float(low), float(high)


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
class OptimalTable(Summarised):
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
        ordered = sorted(self.compared, key=lambda row: row.loss)
        if len(ordered) < 2:
            return None
        best, runner_up = ordered[:2]
        intervals = {row.experts: self._interval_behind(row) for row in ordered[1:]}
        tied = [row.experts for row in ordered[1:] if self._as_good(row, intervals[row.experts])]
        return Comparison(
            best=best.experts,
            runner_up=runner_up.experts,
            difference=runner_up.loss - best.loss,
            interval=intervals[runner_up.experts],
            error=self.law_error,
            tied=(best.experts, *tied),
            win_shares=self._win_shares(),
        )

    def _as_good(self, row: OptimalRow, interval: tuple[float, float] | None) -> bool:
        if interval is not None:
            return interval[0] <= 0
        return self.law_error is not None and row.loss - self.best.loss < self.law_error

    def _draws_of(self, row: OptimalRow) -> FloatArray:
        assert self.draw_losses is not None
        return np.asarray(self.draw_losses[:, next(i for i, r in enumerate(self.rows) if r is row)])

    def _interval_behind(self, row: OptimalRow) -> tuple[float, float] | None:
        """95 % of the differences to the best row, each within one draw."""
        if self.draw_losses is None:
            return None
        return percentile_interval(self._draws_of(row) - self._draws_of(self.best))

    def _win_shares(self) -> dict[float, float]:
        if self.draw_losses is None:
            return {}
        losses = np.stack([self._draws_of(row) for row in self.compared], axis=1)
        losses = losses[np.isfinite(losses).all(axis=1)]
        wins = np.bincount(np.argmin(losses, axis=1), minlength=len(self.compared)) / max(len(losses), 1)
        return {row.experts: float(share) for row, share in zip(self.compared, wins, strict=True)}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about the best row, and about the comparison itself."""
        found = [*self.notes, *(f"best row: {warning}" for warning in self.best.warnings)]
        if self.comparison is not None and len(self.comparison.tied) > 1:
            found.append(str(self.comparison))
        untrusted = ", ".join(f"{row.experts:g}" for row in self.rows if not row.trusted)
        if untrusted:
            what = "compared anyway, do not act on it" if self.forced else "not compared"
            found.append(f"E = {untrusted} {what}: too far outside the fitted range")
        found += [f"E = {e:g} is left out: {reason}" for e, reason in self.experts_without_optimum.items()]
        if self.experts_that_do_not_fit:
            found.append(f"E = {', '.join(f'{e:g}' for e in self.experts_that_do_not_fit)} do not fit at any size")
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
        comparison = None
        if self.comparison is not None:
            comparison = asdict(self.comparison) | {"win_shares": {f"{e:g}": v for e, v in shares.items()}}
        return {
            "law": self.law,
            "flops": self.flops,
            "constraints": asdict(self.constraints),
            "integral": self.integral,
            "forced": self.forced,
            "rows": [row.to_dict() | {"win_share": shares.get(row.experts)} for row in self.rows],
            "best": self.best.to_dict(),
            "comparison": comparison,
            "experts_without_optimum": {f"{e:g}": reason for e, reason in self.experts_without_optimum.items()},
            "experts_that_do_not_fit": list(self.experts_that_do_not_fit),
            "warnings": list(self.warnings),
        }

    def to_dataframe(self) -> pandas.DataFrame:
        """One line per row: the fields of OptimalRow, `best`, and `win_share` where the law has draws (pandas)."""
        import pandas

        names = [f.name for f in fields(OptimalRow) if f.name != "architecture"]
        shares = self.comparison.win_shares if self.comparison else {}
        records: list[dict[str, Any]] = []
        for row in self.rows:
            records.append({name: getattr(row, name) for name in names} | {"best": row is self.best})
            if shares:
                records[-1]["win_share"] = shares.get(row.experts)
        return pandas.DataFrame(records)

    to_pandas = to_dataframe

    def summary(self) -> Table:
        """For rich to print."""
        styles = ["bold green" if row is self.best else ("" if row.trusted else "dim") for row in self.rows]
        cells = [self._cells(row) for row in self.rows]
        lines = {"title": self._headline(), "warnings": self.warnings}
        return Table.of(cells, keys=("E",), first=FIRST, styles=styles, **lines)

    def __str__(self) -> str:
        return as_text(self)

    def _headline(self) -> str:
        c, parts = self.constraints, [f"{self.flops:.3g} FLOPs"]
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
        cells = {
            "E": f"{row.experts:g}",
            "d_model": f"{row.d_model:.0f}",
            "N_act": format_count(row.n_active),
            "N_total": format_count(row.n_total),
            "tokens": format_count(row.tokens),
            "D/N": f"{row.tokens_per_parameter:.3g}",
            "weights": format_bytes(row.weight_bytes),
        }
        if self.constraints.kv_cache_tokens:
            cells["KV cache"] = format_bytes(row.kv_cache_bytes)
        cells["loss"] = f"{row.loss:.4f}"
        if self.draw_losses is not None:
            cells["95 %"] = "{:.4f}…{:.4f}".format(*row.loss_interval) if row.loss_interval else ""
        if self.comparison is not None:
            behind = row.loss - self.best.loss
            cells["behind"] = f"{behind:.4f}" if row in self.compared and row is not self.best else ""
            if self.comparison.win_shares:
                share = self.comparison.win_shares.get(row.experts)
                cells["wins"] = "" if share is None else f"{share:.0%}"
        cells |= {"peak LR": f"{row.learning_rate:.2e}", "limited by": row.limited_by}
        return cells | {"": self._mark(row)}

    def _mark(self, row: OptimalRow) -> str:
        if row is self.best:
            return "best"
        if not row.trusted:
            return "not trusted"
        return "tie" if self.comparison and row.experts in self.comparison.tied else ""
