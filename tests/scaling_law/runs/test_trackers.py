"""Runs in trackers: real stores of trackio, and its real server. W&B: test_wandb.py."""

from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from scaling_law import load_runs
from scaling_law.runs import trackers
from scaling_law.runs.logged import End
from scaling_law.runs.table import RunsError
from scaling_law.runs.trackers import tracker_rows

COLUMNS = {"n_active": "params", "experts": "model.experts"}
LOSSES = np.linspace(4.0, 3.0, 40)
LOSSES[37] = 2.5  # a dip that is not the end


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A real store of trackio: three runs, each of a size of its own."""
    trackio = pytest.importorskip("trackio")
    from trackio import sqlite_storage, utils

    folder = tmp_path / "trackio"
    folder.mkdir()
    monkeypatch.setenv("TRACKIO_DIR", str(folder))
    for module in (sqlite_storage, utils):  # read from the environment when it is imported
        monkeypatch.setattr(module, "TRACKIO_DIR", folder)
    for i in range(3):
        log(trackio, f"run{i}", {"params": 1e6 * (i + 1), "model": {"experts": 4, "tokens": 1}, "optimizer": "adamw"})
    return folder


def log(trackio, name, config, losses=LOSSES, key="train/loss", group=None):
    trackio.init(project="my.sweep", name=name, config=config, group=group, embed=False)
    for step, loss in enumerate(losses):
        trackio.log({key: float(loss), "tokens": 2e6 * (step + 1), "note": "text"}, step=step)
    trackio.finish()


@pytest.mark.parametrize(
    ("final", "loss", "said"),
    [
        ("last", 3.0, "train/loss last logged"),
        ("minimum", 2.5, "train/loss least logged"),
        ("smoothed", LOSSES[-2:].mean(), "train/loss mean of the last 5 % logged"),
    ],
)
def test_a_store_of_trackio(store, final, loss, said):
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    runs = load_runs("trackio:my.sweep", columns=COLUMNS, final=final)
    assert runs.run_id == ("run0", "run1", "run2")
    assert runs.n_active.tolist() == [1e6, 2e6, 3e6]
    assert runs.tokens.tolist() == [8e7] * 3  # as logged, not as configured
    assert runs.experts.tolist() == [4] * 3
    assert runs.loss == pytest.approx([loss] * 3)
    assert runs.read_as == f"{said}; n_active = params; experts = model.experts"
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before


def test_filters_and_sizes_inside_the_configuration(store):
    runs = load_runs("trackio:my.sweep", columns={"n_active": "params"}, where="n_active > 1M, optimizer = adamw")
    assert runs.run_id == ("run1", "run2")
    assert "experts = model.experts" in runs.read_as


def test_runs_of_a_group(store):
    log(pytest.importorskip("trackio"), "variant", {"params": 1e6, "model": {"experts": 4}}, group="variant")
    runs = load_runs("trackio:my.sweep", columns=COLUMNS, where="group = variant")
    assert runs.run_id == ("variant",)


def test_what_a_tracker_has_is_shown_where_columns_are_missing(store):
    with pytest.raises(RunsError) as error:
        load_runs("trackio:my.sweep")
    missing = "missing column n_active (or d_model and n_blocks); there are: step (39.0), train/loss (3.0)"
    assert missing in str(error.value)
    assert "params (1000000.0)" in str(error.value)
    assert "note" not in str(error.value)


def test_two_runs_of_one_name_and_a_run_of_another_metric(store):
    import trackio

    log(trackio, "run1", {"params": 5e6, "model": {"experts": 4}})
    log(trackio, "run9", {"params": 5e6, "model": {"experts": 4}}, key="loss_of_another_name")
    same = r"row 3 \(run1\): duplicate of row 1 \(run1\) \(same run_id\)"
    with pytest.raises(RunsError, match=same) as error:
        load_runs("trackio:my.sweep", loss="train/loss", columns=COLUMNS)
    assert "row 4 (run9): train/loss=None must be positive and finite" in str(error.value)


def test_numbers_of_other_units(store):
    import trackio

    log(trackio, "large", {"params": 5e15, "model": {"experts": 4}})
    log(trackio, "perplexity", {"params": 5e6, "model": {"experts": 4}}, [33.0, 22.0])
    with pytest.raises(RunsError, match=r"row 3 \(large\): 1.6e-08 tokens per parameter, in other units") as error:
        load_runs("trackio:my.sweep", columns=COLUMNS)
    assert "row 4 (perplexity): train/loss=22 is not a loss in nats per token" in str(error.value)
    assert 'a perplexity is mapped by --column "loss = log(`train/loss`)", in Python' in str(error.value)
    mapped = COLUMNS | {"loss": "log(`train/loss`)"}
    assert load_runs("trackio:my.sweep", columns=mapped, where="run_id = perplexity").loss == pytest.approx(np.log(22))
    kept = load_runs("trackio:my.sweep", columns=COLUMNS, on_invalid="skip")
    assert len(kept) == 3
    assert len(kept.skipped) == 2


def test_runs_under_way_are_left_out_and_named(store, monkeypatch):
    now = datetime.now(timezone.utc)
    read = trackers._table

    def logged_minute_by_minute(ask, name):  # run2 until now, the others until an hour ago
        rows = read(ask, name)
        for line in rows if name == "metrics" else ():
            end = now if line["run_name"] == "run2" else now - timedelta(hours=1)
            line["timestamp"] = (end - timedelta(minutes=39 - line["step"])).isoformat()
        return rows

    monkeypatch.setattr(trackers, "_table", logged_minute_by_minute)
    runs = load_runs("trackio:my.sweep", columns=COLUMNS)
    assert runs.run_id == ("run0", "run1")
    assert runs.skipped == ("1 run: status is running (1: run2)",)
    assert len(load_runs("trackio:my.sweep", columns=COLUMNS, status=None)) == 3


def test_a_project_that_is_not_there(store):
    with pytest.raises(RunsError, match=r"trackio:'mysweap' is unknown: did you mean 'mysweep'\?"):
        load_runs("trackio:mysweap")


def test_a_server_of_trackio_answers_as_its_store(store, monkeypatch):
    trackio = pytest.importorskip("trackio")
    monkeypatch.setattr(trackers, "PAGE", 50)
    app, url, *_ = trackio.show(open_browser=False, block_thread=False)
    try:
        served = tracker_rows(f"trackio:{url.rstrip('/')}/my.sweep", End("smoothed"))
        assert served.rows == tracker_rows("trackio:my.sweep", End("smoothed")).rows
        with pytest.raises(RunsError, match=r"its server answered 500 .*none"):
            load_runs(f"trackio:{url.rstrip('/')}/none")
    finally:
        app.close()
    with pytest.raises(RunsError, match="its server does not answer"):
        load_runs("trackio:http://127.0.0.1:9/my.sweep")


def test_a_dataset_that_trackio_synchronised(store, monkeypatch, tmp_path):
    """Its parquet files, written by trackio, in a folder that stands for the Hub."""
    pytest.importorskip("pyarrow")
    from trackio.sqlite_storage import SQLiteStorage

    from hub import open_store

    monkeypatch.setattr(SQLiteStorage, "_dataset_import_attempted", True)
    SQLiteStorage.export_to_parquet()
    files = {path.name: path.read_bytes() for path in store.glob("mysweep*.parquet")}
    place = open_store(tmp_path / "hub")
    place.update("dataset", "logs", (), lambda _: files, "runs")
    monkeypatch.setattr(trackers.hub, "open_store", lambda name: {"hf://org": place}[name])
    synchronised = tracker_rows("trackio:datasets/org/logs/mysweep", End("minimum")).rows
    assert synchronised == tracker_rows("trackio:my.sweep", End("minimum")).rows
