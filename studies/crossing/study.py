"""The numbers, claims, tables and figures of docs/studies/crossing.md, from the records beside this file.

Losses are in bits per byte, errors of laws in nats per byte, D in bytes, which are the tokens of these models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import hub  # lazy
from hub import RunRecord
from hub.base.units import UNKNOWN, format_count
from scaling_law.forecasting import ledger
from studies.common import LEVEL, Part, interval, listed, rms, write_page
from studies.crossing import figures, prediction
from studies.crossing.cells import Cells, Gap
from studies.crossing.figures import BITS
from studies.crossing.forms import BENT, BOTH, JOINT, KEPT, POWERED, published
from studies.crossing.laws import FITTED, FREE, MAIN, PRIOR, PUBLISHED, SCALES, SIGNS, Results, Value
from studies.crossing.pieces import BYTES_PER_PIECE, PIECES, Pieces
from studies.crossing.rates import grids_of, moved
from studies.crossing.records import VOCABULARY, commits_of, gather, nominal, read_sweep

FOLDER = Path(__file__).parent
RECORDS, PREDICTIONS = FOLDER / "runs.jsonl", FOLDER / "predictions"
LEDGER = PREDICTIONS / "ledger"
REPRODUCED = FOLDER / "reproduced.jsonl"  # cells trained again by later code, whose text comes in another order
BYTES_PER_TOKEN = 46_086_265 / 10_093_780  # all of the text, cut by GPT-2's tokenizer: the published law's unit of D
FORECASTS = {"prior": PRIOR, "fitted": FITTED, "scales": SCALES}  # of models left out, in the prose
RMSE, HELD_OUT = 0.008, 0.02  # goals, nats per byte

# ------------------------------------------------------------------ words


def tokens_in_words(value: float | None, between: tuple[float, float]) -> str:
    """A count, or that it lies below (0) or above (None, infinite) the D of `between`."""
    if value is None or value == np.inf:
        return f"above {format_count(between[1])}"
    return f"below {format_count(between[0])}" if value == 0 else format_count(float(f"{value:.3g}"))


def tokens_with_interval(values: Sequence[float | None], between: tuple[float, float]) -> str:
    return interval(values, lambda value: tokens_in_words(value, between))


def measured_in_words(gap: Gap) -> str:
    return tokens_with_interval((gap.crossing, *gap.interval), gap.between)


def times(value: Value, unit: float = 1.0) -> str:
    """A factor with its interval."""
    return interval(value, lambda v: f"{float(f'{unit * v:.2g}'):g}")


def span(gaps: Sequence[Gap]) -> str:
    """The earliest and the latest crossing."""
    ordered = sorted(gaps, key=lambda gap: gap.crossing)
    ends = (tokens_in_words(g.crossing, g.between) for g in (ordered[0], ordered[-1]))
    return " to ".join(dict.fromkeys(ends))


# ------------------------------------------------------------------ the prose


def values(r: Results) -> dict[str, str]:
    main, late, sizes = r.of(MAIN), r.lateness(published(), MAIN), [format_count(gap.n_active) for gap in r.of(MAIN)]
    (trend, predicted, p), (gaps, off, n), (scatter, scatter_p) = r.trend(), r.gap_errors, scatter_of_kinds(r)
    said = np.sort(r.asked(published(), [gap.n_active for gap in main], MAIN))
    errors = {e: r.errors[r.cells.experts == e].mean() for e in r.experts}
    met, longest = [goal[3] for goal in goals(r)], r.held_out["longest runs"].laws
    by_d = {t: rms(r.errors[r.cells.tokens == t]) for t in np.unique(r.cells.tokens)}
    ahead, measured, between = _predicted(r)[-1]
    return {
        "crossing": span(main),
        "sizes": f"{sizes[0]} to {sizes[-1]}",
        "published": " to ".join(tokens_in_words(said[k], r.between) for k in (0, -1)),
        "late": times(late),
        "late-gpt": times(late, BYTES_PER_TOKEN),
        "trend": times(trend),
        "trend-published": f"{predicted:.2f}",
        "trend-p": f"{p:.2g}",
        "gap-errors": f"{off:.2f} nats (RMSE, {n} cells)",
        "gaps": f"{gaps:.2f}",
        "smallest": f"{published().loss(r.cells.n_active.min(), r.cells.tokens.min(), 1):.1f}",
        "rmse": f"{rms(r.errors):.4f} nats on {len(r.errors)} cells",
        "seeds": f"{rms(r.cells['standard_error']):.4f}",
        "mean-errors": listed(f"{errors[e]:+.3f} at E = {e}" for e in sorted(errors)),
        "late-prior": times(r.lateness(r.moved.law, MAIN)),
        **{f"left-out-{name}": f"{r.left_out[law]:.3f}" for name, law in FORECASTS.items()},
        **{f"longest-{name}": f"{longest[law].rmse:.3f}" for name, law in FORECASTS.items() if law != SCALES},
        "said-ahead": tokens_with_interval(ahead["interval"], between),
        "published-ahead": tokens_in_words(ahead["others"][PUBLISHED], between),
        "measured-ahead": measured_in_words(measured) if measured else UNKNOWN,
        "met": f"{met.count('met')} met, {met.count('missed')} missed",
        "left-out": listed(f"{count} {reason}" for reason, count in r.sweep.left_out.items()) or "none",
        "single": f"{sum(gap.seeds[:, 0].max() == 1 for gap in r.gaps)} of {len(r.gaps)}",
        "rmse-by-d": listed(f"{format_count(t)} {error:.4f}" for t, error in by_d.items()),
        "scatter": f"{scatter:.1f}",
        "scatter-p": f"{scatter_p:.1g}",
        "in-tokens": times((pieces := Pieces(r.gaps)).in_tokens),
        "in-bytes": times(pieces.in_bytes),
        "commits": listed(r.sweep.commits),
        "commits-of-pieces": listed(commits_of(pieces.records)),
        "bytes-per-piece": f"{BYTES_PER_PIECE:.2f}",
        "retuned": times(moved(r.gaps, grids_of(r.sweep))),
        **_of_forms(r),
    }


def _of_forms(r: Results) -> dict[str, str]:
    """What κ and q do, in the order: neither, κ, q, both."""
    forms, order = r.forms, (JOINT, BENT, POWERED, BOTH)
    kappa, error = forms.laws[BENT].coefficients["kappa"], forms.fits[BENT].status.standard_errors["kappa"]
    q, of_ln_q = forms.laws[POWERED].coefficients["q"], forms.fits[POWERED].status.standard_errors["q"]
    refit, as_it_is, stars = forms.in_the_paper
    ratios = [stars[2][i] / stars[32][i] for i in (0, 1)]
    return {
        "kappa": f"{kappa:.3f} ± {error:.3f}",
        "q": f"{q:.2f} (×÷ {np.exp(of_ln_q):.2f})",
        "forms-cells": listed(f"{forms.on_cells(name):.4f}" for name in order),
        "forms-left-out": listed(f"{forms.left_out[name]:.4f}" for name in order),
        "forms-forecasts": listed(f"{np.median(forms.forecasts[name]):.3f}" for name in order),
        "forms-least": listed(f"{forms.forecasts[name][-1]:.3f}" for name in order),
        "forms-trend": listed(f"{r.trend_of(forms.laws[name]):.2f}" for name in order),
        "paper-refit": f"{refit:.4f}",
        "paper-as-is": f"{as_it_is:.2f}",
        "paper-trend": f"{ratios[0]:.2f} to {ratios[1]:.2f}",
    }


def scatter_of_kinds(r: Results) -> tuple[float, float]:
    """Scatter of models with experts over that of dense ones at the shortest D, and the two-sided p of an F test."""
    from scipy.stats import f as fisher

    (dense, n), (routed, m) = (Cells.of(r.sweep.runs).scatter[kind] for kind in (False, True))
    ratio = routed[0, 0] / dense[0, 0]
    return float(np.sqrt(ratio)), float(2 * min(fisher.sf(ratio, m[0], n[0]), fisher.cdf(ratio, m[0], n[0])))


def agreeing(r: Results) -> list[int]:
    """The E whose crossings do not contradict the published law, taking a byte as a token."""
    late = {e: r.lateness(published(), e) for e in r.experts}
    return [e for e, (_, low, high) in late.items() if low <= 1 <= high]


CLAIMS: dict[str, Callable[[Results], bool]] = {
    "of all E only 2 does not contradict the law": lambda r: agreeing(r) == [2],
    "the trend in E is not the law's": lambda r: r.trend()[2] < 0.05,
    "sizes of gaps are not the law's": lambda r: r.gap_errors[1] > r.gap_errors[0],
    "only the first predictions have intervals that contain the published law's crossing": lambda r: (
        [m["interval"][1] <= m["others"][PUBLISHED] <= m["interval"][2] for m, *_ in _predicted(r)]
        == [True, True, False]
    ),
    "the last prediction is met, and what was measured excludes the published law's crossing": lambda r: _met_alone(
        *_predicted(r)[-1][:2]
    ),
    "all losses forecast lie inside their intervals": lambda r: {row[-1] for row in [*forecasts(r)][1:]} == {"yes"},
    "the crossing is no amount of text, and may be a number of tokens": lambda r: (
        (told := Pieces(r.gaps)).in_tokens[1] < 1 < told.in_tokens[2] and told.in_bytes[1] > 1
    ),
    "tuning rates where experts begin to pay moves crossings less than the law is late": lambda r: (
        moved(r.gaps, grids_of(r.sweep))[2] < r.lateness(published(), MAIN)[1]
    ),
    "with a prior models left out are forecast as well": lambda r: r.left_out[PRIOR] < 1.1 * r.left_out[FITTED],
    "κ turns the trend in E, and models left out are forecast better": lambda r: (
        r.trend_of(r.forms.laws[BENT]) > 1 > r.trend_of(r.forms.laws[JOINT])
        and r.forms.left_out[BENT] < r.forms.left_out[JOINT]
    ),
    "the fit converged": lambda r: r.fitted.status.converged,
    "later code reproduces the cells": lambda r: all(abs(off) < 2 for *_, off, _ in _again(r)),
    "experts scatter more": lambda r: scatter_of_kinds(r)[0] > 1 and scatter_of_kinds(r)[1] < 0.05,
}


# ------------------------------------------------------------------ blocks


def runs_that_count(r: Results) -> Iterator[Part]:
    runs = r.sweep.counted
    yield "d_model", "N_act", "part of embeddings", "E", "D", "most seeds", "runs"
    for d in np.unique(runs["d_model"]):
        size = runs.subset(runs["d_model"] == d)
        experts, tokens = (listed(map(format_count, np.unique(values))) for values in (size.experts, size.tokens))
        seeds = [len(np.unique(size["seed"][size.tokens == t])) for t in np.unique(size.tokens)]
        share = f"{2 * VOCABULARY * d / size.n_active[0]:.0%}"
        yield f"{d:g}", format_count(size.n_active[0]), share, experts, tokens, listed(seeds), len(size)


def crossings(r: Results) -> Iterator[Part]:
    ratios = *(f"{name} / measured" for name in r.laws), "published law / measured, GPT-2 tokens"
    yield "E", "crossing (bytes)", "bracketed", "most seeds of each size", *ratios
    for e in r.experts:
        gaps = r.of(e)
        factors = [r.lateness(law, e) for law in r.laws.values()]
        bracketed = f"{sum(g.bracketed for g in gaps)} of {len(gaps)}"
        seeds = listed(f"{g.seeds[:, 0].max():g}" for g in gaps)
        yield e, span(gaps), bracketed, seeds, *map(times, factors), times(factors[0], BYTES_PER_TOKEN)


def crossing_table(r: Results) -> Iterator[tuple[object, ...]]:
    yield "experts", "d_model", "n_active", "seeds_moe", "seeds_dense", "bytes", "bytes_low", "bytes_high", *r.laws
    for g in r.gaps:
        seeds = (" ".join(f"{n:g}" for n in column) for column in g.seeds.T)
        said = (float(r.asked(law, g.n_active, g.experts)) for law in r.laws.values())
        yield g.experts, g.d_model, f"{g.n_active:g}", *seeds, *(f"{v:.3g}" for v in (g.crossing, *g.interval, *said))


def goals(r: Results) -> Iterator[Part]:
    yield "goal", "wanted", "found", ""

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
        wanted = tokens_with_interval(model["interval"], between)
        if gap is None:
            yield name, wanted, UNKNOWN, "not trained yet"
        else:
            yield name, wanted, measured_in_words(gap), verdict(prediction.holds(model, gap))


def _scatter_of_all(r: Results) -> float:
    """Standard deviation of a single run, pooled over kinds and D."""
    kinds = Cells.of(r.sweep.runs).scatter.values()
    squares, freedom = (np.concatenate(v) for v in zip(*((np.diag(c) * f, f) for c, f in kinds), strict=True))
    return float(np.sqrt(squares.sum() / freedom.sum()))


def _predicted(r: Results) -> list[tuple[dict[str, Any], Gap | None, tuple[float, float]]]:
    """Each model predicted, beside its measured gap (None: not trained yet), and the D searched."""
    measured = {(gap.d_model, gap.experts): gap for gap in r.all_gaps}
    records = [prediction.load(path) for path in sorted(PREDICTIONS.glob("*.json"))]
    pairs = [(model, tuple(record["between"])) for record in records for model in record["models"]]
    return [(m, measured.get((m["d_model"], m["experts"])), between) for m, between in pairs]


def _met_alone(model: dict[str, Any], gap: Gap | None) -> bool:
    """Whether the crossing measured lies as predicted, and the published law's above its interval."""
    low, high = model["interval"][1:]
    return gap is not None and low <= gap.crossing <= high and gap.interval[1] < model["others"][PUBLISHED]


