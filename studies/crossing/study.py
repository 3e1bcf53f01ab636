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
from scaling_law import Law
from scaling_law.figures import drawing
from studies.common import BITS_PER_NAT, FloatArray, Page, Part, Value, gather, interval, join, rms
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

# Bytes of the text, which GPT-2's tokenizer, the published law's unit of D, cuts into 10,093,780 tokens, and the
# tokenizer of the pieces into 16,600,853.
TEXT = 46_086_265
BYTES_PER_TOKEN = TEXT / 10_093_780
BYTES_PER_PIECE = TEXT / 16_600_853
# Goals, nats per byte.
RMSE = 0.008
HELD_OUT = 0.02
COLOURS = {PUBLISHED: "#D55E00", FITTED: "0.1"}
# The factor in D between the error bars of two E.
DODGE = 1.07
AHEAD_COLOUR = drawing.colour_of(8)
BEHIND_COLOUR = "0.6"
# A model predicted, its measured gap (None: not trained yet), and the D searched.
PredictedModel = tuple[dict[str, Any], Gap | None, tuple[float, float]]


def take(runs: Sequence[Path]) -> list[Path]:
    """Collect the records of these files and folders; models that read pieces have a file of their own."""
    return [
        gather(runs, RECORDS, lambda record: record.vocab_size == VOCABULARY),
        gather(runs, PIECES, lambda record: record.vocab_size != VOCABULARY),
    ]


# ------------------------------------------------------------------ words


def tokens_in_words(value: float | None, between: tuple[float, float]) -> str:
    """Format a count, or say that it lies below (0) or above (None, infinite) the D of `between`."""
    if value is None or value == np.inf:
        return f"above {format_count(between[1])}"
    if value == 0:
        return f"below {format_count(between[0])}"
    return format_count(float(f"{value:.3g}"))


def tokens_with_interval(values: Sequence[float | None], between: tuple[float, float]) -> str:
    """Format a count of tokens with its interval."""
    return interval(values, lambda value: tokens_in_words(value, between))


def measured_in_words(gap: Gap) -> str:
    """Format the crossing of a gap with its interval."""
    return tokens_with_interval((gap.crossing, *gap.interval), gap.between)


def times(value: Value, unit: float = 1.0) -> str:
    """Format a factor with its interval."""
    return interval(value, lambda v: f"{float(f'{unit * v:.2g}'):g}")


def span(gaps: Sequence[Gap]) -> str:
    """Format the earliest and the latest crossing."""
    ordered = sorted(gaps, key=lambda gap: gap.crossing)
    texts = [tokens_in_words(gap.crossing, gap.between) for gap in (ordered[0], ordered[-1])]
    return " to ".join(dict.fromkeys(texts))


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"


# ------------------------------------------------------------------ the prose


