"""Sweeps: where runs come from, what they cost, what their states are read from, and how they are executed."""

import json
import os
import subprocess
import sys
import time

import pytest
import yaml
from filelock import FileLock
from typer.testing import CliRunner

from hub import RunRecord
from scaling_law import JointLaw
from scaling_law.planning.plan import plan as plan_of_law
from scaling_law.size.architecture import Architecture
from training.configuration.arguments import ConfigurationError
from training.sweep import __main__ as sweep_module
from training.sweep import run as sweep_run
from training.sweep.file import Sweep
from training.sweep.plan import plan_sweep
from training.sweep.run import Attempt, measured_flops_per_second, run_sweep, state, status, trained_tokens


def paper_sweep(tmp_path, **values):
    return Sweep.from_dict({"from": "paper", **values}, tmp_path)


def tiny_sweep(tiny, tmp_path, **values):
    return Sweep.from_dict({"base": tiny().to_dict(), **values}, tmp_path)


# -- where runs come from


def test_the_whole_listing_is_a_sweep(tmp_path):
    plan = plan_sweep(paper_sweep(tmp_path))
    assert len(plan.runs) == 51
    assert sum(len(run.branches) for run in plan.runs) == 270
    assert 0.49 < plan.saved < 0.51
    names = {run.name for run in plan.runs}
    assert {"d1408-E2-seed0", "d1408-b21-h11-E2-seed0"} <= names  # two shapes of one width


@pytest.mark.parametrize(
    ("where", "count", "tokens"),
    [
        ("E in {1,8}, d<=1024", 9, None),
        ("experts = 32 and d_model < 600", 1, {5 * 10**8, 10**9, 2 * 10**9}),
        ("N_act > 2.7B", 1, None),
        ("d == 1664, E in {1}, D >= 64B", 1, {64 * 10**9, 80 * 10**9}),
        ("n_blocks = 21, n_total < 700M", 1, None),
    ],
)
def test_a_part_of_the_listing_is_chosen_by_conditions(tmp_path, where, count, tokens):
    sweep = paper_sweep(tmp_path, where=where)
    assert len(sweep.runs) == count
    if tokens:
        assert set(sweep.runs[0].arguments.schedule.tokens) == tokens


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("E is 8", "'E is 8' is not a condition; write a field"),
        ("experts in {8}, depth < 4", "'depth < 4': no field is named 'depth'"),
        ("d < many", "'d < many': d_model='many' is not a quantity"),
        ("d > 9000", "leaves none of the paper's listing"),
    ],
)
def test_conditions_that_cannot_be_met_are_refused(tmp_path, where, message):
    with pytest.raises(ConfigurationError, match=message):
        paper_sweep(tmp_path, where=where)


def test_runs_are_listed_and_multiplied_by_a_grid(tiny, tmp_path):
    runs = [{"model.d_model": 64, "schedule.tokens": [1280]}, {"model": {"d_model": 128, "experts": 1}}]
    sweep = tiny_sweep(tiny, tmp_path, runs=runs, grid={"run.seed": [0, 1]})
    assert [run.name for run in sweep.runs] == ["d64-E4-seed0", "d64-E4-seed1", "d128-E1-seed0", "d128-E1-seed1"]
    assert sweep.runs[0].arguments.schedule.tokens == [1280]


def test_presets_are_the_ground_that_a_sweep_builds_on(tmp_path):
    values = {
        "base": {"preset": "selective-decay", "schedule": {"tokens": ["1B"]}},
        "grid": {"preset": ["paper/d512-E8", "paper/d1408-b21-h11-E8"], "run.seed": [0, 1]},
    }
    sweep = Sweep.from_dict(values, tmp_path)
    assert [run.name for run in sweep.runs][1:3] == ["d512-E8-seed1", "d1408-b21-h11-E8-seed0"]
    assert {tuple(run.arguments.schedule.tokens) for run in sweep.runs} == {(10**9,)}  # base wins over the preset