def predictions(r: Results) -> Iterator[Part]:
    yield "d_model", "E", "N_act", f"{FITTED} (95 %)", PUBLISHED, "measured (95 %)", "seeds of E"
    for model, gap, between in _predicted(r):
        said = tokens_with_interval(model["interval"], between), tokens_in_words(model["others"][PUBLISHED], between)
        came = (measured_in_words(gap), listed(f"{n:g}" for n in gap.seeds[:, 0])) if gap else (UNKNOWN, UNKNOWN)
        yield model["d_model"], model["experts"], format_count(model["n_active"]), *said, *came


def forecasts(r: Results) -> Iterator[Part]:
    """Losses that the stack forecast, in the sweep's ledger, beside the means over seeds."""
    yield "d_model", "E", "bytes", "forecast (95 %)", "measured", "inside"
    cells = Cells.of(r.sweep.counted)
    order = ("n_active", "experts", "tokens")
    for row in sorted(ledger.read_ledger(LEDGER).rows, key=lambda row: [row[name] for name in order]):
        (d_model,) = (m["d_model"] for m, *_ in _predicted(r) if m["n_active"] == row["n_active"])
        mean = cells.mean_at((d_model, int(row["experts"])), row["tokens"])
        inside = UNKNOWN if np.isnan(mean) else "yes" if row["low"] <= mean <= row["high"] else "no"
        said = interval([BITS * row[name] for name in ("loss", "low", "high")])
        measured = UNKNOWN if np.isnan(mean) else f"{BITS * mean:.3f}"
        yield d_model, f"{row['experts']:g}", format_count(row["tokens"]), said, measured, inside


