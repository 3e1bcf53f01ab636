"""A sweep as a SLURM array script: one task for each trunk with its branches.

A task stopped by preemption or its time limit saves a checkpoint, is queued again and resumes; a failed one is not.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from training.configuration.arguments import ConfigurationError
from training.sweep.file import Sweep
from training.sweep.run import STOP_SECONDS

MULTI_NODE_CONFIG = Path(__file__).parents[1] / "configs" / "accelerate" / "multi_node_fsdp2.yaml"
WARNING_SECONDS = STOP_SECONDS + 60  # between the signal and the end: to write a checkpoint, and to requeue

_TRAP = """\
name=${RUNS[$SLURM_ARRAY_TASK_ID]}
child= stopping=
stop() { stopping=1; [ -z "$child" ] || kill -TERM "$child"; }
trap stop TERM
"""
_END = """\
child=$!
[ -z "$stopping" ] || kill -TERM "$child"  # the signal came before there was a child
wait "$child"; status=$?
# A trapped signal ends `wait` early; the run is then still saving its checkpoint.
while kill -0 "$child" 2>/dev/null; do wait "$child"; status=$?; done
if [ -n "$stopping" ]; then
  echo "run $name was stopped (status $status) and goes back into the queue"
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
fi
exit "$status"
"""


def script(
    sweep: Sweep,
    sweep_file: Path,
    gpus: int = 1,
    nodes: int = 1,
    at_most: int | None = None,
    accelerate_config: Path | None = None,
    sbatch: Sequence[str] = (),
    setup: Sequence[str] = (),
) -> str:
    """The script, for `sbatch`; to be submitted from the folder that relative paths of the sweep start in.

    `gpus` are of each node (0 trains on CPU), and `at_most` runs go at a time. Without an `accelerate_config` it is
    DDP on one node and FSDP2 on several. `sbatch` adds options, each with its dashes, and `setup` shell lines to run
    first.

    Raises ConfigurationError if a job's processes cannot share the batches of a run, or an option is none.
    """
    if nodes > 1 and not gpus:
        raise ConfigurationError(f"--nodes: {nodes} nodes need --gpus of 1 or more; a run on CPU has one node")
    for run in sweep.runs:
        run.arguments.check_processes(nodes * max(gpus, 1))
    for option in sbatch:
        if not option.startswith("-") or "\n" in option:
            raise ConfigurationError(f"--sbatch: {option!r}; it must be one option with its dashes, such as --mem=64G")
    options = [
        f"--job-name={sweep.name}",
        f"--array=0-{len(sweep.runs) - 1}{f'%{at_most}' if at_most else ''}",
        *(f"--nodes={nodes}", "--ntasks-per-node=1", *([f"--gpus-per-node={gpus}"] if gpus else [])),
        *(f"--signal=B:TERM@{WARNING_SECONDS}", "--requeue", "--open-mode=append", "--output=slurm-%A_%a.log"),
        *sbatch,
    ]
    head = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "", "set -u", *setup]
    head += [f"PYTHON=${{PYTHON:-{shlex.quote(sys.executable)}}}", "RUNS=("]
    head += [*(f"  {shlex.quote(run.name)}" for run in sweep.runs), ")"]
    file = shlex.quote(str(sweep_file))
    if nodes > 1:
        start = _several_nodes(file, gpus, shlex.quote(str(accelerate_config or MULTI_NODE_CONFIG)))
    else:
        start = f'"$PYTHON" -m training.sweep run {file} --only "$name"'
        start += f" --processes-per-run {gpus}" if gpus > 1 else ""
        start += f" --accelerate-config {shlex.quote(str(accelerate_config))}" if accelerate_config else ""
        start += " &"
    return "\n".join([*head, _TRAP, start, _END])


def _several_nodes(file: str, gpus: int, settings: str) -> str:
    # Single quotes: every node fills in its own rank.
    return f"""\
CONFIG=$("$PYTHON" -m training.sweep config {file} "$name") || exit 2
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export PYTHON CONFIG MASTER_ADDR MASTER_PORT GPUS={gpus} SETTINGS={settings}
srun --kill-on-bad-exit=1 bash -c '
  exec "$PYTHON" -m accelerate.commands.accelerate_cli launch \\
    --config_file "$SETTINGS" --num_machines $SLURM_NNODES --num_processes $((SLURM_NNODES * GPUS)) \\
    --machine_rank $SLURM_NODEID --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT \\
    -m training.run --config "$CONFIG" --run.progress false
' &"""
