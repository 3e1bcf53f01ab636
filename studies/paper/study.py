"""Every table of the paper beside ours: printed value, our value, difference, and whether they agree.

The recovered coefficients agree in 29 of 36 compute-optimal and 9 of 12 optimal-E cells; the rest is shown as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hub.base.tables import Table
from hub.base.units import format_count, format_flops, parse_count
from scaling_law import Architecture, JointLaw, LearningRateLaw
from scaling_law.size import ROWS

# Table "Example compute-optimal training configurations": FLOPs → (N_act, D) as printed, for E = 1, 2, 4, 8, 16, 32.
COMPUTE_OPTIMAL = {
    1e20: "1.7B 9.7B, 1.5B 11.4B, 1.2B 13.9B, 990M 17B, 810M 20.7B, 669M 24.9B",
    1e21: "5.7B 29.3B, 5B 33B, 4.4B 38B, 3.8B 44.3B, 3.3B 51.2B, 2.85B 58.4B",
    1e22: "18.8B 88.6B, 17.4B 96B, 15.8B 105.4B, 14.4B 115.8B, 13.2B 126.5B, 12.2B 136.9B",
}
# Table "Optimal E": FLOPs → GB → E (32 stands for the printed "≥ 32"); 16k tokens of KV cache, bfloat16.
OPTIMAL_EXPERTS: dict[float, dict[int, int]] = {
    1e21: {24: 16, 80: 32, 640: 32},
    1e22: {24: 4, 80: 16, 640: 32},
    1e23: {24: 1, 80: 8, 640: 32},
    1e24: {24: 1, 80: 1, 640: 16},
}
OPTIMAL_EXPERTS_KV_TOKENS = 16_384
# Table "The fitted coefficients … reduced to the Chinchilla scaling law", rounded to four decimals by the paper's
# macro: E → m, μ, n, ν, c.
CHINCHILLA = {
    1: "30.3640 -0.1817 53.9838 -0.1965 1.3637",
    2: "27.7982 -0.1780 66.8401 -0.2065 1.3637",
    4: "24.8462 -0.1731 87.7022 -0.2192 1.3637",
    8: "21.8330 -0.1676 119.9126 -0.2338 1.3637",
    16: "19.0159 -0.1617 167.5073 -0.2494 1.3637",
    32: "16.5424 -0.1557 234.6726 -0.2652 1.3637",
}
# Numbers in the text.
FAMILY = {2: (1408, "36%"), 4: (1152, "61%")}  # E → width, FLOPs per token saved against the dense d = 1664 (1.1B)
# A dense model of 1B on 10B tokens, matched in FLOPs (6 N D) and memory.
CAPTION_EXPERTS, CAPTION_PARAMETERS, CAPTION_FLOPS = 16, 1e9, 6e19
CAPTION = {"n_active": "155M", "tokens": "64B", "tokens_per_parameter": "414"}


@dataclass(frozen=True)
class Cell:
    """One number: what is printed (as text), our value, and whether ours rounds to the printed digits.

    `half_unit` is half a unit of the last printed digit (0 for whole choices, such as the best E).
    """

    row: str
    column: str
    printed: str
    printed_value: float
    value: float
    half_unit: float

    @classmethod
    def of(cls, row: str, column: str, printed: str, value: float, billions: int = 0) -> Cell:
        """Read a printed text; `billions`: the decimals that billions have at least (trailing zeros being cut)."""
        number, suffix = _parts(printed)
        decimals = max(len(number.partition(".")[2]), billions if suffix == "B" else 0)
        scale = parse_count("1" + suffix)
        return cls(row, column, printed, float(number) * scale, float(value), 0.5 * scale * 10.0**-decimals)

    @property
    def difference(self) -> float:
        return self.value - self.printed_value

    @property
    def relative(self) -> float:
        return self.difference / abs(self.printed_value) if self.printed_value else math.inf

    @property
    def agrees(self) -> bool:
        return abs(self.difference) <= self.half_unit * (1 + 1e-9)

    @property
    def ours(self) -> str:
        """Our value in the manner of the printed one, with a digit more."""
        if self.printed.startswith("≥") or self.printed.isdigit():
            return f"{self.value:g}" if self.value < 1e4 else format_count(self.value)
        if self.printed.endswith("%"):
            return f"{self.value:.1f}%"
        number, suffix = _parts(self.printed)
        return f"{self.value / parse_count('1' + suffix):.{len(number.partition('.')[2]) + 1}f}{suffix}"

    def shown(self) -> tuple[str, ...]:
        difference = f"{self.relative:+.2%}" if self.half_unit else f"{self.difference:+g}"
        return self.row, self.column, self.printed, self.ours, difference, "" if self.agrees else "differs"


def _parts(printed: str) -> tuple[str, str]:
    """(number, suffix) of a printed count."""
    number = printed.rstrip("kMBT")
    return number, printed[len(number) :]


@dataclass(frozen=True)
class PaperTable:
    """One of the paper's tables beside ours."""

    title: str
    cells: tuple[Cell, ...]
    note: str = ""

    @property
    def agreeing(self) -> int:
        return sum(cell.agrees for cell in self.cells)

    def render(self, only_differing: bool = False) -> Table:
        """A table for rich to print; `only_differing` leaves out the cells that agree."""
        cells = [cell for cell in self.cells if not (only_differing and cell.agrees)]
        title = f"{self.title}: {self.agreeing} of {len(self.cells)} agree to the printed digits"
        if not cells:
            return Table((), (), notes=[title])
        header = ("", "", "printed", "ours", "difference", "")
        styles, notes = ["" if cell.agrees else "yellow" for cell in cells], [self.note] if self.note else []
        return Table(header, [cell.shown() for cell in cells], title=title, styles=styles, notes=notes)


