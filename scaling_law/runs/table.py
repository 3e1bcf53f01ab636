"""The table of runs that a law is fitted on: read from any source, checked once, with the trunk of each run.

Runs of one trunk share their training up to the branch point, so they are not independent measurements: `trunk` holds
the clusters that a bootstrap must resample together (`runs.trunks` finds them). Every check names the row, the field
and the value.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

import hub  # lazy: its rooms are imported when runs are read
from hub.plain.errors import FilesError, RecordError
from hub.plain.tables import literal
from scaling_law.laws.conditions import FittedRange, fitted_ranges
from scaling_law.runs.trunks import OWN, cluster_columns, trunks_of
from scaling_law.size.architecture import (
    VOCAB_SIZE,
    Architecture,
    active_parameters,
    training_flops,
)

if TYPE_CHECKING:
    import pandas

    from hub import LoadedRows

FloatArray = NDArray[np.float64]
Row = Mapping[str, Any]
_COLUMNS = ("n_active", "tokens", "experts")
COUNT_TOLERANCE = 0.02  # recorded sizes may count norms and routers, which the formulas leave out


class RunsError(RecordError, FilesError):
    """The table of runs is not usable; the message names row, field and value."""


@dataclass(frozen=True)
class Runs:
    """Measured runs as columns of equal length [n]: parameters, tokens, experts, loss in nats per token.

    `trunk` are cluster ids (integers from 0), `trunk_source` says how they were found; `run_id` are names; `source`
    says where the runs came from, `loss_name` which loss was taken, and `skipped` what was left out and why.
    `dataset` and `commit` are those of an index on the Hub, from which `load_runs(dataset, revision=commit)` reads the
    same table again; `warmup_tokens` is the longest warm-up of the runs' schedules, in tokens, None if these do not
    say; `vocab_size` is the vocabulary that all runs share, None if they do not say or differ; `where` is the filter
    that chose the runs.
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
    trunk_source: str = "given"
    warmup_tokens: float | None = None
    vocab_size: int | None = None
    where: str | None = None

    def __post_init__(self) -> None:
        for name in (*_COLUMNS, "loss", "trunk"):
            column = np.array(getattr(self, name), np.int64 if name == "trunk" else float)
            column.setflags(write=False)
            object.__setattr__(self, name, column)

    @classmethod
    def from_columns(
        cls,
        n_active: ArrayLike,
        tokens: ArrayLike,
        experts: ArrayLike,
        loss: ArrayLike,
        trunk: ArrayLike | Literal["auto", "run"] | None = None,
        run_id: Sequence[str] | None = None,
        *,
        source: str = "columns",
        loss_name: str = "loss",
    ) -> Runs:
        """Runs from arrays; scalars broadcast. RunsError for bad values.

        `trunk` is one id per run; "auto" (or None) takes runs of equal n_active and experts for one trunk, "run" makes
        each run its own.
        """
        columns = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(v, float)) for v in (n_active, tokens, experts, loss))
        )
        if columns[0].ndim != 1:
            raise RunsError(f"columns must be one-dimensional, not of shape {columns[0].shape}")
        count = len(columns[0])
        names = tuple(run_id) if run_id is not None else tuple(f"row-{i}" for i in range(count))
        clusters, trunk_source = cluster_columns(trunk, columns[0], columns[2])
        if len(names) != count or len(clusters) != count:
            raise RunsError(f"run_id and trunk must have one entry for each of the {count} runs")
        named = dict(zip((*_COLUMNS, "loss"), columns, strict=True))
        if problems := _problems(named, [f"row {i} ({name})" for i, name in enumerate(names)]):
            raise RunsError(_listed(source, problems.values()))
        n, d, e, losses = columns
        return cls(n, d, e, losses, clusters, names, source, loss_name, trunk_source=trunk_source)

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def flops(self) -> FloatArray:
        """Training FLOPs, 6 N_act D."""
        return np.asarray(training_flops(self.n_active, self.tokens))

    def subset(self, mask: NDArray[np.bool_]) -> Runs:
        """The runs where `mask` [n] is True; trunks keep their ids."""
        kept = np.flatnonzero(np.asarray(mask, bool))
        n, d, e, losses = (c[kept] for c in (self.n_active, self.tokens, self.experts, self.loss))
        names = tuple(self.run_id[i] for i in kept)
        return replace(self, n_active=n, tokens=d, experts=e, loss=losses, trunk=self.trunk[kept], run_id=names)

    def each_its_own_trunk(self) -> Runs:
        """The same runs as independent measurements."""
        return replace(self, trunk=np.arange(len(self)), trunk_source=OWN)

    @property
    def n_trunks(self) -> int:
        """Number of clusters that a bootstrap resamples."""
        return len(np.unique(self.trunk))

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
        count = f"{len(self)} runs of {self.n_trunks} trunks"
        return f"Runs({count}, E in {{{values}}}, {self.loss_name}, from {self.source})"


