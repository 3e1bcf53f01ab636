"""`python -m hub`: from the shell, with a folder in the place of the Hub."""

import json

import pytest

from hub import RunRecord, load_index, open_store
from hub.base.markdown import license_of
from tests.hub.samples import make_record


@pytest.fixture
def sweep(tmp_path, checkpoint):
    (tmp_path / "sweep").mkdir()
    for number in range(3):
        folder = checkpoint(f"sweep/run{number}", weight=float(number))
        make_record(run_id=f"run{number}", seed=number, eval_loss=4.0 + number).save(folder)
    return tmp_path / "sweep"


def test_push_list_and_pull_a_sweep(command, sweep, tmp_path):
    store = tmp_path / "releases"
    code, out, _ = command("push", sweep, store, "--dry-run")
    assert code == 0
    assert "optimizer.pt" in out.replace("\n", "")
    assert not store.exists()

    code, out, err = command("push", sweep, store)
    assert code == 0, err
    assert len(out.split()) == 6
    assert "demo-d64-E4@tokens001.5M-seed0" in out
    assert len(load_index(open_store(store), "demo")) == 3

    assert command("runs", store)[:2] == (0, "demo\n")
    assert "3 runs of demo" in command("runs", store, "demo")[1]
    code, out, _ = command("runs", store, "demo", "--where", "eval_loss < 5.5", "--json")
    assert [json.loads(line)["run_id"] for line in out.splitlines()] == ["run0", "run1"]
    code, out, _ = command("runs", store, "demo", "--where", "eval_loss < 5.5", "--where", "seed = 1", "--json")
    assert [json.loads(line)["run_id"] for line in out.splitlines()] == ["run1"]
    code, _, err = command("runs", store, "demo", "--where", "experts ~ 3")
    assert (code, "filter term" in err) == (2, True)

    code, out, _ = command("pull", store, "demo", "--to", tmp_path / "got", "--where", "seed=2")
    assert code == 0
    assert RunRecord.load(tmp_path / "got" / "demo-d64-E4" / "tokens001.5M-seed2").run_id == "run2"

    assert command("push", store, tmp_path / "next")[0] == 0  # from one store to another
    rows = [load_index(open_store(place), "demo") for place in (store, tmp_path / "next")]
    assert [row.weights_sha256 for row in rows[0]] == [row.weights_sha256 for row in rows[1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["push", "missing", "store"], "there is no folder missing"),
        (["push", ".", "store"], "no run.json in it"),
        (["runs", "store", "demo"], "no dataset 'demo-runs'"),
        (["runs", "ftp://x", "demo"], "allowed are a folder"),
        (["pull", "store", "demo", "--to", "x"], "no dataset 'demo-runs'"),
    ],
)
def test_errors_are_one_line(command, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in out + err


def test_what_nobody_licensed_is_said_and_what_is_no_licence_refused(command, sweep, tmp_path):
    code, _, err = command("push", sweep, tmp_path / "a", "--license", "apache2")
    assert (code, (tmp_path / "a").exists()) == (2, False)
    assert err.startswith("error: license 'apache2'")
    code, _, err = command("push", sweep, tmp_path / "a")
    assert code == 0
    assert "no licence: 3 of 3 runs name none; pass --license" in err
    code, _, err = command("push", sweep, tmp_path / "a", "--license", "apache-2.0")
    assert (code, "no licence" in err) == (0, False)
    card = open_store(tmp_path / "a").read("model", "demo-d64-E4", "README.md", "tokens001.5M-seed1").decode()
    assert license_of(card) == "apache-2.0"


def test_not_all_pushed_is_exit_status_4(command, sweep, tmp_path):
    (sweep / "run1" / "config.json").unlink()
    code, out, err = command("push", sweep, tmp_path / "a")
    assert code == 4
    assert "1 of the pushes failed: run1" in err
    assert len(out.splitlines()) == 2
    assert len(load_index(open_store(tmp_path / "a"), "demo")) == 2


@pytest.mark.parametrize("option", [("--tag", "v1"), ("--collection",)])
def test_a_folder_has_neither_tags_nor_collections(command, sweep, tmp_path, option):
    code, _, err = command("push", sweep, tmp_path / "a", *option)
    assert (code, (tmp_path / "a").exists()) == (2, False)
    assert "allowed with a store on the Hub" in err
