"""The shell command `scaling-law`: ask a law, find the best model for a budget, fit runs, draw the figures.

Every command takes --json and --help with examples. See `scaling_law.commands.support` for the exit statuses.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from hub.plain.commands import App
from hub.plain.tables import Table, show
from hub.plain.units import format_count, parse_bytes, parse_context, parse_count, parse_counts, parse_experts
from scaling_law.commands import fitting as cli_fitting
from scaling_law.commands import reports as cli_reports
from scaling_law.commands import support as support
from scaling_law.commands.support import (
    ExpertsOption,
    ForceOption,
    JsonOption,
    LawOption,
    VocabOption,
    clear_errors,
)
from scaling_law.laws import ChinchillaLaw
from scaling_law.planning.optimal_table import percentile_interval

app = App(
    help="Joint scaling laws of dense and MoE models: how many experts, how big, how many tokens?",
)

LearningRateLawOption = support.learning_rate_law_option("--law")
LearningRateOutput = typer.Option(None, "--output", "-o", help="File for the law (JSON).")
FiguresArgument = typer.Argument(Path("figures"), help="Folder to write to.")


@app.command()
def loss(
    n_active: str = typer.Option(
        ..., help="Active parameters with embeddings: 1.1B, 3e8 (comma-separated for several)."
    ),
    tokens: str = typer.Option(..., help="Training tokens: 20B (comma-separated for several)."),
    experts: str | None = typer.Option(
        None, help="Experts: 8, or 1,2,4, or 1-8. [default: 1; a Chinchilla law's own]"
    ),
    law: str = LawOption,
    as_json: bool = JsonOption,
) -> None:
    """Predict the loss of models, in nats per token.

    Always answers; the exit status is 1 where a model is too far outside the runs of the law for the loss to be
    trusted.

    Examples:

        scaling-law loss --n-active 1.1B --tokens 20B --experts 1,2,4,8

        scaling-law loss --n-active 1e8,1e9 --tokens 2e10 --law printed --json
    """
    with clear_errors():
        chosen = support.choose_law(law)
        own = round(chosen.default_experts()) if isinstance(chosen, ChinchillaLaw) else 1
        columns = [own] if experts is None else parse_experts(experts, "--experts")
        rows = [
            _loss_row(chosen, n, d, e)
            for n in parse_counts(n_active, "--n-active")
            for d in parse_counts(tokens, "--tokens")
            for e in columns
        ]
    show({"law": repr(chosen), "rows": rows}, as_json, None if as_json else _loss_table(rows, repr(chosen)))
    if not all(row["trusted"] for row in rows):
        raise typer.Exit(support.NOT_TRUSTED)


def _loss_row(law: Any, n: float, d: float, e: int) -> dict[str, Any]:
    row: dict[str, Any] = {"n_active": n, "tokens": d, "experts": e, "loss": float(law.loss(n, d, e))}
    if law.draws is not None:
        row["loss_interval"] = percentile_interval(law.loss_draws(n, d, e))
    return row | {"trusted": not law.beyond_guard(n, d, e), "warnings": law.warnings(n, d, e)}


def _loss_table(rows: list[dict[str, Any]], title: str) -> Any:
    with_interval = any(row.get("loss_interval") for row in rows)
    cells = [
        {
            "N_act": format_count(row["n_active"]),
            "D": format_count(row["tokens"]),
            "E": str(row["experts"]),
            "loss": f"{row['loss']:.4f}",
            "95 %": "{:.4f}…{:.4f}".format(*row["loss_interval"]) if with_interval else "",
            "": "" if row["trusted"] else "not trusted",
        }
        for row in rows
    ]
    notes = tuple(dict.fromkeys(w for row in rows for w in row["warnings"]))
    return Table.of(cells, title=title, keys=("N_act", "D", "E"), first=("loss", ""), warnings=notes)


@app.command()
def optimal(
    flops: str = typer.Option(..., help="Compute budget of training (and inference): 1e22."),
    memory: str | None = typer.Option(None, help="Memory for weights and KV cache: 80GB (decimal) or 80GiB."),
    max_parameters: str | None = typer.Option(None, help="Limit on total parameters: 7B."),
    kv_tokens: str = typer.Option("0", help="Tokens in the KV cache: 16k is 16,384."),
    experts: str | None = ExpertsOption,
    inference_tokens: str = typer.Option("0", help="Tokens served over the model's life: 100B."),
    bytes_per_parameter: float = typer.Option(2.0, help="2 for bf16, 1 for fp8, 0.5 for 4 bits."),
    bytes_per_kv: float = typer.Option(2.0, help="Bytes of a KV cache element."),
    kv_heads_ratio: float = typer.Option(1.0, help="KV heads / heads (grouped queries)."),
    vocab_size: int | None = VocabOption,
    integral: bool = typer.Option(
        False, "--integral", help="Only architectures that exist (d_model a multiple of 64)."
    ),
    force: bool = ForceOption,
    law: str = LawOption,
    as_json: bool = JsonOption,
) -> None:
    """The best model for a budget, for every number of experts, and the best of all.

    Says which numbers of experts the law cannot tell apart. Refused (exit status 2) where every answer is too far
    outside the runs of the law, unless --force is given.

    Examples:

        scaling-law optimal --flops 1e22 --memory 80GB --kv-tokens 16k

        scaling-law optimal --flops 5e22 --max-parameters 7B --inference-tokens 100B --experts 1-32 --integral --json
    """
    with clear_errors():
        table = support.choose_planning_law(law).optimal(
            parse_count(flops, "--flops"),
            support.optional(experts, parse_experts, "--experts"),
            max_memory_bytes=support.optional(memory, parse_bytes, "--memory"),
            max_parameters=support.optional(max_parameters, parse_count, "--max-parameters"),
            kv_cache_tokens=parse_context(kv_tokens, "--kv-tokens"),
            inference_tokens=parse_count(inference_tokens, "--inference-tokens"),
            bytes_per_parameter=bytes_per_parameter,
            bytes_per_kv=bytes_per_kv,
            kv_heads_ratio=kv_heads_ratio,
            vocab_size=vocab_size,
            integral=integral,
            force=force,
        )
    show(table.to_dict() if as_json else None, as_json, table)


@app.command()
def figures(
    output: Path = FiguresArgument,
    flops: str | None = typer.Option(None, help="Only the memory-optimal figure, for this budget."),
    suffix: str = typer.Option("png", help="png, svg or pdf."),
    law: str = LawOption,
    as_json: bool = JsonOption,
) -> None:
    """Draw every figure of the paper that follows from a law; with --flops only the memory-optimal one.

    Examples:

        scaling-law figures docs/figures

        scaling-law figures out --law my-law --suffix svg --flops 1e21
    """
    from scaling_law.figures.law_figures import memory_optimal, save
    from scaling_law.paper.figures import draw_all

    with clear_errors():
        chosen = support.choose_joint_law(law)
        if flops is None:
            written = draw_all(chosen, output, suffix)
        else:
            budget = parse_count(flops, "--flops")
            written = [save(memory_optimal(chosen, budget), output / f"memory_optimal_{budget:.3g}.{suffix}")]
    show({"written": [str(path) for path in written]}, as_json, "\n".join(f"wrote {path}" for path in written))


@app.command("learning-rate")
def learning_rate(
    d_model: int = typer.Option(..., help="Width; blocks and heads follow as d_model / 64 unless given."),
    experts: int = typer.Option(1, help="Number of experts."),
    n_blocks: int | None = typer.Option(None, help="Number of blocks."),
    n_heads: int | None = typer.Option(None, help="Number of heads."),
    vocab_size: int | None = VocabOption,
    law: str = LearningRateLawOption,
    as_json: bool = JsonOption,
) -> None:
    """The peak learning rate of an architecture.

    Always answers; the exit status is 1 where the architecture is too far outside of what the law rests on.

    Examples:

        scaling-law learning-rate --d-model 1024 --experts 8

        scaling-law learning-rate --d-model 512 --law paper --json

        scaling-law learning-rate --d-model 192 --n-blocks 3 --law my-learning-rates.json
    """
    from scaling_law.fitting.learning_rate import LearningRateLaw
    from scaling_law.size.architecture import Architecture

    with clear_errors():
        chosen = LearningRateLaw.named(law)
        vocabulary = chosen.vocab_size if vocab_size is None else vocab_size
        architecture = Architecture(d_model, experts, n_blocks, n_heads, vocabulary)
        rate, trusted = chosen.learning_rate(architecture), not chosen.beyond_guard(architecture)
        warnings = chosen.warnings(architecture)
    value: dict[str, Any] = {"learning_rate": rate, "reading": chosen.reading, "source": chosen.source}
    value |= {
        "d_model": d_model,
        "experts": experts,
        "n_active": architecture.n_active,
        "n_total": architecture.n_total,
        "trusted": trusted,
        "warnings": warnings,
    }
    text = f"{rate:.4g}  (reading {chosen.reading!r}: {chosen.source}; N_act {format_count(architecture.n_active)})"
    show(value, as_json, "\n".join([text, *(f"⚠ {warning}" for warning in warnings)]))
    if not trusted:
        raise typer.Exit(support.NOT_TRUSTED)


@app.command("fit-learning-rate")
def fit_learning_rate(
    runs: str = typer.Argument(..., help="Runs of a grid of learning rates, from any source that `fit` takes."),
    experts: str | None = typer.Option(None, help="Fit to models of these E only, such as 1,8; the others check it."),
    loss: str = typer.Option("eval_loss", help="The column to judge by."),
    reading: str = typer.Option("code", help="What N counts: code (what the paper's runs used) or paper."),
    output: Path | None = LearningRateOutput,
    as_json: bool = JsonOption,
) -> None:
    """Fit the peak learning rate to a grid: LR = exp(intercept + slope_n ln N + slope_e ln E).

    Examples:

        scaling-law fit-learning-rate lr-runs.jsonl --experts 1,8 -o my-learning-rates.json

        accelerate launch train.py --optimizer.learning_rate_law my-learning-rates.json
    """
    from scaling_law.fitting.learning_rate_grid import LearningRateGrid

    with clear_errors():
        grid = LearningRateGrid.load(runs, loss)
        law = grid.fit(support.optional(experts, parse_experts, "--experts"), reading)  # type: ignore[arg-type]
        if output is not None:
            law.save(output)
    if as_json:
        show({"law": asdict(law), "models": grid.to_dicts(law)}, True, None)
        return
    show(None, False, grid.table(law))
    typer.echo(repr(law))


for command in (cli_reports.tables, cli_reports.plan, cli_reports.reach, cli_reports.match, cli_reports.report):
    app.command()(command)
app.command()(cli_fitting.fit)
app.command()(cli_fitting.profile)
app.command()(cli_fitting.split)
app.command("next-runs")(cli_fitting.next_runs)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
