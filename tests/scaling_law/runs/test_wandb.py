"""Runs of W&B: its API as a server of ours on loopback has it, from which W&B's own client reads, too."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from scaling_law import load_runs
from scaling_law.runs import trackers
from scaling_law.runs.table import RunsError
from tests.scaling_law.runs import wandb_server
from tests.scaling_law.runs.wandb_server import AUTHORIZATION, KEY

LOSSES = [4.0 - i / 39 for i in range(40)]
LOSSES[37] = 2.5  # a dip that is not the end
HISTORY = [{"eval/loss": loss, "tokens": 2e6 * (i + 1)} for i, loss in enumerate(LOSSES)]
COLUMNS = {"n_active": "params"}


@pytest.fixture
def wandb(monkeypatch):
    with wandb_server.serving() as server:
        states = ("finished", "finished", "finished", "running", "crashed")
        server.runs = [wandb_server.run(i, state, HISTORY) for i, state in enumerate(states)]
        server.longest_page = 2
        monkeypatch.setenv("WANDB_BASE_URL", f"{server.url}/")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield server


@pytest.fixture
def waits(monkeypatch):
    """Seconds between requests, which are not waited for."""
    seconds = []
    monkeypatch.setattr(trackers, "time", SimpleNamespace(sleep=seconds.append))  # not that of other threads
    return seconds


@pytest.mark.parametrize(("final", "loss"), [("last", 3.0), ("minimum", 2.5), ("smoothed", sum(LOSSES[-2:]) / 2)])
def test_runs_of_w_and_b(wandb, final, loss):
    runs = load_runs("wandb:lab/sweep", columns=COLUMNS, where="status = final", final=final)
    assert runs.run_id == ("run0", "run1", "run2")
    assert runs.loss == pytest.approx([loss] * 3)
    assert runs.tokens.tolist() == [8e7] * 3
    assert runs.n_active.tolist() == [1e6, 2e6, 3e6]
    assert runs.skipped == ("run3 is running", "run4 is failed")
    histories = [variables["run"] for _, variables in wandb.asked if "run" in variables]
    assert histories == ([] if final == "last" else [f"id{i}" for i in range(5)])
    assert [v["cursor"] for _, v in wandb.asked if "run" not in v] == [None, "2", "4"]
    assert {key for key, _ in wandb.asked} == {AUTHORIZATION}


CLIENT = """
import json, wandb
api = wandb.Api()
runs = api.runs("lab/sweep", lazy=False, per_page=2)
runs = [(run.name, run.id, run.state, run.config, run.summary["eval/loss"]) for run in runs]
last = next(iter(api.runs("lab/sweep", order="-created_at"))).name
sampled = api.run("lab/sweep/id0").history(keys=["eval/loss"], samples=10, pandas=False)
print(json.dumps([runs, last, sampled, api.run("lab/sweep/id0").lastHistoryStep]))
"""


def test_the_client_of_w_and_b_reads_the_same_from_this_server(wandb, tmp_path):
    pytest.importorskip("wandb")
    environment = {**os.environ, "HOME": str(tmp_path), "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT], capture_output=True, env=environment, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    theirs, newest, sampled, last_step = json.loads(done.stdout.splitlines()[-1])
    ours = trackers.tracker_rows("wandb:lab/sweep", "last").rows
    assert [(name, id_) for name, id_, *_ in theirs] == [(row["run_id"], row["id"]) for row in ours]
    assert [state for _, _, state, *_ in theirs] == ["finished"] * 3 + ["running", "crashed"]
    assert all(row["params"] == config["params"] for row, (*_, config, _) in zip(ours, theirs, strict=True))
    assert all(row["optim.name"] == config["optim"]["name"] for row, (*_, config, _) in zip(ours, theirs, strict=True))
    assert [row["eval/loss"] for row in ours] == [loss for *_, loss in theirs]
    assert (newest, last_step) == ("run4", 39)
    assert [line["_step"] for line in sampled] == [*range(0, 40, 4)], "a sample leaves the dip out"


def test_a_history_longer_than_a_sample_is_read_whole(wandb, monkeypatch):
    monkeypatch.setattr(trackers, "PAGE", 10)
    assert load_runs("wandb:lab/sweep", columns=COLUMNS, final="minimum").loss == pytest.approx([2.5] * 3)
    specs = [json.loads(v["specs"][0]) for _, v in wandb.asked if v.get("run") == "id0"]
    assert [spec["minStep"] for spec in specs] == [0, 10, 20, 30]


def test_runs_that_start_while_pages_are_read_repeat_none(wandb, monkeypatch):
    page = wandb.page

    def one_more(**arguments):
        answer = page(**arguments)
        wandb.runs.append(wandb_server.run(len(wandb.runs), "running"))
        return answer

    monkeypatch.setattr(wandb, "page", one_more)
    wandb.longest_page = 3
    rows = trackers.tracker_rows("wandb:lab/sweep", "last").rows
    assert [row["id"] for row in rows] == [f"id{i}" for i in range(len(rows))]
    assert len(rows) > 5


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((500, {}, "a proxy\n<b>says</b> no"), "answered 500 (a proxy <b>says</b> no)"),
        ((401, {}, f"who is {KEY}?"), "answered 401 (who is <key>?)"),
        ((401, {}, AUTHORIZATION), "answered 401 (Basic <key>)"),
        ((401, {}, 360 * "." + KEY), f"answered 401 ({360 * '.'}<key>"),
        (("cut",), "does not answer (IncompleteRead("),
        ((200, {}, "<html>"), "does not answer (Expecting value"),
        ((200, {}, "[]"), "answers something else: is it this tracker's?"),
        ((200, {}, "{}"), "answers something else: is it this tracker's?"),
        ((200, {}, '{"errors": [{"message": "busy"}, {"message": "late"}]}'), "says busy; late"),
        ((429, {"Retry-After": "3600"}, "slow down"), "answered 429 (slow down)"),
    ],
)
def test_a_failure_in_the_middle_of_the_pages_is_one_line(wandb, waits, fault, message):
    """No run of the first page is kept, and no message holds the key."""
    wandb.faults = [(1, *fault)]
    with pytest.raises(RunsError) as error:
        load_runs("wandb:lab/sweep", columns=COLUMNS)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"wandb:lab/sweep: its server {message}")
    assert KEY[:20] not in line
    assert AUTHORIZATION.split()[1] not in line
    assert (len(wandb.asked), waits) == (2, [])


def test_the_key_goes_to_no_server_that_the_first_points_at(wandb):
    with wandb_server.serving() as other:
        wandb.faults = [(1, 302, {"Location": f"{other.url}/login"}, "-")]
        with pytest.raises(RunsError, match=r"^wandb:lab/sweep: its server does not answer"):
            load_runs("wandb:lab/sweep", columns=COLUMNS)
        assert other.asked == [(None, {})]


def test_a_busy_server_is_asked_again(wandb, waits):
    wandb.faults = [(1, 429, {"Retry-After": "7"}, "slow down"), (2, 503, {}, "busy"), (3, 502, {}, "busy")]
    assert len(load_runs("wandb:lab/sweep", columns=COLUMNS)) == 3
    assert waits == [7.0, 4.0, 16.0]
    wandb.faults = [(number, 429, {}, "slow down") for number in range(1000)]
    with pytest.raises(RunsError, match=r"^wandb:lab/sweep: its server answered 429 \(slow down\)$"):
        load_runs("wandb:lab/sweep")
    assert waits[3:] == [1.0, 4.0, 16.0]


@pytest.mark.parametrize("machine", ["{host}", "default"])
def test_the_key_may_be_in_netrc_under_host_and_port(wandb, monkeypatch, tmp_path, machine):
    """Where `wandb login` writes it."""
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(RunsError, match=r"^wandb:lab/sweep: its server answered 401 \(.*user is not logged in.*\)$"):
        load_runs("wandb:lab/sweep")
    name = machine.format(host=f"machine {wandb.url.removeprefix('http://')}")
    (tmp_path / "logins").write_text(f"{name}\n  login user\n  password {KEY}\n")
    (tmp_path / "logins").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "logins"))
    assert len(load_runs("wandb:lab/sweep", columns=COLUMNS)) == 3


@pytest.mark.parametrize("host", trackers.W_AND_B)
def test_a_key_of_the_service_is_found_under_either_of_its_names(monkeypatch, tmp_path, host):
    (tmp_path / "logins").write_text(f"machine {host} login user password {KEY}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "logins"))
    assert trackers._saved_key("api.wandb.ai") == KEY
    assert trackers._saved_key("127.0.0.1:1") == ""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("wandb:lab/other", "wandb:lab/other: no such project, or not for this key"),
        ("wandb:sweep", "wandb:sweep: allowed is wandb:ENTITY/PROJECT"),
        ("wandb:lab/sweep", "wandb:lab/sweep: no runs with status 'final'; there are 1 running (--status all"),
    ],
)
def test_what_cannot_be_read_is_one_line(wandb, source, message):
    wandb.runs = [wandb_server.run(3, "running", HISTORY)]
    with pytest.raises(RunsError) as error:
        load_runs(source, columns=COLUMNS)
    (line,) = str(error.value).splitlines()
    assert line.startswith(message)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:9", "its server does not answer ([Errno 111] Connection refused)"),
        ("127.0.0.1:9", "its server does not answer (unknown url type: 127.0.0.1)"),
        (f"http://user:{KEY}@127.0.0.1:9", "address must be http(s)://HOST[:PORT], without a login in it"),
    ],
)
def test_another_address_is_one_line(monkeypatch, url, message):
    monkeypatch.setenv("WANDB_BASE_URL", url)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with pytest.raises(RunsError) as error:
        load_runs("wandb:lab/sweep")
    assert message in str(error.value)
    assert KEY not in str(error.value)


def test_the_table_that_a_page_of_w_and_b_exports(tmp_path):
    path = tmp_path / "export.csv"
    path.write_text(
        '"Name","State","Tags","params","experts","tokens","eval/loss"\n'
        '"big","finished","","1000000","4","80000000","3.0"\n'
        '"new","running","","2000000","4","80000000","3.5"\n'
    )
    columns = {"run_id": "Name", "status": "State", "n_active": "params"}
    runs = load_runs(path, columns=columns, status="finished")
    assert (runs.run_id, runs.loss.tolist()) == (("big",), [3.0])
