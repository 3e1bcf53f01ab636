"""The numbers, claims, tables and figures of docs/studies/crossing.md, from the records beside this file.

Losses are in bits per byte, errors of laws in nats per byte, D in bytes, which are the tokens of these models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hub.base import strict_json
from hub.base.units import UNKNOWN, format_count
from scaling_law.figures import drawing
from scaling_law.forecasting import ledger
from studies.common import BITS, Page, Part, Value, gather, interval, listed, rms
from studies.crossing.cells import Cells, Gap, ratio_of
from studies.crossing.laws import (
    BENT,
    FITTED,
    FREE,
    KEPT,
    LEDGER,
    MAIN,
    PIECES,
    PREDICTIONS,
    PRIOR,
    PUBLISHED,
    RECORDS,
    SIGNS,
    Results,
    holds,
    published,
)
from studies.crossing.laws import predict as predict
from studies.crossing.records import VOCABULARY, read_sweep

TEXT = 46_086_265  # bytes; below, cut by GPT-2's tokenizer, the published law's unit of D, and by that of the pieces
BYTES_PER_TOKEN, BYTES_PER_PIECE = TEXT / 10_093_780, TEXT / 16_600_853
RMSE, HELD_OUT = 0.008, 0.02  # goals, nats per byte
COLOURS = {PUBLISHED: "#D55E00", FITTED: "0.1"}
DODGE = 1.07  # between the error bars of two E


def take(runs: Sequence[Path]) -> list[Path]:
    """Collect the records of these files and folders; models that read pieces have a file of their own."""
    return [
        gather(runs, RECORDS, lambda record: record.vocab_size == VOCABULARY),
        gather(runs, PIECES, lambda record: record.vocab_size != VOCABULARY),
    ]


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
    (trend, predicted, p), (gaps, off, n) = r.trend(), r.gap_errors
    said = np.sort(r.asked(published(), [gap.n_active for gap in main], MAIN))
    ahead, measured, between = predicted_models(r)[-1]
    in_tokens, _ = ratio_of(r.pieces)
    kappa, error = r.bent.law.coefficients["kappa"], r.bent.status.standard_errors["kappa"]
    return {
        "crossing": span(main),
        "sizes": f"{sizes[0]} to {sizes[-1]}",
        "published": " to ".join(tokens_in_words(said[k], r.between) for k in (0, -1)),
        "late": times(late),
        "late-gpt": times(late, BYTES_PER_TOKEN),
        "trend": times(trend),
        "trend-published": f"{predicted:.2f}",
        "trend-p": f"{p:.2g}",
        "trend-kappa": f"{r.trend_of(r.bent.law):.2f}",
        "kappa": f"{kappa:.3f} ± {error:.3f}",
        "gap-errors": f"{off:.2f} nats (RMSE, {n} cells)",
        "gaps": f"{gaps:.2f}",
        "smallest": f"{published().loss(r.cells.n_active.min(), r.cells.tokens.min(), 1):.1f}",
        "rmse": f"{rms(r.errors):.4f} nats on {len(r.errors)} cells",
        "seeds": f"{rms(r.cells['standard_error']):.4f}",
        "left-out-fitted": f"{r.left_out[FITTED]:.4f}",
        "left-out-prior": f"{r.left_out[PRIOR]:.4f}",
        "left-out-kappa": f"{r.left_out[BENT]:.4f}",
        "said-ahead": tokens_with_interval(ahead["interval"], between),
        "published-ahead": tokens_in_words(ahead["others"][PUBLISHED], between),
        "measured-ahead": measured_in_words(measured) if measured else UNKNOWN,
        "in-tokens": times(in_tokens),
        "in-bytes": times(in_tokens, BYTES_PER_PIECE),
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


def predicted_models(r: Results) -> list[tuple[dict[str, Any], Gap | None, tuple[float, float]]]:
    """Each model predicted, beside its measured gap (None: not trained yet), and the D searched."""
    measured = {(gap.d_model, gap.experts): gap for gap in r.all_gaps}
    records = [strict_json.read(path, "crossing_prediction", 1) for path in sorted(PREDICTIONS.glob("*.json"))]
    pairs = [(model, tuple(record["between"])) for record in records for model in record["models"]]
    return [(m, measured.get((m["d_model"], m["experts"])), between) for m, between in pairs]


def is_met_alone(r: Results) -> bool:
    """Whether the last crossing measured lies as predicted, and the published law's above its interval."""
    model, gap, _ = predicted_models(r)[-1]
    return gap is not None and holds(model, gap) and gap.interval[1] < model["others"][PUBLISHED]


def is_number_of_tokens(r: Results) -> bool:
    _, low, high = ratio_of(r.pieces)[0]
    return low < 1 < high and BYTES_PER_PIECE * low > 1


