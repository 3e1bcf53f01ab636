"""A corpus of real English for runs without a network: the docstrings of the installed Python packages.

Files are parsed and never executed. Losses on it cannot be compared with those on FineWeb-Edu, whose columns `id` and
`text` it has.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import re
import sysconfig
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from hub.base import atomic
from hub.base.errors import InputError
from hub.base.progress import progress_line
from hub.base.units import format_bytes

# A folder without this file is not a complete corpus.
MANIFEST = "corpus.json"
# Share of the text in the validation split.
HELD_OUT = 0.025
# Least characters of a document.
MIN_CHARACTERS = 250
MAX_FILE_BYTES = 4_000_000
STOP_WORDS = {
    *("a", "an", "and", "are", "as", "at", "be", "by", "can", "for", "from", "has", "if", "in", "is", "it", "not"),
    *("of", "on", "or", "that", "the", "this", "to", "with"),
}
WORD = re.compile(r"[^\W_]+")

# Tests hold little documentation for their size; vendored packages repeat others.
_SKIPPED_FOLDERS = {"tests", "test", "_vendor", "site-packages", "dist-packages", "__pycache__", "testing"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BULLET = re.compile(r"\s*(?:[-*+•–]|\(?(?:\d{1,2}|[a-z])[.)])\s")
# [text](link), ``code``, :role:`text <link>` and *emphasis*, of which the text stays; tags, links and footnotes.
_TEXT_OF = re.compile(
    r"\[`?[~!]?([^`\[\]]+)`?\]\([^()]*\)|(?::[\w:.+-]+:)?`+[~!]?([^`<>]*?)(?:\s*<[^`>]*>)?`+_{0,2}"
    r"|(?<![\w*])\*{1,2}(\S(?:[^*]*[^\s*])?)\*{1,2}(?![\w*])|</?[a-zA-Z][^<>]*>|<https?:[^>\s]*>|\s*\[[\w#*]+\]_"
)


class Source(NamedTuple):
    """A Python file of a package; `name` is its path from where packages are installed."""

    package: str
    name: str
    path: Path


class Document(NamedTuple):
    """One row of the corpus; `id` is FineWeb-Edu's `<urn:uuid:...>`."""

    id: str
    text: str
    package: str

    @property
    def size(self) -> int:
        """Bytes of the text."""
        return len(self.text.encode())


def installed_sources() -> list[Source]:
    """List the Python files of the standard library and of the installed packages.

    Packages installed as editable are work in progress and lie elsewhere.
    """
    folders = sysconfig.get_paths()
    sources: dict[str, Source] = {}
    for folder, prefix in (
        (folders["stdlib"], ("python",)),
        (folders["purelib"], ()),
        (folders["platlib"], ()),
    ):
        for path in Path(folder).rglob("*.py"):
            steps = path.relative_to(folder).parts
            if _SKIPPED_FOLDERS.isdisjoint(steps):
                steps = (*prefix, *steps)
                name = "/".join(steps)
                sources.setdefault(name, Source(steps[0], name, path))
    return list(sources.values())


def extract(path: Path) -> list[str]:
    """Return the paragraphs of a file's docstrings, in its order.

    None of a file that cannot be read or parsed, whatever is in it.
    """
    try:
        # Opening a pipe would wait for ever.
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return []
        with warnings.catch_warnings():
            # Other people's code has invalid escapes.
            warnings.simplefilter("ignore")
            nodes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, _DOCUMENTED)]
        # A module has no line number.
        nodes.sort(key=lambda node: getattr(node, "lineno", 0))
        paragraphs: list[str] = []
        for node in nodes:
            paragraphs += readable(ast.get_docstring(node) or "")
        return paragraphs
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def readable(text: str) -> Iterator[str]:
    """Yield the English paragraphs of a docstring, one line each, without markup, code and other languages.

    Lines of one indentation are one paragraph, which a blank line or a bullet ends.
    """
    breaks = 0

    def paragraph(line: str) -> tuple[int, int]:
        nonlocal breaks
        breaks += not line.strip() or _BULLET.match(line) is not None
        return breaks, len(line) - len(line.lstrip())

    for _, lines in itertools.groupby(text.split("\n"), paragraph):
        text_without_markup = _TEXT_OF.sub(lambda match: "".join(filter(None, match.groups())), " ".join(lines))
        line = " ".join(text_without_markup.split())
        line = "".join(filter(str.isprintable, line)).strip()
        if _is_english(line):
            yield line


