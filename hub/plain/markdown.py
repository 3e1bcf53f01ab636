"""Small pieces of Markdown for cards, in which nothing that comes from a record can become markup.

A record may have been written by a stranger, and a card is rendered as Markdown with HTML inside it.
"""

from __future__ import annotations

import html
import re

_SPECIAL = re.compile(r"([`*_{}\[\]#|~$@]|:(?=//)|(?<=\bwww)\.)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069]+")


def escaped(text: object, max_length: int = 200) -> str:
    """Any value as one line of literal text: no HTML, no Markdown, no automatic links, no hidden directions."""
    line = _CONTROL.sub(" ", str(text)).strip()
    if len(line) > max_length:
        line = line[: max_length - 1] + "…"
    # < > & " and the backslash become entities, because a backslash does not stop an HTML parser; what Markdown gives
    # a meaning (emphasis, code, links, tables, formulas, automatic links) gets a backslash.
    return _SPECIAL.sub(r"\\\1", html.escape(line, quote=True).replace("&#x27;", "'").replace("\\", "&bsol;"))


def block(name: str, text: str) -> str:
    """`text` between two comments that a renderer does not show, so that `replace_block` finds it again.

    Nothing that went through `escaped` can hold such a comment.
    """
    return f"<!-- {name} -->\n{text.strip()}\n<!-- /{name} -->"


def block_of(card: str, name: str) -> str | None:
    """The text of a named block; None if the card has none."""
    match = _block_pattern(name).search(card)
    return match[1].strip() if match else None


def replace_block(card: str, name: str, text: str) -> str:
    """The card with another text in a named block; a card without that block stays as it is."""
    return _block_pattern(name).sub(lambda _: block(name, text), card, count=1)


def _block_pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {re.escape(name)} -->\n(.*?)<!-- /{re.escape(name)} -->", re.DOTALL)
