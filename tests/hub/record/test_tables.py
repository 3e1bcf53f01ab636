"""Records as JSON lines and parquet: nothing changes on the way, and broken rows are named with their line."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hub import FilesError, RecordError, load_records, load_rows
from hub.record.table import split_rows, to_jsonl, to_parquet
from tests.hub.samples import DECIDING, make_record, record_fields


def _sweep() -> list:
    return [
        make_record(),
        make_record(run_id="b", eval_loss=None, drop_rate=None, experts=1, n_total=118_784),
        make_record(run_id="c", status="diverged", train_loss=None, eval_loss=None),
        make_record(
            run_id="d",
            parent_run_id="trunk",
            branch_point_tokens=1_000_000,
            status="intermediate",
            weights_sha256={"model.safetensors": "0a" * 32},
            dataset={"id": "org/corpus", "revision": "main", "fingerprint": "f", "config": "sample-10BT"},
            schedule={**record_fields()["schedule"], "batch_ramp": []},
            later={"nested": [1, None, {"x": 0.1}]},
            note="naïve – 日本",
        ),
        make_record(run_id="e", **DECIDING),
    ]


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.parquet"])
def test_both_forms_give_back_the_same_records(tmp_path: Path, name: str) -> None:
    records = _sweep()
    (tmp_path / name).write_bytes(to_jsonl(records) if name == "runs.jsonl" else to_parquet(records))
    assert load_records(tmp_path / name) == records
    assert load_records(tmp_path) == records


def test_a_table_of_one_run_or_of_none_has_the_same_columns() -> None:
    schemas = [pq.read_schema(io.BytesIO(to_parquet(part))) for part in ([], _sweep()[:1], _sweep())]
    assert schemas[0] == schemas[1] == schemas[2]
    types = {"eval_loss": pa.float64(), "tokens": pa.int64(), "final_norm": pa.bool_()}
    assert {name: schemas[0].field(name).type for name in types} == types
    assert split_rows(to_parquet([]), "runs.parquet") == ([], [])
    frame = pq.read_table(io.BytesIO(to_parquet(_sweep()))).to_pandas()
    assert list(frame["schedule_peak_learning_rate"]) == [0.002] * 5
    assert json.loads(frame["versions"][0]) == {"torch": "2.13.0", "python": "3.11.7"}


BROKEN = {
    "not valid JSON": "{not json",
    "run 'wrong' is not valid: experts: -2; it must": json.dumps(record_fields(run_id="wrong", experts=-2)),
    "repo: 'org/../../etc'": json.dumps(record_fields(repo="org/../../etc")),
    "301 digits": json.dumps(record_fields(tokens=10**300)),
    "NaN": json.dumps(record_fields(train_loss=float("nan"))),
    "allowed are at most": json.dumps(record_fields(note="x" * 300_000)),
    "nested deeper": '{"run_id":' * 20_000,
    "a list": "[1]",
    "an object": "null",
}


def test_broken_and_malicious_lines_are_all_named_and_can_be_left_out(tmp_path: Path) -> None:
    good, file = to_jsonl(_sweep()[:2]).decode().splitlines(), tmp_path / "runs.jsonl"
    file.write_text("\n".join([good[0], "", *BROKEN.values(), good[1]]))
    with pytest.raises(RecordError, match=f"{len(BROKEN)} of {len(BROKEN) + 2} rows") as caught:
        load_records(file)
    assert "runs.jsonl line 3: not valid JSON" in str(caught.value)
    problems: list[str] = []
    assert [record.run_id for record in load_records(file, problems=problems)] == ["demo-d64-E4-a", "b"]
    for line, (reason, problem) in enumerate(zip(BROKEN, problems, strict=True), 3):
        assert problem.startswith(f"runs.jsonl line {line}: ")
        assert reason in problem
        assert len(problem) < 2000


def test_a_foreign_parquet_file_is_refused_row_by_row(tmp_path: Path) -> None:
    table = pa.table({"run_id": ["a"], "experts": [3], "versions": ["{}"], "unknown_fields": ["[1]"]})
    pq.write_table(table, tmp_path / "runs.parquet")
    with pytest.raises(RecordError, match=r"runs.parquet row 1: unknown_fields"):
        load_records(tmp_path)
    (tmp_path / "runs.parquet").write_bytes(b"PAR1 garbage")
    with pytest.raises(RecordError, match="not a readable parquet file"):
        load_records(tmp_path)


def test_extra_columns_are_kept_and_an_unknown_field_cannot_replace_a_known_one(tmp_path: Path) -> None:
    row = pq.read_table(io.BytesIO(to_parquet(_sweep()[:1]))).append_column("mine", pa.array([7]))
    hidden = json.dumps({"experts": 64, "schedule": {"peak_learning_rate": 9.0, "extra": 1}})
    column = row.schema.get_field_index("unknown_fields")
    pq.write_table(row.set_column(column, "unknown_fields", pa.array([hidden])), tmp_path / "x.parquet")
    record = load_records(tmp_path / "x.parquet")[0]
    assert (record.experts, record.schedule.peak_learning_rate) == (4, 0.002)
    assert (record.to_dict()["mine"], record.to_dict()["schedule"]["extra"]) == (7, 1)


def test_a_parquet_file_without_pyarrow_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs.jsonl").write_bytes(to_jsonl(_sweep()))
    (tmp_path / "runs.parquet").write_bytes(to_parquet(_sweep()))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert load_records(tmp_path) == _sweep(), "the JSON lines are preferred, and need no pyarrow"
    with pytest.raises(FilesError, match=r"^runs.parquet: .*pip install .joint-moe-scaling-laws\[parquet\]") as caught:
        load_records(tmp_path / "runs.parquet")
    assert "\n" not in str(caught.value)


def test_missing_and_unsuitable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FilesError, match=r"no run records \(runs\.jsonl, runs\.parquet\)"):
        load_records(tmp_path)
    with pytest.raises(FilesError, match="no such file or folder"):
        load_records(tmp_path / "runs.jsonl")
    (tmp_path / "runs.csv").touch()
    with pytest.raises(FilesError, match=r"not a table of runs; allowed are a folder, or a file that ends in .jsonl"):
        load_records(tmp_path / "runs.csv")


def test_tables_of_other_labs_in_forms_that_records_do_not_have(tmp_path: Path) -> None:
    """A list of rows as JSON, a compressed CSV file, and comments above a header."""
    (tmp_path / "rows.json").write_text('[{"name": "a", "loss": 3.0},\n {"name": "b", "loss": null}]')
    text = "# from a lab\n# under a licence\nname,loss\na,3.0\nb,\n"
    (tmp_path / "rows.csv").write_text(text)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("rows.json", "rows.csv", "rows.csv.gz"):
        loaded = load_rows(tmp_path / name)
        assert (loaded.rows, loaded.name) == ([{"name": "a", "loss": 3.0}, {"name": "b", "loss": None}], name)
    (tmp_path / "number.csv").write_text("#,loss\n1,3.0\n")
    assert load_rows(tmp_path / "number.csv").rows == [{"#": 1.0, "loss": 3.0}]
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(text.encode())[:-9])
    (tmp_path / "plain.csv.gz").write_text(text)
    (tmp_path / "broken.json").write_text('[{"name": ')
    (tmp_path / "twice.csv").write_text("loss,name,loss,,\n3.0,a,4.0,,\n")
    for name, message in {
        **{"cut.csv.gz": "gzip", "plain.csv.gz": "gzip", "broken.json": "not valid JSON"},
        "twice.csv": "the column 'loss' occurs twice",
    }.items():
        with pytest.raises(RecordError, match=f"^{name}: .*{message}"):
            load_rows(tmp_path / name)
    with pytest.raises(RecordError):  # a list is no run record
        load_records(tmp_path / "rows.json")
