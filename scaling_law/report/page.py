"""A report on the runs of one folder: what was run, the fit, how it extrapolates, and the paper's findings.

    scaling-law report docs/results --into docs/report.md

The prose is written by hand in the Markdown file; each number in a table comes from the records, between two comments
(`<!-- fit -->` … `<!-- /fit -->`) whose content is replaced. The folder holds `runs.jsonl`, and for the parts that
need them `learning-rates.jsonl`, `matched-plan.json` and `matched.jsonl`; `<!-- other/fit -->` is about its subfolder
`other`. Figures go beside the Markdown file (`figures/report-fit.png`; of a subfolder those that the file links to,
such as `figures/report-other-fit.png`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hub.plain import atomic
from hub.plain.markdown import block_of, replace_block
from hub.plain.tables import Table
from hub.plain.units import format_count
from scaling_law.fitting.fitting import fit
from scaling_law.laws import JointLaw
from scaling_law.report import findings
from scaling_law.report.figures import FIGURES, draw
from scaling_law.report.findings import Finding
from scaling_law.report.isoflop import isoflop_profiles, repeat_scatter
from scaling_law.report.results import Results

LEARNING_RATE_EXPERTS = (1, 8)  # fitted on these; the others check it, as in the paper


def write_report(folder: str | Path, report: str | Path) -> list[Path]:
    """Replace the blocks of the Markdown file `report` and draw its figures beside it; returns what was written.

    Only what the file has a block for is computed. Raises RunsError and ValueError as `load_runs` and `fit` do, and
    ValueError for a file without a block.
    """
    results, target = Results(Path(folder)), Path(report)
    text = target.read_text(encoding="utf-8")
    subfolders = sorted(path.parent.name for path in results.folder.glob("*/runs.jsonl"))
    about = {"": results} | {f"{name}/": Results(results.folder / name) for name in subfolders}
    found = [(f"{prefix}{name}", one, make) for prefix, one in about.items() for name, make in BLOCKS.items()]
    found = [(name, one, make) for name, one, make in found if block_of(text, name) is not None]
    if not found:
        raise ValueError(
            f"{target}: no block such as `<!-- fit -->` and `<!-- /fit -->`; there are {', '.join(BLOCKS)}"
        )
    for name, one, make in found:
        text = replace_block(text, name, make(one))
    drawn = draw(results, target.parent / "figures", target.stem)
    for name in subfolders:
        prefix = f"{target.stem}-{name}"
        linked = [figure for figure in FIGURES if f"{prefix}-{figure}.png" in text]
        drawn += draw(about[f"{name}/"], target.parent / "figures", prefix, linked)
    atomic.write_bytes(target, text.encode())
    return [target, *drawn]


# -- the blocks


def runs_block(results: Results) -> str:
    """What was run."""
    rows = []
    sizes = sorted({(r["d_model"], r["n_blocks"], r["n_heads"]) for r in results.rows})
    for d, blocks, heads in sizes:
        own = [r for r in results.rows if (r["d_model"], r["n_blocks"], r["n_heads"]) == (d, blocks, heads)]
        tokens = sorted({r["tokens"] for r in own})
        rows.append(
            (
                d,
                blocks,
                format_count(own[0]["n_active"]),
                f"{format_count(min(r['n_total'] for r in own))} to {format_count(max(r['n_total'] for r in own))}",
                ", ".join(f"{e}" for e in sorted({r["experts"] for r in own})),
                ", ".join(format_count(t) for t in tokens),
                len(own),
            )
        )
    header = ("d_model", "blocks", "N_act", "N_total", "E", "tokens D", "runs")
    runs = results.runs
    ratio = runs.tokens / runs.n_active
    said = (
        f"{len(runs)} runs of {len(set(runs.trunk.tolist()))} trunks; {format_count(_trained_tokens(results.rows))} "
        f"tokens trained in all, {runs.flops.min():.1e} to {runs.flops.max():.1e} FLOPs each, D/N_act from "
        f"{ratio.min():.1f} to {ratio.max():.0f}."
    )
    if epochs := [row["epochs"] for row in results.rows if row.get("epochs") is not None]:
        said += f" At most {max(epochs):.2f} epochs of the data."
    deviation, freedom = repeat_scatter(runs)
    if freedom:
        said += (
            f" Runs that differ in their seed only scatter by {deviation:.4f} nats (standard deviation, {freedom} "
            "degrees of freedom)."
        )
    return Table(header, rows).markdown() + "\n\n" + said


def losses_block(results: Results) -> str:
    """Every loss: a row for each trunk, a column for each token count."""
    rows = sorted(results.rows, key=lambda r: (r["n_active"], r["experts"], r.get("seed") or 0))
    counts = list(dict.fromkeys(format_count(t) for t in sorted({row["tokens"] for row in rows})))
    trunks: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in rows:
        rate = row["schedule"]["peak_learning_rate"]
        trunk = (row["d_model"], row["experts"], row.get("seed"), f"{rate:.4f}")
        trunks.setdefault(trunk, {})[format_count(row["tokens"])] = f"{row[results.runs.loss_name]:.3f}"
    header = ("d_model", "E", "seed", "peak LR", *counts)
    cells = [(*trunk, *(losses.get(count, "") for count in counts)) for trunk, losses in trunks.items()]
    return Table(header, cells).markdown()


def _trained_tokens(rows: list[dict[str, Any]]) -> int:
    """Tokens that were trained: each trunk to its last branch point once, and the decay of every branch."""
    trunks: dict[str, int] = {}
    decays = 0
    for row in rows:
        start = row.get("branch_point_tokens") or 0
        decays += row["tokens"] - start
        if start:
            trunks[row["parent_run_id"]] = max(start, trunks.get(row["parent_run_id"], 0))
    return decays + sum(trunks.values())


def fit_block(results: Results) -> str:
    """Coefficients with intervals, and how well they are determined."""
    published = JointLaw.published().coefficients
    rows = []
    for name, value in results.law.coefficients.items():
        low, high = results.bootstrap.interval(name)
        rows.append((name, f"{value:.4g}", f"{low:.4g} to {high:.4g}", f"{published[name]:.4g}"))
    status = " ".join(results.fitted.status.messages) or "All coefficients are determined."
    return (
        Table(("coefficient", "fitted", "95 % (trunks resampled)", "the paper's"), rows).markdown()
        + f"\n\nRMSE {results.fitted.rmse:.4f} nats over {len(results.runs)} runs of mean loss "
        + f"{results.runs.loss.mean():.3f}. {status}"
    )


def residuals_block(results: Results) -> str:
    """Errors for each E, and of a Chinchilla fit of its own."""
    rows = []
    rmse, bias = results.fitted.rmse_by_experts(), results.fitted.bias_by_experts()
    for e in results.experts:
        own = results.runs.subset(results.runs.experts == e)
        separate = fit(own, "chinchilla")
        rows.append((f"{e:g}", len(own), f"{rmse[e]:.4f}", f"{bias[e]:+.4f}", f"{separate.rmse:.4f}"))
    header = ("E", "runs", "RMSE of the joint law", "its bias", "RMSE of a Chinchilla law for this E")
    return Table(header, rows).markdown()


def extrapolation_block(results: Results) -> str:
    """What fits to the rest say of runs that they have not seen."""
    rows = []
    for compared in results.held_out:
        parts = compared.split
        seen, spread = parts.validation, float(np.std(parts.validation.loss))
        separate = compared.rmse["separate"]["validation"]
        bias = float(np.mean(compared.joint.errors_on(seen)))
        rows.append(
            (
                parts.by,
                f"{len(parts.train)} / {len(seen)}",
                f"{compared.rmse['joint']['validation']:.4f}",
                f"{bias:+.4f}",
                "cannot" if compared.left_out else f"{separate:.4f}",
                f"{spread:.3f}",
            )
        )
    header = ("held out", "fitted / predicted", "RMSE, joint law", "its bias", "RMSE, Chinchilla for each E", "spread")
    return Table(header, rows).markdown()


def isoflop_block(results: Results) -> str:
    """The runs at fixed budgets, without a law."""
    rows = []
    for flops in results.budgets:
        profiles = isoflop_profiles(results.runs, flops)
        dense = next((p.best_loss for p in profiles if p.experts == 1), float("nan"))
        rows += [
            (
                f"{flops:.0e}",
                f"{p.experts:g}",
                f"{format_count(p.best_n_active)}{' (end of the sizes)' if p.at_edge else ''}",
                f"{flops / (6 * p.best_n_active**2):.3g}",
                f"{p.best_loss:.3f}",
                "" if p.experts == 1 else f"{p.best_loss - dense:+.3f}",
            )
            for p in profiles
        ]
    header = ("FLOPs", "E", "best N_act", "D/N_act there", "loss", "against dense")
    return Table(header, rows).markdown()


def all_findings(results: Results) -> list[Finding]:
    """The paper's four findings and its rule of thumb, at budgets inside the runs."""
    law, low, high = results.law, results.budgets[0], results.budgets[-1]
    moe = [e for e in results.experts if e > 1]
    found = [findings.more_tokens_per_parameter(law, flops, results.experts) for flops in (low, high)]
    found += [findings.better_with_experts(law, flops, e) for flops in (low, high) for e in moe]
    found += [findings.better_in_memory(law, high, e, vocab_size=results.vocab_size) for e in moe]
    if results.rates is not None:
        found.append(findings.lower_learning_rate(results.rates))
    return found + [
        findings.better_in_memory(law, high, e, vocab_size=results.vocab_size, times_tokens=True)
        for e in moe
        if e <= 8
    ]


