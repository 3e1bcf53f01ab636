"""What studies share: generated blocks of pages, predictions that are made once, the scatter of seeds, a few words.

The prose of a page is written by hand. What holds numbers stands between `<!-- NAME -->` and `<!-- /NAME -->`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hub.base import atomic, strict_json
from hub.base.errors import InputError
from hub.base.markdown import block_of, replace_block
from hub.base.tables import Table

FloatArray = NDArray[np.float64]
Part = tuple[object, ...] | str
T = TypeVar("T")
LEVEL = (0.025, 0.975)  # of every interval
TABLES = "tables"  # beside a page: tables of more than a dozen rows


def markdown_of(parts: Iterable[Part]) -> str:
    """A table of the tuples, the header first, and then the texts, a paragraph each."""
    every = list(parts)
    rows, texts = [p for p in every if not isinstance(p, str)], [p for p in every if isinstance(p, str)]
    return "\n\n".join([*([Table(list(map(str, rows[0])), rows[1:]).markdown()] if rows else []), *texts])


def fill(page: Path, blocks: Mapping[str, Callable[[T], Iterable[Part]]], content: T) -> Path:
    """Replace these blocks of a Markdown file by what each makes of the content.

    ValueError, before anything is computed, if the file lacks one of them.
    """
    text = page.read_text(encoding="utf-8")
    if lacking := [name for name in blocks if block_of(text, name) is None]:
        raise InputError(f"{page}: no block `<!-- {lacking[0]} -->` and `<!-- /{lacking[0]} -->`")
    for name, block in blocks.items():
        text = replace_block(text, name, markdown_of(block(content)))
    atomic.write_bytes(page, text.encode())
    return page


def write_tables(page: Path, tables: Mapping[str, Callable[[T], Iterable[Part]]], content: T) -> list[Path]:
    """Write each table, the header first, as a CSV file in the folder of tables beside the page."""
    written = []
    for name, rows in tables.items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows(content))
        written.append(page.parent / TABLES / f"{name}.csv")
        written[-1].parent.mkdir(exist_ok=True)
        atomic.write_bytes(written[-1], text.getvalue().encode())
    return written


def write_once(path: Path, format: str, fields: Mapping[str, Any]) -> Path:
    """Write a prediction, unless there is one already: FileExistsError, since a prediction is made once."""
    if path.exists():
        raise FileExistsError(f"{path}: predictions are made once; remove the file to make them again")
    return strict_json.write(path, format, 1, fields)


def listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def rms(errors: FloatArray) -> float:
    """Root mean square; NaN of nothing."""
    return float(np.sqrt(np.mean(errors**2))) if len(errors) else float("nan")


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
