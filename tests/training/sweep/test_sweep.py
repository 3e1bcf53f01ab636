"""Sweeps: where runs come from, what they cost, what their states are read from, and how they are executed."""

import io
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from math import inf
from pathlib import Path

import pytest
import yaml
from filelock import FileLock
from rich.console import Console

import training
from hub import IntegrityError, RunRecord
from hub.base import atomic
from scaling_law import Architecture, JointLaw, scale_out
from scaling_law.planning.plan import plan as plan_of_law
from studies.crossing.records import EXPERTS, TOKENS, WIDTHS, read_sweep
from tests.conftest import wait_for
from tests.guides import ROOT
from tests.training.run.test_run import finish
from tests.training.sweep.commands import command
from training import ConfigurationError, Sweep, plan_sweep, run_sweep
from training.run.attempt import lock_run
from training.sweep import run as sweep_run
from training.sweep.engine import EngineError
from training.sweep.file import SweepRun
from training.sweep.run import Local, sweep_progress
from training.sweep.status import (
    Attempt,
    lock_of,
    measured_flops_per_second,
    state,
    status,
    status_table,
    trained_tokens,
)

CONFIGS = Path(training.__file__).parent / "configs" / "accelerate"


def paper_sweep(tmp_path, **values):
    return Sweep.from_dict({"from": "paper", **values}, tmp_path)


def test_words_of_a_sweep_file_are_what_was_typed(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        """\
x-small: &small {model.d_model: 64, run.micro_batch_sequences: 8}
sweep: 2026
output_dir: no
base: {data.text_column: on, schedule.warmup_tokens: 0, schedule.batch_ramp: [0:8], model.capacity_group_tokens: 4096}
runs:
- {<<: *small, schedule.tokens: [1M]}
- {<<: *small, schedule.tokens: 2_000_000, run.seed: 007}
overrides: [{where: {schedule.tokens: 1e6, model.d_model: 64.0}, set: {optimizer.learning_rate: 1e-3}}]
"""
    )
    sweep = Sweep.load(path)
    assert (sweep.name, sweep.folder) == ("2026", Path("no"))
    assert [run.arguments.optimizer.learning_rate for run in sweep.runs] == [1e-3, None]
    assert [run.arguments.schedule.tokens for run in sweep.runs] == [[10**6], [2 * 10**6]]
    assert [run.arguments.run.seed for run in sweep.runs] == [0, 7]
    assert sweep.runs[0].arguments.data.text_column == "on"
    path.write_text("base: {}\ngrid: {model.d_model: [64], model.d_model: [128]}\n")
    with pytest.raises(ConfigurationError, match=r"line 2: grid\.model\.d_model occurs twice, first in line 2"):
        Sweep.load(path)


@pytest.fixture
def sweep_of(tiny, tmp_path):
    """A function: a sweep of the tiny run with changes, from the values of a sweep file."""

    def build(changes=None, **values):
        base = tiny(**(changes or {})).to_dict()
        return Sweep.from_dict({"sweep": "tiny", "base": base, **values}, tmp_path / "sweep", tmp_path)

    return build


# -- where runs come from


def test_the_sweep_of_the_crossing_has_the_models_and_rates_of_its_page():
    runs = [run.arguments for run in Sweep.load(CONFIGS.parent / "crossing.yaml").runs]
    rates = {(run.model.d_model, run.model.experts): run.optimizer.learning_rate for run in runs}
    used = {(rate.d_model, rate.experts): rate.used for rate in read_sweep(ROOT / "studies/crossing/runs.jsonl").rates}
    assert rates == {(d, e): rate for (d, e), rate in used.items() if d in WIDTHS and e in EXPERTS}
    assert {*TOKENS} <= {float(tokens) for run in runs for tokens in run.schedule.tokens}


