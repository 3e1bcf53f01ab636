"""Messages about a full disk or a used-up quota: how much is missing, and what may be removed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hub.base.units import format_bytes

_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
# Libraries in Rust and C++ raise errors without a number, with the text of one.
_TEXTS = {os.strerror(number).lower(): number for number in _FULL}


class WriteError(OSError):
    """A failed write: the message says what could not be written, and why."""

    exit_status = 3


class FullDiskError(WriteError):
    """A disk or a quota is full: the message says how much is missing, and what to remove."""


@contextmanager
def explain_full_disk(
    what: str, folder: Path, needed_bytes: int | None = None, advise: Callable[[], str] = str
) -> Iterator[None]:
    """Raise FullDiskError, with advice, in place of any error of a full disk while `what` is written in `folder`."""
    try:
        yield
    except Exception as error:
        # A WriteError already has a message for the user.
        if find_full_disk(error) is None or isinstance(error, WriteError):
            raise
        reason = describe_full_disk(error, folder, needed_bytes)
        clauses = [f"{what} could not be written: {reason}", advise()]
        raise FullDiskError("; ".join(filter(None, clauses))) from error


def describe_full_disk(error: BaseException, folder: Path, needed_bytes: int | None = None) -> str | None:
    """Say that the disk of `folder` is full and how much is missing; None if that is not why an error came.

    `needed_bytes` are to be written in all; those that are in `folder` already count. Ask before they are removed. An
    error that does not say why it came is of a full disk if there is no room for them.
    """
    free, files = measure_free_space(folder)
    missing = None
    if needed_bytes is not None:
        missing = needed_bytes - size_of(folder) - free
    number = find_full_disk(error)
    if number is None and (missing is None or missing <= 0):
        return None
    reason = _FULL[number or errno.ENOSPC]
    if number == errno.EDQUOT:
        return reason if needed_bytes is None else f"{reason}: {format_bytes(needed_bytes)} are needed"
    if files == 0:
        return f"{reason}: it holds as many files as it can"
    if missing is None or missing <= 0:
        return f"{reason}: {format_bytes(free)} are free"
    return f"{reason}: {format_bytes(needed_bytes or 0)} are needed and {format_bytes(missing)} are missing"


def find_full_disk(error: BaseException | None) -> int | None:
    """Return ENOSPC or EDQUOT if an error came of it, by its number or text or its causes'; None otherwise."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return error.errno
        for text, number in _TEXTS.items():
            if text in str(error).lower():
                return number
        # A distributed checkpoint of torch holds the errors of its processes.
        for cause, _ in getattr(error, "failures", {}).values():
            number_of_cause = find_full_disk(cause)
            if number_of_cause is not None:
                return number_of_cause
        error = error.__cause__ or error.__context__
    return None


def size_of(folder: Path) -> int:
    """Count the bytes of all files below a folder, or of a file; 0 where there is none."""
    total = 0
    for path in [folder, *folder.rglob("*")]:
        # Somebody may have removed the file meanwhile.
        with suppress(OSError):
            if path.is_file():
                total += path.stat().st_size
    return total


def share_disk(folder: Path, other_folder: Path) -> bool:
    """Return whether files removed from one folder make room in another."""
    return _existing_folder(folder).stat().st_dev == _existing_folder(other_folder).stat().st_dev


def measure_free_space(folder: Path) -> tuple[int, int | None]:
    """Return the free bytes, and the free entries for files if they are counted, where `folder` is or would be."""
    place = _existing_folder(folder)
    status = os.statvfs(place)
    return shutil.disk_usage(place).free, status.f_favail if status.f_files else None


def _existing_folder(folder: Path) -> Path:
    """Return the nearest folder above that exists, or the folder itself."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder
