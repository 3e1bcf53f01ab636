"""Fit the public runs of Clark et al. 2022 and compare with the optima that two independent optimisers found.

    python -m benchmarks.clark_routing --curves curves.csv.gz      # or BENCH_CURVES=curves.csv.gz

`curves.csv.gz` is data/curves.csv.gz of github.com/google-deepmind/scaling_laws_for_routing (data CC-BY-4.0, Copyright
2022 DeepMind Technologies Limited), 5,799 rows of 223 runs with E = 1 … 512; it is not shipped here. Two anchors: the
routed law on final steps (mean squared error of log10 L), and the joint law on the learning curves (mean Huber loss of
ln L, threshold 0.01). The curves are points in the middle of a schedule: a test of the optimiser, not a law to use.
Without the file the routed law is fitted to the final losses that the tests hold, and the joint law is left out.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.report import Report, parse
from scaling_law import Runs, fit
from tests.scaling_law.clark import clark_runs

TOKENS_PER_STEP = 524_288
ROUTED = {
    "S-Base": (58, 1.042e-5),
    "RL-R": (59, 1.043e-5),
    "Hash": (56, 8.89e-6),
}  # runs, mean squared error of log10 L
JOINT = {"S-Base": (1392, 1.535893e-5), "Hash": (1343, 1.488641e-5)}  # points, mean Huber loss


def chosen(frame: pd.DataFrame, router: str) -> pd.DataFrame:
    """Rows of one router and of the dense models: k = 1, every second block routed, seed 42."""
    kinds = frame.router_type.isin([router, "Dense"])
    return frame[
        kinds & (frame.k == 1) & (frame.routing_frequency == 0.5) & (frame.seed == 42) & frame.loss_validation.notna()
    ]


def columns(frame: pd.DataFrame) -> Runs:
    """The table of a fit: one trunk per run."""
    tokens = np.maximum(frame.step.to_numpy(float), 1.0) * TOKENS_PER_STEP
    names = [f"{a}-{b}" for a, b in zip(frame.hyper_id, frame.step, strict=True)]
    return Runs.from_columns(
        frame.dense_parameter_count, tokens, frame.num_experts, frame.loss_validation, frame.hyper_id, names
    )


def compare(report: Report, law: str, router: str, runs: Runs, expected: int, anchor: float) -> None:
    began = time.perf_counter()
    result = fit(runs, law, huber_delta=10.0 if law == "routed" else 0.01)
    seconds = time.perf_counter() - began
    mean = result.objective / len(runs)
    value = 2 * mean / np.log(10) ** 2 if law == "routed" else mean
    count = f"{len(runs)} points" + ("" if len(runs) == expected else f" (not {expected})")
    state = "converged" if result.status.converged else "NOT converged"
    found = f"E_start {result.law.e_start:.4f}, E_max {result.law.e_max:.1f}"
    note = f"{count}, {found}, {state}, {seconds:.1f} s"
    report.add(f"{law} law, {router}", value, "", peer=("best of two optimisers", anchor), note=note)


def main() -> None:
    options = parse(
        __doc__,
        (
            "--curves",
            {"type": Path, "default": os.environ.get("BENCH_CURVES") or None},
        ),
        fast={},
    )
    report = Report("clark_routing", options)
    frame = pd.read_csv(options.curves) if options.curves else None
    for router, (count, anchor) in ROUTED.items():
        if frame is None:
            runs = clark_runs(router)
        else:
            runs = columns(chosen(frame.sort_values("step").groupby("hyper_id").tail(1), router))
        compare(report, "routed", router, runs, count, anchor)
    if frame is None:
        report.skip("the joint law on the learning curves: needs curves.csv.gz (BENCH_CURVES=…), not shipped here")
    else:
        for router, (count, anchor) in JOINT.items():
            compare(report, "joint", router, columns(chosen(frame[frame.step >= 20_000], router)), count, anchor)
    report.finish()


if __name__ == "__main__":
    main()
