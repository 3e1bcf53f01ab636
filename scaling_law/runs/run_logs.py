"""Runs that left logs in folders: TensorBoard's event files, trainer_state.json of transformers' Trainer, and tables.

Each run's folder or file becomes a row, as a tracker's run does: its settings, and of every metric the value at its
end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Lazy: the rooms of hub are imported when runs are read.
import hub
from hub.base import strict_json
from hub.base.types import Fields
from scaling_law.runs.logged import Final, end_of, final_values, row_of
from scaling_law.runs.rows import Row, RunsError, names_in, number, read_rows
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


def log_rows(source: str | Path, final: Final, losses: Collection[str]) -> LoadedRows | None:
    """Read the rows of a folder of logs, or of one log; None where the path has none, or has tables of runs, too.

    RunsError where TensorBoard's reader is needed and not installed.
    """
    path = Path(str(source).removeprefix("file:"))
    if path.is_dir():
        has_table = any(next(path.rglob(name), None) for name in TABLES)
        if has_table:
            return None
        states = sorted(path.rglob(TRAINER_STATE))
        events = sorted(path.rglob(EVENTS))
    else:
        states = [path] if path.name == TRAINER_STATE and path.is_file() else []
        events = [path] if path.match(EVENTS) and path.is_file() else []

    if states:
        rows = [*_read_trainer_runs(path, states, final, losses)]
    elif events:
        rows = [*_read_tensorboard_runs(path, events, final, losses)]
    else:
        rows = _read_run_files(path, final, losses) if path.is_dir() else []
    return hub.LoadedRows(rows, path.name or str(source)) if rows else None


def _name(folder: Path, root: Path) -> str:
    """Name a run by its path from the folder that the user gave."""
    if root in folder.parents:
        return str(folder.relative_to(root))
    return folder.resolve().name


# ------------------------------------------------------------------ tables


def _read_run_files(
    root: Path,
    final: Final,
    losses: Collection[str],
) -> list[Row]:
    """Read a folder with a file for each run: its log, or its only row; none where a file holds several runs."""
    files: list[str] = []
    for pattern in FILES:
        # Hidden folders, such as those of notebooks, are left out.
        files = files or sorted(glob(f"**/{pattern}", root_dir=root, recursive=True))
    rows: list[Row] = []
    for file in files:
        lines = read_rows(root / file).rows
        if len(lines) > 1 and not _is_log(lines):
            return []
        name = file.rpartition(".")[0]
        rows.append(end_of(lines, name, range(len(lines)), final, losses))
    return rows if rows and len(set.intersection(*map(set, rows))) > 1 else []


def _is_log(lines: Sequence[Row]) -> bool:
    """Return whether the rows of a file are the steps of one run: a count grows along them, and no size varies."""
    has_progress = False
    for name in names_in(lines):
        values = [number(line.get(name)) or 0.0 for line in lines]
        if _SIZES.search(name) and min(values) < max(values):
            return False
        if _PROGRESS.search(name) and values == sorted({*values}):
            has_progress = True
    return has_progress


# ------------------------------------------------------------------ Trainer


def _read_trainer_runs(root: Path, states: list[Path], final: Final, losses: Collection[str]) -> Iterator[Row]:
    """Read the newest state of each run: in its folder, else in its last checkpoint."""
    newest: dict[Path, tuple[float, Path]] = {}
    for path in states:
        run = path.parent
        step = float("inf")
        if match := _CHECKPOINT.fullmatch(run.resolve().name):
            run = run.resolve().parent
            step = float(match[1])
        newest[run] = max(newest.get(run, (step, path)), (step, path))

    for run, (_, path) in sorted(newest.items()):
        state = _read_state(path)
        metrics = final_values(_logged_values(state), final, losses)
        for field, value in state.items():
            if number(value) is not None:
                metrics[field] = value

        name = _name(run, root)
        has_ended = metrics.get("global_step", 0) >= metrics.get("max_steps", 0)
        status = "final" if has_ended else "running"
        yield row_of(_read_sizes(path), metrics, (name, name), status)


def _read_state(path: Path) -> Fields:
    """Read a trainer_state.json. RunsError for another file."""
    content = path.read_bytes()
    state = strict_json.loads(content, what=str(path), max_bytes=len(content), finite=False)
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise RunsError(f"{path}: no state of transformers' Trainer: it has no log_history")
    return state


def _logged_values(state: Mapping[str, Any]) -> dict[str, list[float]]:
    """Collect the numbers that were logged under each name."""
    logged: dict[str, list[float]] = {}
    for line in state["log_history"]:
        for name, value in line.items():
            x = number(value)
            if x is not None:
                logged.setdefault(name, []).append(x)
    return logged


def _read_sizes(path: Path) -> Mapping[str, Any]:
    """Read the config.json of a checkpoint: its fields, and the sizes of its model as laws count them."""
    config = path.with_name(FILE_NAME)
    if not config.is_file():
        return {}
    content = strict_json.loads(config.read_bytes(), what=str(config))
    fields: Fields = {"config": content}
    # A class that cannot be counted has its sizes in columns.
    with suppress(ValueError, FileNotFoundError):
        architecture = read_model(config).architecture
        fields.update(architecture.variables())
        # As records of other classes than ours have them.
        fields["experts"] = architecture.experts
        fields["experts_equivalent"] = architecture.experts_equivalent
    return fields


# ------------------------------------------------------------------ TensorBoard


def _read_tensorboard_runs(root: Path, events: list[Path], final: Final, losses: Collection[str]) -> Iterator[Row]:
    """Read the event files of each run, including those in subfolders of its folder."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ModuleNotFoundError:
        raise RunsError(f"{root}: {NO_TENSORBOARD}") from None

    logs: dict[Path, _Events] = {}
    places = dict.fromkeys(path if path == root else path.parent for path in events)
    for place in places:
        accumulator = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0})
        logs[place] = _Events(accumulator.Reload())

    runs: dict[Path, _Events] = {}
    for place, log in logs.items():
        run = _run_of(place, root, logs)
        # add_hparams writes of the run itself, add_scalars and Keras of a part of it.
        if run != place and not log.settings:
            log.prefix_metrics(f"{place.relative_to(run)}/")
        if run not in runs:
            runs[run] = log
        elif run != place:
            runs[run].add(log)
        # Values in the run's folder hide those of its subfolders.
        else:
            log.add(runs[run])
            runs[run] = log

    for run, log in runs.items():
        if log.logged:
            name = _name(run if run.is_dir() else run.parent, root)
            metrics = final_values(log.logged, final, losses)
            yield row_of(log.settings, metrics, (name, name), log.status)


