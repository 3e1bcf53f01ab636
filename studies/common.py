"""What studies share: numbers in pages, predictions that are made once, the scatter of seeds.

The prose of a page is written by hand, its verdicts too: a study holds each as a claim that its records may refute.
Tables stand between `<!-- NAME -->` and `<!-- /NAME -->`, a number in a sentence between `<!-- =NAME -->` and
`<!-- = -->`; a line that began with that comment would end its paragraph.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hub.base import atomic, strict_json
from hub.base.errors import InputError
from hub.base.markdown import block_of, replace_block
from hub.base.tables import Part, markdown_of
from scaling_law.figures import drawing
from scaling_law.fitting import rms as rms

FloatArray = NDArray[np.float64]
T = TypeVar("T")
LEVEL = (0.025, 0.975)  # of every interval
TABLES = "tables"  # beside a page: tables of more than a dozen rows
_VALUE = re.compile(r"<!-- =([a-z-]+) -->(.*?)<!-- = -->", re.DOTALL)


def fill(
    page: Path,
    blocks: Mapping[str, Callable[[T], Iterable[Part]]],
    content: T,
    values: Callable[[T], Mapping[str, str]] = lambda _: {},
) -> Path:
    """Replace these blocks of a Markdown file by what each makes of the content, and the values in its sentences.

    ValueError, before anything is computed, if the file lacks a block; before it is written, if its values are others.
    """
    text = page.read_text(encoding="utf-8")
    if lacking := [name for name in blocks if block_of(text, name) is None]:
        raise InputError(f"{page}: no block `<!-- {lacking[0]} -->` and `<!-- /{lacking[0]} -->`")
    said = values(content)
    if other := {*said} ^ {match[1] for match in _VALUE.finditer(text)}:
        raise InputError(f"{page}: the page or its study lacks the value `<!-- ={min(other)} -->`")
    text = _VALUE.sub(lambda match: f"<!-- ={match[1]} -->{said[match[1]]}<!-- = -->", text)
    for name, block in blocks.items():
        text = replace_block(text, name, markdown_of(block(content)))
    atomic.write_bytes(page, text.encode())
    return page


def write_tables(page: Path, tables: Mapping[str, Callable[[T], Iterable[Part]]], content: T) -> list[Path]:
    """Write each table, the header first, as a CSV file in the folder of tables beside the page."""
    (page.parent / TABLES).mkdir(exist_ok=True)
    return [write_csv(page.parent / TABLES / f"{name}.csv", rows(content)) for name, rows in tables.items()]


def write_csv(path: Path, rows: Iterable[Any], after: str = "") -> Path:
    """Write rows, the first the header, and the text that comes after them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    atomic.write_bytes(path, (text.getvalue() + after).encode())
    return path


def rows_of(each: Iterable[Any], kind: type[Any]) -> list[tuple[Any, ...]]:
    """Rows of a CSV file, the header first, of the fields of a flat dataclass."""
    return [tuple(field.name for field in fields(kind)), *map(astuple, each)]


def read_csv(path: Path, kind: type[T]) -> list[T]:
    """Rows of a CSV file as dataclasses of `int`, `float` and `str`; lines that begin with # are left out."""
    make = {"int": int, "float": float, "str": str}
    read = {field.name: make[str(field.type)] for field in fields(cast(Any, kind))}
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [kind(**{name: of(row[name]) for name, of in read.items()}) for row in csv.DictReader(lines)]


def write_page(
    page: Path,
    content: T,
    blocks: Mapping[str, Callable[[T], Iterable[Part]]],
    tables: Mapping[str, Callable[[T], Iterable[Part]]],
    figures: Mapping[str, Callable[[T], Any]],
    values: Callable[[T], Mapping[str, str]] = lambda _: {},
    claims: Mapping[str, Callable[[T], object]] = MappingProxyType({}),
) -> list[Path]:
    """Fill a page, write its tables and draw its figures in the folders beside it; returns what was written.

    ValueError at the end if the content refutes claims of the prose, which then needs other words.
    """
    written = [fill(page, blocks, content, values), *write_tables(page, tables, content)]
    written += [drawing.save(draw(content), page.parent / "figures" / f"{name}.png") for name, draw in figures.items()]
    if refuted := [claim for claim, holds in claims.items() if not holds(content)]:
        raise InputError(f"{page}: written, but its numbers refute what it says: {'; '.join(refuted)}")
    return written


def write_once(path: Path, format: str, fields: Mapping[str, Any]) -> Path:
    """Write a prediction, unless there is one already: FileExistsError, since a prediction is made once."""
    if path.exists():
        raise FileExistsError(f"{path}: predictions are made once; remove the file to make them again")
    return strict_json.write(path, format, 1, fields)


def rounded(value: Any, digits: int) -> Any:
    """JSON with numbers of so many significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: rounded(one, digits) for name, one in value.items()}
    return [rounded(one, digits) for one in value] if isinstance(value, (tuple, list)) else value


def interval(values: Iterable[Any], form: Callable[[Any], str] = "{:.3f}".format) -> str:
    """A value with its interval, each as `form` writes it."""
    return "{} ({} to {})".format(*map(form, values))


def listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def pooled_covariance(groups: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Covariance [k, k] of a run's values among seeds, pooled over groups, and its degrees of freedom [k].

    A group holds the values [seeds, k] of runs that differ in their seed only, NaN where one is missing. A column in
    which no seed is repeated takes the covariance of the nearest that has some; NaN if none has.
    """
    k = groups[0].shape[1]
    products, weights = np.zeros((2, k, k))
    for values in groups:
        run = np.isfinite(values)
        n, shared = np.maximum(run.sum(axis=0), 1), run.T.astype(float) @ run
        deviations = np.where(run, values - np.where(run, values, 0.0).sum(axis=0) / n, 0.0)
        products += deviations.T @ deviations
        # Unbiased where the columns have different seeds; n − 1 on the diagonal.
        weights += shared * (1.0 - 1.0 / n[:, None] - 1.0 / n + shared / np.outer(n, n))
    freedom = np.round(np.diag(weights), 9).astype(float)
    repeated = np.flatnonzero(freedom)
    if not len(repeated):
        return np.full((k, k), np.nan), freedom
    pooled = np.divide(products, weights, out=np.zeros((k, k)), where=weights > 1e-9)
    nearest = repeated[np.abs(np.arange(k)[:, None] - repeated).argmin(axis=1)]
    return np.asarray(pooled[np.ix_(nearest, nearest)]), freedom