def _is_english(line: str) -> bool:
    """Return whether a line is words: letters for the most part and, in a long one, a tenth of the words frequent."""
    words = WORD.findall(line.lower())
    if len(words) < 3:
        return False
    letters = sum(character.isascii() and (character.isalpha() or character == " ") for character in line)
    frequent_words = sum(word in STOP_WORDS for word in words)
    return letters >= 0.85 * len(line) and (len(words) < 12 or 10 * frequent_words >= len(words))


def build(folder: str | Path, *, max_bytes: int | None = None, sources: Sequence[Source] | None = None) -> str:
    """Build the corpus in `folder`, completely or not at all, or use the one that is there; return its size in words.

    Args:
        max_bytes: at most that many UTF-8 bytes of text, files in hash order; None for all.
        sources: files to read; None for `installed_sources()`.

    Raises:
        ValueError: there is documentation of fewer than two packages within `max_bytes`.
        FileExistsError: `folder` holds something else, or a corpus that was built with another limit.
    """
    folder = Path(folder).expanduser().resolve()
    manifest = atomic.read_json(folder / MANIFEST, None)
    if manifest:
        limit = manifest["max_bytes"]
        if limit != max_bytes:
            raise FileExistsError(
                f"folder: {str(folder)!r} was built with max_bytes={limit}; delete it or give another folder"
            )
        return str(manifest["summary"])
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise FileExistsError(f"folder: {str(folder)!r} exists and is not a corpus; give a new or an empty folder")
    if sources is None:
        sources = installed_sources()
    documents = _read(sources, float("inf") if max_bytes is None else max_bytes)
    splits = _split(documents)
    if not all(splits.values()):
        raise InputError(
            f"max_bytes: {max_bytes}; it must allow text of at least 2 packages, not {len(documents)} documents"
        )
    sizes = {name: sum(map(attrgetter("size"), rows)) for name, rows in splits.items()}
    packages = {document.package for document in documents}
    summary = (
        f"{format_bytes(sum(sizes.values()))} of English in {len(documents):,} documents of {len(packages)} packages, "
        f"{format_bytes(sizes['validation'])} of it held out"
    )
    with atomic.atomic_folder(folder) as temporary:
        for name, rows in splits.items():
            _write(temporary / f"{name}-00000-of-00001.parquet", rows)
        manifest = {"max_bytes": max_bytes, "summary": summary, "licence": "that of each package"}
        (temporary / MANIFEST).write_text(json.dumps(manifest) + "\n", encoding="utf-8")
    return summary


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(sources: Sequence[Source], max_bytes: float) -> list[Document]:
    """Make a document of each file, of the lines that no earlier one has, until they fill `max_bytes`."""
    documents: list[Document] = []
    keys: set[str] = set()
    free_bytes = max_bytes
    with progress_line("reading", len(sources), "files") as advance:
        # The order is that of hashes, so that nothing depends on the file system.
        for source in sorted(sources, key=lambda source: _hash(source.name)):
            advance(1, "")
            new_lines = []
            for line in extract(source.path):
                key = " ".join(WORD.findall(line.lower()))
                if key not in keys:
                    keys.add(key)
                    new_lines.append(line)
            identity = uuid.uuid5(uuid.NAMESPACE_URL, source.name)
            document = Document(f"<urn:uuid:{identity}>", "\n\n".join(new_lines), source.package)
            if len(document.text) >= MIN_CHARACTERS:
                free_bytes -= document.size
                if free_bytes < 0:
                    break
                documents.append(document)
    return documents


def _split(documents: Sequence[Document]) -> dict[str, list[Document]]:
    """Split into train and validation, each in the order of the hash of the ids.

    Packages repeat themselves, so no package is in both. Validation gets those that fit into its share of the bytes,
    in the order of the hash of their names, or the smallest where none fits.
    """
    sizes = Counter[str]()
    for document in documents:
        sizes[document.package] += document.size
    held_out = set[str]()
    free_bytes = HELD_OUT * sizes.total()
    for name in sorted(sizes, key=_hash):
        if sizes[name] <= free_bytes:
            held_out.add(name)
            free_bytes -= sizes[name]
    if not held_out:
        held_out = {name for name, _ in sizes.most_common()[-1:]}
    splits: dict[str, list[Document]] = {"train": [], "validation": []}
    for document in sorted(documents, key=lambda document: _hash(document.id)):
        splits["validation" if document.package in held_out else "train"].append(document)
    return splits


def _write(path: Path, documents: Sequence[Document]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "id": [document.id for document in documents],
        "text": [document.text for document in documents],
    }
    pq.write_table(pa.table(columns), path, compression="zstd")
