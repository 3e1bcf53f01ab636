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

import hub  # lazy: its rooms are imported when runs are read
from hub.base.errors import redacted, unknown
from hub.base.tables import literal
from scaling_law.runs import w_and_b
from scaling_law.runs.logged import Final, check_final, final_values, row_of
from scaling_law.runs.rows import Row, RunsError, number

if TYPE_CHECKING:
    from hub import LoadedRows

OVERDUE = 3.0  # times its longest silence, after which a run of trackio, which keeps no ends, is over
# Columns of its tables.
STRUCTURE = ("run_id", "run_name", "id", "timestamp", "step", "log_id", "space_id", "created_at")
PAGE = 10_000  # rows that trackio's servers answer with at most
BUSY = (429, 502, 503, 504)  # answers after which a server is asked again
WAITS = (1.0, 4.0, 16.0)  # seconds before that, where it does not say how many; it may say up to the longest
LONGEST_WAIT = 60.0
_SPACE = re.compile(r"[\w.-]+/[\w.-]+")


def is_tracker(source: Any) -> bool:
    return isinstance(source, str) and source.startswith(("trackio:", "wandb:"))


def with_values(rows: Sequence[Row]) -> str:
    """The columns of rows with a value of each, metrics first."""
    values = {name: value for row in reversed(rows) for name, value in row.items() if value is not None}
    return ", ".join(
        f"{name} ({literal(values[name])})" for name in dict.fromkeys(name for row in rows for name in row)
    )


def tracker_rows(source: str, final: Final, losses: Collection[str] = ()) -> LoadedRows:
    """The rows of "trackio:PROJECT" or "wandb:ENTITY/PROJECT".

    `final` holds for every metric whose name ends in "loss", and for `losses`. InputError for another one; RunsError
    for a project that is not there, and for a tracker that does not answer.
    """
    check_final(final)
    tracker, _, place = source.partition(":")
    rows = (_of_trackio if tracker == "trackio" else w_and_b.runs_of)(place, final, losses)
    return hub.LoadedRows([*rows], source)


def _post(url: str, body: Any, what: str, key: str | None) -> dict[str, Any]:
    """The data that a server answers, asked again while it is busy; RunsError, one line without the key, else."""
    from http.client import HTTPException  # slow to import
    from urllib.error import HTTPError
    from urllib.request import Request

    # Names, messages and laws would repeat a password.
    if "@" in urlsplit(url).netloc:
        raise RunsError("a tracker's address must be http(s)://HOST[:PORT], without a login in it")
    try:
        request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        if key:
            # The key is for this server alone.
            request.add_unredirected_header("Authorization", f"Bearer {key}")
        answer = _answer(request)
        if not (problem := answer.get("error") or answer.get("errors")):
            return dict(answer["data"])
        problems = problem if isinstance(problem, list) else [problem]
        said = "says " + "; ".join(str(one.get("message", one) if isinstance(one, dict) else one) for one in problems)
    except HTTPError as error:
        text = error.read(PAGE).decode(errors="replace").strip()
        said = f"answered {error.code} ({text or error.reason})"
    except (HTTPException, OSError, ValueError) as error:  # no connection, one that breaks, or no JSON
        said = f"does not answer ({getattr(error, 'reason', error)})"
    except (AttributeError, KeyError, TypeError):
        said = "answers something else: is it this tracker's?"
    if key:
        said = said.replace(key, "<key>")
    raise RunsError(f"{what}: its server {redacted(' '.join(said.split()))[:400]}")  # cut last: a part of a key is one


def _answer(request: Any) -> Any:
    """The JSON of a server's answer. Raises the HTTPError of one that stays busy."""
    from urllib.error import HTTPError
    from urllib.request import urlopen

    for wait in (*WAITS, math.inf):
        try:
            with urlopen(request, timeout=60) as response:
                return json.load(response)
        except HTTPError as error:
            told = error.headers.get("Retry-After", "")
            seconds = max(wait, float(told)) if told.isdigit() else wait
            if error.code not in BUSY or seconds > LONGEST_WAIT:
                raise
            time.sleep(seconds)


# ------------------------------------------------------------------ trackio