def _again(r: Results) -> Iterator[tuple[RunRecord, float, float, float]]:
    """Runs trained again: each with its cell's mean loss, how many scatters it lies off, and the scatter of a run."""
    cells = Cells.of(r.sweep.counted)
    for record in hub.load_records(REPRODUCED):
        tokens, model = nominal(record.tokens), (record.d_model, record.experts)
        k = int(np.searchsorted(cells.tokens, tokens))
        deviation = float(np.sqrt(cells.scatter[record.experts > 1][0][k, k]))
        mean = cells.mean_at(model, tokens)
        yield record, mean, (float(record.eval_loss or np.nan) - mean) / deviation, deviation


def reproduced(r: Results) -> Iterator[Part]:
    yield "d_model", "E", "bytes", "cell's mean", "scatter of a run", "again", "off by (scatters)", "commit"
    for record, mean, off, deviation in _again(r):
        losses = (f"{BITS * loss:.3f}" for loss in (mean, deviation, record.eval_loss or np.nan))
        cell = record.d_model, record.experts, format_count(nominal(record.tokens))
        yield *cell, *losses, f"{off:+.1f}", (record.code_commit or UNKNOWN)[:7]


def vocabularies(r: Results) -> Iterator[Part]:
    """Crossings of models that read bytes and pieces of a BPE vocabulary."""
    yield "a token is", "d_model", "E", "N_act", "seeds", "crossing (tokens)", "crossing (bytes)"
    for pieces, bytewise in Pieces(r.gaps).pairs:
        for name, gap, size in (("a byte", bytewise, 1.0), ("a piece", pieces, BYTES_PER_PIECE)):
            ends = [[unit * value for value in (gap.crossing, *gap.interval, *gap.between)] for unit in (1.0, size)]
            texts = (tokens_with_interval(end[:3], (end[3], end[4])) for end in ends)
            yield name, gap.d_model, gap.experts, format_count(gap.n_active), f"{gap.seeds[:, 0].max():g}", *texts


