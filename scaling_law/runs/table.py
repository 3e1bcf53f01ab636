"""The table of runs that a law is fitted on, read from any source and checked once.

A trunk trains at a constant rate, and each measurement branches off it for its decay. Branches of one trunk share
weights and data up to the branch point, so a bootstrap must resample them together, as one cluster (`trunk`).
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
from scaling_law.size.architecture import VOCAB_SIZE, Architecture, active_parameters, training_flops

if TYPE_CHECKING:
    import pandas

    from hub import LoadedRows

FloatArray = NDArray[np.float64]
Row = Mapping[str, Any]
_INPUTS = ("n_active", "tokens", "experts")
_COLUMNS = (*_INPUTS, "loss", "trunk")
COUNT_TOLERANCE = 0.02  # recorded sizes may count norms and routers, which the formulas leave out
OWN, EQUAL_SIZE = "each run its own trunk", "runs of equal n_active, experts"  # how trunks were found
SIZES = ("n_active", "experts", "n_total", "d_model", "n_blocks", "n_heads", "vocab_size", "sequence_length")
RATES = ("learning_rate", "peak_learning_rate", "lr", "batch_size", "global_batch_size", "bs", "weight_decay")
SETTINGS = ("seed", *RATES, "optimizer", "precision", "dataset", "tokenizer", "sweep")


class RunsError(RecordError, FilesError):
    """The table of runs is not usable; the message names row, field and value."""


@dataclass(frozen=True)
class Runs:
    """Measured runs as columns [n]; the loss is in nats per token, `trunk` holds cluster ids from 0.

    `skipped` says what was left out and why; `load_runs(dataset, revision=commit)` reads the same index again.
    `warmup_tokens` is the longest warm-up, `vocab_size` the shared vocabulary (None: unknown or mixed).
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
    columns: Mapping[str, FloatArray] = field(default_factory=dict, repr=False)

    def column(self, name: str) -> FloatArray:
        own = {n: getattr(self, n) for n in (*_INPUTS, "loss")} | {**self.columns}
        if name not in own:
            raise RunsError(f"{self.source}: no column {name}; there are: {', '.join(own)}")
        return own[name]

    def __post_init__(self) -> None:
        for name in _COLUMNS:
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
        columns: Mapping[str, ArrayLike] | None = None,
    ) -> Runs:
        """Runs from arrays; scalars broadcast. RunsError for bad values.

        `trunk`: one id per run; "auto" or None joins runs of equal n_active and experts, "run" joins none.
        """
        given = (np.atleast_1d(np.asarray(v, float)) for v in (n_active, tokens, experts, loss))
        n, d, e, losses = np.broadcast_arrays(*given)
        if n.ndim != 1:
            raise RunsError(f"columns must be one-dimensional, not of shape {n.shape}")
        names = tuple(run_id) if run_id is not None else tuple(f"row-{i}" for i in range(len(n)))
        if trunk is None or (isinstance(trunk, str) and trunk == "auto"):
            trunk, trunk_source = np.unique(np.column_stack([n, e]), axis=0, return_inverse=True)[1], EQUAL_SIZE
        elif isinstance(trunk, str):
            if trunk != "run":
                raise ValueError(f"trunk={trunk!r} must be 'auto', 'run' or one id for each run")
            trunk, trunk_source = np.arange(len(n)), OWN
        else:
            trunk_source = "given"
        clusters = np.unique(np.asarray(trunk), return_inverse=True)[1].ravel()
        if len(names) != len(n) or len(clusters) != len(n):
            raise RunsError(f"run_id and trunk must have one entry for each of the {len(n)} runs")
        own = dict(zip((*_INPUTS, "loss"), (n, d, e, losses), strict=True))
        problems = _problems(own, [f"row {i} ({name})" for i, name in enumerate(names)])
        if any(problems):
            raise RunsError(_listed(source, problems))
        extra = {k: np.asarray(v, float) for k, v in (columns or {}).items()}
        return cls(n, d, e, losses, clusters, names, source, loss_name, trunk_source=trunk_source, columns=extra)

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def flops(self) -> FloatArray:
        return np.asarray(training_flops(self.n_active, self.tokens))

    def subset(self, mask: NDArray[np.bool_]) -> Runs:
        """The runs where `mask` [n] is True; trunks keep their ids."""
        kept = np.flatnonzero(np.asarray(mask, bool))
        columns: dict[str, Any] = {name: getattr(self, name)[kept] for name in _COLUMNS}
        extra = {k: v[kept] for k, v in self.columns.items()}
        return replace(self, **columns, columns=extra, run_id=tuple(self.run_id[i] for i in kept))

    def each_its_own_trunk(self) -> Runs:
        """The same runs as independent measurements."""
        return replace(self, trunk=np.arange(len(self)), trunk_source=OWN)

    @property
    def n_trunks(self) -> int:
        return len(np.unique(self.trunk))

    def ranges(self) -> tuple[FittedRange, ...]:
        return fitted_ranges(self.n_active, self.tokens, self.experts)

    def to_pandas(self) -> pandas.DataFrame:
        import pandas

        return pandas.DataFrame({name: list(getattr(self, name)) for name in ("run_id", *_COLUMNS)})

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
        source: a DataFrame; mappings or run records; a .jsonl, .parquet or .csv file; a folder with runs.jsonl or
            runs.parquet; a release folder; "org/sweep-runs" or "hf://org/sweep-runs" on the Hub.
        loss: the column to fit, nats per token. None: eval_loss, else the only column whose name ends in "loss".
        status: keep rows of this `status` (a row without one is final); None keeps all.
        on_invalid: "raise" an error that lists every unusable row, or "skip" them, with the reasons in `.skipped`.
        revision: branch, tag or commit on the Hub, as in "org/sweep-runs@v1"; once read, it needs no network.
        trunks: which runs share a trunk: "auto", "run" (none do) or the name of a column; see `trunks_of`.
        where: a filter on the columns (`hub.parse_filter`), such as "E in {1, 8}".

    A row needs `experts`, `tokens`, the loss, and `n_active` or `d_model` and `n_blocks` (`vocab_size` is 50,257
    where not given). RunsError for missing columns, no rows, non-finite or non-positive numbers, duplicates and sizes
    that contradict their shape; `hub.HubError` for what the Hub does not have.
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
    loss = _loss_column(origin, [rows[i] for i in chosen], loss)
    columns = {name: [rows[i].get(name) for i in chosen] for name in (*_INPUTS, loss)}
    labels = [f"row {i} ({_name(i, rows[i])})" for i in chosen]
    sizes = [_size_problem(rows[i]) for i in chosen]
    wrong = _problems(columns, labels, [rows[i].get("run_id") for i in chosen], sizes)
    problems += filter(None, wrong)
    good = [i for i, problem in zip(chosen, wrong, strict=True) if not problem]
    if not good or (problems and on_invalid == "raise"):
        raise RunsError(_listed(origin, problems))
    clusters, trunk_source = trunks_of(rows, trunks, origin)
    told = [rows[i] for i in good if not _is_missing(rows[i].get("vocab_size"))]
    vocabularies = {(_whole(row, "vocab_size") or [0])[0] for row in told}  # 0: one that no model can have
    n, d, e, losses = (np.array([rows[i][name] for i in good], float) for name in columns)
    trunk = np.unique([clusters[i] for i in good], return_inverse=True)[1]
    return Runs(
        *(n, d, e, losses, trunk),
        run_id=tuple(_name(i, rows[i]) for i in good),
        source=origin,
        loss_name=loss,
        skipped=tuple(problems),
        dataset=table.dataset,
        commit=table.commit,
        trunk_source=trunk_source,
        warmup_tokens=max((tokens for i in good if (tokens := _warmup(rows[i])) is not None), default=None),
        vocab_size=(vocabularies.pop() or None) if len(vocabularies) == 1 else None,
        where=where or None,
    )


