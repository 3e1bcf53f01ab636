"""From documentation markup to plain English lines, and removal of text that repeats.

Documentation strings are written in reStructuredText, Markdown, numpydoc or Google style, wrapped at some column and
mixed with doctests, tables and formulas. `readable_lines` turns one of them into lines of which each is a paragraph,
a list item or the description of one parameter (the form of web text such as FineWeb-Edu), and counts what it leaves
out.

`keep_unrepeated` then removes repetition over the whole corpus. It compares line by line and not document by
document: libraries repeat the description of a parameter hundreds of times inside docstrings that are otherwise their
own, so a rule for whole docstrings would either keep the copies or lose the rest.
"""

from __future__ import annotations

import inspect
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np

SHINGLE_WORDS = 8
MAX_REPEATED_SHARE = 0.4  # of a line's shingles; the rest of such a line is mostly names put into the same sentence
MIN_DOCSTRING_WORDS = 8

_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a all also an and any are as at be been being between both but by can do does each either for from given has "
        "have how if in into is it its may more must no not of on one only or other same see should so such than that "
        "the their then there these they this those to two use used using was we were what when where whether which "
        "while will with without would you your",
    )
)
_WORD = re.compile(r"[^\W_]+")
_LICENCE = re.compile(
    r"permission is hereby granted|licensed under the|redistributions? (?:and use )?(?:in|of) |all rights reserved"
    r"|copyright (?:\(c\)|©|\d)|without warrant|merchantability|\"as is\"|license agreement|spdx-license"
    r"|under the terms of",
    re.IGNORECASE,
)
_PUNCTUATION = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2010": "-", "\u2011": "-", "\u2212": "-"}
    | {"\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2026": "...", "\ufb01": "fi", "\ufb02": "fl"}
    | dict.fromkeys([0xAD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0xFFFD])
)

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\uf8ff]")  # controls, surrogates, private use
_LETTERS_AND_SPACE = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ "
_CODE_SIGNS = b"=_{}[]<>\\/|$^@#%&~*"
_SIGNATURE = re.compile(r"[\w.]+\(.*\)(?: ?-> ?.*)?:?$")

# Block markup. A block belongs to its first line as long as lines are blank or indented deeper.
_FENCE = re.compile(r"(`{3,}|~{3,})")
_UNDERLINE = re.compile(r"([=\-~^*\"#+`'.])\1{2,}$")
_TABLE = re.compile(r"\|.*\||\+[-=+]+\+|[=-]{2,}(?: +[=-]{2,})+|[-=|+ ]{4,}$")
_DIRECTIVE = re.compile(r"\.\.(?:\s+([\w-]+)::\s*(.*)|\s|$)")
_ADMONITIONS = {"note", "warning", "tip", "important", "caution", "hint", "attention", "deprecated", "danger"}
_PLACEHOLDER = re.compile(r"(?:\{+\w*\}+|%\([\w:.]+\)s|\$\{?\w+\}?|<<?\w+>>?)$")
_BULLET = re.compile(r"(?:[-*+•–]|\(?(?:\d{1,2}|[a-z])[.)])\s+(?=\S)")
_ITEM = re.compile(
    r"\*{0,2}`{0,2}[\w.]+`{0,2}(?:, ?\*{0,2}[\w.]+)* ?(?:\([^()]*(?:\([^()]*\)[^()]*)*\) ?)?: ?(?![:\w+-]*:)"
)
_NUMPYDOC_TERM = re.compile(r"([\w*`., \\]+?) : (.+)$")
_TYPE_FIELD = re.compile(r":(?:type|rtype|raises?|yields?|author|meta)\b[^:]*:")
_FIELD = re.compile(r":(?:param|parameter|arg|argument|keyword|kwarg|ivar|cvar|var)\s+(?:[\w.]+\s+)?(\*{0,2}\w+)\s*:")

