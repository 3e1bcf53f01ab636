"""Folders and JSON written so that they are never half there; single files are `hub.plain.atomic`'s part."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hub.plain.atomic import sync_folder, write_bytes


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes `target` (replacing it) when the block ends without an exception."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        sync_tree(temporary)
        if target.exists():
            old = target.with_name(f".{target.name}.{os.getpid()}.old")
            os.rename(target, old)
            os.rename(temporary, target)
            shutil.rmtree(old)
        else:
            os.rename(temporary, target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync_tree(folder: Path) -> None:
    """Flush every file and folder below to the disk."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically; NaN and infinities are refused, since no other reader would take them."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())
