"""Runs in trackers, one row each: trackio's store, Space or dataset, and W&B's projects. They are only read.

A row has the run's configuration (nested fields joined by dots), the last value of each metric, `run_id` (the name),
the tracker's `id`, and a `status` as in run records: final, running or failed.
"""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
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
from hub.base.tables import literal
from hub.base.types import Fields
from scaling_law.runs import w_and_b
from scaling_law.runs.logged import Final, check_final, final_values, row_of
from scaling_law.runs.rows import Row, RunsError, names_in, number

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
# Seconds that a server may ask for.
LONGEST_WAIT = 60.0
# Characters of an error that a message repeats.
LONGEST = 400
_SPACE = re.compile(r"[\w.-]+/[\w.-]+")


def is_tracker(source: Any) -> bool:
    return isinstance(source, str) and source.startswith(("trackio:", "wandb:"))


def with_values(rows: Sequence[Row]) -> str:
    """List the columns of rows with a value of each, metrics first."""
    values: Fields = {}
    for row in reversed(rows):
        values.update({name: value for name, value in row.items() if value is not None})
    return ", ".join(f"{name} ({literal(values[name])})" for name in names_in(rows))


def tracker_rows(source: str, final: Final, losses: Collection[str] = ()) -> LoadedRows:
    """Read the rows of "trackio:PROJECT" or "wandb:ENTITY/PROJECT".

    `final` holds for every metric whose name ends in "loss", and for `losses`. InputError for another one; RunsError
    for a project that is not there, and for a tracker that does not answer.
    """
    check_final(final)
    tracker, _, place = source.partition(":")
    read_runs = _read_trackio_runs if tracker == "trackio" else w_and_b.runs_of
    return hub.LoadedRows([*read_runs(place, final, losses)], source)


def _post(url: str, body: Any, place: str, key: str | None) -> Fields:
    """Ask a server for data, again while it is busy; RunsError, one line without the key, for any other answer."""
    # These are slow to import.
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request

    # Names, messages and laws would repeat a password.
    if "@" in urlsplit(url).netloc:
        raise RunsError("a tracker's address must be http(s)://HOST[:PORT], without a login in it")
    try:
        request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        if key:
            # A redirect must not carry the key to another server.
            request.add_unredirected_header("Authorization", f"Bearer {key}")
        answer = _answer(request)
        errors = answer.get("error") or answer.get("errors")
        if not errors:
            return dict(answer["data"])
        problem = f"says {_join_errors(errors)}"
    except HTTPError as error:
        text = error.read(PAGE).decode(errors="replace").strip()
        problem = f"answered {error.code} ({text or error.reason})"
    # There is no connection, it breaks, or the answer is no JSON.
    except (HTTPException, OSError, ValueError) as error:
        problem = f"does not answer ({getattr(error, 'reason', error)})"
    except (AttributeError, KeyError, TypeError):
        problem = "answers something else: is it this tracker's?"

    if key:
        problem = problem.replace(key, "<key>")
    # Cut last, because a part of a key would stay in the message.
    line = redact(" ".join(problem.split()))[:LONGEST]
    raise RunsError(f"{place}: its server {line}")


def _join_errors(errors: Any) -> str:
    """Join the messages of an answer's errors: a list of objects or texts, or a single one."""
    messages = []
    for error in errors if isinstance(errors, list) else [errors]:
        messages.append(str(error.get("message", error) if isinstance(error, dict) else error))
    return "; ".join(messages)


def _answer(request: Any) -> Any:
    """Return the JSON of a server's answer. Raises the HTTPError of one that stays busy."""
    from urllib.error import HTTPError
    from urllib.request import urlopen

    for wait in (*WAITS, math.inf):
        try:
            with urlopen(request, timeout=60) as response:
                return json.load(response)
        except HTTPError as error:
            retry_after = error.headers.get("Retry-After", "")
            seconds = max(wait, float(retry_after)) if retry_after.isdigit() else wait
            if error.code not in BUSY or seconds > LONGEST_WAIT:
                raise
            time.sleep(seconds)


# ------------------------------------------------------------------ trackio


def _read_trackio_runs(place: str, final: Final, losses: Collection[str]) -> Iterator[Row]:
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

    times: dict[tuple[str, str], list[datetime]] = {}
    logged: dict[tuple[str, str], dict[str, list[float]]] = {}
    for line in lines:
        run = _identity(line)
        times.setdefault(run, []).append(datetime.fromisoformat(line["timestamp"]))
        cells = {"step": line["step"], **_decode(line, "metrics")}
        for name, cell in cells.items():
            value = number(cell)
            if value is not None:
                logged.setdefault(run, {}).setdefault(name, []).append(value)

    for run, metrics in logged.items():
        status = "running" if _is_under_way(times[run]) else "final"
        config = settings.get(run[1], {})
        yield row_of(config, final_values(metrics, final, losses), run, status, config.get("_Group"))


def _identity(row: Row) -> tuple[str, str]:
    """Return the name and the id of a run; stores of old versions have the name only."""
    return str(row["run_name"]), str(row.get("run_id") or row["run_name"])


def _decode(row: Row, name: str) -> Fields:
    """Decode a column of JSON; in parquet files it is spread over the other columns."""
    if name in row:
        return dict(json.loads(row[name]))
    return {key: value for key, value in row.items() if value is not None and key not in STRUCTURE}


def _is_under_way(times: Sequence[datetime]) -> bool:
    """Return whether the next line of a run is not overdue yet."""
    ordered = sorted(time if time.tzinfo else time.replace(tzinfo=timezone.utc) for time in times)
    silences = [after - before for before, after in pairwise(ordered)]
    return bool(silences) and datetime.now(timezone.utc) - ordered[-1] < OVERDUE * max(silences)


def _table(ask: Callable[[str], list[Row]], name: str) -> list[Row]:
    """Read all rows of a table, page by page."""
    rows: list[Row] = []
    last = 0
    while page := ask(f"SELECT * FROM {name} WHERE id > {last} ORDER BY id LIMIT {PAGE}"):
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
    address = f"{path.resolve().as_uri()}?{mode}"

    def ask(query: str) -> list[Row]:
        try:
            with closing(sqlite3.connect(address, uri=True)) as connection:
                connection.row_factory = sqlite3.Row
                return [dict(row) for row in connection.execute(query)]
        except sqlite3.Error as error:
            raise RunsError(f"trackio:{project}: {path} cannot be read ({error})") from None

    return ask


def _server(where: str, project: str, source: str) -> Callable[[str], list[Row]]:
    """Open a Space, or a dashboard at a URL, for queries."""
    token = None
    if not where.startswith(("http://", "https://")):
        if not _SPACE.fullmatch(where):
            places = "PROJECT, ORG/SPACE/PROJECT, datasets/ORG/NAME/PROJECT or http://HOST:PORT/PROJECT"
            raise RunsError(f"{source}: allowed is trackio: and {places}")
        from huggingface_hub import get_token

        subdomain = re.sub(r"[/_.]", "-", where).lower()
        where = f"https://{subdomain}.hf.space"
        token = get_token()

    def ask(query: str) -> list[Row]:
        body = {"args": [project, query], "kwargs": {}}
        answer = _post(f"{where}/api/query_project", body, source, token)
        return list(answer["rows"])

    return ask


def _parquet(where: str, name: str) -> list[Any]:
    """Read a file of a dataset on the Hub."""
    organisation, _, dataset = where.removeprefix("datasets/").partition("/")
    content = hub.open_store(f"hf://{organisation}").read("dataset", dataset, name, None)
    with TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_bytes(content)
        return hub.load_rows(file).rows
