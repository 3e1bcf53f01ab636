"""Calibrate the published joint law on Step Law's dense models and predict its MoE models.

    python -m benchmarks.calibration --step-law FOLDER      # or BENCH_STEP_LAW=FOLDER

The folder holds dense_lr_bs_loss.csv and moe_lr_bs_loss.csv of data/ of github.com/step-law/steplaw at 32a8f4cc5024
(arXiv 2503.04715; no licence stated), which are not shipped here. A point is the run of least smoothed training loss
for each model and number of tokens: 17 dense ones to calibrate on, 16 MoE ones that no fit sees. The peer is the mean
of all 16, which no forecast could know. N counts both embeddings, as the joint law does, or neither.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from benchmarks.report import Report, parse
from scaling_law import JointLaw, Runs, calibrate, load_runs
from scaling_law.runs import best_of

COUNTED = {"with embeddings": "n_active", "without embeddings": "n_active_non_embedding"}


def tuned(file: Path, size: str) -> Runs:
    runs = best_of(load_runs(file, format="step_law"), over=["learning_rate", "batch"])
    return Runs.from_columns(runs[size], runs.tokens, runs.experts, runs.loss, source=file.name)


def predict(report: Report, dense: Runs, moe: Runs, counted: str) -> None:
    law = JointLaw.published()
    calibrated = calibrate(law, dense)
    spread = ("mean of the MoE points", float(moe.loss.std()))
    untouched = law.loss(moe.n_active, moe.tokens, moe.experts) - moe.loss
    report.add(f"N {counted}: nothing refitted", float(np.sqrt(np.mean(untouched**2))), "nats", peer=spread)
    for candidate in calibrated.candidates:
        if not (names := candidate.refitted):
            continue
        errors = calibrate(law, dense, candidates=[names]).fit.errors_on(moe)
        note = f"dense models left out: {candidate.rmse:.4f}{', chosen' * (candidate is calibrated.chosen)}"
        rmse = float(np.sqrt(np.mean(errors**2)))
        report.add(f"N {counted}: {', '.join(names)} refitted", rmse, "nats", peer=spread, note=note)


def main() -> None:
    folder = os.environ.get("BENCH_STEP_LAW") or None
    options = parse(__doc__, ("--step-law", {"type": Path, "default": folder}), fast={})
    report = Report("calibration", options)
    if options.step_law is None:
        report.skip("needs Step Law's two tables (BENCH_STEP_LAW=FOLDER), which are not shipped here")
    else:
        for counted, size in COUNTED.items():
            dense, moe = (tuned(options.step_law / f"{kind}_lr_bs_loss.csv", size) for kind in ("dense", "moe"))
            predict(report, dense, moe, counted)
    report.finish()


if __name__ == "__main__":
    main()
