"""Tables and figure of docs/studies/granularity.md, from predictions and records; what was not measured is left open.

Losses are held out, in bits per byte; differences are of the loss, in percent, with standard errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hub.plain.tables import enumerated
from hub.plain.units import UNKNOWN, format_count
from scaling_law.figures import drawing
from studies.common import Part, fill, listed
from studies.crossing.figures import BITS
from studies.granularity import figures
from studies.granularity.contenders import ALL, CONTENDERS, TOKENS
from studies.granularity.measures import Measures, read_measures
from studies.granularity.prediction import Prediction, load

PREDICTION, RECORDS, FIGURE = "prediction.json", "runs.jsonl", "granularity.png"
WITHIN = 2.0  # standard errors


@dataclass(frozen=True)
class Page:
    """What the blocks are written from."""

    predictions: tuple[Prediction, ...]
    measures: Measures

    @cached_property
    def laws(self) -> list[str]:
        """Those that say something of a comparison, in the order of the shelf."""
        return [*dict.fromkeys(said.law for said in self.predictions if said.ratio or said.leverage)]

    def said(self, law: str, contender: str, tokens: float) -> Prediction:
        found = {(said.law, said.contender, said.tokens): said for said in self.predictions}
        return found[law, contender, tokens]


def read_page(folder: Path, crossing: Path) -> Page:
    """Of the predictions and records in a folder, and of the records of the crossing."""
    return Page(load(folder / PREDICTION), read_measures(folder / RECORDS, crossing))


def write_page(folder: Path, crossing: Path, page: Path) -> list[Path]:
    """Replace the blocks of the Markdown file `page` and draw its figure. ValueError if it lacks one of the blocks."""
    content = read_page(folder, crossing)
    written = fill(page, BLOCKS, content)
    drawn = figures.differences(content.measures, content.predictions)
    return [written, drawing.save(drawn, page.parent / "figures" / FIGURE)]


# ------------------------------------------------------------------ blocks


def short(page: Page) -> Iterator[Part]:
    """Each comparison at its longest D, in a line, and how many of them each law says right."""
    lines = []
    for difference in page.measures.differences:
        mean, error, name = difference.mean[-1], difference.error[-1], difference.contender.name
        way = "lower" if mean < 0 else "higher"
        sure = "" if abs(mean) > WITHIN * error else ", within its scatter"
        against = ALL[difference.contender.against]
        another = "" if against.model_type == difference.contender.model_type else ", another class,"
        lines.append(
            f"- **{name}**: {abs(mean):.1%} {way} loss than {against.name}{another} at "
            f"{format_count(difference.tokens[-1])} tokens ({_percent(mean, error)}{sure})."
        )
    judged = [row for row in verdicts(page) if isinstance(row, tuple)][1:]
    if told := listed(f"`{law}` {within}" for law, _, _, within, _ in judged if within != UNKNOWN):
        lines.append(f"- **Laws**, within {WITHIN:g} standard errors of what was measured: {told}.")
    yield "\n".join(lines) or "No comparison has been measured yet."


def contenders(page: Page) -> Iterator[Part]:
    yield "model", "class", "N_act", "N_total", "experts", "of them active", "shared", "width of each", "compared with"
    for c in ALL.values():
        a = c.architecture
        sizes = f"{a.n_active:,}", f"{a.n_total:,}", a.experts, a.experts_per_token, a.shared_experts, a.d_expert
        yield c.name, c.model_type or "switch_moe", *sizes, c.against or UNKNOWN


def predictions(page: Page) -> Iterator[Part]:
    yield "model", "compared with", *page.laws
    longest = TOKENS[-1]
    for c in CONTENDERS:
        yield c.name, c.against, *(_prediction(page.said(law, c.name, longest)) for law in page.laws)
    silent = {said.law for said in page.predictions} - {*page.laws}
    yield (
        f"Relative loss at {format_count(longest)} tokens; 95 % intervals where a law has draws. `ling` has no loss: "
        f"shown is how many times the compute the model compared with needs. –: the law cannot say, since it "
        f"{_reasons(page)}. Of no comparison at all: {listed(f'`{law}`' for law in sorted(silent))}."
    )


def _reasons(page: Page) -> str:
    """Why laws that say something cannot say the rest."""
    found = dict.fromkeys(said.why for said in page.predictions if said.law in page.laws and said.why)
    kinds = dict.fromkeys("ignores what differs" if why.startswith("ignores") else why for why in found)
    return enumerated([*kinds], "or")


def _prediction(said: Prediction) -> str:
    if said.leverage is not None:
        return f"{said.leverage:.2f}× compute"
    if said.ratio is None:
        return UNKNOWN
    interval = "" if said.low is None or said.high is None else f" ({said.low - 1:+.1%} to {said.high - 1:+.1%})"
    return f"{said.ratio - 1:+.1%}{interval}"


def measured(page: Page) -> Iterator[Part]:
    yield "model", "compared with", *map(format_count, TOKENS), "pairs of seeds"
    there = {difference.contender.name: difference for difference in page.measures.differences}
    for c in CONTENDERS:
        if (difference := there.get(c.name)) is None:
            yield c.name, c.against, *(UNKNOWN for _ in TOKENS), UNKNOWN
            continue
        shown = [UNKNOWN if (found := difference.at(t)) is None else _percent(*found) for t in TOKENS]
        yield c.name, c.against, *shown, listed(f"{n:g}" for n in difference.pairs)
    scatter = page.measures.scatter
    known = zip(scatter.tokens, scatter.deviation, scatter.freedom, strict=True)
    parts = listed(f"{d:.1%} at {format_count(t)} ({n:g} degrees of freedom)" for t, d, n in known if n)
    yield f"Scatter of a single pair: {parts}." if parts else "No pair of seeds has been repeated yet."


def verdicts(page: Page) -> Iterator[Part]:
    """Of each law, over all comparisons and D that were measured beyond their scatter."""
    yield "law", "asked", "right direction", f"within {WITHIN:g} standard errors", "predicted − measured, mean"
    for law in page.laws:
        pairs = []
        for difference in page.measures.differences:
            for t, mean, error in zip(difference.tokens, difference.mean, difference.error, strict=True):
                said = page.said(law, difference.contender.name, t)
                if said.ratio is not None or said.leverage is not None:
                    pairs.append((said, mean, error))
        if pairs:
            yield law, len(pairs), *_judged(pairs)
    yield "A direction counts where the measured difference is more than two standard errors from zero."


def _judged(pairs: list[tuple[Prediction, float, float]]) -> tuple[str, str, str]:
    clear = [(said, mean) for said, mean, error in pairs if abs(mean) > WITHIN * error]
    right = sum(_lower(said) == (mean < 0) for said, mean in clear)
    direction = f"{right} of {len(clear)}"
    known = [(said.ratio - 1.0 - mean, error) for said, mean, error in pairs if said.ratio is not None]
    if not known:
        return direction, UNKNOWN, UNKNOWN
    off, error = np.array(known).T
    within = int((abs(off) <= WITHIN * error).sum())
    return direction, f"{within} of {len(known)}", f"{off.mean():+.1%}"


def _lower(said: Prediction) -> bool:
    """Whether the law has the contender ahead."""
    return said.ratio < 1.0 if said.ratio is not None else (said.leverage or 0.0) > 1.0


def losses(page: Page) -> Iterator[Part]:
    yield "model", *(f"{format_count(t)} (seeds)" for t in TOKENS)
    for name, by_tokens in page.measures.losses.items():
        cells = [[*by_tokens.get(t, {}).values()] for t in TOKENS]
        yield name, *(f"{BITS * np.mean(cell):.3f} ({len(cell)})" if cell else UNKNOWN for cell in cells)


def rates(page: Page) -> Iterator[Part]:
    if not (grids := page.measures.grids):
        yield "No grid has been tried yet."
        return
    yield "model", "D", "loss at each rate (bits per byte)"
    for (name, tokens, _), tried in grids.items():
        yield name, format_count(tokens), listed(f"{rate:g}: {BITS * loss:.3f}" for rate, loss in tried.items())


def _percent(mean: float, error: float) -> str:
    return f"{mean:+.1%}" + ("" if np.isnan(error) else f" ± {error:.1%}")


BLOCKS: dict[str, Callable[[Page], Iterator[Part]]] = {
    "short": short,
    "contenders": contenders,
    "predictions": predictions,
    "measured": measured,
    "verdicts": verdicts,
    "losses": losses,
    "rates": rates,
}