def load_runs(
    source: Any,
    loss: str | None = None,
    status: str | None = "final",
    on_invalid: Literal["raise", "skip"] = "raise",
    revision: str | None = None,
    trunks: str = "auto",
    where: str = "",
) -> Runs:
    """Read a table of runs and check it.

    Args:
        source: a pandas DataFrame; a list of mappings or run records; a .jsonl or .parquet file; a folder that holds
            runs.jsonl or runs.parquet; a release folder (datasets/<sweep>-runs/main); "org/sweep-runs",
            "hf://org/sweep-runs" or "hf://datasets/org/sweep-runs" on the Hub.
        loss: the column to fit, in nats per token ("eval_loss", "train_loss", or another). None: eval_loss, or where
            there is none the only column whose name ends in "loss".
        status: keep only rows whose `status` is this (rows without a status are final); None keeps all.
        on_invalid: "raise" a RunsError that lists every unusable row, or "skip" them and keep the reasons in
            `.skipped`.
        revision: branch, tag or commit of a dataset on the Hub, as in "org/sweep-runs@v1"; once read, it is read from
            the cache without a network.
        trunks: which runs share a trunk. "auto": what a column `trunk` or `parent_run_id` says; without these columns
            runs of one size, E, seed and setting (`runs.trunks.SETTINGS`) count as one trunk. "run": each run
            is its own. Or the name of a column.
        where: keep only rows that fulfil this filter, such as "E in {1, 8}, D <= 2B"; see `hub.parse_filter`. Its
            fields are the columns of the table.

    A row needs `experts`, `tokens`, the loss and its size: `n_active`, or `d_model` and `n_blocks`, from which
    n_active is computed (with GPT-2's vocabulary of 50,257 where `vocab_size` is not given).

    Raises RunsError for missing columns, no rows, non-finite, zero or negative numbers, duplicates, and sizes that
    contradict d_model, n_blocks and vocab_size where these are given; `hub.HubError` for what the Hub does not have.
    """
    if on_invalid not in ("raise", "skip"):
        raise ValueError(f"on_invalid={on_invalid!r} must be 'raise' or 'skip'")
    problems: list[str] = []
    table = read_rows(source, revision, problems if on_invalid == "skip" else None)
    rows, origin = [_with_size(row) for row in table.rows], table.name
    chosen = [i for i, row in enumerate(rows) if status is None or (row.get("status") or "final") == status]
    if not chosen:
        raise RunsError(f"{origin}: {_nothing_chosen(rows, status, problems)}")
    if where:
        chosen = _fulfilling(rows, chosen, where, origin)
    loss = _check_columns(origin, [rows[i] for i in chosen], loss)
    names = [f"row {i} ({_name(i, rows[i])})" for i in chosen]
    columns = {name: [rows[i].get(name) for i in chosen] for name in (*_COLUMNS, loss)}
    wrong = {at: f"{names[at]}: {found}" for at, i in enumerate(chosen) if (found := _size_problem(rows[i]))}
    wrong |= _problems(columns, names, [rows[i].get("run_id") for i in chosen])
    problems += [wrong[at] for at in sorted(wrong)]
    kept = [at for at in range(len(chosen)) if at not in wrong]
    if not kept or (problems and on_invalid == "raise"):
        raise RunsError(_listed(origin, problems))
    try:
        clusters, trunk_source = trunks_of(rows, trunks)
    except ValueError as error:
        raise RunsError(f"{origin}: {error}") from None
    good = [chosen[at] for at in kept]
    warmup = [tokens for i in good if (tokens := _warmup(rows[i])) is not None]
    n, d, e, losses = (np.array([column[at] for at in kept], float) for column in columns.values())
    return Runs(
        n,
        d,
        e,
        losses,
        np.unique([clusters[i] for i in good], return_inverse=True)[1],
        tuple(_name(i, rows[i]) for i in good),
        source=origin,
        loss_name=loss,
        skipped=tuple(problems),
        dataset=table.dataset,
        commit=table.commit,
        trunk_source=trunk_source,
        warmup_tokens=max(warmup, default=None),
        vocab_size=_vocabulary(rows[i] for i in good),
        where=where or None,
    )


