"""Reading, fitting and forecasting a table of 100,000 runs, in CPU seconds and memory of a new process.

    python -m benchmarks.large_tables [--runs 100000]

The runs have losses of the published law at E = 1 with noise of 0.006 nats. read: `load_runs`; fit: `scaling-law fit
--kind chinchilla`; forecast: `scaling-law forecast`. Peer: the same command on a tenth of the runs, so that a ratio
of 0.1× is time that grows with rows. Bound: `pandas.read_csv` of the same file in a new process.
"""

from __future__ import annotations

import csv
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.report import Options, Report, benchmark, cpu_seconds_of_children
from scaling_law import JointLaw

NOISE = 0.006
READ = "import sys; from scaling_law import load_runs; load_runs(sys.argv[1])"
PARSE = "import sys, pandas; pandas.read_csv(sys.argv[1])"
SHELL = [sys.executable, "-m", "scaling_law"]


def write_runs(path: Path, count: int) -> Path:
    """Write a table of runs of the published law."""
    rng = np.random.default_rng(0)
    n = 10 ** rng.uniform(7.9, 9.4, count)
    d = n * 10 ** rng.uniform(0, 1.8, count)
    loss = JointLaw.published().loss(n, d, np.ones(count)) + rng.normal(0, NOISE, count)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run_id", "n_active", "tokens", "experts", "eval_loss"])
        writer.writerows([f"r{i}", n[i], d[i], 1, loss[i]] for i in range(count))
    return path


def cpu_seconds(words: Sequence[str]) -> float:
    """Measure the CPU seconds of a command; a forecast far from the runs exits with 1."""
    return cpu_seconds_of_children(lambda: subprocess.run(words, capture_output=True, check=False))


@benchmark({"--runs": (100_000, 2_000)})
def main(report: Report, options: Options) -> None:
    with TemporaryDirectory() as folder:
        large = str(write_runs(Path(folder) / "large.csv", options.runs))
        small = str(write_runs(Path(folder) / "small.csv", options.runs // 10))
        commands = {
            "read": [[sys.executable, "-c", READ, path] for path in (large, small)],
            "fit --kind chinchilla": [[*SHELL, "fit", path, "--kind", "chinchilla"] for path in (large, small)],
            "forecast": [[*SHELL, "forecast", path, "--n-active", "10B", "--tokens", "1T"] for path in (large, small)],
        }
        parse = cpu_seconds([sys.executable, "-c", PARSE, large])
        for name, (all_runs, tenth) in commands.items():
            peer = ("the same of a tenth of the runs", cpu_seconds(tenth))
            seconds = cpu_seconds(all_runs)
            gigabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
            note = f"CPU seconds of a new process; at most {gigabytes:.2f} GB so far"
            report.add(f"{name}, {options.runs:,} runs", seconds, "s", peer, ("pandas.read_csv", parse), note=note)


if __name__ == "__main__":
    main()
