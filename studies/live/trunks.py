"""Trunks with their step logs: those of docs/studies/crossing.md that kept one, and a sweep trained for this page."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hub
from hub import RunRecord
from hub.base import atomic
from scaling_law import Runs, TrainingCurve, load_runs
from scaling_law.forecasting.curves import curve_of
from studies.common import gather
from studies.crossing.records import read_sweep

FOLDER = Path(__file__).parent
# The least tokens of the runs that laws are fitted to and that are judged, as in the crossing.
SHORTEST = 9e5
KEPT_FIELDS = ("tokens", "loss", "loss_spike")


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
    """Read the sweeps with logs."""
    crossing = FOLDER.parent / "crossing"
    counted_runs = read_sweep(crossing / "runs.jsonl").counted
    sweeps = [_sweep("crossing", counted_runs, crossing)]
    if (FOLDER / "runs.jsonl").exists():
        sweeps.append(_sweep("live", load_runs(FOLDER / "runs.jsonl"), FOLDER))
    return sweeps


def _sweep(name: str, runs: Runs, folder: Path) -> Sweep:
    """Read the records and logs of a sweep."""
    records = hub.load_records(folder / "runs.jsonl")
    records_of_sweep = [record for record in records if record.sweep == name]
    logged: list[Logged] = []
    for log in sorted((folder / "logs").glob("*.jsonl.gz")):
        logged += _logged_runs(name, log, records_of_sweep)
    trunks = {record.run_id: record.parent_run_id or record.run_id for record in records}
    return Sweep(name, runs.subset(runs.tokens >= SHORTEST), tuple(logged), trunks)


def _logged_runs(sweep: str, log: Path, records: Iterable[RunRecord]) -> Iterator[Logged]:
    """Yield the finished runs of a log.

    The log's name begins that of their trunk, and the name of a part of the log that of a branch.
    """
    lines = [json.loads(line) for line in gzip.decompress(log.read_bytes()).splitlines()]
    name = f"{sweep}-{log.name.removesuffix('.jsonl.gz')}"
    for record in records:
        trunk = record.parent_run_id or ""
        if not f"{trunk}-".startswith(f"{name}-") or record.status != "final":
            continue
        branch = hub.branch_name(record)
        branch_point = record.branch_point_tokens or 0
        trunk_lines = [line for line in lines if line["part"] == "trunk" and line["tokens"] <= branch_point]
        branch_lines = [line for line in lines if branch.startswith(line["part"])]
        yield Logged(sweep, trunk, record.d_model, curve_of(record, trunk_lines + branch_lines))


def take(runs: Sequence[Path]) -> list[Path]:
    """Keep the records and the logs, of tokens and losses alone, of the finished runs in these folders."""
    written = [gather(runs, FOLDER / "runs.jsonl")]
    trunk_logs = [path for folder in runs for path in folder.rglob("trunk/log.jsonl")]
    for run_folder in sorted(path.parents[1] for path in trunk_logs):
        lines: list[dict[str, Any]] = []
        for log in sorted(run_folder.glob("*/log.jsonl")):
            lines += _loss_lines(log)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        target = FOLDER / "logs" / f"{run_folder.name}.jsonl.gz"
        target.parent.mkdir(exist_ok=True)
        atomic.write_bytes(target, gzip.compress(text.encode(), mtime=0))
        written.append(target)
    return written


def _loss_lines(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log that have a loss, with the fields that are kept and the part of the run."""
    for text in log.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if "loss" in line:
            yield {"part": log.parent.name, **{name: line[name] for name in KEPT_FIELDS if name in line}}
