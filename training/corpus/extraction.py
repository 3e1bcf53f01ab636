"""The documentation in installed files, as plain English paragraphs.

Python files are parsed with `ast` and never imported or executed. A string in them counts as documentation if it has
at least 20 words of English: docstrings, strings after attributes, arguments of `add_newdoc` and the like, help texts.
`.rst` and `.md` files and the long descriptions in the packages' metadata are taken whole.
"""

from __future__ import annotations

import ast
import csv
import email
import importlib.metadata
import inspect
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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


class Source(NamedTuple):
    """A file that may hold documentation. `file_path` is relative to where distributions are installed."""

    distribution: str
    version: str
    licence: str
    file_path: str
    path: str


def installed_sources() -> list[Source]:
    """The `.py`, `.rst`, `.md` files and metadata of the standard library and of every installed distribution.

    Distributions come from their RECORD; those installed as editable are left out, because they are work in progress.
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
    """The documentation strings of a file, in the order of the file."""
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

    Left out: examples, fenced and literal blocks, directives, tables, licences, and lines that read as code, as
    another language, or have only one or two words.
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