def values(r: Results) -> dict[str, str]:
    """Return the numbers in the page's sentences."""
    gaps = r.of(MAIN)
    sizes = [format_count(gap.n_active) for gap in gaps]
    lateness = r.lateness(published(), MAIN)
    crossings = np.sort(r.break_even(published(), [gap.n_active for gap in gaps], MAIN))
    trend, published_trend, p = r.trend()
    gap_rms, gap_rmse, n_gaps = r.gap_errors
    model, measured, between = predicted_models(r)[-1]
    in_tokens, _ = ratio_of(r.pieces)
    kappa = r.kappa_fit.law.coefficients["kappa"]
    kappa_error = r.kappa_fit.status.standard_errors["kappa"]
    return {
        "crossing": span(gaps),
        "sizes": f"{sizes[0]} to {sizes[-1]}",
        "published": " to ".join(tokens_in_words(crossings[k], r.search_range) for k in (0, -1)),
        "late": times(lateness),
        "late-gpt": times(lateness, BYTES_PER_TOKEN),
        "trend": times(trend),
        "trend-published": f"{published_trend:.2f}",
        "trend-p": f"{p:.2g}",
        "trend-kappa": f"{r.trend_of(r.kappa_fit.law):.2f}",
        "kappa": f"{kappa:.3f} ± {kappa_error:.3f}",
        "gap-errors": f"{gap_rmse:.2f} nats (RMSE, {n_gaps} cells)",
        "gaps": f"{gap_rms:.2f}",
        "smallest": f"{published().loss(r.cells.n_active.min(), r.cells.tokens.min(), 1):.1f}",
        "rmse": f"{rms(r.errors):.4f} nats on {len(r.errors)} cells",
        "seeds": f"{rms(r.cells['standard_error']):.4f}",
        "left-out-fitted": f"{r.left_out[FITTED]:.4f}",
        "left-out-prior": f"{r.left_out[PRIOR]:.4f}",
        "left-out-kappa": f"{r.left_out[BENT]:.4f}",
        "said-ahead": tokens_with_interval(model["interval"], between),
        "published-ahead": tokens_in_words(model["others"][PUBLISHED], between),
        "measured-ahead": measured_in_words(measured) if measured else UNKNOWN,
        "in-tokens": times(in_tokens),
        "in-bytes": times(in_tokens, BYTES_PER_PIECE),
    }


def scatter_of_kinds(r: Results) -> tuple[float, float]:
    """Compare the scatter of models with experts and of dense ones at the shortest D.

    Returns:
        The ratio of their standard deviations, and the two-sided p of an F test.
    """
    from scipy.stats import f as fisher

    scatter = Cells.of(r.sweep.runs).scatter
    dense, dense_freedom = scatter[False]
    routed, routed_freedom = scatter[True]
    ratio = routed[0, 0] / dense[0, 0]
    freedom = (routed_freedom[0], dense_freedom[0])
    p = 2 * min(fisher.sf(ratio, *freedom), fisher.cdf(ratio, *freedom))
    return float(np.sqrt(ratio)), float(p)


def agreeing(r: Results) -> list[int]:
    """Return the E whose crossings do not contradict the published law, taking a byte as a token."""
    agreeing_experts = []
    for experts in r.experts:
        _, low, high = r.lateness(published(), experts)
        if low <= 1 <= high:
            agreeing_experts.append(experts)
    return agreeing_experts


def predicted_models(r: Results) -> list[PredictedModel]:
    """Return each model predicted with its measured gap and the D searched."""
    measured = {(gap.d_model, gap.experts): gap for gap in r.all_gaps}
    rows: list[PredictedModel] = []
    for path in sorted(PREDICTIONS.glob("*.json")):
        record = strict_json.read(path, "crossing_prediction", 1)
        low, high = record["between"]
        for model in record["models"]:
            gap = measured.get((model["d_model"], model["experts"]))
            rows.append((model, gap, (low, high)))
    return rows


def is_met_alone(r: Results) -> bool:
    """Return whether the last crossing measured lies as predicted, and the published law's above its interval."""
    model, gap, _ = predicted_models(r)[-1]
    return gap is not None and holds(model, gap) and gap.interval[1] < model["others"][PUBLISHED]


def contain_published_crossing(r: Results) -> list[bool]:
    """Return for each model predicted whether its interval contains the published law's crossing."""
    contained = []
    for model, *_ in predicted_models(r):
        _, low, high = model["interval"]
        contained.append(low <= model["others"][PUBLISHED] <= high)
    return contained


def is_number_of_tokens(r: Results) -> bool:
    """Return whether crossings of pieces and bytes can be one number of tokens, and no amount of text."""
    _, low, high = ratio_of(r.pieces)[0]
    return low < 1 < high and BYTES_PER_PIECE * low > 1


def is_trend_turned_by_kappa(r: Results) -> bool:
    """Return whether κ turns the trend in E and forecasts models left out better."""
    trend_is_turned = r.trend_of(r.kappa_fit.law) > 1 > r.trend_of(r.joint_fit.law)
    return trend_is_turned and r.left_out[BENT] < r.left_out[FITTED]


