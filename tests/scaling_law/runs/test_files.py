"""Files that people have: what is read of them, and what is said of the rest in one line."""

import json

import numpy as np
import pytest

import hub
from scaling_law import load_runs
from scaling_law.runs.statuses import RECORDED, status_of
from scaling_law.runs.table import RunsError
from tests.scaling_law.runs.test_runs import rows

TABLE = [
    {"run_id": f"r{i}", "n_active": 1e8 * (i + 1), "tokens": 2e9 * (i + 1), "experts": 1, "eval_loss": 3.0 - 0.1 * i}
    for i in range(4)
]
NESTED = [
    {
        "run_id": row["run_id"],
        "config": {"model": {"n_active": row["n_active"], "num_experts": 1}, "data": {"tokens": row["tokens"]}},
        "summary": {"eval": {"loss": row["eval_loss"]}},
    }
    for row in TABLE
]


def written(path, lines):
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def csv_of(path, lines):
    names = list(lines[0])
    texts = [",".join(names), *(",".join(str(line[name]) for name in names) for line in lines)]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def test_nested_objects_have_columns_with_dots(tmp_path):
    path = written(tmp_path / "runs.jsonl", NESTED)
    runs = load_runs(path, columns={"experts": "config.model.num_experts"}, where="config.data.tokens >= 4B")
    assert (runs.run_id, runs.tokens.tolist()) == (("r1", "r2", "r3"), [4e9, 6e9, 8e9])
    assert (runs.loss_name, runs.loss.tolist()) == ("summary.eval.loss", pytest.approx([2.9, 2.8, 2.7]))
    with pytest.raises(
        RunsError, match=r"there are: config\.data\.tokens, config\.model\.n_active, config\.model\.num"
    ):
        load_runs(path, loss="eval_loss")


@pytest.mark.parametrize("expression", ["config.data.tokens * 2", "2 * config.data.tokens"])
def test_a_name_with_dots_needs_no_backticks_in_an_expression(tmp_path, expression):
    path = written(tmp_path / "runs.jsonl", NESTED)
    columns = {"experts": "config.model.num_experts", "tokens": expression}
    quoted = expression.replace("config.data.tokens", "`config.data.tokens`")
    for tokens in (expression, quoted):
        assert load_runs(path, columns=columns | {"tokens": tokens}).tokens.tolist() == [4e9, 8e9, 12e9, 16e9]


def test_a_name_with_a_slash_in_an_expression_is_put_in_backticks():
    table = [{**row, "optim/tokens": row["tokens"]} for row in TABLE]
    with pytest.raises(
        RunsError, match=r"'optim' is unknown.*optim/tokens.*; a name with other signs than dots stands in backticks"
    ):
        load_runs(table, columns={"tokens": "optim/tokens * 2"})
    assert len(load_runs(table, where="optim/tokens > 3B")) == 3
    assert len(load_runs(table, where="`optim/tokens` > 3B")) == 3


STEPS = [
    {**row, "step": step, "eval_loss": row["eval_loss"] + extra, "train/loss": 2.5}
    for row in TABLE
    for step, extra in ((200, 0.0), (1, 1.0), (100, -0.25))  # a dip before the end, in any order
]


@pytest.mark.parametrize(("final", "extra"), [(None, 0.0), ("last", 0.0), ("minimum", -0.25), ("smoothed", 0.0)])
def test_a_table_of_steps_has_one_row_for_each_run(tmp_path, final, extra):
    runs = load_runs(csv_of(tmp_path / "steps.csv", STEPS), final=final)
    assert runs.run_id == ("r0", "r1", "r2", "r3")
    assert runs.loss == pytest.approx([row["eval_loss"] + extra for row in TABLE])
    assert runs["step"].tolist() == [200] * 4
    assert "eval_loss" in runs.read_as
    assert "logged" in runs.read_as
    assert runs.skipped == ("8 rows: steps before the last of 4 runs",)


@pytest.mark.parametrize("final", ["last", "minimum", "smoothed"])
def test_a_long_log_is_read_as_line_by_line(tmp_path, final):
    """Of each column the last value that there is, and of losses the final one, whichever lines have them."""
    random = np.random.default_rng(0)
    lines = []
    for i in random.permutation(3 * 400):
        run, step = divmod(int(i), 400)
        line = {
            "run_id": f"r{run}",
            "step": step,
            "tokens": 1e9,
            "n_active": 1e8 * (run + 1),
            "experts": 1,
            "lr": 0.1,
        }
        if step % 7 == 0 or step == 399:
            line["eval_loss"] = 3.0 + float(random.random())
        line["mfu"] = None if random.random() < 0.3 else float(random.random())
        lines.append(line)
    runs = load_runs(written(tmp_path / "log.jsonl", lines), final=final, trunks="run")
    assert runs.run_id == tuple(dict.fromkeys(line["run_id"] for line in lines))
    for run, name in enumerate(runs.run_id):
        log = sorted((line for line in lines if line["run_id"] == name), key=lambda line: line["step"])
        losses = [line["eval_loss"] for line in log if "eval_loss" in line]
        # 58 evaluations, of which 5 % are three.
        expected = {"last": losses[-1], "minimum": min(losses), "smoothed": sum(losses[-3:]) / 3}[final]
        assert runs.loss[run] == pytest.approx(expected, rel=1e-14)
        assert runs["mfu"][run] == [line["mfu"] for line in log if line["mfu"] is not None][-1]
        assert runs["step"][run] == 399


