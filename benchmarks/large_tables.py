"""Reading, fitting and forecasting a table of 100,000 runs, in CPU seconds and memory of a new process.

    python -m benchmarks.large_tables [--runs 100000] [--lines 1000000] [--records 20000]

The runs have losses of the published law at E = 1 with noise of 0.006 nats. read: `load_runs`; fit: `scaling-law fit
--kind chinchilla`; forecast: `scaling-law forecast`. Peer: the same command on a tenth of the runs, so that a ratio
of 0.1× is time that grows with rows. Bound: `pandas.read_csv` of the same file in a new process.

step log: `load_runs` of the JSON lines of 20 runs, one row for each run; records: `load_runs` of a sweep's run
records, each checked. Peer: `json.loads` of every line, in the same process, in turns.
"""

from __future__ import annotations

import csv
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.report import Options, Report, benchmark, cpu_seconds, cpu_seconds_of_children, in_turns
from hub.record.table import to_jsonl
from scaling_law import JointLaw, load_runs
from tests.hub.samples import make_record

NOISE = 0.006
LOGGED_RUNS = 20
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


def write_log(path: Path, count: int) -> Path:
    """Write a step log of so many lines, run by run."""
    losses = 3 + np.random.default_rng(0).normal(0, NOISE, count)
    with path.open("w") as file:
        for i, loss in enumerate(losses.tolist()):
            run, step = divmod(i, -(-count // LOGGED_RUNS))
            line = {
                "run_id": f"r{run}",
                "step": step + 1,
                "n_active": 1e8 * (run + 1),
                "experts": 1,
                "tokens": 2**22 * (step + 1),
                "learning_rate": 1e-3,
                "gradient_norm": loss / 7,
                "loss": loss,
            }
            file.write(json.dumps(line) + "\n")
    return path


def write_run_records(path: Path, count: int) -> Path:
    """Write records of runs that differ in their tokens and their loss."""
    records = []
    for i in range(count):
        record = make_record(
            run_id=f"run{i}",
            tokens=2 * 10**9 + 1000 * i,
            eval_loss=3 + i / 1e6,
        )
        records.append(record)
    path.write_bytes(to_jsonl(records))
    return path


def add_lines(report: Report, name: str, path: Path, rounds: int, **options: str) -> None:
    """Add a row of reading JSON lines as runs, beside parsing each."""

    def parse() -> list[object]:
        with path.open("rb") as lines:
            return [json.loads(line) for line in lines]

    peer = "json.loads of every line"
    works = {"ours": lambda: load_runs(path, **options), peer: parse}
    report.add_of(in_turns(works, rounds, cpu_seconds), name, peer, note="CPU seconds")


def measure_command(words: Sequence[str]) -> float:
    """Measure the CPU seconds of a command; a forecast far from the runs exits with 1."""
    return cpu_seconds_of_children(lambda: subprocess.run(words, capture_output=True, check=False))


@benchmark(
    {
        "--runs": (100_000, 2_000),
        "--lines": (1_000_000, 10_000, "of the step log"),
        "--records": (20_000, 200),
        "--rounds": (2, 1, "of the step log and the records"),
    }
)
def main(report: Report, options: Options) -> None:
    with TemporaryDirectory() as folder:
        log = write_log(Path(folder) / "log.jsonl", options.lines)
        add_lines(report, f"step log, {options.lines:,} lines", log, options.rounds, final="last")
        records = write_run_records(Path(folder) / "runs.jsonl", options.records)
        add_lines(report, f"run records, {options.records:,}", records, options.rounds)
        large = str(write_runs(Path(folder) / "large.csv", options.runs))
        small = str(write_runs(Path(folder) / "small.csv", options.runs // 10))
        commands = {
            "read": [[sys.executable, "-c", READ, path] for path in (large, small)],
            "fit --kind chinchilla": [[*SHELL, "fit", path, "--kind", "chinchilla"] for path in (large, small)],
            "forecast": [[*SHELL, "forecast", path, "--n-active", "10B", "--tokens", "1T"] for path in (large, small)],
        }
        parse = measure_command([sys.executable, "-c", PARSE, large])
        for name, (all_runs, tenth) in commands.items():
            peer = ("the same of a tenth of the runs", measure_command(tenth))
            seconds = measure_command(all_runs)
            gigabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
            note = f"CPU seconds of a new process; at most {gigabytes:.2f} GB so far"
            report.add(f"{name}, {options.runs:,} runs", seconds, "s", peer, ("pandas.read_csv", parse), note=note)


if __name__ == "__main__":
    main()
