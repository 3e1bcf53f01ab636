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
from pathlib import Path
from typing import NamedTuple

from hub.base import atomic
from hub.base.errors import InputError
from hub.base.progress import progress_line
from hub.base.units import format_bytes

MANIFEST = "corpus.json"  # a folder without it is not a complete corpus
HELD_OUT = 0.025  # share of the text in the validation split
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
        return len(self.text.encode())


def installed_sources() -> list[Source]:
    """The Python files of the standard library and of the installed packages.

    Packages installed as editable are work in progress and lie elsewhere.
    """
    places = sysconfig.get_paths()
    sources: dict[str, Source] = {}
    for place, package in ((places["stdlib"], "python"), (places["purelib"], ""), (places["platlib"], "")):
        for path in Path(place).rglob("*.py"):
            parts = path.relative_to(place).parts
            if _SKIPPED_FOLDERS.isdisjoint(parts):
                name = "/".join([package, *parts] if package else parts)
                sources.setdefault(name, Source(package or parts[0], name, path))
    return list(sources.values())


def extract(path: Path) -> list[str]:
    """The paragraphs of a file's docstrings, in its order; none if it cannot be read or parsed, whatever is in it."""
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


def build(folder: str | Path, *, max_bytes: int | None = None, sources: Sequence[Source] | None = None) -> str:
    """Build the corpus in `folder`, completely or not at all, or use the one that is there; says how large it is.

    Args:
        max_bytes: at most that many UTF-8 bytes of text, files in hash order; None for all.
        sources: files to read; None for `installed_sources()`.

    Raises:
        ValueError: there is documentation of fewer than two packages within `max_bytes`.
        FileExistsError: `folder` holds something that is no corpus, or one that was built with another limit.
    """
    folder = Path(folder).expanduser().resolve()
    if manifest := atomic.read_json(folder / MANIFEST, None):
        if manifest["max_bytes"] != max_bytes:
            built = f"was built with max_bytes={manifest['max_bytes']}"
            raise FileExistsError(f"folder: {str(folder)!r} {built}; delete it or give another folder")
        return str(manifest["summary"])
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise FileExistsError(f"folder: {str(folder)!r} exists and is no corpus; give a new or an empty folder")
    documents = _read(
        installed_sources() if sources is None else sources, float("inf") if max_bytes is None else max_bytes
    )
    splits = _split(documents)
    if not all(splits.values()):
        found = f"not {len(documents)} documents"
        raise InputError(f"max_bytes: {max_bytes}; it must allow text of at least 2 packages, {found}")
    sizes = {name: sum(row.size for row in rows) for name, rows in splits.items()}
    summary = (
        f"{format_bytes(sum(sizes.values()))} of English in {len(documents):,} documents of "
        f"{len({document.package for document in documents})} packages, {format_bytes(sizes['validation'])} of it "
        "held out"
    )
    with atomic.atomic_folder(folder) as temporary:
        for name, rows in splits.items():
            _write(temporary / f"{name}-00000-of-00001.parquet", rows)
        manifest = {"max_bytes": max_bytes, "summary": summary, "licence": "that of each package"}
        (temporary / MANIFEST).write_text(json.dumps(manifest) + "\n", encoding="utf-8")
    return summary


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(sources: Sequence[Source], room: float) -> list[Document]:
    """The documents of the files, one each of the lines that no earlier one has, until they fill `room` bytes."""
    documents: list[Document] = []
    seen: set[str] = set()
    with progress_line("reading", len(sources), "files") as advance:
        for source in sorted(sources, key=lambda source: _hash(source.name)):  # nothing depends on the file system
            advance(1, "")
            new = []
            for line in extract(source.path):
                if (key := " ".join(WORD.findall(line.lower()))) not in seen:
                    seen.add(key)
                    new.append(line)
            identity = uuid.uuid5(uuid.NAMESPACE_URL, source.name)
            document = Document(f"<urn:uuid:{identity}>", "\n\n".join(new), source.package)
            if len(document.text) >= MIN_CHARACTERS:
                room -= document.size
                if room < 0:
                    break
                documents.append(document)
    return documents


def _split(documents: Sequence[Document]) -> dict[str, list[Document]]:
    """Train and validation, each in the order of the hash of the ids.

    Packages repeat themselves, so each is in one split as a whole. Validation gets those that fit into its share of
    the bytes, in the order of the hash of their names, or the smallest where none fits.
    """
    sizes = Counter[str]()
    for document in documents:
        sizes[document.package] += document.size
    held_out, room = set[str](), HELD_OUT * sizes.total()
    for name in sorted(sizes, key=_hash):
        if sizes[name] <= room:
            held_out.add(name)
            room -= sizes[name]
    held_out = held_out or {name for name, _ in sizes.most_common()[-1:]}
    splits: dict[str, list[Document]] = {"train": [], "validation": []}
    for document in sorted(documents, key=lambda document: _hash(document.id)):
        splits["validation" if document.package in held_out else "train"].append(document)
    return splits


def _write(path: Path, documents: Sequence[Document]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: [getattr(document, name) for document in documents] for name in ("id", "text")}
    pq.write_table(pa.table(columns), path, compression="zstd")