CLAIMS = {
    "of all E only 2 does not contradict the law": lambda r: agreeing(r) == [2],
    "the trend in E is not the law's": lambda r: r.trend()[2] < 0.05,
    "sizes of gaps are not the law's": lambda r: r.gap_errors[1] > r.gap_errors[0],
    "only the first predictions have intervals that contain the published law's crossing": lambda r: (
        [m["interval"][1] <= m["others"][PUBLISHED] <= m["interval"][2] for m, *_ in predicted_models(r)]
        == [True, True, False]
    ),
    "the last prediction is met, and what was measured excludes the published law's crossing": is_met_alone,
    "all losses forecast lie inside their intervals": lambda r: {row[-1] for row in [*forecasts(r)][1:]} == {"yes"},
    "the crossing is no amount of text, and may be a number of tokens": is_number_of_tokens,
    "with a prior models left out are forecast as well": lambda r: r.left_out[PRIOR] < 1.1 * r.left_out[FITTED],
    "κ turns the trend in E, and models left out are forecast better": lambda r: (
        r.trend_of(r.bent.law) > 1 > r.trend_of(r.fitted.law) and r.left_out[BENT] < r.left_out[FITTED]
    ),
    "the fit converged": lambda r: r.fitted.status.converged,
    "experts scatter more": lambda r: scatter_of_kinds(r)[0] > 1 and scatter_of_kinds(r)[1] < 0.05,
}


# ------------------------------------------------------------------ blocks


def counted(r: Results) -> Iterator[Part]:
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


def vocabularies(r: Results) -> Iterator[Part]:
    """Crossings of models that read bytes and pieces of a BPE vocabulary."""
    yield "a token is", "d_model", "E", "N_act", "seeds", "crossing (tokens)", "crossing (bytes)"
    for pieces, bytewise in r.pieces:
        for name, gap, size in (("a byte", bytewise, 1.0), ("a piece", pieces, BYTES_PER_PIECE)):
            ends = [[unit * value for value in (gap.crossing, *gap.interval, *gap.between)] for unit in (1.0, size)]
            texts = (tokens_with_interval(end[:3], (end[3], end[4])) for end in ends)
            yield name, gap.d_model, gap.experts, format_count(gap.n_active), f"{gap.seeds[:, 0].max():g}", *texts


def goals(r: Results) -> Iterator[Part]:
    yield "goal", "wanted", "found", ""

    def verdict(met: bool) -> str:
        return "met" if met else "missed"

    kinds = Cells.of(r.sweep.runs).scatter.values()
    squares, freedom = (np.concatenate(v) for v in zip(*((np.diag(c) * f, f) for c, f in kinds), strict=True))
    rmse, seeds = rms(r.errors), float(np.sqrt(squares.sum() / freedom.sum()))
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


def predictions(r: Results) -> Iterator[Part]:
    yield "d_model", "E", "N_act", f"{FITTED} (95 %)", PUBLISHED, "measured (95 %)", "seeds of E", ""
    for model, gap, between in predicted_models(r):
        said = tokens_with_interval(model["interval"], between), tokens_in_words(model["others"][PUBLISHED], between)
        came = UNKNOWN, UNKNOWN, "not trained yet"
        if gap:
            seeds = listed(f"{n:g}" for n in gap.seeds[:, 0])
            came = measured_in_words(gap), seeds, "met" if holds(model, gap) else "missed"
        yield model["d_model"], model["experts"], format_count(model["n_active"]), *said, *came


def forecasts(r: Results) -> Iterator[Part]:
    """Losses that the stack forecast, in the sweep's ledger, beside the means over seeds."""
    yield "d_model", "E", "bytes", "forecast (95 %)", "measured", "inside"
    cells = Cells.of(r.sweep.counted)
    order = ("n_active", "experts", "tokens")
    for row in sorted(ledger.read_ledger(LEDGER).rows, key=lambda row: [row[name] for name in order]):
        (d_model,) = (m["d_model"] for m, *_ in predicted_models(r) if m["n_active"] == row["n_active"])
        mean = cells.mean_at((d_model, int(row["experts"])), row["tokens"])
        inside = UNKNOWN if np.isnan(mean) else "yes" if row["low"] <= mean <= row["high"] else "no"
        said = interval([BITS * row[name] for name in ("loss", "low", "high")])
        measured = UNKNOWN if np.isnan(mean) else f"{BITS * mean:.3f}"
        yield d_model, f"{row['experts']:g}", format_count(row["tokens"]), said, measured, inside


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


# ------------------------------------------------------------------ CSV files and figures


def crossing(r: Results) -> Iterator[Part]:
    yield "experts", "d_model", "n_active", "seeds_moe", "seeds_dense", "bytes", "bytes_low", "bytes_high", *r.laws
    for g in r.gaps:
        seeds = (" ".join(f"{n:g}" for n in column) for column in g.seeds.T)
        said = (float(r.asked(law, g.n_active, g.experts)) for law in r.laws.values())
        yield g.experts, g.d_model, f"{g.n_active:g}", *seeds, *(f"{v:.3g}" for v in (g.crossing, *g.interval, *said))


def crossing_losses(r: Results) -> Iterator[Part]:
    yield "d_model", "experts", "bytes", "seeds", "bits_per_byte", "standard_error", "fitted_law"
    cells, law = r.cells, r.cells.loss + r.errors
    names = cells["d_model"], cells.experts, cells.tokens, cells["seeds"]
    for *cell, loss, error, said in zip(*names, cells.loss, cells["standard_error"], law, strict=True):
        yield *(f"{v:g}" for v in cell), *(f"{BITS * v:.4f}" for v in (loss, error, said))