def _run_of(place: Path, root: Path, logs: Mapping[Path, _Events]) -> Path:
    """Find the run's folder for a folder of event files: a parent with event files, or else the folder itself."""
    for folder in place.parents:
        if folder in logs and (folder != root or logs[place].settings):
            return folder
    is_part = place != root and place.name in PARTS and place.parent not in logs
    return place.parent if is_part else place


class _Events:
    """Contents of a folder of event files: metrics in the order of their steps, hyperparameters, and the status."""

    def __init__(self, accumulator: Any) -> None:
        from tensorboard.plugins.hparams import metadata
        from tensorboard.util import tensor_util

        self.logged: dict[str, list[float]] = {}
        self.settings: Fields = {}
        self.status = "final"
        steps: list[float] = [0.0]
        read_tensor: Callable[[Any], Any] = tensor_util.make_ndarray

        tags = accumulator.Tags()
        for tag in tags["scalars"]:
            series = sorted(accumulator.Scalars(tag), key=lambda event: event.step)
            self.logged[tag] = [event.value for event in series]
            steps.append(series[-1].step)
        for tag in tags["tensors"]:
            tensors = accumulator.Tensors(tag)
            values = [read_tensor(event.tensor_proto) for event in tensors]
            are_numbers = all(value.size == 1 and value.dtype.kind == "f" for value in values)
            if values and are_numbers:
                self.logged[tag] = [float(value.reshape(())) for value in values]
                steps.append(tensors[-1].step)
        self.logged.setdefault("step", [max(steps)])

        for tag, summary in accumulator.summary_metadata.items():
            content = summary.plugin_data.content
            if tag == metadata.SESSION_START_INFO_TAG:
                hparams = metadata.parse_session_start_info_plugin_data(content).hparams
                self.settings = {name: _read_hparam(value) for name, value in hparams.items()}
            elif tag == metadata.SESSION_END_INFO_TAG:
                status = metadata.parse_session_end_info_plugin_data(content).status
                self.status = status_of(_STATUSES.get(status))

    def add(self, events: _Events) -> None:
        """Add the logs of another folder of the run; a metric of both keeps the values it has."""
        self.logged = {**events.logged, **self.logged}
        self.settings = {**events.settings, **self.settings}
        if events.status != "final":
            self.status = events.status

    def prefix_metrics(self, prefix: str) -> None:
        """Put a prefix before the names of metrics, except the step."""
        logged = {}
        for name, values in self.logged.items():
            logged[name if name == "step" else prefix + name] = values
        self.logged = logged


def _read_hparam(value: Any) -> Any:
    """Return a value of TensorBoard's hyperparameters as a number, a text or a boolean."""
    return getattr(value, value.WhichOneof("kind"))