def experts_scatter_more(r: Results) -> bool:
    """Return whether models with experts scatter significantly more than dense ones."""
    ratio, p = scatter_of_kinds(r)
    return ratio > 1 and p < 0.05


CLAIMS = {
    "of all E only 2 does not contradict the law": lambda r: agreeing(r) == [2],
    "the trend in E is not the law's": lambda r: r.trend()[2] < 0.05,
    "sizes of gaps are not the law's": lambda r: r.gap_errors[1] > r.gap_errors[0],
    "only the first predictions have intervals that contain the published law's crossing": lambda r: (
        contain_published_crossing(r) == [True, True, False]
    ),
    "the last prediction is met, and what was measured excludes the published law's crossing": is_met_alone,
    "all losses forecast lie inside their intervals": lambda r: {row[-1] for row in [*forecasts(r)][1:]} == {"yes"},
    "the crossing is no amount of text, and may be a number of tokens": is_number_of_tokens,
    "with a prior models left out are forecast as well": lambda r: r.left_out[PRIOR] < 1.1 * r.left_out[FITTED],
    "κ turns the trend in E, and models left out are forecast better": is_trend_turned_by_kappa,
    "the fit converged": lambda r: r.joint_fit.status.converged,
    "experts scatter more": experts_scatter_more,
}


# ------------------------------------------------------------------ blocks


def counted(r: Results) -> Iterator[Part]:
    """List the runs that count, by size."""
    runs = r.sweep.counted
    yield "d_model", "N_act", "part of embeddings", "E", "D", "most seeds", "runs"
    for d_model in np.unique(runs["d_model"]):
        size = runs.subset(runs["d_model"] == d_model)
        n_active = size.n_active[0]
        tokens = np.unique(size.tokens)
        seeds = [len(np.unique(size["seed"][size.tokens == d])) for d in tokens]
        yield (
            f"{d_model:g}",
            format_count(n_active),
            f"{2 * VOCABULARY * d_model / n_active:.0%}",
            join(map(format_count, np.unique(size.experts))),
            join(map(format_count, tokens)),
            join(seeds),
            len(size),
        )


def crossings(r: Results) -> Iterator[Part]:
    """Compare the crossings of each E with the laws'."""
    ratios = [f"{name} / measured" for name in r.laws]
    head = ("E", "crossing (bytes)", "bracketed", "most seeds of each size")
    yield *head, *ratios, "published law / measured, GPT-2 tokens"
    for experts in r.experts:
        gaps = r.of(experts)
        lateness = [r.lateness(law, experts) for law in r.laws.values()]
        n_bracketed = sum(gap.bracketed for gap in gaps)
        yield (
            experts,
            span(gaps),
            f"{n_bracketed} of {len(gaps)}",
            join(f"{gap.seeds[:, 0].max():g}" for gap in gaps),
            *map(times, lateness),
            times(lateness[0], BYTES_PER_TOKEN),
        )


def vocabularies(r: Results) -> Iterator[Part]:
    """List the crossings of models that read bytes and pieces of a BPE vocabulary."""
    yield "a token is", "d_model", "E", "N_act", "seeds", "crossing (tokens)", "crossing (bytes)"
    for pieces, bytewise in r.pieces:
        for name, gap, bytes_per_token in (("a byte", bytewise, 1.0), ("a piece", pieces, BYTES_PER_PIECE)):
            yield (
                name,
                gap.d_model,
                gap.experts,
                format_count(gap.n_active),
                f"{gap.seeds[:, 0].max():g}",
                _crossing_in_units(gap, 1.0),
                _crossing_in_units(gap, bytes_per_token),
            )


def _crossing_in_units(gap: Gap, units_per_token: float) -> str:
    """Format the crossing of a gap with its interval, in another unit than its tokens."""
    values = [units_per_token * value for value in (gap.crossing, *gap.interval)]
    low, high = gap.between
    return tokens_with_interval(values, (units_per_token * low, units_per_token * high))


