"""A law or a table of runs that a visitor uploads: read as data, used in their session, never kept."""

from __future__ import annotations

from pathlib import Path

from hub.plain.tables import as_text
from scaling_law.fitting.calibration import calibrate
from scaling_law.fitting.fitting import fit
from scaling_law.formulas import Law
from scaling_law.law_files import load_law
from scaling_law.runs.table import load_runs

MAX_BYTES = 5_000_000
LAW_FILES, TABLES = (".json",), (".jsonl", ".csv", ".parquet")
USE = "Use this law (scaling_law.json)"
JOINT, CHINCHILLA = "Fit a joint law to these runs", "Fit a Chinchilla law to these runs"
CALIBRATE = "Move the chosen law to these runs (calibrate)"
ACTIONS = (USE, JOINT, CHINCHILLA, CALIBRATE)
_WIDTH = 100


def read_upload(path: Path, action: str, law: Law | None) -> tuple[Law, str]:
    """The law that follows from the file, and what is to be said of it; `law` is the one to calibrate.

    ValueError names the file, and what is allowed.
    """
    if action not in ACTIONS:
        raise ValueError(f"action={action!r} must be one of {', '.join(ACTIONS)}")
    allowed = LAW_FILES if action == USE else TABLES
    if path.suffix.lower() not in allowed:
        raise ValueError(f"{path.name}: {action!r} takes a file that ends in {', '.join(allowed)}")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ValueError(f"{path.name} has {size:,} bytes; at most {MAX_BYTES:,} are read")
    if action == USE:
        made = load_law(path)
        return made, repr(made)
    runs = load_runs(path)
    if action == CALIBRATE:
        if law is None:
            raise ValueError("choose a law to calibrate first")
        moved = calibrate(law, runs)
        return moved.law, as_text(moved.summary(), _WIDTH)
    found = fit(runs, law="joint" if action == JOINT else "chinchilla", progress=False)
    return found.law, as_text(found.summary(), _WIDTH)
