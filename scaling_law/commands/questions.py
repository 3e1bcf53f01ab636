"""The commands of `scaling-law` that ask a law: losses, optima, what reaches a loss, what experts are worth."""

from __future__ import annotations

import math
from itertools import product
from typing import Annotated, Any

import typer

from hub.base.commands import COUNT, COUNTS, EXPERTS, SOME_EXPERTS, Json
from hub.base.errors import InputError
from hub.base.tables import Table, enumerated, show
from scaling_law.commands import options
from scaling_law.commands.options import Mode, check_modes, exit_untrusted, option, quantity, step_times
from scaling_law.formulas.law import percentile_interval
from scaling_law.formulas.learning_rate import LearningRateLaw
from scaling_law.law import ChinchillaLaw, Law
from scaling_law.planning.break_even import break_even
from scaling_law.planning.speedup import speedup as effective_speedup

WHICH_EXPERTS = "E of the model, 8; with --n-active several: 2,8 or 2-8."
COMPUTE_ONLY = ("baseline", "gpus", "gpu", "throughput", "mfu", "granularity", "shared_ratio", "vocab_size")


def loss(
    n_active: Annotated[Any, quantity(COUNTS, "Active parameters with embeddings: 1.1B or 1e8,1e9.")] = None,
    tokens: Annotated[Any, quantity(COUNTS, "Training tokens: 20B or 2e9,2e10.")] = None,
    experts: Annotated[Any, quantity(EXPERTS, "8, or 1,2,4, or 1-8. [default: 1, or the law's own]")] = None,
    variable: options.Variable = [],  # noqa: B006
    law: options.LawName = "published",
    as_json: Json = False,
) -> None:
    """Predict the loss of models, in nats per token.

        scaling-law loss --n-active 1.1B --tokens 20B --experts 1,2,4,8

    Always answers; the exit status is 1 where a model is too far outside the runs of the law for the loss to be
    trusted.

    More examples:

        scaling-law loss --n-active 1e8,1e9 --tokens 2e10 --law printed --json

        scaling-law loss --tokens 2e10 --variable n_total=5e9 --variable density=0.1 --law my-law
    """
    loaded: Law = options.choose_law(law)
    default = round(loaded.default_experts()) if isinstance(loaded, ChinchillaLaw) else loaded.check().at["experts"]
    values = {"n_active": n_active, "tokens": tokens, "experts": experts or [default], **dict(variable)}
    if missing := [name for name in loaded.variables if values.get(name) in (None, [])]:
        flags = [f"--{name.replace('_', '-')}" if name in values else f"--variable {name}=…" for name in missing]
        verb = "is" if len(missing) == 1 else "are"
        depends = f"the {loaded.name} law depends on {enumerated(loaded.variables)}"
        raise InputError(f"{enumerated(flags)} {verb} needed: {depends}")
    grid = product(n_active or [None], tokens or [None], experts or [default])
    rows = [_loss_row(loaded, {"n_active": n, "tokens": d, "experts": e} | dict(variable)) for n, d, e in grid]
    warnings = list(dict.fromkeys(warning for row in rows for warning in row["warnings"]))
    lines = []
    for row in rows:
        interval = "{:.4f}…{:.4f}".format(*row["loss_interval"]) if "loss_interval" in row else ""
        names = ("n_active", "tokens", "experts", *dict(variable), "loss")
        lines.append({name: row[name] for name in names if row[name] is not None})
        lines[-1] |= {"95 %": interval, "trusted": row["trusted"]}
    keys = ("N_act", "tokens", "E")
    table = Table.of(lines, title=repr(loaded), keys=keys, first=("loss", ""), warnings=warnings)
    show({"law": repr(loaded), "rows": rows}, as_json, table)
    exit_untrusted(all(row["trusted"] for row in rows))


