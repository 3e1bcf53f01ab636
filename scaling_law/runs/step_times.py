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
    def count(name: str) -> int:
        return int(runs[name][row])

    return Architecture(
        count("d_model"),
        count("routed_experts"),
        count("n_blocks"),
        count("n_heads"),
        count("vocab_size"),
        experts_per_token=count("experts_per_token"),
        d_expert=count("d_expert"),
        shared_experts=1,
        d_shared=count("sed"),
        dense_blocks=count("numld"),
        d_ff=count("d_ff"),
    )