def findings_block(results: Results) -> str:
    """Claim, verdict, evidence."""
    rows = [(f.name, f.claim, f.verdict, f"{f.share:.1%}", f.evidence) for f in all_findings(results)]
    return Table(("", "claim", "on these runs", "share", "evidence"), rows).markdown()


def learning_rates_block(results: Results) -> str:
    """Best rates of the grid, and two laws: of E = 1 and 8 as in the paper, and of all models."""
    if results.rates is None:
        return "No learning rates were searched."
    some, every = results.rates.fit(LEARNING_RATE_EXPERTS), results.rates.fit()
    rows = []
    for model in results.rates.models:
        a = model.architecture
        cells = [f"{a.d_model}", f"{a.experts}", format_count(a.n_active), f"{model.best:.4f}"]
        for law in (some, every):
            cost = model.loss_at(law.learning_rate(a)) - min(model.losses)
            cells.append(f"{law.learning_rate(a):.4f} ({cost:+.3f})")
        rows.append(cells)
    header = ("d_model", "E", "N_act", "best of the grid", "law of E = 1 and 8 (nats it costs)", "law of all models")
    laws = "\n".join(
        f"- {name}: ln LR = {law.intercept:.3f} {law.slope_n:+.3f} ln N {law.slope_e:+.3f} ln E, RMSE {law.rmse:.2f}"
        for name, law in (("E = 1 and 8", some), ("all models", every))
    )
    return Table(header, rows).markdown() + "\n\n" + laws


