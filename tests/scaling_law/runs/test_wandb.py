"""Runs of W&B: its own client (`wandb.Api`) against its API as a server on loopback has it; and its exports."""

import sys
import threading

import psutil
import pytest

from scaling_law import load_runs
from scaling_law.runs import trackers
from scaling_law.runs.logged import End, chart_rows
from scaling_law.runs.table import RunsError
from tests.scaling_law.runs import wandb_server
from tests.scaling_law.runs.wandb_server import AUTHORIZATION, KEY

LOSSES = [4.0 - i / 39 for i in range(40)]
LOSSES[37] = 2.5  # a dip that is not the end
HISTORY = [{"eval/loss": loss, "tokens": 2e6 * (i + 1)} for i, loss in enumerate(LOSSES)]
COLUMNS = {"n_active": "params"}


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    client = pytest.importorskip("wandb")
    with wandb_server.serving() as server:
        states = ("finished", "finished", "finished", "running", "crashed")
        server.runs = [wandb_server.run(i, state, HISTORY) for i, state in enumerate(states)]
        server.longest_page = 2
        monkeypatch.setenv("WANDB_BASE_URL", f"{server.url}/")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("NETRC", str(tmp_path / "logins"))
        for name in ("HOME", "WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            monkeypatch.setenv(name, str(tmp_path))
        monkeypatch.setattr(trackers, "SECONDS", 5)
        yield server
        end_service(client)  # which else keeps this server's address for all of the process


def end_service(client):
    """End the client's service. The client waits for it without a limit; once, on a busy machine, it did not end."""
    teardown = threading.Thread(target=client.teardown, daemon=True)
    teardown.start()
    teardown.join(10)
    services = [process for process in psutil.Process().children() if process.name() == "wandb-core"]
    if teardown.is_alive():
        for service in services:
            service.kill()
        teardown.join(10)


@pytest.mark.parametrize(("final", "loss"), [(None, 3.0), ("minimum", 2.5), ("smoothed", sum(LOSSES[-2:]) / 2)])
def test_runs_of_w_and_b(wandb, final, loss):
    runs = load_runs("wandb:lab/sweep", columns=COLUMNS, where="status = final", final=final)
    assert runs.run_id == ("run0", "run1", "run2")
    assert runs.loss == pytest.approx([loss] * 3)
    assert runs.tokens.tolist() == [8e7] * 3
    assert runs.n_active.tolist() == [1e6, 2e6, 3e6]
    assert runs.skipped == ("2 runs: status is running (1: run3), status is failed (1: run4)",)
    histories = {variables["name"] for _, variables in wandb.asked if "specs" in variables}
    assert histories == (set() if final is None else {f"id{i}" for i in range(5)})
    assert {key for key, _ in wandb.asked} == {AUTHORIZATION}


def test_settings_inside_the_configuration_are_columns(wandb):
    rows = trackers.tracker_rows("wandb:lab/sweep", End("last")).rows
    assert [(row["run_id"], row["id"]) for row in rows] == [(f"run{i}", f"id{i}") for i in range(5)]
    assert {(row["optim.name"], row["experts"], row["step"]) for row in rows} == {("adamw", 4, 39)}
    assert not [name for row in rows for name in row if name.startswith("_")]


def test_runs_of_a_group(wandb):
    wandb.runs[1]["group"] = "variant"
    runs = load_runs("wandb:lab/sweep", columns=COLUMNS, where="group = variant")
    assert runs.run_id == ("run1",)


@pytest.mark.parametrize("final", ["minimum", "smoothed"])
def test_a_history_beyond_ten_thousand_lines_is_read_whole(wandb, final):
    losses = [4.0 - i / 12_001 for i in range(12_001)]
    losses[7_777] = 2.5
    history = [{"eval/loss": loss, "tokens": 2e6 * (i + 1)} for i, loss in enumerate(losses)]
    wandb.runs = [wandb_server.run(0, "finished", history)]
    (loss,) = load_runs("wandb:lab/sweep", columns=COLUMNS, final=final).loss
    assert loss == pytest.approx(2.5 if final == "minimum" else sum(losses[-600:]) / 600)


def test_runs_that_start_while_pages_are_read_repeat_none(wandb, monkeypatch):
    page = wandb.page

    def one_more(**arguments):
        answer = page(**arguments)
        wandb.runs.append(wandb_server.run(len(wandb.runs), "running"))
        return answer

    monkeypatch.setattr(wandb, "page", one_more)
    wandb.longest_page = 3
    rows = trackers.tracker_rows("wandb:lab/sweep", End("last")).rows
    assert [row["id"] for row in rows] == [f"id{i}" for i in range(len(rows))]
    assert len(rows) > 5


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((401, {}, f"who is {KEY}?"), "who is <key>?"),
        ((401, {}, 390 * "." + KEY), f"{390 * '.'}<key>"),
        (("cut",), "unexpected EOF"),
        ((200, {}, "<html>"), "invalid character '<'"),
        ((200, {}, '{"errors": [{"message": "busy"}, {"message": "late"}]}'), "busy"),
    ],
)
def test_a_failure_in_the_middle_of_the_pages_is_one_line(wandb, fault, message):
    """No run of the first page is kept, and no message holds the key."""
    wandb.faults = [(number, *fault) for number in range(2, 20)]
    with pytest.raises(RunsError) as error:
        load_runs("wandb:lab/sweep", columns=COLUMNS)
    (line,) = str(error.value).splitlines()
    assert line.startswith("wandb:lab/sweep: ")
    assert message in line
    assert KEY[:20] not in line
    assert AUTHORIZATION.split()[1] not in line


