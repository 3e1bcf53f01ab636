"""Sweeps: what a file expands to, what is refused, and that a failed run does not stop the rest."""

import subprocess
import sys

import pytest

from hub import RunRecord
from training.configuration.arguments import ConfigurationError
from training.sweep import launch
from training.sweep.file import Sweep
from training.sweep.runner import run_sweep
from training.sweep.state import trained_tokens


@pytest.fixture
def values(tiny):
    """A sweep of two sizes with two branches each."""
    sections = tiny().to_dict()
    return {
        "sweep": "tiny",
        "base": sections,
        "grid": {"model.d_model": [64, 128], "model.experts": [1, 4]},
        "overrides": [{"where": {"model.d_model": 128}, "set": {"schedule.tokens": [1280]}}],
    }


def test_a_grid_is_every_combination_with_its_overrides(values, tmp_path):
    sweep = Sweep.from_dict(values, tmp_path)
    assert [run.name for run in sweep.runs] == ["d64-E1-seed0", "d64-E4-seed0", "d128-E1-seed0", "d128-E4-seed0"]
    assert [run.arguments.schedule.tokens for run in sweep.runs] == [[1280, 2560]] * 2 + [[1280]] * 2
    assert sweep.runs[1].arguments.run.output_dir == str(tmp_path / "d64-E4-seed0")


def test_each_learning_rate_of_a_grid_is_a_sweep_of_its_own(values, tmp_path):
    """So that its runs share a hub with those of other rates, of which every name would be the same."""
    values["grid"] = {"model.experts": [1, 4], "optimizer.learning_rate": [0.01, "2e-2"]}
    runs = Sweep.from_dict(values, tmp_path).runs
    assert [run.name for run in runs] == [f"d64-E{e}-seed0-lr{rate}" for e in (1, 4) for rate in (0.01, 0.02)]
    assert [run.arguments.run.sweep for run in runs] == ["tiny-lr0.01", "tiny-lr0.02"] * 2
    assert [run.arguments.optimizer.learning_rate for run in runs] == [0.01, 0.02] * 2
    assert len({run.folder for run in runs}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gird": {}}, "sweep file: gird: no such key; did you mean grid"),
        ({"grid": {"model.d_model": []}}, "there are no runs"),
        ({"grid": {"model.d_model": 64}}, "grid.model.d_model: 64; it must be a valid list"),
        ({"grid": {"model.experts": [0]}}, "model.experts: 0; it must be greater than 0"),
        ({"grid": {"model.expert": [1]}}, "did you mean model.experts"),
        ({"grid": {"preset": ["paper/d1-E1"]}}, "no preset is named 'paper/d1-E1'"),
        ({"grid": {"optimizer.weight_decay": [0.1, 0.2]}}, "two runs have the same name"),
        ({"grid": {"optimizer.learning_rate": ["high"]}}, "learning_rate: 'high'; it must be a valid number"),
        ({"overrides": [{"sett": {}}]}, "overrides.sett: no such key; did you mean overrides.set"),
        ({"overrides": [{}]}, "overrides.set: missing"),
        ({"runs": [{}], "from": "paper"}, "give either runs or from"),
        ({"runs": {"model.d_model": 64}}, "runs: .*; it must be a valid list"),
        ({"runs": [{"model": 3}]}, "runs: .*; it must hold sections with fields, not model: 3"),
        ({"from": "missing.json"}, "from: .*missing.json' cannot be read"),
        ({"from": "no-plan.json"}, "neither 'paper' nor a plan"),
        ({"where": "d < 3"}, "where goes with `from: paper`"),
    ],
)
def test_a_sweep_that_cannot_be_run_is_refused(values, tmp_path, change, message):
    (tmp_path / "no-plan.json").write_text('{"format": "x"}')
    with pytest.raises(ConfigurationError, match=message):
        Sweep.from_dict({**values, **change}, tmp_path, tmp_path)


def test_the_entry_point_of_an_installed_package_is_the_same(monkeypatch, tmp_path):
    """Without train.py beside it, the run is launched as a module."""
    monkeypatch.setattr(launch, "__file__", str(tmp_path / "training" / "sweep" / "launch.py"))
    *_, flag, module = launch.launch_command(on_cpu=True)
    assert flag == "-m"
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True)
    assert "--model.experts" in done.stdout


@pytest.mark.slow
def test_a_sweep_is_executed_and_a_failed_run_does_not_stop_the_rest(values, tmp_path):
    values["overrides"].append(
        {"where": {"model.d_model": 128, "model.experts": 4}, "set": {"data.tokenizer": str(tmp_path / "missing")}}
    )
    sweep = Sweep.from_dict(values, tmp_path / "sweep")
    outcome = run_sweep(sweep, workers=2)
    assert sorted(outcome.finished) == ["d128-E1-seed0", "d64-E1-seed0", "d64-E4-seed0"]
    status, log = outcome.failed["d128-E4-seed0"]
    assert status != 0
    assert "missing" in log.read_text()
    records = [RunRecord.load(folder) for run in sweep.runs for folder in run.finished()]
    assert len(records) == 5
    assert [trained_tokens(run) for run in sweep.runs[:3]] == [run.target_tokens for run in sweep.runs[:3]]
