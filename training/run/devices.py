"""Processes and devices: the Accelerator of a run, what its processes decide together, their signals and hardware.

`accelerate launch` gives the number of processes and DDP or FSDP2; what would change the numbers is set here.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.context
import os
import platform
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import psutil
import torch

from scaling_law.machine.gpus import find_gpu
from training.configuration.arguments import ConfigurationError, RunArguments
from training.run.attempt import signals_to_stop
from training.run.environment import check_environment, count_launched, describe_environment, read_count

if TYPE_CHECKING:
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin

logger = logging.getLogger(__name__)

# Programs and modules.
_LAUNCHERS = {
    *("accelerate", "accelerate-launch", "torchrun"),
    *("accelerate.commands.accelerate_cli", "accelerate.commands.launch", "torch.distributed.run"),
}


def make_accelerator(run: RunArguments) -> Accelerator:
    """Make the Accelerator of this process.

    Raises ConfigurationError if the environment asks for what `train.py` does not do, the launcher's FSDP settings or
    mesh are not supported, or the processes cannot find each other.
    """
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    check_environment(run)
    launched = count_launched()
    is_sharded = os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
    if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG", "").lower() == "true":
        _check_mesh(launched, is_sharded)
    # The only buffers are the constant tables of the rotary positions: nothing to send before every forward pass.
    ddp = DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True)
    plugin = _fsdp_plugin() if is_sharded else None
    try:
        accelerator = Accelerator(
            # Accelerate's launcher does not hand on a file's `use_cpu` to several processes; without it and without a
            # GPU each of them would train alone.
            cpu=launched > 1 and not torch.accelerator.is_available(),
            mixed_precision="bf16" if run.precision == "bf16" else "no",
            project_dir=str(Path(run.output_dir)),
            fsdp_plugin=plugin,
            kwargs_handlers=[ddp],
        )
    # There is a mesh of CPUs, over which Accelerate does not shard, or no address to meet at.
    except ValueError as error:
        raise ConfigurationError(f"accelerate launch: {' '.join(str(error).split())}") from None
    if accelerator.num_processes < launched:
        raise ConfigurationError(
            f"accelerate launch: {launched} processes were started, and each of them would train alone on "
            f"{accelerator.device.type}; set ACCELERATE_USE_CPU=true to train on CPU"
        )
    if is_fork():
        # The fork of a notebook lacks the notebook's threads of OpenMP, and would wait for them for ever.
        torch.set_num_threads(1)
    if accelerator.device.type == "xla":
        raise ConfigurationError("torch_xla: train.py does not train through it; set USE_TORCH_XLA=false")
    _check_equal_environments(accelerator)
    if accelerator.is_main_process:
        _announce(accelerator, is_sharded)
    return accelerator


def is_fork() -> bool:
    """Return whether this process was forked; FORK_LAUNCHED of Accelerate's notebook_launcher is not always set."""
    # Without a fork, as on Windows, there is no such class.
    fork = getattr(multiprocessing.context, "ForkProcess", None)
    return fork is not None and isinstance(multiprocessing.current_process(), fork)


def _check_equal_environments(accelerator: Accelerator) -> None:
    """Raise ConfigurationError on all processes if the environment of one differs from that of the first."""
    from accelerate.utils import gather_object

    if accelerator.num_processes == 1:
        return
    first, *environments = gather_object([describe_environment()])
    for number, environment in enumerate(environments, start=1):
        for name in sorted(first.keys() | environment.keys()):
            first_value = first.get(name, "unset")
            value = environment.get(name, "unset")
            if value != first_value:
                raise ConfigurationError(
                    f"{name}: {first_value} in process 0, {value} in process {number}; it must be the same in all"
                )


def _announce(accelerator: Accelerator, is_sharded: bool) -> None:
    """Log the settings of the environment, and where its sharding has no effect."""
    environment = describe_environment()
    if environment:
        settings = ", ".join(f"{name}={value}" for name, value in environment.items())
        logger.warning("the environment may change numbers; the run record has it: %s", settings)
    if is_sharded and not accelerator.is_fsdp2:
        hardware = f"{accelerator.num_processes} x {accelerator.device.type}"
        logger.warning("nothing is sharded on %s: FSDP2 needs several GPUs", hardware)


def _check_mesh(processes: int, is_sharded: bool) -> None:
    """Raise ConfigurationError unless the launcher's mesh is of replicas and shards, and of so many processes."""
    names = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    sizes = {name: read_count(f"PARALLELISM_CONFIG_{name.upper()}_SIZE") or 1 for name in names}
    replicas = sizes["dp_replicate"]
    shards = sizes["dp_shard"]
    problem = None
    if sizes["tp"] > 1:
        problem = "tp must be 1, set run.tensor_parallel"
    elif sizes["cp"] > 1 or sizes["sp"] > 1:
        problem = "train.py has no context or sequence parallelism: cp and sp must be 1"
    elif not is_sharded:
        problem = "it needs fsdp_config.fsdp_version 2"
    elif replicas * shards != processes or shards < 2:
        problem = f"dp_replicate × dp_shard must be the {processes} processes, and dp_shard at least 2"
    if problem:
        mesh = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ConfigurationError(f"accelerate's parallelism_config: {mesh}; {problem}")


