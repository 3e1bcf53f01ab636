"""A law or a table of runs that a visitor uploads: read as data, used in their session, never kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hub.base.errors import InputError
from hub.base.tables import as_text, enumerated
from scaling_law.fitting.fitting import FitResult, fit
from scaling_law.forecasting.laws import stack_laws
from scaling_law.law import Law
from scaling_law.runs.columns import Column
from scaling_law.runs.table import load_runs, recognised

MAX_BYTES = 5_000_000
LAW_FILES, TABLES = (".json",), (".jsonl", ".csv", ".tsv", ".parquet")
USE = "Use this law (scaling_law.json)"
JOINT, CHINCHILLA = "Fit a joint law to these runs", "Fit a Chinchilla law to these runs"
STACK = "Weigh all laws that these runs support by their forecasts"
PRIOR = "Move the chosen law to these runs (fit with it as a prior)"
ACTIONS = (USE, JOINT, CHINCHILLA, STACK, PRIOR)
COLUMNS = {"n_active": "Active parameters", "tokens": "Training tokens", "experts": "Experts E", "loss": "Loss"}
RESAMPLES = 200  # of the bootstrap: a visitor waits for it
_WIDTH = 100


def columns_of(path: Path) -> tuple[list[str], dict[str, str]]:
    """The columns of an uploaded table, and the one that is read as each of `COLUMNS`, "" where none is found."""
    _check_size(path)
    return recognised(path)


def read_upload(path: Path, action: str, law: Law | None, columns: Mapping[str, str | None]) -> tuple[Law, str]:
    """The law made from the file, with intervals, and a summary; `law` is the one to move.

    `columns`: for each of `COLUMNS` a column, an expression or a number, as `load_runs` takes them; those left empty
    are looked for. ValueError names the file, and what is allowed.
    """
    if action not in ACTIONS:
        raise InputError(f"action={action!r} must be one of {', '.join(ACTIONS)}")
    allowed = LAW_FILES if action == USE else TABLES
    if path.suffix.lower() not in allowed:
        raise InputError(f"{path.name}: {action!r} takes a file that ends in {', '.join(allowed)}")
    if action == USE:
        _check_size(path)
        uploaded = Law.from_pretrained(path)
        return uploaded, repr(uploaded)
    names, recognised = columns_of(path)
    sized = {"d_model", "n_blocks"} <= {*names}
    if empty := [n for n in COLUMNS if not (columns.get(n) or recognised[n] or (n == "n_active" and sized))]:
        labels = enumerated([COLUMNS[name] for name in empty])
        raise InputError(f"{path.name}: choose the column of {labels}; there are: {', '.join(names)}")
    mapping: dict[str, Column] = {n: column for n, column in columns.items() if column and column != recognised[n]}
    loss = str(mapping.pop("loss")) if mapping.get("loss") in names else None
    runs = load_runs(path, loss, columns=mapping)
    if action == STACK:
        stacked = stack_laws(runs)
        return stacked, as_text(stacked.summary(), _WIDTH)
    if action != PRIOR:
        return with_intervals(fit(runs, kind="joint" if action == JOINT else "chinchilla"))
    if law is None:
        raise InputError("choose a law to move first")
    return with_intervals(fit(runs, kind=law.name, prior=law))


def with_intervals(result: FitResult) -> tuple[Law, str]:
    """The law with draws of a bootstrap, and the summary of the fit; without draws where there is one trunk only."""
    text = as_text(result.summary(), _WIDTH)
    try:
        return result.bootstrap(RESAMPLES).law, text
    except ValueError as error:
        return result.law, f"{text}\nno intervals: {error}"


def _check_size(path: Path) -> None:
    if (size := path.stat().st_size) > MAX_BYTES:
        raise InputError(f"{path.name} has {size:,} bytes; at most {MAX_BYTES:,} are read")
