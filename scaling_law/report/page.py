"""A report on the runs of one folder: what was run, the fit, how it extrapolates, and the paper's findings.

    scaling-law report docs/results --into docs/report.md

The prose is written by hand in the Markdown file; each number in a table comes from the records, between two comments
(`<!-- fit -->` … `<!-- /fit -->`) whose content is replaced. The folder holds `runs.jsonl`, and for the parts that
need them `learning-rates.jsonl`, `matched-plan.json` and `matched.jsonl`; `<!-- other/fit -->` is about its subfolder
`other`. Figures go beside the Markdown file (`figures/report-fit.png`; of a subfolder those that the file links to,
such as `figures/report-other-fit.png`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hub.plain import atomic
from hub.plain.markdown import block_of, replace_block
from hub.plain.tables import Table
from hub.plain.units import format_count, format_flops
from scaling_law.fitting.fitting import fit
from scaling_law.laws import JointLaw
from scaling_law.report import findings
from scaling_law.report.figures import FIGURES, draw
from scaling_law.report.findings import Finding
from scaling_law.report.results import Results, isoflop_profiles, repeat_scatter
from scaling_law.size.architecture import affordable_tokens

LEARNING_RATE_EXPERTS = (1, 8)  # fitted on these; the others check it, as in the paper
RUNS = "{} runs of {} trunks; {} tokens trained in all, {:.1e} to {:.1e} FLOPs each, D/N_act from {:.1f} to {:.0f}."
EPOCHS = " At most {:.2f} epochs of the data."
SEEDS = " Runs that differ in their seed only scatter by {:.4f} nats (standard deviation, {} degrees of freedom)."
FIT = "RMSE {:.4f} nats over {} runs of mean loss {:.3f}. {}"
RATES = "- {}: ln LR = {:.3f} {:+.3f} ln N {:+.3f} ln E, RMSE {:.2f}"


def write_report(folder: str | Path, report: str | Path, **options: Any) -> list[Path]:
    """Replace the blocks of the Markdown file `report` and draw its figures beside it; returns what was written.

    Only what the file has a block for is computed; `options` are the fields of `Results`. Raises RunsError and
    ValueError as `load_runs` and `fit` do, and ValueError for a file without a block.
    """
    results, target = Results(Path(folder), **options), Path(report)
    text = target.read_text(encoding="utf-8")
    subfolders = sorted(path.parent.name for path in results.folder.glob("*/runs.jsonl"))
    about = {"": results} | {f"{name}/": Results(results.folder / name, **options) for name in subfolders}
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


def _table(rows: Sequence[dict[str, object]], below: str = "") -> str:
    """A Markdown table of rows that all have the same columns, and a paragraph below it."""
    table = Table(list(rows[0]), [list(row.values()) for row in rows]).markdown()
    return f"{table}\n\n{below}" if below else table


def runs_block(results: Results) -> str:
    """What was run."""
    rows: list[dict[str, object]] = []
    for d, blocks, heads in sorted({(r["d_model"], r["n_blocks"], r["n_heads"]) for r in results.rows}):
        own = [r for r in results.rows if (r["d_model"], r["n_blocks"], r["n_heads"]) == (d, blocks, heads)]
        totals = [r["n_total"] for r in own]
        rows.append(
            {
                "d_model": d,
                "blocks": blocks,
                "N_act": format_count(own[0]["n_active"]),
                "N_total": f"{format_count(min(totals))} to {format_count(max(totals))}",
                "E": ", ".join(map(str, sorted({r["experts"] for r in own}))),
                "tokens D": ", ".join(map(format_count, sorted({r["tokens"] for r in own}))),
                "runs": len(own),
            }
        )
    runs = results.runs
    ratio, trunks = runs.tokens / runs.n_active, len(set(runs.trunk.tolist()))
    trained = format_count(_trained_tokens(results.rows))
    said = RUNS.format(len(runs), trunks, trained, runs.flops.min(), runs.flops.max(), ratio.min(), ratio.max())
    if epochs := [row["epochs"] for row in results.rows if row.get("epochs") is not None]:
        said += EPOCHS.format(max(epochs))
    deviation, freedom = repeat_scatter(runs)
    return _table(rows, said + (SEEDS.format(deviation, freedom) if freedom else ""))


def _trained_tokens(rows: list[dict[str, Any]]) -> int:
    """Tokens that were trained: each trunk to its last branch point once, and the decay of every branch."""
    trunks: dict[str, int] = {}
    for row in rows:
        if start := row.get("branch_point_tokens") or 0:
            trunks[row["parent_run_id"]] = max(start, trunks.get(row["parent_run_id"], 0))
    return sum(trunks.values()) + sum(row["tokens"] - (row.get("branch_point_tokens") or 0) for row in rows)


def losses_block(results: Results) -> str:
    """Every loss: a row for each trunk, a column for each token count."""
    counts = dict.fromkeys(format_count(t) for t in sorted({row["tokens"] for row in results.rows}))
    trunks: dict[tuple[Any, ...], dict[str, object]] = {}
    for row in sorted(results.rows, key=lambda r: (r["n_active"], r["experts"], r.get("seed") or 0)):
        rate = f"{row['schedule']['peak_learning_rate']:.4f}"
        trunk = {"d_model": row["d_model"], "E": row["experts"], "seed": row.get("seed"), "peak LR": rate}
        cells = trunks.setdefault(tuple(trunk.values()), trunk | dict.fromkeys(counts, ""))
        cells[format_count(row["tokens"])] = f"{row[results.runs.loss_name]:.3f}"
    return _table(list(trunks.values()))


def fit_block(results: Results) -> str:
    """Coefficients with intervals, and how well they are determined."""
    published = JointLaw.published().coefficients
    rows: list[dict[str, object]] = [
        {
            "coefficient": name,
            "fitted": f"{value:.4g}",
            "95 % (cluster bootstrap)": "{:.4g} to {:.4g}".format(*results.bootstrap.interval(name)),
            "the paper's": f"{published[name]:.4g}",
        }
        for name, value in results.law.coefficients.items()
    ]
    status = " ".join(results.fitted.status.messages) or "All coefficients are determined."
    return _table(rows, FIT.format(results.fitted.rmse, len(results.runs), results.runs.loss.mean(), status))


def residuals_block(results: Results) -> str:
    """Errors for each E, and of a Chinchilla fit of its own."""
    rows: list[dict[str, object]] = []
    rmse, bias = results.fitted.rmse_by_experts(), results.fitted.bias_by_experts()
    for e in results.experts:
        own = results.runs.subset(results.runs.experts == e)
        rows.append(
            {
                "E": f"{e:g}",
                "runs": len(own),
                "RMSE of the joint law": f"{rmse[e]:.4f}",
                "its bias": f"{bias[e]:+.4f}",
                "RMSE of a Chinchilla law for this E": f"{fit(own, 'chinchilla', outliers=results.outliers).rmse:.4f}",
            }
        )
    return _table(rows)


def extrapolation_block(results: Results) -> str:
    """How fits predict runs that were held out."""
    rows: list[dict[str, object]] = []
    for compared in results.held_out:
        parts, rmse = compared.split, {law: errors["validation"] for law, errors in compared.rmse.items()}
        rows.append(
            {
                "held out": parts.by,
                "fitted / predicted": f"{len(parts.train)} / {len(parts.validation)}",
                "RMSE, joint law": f"{rmse['joint']:.4f}",
                "its bias": f"{np.mean(compared.joint.errors_on(parts.validation)):+.4f}",
                "RMSE, Chinchilla for each E": "cannot" if compared.left_out else f"{rmse['separate']:.4f}",
                "spread": f"{np.std(parts.validation.loss):.3f}",
            }
        )
    return _table(rows)


def isoflop_block(results: Results) -> str:
    """The runs at fixed budgets, without a law."""
    rows: list[dict[str, object]] = []
    for flops in results.budgets:
        profiles = isoflop_profiles(results.runs, flops)
        dense = next((p.best_loss for p in profiles if p.experts == 1), float("nan"))
        rows += [
            {
                "FLOPs": f"{flops:.0e}",
                "E": f"{p.experts:g}",
                "best N_act": f"{format_count(p.best_n_active)}{' (end of the sizes)' * p.at_edge}",
                "D/N_act there": f"{affordable_tokens(flops, p.best_n_active) / p.best_n_active:.3g}",
                "loss": f"{p.best_loss:.3f}",
                "against dense": "" if p.experts == 1 else f"{p.best_loss - dense:+.3f}",
            }
            for p in profiles
        ]
    return _table(rows)


def all_findings(results: Results) -> list[Finding]:
    """The paper's four findings and its rule of thumb, at budgets inside the runs."""
    law, low, high = results.law, results.budgets[0], results.budgets[-1]
    moe = [e for e in results.experts if e > 1]
    found = [findings.more_tokens_per_parameter(law, flops, results.experts) for flops in (low, high)]
    found += [findings.better_with_experts(law, flops, e) for flops in (low, high) for e in moe]
    found += [findings.better_in_memory(law, high, e) for e in moe]
    if results.rates is not None:
        found.append(findings.lower_learning_rate(results.rates))
    return found + [findings.better_in_memory(law, high, e, times_tokens=True) for e in moe if e <= 8]


