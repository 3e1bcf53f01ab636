"""The command of `scaling-law` on the published laws: a list of them, and what each says of one budget."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hub.base.commands import Json
from hub.base.tables import show
from scaling_law.commands import options
from scaling_law.commands.options import Mode, check_modes, exit_untrusted, option, quantity
from scaling_law.law import compare as comparing
from scaling_law.law import shelf
from scaling_law.size.architecture import VOCAB_SIZE

NAMES = "Names, comma-separated; one alone shows all of it. [default: all; with a budget those with coefficients]"


def compare(
    context: typer.Context,
    flops: options.Flops = None,
    memory: options.Memory = None,
    laws: Annotated[Any, quantity(options.names, NAMES)] = None,
    vocab_size: Annotated[int, option("Vocabulary of every model.", rare=True)] = VOCAB_SIZE,
    force: options.Force = False,
    as_json: Json = False,
) -> None:
    """The published laws; with a training budget, what each says of it and what it cannot say.

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
    check_modes(context, {"flops": Mode(only=("memory", "vocab_size", "force"))})
    if flops is None:
        listed = shelf.Shelf(tuple(map(shelf.entry, laws))) if laws else shelf.laws()
        return show(listed.to_dict(), as_json, listed.entries[0] if len(listed.entries) == 1 else listed)
    comparison = comparing.compare(flops, memory=memory, laws=laws, vocab_size=vocab_size, force=force)
    show(comparison.to_dict() if as_json else None, as_json, comparison)
    exit_untrusted(comparison.trusted, force)
