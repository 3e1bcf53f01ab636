"""The command of `scaling-law` that asks about a released model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hub.base.commands import CONTEXT, COUNT, Json, Revision
from hub.base.tables import show
from scaling_law.commands import options
from scaling_law.commands.options import exit_untrusted, quantity
from scaling_law.law import Law
from scaling_law.law import describe as describing


def describe(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="org/model on the Hub, a folder, or a config.json.")],
    tokens: Annotated[Any, quantity(COUNT, "Training tokens: 15T. [default: no loss is predicted]")] = None,
    context: Annotated[Any, quantity(CONTEXT, "Sequence length for exact FLOPs, with attention: 4k.")] = None,
    bytes_per_parameter: options.BytesPerParameter = 2.0,
    revision: Revision = None,
    force: options.Force = False,
    law: options.LawName = "published",
    as_json: Json = False,
) -> None:
    """What a model is in the terms of a law, from its config.json alone: sizes, E, FLOPs, memory.

        scaling-law describe mistralai/Mixtral-8x7B-v0.1

    With --tokens, also the loss that the law predicts, and what it would have chosen for the same FLOPs and memory;
    the exit status is 1 where the model is too far outside the runs of the law for the loss to be trusted.

    More examples:

        scaling-law describe models/my-model/config.json --tokens 2T --context 4k --json
    """
    loaded: Law = options.choose_law(law)
    description = describing.describe(
        model,
        tokens,
        law=loaded,
        context=context,
        bytes_per_parameter=bytes_per_parameter,
        revision=revision,
        force=force,
    )
    show(description.to_dict() if as_json else None, as_json, description)
    exit_untrusted(description.trusted, force)
