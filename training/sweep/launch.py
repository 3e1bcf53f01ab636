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
from dataclasses import dataclass
from pathlib import Path

import psutil

from training.configuration.arguments import ConfigurationError

STOP_SECONDS = 120  # to write a checkpoint; then the run is killed, and goes on from the one before


def launch_command(on_cpu: bool, processes: int = 1, accelerate_config: Path | None = None) -> list[str]:
    """`accelerate launch train.py` on this machine; as a module where train.py is not at hand.

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


@dataclass
class Worker:
    """One place where a run can be trained: some GPUs, or a share of the CPU cores."""

    environment: dict[str, str]
    on_cpu: bool
    processes: int = 1
    accelerate_config: Path | None = None
    process: subprocess.Popen | None = None

    def start(self, config: Path, log: Path) -> None:
        """Launch the run of a configuration file; its output is appended to `log`."""
        command = launch_command(self.on_cpu, self.processes, self.accelerate_config)
        command += ["--config", str(config), "--run.progress", "false"]
        with open(log, "a", encoding="utf-8") as output:
            # A session of its own, so that a stop reaches the launcher's children and Ctrl-C does not, past us.
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def exit_status(self) -> int | None:
        """Of the run that was started; None while it goes on."""
        return self.process.poll()

    def interrupt(self) -> None:
        """Ask the run to save a checkpoint and stop."""
        if self.process is None:
            return
        # Only the training processes are asked. The launcher of several processes would otherwise pass the signal on a
        # second time, and kill them 30 seconds later.
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            children = psutil.Process(self.process.pid).children()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.send_signal(signal.SIGTERM)
            if not children:  # not started yet, or ending
                os.killpg(self.process.pid, signal.SIGTERM)

    def join(self) -> None:
        """Wait until the launcher and its children are gone; kill what is still there after `STOP_SECONDS`."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            for _ in range(STOP_SECONDS * 10):
                self.process.poll()
                os.killpg(self.process.pid, 0)  # raises once the last of them is gone
                time.sleep(0.1)
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def workers(count: int, processes: int = 1, accelerate_config: Path | None = None) -> list[Worker]:
    """`count` workers of `processes` processes: GPUs in turn where there are any, else the cores shared out evenly.

    Raises:
        ConfigurationError: a run needs more GPUs than there are, or the configuration file cannot be used.
    """
    per_run = processes
    if accelerate_config is not None and processes == 1:
        per_run = _processes_of(accelerate_config)
    if devices := _cuda_devices():
        groups = [devices[i : i + per_run] for i in range(0, len(devices) - per_run + 1, per_run)]
        if not groups:
            raise ConfigurationError(f"--processes-per-run: {per_run}; there are {len(devices)} GPUs")
        places = [{"CUDA_VISIBLE_DEVICES": ",".join(groups[i % len(groups)])} for i in range(count)]
        return [Worker(place, False, processes, accelerate_config) for place in places]
    threads = max(1, (os.cpu_count() or 1) // (count * per_run))
    place = {"OMP_NUM_THREADS": str(threads), "ACCELERATE_USE_CPU": "true"}
    return [Worker(dict(place), True, processes, accelerate_config) for _ in range(count)]


def _processes_of(accelerate_config: Path) -> int:
    from accelerate.commands.config.config_args import load_config_from_file

    try:
        config = load_config_from_file(str(accelerate_config))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"--accelerate-config: {str(accelerate_config)!r}: {error}") from error
    return max(1, config.num_processes)


def _cuda_devices() -> list[str]:
    import torch

    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    return [str(i) for i in range(torch.cuda.device_count())]