def goals(r: Results) -> Iterator[Part]:
    """Compare the fit with the goals that were set for it."""
    yield "goal", "wanted", "found", ""
    rmse = rms(r.errors)
    seeds = _scatter_of_seeds(r)
    yield "RMSE of the joint law on the cells", f"< {RMSE} nats", f"{rmse:.4f}", _verdict(rmse < RMSE)
    against_seeds = f"{rmse:.4f} against 2 × {seeds:.4f}"
    yield "the same, against seeds", "< 2 × their scatter", against_seeds, _verdict(rmse < 2 * seeds)
    for name, test in r.held_out.items():
        error = test.laws[FITTED].rmse
        measured = f"{error:.4f} on {len(test.test)} cells"
        yield f"RMSE on the {name}, held out", f"< {HELD_OUT} nats", measured, _verdict(error < HELD_OUT)
    yield _goal_of_signs(r)


def _goal_of_signs(r: Results) -> Part:
    """Say which signs of the coefficients the sweep determines."""
    determined = []
    for name in FREE:
        low, high = r.bootstrap.interval(name)
        if low * high > 0:
            determined.append(name)
    published_names = join(name for name in SIGNS if name in KEPT)
    count = f"{len(determined)} of {len(SIGNS)}"
    text = f"{count}: {join(determined)}; kept as published: {published_names}"
    return f"signs of {join(SIGNS)}", "all determined", text, _verdict(len(determined) == len(SIGNS))


def _scatter_of_seeds(r: Results) -> float:
    """Return the standard deviation of a run among seeds, pooled over kinds and D."""
    squares = []
    freedom = []
    for covariance, freedom_of_kind in Cells.of(r.sweep.runs).scatter.values():
        squares.append(np.diag(covariance) * freedom_of_kind)
        freedom.append(freedom_of_kind)
    return float(np.sqrt(np.concatenate(squares).sum() / np.concatenate(freedom).sum()))


def predictions(r: Results) -> Iterator[Part]:
    """Compare the crossings predicted with those measured since."""
    yield "d_model", "E", "N_act", f"{FITTED} (95 %)", PUBLISHED, "measured (95 %)", "seeds of E", ""
    for model, gap, between in predicted_models(r):
        measured = (UNKNOWN, UNKNOWN, "not trained yet")
        if gap:
            seeds = join(f"{n_seeds:g}" for n_seeds in gap.seeds[:, 0])
            measured = (measured_in_words(gap), seeds, _verdict(holds(model, gap)))
        yield (
            model["d_model"],
            model["experts"],
            format_count(model["n_active"]),
            tokens_with_interval(model["interval"], between),
            tokens_in_words(model["others"][PUBLISHED], between),
            *measured,
        )


def forecasts(r: Results) -> Iterator[Part]:
    """List the losses that the stack forecast, in the sweep's ledger, beside the means over seeds."""
    yield "d_model", "E", "bytes", "forecast (95 %)", "measured", "inside"
    cells = Cells.of(r.sweep.counted)
    order = ("n_active", "experts", "tokens")
    rows = [strict_json.read(path, "forecast", 1) for path in LEDGER.glob("*.json")]
    for row in sorted(rows, key=lambda row: [row[name] for name in order]):
        (d_model,) = (m["d_model"] for m, *_ in predicted_models(r) if m["n_active"] == row["n_active"])
        mean = cells.mean_at((d_model, int(row["experts"])), row["tokens"])
        measured = UNKNOWN
        inside = UNKNOWN
        if not np.isnan(mean):
            measured = f"{BITS_PER_NAT * mean:.3f}"
            inside = "yes" if row["low"] <= mean <= row["high"] else "no"
        forecast = interval([BITS_PER_NAT * row[name] for name in ("loss", "low", "high")])
        yield d_model, f"{row['experts']:g}", format_count(row["tokens"]), forecast, measured, inside