def all_tables(law: JointLaw) -> dict[str, PaperTable]:
    """Every table of the paper, and the numbers of its text that follow from the law or the sizes."""
    return {name: PaperTable(title, tuple(make(law)), note) for name, (title, make, note) in TABLES.items()}


def coefficients(law: JointLaw) -> Iterator[Cell]:
    for name, printed in JointLaw.published(rounded=True).coefficients.items():
        yield Cell.of("", name, str(printed), law.coefficients[name])


def chinchilla(law: JointLaw) -> Iterator[Cell]:
    for experts, row in CHINCHILLA.items():
        values = law.to_chinchilla(experts).coefficients.values()
        for name, printed, value in zip(("m", "μ", "n", "ν", "c"), row.split(), values, strict=True):
            yield Cell.of(f"E = {experts}", name, printed, value)


def compute_optimal(law: JointLaw) -> Iterator[Cell]:
    for flops, row in COMPUTE_OPTIMAL.items():
        best = law.compute_optimal(flops, [*CHINCHILLA], force=True)
        for i, (experts, pair) in enumerate(zip(CHINCHILLA, row.split(", "), strict=True)):
            where, (n_active, tokens) = f"{format_flops(flops)}, E = {experts}", pair.split()
            yield Cell.of(where, "N_act", n_active, best.n_active[i], billions=1)
            yield Cell.of(where, "D", tokens, best.tokens[i], billions=1)


def optimal_experts(law: JointLaw) -> Iterator[Cell]:
    for flops, row in OPTIMAL_EXPERTS.items():
        for gigabytes, experts in row.items():
            memory, cache = gigabytes * 1e9, OPTIMAL_EXPERTS_KV_TOKENS
            best = law.optimal(flops, memory=memory, kv_tokens=cache, force=True).best.experts
            printed = f"≥ {experts}" if experts == 32 else str(experts)
            yield Cell(format_flops(flops), f"{gigabytes} GB", printed, float(experts), best, 0.0)


def listing(law: JointLaw) -> Iterator[Cell]:
    for row in ROWS:
        where = f"d = {row.d_model}, {row.n_blocks} blocks, E = {row.experts}"
        yield Cell.of(where, "N_total", row.n_total, row.architecture.n_total)
        yield Cell.of(where, "N_act", row.n_active, row.architecture.n_active)


def learning_rates(law: JointLaw) -> Iterator[Cell]:
    code, text = (LearningRateLaw.published(reading) for reading in ("code", "paper"))
    for name in ("intercept", "slope_n", "slope_e"):
        yield Cell.of("", name, str(getattr(text, name)), getattr(code, name))


def text_numbers(law: JointLaw) -> Iterator[Cell]:
    for experts, (width, printed) in FAMILY.items():
        saved = 100 * (1 - Architecture(width, experts).n_active / Architecture(1664).n_active)
        yield Cell("1.1B family", f"FLOPs per token saved, E = {experts}", printed, float(printed[:-1]), saved, 0.5)
    row = law.optimal(CAPTION_FLOPS, [CAPTION_EXPERTS], max_parameters=CAPTION_PARAMETERS, force=True).best
    for name, printed in CAPTION.items():
        yield Cell.of("1B dense on 10B, matched at E = 16", name, printed, getattr(row, name))


TABLES: dict[str, tuple[str, Callable[[JointLaw], Iterator[Cell]], str]] = {
    "coefficients": (
        "Fitted coefficients of the joint law",
        coefficients,
        "E_start does not follow from the paper's per-E table, which implies 2.0830.",
    ),
    "chinchilla": ("Chinchilla coefficients for each E", chinchilla, ""),
    "compute_optimal": (
        "Compute-optimal configurations",
        compute_optimal,
        "Billions are read to one decimal, as most cells have it (17B is 17.0B). Beyond coarse rounding three cells "
        "stay off with the recovered coefficients: N(1e20, 8), D(1e20, 4), D(1e22, 1).",
    ),
    "optimal_experts": (
        "Optimal number of experts",
        optimal_experts,
        "The stated rule, 2·(N_total + 2·16384·n_blocks·d) ≤ GB·1e9 bytes, with E up to 32.",
    ),
    "listing": ("Sizes of the listed runs", listing, ""),
    "learning_rate": (
        "Learning-rate rule",
        learning_rates,
        "The text says N is active non-embedding; the code counted embedding, head and a 512·d table too.",
    ),
    "text": ("Numbers of the text", text_numbers, ""),
}
