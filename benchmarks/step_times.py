"""Step times of other labs' runs, for what they can say: how shapes compare, not how fast a GPU is.

Step Law's MoE runs (arXiv 2503.04715; H800, their number not stated) have an average time of their iterations. Within
one shape and batch these times lie in clusters, up to 3.6 times apart: the runs were on different numbers of GPUs. The
fastest are read, as if on equally many.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scaling_law.machine.throughput import Measurement
from scaling_law.runs.rows import RunsError
from scaling_law.runs.table import Runs, load_runs
from scaling_law.size.architecture import Architecture

STEP_LAW_LENGTH = 2048
_COLUMNS = ("average_iter_time", "batch", "d_ff", "d_expert", "sed", "numld")


def step_law_steps(source: Any) -> list[Measurement]:
    """The least iteration time of each shape and batch in Step Law's table of MoE runs, smallest batches first.

    A step is taken to be one pass. RunsError for another table, and for one without `average_iter_time`.
    """
    runs = load_runs(source, format="step_law", on_invalid="skip")
    if missing := [name for name in _COLUMNS if name not in runs]:
        raise RunsError(f"{runs.source}: no column {missing[0]}; Step Law's MoE table has the times of its iterations")
    fastest: dict[tuple[Architecture, int], float] = {}
    for row in np.flatnonzero(runs["average_iter_time"] > 0):
        key = _architecture(runs, int(row)), int(runs["batch"][row])
        fastest[key] = min(fastest.get(key, np.inf), float(runs["average_iter_time"][row]))
    return [
        Measurement(model, STEP_LAW_LENGTH, batch * STEP_LAW_LENGTH, batch * STEP_LAW_LENGTH, seconds)
        for (model, batch), seconds in sorted(fastest.items(), key=lambda item: item[0][1])
    ]


def _architecture(runs: Runs, row: int) -> Architecture:
    names = ("d_model", "n_blocks", "n_heads", "vocab_size", "experts_per_token", "d_expert", "d_ff")
    columns = {name: name for name in names} | {
        "experts": "routed_experts",
        "d_shared": "sed",
        "dense_blocks": "numld",
    }
    counts: dict[str, Any] = {name: int(runs[column][row]) for name, column in columns.items()}
    return Architecture(shared_experts=1, **counts)