def test_the_key_goes_to_no_server_that_the_first_points_at(wandb):
    with wandb_server.serving() as other:
        wandb.faults = [(number, 302, {"Location": f"{other.url}/login"}, "-") for number in range(2, 20)]
        with pytest.raises(RunsError, match=r"^wandb:lab/sweep: "):
            load_runs("wandb:lab/sweep", columns=COLUMNS)
        assert {key for key, _ in other.asked} == {None}


def test_a_busy_server_is_asked_again(wandb, monkeypatch):
    monkeypatch.setattr(trackers, "SECONDS", 30)
    wandb.faults = [(2, 429, {"Retry-After": "1"}, "slow down"), (3, 503, {}, "busy")]
    assert len(load_runs("wandb:lab/sweep", columns=COLUMNS)) == 3


def test_the_key_may_be_where_wandb_login_writes_it(wandb, monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY")
    (tmp_path / "logins").write_text(f"machine {wandb.url.removeprefix('http://')}\n  login user\n  password {KEY}\n")
    (tmp_path / "logins").chmod(0o600)
    assert len(load_runs("wandb:lab/sweep", columns=COLUMNS)) == 3


def test_without_a_key_or_a_client_one_line_says_what_to_type(wandb, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY")
    with pytest.raises(RunsError, match=r"^wandb:lab/sweep: W&B needs a key: type wandb login, or set WANDB_API_KEY$"):
        load_runs("wandb:lab/sweep")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RunsError, match=r"^wandb:lab/sweep: W&B is read by its own client: pip install wandb$"):
        load_runs("wandb:lab/sweep")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("wandb:lab/other", "wandb:lab/other: "),
        ("wandb:sweep", "wandb:sweep: allowed is wandb:ENTITY/PROJECT"),
        ("wandb:lab/sweep", "wandb:lab/sweep: no runs with status 'final'; there are 1 running (status=None"),
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
        ("http://127.0.0.1:9", "127.0.0.1:9"),
        ("127.0.0.1:9", "WANDB_BASE_URL must be http(s)://HOST[:PORT]"),
        (f"http://user:{KEY}@127.0.0.1:9", "WANDB_BASE_URL must be http(s)://HOST[:PORT], without a login in it"),
    ],
)
def test_another_address_is_one_line(wandb, monkeypatch, url, message):
    monkeypatch.setenv("WANDB_BASE_URL", url)
    monkeypatch.setattr(trackers, "SECONDS", 1)
    with pytest.raises(RunsError) as error:
        load_runs("wandb:lab/sweep")
    (line,) = str(error.value).splitlines()
    assert message in line
    assert KEY not in line


TABLE = (
    '"Name","State","Tags","params","experts","tokens","eval/loss"\n'
    '"big","finished","","1000000","4","80000000","3.0"\n'
    '"new","running","","2000000","4","80000000","3.5"\n'
    '"cut","crashed","","3000000","4","80000000","3.7"\n'
)


def test_the_table_that_a_page_of_w_and_b_exports(tmp_path):
    (tmp_path / "export.csv").write_text(TABLE)
    runs = load_runs(tmp_path / "export.csv", columns={"n_active": "params"})
    assert (runs.run_id, runs.loss.tolist()) == (("big",), [3.0])
    assert runs.skipped == ("2 runs: State is running (1: new), State is crashed (1: cut)",)
    assert "status = State" in runs.read_as
    columns = {"run_id": "Name", "status": "State", "n_active": "params"}
    assert load_runs(tmp_path / "export.csv", columns=columns, status="finished").run_id == ("big",)
    assert load_runs(tmp_path / "export.csv", columns=columns, status="failed").run_id == ("cut",)
    assert len(load_runs(tmp_path / "export.csv", columns=columns, status=None)) == 3


def test_a_column_of_states_of_another_kind_is_left_alone(tmp_path):
    (tmp_path / "export.csv").write_text(TABLE.replace("running", "Ohio").replace("crashed", "Utah"))
    assert len(load_runs(tmp_path / "export.csv", columns={"n_active": "params"})) == 3


CHART = (
    '"Step","a - eval/loss","a - eval/loss__MIN","a - eval/loss__MAX","b - eval/loss","b - eval/loss__MIN"\n'
    '"0","4.0","1.0","9.0","4.5","1.0"\n'
    '"100","3.0","1.0","9.0","2.5","1.0"\n'
    '"200","3.5","1.0","9.0","","1.0"\n'
)


@pytest.mark.parametrize(("final", "losses"), [(None, [3.5, 2.5]), ("minimum", [3.0, 2.5]), ("smoothed", [3.5, 2.5])])
def test_the_chart_that_a_page_of_w_and_b_exports(tmp_path, final, losses):
    """The columns __MIN and __MAX are bounds of buckets and no runs; each run ends at its own last step."""
    (tmp_path / "chart.csv").write_text(CHART)
    columns = {"n_active": "1e6 * (1 + step / 100)", "tokens": "step * 2**19", "experts": 1}
    runs = load_runs(tmp_path / "chart.csv", columns=columns, final=final)
    assert (runs.run_id, runs.loss.tolist()) == (("a", "b"), losses)
    assert runs.tokens.tolist() == [200 * 2**19, 100 * 2**19]
    with pytest.raises(RunsError, match=r"a chart of W&B.* missing column n_active .*there are: eval/loss \(3\.5\)"):
        load_runs(tmp_path / "chart.csv")


def test_a_chart_without_the_bounds_of_buckets_is_told_by_its_steps():
    lines = [{"Step": step, "small - loss": 4.0 - step / 10, "big - loss": 3.0 - step / 10} for step in (1, 2)]
    rows = chart_rows(lines, End("last"))
    assert [(row["run_id"], row["loss"]) for row in rows] == [("small", 3.8), ("big", 2.8)]
    assert chart_rows([{"name": "a - b", "loss": 3.0}], End("last")) is None
