"""The commands of `scaling-law` that plan: a run to launch, a model on more GPUs, the most telling next runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hub.base.atomic import write_bytes
from hub.base.commands import COUNT, COUNTS, EXPERTS
from hub.base.errors import InputError, unknown
from hub.base.tables import show
from hub.base.units import parse_count, parse_counts
from scaling_law.commands.options import command, exit_untrusted, nearest_width, option, quantity, rare
from scaling_law.formulas.answers import Answer
from scaling_law.formulas.law import one_positive
from scaling_law.law import Law
from scaling_law.planning import design
from scaling_law.planning import scale_out as scaling
from scaling_law.size.architecture import Architecture
from scaling_law.size.recipe import PAPER


@command(
    "flops hours money gpus gpu throughput mfu precision price memory max_parameters kv_tokens inference_tokens "
    "experts granularity shared_ratio branches vocab_size sweep output overwrite force law learning_rate_law"
)
def plan(
    law: Law,
    force: bool,
    as_json: bool,
    branches: Annotated[int, option("Measurements from one trunk: the full run, half, a quarter, …")] = 1,
    sweep: Annotated[str, rare("Name of the sweep the run belongs to.")] = "run",
    output: Annotated[Path | None, option("Write the YAML for train.py to this file.", "--output", "-o")] = None,
    **question: Any,
) -> None:
    """A run to launch: architecture, schedule, learning rate, cost, and the YAML for train.py.

        scaling-law plan --flops 1e20 --memory 24GB --kv-tokens 16k -o run.yaml

    The model is ours, or with --granularity of a class of transformers. FLOPs and hours are those of all branches.
    With --gpu or --throughput it proposes the micro-batch that fits. Refused (exit status 2): a model that does not
    fit, and, unless --force is given, an answer that is too far outside the runs of the law.

    More examples:

        scaling-law plan --flops 1e21 --experts 8 --branches 4 --json

        scaling-law plan --gpu h100 --gpus 8 --hours 72 --max-parameters 10B -o run.yaml

        scaling-law plan --law krajewski --flops 1e20 --experts 8 --granularity 8 --force -o run.yaml
    """
    planned = law.plan(branches=branches, force=force, **question)
    if output is not None:
        write_bytes(output, planned.to_yaml(sweep).encode())
    show(planned.to_dict() | {"written": [str(output)] * bool(output)} if as_json else None, as_json, planned)
    if not as_json:
        launch = f"wrote {output}\naccelerate launch train.py --config {output}"
        typer.echo(launch if output else "-o FILE writes the YAML for train.py")
    exit_untrusted(planned.trusted, force)


@command("d_model experts gpus gpu mfu precision batch sequence_length")
def scale_out(
    d_model: Annotated[float, typer.Argument(help="Width; blocks and heads follow as d / 64.")],
    experts: Annotated[int, option("Experts, of which one is active.")] = 8,
    gpus: Annotated[Any, quantity(COUNTS, "How many, to compare. [default: 8,64]")] = None,
    gpu: Annotated[str, option("GPU model.")] = "h100",
    batch: Annotated[int, rare("Sequences of a step.", min=1)] = PAPER.batch_ramp[-1].sequences,
    sequence_length: Annotated[int, rare("Tokens of a sequence.", min=1)] = PAPER.sequence_length,
    **others: Any,
) -> Answer:
    """Memory and communication of a model on more and more GPUs, and which of them limits its speed.

        scaling-law scale-out 2304 --experts 8 --gpus 8,64

    More examples:

        scaling-law scale-out 2304 --gpus 64 --batch 4096 --mfu 0.35 --json
    """
    model = Architecture(nearest_width(d_model), experts)
    counts: list[Any] = [int(n) if n.is_integer() else n for n in gpus or (8.0, 64.0)]
    sizes: dict[str, Any] = {"batch_sequences": batch, "sequence_length": sequence_length}
    return scaling.scale_out(model, counts, gpu, **sizes, **others)


def _pair(text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    if not colon:
        raise typer.BadParameter(f"{text!r} is not of the form low:high")
    return parse_count(low), parse_count(high)


@command(
    "flops ask max_runs warmup_tokens experts widths tokens_per_parameter max_run_flops vocab_size noise memory "
    "max_parameters kv_tokens force law"
)
def next_runs(
    law: Law,
    flops: Annotated[float, quantity(COUNT, "Total budget of the new runs: 1e20.")],
    ask: Annotated[str, option("What to make certain: optimum:FLOPS,E, loss:N,D,E, or advantage:FLOPS,E1,E2.")],
    vocab_size: int | None,
    force: bool,
    max_runs: Annotated[int, option("Maximum number of runs.")] = 24,
    warmup_tokens: Annotated[
        Any, quantity(COUNT, "Tokens of warm-up: 130M. [default: that of the fitted runs]", "--warmup", rare=True)
    ] = None,
    experts: Annotated[Any, quantity(EXPERTS, "Experts of the runs to choose from: 1,2,4 or 1-8.")] = "1,2,4,8,16,32",
    widths: Annotated[
        Any, quantity(COUNTS, "d_model of the runs: 256,512,768. [default: 256 to 3072]", rare=True)
    ] = None,
    tokens_per_parameter: Annotated[
        Any, quantity(_pair, "D / N_act of the runs.", metavar="LOW:HIGH", rare=True)
    ] = "0.5:80",
    max_run_flops: Annotated[Any, quantity(COUNT, "Budget of one run. [default: a quarter of all]", rare=True)] = None,
    noise: Annotated[float | None, rare("Standard deviation of ln L of one run. [default: from the fit]")] = None,
    **limits: Any,
) -> tuple[Answer, dict[str, Any]]:
    """The runs that, for a FLOP budget, make the answer to one question most certain.

        scaling-law next-runs --law my-law --flops 1e20 --ask optimum:1e22,8 --max-runs 6

    The law needs draws: fit it with --bootstrap. No run is shorter than its warm-up, which the records of the fitted
    runs tell, or --warmup. --memory, --max-parameters and --kv-tokens are limits of `advantage`.

    More examples:

        scaling-law next-runs --law my-law --flops 1e19 --ask advantage:1e21,8,1 --memory 24GB --warmup 50M --json
    """
    if law.draws is None:
        raise InputError("--law has no draws: fit that law with --bootstrap")
    vocabulary = law.vocab_size if vocab_size is None else vocab_size
    widths = widths and [nearest_width(width) for width in widths]
    largest = one_positive("flops", flops) / 4 if max_run_flops is None else max_run_flops
    candidates = design.candidate_grid(largest, experts, widths, tokens_per_parameter, vocabulary)
    answer = _answer(ask, limits, vocab_size)
    run: dict[str, Any] = {"noise": noise, "max_runs": max_runs, "warmup_tokens": warmup_tokens}
    return law.next_runs(answer, flops, candidates, **run, force=force), {"ask": ask}


ANSWERS: dict[str, tuple[Callable[..., design.Target], str]] = {  # what --ask names → what it takes
    "optimum": (design.log_optimal_parameters, "FLOPS,E"),
    "loss": (design.predicted_loss, "N,D,E"),
    "advantage": (design.advantage, "FLOPS,E1,E2"),
}


def _answer(ask: str, limits: dict[str, Any], vocab_size: int | None) -> design.Target:
    kind, _, rest = ask.partition(":")
    values = parse_counts(rest, "--ask") if rest else []
    options = {name: value for name, value in limits.items() if value}
    if options and kind in ("optimum", "loss"):
        raise InputError(f"--ask {ask!r}: --memory, --max-parameters and --kv-tokens go with advantage only")
    if kind not in ANSWERS:
        raise InputError(unknown("--ask ", kind, ANSWERS))
    target, takes = ANSWERS[kind]
    if len(values) != len(takes.split(",")):
        forms = " or ".join(f"{name}:{form}" for name, (_, form) in ANSWERS.items())
        raise InputError(f"--ask {ask!r} must be {forms}")
    return target(*values, **options | ({"vocab_size": vocab_size} if kind == "advantage" else {}))
