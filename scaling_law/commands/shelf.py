"""The commands of `scaling-law` on the published laws: a list of them, and what each says of one budget."""

from __future__ import annotations

from typing import Annotated

import typer

from hub.plain.commands import Json
from hub.plain.tables import show
from scaling_law.commands import options
from scaling_law.law import compare as comparing
from scaling_law.law import shelf
from scaling_law.size.architecture import VOCAB_SIZE


def laws(
    name: Annotated[str | None, typer.Argument(help="One law, with its source and how it counts.")] = None,
    as_json: Json = False,
) -> None:
    """List the published laws: what each answers, from which variables, on which corpus, and how it is known.

    --law NAME asks one of them in the other commands.

    Examples:

        scaling-law laws

        scaling-law laws chinchilla --json
    """
    found = shelf.laws() if name is None else shelf.entry(name)
    show(found.to_dict() if as_json else None, as_json, found)


def compare(
    flops: options.Flops,
    memory: options.Memory = None,
    laws: Annotated[str | None, options.option("Names, comma-separated. [default: all with coefficients]")] = None,
    vocab_size: Annotated[int, options.option("Vocabulary of every model.")] = VOCAB_SIZE,
    force: options.Force = False,
    as_json: Json = False,
) -> None:
    """What the published laws say of one training budget, side by side, and what they cannot say.

    Losses of different corpora do not compare: they are shown, never ranked. The exit status is 1 where no answer is
    to be trusted, and 2 where each is refused as too far outside the runs of its law, unless --force is given.

    Examples:

        scaling-law compare --flops 1e22 --memory 80GB

        scaling-law compare --flops 1e21 --laws chinchilla,besiroglu,ludziejewski --json
    """
    names = [name.strip() for name in laws.split(",")] if laws else None
    found = comparing.compare(flops, memory=memory, laws=names, vocab_size=vocab_size, force=force)
    show(found.to_dict() if as_json else None, as_json, found)
    options.exit_untrusted(found.trusted, force)
