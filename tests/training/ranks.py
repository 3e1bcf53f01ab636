"""Runs in processes of their own that need not import anything: they are forked from a server that has.

Several of them are the ranks of one run, with the environment that `accelerate launch` gives to the processes that it
starts for a configuration file.
"""

import gc
import multiprocessing
import os
import sys
from pathlib import Path

import datasets  # noqa: F401 (for the corpus of a run: imported once, and not in every process)
import torch
from accelerate import PartialState
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env

from scaling_law.figures.run_pictures import CAPTIONS
from tests.conftest import free_port
from tests.hub.samples import HIDDEN
from training.run import releaser
from training.run.main import main

PATIENCE_SECONDS = 900  # of wall time, which a busy machine makes long
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__])
# What was imported is left out of the collections of every process, each of which would take half a second for it.
gc.collect()
gc.freeze()


def without_drawing(*_) -> dict[str, bytes]:
    """Return pictures for the card of a run that are a few bytes each: to draw them takes as long as a tiny run."""
    return dict.fromkeys(CAPTIONS, b"\x89PNG\r\n\x1a\n")


def save_configuration(arguments) -> Path:
    path = Path(arguments.run.output_dir).with_suffix(".yaml")
    arguments.save(path)
    return path


def start(arguments, *flags: str, environment: dict[str, str] | None = None):
    """A process that trains; its exit code is the status of `train.py`."""
    process = SERVER.Process(target=_call, args=(environment or {}, _train, save_configuration(arguments), flags))
    process.start()
    return process


def launched_environment(*words: str) -> dict[str, str]:
    """What `accelerate launch` with these flags adds to the environment of the processes that it starts."""
    arguments = launch_command_parser().parse_args([*words, "train.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    before = dict(os.environ)
    return {name: value for name, value in prepare_multi_gpu_env(arguments).items() if before.get(name) != value}


def run_ranks(arguments, *flags: str, world: int = 2, environment: dict[str, str] | None = None) -> list[int]:
    """A run on `world` processes of this machine; returns their exit codes."""
    return run_together(_train, save_configuration(arguments), flags, world=world, environment=environment)


def run_together(function, *inputs, world: int = 2, environment: dict[str, str] | None = None) -> list[int]:
    """Call a function in `world` processes of this machine, which are ranks of one job; returns their exit codes."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {**(environment or {}), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    environments = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    ranks = [SERVER.Process(target=_call, args=(its_own, function, *inputs)) for its_own in environments]
    try:
        for process in ranks:
            process.start()
        return [wait_for(process) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.join()


def wait_for(process) -> int:
    """Wait until a process ends; its exit code. TimeoutError, and the process is killed, where time runs out first."""
    process.join(PATIENCE_SECONDS)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"time ran out: a process still runs after {PATIENCE_SECONDS} s, hung or on a busy machine")
    return process.exitcode


def _call(environment: dict[str, str], function, *inputs) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    releaser.run_pictures = without_drawing
    function(*inputs)


def print_without_ours(code: str, output: Path) -> list[str]:
    """Run code in a process in which this project cannot be imported, and transformers need not be.

    Returns the lines that it prints, which are in `output`, too. The classes that this project has registered with
    transformers stay so: what loads our class from its own code needs an interpreter of its own.
    """
    process = SERVER.Process(target=_call, args=({}, _run, HIDDEN + code, output))
    process.start()
    status, text = wait_for(process), output.read_text()
    assert status == 0, text
    return text.splitlines()


def _run(code: str, output: Path) -> None:
    with output.open("w") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    for name in [*sys.modules]:
        if name.split(".")[0] in ("hub", "modeling_switch_moe", "scaling_law", "training"):
            del sys.modules[name]
    exec(code, {"__name__": "__main__"})


def _train(config: Path, flags: tuple[str, ...]) -> None:
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        # On CPU Accelerate would train with DDP without saying so; this is what several GPUs would have.
        PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
    sys.exit(main(["--config", str(config), *flags]))
