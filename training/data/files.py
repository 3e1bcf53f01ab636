"""Rows of parquet and JSON files, plain or compressed. What cannot be read names its file, and the row or line.

JSON is lines of objects or one array of them, which may be compressed by gzip or zstd, in any number of members or
frames.
"""

from __future__ import annotations

import codecs
import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import BinaryIO

import pyarrow as pa
from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # fsspec has no stubs
from pyarrow.parquet import ParquetFile

from hub.base.errors import InputError
from hub.base.types import Fields

PARQUET = "parquet"
JSON = "JSON"
_CODECS = {".gz": "gzip", ".zst": "zstd"}
_JSON_SUFFIXES = (".json", ".json.gz", ".json.zst", ".jsonl", ".jsonl.gz", ".jsonl.zst")
ALLOWED = "parquet, or .json or .jsonl, also as .gz or .zst"
# Rows that are decoded of one part at a time: their texts lie in memory for each part of a group.
_ROWS_AT_A_TIME = 64
# Bytes of a column's pages; a row group of 100 MB need not lie in memory whole.
_BUFFER_BYTES = 1 << 20
# Decompressed bytes that lines are cut from.
_LINE_BYTES = 1 << 10
_BEFORE_JSON = codecs.BOM_UTF8 + b" "
# Errors that damaged files raise. Arrow also raises a plain OSError without an error number: see `is_damage`.
_DAMAGE = (pa.ArrowException, UnicodeDecodeError)


def format_of(file: str) -> str | None:
    """Return the format of a file or URL by its name: PARQUET, JSON, or None for another."""
    name = _without_query(file)
    if name.endswith(".parquet"):
        return PARQUET
    return JSON if name.endswith(_JSON_SUFFIXES) else None


def _without_query(file: str) -> str:
    return file.partition("?")[0] if "://" in file else file


def open_file(file: str) -> BinaryIO:
    """Open a local file by its absolute path, or a URL with retries and the Hub's token."""
    if os.path.isabs(file):
        return open(file, "rb")
    # A local file does not need `datasets`, which takes half a second to import.
    from datasets.utils.file_utils import xopen

    return xopen(file, "rb")


def size_of(file: str) -> int:
    """Return the bytes of a file, on the Hub from the cached listing; 1 where they are unknown."""
    if os.path.isabs(file):
        return os.path.getsize(file) or 1
    system, path = url_to_fs(file)
    try:
        return system.info(path).get("size") or 1
    except (OSError, NotImplementedError):
        return 1


def is_damage(error: Exception) -> bool:
    """Return whether an error of reading comes from the content of a file, not from disk or network."""
    return isinstance(error, _DAMAGE) or (type(error) is OSError and error.errno is None)


def open_parquet(file: str, stack: ExitStack) -> ParquetFile:
    """Open a parquet file until `stack` is closed. Raises InputError for a damaged file."""
    content = stack.enter_context(open_file(file))
    try:
        return ParquetFile(content, buffer_size=_BUFFER_BYTES)
    except Exception as error:
        if not is_damage(error):
            raise
        raise InputError(f"data.dataset: {file} is damaged or no parquet file: {_first_line(error)}") from error


def parquet_rows(file: ParquetFile, name: str, groups: range, columns: list[str]) -> Iterator[Fields]:
    """Yield the rows of some row groups of a file. Raises InputError for what is damaged, with the row of `name`."""
    number = rows_before(file, groups)
    try:
        for batch in file.iter_batches(_ROWS_AT_A_TIME, list(groups), columns, use_threads=False):
            for row in _decode(batch):
                number += 1
                yield row
    except Exception as error:
        if not is_damage(error):
            raise
        place = f"at row {number + 1:,}" if isinstance(error, UnicodeDecodeError) else f"after row {number:,}"
        raise InputError(f"data.dataset: {name} cannot be read {place}: {_first_line(error)}") from error


def rows_before(file: ParquetFile, groups: range) -> int:
    """Count the rows of a file before the first of these row groups."""
    return sum(file.metadata.row_group(number).num_rows for number in range(groups.start))


def _decode(batch: pa.RecordBatch) -> Iterable[Fields]:
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        # It is raised again at its row.
        return (batch.slice(number, 1).to_pylist()[0] for number in range(batch.num_rows))


def json_rows(file: str) -> Iterator[Fields]:
    """Yield the rows of a JSON file, decompressed as its name says.

    Raises InputError for a line, or a value of an array, that is not a JSON object or cannot be read.
    """
    with open_file(file) as content:
        codec = _CODECS.get(os.path.splitext(_without_query(file))[1])
        lines: BinaryIO = content
        if codec:
            # All members and frames are read, and the end of a truncated file is an error; what that leaves of a
            # buffer is lost, so it is a small one.
            lines = io.BufferedReader(pa.CompressedInputStream(content, codec), _LINE_BYTES)
        number = 0
        try:
            for number, line in enumerate(lines, start=1):
                if number == 1 and line.lstrip(_BEFORE_JSON).startswith(b"["):
                    line += lines.read()
                if line.strip():
                    yield from _parse_rows(file, number, line)
        except Exception as error:
            if not is_damage(error):
                raise
            raise InputError(
                f"data.dataset: {file} is damaged or truncated after line {number:,}: {_first_line(error)}"
            ) from error


def _parse_rows(file: str, number: int, text: bytes) -> list[Fields]:
    """Parse line `number`, or a whole file that is one array."""
    try:
        value = json.loads(text.strip())
    except (ValueError, RecursionError) as error:
        number += getattr(error, "lineno", 1) - 1
        reason = getattr(error, "msg", error)
        raise InputError(f"data.dataset: {file}, line {number:,} is not JSON: {reason}") from error
    rows = value if isinstance(value, list) and number == 1 else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise InputError(f"data.dataset: {file}, line {number:,} is not a JSON object but {text[:40]!r}")
    return rows


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
