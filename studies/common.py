"""What studies share: pages whose prose is written by hand, and a few words.

What holds numbers on a page stands between `<!-- NAME -->` and `<!-- /NAME -->`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hub.plain import atomic
from hub.plain.markdown import block_of, replace_block
from hub.plain.tables import Table

FloatArray = NDArray[np.float64]
Part = tuple[object, ...] | str
T = TypeVar("T")


def markdown_of(parts: Iterable[Part]) -> str:
    """A table of the tuples, the header first, and then the texts, a paragraph each."""
    found = list(parts)
    rows, texts = [p for p in found if not isinstance(p, str)], [p for p in found if isinstance(p, str)]
    return "\n\n".join([*([Table(list(map(str, rows[0])), rows[1:]).markdown()] if rows else []), *texts])


def fill(page: Path, blocks: Mapping[str, Callable[[T], Iterable[Part]]], content: T) -> Path:
    """Replace these blocks of a Markdown file by what each makes of the content.

    ValueError, before anything is computed, if the file lacks one of them.
    """
    text = page.read_text(encoding="utf-8")
    if lacking := [name for name in blocks if block_of(text, name) is None]:
        raise ValueError(f"{page}: no block `<!-- {lacking[0]} -->` and `<!-- /{lacking[0]} -->`")
    for name, block in blocks.items():
        text = replace_block(text, name, markdown_of(block(content)))
    atomic.write_bytes(page, text.encode())
    return page


def listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def rms(errors: FloatArray) -> float:
    """Root mean square; NaN of nothing."""
    return float(np.sqrt(np.mean(errors**2))) if len(errors) else float("nan")
