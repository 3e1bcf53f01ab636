"""Starting `accelerate launch train.py` for several runs at a time, each on its own devices or share of the cores.

`accelerate launch` itself exits with status 1 whenever the training process did not exit with 0, so what became of a
run is read from its folder and not from the launcher.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from training.configuration.arguments import ConfigurationError

STOP_SECONDS = 120  # to write a checkpoint; then the run is killed, and resumes from the one before


def launch_command(on_cpu: bool, processes: int = 1, accelerate_config: Path | None = None) -> list[str]:
    """`accelerate launch train.py` on this machine; as a module where there is no train.py.

    Args:
        processes: of the run; with a configuration file, 1 leaves the number to the file.
        accelerate_config: a file as `accelerate config` writes it (`--config_file`).
    """
    launch = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    if accelerate_config is not None:
        launch += ["--config_file", str(accelerate_config)]
        launch += ["--num_processes", str(processes)] if processes > 1 else []
    else:
        launch += ["--num_processes", str(processes), "--num_machines", "1"]
        launch += ["--mixed_precision", "no", "--dynamo_backend", "no"]
        # `--cpu` starts a single process whatever --num_processes says; `--multi_gpu` starts them all, also on CPU.
        launch += ["--multi_gpu"] if processes > 1 else ["--cpu"] if on_cpu else []
    if accelerate_config is not None or processes > 1:
        launch += ["--main_process_port", "0"]  # any free one: other runs of the sweep need theirs
    script = Path(__file__).parents[2] / "train.py"
    return [*launch, str(script)] if script.exists() else [*launch, "-m", "training.run"]


def start(command: list[str], environment: dict[str, str], log: Path) -> psutil.Popen:
    """Start `command` with more variables in its environment; its output is appended to `log`."""
    with open(log, "a", encoding="utf-8") as output:
        return psutil.Popen(
            command,
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that a stop reaches the launcher's children, and Ctrl-C only us
        )


def interrupt(launcher: psutil.Popen) -> None:
    """Ask a run to save a checkpoint and stop."""
    # Only the training processes are asked. The launcher of several processes would otherwise pass the signal on a
    # second time, and kill them 30 seconds later.
    with suppress(psutil.NoSuchProcess):
        for process in launcher.children() or [launcher]:  # without children it is starting, or ending
            with suppress(psutil.NoSuchProcess):
                process.terminate()


def join(launcher: psutil.Popen) -> None:
    """Wait until a launcher and its children are gone; kill what is still there after `STOP_SECONDS`."""
    with suppress(ProcessLookupError):
        for _ in range(STOP_SECONDS * 10):
            launcher.poll()
            os.killpg(launcher.pid, 0)  # raises once the last of them is gone
            time.sleep(0.1)
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()


def environments(count: int, processes: int = 1, accelerate_config: Path | None = None) -> list[dict[str, str]]:
    """What gives each of `count` runs its devices: GPUs in turn if there are any, else an equal share of the cores.

    Raises:
        ConfigurationError: a run needs more GPUs than there are, or the configuration file cannot be used.
    """
    if accelerate_config is not None and processes == 1:
        from accelerate.commands.config.config_args import load_config_from_file

        try:
            processes = max(1, load_config_from_file(str(accelerate_config)).num_processes)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"--accelerate-config: {str(accelerate_config)!r}: {error}") from error
    if devices := _cuda_devices():
        groups = [devices[i : i + processes] for i in range(0, len(devices) - processes + 1, processes)]
        if not groups:
            raise ConfigurationError(f"--processes-per-run: {processes}; it must be at most {len(devices)}, the GPUs")
        return [{"CUDA_VISIBLE_DEVICES": ",".join(groups[i % len(groups)])} for i in range(count)]
    threads = max(1, (os.cpu_count() or 1) // (count * processes))
    return [{"OMP_NUM_THREADS": str(threads), "ACCELERATE_USE_CPU": "true"} for _ in range(count)]


def _cuda_devices() -> list[str]:
    import torch

    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    return [str(i) for i in range(torch.cuda.device_count())]
