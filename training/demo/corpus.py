"""A corpus of real English for runs without a network: the docstrings of the installed Python packages.

Files are parsed and never executed. Losses on it cannot be compared with those on FineWeb-Edu, whose columns `id` and
`text` it has.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import importlib.metadata
import itertools
import os
import platform
import re
import sysconfig
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from hub.base import atomic
from hub.base.errors import InputError
from hub.base.progress import progress_line
from hub.base.units import format_bytes

MANIFEST = "corpus.json"  # a folder without it is not a complete corpus
HELD_OUT = 0.025  # share of the text in the validation split
MAX_CHARACTERS, MIN_CHARACTERS = 20_000, 250  # of a document
MAX_FILE_BYTES = 4_000_000
STOP_WORDS = {
    *("a", "an", "and", "are", "as", "at", "be", "by", "can", "for", "from", "has", "if", "in", "is", "it", "not"),
    *("of", "on", "or", "that", "the", "this", "to", "with"),
}
WORD = re.compile(r"[^\W_]+")

# Tests hold little documentation for their size; vendored packages repeat distributions.
_SKIPPED_FOLDERS = {"tests", "test", "_vendor", "site-packages", "dist-packages", "__pycache__", "testing"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BULLET = re.compile(r"\s*(?:[-*+•–]|\(?(?:\d{1,2}|[a-z])[.)])\s")
# [text](link), ``code``, :role:`text <link>` and *emphasis*, of which the text stays; tags, links and footnotes.
_TEXT_OF = re.compile(
    r"\[`?[~!]?([^`\[\]]+)`?\]\([^()]*\)|(?::[\w:.+-]+:)?`+[~!]?([^`<>]*?)(?:\s*<[^`>]*>)?`+_{0,2}"
    r"|(?<![\w*])\*{1,2}(\S(?:[^*]*[^\s*])?)\*{1,2}(?![\w*])|</?[a-zA-Z][^<>]*>|<https?:[^>\s]*>|\s*\[[\w#*]+\]_"
)


# -- from files to lines


class Source(NamedTuple):
    """A Python file. `file_path` is relative to where distributions are installed."""

    distribution: str
    version: str
    licence: str
    file_path: str
    path: str


def installed_sources() -> list[Source]:
    """The Python files of the standard library and of every installed distribution.

    Distributions installed as editable are left out: they are work in progress.
    """
    sources: dict[str, Source] = {}
    root = Path(sysconfig.get_path("stdlib"))
    for path in root.rglob("*.py"):
        file_path = f"python/{path.relative_to(root).as_posix()}"
        if _may_document(file_path):
            sources[file_path] = Source("python", platform.python_version(), "PSF-2.0", file_path, str(path))
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if not name or "editable" in (distribution.read_text("direct_url.json") or ""):
            continue
        about = (name, distribution.version, _licence(distribution.metadata))
        folder = str(distribution.locate_file(""))
        # The lines of RECORD themselves: `distribution.files` makes an object of each, which takes many seconds.
        for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
            if row and _may_document(row[0]):
                sources.setdefault(row[0], Source(*about, row[0], os.path.join(folder, row[0])))
    return list(sources.values())


def _licence(metadata: Any) -> str:
    """The licence that a distribution states, in one line."""
    classified = [c.split(" :: ")[-1] for c in metadata.get_all("Classifier") or [] if c.startswith("License ::")]
    stated = metadata.get("License-Expression") or "; ".join(classified) or metadata.get("License") or "not stated"
    return stated.strip().split("\n")[0][:80]


def _may_document(file_path: str) -> bool:
    inside = not file_path.startswith(("/", ".."))
    return inside and file_path.endswith(".py") and _SKIPPED_FOLDERS.isdisjoint(file_path.split("/"))


def extract(source: Source) -> list[str]:
    """The paragraphs of a file's docstrings, in its order; none if it cannot be read or parsed, whatever is in it."""
    path = Path(source.path)
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:  # opening a pipe would wait for ever
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's code
            nodes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, _DOCUMENTED)]
        nodes.sort(key=lambda node: getattr(node, "lineno", 0))  # a module has none
        return [line for node in nodes for line in readable(ast.get_docstring(node) or "")]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def readable(text: str) -> Iterator[str]:
    """The English paragraphs of a docstring, one line each, without markup; code and other languages are left out.

    Lines of one indentation are one paragraph, which a blank line or a bullet ends.
    """
    breaks = 0

    def paragraph(line: str) -> tuple[int, int]:
        nonlocal breaks
        breaks += not line.strip() or _BULLET.match(line) is not None
        return breaks, len(line) - len(line.lstrip())

    for _, lines in itertools.groupby(text.split("\n"), paragraph):
        line = " ".join(_TEXT_OF.sub(lambda match: "".join(filter(None, match.groups())), " ".join(lines)).split())
        line = "".join(filter(str.isprintable, line)).strip()
        if _is_plain(line):
            yield line