def test_plans_of_the_law_are_runs(tmp_path):
    """Both forms that `scaling-law plan` writes, beside the sweep file."""
    law = JointLaw.published()
    first, second = plan_of_law(law, 1e19, (8,), branches=2), plan_of_law(law, 1e19, (1,))
    (tmp_path / "a.json").write_text(json.dumps(first.to_dict()))
    (tmp_path / "b.yaml").write_text(second.to_yaml())
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"sweep": "planned", "from": ["a.json", "b.yaml"]}))
    sweep = Sweep.load(tmp_path / "sweep.yaml", tmp_path / "out")
    for run, planned in zip(sweep.runs, (first, second), strict=True):
        assert run.architecture == planned.architecture
        assert run.arguments.optimizer.learning_rate == planned.learning_rate
        assert run.arguments.schedule.tokens == list(planned.branches)
        assert run.arguments.run.sweep == "planned"
        assert run.folder.parent == tmp_path / "out"


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


# -- what it costs


def test_costs_are_those_of_the_architecture(tmp_path):
    """d = 512, E = 8 on 0.5B, 1B and 2B tokens, counted by hand from the whole steps of the authors' runs."""
    (run,) = plan_sweep(paper_sweep(tmp_path, where="d = 512, E = 8"), 1e15, shards=2).runs
    arch = Architecture(512, 8)
    small, large = 128 * 512, 512 * 512
    ends = [7629 * small, 7629 * small + 3814 * 2 * small, 7629 * small + 3815 * 2 * small + 3814 * large]
    assert [branch.tokens for branch in run.branches] == ends
    points = [branch.branch_point_tokens for branch in run.branches]
    assert all(0.8 * end - large < point <= 0.8 * end for end, point in zip(ends, points, strict=True))
    tokens = points[-1] + sum(end - point for end, point in zip(ends, points, strict=True))
    assert run.tokens == tokens
    assert run.training_flops == 6 * arch.n_active * tokens
    assert run.separate_flops == 6 * arch.n_active * sum(ends)
    assert run.seconds == run.training_flops / 1e15
    assert run.memory_bytes == 16 * arch.n_total / 2  # fp32: weights, gradients, two moments
    assert run.disk_bytes == (3 + 2) * 12 * arch.n_total + 3 * 4 * arch.n_total


def test_expensive_runs_are_those_of_more_flops_not_of_more_width(tmp_path):
    """Embeddings make a narrow model more expensive than its blocks alone."""
    narrow, wide = paper_sweep(tmp_path, where="d in {512, 1024}, E = 1, tokens = 2B").runs
    assert wide.cost / narrow.cost == pytest.approx(321.03 / 78.72, rel=1e-3)


def test_runs_that_count_capacity_over_different_groups_are_pointed_out(tiny, tmp_path):
    base = {**tiny(schedule__batch_ramp=["0:4"]).to_dict(), "run": {"precision": "fp32"}}

    def notes(**more):
        runs = [{"run.seed": seed, "run.micro_batch_sequences": micro, **more} for seed, micro in ((0, 1), (1, 4))]
        return "\n".join(plan_sweep(Sweep.from_dict({"base": base, "runs": runs}, tmp_path)).notes())

    assert "capacity groups: 32, 128 tokens; set model.capacity_group_tokens" in notes()
    assert "capacity groups" not in notes(**{"model.capacity_group_tokens": 32})
    with pytest.raises(ConfigurationError, match=r"model.capacity_group_tokens: 128; a micro-batch"):
        notes(**{"model.capacity_group_tokens": 128})


def test_a_missing_tokenizer_is_reported(tiny, tmp_path):
    (run,) = plan_sweep(tiny_sweep(tiny, tmp_path)).runs
    assert (run.vocab_size, run.vocab_assumed) == (300, False)
    missing = {"runs": [{"data.tokenizer": str(tmp_path / "missing")}]}
    (run,) = plan_sweep(tiny_sweep(tiny, tmp_path, **missing)).runs
    assert (run.vocab_size, run.vocab_assumed) == (50257, True)


