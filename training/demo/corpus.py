"""A corpus of real English for runs without a network: the docstrings and manuals of what is installed.

The dataset has the columns and types of FineWeb-Edu (Penedo et al. 2024); losses on the two cannot be compared. Python
files are parsed and never executed. `python -m training.demo.corpus FOLDER [--max-bytes N]` builds it.
"""

from __future__ import annotations

import ast
import csv
import email
import hashlib
import importlib.metadata
import inspect
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

from hub.plain import atomic
from hub.plain.commands import App, Version
from hub.plain.progress import progress_line
from hub.plain.units import format_bytes

MANIFEST = "corpus.json"  # a folder without it is not a complete corpus
MAX_CHARACTERS, MIN_CHARACTERS = 20_000, 250  # of a document
MAX_FILE_BYTES = 4_000_000
MIN_WORDS = 20  # of a string that counts as documentation
STOP_WORDS = frozenset(
    """a all also an and any are as at be been being between both but by can do does each either for from given has
    have how if in into is it its may more must no not of on one only or other same see should so such than that the
    their then there these they this those to two use used using was we were what when where whether which while will
    with without would you your""".split()  # noqa: SIM905 (a column of 90 quoted words reads worse)
)
WORD = re.compile(r"[^\W_]+")

# Tests hold little documentation for their size; vendored packages repeat distributions.
_SKIPPED_FOLDERS = {"tests", "test", "_vendor", "site-packages", "dist-packages", "__pycache__", "licenses", "testing"}
_SKIPPED_NAMES = ("license", "licence", "copying", "notice", "authors", "_sysconfigdata")
_LICENCE = re.compile(
    r"permission is hereby granted|licensed under the|redistributions? (?:and use )?(?:in|of) |all rights reserved"
    r"|copyright (?:\(c\)|©|\d)|without warrant|merchantability|\"as is\"|license agreement|spdx-license"
    r"|under the terms of",
    re.IGNORECASE,
)
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b-\u200d\u2060\ud800-\uf8ff\ufeff\ufffd]")
_FENCE = re.compile(r"(`{3,}|~{3,})")
_BULLET = re.compile(r"(?:[-*+•–]|\(?(?:\d{1,2}|[a-z])[.)])\s")
_RULE = re.compile(r"[-=~^*\"#+`'.|: ]{3,}$|\|.*\||\+[-=+]+\+")  # underlines and tables
_NO_LETTER = re.compile(r"[\W\d_](?<! )")
_CODE = re.compile(r"[=_{}\[\]<>\\/|$^@#%&~*]")
_MARKUP = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\[!\[.*?\]\(.*?\)\]\(.*?\)|!\[[^\]]*\]\([^)]*\)", ""),  # images
        (r"\[`?[~!]?([^`\[\]]+)`?\]\((?:[^()]|\([^()]*\))*\)", r"\1"),  # [text](link)
        (r"(?::[\w:.+-]+:)?`+[~!]?([^`<>]*?)(?:\s*<[^`>]*>)?`+_{0,2}", r"\1"),  # ``code``, :role:`text <link>`
        (r":(?:param|arg|keyword|ivar|var)\s+(?:[\w.]+\s+)?(\*{0,2}\w+)\s*:", r"\1:"),
        (r"</?[a-zA-Z][^<>]*>|<https?:[^>\s]*>|\(\s*https?:[^)\s]*\)", ""),
        (r"(?<![\w*])(\*{1,2})(\S(?:[^*]*[^\s*])?)\1(?![\w*])", r"\2"),  # *emphasis*
        (r"\s*\[[\w#*]+\]_", ""),  # footnotes
        (r"\s+", " "),
    ]
]


# -- from files to lines


class Source(NamedTuple):
    """A file that may hold documentation. `file_path` is relative to where distributions are installed."""

    distribution: str
    version: str
    licence: str
    file_path: str
    path: str

    @property
    def url(self) -> str:
        if self.distribution == "python":
            return f"https://www.python.org/downloads/release/python-{self.version.replace('.', '')}/"
        return f"https://pypi.org/project/{self.distribution}/{self.version}/"


def installed_sources() -> list[Source]:
    """The `.py`, `.rst`, `.md` files and metadata of the standard library and of every installed distribution.

    Distributions installed as editable are left out: they are work in progress.
    """
    found: dict[str, Source] = {}
    root = Path(sysconfig.get_path("stdlib"))
    for parent, folders, names in os.walk(root):
        folders[:] = [folder for folder in folders if folder not in _SKIPPED_FOLDERS]
        for path in (Path(parent, name) for name in names):
            file_path = f"python/{path.relative_to(root).as_posix()}"
            if _may_document(file_path):
                found[file_path] = Source("python", platform.python_version(), "PSF-2.0", file_path, str(path))
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if not name or "editable" in (distribution.read_text("direct_url.json") or ""):
            continue
        about = (name, distribution.version, _licence(distribution.metadata))
        folder = str(distribution.locate_file(""))
        # The lines of RECORD themselves: `distribution.files` makes an object of each, which takes many seconds.
        for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
            if row and _may_document(row[0]):
                found.setdefault(row[0], Source(*about, row[0], os.path.join(folder, row[0])))
    return list(found.values())