def _is_plain(line: str) -> bool:
    """Whether a line is words, most characters being letters and, in a long one, a tenth of the words frequent."""
    words = WORD.findall(line.lower())
    letters = sum(character.isascii() and (character.isalpha() or character == " ") for character in line)
    frequent = len(words) < 12 or 10 * sum(word in STOP_WORDS for word in words) >= len(words)
    return len(words) >= 3 and letters >= 0.85 * len(line) and frequent


# -- from lines to a dataset


class Document(NamedTuple):
    """One row of the corpus; `id` is FineWeb-Edu's `<urn:uuid:...>`."""

    id: str
    source: Source
    text: str

    @property
    def size(self) -> int:
        return len(self.text.encode())


class CorpusReport(BaseModel):
    """The size of a corpus, by split, and the limit that it was built with."""

    max_bytes: int | None
    packages: int
    documents: dict[str, int]
    text_bytes: dict[str, int]

    def __str__(self) -> str:
        return (
            f"{format_bytes(sum(self.text_bytes.values()))} of English in {sum(self.documents.values()):,} documents "
            f"of {self.packages} packages, {format_bytes(self.text_bytes['validation'])} of it held out"
        )


def build(
    folder: str | Path, *, max_bytes: int | None = None, sources: Sequence[Source] | None = None
) -> CorpusReport:
    """Build the corpus in `folder`, completely or not at all, or use the one that is there.

    Args:
        max_bytes: at most that many UTF-8 bytes of text, files in hash order; None for all.
        sources: files to read; None for `installed_sources()`.

    Raises:
        ValueError: `max_bytes` is not positive, or there is documentation of fewer than two packages.
        FileExistsError: `folder` holds something that is no corpus, or one that was built with another limit.
    """
    folder = Path(folder).expanduser().resolve()
    if max_bytes is not None and max_bytes < 1:
        raise InputError(f"max_bytes: {max_bytes}; give a positive number of bytes, or None for everything")
    if (folder / MANIFEST).is_file():
        report = CorpusReport.model_validate_json((folder / MANIFEST).read_bytes())
        if report.max_bytes != max_bytes:
            built = f"was built with max_bytes={report.max_bytes}"
            raise FileExistsError(f"folder: {str(folder)!r} {built}; delete it or give another folder")
        return report
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise FileExistsError(f"folder: {str(folder)!r} exists and is no corpus; give a new or an empty folder")
    documents = _read(installed_sources() if sources is None else sources, max_bytes or float("inf"))
    splits = _split(documents)
    if not all(splits.values()):
        raise InputError(
            f"sources: {len(documents)} documents within max_bytes={max_bytes}; documents of at least 2 packages are "
            "needed"
        )
    report = CorpusReport(
        max_bytes=max_bytes,
        packages=len({document.source.distribution for document in documents}),
        documents={name: len(rows) for name, rows in splits.items()},
        text_bytes={name: sum(row.size for row in rows) for name, rows in splits.items()},
    )
    with atomic.atomic_folder(folder) as temporary:
        for name, rows in splits.items():
            _write(temporary / f"{name}-00000-of-00001.parquet", rows)
        (temporary / "README.md").write_text(readme(report, documents), encoding="utf-8")
        (temporary / MANIFEST).write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return report


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(sources: Sequence[Source], room: float) -> list[Document]:
    """The documents of the files, until they fill `room` bytes."""
    # In the order of a hash without the version: nothing depends on the file system, and an upgrade changes little.
    sources = sorted(sources, key=lambda source: _sha256(source.distribution + source.file_path))
    documents: list[Document] = []
    seen: set[str] = set()
    with progress_line("reading", len(sources), "files") as advance:
        for source, lines in zip(sources, _extract_all(sources), strict=False):
            advance(1, "")
            for document in _documents(source, lines, seen):
                room -= document.size
                if room < 0:
                    return documents
                documents.append(document)
    return documents


