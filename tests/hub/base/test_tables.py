"""Tables: one set of rows for a terminal of any width, a notebook, Markdown and JSON."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from rich.text import Text

from hub.base.tables import Column, Table, Tables, as_text, cell, html, print_table, show
from hub.base.units import format_count

COLUMNS = {
    "experts": Column("E", "{:g}".format),
    "n_active": Column("N_act", format_count),
    "tokens": Column("tokens", format_count),
    "loss": Column("loss", "{:.4f}".format, infinite="none"),
}
ROWS = [
    {"experts": 8, "n_active": 1.1e9, "tokens": 999_936, "loss": 2.2, "note": "best <of> [all]"},
    {"experts": 16, "n_active": 9e8, "tokens": 3e9, "loss": float("nan"), "note": ""},
]


@pytest.mark.parametrize("width", [20, 30, 60, 200])
def test_every_cell_is_shown_whole_in_a_terminal_of_any_width(width: int) -> None:
    text = as_text(Table.of(ROWS, COLUMNS, title="Models", warnings=["far outside"]), width)
    for shown in ("Models", "E", "N_act", "1.1B", "900M", "1M", "3B", "2.2000", "<of>", "[all]", "⚠ far outside"):
        assert shown in text
    assert all(len(line) <= width for line in text.splitlines())


def test_a_split_table_repeats_its_keys_and_starts_with_the_first_columns() -> None:
    table = Table.of(ROWS, COLUMNS, keys=("E",), first=("loss",)).for_shell(verbose=True)
    parts = as_text(table, 24).split("┏")[1:]
    assert len(parts) > 1
    assert all(part.split("┃")[1].strip() == "E" for part in parts)
    assert "loss" in parts[0]


def test_a_narrow_terminal_shows_the_columns_that_decide_and_names_the_others() -> None:
    table = Table.of(ROWS, COLUMNS, keys=("E",), first=("loss", "tokens")).for_shell(verbose=False)
    text = as_text(table, 28)
    assert text.count("┏") == 1
    assert [name.strip() for name in text.split("┃")[1:-1]] == ["E", "tokens", "loss"]
    assert "--verbose also has N_act, note" in " ".join(text.split())
    assert all(len(line) <= 28 for line in text.splitlines())
    assert "also has" not in as_text(table, 80)


def test_details_and_their_notes_are_left_out_at_any_width_until_all_is_shown() -> None:
    notes = ("tokens: of one epoch", "losses are in nats")
    table = Table.of(ROWS, COLUMNS, keys=("E",), first=("loss",), details=("tokens", "note"), notes=notes)
    text = as_text(table.for_shell(verbose=False), 200)
    assert [name.strip() for name in text.split("┃")[1:-1]] == ["E", "N_act", "loss"]
    assert "--verbose also has tokens, note" in text
    assert "losses are in nats" in text
    assert "of one epoch" not in text
    assert "to_dataframe() also has tokens, note" in as_text(table, 200)
    in_full = as_text(table.for_shell(verbose=True), 200)
    assert "of one epoch" in in_full
    assert "also has" not in in_full
    assert "of one epoch" in table._repr_html_()
    assert "tokens</th>" in table._repr_html_()


def test_columns_of_numbers_are_aligned_to_the_right_and_empty_ones_left_out() -> None:
    table = Table.of([{"run": "a", "tokens": 5, "mark": ""}, {"run": "b|c", "tokens": None, "mark": ""}])
    assert table.markdown() == "| run | tokens |\n|---|---:|\n| a | 5 |\n| b\\|c | – |"


def test_without_a_header_and_without_rows() -> None:
    lines = as_text(Table((), [("weights", "80 GB"), ("KV cache", 3)])).splitlines()
    assert [line.split() for line in lines] == [["weights", "80", "GB"], ["KV", "cache", "3"]]
    assert Table(("a", "b"), ()).markdown() == "| a | b |\n|---|---|"
    assert "a" in as_text(Table(("a", "b"), ()))


def test_cells() -> None:
    infinite = float("inf")
    values = {"loss": infinite, "tokens": infinite, "experts": None, "steps": 12, "n_active": 1.1e9, "seconds": 0.25}
    shown = [cell(value, COLUMNS.get(name)) for name, value in values.items()]
    assert shown == ["none", "∞", "–", "12", "1.1B", "0.25"]


def test_json_has_null_for_what_is_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    show({"rows": ROWS}, True, None)
    assert json.loads(capsys.readouterr().out)["rows"][1]["loss"] is None


def elements(shown: str) -> list[str]:
    """The opening tags of what a notebook gets, which is well-formed."""
    return [element.tag for element in ElementTree.fromstring(f"<div>{shown}</div>").iter()][1:]


def test_a_notebook_gets_elements_with_their_styles_and_no_markup_from_a_name() -> None:
    name = '<script>alert("1")</script>'
    texts = {"title": name, "notes": [name], "warnings": [name], "total": (name,)}
    shown = html(Tables((Table((name,), [(name,)], **texts), Text(name, style="yellow"))))
    assert elements(shown) == [
        "div",
        "table",
        "caption",
        *["tr", "th"],
        *["tr", "td"] * 2,
        "p",
        "small",
        "p",
        "pre",
        "span",
    ]
    assert shown.count("&lt;script&gt;") == 7
    assert "color: #" in shown, "styles travel inside the element, not in a stylesheet"


def test_a_notebook_gets_the_cells_aligned_and_styled() -> None:
    table = Table.of([{"law": "joint", "loss": 2.5}, {"law": "dense", "loss": None}], COLUMNS, styles=["bold", ""])
    head, best, other = ElementTree.fromstring(html(table)).iter("tr")
    assert [[cell.text for cell in row] for row in (head, best, other)] == [
        ["law", "loss"],
        ["joint", "2.5000"],
        ["dense", "–"],
    ]
    assert [cell.get("style").split(";")[0] for cell in best] == ["text-align:left", "text-align:right"]
    assert (best.get("style"), other.get("style")) == ("font-weight: bold", None)


def test_a_title_is_as_wide_as_the_terminal_and_a_text_is_printed_as_it_is(capsys, monkeypatch):
    title = "A title that is longer than its table"
    assert as_text(Table(("E",), [(1,)], title=title), 80).splitlines()[0] == title
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    print_table("[bold]0.000323[/bold] :smile: 'code'")
    assert capsys.readouterr().out == "[bold]0.000323[/bold] :smile: 'code'\n"