def short_grids(r: Results) -> Iterator[Part]:
    """Rates tried at 1M and 2M over those used, with losses in bits per byte, and what the best would gain."""
    yield "d_model", "E", "bytes", "rate / used: bits per byte", "best / used (95 %)", "gain (nats, 95 %)"
    for grid in grids_of(r.sweep):
        pairs = zip(grid.rates, grid.losses, strict=True)
        tried = listed(f"{rate:.1f}: {BITS * loss:.3f}" for rate, loss in pairs)
        drawn = (np.quantile(values, LEVEL) for values in grid.drawn())
        best, gain = ((float(v), *ends) for v, ends in zip(grid.best(grid.losses), drawn, strict=True))
        yield grid.d_model, grid.experts, format_count(grid.tokens), tried, times(best), interval(gain)


def coefficients(r: Results) -> Iterator[Part]:
    yield "coefficient", "fitted", "95 % (trunks resampled)", "with the prior", "published"
    for name, value in r.fitted.law.coefficients.items():
        ends = "kept" if name in KEPT else "{:.4g} to {:.4g}".format(*r.drawn.interval(name))
        others = (f"{law.coefficients[name]:.4g}" for law in (r.moved.law, published()))
        yield name, f"{value:.4g}", ends, *others


def scatter(r: Results) -> Iterator[Part]:
    cells = Cells.of(r.sweep.runs)
    (dense, n), (routed, m) = cells.scatter[False], cells.scatter[True]
    yield "D", "dense (nats per byte)", "degrees of freedom", "with experts", "degrees of freedom"
    for k, t in enumerate(cells.tokens):
        texts = [f"{np.sqrt(c[k, k]):.4f}" if f[k] else UNKNOWN for c, f in ((dense, n), (routed, m))]
        yield format_count(t), texts[0], f"{n[k]:g}", texts[1], f"{m[k]:g}"


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
    "counted": runs_that_count,
    "crossings": crossings,
    "coefficients": coefficients,
    "goals": goals,
    "predictions": predictions,
    "forecasts": forecasts,
    "reproduced": reproduced,
    "vocabularies": vocabularies,
    "short-grids": short_grids,
    "scatter": scatter,
}
TABLES = {"crossing": crossing_table, "crossing-losses": loss_table, "crossing-rates": rate_table}
FIGURES = {"crossing": figures.where_experts_pay, "crossing-gaps": figures.gaps_by_size}


