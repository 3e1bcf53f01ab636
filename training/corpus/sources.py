"""Documentation as it lies in installed files: which files hold some, and the strings in each.

Python files are parsed with `ast` and never imported or executed.
"""

from __future__ import annotations

import ast
import csv
import email
import importlib.metadata
import os
import platform
import stat
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from training.corpus.cleaning import is_prose, readable_lines

MAX_FILE_BYTES = 4_000_000

# Tests hold little documentation for their size; vendored packages repeat distributions.
_SKIPPED_FOLDERS = {"tests", "test", "_vendor", "site-packages", "dist-packages", "__pycache__", "licenses", "testing"}
_SKIPPED_NAMES = ("license", "licence", "copying", "notice", "authors", "_sysconfigdata")
_QUOTES = (b'"""', b"'''")


class Source(NamedTuple):
    """A file that may hold documentation. `file_path` is relative to where distributions are installed."""

    distribution: str
    version: str
    file_path: str
    path: str


class Docstring(NamedTuple):
    """Lines of one documentation string and the name of what it describes, empty for a module or a file."""

    name: str
    lines: list[str]


class Extract(NamedTuple):
    """What one file gave. `skipped` is the reason why it could not be read, None if it could."""

    docstrings: list[Docstring]
    characters: int
    dropped: dict[str, int]
    skipped: str | None


def installed_sources() -> list[Source]:
    """The `.py`, `.rst`, `.md` files and metadata of the standard library and of every installed distribution.

    Distributions come from their RECORD; those installed as editable are left out, because they are work in progress.
    """
    found = {source.file_path: source for source in _standard_library()}
    seen = set()
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if not name or name.lower() in seen or "editable" in (distribution.read_text("direct_url.json") or ""):
            continue
        seen.add(name.lower())
        version, root = distribution.version, os.fspath(distribution.locate_file(""))
        # The lines of RECORD themselves: `distribution.files` makes an object of each, which takes many seconds.
        for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
            if row and _may_document(row[0]):
                found.setdefault(row[0], Source(name, version, row[0], os.path.join(root, row[0])))
    return list(found.values())


def _standard_library() -> Iterator[Source]:
    root = Path(sysconfig.get_path("stdlib"))
    for parent, folders, names in os.walk(root):
        folders[:] = [folder for folder in folders if folder not in _SKIPPED_FOLDERS]
        for name in names:
            path = Path(parent, name)
            relative = path.relative_to(root).as_posix()
            if _may_document(relative):
                yield Source("python", platform.python_version(), f"python/{relative}", str(path))


def _may_document(file_path: str) -> bool:
    if not file_path.endswith((".py", ".rst", ".md", ".dist-info/METADATA")) or file_path.startswith(("/", "..")):
        return False
    *folders, name = file_path.split("/")
    return _SKIPPED_FOLDERS.isdisjoint(folders) and not name.lower().startswith(_SKIPPED_NAMES)


def extract(source: Source) -> Extract:
    """Read and clean the documentation of one file; never raises for what is in the file."""
    try:
        data, skipped = _read(source.path)
        if data is None or (source.path.endswith(".py") and not any(quote in data for quote in _QUOTES)):
            return Extract([], 0, {}, skipped)
        found = list(_python_docs(data) if source.path.endswith(".py") else _text_docs(source, data))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Extract([], 0, {}, "not parsable")
    except OSError:
        return Extract([], 0, {}, "unreadable")
    dropped: Counter[str] = Counter()
    cleaned = [Docstring(name, readable_lines(text, dropped)) for name, text in found]
    n_characters = sum(len(line.strip()) for _, text in found for line in text.splitlines())
    return Extract([docstring for docstring in cleaned if docstring.lines], n_characters, dict(dropped), None)


def _read(path: str) -> tuple[bytes | None, str | None]:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
        return None, "no regular file"
    if status.st_size > MAX_FILE_BYTES:
        return None, "too large"
    return Path(path).read_bytes(), None


def _text_docs(source: Source, data: bytes) -> Iterator[tuple[str, str]]:
    text = data.decode("utf-8", errors="strict")
    if source.path.endswith("METADATA"):
        message = email.message_from_string(text)
        text = str(message.get_payload() or message.get("Description") or "")
    yield "", text


def _python_docs(data: bytes) -> Iterator[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's code
        tree = ast.parse(data)
    yield from _body_docs(tree.body, "")


def _body_docs(body: Sequence[ast.stmt], scope: str) -> Iterator[tuple[str, str]]:
    """(name, text) of the documentation in a module's or class's statements, in source order."""
    name = scope
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = f"{scope}.{statement.name}".lstrip(".")
            for decorator in statement.decorator_list:
                yield from ((inner, text) for _, text in _prose_in(decorator))
            if isinstance(statement, ast.ClassDef):
                yield from _body_docs(statement.body, inner)
            elif text := ast.get_docstring(statement, clean=False):
                yield inner, text
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            if isinstance(statement.value.value, str):
                yield name, statement.value.value
        elif isinstance(statement, (ast.If, ast.Try, ast.With)):
            for block in (statement.body, getattr(statement, "orelse", []), getattr(statement, "finalbody", [])):
                yield from _body_docs(block, scope)
        elif (statement.end_lineno or 0) > statement.lineno:
            yield from _prose_in(statement)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):  # a string after it documents the attribute
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            name = f"{scope}.{target.id}".lstrip(".") if isinstance(target, ast.Name) else scope
        else:
            name = scope


def _prose_in(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Long English string constants in an expression, named by the dotted name or identifiers just before them."""
    constants = [inner for inner in ast.walk(node) if isinstance(inner, (ast.Constant, ast.Attribute))]
    names: list[str] = []
    for inner in sorted(constants, key=lambda inner: (inner.lineno, inner.col_offset, -(inner.end_col_offset or 0))):
        if isinstance(inner, ast.Attribute):
            if isinstance(inner.value, (ast.Name, ast.Attribute)) and not names:
                names = [ast.unparse(inner)]
        elif isinstance(inner.value, str):
            if is_prose(inner.value):
                is_call = isinstance(node, ast.Expr)
                yield ".".join(names[-4:] if is_call else names[-1:]), inner.value
                names = []
            elif inner.value.replace(".", "").isidentifier():
                names.append(inner.value)
            else:
                names = []