def test_a_log_of_one_run_without_its_name_is_one_if_asked(tmp_path):
    """As Lightning writes it: training and validation on lines of their own."""
    (tmp_path / "metrics.csv").write_text("step,train_loss,val_loss\n10,3.5,\n10,,3.4\n20,3.3,\n20,,3.2\n")
    columns = {"n_active": 1e8, "tokens": "step * 2**20", "experts": 1}
    runs = load_runs(tmp_path / "metrics.csv", loss="val_loss", columns=columns, final="last")
    assert (runs.loss.tolist(), runs.tokens.tolist(), runs["train_loss"].tolist()) == ([3.2], [20 * 2**20], [3.3])
    with pytest.raises(RunsError, match=r"row 0 \(row-0\): val_loss=None"):
        load_runs(tmp_path / "metrics.csv", loss="val_loss", columns=columns)


def test_a_grid_that_names_its_models_is_no_log():
    grid = [{**TABLE[0], "name": "small", "batch": 2**i, "step": 800 / 2**i, "eval_loss": 3 + i / 9} for i in range(4)]
    runs = load_runs([{key: row[key] for key in row if key != "run_id"} for row in grid])
    assert len(runs) == 4


def test_a_curve_that_tensorboard_exports_is_named(tmp_path):
    (tmp_path / "curve.csv").write_text("Wall time,Step,Value\n1.7e9,1,3.5\n")
    with pytest.raises(
        RunsError, match=r"^curve\.csv: a curve that TensorBoard exports: name the folder of its event"
    ):
        load_runs(tmp_path / "curve.csv")


def test_checkpoints_of_a_run_are_not_taken_for_a_log_unless_asked():
    checkpoints = [{**line, "tokens": line["tokens"] * line["step"] / 200} for line in STEPS]
    assert load_runs(checkpoints, final="last").tokens.tolist() == [row["tokens"] for row in TABLE]
    every = load_runs(checkpoints)  # each checkpoint is a measurement of its trunk
    assert (len(every), every.n_trunks) == (len(checkpoints), len(TABLE))
    with pytest.raises(RunsError, match="final='last' takes the last of each run"):
        load_runs([*checkpoints, checkpoints[0]])


@pytest.mark.parametrize("name", ["run", "run_name", "Name", "name"])
def test_other_names_of_runs_are_understood(name):
    renamed = [{name: row["run_id"], **{key: row[key] for key in row if key != "run_id"}} for row in TABLE]
    assert load_runs(renamed).run_id == ("r0", "r1", "r2", "r3")
    same = [{**row, name: "sweep"} for row in renamed]  # which names no run
    assert load_runs(same).run_id == ("row-0", "row-1", "row-2", "row-3")
    logged = [{name: line["run_id"], **{key: line[key] for key in line if key != "run_id"}} for line in STEPS]
    assert load_runs(logged).run_id == ("r0", "r1", "r2", "r3")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("State", "finished crashed running finished"),
        ("status", "FINISHED FAILED RUNNING FINISHED"),
        ("state", "COMPLETED TIMEOUT PENDING COMPLETED"),
        ("Status", "completed aborted in_progress completed"),
        ("sys/state", "Inactive failed Active Inactive"),
        ("TrainingJobStatus", "Completed Stopped InProgress Completed"),
        ("state", "JOB_STATE_SUCCEEDED JOB_STATE_FAILED JOB_STATE_PENDING JOB_STATE_SUCCEEDED"),
    ],
)
def test_states_of_other_tools(column, words):
    table = [{**row, column: word} for row, word in zip(TABLE, words.split(), strict=True)]
    runs = load_runs(table)
    assert runs.run_id == ("r0", "r3")
    (line,) = runs.skipped
    assert line == f"2 runs: {column} is {words.split()[1]} (1: r1), {column} is {words.split()[2]} (1: r2)"
    assert load_runs(table, status="failed").run_id == ("r1",)
    assert len(load_runs(table, status=None)) == 4


@pytest.mark.parametrize(
    ("column", "cells", "left_out"),
    [
        ("sys/failed", "False True False False", "r1"),
        ("run.active", "False False True False", "r2"),
        ("hasCrashed", "no yes no no", "r1"),
        ("crashed", [0, 0, 1, 0], "r2"),
        ("is_finished", [True, False, True, None], "r1"),
        ("completed", "1 0 1 1", "r1"),
    ],
)
def test_flags_that_say_how_runs_ended(column, cells, left_out):
    cells = cells.split() if isinstance(cells, str) else cells
    runs = load_runs([{**row, column: cell} for row, cell in zip(TABLE, cells, strict=True)])
    assert left_out not in runs.run_id
    (place,) = {"r0", "r1", "r2", "r3"} - {*runs.run_id}
    word = cells[int(place[1])]
    assert runs.skipped == (f"1 run: {column} is {word} (1: {left_out})",)