def test_the_whole_listing_is_a_sweep(tmp_path):
    plan = plan_sweep(paper_sweep(tmp_path))
    assert len(plan.runs) == 51
    assert sum(len(run.branches) for run in plan.runs) == 270
    assert 0.49 < plan.saved < 0.51
    table = plan.summary()
    sizes = ("78.7M", "78.7M", "500M, 1B, 2B", "2.3B", "1.09e18", "–", "1.26 GB", "6.61 GB")
    assert table.rows[0] == ("d512-E1-seed0", *sizes, "waiting")
    assert table.total == ("total", "", "", "270", "1.11T", "4.77e21", "–", "", "7.6 TB", "")
    names = {run.name for run in plan.runs}
    assert {"d1408-E2-seed0", "d1408-b21-h11-E2-seed0"} <= names  # two shapes of one width


@pytest.mark.parametrize(
    ("where", "count", "tokens"),
    [
        ("E in {1,8}, d<=1024", 9, {5 * 10**8, 10**9, 2 * 10**9}),
        ("experts = 32 and d_model < 600", 1, {5 * 10**8, 10**9, 2 * 10**9}),
        ("d == 1664, E in {1}, D >= 64B", 1, {64 * 10**9, 80 * 10**9}),
    ],
)
def test_a_part_of_the_listing_is_chosen_by_conditions(tmp_path, where, count, tokens):
    sweep = paper_sweep(tmp_path, where=where)
    assert len(sweep.runs) == count
    assert set(sweep.runs[0].arguments.schedule.tokens) == tokens


@pytest.mark.parametrize(
    ("runs", "tokens"),
    [
        (
            {
                "grid": {"model.d_model": [64, 128], "model.experts": [1, 4]},
                "overrides": [{"where": {"model.d_model": 128}, "set": {"schedule.tokens": [1280]}}],
            },
            {"d64-E1-seed0": 2560, "d64-E4-seed0": 2560, "d128-E1-seed0": 1280, "d128-E4-seed0": 1280},
        ),
        (
            {
                "runs": [{"model.d_model": 64, "schedule.tokens": [1280]}, {"model": {"d_model": 128, "experts": 1}}],
                "grid": {"run.seed": [0, 1]},
            },
            {"d64-E4-seed0": 1280, "d64-E4-seed1": 1280, "d128-E1-seed0": 2560, "d128-E1-seed1": 2560},
        ),
        (
            {
                "base": {"preset": "selective-decay", "schedule": {"tokens": ["1B"]}},  # base wins over the preset
                "grid": {"preset": ["paper/d512-E8", "paper/d1408-b21-h11-E8"]},
            },
            {"d512-E8-seed0": 10**9, "d1408-b21-h11-E8-seed0": 10**9},
        ),
    ],
    ids=["grid with overrides", "list times grid", "grid of presets"],
)
def test_runs_come_from_a_grid_or_a_list(sweep_of, tmp_path, runs, tokens):
    found = {run.name: run.arguments for run in sweep_of(**runs).runs}
    assert {name: arguments.schedule.tokens[-1] for name, arguments in found.items()} == tokens
    assert all(found[name].run.output_dir == str(tmp_path / "sweep" / name) for name in tokens)


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


def test_each_learning_rate_of_a_grid_is_a_sweep_of_its_own(sweep_of):
    """So that its runs share a hub with those of other rates, of which every name would be the same."""
    runs = sweep_of(grid={"model.experts": [1, 4], "optimizer.learning_rate": [0.01, "2e-2"]}).runs
    assert [run.name for run in runs] == [f"d64-E{e}-seed0-lr{rate}" for e in (1, 4) for rate in (0.01, 0.02)]
    assert [run.arguments.run.sweep for run in runs] == ["tiny-lr0.01", "tiny-lr0.02"] * 2
    assert [run.arguments.optimizer.learning_rate for run in runs] == [0.01, 0.02] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gird": {}}, "sweep file: gird: no such key; did you mean grid"),
        ({"grid": {"model.d_model": []}}, "there are no runs"),
        ({"grid": {"model.d_model": 64}}, "grid.model.d_model: 64; it must be a valid list"),
        ({"grid": {"model.expert": [1]}}, "did you mean model.experts"),
        ({"grid": {"experts": [1]}}, "sweep file: grid: it must hold sections with fields, not experts: 1"),
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
        ({"from": "paper", "where": "depth < 4"}, "'depth < 4': field 'depth' is unknown"),
        ({"from": "paper", "where": "d > 9000"}, "leaves none of the paper's listing"),
    ],
)
def test_a_sweep_that_cannot_be_run_is_refused(sweep_of, tmp_path, change, message):
    (tmp_path / "no-plan.json").write_text('{"format": "x"}')
    with pytest.raises(ConfigurationError, match=message):
        sweep_of(**change)


