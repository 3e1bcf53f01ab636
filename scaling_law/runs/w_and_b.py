"""Runs of W&B, which its own client reads (`wandb.Api`), and the charts that its pages export."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from hub.base.errors import redact
from scaling_law.runs.logged import STEPS, Final, final_values, row_of
from scaling_law.runs.rows import Row, RunsError, is_loss, names_of, number
from scaling_law.runs.statuses import status_of

NO_CLIENT = "W&B is read by its own client: pip install wandb"
NO_KEY = "W&B needs a key: type wandb login, or set WANDB_API_KEY"
# Seconds for an answer, with the waits of the client where a server is busy.
SECONDS = 60
# Characters of an error that a message repeats.
LONGEST = 400
# Columns that a chart may have instead of steps.
TIMES = ("Relative Time", "Wall Time")
# A chart's export has the bounds of its buckets beside each run.
BOUNDS = ("__MIN", "__MAX")


def runs_of(place: str, final: Final, losses: Collection[str]) -> list[Row]:
    """Read the rows of ENTITY/PROJECT. RunsError, in one line and without the key, for what cannot be read."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", place):
        raise RunsError(f"wandb:{place}: allowed is wandb:ENTITY/PROJECT")
    address = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai")
    # Messages would repeat a login.
    if address.scheme not in ("http", "https") or "@" in address.netloc:
        raise RunsError(f"wandb:{place}: WANDB_BASE_URL must be http(s)://HOST[:PORT], without a login in it")

    try:
        import wandb
    except ModuleNotFoundError:
        raise RunsError(f"wandb:{place}: {NO_CLIENT}") from None

    key = os.environ.get("WANDB_API_KEY")
    try:
        api = wandb.Api(timeout=SECONDS)
        key = api.api_key
        return list(_rows(api, place, final, losses))
    except wandb.errors.UsageError as error:
        problem = _in_one_line(error, key) if key else NO_KEY
        raise RunsError(f"wandb:{place}: {problem}") from None
    # The client raises errors of many classes: its own, its service's and Python's.
    except Exception as error:
        raise RunsError(f"wandb:{place}: {_in_one_line(error, key)}") from None


def _rows(api: Any, place: str, final: Final, losses: Collection[str]) -> Iterator[Row]:
    """Read the runs of a project, with the whole history of losses only where `final` needs it."""
    for run in api.runs(place, order="+created_at", per_page=100, lazy=False):
        summary = dict(run.summary)
        metrics: dict[str, Any] = {}
        for name, value in summary.items():
            if not name.startswith("_"):
                metrics[name] = value
        metrics["step"] = summary.get("_step")
        if final != "last":
            logged = {}
            for name in metrics:
                if is_loss(name) or name in losses:
                    logged[name] = _history(run, name)
            logged = {name: values for name, values in logged.items() if values}
            metrics.update(final_values(logged, final, losses))
        # The client has no group for runs outside of one.
        group = getattr(run, "group", None)
        yield row_of(run.config, metrics, (run.name, run.id), status_of(run.state), group)


def _history(run: Any, name: str) -> list[float]:
    """Read every value of a metric: with as many samples as there are steps, none is left out."""
    lines = run.history(keys=[name], samples=run.lastHistoryStep + 1, pandas=False)
    values = {line["_step"]: number(line[name]) for line in lines}
    return [value for _, value in sorted(values.items()) if value is not None]


def _in_one_line(error: Exception, key: str | None) -> str:
    """Write the error of the client in one line without the key, which is removed before the line is cut."""
    text = " ".join(str(error).split()) or type(error).__name__
    if key:
        text = text.replace(key, "<key>")
    return redact(text)[:LONGEST]


# ------------------------------------------------------------------ charts


def chart_rows(rows: Sequence[Row], final: Final, losses: Collection[str]) -> list[Row] | None:
    """Make one row for each run of a chart's export, with columns for steps and "RUN - METRIC"; None for others.

    The bounds of the buckets, __MIN and __MAX, are ignored.
    """
    columns = names_of(rows)
    axis = columns[0] if columns else ""
    series = {}
    for name in columns[1:]:
        if not name.endswith(BOUNDS):
            series[name] = name.rpartition(" - ")
    if not _is_chart(columns, axis, series):
        return None

    axis_name = "step" if axis == "Step" else axis
    logged: dict[str, dict[str, list[float]]] = {}
    for name, (run, _, metric) in series.items():
        values = []
        places = []
        for row in rows:
            value = number(row.get(name))
            place = number(row.get(axis))
            if value is not None and place is not None:
                values.append(value)
                places.append(place)

        run_metrics = logged.setdefault(run, {})
        run_metrics[metric] = values
        run_metrics.setdefault(axis_name, []).extend(places)

    runs: list[Row] = []
    for run, run_metrics in logged.items():
        measured_metrics = {name: values for name, values in run_metrics.items() if values}
        if measured_metrics:
            runs.append({**final_values(measured_metrics, final, losses), "run_id": run})
    return runs


def _is_chart(columns: Sequence[str], axis: str, series: Mapping[str, tuple[str, str, str]]) -> bool:
    """Return whether a table with these columns is a chart: every column has a run, and one of three signs is there.

    The signs are bounds of buckets, a metric of several runs, and an axis of steps or times.
    """
    runs = [run for run, _, _ in series.values()]
    if not runs or not all(runs):
        return False

    bounds: list[str] = []
    for name in series:
        bounds += [f"{name}{bound}" for bound in BOUNDS]
    is_bounded = not set(bounds).isdisjoint(columns)
    metrics = {metric for _, _, metric in series.values()}
    has_axis = axis in STEPS or axis.startswith(TIMES)
    return is_bounded or len(metrics) < len(runs) or has_axis