def _extract_all(sources: Sequence[Source]) -> Iterator[list[str]]:
    """`extract` of each source in order, in processes started afresh (safe with threads and with torch loaded)."""
    if len(sources) <= 64:
        yield from map(extract, sources)
        return
    pool = ProcessPoolExecutor(mp_context=get_context("spawn"))
    try:
        yield from pool.map(extract, sources, chunksize=16)
    finally:
        pool.shutdown(cancel_futures=True)


def _documents(source: Source, lines: list[str], seen: set[str]) -> Iterator[Document]:
    """The new lines of a file, cut into documents of at most 20,000 characters; `seen` gets them added."""
    parts: list[list[str]] = [[]]
    for line in lines:
        key = " ".join(WORD.findall(line.lower()))
        if key not in seen:
            seen.add(key)
            if parts[-1] and sum(map(len, parts[-1])) + len(line) > MAX_CHARACTERS:
                parts.append([])
            parts[-1].append(line[:MAX_CHARACTERS])
    for number, part in enumerate(parts):
        text = "\n\n".join(part)
        if len(text) >= MIN_CHARACTERS:
            name = f"{source.distribution}/{source.file_path}#{number}"
            yield Document(f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}>", source, text)


def _split(documents: Sequence[Document]) -> dict[str, list[Document]]:
    """Train and validation, each in the order of the hash of the ids.

    Packages repeat themselves, so each is in one split as a whole. Validation gets those that fit into its share of
    the bytes, in the order of the hash of their names, or the smallest where none fits.
    """
    sizes = Counter[str]()
    for document in documents:
        sizes[document.source.distribution] += document.size
    held_out, room = set[str](), HELD_OUT * sizes.total()
    for name in sorted(sizes, key=_sha256):
        if sizes[name] <= room:
            held_out.add(name)
            room -= sizes[name]
    held_out = held_out or {name for name, _ in sizes.most_common()[-1:]}
    splits: dict[str, list[Document]] = {"train": [], "validation": []}
    for document in sorted(documents, key=lambda document: _sha256(document.id)):
        splits["validation" if document.source.distribution in held_out else "train"].append(document)
    return splits


def _write(path: Path, documents: Sequence[Document]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: [getattr(document, name) for document in documents] for name in ("id", "text")}
    pq.write_table(pa.table(columns), path, compression="zstd")


def readme(report: CorpusReport, documents: Sequence[Document]) -> str:
    """The dataset card, with the licences that the packages state."""
    licences = {(source.distribution, source.version, source.licence) for _, source, _ in documents}
    rows = "\n".join(
        f"| {name} {version} | {licence.replace('|', '/')} |" for name, version, licence in sorted(licences)
    )
    return f"""---
pretty_name: Documentation of the installed packages
---

# Documentation corpus

{report}: docstrings of the Python standard library and of the packages of one environment, filtered line by line and
without repeated lines. Each package is in one split only. Made for small experiments without a network; it is not a
sample of FineWeb-Edu, and losses on the two cannot be compared. Texts belong to their authors under the licences that
the packages state.

| source | licence as stated |
|---|---|
{rows}
"""
