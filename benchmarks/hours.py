"""Hours predicted for a sweep, from a few steps of a few of its models, beside what it took.

    python -m benchmarks.hours --runs FOLDER [--models 5] [--threads 1]      # or BENCH_RUNS=FOLDER

FOLDER holds finished runs that one process each trained on this machine, of one vocabulary, sequence length and
precision. Of its models, in the order of their cost, some are timed on random tokens and fitted
(`training.throughput`); each of the others is predicted. A row has what all runs of a model took, and the prediction
as its peer: a ratio of 1 is perfect. A run takes the wall time of its record, data, logs and checkpoints included, or,
"quiet", its steps at the speed of the fastest tenth that it logged: other work makes some slower.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.report import Options, Report, benchmark
from hub.base.errors import InputError
from hub.record.run_record import RunRecord
from scaling_law.machine.throughput import Throughput
from scaling_law.machine.throughput_fit import LEAST_ARCHITECTURES, fit_throughput
from scaling_law.planning.budget import Cluster
from scaling_law.size.architecture import Architecture
from scaling_law.size.recipe import BatchRamp, RampStage
from training.run import devices
from training.run.grid import Grid, measure

# The records of each model, with the quiet seconds of each.
RunsByModel = dict[Architecture, list[tuple[RunRecord, float]]]


def finished_runs(folder: Path) -> RunsByModel:
    """Read the finished runs of one process by model. Raises InputError for runs that are not comparable."""
    runs = defaultdict(list)
    kinds = set()
    for path in sorted(folder.rglob("run.json")):
        r = RunRecord.load(path.parent)
        if r.status == "final" and (r.hardware or "").startswith("1 x "):
            model = Architecture(r.d_model, r.experts, r.n_blocks, r.n_heads, r.vocab_size)
            runs[model].append((r, quiet_seconds(path.parent, r)))
            kinds.add((r.vocab_size, r.sequence_length, r.precision, micro_batch(r)))
    if len(kinds) != 1 or len(runs) <= LEAST_ARCHITECTURES:
        raise InputError(
            f"{folder} has {len(runs)} models of (vocabulary, length, precision, micro-batch) {sorted(kinds)}; "
            f"one such is needed, and more than {LEAST_ARCHITECTURES} models"
        )
    return dict(sorted(runs.items(), key=lambda item: (item[0].n_active, item[0].experts)))


def micro_batch(record: RunRecord) -> int:
    """Return the sequences of a micro-batch."""
    return record.micro_batch_sequences or record.schedule.batch_ramp[-1].sequences


def quiet_seconds(model: Path, record: RunRecord) -> float:
    """Estimate a run's seconds from the logs of a release, or of a run's folder: its decay and the trunk."""
    speeds = []
    for log in (model / "log.jsonl", model.parent / "log.jsonl", model.parent.parent / "trunk" / "log.jsonl"):
        if not log.exists():
            continue
        for text in log.read_text().splitlines():
            speed = json.loads(text).get("tokens_per_second")
            if speed:
                speeds.append(speed)
    if not speeds:
        return math.nan
    return record.tokens / float(np.quantile(speeds, 0.9))


def predict_seconds(throughput: Throughput, model: Architecture, record: RunRecord) -> float:
    """Predict the seconds of a run."""
    stages = [RampStage(stage.from_tokens, stage.sequences) for stage in record.schedule.batch_ramp]
    cluster = Cluster(1, throughput, BatchRamp(stages, record.sequence_length))
    return float(cluster.seconds(model, float(record.tokens)))


def fit_to_steps(models: Sequence[Architecture], record: RunRecord, options: Options) -> Throughput:
    """Fit the throughput to steps of these models, made as those of the record."""
    grid = Grid(
        (),
        (),
        micro_batch(record),
        record.sequence_length,
        record.vocab_size,
        record.precision,
        bool(record.gradient_checkpointing),
        bool(record.compile),
    )
    steps = [step for model in models for step in measure(grid, model, options.repeats)]
    return fit_throughput(steps, devices.name(torch.device("cpu")), record.precision)


@benchmark(
    {
        "--runs": (Path, None),
        "--models": (5, 3, "of the sweep that are timed; the others are predicted"),
        "--threads": (torch.get_num_threads(), torch.get_num_threads(), "as the runs had"),
        "--repeats": (20, 1, "steps of each batch, of which the fastest counts"),
    }
)
def main(report: Report, options: Options) -> None:
    torch.set_num_threads(options.threads)
    if options.runs is None:
        report.skipped.append("needs a folder of finished runs of this machine (BENCH_RUNS=FOLDER)")
    else:
        compare(report, finished_runs(options.runs), options)


def compare(report: Report, runs: RunsByModel, options: Options) -> None:
    """Add a row for each model that was not timed, and for all of them."""
    models = list(runs)
    count = min(max(options.models, LEAST_ARCHITECTURES), len(models) - 1)
    timed_models = [models[i] for i in np.linspace(0, len(models) - 1, count).round().astype(int)]
    first_record, _ = runs[timed_models[0]][0]
    throughput = fit_to_steps(timed_models, first_record, options)
    rows = []
    for model in models:
        if model in timed_models:
            continue
        wall = sum(record.wall_time_seconds or math.nan for record, _ in runs[model])
        quiet = sum(seconds for _, seconds in runs[model])
        predicted = sum(predict_seconds(throughput, model, record) for record, _ in runs[model])
        name = f"d_model {model.d_model}, {model.blocks} blocks, E = {model.experts}: {len(runs[model])} runs"
        report.add(name, quiet, "s", ("predicted", predicted), note=f"wall {wall:,.0f} s")
        rows.append((wall, quiet, predicted))
    wall, quiet, predicted = np.sum(rows, axis=0).tolist()
    report.add("all of these, wall", wall, "s", ("predicted", predicted))
    report.add("all of these, quiet", quiet, "s", ("predicted", predicted))
    errors = [math.log(predicted / quiet) for _, quiet, predicted in rows]
    report.add("rms error by model, quiet", 100 * float(np.sqrt(np.mean(np.square(errors)))), "%")


if __name__ == "__main__":
    main()
