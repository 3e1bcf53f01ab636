"""The table of runs that a law is fitted on: columns, checked, with the trunk each run came from.

Runs of one trunk share their training up to the branch point, so they are no independent measurements: `trunk`
holds the clusters that a bootstrap must resample together. Every check names the row, the field and the value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_law.architecture import Architecture
from scaling_law.conditions import FittedRange, fitted_ranges

if TYPE_CHECKING:
    import pandas

FloatArray = NDArray[np.float64]
Row = Mapping[str, Any]
COUNT_TOLERANCE = 0.02  # recorded sizes may count norms and routers, which the formulas leave out


class RunsError(ValueError):
    """The table of runs is not usable; the message names row, field and value."""


@dataclass(frozen=True)
class Runs:
    """Measured runs as columns of equal length [n]: parameters, tokens, experts, loss in nats per token.

    `trunk` are cluster ids (integers from 0), `run_id` names; `source` says where the runs came from, `loss_name`
    which loss was taken, and `skipped` what was left out and why. `dataset` and `commit` are those of an index on the
    Hub, from which `load_runs(dataset, revision=commit)` reads the same table again.
    """

    n_active: FloatArray
    tokens: FloatArray
    experts: FloatArray
    loss: FloatArray
    trunk: NDArray[np.int64]
    run_id: tuple[str, ...]
    source: str = "columns"
    loss_name: str = "loss"
    skipped: tuple[str, ...] = field(default=(), repr=False)
    dataset: str | None = None
    commit: str | None = None

    @classmethod
    def from_columns(
        cls,
        n_active: ArrayLike,
        tokens: ArrayLike,
        experts: ArrayLike,
        loss: ArrayLike,
        trunk: ArrayLike | None = None,
        run_id: Sequence[str] | None = None,
        *,
        source: str = "columns",
        loss_name: str = "loss",
    ) -> Runs:
        """Runs from arrays; scalars broadcast. Without `trunk` each run is a cluster. RunsError for bad values."""
        columns = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(v, float)) for v in (n_active, tokens, experts, loss))
        )
        if columns[0].ndim != 1:
            raise RunsError(f"columns must be one-dimensional, not of shape {columns[0].shape}")
        count = len(columns[0])
        names = tuple(run_id) if run_id is not None else tuple(f"row-{i}" for i in range(count))
        clusters = np.arange(count) if trunk is None else np.unique(np.asarray(trunk), return_inverse=True)[1]
        if len(names) != count or len(clusters) != count:
            raise RunsError(f"run_id and trunk must have one entry for each of the {count} runs")
        frozen = [np.array(column) for column in (*columns, clusters)]
        n, d, e, losses, ids = frozen
        runs = cls(n, d, e, losses, ids.astype(np.int64), names, source, loss_name)
        for column in (runs.n_active, runs.tokens, runs.experts, runs.loss, runs.trunk):
            column.setflags(write=False)
        problems = runs._problems()
        if problems:
            raise RunsError(_listed(source, problems))
        return runs

    def _problems(self) -> list[str]:
        found = []
        for name, smallest in (("n_active", 0.0), ("tokens", 0.0), ("experts", 1.0), ("loss", 0.0)):
            column = getattr(self, name)
            good = np.isfinite(column) & ((column >= 1.0) if name == "experts" else (column > smallest))
            wanted = "at least 1" if name == "experts" else "positive and finite"
            found += [f"{self._row(i)}: {name}={column[i]!r} must be {wanted}" for i in np.flatnonzero(~good)]
        seen: dict[tuple[float, ...], int] = {}
        for i, key in enumerate(zip(self.n_active, self.tokens, self.experts, self.loss, strict=True)):
            if key in seen:
                found.append(f"{self._row(i)}: duplicate of {self._row(seen[key])} (same N, D, E and loss)")
            seen.setdefault(key, i)
        return found

    def _row(self, i: Any) -> str:
        return f"row {i} ({self.run_id[i]})"

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def flops(self) -> FloatArray:
        """Training FLOPs, 6 N_act D."""
        return 6.0 * self.n_active * self.tokens

    def subset(self, mask: NDArray[np.bool_]) -> Runs:
        """The runs where `mask` [n] is True; trunks keep their ids."""
        kept = np.flatnonzero(np.asarray(mask, bool))
        n, d, e, losses = (c[kept] for c in (self.n_active, self.tokens, self.experts, self.loss))
        names = tuple(self.run_id[i] for i in kept)
        return replace(self, n_active=n, tokens=d, experts=e, loss=losses, trunk=self.trunk[kept], run_id=names)

    def ranges(self) -> tuple[FittedRange, ...]:
        """Ranges of all runs, then for each E."""
        return fitted_ranges(self.n_active, self.tokens, self.experts)

    def to_pandas(self) -> pandas.DataFrame:
        """One line per run."""
        import pandas

        columns = {name: getattr(self, name) for name in ("n_active", "tokens", "experts", "loss", "trunk")}
        return pandas.DataFrame({"run_id": list(self.run_id), **columns})

    def __repr__(self) -> str:
        values = ", ".join(f"{e:g}" for e in np.unique(self.experts))
        trunks = len(np.unique(self.trunk))
        return f"Runs({len(self)} runs of {trunks} trunks, E in {{{values}}}, {self.loss_name}, from {self.source})"


def load_runs(
    source: Any,
    loss: str = "eval_loss",
    status: str | None = "final",
    on_invalid: Literal["raise", "skip"] = "raise",
    revision: str | None = None,
) -> Runs:
    """Read a table of runs and check it.

    Args:
        source: a pandas DataFrame; a list of mappings or run records; a .jsonl or .parquet file; a folder that holds
            runs.jsonl or runs.parquet; a release folder (datasets/<sweep>-runs/main); "org/sweep-runs",
            "hf://org/sweep-runs" or "hf://datasets/org/sweep-runs" on the Hub.
        loss: the column to fit, in nats per token ("eval_loss", "train_loss", or another).
        status: keep only rows whose `status` is this (rows without a status are final); None keeps all.
        on_invalid: "raise" a RunsError that lists every unusable row, or "skip" them and keep the reasons in
        `.skipped`.
        revision: branch, tag or commit of a dataset on the Hub, as in "org/sweep-runs@v1"; once read, it is read from
            the cache without a network.

    Raises RunsError for missing columns, no rows, non-finite, zero or negative numbers, duplicates, and sizes that
    contradict d_model, n_blocks and vocab_size where these are given; `hub.HubError` for what the Hub does not have.
    """
    from scaling_law.run_sources import read_table

    if on_invalid not in ("raise", "skip"):
        raise ValueError(f"on_invalid={on_invalid!r} must be 'raise' or 'skip'")
    table = read_table(source, revision, on_invalid)
    rows, origin = table.rows, table.name
    chosen = [(i, row) for i, row in enumerate(rows) if status is None or (row.get("status") or "final") == status]
    if not chosen:
        raise RunsError(f"{origin}: {_nothing_chosen(rows, status, table.problems)}")
    _check_columns(origin, [row for _, row in chosen], loss)
    problems = list(table.problems)
    kept: list[tuple[int, Row]] = []
    seen: dict[Any, str] = {}
    for i, row in chosen:
        wrong = _row_problems(i, row, loss, seen)
        problems += wrong
        if not wrong:
            kept.append((i, row))
    if problems and on_invalid == "raise":
        raise RunsError(_listed(origin, problems))
    if not kept:
        raise RunsError(_listed(origin, problems))
    n, d, e, losses = ([float(row[name]) for _, row in kept] for name in ("n_active", "tokens", "experts", loss))
    trunks = _trunks(rows)
    runs = Runs.from_columns(
        n,
        d,
        e,
        losses,
        trunk=[trunks[i] for i, _ in kept],
        run_id=[_name(i, row) for i, row in kept],
        source=origin,
        loss_name=loss,
    )
    return replace(runs, skipped=tuple(problems), dataset=table.dataset, commit=table.commit)


def _nothing_chosen(rows: Sequence[Row], status: str | None, problems: Sequence[str]) -> str:
    """Why a table gives no runs, and what it has instead."""
    if not rows:
        return f"no runs at all{f'; {len(problems)} rows were left out, e.g. {problems[0]}' if problems else ''}"
    counts = Counter(str(row.get("status") or "final") for row in rows)
    there = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"no runs with status {status!r}; there are {there} (status=None, or --status all, takes every run)"


def _check_columns(origin: str, rows: list[Row], loss: str) -> None:
    present = {name for row in rows for name in row}
    missing = [name for name in ("n_active", "tokens", "experts", loss) if name not in present]
    if missing:
        hint = ", ".join(sorted(present)) or "none"
        extra = "; name the loss column with loss=..." if loss in missing else ""
        raise RunsError(f"{origin}: missing column {', '.join(missing)}; there are: {hint}{extra}")


def _row_problems(i: int, row: Row, loss: str, seen: dict[Any, str]) -> list[str]:
    where, found = f"row {i} ({_name(i, row)})", []
    values = {}
    for name in ("n_active", "tokens", "experts", loss):
        value = row.get(name)
        number = _number(value)
        values[name] = number
        if number is None or not np.isfinite(number) or number <= 0 or (name == "experts" and number < 1):
            wanted = "at least 1" if name == "experts" else "positive and finite"
            found.append(f"{where}: {name}={value!r} must be {wanted}")
    if found:
        return found
    keys = [("values", *values.values())] + ([("run_id", row["run_id"])] if row.get("run_id") else [])
    for key in keys:
        if key in seen:
            what = "run_id" if key[0] == "run_id" else "N, D, E and loss"
            found.append(f"{where}: duplicate of {seen[key]} (same {what})")
            break
        seen[key] = where
    return found + _size_problems(where, row)


def _size_problems(where: str, row: Row) -> list[str]:
    """Recorded sizes against the formulas, where the row says enough to compute them."""
    numbers = {name: _number(row.get(name)) for name in ("d_model", "n_blocks", "n_heads", "vocab_size", "experts")}
    if any(value is None or value < 1 or value != int(value) for value in numbers.values()):
        return []
    try:
        expected = Architecture(**{name: int(value) for name, value in numbers.items() if value is not None})
    except ValueError as error:
        return [f"{where}: {error}"]
    found = []
    for name, formula in (("n_active", expected.n_active), ("n_total", expected.n_total)):
        value = _number(row.get(name))
        if value is not None and abs(value - formula) > COUNT_TOLERANCE * formula:
            found.append(
                f"{where}: {name}={value:.0f} contradicts d_model, n_blocks, experts and vocab_size ({formula})"
            )
    return found


def _trunks(rows: Sequence[Row]) -> list[str]:
    """The trunk of each row: a `trunk` column, else the end of the chain of parents, else the row itself."""
    parents = {str(row["run_id"]): row.get("parent_run_id") for row in rows if row.get("run_id")}
    found = []
    for i, row in enumerate(rows):
        if row.get("trunk") is not None:
            found.append(f"trunk {row['trunk']}")
            continue
        name, visited = str(_name(i, row)), set()
        parent = row.get("parent_run_id")
        while _is_text(parent) and parent not in visited:
            name = str(parent)
            visited.add(parent)
            parent = parents.get(name)
        found.append(f"run {name}")
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _name(i: int, row: Row) -> str:
    return str(row["run_id"]) if _is_text(row.get("run_id")) else f"row-{i}"


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _listed(origin: str, problems: Iterable[str], shown: int = 8) -> str:
    lines = list(problems)
    rest = [f"… and {len(lines) - shown} more"] if len(lines) > shown else []
    return f"{origin}: {len(lines)} unusable row(s)\n  " + "\n  ".join([*lines[:shown], *rest])