def _licence(metadata: Any) -> str:
    """What a distribution states of its licence, in one line."""
    classified = [c.split(" :: ")[-1] for c in metadata.get_all("Classifier") or [] if c.startswith("License ::")]
    stated = metadata.get("License-Expression") or "; ".join(classified) or metadata.get("License") or "not stated"
    return stated.strip().split("\n")[0][:80]


def _may_document(file_path: str) -> bool:
    if not file_path.endswith((".py", ".rst", ".md", ".dist-info/METADATA")) or file_path.startswith(("/", "..")):
        return False
    *folders, name = file_path.split("/")
    return _SKIPPED_FOLDERS.isdisjoint(folders) and not name.lower().startswith(_SKIPPED_NAMES)


def extract(source: Source) -> list[str] | None:
    """The paragraphs of documentation in one file; None if it cannot be read or parsed, whatever is in it."""
    path = Path(source.path)
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:  # opening a pipe would wait for ever
            return None
        return [paragraph for text in _texts(path.read_bytes(), path.name) for paragraph in readable(text)]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _texts(data: bytes, name: str) -> list[str]:
    """The documentation strings of a file, in its order."""
    if name.endswith(".py"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's code
            nodes = ast.walk(ast.parse(data))
        strings = [n for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and is_prose(n.value)]
        return [str(n.value) for n in sorted(strings, key=lambda n: (n.lineno, n.col_offset))]
    text = data.decode("utf-8")
    if name == "METADATA":
        message = email.message_from_string(text)
        text = str(message.get_payload() or message.get("Description") or "")
    return [text]


def is_prose(text: str) -> bool:
    """Whether a text has 20 words or more, a sixth of them from the list of frequent English ones."""
    words = WORD.findall(text[:4000].lower()) if len(text) > 4 * MIN_WORDS else []
    return len(words) >= MIN_WORDS and 6 * sum(word in STOP_WORDS for word in words) >= len(words)


def readable(text: str) -> Iterator[str]:
    """The English paragraphs of reStructuredText, Markdown, numpydoc or Google style, one line each, without markup.

    Left out: examples, literal blocks, directives, tables, licences, and lines that read as code or another language.
    """
    for paragraph in _paragraphs(inspect.cleandoc(text)):
        line = _UNPRINTABLE.sub("", paragraph)
        for pattern, replacement in _MARKUP:
            line = pattern.sub(replacement, line)
        if _is_plain(line := line.strip()):
            yield line


def _paragraphs(text: str) -> Iterator[str]:
    """Wrapped lines joined; a blank line, a bullet or another indentation starts a paragraph."""
    lines = text.split("\n")
    joined, indent, i = "", 0, 0
    while i < len(lines):
        line, depth = lines[i].strip(), len(lines[i]) - len(lines[i].lstrip())
        i += 1
        is_text = False
        if fence := _FENCE.match(line):
            while i < len(lines) and not lines[i].strip().startswith(fence[1]):
                i += 1
            i += 1
        elif line.startswith((">>>", "In [", "$ ", "%%")):
            while i < len(lines) and lines[i].strip():
                i += 1
        elif line.startswith("..") or line.endswith("::"):  # a directive or a literal block, and what is under it
            while i < len(lines) and (not lines[i].strip() or len(lines[i]) - len(lines[i].lstrip()) > depth):
                i += 1
        else:
            is_text = bool(line) and not _RULE.match(line)
        if joined and (not is_text or depth != indent or _BULLET.match(line)):
            yield joined
            joined = ""
        if is_text:
            joined, indent = f"{joined} {line}".lstrip(), depth
    if joined:
        yield joined


def _is_plain(line: str) -> bool:
    words = WORD.findall(line.lower())
    if len(words) < 3 or _LICENCE.search(line):
        return False
    letters = len(_NO_LETTER.sub("", line))
    strange = 0 if line.isascii() else sum(c.isalpha() and not c.isascii() for c in line)
    if len(_CODE.findall(line)) > 0.07 * len(line) + 1 or letters < 0.72 * len(line) or strange > 0.1 * len(line):
        return False
    return len(words) < 12 or sum(word in STOP_WORDS for word in words) >= 0.1 * len(words)


# -- from lines to a dataset


class Document(NamedTuple):
    """One row of the corpus; `id` is FineWeb-Edu's `<urn:uuid:...>`."""

    id: str
    source: Source
    text: str

    @property
    def size(self) -> int:
        return len(self.text.encode())


class Split(BaseModel):
    """Documents of a split, their UTF-8 bytes, and their words, split at white space."""

    documents: int = 0
    text_bytes: int = 0
    words: int = 0


class Distribution(BaseModel):
    """What one package gave, and what it states of its licence."""

    documents: int = 0
    text_bytes: int = 0
    licence: str


class CorpusReport(BaseModel):
    """What a corpus holds and what was left out.

    `files` were read (with `max_bytes`: until there was enough), of which `unusable` could not be. Distributions are
    keyed by name and version.
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


def build(
    folder: str | Path,
    *,
    max_bytes: int | None = None,
    validation_fraction: float = 0.025,
    sources: Sequence[Source] | None = None,
) -> CorpusReport:
    """Build the corpus in `folder`, completely or not at all, or use the one that is there.

    Args:
        max_bytes: at most that many UTF-8 bytes of text, files in hash order; None for all.
        validation_fraction: share of the text held out (0 < share < 1), as whole packages.
        sources: files to read; None for `installed_sources()`.

    Raises:
        ValueError: an option out of its range, or documentation of fewer than two packages.
        FileExistsError: `folder` holds something that is no corpus, or one that was built with other options.
    """
    folder = Path(folder).expanduser().resolve()
    if max_bytes is not None and max_bytes < 1:
        raise ValueError(f"max_bytes: {max_bytes}; give a positive number of bytes, or None for everything")
    if not 0 < validation_fraction < 1:
        raise ValueError(f"validation_fraction: {validation_fraction}; give a share between 0 and 1")
    if (folder / MANIFEST).is_file():
        report = CorpusReport.model_validate_json((folder / MANIFEST).read_bytes())
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
    with progress_line("reading", len(sources), "files") as advance:
        for n_files, lines in enumerate(_extract_all(sources), start=1):
            advance(1, "")
            unusable += lines is None
            for document in _documents(sources[n_files - 1], lines or [], seen):
                room -= document.size
                if room >= 0:
                    documents.append(document)
            if room < 0:
                break
    splits = _split(documents, validation_fraction)
    if not all(splits.values()):
        raise ValueError(
            f"sources: {n_files} files gave {len(documents)} documents within max_bytes={max_bytes}; documents of at "
            "least 2 packages are needed"
        )
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


def _split(documents: Sequence[Document], validation_fraction: float) -> dict[str, list[Document]]:
    """Train and validation, each in the order of the hash of the ids.

    Packages repeat themselves, so each is in one split as a whole. Validation gets those that fit into its share of
    the bytes, in the order of the hash of their names, or the smallest where none fits.
    """
    sizes = Counter[str]()
    for document in documents:
        sizes[document.source.distribution] += document.size
    held_out, room = set[str](), validation_fraction * sizes.total()
    for name in sorted(sizes, key=_sha256):
        if sizes[name] <= room:
            held_out.add(name)
            room -= sizes[name]
    held_out = held_out or {name for name, _ in sizes.most_common()[-1:]}
    splits: dict[str, list[Document]] = {"train": [], "validation": []}
    for document in sorted(documents, key=lambda document: _sha256(document.id)):
        splits["validation" if document.source.distribution in held_out else "train"].append(document)
    return splits


def _write(folder: Path, split: str, documents: Sequence[Document]) -> Split:
    """The parquet file of a split in FineWeb-Edu's columns. Language and scores are constants: nothing was scored."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    words, n = [len(document.text.split()) for document in documents], len(documents)
    columns = {
        "text": [document.text for document in documents],
        "id": [document.id for document in documents],
        "dump": ["installed-documentation"] * n,
        "url": [document.source.url for document in documents],
        "file_path": [document.source.file_path for document in documents],
        "language": ["en"] * n,
        "language_score": [1.0] * n,
        "token_count": words,
        "score": [3.0] * n,
        "int_score": [3] * n,
    }
    pq.write_table(pa.table(columns), folder / f"{split}-00000-of-00001.parquet", compression="zstd")
    size = sum(document.size for document in documents)
    return Split(documents=n, text_bytes=size, words=sum(words))


def _by_distribution(documents: Sequence[Document]) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    for source, size in sorted((document.source, document.size) for document in documents):
        part = found.setdefault(f"{source.distribution} {source.version}", Distribution(licence=source.licence))
        part.documents += 1
        part.text_bytes += size
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

The columns are those of FineWeb-Edu. `token_count` counts words between white space; `language_score`, `score` and
`int_score` are constants and **not measured**. Each package is in one split only.

| source | licence as stated | documents | bytes |
|---|---|---:|---:|
{rows}
"""


app = App(single=True)


@app.command()
def main(folder: Path, max_bytes: int | None = None, version: Version = False) -> None:
    """Build the documentation corpus in FOLDER, or tell what is in the one that is there."""
    print(build(folder, max_bytes=max_bytes))


if __name__ == "__main__":
    app()
