"""A ledger of forecasts: one dated JSON file for each, made before the run, and scored after it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from hub.base import strict_json
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
        hits = sum(row["low"] <= row["measured"] <= row["high"] for row in self.scored)
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


def _mark(row: Mapping[str, Any]) -> str:
    if row["measured"] is None:
        return ""
    return "inside" if row["low"] <= row["measured"] <= row["high"] else "OUTSIDE"


def register(ledger: str | Path, rows: Sequence[Mapping[str, Any]], level: float, runs: Runs) -> list[Path]:
    """Write each forecast as a record of its own, under its date and a hash. ValueError for one that stands there."""
    now = datetime.now(timezone.utc)
    about = {"level": level, "runs": len(runs), "runs_sha256": hash_of(runs), "loss_name": runs.loss_name}
    about |= {"library": f"{LIBRARY} {version(LIBRARY)}", "registered": now.isoformat(timespec="seconds")}
    records: dict[Path, dict[str, Any]] = {}
    for row in rows:
        what = strict_json.dumps({**{name: row[name] for name in SHOWN[:3]}, "runs": about["runs_sha256"]})
        name = f"{now:%Y-%m-%d}-{hashlib.sha256(what.encode()).hexdigest()[:8]}"
        if (path := Path(ledger) / f"{name}.json").exists():
            raise InputError(f"{ledger}: {name} is registered already; a forecast is not changed")
        records[path] = {"name": name, **{key: row[key] for key in SHOWN}, **about, "measured": None, "scored": None}
    Path(ledger).mkdir(parents=True, exist_ok=True)
    return [strict_json.write(path, FORMAT, VERSION, record) for path, record in records.items()]


def score(ledger: str | Path, name: str, loss: float) -> Path:
    """Add the measured loss to a record. ValueError for an unknown record, one that is scored, and bad losses."""
    rows = {row["name"]: row for row in read_ledger(ledger).rows}
    if name not in rows:
        raise InputError(unknown(f"{ledger}: forecast ", name, rows))
    if rows[name]["measured"] is not None:
        raise InputError(f"{ledger}: {name} is scored already, with {rows[name]['measured']:g}")
    if not 0 < loss < np.inf:
        raise InputError(f"score={loss!r} must be a positive loss")
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return strict_json.write(
        Path(ledger) / f"{name}.json", FORMAT, VERSION, {**rows[name], "measured": float(loss), "scored": now}
    )


def read_ledger(ledger: str | Path) -> Ledger:
    """All records of a folder. ValueError where it is none."""
    if not Path(ledger).is_dir():
        raise InputError(f"{ledger}: no such ledger (a folder)")
    return Ledger(tuple(sorted(_records(Path(ledger)), key=lambda row: (str(row["registered"]), str(row["name"])))))


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.json")):
        data = strict_json.read(path, FORMAT, VERSION)
        yield {name: value for name, value in data.items() if name not in ("format", "version")} | {"name": path.stem}


def hash_of(runs: Runs) -> str:
    """The sha256 of N, D, E and loss of the runs, whatever their order."""
    rows = np.stack([runs.n_active, runs.tokens, runs.experts, runs.loss], axis=1)
    return hashlib.sha256(rows[np.lexsort(rows.T)].astype("<f8").tobytes()).hexdigest()