def read_rows(source: Any, revision: str | None = None, problems: list[str] | None = None) -> LoadedRows:
    """The rows, as mappings, of any source that `load_runs` takes; given a list, `problems` gets those left out.

    Raises:
        RunsError: there is no such source, or rows that cannot be read.
        HubError: the Hub does not have it, or cannot be reached.
    """
    if isinstance(source, (str, Path)):
        try:
            table = hub.load_rows(source, revision=revision, problems=problems)
        except (RecordError, FilesError) as error:
            hint = '\non_invalid="skip" leaves them out' if "\n" in str(error) else ""
            raise RunsError(f"{error}{hint}") from None
        return replace(table, rows=[_mapping(i, row) for i, row in enumerate(table.rows)])
    if revision is not None:
        raise RunsError(f"revision={revision!r} is allowed with a dataset on the Hub only")
    if hasattr(source, "to_dict") and hasattr(source, "columns"):
        return hub.LoadedRows([_without_nan(row) for row in source.to_dict("records")], "DataFrame")
    if isinstance(source, Iterable):
        return hub.LoadedRows([_mapping(i, row) for i, row in enumerate(source)], "rows")
    raise TypeError(f"runs cannot be read from a {type(source).__name__}")


def _mapping(i: int, row: Any) -> Row:
    if isinstance(row, Mapping):
        return row
    if hasattr(row, "model_dump"):
        return cast(Row, row.model_dump())
    raise RunsError(f"row {i}: a {type(row).__name__} is neither a mapping nor a run record")


def _without_nan(row: Mapping[Any, Any]) -> Row:
    """A DataFrame's row, where a missing text is a NaN that must read as missing; numbers keep their NaN."""
    texts = {"run_id", "parent_run_id", "status", "trunk"}
    return {str(k): (None if k in texts and _is_missing(v) else v) for k, v in row.items()}


def _nothing_chosen(rows: Sequence[Row], status: str | None, problems: Sequence[str]) -> str:
    """Why a table gives no runs, and what it has instead."""
    if not rows:
        return f"no runs at all{f'; {len(problems)} rows were left out, e.g. {problems[0]}' if problems else ''}"
    counts = Counter(str(row.get("status") or "final") for row in rows)
    there = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"no runs with status {status!r}; there are {there} (status=None, or --status all, takes every run)"


def _fulfilling(rows: Sequence[Row], chosen: Sequence[int], where: str, origin: str) -> list[int]:
    """Those of the chosen rows that fulfil a filter on the table's columns; RunsError if there are none."""
    kinds: dict[str, set[bool]] = {}  # of each column whether its values are texts, or numbers, or both
    for row in rows:
        for name, value in row.items():
            if isinstance(value, str) or (_number(value) is not None and not _is_missing(value)):
                kinds.setdefault(name, set()).add(isinstance(value, str))
    numbers = sorted(name for name, texts in kinds.items() if False in texts)
    try:
        test = hub.parse_filter(where, numbers, sorted(kinds.keys() - set(numbers)))
    except RecordError as error:
        raise RunsError(f"{origin}: {error}") from None
    found = []
    for i in chosen:
        known = {name: value for name, value in rows[i].items() if not _is_missing(value)}
        if test(known | {name: _number(known[name]) for name in numbers if name in known}):
            found.append(i)
    if not found:
        raise RunsError(f"{origin}: where={where!r} keeps none of {len(chosen)} runs")
    return found


def _with_size(row: Row) -> Row:
    """The row with n_active computed where it has d_model and n_blocks instead."""
    if not _is_missing(row.get("n_active")):
        return row
    vocabulary = {"vocab_size": VOCAB_SIZE} if _is_missing(row.get("vocab_size")) else {}
    shape = _whole({**row, **vocabulary}, "d_model", "n_blocks", "vocab_size")
    return {**row, "n_active": float(active_parameters(*shape))} if shape else row


