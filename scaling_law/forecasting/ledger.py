"""A ledger of forecasts: one dated JSON file for each, made before the run, and scored after it.

It is a folder, or a dataset of the Hub (`hf://org/name`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import hub  # lazy: its rooms are imported when a ledger on the Hub is read
from hub.base import atomic, strict_json
from hub.base.errors import InputError, unknown
from hub.base.tables import ResultTable, Table
from scaling_law.runs.table import Runs

FORMAT, VERSION = "forecast", 1
LIBRARY = "joint-moe-scaling-laws"
SHOWN = ("n_active", "tokens", "experts", "loss", "low", "high")


@dataclass(frozen=True, repr=False)
class Ledger(ResultTable):
    """The forecasts of a folder, the oldest first; `measured` is None where none has been scored."""

    rows: tuple[Mapping[str, Any], ...]

    @property
    def scored(self) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row["measured"] is not None]

    @property
    def verdict(self) -> str:
        hits = sum(map(_is_inside, self.scored))
        levels = ", ".join(f"{level:.0%}" for level in sorted({row["level"] for row in self.scored}))
        held = f": {hits} inside their interval of {levels}" if self.scored else ""
        return f"{len(self.rows)} forecasts, {len(self.scored)} scored{held}"

    def to_rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "rows": self.to_rows()}

    def summary(self) -> Table:
        rows = [
            {"name": row["name"], **{name: row[name] for name in SHOWN}, "measured": row["measured"], "": _mark(row)}
            for row in self.rows
        ]
        return Table.of(rows, title=self.verdict)


def _is_inside(row: Mapping[str, Any]) -> bool:
    return bool(row["low"] <= row["measured"] <= row["high"])


def _mark(row: Mapping[str, Any]) -> str:
    if row["measured"] is None:
        return ""
    return "inside" if _is_inside(row) else "OUTSIDE"


def register(ledger: str | Path, rows: Sequence[Mapping[str, Any]], level: float, runs: Runs) -> list[str]:
    """Write each forecast as a record of its own, under its date and a hash; their names.

    ValueError for one that stands there.
    """
    now = datetime.now(timezone.utc)
    about = {"level": level, "runs": len(runs), "runs_sha256": hash_of(runs), "loss_name": runs.loss_name}
    about |= {"library": f"{LIBRARY} {version(LIBRARY)}", "registered": now.isoformat(timespec="seconds")}
    records = {}
    for row in rows:
        what = strict_json.dumps({**{name: row[name] for name in SHOWN[:3]}, "runs": about["runs_sha256"]})
        name = f"{now:%Y-%m-%d}-{hashlib.sha256(what.encode()).hexdigest()[:8]}"
        records[name] = {"name": name, **{key: row[key] for key in SHOWN}, **about, "measured": None, "scored": None}
    there = _read(ledger)
    if taken := [name for name in records if name in there]:
        raise InputError(f"{ledger}: {taken[0]} is registered already; a forecast is not changed")
    _write(ledger, records, f"Register {len(records)} forecasts")
    return [*records]


def score(ledger: str | Path, name: str, loss: float) -> None:
    """Add the measured loss to a record. ValueError for an unknown record, one that is scored, and bad losses."""
    records = _read(ledger)
    if name not in records:
        raise InputError(unknown(f"{ledger}: forecast ", name, records))
    if records[name]["measured"] is not None:
        raise InputError(f"{ledger}: {name} is scored already, with {records[name]['measured']:g}")
    if not 0 < loss < np.inf:
        raise InputError(f"score={loss!r} must be a positive loss")
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    _write(ledger, {name: {**records[name], "measured": float(loss), "scored": now}}, f"Score {name}")


def read_ledger(ledger: str | Path) -> Ledger:
    """All records, the oldest first. ValueError where there are none."""
    if not (records := _read(ledger)):
        raise InputError(f"{ledger}: no forecasts there")
    return Ledger(tuple(sorted(records.values(), key=lambda row: (row["registered"], row["name"]))))


def _on_the_hub(ledger: str | Path) -> tuple[hub.Store, str] | None:
    """The store and the name of the dataset; None for a folder."""
    if not str(ledger).startswith("hf://"):
        return None
    organisation, _, name = str(ledger).removeprefix("hf://").partition("/")
    return hub.open_store(f"hf://{organisation}"), name


def _read(ledger: str | Path) -> dict[str, dict[str, Any]]:
    """The records by name; none where there is no such ledger."""
    if (place := _on_the_hub(ledger)) is None:
        files = {path.stem: path.read_bytes() for path in sorted(Path(ledger).glob("*.json"))}
    else:
        store, repo = place
        names = store.files("dataset", repo) if store.branches("dataset", repo) else ()
        files = {Path(name).stem: store.read("dataset", repo, name) for name in names if name.endswith(".json")}
    records = {}
    for name, content in files.items():
        data = strict_json.check_format(strict_json.loads(content, what=name), FORMAT, VERSION, name)
        records[name] = {key: value for key, value in data.items() if key not in ("format", "version")}
    return records


def _write(ledger: str | Path, records: Mapping[str, Mapping[str, Any]], message: str) -> None:
    files = {f"{name}.json": strict_json.versioned(FORMAT, VERSION, record) for name, record in records.items()}
    if (place := _on_the_hub(ledger)) is not None:
        store, repo = place
        store.update("dataset", repo, (), lambda _: files, message)
        return
    Path(ledger).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        atomic.write_bytes(Path(ledger) / name, content)


def hash_of(runs: Runs) -> str:
    """The sha256 of N, D, E and loss of the runs, whatever their order."""
    rows = np.stack([runs.n_active, runs.tokens, runs.experts, runs.loss], axis=1)
    return hashlib.sha256(rows[np.lexsort(rows.T)].astype("<f8").tobytes()).hexdigest()