# -- what it costs


def test_costs_are_those_of_the_architecture(tmp_path):
    """d = 512, E = 8 on 0.5B, 1B and 2B tokens, counted by hand from the whole steps of the authors' runs."""
    (run,) = plan_sweep(paper_sweep(tmp_path, where="d = 512, E = 8"), gpu="h100", gpus=8).runs
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
    steps = [scale_out(arch, (8,), "h100", batch=512 * n).rows[0].step_seconds for n in (128, 256, 512)]
    trunk = [7629, 3815, (points[-1] - 7629 * small - 3815 * 2 * small) / large]
    decays = [(end - point) / size for end, point, size in zip(ends, points, (small, 2 * small, large), strict=True)]
    fastest = sum((k + n) * step for k, n, step in zip(trunk, decays, steps, strict=True))
    # A run has one layout, and each batch alone may have a faster one.
    assert fastest <= run.seconds * (1 + 1e-9)
    assert run.seconds < 1.1 * fastest
    assert run.memory_bytes == run.placement.memory.total > 16 * arch.n_total / 8  # the peak, with activations
    assert (run.placement.micro_batch_sequences, run.placement.dp) == (64, 8)  # of 512
    alone = plan_sweep(paper_sweep(tmp_path, where="d = 512, E = 8")).runs[0]
    assert alone.memory_bytes == 16 * arch.n_total  # fp32: weights, gradients, two moments
    assert alone.placement is None
    assert run.disk_bytes == (3 + 3) * 12 * arch.n_total + 3 * 4 * arch.n_total


def test_runs_that_count_capacity_over_different_groups_are_pointed_out(sweep_of):
    def notes(**more):
        runs = [{"run.seed": seed, "run.micro_batch_sequences": micro, **more} for seed, micro in ((0, 1), (1, 4))]
        return "\n".join(plan_sweep(sweep_of({"schedule.batch_ramp": ["0:4"]}, runs=runs)).notes())

    assert "capacity groups: 32, 128 tokens; set model.capacity_group_tokens" in notes()
    assert "capacity groups" not in notes(**{"model.capacity_group_tokens": 32})


def test_a_run_that_a_law_has_no_rate_for_is_refused_before_any_is_started(sweep_of):
    sweep = sweep_of({"optimizer__learning_rate": None})
    for begin in (plan_sweep, partial(run_sweep, workers=1)):
        with pytest.raises(ConfigurationError, match=r"optimizer\.learning_rate: too far"):
            begin(sweep)


# -- states


@pytest.fixture
def run(sweep_of):
    (run,) = sweep_of().runs
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
    with lock_run(run.folder):
        assert state(run) == "running"  # started by hand
    Attempt(1, stopped=True).save(run.folder)
    assert state(run) == "waiting"
    Attempt(1, stopped=False).save(run.folder)
    assert state(run) == "failed"
    write_log(run, "trunk", loss=None)
    assert state(run) == "diverged"
    with FileLock(run.folder / ".sweep.lock"):
        assert state(run) == "running"
    (run.folder / "state.json").write_text("")  # of a disk that lost it
    with pytest.raises(IntegrityError, match=r"state\.json is damaged"):
        state(run)


def test_progress_counts_the_trunk_once(run):
    short, long = run.branches
    assert run.target_tokens == 2048 + (1280 - 1024) + (2560 - 2048)
    write_log(run, "trunk", tokens=2048)
    write_log(run, run.folder_of(short).name, tokens=1280)
    assert trained_tokens(run) == 2048 + 256
    write_log(run, run.folder_of(long).name, tokens=2304, seconds_ago=500, loss=1.25)
    now = status(run)
    assert (now.tokens, now.loss, now.tokens_per_second) == (2048 + 256 + 256, 1.25, 100.0)
    assert "| 1.2500 |" in status_table([now]).markdown()
    assert now.seconds_left == 256 / 100