def read() -> Results:
    return Results(read_sweep(RECORDS))


def write(page: Path) -> list[Path]:
    """Write the page with its tables and figures; returns what was written."""
    return write_page(page, read(), BLOCKS, TABLES, FIGURES, values, CLAIMS)


def take(runs: Sequence[Path]) -> list[Path]:
    """Collect the records of these files and folders; cells that later code trained again have a file of their own."""
    (dataset,) = {record.dataset for record in hub.load_records(RECORDS)}
    folders = [folder for folder in runs if folder not in (RECORDS, REPRODUCED, PIECES)]
    again = [f for f in folders if all(record.dataset != dataset for record in hub.load_records(f))]
    pieces = [f for f in again if all(record.vocab_size != VOCABULARY for record in hub.load_records(f))]
    new = {RECORDS: set(folders) - {*again}, REPRODUCED: set(again) - {*pieces}, PIECES: pieces}
    return [gather([target, *sorted(sources)], target) for target, sources in new.items()]


def predict(asked: Sequence[str]) -> list[Path]:
    """Write down, once, where experts begin to pay for models (d_model:E) not trained yet, and their losses."""
    results, models = read(), [tuple(map(int, model.split(":"))) for model in asked]
    name = "-".join(asked).replace(":", "x")
    written = prediction.write(results, models, RECORDS, PREDICTIONS / f"{date.today()}-{name}.json")
    return [written, *(LEDGER / f"{name}.json" for name in prediction.register(results, models, LEDGER))]
