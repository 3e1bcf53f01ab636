"""What the commands of `scaling-law` share: choosing a law, reading quantities, printing, exit codes.

`hub.plain.commands` has the exit statuses: 1 for an answer that is not to be trusted (a fit that did not converge, a
loss beyond the range guard), 2 for a question that is refused, with one line on standard error and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import typer

from hub.plain.commands import NOT_TRUSTED as NOT_TRUSTED
from scaling_law.laws import ChinchillaForm, JointLaw, Law

T = TypeVar("T")

LawOption = typer.Option(
    "published", "--law", help="published, printed (the paper's rounded table), a folder, or a Hub repo."
)
JsonOption = typer.Option(False, "--json", help="Print JSON instead of tables.")
ForceOption = typer.Option(False, "--force", help="Answer even where the law is far outside of its runs.")
ExpertsOption = typer.Option(
    None, help="Experts to compare: 1,2,4,8 or 1-32. [default: 1,2,4,8,16,32; a Chinchilla law's own]"
)
VocabOption = typer.Option(
    None, "--vocab-size", help="Vocabulary size. [default: that of the law's runs; where unknown GPT-2's 50257]"
)


def learning_rate_law_option(name: str) -> Any:
    """The option that names a law of the peak learning rate."""
    return typer.Option(
        "code", name, help="code (what the paper's runs used), paper (as its text says), or the file of a fitted law."
    )


def choose_law(name: str) -> Law:
    """The law that `--law` names: published, printed, a folder with scaling_law.json, or a Hub repo."""
    from scaling_law.law_files.serialization import load_law

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


def choose_planning_law(name: str) -> ChinchillaForm:
    """As `choose_law`, for questions about optima: a joint law, or a Chinchilla law for its one E."""
    law = choose_law(name)
    if not isinstance(law, ChinchillaForm):
        raise ValueError(f"--law {name}: a {law.name} law has no optima; a joint or a Chinchilla law is needed")
    return law


def optional(text: str | None, parse: Callable[[str, str], T], field: str) -> T | None:
    """Parse an option that may have been left out."""
    return None if text is None else parse(text, field)


clear_errors = nullcontext  # errors are mapped by hub.plain.commands