def test_status_tells_the_final_loss_and_whether_the_run_is_on_its_track(run):
    write_log(run, "trunk")
    assert (status(run).forecast, status(run).verdict) == (None, None)
    write_log(run, "trunk", forecast_loss=2.25, forecast_low=2.0, forecast_high=2.5)
    assert (status(run).forecast, status(run).verdict) == (2.25, "on track")
    write_log(run, "trunk", off_track=True)
    write_log(run, run.folder_of(run.branches[0]).name, 10, forecast_loss=2.25, forecast_low=2.0, forecast_high=2.5)
    assert "2.250 ± 0.250, off track" in status_table([status(run)]).markdown()


def test_devices_are_paid_for_as_long_as_they_trained(run):
    assert status(run).device_seconds == 0
    write_log(run, "trunk", wall_seconds=20.0, devices=4)
    branch = run.folder / run.folder_of(run.branches[0]).name
    write_log(run, branch.name, tokens=1152, wall_seconds=16.0, devices=2)  # half of the 256 tokens are trained
    last = {"step": 9, "tokens": 1280, "wall_seconds": 19.0, "devices": 2}
    with open(branch / "log.jsonl", "a") as log:
        log.write(json.dumps(last) + "\n" + json.dumps({"step": 9, "tokens": 1280, "eval_loss": 2.0}) + "\n")
    assert status(run).device_seconds == 20 * 4 + 6 * 2


