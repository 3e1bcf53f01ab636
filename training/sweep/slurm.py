"""SLURM: a sweep as an array job, with a task for each trunk and its branches; as several where arrays are limited.

SLURM sends SIGTERM for its time limit, preemption and `scancel` alike, so the script asks for SIGUSR1 before the first
two: then a task saves a checkpoint, is queued again and resumes. One that fails or is cancelled is not.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from filelock import FileLock, Timeout

from hub.base import atomic
from training.configuration.arguments import ConfigurationError
from training.sweep.engine import EngineError, Outcome, seconds_of
from training.sweep.file import Sweep, SweepRun
from training.sweep.run import STOP_SECONDS
from training.sweep.status import Job, State

MULTI_NODE_CONFIG = Path(__file__).parents[1] / "configs" / "accelerate" / "multi_node_fsdp2.yaml"
# A file in the folder of a sweep that was submitted.
ARRAYS = "arrays.json"
LOCK = ".submit.lock"
LOCK_SECONDS = 600
# Seconds between the signal and the end, to write a checkpoint and to requeue.
WARNING_SECONDS = STOP_SECONDS + 60
# Seconds that the signal may come before that.
_EARLY_SECONDS = 60
_SQUEUE = ["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%T|%r|%j"]
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "PREEMPTED"}
_FAILED = ("BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
_ENDED: dict[str, State | None] = {**dict.fromkeys(_FAILED, "failed"), "CANCELLED": "waiting", "COMPLETED": None}

_TRAP = """\
name=${RUNS[$SLURM_ARRAY_TASK_ID]}
child= stopping= requeue= interrupted=
stop() { stopping=1; requeue=$1; interrupted=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null; }
trap 'stop 1' USR1  # Slurm's warning before the time limit, or before another job takes the place
trap 'stop ""' TERM  # scancel; or Slurm, which has put the job back into the queue itself
"""
_END = """\
child=$!
[ -z "$stopping" ] || kill -TERM "$child" 2>/dev/null  # the signal came before there was a child
wait "$child"; status=$?
# A trapped signal ends `wait` early, with a status of its own, while the run saves its checkpoint or has just ended.
while [ -n "$interrupted" ]; do interrupted=; wait "$child"; status=$?; done
if [ -n "$requeue" ] && [ "$status" -ne 0 ]; then
  echo "run $name was stopped (status $status) and goes back into the queue"
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
fi
exit "$status"
"""


@dataclass(frozen=True)
class Slurm:
    """Jobs of SLURM; submit from the folder that relative paths of the sweep start in, on a shared file system.

    `ARRAYS` has the names of the runs of each array by the name of its jobs, and is written before it is sent: so the
    queue has the jobs of a submit that is killed, too. The fields are options of `run --on slurm`. By default a run is
    DDP on one node and FSDP2 on several.
    """

    gpus: int = 1
    nodes: int = 1
    time: str = "24:00:00"
    partition: str | None = None
    account: str | None = None
    at_most: int | None = None
    accelerate_config: Path | None = None
    sbatch: Sequence[str] = ()
    setup: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.nodes > 1 and not self.gpus:
            raise ConfigurationError(f"--nodes: {self.nodes} need --gpus of 1 or more; a run on CPU has one node")
        least_seconds = WARNING_SECONDS + _EARLY_SECONDS
        if seconds_of(self.time) <= least_seconds:
            raise ConfigurationError(
                f"--time: {self.time!r}; it must be more than {least_seconds // 60} minutes, when the warning to save "
                "may come"
            )
        for option in self.sbatch:
            if not option.startswith("-") or "\n" in option or re.match("--job-name|-J|--array|-a", option):
                raise ConfigurationError(
                    f"--sbatch: {option!r}; it must be one option with its dashes, such as --mem=64G, and neither "
                    "--job-name nor --array, by which `status` and `cancel` find the runs"
                )

    def preview(self, sweep: Sweep, sweep_file: Path) -> str:
        """Write the script for `sbatch`.

        Raises ConfigurationError if a job's processes cannot share a run's batches.
        """
        for run in sweep.runs:
            run.arguments.check_processes(self.nodes * max(self.gpus, 1))
        head = ["#!/bin/bash", *(f"#SBATCH {option}" for option in self._options(sweep)), "", "set -u", *self.setup]
        head += [f"PYTHON=${{PYTHON:-{shlex.quote(sys.executable)}}}", "RUNS=("]
        head += [*(f"  {shlex.quote(run.name)}" for run in sweep.runs), ")"]
        start = self._on_several_nodes(sweep_file) if self.nodes > 1 else self._on_one_node(sweep_file)
        return "\n".join([*head, _TRAP, start, _END])

    def _options(self, sweep: Sweep) -> list[str]:
        """List the options of `sbatch`."""
        limit = f"%{self.at_most}" if self.at_most else ""
        options = [
            f"--job-name={_job_name(sweep)}",
            f"--array=0-{len(sweep.runs) - 1}{limit}",
            f"--nodes={self.nodes}",
            "--ntasks-per-node=1",
        ]
        if self.gpus:
            options.append(f"--gpus-per-node={self.gpus}")
        options += [
            f"--signal=B:USR1@{WARNING_SECONDS}",
            "--requeue",
            "--open-mode=append",
            "--output=slurm-%A_%a.log",
            f"--time={self.time}",
        ]
        if self.partition:
            options.append(f"--partition={self.partition}")
        if self.account:
            options.append(f"--account={self.account}")
        return [*options, *self.sbatch]

    def submit(self, sweep: Sweep, sweep_file: Path) -> Outcome:
        """Queue the runs that are not finished, waiting or running, in arrays as large as the cluster allows.

        A lock keeps two submits from sending the same run. Raises EngineError if another holds it for `LOCK_SECONDS`.
        """
        sweep.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(sweep.folder / LOCK, timeout=LOCK_SECONDS):
                return self._submit(sweep, sweep_file)
        except Timeout:
            raise EngineError(f"{sweep.folder}: another `run` has been submitting it for {LOCK_SECONDS} s") from None

    def _submit(self, sweep: Sweep, sweep_file: Path) -> Outcome:
        queue = self.queue(sweep.runs)
        outcome = Outcome()
        runs_to_queue = []
        for run in sorted(sweep.runs, key=lambda run: run.cost, reverse=True):
            if run.complete:
                outcome.add(run, 0)
            elif any(job.alive for job in queue[run.name]):
                outcome.elsewhere.append(run.name)
            else:
                runs_to_queue.append(run)
        if not runs_to_queue:
            return outcome
        size = _largest_array()
        array = ""
        for start in range(0, len(runs_to_queue), size):
            array_sweep = Sweep(sweep.name, tuple(runs_to_queue[start : start + size]))
            sbatch = ["sbatch", "--parsable"]
            if array and self.at_most:
                # The limit on runs at a time holds within an array, so an array waits for the one before.
                sbatch.append(f"--dependency=afterany:{array}")
            script = self.preview(array_sweep, sweep_file)
            names = [run.name for run in array_sweep.runs]
            arrays = _read_arrays(sweep.folder)
            atomic.write_json(sweep.folder / ARRAYS, {**arrays, _job_name(array_sweep): names})
            array = _command(sbatch, script).split(";")[0].strip()
            outcome.queued.update({name: f"{array}_{i}" for i, name in enumerate(names)})
        return outcome

    def queue(self, runs: Sequence[SweepRun]) -> Mapping[str, list[Job]]:
        """Return the jobs by the names of these runs; those that are alive come last.

        squeue forgets a job some minutes after its end.
        """
        queue: dict[str, list[Job]] = {run.name: [] for run in runs}
        arrays = _read_arrays(runs[0].folder.parent) if runs else {}
        if not arrays:
            return queue
        for line in _command(_SQUEUE).splitlines():
            task, slurm_state, reason, job_name = line.strip().split("|", 3)
            if job_name in arrays:
                name = arrays[job_name][int(task.partition("_")[2])]
                if name in queue:
                    queue[name].append(_read_job(task, slurm_state, reason))
        for jobs in queue.values():
            jobs.sort(key=lambda job: job.alive)
        return queue

    def cancel(self, runs: Sequence[SweepRun]) -> list[str]:
        """Stop waiting and running runs for good, and return their names.

        The time that `scancel` leaves a run to save a checkpoint is the cluster's KillWait.
        """
        cancelled = {}
        for name, jobs in self.queue(runs).items():
            ids = [job.id for job in jobs if job.alive]
            if ids:
                cancelled[name] = ids
        if cancelled:
            _command(["scancel", *chain(*cancelled.values())])
        return list(cancelled)

    def _on_one_node(self, sweep_file: Path) -> str:
        """Write the line that starts a run on one node."""
        start = f'"$PYTHON" -m training.sweep run {shlex.quote(str(sweep_file))} --only "$name"'
        if self.gpus > 1:
            start += f" --processes-per-run {self.gpus}"
        if self.accelerate_config:
            start += f" --accelerate-config {shlex.quote(str(self.accelerate_config))}"
        return start + " &"

    def _on_several_nodes(self, sweep_file: Path) -> str:
        """Write the lines that start a run on several nodes."""
        settings = shlex.quote(str(self.accelerate_config or MULTI_NODE_CONFIG))
        # Single quotes: every node fills in its own rank.
        return f"""\
