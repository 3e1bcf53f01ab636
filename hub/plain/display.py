"""How results and values are shown: the shell's tables as HTML for notebooks, and values as text for messages."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

# Box-drawing characters join only where the font is monospaced and the lines have no gap between them.
PAGE = '<pre style="white-space:pre;overflow-x:auto;line-height:1.2;font-family:monospace">{code}</pre>'


def html(renderable: RenderableType, width: int = 120) -> str:
    """What rich prints, at most `width` columns wide, as one `<pre>` element with inline styles.

    Return it from `_repr_html_`. Text is escaped, so names that come from a file cannot add markup.
    """
    from rich.console import Console

    console = Console(record=True, file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor")
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format=PAGE)


class Summarised:
    """A result whose `summary()` is what rich prints of it, and what a notebook shows."""

    def summary(self) -> RenderableType:
        """For rich to print."""
        raise NotImplementedError

    def __rich__(self) -> RenderableType:
        return self.summary()

    def _repr_html_(self) -> str:
        return html(self.summary())


def literal(value: Any) -> str:
    """`repr` of a value as Python writes it, also where it comes from numpy: 0.5, not np.float64(0.5)."""
    return repr(value.tolist() if hasattr(value, "tolist") else value)
