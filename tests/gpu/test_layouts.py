"""Runs on several GPUs (NCCL) beside one, started as the guide starts them: every layout that there are GPUs for.

On a CPU two processes (gloo) stand in for those of DDP; FSDP2 shards nothing there.
"""

import os
import subprocess
import sys

import pytest
import torch

from tests.gpu.test_device import ON_GPU
from tests.training.ranks import save_configuration
from tests.training.run.test_processes import ROOT, assert_close, divides, gentle, results

__all__ = ["gentle"]

GPUS = torch.cuda.device_count()
FSDP2 = ("--config_file", "one_node_fsdp2")
HSDP = ("--config_file", "multi_node_hsdp", "--num_machines", "1")
HSDP += ("--parallelism_config_dp_replicate_size", "2", "--parallelism_config_dp_shard_size", "2")
EXPERTS = ("--run.expert_parallel", "2")
WIDTHS = (*EXPERTS, "--run.tensor_parallel", "2")
# Name → the processes, the launcher's words and those of train.py.
LAYOUTS = {
    "ddp": (2, ("--config_file", "one_node_ddp" if ON_GPU else "cpu_two_processes"), ()),
    "fsdp2": (2, FSDP2, ()),
    "experts": (2, FSDP2, EXPERTS),
    "widths": (2, FSDP2, WIDTHS),
    "hsdp": (4, HSDP, ()),
    "hsdp-experts": (4, HSDP, EXPERTS),
    "experts-widths": (4, FSDP2, WIDTHS),
}


def can_run(name: str, processes: int) -> bool:
    return processes <= GPUS or (name == "ddp" and not ON_GPU)


def parameters():
    """The layouts, of which those without GPUs enough, or without the libraries, are skipped."""
    for name, layout in LAYOUTS.items():
        marks = [pytest.mark.slow, pytest.mark.timeout(600)]
        marks += [divides] if EXPERTS[0] in layout[2] else []
        marks += [] if can_run(name, layout[0]) else [pytest.mark.skip(f"it needs {layout[0]} GPUs; there are {GPUS}")]
        yield pytest.param(*layout, id=name, marks=marks)


def launch(arguments, processes: int, words: tuple[str, ...], flags: tuple[str, ...]) -> None:
    """Run `accelerate launch train.py`, as a user does."""
    option, file, *others = words
    files = ROOT / "training" / "configs" / "accelerate"
    launcher = [sys.executable, "-m", "accelerate.commands.launch", option, str(files / f"{file}.yaml"), *others]
    training = ["train.py", "--config", str(save_configuration(arguments)), *flags]
    environment = os.environ | ({} if ON_GPU else {"ACCELERATE_USE_CPU": "true"})
    command = [*launcher, "--num_processes", str(processes), *training]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("processes", "words", "flags"), [*parameters()])
def test_several_gpus_train_what_one_trains(gentle, processes, words, flags):
    """The same losses, gradient norms, routing, records and weights, in fp32."""
    changes = {"schedule.tokens": [1280], "schedule.batch_ramp": ["0:4"], "model.n_heads": 2}
    one, several = gentle("one", **changes), gentle("several", **changes)
    launch(one, 1, ("--config_file", "single_gpu"), ())
    launch(several, processes, words, flags)
    assert_close(one, several)
    ((record, _),) = results(several).values()
    assert record.hardware.startswith(f"{processes} x ")