def _loss_row(law: Law, at: dict[str, Any]) -> dict[str, Any]:
    row = at | {"loss": float(law.loss(**at))}
    if law.draws is not None:
        row["loss_interval"] = percentile_interval(law.loss_draws(**at))
    return row | {"trusted": bool(law.check(**at).trusted), "warnings": law.warnings(**at)}


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
        float | None, option("Sequences served at once: adds the cost of a million tokens.", rare=True)
    ] = None,
    memory: options.Memory = None,
    max_parameters: options.MaxParameters = None,
    kv_tokens: options.KvTokens = 0.0,
    experts: options.Experts = None,
    inference_tokens: options.InferenceTokens = 0.0,
    bytes_per_parameter: options.BytesPerParameter = 2.0,
    bytes_per_kv: Annotated[float, option("Bytes of a KV cache element.", rare=True)] = 2.0,
    kv_heads_ratio: Annotated[float, option("KV heads / heads (grouped queries).", rare=True)] = 1.0,
    granularity: Annotated[float, option(options.GRANULARITY, rare=True)] = 1.0,
    shared_ratio: Annotated[float, option(options.SHARED, rare=True)] = 0.0,
    unique_tokens: Annotated[
        Any, quantity(COUNT, "Unique tokens; more are repetitions, worth less: 100B.", rare=True)
    ] = None,
    vocab_size: options.VocabSize = None,
    integral: Annotated[bool, option("Only architectures with d_model a multiple of 64.", "--integral")] = False,
    force: options.Force = False,
    law: options.LawName = "published",
    learning_rate_law: options.RatesLaw = "code",
    as_json: Json = False,
) -> None:
    """The best model for a budget of FLOPs, hours or money, for every number of experts, and the best of all.

        scaling-law optimal --flops 1e22 --memory 80GB --kv-tokens 16k

    In hours it stands beside the answer for equal FLOPs. Says which numbers of experts the law cannot tell apart.
    Refused (exit status 2) where every answer is too far outside the runs of the law, unless --force is given.

    More examples:

        scaling-law optimal --flops 5e22 --max-parameters 7B --inference-tokens 100B --experts 1-32 --integral --json

        scaling-law optimal --gpu h100 --gpus 8 --hours 72 --price 2.5
    """
    question = options.without(locals(), "law", "as_json", "gpu", "mfu")
    question |= {
        "throughput": step_times(gpu, throughput, mfu, hours=hours, money=money),
        "learning_rate_law": LearningRateLaw.named(learning_rate_law),
    }
    loaded: Law = options.choose_law(law)
    table = loaded.optimal(**question)
    show(table.to_dict() if as_json else None, as_json, table)
    exit_untrusted(table.best.trusted, force)


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

        scaling-law reach --loss 2.2 --memory 24GB --kv-tokens 16k

    With --gpu or --throughput and no budget: the fewest hours. Refused (exit status 2) where every answer is too far
    outside the runs of the law, unless --force is given.

    More examples:

        scaling-law reach --loss 2.15 --flops 1e22 --json

        scaling-law reach --loss 2.4 --gpu h100 --gpus 8 --price 2.5
    """
    budget = {"flops": flops, "hours": hours, "money": money}
    if memory is not None and any(value is not None for value in budget.values()):
        raise InputError("--memory and a budget: give one of them; the other is the answer")
    loaded: Law = options.choose_law(law)
    limits: dict[str, Any] = {"kv_tokens": kv_tokens, "inference_tokens": inference_tokens}
    limits |= {"vocab_size": vocab_size, "force": force, "gpus": gpus, "price": price}
    limits["throughput"] = step_times(gpu, throughput, mfu, hours=hours, money=money)
    answer = loaded.reach(loss, experts, **budget, memory=memory, **limits)
    rows = answer.to_rows()
    show({"loss": loss, "rows": rows, "warnings": list(answer.warnings)}, as_json, answer)
    reached = [row["trusted"] for row in rows if math.isfinite(row["n_active"])]
    exit_untrusted(any(reached) or not reached, force)


def speedup(
    context: typer.Context,
    flops: Annotated[Any, quantity(COUNT, "Training FLOPs of the model: 1e22. Answers in FLOPs and tokens.")] = None,
    n_active: Annotated[
        Any, quantity(COUNTS, "Active parameters of both: 1.1B or 1e8,1e9. Answers with the crossover token count.")
    ] = None,
    experts: Annotated[Any, quantity(SOME_EXPERTS, WHICH_EXPERTS, default="8; with --n-active the law's own")] = None,
    baseline: Annotated[float, option("E of the baseline, which must reach its loss.")] = 1.0,
    gpus: options.Gpus = None,
    gpu: options.Gpu = None,
    throughput: options.Times = None,
    mfu: options.Mfu = None,
    granularity: Annotated[float | None, option(options.GRANULARITY, rare=True)] = None,
    shared_ratio: Annotated[float | None, option(options.SHARED, rare=True)] = None,
    vocab_size: options.VocabSize = None,
    force: options.Force = False,
    law: options.LawName = "published",
    as_json: Json = False,
) -> None:
    """What experts are worth: the factor in compute that they save, or the tokens after which they pay off.

        scaling-law speedup --flops 1e21 --experts 8

    With --flops: how many times the FLOPs, tokens and hours the baseline needs for the loss of a compute-optimal
    model, and where the law puts the asymptote, on which the factor depends; infinite where no number of tokens
    suffices. With --n-active: the token count at which the MoE overtakes the dense model with the same active
    parameters, 0 where it always leads and infinite (JSON: null) where it never does, with the 95 % interval of the
    law.

    More examples:

        scaling-law speedup --flops 1e22 --experts 32 --baseline 4 --gpu h100 --gpus 8

        scaling-law speedup --n-active 1e8,1e9 --experts 2,8 --json
    """
    check_modes(context, {"n_active": Mode(never=("flops", *COMPUTE_ONLY))})
    loaded: Law = options.choose_law(law)
    if n_active is not None:
        even = break_even(loaded, n_active, experts, force=force)
        show({"law": repr(loaded), "rows": even.to_rows(), "warnings": list(even.warnings)}, as_json, even)
        return exit_untrusted(even.trusted, force)
    if flops is None:
        raise InputError("--flops or --n-active is needed")
    if len(experts := experts or [8.0]) > 1:
        raise InputError(
            f"--experts {','.join(f'{e:g}' for e in experts)}: one E goes with --flops, several with --n-active"
        )
    design: dict[str, Any] = {"granularity": granularity, "shared_ratio": shared_ratio}
    design |= {"gpus": gpus, "throughput": step_times(gpu, throughput, mfu)}
    answer = effective_speedup(loaded, experts[0], baseline, flops=flops, vocab_size=vocab_size, **design, force=force)
    show(answer.to_dict() if as_json else None, as_json, answer)
    exit_untrusted(answer.trusted, force)
