"""The same run on one process and on two (gloo on CPU), and resumed on another number of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hub import RunRecord
from training.run.main import Run

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


def launch(arguments, processes: int, *flags: str, expected: int = 0) -> None:
    """`train.py` on several processes of this machine."""
    config = Path(arguments.run.output_dir).with_suffix(".yaml")
    arguments.save(config)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    command += [str(ROOT / "train.py"), "--config", str(config), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == expected, result.stdout + result.stderr


def results(arguments):
    """(record, weights) by token count."""
    found = {}
    for folder in Path(arguments.run.output_dir).glob("*/model"):
        record = RunRecord.load(folder)
        found[record.tokens] = record, load_file(folder / "model.safetensors")
    return found


def assert_close(one, other):
    assert one.keys() == other.keys()
    for tokens, (record, weights) in one.items():
        other_record, other_weights = other[tokens]
        assert record.eval_loss == pytest.approx(other_record.eval_loss, abs=1e-6)
        assert record.eval_loss_standard_error == pytest.approx(other_record.eval_loss_standard_error, abs=1e-6)
        assert record.train_loss == pytest.approx(other_record.train_loss, abs=1e-6)
        assert record.drop_rate == pytest.approx(other_record.drop_rate)
        for name, weight in weights.items():
            torch.testing.assert_close(weight, other_weights[name], rtol=0, atol=2e-5)


def test_two_processes_train_what_one_trains(tiny, tmp_path):
    """With capacity: the capacity groups are the same, so the dropped tokens are."""
    # Two processes share the micro-batches of a step, so there must be an even number of them.
    one = tiny(run__micro_batch_sequences=1)
    two = one.replaced(run={"output_dir": str(tmp_path / "two")})
    assert Run(one).execute() == 0
    launch(two, 2)
    assert_close(results(one), results(two))


def test_a_run_goes_on_with_another_number_of_processes(tiny, tmp_path):
    whole = tiny(run__micro_batch_sequences=1)
    resumed = whole.replaced(run={"output_dir": str(tmp_path / "resumed")})
    assert Run(whole).execute() == 0
    launch(resumed, 2, "--schedule.tokens", "1280")
    launch(resumed, 1)
    assert_close(results(whole), results(resumed))
