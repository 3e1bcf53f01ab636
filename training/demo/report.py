"""What the demo shows: the table of its runs, a plain word on its fit, the figures, and the closing summary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from hub import RunRecord
from hub.plain.units import format_bytes, format_count
from hub.release.cards import loading_code
from scaling_law import Bootstrap, FitResult, JointLaw, OptimalTable, Runs, fit
from scaling_law.figures import law_figures as scaling_figures
from training.corpus import CorpusReport


@dataclass(frozen=True)
class Sample:
    """What the released model wrote, and its loss measured again (nats per token)."""

    record: RunRecord
    folder: Path
    text: str
    loss: float


@dataclass(frozen=True)
class Extrapolation:
    """How well runs predict larger ones: a fit without the largest width, judged on the largest width.

    Attributes:
        fitted, predicted: numbers of runs.
        n_active: of the width that was left out.
        rmse: error of the joint law on it, nats per token.
        spread: standard deviation of its losses: the error of their mean, which a law has to beat to say anything.
    """

    fitted: int
    predicted: int
    n_active: float
    rmse: float
    spread: float


def runs_table(records: list[RunRecord]) -> Table:
    """Held-out losses: a row per size, a column per token count."""
    tokens = sorted({record.schedule.horizon_tokens for record in records})
    table = Table(title="held-out loss, nats per token", box=box.SIMPLE_HEAD)
    table.add_column("d_model", justify="right")
    table.add_column("E", justify="right")
    table.add_column("N_act", justify="right")
    table.add_column("N_total", justify="right")
    for count in tokens:
        table.add_column(f"{count / 1e6:.2f}M", justify="right")
    table.add_column("load max/mean", justify="right")
    table.add_column("dropped", justify="right")
    sizes = sorted({(record.d_model, record.experts) for record in records})
    for d_model, experts in sizes:
        row = {r.schedule.horizon_tokens: r for r in records if (r.d_model, r.experts) == (d_model, experts)}
        last = row[max(row)]
        losses = [f"{row[count].eval_loss:.3f}" if count in row else "" for count in tokens]
        routing = [f"{last.expert_load_max_over_mean:.2f}", f"{last.drop_rate:.1%}"] if experts > 1 else ["", ""]
        table.add_row(
            str(d_model), str(experts), f"{last.n_active / 1e6:.2f}M", f"{last.n_total / 1e6:.2f}M", *losses, *routing
        )
    return table


@dataclass(frozen=True)
class Fitted:
    """The demo's fit: its runs, the result, the bootstrap over trunks, and how it extrapolates."""

    runs: Runs
    result: FitResult
    bootstrap: Bootstrap
    extrapolation: Extrapolation | None


def extrapolate(runs: Runs) -> Extrapolation | None:
    """Fit without the largest width and predict it; None where too few runs are left for the law."""
    sizes = runs.n_active
    largest = sizes == sizes.max()
    if len(JointLaw.coefficient_names()) >= (~largest).sum():
        return None
    rest, left_out = runs.subset(~largest), runs.subset(largest)
    errors = fit(rest, law="joint").errors_on(left_out)
    return Extrapolation(
        fitted=len(rest),
        predicted=len(left_out),
        n_active=float(sizes.max()),
        rmse=float(np.sqrt(np.mean(errors**2))),
        spread=float(left_out.loss.std()),
    )


def trust(fitted: Fitted) -> str:
    """A plain statement of how far the demo's fit can be trusted, from its own numbers."""
    runs, result, law = fitted.runs, fitted.result, fitted.bootstrap.law
    conditions = law.conditions
    parts = [
        f"{len(runs)} runs of {len(set(runs.trunk))} trunks for {len(result.law.coefficients)} coefficients; "
        f"N_act spans {_span(runs.n_active)}, tokens {_span(runs.tokens)}, and the fitted RMSE is "
        f"{result.rmse:.3f} nats. The paper's fit has 0.006 on 270 runs over {2.72e9 / 79e6:.0f}x and 160x.",
    ]
    if vague := [*result.status.undetermined, *result.status.bounds_hit]:
        parts.append(f"These runs do not determine {', '.join(dict.fromkeys(vague))}; their values mean nothing.")
    if (e := fitted.extrapolation) is not None:
        verdict = "better than" if e.rmse < e.spread else "no better than"
        parts.append(
            f"Fitted to the {e.fitted} smaller runs only, it misses the {e.predicted} of N_act = "
            f"{format_count(e.n_active)} by {e.rmse:.3f} nats, {verdict} their mean would do ({e.spread:.3f})."
        )
    beyond = "; ".join(str(excess) for excess in conditions.excesses(1e9, 2e10, 1))
    parts.append(
        "It shows that the loop works. A dense model of 1B parameters on 20B tokens is too far from its runs to ask: "
        f"{beyond}."
    )
    parts.append(f"Asked where its runs lie, with {own_budget(law):.0e} FLOPs: {own_answer(law)}")
    return "\n".join(parts)


def own_budget(law: JointLaw) -> float:
    """FLOPs in the middle of the runs that the law was fitted on, as one digit and a power of ten."""
    return float(f"{np.sqrt(np.prod(law.conditions.overall.training_flops)):.0e}")


def own_optimum(law: JointLaw) -> OptimalTable:
    """The best models for `own_budget` by the demo's own law. ValueError, which says what it can answer, for none."""
    return law.optimal(own_budget(law), law.conditions.experts)


