"""The tables, verdicts and figure of docs/studies/granularity.md, from predictions and records beside this file.

Losses are held out, in bits per byte; differences are of the loss, in percent, with standard errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hub.base import strict_json
from hub.base.units import UNKNOWN, format_count
from scaling_law import published
from scaling_law.figures import drawing
from studies.common import BITS, FloatArray, Page, Part, gather, listed, write_once
from studies.granularity.models import (
    ALL,
    CONTENDERS,
    DENSE,
    EIGHTHS,
    HALVES,
    ONE_SHARED,
    TOKENS,
    Measures,
    Prediction,
    predictions,
    read_measures,
)

FOLDER = Path(__file__).parent
PREDICTION, FORMAT, RECORDS = FOLDER / "prediction.json", "granularity_prediction", FOLDER / "runs.jsonl"
CROSSING = FOLDER.parent / "crossing" / "runs.jsonl"  # has our dense and top-1 models by AdamW
WITHIN = 2.0  # standard errors
MUON = ("dense, Muon", "8, top-1, Muon")
PERCENT, MOST = 100.0, 15.0  # percent that are drawn; a law that says more is named in the corner
COLOURS = {
    **{"clark_sbase": "#0072B2", "clark_rl": "#D55E00", "clark_hash": "#009E73", "krajewski": "#CC79A7"},
    **{"krajewski_e16": "#E69F00", "abnar": "#56B4E9", "ludziejewski": "#882255", "hunyuan": "#777777"},
}


@dataclass(frozen=True)
class Results:
    """What the blocks are written from."""

    predictions: Sequence[Prediction]
    measures: Measures

    @cached_property
    def laws(self) -> list[str]:
        """Those that say something of a comparison, in the order of the shelf."""
        return [*dict.fromkeys(said.law for said in self.predictions if said.ratio or said.leverage)]

    def said(self, law: str, contender: str, tokens: float) -> Prediction:
        return next(p for p in self.predictions if (p.law, p.contender, p.tokens) == (law, contender, tokens))

    def sure(self, contender: str) -> FloatArray:
        """The measured difference in standard errors, at each of `TOKENS`."""
        mean, error, _ = self.measures.differences[contender]
        return np.asarray(mean / error)

    @cached_property
    def judged(self) -> dict[str, list[tuple[Prediction, float, float]]]:
        """What each law said of comparisons that were measured, with mean and standard error."""
        measured = [
            (name, t, mean, error)
            for name, (means, errors, _) in self.measures.differences.items()
            for t, mean, error in zip(TOKENS, means, errors, strict=True)
            if not np.isnan(mean)
        ]
        every = {law: [(self.said(law, name, t), *m) for name, t, *m in measured] for law in self.laws}
        asked = {law: [row for row in rows if row[0].ratio or row[0].leverage] for law, rows in every.items()}
        return {law: rows for law, rows in asked.items() if rows}

    def within(self, law: str) -> tuple[int, int]:
        """How many of the ratios that the law gave lie within `WITHIN` standard errors, and how many it gave."""
        ratios = [(said.ratio - 1.0 - mean, error) for said, mean, error in self.judged[law] if said.ratio]
        return sum(abs(off) <= WITHIN * error for off, error in ratios), len(ratios)


def read() -> Results:
    rows = strict_json.read(PREDICTION, FORMAT, 1)["predictions"]
    return Results([Prediction(**fields) for fields in rows], read_measures(RECORDS, CROSSING))


def take(runs: Sequence[Path]) -> list[Path]:
    """Collect the records of these files and folders."""
    return [gather(runs, RECORDS)]


def predict(asked: Sequence[str]) -> list[Path]:
    """Ask the laws and write what they say; FileExistsError if that is done."""
    said = [{k: v for k, v in asdict(one).items() if v not in (None, "")} for one in predictions()]
    return [write_once(PREDICTION, FORMAT, {"predictions": said})]


# ------------------------------------------------------------------ blocks


def predicted(r: Results) -> Iterator[Part]:
    yield "model", "compared with", *r.laws
    for c in CONTENDERS:
        yield c.name, c.against, *(_in_words(r.said(law, c.name, TOKENS[-1])) for law in r.laws)
    silent = {said.law for said in r.predictions} - {*r.laws}
    yield f"Of no comparison at all: {listed(f'`{law}`' for law in sorted(silent))}."


def _in_words(said: Prediction) -> str:
    if said.leverage is not None:
        return f"{said.leverage:.2f}× compute"
    if said.ratio is None:
        return UNKNOWN
    interval = "" if said.low is None or said.high is None else f" ({said.low - 1:+.1%} to {said.high - 1:+.1%})"
    return f"{said.ratio - 1:+.1%}{interval}"


def measured(r: Results) -> Iterator[Part]:
    losses = f"{format_count(TOKENS[-1])}, bits per byte"
    yield "model", "compared with", *map(format_count, TOKENS), "pairs of seeds", losses
    for c in CONTENDERS:
        by_tokens = [*zip(*r.measures.differences[c.name], strict=True)]
        cells = (f"{mean:+.1%} ± {error:.1%}" if n else UNKNOWN for mean, error, n in by_tokens)
        loss = f"{BITS * np.nanmean(r.measures.losses[c.name][:, -1]):.3f}"
        yield c.name, c.against, *cells, listed(f"{n:g}" for *_, n in by_tokens if n), loss
    parts = zip(TOKENS, *r.measures.scatter, strict=True)
    told = listed(f"{d:.1%} at {format_count(t)} ({n:g} degrees of freedom)" for t, d, n in parts)
    yield f"Scatter of a single pair: {told}."


def verdicts(r: Results) -> Iterator[Part]:
    """Verdicts on each law, over all comparisons and D that were measured beyond their scatter."""
    yield "law", "asked", "right direction", f"within {WITHIN:g} standard errors", "predicted − measured, mean"
    for law, rows in r.judged.items():
        clear = [(said, mean) for said, mean, error in rows if abs(mean) > WITHIN * error]
        right = f"{sum(said.is_ahead == (mean < 0) for said, mean in clear)} of {len(clear)}"
        off = [said.ratio - 1.0 - mean for said, mean, _ in rows if said.ratio]
        judged = ("{} of {}".format(*r.within(law)), f"{np.mean(off):+.1%}") if off else (UNKNOWN, UNKNOWN)
        yield law, len(rows), right, *judged
    yield "A direction counts where the measured difference is more than two standard errors from zero."


def granularity(r: Results) -> Any:
    """What dense models lose and what finest experts gain by D: measured with standard errors, and as laws say."""
    axes = drawing.panels_or_new(None, 2, 9.6, 4.6, sharey=True)
    for ax, name in zip(axes, (DENSE, EIGHTHS), strict=True):
        ax.axhline(0.0, color="0.4", linewidth=0.9)
        beyond = [text for law in COLOURS if (text := _draw(ax, law, name, r.predictions))]
        ax.text(0.97, 0.97, "\n".join(beyond), transform=ax.transAxes, ha="right", va="top", fontsize=8, color="0.3")
        mean, error, _ = PERCENT * r.measures.differences[name]
        ax.errorbar(TOKENS, mean, error, fmt="o", color="k", markersize=5, capsize=3, zorder=3, label="measured")
        ax.set_title(f"{name}, against {ALL[name].against}", fontsize=10)
        ax.set(xlim=(TOKENS[0] / 1.3, TOKENS[-1] * 1.3), ylim=(-MOST, MOST))
        drawing.log_axis(ax, "training bytes D")
    axes[0].set_ylabel("loss, relative (%)")
    for law, colour in COLOURS.items():
        axes[0].plot([], [], color=colour, label=law)
    drawing.shared_legend(axes[0])
    return axes


def _draw(ax: Any, law: str, contender: str, predictions: Sequence[Prediction]) -> str:
    """Draw what a law says with its interval; in words where that is beyond the axis, "" otherwise."""
    said = [p for p in predictions if (p.law, p.contender) == (law, contender) and p.ratio is not None]
    if not said:
        return ""
    ratio, low, high = np.array([(p.ratio, p.low or p.ratio, p.high or p.ratio) for p in said], float).T
    tokens, values = np.array([p.tokens for p in said]), PERCENT * (ratio - 1.0)
    if abs(values[-1]) > MOST:
        return f"{law}: {values[-1]:+.0f} %"
    variables = ALL[contender].architecture.variables()
    model = {name: variables[name] for name in published(law).variables if name != "tokens"}
    inside = published(law).check(**model, tokens=tokens).inside
    drawing.draw_curve(ax, tokens, values, inside, 1, color=COLOURS[law], label="_")
    ax.fill_between(tokens, PERCENT * (low - 1.0), PERCENT * (high - 1.0), color=COLOURS[law], alpha=0.15, linewidth=0)
    return ""


def joint_law_alone(r: Results) -> bool:
    said = {law: r.said(law, DENSE, TOKENS[-1]).ratio for law in r.laws}
    return {law for law, ratio in said.items() if ratio and ratio < 1} == {"ludziejewski"}


CLAIMS = {  # at the shortest and the longest D
    "eighths gain": lambda r: r.sure(EIGHTHS)[[0, -1]].max() < -WITHIN,
    "halves do not at the longest D": lambda r: r.sure(HALVES)[-1] >= -WITHIN,
    "a shared expert makes no difference": lambda r: abs(r.sure(ONE_SHARED)[[0, -1]]).max() < WITHIN,
    "dense models are level at the shortest D and worse at the longest": lambda r: (
        abs(r.sure(DENSE)[0]) < WITHIN < r.sure(DENSE)[-1]
    ),
    "Muon lowers the loss, the more the shorter the run": lambda r: all(
        means[0] < means[-1] < 0 for means in (r.measures.differences[name][0] for name in MUON)
    ),
    "of all laws the joint one alone has dense models ahead": joint_law_alone,
    "Krajewski et al. at E = 16 are right wherever they can say": lambda r: len({*r.within("krajewski_e16")}) == 1,
}
PAGE = Page(read, blocks=(predicted, measured, verdicts), figures=(granularity,), claims=CLAIMS)