def crossing_rates(r: Results) -> Iterator[Part]:
    """`rate:loss` at 4M and at the longest D at which several rates were trained, in bits per byte."""
    yield "d_model", "experts", "grid_at_4M", "best", "used", "checked_at", "checked"

    def told(losses: Mapping[float, float]) -> str:
        return " ".join(f"{rate:.4g}:{BITS * loss:.3f}" for rate, loss in losses.items())

    for rate in r.sweep.rates:
        best = "" if rate.tuned is None else f"{rate.tuned:.4g}"
        checked = f"{rate.longer:g}" if rate.checked else "", told(rate.checked)
        yield rate.d_model, rate.experts, told(rate.tried), best, f"{rate.used:.4g}", *checked


def where_experts_pay(r: Results, experts: tuple[int, ...] = (MAIN, 2)) -> NDArray[Any]:
    """N_act against D, a panel for each E: who wins at each cell measured, the crossings measured, and laws' lines."""
    axes = drawing.panels_or_new(None, len(experts), 1.8 + 4.4 * len(experts), 4.8, sharey=True)
    low, high = r.sweep.counted.tokens.min() / 2, r.sweep.counted.tokens.max() * 2
    sizes = np.unique(r.sweep.runs.n_active)
    along = np.geomspace(sizes.min() / 1.4, sizes.max() * 1.4, 60)
    for ax, e in zip(axes, experts, strict=True):
        for gap in r.of(e):
            for ahead, colour in ((gap.mean < 0, drawing.colour_of(8)), (gap.mean >= 0, "0.6")):
                n = np.full(int(ahead.sum()), gap.n_active)
                ax.plot(n, gap.tokens[ahead], "s", color=colour, alpha=0.4, markersize=8, markeredgewidth=0)
            ends = [end for end in gap.interval if not np.isnan(end)]
            ax.plot([gap.n_active] * len(ends), np.clip(ends, low, high), color="k", linewidth=1.2)
            marker = "o" if gap.bracketed else "v" if gap.crossing == 0 else "^"
            ax.plot(gap.n_active, np.clip(gap.crossing, *gap.between), marker, color="k", markersize=6, zorder=3)
        for name, law in r.laws.items():
            predicted = r.asked(law, along, e)
            tokens = np.where((predicted > 0) & np.isfinite(predicted), predicted, np.nan)
            inside = law.check(along, tokens, float(e)).inside
            drawing.draw_curve(ax, along, tokens, inside, e, color=COLOURS[name], label=name)
        ax.plot([], [], "s", color=drawing.colour_of(8), alpha=0.4, markersize=8, label="experts ahead")
        ax.plot([], [], "s", color="0.6", alpha=0.4, markersize=8, label="dense ahead")
        ax.errorbar([], [], yerr=[], fmt="o", color="k", markersize=6, capsize=3, label="crossing measured, 95 %")
        ax.plot([], [], "^", color="k", markersize=6, label="above the D measured")
        ax.set(xlim=(along[0], along[-1]), ylim=(low, high))
        drawing.log_axis(ax, drawing.ACTIVE)
        drawing.log_axis(ax, "", "y")
        ax.set_title(f"E = {e:g} against dense", fontsize=10)
    axes[0].set_ylabel("training bytes D")
    drawing.shared_legend(axes[0])
    return axes


def crossing_gaps(r: Results, widths: tuple[int, ...] = (32, 64)) -> NDArray[Any]:
    """Loss against dense models by D, a panel for each size, coloured by E, with standard errors side by side."""
    axes = drawing.panels_or_new(None, len(widths), 1.0 + 4.4 * len(widths), 4.4, sharey=True)
    for ax, width in zip(axes, widths, strict=True):
        gaps = [gap for gap in r.gaps if gap.d_model == width]
        ax.axhline(0.0, color="0.4", linewidth=0.9)
        for k, gap in enumerate(gaps):
            at = gap.tokens * DODGE ** (k - (len(gaps) - 1) / 2)
            style = {"color": drawing.colour_of(gap.experts), "markersize": 4, "linewidth": 1.0, "capsize": 2}
            label = drawing.label_of(gap.experts)
            ax.errorbar(at, BITS * gap.mean, BITS * gap.error, fmt="o-", label=label, **style)
        drawing.log_axis(ax, "training bytes D")
        ax.set_title(f"d_model {width}, N_act = {format_count(gaps[0].n_active)}", fontsize=9)
    axes[0].set_ylabel("loss − dense (bits per byte)")
    drawing.shared_legend(axes[0])
    return axes


PAGE = Page(
    read=lambda: Results(read_sweep(RECORDS)),
    blocks=(counted, crossings, vocabularies, goals, predictions, forecasts, coefficients, scatter),
    tables=(crossing, crossing_losses, crossing_rates),
    figures=(where_experts_pay, crossing_gaps),
    values=values,
    claims=CLAIMS,
)
