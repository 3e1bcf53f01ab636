"""Points for laws, derived from public tables of runs, and the small files that keep them: `studies/evidence/*.json`.

The tables themselves are not kept: two of them state no licence. A file holds the tuned points (or means) with the
repository and commit that they are from, as columns under the names of `Architecture.variables`. Two files are not
derived but transcribed from a page; they say where it was read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

import hub  # lazy
from hub.base import atomic, strict_json
from scaling_law import JointLaw, Runs, backtest, load_runs
from scaling_law.runs import best_of, reader

FORMAT, VERSION = "evidence", 1
ISOFLOP = "dense_isoflop"  # a table of no licence of which only errors of laws are kept, in a format of that name
DIGITS = 7  # significant, of every number kept
_CLARK_VOCABULARY = 32_000  # of the head, whose FLOPs `flops_per_step` holds
CELL = 2**0.5  # side of a cell of N and of D whose points are averaged
OPEN_ATHENA = "open_athena"
_NEEDED = ("n_active", "tokens", "experts", "loss")
_KEPT = (
    *("n_active_non_embedding", "n_total", "n_total_non_embedding", "density", "granularity", "shared_ratio"),
    *("routed_experts", "experts_per_token", "d_model", "budget"),
    *("learning_rate", "batch_tokens", "grid_runs", "at_edge", "regret"),
)
Derive = Callable[[Path], Runs]


@dataclass(frozen=True)
class Source:
    """The points of one source, by table, and where they are from."""

    name: str
    what: str
    derived: str
    place: str
    address: str
    loss: str
    tables: Mapping[str, Runs]

    def __getitem__(self, table: str) -> Runs:
        return self.tables[table]


def _tuned(file: Path) -> Runs:
    return best_of(load_runs(file, format="step_law"), over=["learning_rate", "batch"])


def _routed_by(router: str) -> Derive:
    sizes = {"n_active_non_embedding": "dense_parameter_count"}
    sizes["n_active"] = f"dense_parameter_count + 2 * {_CLARK_VOCABULARY} * d_model"
    where = f"router_type in {{{router}, Dense}}"
    return lambda file: load_runs(file, format="clark", where=where, columns=sizes)


# Source → its format, what is done with it, and for each of its tables the file and how points are derived.
RECIPES: Mapping[str, tuple[str, str, Mapping[str, tuple[str, Derive]]]] = {
    "step_law": (
        "step_law",
        "the run of least smoothed loss for each model and number of tokens",
        {"dense": ("dense_lr_bs_loss.csv", _tuned), "moe": ("moe_lr_bs_loss.csv", _tuned)},
    ),
    "marin": (
        "marin_isoflop",
        "the last repeat of each budget and width",
        {"isoflop": ("v16_isoflop.csv", lambda file: load_runs(file, format="marin_isoflop"))},
    ),
    "epoch": (
        "epoch_chinchilla",
        "geometric means of the points in cells of a factor of √2 in N and in D",
        {"dense": ("svg_extracted_data.csv", lambda file: cell_means(load_runs(file, format="epoch_chinchilla")))},
    ),
    "clark": (
        "clark",
        "the last step of each run, N with embeddings of a vocabulary of 32,000; dense runs are in every table",
        {router: ("curves.csv.gz", _routed_by(router)) for router in ("S-Base", "RL-R", "Hash")},
    ),
}


def derive(data: Path, folder: Path) -> list[Path]:
    """Write the points of every source whose files lie somewhere below `data`; returns what was written.

    FileNotFoundError if there is none of them.
    """
    files = {path.name: path for path in sorted(data.rglob("*"), reverse=True)}
    written, wanted = [], {file for _, _, tables in RECIPES.values() for file, _ in tables.values()}
    for name, (format, derived, tables) in RECIPES.items():
        if all(file in files for file, _ in tables.values()):
            public, made = reader(format), {table: make(files[file]) for table, (file, make) in tables.items()}
            head = {"name": name, "what": public.what, "derived": derived, "place": public.place}
            head["address"] = f"https://github.com/{public.repository}/tree/{public.commit}"
            head |= {"licence": public.licence, "loss": public.loss}
            fields = {**head, "tables": {table: _columns_of(runs) for table, runs in made.items()}}
            text = strict_json.versioned(FORMAT, VERSION, fields).decode()  # with each column on a line
            columns = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
            written.append(folder / f"{name}.json")
            atomic.write_bytes(written[-1], columns.encode())
    if table := files.get("isoflops.csv"):
        written.append(strict_json.write(folder / f"{ISOFLOP}.json", ISOFLOP, 1, isoflop_errors(table)))
    if not written:
        raise FileNotFoundError(f"{data}: none of {', '.join(sorted(wanted))} is below it; see docs/fitting.md")
    return written


def isoflop_errors(table: Path) -> dict[str, Any]:
    """RMSE on the largest quarter of each experiment's budgets, nats: of the joint law moved, and of a fresh fit."""
    laws: dict[str, Any] = {"constant": JointLaw.published().replace(draws=None), "fresh": "chinchilla"}
    fields: dict[str, Any] = {"what": reader(OPEN_ATHENA).what, "place": reader(OPEN_ATHENA).place}
    for name in sorted({row["experiment"] for row in hub.load_rows(table).rows}):
        runs = load_runs(table, format=OPEN_ATHENA, where=f"experiment = {name}")
        budgets = np.unique(runs["budget"])
        large = runs["budget"] >= budgets[-max(1, len(budgets) // 4)]
        test = backtest(runs.subset(~large), runs.subset(large), laws)
        row = {"experiment": name, "train": len(test.train), "test": len(test.test)}
        for column, value in (row | {law: _rounded(test.laws[law].rmse) for law in laws}).items():
            fields.setdefault(column, []).append(value)
    return fields


def read_sources(folder: Path) -> dict[str, Source]:
    """All sources of a folder by name. RecordError for a file that is no such source."""
    return {path.stem: read_source(path) for path in sorted(folder.glob("*.json")) if path.stem != ISOFLOP}


def read_source(path: Path) -> Source:
    data = strict_json.read(path, FORMAT, VERSION)
    tables = {table: _runs(columns, f"{path.stem}, {table}") for table, columns in data["tables"].items()}
    return Source(**{field.name: data[field.name] for field in fields(Source)} | {"tables": tables})


def _columns_of(runs: Runs) -> dict[str, list[float | None]]:
    """Columns for a file; None where a run has no value."""
    names = (*_NEEDED, *(name for name in _KEPT if name in runs.columns))
    return {name: [_rounded(value) for value in runs[name].tolist()] for name in names}


def _rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None


def _runs(columns: Mapping[str, list[float | None]], source: str) -> Runs:
    """Every run is a trunk of its own: none of these shares training with another."""
    arrays = {name: np.array([np.nan if value is None else value for value in v]) for name, v in columns.items()}
    n, d, e, loss = (arrays.pop(name) for name in _NEEDED)
    return Runs.from_columns(n, d, e, loss, "run", source=source, columns=arrays)


def cell_means(runs: Runs, factor: float = CELL) -> Runs:
    """Geometric means of N, D and the loss of dense runs within cells of a `factor` in N and in D."""
    logs = np.log(np.stack([runs.n_active, runs.tokens, runs.loss]))
    cell = np.unique(np.floor(logs[:2] / np.log(factor)), axis=1, return_inverse=True)[1].ravel()
    counts = np.bincount(cell)
    n, d, loss = (np.exp(np.bincount(cell, values) / counts) for values in logs)
    return Runs.from_columns(n, d, 1.0, loss, "run", source=runs.source, columns={"grid_runs": counts})
