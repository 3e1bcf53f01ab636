"""Runs in trackers, one row each: trackio's store, Space or dataset, and W&B's API. They are only read.

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
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import hub  # lazy: its rooms are imported when runs are read
from hub.base.errors import InputError, redacted, unknown
from hub.base.tables import literal
from scaling_law.runs.rows import Row, RunsError, is_loss, number

if TYPE_CHECKING:
    from hub import LoadedRows

Final = Literal["last", "minimum", "smoothed"]
SAID = {"last": "last logged", "minimum": "least logged", "smoothed": "mean of the last 5 % logged"}
TAIL = 0.05
OVERDUE = 3.0  # times its longest silence, after which a run of trackio, which keeps no ends, is over
STRUCTURE = ("run_id", "run_name", "id", "timestamp", "step", "log_id", "space_id", "created_at")  # of its tables
PAGE = 10_000  # rows that trackio's servers answer with at most, and lines of a history of W&B
BUSY = (429, 502, 503, 504)  # answers after which a server is asked again
WAITS = (1.0, 4.0, 16.0)  # seconds before that, where it does not say how many; it may say up to the longest
LONGEST_WAIT = 60.0
W_AND_B_STATES = {"finished": "final", **dict.fromkeys(("crashed", "failed", "killed"), "failed")}  # else running
W_AND_B = ("api.wandb.ai", "api.forge.coreweave.com")  # one service; its tools keep the key under either
RUNS_OF_W_AND_B = """query Runs($entity: String!, $project: String!, $cursor: String) {
  project(name: $project, entityName: $entity) { runs(first: 100, after: $cursor, order: "+created_at") {
    edges { node { name displayName state config summaryMetrics historyLineCount } }
    pageInfo { endCursor hasNextPage } } } }"""
HISTORY_OF_W_AND_B = """query History($entity: String!, $project: String!, $run: String!, $specs: [JSONString!]!) {
  project(name: $project, entityName: $entity) { run(name: $run) { sampledHistory(specs: $specs) } } }"""
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
    if final not in SAID:
        raise InputError(f"final={final!r} must be one of {', '.join(SAID)}")
    tracker, _, place = source.partition(":")
    rows = (_of_trackio if tracker == "trackio" else _of_w_and_b)(place, final, losses)
    return hub.LoadedRows([*rows], source)


def _row(
    config: Mapping[str, Any], metrics: Mapping[str, Any], identity: tuple[str, str], status: str
) -> dict[str, Any]:
    """A run's row. A metric hides a configured value of its name, which may only have been planned."""
    numbers = {name: x for name, value in metrics.items() if (x := number(value)) is not None}
    settings = {name: value for name, value in _flat(config) if name not in numbers}
    return numbers | settings | {"run_id": identity[0], "id": identity[1], "status": status}


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, (str, int, float)) and not name.startswith("_"):
            yield prefix + name, value


def _final(logged: Sequence[float], final: Final) -> float:
    if final == "last":
        return logged[-1]
    if final == "minimum":
        return min((value for value in logged if not math.isnan(value)), default=math.nan)
    tail = logged[-max(1, round(TAIL * len(logged))) :]
    return math.fsum(tail) / len(tail) if all(map(math.isfinite, tail)) else math.nan


def _post(url: str, body: Any, what: str, key: str | None, scheme: str = "Bearer") -> dict[str, Any]:
    """The data that a server answers, asked again while it is busy; RunsError, one line without the key, else."""
    from http.client import HTTPException  # slow to import
    from urllib.error import HTTPError
    from urllib.request import Request

    credentials = b64encode(f"api:{key}".encode()).decode() if scheme == "Basic" else key
    if "@" in urlsplit(url).netloc:  # which names, messages and laws would repeat
        raise RunsError("a tracker's address must be http(s)://HOST[:PORT], without a login in it")
    try:
        request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        if key:
            request.add_unredirected_header("Authorization", f"{scheme} {credentials}")  # for this server alone
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
    for secret in filter(None, (credentials, key)):
        said = said.replace(secret, "<key>")
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
        ends = {n: _final(values, final if is_loss(n) or n in losses else "last") for n, values in metrics.items()}
        yield _row(settings.get(run[1], {}), ends, run, "running" if _is_under_way(times[run]) else "final")


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