def read_rows(source: Any, revision: str | None = None, problems: list[str] | None = None) -> LoadedRows:
    """The rows of any source that `load_runs` takes, as mappings; a list `problems` gets what was left out."""
    if isinstance(source, (str, Path)):
        try:
            table = hub.load_rows(source, revision=revision, problems=problems)
        except (RecordError, FilesError) as error:
            hint = '\non_invalid="skip" leaves them out' if "\n" in str(error) else ""
            raise RunsError(f"{error}{hint}") from None
    elif revision is not None:
        raise RunsError(f"revision={revision!r} is allowed with a dataset on the Hub only")
    elif hasattr(source, "to_dict") and hasattr(source, "columns"):
        rows = [{str(k): None if _is_missing(v) else v for k, v in row.items()} for row in source.to_dict("records")]
        table = hub.LoadedRows(rows, "DataFrame")
    elif isinstance(source, Iterable):
        table = hub.LoadedRows(list(source), "rows")
    else:
        raise TypeError(f"runs cannot be read from a {type(source).__name__}")
    return replace(table, rows=[_mapping(i, row) for i, row in enumerate(table.rows)])


def _mapping(i: int, row: Any) -> Row:
    if isinstance(row, Mapping):
        return row
    if hasattr(row, "model_dump"):
        return cast(Row, row.model_dump())
    raise RunsError(f"row {i}: a {type(row).__name__} is neither a mapping nor a run record")


