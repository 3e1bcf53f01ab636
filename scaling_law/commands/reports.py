"""The commands of `scaling-law` that report: the paper's tables, a plan for a run, and questions asked backwards."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from hub.plain.tables import show
from hub.plain.units import parse_bytes, parse_context, parse_count, parse_experts
from scaling_law.commands import support as support
from scaling_law.commands.support import (
    ExpertsOption,
    ForceOption,
    JsonOption,
    LawOption,
    VocabOption,
    clear_errors,
)

LearningRateLawOption = support.learning_rate_law_option("--learning-rate-law")
RESULTS = typer.Argument(..., help="Folder with runs.jsonl, and learning-rates.jsonl and matched.jsonl if there are.")
IntoOption = typer.Option(..., help="The Markdown file with the blocks to fill; figures go beside it.")
MatchedOutput = typer.Option(..., "--output", "-o", help="File for the plan (JSON).")
PlanOutput = typer.Option(None, "--output", "-o", help="Write the YAML for train.py to this file.")


def tables(
    name: str | None = typer.Argument(None, help="One table; without it all. Wrong names list those there are."),
    differing: bool = typer.Option(False, "--differing", help="Show only cells that differ from print."),
    law: str = LawOption,
    as_json: bool = JsonOption,
) -> None:
    """Every table of the paper: printed value, ours, difference.

    Examples:

        scaling-law tables

        scaling-law tables compute_optimal --law printed --differing

        scaling-law tables optimal_experts --json
    """
    from rich.console import Group

    from scaling_law.paper.tables import all_tables, find

    with clear_errors():
        chosen = all_tables(support.choose_joint_law(law))
        chosen = [find(chosen, name)] if name else chosen
    show([t.to_dict() for t in chosen] if as_json else None, as_json, Group(*(t.render(differing) for t in chosen)))


def plan(
    flops: str = typer.Option(..., help="Compute budget: 1e21."),
    memory: str | None = typer.Option(None, help="Memory for bf16 weights and KV cache at inference: 24GB, 80GiB."),
    max_parameters: str | None = typer.Option(None, help="Limit on total parameters: 7B."),
    kv_tokens: str = typer.Option("0", help="Tokens in the KV cache: 16k is 16,384."),
    inference_tokens: str = typer.Option("0", help="Tokens served over the model's life: 100B."),
    experts: str | None = ExpertsOption,
    branches: int = typer.Option(1, help="Measurements from one trunk: the full run, half, a quarter, …"),
    gpu_tflops: float = typer.Option(989.0, help="Peak TFLOP/s of one GPU (989: H100, bf16)."),
    mfu: float = typer.Option(0.4, help="Part of the peak that training uses."),
    vocab_size: int | None = VocabOption,
    sweep: str = typer.Option("run", help="Name of the sweep the run belongs to."),
    output: Path | None = PlanOutput,
    force: bool = ForceOption,
    law: str = LawOption,
    learning_rate_law: str = LearningRateLawOption,
    as_json: bool = JsonOption,
) -> None:
    """A run to launch: architecture, schedule, learning rate, cost, and the YAML for train.py.

    FLOPs and hours are those of all branches. Refused (exit status 2) where every answer is too far outside the runs
    of the law, unless --force is given.

    Examples:

        scaling-law plan --flops 1e20 --memory 24GB --kv-tokens 16k -o run.yaml

        scaling-law plan --flops 1e21 --experts 8 --branches 4 --mfu 0.35 --json
    """
    from scaling_law.fitting.learning_rate import LearningRateLaw
    from scaling_law.planning.plan import plan as make_plan

    with clear_errors():
        made = make_plan(
            support.choose_planning_law(law),
            parse_count(flops, "--flops"),
            support.optional(experts, parse_experts, "--experts"),
            branches=branches,
            gpu_flops=gpu_tflops * 1e12,
            mfu=mfu,
            max_memory_bytes=support.optional(memory, parse_bytes, "--memory"),
            max_parameters=support.optional(max_parameters, parse_count, "--max-parameters"),
            kv_cache_tokens=parse_context(kv_tokens, "--kv-tokens"),
            inference_tokens=parse_count(inference_tokens, "--inference-tokens"),
            vocab_size=vocab_size,
            learning_rate_law=LearningRateLaw.named(learning_rate_law),
            force=force,
        )
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(made.to_yaml(sweep), encoding="utf-8")
    show(made.to_dict() if as_json else None, as_json, made.summary())
    if not as_json:
        typer.echo(
            f"accelerate launch train.py --config {output}" if output else "-o FILE writes the YAML for train.py"
        )


def report(
    folder: Path = RESULTS,
    into: Path = IntoOption,
    as_json: bool = JsonOption,
) -> None:
    """Fill a report on runs: the fit, how it extrapolates, and the paper's findings asked of these runs.

    Examples:

        scaling-law report docs/results --into docs/report.md
    """
    from scaling_law.report.page import write_report

    with clear_errors():
        written = write_report(folder, into)
    show({"written": [str(path) for path in written]}, as_json, "\n".join(f"wrote {path}" for path in written))


def match(
    runs: str = typer.Argument(..., help="Runs to fit the law to, from any source that `fit` takes."),
    flops: str = typer.Option(..., help="Budget of each model: 1e13."),
    experts: str = typer.Option("2,4", help="Experts of the models beside the dense one: 2,4,8."),
    n_blocks: int | None = typer.Option(None, help="Blocks and heads of all models; default d_model / 64."),
    vocab_size: int | None = VocabOption,
    bootstrap: int = typer.Option(1000, help="Resamples for the intervals."),
    output: Path = MatchedOutput,
    force: bool = ForceOption,
    as_json: bool = JsonOption,
) -> None:
    """Plan a matched experiment: dense and MoE models of the same total parameters and FLOPs, with predicted losses.

    Examples:

        scaling-law match docs/results/runs.jsonl --flops 1e13 --n-blocks 2 -o matched-plan.json
    """
    from scaling_law.fitting.fitting import fit
    from scaling_law.planning.matched import plan_matched

    with clear_errors():
        made = plan_matched(
            fit(runs).bootstrap(bootstrap),
            parse_count(flops, "--flops"),
            parse_experts(experts, "--experts"),
            n_blocks=n_blocks,
            vocab_size=vocab_size,
            force=force,
        )
        made.save(output)
    show(asdict(made) if as_json else None, as_json, made)


def reach(
    loss: str = typer.Option(..., help="The loss to reach, nats per token: 2.2."),
    flops: str | None = typer.Option(None, help="With a budget: the least memory that reaches the loss within it."),
    memory: str | None = typer.Option(None, help="Without: the cheapest budget, within this memory."),
    kv_tokens: str = typer.Option("0", help="Tokens in the KV cache: 16k is 16,384."),
    inference_tokens: str = typer.Option("0", help="Tokens served over the model's life: 100B."),
    experts: str | None = ExpertsOption,
    vocab_size: int | None = VocabOption,
    force: bool = ForceOption,
    law: str = LawOption,
    as_json: bool = JsonOption,
) -> None:
    """The cheapest budget that reaches a loss; or, given a budget, the smallest memory that does.

    Refused (exit status 2) where every answer is too far outside the runs of the law, unless --force is given.

    Examples:

        scaling-law reach --loss 2.2 --memory 24GB --kv-tokens 16k

        scaling-law reach --loss 2.15 --flops 1e22 --json
    """
    from scaling_law.planning.inverse import cheapest_budget, smallest_memory

    with clear_errors():
        chosen, columns = support.choose_planning_law(law), support.optional(experts, parse_experts, "--experts")
        target = parse_count(loss, "--loss")
        limits: dict[str, Any] = {
            "kv_cache_tokens": parse_context(kv_tokens, "--kv-tokens"),
            "inference_tokens": parse_count(inference_tokens, "--inference-tokens"),
            "vocab_size": vocab_size,
            "force": force,
        }
        if flops is None:
            limits["max_memory_bytes"] = support.optional(memory, parse_bytes, "--memory")
            found = cheapest_budget(chosen, target, columns, **limits)
        elif memory is not None:
            raise ValueError("--memory and --flops: give one of them; the other is the answer")
        else:
            found = smallest_memory(chosen, parse_count(flops, "--flops"), target, columns, **limits)
    rows = found.to_rows()
    value = {"loss": target, "rows": rows, "warnings": list(found.warnings)}
    show(value, as_json, found)
