"""Building a corpus in a folder, which appears complete or not at all."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel
from rich.console import Console
from rich.progress import track

from hub.plain import atomic
from hub.plain.units import format_bytes
from training.corpus.extraction import WORD, Source, extract, installed_sources

MANIFEST = "corpus.json"  # a folder without it is not a complete corpus
FILE = "{}-00000-of-00001.parquet"
MAX_CHARACTERS, MIN_CHARACTERS = 20_000, 250  # of a document


class Document(NamedTuple):
    """One row of the corpus; `id` is FineWeb-Edu's `<urn:uuid:...>`."""

    id: str
    source: Source
    text: str


class Split(BaseModel):
    """Documents, their UTF-8 bytes, and their words, split at white space."""

    documents: int
    text_bytes: int
    words: int


class Distribution(BaseModel):
    """What one package gave, and what it states of its licence."""

    documents: int
    text_bytes: int
    licence: str


class CorpusReport(BaseModel):
    """What a corpus holds and what was left out.

    Attributes:
        splits, distributions: amounts of train and validation, and of each package by name and version.
        files, unusable: source files read (with `max_bytes`: until there was enough), and those that could not be.
        max_bytes, validation_fraction: as given to `build`.
    """

    splits: dict[str, Split]
    distributions: dict[str, Distribution]
    files: int
    unusable: int
    max_bytes: int | None
    validation_fraction: float

    @property
    def total(self) -> Split:
        parts = self.splits.values()
        return Split(**{field: sum(getattr(part, field) for part in parts) for field in Split.model_fields})

    def __str__(self) -> str:
        return (
            f"{format_bytes(self.total.text_bytes)} of English in {self.total.documents:,} documents of "
            f"{len(self.distributions)} packages, {format_bytes(self.splits['validation'].text_bytes)} of it held out"
        )

    @classmethod
    def load(cls, folder: str | Path) -> CorpusReport:
        """The report of a finished corpus. Raises FileNotFoundError where there is none."""
        path = Path(folder) / MANIFEST
        if not path.is_file():
            raise FileNotFoundError(f"folder: {str(folder)!r} is no finished corpus (it has no {MANIFEST})")
        return cls.model_validate_json(path.read_bytes())


def build(
    folder: str | Path,
    *,
    max_bytes: int | None = None,
    validation_fraction: float = 0.025,
    sources: Sequence[Source] | None = None,
) -> CorpusReport:
    """Build the corpus in `folder`, or use the one that is there, also if packages were installed since.

    Repeated lines are removed over everything, before documents are assigned to a split by the hash of their id.

    Args:
        folder: gets a parquet file for train and one for validation, `README.md` and `corpus.json`.
        max_bytes: at most that many UTF-8 bytes of text, files in hash order; None for all.
        validation_fraction: expected share of documents held out (0 < share < 1).
        sources: files to read; None for `installed_sources()`.

    Raises:
        ValueError: an option out of its range, or too little documentation for two documents.
        FileExistsError: `folder` holds something that is no corpus, or one that was built with other options.
    """
    folder = Path(folder).expanduser().resolve()
    if max_bytes is not None and max_bytes < 1:
        raise ValueError(f"max_bytes: {max_bytes}; give a positive number of bytes, or None for everything")
    if not 0 < validation_fraction < 1:
        raise ValueError(f"validation_fraction: {validation_fraction}; give a share between 0 and 1")
    if (folder / MANIFEST).is_file():
        report = CorpusReport.load(folder)
        if (report.max_bytes, report.validation_fraction) != (max_bytes, validation_fraction):
            built = f"max_bytes={report.max_bytes} and validation_fraction={report.validation_fraction}"
            raise FileExistsError(f"folder: {str(folder)!r} was built with {built}; delete it or give another folder")
        return report
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise FileExistsError(f"folder: {str(folder)!r} is there and is no corpus; give a new or an empty folder")
    # In the order of a hash without the version: nothing depends on the file system, and an upgrade changes little.
    sources = sorted(installed_sources() if sources is None else sources, key=lambda s: _sha256(s[0] + s.file_path))
    documents: list[Document] = []
    seen, n_files, unusable, room = set[str](), 0, 0, max_bytes or float("inf")
    console = Console(stderr=True)
    found = track(_extract_all(sources), "reading", len(sources), console=console, disable=not console.is_terminal)
    for n_files, lines in enumerate(found, start=1):
        unusable += lines is None
        for document in _documents(sources[n_files - 1], lines or [], seen):
            room -= len(document.text.encode())
            if room >= 0:
                documents.append(document)
        if room < 0:
            break
    if len(documents) < 2:
        found_in = f"{n_files} files gave {len(documents)} documents within max_bytes={max_bytes}"
        raise ValueError(f"sources: {found_in}; at least 2 are needed")
    splits = _split(documents, validation_fraction)
    with atomic.atomic_folder(folder) as temporary:
        report = CorpusReport(
            splits={name: _write(temporary, name, rows) for name, rows in splits.items()},
            distributions=_by_distribution(documents),
            files=n_files,
            unusable=unusable,
            max_bytes=max_bytes,
            validation_fraction=validation_fraction,
        )
        (temporary / "README.md").write_text(readme(report), encoding="utf-8")
        (temporary / MANIFEST).write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return report


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _extract_all(sources: Sequence[Source]) -> Iterator[list[str] | None]:
    """`extract` of each source in order, in processes started afresh (safe with threads and with torch loaded)."""
    if len(sources) <= 64:
        yield from map(extract, sources)
        return
    pool = ProcessPoolExecutor(mp_context=get_context("spawn"))
    try:
        yield from pool.map(extract, sources, chunksize=16)
    finally:
        pool.shutdown(cancel_futures=True)