def coefficients(r: Results) -> Iterator[Part]:
    """List the coefficients of the fits and of the published law."""
    yield "coefficient", "fitted", "95 % (trunks resampled)", "with the prior", "published"
    for name, value in r.joint_fit.law.coefficients.items():
        bounds = "kept"
        if name not in KEPT:
            bounds = "{:.4g} to {:.4g}".format(*r.bootstrap.interval(name))
        with_prior = r.prior_fit.law.coefficients[name]
        yield name, f"{value:.4g}", bounds, f"{with_prior:.4g}", f"{published().coefficients[name]:.4g}"


def scatter(r: Results) -> Iterator[Part]:
    """List the standard deviation of a run at each D, by kind."""
    cells = Cells.of(r.sweep.runs)
    yield "D", "dense (nats per byte)", "degrees of freedom", "with experts", "degrees of freedom"
    for k, tokens in enumerate(cells.tokens):
        texts = []
        for has_experts in (False, True):
            covariance, freedom = cells.scatter[has_experts]
            texts.append(f"{np.sqrt(covariance[k, k]):.4f}" if freedom[k] else UNKNOWN)
            texts.append(f"{freedom[k]:g}")
        yield format_count(tokens), *texts


# ------------------------------------------------------------------ CSV files and figures


def crossing(r: Results) -> Iterator[Part]:
    """List the crossing of every size and E."""
    yield "experts", "d_model", "n_active", "seeds_moe", "seeds_dense", "bytes", "bytes_low", "bytes_high", *r.laws
    for gap in r.gaps:
        seeds = (" ".join(f"{n_seeds:g}" for n_seeds in column) for column in gap.seeds.T)
        by_laws = [float(r.break_even(law, gap.n_active, gap.experts)) for law in r.laws.values()]
        numbers = (f"{value:.3g}" for value in (gap.crossing, *gap.interval, *by_laws))
        yield gap.experts, gap.d_model, f"{gap.n_active:g}", *seeds, *numbers


def crossing_losses(r: Results) -> Iterator[Part]:
    """List the loss of every cell beside the fitted law's."""
    yield "d_model", "experts", "bytes", "seeds", "bits_per_byte", "standard_error", "fitted_law"
    cells = r.cells
    keys = (cells["d_model"], cells.experts, cells.tokens, cells["seeds"])
    losses = (cells.loss, cells["standard_error"], cells.loss + r.errors)
    for key, loss in zip(zip(*keys, strict=True), zip(*losses, strict=True), strict=True):
        yield *(f"{value:g}" for value in key), *(f"{BITS_PER_NAT * value:.4f}" for value in loss)


def crossing_rates(r: Results) -> Iterator[Part]:
    """List `rate:loss` at 4M and at the longest D at which several rates were trained, in bits per byte."""
    yield "d_model", "experts", "grid_at_4M", "best", "used", "checked_at", "checked"
    for rate in r.sweep.rates:
        yield (
            rate.d_model,
            rate.experts,
            _rates_in_words(rate.losses_by_rate),
            "" if rate.tuned is None else f"{rate.tuned:.4g}",
            f"{rate.used:.4g}",
            f"{rate.longer:g}" if rate.longer_losses else "",
            _rates_in_words(rate.longer_losses),
        )


def _rates_in_words(losses: Mapping[float, float]) -> str:
    return " ".join(f"{rate:.4g}:{BITS_PER_NAT * loss:.3f}" for rate, loss in losses.items())


