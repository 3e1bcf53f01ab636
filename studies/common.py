"""Helpers that the studies share: pages filled from records, records of runs, predictions, and the scatter of seeds.

The prose of a page is written by hand, its verdicts too: a study holds each as a claim that its records may refute.
Tables stand between `<!-- NAME -->` and `<!-- /NAME -->`, a number in a sentence between `<!-- =NAME -->` and
`<!-- = -->`; a line that began with that comment would end its paragraph.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from matplotlib.image import imread
from numpy.typing import NDArray

import hub  # lazy
from hub import RecordError, RunRecord
from hub.base import atomic, strict_json
from hub.base.errors import InputError
from hub.base.markdown import block_of, replace_block
from hub.base.tables import Part, markdown_of
from scaling_law.figures import drawing
from scaling_law.fitting import rms as rms

FloatArray = NDArray[np.float64]
# A value with the low and the high end of its 95 % interval.
Value = tuple[float, float, float]
T = TypeVar("T")
# The quantiles of every interval.
LEVEL = (0.025, 0.975)
BITS_PER_NAT = 1.0 / np.log(2.0)
# The folder beside a page that holds its tables of more than a dozen rows.
TABLES = "tables"
_VALUE = re.compile(r"<!-- =([a-z-]+) -->(.*?)<!-- = -->", re.DOTALL)
_TYPES = {"int": int, "float": float, "str": str}


@dataclass(frozen=True)
class Page:
    """The functions that fill a page: each takes what `read` returns and makes the block, table or figure of its name.

    `blocks` are tables of the page and `tables` CSV files beside it, the header first; `values` are the numbers of its
    sentences, and `claims` the verdicts of its prose, with what must hold for each.
    """

    read: Callable[..., Any]
    blocks: Sequence[Callable[[Any], Iterable[Part]]] = ()
    tables: Sequence[Callable[[Any], Iterable[Part]]] = ()
    figures: Sequence[Callable[[Any], Any]] = ()
    values: Callable[[Any], Mapping[str, str]] = lambda _: {}
    claims: Mapping[str, Callable[[Any], object]] = field(default_factory=dict)

    def write(self, page: Path, content: Any = None) -> list[Path]:
        """Fill a page, write its tables and draw its figures in the folders beside it; return the paths written.

        Raises InputError before anything is written if the page lacks a block or has other values, and at the end if
        the content refutes claims of the prose, which then needs other words.
        """
        text = page.read_text(encoding="utf-8")
        self._check_blocks(page, text)
        if content is None:
            content = self.read()
        values = self.values(content)
        _check_values(page, text, values)
        text = _VALUE.sub(lambda match: f"<!-- ={match[1]} -->{values[match[1]]}<!-- = -->", text)
        for block in self.blocks:
            text = replace_block(text, _name(block), markdown_of(block(content)))
        atomic.write_bytes(page, text.encode())
        written = [page, *self._write_tables(page.parent / TABLES, content)]
        for figure in self.figures:
            written.append(redraw(figure(content), page.parent / "figures" / f"{_name(figure)}.png"))
        refuted = self.refuted(content)
        if refuted:
            raise InputError(f"{page}: written, but its numbers refute what it says: {'; '.join(refuted)}")
        return written

    def refuted(self, content: Any) -> list[str]:
        """Return the claims that the content refutes."""
        return [claim for claim, holds in self.claims.items() if not holds(content)]

    def _check_blocks(self, page: Path, text: str) -> None:
        for name in map(_name, self.blocks):
            if block_of(text, name) is None:
                raise InputError(f"{page}: no block `<!-- {name} -->` and `<!-- /{name} -->`")

    def _write_tables(self, folder: Path, content: Any) -> list[Path]:
        folder.mkdir(exist_ok=True)
        return [write_csv(folder / f"{_name(table)}.csv", table(content)) for table in self.tables]


def _name(function: Callable[..., Any]) -> str:
    """Return the name on the page of the block, table or figure that a function makes."""
    return function.__name__.replace("_", "-")


def _check_values(page: Path, text: str, values: Mapping[str, str]) -> None:
    """Raise InputError unless a page and its study name the same values."""
    names_on_page = {match[1] for match in _VALUE.finditer(text)}
    unmatched = names_on_page ^ set(values)
    if unmatched:
        raise InputError(f"{page}: the page or its study lacks the value `<!-- ={min(unmatched)} -->`")


def redraw(figure: Any, path: Path) -> Path:
    """Save a figure, unless the file shows it already: pixels differ by one level of 255 between processors."""
    before = path.read_bytes() if path.exists() else None
    drawing.save(figure, path)
    if before is not None:
        old_pixels = imread(io.BytesIO(before))
        new_pixels = imread(io.BytesIO(path.read_bytes()))
        if old_pixels.shape == new_pixels.shape and np.abs(old_pixels - new_pixels).max() < 1.5 / 255:
            atomic.write_bytes(path, before)
    return path


def write_csv(path: Path, rows: Iterable[Any]) -> Path:
    """Write rows, the first the header."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    atomic.write_bytes(path, text.getvalue().encode())
    return path


