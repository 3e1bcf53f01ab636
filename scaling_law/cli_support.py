"""What the commands of `scaling-law` share: choosing a law, reading quantities, printing, exit codes.

Exit codes: 0 answered; 2 the question is wrong (a bad option, a file that is not there, constraints nothing meets);
3 answered, but not to be trusted (a fit that did not converge, an answer beyond the range guard); 1 anything
unexpected.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer

from scaling_law import units
from scaling_law.laws import JointLaw, Law

ANSWERED, UNEXPECTED, WRONG_QUESTION, NOT_TRUSTED = 0, 1, 2, 3
T = TypeVar("T")

LawOption = typer.Option(
    "published", "--law", help="published, printed (the paper's rounded table), a folder, or a Hub repo."
)
JsonOption = typer.Option(False, "--json", help="Print JSON instead of tables.")


def learning_rate_law_option(name: str) -> Any:
    """The option that names a law of the peak learning rate."""
    return typer.Option(
        "code", name, help="code (what the paper's runs used), paper (as its text says), or the file of a fitted law."
    )


def choose_law(name: str) -> Law:
    """The law that `--law` names: published, printed, a folder with scaling_law.json, or a Hub repo."""
    from scaling_law.serialization import load_law

    if name in ("published", "recovered"):
        return JointLaw.published()
    if name == "printed":
        return JointLaw.published(rounded=True)
    return load_law(name)


def choose_joint_law(name: str) -> JointLaw:
    """As `choose_law`, for questions that only the joint law answers."""
    law = choose_law(name)
    if not isinstance(law, JointLaw):
        raise ValueError(f"--law {name}: a {law.name} law cannot answer this; a joint law is needed")
    return law


def optional(text: str | None, parse: Callable[[str, str], T], field: str) -> T | None:
    """Parse an option that may have been left out."""
    return None if text is None else parse(text, field)


def count_list(text: str, field: str) -> list[float]:
    """Comma-separated counts, such as 1e20,1e21."""
    return [units.parse_count(part.strip(), field) for part in text.split(",")]


def show(value: Any, as_json: bool, renderable: Any) -> None:
    """Print `value` as JSON on stdout, or the renderable for a reader."""
    if as_json:
        sys.stdout.write(json.dumps(_plain(value), indent=1, allow_nan=False) + "\n")
    else:
        print_table(renderable)


def print_table(renderable: Any) -> None:
    """Print what rich renders on stdout; a file or a pipe has no width that a table must be cut to."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)
    console.print(renderable)


def _plain(value: Any) -> Any:
    """JSON values: arrays as lists, non-finite numbers as null."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn errors about the question into one line on stderr and exit code 2."""
    try:
        yield
    except (ValueError, FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        typer.secho(f"error: {error}", err=True, fg="red")
        raise typer.Exit(WRONG_QUESTION) from None