def _of_trackio(place: str, final: Final, losses: Collection[str]) -> Iterator[Row]:
    """Rows of PROJECT in the local store, ORG/SPACE/PROJECT, http://…/PROJECT or datasets/ORG/NAME/PROJECT."""
    where, _, project = place.rpartition("/")
    if where.startswith("datasets/"):
        lines, configs = (_parquet(where, f"{project}{part}.parquet") for part in ("", "_configs"))
    else:
        ask = _server(where, project, f"trackio:{place}") if where else _store(project)
        lines, configs = (_table(ask, name) for name in ("metrics", "configs"))
    settings = {_identity(row)[1]: _decoded(row, "config") for row in configs}
    times: dict[tuple[str, str], list[datetime]] = {}
    logged: dict[tuple[str, str], dict[str, list[float]]] = {}
    for line in lines:
        run = _identity(line)
        times.setdefault(run, []).append(datetime.fromisoformat(line["timestamp"]))
        for name, value in {"step": line["step"], **_decoded(line, "metrics")}.items():
            if (x := number(value)) is not None:
                logged.setdefault(run, {}).setdefault(name, []).append(x)
    for run, metrics in logged.items():
        ends = final_values(metrics, final, losses)
        yield row_of(settings.get(run[1], {}), ends, run, "running" if _is_under_way(times[run]) else "final")


def _identity(row: Row) -> tuple[str, str]:
    """Name and id of a run; stores of old versions have the name only."""
    return str(row["run_name"]), str(row.get("run_id") or row["run_name"])


def _decoded(row: Row, name: str) -> dict[str, Any]:
    """What a column of JSON holds; in parquet files it is spread over the other columns."""
    if name in row:
        return dict(json.loads(row[name]))
    return {key: value for key, value in row.items() if value is not None and key not in STRUCTURE}


def _is_under_way(times: Sequence[datetime]) -> bool:
    """Whether the next line of a run is not overdue yet."""
    ordered = sorted(time if time.tzinfo else time.replace(tzinfo=timezone.utc) for time in times)
    silences = [after - before for before, after in pairwise(ordered)]
    return bool(silences) and datetime.now(timezone.utc) - ordered[-1] < OVERDUE * max(silences)


def _table(ask: Callable[[str], list[Row]], name: str) -> list[Row]:
    """All rows of a table, page by page."""
    rows: list[Row] = []
    while page := ask(f"SELECT * FROM {name} WHERE id > {rows[-1]['id'] if rows else 0} ORDER BY id LIMIT {PAGE}"):
        rows += page
    return rows


def _store(project: str) -> Callable[[str], list[Row]]:
    """Questions to the local store, opened so that not even SQLite's own files are written where nobody writes."""
    from huggingface_hub.constants import HF_HOME

    folder = Path(os.environ.get("TRACKIO_DIR") or Path(HF_HOME) / "trackio")
    path = folder / f"{re.sub(r'[^A-Za-z0-9_-]', '', project) or 'default'}.db"
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


def _server(where: str, project: str, what: str) -> Callable[[str], list[Row]]:
    """Questions to a Space, or to a dashboard at a URL."""
    token = None
    if not where.startswith(("http://", "https://")):
        if not _SPACE.fullmatch(where):
            places = "PROJECT, ORG/SPACE/PROJECT, datasets/ORG/NAME/PROJECT or http://HOST:PORT/PROJECT"
            raise RunsError(f"{what}: allowed is trackio: and {places}")
        from huggingface_hub import get_token

        where = f"https://{re.sub(r'[/_.]', '-', where).lower()}.hf.space"
        token = get_token()

    def ask(query: str) -> list[Row]:
        answer = _post(f"{where}/api/query_project", {"args": [project, query], "kwargs": {}}, what, token)
        return list(answer["rows"])

    return ask


def _parquet(where: str, name: str) -> list[Any]:
    organisation, _, dataset = where.removeprefix("datasets/").partition("/")
    content = hub.open_store(f"hf://{organisation}").read("dataset", dataset, name, None)
    with TemporaryDirectory() as folder:
        (file := Path(folder) / name).write_bytes(content)
        return hub.load_rows(file).rows
