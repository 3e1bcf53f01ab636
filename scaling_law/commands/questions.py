"""The commands of `scaling-law` that ask a law: losses, optima, plans, learning rates, figures, next runs."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from hub.plain.commands import COUNT, COUNTS, EXPERTS, Json
from hub.plain.tables import Table, enumerated, show
from hub.plain.units import format_count, parse_count, parse_counts
from scaling_law.commands import options
from scaling_law.commands.options import exit_untrusted, option, quantity, step_times
from scaling_law.figures.drawing import SUFFIXES, save
from scaling_law.figures.law_figures import memory_optimal
from scaling_law.formulas.law import percentile_interval, positive
from scaling_law.formulas.learning_rate import LearningRateLaw
from scaling_law.law import ChinchillaLaw, JointLaw, Law
from scaling_law.paper.figures import draw_all
from scaling_law.planning import design
from scaling_law.planning import plan as planning
from scaling_law.planning.break_even import break_even as tokens_from_which_experts_pay
from scaling_law.planning.inverse import cheapest_budget, smallest_memory
from scaling_law.planning.speedup import speedup as effective_speedup
from scaling_law.size.architecture import Architecture, active_parameters, total_parameters

GRANULARITY = "Experts of 1/G of the width, G times as many active."
SHARED = "Part of the active width that is shared experts."


def loss(
    n_active: Annotated[Any, quantity(COUNTS, "Active parameters with embeddings: 1.1B or 1e8,1e9.")] = None,
    tokens: Annotated[Any, quantity(COUNTS, "Training tokens: 20B or 2e9,2e10.")] = None,
    experts: Annotated[Any, quantity(EXPERTS, "8, or 1,2,4, or 1-8. [default: 1, or the law's own]")] = None,
    variable: options.Variable = [],  # noqa: B006
    law: options.LawName = "published",
    as_json: Json = False,
) -> None:
    """Predict the loss of models, in nats per token.

    Always answers; the exit status is 1 where a model is too far outside the runs of the law for the loss to be
    trusted.

    Examples:

        scaling-law loss --n-active 1.1B --tokens 20B --experts 1,2,4,8

        scaling-law loss --n-active 1e8,1e9 --tokens 2e10 --law printed --json

        scaling-law loss --tokens 2e10 --variable n_total=5e9 --variable density=0.1 --law my-law
    """
    chosen: Law = options.choose_law(law)
    own = round(chosen.default_experts()) if isinstance(chosen, ChinchillaLaw) else chosen.check().at["experts"]
    given = {"n_active": n_active, "tokens": tokens, "experts": experts or [own], **dict(variable)}
    if missing := [name for name in chosen.variables if given.get(name) in (None, [])]:
        flags = [f"--{name.replace('_', '-')}" if name in given else f"--variable {name}=…" for name in missing]
        raise ValueError(
            f"{enumerated(flags)}: missing; the {chosen.name} law depends on {enumerated(chosen.variables)}"
        )
    grid = product(n_active or [None], tokens or [None], experts or [own])
    rows = [_loss_row(chosen, {"n_active": n, "tokens": d, "experts": e} | dict(variable)) for n, d, e in grid]
    warnings = list(dict.fromkeys(warning for row in rows for warning in row["warnings"]))
    shown = []
    for row in rows:
        interval = "{:.4f}…{:.4f}".format(*row["loss_interval"]) if "loss_interval" in row else ""
        names = ("n_active", "tokens", "experts", *dict(variable), "loss")
        shown.append({name: row[name] for name in names if row[name] is not None})
        shown[-1] |= {"95 %": interval, "trusted": row["trusted"]}
    keys = ("N_act", "tokens", "E")
    table = Table.of(shown, title=repr(chosen), keys=keys, first=("loss", ""), warnings=warnings)
    show({"law": repr(chosen), "rows": rows}, as_json, table)
    exit_untrusted(all(row["trusted"] for row in rows))


def _loss_row(law: Law, at: dict[str, Any]) -> dict[str, Any]:
    row = at | {"loss": float(law.loss(**at))}
    if law.draws is not None:
        row["loss_interval"] = percentile_interval(law.loss_draws(**at))
    return row | {"trusted": bool(law.check(**at).trusted), "warnings": law.warnings(**at)}


def _without(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in names}


def optimal(
    flops: options.Flops = None,
    hours: options.Hours = None,
    money: options.Money = None,
    gpus: options.Gpus = None,
    gpu: options.Gpu = None,
    throughput: options.Times = None,
    mfu: options.Mfu = None,
    price: options.Price = None,
    decode_batch: Annotated[
        float | None, option("Sequences served at once: adds the cost of a million tokens.")
    ] = None,
    memory: options.Memory = None,
    max_parameters: options.MaxParameters = None,
    kv_tokens: options.KvTokens = 0.0,
    experts: options.Experts = None,
    inference_tokens: options.InferenceTokens = 0.0,
    bytes_per_parameter: Annotated[float, option("2 for bf16, 1 for fp8, 0.5 for 4 bits.")] = 2.0,
    bytes_per_kv: Annotated[float, option("Bytes of a KV cache element.")] = 2.0,
    kv_heads_ratio: Annotated[float, option("KV heads / heads (grouped queries).")] = 1.0,
    granularity: Annotated[float, option(GRANULARITY)] = 1.0,
    shared_ratio: Annotated[float, option(SHARED)] = 0.0,
    unique_tokens: Annotated[Any, quantity(COUNT, "Unique tokens; more are repetitions, worth less: 100B.")] = None,
    vocab_size: options.VocabSize = None,
    integral: Annotated[bool, option("Only architectures with d_model a multiple of 64.", "--integral")] = False,
    force: options.Force = False,
    law: options.LawName = "published",
    learning_rate_law: Annotated[str, option(options.RATES)] = "code",
    as_json: Json = False,
) -> None:
    """The best model for a budget of FLOPs, hours or money, for every number of experts, and the best of all.

    In hours it stands beside the answer for equal FLOPs. Says which numbers of experts the law cannot tell apart.
    Refused (exit status 2) where every answer is too far outside the runs of the law, unless --force is given.

    Examples:

        scaling-law optimal --flops 1e22 --memory 80GB --kv-tokens 16k

        scaling-law optimal --flops 5e22 --max-parameters 7B --inference-tokens 100B --experts 1-32 --integral --json

        scaling-law optimal --gpu h100 --gpus 8 --hours 72 --price 2.5
    """
    question = _without(locals(), "law", "as_json", "gpu", "mfu")
    question |= {
        "throughput": step_times(gpu, throughput, mfu),
        "learning_rate_law": LearningRateLaw.named(learning_rate_law),
    }
    chosen: Law = options.choose_law(law)
    table = chosen.optimal(**question)
    show(table.to_dict() if as_json else None, as_json, table)
    exit_untrusted(table.best.trusted, force)


def plan(
    flops: options.Flops = None,
    hours: options.Hours = None,
    money: options.Money = None,
    gpus: options.Gpus = None,
    gpu: options.Gpu = None,
    throughput: options.Times = None,
    mfu: options.Mfu = None,
    price: options.Price = None,
    memory: options.Memory = None,
    max_parameters: options.MaxParameters = None,
    kv_tokens: options.KvTokens = 0.0,
    inference_tokens: options.InferenceTokens = 0.0,
    experts: options.Experts = None,
    granularity: Annotated[float, option(GRANULARITY)] = 1.0,
    shared_ratio: Annotated[float, option(SHARED)] = 0.0,
    branches: Annotated[int, option("Measurements from one trunk: the full run, half, a quarter, …")] = 1,
    gpu_tflops: Annotated[float, option("Without --gpu: peak TFLOP/s of one GPU (989: H100, bf16).")] = 989.0,
    vocab_size: options.VocabSize = None,
    sweep: Annotated[str, option("Name of the sweep the run belongs to.")] = "run",
    output: Annotated[Path | None, option("Write the YAML for train.py to this file.", "--output", "-o")] = None,
    overwrite: Annotated[bool, option("Replace the file of -o if there is one.", "--overwrite")] = False,
    force: options.Force = False,
    law: options.LawName = "published",
    learning_rate_law: Annotated[str, option(options.RATES)] = "code",
    as_json: Json = False,
) -> None:
    """A run to launch: architecture, schedule, learning rate, cost, and the YAML for train.py.

    The model is ours, or with --granularity of a class of transformers. FLOPs and hours are those of all branches.
    With --gpu or --throughput it proposes the micro-batch that fits. Refused (exit status 2): a model that does not
    fit, and, unless --force is given, an answer that is too far outside the runs of the law.

    Examples:

        scaling-law plan --flops 1e20 --memory 24GB --kv-tokens 16k -o run.yaml

        scaling-law plan --flops 1e21 --experts 8 --branches 4 --mfu 0.35 --json

        scaling-law plan --gpu h100 --gpus 8 --hours 72 --max-parameters 10B -o run.yaml

        scaling-law plan --law krajewski --flops 1e20 --experts 8 --granularity 8 --force -o run.yaml
    """
    question = _without(
        locals(), "gpu_tflops", "sweep", "output", "overwrite", "law", "learning_rate_law", "as_json", "gpu"
    )
    if gpu is not None or throughput is not None:
        question |= {"throughput": step_times(gpu, throughput, mfu)}
        del question["mfu"]
    elif mfu is None:
        del question["mfu"]  # the default of `plan`
    if output is not None and output.exists() and not overwrite:
        raise ValueError(f"-o {output}: there is such a file already; --overwrite replaces it")
    rates = LearningRateLaw.named(learning_rate_law)
    chosen: Law = options.choose_law(law)
    made = planning.plan(chosen, **question, gpu_tflops=gpu_tflops, learning_rate_law=rates)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(made.to_yaml(sweep), encoding="utf-8")
    show(made.to_dict() | {"written": [str(output)] * bool(output)} if as_json else None, as_json, made)
    if not as_json:
        launch = f"wrote {output}\naccelerate launch train.py --config {output}"
        typer.echo(launch if output else "-o FILE writes the YAML for train.py")
    exit_untrusted(made.trusted, force)


def reach(
    loss: Annotated[float, option("The loss to reach, nats per token: 2.2.")],
    flops: Annotated[Any, quantity(COUNT, "With a budget: the least memory that reaches the loss within it.")] = None,
    hours: options.Hours = None,
    money: options.Money = None,
    gpus: options.Gpus = None,
    gpu: options.Gpu = None,
    throughput: options.Times = None,
    mfu: options.Mfu = None,
    price: options.Price = None,
    memory: options.Memory = None,
    kv_tokens: options.KvTokens = 0.0,
    inference_tokens: options.InferenceTokens = 0.0,
    experts: options.Experts = None,
    vocab_size: options.VocabSize = None,
    force: options.Force = False,
    law: options.LawName = "published",
    as_json: Json = False,
) -> None:
    """The cheapest budget that reaches a loss; or, given a budget, the least memory that does.

    With --gpu or --throughput and no budget: the fewest hours. Refused (exit status 2) where every answer is too far
    outside the runs of the law, unless --force is given.

    Examples:

        scaling-law reach --loss 2.2 --memory 24GB --kv-tokens 16k

        scaling-law reach --loss 2.15 --flops 1e22 --json

        scaling-law reach --loss 2.4 --gpu h100 --gpus 8 --price 2.5
    """
    budget = {"flops": flops, "hours": hours, "money": money}
    has_budget = any(value is not None for value in budget.values())
    if has_budget and memory is not None:
        raise ValueError("--memory and a budget: give one of them; the other is the answer")
    chosen: Law = options.choose_law(law)
    limits: dict[str, Any] = {"kv_tokens": kv_tokens, "inference_tokens": inference_tokens}
    limits |= {"vocab_size": vocab_size, "force": force, "gpus": gpus, "price": price}
    limits["throughput"] = step_times(gpu, throughput, mfu)
    if has_budget:
        found = smallest_memory(chosen, flops, loss, experts, hours=hours, money=money, **limits)
    else:
        found = cheapest_budget(chosen, loss, experts, memory=memory, **limits)
    rows = found.to_rows()
    show({"loss": loss, "rows": rows, "warnings": list(found.warnings)}, as_json, found)
    reached = [row["trusted"] for row in rows if math.isfinite(row["n_active"])]
    exit_untrusted(any(reached) or not reached, force)


def speedup(
    flops: Annotated[float, quantity(COUNT, "Compute that the model spends: 1e22.")],
    experts: Annotated[float, option("E of the model.")] = 8.0,
    baseline: Annotated[float, option("E of the one that must reach its loss.")] = 1.0,
    gpus: options.Gpus = None,
    gpu: options.Gpu = None,
    throughput: options.Times = None,
    mfu: options.Mfu = None,
    granularity: Annotated[float | None, option(GRANULARITY)] = None,
    shared_ratio: Annotated[float | None, option(SHARED)] = None,
    vocab_size: options.VocabSize = None,
    force: options.Force = False,
    law: options.LawName = "published",
    as_json: Json = False,
) -> None:
    """How many times the FLOPs, tokens and hours a baseline needs for the loss of a compute-optimal model.

    Says where the law puts the asymptote, on which the factor hangs. Infinite where no number of tokens suffices.

    Examples:

        scaling-law speedup --flops 1e21 --experts 8

        scaling-law speedup --flops 1e22 --experts 32 --baseline 4 --json

        scaling-law speedup --flops 1e21 --experts 8 --gpu h100 --gpus 8
    """
    design: dict[str, Any] = {"granularity": granularity, "shared_ratio": shared_ratio}
    design |= {"gpus": gpus, "throughput": step_times(gpu, throughput, mfu)}
    chosen: Law = options.choose_law(law)
    found = effective_speedup(chosen, experts, baseline, flops=flops, vocab_size=vocab_size, **design, force=force)
    show(found.to_dict() if as_json else None, as_json, found)
    exit_untrusted(found.trusted, force)


def break_even(
    n_active: Annotated[Any, quantity(COUNTS, "Active parameters with embeddings: 1.1B or 1e8,1e9.")],
    experts: options.Experts = None,
    force: options.Force = False,
    law: options.LawName = "published",
    as_json: Json = False,
) -> None:
    """From how many tokens on experts beat the dense model of equal active parameters.

    0 where they do at any number of tokens, infinite (JSON: null) where at none; with the 95 % interval of the law.

    Examples:

        scaling-law break-even --n-active 1e8,1e9 --experts 2,8

        scaling-law break-even --n-active 1.1B --law my-law --json
    """
    chosen: Law = options.choose_law(law)
    found = tokens_from_which_experts_pay(chosen, n_active, experts, force=force)
    show({"law": repr(chosen), "rows": found.to_rows(), "warnings": list(found.warnings)}, as_json, found)
    exit_untrusted(found.trusted, force)


def learning_rate(
    d_model: Annotated[float, option("Width; blocks and heads follow as d_model / 64 unless given.")],
    experts: Annotated[int, option("Number of experts.")] = 1,
    n_blocks: Annotated[int | None, option("Number of blocks.")] = None,
    n_heads: Annotated[int | None, option("Number of heads.")] = None,
    vocab_size: options.VocabSize = None,
    tokens: Annotated[Any, quantity(COUNT, "Tokens of the run, for laws that have them: 20B.")] = None,
    batch_tokens: Annotated[Any, quantity(COUNT, "Tokens of a batch, for laws that have it: 0.5M.")] = None,
    law: Annotated[str, option(options.RATES)] = "code",
    as_json: Json = False,
) -> None:
    """The peak learning rate of an architecture.

    Always answers; the exit status is 1 where the architecture is too far outside of what the law rests on.

    Examples:

        scaling-law learning-rate --d-model 1024 --experts 8

        scaling-law learning-rate --d-model 512 --law paper --json

        scaling-law learning-rate --d-model 192 --n-blocks 3 --law my-learning-rates.json --tokens 20B
    """
    chosen = LearningRateLaw.named(law)
    vocabulary = chosen.vocab_size if vocab_size is None else vocab_size
    width: Any = int(d_model) if d_model.is_integer() else d_model  # `optimal` prints any
    if n_blocks is not None or n_heads is not None:
        Architecture(width, experts, n_blocks, n_heads, vocabulary)  # which refuses one that cannot be
    positive("d_model", width)
    positive("experts", experts)
    counted = float(chosen.counted_parameters(width, n_blocks, vocabulary))
    sizes = {"n_active": active_parameters(width, n_blocks, vocabulary)}
    sizes |= {"n_total": total_parameters(width, experts, n_blocks, vocabulary)}
    run = (counted, experts, tokens, batch_tokens)
    rate, warnings = float(chosen.at(*run)), chosen.warnings_at(*run)
    trusted = bool(chosen.check_at(*run).trusted)
    value: dict[str, Any] = {"learning_rate": rate, "reading": chosen.reading, "source": chosen.source}
    value |= {"formula": chosen.formula, "tokens": tokens, "batch_tokens": batch_tokens, "regret": chosen.regret}
    value |= {"d_model": width, "experts": experts} | {name: round(float(size)) for name, size in sizes.items()}
    text = f"{rate:.4g}  (reading {chosen.reading!r}: {chosen.source}; N_act {format_count(value['n_active'])})"
    text = "\n".join([text, *(f"⚠ {warning}" for warning in warnings)])
    show(value | {"trusted": trusted, "warnings": warnings}, as_json, text)
    exit_untrusted(trusted)


def figures(
    output: Annotated[Path, typer.Argument(help="Folder to write to; with --flops also a file.")] = Path("figures"),
    flops: Annotated[Any, quantity(COUNT, "Only the memory-optimal figure, for this budget.")] = None,
    suffix: Annotated[str | None, option("png, svg or pdf. [default: that of a file, else png]")] = None,
    law: options.LawName = "published",
    as_json: Json = False,
) -> None:
    """Draw every figure of the paper that follows from a law; with --flops only the memory-optimal one.

    Lines are dashed outside the runs of the law. The exit status is 1 where --flops is too far outside to be trusted.

    Examples:

        scaling-law figures docs/figures

        scaling-law figures out --law my-law --suffix svg --flops 1e21

        scaling-law figures memory.pdf --flops 1e22
    """
    chosen, names_file = options.choose_law(law, JointLaw), output.suffix.lower() in SUFFIXES
    if names_file and (flops is None or suffix not in (None, output.suffix.lower().removeprefix("."))):
        instead = f"for --suffix {suffix}" if flops else "for all figures, or --flops for the one that fits a file"
        raise ValueError(f"output={str(output)!r} names a file: give a folder {instead}")
    if flops is None:
        return show_written(draw_all(chosen, output, suffix or "png"), as_json)
    path = output if names_file else output / f"memory_optimal_{flops:.3g}.{suffix or 'png'}"
    show_written([save(memory_optimal(chosen, flops), path)], as_json)
    exit_untrusted(chosen.optimal(flops, force=True).best.trusted)


def show_written(paths: list[Path], as_json: bool) -> None:
    show({"written": [str(path) for path in paths]}, as_json, "\n".join(f"wrote {path}" for path in paths))


def _pair(text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    if not colon:
        raise typer.BadParameter(f"{text!r} is not of the form low:high")
    return parse_count(low), parse_count(high)


def next_runs(
    flops: Annotated[float, quantity(COUNT, "Budget of all new runs together: 1e20.")],
    ask: Annotated[str, option("What to make certain: optimum:FLOPS,E, loss:N,D,E, or advantage:FLOPS,E1,E2.")],
    max_runs: Annotated[int, option("At most so many runs.")] = 24,
    warmup: Annotated[Any, quantity(COUNT, "Tokens of warm-up: 130M. [default: that of the fitted runs]")] = None,
    experts: Annotated[Any, quantity(EXPERTS, "Experts of the runs to choose from: 1,2,4 or 1-8.")] = "1,2,4,8,16,32",
    widths: Annotated[Any, quantity(COUNTS, "Their d_model: 256,512,768. [default: 256 to 3072]")] = None,
    tokens_per_parameter: Annotated[Any, quantity(_pair, "Their D / N_act.", metavar="LOW:HIGH")] = "0.5:80",
    max_run_flops: Annotated[Any, quantity(COUNT, "Budget of one run. [default: a quarter of all]")] = None,
    vocab_size: options.VocabSize = None,
    noise: Annotated[float | None, option("Standard deviation of ln L of one run. [default: from the fit]")] = None,
    memory: options.Memory = None,
    max_parameters: options.MaxParameters = None,
    kv_tokens: options.KvTokens = 0.0,
    force: options.Force = False,
    law: options.LawName = "published",
    as_json: Json = False,
) -> None:
    """The runs that, for a FLOP budget, make the answer to one question most certain.

    The law needs draws: fit it with --bootstrap. No run is shorter than its warm-up, which the records of the fitted
    runs tell, or --warmup. --memory, --max-parameters and --kv-tokens are limits of `advantage`.

    Examples:

        scaling-law next-runs --law my-law --flops 1e20 --ask optimum:1e22,8 --max-runs 6

        scaling-law next-runs --law my-law --flops 1e19 --ask advantage:1e21,8,1 --memory 24GB --warmup 50M --json
    """
    chosen: Law = options.choose_law(law)
    limits = {"memory": memory, "max_parameters": max_parameters}
    limits["kv_tokens"] = kv_tokens
    vocabulary = chosen.vocab_size if vocab_size is None else vocab_size
    widths = widths and [options.nearest_width(width) for width in widths]
    largest = flops / 4 if max_run_flops is None else max_run_flops
    candidates = design.candidate_grid(largest, experts, widths, tokens_per_parameter, vocabulary)
    answer = _answer(ask, limits, vocab_size)
    made = design.next_runs(chosen, answer, flops, candidates, noise, max_runs, warmup, force=force)
    show({"ask": ask} | made.to_dict() if as_json else None, as_json, made)
    exit_untrusted(made.trusted, force)


def _answer(ask: str, limits: dict[str, Any], vocab_size: int | None) -> Any:
    kind, _, rest = ask.partition(":")
    values = parse_counts(rest, "--ask") if rest else []
    given = {name: value for name, value in limits.items() if value}
    if given and kind in ("optimum", "loss"):
        raise ValueError(f"--ask {ask!r}: --memory, --max-parameters and --kv-tokens go with advantage only")
    match kind, len(values):
        case "optimum", 2:
            return design.log_optimal_parameters(*values)
        case "loss", 3:
            return design.predicted_loss(*values)
        case "advantage", 3:
            return design.advantage(*values, **given, vocab_size=vocab_size)
    raise ValueError(f"--ask {ask!r} must be optimum:FLOPS,E or loss:N,D,E or advantage:FLOPS,E1,E2")