def rows_of(records: Iterable[Any], record_type: type[Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a CSV file, the header first, of the fields of a flat dataclass."""
    header = tuple(field.name for field in fields(record_type))
    return [header, *map(astuple, records)]


def read_csv(path: Path, record_type: type[T]) -> list[T]:
    """Read the rows of a CSV file as dataclasses of `int`, `float` and `str`; lines that begin with # are left out."""
    converters = {field.name: _TYPES[str(field.type)] for field in fields(cast(Any, record_type))}
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    records = []
    for row in csv.DictReader(lines):
        values = {name: convert(row[name]) for name, convert in converters.items()}
        records.append(record_type(**values))
    return records


def gather(sources: Iterable[str | Path], target: Path, counts: Callable[[RunRecord], bool] = lambda _: True) -> Path:
    """Add the records of all sources (files, or folders of run.json) that count to a runs.jsonl, each once.

    Records that are in the file keep their bytes. Raises RecordError for two records of one run_id that differ, and
    for losses on different texts.
    """
    lines = target.read_text(encoding="utf-8").splitlines() if target.exists() else []
    line_of_run = {json.loads(line)["run_id"]: line for line in lines}
    files = [target] if lines else []
    files += map(Path, sources)
    records: dict[str, RunRecord] = {}
    for file in files:
        for record in filter(counts, hub.load_records(file)):
            first = records.setdefault(record.run_id, record)
            if first != record:
                raise RecordError(f"{file}: {record.run_id}: another run of this run_id has loss {first.eval_loss}")
    check_texts(records.values())
    ordered = sorted(records.values(), key=lambda r: (r.d_model, r.experts, r.sweep, r.tokens, r.seed or 0, r.run_id))
    texts = (line_of_run.get(record.run_id) or record.to_json() for record in ordered)
    atomic.write_bytes(target, "".join(f"{text}\n" for text in texts).encode())
    return target


def check_texts(records: Iterable[RunRecord]) -> None:
    """Raise RecordError if losses are of different texts or tokenizers."""
    texts = {(r.dataset.fingerprint, r.tokenizer.fingerprint, r.eval_tokens) for r in records}
    if len(texts) > 1:
        raise RecordError(f"losses on {len(texts)} different texts cannot be compared: {sorted(map(str, texts))}")


def write_once(path: Path, format: str, fields: Mapping[str, Any]) -> Path:
    """Write a prediction; raise FileExistsError if there is one already, since a prediction is made once."""
    if path.exists():
        raise FileExistsError(f"{path}: predictions are made once; remove the file to make them again")
    return strict_json.write(path, format, 1, fields)


def round_numbers(value: Any, digits: int) -> Any:
    """Round every number of a JSON value to so many significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: round_numbers(item, digits) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [round_numbers(item, digits) for item in value]
    return value


def interval(values: Iterable[Any], form: Callable[[Any], str] = "{:.3f}".format) -> str:
    """Format a value with its interval, each number as `form` writes it."""
    return "{} ({} to {})".format(*map(form, values))


def join(values: Iterable[object]) -> str:
    """Join values with commas."""
    return ", ".join(map(str, values))


def pooled_covariance(groups: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Pool the covariance of a run's values among seeds over groups.

    A group holds the values [seeds, k] of runs that differ in their seed only, NaN where one is missing. A column in
    which no seed is repeated takes the covariance of the nearest that has some; NaN if none has.

    Returns:
        The covariance [k, k] and its degrees of freedom [k].
    """
    k = groups[0].shape[1]
    products = np.zeros((k, k))
    weights = np.zeros((k, k))
    for values in groups:
        is_run = np.isfinite(values)
        n_seeds = np.maximum(is_run.sum(axis=0), 1)
        shared_seeds = is_run.T.astype(float) @ is_run
        means = np.where(is_run, values, 0.0).sum(axis=0) / n_seeds
        deviations = np.where(is_run, values - means, 0.0)
        products += deviations.T @ deviations
        # Unbiased where the columns have different seeds; n − 1 on the diagonal.
        weights += shared_seeds * (
            1.0 - 1.0 / n_seeds[:, None] - 1.0 / n_seeds + shared_seeds / np.outer(n_seeds, n_seeds)
        )
    freedom = np.round(np.diag(weights), 9).astype(float)
    repeated = np.flatnonzero(freedom)
    if not len(repeated):
        return np.full((k, k), np.nan), freedom
    pooled = np.divide(products, weights, out=np.zeros((k, k)), where=weights > 1e-9)
    distances = np.abs(np.arange(k)[:, None] - repeated)
    nearest = repeated[distances.argmin(axis=1)]
    return np.asarray(pooled[np.ix_(nearest, nearest)]), freedom
