"""Checksums beside the tables that we write, so that a damaged one is not read as data.

A folder has them in one hidden file, `<sha256>  <name>` on each line. They are noted before a file is replaced, and
the last few are kept, so that a reader during a write finds that of the old file and that of the new one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from hub.base import atomic
from hub.base.errors import IntegrityError

FILE_NAME = ".sha256"
_SUMS_PER_FILE = 8


def note(folder: Path, files: Mapping[str, bytes]) -> None:
    """Note the files about to be written into `folder`; a file there without a checksum is taken as it is."""
    sums = _read_sums(folder)
    for name, content in files.items():
        if name not in sums and (folder / name).is_file():
            sums[name] = [atomic.sha256_of(folder / name)]
        digest = hashlib.sha256(content).hexdigest()
        older = [old for old in sums.get(name, []) if old != digest]
        sums[name] = [*older, digest][-_SUMS_PER_FILE:]
    text = ""
    for name, digests in sorted(sums.items()):
        for digest in digests:
            text += f"{digest}  {name}\n"
    atomic.write_bytes(folder / FILE_NAME, text.encode())


def check(file: Path, content: bytes) -> None:
    """Raise IntegrityError if `content`, read from `file`, is not what was noted; a file without a checksum passes."""
    digests = _read_sums(file.parent).get(file.name)
    if digests and hashlib.sha256(content).hexdigest() not in digests:
        raise IntegrityError(
            f"{file} has changed since it was pushed: it is damaged or was edited. To accept it as it is, delete "
            f"{file.parent / FILE_NAME}; to rebuild an index from its branches, run `python -m hub repair STORE SWEEP`"
        )


def _read_sums(folder: Path) -> dict[str, list[str]]:
    """Read, by file name, the sha256 (hex) of the newest contents, oldest first."""
    path = folder / FILE_NAME
    sums: dict[str, list[str]] = {}
    if not path.is_file():
        return sums
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        digest, _, name = line.partition("  ")
        sums.setdefault(name, []).append(digest)
    return sums
