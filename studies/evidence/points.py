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

FORMAT = "evidence"
VERSION = 1
# A table of no licence of which only errors of laws are kept, in a format of that name.
ISOFLOP = "dense_isoflop"
# Significant digits of every number kept.
DIGITS = 7
# The vocabulary of the head, whose FLOPs `flops_per_step` holds.
_CLARK_VOCABULARY = 32_000
# The side of a cell of N and of D whose points are averaged.
CELL = 2**0.5
OPEN_ATHENA = "open_athena"
_REQUIRED_COLUMNS = ("n_active", "tokens", "experts", "loss")
_OPTIONAL_COLUMNS = (
    "n_active_non_embedding",
    "n_total",
    "n_total_non_embedding",
    "density",
    "granularity",
    "shared_ratio",
    "routed_experts",
    "experts_per_token",
    "d_model",
    "budget",
    "learning_rate",
    "batch_tokens",
    "grid_runs",
    "at_edge",
    "regret",
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


def _best_settings(file: Path) -> Runs:
    """Load the best run of each model of Step Law's grids."""
    return best_of(load_runs(file, format="step_law"), over=["learning_rate", "batch"])


def _routed_by(router: str) -> Derive:
    """Return a function that loads the runs of Clark et al. by a router."""
    sizes = {
        "n_active_non_embedding": "dense_parameter_count",
        "n_active": f"dense_parameter_count + 2 * {_CLARK_VOCABULARY} * d_model",
    }
    where = f"router_type in {{{router}, Dense}}"
    return lambda file: load_runs(file, format="clark", where=where, columns=sizes)


# Source → its format, what is done with it, and for each of its tables the file and how points are derived.
RECIPES: Mapping[str, tuple[str, str, Mapping[str, tuple[str, Derive]]]] = {
    "step_law": (
        "step_law",
        "the run of least smoothed loss for each model and number of tokens",
        {"dense": ("dense_lr_bs_loss.csv", _best_settings), "moe": ("moe_lr_bs_loss.csv", _best_settings)},
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
    """Write the points of every source whose files lie somewhere below `data`, and return the paths written.

    Raises FileNotFoundError if there is none of them.
    """
    files = {path.name: path for path in sorted(data.rglob("*"), reverse=True)}
    names: set[str] = set()
    written = []
    for name, (_, _, tables) in RECIPES.items():
        file_names = {file for file, _ in tables.values()}
        names.update(file_names)
        if file_names <= files.keys():
            written.append(_write_source(name, files, folder))
    isoflops = files.get("isoflops.csv")
    if isoflops:
        written.append(strict_json.write(folder / f"{ISOFLOP}.json", ISOFLOP, 1, isoflop_errors(isoflops)))
    if not written:
        raise FileNotFoundError(f"{data}: none of {', '.join(sorted(names))} is below it; see docs/runs.md")
    return written


def _write_source(name: str, files: Mapping[str, Path], folder: Path) -> Path:
    """Write the points of a source."""
    format, derived, recipes = RECIPES[name]
    public = reader(format)
    tables = {}
    for table, (file, load) in recipes.items():
        tables[table] = _columns_of(load(files[file]))
    fields = {
        "name": name,
        "what": public.contents,
        "derived": derived,
        "place": public.place,
        "address": f"https://github.com/{public.repository}/tree/{public.commit}",
        "licence": public.licence,
        "loss": public.loss,
        "tables": tables,
    }
    text = strict_json.versioned(FORMAT, VERSION, fields).decode()
    # Each column stands on a line.
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    path = folder / f"{name}.json"
    atomic.write_bytes(path, text.encode())
    return path


def isoflop_errors(table: Path) -> dict[str, Any]:
    """Forecast the largest quarter of each experiment's budgets by the joint law moved, and by a fresh fit.

    Returns:
        The RMSE of each law by experiment, nats, and the numbers of runs.
    """
    laws: dict[str, Any] = {"constant": JointLaw.published().replace(draws=None), "fresh": "chinchilla"}
    columns: dict[str, list[Any]] = {name: [] for name in ("experiment", "train", "test", *laws)}
    for experiment in sorted({row["experiment"] for row in hub.load_rows(table).rows}):
        runs = load_runs(table, format=OPEN_ATHENA, where=f"experiment = {experiment}")
        budgets = np.unique(runs["budget"])
        is_large = runs["budget"] >= budgets[-max(1, len(budgets) // 4)]
        test = backtest(runs.subset(~is_large), runs.subset(is_large), laws)
        columns["experiment"].append(experiment)
        columns["train"].append(len(test.train))
        columns["test"].append(len(test.test))
        for law in laws:
            columns[law].append(_round(test.laws[law].rmse))
    public = reader(OPEN_ATHENA)
    return {"what": public.contents, "place": public.place, **columns}


def read_sources(folder: Path) -> dict[str, Source]:
    """Read all sources of a folder by name. Raises RecordError for a file that is no such source."""
    return {path.stem: read_source(path) for path in sorted(folder.glob("*.json")) if path.stem != ISOFLOP}


def read_source(path: Path) -> Source:
    """Read a source with its tables."""
    data = strict_json.read(path, FORMAT, VERSION)
    values = {field.name: data[field.name] for field in fields(Source)}
    values["tables"] = {table: _runs(columns, f"{path.stem}, {table}") for table, columns in data["tables"].items()}
    return Source(**values)


def _columns_of(runs: Runs) -> dict[str, list[float | None]]:
    """Return columns for a file; None where a run has no value."""
    names = [*_REQUIRED_COLUMNS, *(name for name in _OPTIONAL_COLUMNS if name in runs.columns)]
    columns = {}
    for name in names:
        columns[name] = [_round(value) for value in runs[name].tolist()]
    return columns


def _round(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None


def _runs(columns: Mapping[str, list[float | None]], source: str) -> Runs:
    """Make runs of columns; every run is a trunk of its own, since none of these shares training with another."""
    arrays = {}
    for name, values in columns.items():
        arrays[name] = np.array([np.nan if value is None else value for value in values])
    n, d, e, loss = (arrays.pop(name) for name in _REQUIRED_COLUMNS)
    return Runs.from_columns(n, d, e, loss, "run", source=source, columns=arrays)


def cell_means(runs: Runs, factor: float = CELL) -> Runs:
    """Return geometric means of N, D and the loss of dense runs within cells of a `factor` in N and in D."""
    logs = np.log(np.stack([runs.n_active, runs.tokens, runs.loss]))
    corners = np.floor(logs[:2] / np.log(factor))
    cell = np.unique(corners, axis=1, return_inverse=True)[1].ravel()
    counts = np.bincount(cell)
    n, d, loss = (np.exp(np.bincount(cell, values) / counts) for values in logs)
    return Runs.from_columns(n, d, 1.0, loss, "run", source=runs.source, columns={"grid_runs": counts})
