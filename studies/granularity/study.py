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
from studies.common import BITS_PER_NAT, FloatArray, Page, Part, gather, join, write_once
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
PREDICTION = FOLDER / "prediction.json"
FORMAT = "granularity_prediction"
RECORDS = FOLDER / "runs.jsonl"
# The crossing has our dense and top-1 models by AdamW.
CROSSING = FOLDER.parent / "crossing" / "runs.jsonl"
# So many standard errors make no difference.
WITHIN = 2.0
MUON = ("dense, Muon", "8, top-1, Muon")
PERCENT = 100.0
# Percent that are drawn; a law that says more is named in the corner.
MOST = 15.0
COLOURS = {
    "clark_sbase": "#0072B2",
    "clark_rl": "#D55E00",
    "clark_hash": "#009E73",
    "krajewski": "#CC79A7",
    "krajewski_e16": "#E69F00",
    "abnar": "#56B4E9",
    "ludziejewski": "#882255",
    "hunyuan": "#777777",
}


@dataclass(frozen=True)
class Results:
    """The predictions and measures that the blocks are written from."""

    predictions: Sequence[Prediction]
    measures: Measures

    @cached_property
    def laws(self) -> list[str]:
        """The laws that say something of a comparison, in the order of the shelf."""
        return [*dict.fromkeys(p.law for p in self.predictions if p.ratio or p.leverage)]

    def prediction(self, law: str, contender: str, tokens: float) -> Prediction:
        """Return what a law says of a comparison at one D."""
        return next(p for p in self.predictions if (p.law, p.contender, p.tokens) == (law, contender, tokens))

    def in_errors(self, contender: str) -> FloatArray:
        """Return the measured difference in standard errors, at each of `TOKENS`."""
        mean, error, _ = self.measures.differences[contender]
        return np.asarray(mean / error)

    @cached_property
    def predictions_of_measured(self) -> dict[str, list[tuple[Prediction, float, float]]]:
        """The predictions of each law for comparisons that were measured, with mean and standard error."""
        measured = [
            (name, tokens, mean, error)
            for name, (means, errors, _) in self.measures.differences.items()
            for tokens, mean, error in zip(TOKENS, means, errors, strict=True)
            if not np.isnan(mean)
        ]
        rows_of_laws = {}
        for law in self.laws:
            rows = []
            for name, tokens, mean, error in measured:
                prediction = self.prediction(law, name, tokens)
                if prediction.ratio or prediction.leverage:
                    rows.append((prediction, mean, error))
            if rows:
                rows_of_laws[law] = rows
        return rows_of_laws

    def count_within(self, law: str) -> tuple[int, int]:
        """Count the ratios of a law within `WITHIN` standard errors, and all ratios that it gave."""
        is_within = []
        for prediction, mean, error in self.predictions_of_measured[law]:
            if prediction.ratio:
                is_within.append(abs(prediction.ratio - 1.0 - mean) <= WITHIN * error)
        return sum(is_within), len(is_within)


def read() -> Results:
    """Read the predictions and the records."""
    rows = strict_json.read(PREDICTION, FORMAT, 1)["predictions"]
    return Results([Prediction(**fields) for fields in rows], read_measures(RECORDS, CROSSING))


def take(runs: Sequence[Path]) -> list[Path]:
    """Collect the records of these files and folders."""
    return [gather(runs, RECORDS)]


def predict(_: Sequence[str]) -> list[Path]:
    """Ask the laws and write what they say; raise FileExistsError if that is done."""
    rows = []
    for prediction in predictions():
        rows.append({name: value for name, value in asdict(prediction).items() if value not in (None, "")})
    return [write_once(PREDICTION, FORMAT, {"predictions": rows})]


# ------------------------------------------------------------------ blocks


def predicted(r: Results) -> Iterator[Part]:
    """List what each law predicts for each comparison."""
    yield "model", "compared with", *r.laws
    for c in CONTENDERS:
        yield c.name, c.against, *(_in_words(r.prediction(law, c.name, TOKENS[-1])) for law in r.laws)
    silent = {p.law for p in r.predictions} - {*r.laws}
    yield f"Laws without a prediction for any comparison: {join(f'`{law}`' for law in sorted(silent))}."


def _in_words(prediction: Prediction) -> str:
    if prediction.leverage is not None:
        return f"{prediction.leverage:.2f}× compute"
    if prediction.ratio is None:
        return UNKNOWN
    interval = ""
    if prediction.low is not None and prediction.high is not None:
        interval = f" ({prediction.low - 1:+.1%} to {prediction.high - 1:+.1%})"
    return f"{prediction.ratio - 1:+.1%}{interval}"


