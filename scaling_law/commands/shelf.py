"""The command of `scaling-law` that lists the published laws."""

from __future__ import annotations

from typing import Annotated

import typer

from hub.plain.commands import Json
from hub.plain.tables import show
from scaling_law.laws import shelf


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
