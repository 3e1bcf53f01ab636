"""Laws of a user's own module of Python, for forms that a file cannot hold. Only a shell's user can name one."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

from hub.base.errors import InputError
from hub.base.types import Fields
from scaling_law.law.base import LAWS, Law, LawT, choose_kind
from scaling_law.law.shelf import choose_law

SUFFIX = ".py"


def read_law(name: str, kind: type[LawT] = Law, flag: str = "--law") -> LawT:  # type: ignore[assignment]
    """Load a law as `choose_law`, or the last one that a module, such as "my_laws.py", makes."""
    if not name.endswith(SUFFIX):
        return choose_law(name, kind, flag)
    laws = [value for value in _run(name).values() if isinstance(value, kind)]
    return _last(laws, f"{flag} {name}: it must make a law, such as law = Law.from_pretrained(…)")


def read_kind(name: str, flag: str = "--kind") -> type[Law]:
    """Choose a kind of laws as `choose_kind`, or the last one that a module registers."""
    if not name.endswith(SUFFIX):
        return choose_kind(name)
    _run(name)
    kinds = [kind for kind in LAWS.values() if kind.__module__ == Path(name).stem]
    return _last(kinds, f"{flag} {name}: it must register a kind of law (docs/adding_a_law.md)")


def _run(name: str) -> Fields:
    return run_path(name, run_name=Path(name).stem)


def _last(values: list[Any], problem: str) -> Any:
    if not values:
        raise InputError(problem)
    return values[-1]