def measured(r: Results) -> Iterator[Part]:
    """List the difference measured in each comparison."""
    losses = f"{format_count(TOKENS[-1])}, bits per byte"
    yield "model", "compared with", *map(format_count, TOKENS), "pairs of seeds", losses
    for c in CONTENDERS:
        means, errors, n_pairs = r.measures.differences[c.name]
        cells = []
        for mean, error, count in zip(means, errors, n_pairs, strict=True):
            cells.append(f"{mean:+.1%} ± {error:.1%}" if count else UNKNOWN)
        pairs = join(f"{count:g}" for count in n_pairs if count)
        loss = BITS_PER_NAT * np.nanmean(r.measures.losses[c.name][:, -1])
        yield c.name, c.against, *cells, pairs, f"{loss:.3f}"
    scatter = []
    for tokens, deviation, freedom in zip(TOKENS, *r.measures.scatter, strict=True):
        scatter.append(f"{deviation:.1%} at {format_count(tokens)} ({freedom:g} degrees of freedom)")
    yield f"Scatter of a single pair: {join(scatter)}."


def verdicts(r: Results) -> Iterator[Part]:
    """Judge each law over all comparisons and D that were measured beyond their scatter."""
    yield "law", "asked", "right direction", f"within {WITHIN:g} standard errors", "predicted − measured, mean"
    for law, rows in r.predictions_of_measured.items():
        clear = [(prediction, mean) for prediction, mean, error in rows if abs(mean) > WITHIN * error]
        n_right = sum(prediction.is_ahead == (mean < 0) for prediction, mean in clear)
        errors = [prediction.ratio - 1.0 - mean for prediction, mean, _ in rows if prediction.ratio]
        within = UNKNOWN
        mean_error = UNKNOWN
        if errors:
            within = "{} of {}".format(*r.count_within(law))
            mean_error = f"{np.mean(errors):+.1%}"
        yield law, len(rows), f"{n_right} of {len(clear)}", within, mean_error
    yield "A direction counts where the measured difference is more than two standard errors from zero."


def granularity(r: Results) -> Any:
    """Draw what dense models lose and finest experts gain by D: measured with standard errors, and as laws say."""
    axes = drawing.panels_or_new(None, 2, 9.6, 4.6, sharey=True)
    for ax, name in zip(axes, (DENSE, EIGHTHS), strict=True):
        ax.axhline(0.0, color="0.4", linewidth=0.9)
        texts = [_draw(ax, law, name, r.predictions) for law in COLOURS]
        corner_text = "\n".join(filter(None, texts))
        ax.text(0.97, 0.97, corner_text, transform=ax.transAxes, ha="right", va="top", fontsize=8, color="0.3")
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
    """Draw what a law says with its interval; return it in words where that is beyond the axis, "" otherwise."""
    rows = []
    tokens_of_rows = []
    for p in predictions:
        if (p.law, p.contender) == (law, contender) and p.ratio is not None:
            rows.append((p.ratio, p.low or p.ratio, p.high or p.ratio))
            tokens_of_rows.append(p.tokens)
    if not rows:
        return ""
    ratio, low, high = np.array(rows, float).T
    tokens = np.array(tokens_of_rows)
    values = PERCENT * (ratio - 1.0)
    if abs(values[-1]) > MOST:
        return f"{law}: {values[-1]:+.0f} %"
    variables = ALL[contender].architecture.variables()
    model = {name: variables[name] for name in published(law).variables if name != "tokens"}
    inside = published(law).check(**model, tokens=tokens).inside
    drawing.draw_curve(ax, tokens, values, inside, 1, color=COLOURS[law], label="_")
    ax.fill_between(tokens, PERCENT * (low - 1.0), PERCENT * (high - 1.0), color=COLOURS[law], alpha=0.15, linewidth=0)
    return ""


def is_joint_law_alone(r: Results) -> bool:
    """Return whether the joint law is the only one that has dense models ahead."""
    laws_with_dense_ahead = set()
    for law in r.laws:
        ratio = r.prediction(law, DENSE, TOKENS[-1]).ratio
        if ratio and ratio < 1:
            laws_with_dense_ahead.add(law)
    return laws_with_dense_ahead == {"ludziejewski"}


def muon_gains_most_early(r: Results) -> bool:
    """Return whether Muon lowers the loss, the more the shorter the run."""
    for name in MUON:
        mean, _, _ = r.measures.differences[name]
        if not mean[0] < mean[-1] < 0:
            return False
    return True


# Verdicts at the shortest and the longest D.
CLAIMS = {
    "eighths gain": lambda r: r.in_errors(EIGHTHS)[[0, -1]].max() < -WITHIN,
    "halves do not at the longest D": lambda r: r.in_errors(HALVES)[-1] >= -WITHIN,
    "a shared expert makes no difference": lambda r: abs(r.in_errors(ONE_SHARED)[[0, -1]]).max() < WITHIN,
    "dense models are level at the shortest D and worse at the longest": lambda r: (
        abs(r.in_errors(DENSE)[0]) < WITHIN < r.in_errors(DENSE)[-1]
    ),
    "Muon lowers the loss, the more the shorter the run": muon_gains_most_early,
    "of all laws the joint one alone has dense models ahead": is_joint_law_alone,
    "Krajewski et al. at E = 16 are right wherever they can say": lambda r: (
        len({*r.count_within("krajewski_e16")}) == 1
    ),
}
PAGE = Page(read, blocks=(predicted, measured, verdicts), figures=(granularity,), claims=CLAIMS)