def findings_block(results: Results) -> str:
    """Claim, verdict, evidence."""
    return _table(
        [
            {
                "": f.name,
                "claim": f.claim,
                "on these runs": f.verdict,
                "share": f"{f.share:.1%}",
                "evidence": f.evidence,
            }
            for f in all_findings(results)
        ]
    )


def learning_rates_block(results: Results) -> str:
    """Best rates of the grid, and two laws: of E = 1 and 8 as in the paper, and of all models."""
    if results.rates is None:
        return "No learning rates were searched."
    some, every = results.rates.fit(LEARNING_RATE_EXPERTS), results.rates.fit()
    laws = {"law of E = 1 and 8 (regret, nats)": some, "law of all models": every}
    rows: list[dict[str, object]] = []
    for model in results.rates.models:
        a = model.architecture
        best = {"d_model": a.d_model, "E": a.experts, "N_act": format_count(a.n_active)}
        rows.append(best | {"best of the grid": f"{model.best:.4f}"})
        for name, law in laws.items():
            rate = law.learning_rate(a)
            rows[-1][name] = f"{rate:.4f} ({model.loss_at(rate) - min(model.losses):+.3f})"
    named = (("E = 1 and 8", some), ("all models", every))
    said = [RATES.format(name, law.intercept, law.slope_n, law.slope_e, law.rmse) for name, law in named]
    return _table(rows, "\n".join(said))


def matched_block(results: Results) -> str:
    """Predicted before training, and measured."""
    if results.matched is None:
        return "No matched experiment was run."
    plan, losses = results.matched
    means = [float(np.mean(seen)) if seen else float("nan") for seen in losses]
    rows: list[dict[str, object]] = []
    for model, seen, loss in zip(plan.models, losses, means, strict=True):
        a = model.architecture
        rows.append(
            {
                "E": a.experts,
                "compared at": model.role if a.experts > 1 else "dense",
                "d_model": a.d_model,
                "N_act": format_count(a.n_active),
                "N_total": format_count(a.n_total),
                "D": format_count(model.tokens),
                "FLOPs": format_flops(model.architecture.training_flops(model.tokens)),
                "predicted (95 %)": f"{model.loss:.3f} ({model.low:.3f} to {model.high:.3f})",
                "measured": ", ".join(f"{value:.3f}" for value in seen),
                "interval": "" if not seen else "inside" if model.low <= loss <= model.high else "outside",
                "against dense": "" if a.experts == 1 or np.isnan(loss - means[0]) else f"{loss - means[0]:+.3f}",
            }
        )
    return _table(rows)


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
