"""The commands of `scaling-law` that plan: a run to launch, a model on more GPUs, the most telling next runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from hub.base.atomic import write_bytes
from hub.base.commands import parser
from hub.base.errors import InputError, unknown
from hub.base.fields import Parser, field
from hub.base.tables import join_words
from hub.base.types import Fields
from hub.base.units import parse_batch, parse_count, parse_flops, parse_parameters, parse_tokens
from scaling_law.answer.answer import Answer
from scaling_law.commands.options import Printed, command, find_nearest_width, option, rare
from scaling_law.formulas.law import positive
from scaling_law.law import Law
from scaling_law.planning import design
from scaling_law.planning import scale_out as scaling
from scaling_law.planning.launch import RENDEZVOUS
from scaling_law.planning.question import Counts, Experts, Flops, Like
from scaling_law.runs.loading import read_models
from scaling_law.size.architecture import Architecture
from scaling_law.size.family import Family

SCALED = "org/model on the Hub, a folder, or a config.json; or a width, of a family or with d / 64 blocks and heads."
WITH_A_WIDTH = "With a width: experts, one of them active; for a family its routed experts. [default: 8, or its own]"
LIKE_WIDTH = "With a width: the family that has it: qwen3-30b-a3b, org/model, a folder or a config.json."
WARMUP = "Tokens of warm-up: 130M. [default: that of the fitted runs]"
CANDIDATES = "Table of the runs to choose from, with n_active, tokens, experts and, if not 6ND, flops."


@command("", Law.plan, without=("engine",))
def plan(
    law: Law,
    force: bool,
    sweep: Annotated[str, rare("Name of the sweep the run belongs to.")] = "run",
    output: Annotated[Path | None, option("Write the YAML for train.py to this file.", "--output", "-o")] = None,
    **question: Any,
) -> Printed:
    """Plan a run to launch: architecture, schedule, learning rate, cost, and the YAML for train.py.

        scaling-law plan --flops 1e20 --memory 24GB --kv-tokens 16k -o run.yaml

    The model is ours, or with --granularity of a class of transformers. FLOPs and hours are those of all branches.
    With --gpu or --throughput it proposes the micro-batch that fits. Refused (exit status 2): a model that does not
    fit, and, unless --force is given, an answer that is too far outside the runs of the law. Where the law of learning
    rates is too far from its own runs, --learning-rate is needed, else nothing is written (exit status 1).

    More examples:

        scaling-law plan --flops 1e21 --experts 8 --branches 4 --json

        scaling-law plan --gpu h100 --gpus 8 --hours 72 --max-parameters 10B -o run.yaml

        scaling-law plan --law krajewski --flops 1e20 --experts 8 --granularity 8 --force -o run.yaml
    """
    planned = law.plan(force=force, **question)
    if planned.learning_rate is None:
        typer.secho("--learning-rate is needed: without one there is no YAML for train.py", err=True, fg="yellow")
        return Printed(planned, {"written": []}, trusted=False)
    written: Fields = {"written": [], "configuration": planned.configuration(sweep)}
    line = "-o FILE writes the YAML for train.py"
    if output is not None:
        write_bytes(output, planned.to_yaml(sweep).encode())
        launch = planned.launch(str(output))
        written.update(written=[str(output)], launch=launch)
        on_each = "on every machine, with RANK 0, 1, … and ADDRESS that of the first:\n"
        line = f"wrote {output}\n{on_each if RENDEZVOUS in launch else ''}{launch}"
    return Printed(planned, written, [line])


@command("", scaling.scale_out)
def scale_out(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=SCALED)],
    experts: Annotated[int | None, field(WITH_A_WIDTH)] = None,
    like: Annotated[Like | None, field(LIKE_WIDTH)] = None,
    **question: Any,
) -> Answer:
    """Lay a model out on so many GPUs: memory, layout, what limits its speed, and hours and cost of a run.

        scaling-law scale-out Qwen/Qwen3-30B-A3B --gpus 64,256 --tokens 1T --price 2.5

    Of a model only its config.json is read. The layout is the fastest that fits, of those that train.py can run, or
    by --engine megatron of those with tensor, pipeline and context parallelism.

    More examples:

        scaling-law scale-out my-model/config.json --gpus 8,16 --gpu "peak=148T,memory=96GB" --tokens 100B

        scaling-law scale-out 2304 --experts 32 --gpus 8,64,512

        scaling-law scale-out 1024 --like qwen3-30b-a3b --experts 64 --gpus 8,64

        scaling-law scale-out 2304 --gpus 64 --batch 2M --mfu 0.35 --json
    """
    return scaling.scale_out(_architecture_of(model, experts, like), **question)


def _architecture_of(model: str, experts: int | None, family: Family | None) -> Architecture | str:
    """Make the architecture of a width; a model that is to be read stays its name."""
    try:
        d_model = float(model)
    except ValueError:
        for name, value in {"experts": experts, "like": family}.items():
            if value is not None:
                raise InputError(f"{name}={value} goes with a width, as in 2304: {model} has its own") from None
        return model
    width = find_nearest_width(float(positive("model", d_model)), family)
    if family is None:
        return Architecture(width, 8 if experts is None else experts)
    return family.models([width], [(family.experts or 1) if experts is None else experts])[0]


def parse_range(text: str, field: str) -> tuple[float, float]:
    """Read the ends of a range, "0.5:80"."""
    low, colon, high = text.partition(":")
    if not colon:
        raise InputError(f"{field}={text!r} is not of the form low:high")
    return parse_count(low, field), parse_count(high, field)


@command(
    "flops ask candidates like max_runs warmup_tokens experts widths tokens_per_parameter max_run_flops vocab_size "
    "noise memory max_parameters kv_tokens force law",
    Law.optimal,
)
def next_runs(
    law: Law,
    flops: Annotated[Flops, field("Total budget of the new runs: 1e20.")],
    ask: Annotated[str, option("What to make certain: optimum:FLOPS,E, loss:N,D,E, or advantage:FLOPS,E1,E2.")],
    like: Family | None,
    vocab_size: int | None,
    force: bool,
    candidates: Annotated[str | None, option(f"{CANDIDATES} [default: a grid of our models, or a family's]")] = None,
    max_runs: Annotated[int, option("Maximum number of runs.")] = 24,
    warmup_tokens: Annotated[
        Any, rare(WARMUP, "--warmup", parser=parser(parse_batch, "tokens"), metavar="TOKENS")
    ] = None,
    experts: Annotated[
        Experts | None, field("Experts of the runs: 1,2,4, or doublings 1-8. [default: 1-32, or the family's]")
    ] = None,
    widths: Annotated[
        Counts | None, field("d_model of the runs: 256,512,768. [default: 256 to 3072]", rare=True)
    ] = None,
    tokens_per_parameter: Annotated[Any, Parser(parse_range), field("D / N_act of the runs.", rare=True)] = "0.5:80",
    max_run_flops: Annotated[Flops | None, field("Budget of one run. [default: a quarter of all]", rare=True)] = None,
    noise: Annotated[float | None, rare("Standard deviation of ln L of one run. [default: from the fit]")] = None,
    **limits: Any,
) -> Printed:
    """Choose the runs that, for a FLOP budget, make the answer to one question most certain.

        scaling-law next-runs --law my-law --flops 1e20 --ask optimum:1e22,8 --max-runs 6

    The law needs draws: fit it with --bootstrap. No run is shorter than its warm-up, which the records of the fitted
    runs tell, or --warmup, and none has less than a third of the least N or D/N of the fitted runs. --memory,
    --max-parameters and --kv-tokens are limits of `advantage`. --experts, --widths, --tokens-per-parameter and
    --max-run-flops describe the grid that is used without --candidates. With --like, grid and `advantage` have models
    of a family and numbers of its routed experts; E of `optimum` and `loss` is a law's.

    More examples:

        scaling-law next-runs --law my-law --flops 1e19 --ask advantage:1e21,8,1 --memory 24GB --warmup 50M --json

        scaling-law next-runs --law my-law --flops 1e20 --ask advantage:1e21,64,1 --like qwen3-30b-a3b --experts 1,64

        scaling-law next-runs --law my-law --flops 1e20 --ask loss:7B,140B,1 --candidates planned.csv
    """
    if law.draws is None:
        raise InputError("--law has no draws: fit that law with --bootstrap")
    if candidates is not None:
        models: Any = read_models(candidates)
    else:
        most: Any = max_run_flops or cast(float, flops) / design.LEAST_RUNS
        models = design.candidate_grid(
            most,
            experts=experts,
            widths=widths and [find_nearest_width(width, like) for width in widths],
            tokens_per_parameter=tokens_per_parameter,
            vocab_size=law.vocab_size if vocab_size is None or like else vocab_size,
            like=like and like.with_vocabulary(vocab_size, law.vocab_size),
        )
    answer = _answer(ask, limits, {"vocab_size": vocab_size, "like": like})
    run: Fields = {"noise": noise, "max_runs": max_runs, "warmup_tokens": warmup_tokens}
    return Printed(law.next_runs(answer, flops, models, **run, force=force), {"ask": ask})


# What --ask names, and how its parts are read.
ANSWERS: dict[str, tuple[Callable[..., design.Target], dict[str, Callable[[str, str], float]]]] = {
    "optimum": (design.log_optimal_parameters, {"FLOPS": parse_flops, "E": parse_count}),
    "loss": (design.predicted_loss, {"N": parse_parameters, "D": parse_tokens, "E": parse_count}),
    "advantage": (design.advantage, {"FLOPS": parse_flops, "E1": parse_count, "E2": parse_count}),
}


def _answer(ask: str, limits: Fields, shape: Fields) -> design.Target:
    """Read what is asked: its kind, the parts of that, and for `advantage` limits and the shape of the models."""
    kind, _, rest = ask.partition(":")
    options = {name: value for name, value in limits.items() if value}
    if options and kind in ("optimum", "loss"):
        flags = join_words([f"--{name.replace('_', '-')}" for name in options])
        verb = "goes" if len(options) == 1 else "go"
        raise InputError(f"--ask {ask!r}: {flags} {verb} with advantage only")
    if kind not in ANSWERS:
        raise InputError(unknown("--ask ", kind, ANSWERS))
    target, readers = ANSWERS[kind]
    texts = rest.split(",")
    if len(texts) != len(readers):
        forms = " or ".join(f"{name}:{','.join(parts)}" for name, (_, parts) in ANSWERS.items())
        raise InputError(f"--ask {ask!r} must be {forms}")
    values = [read(text, f"--ask {ask!r}: {name}") for (name, read), text in zip(readers.items(), texts, strict=True)]
    if kind == "advantage":
        options.update(shape)
    return target(*values, **options)