def where_experts_pay(r: Results, experts: tuple[int, ...] = (MAIN, 2)) -> NDArray[Any]:
    """Draw N_act against D, a panel for each E.

    Each panel shows who wins at each cell measured, the crossings measured, and the lines of laws.
    """
    axes = drawing.panels_or_new(None, len(experts), 1.8 + 4.4 * len(experts), 4.8, sharey=True)
    low = r.sweep.counted.tokens.min() / 2
    high = r.sweep.counted.tokens.max() * 2
    sizes = np.unique(r.sweep.runs.n_active)
    n_active = np.geomspace(sizes.min() / 1.4, sizes.max() * 1.4, 60)
    for ax, e in zip(axes, experts, strict=True):
        for gap in r.of(e):
            _draw_gap(ax, gap, (low, high))
        for name, law in r.laws.items():
            _draw_law(ax, r, law, name, n_active, e)
        _draw_legend(ax)
        ax.set(xlim=(n_active[0], n_active[-1]), ylim=(low, high))
        drawing.log_axis(ax, drawing.ACTIVE)
        drawing.log_axis(ax, "", "y")
        ax.set_title(f"E = {e:g} against dense", fontsize=10)
    axes[0].set_ylabel("training bytes D")
    drawing.shared_legend(axes[0])
    return axes


def _draw_gap(ax: Any, gap: Gap, tokens_range: tuple[float, float]) -> None:
    """Draw who wins at each D of a size, and the crossing with its interval."""
    for is_drawn, colour in ((gap.mean < 0, AHEAD_COLOUR), (gap.mean >= 0, BEHIND_COLOUR)):
        n_active = np.full(int(is_drawn.sum()), gap.n_active)
        ax.plot(n_active, gap.tokens[is_drawn], "s", color=colour, alpha=0.4, markersize=8, markeredgewidth=0)
    bounds = [bound for bound in gap.interval if not np.isnan(bound)]
    ax.plot([gap.n_active] * len(bounds), np.clip(bounds, *tokens_range), color="k", linewidth=1.2)
    marker = "^"
    if gap.bracketed:
        marker = "o"
    elif gap.crossing == 0:
        marker = "v"
    ax.plot(gap.n_active, np.clip(gap.crossing, *gap.between), marker, color="k", markersize=6, zorder=3)


def _draw_law(ax: Any, r: Results, law: Law, name: str, n_active: FloatArray, experts: int) -> None:
    """Draw a law's crossings over the sizes."""
    crossings = r.break_even(law, n_active, experts)
    tokens = np.where((crossings > 0) & np.isfinite(crossings), crossings, np.nan)
    inside = law.check(n_active, tokens, float(experts)).inside
    drawing.draw_curve(ax, n_active, tokens, inside, experts, color=COLOURS[name], label=name)


def _draw_legend(ax: Any) -> None:
    """Draw nothing but the entries of the legend."""
    ax.plot([], [], "s", color=AHEAD_COLOUR, alpha=0.4, markersize=8, label="experts ahead")
    ax.plot([], [], "s", color=BEHIND_COLOUR, alpha=0.4, markersize=8, label="dense ahead")
    ax.errorbar([], [], yerr=[], fmt="o", color="k", markersize=6, capsize=3, label="crossing measured, 95 %")
    ax.plot([], [], "^", color="k", markersize=6, label="above the D measured")


def crossing_gaps(r: Results, widths: tuple[int, ...] = (32, 64)) -> NDArray[Any]:
    """Draw the loss against dense models by D, a panel for each size, coloured by E, with standard errors."""
    axes = drawing.panels_or_new(None, len(widths), 1.0 + 4.4 * len(widths), 4.4, sharey=True)
    for ax, width in zip(axes, widths, strict=True):
        gaps = [gap for gap in r.gaps if gap.d_model == width]
        ax.axhline(0.0, color="0.4", linewidth=0.9)
        for k, gap in enumerate(gaps):
            # Side by side, so that the error bars of different E do not hide each other.
            tokens = gap.tokens * DODGE ** (k - (len(gaps) - 1) / 2)
            ax.errorbar(
                tokens,
                BITS_PER_NAT * gap.mean,
                BITS_PER_NAT * gap.error,
                fmt="o-",
                label=drawing.label_of(gap.experts),
                color=drawing.colour_of(gap.experts),
                markersize=4,
                linewidth=1.0,
                capsize=2,
            )
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
