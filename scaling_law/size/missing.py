"""The error for a missing model, such as that of a row without an architecture."""

from __future__ import annotations

from typing import Any

from hub.base.errors import InputError


def refuse_none(name: str, model: Any) -> None:
    """Raise ValueError for None, which rows of answers have as `architecture` unless they are `integral`."""
    if model is None:
        raise InputError(f"{name}=None must be a model: rows of an answer have an architecture with integral=True")
