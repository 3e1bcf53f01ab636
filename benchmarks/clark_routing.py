"""Fit the public runs of Clark et al. 2022 and compare with the optima that two independent optimisers found.

    python -m benchmarks.clark_routing --curves curves.csv.gz      # or BENCH_CURVES=curves.csv.gz

`curves.csv.gz` is data/curves.csv.gz of github.com/google-deepmind/scaling_laws_for_routing (data CC-BY-4.0, Copyright
2022 DeepMind Technologies Limited), 5,799 rows of 223 runs with E = 1 … 512; it is not shipped here. Two anchors: the
routed law on final steps (mean squared error of log10 L), and the joint law on the learning curves (mean Huber loss of
ln L, threshold 0.01). The curves are points in the middle of a schedule: a test of the optimiser, not a law to use.
Without the file the routed law is fitted to the final losses that the tests hold, and the joint law is left out.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.report import Options, Report, benchmark
from scaling_law import Runs, fit, load_runs
from tests.scaling_law.clark import clark_runs

# Router → runs, mean squared error of log10 L
ROUTED = {"S-Base": (58, 1.042e-5), "RL-R": (59, 1.043e-5), "Hash": (56, 8.89e-6)}
# Router → points, mean Huber loss
JOINT = {"S-Base": (1392, 1.535893e-5), "Hash": (1343, 1.488641e-5)}


def compare(report: Report, law: str, router: str, runs: Runs, expected: int, anchor: float) -> None:
    """Add the row of a law fitted to the runs of a router."""
    started = time.perf_counter()
    result = fit(runs, law, huber_delta=10.0 if law == "routed" else 0.01)
    seconds = time.perf_counter() - started
    value = result.objective / len(runs)
    if law == "routed":
        # The mean squared error of log10 L.
        value = 2 * value / np.log(10) ** 2
    count = f"{len(runs)} points" if len(runs) == expected else f"{len(runs)} points (not {expected})"
    state = "converged" if result.status.converged else "NOT converged"
    saturation = f"E_start {result.law.e_start:.4f}, E_max {result.law.e_max:.1f}"
    note = f"{count}, {saturation}, {state}, {seconds:.1f} s"
    report.add(f"{law} law, {router}", value, "", peer=("best of two optimisers", anchor), note=note)


@benchmark({"--curves": (Path, None)})
def main(report: Report, options: Options) -> None:
    for router, (count, anchor) in ROUTED.items():
        if options.curves:
            where = f"router_type in {{{router}, Dense}}"
            final_losses = load_runs(options.curves, format="clark", where=where)
        else:
            final_losses = clark_runs(router)
        compare(report, "routed", router, final_losses, count, anchor)
    if options.curves is None:
        report.skipped.append(
            "the joint law on the learning curves: needs curves.csv.gz (BENCH_CURVES=…), not shipped here"
        )
    else:
        for router, (count, anchor) in JOINT.items():
            where = f"router_type in {{{router}, Dense}}, step >= 20000"
            curves = load_runs(options.curves, format="clark_curves", where=where)
            compare(report, "joint", router, curves, count, anchor)


if __name__ == "__main__":
    main()
