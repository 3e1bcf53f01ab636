"""Runs in trackers, one row each: trackio's store, Space or dataset, and W&B's projects. They are only read.

A row has the run's configuration (nested fields joined by dots), the last value of each metric, `run_id` (the name),
the tracker's `id`, and a `status` as in run records: final, running or failed. Another tracker is a function that
yields such rows, in `TRACKERS`.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

# Lazy: the rooms of hub are imported when runs are read.
import hub
from hub.base.errors import redact, unknown
from hub.base.types import Fields
from scaling_law.runs.logged import End, collect, row_of
from scaling_law.runs.rows import Row, RunsError
from scaling_law.runs.statuses import status_of

if TYPE_CHECKING:
    from hub import LoadedRows

# Trackio does not record that a run ended: it is over after this many times its longest silence.
OVERDUE = 3.0
# Columns of trackio's tables that are neither metrics nor settings.
STRUCTURE = ("run_id", "run_name", "id", "timestamp", "step", "log_id", "space_id", "created_at")
# Rows that trackio's servers answer with at most.
PAGE = 10_000
# Answers after which a server is asked again, and the seconds before that if it sends no Retry-After.
BUSY = (429, 502, 503, 504)
WAITS = (1.0, 4.0, 16.0)
# Seconds that a server may ask for, and those in which it must answer.
LONGEST_WAIT = 60.0
SECONDS = 60
# Characters of an error that a message repeats.
LONGEST = 400
NO_CLIENT = "W&B is read by its own client: pip install wandb"
NO_KEY = "W&B needs a key: type wandb login, or set WANDB_API_KEY"


def is_tracker(source: Any) -> bool:
    return isinstance(source, str) and source.partition(":")[0] in TRACKERS and ":" in source


def tracker_rows(source: str, end: End) -> LoadedRows:
    """Read the rows of "trackio:PROJECT" or "wandb:ENTITY/PROJECT".

    `end` finds the final values of what a run logged. RunsError for a project that is not there, and for a tracker
    that does not answer.
    """
    tracker, _, place = source.partition(":")
    return hub.LoadedRows([*TRACKERS[tracker](place, end)], source)


def _in_one_line(error: object, key: str | None) -> str:
    """Write an error in one line without the key, which is removed before the line is cut."""
    text = " ".join(str(error).split()) or type(error).__name__
    if key:
        text = text.replace(key, "<key>")
    return redact(text)[:LONGEST]


def _check_address(url: str, subject: str) -> None:
    """Raise RunsError for another address than one of http(s) without a login, which messages would repeat."""
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or "@" in address.netloc:
        raise RunsError(f"{subject} must be http(s)://HOST[:PORT], without a login in it")


# ------------------------------------------------------------------ W&B


def _read_wandb_runs(place: str, end: End) -> list[Row]:
    """Read the rows of ENTITY/PROJECT. RunsError, in one line and without the key, for what cannot be read."""
    source = f"wandb:{place}"
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", place):
        raise RunsError(f"{source}: allowed is wandb:ENTITY/PROJECT")
    _check_address(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai", f"{source}: WANDB_BASE_URL")

    try:
        import wandb
    except ModuleNotFoundError:
        raise RunsError(f"{source}: {NO_CLIENT}") from None

    key = os.environ.get("WANDB_API_KEY")

    try:
        api = wandb.Api(timeout=SECONDS)
        key = api.api_key
        runs = api.runs(place, order="+created_at", per_page=100, lazy=False)
        return [_read_wandb_run(run, end) for run in runs]
    # The client raises errors of many classes: its own, its service's and Python's.
    except Exception as error:
        lacks_key = isinstance(error, wandb.errors.UsageError) and not key
        raise RunsError(f"{source}: {NO_KEY if lacks_key else _in_one_line(error, key)}") from None


def _read_wandb_run(run: Any, end: End) -> Row:
    """Read the row of a run, with the history of losses, or of all columns, only where the final value needs it."""
    logged: dict[str, list[Any]] = {}

    if end.histories is not None:
        logged = collect(_read_history(run))
        return row_of(run.name, end(logged), run.config, status_of(run.state), run.id)

    for name, value in dict(run.summary).items():
        if not name.startswith("_"):
            logged[name] = [value]
        if end.needs_history(name):
            logged[name] = [line[name] for line in _read_history(run, keys=[name])] or [value]

    logged["step"] = [run.summary.get("_step")]
    # The client has no group for runs outside of one.
    group = getattr(run, "group", None)
    return row_of(run.name, end(logged), run.config, status_of(run.state), run.id, group)


def _read_history(run: Any, **options: Any) -> list[Row]:
    """Read the lines that a run logged, in the order of their steps."""
    # With as many samples as there are steps, none is left out.
    lines = run.history(samples=run.lastHistoryStep + 1, pandas=False, **options)
    return sorted(lines, key=lambda line: line["_step"])


# ------------------------------------------------------------------ trackio


def _read_trackio_runs(place: str, end: End) -> Iterator[Row]:
    """Read PROJECT in the local store, ORG/SPACE/PROJECT, http://…/PROJECT or datasets/ORG/NAME/PROJECT."""
    where, _, project = place.rpartition("/")
    if where.startswith("datasets/"):
        lines = _parquet(where, f"{project}.parquet")
        configs = _parquet(where, f"{project}_configs.parquet")
    else:
        ask = _server(where, project, f"trackio:{place}") if where else _store(project)
        lines = _table(ask, "metrics")
        configs = _table(ask, "configs")

    settings = {_identity(row)[1]: _decode(row, "config") for row in configs}

    runs: dict[tuple[str, str], list[Row]] = {}
    for line in lines:
        runs.setdefault(_identity(line), []).append(line)

    for (name, key), run_lines in runs.items():
        logged = collect({"step": line["step"], **_decode(line, "metrics")} for line in run_lines)
        status = "running" if _is_under_way([line["timestamp"] for line in run_lines]) else "final"
        config = settings.get(key, {})
        yield row_of(name, end(logged), config, status, key, config.get("_Group"))


