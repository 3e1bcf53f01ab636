"""Runs that left logs in folders: TensorBoard's event files, trainer_state.json of transformers' Trainer, and tables.

Each run's folder or file becomes a row, as a tracker's run does: its settings, and of every metric the value at its
end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Lazy: the rooms of hub are imported when runs are read.
import hub
from hub.base import strict_json
from hub.base.types import Fields
from scaling_law.runs.logged import End, collect, row_of
from scaling_law.runs.rows import Row, RunsError, names_of, number, read_rows
from scaling_law.runs.statuses import status_of
from scaling_law.size.model_configs import FILE_NAME, read_model

if TYPE_CHECKING:
    from hub import LoadedRows

TABLES = ("runs.jsonl", "runs.parquet", "run.json")
TRAINER_STATE = "trainer_state.json"
EVENTS = "*tfevents*"
# Files with one run each: results of lm-evaluation-harness, and logs; the first that a folder has are read.
FILES = ("results_*.json", "*.csv", "*.tsv", "*.jsonl", "*.json")
# Columns that grow along a log, and columns of sizes, of which a log has one.
_PROGRESS = re.compile(r"(?i)step|token|iter|epoch|sample|sequence|flop")
_SIZES = re.compile(r"(?i)param|n_active|d_model|model_size")
# Folders in which Keras keeps the parts of one run.
PARTS = ("train", "validation", "val", "eval", "test")
NO_TENSORBOARD = "event files of TensorBoard, which its own reader reads: pip install tensorboard"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# Statuses of TensorBoard's hyperparameters; 0 is not known.
_STATUSES = {1: "success", 2: "failed", 3: "running"}


def log_rows(source: str | Path, end: End) -> LoadedRows | None:
    """Read the rows of a folder of logs, or of one log; None where the path has none, or has tables of runs, too.

    RunsError where TensorBoard's reader is needed and not installed.
    """
    path = Path(str(source).removeprefix("file:"))
    if path.is_dir() and any(next(path.rglob(name), None) for name in TABLES):
        return None

    states = _files(path, TRAINER_STATE)
    events = _files(path, EVENTS)
    rows: list[Row] = []
    if states:
        rows = [*_read_trainer_runs(path, states, end)]
    elif events:
        rows = [*_read_tensorboard_runs(path, events, end)]
    elif path.is_dir():
        rows = _read_run_files(path, end)

    return hub.LoadedRows(rows, path.name or str(source)) if rows else None


def _files(path: Path, pattern: str) -> list[Path]:
    """Find the files of this name in a folder, or the one that the path is."""
    if path.is_dir():
        return sorted(path.rglob(pattern))

    return [path] if path.match(pattern) and path.is_file() else []


def _name(folder: Path, root: Path) -> str:
    """Name a run by its path from the folder that the user gave."""
    if root in folder.parents:
        return str(folder.relative_to(root))

    return folder.resolve().name


# ------------------------------------------------------------------ tables


def _read_run_files(root: Path, end: End) -> list[Row]:
    """Read a folder with a file for each run: its log, or its only row; none where a file holds several runs."""
    files: list[str] = []

    for pattern in FILES:
        # Hidden folders, such as those of notebooks, are left out.
        files = files or sorted(glob(f"**/{pattern}", root_dir=root, recursive=True))

    rows: list[Row] = []

    for file in files:
        lines = read_rows(root / file).rows
        if len(lines) > 1 and not is_log(lines):
            return []
        rows.append({**end(collect(lines)), "run_id": file.rpartition(".")[0]})

    return rows if rows and len(set.intersection(*map(set, rows))) > 1 else []


def is_log(lines: Sequence[Row]) -> bool:
    """Return whether the rows of a file are the steps of one run: a count grows along them, and no size varies."""
    has_progress = False

    for name in names_of(lines):
        values = [number(line.get(name)) or 0.0 for line in lines]
        if _SIZES.search(name) and min(values) < max(values):
            return False
        if _PROGRESS.search(name) and values == sorted({*values}):
            has_progress = True

    return has_progress


# ------------------------------------------------------------------ Trainer


def _read_trainer_runs(root: Path, states: list[Path], end: End) -> Iterator[Row]:
    """Read the newest state of each run: in its folder, else in its last checkpoint."""
    newest: dict[Path, tuple[float, Path]] = {}

    for path in states:
        run = path.parent
        step = float("inf")
        folder = run.resolve()
        if _CHECKPOINT.fullmatch(folder.name):
            run = folder.parent
            step = float(folder.name.partition("-")[2])
        newest[run] = max(newest.get(run, (step, path)), (step, path))

    for run, (_, path) in sorted(newest.items()):
        content = path.read_bytes()
        state = strict_json.loads(content, what=str(path), max_bytes=len(content), finite=False)
        lines = state.get("log_history") if isinstance(state, dict) else None
        if not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines):
            raise RunsError(f"{path}: no state of transformers' Trainer: it has no log_history of steps")
        metrics = {**end(collect(lines)), **state}
        step, last_step = (number(metrics.get(field)) or 0.0 for field in ("global_step", "max_steps"))
        has_ended = step >= last_step
        yield row_of(_name(run, root), metrics, _read_sizes(path), "final" if has_ended else "running")


def _read_sizes(path: Path) -> Mapping[str, Any]:
    """Read the config.json of a checkpoint: its fields, and the sizes of its model as laws count them."""
    config = path.with_name(FILE_NAME)
    if not config.is_file():
        return {}

    fields: Fields = {"config": strict_json.loads(config.read_bytes(), what=str(config))}

    # A class that cannot be counted has its sizes in columns.
    with suppress(ValueError, FileNotFoundError):
        architecture = read_model(config).architecture
        fields.update(architecture.variables())
        # As records of other classes than ours have them.
        fields["experts"] = architecture.experts
        fields["experts_equivalent"] = architecture.experts_equivalent

    return fields


# ------------------------------------------------------------------ TensorBoard


def _read_tensorboard_runs(root: Path, events: list[Path], end: End) -> Iterator[Row]:
    """Read the event files of each run, including those in subfolders of its folder, whose values those above hide."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ModuleNotFoundError:
        raise RunsError(f"{root}: {NO_TENSORBOARD}") from None

    logs = {}

    for place in dict.fromkeys(path if path == root else path.parent for path in events):
        logs[place] = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0}).Reload()

    settings = {place: _read_settings(log) for place, log in logs.items()}

    runs: dict[Path, list[Path]] = {}

    for place in sorted(logs):
        runs.setdefault(_run_of(place, root, settings), []).append(place)

    for run, places in runs.items():
        series: dict[str, list[tuple[int, float]]] = {}
        fields: Fields = {}
        statuses = []
        for place in places:
            hyperparameters, status = settings[place]
            # add_hparams writes of the run itself, add_scalars and Keras of a part of it.
            prefix = "" if place == run or hyperparameters else f"{place.relative_to(run)}/"
            for tag, values in _read_events(logs[place]).items():
                # A metric is that of the highest folder which has it.
                series.setdefault(prefix + tag, values)
            fields = {**hyperparameters, **fields}
            statuses.append(status)
        lines: dict[int, Fields] = {}
        for tag, values in series.items():
            for step, value in values:
                lines.setdefault(step, {"step": float(step)})[tag] = value
        name = _name(run if run.is_dir() else run.parent, root)
        status = next((status for status in statuses if status != "final"), "final")
        logged = collect(lines[step] for step in sorted(lines))
        yield row_of(name, end(logged), fields, status)