def test_the_live_display_has_the_loss_of_every_running_run_in_80_columns(sweep_of):
    sweep = sweep_of(grid={"model.d_model": [64, 128]})
    write_log(sweep.runs[0], "trunk", loss=1.2345)
    write_log(sweep.runs[1], "trunk", loss=None)  # a step that was not finite
    printed = io.StringIO()
    with sweep_progress(sweep, Console(file=printed, width=80, force_terminal=True, color_system=None)) as watch:
        watch(list(sweep.runs))
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[\S*?[A-Za-z]", "", printed.getvalue()))
    assert {line.split()[0] for line in lines if line.strip()} == {"sweep", *(run.name for run in sweep.runs)}
    assert any("loss 1.234" in line for line in lines if line.startswith(sweep.runs[0].name))
    assert max(map(len, lines)) == 80


def test_a_run_that_does_not_fit_is_named(tmp_path):
    plan = plan_sweep(paper_sweep(tmp_path, where="tokens <= 0.5B"), gpu="rtx-4090", gpus=1, price=2)
    largest = max(plan.runs, key=lambda run: run.n_total)
    assert (plan.seconds, plan.cost, largest.seconds) == (inf, inf, inf)
    assert any(note.startswith("do not fit these GPUs: ") and largest.name in note for note in plan.notes())
    assert min(run.seconds for run in plan.runs) < inf


def test_the_speed_of_running_runs_gives_the_time_of_the_rest(sweep_of):
    sweep = sweep_of(grid={"model.d_model": [64, 128]})
    write_log(sweep.runs[0], "trunk")
    speed = measured_flops_per_second(sweep)
    assert speed == pytest.approx(100 * sweep.runs[0].architecture.training_flops(1))
    plan = plan_sweep(sweep)
    assert "measured in this sweep" in plan.timed_by
    assert plan.runs[1].seconds == pytest.approx(sweep.runs[1].cost / speed)


def test_plan_and_status_are_printed_as_tables_and_json(tiny, tmp_path):
    path, missing = tmp_path / "sweep.yaml", {"run.seed": 1, "data.tokenizer": str(tmp_path / "missing")}
    values = {"base": tiny(schedule__tokens=[1280]).to_dict(), "output_dir": str(tmp_path / "runs")}
    path.write_text(yaml.safe_dump(values | {"runs": [{}, missing]}))

    shown = partial(command, path)
    planned = json.loads(shown("plan", "--json"))
    sizes = [(run["name"], run["vocab_size"], run["vocab_assumed"]) for run in planned["runs"]]
    assert sizes == [("d64-E4-seed0", 300, False), ("d64-E4-seed1", 50257, True)]
    assert (planned["saved"], planned["seconds"], planned["timed_by"]) == (0, None, None)  # one branch each
    assert planned["tokens"] == planned["separate_tokens"] == 2 * 1280
    now = json.loads(shown("status", "--json"))[0]
    assert (now["state"], now["tokens"], now["seconds_left"]) == ("waiting", 0, None)
    assert "waiting" in shown("status")
    assert all(text in shown("plan") for text in ("d64-E4-seed0", "unknown", "save"))
    assert "--gpus must be given" in shown("plan", "--gpu", "h100", exit_code=2)
    with pytest.raises(ValueError, match="gpus=None"):
        plan_sweep(Sweep.load(path), gpu="h100")
    assert "cannot share" in shown("plan", "--gpu", "h100", "--gpus", "7", exit_code=2)
    assert "There are d64-E4-seed0" in shown("config", "d1-E1-seed0", exit_code=2)
    assert "error: sweep file" in command(tmp_path / "none.yaml", "plan", exit_code=2)


# -- running it


def test_runs_get_gpus_of_their_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    places = sweep_run.environments(3, processes=2)
    assert [place["CUDA_VISIBLE_DEVICES"] for place in places] == ["0,1", "2,3", "0,1"]
    for how in ({"processes": 8}, {"accelerate_config": CONFIGS / "one_node_ddp.yaml"}):
        with pytest.raises(ConfigurationError, match="--processes-per-run: 8; it must be at most 5"):
            sweep_run.environments(1, **how)


def test_without_a_checkout_a_run_is_launched_as_a_module(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep_run, "__file__", str(tmp_path / "training" / "sweep" / "run.py"))
    assert sweep_run.launch_command(on_cpu=True)[-2:] == ["-m", "training.run"]


def test_a_file_that_accelerate_cannot_read_is_refused(tmp_path):
    (tmp_path / "bad.yaml").write_text("distributed_type: MULTI_GPU\nnonsense: 1\n")
    for name in ("bad.yaml", "missing.yaml"):
        with pytest.raises(ConfigurationError, match=f"--accelerate-config: .*{name}"):
            sweep_run.environments(1, accelerate_config=tmp_path / name)


def test_processes_that_cannot_share_a_batch_are_refused_before_anything_is_started(sweep_of):
    sweep = sweep_of()
    with pytest.raises(ConfigurationError, match="micro-batches that 2 processes cannot share"):
        run_sweep(sweep, 1, processes_per_run=2)
    assert not sweep.runs[0].folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"processes_per_run": 2}, {"accelerate_config": CONFIGS / "cpu_two_processes.yaml"}], ids=["flag", "file"]
)
def test_a_run_has_the_processes_that_were_asked_for(sweep_of, how):
    sweep = sweep_of({"run.micro_batch_sequences": 1, "schedule.tokens": [1280]})
    outcome = run_sweep(sweep, 1, **how)
    assert outcome.finished == ["d64-E4-seed0"], (sweep.runs[0].folder / "output.log").read_text()
    assert RunRecord.load(sweep.runs[0].finished()[0]).hardware.startswith("2 x ")


@pytest.fixture
def good_and_bad(sweep_of, tmp_path):
    """A sweep of two runs, of which the second names a tokenizer that is missing."""
    missing = {"where": {"model.experts": 4}, "set": {"data.tokenizer": str(tmp_path / "missing")}}
    return sweep_of(grid={"model.experts": [1, 4]}, overrides=[missing])


def assert_one_finished_and_one_failed_twice(sweep, outcome, exit_status):
    good, bad = sweep.runs
    assert (outcome.finished, [*outcome.failed]) == ([good.name], [bad.name])
    assert (state(good), len(good.records()), trained_tokens(good)) == ("finished", 2, good.target_tokens)
    status, log = outcome.failed[bad.name]
    assert status == exit_status
    assert log.read_text().count("error: data.tokenizer: ") == 2
    assert (state(bad), Attempt.load(bad.folder).exit_status) == ("failed", exit_status)


