"""The numbers, tables and figure of docs/studies/granularity.md, from predictions and records beside this file.

Losses are held out, in bits per byte; differences are of the loss, in percent, with standard errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hub.base.units import UNKNOWN, format_count
from studies.common import Part, listed, write_page
from studies.crossing.figures import BITS
from studies.crossing.records import gather
from studies.granularity import figures, prediction
from studies.granularity.contenders import ALL, CONTENDERS, TOKENS
from studies.granularity.measures import Measures, read_measures
from studies.granularity.prediction import Prediction

FOLDER = Path(__file__).parent
PREDICTION, RECORDS = FOLDER / "prediction.json", FOLDER / "runs.jsonl"
CROSSING = FOLDER.parent / "crossing" / "runs.jsonl"  # has our dense and top-1 models by AdamW
WITHIN = 2.0  # standard errors


@dataclass(frozen=True)
class Results:
    """What the blocks are written from."""

    predictions: tuple[Prediction, ...]
    measures: Measures

    @cached_property
    def laws(self) -> list[str]:
        """Those that say something of a comparison, in the order of the shelf."""
        return [*dict.fromkeys(said.law for said in self.predictions if said.ratio or said.leverage)]

    def said(self, law: str, contender: str, tokens: float) -> Prediction:
        every = {(said.law, said.contender, said.tokens): said for said in self.predictions}
        return every[law, contender, tokens]


def read() -> Results:
    return Results(prediction.load(PREDICTION), read_measures(RECORDS, CROSSING))


def write(page: Path) -> list[Path]:
    """Write the page with its figure; returns what was written."""
    return write_page(page, read(), BLOCKS, {}, FIGURES)


def take(runs: Sequence[Path]) -> list[Path]:
    """Collect the records of these files and folders."""
    return [gather(runs, RECORDS)]


def predict(asked: Sequence[str]) -> list[Path]:
    """Ask the laws, once."""
    return [prediction.write(PREDICTION)]


# ------------------------------------------------------------------ blocks


def contenders(r: Results) -> Iterator[Part]:
    yield "model", "class", "N_act", "N_total", "experts", "of them active", "shared", "width of each", "compared with"
    for c in ALL.values():
        a = c.architecture
        sizes = f"{a.n_active:,}", f"{a.n_total:,}", a.experts, a.experts_per_token, a.shared_experts, a.d_expert
        yield c.name, c.model_type or "switch_moe", *sizes, c.against or UNKNOWN


def predictions(r: Results) -> Iterator[Part]:
    yield "model", "compared with", *r.laws
    for c in CONTENDERS:
        yield c.name, c.against, *(_prediction(r.said(law, c.name, TOKENS[-1])) for law in r.laws)
    silent = {said.law for said in r.predictions} - {*r.laws}
    yield f"Of no comparison at all: {listed(f'`{law}`' for law in sorted(silent))}."


def _prediction(said: Prediction) -> str:
    if said.leverage is not None:
        return f"{said.leverage:.2f}× compute"
    if said.ratio is None:
        return UNKNOWN
    interval = "" if said.low is None or said.high is None else f" ({said.low - 1:+.1%} to {said.high - 1:+.1%})"
    return f"{said.ratio - 1:+.1%}{interval}"


def measured(r: Results) -> Iterator[Part]:
    yield "model", "compared with", *map(format_count, TOKENS), "pairs of seeds"
    for c in CONTENDERS:
        by_tokens = [*zip(*r.measures.differences[c.name], strict=True)]
        cells = (f"{mean:+.1%} ± {error:.1%}" if n else UNKNOWN for mean, error, n in by_tokens)
        yield c.name, c.against, *cells, listed(f"{n:g}" for *_, n in by_tokens if n)
    parts = zip(TOKENS, *r.measures.scatter, strict=True)
    told = listed(f"{d:.1%} at {format_count(t)} ({n:g} degrees of freedom)" for t, d, n in parts)
    yield f"Scatter of a single pair: {told}."


def verdicts(r: Results) -> Iterator[Part]:
    """Verdicts on each law, over all comparisons and D that were measured beyond their scatter."""
    yield "law", "asked", "right direction", f"within {WITHIN:g} standard errors", "predicted − measured, mean"
    for law in r.laws:
        pairs = [
            (said, mean, error)
            for name, (means, errors, _) in r.measures.differences.items()
            for t, mean, error in zip(TOKENS, means, errors, strict=True)
            if not np.isnan(mean) and ((said := r.said(law, name, t)).ratio or said.leverage)
        ]
        if pairs:
            yield law, len(pairs), *_judged(pairs)
    yield "A direction counts where the measured difference is more than two standard errors from zero."


def _judged(pairs: list[tuple[Prediction, float, float]]) -> tuple[str, str, str]:
    clear = [(said, mean) for said, mean, error in pairs if abs(mean) > WITHIN * error]
    right = sum(_lower(said) == (mean < 0) for said, mean in clear)
    direction = f"{right} of {len(clear)}"
    judged = [(said.ratio - 1.0 - mean, error) for said, mean, error in pairs if said.ratio is not None]
    if not judged:
        return direction, UNKNOWN, UNKNOWN
    off, error = np.array(judged).T
    within = int((abs(off) <= WITHIN * error).sum())
    return direction, f"{within} of {len(judged)}", f"{off.mean():+.1%}"


def _lower(said: Prediction) -> bool:
    """Whether the law has the contender ahead."""
    return said.ratio < 1.0 if said.ratio is not None else (said.leverage or 0.0) > 1.0


def losses(r: Results) -> Iterator[Part]:
    yield "model", *(f"{format_count(t)} (seeds)" for t in TOKENS)
    for name, by_seed in r.measures.losses.items():
        cells = [column[np.isfinite(column)] for column in by_seed.T]
        yield name, *(f"{BITS * cell.mean():.3f} ({len(cell)})" if len(cell) else UNKNOWN for cell in cells)


def rates(r: Results) -> Iterator[Part]:
    yield "model", "D", "loss at each rate (bits per byte)"
    for (name, tokens, _), tried in r.measures.grids.items():
        yield name, format_count(tokens), listed(f"{rate:g}: {BITS * loss:.3f}" for rate, loss in tried.items())


BLOCKS: dict[str, Callable[[Results], Iterator[Part]]] = {
    "contenders": contenders,
    "predictions": predictions,
    "measured": measured,
    "verdicts": verdicts,
    "losses": losses,
    "rates": rates,
}
FIGURES = {"granularity": lambda r: figures.differences(r.measures, r.predictions)}