def _check_columns(origin: str, rows: list[Row], loss: str | None) -> str:
    """The name of the loss column, once all columns are known to be there; RunsError otherwise."""
    present = {name for row in rows for name in row}
    there = f"there are: {', '.join(sorted(present)) or 'none'}"
    missing = [name for name in _COLUMNS if name not in present]
    if "n_active" in missing:
        missing[0] = "n_active (or d_model and n_blocks)"
    if loss is None:
        obvious = sorted(name for name in present if re.search(r"(^|[\W_])loss$", name.lower()))
        loss = "eval_loss" if "eval_loss" in present else obvious[0] if len(obvious) == 1 else None
        if loss is None and obvious:
            raise RunsError(
                f"{origin}: no column eval_loss, and several others ({', '.join(obvious)}): choose by loss=..."
            )
    if loss is None or loss not in present:
        missing.append(loss or "eval_loss")
        there += "; name the loss column with loss=..."
    if missing:
        raise RunsError(f"{origin}: missing column {', '.join(missing)}; {there}")
    assert loss is not None  # else it would be missing
    return loss


def _problems(
    columns: Mapping[str, Sequence[Any] | FloatArray], where: Sequence[str], run_ids: Sequence[Any] = ()
) -> dict[int, str]:
    """What is wrong with rows, by position: values that are not positive and finite (E at least 1), and duplicates."""
    found: dict[int, str] = {}
    seen: dict[Any, str] = {}
    wanted = {"experts": "at least 1"}
    numbers = [[_number(value) for value in column] for column in columns.values()]
    for i, values in enumerate(zip(*numbers, strict=True)):
        wrong = [
            f"{name}={literal(columns[name][i])} must be {wanted.get(name, 'positive and finite')}"
            for name, value in zip(columns, values, strict=True)
            if value is None or not 0 < value < math.inf or (name == "experts" and value < 1)
        ]
        keys = [("N, D, E and loss", values)]
        if run_ids and run_ids[i]:
            keys.append(("run_id", run_ids[i]))
        if not wrong:
            wrong = [f"duplicate of {seen[key]} (same {key[0]})" for key in keys if key in seen][:1]
            seen |= dict.fromkeys(keys, where[i])
        if wrong:
            found[i] = f"{where[i]}: {'; '.join(wrong)}"
    return found


def _size_problem(row: Row) -> str | None:
    """Recorded sizes against the formulas, where the row says enough to compute them."""
    shape = _whole(row, "d_model", "experts", "n_blocks", "n_heads", "vocab_size")
    if shape is None:
        return None
    try:
        expected = Architecture(*shape)
    except ValueError as error:
        return str(error)
    for name, formula in (("n_active", expected.n_active), ("n_total", expected.n_total)):
        value = _number(row.get(name))
        if value is not None and abs(value - formula) > COUNT_TOLERANCE * formula:
            return f"{name}={value:.0f} contradicts d_model, n_blocks, experts and vocab_size ({formula})"
    return None


def _whole(row: Row, *names: str) -> list[int] | None:
    """These fields as integers of at least 1; None unless all of them are."""
    numbers = [_number(row.get(name)) for name in names]
    whole = [int(number) for number in numbers if number is not None and number >= 1 and number.is_integer()]
    return whole if len(whole) == len(names) else None


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _warmup(row: Row) -> float | None:
    """Tokens of warm-up by the row's schedule, or a column of this name."""
    schedule = row.get("schedule")
    number = _number((schedule if isinstance(schedule, Mapping) else row).get("warmup_tokens"))
    return number if number is not None and 0 <= number < math.inf else None


def _vocabulary(rows: Iterable[Row]) -> int | None:
    """The one vocabulary that all rows which name one have; None if there is none, or more than one."""
    found = {(_whole(row, "vocab_size") or [0])[0] for row in rows if not _is_missing(row.get("vocab_size"))}
    return found.pop() or None if len(found) == 1 else None


def _name(i: int, row: Row) -> str:
    name = row.get("run_id")
    return name if isinstance(name, str) and name else f"row-{i}"


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