def _nothing_chosen(rows: Sequence[Row], status: str | None, problems: Sequence[str]) -> str:
    if not rows:
        return f"no runs at all{f'; {len(problems)} rows were left out, e.g. {problems[0]}' if problems else ''}"
    counts = sorted(Counter(str(row.get("status") or "final") for row in rows).items())
    there = ", ".join(f"{count} {name}" for name, count in counts)
    return f"no runs with status {status!r}; there are {there} (status=None, or --status all, takes every run)"


def _fulfilling(rows: Sequence[Row], chosen: Sequence[int], where: str, origin: str) -> list[int]:
    """The chosen rows that fulfil the filter; RunsError if none does."""
    known = [{name: value for name, value in row.items() if not _is_missing(value)} for row in rows]
    texts = {name for row in known for name, value in row.items() if isinstance(value, str)}
    numbers = {n for row in known for n, v in row.items() if not isinstance(v, str) and _number(v) is not None}
    try:
        test = hub.parse_filter(where, sorted(numbers), sorted(texts - numbers))
    except RecordError as error:
        raise RunsError(f"{origin}: {error}") from None
    found = [i for i in chosen if test(known[i] | {n: _number(known[i][n]) for n in numbers & known[i].keys()})]
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


def _loss_column(origin: str, rows: list[Row], loss: str | None) -> str:
    """The name of the loss column; RunsError if any needed column is missing."""
    present = sorted({name for row in rows for name in row})
    if loss is None:
        obvious = [name for name in present if re.search(r"(^|[\W_])loss$", name.lower())]
        if "eval_loss" not in present and len(obvious) > 1:
            others = ", ".join(obvious)
            raise RunsError(f"{origin}: no column eval_loss, and several others ({others}): choose by loss=...")
        loss = obvious[0] if len(obvious) == 1 else "eval_loss"
    if missing := [name for name in (*_INPUTS, loss) if name not in present]:
        names = ", ".join(missing).replace("n_active", "n_active (or d_model and n_blocks)")
        hint = "; name the loss column with loss=..." if loss in missing else ""
        raise RunsError(f"{origin}: missing column {names}; there are: {', '.join(present) or 'none'}{hint}")
    return loss


