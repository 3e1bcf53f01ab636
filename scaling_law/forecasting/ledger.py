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

# Its rooms are imported when a ledger on the Hub is read.
import hub
from hub.base import atomic, strict_json
from hub.base.errors import InputError, unknown
from hub.base.tables import Table
from hub.base.types import Fields
from scaling_law.answer.answer import ResultTable
from scaling_law.answer.columns import tabulate
from scaling_law.runs.table import Runs

FORMAT = "forecast"
VERSION = 1
LIBRARY = "joint-moe-scaling-laws"
# The model that is forecast, and what is forecast of it.
MODEL = ("n_active", "tokens", "experts")
SHOWN = (*MODEL, "loss", "low", "high")


@dataclass(frozen=True, repr=False)
class Ledger(ResultTable):
    """The forecasts of a folder, the oldest first; `measured` is None where none has been scored."""

    rows: tuple[Mapping[str, Any], ...]

    @property
    def scored(self) -> list[Mapping[str, Any]]:
        """The rows with a measured loss."""
        return [row for row in self.rows if row["measured"] is not None]

    @property
    def verdict(self) -> str:
        verdict = f"{len(self.rows)} forecasts, {len(self.scored)} scored"
        if not self.scored:
            return verdict
        hits = sum(map(_is_inside, self.scored))
        levels = ", ".join(f"{level:.0%}" for level in sorted({row["level"] for row in self.scored}))
        return f"{verdict}: {hits} inside their interval of {levels}"

    def to_rows(self) -> list[Fields]:
        return [dict(row) for row in self.rows]

    def to_dict(self) -> Fields:
        return {"verdict": self.verdict, "rows": self.to_rows()}

    def summary(self) -> Table:
        rows = []
        for row in self.rows:
            cells = {name: row[name] for name in ("name", *SHOWN, "measured")}
            cells[""] = _mark(row)
            rows.append(cells)
        return tabulate(rows, title=self.verdict)


def _is_inside(row: Mapping[str, Any]) -> bool:
    return bool(row["low"] <= row["measured"] <= row["high"])


def _mark(row: Mapping[str, Any]) -> str:
    if row["measured"] is None:
        return ""
    return "inside" if _is_inside(row) else "OUTSIDE"


def register(
    ledger: str | Path,
    rows: Sequence[Mapping[str, Any]],
    level: float,
    runs: Runs,
) -> list[str]:
    """Write each forecast as a record of its own, under its date and a hash, and return their names.

    ValueError for one that stands there.
    """
    now = datetime.now(timezone.utc)
    runs_hash = hash_of(runs)
    records = {}
    for row in rows:
        name = _name_forecast(now, row, runs_hash)
        records[name] = {
            "name": name,
            **{key: row[key] for key in SHOWN},
            "level": level,
            "runs": len(runs),
            "runs_sha256": runs_hash,
            "loss_name": runs.loss_name,
            "library": f"{LIBRARY} {version(LIBRARY)}",
            "registered": now.isoformat(timespec="seconds"),
            "measured": None,
            "scored": None,
        }
    existing = _read(ledger)
    for name in records:
        if name in existing:
            raise InputError(f"{ledger}: {name} is registered already; a forecast is not changed")
    _write(ledger, records, f"Register {len(records)} forecasts")
    return [*records]


def _name_forecast(
    now: datetime,
    row: Mapping[str, Any],
    runs_hash: str,
) -> str:
    """Name a forecast by its date and a hash of its model and the runs behind it."""
    identity = {name: row[name] for name in MODEL}
    identity["runs"] = runs_hash
    digest = hashlib.sha256(strict_json.dumps(identity).encode()).hexdigest()
    return f"{now:%Y-%m-%d}-{digest[:8]}"


def score(
    ledger: str | Path,
    name: str,
    loss: float,
) -> None:
    """Add the measured loss to a record. ValueError for an unknown record, one that is scored, and bad losses."""
    records = _read(ledger)
    if name not in records:
        raise InputError(unknown(f"{ledger}: forecast ", name, records))
    if records[name]["measured"] is not None:
        raise InputError(f"{ledger}: {name} is scored already, with {records[name]['measured']:g}")
    if not 0 < loss < np.inf:
        raise InputError(f"score={loss!r} must be a positive loss")
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    record = {**records[name], "measured": float(loss), "scored": now}
    _write(ledger, {name: record}, f"Score {name}")


def read_ledger(ledger: str | Path) -> Ledger:
    """Read all records, the oldest first. ValueError where there are none."""
    records = _read(ledger)
    if not records:
        raise InputError(f"{ledger}: no forecasts there")
    return Ledger(tuple(sorted(records.values(), key=lambda row: (row["registered"], row["name"]))))


def _open_dataset(ledger: str | Path) -> tuple[hub.Store, str] | None:
    """Open the store of a ledger on the Hub, and return the name of its dataset, too; None for a folder."""
    if not str(ledger).startswith("hf://"):
        return None
    organisation, _, name = str(ledger).removeprefix("hf://").partition("/")
    return hub.open_store(f"hf://{organisation}"), name


def _read(ledger: str | Path) -> dict[str, Fields]:
    """Read the records by name; none where there is no such ledger."""
    records = {}
    for name, content in _read_files(ledger).items():
        data = strict_json.check_format(strict_json.loads(content, what=name), FORMAT, VERSION, name)
        records[name] = {key: value for key, value in data.items() if key not in ("format", "version")}
    return records


def _read_files(ledger: str | Path) -> dict[str, bytes]:
    """Read the JSON files of a ledger by their names without the ending."""
    dataset = _open_dataset(ledger)
    if dataset is None:
        return {path.stem: path.read_bytes() for path in sorted(Path(ledger).glob("*.json"))}
    store, repo = dataset
    if not store.branches("dataset", repo):
        return {}
    names = store.files("dataset", repo)
    return {Path(name).stem: store.read("dataset", repo, name) for name in names if name.endswith(".json")}


def _write(
    ledger: str | Path,
    records: Mapping[str, Mapping[str, Any]],
    message: str,
) -> None:
    """Write a file for each record, on the Hub in one commit."""
    files = {f"{name}.json": strict_json.versioned(FORMAT, VERSION, record) for name, record in records.items()}
    dataset = _open_dataset(ledger)
    if dataset is not None:
        store, repo = dataset
        store.update("dataset", repo, (), lambda _: files, message)
        return
    folder = Path(ledger)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        atomic.write_bytes(folder / name, content)


def hash_of(runs: Runs) -> str:
    """Return the sha256 of N, D, E and loss of the runs, whatever their order."""
    rows = np.stack([runs.n_active, runs.tokens, runs.experts, runs.loss], axis=1)
    ordered = rows[np.lexsort(rows.T)]
    return hashlib.sha256(ordered.astype("<f8").tobytes()).hexdigest()
