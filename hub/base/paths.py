"""Paths as users type them."""

from __future__ import annotations

import os
from pathlib import Path


def local_path(path: str | Path) -> Path:
    """Return a path here, in which a leading `~` is the home folder; one of no known user stays as it is."""
    return Path(os.path.expanduser(path))