def _run_of(place: Path, root: Path, settings: Mapping[Path, tuple[Fields, str]]) -> Path:
    """Find the run's folder for a folder of event files: a parent with event files, or else the folder itself."""
    for folder in place.parents:
        if folder in settings and (folder != root or settings[place][0]):
            return folder

    is_part = place != root and place.name in PARTS and place.parent not in settings

    return place.parent if is_part else place


def _read_events(log: Any) -> dict[str, list[tuple[int, float]]]:
    """Read the steps and numbers of each metric."""
    from tensorboard.util import tensor_util

    read_tensor: Any = tensor_util.make_ndarray
    series: dict[str, list[tuple[int, Any]]] = {}

    for tag in log.Tags()["scalars"]:
        series[tag] = [(event.step, event.value) for event in log.Scalars(tag)]

    for tag in log.Tags()["tensors"]:
        tensors = [(event.step, read_tensor(event.tensor_proto)) for event in log.Tensors(tag)]
        if all(value.size == 1 and value.dtype.kind == "f" for _, value in tensors):
            series[tag] = [(step, value.item()) for step, value in tensors]

    return series


def _read_settings(log: Any) -> tuple[Fields, str]:
    """Read the hyperparameters of a run, and how it ended."""
    from tensorboard.plugins.hparams import metadata

    settings: Fields = {}
    status = "final"

    for tag, summary in log.summary_metadata.items():
        content = summary.plugin_data.content
        if tag == metadata.SESSION_START_INFO_TAG:
            for name, value in metadata.parse_session_start_info_plugin_data(content).hparams.items():
                settings[name] = getattr(value, value.WhichOneof("kind"))
        elif tag == metadata.SESSION_END_INFO_TAG:
            status = status_of(_STATUSES.get(metadata.parse_session_end_info_plugin_data(content).status))

    return settings, status