def _problems(
    columns: Mapping[str, Sequence[Any] | FloatArray],
    labels: Sequence[str],
    run_ids: Sequence[Any] = (),
    sizes: Sequence[str | None] = (),
) -> list[str]:
    """What is wrong with each run, "" if nothing."""
    found, seen = [], dict[Any, str]()
    wanted = {"experts": "at least 1"}
    numbers = [[_number(value) for value in column] for column in columns.values()]
    for i, values in enumerate(zip(*numbers, strict=True)):
        wrong = [
            f"{name}={literal(columns[name][i])} must be {wanted.get(name, 'positive and finite')}"
            for name, value in zip(columns, values, strict=True)
            if value is None or not 0 < value < math.inf or (name == "experts" and value < 1)
        ]
        if not wrong and sizes:
            wrong = [problem for problem in [sizes[i]] if problem]
        if not wrong:
            keys = [("N, D, E and loss", values), *([("run_id", run_ids[i])] if run_ids and run_ids[i] else [])]
            wrong = [f"duplicate of {seen[key]} (same {key[0]})" for key in keys if key in seen][:1]
            seen |= dict.fromkeys(keys, labels[i])
        found.append(f"{labels[i]}: {'; '.join(wrong)}" if wrong else "")
    return found


def _size_problem(row: Row) -> str | None:
    """How recorded sizes contradict the formulas; None if they agree or the row does not give its shape."""
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
    schedule = row.get("schedule")
    number = _number((schedule if isinstance(schedule, Mapping) else row).get("warmup_tokens"))
    return number if number is not None and 0 <= number < math.inf else None


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


def trunks_of(rows: Sequence[Row], rule: str, origin: str) -> tuple[list[str], str]:
    """The trunk of each row, and how it was found. RunsError for a column that is missing or has gaps.

    "auto" takes the column `trunk`, else the end of the chain of `parent_run_id`; a table with neither joins rows that
    agree in all its columns of SIZES and SETTINGS. Such rows need not share a trunk, but joining them can only widen
    the intervals. "run" makes each row its own trunk; any other rule names a column.
    """
    present = {name for row in rows for name in row}
    if rule == "run":
        return [f"row {i}" for i in range(len(rows))], OWN
    if rule == "auto" and not {"trunk", "parent_run_id"} & present:
        keys = [name for name in (*SIZES, *SETTINGS) if name in present]
        return [repr([row.get(name) for name in keys]) for row in rows], f"runs of equal {', '.join(keys)}"
    if rule == "parent_run_id" or (rule == "auto" and "trunk" not in present):
        return _chains(rows), "column parent_run_id"
    if rule == "auto":
        given = [None if row.get("trunk") is None else f"trunk {row['trunk']}" for row in rows]
        return [own or chain for own, chain in zip(given, _chains(rows), strict=True)], "column trunk"
    if rule not in present:
        raise RunsError(f"{origin}: trunks={rule!r} must be 'auto', 'run' or a column: {', '.join(sorted(present))}")
    if empty := [i for i, row in enumerate(rows) if _is_missing(row.get(rule))]:
        raise RunsError(f"{origin}: trunks={rule!r}: row {empty[0]} has no value in this column")
    return [repr(row[rule]) for row in rows], f"column {rule}"


def _chains(rows: Sequence[Row]) -> list[str]:
    """The end of each row's chain of parents."""
    parents = {str(row["run_id"]): row.get("parent_run_id") for row in rows if row.get("run_id")}
    found = []
    for i, row in enumerate(rows):
        name, visited = str(row.get("run_id") or f"row-{i}"), set()
        parent = row.get("parent_run_id")
        while isinstance(parent, str) and parent and parent not in visited:
            name = parent
            visited.add(parent)
            parent = parents.get(name)
        found.append(f"run {name}")
    return found


def _listed(origin: str, problems: Iterable[str], shown: int = 8) -> str:
    lines = [problem for problem in problems if problem]
    rest = [f"… and {len(lines) - shown} more"] if len(lines) > shown else []
    return f"{origin}: {len(lines)} unusable row(s)\n  " + "\n  ".join([*lines[:shown], *rest])
