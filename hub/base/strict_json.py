"""JSON from elsewhere, read as data with bounds and with a version.

Python's `json` accepts `NaN`, `Infinity`, repeated keys, numbers that overflow to infinity, and any size; here they
are refused. Files that we write say what they are: `{"format": "scaling_law", "version": 1, ...}`; a run record has
only `schema_version`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from hub.base import atomic
from hub.base.errors import InputError, NewerError, RecordError
from hub.base.paths import local_path
from hub.base.types import Fields

# The version of run records stands here, where it is read without loading the schema.
SCHEMA_VERSION = 1
# One record as JSON takes about 3 KiB.
MAX_RECORD_BYTES = 256 * 1024
# A file of ours, such as a law with its draws.
MAX_FILE_BYTES = 64 * 1024 * 1024
# Levels of objects and lists inside each other.
MAX_DEPTH = 16
# Far beyond any count of tokens or FLOPs.
_MAX_INTEGER = 10**30


def loads(text: str | bytes, *, what: str, max_bytes: int = MAX_RECORD_BYTES, finite: bool = True) -> Any:
    """Parse `text` as strict JSON; `what` names the source in the error, e.g. "runs.jsonl line 3".

    Without `finite`, NaN, infinities and numbers outside the double range are read as Python reads them.

    Raises:
        RecordError: not UTF-8, too large, malformed, a NaN or Infinity token, a number outside the double range, a
            repeated key, or nesting deeper than `MAX_DEPTH`.
    """
    if len(text) > max_bytes:
        raise RecordError(f"{what}: {len(text):,} bytes, allowed are at most {max_bytes:,}")
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = _DECODERS[finite].decode(text)
        _check_bounds([value], MAX_DEPTH, finite)
    except UnicodeDecodeError as error:
        raise RecordError(f"{what}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise RecordError(
            f"{what}: not valid JSON ({error.msg} at line {error.lineno} column {error.colno})"
        ) from None
    except RecursionError:
        raise RecordError(f"{what}: nested deeper than {MAX_DEPTH} levels") from None
    # The functions below raise it.
    except ValueError as error:
        raise RecordError(f"{what}: {error}") from None
    return value


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Write `value` as JSON that `loads` accepts (no NaN, no Infinity), characters outside ASCII as they are."""
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)


def write(path: str | Path, format: str, version: int, fields: Mapping[str, Any]) -> Path:
    """Write a JSON file that says its format and version, atomically; return its path."""
    file = local_path(path)
    atomic.write_bytes(file, versioned(format, version, fields))
    return file


def versioned(format: str, version: int, fields: Mapping[str, Any]) -> bytes:
    """Return the content that `write` writes. Numbers keep every bit; NaN and infinities are refused."""
    return (dumps({"format": format, "version": version, **fields}, indent=1) + "\n").encode()


def read(path: str | Path, format: str, newest: int) -> Fields:
    """Read a file of `write`, by this version of the package or an older one; unknown fields are kept.

    Raises:
        RecordError: it is a folder, not JSON, not of this format, or of a version above `newest`.
        OSError: the file cannot be read.
    """
    file = local_path(path)
    if file.is_dir():
        raise RecordError(f"{path}: a folder, not a file")
    data = loads(file.read_bytes(), what=str(path), max_bytes=MAX_FILE_BYTES)
    return check_format(data, format, newest, str(path))


def check_format(data: Any, format: str, newest: int, label: str) -> Fields:
    """Return `data` as a mapping if it says this format and a version that can be read; raise as `read` otherwise."""
    data_format = data.get("format") if isinstance(data, dict) else None
    if data_format != format:
        raise RecordError(f"{label}: format is {data_format!r}, allowed is {format!r}")
    check_version(data, newest, label, "version")
    return dict(data)


def check_version(fields: Mapping[str, Any], newest: int, label: str, name: str = "schema_version") -> None:
    """Raise RecordError for an invalid version, and NewerError for one that is newer than this package reads."""
    version = fields.get(name)
    if isinstance(version, bool) or not isinstance(version, (int, float)) or version < 1:
        raise RecordError(f"{label}: {name} is {version!r}, allowed are 1 to {newest}")
    if version > newest:
        advice = f"this version of the package reads up to {newest}: update the package"
        raise NewerError(f"{label}: {name} is {version}, {advice}")


def _refuse_constant(token: str) -> NoReturn:
    raise InputError(f"{token} is not a JSON number; write null for a value that is missing or not finite")


def _unique_keys(pairs: list[tuple[str, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        repeated_name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InputError(f"the field {repeated_name[:80]!r} occurs twice")
    return fields


# Readers by `finite`, made once, which takes longer than to read a line.
_DECODERS = {
    True: json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant),
    False: json.JSONDecoder(object_pairs_hook=_unique_keys),
}


def _check_bounds(values: Iterable[Any], depth: int, finite: bool) -> None:
    """Check values, and containers in them down to this depth, without a call for each: tables have many."""
    for value in values:
        if value is None or type(value) is str:
            continue
        if isinstance(value, float):
            if finite and not math.isfinite(value):
                raise InputError("a number is outside the range of a double")
        elif isinstance(value, (dict, list)):
            if depth == 0:
                raise RecursionError
            _check_bounds(value.values() if isinstance(value, dict) else value, depth - 1, finite)
        elif isinstance(value, int) and abs(value) >= _MAX_INTEGER:
            raise InputError(f"an integer of {len(str(abs(value)))} digits, allowed are at most 30")
