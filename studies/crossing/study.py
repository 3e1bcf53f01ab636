"""The numbers, tables and figures of docs/studies/crossing.md, from the records beside this file.

Losses are in bits per byte, errors of laws in nats per byte, D in bytes, which are the tokens of these models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hub.base.units import UNKNOWN, format_count
from scaling_law.figures import drawing
from studies.common import Part, fill, listed, rms, write_tables
from studies.crossing import figures, prediction
from studies.crossing.cells import Cells, Gap
from studies.crossing.figures import BITS
from studies.crossing.laws import (
    BEYOND,
    FITTED,
    FREE,
    KEPT,
    MAIN,
    PRIOR,
    PUBLISHED,
    SCALES,
    SIGNS,
    Results,
    Value,
    published,
)
from studies.crossing.records import VOCABULARY, gather, read_sweep

FOLDER = Path(__file__).parent
RECORDS, PREDICTION = FOLDER / "runs.jsonl", FOLDER / "prediction.json"
BYTES_PER_TOKEN = 46_086_265 / 10_093_780  # all of the text, cut by GPT-2's tokenizer: the published law's unit of D
RMSE, HELD_OUT = 0.008, 0.02  # goals, nats per byte

# ------------------------------------------------------------------ words


def tokens_in_words(value: float | None, between: tuple[float, float]) -> str:
    """A count, or that it lies below (0) or above (None, infinite) the D of `between`."""
    if value is None or value == np.inf:
        return f"above {format_count(between[1])}"
    return f"below {format_count(between[0])}" if value == 0 else format_count(float(f"{value:.3g}"))


def interval_in_words(values: Sequence[float | None], between: tuple[float, float]) -> str:
    value, low, high = (tokens_in_words(v, between) for v in values)
    return f"{value} ({low} to {high})"


def measured_in_words(gap: Gap) -> str:
    return interval_in_words((gap.crossing, *gap.interval), (gap.tokens[0], gap.tokens[-1]))


def times(value: Value, unit: float = 1.0) -> str:
    """A factor with its interval."""
    return "{:g} ({:g} to {:g})".format(*(float(f"{unit * v:.2g}") for v in value))


def span(gaps: Sequence[Gap]) -> str:
    """The earliest and the latest crossing."""
    ordered = sorted(gaps, key=lambda gap: gap.crossing)
    ends = (tokens_in_words(g.crossing, (g.tokens[0], g.tokens[-1])) for g in (ordered[0], ordered[-1]))
    return " to ".join(dict.fromkeys(ends))


# ------------------------------------------------------------------ blocks


def short(r: Results) -> Iterator[Part]:
    """The result in a few lines."""
    yield "\n".join(f"- {line}" for line in (*_crossings_in_short(r), *_laws_in_short(r)))


def _crossings_in_short(r: Results) -> Iterator[str]:
    main, law, sizes = r.of(MAIN), published(), {gap.n_active for gap in r.gaps}
    late = {e: r.lateness(law, e) for e in r.experts}
    predicted = np.sort(r.asked(law, [gap.n_active for gap in main], MAIN))
    said = " to ".join(tokens_in_words(predicted[k], r.between) for k in (0, -1))
    yield (
        f"**With E = {MAIN}, an MoE overtakes the dense model at {span(main)} bytes**, for N_act of "
        f"{format_count(min(sizes))} to {format_count(max(sizes))}. Taking a byte as a token, the published law puts "
        f"the crossover at {said}: predicted / measured is {times(late[MAIN])}. In its own unit, GPT-2 tokens of "
        f"{BYTES_PER_TOKEN:.2f} bytes, it is {times(late[MAIN], BYTES_PER_TOKEN)}."
    )
    each = (f"{times(v)} at E = {e} (crossover at {span(r.of(e))} bytes)" for e, v in late.items() if e != MAIN)
    agree = listed(f"E = {e}" for e, (_, low, high) in late.items() if low <= 1 <= high) or "none"
    yield (
        f"**Other E have fewer seeds.** Taking a byte as a token, predicted / measured is {listed(each)}. Not "
        f"contradicting the law: {agree}."
    )
    measured, trend, p = r.trend()
    yield (
        f"**The trend in E** {'is not' if p < 0.05 else 'may be'} the law's. The crossover at E = 2 over that at E = "
        f"{MAIN} is {times(measured)} measured and {trend:.2f} predicted (p = {p:.2g})."
    )


def _laws_in_short(r: Results) -> Iterator[str]:
    gaps, off, n = r.gap_errors
    like = "Sizes of gaps and losses are not the law's" if off > gaps else "Sizes of gaps are the law's"
    smallest = published().loss(r.cells.n_active.min(), r.cells.tokens.min(), 1)
    yield (
        f"**{like}.** Taking a byte as a token, its gaps to dense models miss the measured ones by {off:.2f} nats "
        f"(RMSE, {n} cells) where these are {gaps:.2f} (RMS). It predicts {smallest:.1f} nats for the smallest dense "
        f"model and D; uniform guessing gives {np.log(VOCABULARY):.1f}."
    )
    by_e = {e: r.errors[r.cells.experts == e].mean() for e in np.unique(r.cells.experts)}
    errors = listed(f"{error:+.3f} at E = {e:g}" for e, error in by_e.items() if e > 1)
    yield (
        f"**Fitted to the sweep**, the joint law has an RMSE of {rms(r.errors):.4f} nats on {len(r.errors)} cells; "
        f"seeds alone leave {rms(r.cells['standard_error']):.4f}. Its mean error is {errors}."
    )
    left_out, late = r.left_out, r.lateness(r.moved.law, MAIN)
    chosen = "as well as" if left_out[PRIOR] < 1.1 * left_out[FITTED] else "worse than"
    longest = {name: test.rmse for name, test in r.held_out["longest runs"].laws.items()}
    yield (
        "**With the published law as a prior** and nothing held, a fit forecasts models that it has not seen "
        f"{chosen} that fit, whose free coefficients were chosen by hand: {left_out[PRIOR]:.3f} and "
        f"{left_out[FITTED]:.3f} nats (RMSE on the cells of each model left out; {left_out[SCALES]:.3f} with a, b and "
        f"c alone refitted). Its crossovers at E = {MAIN} are {times(late)} of those measured. Longer runs than those "
        "fitted it misses by "
        f"{longest[PRIOR]:.3f}, the other by {longest[FITTED]:.3f}."
    )
    met = [goal[3] for goal in _goals(r)]
    yield f"**Goals** set before the sweep: {met.count('met')} met, {met.count('missed')} missed."


def runs_that_count(r: Results) -> Iterator[Part]:
    runs = r.sweep.counted
    yield "d_model", "N_act", "part of embeddings", "E", "D", "most seeds", "runs"
    for d in np.unique(runs["d_model"]):
        size = runs.subset(runs["d_model"] == d)
        experts, tokens = (listed(map(format_count, np.unique(values))) for values in (size.experts, size.tokens))
        seeds = [len(np.unique(size["seed"][size.tokens == t])) for t in np.unique(size.tokens)]
        share = f"{2 * VOCABULARY * d / size.n_active[0]:.0%}"
        yield f"{d:g}", format_count(size.n_active[0]), share, experts, tokens, listed(seeds), len(size)
    others = listed(f"{count} {reason}" for reason, count in r.sweep.left_out.items()) or "none"
    yield f"{len(runs)} runs of {runs.n_trunks} trunks count; others do not: {others}."


def crossings(r: Results) -> Iterator[Part]:
    ratios = *(f"{name} / measured" for name in r.laws), "published law / measured, GPT-2 tokens"
    yield "E", "crossing (bytes)", "bracketed", "most seeds of each size", *ratios
    for e in r.experts:
        gaps = r.of(e)
        factors = [r.lateness(law, e) for law in r.laws.values()]
        bracketed = f"{sum(g.bracketed for g in gaps)} of {len(gaps)}"
        seeds = listed(f"{g.seeds[:, 0].max():g}" for g in gaps)
        yield e, span(gaps), bracketed, seeds, *map(times, factors), times(factors[0], BYTES_PER_TOKEN)
    single = sum(gap.seeds[:, 0].max() == 1 for gap in r.gaps)
    yield (
        "Crossing: the earliest and the latest of the sizes. Factors are geometric means over sizes with 95 % "
        f"intervals; a crossing outside the D measured counts as a factor of {BEYOND:g} outside. The last column is "
        f"the published law's factor if its D counts GPT-2 tokens. {single} of {len(r.gaps)} crossings rest on one "
        f"seed of the MoE. [All {len(r.gaps)} crossings](tables/crossing.csv)."
    )


def crossing_table(r: Results) -> Iterator[tuple[object, ...]]:
    yield "experts", "d_model", "n_active", "seeds_moe", "seeds_dense", "bytes", "bytes_low", "bytes_high", *r.laws
    for g in r.gaps:
        seeds = (" ".join(f"{n:g}" for n in column) for column in g.seeds.T)
        said = (float(r.asked(law, g.n_active, g.experts)) for law in r.laws.values())
        yield g.experts, g.d_model, f"{g.n_active:g}", *seeds, *(f"{v:.3g}" for v in (g.crossing, *g.interval, *said))


def goals(r: Results) -> Iterator[Part]:
    yield "goal", "wanted", "found", ""
    yield from _goals(r)
    by_d = {t: rms(r.errors[r.cells.tokens == t]) for t in np.unique(r.cells.tokens)}
    yield f"RMSE by D: {listed(f'{format_count(t)} {error:.4f}' for t, error in by_d.items())}."


def _goals(r: Results) -> Iterator[tuple[str, str, str, str]]:
    def verdict(met: bool) -> str:
        return "met" if met else "missed"

    rmse, seeds = rms(r.errors), _scatter_of_all(r)
    yield "RMSE of the joint law on the cells", f"< {RMSE} nats", f"{rmse:.4f}", verdict(rmse < RMSE)
    against = f"{rmse:.4f} against 2 × {seeds:.4f}"
    yield "the same, against seeds", "< 2 × their scatter", against, verdict(rmse < 2 * seeds)
    for what, test in r.held_out.items():
        error = test.laws[FITTED].rmse
        measured = f"{error:.4f} on {len(test.test)} cells"
        yield f"RMSE on the {what}, held out", f"< {HELD_OUT} nats", measured, verdict(error < HELD_OUT)
    sure = [name for name in FREE if np.prod(np.sign(r.drawn.interval(name))) > 0]
    signs = f"{len(sure)} of {len(SIGNS)}: {listed(sure)}; kept as published: {listed(n for n in SIGNS if n in KEPT)}"
    yield f"signs of {listed(SIGNS)}", "all determined", signs, verdict(len(sure) == len(SIGNS))
    for model, gap, between in _predicted(r):
        name = f"crossing of d_model {model['d_model']}, E = {model['experts']}, predicted before training"
        wanted, inside = interval_in_words(model["interval"], between), prediction.holds(model, gap)
        yield name, wanted, measured_in_words(gap), verdict(inside)


def _scatter_of_all(r: Results) -> float:
    """Standard deviation of a single run, pooled over kinds and D."""
    kinds = Cells.of(r.sweep.runs).scatter.values()
    squares, freedom = (np.concatenate(v) for v in zip(*((np.diag(c) * f, f) for c, f in kinds), strict=True))
    return float(np.sqrt(squares.sum() / freedom.sum()))


def _predicted(r: Results) -> list[tuple[dict[str, Any], Gap, tuple[float, float]]]:
    """Each model predicted, beside its measured gap, and the D searched."""
    record, measured = prediction.load(PREDICTION), {(gap.d_model, gap.experts): gap for gap in r.all_gaps}
    return [(m, measured[m["d_model"], m["experts"]], tuple(record["between"])) for m in record["models"]]


def predictions(r: Results) -> Iterator[Part]:
    yield "d_model", "E", "N_act", f"{FITTED} (95 %)", PUBLISHED, "measured (95 %)", "seeds of E"
    undecided = []
    for model, gap, between in _predicted(r):
        said, (_, low, high) = model["others"][PUBLISHED], model["interval"]
        texts = interval_in_words(model["interval"], between), tokens_in_words(said, between), measured_in_words(gap)
        yield gap.d_model, gap.experts, format_count(gap.n_active), *texts, listed(f"{n:g}" for n in gap.seeds[:, 0])
        undecided.append(
            f"at E = {gap.experts} the interval spans a factor of {high / low:.0f} and "
            f"{'contains' if low <= said <= high else 'excludes'} the published law's {tokens_in_words(said, between)}"
        )
    file = prediction.load(PREDICTION)
    yield (
        f"Made from {file['runs']} runs, those of a `runs.jsonl` of sha256 {file['sha256'][:12]}…, before any run of "
        f"these sizes and E. What they could decide: {'; '.join(undecided)}."
    )


def coefficients(r: Results) -> Iterator[Part]:
    yield "coefficient", "fitted", "95 % (trunks resampled)", "with the prior", "published"
    for name, value in r.fitted.law.coefficients.items():
        interval = "kept" if name in KEPT else "{:.4g} to {:.4g}".format(*r.drawn.interval(name))
        others = (f"{law.coefficients[name]:.4g}" for law in (r.moved.law, published()))
        yield name, f"{value:.4g}", interval, *others
    converged = "converged" if r.fitted.status.converged else "NOT converged"
    yield f"Fitted to {len(r.sweep.runs)} runs, from the optimum on their cells: {converged}."


def scatter(r: Results) -> Iterator[Part]:
    cells = Cells.of(r.sweep.runs)
    (dense, n), (routed, m) = cells.scatter[False], cells.scatter[True]
    yield "D", "dense (nats per byte)", "degrees of freedom", "with experts", "degrees of freedom"
    for k, t in enumerate(cells.tokens):
        texts = [f"{np.sqrt(c[k, k]):.4f}" if f[k] else UNKNOWN for c, f in ((dense, n), (routed, m))]
        yield format_count(t), texts[0], f"{n[k]:g}", texts[1], f"{m[k]:g}"
    from scipy.stats import f as fisher

    ratio = routed[0, 0] / dense[0, 0]
    p = 2 * min(fisher.sf(ratio, m[0], n[0]), fisher.cdf(ratio, m[0], n[0]))
    at, factor = format_count(cells.tokens[0]), np.sqrt(ratio)
    yield f"At {at} the two differ by a factor of {factor:.1f} (F test, two-sided p = {p:.1g})."


def loss_table(r: Results) -> Iterator[tuple[object, ...]]:
    yield "d_model", "experts", "bytes", "seeds", "bits_per_byte", "standard_error", "fitted_law"
    cells, law = r.cells, r.cells.loss + r.errors
    names = cells["d_model"], cells.experts, cells.tokens, cells["seeds"]
    for *cell, loss, error, said in zip(*names, cells.loss, cells["standard_error"], law, strict=True):
        yield *(f"{v:g}" for v in cell), *(f"{BITS * v:.4f}" for v in (loss, error, said))


def rate_table(r: Results) -> Iterator[tuple[object, ...]]:
    """`rate:loss` at 4M and at the longest D at which several rates were trained, in bits per byte."""
    yield "d_model", "experts", "grid_at_4M", "best", "used", "checked_at", "checked"
    for rate in r.sweep.rates:
        best = "" if rate.tuned is None else f"{rate.tuned:.4g}"
        yield (
            *(rate.d_model, rate.experts, _rates(rate.tried), best, f"{rate.used:.4g}"),
            *(f"{rate.longer:g}" if rate.checked else "", _rates(rate.checked)),
        )


def _rates(losses: Mapping[float, float]) -> str:
    return " ".join(f"{rate:.4g}:{BITS * loss:.3f}" for rate, loss in losses.items())


BLOCKS = {
    "short": short,
    "counted": runs_that_count,
    "crossings": crossings,
    "coefficients": coefficients,
    "goals": goals,
    "predictions": predictions,
    "scatter": scatter,
}
TABLES = {"crossing": crossing_table, "crossing-losses": loss_table, "crossing-rates": rate_table}


def read() -> Results:
    return Results(read_sweep(RECORDS))


def write(page: Path) -> list[Path]:
    """Replace the blocks of the Markdown file `page`, its tables and its figures; returns what was written."""
    results = read()
    drawn = {"crossing.png": figures.where_experts_pay(results), "crossing-gaps.png": figures.gaps_by_size(results)}
    saved = [drawing.save(figure, page.parent / "figures" / name) for name, figure in drawn.items()]
    return [fill(page, BLOCKS, results), *write_tables(page, TABLES, results), *saved]


def take(runs: Sequence[Path]) -> list[Path]:
    """Collect the records of these files and folders."""
    return [gather(runs, RECORDS)]


def predict(asked: Sequence[str]) -> Path:
    """Write down once where experts begin to pay for models (d_model:E) that no run has shown yet."""
    return prediction.write(read(), [tuple(map(int, model.split(":"))) for model in asked], RECORDS, PREDICTION)