def own_answer(law: JointLaw) -> str:
    """The best model of `own_optimum`, or which questions this law can answer."""
    try:
        table = own_optimum(law)
    except ValueError as error:
        return str(error)
    best, tied = table.best, f" {table.comparison}." if table.comparison else ""
    interval = "" if best.loss_interval is None else " ({:.3f} to {:.3f}, 95 %)".format(*best.loss_interval)
    return (
        f"E = {best.experts:g}, {format_count(best.n_active)} active parameters, {format_count(best.tokens)} tokens, "
        f"loss {best.loss:.3f}{interval}.{tied}"
    )


def own_question(law: JointLaw, folder: str) -> str:
    """The command that asks the demo's own law, saved in `folder`, what it can answer."""
    try:
        own_optimum(law)
    except ValueError:
        runs = law.conditions.overall
        n_active, tokens = (float(np.sqrt(np.prod(ends))) for ends in (runs.n_active, runs.tokens))
        experts = ",".join(f"{e:g}" for e in law.conditions.experts)
        return (
            f"scaling-law loss --law {folder} --n-active {format_count(n_active)} --tokens {format_count(tokens)} "
            f"--experts {experts}"
        )
    return f"scaling-law optimal --law {folder} --flops {own_budget(law):.0e}"


def figures(folder: Path, law: JointLaw, result: FitResult) -> list[Path]:
    """Write the demo's PNGs; returns their paths."""
    drawn = {
        "demo-predicted-against-observed": scaling_figures.predicted_against_observed(result),
        "published-isoflop": scaling_figures.isoflop(law),
        "published-memory-optimal": scaling_figures.memory_optimal(law, flops=1e22),
    }
    return [scaling_figures.save(axes, folder / f"{name}.png") for name, axes in drawn.items()]


def answer_text(table: OptimalTable) -> str:
    """The best row in a sentence."""
    best = table.best
    return (
        f"E = {best.experts:g}: d_model {best.d_model:.0f}, {format_count(best.n_active)} active of "
        f"{format_count(best.n_total)} parameters, {format_count(best.tokens)} tokens at peak learning rate "
        f"{best.learning_rate:.2g}; {format_bytes(best.weight_bytes)} of weights and "
        f"{format_bytes(best.kv_cache_bytes)} of KV cache; predicted loss {best.loss:.3f}"
    )


def summary(
    seconds: dict[str, float],
    corpus: CorpusReport,
    released: list[RunRecord],
    fitted: Fitted,
    table: OptimalTable,
    sample: Sample,
    folder: Path,
) -> Panel:
    """The closing panel."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold cyan", no_wrap=True)
    rows.add_column()
    trunks = {record.parent_run_id for record in released}
    tokens = sum(r.tokens - r.branch_point_tokens for r in released)
    tokens += sum(max(r.branch_point_tokens for r in released if r.parent_run_id == trunk) for trunk in trunks)
    rows.add_row("corpus", str(corpus))
    rows.add_row("sweep", f"{len(released)} runs on {len(trunks)} trunks, {tokens / 1e6:.1f}M tokens trained")
    rows.add_row("losses", _loss_range(released))
    rows.add_row("our fit", f"RMSE {fitted.result.rmse:.4f} nats over {len(fitted.runs)} runs; see the warning above")
    rows.add_row("paper's law", answer_text(table))
    rows.add_row("model says", escape(" ".join(sample.text.split())))
    rows.add_row("reload", f"loss {sample.loss:.6f}, recorded {sample.record.eval_loss:.6f}")
    rows.add_row("time", ", ".join(f"{name.split()[1].lower()} {s:.0f} s" for name, s in seconds.items()))
    here = escape(str(folder))
    next_steps = (
        f"[bold]Look at[/]  {here}/figures/*.png, {here}/hub (a release as it lies on the Hub)\n"
        "[bold]Load[/]     the Python below\n"
        f"[bold]Refit[/]    scaling-law fit {here}/hub/datasets/{sample.record.sweep}-runs/main\n"
        f"[bold]Ask[/]      {own_question(fitted.bootstrap.law, f'{here}/law')}\n"
        "         scaling-law optimal --flops 1e22 --memory 80GB --kv-tokens 16k"
    )
    return Panel(Group(rows, "", next_steps), title="[bold]The loop, closed[/]", border_style="green", padding=(1, 2))


def show_loading(console: Console, sample: Sample) -> None:
    """Print Python that loads the released model, from any folder; without a frame, which would be pasted with it."""
    console.print("To load the model in any Python that has transformers (this runs the code of the release):\n")
    console.print(loading_code(str(sample.folder.resolve())), markup=False, highlight=False, soft_wrap=True)


def _loss_range(records: list[RunRecord]) -> str:
    best, worst = min(records, key=lambda r: r.eval_loss), max(records, key=lambda r: r.eval_loss)
    return (
        f"{worst.eval_loss:.3f} (E = {worst.experts}, {format_count(worst.n_active)} active, "
        f"{format_count(worst.tokens)} tokens) down to {best.eval_loss:.3f} (E = {best.experts}, "
        f"{format_count(best.n_active)} active, {format_count(best.tokens)} tokens)"
    )


def _span(values: np.ndarray) -> str:
    return f"{format_count(values.min())} to {format_count(values.max())} ({values.max() / values.min():.0f}x)"
