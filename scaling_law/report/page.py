"""A report on the runs of one folder: `scaling-law report my-sweep --into my-report.md`.

The prose is written by hand; each table replaces what stands between `<!-- fit -->` and `<!-- /fit -->`, or for a
subfolder `<!-- other/fit -->`. The folder holds `runs.jsonl` and, where there is one, `learning-rates.jsonl`.
Figures go to `figures/`, of a subfolder only those that the file links to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hub.base import atomic
from hub.base.errors import InputError
from hub.base.markdown import block_of, replace_block
from hub.base.tables import Part, markdown_of
from hub.base.units import format_count, format_flops
from scaling_law.figures import drawing
from scaling_law.figures.drawing import LOSS, colour_of
from scaling_law.fitting.fitting import fit
from scaling_law.law import JointLaw
from scaling_law.report.results import Results, all_findings, isoflop_profiles, repeat_scatter
from scaling_law.size.architecture import affordable_tokens

Block = Iterator[Part]
LEARNING_RATE_EXPERTS = (1, 8)  # fitted on these; the others check it, as in the paper
RUNS = "{} runs of {} trunks; {} tokens trained in all, {:.1e} to {:.1e} FLOPs each, D/N_act from {:.1f} to {:.0f}."
EPOCHS = " At most {:.2f} epochs of the data."
SEEDS = " Runs that differ in their seed only scatter by {:.4f} nats (standard deviation, {} degrees of freedom)."
FIT = "RMSE {:.4f} nats over {} runs of mean loss {:.3f}. {}"
RATES = "- {}: ln LR = {:.3f} {:+.3f} ln N {:+.3f} ln E, RMSE {:.2f}"
HIDDEN = {"_" + drawing.OUTSIDE, "_" + drawing.INTERVAL}  # labels of artists that the legend explains in a note
HELD_OUT = f"held-out {LOSS}"


def write_report(folder: str | Path, report: str | Path, **options: Any) -> list[Path]:
    """Replace the blocks of the Markdown file `report` and draw its figures beside it; returns what was written.

    Only what the file has a block for is computed; ValueError if it has none. `options` are the fields of `Results`.
    """
    folder, target = Path(folder), Path(report)
    text = target.read_text(encoding="utf-8")
    subfolders = sorted(path.parent.name for path in folder.glob("*/runs.jsonl"))
    results = {about: Results(folder / about, **options) for about in ("", *subfolders)}
    blocks = {f"{about}/{name}".lstrip("/"): (about, name) for about in results for name in BLOCKS}
    present = [block for block in blocks if block_of(text, block) is not None]
    if not present:
        names = ", ".join(BLOCKS)
        raise InputError(f"{target}: no block such as `<!-- fit -->` and `<!-- /fit -->`; there are {names}")
    for block in present:
        about, name = blocks[block]
        text = replace_block(text, block, markdown_of(BLOCKS[name](results[about])))
    written = [target]
    for about, result in results.items():
        for name, draw in FIGURES.items():
            file = "-".join(filter(None, (target.stem, about, f"{name}.png")))
            if (not about or file in text) and (drawn := draw(result)) is not None:
                written.append(drawing.save(drawn, target.parent / "figures" / file))
    atomic.write_bytes(target, text.encode())
    return written


def runs_block(results: Results) -> Block:
    yield "d_model", "blocks", "N_act", "N_total", "E", "tokens D", "runs"
    shapes: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for row in results.rows:
        shapes.setdefault((row["d_model"], row["n_blocks"], row["n_heads"]), []).append(row)
    for (d, blocks, _), rows in sorted(shapes.items()):
        n_total = " to ".join(format_count(end([r["n_total"] for r in rows])) for end in (min, max))
        experts = ", ".join(map(str, sorted({r["experts"] for r in rows})))
        tokens = ", ".join(map(format_count, sorted({r["tokens"] for r in rows})))
        yield d, blocks, format_count(rows[0]["n_active"]), n_total, experts, tokens, len(rows)
    runs = results.runs
    ratio, trunks = runs.tokens / runs.n_active, len(set(runs.trunk.tolist()))
    trained = format_count(_trained_tokens(results.rows))
    said = RUNS.format(len(runs), trunks, trained, runs.flops.min(), runs.flops.max(), ratio.min(), ratio.max())
    if epochs := [row["epochs"] for row in results.rows if row.get("epochs") is not None]:
        said += EPOCHS.format(max(epochs))
    deviation, freedom = repeat_scatter(runs)
    yield said + (SEEDS.format(deviation, freedom) if freedom else "")


def _trained_tokens(rows: list[dict[str, Any]]) -> int:
    """Tokens that were trained: each trunk to its last branch point once, and the decay of every branch."""
    trunks: dict[str, int] = {}
    for row in rows:
        if start := row.get("branch_point_tokens") or 0:
            trunks[row["parent_run_id"]] = max(start, trunks.get(row["parent_run_id"], 0))
    return sum(trunks.values()) + sum(row["tokens"] - (row.get("branch_point_tokens") or 0) for row in rows)


def losses_block(results: Results) -> Block:
    counts = dict.fromkeys(format_count(t) for t in sorted({row["tokens"] for row in results.rows}))
    yield "d_model", "E", "seed", "peak LR", *counts
    trunks: dict[tuple[object, ...], dict[str, str]] = {}
    for row in sorted(results.rows, key=lambda r: (r["n_active"], r["experts"], r.get("seed") or 0)):
        trunk = row["d_model"], row["experts"], row.get("seed"), f"{row['schedule']['peak_learning_rate']:.4f}"
        losses = trunks.setdefault(trunk, dict.fromkeys(counts, ""))
        losses[format_count(row["tokens"])] = f"{row[results.runs.loss_name]:.3f}"
    yield from ((*trunk, *losses.values()) for trunk, losses in trunks.items())


def fit_block(results: Results) -> Block:
    """Coefficients with intervals, and how well they are determined."""
    yield "coefficient", "fitted", "95 % (cluster bootstrap)", "the paper's"
    published = JointLaw.published().coefficients
    for name, value in results.law.coefficients.items():
        interval = "{:.4g} to {:.4g}".format(*results.bootstrap.interval(name))
        yield name, f"{value:.4g}", interval, f"{published[name]:.4g}"
    status = " ".join(results.fitted.status.messages) or "All coefficients are determined."
    yield FIT.format(results.fitted.rmse, len(results.runs), results.runs.loss.mean(), status)


def residuals_block(results: Results) -> Block:
    """Errors for each E, and of a Chinchilla fit of its own."""
    yield "E", "runs", "RMSE of the joint law", "its bias", "RMSE of a Chinchilla law for this E"
    rmse, bias = results.fitted.rmse_by_experts(), results.fitted.bias_by_experts()
    for e in results.experts:
        part = results.runs.subset(results.runs.experts == e)
        chinchilla = fit(part, "chinchilla", **results.settings)
        yield f"{e:g}", len(part), f"{rmse[e]:.4f}", f"{bias[e]:+.4f}", f"{chinchilla.rmse:.4f}"


def extrapolation_block(results: Results) -> Block:
    yield "held out", "fitted / predicted", "RMSE, joint law", "its bias", "RMSE, Chinchilla for each E", "spread"
    for compared in results.held_out:
        held, rmse = compared.split.validation, compared.rmse
        bias = np.mean(compared.joint.errors_on(held))
        separate = "cannot" if compared.left_out else f"{rmse['separate']['validation']:.4f}"
        joint = f"{rmse['joint']['validation']:.4f}", f"{bias:+.4f}"
        counts = f"{len(compared.split.train)} / {len(held)}"
        yield compared.split.by, counts, *joint, separate, f"{np.std(held.loss):.3f}"


def isoflop_block(results: Results) -> Block:
    yield "FLOPs", "E", "best N_act", "D/N_act there", "loss", "against dense"
    for flops in results.budgets:
        profiles = isoflop_profiles(results.runs, flops)
        dense = next((p.best_loss for p in profiles if p.experts == 1), float("nan"))
        for p in profiles:
            size = f"{format_count(p.best_n_active)}{' (end of the sizes)' * p.at_edge}"
            ratio = affordable_tokens(flops, p.best_n_active) / p.best_n_active
            gain = "" if p.experts == 1 else f"{p.best_loss - dense:+.3f}"
            yield f"{flops:.0e}", f"{p.experts:g}", size, f"{ratio:.3g}", f"{p.best_loss:.3f}", gain


def findings_block(results: Results) -> Block:
    yield "", "claim", "on these runs", "share", "evidence"
    for finding in all_findings(results):
        yield finding.name, finding.claim, finding.verdict, f"{finding.share:.1%}", finding.evidence


def learning_rates_block(results: Results) -> Block:
    """Best rates of the grid, and two laws: of E = 1 and 8 as in the paper, and of all models."""
    if results.rates is None:
        yield "No learning rates were searched."
        return
    laws = {"E = 1 and 8": results.rates.fit(LEARNING_RATE_EXPERTS), "all models": results.rates.fit()}
    yield "d_model", "E", "N_act", "best of the grid", "law of E = 1 and 8 (regret, nats)", "law of all models"
    for model in results.rates.models:
        rates = [model.rate_of(law) for law in laws.values()]
        regrets = [f"{rate:.4f} ({model.loss_at(rate) - min(model.losses):+.3f})" for rate in rates]
        width = model.architecture.d_model if model.architecture else None
        yield width, model.experts, format_count(model.n_active), f"{model.best:.4f}", *regrets
    said = (RATES.format(name, law.intercept, law.slope_n, law.slope_e, law.rmse) for name, law in laws.items())
    yield "\n".join(said)


# ------------------------------------------------------------------ figures


def loss_by_size(results: Results, axes: Any = None) -> NDArray[Any]:
    """Loss against tokens, a panel for each size: runs as points, the joint law as lines."""
    runs = results.runs
    sizes = np.unique(runs.n_active)
    axes = drawing.panels_or_new(axes, len(sizes), 3.0 * len(sizes), 3.8, sharey=True)
    for ax, n in zip(axes, sizes, strict=True):
        for e in np.unique(runs.experts[runs.n_active == n]):
            part = (runs.n_active == n) & (runs.experts == e)
            span = np.geomspace(runs.tokens[part].min(), runs.tokens[part].max(), 60)
            drawing.draw_loss(ax, results.law, span, n, span, e, linewidth=1.0)
            ax.plot(runs.tokens[part], runs.loss[part], "o", color=colour_of(e), markersize=4)
        drawing.log_axis(ax, drawing.TOKENS)
        ax.set_title(f"N_act = {format_count(n)}")
    return _labelled(axes, HELD_OUT, results.experts, {"runs": {"marker": "o", "linestyle": "", "color": "0.4"}})


def isoflop_of_runs(results: Results, axes: Any = None) -> NDArray[Any]:
    """Loss against N_act at fixed budgets: points between the runs, without the law, and the law as lines."""
    budgets = results.budgets
    axes = drawing.panels_or_new(axes, len(budgets), 3.4 * len(budgets), 4.0)
    for ax, flops in zip(axes, budgets, strict=True):
        for profile in isoflop_profiles(results.runs, flops):
            ax.plot(profile.n_active, profile.loss, "o", color=colour_of(profile.experts), markersize=5)
            span = np.geomspace(profile.n_active.min() / 1.3, profile.n_active.max() * 1.3, 80)
            tokens = affordable_tokens(flops, span)
            drawing.draw_loss(ax, results.law, span, span, tokens, profile.experts, linewidth=1.0)
        drawing.log_axis(ax, drawing.ACTIVE)
        ax.set_title(f"{format_flops(flops)} FLOPs")
    points = {"interpolated between runs": {"marker": "o", "linestyle": "", "color": "0.4"}}
    return _labelled(axes, HELD_OUT, results.experts, points)


def _labelled(
    axes: NDArray[Any], label: str, experts: Collection[float], styles: dict[str, dict[str, Any]], **marks: Any
) -> NDArray[Any]:
    """Label the left axis, and all panels by one legend: every E in the style `marks`, the `styles`, and notes."""
    ax = axes[0]
    ax.set_ylabel(label)
    seen = set(ax.get_legend_handles_labels()[1])
    for e in experts:
        if drawing.label_of(e) not in seen:
            ax.plot([], [], color=colour_of(e), label=drawing.label_of(e), **marks)
    for text, style in styles.items():
        ax.plot([], [], label=text, **{"markersize": 4, "linewidth": 0.9, **style})
    for hidden in {artist.get_label() for other in axes[1:] for artist in other.get_children()} & HIDDEN:
        ax.plot([], [], label=hidden)
    drawing.shared_legend(ax)
    return axes


def held_out_runs(results: Results, axes: Any = None) -> NDArray[Any]:
    """Predicted against observed loss of the runs that each fit has not seen (filled) and has seen (pale)."""
    axes = drawing.panels_or_new(axes, len(results.held_out), 3.4 * len(results.held_out), 4.1)
    for ax, compared in zip(axes, results.held_out, strict=True):
        parts = compared.split
        for runs, alpha in ((parts.train, 0.2), (parts.validation, 1.0)):
            predicted = runs.loss + compared.joint.errors_on(runs)
            ax.scatter(runs.loss, predicted, s=16, c=[colour_of(e) for e in runs.experts], alpha=alpha, linewidths=0)
        both = np.concatenate([parts.train.loss, parts.validation.loss])
        ends = [both.min(), both.max()]
        ax.plot(ends, ends, color="0.4", linewidth=0.9, zorder=0)
        ax.set(xlabel=f"observed {LOSS}")
        ax.set_title(f"without {parts.by}", fontsize=8)
    dot: dict[str, Any] = {"marker": "o", "linestyle": "", "color": "0.3"}
    styles = {"fitted": dot | {"alpha": 0.2, "markeredgewidth": 0}, "held out": dot | {"markeredgewidth": 0}}
    return _labelled(axes, f"predicted {LOSS}", results.experts, styles, marker="o", linestyle="", markersize=4)


def learning_rate_grid(results: Results, axes: Any = None) -> NDArray[Any] | None:
    """Loss against peak learning rate for each model, the rate of the law of all models as a dashed line."""
    if (grid := results.rates) is None:
        return None
    law, style = grid.fit(), {"marker": "o", "markersize": 4, "linewidth": 0.9}
    sizes = sorted({model.size for model in grid.models})
    axes = drawing.panels_or_new(axes, len(sizes), 3.0 * len(sizes), 3.8, sharey=True)
    for ax, size in zip(axes, sizes, strict=True):
        for model in (m for m in grid.models if m.size == size):
            colour = colour_of(model.experts)
            ax.plot(model.learning_rates, model.losses, color=colour, **style)
            ax.axvline(model.rate_of(law), color=colour, linestyle="--", linewidth=0.9)
        drawing.log_axis(ax, "peak learning rate")
        ax.set_title(size[1])
    experts = sorted({model.experts for model in grid.models})
    return _labelled(axes, HELD_OUT, experts, {"rate of the fitted law": {"linestyle": "--", "color": "0.4"}}, **style)


BLOCKS: dict[str, Callable[[Results], Block]] = {
    "runs": runs_block,
    "losses": losses_block,
    "learning-rates": learning_rates_block,
    "fit": fit_block,
    "residuals": residuals_block,
    "extrapolation": extrapolation_block,
    "isoflop": isoflop_block,
    "findings": findings_block,
}
FIGURES: dict[str, Callable[[Results], Any]] = {
    "fit": lambda results: results.fitted.figure(),
    "losses": loss_by_size,
    "isoflop": isoflop_of_runs,
    "held-out": held_out_runs,
    "learning-rates": learning_rate_grid,
}