def matched_block(results: Results) -> str:
    """Predicted before training, and measured."""
    if results.matched is None:
        return "No matched experiment was run."
    plan, losses = results.matched
    dense = np.mean(losses[0]) if losses[0] else float("nan")
    rows = []
    for model, seen in zip(plan.models, losses, strict=True):
        a, loss = model.architecture, float(np.mean(seen)) if seen else float("nan")
        inside = "" if not seen else "inside" if model.low <= loss <= model.high else "outside"
        rows.append(
            (
                a.experts,
                model.role if a.experts > 1 else "dense",
                a.d_model,
                format_count(a.n_active),
                format_count(a.n_total),
                format_count(model.tokens),
                f"{model.training_flops:.2e}",
                f"{model.loss:.3f} ({model.low:.3f} to {model.high:.3f})",
                ", ".join(f"{value:.3f}" for value in seen),
                inside,
                "" if a.experts == 1 or np.isnan(loss - dense) else f"{loss - dense:+.3f}",
            )
        )
    header = (
        "E",
        "",
        "d_model",
        "N_act",
        "N_total",
        "D",
        "FLOPs",
        "predicted (95 %)",
        "measured",
        "",
        "against dense",
    )
    return Table(header, rows).markdown()


BLOCKS: dict[str, Callable[[Results], str]] = {
    "runs": runs_block,
    "losses": losses_block,
    "learning-rates": learning_rates_block,
    "fit": fit_block,
    "residuals": residuals_block,
    "extrapolation": extrapolation_block,
    "isoflop": isoflop_block,
    "findings": findings_block,
    "matched": matched_block,
}
