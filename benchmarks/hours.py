"""Hours predicted for a sweep, from a few steps of a few of its models, beside what it took.

    python -m benchmarks.hours --runs FOLDER [--models 5] [--threads 1]      # or BENCH_RUNS=FOLDER

FOLDER holds finished runs that one process each trained on this machine, of one vocabulary, sequence length and
precision. Of its models, in the order of their cost, some are timed on random tokens and fitted
(`training.throughput`); each of the others is predicted. A row has what all runs of a model took, and the prediction
as its peer, so that its ratio is predicted over taken: 1 is perfect. A run takes the wall time of its record, data,
logs and checkpoints included, or, "quiet", its steps at the speed of the fastest tenth that it logged: other work on
the machine makes some slower.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.report import Report, parse
from hub.base.errors import InputError
from hub.record.run_record import RunRecord
from scaling_law.fitting.throughput import LEAST_ARCHITECTURES, fit_throughput
from scaling_law.machine.throughput import Throughput
from scaling_law.planning.budget import Cluster
from scaling_law.size.architecture import Architecture
from scaling_law.size.recipe import BatchRamp, RampStage
from training.run import devices
from training.throughput import Grid, measure


def finished(folder: Path) -> dict[Architecture, list[tuple[RunRecord, float]]]:
    """By model the records, each with its quiet seconds. ValueError for runs that are not comparable."""
    found, kinds = defaultdict(list), set()
    for path in sorted(folder.rglob("run.json")):
        record = RunRecord.load(path.parent)
        if record.status != "final" or not (record.hardware or "").startswith("1 x "):
            continue
        a = Architecture(record.d_model, record.experts, record.n_blocks, record.n_heads, record.vocab_size)
        found[a].append((record, quiet_seconds(path.parent, record)))
        kinds.add((record.vocab_size, record.sequence_length, record.precision, micro_batch(record)))
    if len(kinds) != 1 or len(found) <= LEAST_ARCHITECTURES:
        raise InputError(
            f"{folder} has {len(found)} models of (vocabulary, length, precision, micro-batch) {sorted(kinds)}; "
            f"one such is needed, and more than {LEAST_ARCHITECTURES} models"
        )
    return dict(sorted(found.items(), key=lambda item: (item[0].n_active, item[0].experts)))


def micro_batch(record: RunRecord) -> int:
    return record.micro_batch_sequences or record.schedule.batch_ramp[-1].sequences


def quiet_seconds(model: Path, record: RunRecord) -> float:
    """From the logs of a release, or of a run's folder: its decay and the trunk."""
    logs = (model / "log.jsonl", model.parent / "log.jsonl", model.parent.parent / "trunk" / "log.jsonl")
    lines = (json.loads(line) for log in logs if log.exists() for line in log.read_text().splitlines())
    speeds = [line["tokens_per_second"] for line in lines if line.get("tokens_per_second")]
    return record.tokens / float(np.quantile(speeds, 0.9)) if speeds else math.nan


def predicted(throughput: Throughput, model: Architecture, record: RunRecord) -> float:
    stages = [RampStage(stage.from_tokens, stage.sequences) for stage in record.schedule.batch_ramp]
    cluster = Cluster(1, throughput, BatchRamp(stages, record.sequence_length))
    return float(cluster.seconds(model, float(record.tokens)))


def timed(models: Sequence[Architecture], record: RunRecord, options: argparse.Namespace) -> Throughput:
    """The fit to steps of these models, made as those of the record."""
    grid = Grid(
        shapes=(),
        experts=(),
        micro_batch_sequences=micro_batch(record),
        sequence_length=record.sequence_length,
        vocab_size=record.vocab_size,
        precision=record.precision,
        gradient_checkpointing=bool(record.gradient_checkpointing),
        compile=bool(record.compile),
    )
    steps = [step for model in models for step in measure(grid, model, options.repeats)]
    return fit_throughput(steps, devices.name(torch.device("cpu")), record.precision)


def main() -> None:
    options = parse(
        __doc__,
        ("--runs", {"type": Path, "default": os.environ.get("BENCH_RUNS") or None}),
        ("--models", {"type": int, "default": 5, "help": "of the sweep that are timed; the others are predicted"}),
        ("--threads", {"type": int, "default": None, "help": "as the runs had [default: torch's]"}),
        ("--repeats", {"type": int, "default": 20, "help": "steps of each batch, of which the fastest counts"}),
        fast={"models": 3, "repeats": 1},
    )
    if options.threads:
        torch.set_num_threads(options.threads)
    report = Report("hours", options)
    if options.runs is None:
        report.skip("needs a folder of finished runs of this machine (BENCH_RUNS=FOLDER)")
    else:
        compare(report, finished(options.runs), options)
    report.finish()


def compare(
    report: Report, runs: dict[Architecture, list[tuple[RunRecord, float]]], options: argparse.Namespace
) -> None:
    count = min(max(options.models, LEAST_ARCHITECTURES), len(runs) - 1)
    order = list(runs)
    seen = [order[i] for i in np.linspace(0, len(order) - 1, count).round().astype(int)]
    throughput = timed(seen, runs[seen[0]][0][0], options)
    totals, misses = np.zeros(3), []
    for model in (model for model in order if model not in seen):
        wall = sum(record.wall_time_seconds or math.nan for record, _ in runs[model])
        quiet = sum(seconds for _, seconds in runs[model])
        said = sum(predicted(throughput, model, record) for record, _ in runs[model])
        name = f"d_model {model.d_model}, {model.blocks} blocks, E = {model.experts}: {len(runs[model])} runs"
        report.add(name, quiet, "s", peer=("predicted", said), note=f"wall {wall:,.0f} s")
        totals += (wall, quiet, said)
        misses.append(math.log(said / quiet))
    for name, taken in {"wall": totals[0], "quiet": totals[1]}.items():
        report.add(f"all of these, {name}", float(taken), "s", peer=("predicted", float(totals[2])))
    report.add("rms error by model, quiet", 100 * float(np.sqrt(np.mean(np.square(misses)))), "%")


if __name__ == "__main__":
    main()