def _fsdp_plugin() -> FullyShardedDataParallelPlugin:
    """Read the launcher's FSDP settings; `training.run.sharding` decides on groups and their precision.

    FSDP's own would round the losses (steps of 0.008) and the router's weights to bf16.
    """
    from accelerate.utils import FullyShardedDataParallelPlugin

    version = os.environ.get("FSDP_VERSION", "1")
    if version != "2":
        raise ConfigurationError(f"accelerate's fsdp_config.fsdp_version: {version}; it must be 2")
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        # The model comes sharded.
        auto_wrap_policy="no_wrap",
        state_dict_type="SHARDED_STATE_DICT",
        cpu_ram_efficient_loading=False,
    )


def has_process_group() -> bool:
    """Return whether somebody has started the group of the processes, such as Ray, who then also ends it."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def any_process(accelerator: Accelerator, *flags: bool) -> list[bool]:
    """Return for each flag whether it is set on any process; collective."""
    # One process need not wait for the device.
    if accelerator.num_processes == 1:
        return list(flags)
    counts = torch.tensor([float(flag) for flag in flags], device=accelerator.device)
    return [count > 0 for count in accelerator.reduce(counts, "sum").tolist()]


def begin_reading(values: torch.Tensor) -> Callable[[], list[float]]:
    """Begin to copy values to the host; returns a function that waits for them, but for nothing launched since."""
    if values.device.type != "cuda":
        return values.tolist
    on_host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    on_host.copy_(values, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def wait_for_values() -> list[float]:
        copied.synchronize()
        return on_host.tolist()

    return wait_for_values


def on_main(accelerator: Accelerator, function: Callable[[], Any]) -> Any:
    """Call a function on the main process; return its picklable result, or raise its OSError or ValueError, on all."""
    from accelerate.utils import broadcast_object_list

    # The result, and the error.
    outcome: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = function()
        except (OSError, ValueError) as error:
            outcome[1] = error
    broadcast_object_list(outcome)
    result, failure = outcome
    if failure is not None:
        raise failure
    return result


class StopSignal:
    """Memory of the first SIGINT, SIGTERM or SIGHUP, in `number`, for the loop to stop between two steps.

    The launcher's end counts as a SIGTERM: `accelerate launch` of one process dies without passing the signal on.
    """

    number: int | None = None

    def __init__(self) -> None:
        parent = os.getppid()
        words: list[str] = []
        with suppress(psutil.Error):
            words = psutil.Process(parent).cmdline()
        is_launcher = _LAUNCHERS & {Path(word).name for word in words[:3]}
        # A shell may end before the processes that it started.
        self._launcher = parent if is_launcher else None
        # The handlers that were there before.
        self._handlers: dict[int, Any] = {}

    def install(self) -> None:
        """Set the handlers of signals, for which only the main thread of a process may ask."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in signals_to_stop():
            self._handlers[number] = signal.signal(number, self._remember)

    def uninstall(self) -> None:
        """Put the handlers back that were there before."""
        for number, handler in self._handlers.items():
            # A handler that was not set from Python cannot be.
            if handler is not None:
                signal.signal(number, handler)
        self._handlers.clear()

    def requested(self) -> bool:
        """Return whether to stop."""
        if self.number is None and self._launcher is not None and os.getppid() != self._launcher:
            logger.warning("the launcher is gone (process %d): stopping as at SIGTERM", self._launcher)
            self.number = signal.SIGTERM
        return self.number is not None

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        # A second Ctrl-C gives up the checkpoint. A second SIGTERM does not: a scheduler often sends two, one to every
        # process of a node and one passed on by the launcher.
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


def describe(device: torch.device, world_size: int) -> str:
    """Return number and name of the devices: `8 x NVIDIA H100 80GB HBM3`, `1 x AMD EPYC (2 threads)`."""
    return f"{world_size} x {name(device)}"


def name(device: torch.device) -> str:
    """Return the name of a device: `NVIDIA H100 80GB HBM3`, `AMD EPYC (2 threads)`, `Apple M2 (mps)`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*: (.*)", info.read_text() if info.exists() else "", re.MULTILINE)
    processor = match[1].strip() if match else platform.processor() or platform.machine()
    detail = f"{torch.get_num_threads()} threads" if device.type == "cpu" else device.type
    return f"{processor} ({detail})"


def peak_flops(device: torch.device) -> float | None:
    """Return the peak dense bf16 FLOP/s of a device; None where no data sheet is known here (a CPU, say)."""
    if device.type != "cuda":
        return None
    gpu = find_gpu(torch.cuda.get_device_name(device))
    return gpu.peak_flops if gpu else None


def device_memory(device: torch.device) -> int:
    """Return the bytes of memory of the GPU, or of this machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total


def peak_memory(device: torch.device) -> int:
    """Return the peak bytes of the tensors on this device so far; on CPU, of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