# ------------------------------------------------------------------ W&B


def _of_w_and_b(place: str, final: Final, losses: Collection[str]) -> Iterator[Row]:
    """Rows of ENTITY/PROJECT."""
    if not _SPACE.fullmatch(place):
        raise RunsError(f"wandb:{place}: allowed is wandb:ENTITY/PROJECT")
    variables: dict[str, Any] = dict(zip(("entity", "project"), place.split("/"), strict=True))
    page: dict[str, Any] = {"hasNextPage": True, "endCursor": None}
    while page["hasNextPage"]:
        project = _graphql(RUNS_OF_W_AND_B, variables | {"cursor": page["endCursor"]}, place)
        for edge in project["runs"]["edges"]:
            node = edge["node"]
            # {"lr": {"value": 0.1}}; a summary may have {"loss": {"min": 2.5}} beside numbers
            config = {n: v.get("value") for n, v in json.loads(node["config"] or "{}").items() if isinstance(v, dict)}
            summary = json.loads(node["summaryMetrics"] or "{}")
            metrics = {n: v for n, v in summary.items() if not n.startswith("_")} | {"step": summary.get("_step")}
            if final != "last":
                names = [name for name in metrics if is_loss(name) or name in losses]
                lines, steps = node["historyLineCount"] or 0, int(summary.get("_step") or 0) + 1
                window = steps if lines <= PAGE else PAGE  # more lines than asked for would be sampled
                run = variables | {"run": node["name"]}
                metrics |= _ends_of_w_and_b(run, names, range(0, steps, window), final, place)
            status = W_AND_B_STATES.get(node["state"], "running")
            yield _row(config, metrics, (node["displayName"], node["name"]), status)
        page = project["runs"]["pageInfo"]


def _ends_of_w_and_b(
    variables: Mapping[str, Any], names: Sequence[str], starts: range, final: Final, place: str
) -> dict[str, float]:
    """The final value of each metric of a run, from its history in windows of steps."""
    logged: dict[str, dict[float, float]] = {name: {} for name in names}  # by step
    for start in starts if names else ():
        window = {"minStep": start, "maxStep": start + starts.step, "samples": PAGE}
        specs = [json.dumps({"keys": ["_step", name], **window}) for name in names]
        run = _graphql(HISTORY_OF_W_AND_B, {**variables, "specs": specs}, place)["run"]  # None: deleted since
        for name, history in zip(names, run["sampledHistory"] if run else [[]] * len(names), strict=True):
            logged[name] |= {row["_step"]: x for row in history if (x := number(row[name])) is not None}
    return {name: _final([*values.values()], final) for name, values in logged.items() if values}


def _graphql(query: str, variables: Mapping[str, Any], place: str) -> Any:
    """The project that W&B answers with; the key is that of its own tools (WANDB_API_KEY, else ~/.netrc)."""
    base = os.environ.get("WANDB_BASE_URL", f"https://{W_AND_B[0]}").rstrip("/")
    key = (os.environ.get("WANDB_API_KEY") or _saved_key(urlsplit(base).netloc)).strip()
    answer = _post(f"{base}/graphql", {"query": query, "variables": variables}, f"wandb:{place}", key, "Basic")
    if not (project := answer.get("project")):
        raise RunsError(f"wandb:{place}: no such project, or not for {'this key' if key else 'readers without a key'}")
    return project


def _saved_key(host: str) -> str:
    """What `wandb login` keeps for a server, HOST or HOST:PORT; "" where there is none."""
    import netrc

    try:
        logins = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return ""
    saved = [logins.authenticators(name) for name in (W_AND_B if host in W_AND_B else (host,))]
    return next((login[2] for login in saved if login), "")
