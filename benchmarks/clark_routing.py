"""Fit the public runs of Clark et al. 2022 and compare with the optima that two independent optimisers found.

    python benchmarks/clark_routing.py curves.csv.gz

`curves.csv.gz` is data/curves.csv.gz of github.com/google-deepmind/scaling_laws_for_routing (data CC-BY-4.0, Copyright
2022 DeepMind Technologies Limited), 5,799 rows of 223 runs with E = 1 … 512; it is not shipped here. Two anchors: the
routed law on final steps (mean squared error of log10 L), and the joint law on the learning curves (mean Huber loss of
ln L, threshold 0.01). The curves are points in the middle of a schedule: a test of the optimiser, not a law to use.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from scaling_law import Runs, fit

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", help="path of curves.csv.gz")
    frame = pd.read_csv(parser.parse_args().curves)
    table = Table(title="Clark et al. 2022", title_justify="left")
    for name in ("law", "router", "n", "objective", "anchor", "ratio", "E_start", "E_max", "status", "seconds"):
        table.add_column(name, justify="right")
    final = frame.sort_values("step").groupby("hyper_id").tail(1)
    cases = [("routed", router, *anchor) for router, anchor in ROUTED.items()]
    cases += [("joint", router, *anchor) for router, anchor in JOINT.items()]
    for law, router, expected_rows, anchor in cases:
        rows = chosen(final if law == "routed" else frame[frame.step >= 20_000], router)
        began = time.perf_counter()
        result = fit(columns(rows), law, huber_delta=10.0 if law == "routed" else 0.01, outliers="keep")
        seconds = time.perf_counter() - began
        mean = result.objective / len(rows)
        value = 2 * mean / np.log(10) ** 2 if law == "routed" else mean
        coefficients = (f"{result.law.e_start:.4f}", f"{result.law.e_max:.1f}")
        state = "converged" if result.status.converged else "NOT converged"
        count = f"{len(rows)}" if len(rows) == expected_rows else f"{len(rows)} (not {expected_rows})"
        cells = (law, router, count, f"{value:.6e}", f"{anchor:.6e}", f"{value / anchor:.6f}")
        table.add_row(*cells, *coefficients, state, f"{seconds:.1f}")
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