def test_flags_and_states_of_one_tracker_count_together():
    states = zip(
        TABLE, ["Inactive", "Inactive", "Active", "Inactive"], ["False", "True", "False", "False"], strict=True
    )
    runs = load_runs([{**row, "sys/state": state, "sys/failed": failed} for row, state, failed in states])
    assert runs.run_id == ("r0", "r3")
    assert runs.skipped == ("2 runs: sys/failed is True (1: r1), sys/state is Active (1: r2)",)


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("experts.active", [1, 1, 0, 1]),
        ("active", [1, 1, 1, 1]),
        ("optimizer.state", ["active", "none", "none", "none"]),
        ("state", ["Ohio", "Utah", "Ohio", "Utah"]),
    ],
)
def test_columns_that_speak_of_something_else_leave_out_no_run(column, cells):
    assert len(load_runs([{**row, column: cell} for row, cell in zip(TABLE, cells, strict=True)])) == 4


def test_states_of_run_records_are_their_own():
    assert {status_of(word) for word in RECORDED} == {"final", "intermediate", "diverged"}
    table = [{**row, "status": word} for row, word in zip(TABLE, [*RECORDED, None], strict=True)]
    runs = load_runs(table)
    assert (runs.run_id, runs.skipped) == (("r0", "r3"), ())


def test_every_bad_row_is_named_with_what_leaves_it_out():
    bad = [{**TABLE[0], "run_id": f"bad{i}", **change} for i, change in enumerate(CHANGES)]
    with pytest.raises(RunsError) as error:
        load_runs([*TABLE, *bad, TABLE[0]])
    head, *lines = str(error.value).splitlines()
    assert head == "rows: 6 unusable row(s), which on_invalid='skip' leaves out"
    assert [line.partition(": ")[2] for line in lines] == [
        "eval_loss='diverged' is not a number",
        "eval_loss='3,78' has a decimal comma: write a decimal point",
        "eval_loss='3,784' is 3.784 or 3784: write one of the two",
        "eval_loss=inf must be positive and finite",
        "tokens=None must be positive and finite",
        "duplicate of row 0 (r0) (same N, D, E and loss)",  # a filter would leave out both
    ]
    assert error.value.message.worded(lambda part: part.in_shell or f"--{part.name}").startswith(
        "rows: 6 unusable row(s), which --skip-invalid leaves out"
    )
    assert len(load_runs([*TABLE, *bad], on_invalid="skip")) == 4


CHANGES = [
    {"eval_loss": "diverged"},
    {"eval_loss": "3,78"},
    {"eval_loss": "3,784"},
    {"eval_loss": float("inf")},
    {"tokens": None},
]


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_json_with_a_loss_that_is_no_number_names_the_row(tmp_path, suffix):
    table = [*TABLE, {**TABLE[0], "run_id": "x", "eval_loss": float("nan")}]
    path = tmp_path / f"runs{suffix}"
    path.write_text(json.dumps(table) if suffix == ".json" else "".join(f"{json.dumps(row)}\n" for row in table))
    with pytest.raises(RunsError, match=r"row 4 \(x\): eval_loss=nan must be positive and finite"):
        load_runs(path)
    assert len(load_runs(path, on_invalid="skip")) == 4


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("results/runs.tsv", "results/runs.tsv: no such file or folder"),
        ("results/table.xlsx", "results/table.xlsx: no such file or folder, and a workbook would not be read"),
        ("data/rnus.csv", "data/rnus.csv: no such file or folder; did you mean data/runs.csv?"),
        ("data/table.xlsx", "data/table.xlsx: a workbook is not read: save its sheet as CSV"),
        ("data/runs.pkl", "data/runs.pkl: a pickle is not read: "),
        ("data/unknown", "data/unknown: no such file or folder"),
        ("data", "name one of its tables: runs.csv"),
    ],
)
def test_a_path_that_cannot_be_read_is_no_matter_of_the_hub(tmp_path, monkeypatch, source, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    csv_of(tmp_path / "data" / "runs.csv", TABLE)
    for name in ("table.xlsx", "runs.pkl"):
        (tmp_path / "data" / name).write_bytes(b"PK")
    with pytest.raises(RunsError) as error:
        load_runs(source)
    (line,) = str(error.value).splitlines()
    assert message in line
    assert "Hub" not in line


def test_a_repository_that_the_hub_cannot_give_may_have_been_a_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(hub.HubError, match=r"^no file or folder org/sweep-runs here; on the Hub: "):
        load_runs("org/sweep-runs")


def test_what_a_row_of_ours_has_inside_keeps_its_names():
    runs = load_runs([{**row, "schedule": {"peak": 0.1 + i}} for i, row in enumerate(rows())])
    assert runs["schedule_peak"].tolist() == [0.1 + i for i in range(len(runs))]
    assert "schedule.peak" in runs.columns
    records = load_runs([{**row, "schema_version": 1, "schedule": {"peak": 0.1}} for row in rows()])
    assert "schedule_peak" in records.columns
