"""The table of runs that a law is fitted on, read from any source and checked once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

import hub  # lazy: its rooms are imported when runs are read
from hub.base.errors import InputError, Message, RecordError, given, message, unknown
from hub.base.inputs import LARGEST, reads, shortened
from hub.base.numerals import why_no_number
from hub.base.tables import Summarised, Table, literal
from hub.base.units import format_count
from scaling_law.formulas.conditions import Conditions, FittedRange, fitted_ranges
from scaling_law.formulas.law import SMALLEST, check_shapes, numbers
from scaling_law.runs.architectures import in_terms_of_laws, size_problem, with_size
from scaling_law.runs.columns import Column, aliases_of, with_columns, with_counts
from scaling_law.runs.logged import RUNS, SAID, Final, check_final, end_of, lines_by_run, varies
from scaling_law.runs.readers import reader
from scaling_law.runs.recipes import HOLDERS, Recipe, recipe_of
from scaling_law.runs.rows import (
    SKIP,
    FloatArray,
    Row,
    RunsError,
    is_loss,
    is_missing,
    label,
    names_in,
    names_of,
    number,
    numeric_columns,
    row_name,
    text_columns,
    whole,
)
from scaling_law.runs.settings import Blend, find_blend
from scaling_law.runs.sources import LACKS, read_source
from scaling_law.runs.statuses import RECORDED, left_out, status_column, status_of
from scaling_law.runs.trackers import is_tracker, with_values
from scaling_law.runs.trunks import EQUAL_SIZE, OWN, RATES, trunks_of
from scaling_law.runs.units import unit_problems, unit_warnings
from scaling_law.size.architecture import training_flops

if TYPE_CHECKING:
    import pandas


STEP_LOG = "a table of steps: several rows of each run, with its name (run_id) and the step"
_INPUTS = ("n_active", "tokens", "experts")
_COLUMNS = (*_INPUTS, "loss", "trunk")


@dataclass(frozen=True)
class Runs(Summarised):
    """Measured runs as columns [n]; the loss is in nats per token, `trunk` holds cluster ids from 0.

    `columns` are the other numeric columns of the source, NaN where a run has no value; `runs[name]` is any of them.
    `texts` are columns of words that groups of runs share, None where a run has none.
    `skipped` says what was left out and why. `warmup_tokens` is the longest warm-up, `vocab_size` the shared
    vocabulary (None: unknown or mixed). `recipe` has what else the runs were trained with, [n] for each column of
    `runs.recipes` that is known. `read_as` is the format and the mapping of columns (None: the source had our
    columns). `thinned` says which rows of a larger table these are.
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
    read_as: str | None = None
    thinned: str = ""
    columns: Mapping[str, FloatArray] = field(default_factory=dict, repr=False)
    recipe: Recipe = field(default_factory=dict, repr=False)
    texts: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            object.__setattr__(self, name, _frozen(getattr(self, name), np.int64 if name == "trunk" else float))
        object.__setattr__(self, "columns", {name: _frozen(values) for name, values in self.columns.items()})

    @classmethod
    @reads
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
        """Runs from arrays; scalars broadcast, those of `columns` too. RunsError for bad values.

        `trunk`: one id per run; "auto" or None joins runs of equal n_active and experts, "run" joins none.
        """
        given = zip((*_INPUTS, "loss"), (n_active, tokens, experts, loss), strict=True)
        arrays = {name: np.atleast_1d(numbers(name, values)) for name, values in given}
        check_shapes(arrays)
        n, d, e, losses = np.broadcast_arrays(*arrays.values())
        if n.ndim != 1:
            raise RunsError(f"columns must be one-dimensional, not of shape {n.shape}")
        names = tuple(run_id) if run_id is not None else tuple(f"row-{i}" for i in range(len(n)))
        if trunk is None or (isinstance(trunk, str) and trunk == "auto"):
            trunk, trunk_source = np.unique(np.column_stack([n, e]), axis=0, return_inverse=True)[1], EQUAL_SIZE
        elif isinstance(trunk, str):
            if trunk != "run":
                raise InputError(f"trunk={trunk!r} must be 'auto', 'run' or one id for each run")
            trunk, trunk_source = np.arange(len(n)), OWN
        else:
            trunk_source = "given"
        try:
            clusters = np.unique(np.asarray(trunk), return_inverse=True)[1].ravel()
        except (TypeError, ValueError):
            raise RunsError(f"trunk={shortened(trunk)} must be one id for each run") from None
        if len(names) != len(n) or len(clusters) != len(n):
            raise RunsError(f"run_id and trunk must have one entry for each of the {len(n)} runs")
        others = {name: _other(name, values, len(n)) for name, values in (columns or {}).items()}
        table = {"run_id": names, **dict(zip((*_INPUTS, "loss"), (n, d, e, losses), strict=True)), **others}
        rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
        problems = _problems(rows, range(len(rows)), "loss", [*others])
        if not any(problems):
            sizes = dict(zip(_INPUTS, (n, d, e), strict=True))
            units = unit_problems(sizes, losses, loss_name, clusters if trunk_source == "given" else None)
            problems = [f"{name}: {unit}" if unit else "" for name, unit in zip(names, units, strict=True)]
        if any(problems):
            raise RunsError(_unusable(source, problems))
        basic = (n, d, e, losses, clusters, names, source, loss_name)
        return cls(*basic, trunk_source=trunk_source, columns=others)

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all numeric columns."""
        return (*_INPUTS, "loss", *self.columns)

    @reads
    def column(self, name: str) -> FloatArray:
        """A numeric column [n] by its name, `n_active`, `tokens`, `experts` and `loss` included.

        RunsError lists the columns there are.
        """
        if name in (*_INPUTS, "loss", self.loss_name):
            return np.asarray(getattr(self, name if name in _INPUTS else "loss"))
        if name not in self.columns:
            raise RunsError(f"{self.source}: {unknown('numeric column ', name, self.names)}")
        return self.columns[name]

    __getitem__ = column

    def positive(self, name: str) -> FloatArray:
        """A numeric column [n]; RunsError names the first run whose value is not positive and finite."""
        values = self.column(name)
        if (bad := np.flatnonzero(~(values > 0) | ~np.isfinite(values))).size:
            at = f"{self.source}: {self.run_id[bad[0]]}"
            raise RunsError(f"{at}: {name}={values[bad[0]]:g} must be positive and finite")
        return values

    def __contains__(self, name: object) -> bool:
        return name in (*self.names, self.loss_name)

    @property
    def flops(self) -> FloatArray:
        return np.asarray(training_flops(self.n_active, self.tokens))

    def subset(self, mask: NDArray[np.bool_]) -> Runs:
        """The runs where `mask` [n] is True; trunks keep their ids."""
        return self.take(np.flatnonzero(np.asarray(mask, bool)))

    def take(self, rows: NDArray[np.integer[Any]]) -> Runs:
        """The runs of these rows, in their order; trunks keep their ids."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in _COLUMNS}
        columns["columns"] = {name: values[rows] for name, values in self.columns.items()}
        for name in ("recipe", "texts"):
            columns[name] = {key: tuple(values[i] for i in rows) for key, values in getattr(self, name).items()}
        return replace(self, **columns, run_id=tuple(self.run_id[i] for i in rows))

    def each_its_own_trunk(self) -> Runs:
        """The same runs as independent measurements."""
        return replace(self, trunk=np.arange(len(self)), trunk_source=OWN)

    @property
    def n_trunks(self) -> int:
        return len(np.unique(self.trunk))

    def ranges(self) -> tuple[FittedRange, ...]:
        return fitted_ranges(self.n_active, self.tokens, self.experts)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Say what is odd about the units of N, D and the loss."""
        return unit_warnings(self._sizes, self.loss, self.loss_name, self.vocab_size, "d_model" in self.columns)

    @property
    def _sizes(self) -> dict[str, FloatArray]:
        return {name: getattr(self, name) for name in _INPUTS}

    def blend(self, known: Collection[str] = ()) -> Blend | None:
        """Find the columns that tell runs of equal N, D and E with different losses apart.

        Those `known` do not count, nor those of the recipe, in which runs may not differ at all (`check_mix`).
        """
        texts = {**self.recipe, **self.texts}
        return find_blend(self._sizes, self.loss, self.columns, texts, HOLDERS, {*known, *self.recipe})

    def doubts(self, known: Collection[str] = ()) -> tuple[tuple[str, ...], bool]:
        """Find what is odd about these runs, a sentence each, and whether no law that blends them is to be trusted.

        They may differ in the columns `known`, the variables of the law and what the user agreed to mix.
        """
        blend = self.blend(known)
        if blend is None:
            return self.warnings, False
        return (str(blend), *self.warnings), blend.harmful

    def without_settings(self, keep: Collection[str]) -> Runs:
        """Leave out all columns but those to `keep`, for fits within an answer whose runs are checked."""
        columns = {name: values for name, values in self.columns.items() if name in keep}
        return replace(self, columns=columns, recipe={}, texts={})

    def conditions(self, provenance: str, **fit: Any) -> Conditions:
        """What a law of these runs was fitted on, beside what its `fit` adds."""
        told = {name: getattr(self, name) for name in ("dataset", "commit", "vocab_size", "where")}
        return Conditions(provenance, n_runs=len(self), ranges=self.ranges(), **told, **fit)

    def to_pandas(self) -> pandas.DataFrame:
        import pandas

        columns = {name: list(getattr(self, name)) for name in ("run_id", *_COLUMNS)}
        return pandas.DataFrame(columns | dict(self.columns))

    def summary(self) -> Table:
        """What the runs of each E cover, from the least to the most; rich and notebooks show it."""
        rows = []
        for e in np.unique(self.experts):
            part = self.subset(self.experts == e)
            formats = ((part.n_active, format_count), (part.tokens, format_count), (part.loss, "{:.4f}".format))
            ends = [f"{text(column.min())} – {text(column.max())}" for column, text in formats]
            rows.append((f"{e:g}", len(part), part.n_trunks, *ends))
        header = ("E", "runs", "trunks", "N_act", "tokens", self.loss_name)
        title = f"{len(self)} runs from {self.source}"
        return Table(header, rows, title=title, notes=self.skipped, warnings=self.warnings)

    def __repr__(self) -> str:
        values = ", ".join(f"{e:g}" for e in np.unique(self.experts))
        count = f"{len(self)} runs of {self.n_trunks} trunks"
        return f"Runs({count}, E in {{{values}}}, {self.loss_name}, from {self.source})"


def _frozen(values: ArrayLike, kind: Any = float) -> NDArray[Any]:
    column = np.array(values, kind)
    column.setflags(write=False)
    return column


def _other(name: str, values: ArrayLike, count: int) -> FloatArray:
    """A further column of `Runs.from_columns`."""
    if name in _COLUMNS or name == "run_id":
        raise RunsError(f"columns: {name!r} is an argument itself, not one of columns")
    try:
        return np.broadcast_to(np.asarray(values, float), (count,))
    except ValueError:
        raise RunsError(f"columns: {name!r} must hold {count} numbers, or one for all runs") from None


@reads
def load_runs(
    source: Any,
    loss: str | None = None,
    status: str | None = "final",
    on_invalid: Literal["raise", "skip"] = "raise",
    revision: str | None = None,
    trunks: str = "auto",
    where: str = "",
    columns: Mapping[str, Column] | None = None,
    format: str | None = None,
    final: Final | None = None,
) -> Runs:
    """Read a table of runs and check it.

    Args:
        source: a DataFrame; mappings or run records; a .parquet, .jsonl, .json, .csv, .tsv or .txt file
            (docs/fitting.md#files); a folder with runs.jsonl or runs.parquet; a release folder; "org/sweep-runs" or
            "hf://org/sweep-runs" on the Hub; a tracker's project, "trackio:PROJECT" or "wandb:ENTITY/PROJECT"
            (docs/fitting.md#runs-in-trackers); logs: a folder of TensorBoard, or trainer_state.json.
        loss: the column to fit, nats per token. None: eval_loss, else the only column whose name ends in "loss".
        status: keep rows of this `status` (a row without one is final); None keeps all.
        on_invalid: "raise" an error that lists every unusable row, or "skip" them, with the reasons in `.skipped`.
        revision: branch, tag or commit on the Hub, as in "org/sweep-runs@v1"; once read, it needs no network.
        trunks: which runs share a trunk: "auto", "run" (none do) or the name of a column; see `trunks_of`.
        where: a filter on the columns (`hub.parse_filter`), such as "E in {1, 8}".
        columns: our name to a column of the source, an expression ("1 - sparsity", "`Training FLOP` / 6"), a number
            (`experts=1` for dense models) or a function of the row; in order, so that later ones may use earlier ones.
        format: a public table read as its authors publish it: "step_law", "marin_isoflop", "open_athena",
            "epoch_chinchilla", "gemstones", "clark" or "clark_curves" (from where: docs/fitting.md).
        final: the loss of a run that logged many, in a tracker, in logs or in a table of steps: the "last" value (the
            default), the "minimum", or "smoothed", the mean of the last 5 %; `.read_as` says which.

    Runs of other classes than ours (`model_type`) have as `experts` the E of laws, total over active feed-forward
    width, and their routed experts in `routed_experts`. Columns that are named as in the paper or in our own tables
    (N_act, D, E, Held-out loss) are read as ours, and counts that are texts ("80M") as numbers.

    A row needs `experts`, `tokens`, the loss, and `n_active` or `d_model` and `n_blocks` (`vocab_size` is 50,257
    where not given). RunsError for missing columns, no rows, non-finite or non-positive numbers, duplicates, sizes
    that contradict their shape (unless `columns` or `format` say what n_active is), and numbers that cannot be in
    parameters, tokens and nats per token (`runs.units`); `hub.HubError` for what the Hub does not have.
    """
    if on_invalid not in ("raise", "skip"):
        raise InputError(given("on_invalid", on_invalid), " must be 'raise' or 'skip'")
    check_final(final or "last")
    problems: list[str] = []
    columns, public = columns or {}, reader(format) if format else None
    if revision is not None and is_tracker(source):
        said = " goes with a dataset on the Hub: a tracker keeps the newest alone"
        raise InputError(given("revision", revision), said)
    as_losses = {name for name in (loss, columns.get("loss")) if isinstance(name, str)}
    try:
        skip = problems if on_invalid == "skip" else None
        table, kind = read_source(source, final or "last", as_losses, revision, skip)
    except RunsError as error:
        raise RunsError(*error.args, f"; {format} is {public.place}" if public else "") from None
    rows, origin, failed, logged = table.rows, table.name, dict[int, str](), kind != "table"
    loss = loss or ("loss" if "loss" in columns else None)
    if public and rows:
        rows, failed, authors_filter = public.read(rows, origin)
        origin, loss = f"{origin} ({public.name})", loss or public.loss
        where = ", ".join(filter(None, (authors_filter, where)))
        trunks = public.trunks if trunks == "auto" else trunks
    rows, aliases, more = _with_our_columns(rows, columns, origin, public is not None)
    failed = more | failed
    steps = None if logged or public else _runs_of_steps(rows, final, origin)
    earlier = []
    if steps is not None:
        earlier = [f"{len(rows) - len(steps)} rows: steps before the last of {len(steps)} run{'s' * (len(steps) > 1)}"]
        rows, failed = _ends(rows, failed, steps, final or "last", as_losses)
    elif final is not None and not logged:
        raise InputError(given("final", final), f" goes with a tracker, with logs, or with {STEP_LOG}")
    selected = [i for i, row in enumerate(rows) if status in (None, row.get("status"), status_of(row.get("status")))]
    if not selected:
        raise RunsError(f"{origin}: ", _none_left(rows, status, problems))
    if where:
        selected = _fulfilling(rows, selected, where, origin)
    if public and public.apart:
        _check_comparable([rows[i] for i in selected], public.apart, origin)
    shown = with_values(table.rows) if logged else ""
    left = _left_out(rows, status, logged, str(aliases.get("status", "status")))
    loss = _loss_column(origin, [rows[i] for i in selected], loss, aliases, shown, LACKS.get(kind, ""))
    tuned = ("seed", *RATES, "schedule", "schedule_peak_learning_rate")  # the last as in runs.parquet
    present = {*names_of(rows)}
    settings = [name for name in tuned if name in present]
    also = ["ids"] + ["sizes"] * (public is None and "n_active" not in columns)
    also += ["steps"] * (steps is None and not logged and lines_by_run(rows) is not None)
    wrong = _problems(rows, selected, loss, settings, also)
    wrong = [failed.get(i) or problem for i, problem in zip(selected, wrong, strict=True)]
    problems += filter(None, wrong)
    good = [i for i, problem in zip(selected, wrong, strict=True) if not problem]
    clusters, trunk_source = trunks_of(rows, trunks, origin)
    n, d, e, losses = (np.array([number(rows[i][name]) for i in good], float) for name in (*_INPUTS, loss))
    trunk = np.unique([clusters[i] for i in good], return_inverse=True)[1]
    sizes = dict(zip(_INPUTS, (n, d, e), strict=True))
    off = unit_problems(sizes, losses, loss, trunk if trunk_source.startswith(("column", "checkpoints")) else None)
    # The units of a run record are those of its schema, however short the run.
    off = ["" if "schema_version" in rows[i] else problem for i, problem in zip(good, off, strict=True)]
    problems += [f"{label(i, rows[i])}: {problem}" for i, problem in zip(good, off, strict=True) if problem]
    if all(off) or (problems and on_invalid == "raise"):
        raise RunsError(_unusable(origin, problems, skippable=not all(off)))
    usable = np.array([not problem for problem in off])
    n, d, e, losses, trunk = (values[usable] for values in (n, d, e, losses, trunk))
    good = [i for i, problem in zip(good, off, strict=True) if not problem]
    kept = [rows[i] for i in good]
    told = [row for row in kept if not is_missing(row.get("vocab_size"))]
    vocabularies = {(whole(row, "vocab_size") or [0])[0] for row in told}  # 0: one that no model can have
    ours = (*_COLUMNS, loss, *aliases.values())
    others = {n: v for n, v in numeric_columns(kept).items() if n not in ours}
    return Runs(
        *(n, d, e, losses),
        trunk=np.unique(trunk, return_inverse=True)[1],
        run_id=tuple(row_name(i, rows[i]) for i in good),
        source=origin,
        loss_name=loss,
        skipped=(*problems, *left, *earlier),
        dataset=table.dataset,
        commit=table.commit,
        trunk_source=trunk_source,
        warmup_tokens=max((tokens for row in kept if (tokens := _warmup(row)) is not None), default=None),
        vocab_size=(vocabularies.pop() or None) if len(vocabularies) == 1 else None,
        where=where or None,
        read_as=_read_as(format, {**aliases, **columns}, f"{loss} {SAID[final or 'last']}" if logged or steps else ""),
        columns=others,
        recipe=recipe_of(kept),
        texts=text_columns(kept, {*others, *ours, "run_id", "status"}),
    )


def _read_as(format: str | None, columns: Mapping[str, Column], more: str = "") -> str | None:
    told = [f"format {format}"] * bool(format) + [more] * bool(more)
    told += [f"{name} = {getattr(column, '__name__', column)}" for name, column in columns.items()]
    return "; ".join(told) or None


def _with_our_columns(
    rows: Sequence[Row], columns: Mapping[str, Column], origin: str, public: bool
) -> tuple[list[Row], Mapping[str, str], dict[int, str]]:
    """Rows with the columns asked for and those of other names, these names, and what is wrong with single rows."""
    rows = in_terms_of_laws(rows)
    aliases = {} if public else {name: alias for name, alias in _aliases(rows).items() if name not in columns}
    mapping: dict[str, Column] = {**aliases, **columns}
    rows, failed = with_columns(rows, mapping, origin) if mapping else (rows, {})
    return [with_size(with_counts(row)) for row in rows], aliases, failed


def _aliases(rows: Sequence[Row]) -> dict[str, str]:
    """Find our names that a table lacks, and its columns of other names that hold the same."""
    present = names_in(rows)
    aliases = aliases_of(present)
    named = next((name for name in RUNS if name in present), "run_id")
    names = [row.get(named) for row in rows]
    if named != "run_id" and all(isinstance(name, str) for name in names) and len({*names}) == len(names):
        aliases.setdefault("run_id", named)
    ended = status_column(rows)
    if ended not in (None, "status"):
        aliases["status"] = str(ended)
    return aliases


def _runs_of_steps(rows: Sequence[Row], final: Final | None, origin: str) -> dict[Any, list[int]] | None:
    """Find the rows of each run of a table of steps that is to have one row for each run; None for any other table.

    Where the tokens grow with the steps, each row may be a measurement of its own, and where no run is named, of its
    own run: then `final` has to ask for one row.
    """
    groups = lines_by_run(rows, origin if final else "")
    if groups is None or (final is None and varies(rows, groups, "tokens")):
        return None
    return groups


def _ends(
    rows: Sequence[Row],
    failed: Mapping[int, str],
    groups: Mapping[Any, Sequence[int]],
    final: Final,
    losses: Collection[str],
) -> tuple[list[Row], dict[int, str]]:
    """Make one row for each run of a table of steps, and find what is wrong with the last rows of runs."""
    ended: list[Row] = [end_of(rows, name, lines, final, losses) for name, lines in groups.items()]
    last = {at: failed[lines[-1]] for at, lines in enumerate(groups.values()) if lines[-1] in failed}
    return ended, last


def _left_out(rows: Sequence[Row], status: str | None, logged: bool, column: str) -> list[str]:
    """Name the runs that are left out because of how they ended, one by one, or in one line for a table.

    Intermediate and diverged rows of our own records go without saying.
    """
    words = {i: row.get("status") for i, row in enumerate(rows)}
    left = [i for i, word in words.items() if status not in (None, word, status_of(word))]
    if logged:
        return [f"{rows[i]['run_id']} is {status_of(words[i])}" for i in left]
    line = left_out(rows, [i for i in left if words[i] not in RECORDED], column)
    return [line] if line else []


def _obvious_loss(present: Iterable[str]) -> tuple[str, list[str]]:
    """The loss that nobody needs to name, "" where there is none, and all losses of a table with these columns."""
    losses = [name for name in present if is_loss(name)]
    return "eval_loss" if "eval_loss" in losses else losses[0] if len(losses) == 1 else "", losses


def _check_comparable(rows: Sequence[Row], column: str, origin: str) -> None:
    if len(values := sorted({str(row.get(column)) for row in rows})) > 1:
        raise RunsError(
            f"{origin}: losses of different {column}s cannot be compared; choose one with ",
            given("where", f"{column} = {values[0]}"),
            f"; there are: {', '.join(values)}",
        )


def _none_left(rows: Sequence[Row], status: str | None, problems: Sequence[str]) -> Message:
    if not rows:
        return message(f"no runs{f'; {len(problems)} rows were left out, e.g. {problems[0]}' if problems else ''}")
    counts = sorted(Counter(str(row.get("status") or "final") for row in rows).items())
    present = ", ".join(f"{count} {name}" for name, count in counts)
    every = given("status", None, in_shell="--status all")
    return message(f"no runs with status {status!r}; there are {present} (", every, " takes every run)")


def _fulfilling(rows: Sequence[Row], selected: Sequence[int], where: str, origin: str) -> list[int]:
    """The chosen rows that fulfil the filter; RunsError if none does."""
    cells = [{name: _told(value) for name, value in row.items() if not is_missing(value)} for row in rows]
    # Fields of records are objects.
    for name, values in recipe_of(rows).items():
        for row, value in zip(cells, values, strict=True):
            if isinstance(row.get(name), Mapping):
                row[name] = value
    texts = {name for row in cells for name, value in row.items() if isinstance(value, str)}
    numbers = {n for row in cells for n, v in row.items() if not isinstance(v, str) and number(v) is not None}
    try:
        test = hub.parse_filter(where, sorted(numbers), sorted(texts - numbers))
    except RecordError as error:
        raise RunsError(f"{origin}: {error}") from None
    kept = [i for i in selected if test(cells[i] | {n: number(cells[i][n]) for n in numbers & cells[i].keys()})]
    if not kept:
        raise RunsError(f"{origin}: ", given("where", where), f" keeps none of {len(selected)} runs")
    return kept


def _told(value: Any) -> Any:
    """A value as a filter sees it: True and False are words, as in a CSV file."""
    return str(value) if isinstance(value, (bool, np.bool_)) else value


def _loss_column(
    origin: str, rows: list[Row], loss: str | None, aliases: Collection[str] = (), shown: str = "", lacks: str = ""
) -> str:
    """The name of the loss column; RunsError if any needed column is missing, listing those that are no `aliases`."""
    present = sorted(names_in(rows))
    if loss is None:
        loss, losses = _obvious_loss(present)
        if losses and not loss:
            others = ", ".join(losses)
            raise RunsError(f"{origin}: no column eval_loss, but other losses ({others}): choose with ", given("loss"))
        loss = loss or "eval_loss"
    if missing := [name for name in (*_INPUTS, loss) if name not in present]:
        names = ", ".join(missing).replace("n_active", "n_active (or d_model and n_blocks)")
        column = {missing[0]: "column or number"}
        hints = ["; name the loss column with ", given("loss")] if loss in missing else []
        if missing != [loss]:
            typed = given("columns", column, in_shell=f"--column {missing[0]}='column or number'")
            hints += ["; say which is which with ", typed]
        available = shown or ", ".join(name for name in present if name not in aliases) or "none"
        raise RunsError(f"{origin}{lacks}: missing column {names}; there are: {available}", *hints)
    return loss


def _problems(
    rows: Sequence[Row], at: Sequence[int], loss: str, settings: Sequence[str], also: Collection[str] = ()
) -> list[str]:
    """Say what is wrong with each of the rows `at`, "" if nothing; "ids" and "sizes" are checked `also`.

    With "steps", rows of one run are those of different steps.
    """
    problems, seen, models = [], dict[Any, int](), dict[Any, tuple[Any, ...]]()
    names_seen: set[tuple[str, str]] = set()
    for i in at:
        row = rows[i]
        values = {name: number(row.get(name)) for name in (*_INPUTS, loss)}
        wrong: list[str] = [
            f"{name}={literal(row.get(name))} {_number_problem(name, row.get(name))}"
            for name, value in values.items()
            if value is None or not SMALLEST <= value <= LARGEST or (name == "experts" and value < 1)
        ]
        if not wrong and "sizes" in also and (contradiction := size_problem(row)):
            wrong = [contradiction]
        if not wrong:
            told = [row.get(name) for name in settings]  # runs that differ here are no duplicates
            keys = [("N, D, E and loss", (*values.values(), *(map(repr, told) if "ids" in also else told)))]
            if "ids" in also and row.get("run_id"):
                keys.append(("run_id", _moment_of_run(row, values, models)))
            for same in [key for key in keys if key in seen][:1]:
                own = [name for name in ("id", "run_id") if row.get(name) and name != same[0]]
                name = next((name for name in own if (name, repr(row[name])) not in names_seen), None)
                hint = ("; ", given("where", f"{name} != {row[name]}"), " leaves this one out") if name else ()
                if "steps" in also:
                    hint = ("; ", given("final", "last", in_shell="--final last"), " takes the last of each run")
                first = seen[same]
                wrong = [message(f"duplicate of {label(first, rows[first])} (same {same[0]}", *hint, ")")]
            for key in keys:
                seen[key] = i
            names_seen |= {(name, repr(row.get(name))) for name in ("id", "run_id")}
        problems.append(message(f"{label(i, row)}: ", *_joined("; ", wrong)) if wrong else "")
    return problems


def _number_problem(name: str, value: Any) -> str:
    if isinstance(value, str) and number(value) is None:
        return why_no_number(value)
    if 0 < (number(value) or 0.0) < SMALLEST or LARGEST < (number(value) or 0.0) < math.inf:
        return f"must lie between {SMALLEST:g} and {LARGEST:g}"
    return f"must be {'at least 1' if name == 'experts' else 'positive and finite'}"


def _joined(between: str, parts: Sequence[str]) -> list[str]:
    """Put a text each part and the next."""
    return [text for part in parts for text in (between, part)][1:]


def _moment_of_run(row: Row, values: Mapping[str, Any], models: dict[Any, tuple[Any, ...]]) -> tuple[Any, ...]:
    """What only one row may have: checkpoints share the run and its model, and differ in tokens.

    `models` holds the first moment of each run, which is also that of a row of another model under the same name.
    """
    name = row["run_id"] if isinstance(row["run_id"], (str, float, int)) else repr(row["run_id"])
    moment = (name, values["n_active"], values["experts"], values["tokens"])
    first = models.setdefault(name, moment)
    return moment if moment[:3] == first[:3] else first


def _warmup(row: Row) -> float | None:
    schedule = row.get("schedule")
    tokens = number((schedule if isinstance(schedule, Mapping) else row).get("warmup_tokens"))
    return tokens if tokens is not None and 0 <= tokens < math.inf else None


def _unusable(origin: str, problems: Iterable[str], limit: int = 8, *, skippable: bool = False) -> Message:
    lines = [problem for problem in problems if problem]
    rest = [f"… and {len(lines) - limit} more"] if len(lines) > limit else []
    hint = (", which ", SKIP, " leaves out") if skippable else ()
    head = f"{origin}: {len(lines)} unusable row(s)"
    return message(head, *hint, "\n  ", *_joined("\n  ", [*lines[:limit], *rest]))
