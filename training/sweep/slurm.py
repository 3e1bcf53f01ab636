"""A sweep as a SLURM array script: one task for each trunk with its branches.

A task that is stopped, by preemption or by the time limit, is told three minutes ahead, saves a checkpoint and is put
back into the queue, where it goes on from there. A run that fails or diverges is not put back.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from training.configuration.arguments import ConfigurationError
from training.sweep.file import Sweep
from training.sweep.launch import STOP_SECONDS

MULTI_NODE_CONFIG = Path(__file__).parents[1] / "configs" / "accelerate" / "multi_node_fsdp2.yaml"
WARNING_SECONDS = STOP_SECONDS + 60  # between the signal and the end: to write a checkpoint, and to requeue


@dataclass(frozen=True)
class Job:
    """What a task of the array asks for.

    Attributes:
        gpus: of each node; 0 trains on CPU.
        nodes: of each run.
        time: the limit of one start, as sbatch takes it; a run may need many.
        at_most: runs at a time.
        accelerate_config: a file of `accelerate config`; by default DDP on one node, and FSDP2 on several.
        sbatch: other options, each with its dashes.
        setup: shell lines to run first.
    """

    gpus: int = 1
    nodes: int = 1
    time: str = "24:00:00"
    partition: str | None = None
    account: str | None = None
    at_most: int | None = None
    accelerate_config: Path | None = None
    sbatch: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()


def script(sweep: Sweep, sweep_file: Path, job: Job) -> str:
    """The script, for `sbatch`; to be submitted from the folder that relative paths of the sweep start in.

    Raises:
        ConfigurationError: the processes of the job cannot share the batches of a run.
    """
    if job.nodes > 1 and not job.gpus:
        raise ConfigurationError(f"--nodes: {job.nodes} nodes need --gpus of 1 or more; a run on CPU has one node")
    for run in sweep.runs:
        run.arguments.check_processes(job.nodes * max(job.gpus, 1))
    return "\n".join([*_options(sweep, job), "", *_choice(sweep, job), "", *_body(sweep_file, job), "", *_END, ""])


def _options(sweep: Sweep, job: Job) -> list[str]:
    last, limit = len(sweep.runs) - 1, f"%{job.at_most}" if job.at_most else ""
    options = [f"--job-name={sweep.name}", f"--array=0-{last}{limit}", f"--nodes={job.nodes}", "--ntasks-per-node=1"]
    options += [f"--gpus-per-node={job.gpus}"] if job.gpus else []
    options += [f"--time={job.time}"]
    options += [f"--partition={job.partition}"] if job.partition else []
    options += [f"--account={job.account}"] if job.account else []
    options += [f"--signal=B:TERM@{WARNING_SECONDS}", "--requeue", "--open-mode=append", "--output=slurm-%A_%a.log"]
    for option in (*options, *job.sbatch):
        if not option.startswith("-") or "\n" in option:
            raise ConfigurationError(f"--sbatch: {option!r}; write one option with its dashes, such as --mem=64G")
    return ["#!/bin/bash", *(f"#SBATCH {option}" for option in (*options, *job.sbatch))]


def _choice(sweep: Sweep, job: Job) -> list[str]:
    names = "\n".join(f"  {shlex.quote(run.name)}" for run in sweep.runs)
    return [
        "set -u",
        *job.setup,
        f"PYTHON=${{PYTHON:-{shlex.quote(sys.executable)}}}",
        f"RUNS=(\n{names}\n)",
        "name=${RUNS[$SLURM_ARRAY_TASK_ID]}",
        "child= stopping=",
        'stop() { stopping=1; [ -z "$child" ] || kill -TERM "$child"; }',
        "trap stop TERM",
    ]


def _body(sweep_file: Path, job: Job) -> list[str]:
    file = shlex.quote(str(sweep_file))
    if job.nodes == 1:
        given = f" --accelerate-config {shlex.quote(str(job.accelerate_config))}" if job.accelerate_config else ""
        processes = f" --processes-per-run {job.gpus}" if job.gpus > 1 else ""
        return [f'"$PYTHON" -m training.sweep run {file} --only "$name"{processes}{given} &']
    settings = shlex.quote(str(job.accelerate_config or MULTI_NODE_CONFIG))
    return [
        f'CONFIG=$("$PYTHON" -m training.sweep config {file} "$name") || exit 2',
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
        f"export PYTHON CONFIG MASTER_ADDR MASTER_PORT GPUS={job.gpus}",
        "# Single quotes: every node fills in its own rank.",
        "srun --kill-on-bad-exit=1 bash -c '",
        '  exec "$PYTHON" -m accelerate.commands.accelerate_cli launch \\',
        f"    --config_file {settings} --num_machines $SLURM_NNODES --num_processes $((SLURM_NNODES * GPUS)) \\",
        "    --machine_rank $SLURM_NODEID --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT \\",
        '    -m training.run.main --config "$CONFIG" --run.progress false',
        "' &",
    ]


_END = [
    "child=$!",
    '[ -z "$stopping" ] || kill -TERM "$child"  # the signal came before there was a child',
    'wait "$child"; status=$?',
    "# A trapped signal ends `wait` early; the run is then still saving its checkpoint.",
    'while kill -0 "$child" 2>/dev/null; do wait "$child"; status=$?; done',
    'if [ -n "$stopping" ]; then',
    '  echo "run $name was stopped (status $status) and goes back into the queue"',
    '  scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
    "fi",
    'exit "$status"',
]
