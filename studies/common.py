"""What studies share: pages filled from records, runs gathered, predictions made once, the scatter of seeds.

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
Value = tuple[float, float, float]  # with the ends of its 95 % interval
T = TypeVar("T")
LEVEL = (0.025, 0.975)  # of every interval
BITS = 1.0 / np.log(2.0)  # bits of a nat
TABLES = "tables"  # beside a page: tables of more than a dozen rows
_VALUE = re.compile(r"<!-- =([a-z-]+) -->(.*?)<!-- = -->", re.DOTALL)


@dataclass(frozen=True)
class Page:
    """What a study fills its page with: each function makes, of what `read` returns, the part that has its name.

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
        """Fill a page, write its tables and draw its figures in the folders beside it; returns what was written.

        ValueError before anything is written if the page lacks a block or has other values, and at the end if the
        content refutes claims of the prose, which then needs other words.
        """
        text = page.read_text(encoding="utf-8")
        for name in map(_name, self.blocks):
            if block_of(text, name) is None:
                raise InputError(f"{page}: no block `<!-- {name} -->` and `<!-- /{name} -->`")
        content = self.read() if content is None else content
        said = self.values(content)
        if other := {*said} ^ {match[1] for match in _VALUE.finditer(text)}:
            raise InputError(f"{page}: the page or its study lacks the value `<!-- ={min(other)} -->`")
        text = _VALUE.sub(lambda match: f"<!-- ={match[1]} -->{said[match[1]]}<!-- = -->", text)
        for block in self.blocks:
            text = replace_block(text, _name(block), markdown_of(block(content)))
        atomic.write_bytes(page, text.encode())
        (page.parent / TABLES).mkdir(exist_ok=True)
        written = [page, *(write_csv(page.parent / TABLES / f"{_name(t)}.csv", t(content)) for t in self.tables)]
        written += [redraw(f(content), page.parent / "figures" / f"{_name(f)}.png") for f in self.figures]
        if refuted := self.refuted(content):
            raise InputError(f"{page}: written, but its numbers refute what it says: {'; '.join(refuted)}")
        return written

    def refuted(self, content: Any) -> list[str]:
        return [claim for claim, holds in self.claims.items() if not holds(content)]


def _name(part: Callable[..., Any]) -> str:
    return part.__name__.replace("_", "-")


def redraw(figure: Any, path: Path) -> Path:
    """Save a figure, unless the file shows it already: pixels differ by one level of 255 between processors."""
    before = path.read_bytes() if path.exists() else None
    drawing.save(figure, path)
    if before is not None:
        was, now = (imread(io.BytesIO(content)) for content in (before, path.read_bytes()))
        if was.shape == now.shape and np.abs(was - now).max() < 1.5 / 255:
            atomic.write_bytes(path, before)
    return path


def write_csv(path: Path, rows: Iterable[Any]) -> Path:
    """Write rows, the first the header."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    atomic.write_bytes(path, text.getvalue().encode())
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


def gather(sources: Iterable[str | Path], target: Path, kept: Callable[[RunRecord], bool] = lambda _: True) -> Path:
    """Add the records of all sources (files, or folders of run.json) that are `kept` to a runs.jsonl, each once.

    Records that are there keep their bytes. RecordError for two records of one run_id that differ, and for losses on
    different texts.
    """
    lines = target.read_text(encoding="utf-8").splitlines() if target.exists() else []
    there = {json.loads(line)["run_id"]: line for line in lines}
    records: dict[str, RunRecord] = {}
    for source in ([target] if lines else []) + [*map(Path, sources)]:
        for record in filter(kept, hub.load_records(source)):
            if (first := records.setdefault(record.run_id, record)) != record:
                raise RecordError(f"{source}: {record.run_id}: another run of this run_id has loss {first.eval_loss}")
    check_texts(records.values())
    ordered = sorted(records.values(), key=lambda r: (r.d_model, r.experts, r.sweep, r.tokens, r.seed or 0, r.run_id))
    texts = (there.get(record.run_id) or record.to_json() for record in ordered)
    atomic.write_bytes(target, "".join(f"{text}\n" for text in texts).encode())
    return target


def check_texts(records: Iterable[RunRecord]) -> None:
    """RecordError if losses are of different texts or tokenizers."""
    texts = {(r.dataset.fingerprint, r.tokenizer.fingerprint, r.eval_tokens) for r in records}
    if len(texts) > 1:
        raise RecordError(f"losses on {len(texts)} different texts cannot be compared: {sorted(map(str, texts))}")


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