def _documents(source: Source, paragraphs: list[str], seen: set[str]) -> Iterator[Document]:
    """The new lines of a file, cut into documents of at most 20,000 characters; `seen` gets them added."""
    parts: list[list[str]] = [[]]
    for line in paragraphs:
        key = " ".join(WORD.findall(line.lower()))
        if key not in seen:
            seen.add(key)
            if parts[-1] and sum(map(len, parts[-1])) + len(line) > MAX_CHARACTERS:
                parts.append([])
            parts[-1].append(line[:MAX_CHARACTERS])
    for number, lines in enumerate(parts):
        text = "\n\n".join(lines)
        if len(text) >= MIN_CHARACTERS:
            name = f"{source.distribution}/{source.file_path}#{number}"
            yield Document(f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}>", source, text)


def _split(documents: Sequence[Document], validation_fraction: float) -> dict[str, list[Document]]:
    """Train and validation, each in the order of the hash of the ids; neither is empty."""
    hashed = sorted((_sha256(document.id), document) for document in documents)
    n = sum(int(h[:8], 16) < validation_fraction * 2**32 for h, _ in hashed)
    n = min(max(n, 1), len(hashed) - 1)
    ordered = [document for _, document in hashed]
    return {"train": ordered[n:], "validation": ordered[:n]}


def _write(folder: Path, split: str, documents: Sequence[Document]) -> Split:
    """The parquet file of a split in FineWeb-Edu's columns. Language and scores are constants: nothing was scored."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    strings, n = pa.string(), len(documents)
    words = [len(document.text.split()) for document in documents]
    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "text": ([document.text for document in documents], strings),
        "id": ([document.id for document in documents], strings),
        "dump": (["installed-documentation"] * n, strings),
        "url": ([_url(document.source) for document in documents], strings),
        "file_path": ([document.source.file_path for document in documents], strings),
        "language": (["en"] * n, strings),
        "language_score": ([1.0] * n, pa.float64()),
        "token_count": (words, pa.int64()),
        "score": ([3.0] * n, pa.float64()),
        "int_score": ([3] * n, pa.int64()),
    }
    table = pa.table({name: pa.array(values, kind) for name, (values, kind) in columns.items()})
    pq.write_table(table, folder / FILE.format(split), compression="zstd")
    size = sum(len(document.text.encode()) for document in documents)
    return Split(documents=n, text_bytes=size, words=sum(words))


def _url(source: Source) -> str:
    if source.distribution == "python":
        return f"https://www.python.org/downloads/release/python-{source.version.replace('.', '')}/"
    return f"https://pypi.org/project/{source.distribution}/{source.version}/"


def _by_distribution(documents: Sequence[Document]) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    for _, source, text in sorted(documents, key=lambda document: document.source):
        nothing = Distribution(documents=0, text_bytes=0, licence=source.licence)
        part = found.setdefault(f"{source.distribution} {source.version}", nothing)
        part.documents += 1
        part.text_bytes += len(text.encode())
    return found


def readme(report: CorpusReport) -> str:
    """The dataset card, with the metadata that `datasets` reads."""
    rows = "\n".join(
        f"| {name} | {part.licence.replace('|', '/')} | {part.documents:,} | {part.text_bytes:,} |"
        for name, part in report.distributions.items()
    )
    return f"""---
language:
- en
pretty_name: Documentation of the installed packages in the FineWeb-Edu schema
configs:
- config_name: default
  data_files:
  - split: train
    path: train-*.parquet
  - split: validation
    path: validation-*.parquet
---

# Documentation corpus

{report.total.documents:,} documents, {report.total.text_bytes:,} bytes of English: docstrings and packaged
documentation of the Python standard library and of the packages of one environment, filtered line by line and without
repeated lines. Made for small experiments without a network; it is not a sample of FineWeb-Edu, and losses on the two
cannot be compared. Texts belong to their authors under the licences that the packages below state.

Names, order and types of the columns are those of FineWeb-Edu. `token_count` counts words between white
space; `language_score`, `score` and `int_score` are constants and **not measured**. Train and validation come from the
same packages: no line is in both, but similar ones are.

| source | licence as stated | documents | bytes |
|---|---|---:|---:|
{rows}
"""
