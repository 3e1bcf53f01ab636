"""Files, folders and JSON written so that a crash leaves either the old content or the new one, never a half.

As usual on POSIX: write to a temporary name in the same folder, fsync, rename over the final name, fsync the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hub.base.errors import IntegrityError, problem_lines


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Provide a temporary name for a file that becomes `path` when the block ends, and is removed when it fails."""
    # mkstemp would give the file the mode 0600, which hides it from others.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # A full disk would not say which file it was, and nobody knows the temporary name.
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(temporary)):
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise
    sync(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file `path` by `content`, atomically and durably; folders above it are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(path) as temporary, temporary.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically; NaN and infinities are refused, since no other reader would take them."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path, default: Any, kind: Any = Any) -> Any:
    """Read the JSON in a file as a `kind`, such as list[Job], or return `default` where there is no file.

    Raises IntegrityError where it is neither JSON nor of that kind.
    """
    import pydantic

    if not path.exists():
        return default
    try:
        return pydantic.TypeAdapter(kind).validate_python(json.loads(path.read_text(encoding="utf-8")))
    except pydantic.ValidationError as error:
        lines: list[str] = []
        for problem in error.errors():
            lines += problem_lines(problem)
        raise IntegrityError(f"{path} is damaged: {'; '.join(lines).removeprefix(': ')}") from None
    except ValueError as error:
        # The file is neither JSON nor UTF-8.
        raise IntegrityError(f"{path} is damaged: {error}") from None


def copy_file(source: Path, destination: Path) -> None:
    """Copy a file's bytes, and flush them to the disk."""
    shutil.copyfile(source, destination)
    sync(destination)


def sha256_of(path: Path) -> str:
    """Compute the sha256 (hex) of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def share_weights(folder: Path) -> None:
    """Give weights the mode of the config.json beside them: safetensors hides its files from others (0600)."""
    mode = (folder / "config.json").stat().st_mode
    for path in folder.glob("*.safetensors"):
        path.chmod(mode)


def weights_sha256(folder: Path) -> dict[str, str]:
    """Compute the sha256 of every safetensors file in a folder, by file name."""
    return {path.name: sha256_of(path) for path in sorted(folder.glob("*.safetensors"))}


def sync(path: Path) -> None:
    """Flush a file, or a folder's entries so that a rename in it survives a power cut, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Provide a temporary folder that becomes `target` (replacing it) when the block ends without an exception."""
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
        sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync_tree(folder: Path) -> None:
    """Flush a folder, and every file and folder below it, to the disk."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)