def _identity(row: Row) -> tuple[str, str]:
    """Return the name and the id of a run; stores of old versions have the name only."""
    return str(row["run_name"]), str(row.get("run_id") or row["run_name"])


def _decode(row: Row, name: str) -> Fields:
    """Decode a column of JSON; in parquet files it is spread over the other columns."""
    if name in row:
        return dict(json.loads(row[name]))
    return {key: value for key, value in row.items() if value is not None and key not in STRUCTURE}


def _is_under_way(timestamps: Sequence[str]) -> bool:
    """Return whether the next line of a run is not overdue yet."""
    times = []
    for text in timestamps:
        line_time = datetime.fromisoformat(text)
        times.append(line_time if line_time.tzinfo else line_time.replace(tzinfo=timezone.utc))

    times.sort()
    silences = [after - before for before, after in pairwise(times)]
    return bool(silences) and datetime.now(timezone.utc) - times[-1] < OVERDUE * max(silences)


def _table(ask: Callable[[str], list[Row]], name: str) -> list[Row]:
    """Read all rows of a table, page by page."""
    rows: list[Row] = []
    last = 0
    while True:
        page = ask(f"SELECT * FROM {name} WHERE id > {last} ORDER BY id LIMIT {PAGE}")
        if not page:
            break
        rows += page
        last = page[-1]["id"]
    return rows


def _store(project: str) -> Callable[[str], list[Row]]:
    """Open the local store for queries; unless a run writes to it, SQLite adds no files beside it."""
    from huggingface_hub.constants import HF_HOME

    folder = Path(os.environ.get("TRACKIO_DIR") or Path(HF_HOME) / "trackio")
    file_name = re.sub(r"[^A-Za-z0-9_-]", "", project) or "default"
    path = folder / f"{file_name}.db"
    if not path.is_file():
        projects = sorted(file.stem for file in folder.glob("*.db"))
        raise RunsError(f"{unknown('trackio:', project, projects)} in {folder}")

    mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"

    def ask(query: str) -> list[Row]:
        try:
            with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)) as connection:
                connection.row_factory = sqlite3.Row
                return [dict(row) for row in connection.execute(query)]
        except sqlite3.Error as error:
            raise RunsError(f"trackio:{project}: {path} cannot be read ({error})") from None

    return ask


def _parquet(where: str, name: str) -> list[Any]:
    """Read a file of a dataset on the Hub."""
    organisation, _, dataset = where.removeprefix("datasets/").partition("/")
    content = hub.open_store(f"hf://{organisation}").read("dataset", dataset, name, None)
    with TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_bytes(content)
        return hub.load_rows(file).rows


def _server(where: str, project: str, source: str) -> Callable[[str], list[Row]]:
    """Open a Space, or a dashboard at a URL, for queries."""
    key = None
    if not where.startswith(("http://", "https://")):
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", where):
            places = "PROJECT, ORG/SPACE/PROJECT, datasets/ORG/NAME/PROJECT or http://HOST:PORT/PROJECT"
            raise RunsError(f"{source}: allowed is trackio: and {places}")
        from huggingface_hub import get_token

        subdomain = re.sub(r"[/_.]", "-", where).lower()
        where = f"https://{subdomain}.hf.space"
        key = get_token()

    _check_address(where, "a tracker's address")

    def ask(query: str) -> list[Row]:
        """Ask the server for rows. RunsError, one line without the key, for any other answer."""
        # These are slow to import.
        from http.client import HTTPException
        from urllib.error import HTTPError

        body = {"args": [project, query], "kwargs": {}}
        try:
            answer = _post(f"{where}/api/query_project", body, key)
            if not answer.get("error"):
                return list(answer["data"]["rows"])
            problem = f"says {answer['error']}"
        except HTTPError as error:
            text = error.read(PAGE).decode(errors="replace").strip()
            problem = f"answered {error.code} ({text or error.reason})"
        # There is no connection, it breaks, or the answer is no JSON.
        except (HTTPException, OSError, ValueError) as error:
            problem = f"does not answer ({getattr(error, 'reason', error)})"
        except (AttributeError, KeyError, TypeError):
            problem = "answers something else: is it this tracker's?"
        raise RunsError(f"{source}: its server {_in_one_line(problem, key)}")

    return ask


def _post(url: str, body: Any, key: str | None) -> Any:
    """Return the JSON of a server's answer, asked again while it is busy. Raises the HTTPError of any other answer."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    if key:
        # A redirect must not carry the key to another server.
        request.add_unredirected_header("Authorization", f"Bearer {key}")

    for wait in (*WAITS, float("inf")):
        try:
            with urlopen(request, timeout=SECONDS) as response:
                return json.load(response)
        except HTTPError as error:
            retry_after = error.headers.get("Retry-After", "")
            seconds = max(wait, float(retry_after)) if retry_after.isdigit() else wait
            if error.code not in BUSY or seconds > LONGEST_WAIT:
                raise
            time.sleep(seconds)


TRACKERS: dict[str, Callable[..., Any]] = {"trackio": _read_trackio_runs, "wandb": _read_wandb_runs}
