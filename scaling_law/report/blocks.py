"""Pages whose prose is written by hand: what holds numbers stands between `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hub.plain import atomic
from hub.plain.markdown import block_of, replace_block
from hub.plain.tables import Table

Part = tuple[object, ...] | str


def markdown_of(parts: Iterable[Part]) -> str:
    """A table of the tuples, the header first, and then the texts, a paragraph each."""
    found = list(parts)
    rows, texts = [p for p in found if not isinstance(p, str)], [p for p in found if isinstance(p, str)]
    return "\n\n".join([*([Table(list(map(str, rows[0])), rows[1:]).markdown()] if rows else []), *texts])


def fill(page: Path, blocks: Mapping[str, str]) -> Path:
    """Replace these blocks of a Markdown file. ValueError if it lacks one of them; the file then stays as it was."""
    text = page.read_text(encoding="utf-8")
    for name, content in blocks.items():
        if block_of(text, name) is None:
            raise ValueError(f"{page}: no block `<!-- {name} -->` and `<!-- /{name} -->`")
        text = replace_block(text, name, content)
    atomic.write_bytes(page, text.encode())
    return page