CONFIG=$("$PYTHON" -m training.sweep config {shlex.quote(str(sweep_file))} "$name") || exit 2
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export PYTHON CONFIG MASTER_ADDR MASTER_PORT GPUS={self.gpus} SETTINGS={settings}
srun --kill-on-bad-exit=1 bash -c '
  exec "$PYTHON" -m accelerate.commands.accelerate_cli launch \\
    --config_file "$SETTINGS" --num_machines $SLURM_NNODES --num_processes $((SLURM_NNODES * GPUS)) \\
    --machine_rank $SLURM_NODEID --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT \\
    -m training.run --config "$CONFIG" --run.progress false
' &"""


def _job_name(sweep: Sweep) -> str:
    """Name the jobs of an array after the sweep, its folder and the runs of the array."""
    text = "\n".join([str(sweep.folder.resolve()), *(run.name for run in sweep.runs)])
    return f"{sweep.name}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _read_arrays(folder: Path) -> dict[str, list[str]]:
    arrays: dict[str, list[str]] = atomic.read_json(folder / ARRAYS, {}, dict[str, list[str]])
    return arrays


def _largest_array() -> int:
    """Ask how many tasks the cluster allows in an array."""
    limits = re.findall(r"(?:\bMaxArraySize\s*=\s*|\bmax_array_tasks=)(\d+)", _command(["scontrol", "show", "config"]))
    return max(1, min(map(int, limits)))


def _read_job(task: str, slurm_state: str, reason: str) -> Job:
    text = slurm_state.lower()
    if slurm_state in _WAITING:
        return Job(task, f"{text} ({reason})", alive=True, state="waiting")
    if slurm_state not in _ENDED:
        return Job(task, text, alive=True, state="running")
    return Job(task, text, alive=False, state=_ENDED[slurm_state])


def _command(words: list[str], script: str | None = None) -> str:
    """Run a command of SLURM and return its output. Raises EngineError with its error."""
    try:
        process = subprocess.run(words, input=script, text=True, capture_output=True, check=False)
    except FileNotFoundError:
        raise EngineError(f"slurm: this machine has no {words[0]}; use a login node of the cluster") from None
    if process.returncode:
        raise EngineError(f"slurm: {words[0]} failed: {process.stderr.strip() or process.stdout.strip()}")
    return process.stdout
