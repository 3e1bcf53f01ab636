"""The answer to "which model for this budget?": one row per number of experts, and the best named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from scaling_law.architecture import Architecture
from scaling_law.units import format_bytes, format_count

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, ConsoleOptions, RenderResult

    from scaling_law.optimum import Constraints


@dataclass(frozen=True)
class OptimalRow:
    """The best model with `experts` experts. Parameters, tokens, bytes, FLOPs, nats per token.

    `d_model` is fractional unless the table is integral, and then `architecture` exists. `limited_by` is "compute"
    where the compute optimum fits, else "memory". `trusted` is False where tokens per parameter are so far outside the
    fitted range that the row is not compared with others; `warnings` say how far outside each quantity is.
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
class OptimalTable:
    """Rows in the order asked for; prints as a table with rich, and as text with str()."""

    rows: tuple[OptimalRow, ...]
    flops: float
    constraints: Constraints
    integral: bool
    experts_that_do_not_fit: tuple[float, ...]
    law: str

    @property
    def best(self) -> OptimalRow:
        """The trusted row of lowest loss. If no row is trusted: the one with the fewest tokens per parameter."""
        trusted = [row for row in self.rows if row.trusted]
        if trusted:
            return min(trusted, key=lambda row: row.loss)
        return min(self.rows, key=lambda row: row.tokens_per_parameter)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about the best row, and about the comparison itself."""
        found = [f"best row: {warning}" for warning in self.best.warnings]
        untrusted = [f"{row.experts:g}" for row in self.rows if not row.trusted]
        if len(untrusted) == len(self.rows):
            found.append("no row is near the fitted range: the least extrapolated one is named, do not act on it")
        elif untrusted:
            found.append(f"E = {', '.join(untrusted)} not compared: tokens per parameter far outside the fitted range")
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
        """Plain JSON values: law, flops, constraints, rows, best, warnings."""
        head = {
            "law": self.law,
            "flops": self.flops,
            "constraints": asdict(self.constraints),
            "integral": self.integral,
        }
        return head | {
            "rows": [row.to_dict() for row in self.rows],
            "best": self.best.to_dict(),
            "warnings": list(self.warnings),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """One line per row, the fields of OptimalRow as columns, and `best`."""
        import pandas

        names = [f.name for f in fields(OptimalRow) if f.name != "architecture"]
        records = [{name: getattr(row, name) for name in names} | {"best": row is self.best} for row in self.rows]
        return pandas.DataFrame(records)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        best = self.best
        columns = [self._cells(row, row is best) for row in self.rows]
        # A narrow terminal gets fewer columns, not cut ones.
        dropped = ("weights", "limited by", "d_model", "KV cache", "peak LR") if options.max_width < 120 else ()
        room = options.max_width
        names = list(columns[0])
        for name in dropped:
            if sum(3 + max(len(n), *(len(c[n]) for c in columns)) for n in names) + 1 > room and name in names:
                names.remove(name)
        table = Table(title=self._headline(), title_justify="left", title_style="bold", header_style="bold")
        for name in names:
            table.add_column("" if name == "mark" else name, justify="right", no_wrap=True)
        for row, cells in zip(self.rows, columns, strict=True):
            style = "bold green" if row is best else ("" if row.trusted else "dim")
            table.add_row(*(cells[name] for name in names), style=style)
        yield table
        for warning in self.warnings:
            yield Text(f"⚠ {warning}", style="yellow")

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=160, color_system=None)
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip()

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

    def _cells(self, row: OptimalRow, best: bool) -> dict[str, str]:
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
        if row.loss_interval:
            cells["95 %"] = "{:.4f}…{:.4f}".format(*row.loss_interval)
        cells |= {"peak LR": f"{row.learning_rate:.2e}", "limited by": row.limited_by}
        cells["mark"] = "best" if best else ("" if row.trusted else "not trusted")
        return cells
