"""Tables that others wrote: CSV in any of its dialects and JSON in any of its shapes give the same rows."""

import csv
import gzip
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub import RecordError, load_rows
from hub.record.foreign import csv_rows

ROWS = [
    {"run_id": f"r{i}", "n_active": 1e8 * (i + 1), "tokens": 2e9, "corpus": "a, b", "eval_loss": 3.0 - 0.1234 * i}
    for i in range(4)
]
NAMES = list(ROWS[0])


def table(delimiter=",", number=str, quote='"'):
    """The rows as text, with their corpus in quotes."""

    def cell(value):
        return f"{quote}{value}{quote}" if "," in str(value) else value if isinstance(value, str) else number(value)

    lines = [delimiter.join(NAMES), *(delimiter.join(cell(value) for value in row.values()) for row in ROWS)]
    return "".join(f"{line}\n" for line in lines)


def comma(value):
    return f"{value:.4f}".replace(".", ",")


TEXTS = {
    "plain.csv": table().encode(),
    "semicolons.csv": table(";").encode(),
    "commas.csv": table(";", comma).encode(),
    "excel.csv": ("sep=;\n" + table(";", comma)).encode(),
    "tabs.tsv": table("\t").encode(),
    "tabs.csv": table("\t").encode(),
    "bars.txt": table("|").encode(),
    "blanks.csv": table(" , ").replace(" , b", ", b").encode(),
    "windows.csv": table().replace("\n", "\r\n").encode("utf-8-sig"),
    "utf16.csv": table(";").encode("utf-16"),
    "utf16.txt": table("\t").encode("utf-16-be"),
    "LOUD.CSV": table().encode(),
    "packed.tsv.gz": gzip.compress(table("\t").encode()),
    "trailing.csv": (table() + ",,,,\r\n" * 3).encode(),
    "comments.csv": ("# of a lab\n\n" + table()).encode(),
    "index.csv": "".join(f"{i},{line}\n" for i, line in enumerate(table().splitlines()))
    .replace("0,", ",", 1)
    .encode(),
    "lines.jsonl": "".join(f"{json.dumps(row)}\n" for row in ROWS).encode(),
    "lines.json": "".join(f"{json.dumps(row)}\n" for row in ROWS).encode(),
    "shell.jsonl": "".join(f"{json.dumps(row)}\n" for row in ROWS).encode("utf-16"),
    "list.json": json.dumps(ROWS).encode(),
    "list.jsonl": json.dumps(ROWS, indent=1).encode(),
}
UNNAMED = [{name: value for name, value in row.items() if name != "run_id"} for row in ROWS]
BY_NAME = {row["run_id"]: unnamed for row, unnamed in zip(ROWS, UNNAMED, strict=True)}
SHAPES = {
    "by name": BY_NAME,
    "by name, with it": {row["run_id"]: row for row in ROWS},
    "columns": {name: [row[name] for row in ROWS] for name in NAMES},
    "columns and what all share": {name: [row[name] for row in ROWS] for name in NAMES if name != "tokens"}
    | {"tokens": 2e9},
    "columns of pandas": {name: {str(i): row[name] for i, row in enumerate(ROWS)} for name in NAMES},
    "columns by name": {name: {run: row[name] for run, row in BY_NAME.items()} for name in NAMES[1:]},
    "index of pandas": {str(i): row for i, row in enumerate(ROWS)},
    "split of pandas": {"columns": NAMES, "index": [0, 1, 2, 3], "data": [list(row.values()) for row in ROWS]},
    "table of pandas": {"schema": {"fields": [{"name": "run_id"}]}, "data": ROWS},
    "under a key": {"runs": ROWS, "author": "a", "settings": {"seed": 1}},
    "deep under a key": {"meta": {"author": "a"}, "results": {"runs": BY_NAME}},
    "lists": [NAMES, *(list(row.values()) for row in ROWS)],
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_in_any_dialect(tmp_path, name):
    (tmp_path / name).write_bytes(TEXTS[name])
    loaded = load_rows(tmp_path / name)
    assert [{key: row[key] for key in NAMES} for row in loaded.rows] == [
        {**row, "eval_loss": pytest.approx(row["eval_loss"])} for row in ROWS
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_json_in_any_shape(tmp_path, shape):
    (tmp_path / "rows.json").write_text(json.dumps(SHAPES[shape]))
    assert load_rows(tmp_path / "rows.json").rows == ROWS


def test_steps_of_several_runs_by_name(tmp_path):
    (tmp_path / "logs.json").write_text(json.dumps({"a": [{"step": 1}, {"step": 2}], "b": [{"step": 1}]}))
    rows = load_rows(tmp_path / "logs.json").rows
    assert rows == [{"run_id": "a", "step": 1}, {"run_id": "a", "step": 2}, {"run_id": "b", "step": 1}]


def test_the_delimiter_that_excel_names_counts(tmp_path):
    (tmp_path / "rows.csv").write_text("sep=;\nloss, in nats, of text;b\n3.5;1\n")
    assert load_rows(tmp_path / "rows.csv").rows == [{"loss, in nats, of text": 3.5, "b": 1}]


def test_commas_in_quoted_names_are_no_delimiters(tmp_path):
    (tmp_path / "rows.csv").write_text('"loss, in nats, of text";b\n3.5;1\n')
    assert load_rows(tmp_path / "rows.csv").rows == [{"loss, in nats, of text": 3.5, "b": 1}]


def test_a_single_run_is_a_row_and_a_larger_file_than_a_record_is_read(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps(ROWS[0]))
    assert load_rows(tmp_path / "rows.json").rows == ROWS[:1]
    (tmp_path / "rows.json").write_text(json.dumps({f"r{i}": UNNAMED[0] for i in range(5000)}))
    assert len(load_rows(tmp_path / "rows.json").rows) == 5000


def test_cells_that_hold_objects(tmp_path):
    """As the documentation of W&B exports its runs: dictionaries as Python prints them."""
    (tmp_path / "project.csv").write_text(""",name,config\n0,a,"{'lr': 0.1, 'model': {'width': 8}}"\n1,b,"{cut"\n""")
    assert load_rows(tmp_path / "project.csv").rows == [
        {"name": "a", "config": {"lr": 0.1, "model": {"width": 8}}},
        {"name": "b", "config": "{cut"},
    ]


def test_a_broken_line_is_one_row_even_if_it_is_the_first(tmp_path):
    lines = ['{"run_id": "cut', *(json.dumps(row) for row in ROWS)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    problems = []
    assert load_rows(tmp_path / "rows.jsonl", problems=problems).rows == ROWS
    assert [problem[:17] for problem in problems] == ["rows.jsonl line 1"]


def test_a_text_over_several_lines_stays_in_its_cell(tmp_path):
    (tmp_path / "rows.csv").write_text('name,notes,loss\na,"one\ntwo\u2028three",3.0\n')
    assert load_rows(tmp_path / "rows.csv").rows == [{"name": "a", "notes": "one\ntwo\u2028three", "loss": 3.0}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", b"PK\x03\x04", "a zip archive or a workbook of Excel: save the table as CSV"),
        ("rows.csv", gzip.compress(b"a,b\n", mtime=0), "compressed by gzip: let its name end in .gz"),
        ("rows.csv", b"<!DOCTYPE html>", "a web page: download the raw file"),
        ("rows.json", b"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS, not the file"),
        ("rows.csv", "größe,loss\n".encode("latin-1"), "neither UTF-8 nor UTF-16 text .* save it as UTF-8"),
        ("rows.csv", b"a,b\n1,5,2,5\n", "row 1 has more columns than the first line; a decimal comma needs quotes"),
        ("rows.csv", b"a;b\n1.234;5,5\n", "'1.234' among decimal commas is 1.234 or 1234"),
        ("rows.json", b"3", "no table of runs; allowed are a list of rows, {name: row}, {column: \\[values\\]}"),
        ("rows.json", b'{"a": [1], "b": [1, 2]}', "an object with a, b: no table of runs"),
        ("rows.json", b'{"dense": [{"a": 1}], "moe": [{"a": 1}]}', r"several tables \(dense, moe\): leave one"),
        ("rows.json", b'{"a": [', "not valid JSON"),
    ],
)
def test_what_is_no_table_is_said_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RecordError, match=f"^{name}: {message}") as error:
        load_rows(tmp_path / name)
    assert "\n" not in str(error.value)


CELL = st.sampled_from(["", " ", "1", "2.5", "-3e-7", "word", "two words", "a;b"])


@given(st.lists(st.lists(CELL, min_size=1, max_size=5), min_size=1, max_size=12))
def test_a_table_is_that_of_pythons_reader_row_by_row(table):
    """Rows may be shorter than the header, and rows without text are none."""
    header = ["first", "second", "", "fourth", "fifth"]
    file = io.StringIO()
    csv.writer(file).writerows([header, *table])
    rows = [row for _, row in csv_rows(file.getvalue().encode(), "runs.csv")]
    lines = [line for line in csv.reader(io.StringIO(file.getvalue())) if any(cell.strip() for cell in line)]
    assert len(rows) == len(lines) - 1
    for row, line in zip(rows, lines[1:], strict=True):
        assert list(row) == ["first", "second", "fourth", "fifth"]
        for name, value in row.items():
            position = header.index(name)
            cell = line[position] if position < len(line) else ""
            try:
                assert value == float(cell)
            except ValueError:
                assert value == (cell.strip() or None)