def test_one_branch_saves_nothing_and_time_is_unknown_without_a_speed(tiny, tmp_path):
    plan = plan_sweep(tiny_sweep(tiny, tmp_path, grid={"schedule.tokens": [[1280]]}))
    assert (plan.seconds, plan.flops_per_second, plan.speed_source) == (None, None, "unknown")
    assert plan.saved == 0
    assert plan.total("tokens") == plan.total("separate_tokens") == 1280


# -- states


@pytest.fixture
def run(tiny, tmp_path):
    (run,) = tiny_sweep(tiny, tmp_path / "runs").runs
    return run


def write_log(run, folder, seconds_ago=1000, **line):
    path = run.folder / folder / "log.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"step": 1, "tokens": 640, "loss": 2.5, "tokens_per_second": 100.0, **line}) + "\n")
    os.utime(path, (time.time() - seconds_ago,) * 2)


def test_states_are_read_from_the_folder(run):
    assert state(run) == "waiting"
    assert not run.folder.exists()  # asking leaves nothing behind
    write_log(run, "trunk")
    assert state(run) == "waiting"
    write_log(run, "trunk", seconds_ago=5)
    assert state(run) == "running"  # started by hand
    Attempt(1, stopped=True).save(run.folder)
    assert state(run) == "waiting"
    Attempt(1, stopped=False).save(run.folder)
    assert state(run) == "failed"
    write_log(run, "trunk", loss=None)
    assert state(run) == "diverged"
    with FileLock(run.folder / ".sweep.lock"):
        assert state(run) == "running"


def test_progress_counts_the_trunk_once(run):
    short, long = run.branches
    assert run.target_tokens == 2048 + (1280 - 1024) + (2560 - 2048)
    write_log(run, "trunk", tokens=2048)
    write_log(run, run.folder_of(short).name, tokens=1280)
    assert trained_tokens(run) == 2048 + 256
    write_log(run, run.folder_of(long).name, tokens=2304, seconds_ago=500, loss=1.25)
    now = status(run)
    assert (now.tokens, now.loss, now.tokens_per_second) == (2048 + 256 + 256, 1.25, 100.0)
    assert now.seconds_left == 256 / 100


def test_the_speed_of_running_runs_gives_the_time_of_the_rest(tiny, tmp_path):
    sweep = tiny_sweep(tiny, tmp_path, grid={"model.d_model": [64, 128]})
    write_log(sweep.runs[0], "trunk")
    speed = measured_flops_per_second(sweep)
    assert speed == pytest.approx(100 * sweep.runs[0].architecture.training_flops(1))
    plan = plan_sweep(sweep)
    assert plan.speed_source == "measured"
    assert plan.runs[1].seconds == pytest.approx(sweep.runs[1].cost / speed)


def test_plan_and_status_are_printed_as_tables_and_json(tiny, tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"base": tiny().to_dict(), "output_dir": str(tmp_path / "runs")}))

    def shown(command, *words, file=path, exit_code=0):
        result = CliRunner().invoke(sweep_module.app, [command, str(file), *words])
        assert result.exit_code == exit_code
        return result.output

    planned = json.loads(shown("plan", "--json"))
    assert planned["runs"][0]["name"] == "d64-E4-seed0"
    assert "activations" in planned["memory_leaves_out"]
    (now,) = json.loads(shown("status", "--json"))
    assert (now["state"], now["tokens"], now["seconds_left"]) == ("waiting", 0, None)
    assert "waiting" in shown("status")
    assert all(text in shown("plan") for text in ("d64-E4-seed0", "unknown", "save"))
    assert "--flops-per-second: -1.0" in shown("plan", "--flops-per-second", "-1", exit_code=2)
    assert "there are d64-E4-seed0" in shown("config", "d1-E1-seed0", exit_code=2)
    assert "error: sweep file" in shown("plan", file=tmp_path / "none.yaml", exit_code=2)


# -- running it


def test_the_entry_point_of_an_installed_package_is_the_same(monkeypatch, tmp_path):
    """Without train.py beside it, the run is launched as a module."""
    monkeypatch.setattr(sweep_run, "__file__", str(tmp_path / "training" / "sweep" / "run.py"))
    *_, flag, module = sweep_run.launch_command(on_cpu=True)
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
