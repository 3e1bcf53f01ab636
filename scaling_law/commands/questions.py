"""The commands of `scaling-law` that ask laws: losses, optima, what reaches a loss, what experts are worth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, product
from typing import Annotated, Any

import numpy as np
import typer

from hub.base.errors import InputError
from hub.base.fields import field
from hub.base.types import Fields
from hub.base.units import bracket_interval, parse_count
from scaling_law.answer.answer import Answer, columns_of, span
from scaling_law.commands.options import Mode, Printed, command, named, option
from scaling_law.formulas.law import percentile_interval
from scaling_law.law import Law, shelf
from scaling_law.law import compare as comparing
from scaling_law.law import describe as describing
from scaling_law.planning.limits import Limits
from scaling_law.planning.question import (
    ExpertCounts,
    Experts,
    Flops,
    SeveralSizes,
    SeveralTokens,
)
from scaling_law.planning.why import Why
from scaling_law.size.family import Family

VARIABLE = "A further variable of the law: --variable density=0.25 (repeatable)."
WHICH_EXPERTS = "E of the model; with --n-active several: 2,8, or doublings: 2-8. [default: 8; or the law's own]"


@dataclass(frozen=True, eq=False, repr=False)
class Losses(Answer):
    """The loss of each model by the law, in nats per token, with a range check of its own."""

    _question = ("n_active", "tokens", "experts")
    _unprinted = ("warnings",)

    law: Law

    @property
    def trusted(self) -> bool:
        return all(row.trusted for row in self.rows)

    @property
    def verdict(self) -> str:
        losses = span(self.loss, "{:.3f}".format)
        if len(self.rows) > 1:
            return f"{len(self.rows)} models: loss {losses} nats per token"
        text = f"loss {losses}{bracket_interval(self.rows[0].loss_interval)} nats per token"
        return text if self.trusted else f"{text}; not trusted"

    def facts(self) -> Fields:
        return {"law": repr(self.law)}

    def _lines(self) -> str:
        source = self.law.conditions.summary().title if self.law.conditions else "fitted law"
        return f"{self.verdict}\n{source}"


@command("n_active tokens experts like unique_tokens variable law", Law.optimal)
def loss(
    law: Law,
    like: Family | None,
    unique_tokens: float | None,
    n_active: Annotated[SeveralSizes | None, field("Active parameters with embeddings: 1.1B or 1e8,1e9.")] = None,
    tokens: Annotated[SeveralTokens | None, field("Training tokens: 20B or 2e9,2e10.")] = None,
    experts: Annotated[
        ExpertCounts | None, field("8, or 1,2,4, or doublings 1-8. [default: 1, or the law's own]")
    ] = None,
    variable: Annotated[
        list[Any], option(VARIABLE, parser=named(parse_count, "name=number"), metavar="NAME=NUMBER")
    ] = [],  # noqa: B006
) -> Answer:
    """Predict the loss of models, in nats per token.

        scaling-law loss --n-active 1.1B --tokens 20B --experts 1,2,4,8

    Always answers; the exit status is 1 where a model is too far outside the runs of the law for the loss to be
    trusted.

    More examples:

        scaling-law loss --n-active 1e8,1e9 --tokens 2e10 --law printed --json

        scaling-law loss --tokens 2e10 --variable n_total=5e9 --variable density=0.1 --law my-law
    """
    counts = experts or [like.experts if like else law.check().at["experts"]]
    constants = dict(variable)
    if unique_tokens is not None:
        constants["unique_tokens"] = unique_tokens
    models = []
    for n, d, e in product(n_active or [None], tokens or [None], counts):
        models.append({"n_active": n, "tokens": d, "experts": e, **constants})
    return predict_losses(law, models, like)


def predict_losses(law: Law, models: Iterable[Fields], like: Family | None = None) -> Losses:
    """Predict the losses of models, by their variables; of a family those of its models with this N_act."""
    columns = columns_of([_predict(law, model, like) for model in models])
    notes = dict.fromkeys(chain.from_iterable(columns["warnings"]))
    return Losses(law, columns=columns, check=None, notes=tuple(notes))


def _predict(law: Law, variables: Fields, like: Family | None) -> Fields:
    """Predict the loss of one model, with its interval where the law has draws."""
    row = dict(variables)
    if like and row["n_active"] is not None:
        e = like.read_experts(np.array(float(variables["experts"])))
        limits = Limits.of(law, like=like)
        model = limits.ladder.variables(limits.width_of_parameters(variables["n_active"], 1.0), e)
        variables = {**variables, **{name: float(model[name]) for name in {*law.variables} & {*model}}}
        row = {**row, "routed_experts": row["experts"], "experts": float(e)}
    return {
        **row,
        "loss": float(law.loss(**variables)),
        "loss_interval": None if law.draws is None else percentile_interval(law.loss_draws(**variables)),
        "trusted": bool(law.check(**variables).trusted),
        "warnings": law.warnings(**variables),
    }


@command("", Law.optimal)
def optimal(
    law: Law,
    why: Annotated[bool, option("What supports the best row, and which runs would make it surer.")] = False,
    **question: Any,
) -> Answer | Why:
    """Find the best model for a budget of FLOPs, hours or money, for every number of experts, and the best of all.

        scaling-law optimal --flops 1e22 --memory 80GB --kv-tokens 16k

    With an hours budget, the loss at equal FLOPs is shown alongside. Ties between numbers of experts are named.
    Refused (exit status 2) where every answer is too far outside the runs of the law, unless --force is given.

    More examples:

        scaling-law optimal --flops 5e22 --max-parameters 7B --inference-tokens 100B --experts 1-32 --integral --json

        scaling-law optimal --gpu h100 --gpus 8 --hours 72 --price 2.5

        scaling-law optimal --gpu h100 --gpus 64 --hours 3w --sequence-length 4k --batch 4M

        scaling-law optimal --flops 1e22 --gpu h100 --decode-batch 32 --kv-tokens 64k

        scaling-law optimal --gpu h100 --gpus 64 --hours 30d --inference-tokens 2T --decode-batch 64 --kv-tokens 128k

        scaling-law optimal --flops 1e21 --accuracy arc_easy,hellaswag
    """
    answer = law.optimal(**question)
    return answer.why() if why else answer


@command("", Law.reach)
def reach(law: Law, loss: float, **question: Any) -> Printed:
    """Find the cheapest budget that reaches a loss; or, given a budget, the least memory that does.

        scaling-law reach --loss 2.2 --memory 24GB --kv-tokens 16k

    With --gpu or --throughput and no budget: the fewest hours. Refused (exit status 2) where every answer is too far
    outside the runs of the law, unless --force is given.

    More examples:

        scaling-law reach --loss 2.15 --flops 1e22 --json

        scaling-law reach --loss 2.4 --gpu h100 --gpus 8 --price 2.5
    """
    return Printed(law.reach(loss, **question), {"loss": float(loss)})


@command(
    "flops n_active experts baseline match gpus gpu throughput mfu engine precision sequence_length batch granularity "
    "shared_ratio like vocab_size force law",
    Law.speedup,
)
def speedup(
    law: Law,
    flops: Annotated[Flops | None, field("Training FLOPs of the model: 1e22. Answers in FLOPs and tokens.")] = None,
    n_active: Annotated[
        SeveralSizes | None,
        field("Active parameters of both: 1.1B or 1e8,1e9. Answers with the crossover tokens."),
    ] = None,
    experts: Annotated[Experts | None, field(WHICH_EXPERTS)] = None,
    **question: Any,
) -> Printed:
    """Say what experts are worth: the factor in compute that they save, or the tokens after which they pay off.

        scaling-law speedup --flops 1e21 --experts 8

    With --flops: how many times the FLOPs, tokens and hours the baseline needs for the loss of a compute-optimal
    model, and where the law puts the asymptote, on which the factor depends; infinite where no number of tokens
    suffices. With --n-active: the token count at which the MoE overtakes the dense model with the same active
    parameters, 0 where it always leads and infinite (JSON: null) where it never does, with the 95 % interval of the
    law.

    More examples:

        scaling-law speedup --flops 1e22 --experts 32 --baseline 4 --gpu h100 --gpus 8

        scaling-law speedup --flops 1e22 --experts 8 --match memory

        scaling-law speedup --n-active 1e8,1e9 --experts 2,8 --json
    """
    if flops is None and n_active is None:
        raise InputError("--flops or --n-active is needed")
    answer = law.speedup(experts, flops=flops, n_active=n_active, **question)
    return Printed(answer, {} if n_active is None else {"law": repr(law)})


@command(
    "flops memory laws like vocab_size force",
    comparing.compare,
    modes={"flops": Mode(only=("memory", "like", "vocab_size", "force"))},
)
def compare(
    laws: Any,
    flops: Annotated[Flops | None, field("Compute budget of training: 1e22.")] = None,
    **question: Any,
) -> Answer | Printed:
    """List the published laws; with a training budget, find the optimum of each law of the loss.

        scaling-law compare --flops 1e22 --memory 80GB

    Without a budget: what each law answers, from which variables, on which corpus, and how it is known; of one law
    also its equation, source, coefficients, and how it counts. --law NAME asks one of them in the other commands.

    Losses of different corpora do not compare: they are shown, never ranked. The exit status is 1 where no answer is
    to be trusted, and 2 where each is refused as too far outside the runs of its law, unless --force is given.

    More examples:

        scaling-law compare

        scaling-law compare --laws chinchilla --json

        scaling-law compare --flops 1e21 --laws chinchilla,besiroglu,ludziejewski --json
    """
    if flops is None:
        return Printed(shelf.Shelf(tuple(map(shelf.entry, laws))) if laws else shelf.laws(), trusted=True)
    return comparing.compare(flops, laws=laws, **question)


@command("", describing.describe, without=("source",))
def describe(
    law: Law,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="org/model on the Hub, a folder, or a config.json.")],
    **question: Any,
) -> Answer:
    """Describe a model (parameters, effective E, FLOPs, memory) from its config.json.

        scaling-law describe mistralai/Mixtral-8x7B-v0.1

    With --tokens, also the loss that the law predicts, and what it would have chosen for the same FLOPs and memory;
    the exit status is 1 where the model is too far outside the runs of the law for the loss to be trusted.

    More examples:

        scaling-law describe models/my-model/config.json --tokens 2T --context 4k --json

        scaling-law describe openai/gpt-oss-20b --context 128k --kv-tokens 1M
    """
    return describing.describe(model, law=law, **question)