# Inline markup, in the order of application: (a string that must be there, pattern, replacement).
_HTML = "a|p|br|tip|div|span|img|b|i|em|strong|code|pre|li|ul|ol|h[1-6]|t[drht]|sub|sup"
_INLINE = [
    (trigger, re.compile(pattern), replacement)
    for trigger, pattern, replacement in [
        ("![", r"!\[[^\]]*\]\([^)]*\)|\[!\[.*?\]\(.*?\)\]\(.*?\)", ""),
        ("[`", r"\[`[~!]?([^`\]]+)`\](?:\([^)]*\))?", r"\1"),
        ("](", r"\[([^\[\]]+)\]\((?:[^()]|\([^()]*\))*\)", r"\1"),
        ("`", r":[a-zA-Z][\w:.+-]*:`(?:[^`<]*?[^`<\s])?\s*<?~[\w.]*?([\w-]+)>?`", r"\1"),
        ("`", r"(?::[a-zA-Z][\w:.+-]*:)?`([^`<]+?)\s*<[^`>]+>`_{0,2}", r"\1"),
        ("`", r":[a-zA-Z][\w:.+-]*:`!?([^`]*)`", r"\1"),
        ("`", r"``(.+?)``", r"\1"),
        ("`", r"`~?([^`]+)`_{0,2}", r"\1"),
        ("`", r"`", ""),
        ("://", r"<https?:[^>\s]*>|\(\s*https?:[^)\s]*\)", ""),
        ("<!--", r"<!--.*?-->", ""),
        ("<", rf"(?i)</?(?:{_HTML})\b[^<>]*>", ""),
        ("**", r"\*\*(\S(?:[^*]*\S)?)\*\*", r"\1"),
        ("*", r"(?<![\w*])\*(\w(?:[^*]*\w)?)\*(?![\w*])", r"\1"),
        ("]_", r"\s*\[[\w#*]+\]_", ""),
        ("\\", r"\\(?:text|math[a-z]+|operatorname|mbox|left|right|[,;! ])\s*(?:\{([^{}]*)\})?", r"\1"),
        ("\\", r"\\times\b", "x"),
        ("\\", r"\\(?:leq?|leqslant)\b", "<="),
        ("\\", r"\\(?:geq?|geqslant)\b", ">="),
        ("\\", r"\\(in|ne|to|pi|mu|nu|xi|[a-zA-Z]{3,})\b", r"\1"),
        ("\\", r"\\([_*`|\\])", r"\1"),
        ("&", r"&nbsp;|&#160;", " "),
        (" ", r"\s+", " "),
        (" ", r" +([,.;:)](?:\s|$))", r"\1"),
    ]
]


def readable_lines(text: str, dropped: Counter[str]) -> list[str]:
    """The English of one documentation string, a paragraph or list item per line, markup removed.

    Args:
        text: the string as it stands in the source file.
        dropped: gets the number of characters left out added, by reason: `code` (doctests, fenced and literal
            blocks, lines that read as code), `table`, `markup` (directives, placeholders), `licence`, `not English`,
            `fragment` (headings with nothing under them, lines of one or two words, strings of less than 8 words).
    """
    text = _UNPRINTABLE.sub("", unicodedata.normalize("NFC", text).translate(_PUNCTUATION))
    lines = _select(_paragraphs(inspect.cleandoc(text).split("\n"), dropped), dropped)
    n_words, english = _words_and_english(" ".join(lines))
    if n_words < MIN_DOCSTRING_WORDS:
        dropped["fragment"] += sum(map(len, lines))
        return []
    if english < 0.15:
        dropped["not English"] += sum(map(len, lines))
        return []
    return lines


def is_prose(text: str) -> bool:
    """Whether a string constant that is no docstring reads like documentation: 20 or more words of plain English."""
    if len(text) < 120:
        return False
    n_words, english = _words_and_english(text[:4000])
    return n_words >= 20 and english >= 0.2


def _words_and_english(text: str) -> tuple[int, float]:
    words = _WORD.findall(text.lower())
    return len(words), sum(word in _STOP_WORDS for word in words) / max(1, len(words))


