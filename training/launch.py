"""Starting `accelerate launch train.py` for several runs at a time, each on its own device or share of the cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STOP_SECONDS = 120  # to write a checkpoint; then the run is killed, and goes on from the one before


def launch_command(on_cpu: bool) -> list[str]:
    """`accelerate launch train.py` for one process; the same entry point as a module where train.py is not at hand."""
    launch = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--num_processes", "1"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch += ["--cpu"] if on_cpu else []
    script = Path(__file__).parent.parent / "train.py"
    return [*launch, str(script)] if script.exists() else [*launch, "-m", "training.run"]


@dataclass
class Worker:
    """One place where a run can be trained: a GPU, or a share of the CPU cores."""

    environment: dict[str, str]
    on_cpu: bool
    process: subprocess.Popen | None = None

    def start(self, config: Path, log: Path) -> None:
        """Launch the run of a configuration file; its output is appended to `log`."""
        command = [*launch_command(self.on_cpu), "--config", str(config), "--run.progress", "false"]
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

    def stop(self) -> None:
        """Ask the run to save a checkpoint and stop, and wait until the launcher and its children are gone."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()
            for _ in range(_STOP_SECONDS * 10):
                os.killpg(self.process.pid, 0)  # raises once the last of them is gone
                time.sleep(0.1)
            os.killpg(self.process.pid, signal.SIGKILL)


def workers(count: int) -> list[Worker]:
    """`count` workers: GPUs in turn where there are any, else the cores shared out evenly."""
    if devices := _cuda_devices():
        return [Worker({"CUDA_VISIBLE_DEVICES": devices[i % len(devices)]}, on_cpu=False) for i in range(count)]
    threads = max(1, (os.cpu_count() or 1) // count)
    return [Worker({"OMP_NUM_THREADS": str(threads)}, on_cpu=True) for _ in range(count)]


def _cuda_devices() -> list[str]:
    import torch

    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    return [str(i) for i in range(torch.cuda.device_count())]