def test_a_failed_run_is_tried_again_and_does_not_stop_the_rest(good_and_bad, tiny, tmp_path, monkeypatch):
    """In the place of `accelerate launch train.py`: what it would leave and say."""
    finish(tiny(model__experts=1))
    script = """case $2 in *E4*) echo "error: data.tokenizer: none"; exit 1; esac; cp -r "$0"/* "${2%/*}" """
    monkeypatch.setattr(sweep_run, "launch_command", lambda *_: ["sh", "-c", script, str(tmp_path / "run")])
    assert_one_finished_and_one_failed_twice(good_and_bad, run_sweep(good_and_bad, workers=2, retries=1), 1)


@pytest.mark.slow
def test_runs_that_accelerate_launches_finish_and_fail(good_and_bad):
    outcome = run_sweep(good_and_bad, workers=2, retries=1)
    assert_one_finished_and_one_failed_twice(good_and_bad, outcome, 2)
    (failure,) = outcome.failed.values()
    assert str(failure).startswith("exit status 2: data.tokenizer: ")
    assert "Traceback" not in failure.log.read_text()


@pytest.mark.slow
def test_a_sweep_is_cancelled_from_elsewhere(tiny, tmp_path):
    """The command, in a process of its own, stops at `cancel` as at Ctrl-C."""
    path = tmp_path / "sweep.yaml"
    base = tiny(run__checkpoint_seconds=0.01, schedule__tokens=[10_000_000]).to_dict()
    path.write_text(yaml.safe_dump({"base": base, "output_dir": str(tmp_path / "runs")}))
    (run,) = Sweep.load(path).runs
    words = [sys.executable, "-m", "training.sweep", "run", str(path)]
    sweep = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True)
    wait_for("a checkpoint", lambda: list(run.folder.glob("trunk/step*")))
    assert command(path, "cancel") == f"{run.name}: cancelled (local)\n"
    assert sweep.wait(timeout=120) == 143
    assert (state(run), Attempt.load(run.folder).stopped) == ("waiting", True)
    assert command(path, "cancel") == ""
    atomic.write_json(run.folder / "process.json", {"host": "another", "pid": 1})
    with lock_of(run), pytest.raises(EngineError, match="executed by process 1 on another; cancel it there"):
        Local().cancel([run])


def test_what_would_be_started_is_shown(sweep_of, tiny, tmp_path):
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"base": tiny().to_dict(), "output_dir": "runs"}))
    shown = partial(command, tmp_path / "sweep.yaml", "run", "--dry-run")
    assert "train.py --config runs/d64-E4-seed0/launch.yaml\n" in shown()
    assert "--on slurm does not take it" in shown("--on", "slurm", "--retries", "1", exit_code=2)
    refused = shown("--partition", "gpu", exit_code=2)
    assert "--partition: --on local does not take it; it takes --workers" in refused


def test_a_run_that_another_sweep_has_finished_meanwhile_is_not_started(sweep_of, monkeypatch):
    sweep, finished = sweep_of(grid={"model.experts": [1, 4]}), set()
    cheap, expensive = sweep.runs
    monkeypatch.setattr(SweepRun, "complete", property(lambda run: run.name in finished))
    monkeypatch.setattr(SweepRun, "records", lambda run: [])
    monkeypatch.setattr(sweep_run, "launch_command", lambda *_: ["false"])
    outcome = run_sweep(sweep, 1, lambda running: finished.add(cheap.name))
    assert (outcome.finished, [*outcome.failed]) == ([cheap.name], [expensive.name])
    assert not (cheap.folder / "output.log").exists()


def test_a_run_that_another_sweep_works_on_is_left_alone(sweep_of):
    sweep = sweep_of()
    sweep.runs[0].folder.mkdir(parents=True)
    with lock_of(sweep.runs[0]):
        assert run_sweep(sweep, 1).elsewhere == ["d64-E4-seed0"]
    assert not (sweep.runs[0].folder / "output.log").exists()