class _Paragraphs:
    """Joins the wrapped lines of paragraphs, list items and parameter descriptions."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.text = ""
        self.indent = 0
        self.is_item = False
        self.last_length = 0

    def flush(self) -> None:
        if self.text:
            self.done.append(self.text)
        self.text = ""

    def add(self, line: str, is_heading: bool = False) -> None:
        stripped, indent = line.strip(), len(line) - len(line.lstrip())
        is_item = bool(_BULLET.match(stripped) or _ITEM.match(stripped) or _FIELD.match(stripped))
        hangs = indent > self.indent
        # An item's own lines hang under it; a line beside it goes on with it only where "Note: ..." was wrapped.
        starts_new = indent < self.indent or (not hangs and (is_item or (self.is_item and self.last_length < 60)))
        if hangs and (self._is_section() or is_item):
            starts_new = True
        # A short line before a capital is the end of a sentence or an entry of a list, not a wrapped line.
        if not hangs and self.last_length < 40 and stripped[0].isupper():
            starts_new = True
        if not self.text or starts_new or is_heading:
            self.flush()
            self.text, self.indent, self.is_item = _FIELD.sub(r"\1:", stripped), indent, is_item
        elif hangs and self.last_length == len(self.text) and (term := _NUMPYDOC_TERM.fullmatch(self.text)):
            self.text = f"{term[1]} ({term[2]}): {stripped}"
        else:
            # "name" alone on a line with its description hanging under it
            is_bare_term = hangs and not self.is_item and self.text.isidentifier()
            self.text += (": " if is_bare_term else " ") + stripped
            self.is_item |= hangs and not self.is_item
        self.last_length = len(stripped)

    def _is_section(self) -> bool:
        return _is_heading(self.text) and self.text[:1].isupper()

    def underline(self) -> None:
        """The last line was a heading."""
        if self.text and not self.text.endswith((":", ".")):
            self.text += ":"
        self.flush()


def _paragraphs(lines: list[str], dropped: Counter[str]) -> list[str]:
    paragraphs = _Paragraphs()
    i = 0
    while i < len(lines):
        line = lines[i]
        stripped, indent = line.strip(), len(line) - len(line.lstrip())
        end = i + 1
        if not stripped:
            paragraphs.flush()
        elif fence := _FENCE.match(stripped):
            paragraphs.flush()
            while end < len(lines) and not lines[end].strip().startswith(fence[1]):
                end += 1
            end += 1
            dropped["code"] += sum(map(len, lines[i:end]))
        elif stripped.startswith((">>>", "In [", "$ ", "%%")) or stripped == "...":
            paragraphs.flush()
            while end < len(lines) and lines[end].strip():
                end += 1
            dropped["code"] += sum(map(len, lines[i:end]))
        elif _UNDERLINE.match(stripped):
            paragraphs.underline()
        elif _TABLE.match(stripped):
            paragraphs.flush()
            dropped["table"] += len(stripped)
        elif stripped.startswith("#") and stripped.lstrip("#").strip():
            paragraphs.add(stripped.strip("# ").rstrip(":") + ":", is_heading=True)
            paragraphs.flush()
        elif directive := _DIRECTIVE.match(stripped):
            paragraphs.flush()
            if directive[1] in _ADMONITIONS:
                _announce(lines, i, directive[1].capitalize(), directive[2])
                end = i if lines[i].strip() else end
            else:
                end = _block_end(lines, end, indent)
                dropped["markup"] += sum(map(len, lines[i:end]))
        elif _PLACEHOLDER.match(stripped) or _TYPE_FIELD.match(stripped):
            dropped["markup"] += len(stripped)
        elif stripped.endswith("::"):
            if stripped != "::":
                paragraphs.add(line.rstrip().removesuffix("::").rstrip() + ":")
            paragraphs.flush()
            block = _block_end(lines, end, indent)
            dropped["code"] += sum(map(len, lines[end:block]))
            end = block
        else:
            paragraphs.add(line)
        i = end
    paragraphs.flush()
    return paragraphs.done


def _announce(lines: list[str], i: int, label: str, said: str) -> None:
    """Turn the directive in line `i` into "Note: ..." before what it says, there or in the next line with text."""
    if label == "Deprecated":  # what stands beside it is a version number
        said = ""
    indent = " " * (len(lines[i]) - len(lines[i].lstrip()))
    following = next((k for k in range(i + 1, len(lines)) if lines[k].strip()), None)
    lines[i] = f"{indent}{label}: {said}" if said else ""
    if not said and following is not None and lines[following].startswith(indent + " "):
        text = lines[following].strip()
        if not text.startswith((">>>", "..", "```")) and not _BULLET.match(text):
            lines[following] = " " * (len(lines[following]) - len(lines[following].lstrip())) + f"{label}: {text}"


def _block_end(lines: list[str], start: int, indent: int) -> int:
    end = start
    while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent):
        end += 1
    return end


def _is_heading(line: str) -> bool:
    return line.endswith(":") and line.count(" ") < 5


def _select(paragraphs: list[str], dropped: Counter[str]) -> list[str]:
    kept: list[str] = []
    for paragraph in paragraphs:
        line = paragraph
        for trigger, pattern, replacement in _INLINE:
            if trigger in line:
                line = pattern.sub(replacement, line)
        line = line.strip()
        if not line:
            dropped["markup"] += len(paragraph)
        elif reason := _why_unreadable(line):
            dropped[reason] += len(line)
        else:
            kept.append(line)
    return _without_empty_headings(kept, dropped)


def _why_unreadable(line: str) -> str | None:
    if _LICENCE.search(line):
        return "licence"
    if "://" in line and len(line.split()) < 8:
        return "markup"
    if not line.isascii() and sum(c.isalpha() and not c.isascii() for c in line) > 0.1 * len(line):
        return "not English"
    data = line.encode("ascii", "replace")
    n_letters = len(data) - len(data.translate(None, _LETTERS_AND_SPACE))
    n_code = len(data) - len(data.translate(None, _CODE_SIGNS))
    if n_code > 0.07 * len(line) + 1 or n_letters < 0.72 * len(line) or "{{" in line or _SIGNATURE.match(line):
        return "code"
    n_words, english = _words_and_english(line)
    if n_words < 3 and not _is_heading(line):
        return "fragment"
    if n_words >= 12 and english < 0.1:
        return "not English"
    return None


def _without_empty_headings(lines: Sequence[str], dropped: Counter[str]) -> list[str]:
    kept: list[str] = []
    for line in reversed(lines):
        if _is_heading(line) and (not kept or (_is_heading(kept[-1]) and kept[-1][0].isupper())):
            dropped["fragment"] += len(line)
        else:
            kept.append(line)
    return kept[::-1]


def keep_unrepeated(docstrings: Sequence[Sequence[str]], dropped: Counter[str]) -> list[list[str]]:
    """The lines of each docstring that do not repeat text of a longer docstring.

    Docstrings are taken from the longest (in words) to the shortest, equals in the given order. A line goes when
    more than 40 % of its 8-word shingles occur in docstrings already kept (containment: a short text inside a long one
    counts in full, unlike with Jaccard similarity); a line of fewer than 8 words goes when it occurred exactly like
    that. Case and punctuation are ignored. Headings such as "Parameters:" stay while something stays under them. A
    docstring that lost most of its words and keeps fewer than 16 goes altogether: scraps of a text teach nothing.

    Only shingles that occur at least twice can ever decide, so those alone get a place in a table of booleans: the
    result is that of the plain sequential rule, with numpy's speed and about 20 bytes a word.

    Args:
        docstrings: lines of each docstring, in an order that does not depend on the machine.
        dropped: gets the number of characters left out added under `repeated`.

    Returns:
        as many lists as `docstrings`, empty ones where nothing is left.
    """
    vocabulary: dict[str, int] = {}
    shingles, sizes = [], []  # per line: uint64 hashes; number of words per docstring
    for lines in docstrings:
        ids = [[vocabulary.setdefault(w, len(vocabulary) + 1) for w in _WORD.findall(x.lower())] for x in lines]
        shingles.append([_shingles(np.array(line, dtype=np.uint64)) for line in ids])
        sizes.append(sum(map(len, ids)))
    flat = [hashes for lines in shingles for hashes in lines]
    places = _places_of_repeated(np.concatenate(flat)) if flat else np.zeros(0, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum([len(hashes) for hashes in flat], dtype=np.int64)])
    first_line = np.concatenate([[0], np.cumsum([len(lines) for lines in docstrings], dtype=np.int64)])
    seen = np.zeros(int(places.max(initial=-1)) + 2, dtype=bool)  # the last place is for shingles that occur once
    result: list[list[str]] = [[] for _ in docstrings]
    for index in sorted(range(len(docstrings)), key=lambda index: -sizes[index]):
        kept, fresh = [], []
        for offset, line in enumerate(docstrings[index]):
            start, stop = starts[first_line[index] + offset], starts[first_line[index] + offset + 1]
            its_places = places[start:stop]
            if _is_heading(line) or seen[its_places].sum() <= MAX_REPEATED_SHARE * (stop - start):
                kept.append(line)
                if not _is_heading(line):
                    fresh.append(its_places)
        kept = _without_empty_headings(kept, Counter())
        n_words = sum(len(_WORD.findall(line)) for line in kept)
        if n_words < MIN_DOCSTRING_WORDS or (n_words < 16 and n_words < sizes[index] / 2):
            kept = []
        else:
            for its_places in fresh:
                seen[its_places] = True
                seen[-1] = False
        dropped["repeated"] += sum(map(len, docstrings[index])) - sum(map(len, kept))
        result[index] = kept
    return result


def _shingles(words: np.ndarray) -> np.ndarray:
    """Hashes of all runs of 8 word numbers, or one of the whole line when it is shorter: uint64 (n,)."""
    n_words = min(SHINGLE_WORDS, len(words))
    if n_words == 0:
        return words
    # The length spread over all bits: a small start would cancel against the small numbers of frequent words.
    start = n_words * 0xD1B54A32D192ED03 % 2**64
    hashes = np.full(len(words) - n_words + 1, start, dtype=np.uint64)
    for offset in range(n_words):
        hashes = (hashes ^ words[offset : offset + len(hashes)]) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    return hashes


def _places_of_repeated(hashes: np.ndarray) -> np.ndarray:
    """Number of each hash among those that occur more than once, -1 for the others: int64 (n,)."""
    _, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    numbers = np.where(counts > 1, np.cumsum(counts > 1) - 1, -1)
    return numbers[inverse]
