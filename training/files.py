"""Writing so that nothing is ever half-written: a temporary name, fsync, rename."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """Flush a file or folder entry to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes `target` (replacing it) when the block ends without an exception."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in sorted(temporary.rglob("*")):
            sync(path)
        sync(temporary)
        if target.exists():
            old = target.with_name(f".{target.name}.{os.getpid()}.old")
            os.rename(target, old)
            os.rename(temporary, target)
            shutil.rmtree(old)
        else:
            os.rename(temporary, target)
        sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically; NaN and infinities are refused, since no other reader would take them."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
