"""The final loss in the printout and log of a run, and when it is off its track."""

import json
import re
import shutil
from pathlib import Path

import pytest

from hub import RunRecord
from scaling_law.forecasting.curves import NOTE
from tests.training.run.test_run import finish, lines_of, stop_run
from training import ConfigurationError, Run
from training.run.forecast import watch_run

TOKENS = [2560, 5120]


def sibling(tiny, tmp_path, seed, **changes):
    usual = {"schedule__tokens": TOKENS, "run__seed": seed, "run__output_dir": str(tmp_path / f"seed{seed}")}
    return tiny(**usual | changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder for the runs of `finished`, which are trained once."""
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def finished(tiny, tmp_path, trained):
    """Three runs of the sweep."""
    runs = [sibling(tiny, tmp_path, seed) for seed in (1, 2, 4)]
    for run in runs:
        folder = Path(run.run.output_dir)
        if not (trained / folder.name).exists():
            finish(run)
            shutil.copytree(folder, trained / folder.name)
        else:
            shutil.copytree(trained / folder.name, folder)
    return runs


def said(arguments, folder="trunk"):
    return [line for line in lines_of(arguments, folder) if "forecast_loss" in line]


def test_the_printout_tells_the_final_loss_once_other_runs_have_finished(tiny, tmp_path, finished):
    assert not said(finished[0]), "nothing had finished, and no law was named"
    run = sibling(tiny, tmp_path, 3, run__law="published")
    finish(run)
    lines = said(run)
    assert lines[0]["tokens"] >= 0.1 * TOKENS[-1]
    assert {*lines[-1]} >= {"forecast_loss", "forecast_low", "forecast_high", "law_loss"}
    assert all(line["forecast_low"] < line["forecast_loss"] < line["forecast_high"] for line in lines)
    longest = max(Path(run.run.output_dir).glob("tokens*"))
    last = said(run, longest.name)[-1]
    assert last["forecast_low"] < RunRecord.load(longest / "model").eval_loss < last["forecast_high"]


def test_a_resumed_run_says_the_same_although_others_have_finished_since(tiny, tmp_path, finished):
    whole = sibling(tiny, tmp_path, 3)
    finish(whole)
    for name in ("seed1", "seed2", "seed4"):
        shutil.copytree(tmp_path / name, tmp_path / "again" / name)
    resumed = sibling(tiny, tmp_path, 3, run__output_dir=str(tmp_path / "again" / "seed3"))
    stop_run(resumed, at=20)
    shutil.copytree(tmp_path / "seed3", tmp_path / "again" / "seed5")
    finish(resumed)
    assert [*map(fields, lines_of(resumed))] == [*map(fields, lines_of(whole))]
    assert said(whole)


def fields(line):
    return {
        name: value for name, value in line.items() if "forecast" in name or name in ("loss", "tokens", "off_track")
    }


@pytest.fixture
def forecasts(tiny, tmp_path, finished):
    """A function: the forecast of a run beside the finished ones, from lines of its log."""

    def of(lines=(), **changes):
        run = Run(sibling(tiny, tmp_path, 3, **changes))
        shutil.copy(tmp_path / "seed1" / "data.json", run.folder)
        return watch_run(run.arguments, run.session.architecture, run.branches, run.trunk, [*lines])

    (tmp_path / "seed3").mkdir()
    return of


def test_a_run_off_its_track_is_told_once(forecasts, finished, caplog):
    lines, forecast = lines_of(finished[0]), forecasts()
    usual = [forecast(line) for line in lines]
    assert usual[-1]
    assert not any("off_track" in added for added in usual)
    forecast, lines = forecasts(), [line | {"loss": 3 * line["loss"]} for line in lines]
    assert not forecasts([line | {"loss_spike": True} for line in lines[:-1]])(lines[-1]), "spikes tell nothing"
    caplog.clear()
    fields_of_lines = [forecast(line) for line in lines]
    assert sum("off_track" in added for added in fields_of_lines) == 1
    (warning,) = [record.message for record in caplog.records if "off the track" in record.message]
    share = re.search(r"(\d+)\.\d% above what runs like it had here; look at the learning rate", warning)
    assert 100 < int(share[1]) < 300, "two to four times their loss"
    before = [line | added for line, added in zip(lines, fields_of_lines, strict=True)]
    assert "off_track" not in forecasts(before[:-1])(lines[-1]), "a resumed run does not say it again"


def test_runs_of_another_schedule_tell_and_those_of_another_text_do_not(forecasts, tmp_path):
    assert len(forecasts().live.finished) == 6
    data = tmp_path / "seed1" / "data.json"
    identity = json.loads(data.read_text())
    (tmp_path / "seed3" / "trunk" / NOTE).unlink()
    assert len(forecasts(schedule__decay_fraction=0.5).live.finished) == 6
    (tmp_path / "seed3" / "trunk" / NOTE).unlink()
    identity["dataset"]["fingerprint"] = "sha256:other"
    data.write_text(json.dumps(identity))
    assert not forecasts().live.finished


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ("nobodys", "run.law 'nobodys'"),
        ("marin", "run.law marin: it gives optimum"),
        ("no/where", "run.law: "),
    ],
)
def test_a_law_that_cannot_be_asked_ends_the_run_before_it_begins(tiny, law, message):
    with pytest.raises(ConfigurationError, match=message):
        Run(tiny(run__law=law))
