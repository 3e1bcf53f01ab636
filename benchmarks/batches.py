"""Published laws of the batch against the batches of released models: `python -m benchmarks.batches --data FOLDER`.

FOLDER has public_runs.csv, a row for each public run with its parameters in billions, tokens in trillions
(`tokens_T`) and `batch_tokens`. Kaplan's law takes the loss that the paper's law predicts for the run.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from hub.base.tables import Table
from scaling_law import JointLaw
from scaling_law.rates.batch import published_batches

PARAMETERS = ("params_active_B", "params_total_B", "params_active_matmul_calc_B", "params_total_calc_B")


def read_runs(path: Path) -> list[dict[str, float]]:
    """Read the parameters, tokens and batches of runs that have all three."""
    runs = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            sizes = [row[name] for name in PARAMETERS if row[name]]
            # Costs for each trillion tokens say nothing of the tokens of the run.
            is_run = row["kind"].startswith("run") and "per trillion" not in row["name"]
            if is_run and sizes and row["tokens_T"] and row["batch_tokens"]:
                run = {
                    "n_active": 1e9 * float(sizes[0]),
                    "tokens": 1e12 * float(row["tokens_T"]),
                    "batch_tokens": float(row["batch_tokens"]),
                }
                runs.append(run)
    return runs


def compare(runs: list[dict[str, float]]) -> Table:
    """Compare each law with the batches of the runs: the median of law / run, and the root mean square of its ln."""
    law = JointLaw.published()
    errors: dict[str, list[float]] = {}
    for run in runs:
        flops = 6 * run["n_active"] * run["tokens"]
        loss = float(law.loss(run["n_active"], run["tokens"], 1.0))
        for batch in published_batches(flops, run["tokens"], loss):
            errors.setdefault(batch.law, []).append(np.log(batch.batch_tokens / run["batch_tokens"]))
    rows = []
    for name, values in errors.items():
        median = f"{np.exp(np.median(values)):.2f}"
        rows.append((name, str(len(values)), median, f"{np.sqrt(np.mean(np.square(values))):.2f}"))
    return Table(("law", "runs", "median of law / run", "rms of ln"), rows)


def main() -> None:
    """Print the comparison."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form, allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, help="folder with public_runs.csv")
    print(compare(read_runs(parser.parse_args().data / "public_runs.csv")).markdown())


if __name__ == "__main__":
    main()
