"""FSDP2 through `accelerate launch --config_file`, forced on two CPU processes: it trains what one process trains."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.training.run.test_processes import ROOT, assert_close, launch, results
from training.run.main import Run

pytestmark = pytest.mark.slow

LAUNCHER = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "mixed_precision": "no",
    "num_machines": 1,
    "num_processes": 2,
    "machine_rank": 0,
    "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True},
}


def launch_fsdp(arguments, *flags: str, expected: int = 0, **fsdp_config) -> str:
    config = Path(arguments.run.output_dir).with_suffix(".yaml")
    arguments.save(config)
    launcher = config.with_name("fsdp2.yaml")
    settings = {**LAUNCHER, "fsdp_config": {**LAUNCHER["fsdp_config"], **fsdp_config}}
    launcher.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", str(launcher)]
    command += ["--main_process_port", "0", str(Path(__file__).with_name("fsdp_on_cpu.py"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command += ["--config", str(config), *flags]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert (result.returncode == 0) == (expected == 0), result.stdout + result.stderr
    return result.stdout + result.stderr


def losses(arguments) -> dict[tuple[str, int], float]:
    """By (log, step)."""
    found = {}
    for log in Path(arguments.run.output_dir).glob("*/log.jsonl"):
        for line in map(json.loads, log.read_text().splitlines()):
            if "loss" in line:
                found[log.parent.name, line["step"]] = line["loss"]
    return found


def assert_same_losses(one, other):
    expected, found = losses(one), losses(other)
    assert expected.keys() == found.keys()
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, abs=1e-6), step


@pytest.fixture
def gentle(tiny, tmp_path):
    """Two runs of one micro-batch per process, at a rate where rounding errors do not grow."""

    def build(**changes):
        changes = {"run.micro_batch_sequences": 1, "optimizer.learning_rate": 0.001, **changes}
        changes["run.eval_sequences"] = 5  # an odd number: the processes have unequal shares
        return tiny(**changes), tiny(**changes, **{"run.output_dir": str(tmp_path / "other")})

    return build


@pytest.mark.parametrize("capacity", [0, 1.0])  # with a capacity because its groups are the same
def test_two_sharded_processes_train_what_one_trains(gentle, capacity):
    one, two = gentle(**{"model.capacity_factor": capacity})
    assert Run(one).execute() == 0
    launch_fsdp(two)
    assert_same_losses(one, two)
    assert_close(results(one), results(two))


def test_losses_stay_fp32_in_bf16(gentle):
    one, two = gentle(**{"run.precision": "bf16"})
    launch_one(one)  # in a process of its own: Accelerate keeps one precision per process
    launch_fsdp(two)
    found, expected = losses(two), losses(one)
    assert all(loss * 64 % 1 for loss in found.values())  # a bf16 loss would be a multiple of 1/64 above 2
    for step in range(1, 9):  # later, rounding errors of fp32 sums begin to flip bits of bf16 weights
        assert found["trunk", step] == pytest.approx(expected["trunk", step], abs=1e-6)


@pytest.mark.parametrize("sharded_first", [True, False])
def test_a_sharded_checkpoint_goes_on_in_one_process_and_back(gentle, sharded_first):
    whole, resumed = gentle()
    assert Run(whole).execute() == 0
    first, then = (launch_fsdp, launch_one) if sharded_first else (launch_one, launch_fsdp)
    first(resumed, "--schedule.tokens", "1280")
    then(resumed)
    assert_same_losses(whole, resumed)
    assert_close(results(whole), results(resumed))


def launch_one(arguments, *flags):
    launch(arguments, 1, *flags)


def test_what_would_change_the_numbers_is_refused(tiny):
    assert "fsdp_version: 1; it must be 2" in launch_fsdp(tiny(), expected=2, fsdp_version=1)
    assert "use run.gradient_checkpointing" in launch_fsdp(tiny(), expected=2, fsdp_activation_checkpointing=True)
