"""Trunks with their step logs: those of docs/studies/crossing.md that kept one, and a sweep trained for this page."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hub
from hub import RunRecord
from hub.base import atomic
from scaling_law import Runs, TrainingCurve, load_runs
from scaling_law.forecasting.live import curve_of
from studies.common import gather
from studies.crossing.records import read_sweep

FOLDER = Path(__file__).parent
SHORTEST = 9e5  # tokens of the runs that laws are fitted to and that are judged, as in the crossing


@dataclass(frozen=True)
class Logged:
    """A finished run with its curve; runs of one `sweep` share text, tokenizer and recipe."""

    sweep: str
    trunk: str
    d_model: int
    curve: TrainingCurve


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep that laws are fitted to, and those of them that kept a log; `trunks`: run_id → its trunk."""

    name: str
    runs: Runs
    logged: tuple[Logged, ...]
    trunks: Mapping[str, str]


def read() -> list[Sweep]:
    crossing = FOLDER.parent / "crossing"
    counted = read_sweep(crossing / "runs.jsonl").counted
    sweeps = [_sweep("crossing", counted, crossing)]
    if (FOLDER / "runs.jsonl").exists():
        sweeps.append(_sweep("live", load_runs(FOLDER / "runs.jsonl"), FOLDER))
    return sweeps


def _sweep(name: str, runs: Runs, folder: Path) -> Sweep:
    every = hub.load_records(folder / "runs.jsonl")
    records = [record for record in every if record.sweep == name]
    logged = [one for log in sorted((folder / "logs").glob("*.jsonl.gz")) for one in _logged(name, log, records)]
    trunks = {record.run_id: record.parent_run_id or record.run_id for record in every}
    return Sweep(name, runs.subset(runs.tokens >= SHORTEST), tuple(logged), trunks)


def _logged(sweep: str, log: Path, records: Iterable[RunRecord]) -> Iterable[Logged]:
    """The finished runs of a folder: its name begins their trunk's, and a part's name that of a branch."""
    lines = [json.loads(line) for line in gzip.decompress(log.read_bytes()).splitlines()]
    name = f"{sweep}-{log.name.removesuffix('.jsonl.gz')}"
    for record in records:
        trunk, branch = record.parent_run_id or "", hub.branch_name(record)
        if f"{trunk}-".startswith(f"{name}-") and record.status == "final":
            point = record.branch_point_tokens or 0
            shared = [line for line in lines if line["part"] == "trunk" and line["tokens"] <= point]
            decay = [line for line in lines if branch.startswith(line["part"])]
            yield Logged(sweep, trunk, record.d_model, curve_of(record, [*shared, *decay]))


def take(runs: Sequence[Path]) -> list[Path]:
    """Keep the records and the logs, of tokens and losses alone, of the finished runs in these folders."""
    written = [gather(runs, FOLDER / "runs.jsonl")]
    for folder in sorted(path.parents[1] for run in runs for path in run.rglob("trunk/log.jsonl")):
        text = "".join(json.dumps(line) + "\n" for log in sorted(folder.glob("*/log.jsonl")) for line in _lines(log))
        written.append(FOLDER / "logs" / f"{folder.name}.jsonl.gz")
        written[-1].parent.mkdir(exist_ok=True)
        atomic.write_bytes(written[-1], gzip.compress(text.encode(), mtime=0))
    return written


def _lines(log: Path) -> Iterable[dict[str, Any]]:
    kept = ("tokens", "loss", "loss_spike")
    for line in map(json.loads, log.read_text(encoding="utf-8").splitlines()):
        if "loss" in line:
            yield {"part": log.parent.name} | {name: line[name] for name in kept if name in line}
