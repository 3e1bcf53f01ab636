"""Results in a notebook."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from hub.plain.display import html


def test_a_table_becomes_one_pre_element_with_its_cells() -> None:
    table = Table(title="Fit")
    table.add_column("name")
    table.add_row("alpha")
    shown = html(Group(table, Text("⚠ at a bound", style="yellow")))
    assert shown.startswith("<pre ")
    assert shown.endswith("</pre>")
    assert shown.count("<pre") == 1
    for text in ("Fit", "alpha", "⚠ at a bound"):
        assert text in shown
    assert "color: #" in shown, "styles travel inside the element, not in a stylesheet"


def test_markup_in_a_name_is_escaped() -> None:
    assert "<script>" not in html(Text("<script>alert(1)</script>"))
    assert "&lt;script&gt;" in html(Text("<script>alert(1)</script>"))
