"""Folders with a file for each run: logs, and results of an evaluation."""

import json

import pytest

from hub.base.errors import InputError
from scaling_law import load_runs
from scaling_law.runs.table import RunsError

SIZES = {"n_active": "N from name", "tokens": "tokens_seen", "experts": 1}
STEPS = [(10_000_000, 8.0), (20_000_000, 6.0), (40_000_000, 5.0)]


def write_logs(folder, suffix="csv", names=("curve_N1000000_D2", "curve_N3000000_D2")):
    folder.mkdir(exist_ok=True)
    for i, name in enumerate(names):
        path = folder / f"{name}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        lines = [{"tokens_seen": tokens, "loss": loss - i} for tokens, loss in STEPS]
        if suffix == "jsonl":
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        elif suffix == "json":
            path.write_text(json.dumps(lines))
        else:
            sign = "\t" if suffix == "tsv" else ","
            rows = [["tokens_seen", "loss"], *(map(str, line.values()) for line in lines)]
            path.write_text("".join(sign.join(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json"])
def test_each_log_is_a_run_with_its_last_loss(tmp_path, suffix):
    runs = load_runs(write_logs(tmp_path / "curves", suffix), columns=SIZES)
    assert runs.run_id == ("curve_N1000000_D2", "curve_N3000000_D2")
    assert runs.n_active.tolist() == [1e6, 3e6]
    assert runs.tokens.tolist() == [4e7, 4e7]
    assert runs.loss.tolist() == [5.0, 4.0]
    smooth = load_runs(tmp_path / "curves", columns=SIZES | {"tokens": "4e7"}, final="minimum")
    assert smooth.loss.tolist() == [5.0, 4.0]


def test_logs_are_named_by_their_paths_and_hidden_ones_are_left_out(tmp_path):
    folder = write_logs(tmp_path / "out", names=("N1e6/metrics", "N3e6/metrics", ".ipynb_checkpoints/metrics"))
    assert load_runs(folder, columns=SIZES).run_id == ("N1e6/metrics", "N3e6/metrics")


def test_what_is_missing_is_said_with_an_option_to_type(tmp_path):
    with pytest.raises(RunsError) as error:
        load_runs(write_logs(tmp_path / "curves"))
    line, proposal = str(error.value).split("\n", 1)
    assert proposal.startswith("tokens_seen looks like tokens.")
    assert "there are: tokens_seen (40000000.0), loss (5.0), run_id ('curve_N1000000_D2')" in line
    assert "say which is which with columns={'n_active': 'column or number'}" in line


def test_tables_of_several_runs_are_no_logs(tmp_path):
    text = "n_active,tokens,experts,eval_loss\n1e8,1e9,1,4\n2e8,2e9,1,3.8\n"
    for name in ("dense.csv", "moe.csv"):
        (tmp_path / name).write_text(text)
    with pytest.raises(RunsError, match=r"name one of its tables: dense.csv, moe.csv"):
        load_runs(tmp_path)


@pytest.mark.parametrize(
    ("pattern", "name", "value"),
    [
        ("N", "curve_N1000000_D2", 1e6),
        ("N", "RUN7-N=1e6", 1e6),
        ("n", "n_1p3b-d20b", 1.3e9),
        ("{}-", "190M-5xC", 190e6),
        ("{}xC", "190M-5xC", 5),
        ("-{}xC", "190M-10xC", 10),
        ("{}M", "model-190M", 190),
        ("D", "N1e6-D2.5B", 2.5e9),
    ],
)
def test_a_number_in_a_name(pattern, name, value):
    rows = [{"run_id": name, "tokens": 1e9, "experts": 1, "n_active": 1e8, "eval_loss": 3.0}]
    assert load_runs(rows, columns={"x": f"{pattern} from name"})["x"].tolist() == [value]
    named = [{**row, "group name": row["run_id"], "run_id": "a"} for row in rows]
    assert load_runs(named, columns={"x": f"{pattern} from group name"})["x"].tolist() == [value]


def test_a_name_without_the_number_is_named():
    rows = [{"run_id": "big", "tokens": 1e9, "experts": 1, "eval_loss": 3.0}]
    with pytest.raises(RunsError, match="run_id='big' has no number there"):
        load_runs(rows, columns={"n_active": "N from name"})
    with pytest.raises((RunsError, InputError), match="column 'nam' is unknown"):
        load_runs(rows, columns={"n_active": "N from nam"})


def lm_eval(size, accuracy):
    return {
        "results": {
            "hellaswag": {"alias": "hellaswag", "acc_norm,none": accuracy},
            "wikitext": {"bits_per_byte,none": 1.3 - accuracy},
        },
        "configs": {"hellaswag": {"task": "hellaswag"}},
        "versions": {"hellaswag": 1.0},
        "n-shot": {"hellaswag": 0},
        "config": {"model": "hf", "model_num_parameters": size},
        "git_hash": "x",
    }


def test_results_of_lm_eval_are_a_row_a_file(tmp_path):
    for name, size, accuracy in (("run_100M", 100_000_000, 0.32), ("run_200M", 200_000_000, 0.36)):
        folder = tmp_path / "lmeval" / name
        folder.mkdir(parents=True)
        (folder / "results_2026-05-01.json").write_text(json.dumps(lm_eval(size, accuracy)))
        (folder / "samples_hellaswag_2026-05-01.jsonl").write_text('{"doc_id": 1}\n{"doc_id": 2}\n')
    columns = {"n_active": "config.model_num_parameters", "tokens": "n_active * 20", "experts": 1}
    runs = load_runs(tmp_path / "lmeval", loss="results.wikitext.bits_per_byte,none", columns=columns)
    assert runs.run_id == ("run_100M/results_2026-05-01", "run_200M/results_2026-05-01")
    assert runs.n_active.tolist() == [1e8, 2e8]
    assert runs.loss == pytest.approx([0.98, 0.94])
    one = tmp_path / "lmeval" / "run_100M" / "results_2026-05-01.json"
    assert len(load_runs(one, loss="results.wikitext.bits_per_byte,none", columns=columns)) == 1
    with pytest.raises(RunsError, match=r"acc_norm,none is an accuracy by its name"):
        load_runs(tmp_path / "lmeval", loss="results.hellaswag.acc_norm,none", columns=columns)
