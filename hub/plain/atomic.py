"""Writing so that a crash leaves either the old content or the new one, never a half.

The recipe is the usual one on POSIX: write to a temporary name in the same folder, flush the data to the disk (fsync),
rename over the final name, flush the folder.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path

_CHUNK = 1 << 20


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file `path` by `content`, atomically and durably; folders above it are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")  # not mkstemp: its mode 0600 hides the file
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def copy_file(source: Path, destination: Path) -> str:
    """Copy a file's bytes, flush them to the disk, and return their sha256 (hex). `destination` must not exist."""
    digest = hashlib.sha256()
    with source.open("rb") as reader, destination.open("xb") as writer:
        while chunk := reader.read(_CHUNK):
            digest.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """The sha256 (hex) of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def weights_sha256(folder: Path) -> dict[str, str]:
    """The sha256 of every safetensors file in a folder, by file name."""
    return {path.name: sha256_of(path) for path in sorted(folder.glob("*.safetensors"))}


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
