"""Paths as users type them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from hub.base.errors import FilesError, InputError


def local_path(path: str | Path) -> Path:
    """Return a path here, in which a leading `~` is the home folder; one of no known user stays as it is."""
    return Path(os.path.expanduser(path))


def is_utf8(path: str | Path) -> bool:
    """Return whether a path is UTF-8: libraries in Rust cannot write to another."""
    return not re.search(r"[\ud800-\udfff]", str(path))


def check_utf8(path: str | Path, field: str) -> None:
    """Raise InputError for a path that is no UTF-8."""
    if not is_utf8(path):
        raise InputError(f"{field}: {str(path)!a} is not UTF-8; rename it")


def check_links(paths: Iterable[Path], field: str) -> None:
    """Raise FilesError for a link whose target is gone: readers would pass over it without a word."""
    for path in paths:
        if path.is_symlink() and not path.exists():
            target = os.readlink(path)
            raise FilesError(
                f"{field}: {path} is a link to {target}, which does not exist; restore it, or remove the link"
            )
