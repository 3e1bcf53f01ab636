"""`load_runs`: from any source of runs to the checked table that a law is fitted on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

# Lazy: the rooms of hub are imported when runs are read.
import hub
from hub.base.errors import InputError, Message, RecordError, given, literal, message
from hub.base.fields import reads
from hub.base.tables import column_name
from hub.base.types import Strings
from scaling_law.runs.architectures import in_terms_of_laws, with_size
from scaling_law.runs.checks import arrays_of, check_rows
from scaling_law.runs.columns import INPUTS, Column, aliases_of, with_columns, with_counts
from scaling_law.runs.logged import (
    RULES,
    RUNS,
    STEPS,
    End,
    Final,
    chart_rows,
    collect,
    lines_by_run,
    places_by_run,
    varies,
)
from scaling_law.runs.mapping import describe, propose, read_mapping
from scaling_law.runs.readers import Reader, reader
from scaling_law.runs.rows import (
    Row,
    RunsError,
    columns_of,
    first_words,
    is_loss,
    is_missing,
    names_of,
    number,
    read_rows,
    row_name,
)
from scaling_law.runs.run_logs import is_log, log_rows
from scaling_law.runs.settings import codes_of, recipe_of
from scaling_law.runs.statuses import describe_left_out, read_status, status_columns, status_of
from scaling_law.runs.table import OWN_COLUMNS, Runs
from scaling_law.runs.trackers import is_tracker, tracker_rows
from scaling_law.runs.trunks import RATES, trunks_of
from scaling_law.size.arrays import FloatArray

if TYPE_CHECKING:
    from hub import LoadedRows

STEP_LOG = "a table of steps: several rows of each run, with its name (run_id) and the step"
# Columns of a curve that TensorBoard exports, and a remark on charts.
CURVE = {"Wall time", "Step", "Value"}
LACKS = " (a chart of W&B, step by run: its table of runs, or wandb:ENTITY/PROJECT, has their sizes, too)"
# Runs that differ in these, or in their schedule, are no duplicates.
_TUNED = ("seed", *RATES)


@reads
def load_runs(
    source: Any,
    loss: str | None = None,
    status: str | None = "final",
    on_invalid: Literal["raise", "skip"] = "raise",
    revision: str | None = None,
    trunks: str = "auto",
    where: str | None = None,
    columns: Mapping[str, Column] | None = None,
    format: str | None = None,
    final: Final | None = None,
    config: str | None = None,
    mapping: Mapping[str, Column] | str | Path | None = None,
) -> Runs:
    """Read a table of runs and check it.

    Args:
        source: a DataFrame; mappings or run records; a .parquet, .jsonl, .json, .csv, .tsv or .txt file
            (docs/runs.md#files); a folder with runs.jsonl or runs.parquet; a release folder; "org/sweep-runs" or
            any dataset "org/name" (or "hf://org/name") on the Hub; a tracker's project, "trackio:PROJECT" or
            "wandb:ENTITY/PROJECT"
            (docs/runs.md#runs-in-trackers); logs: a folder of TensorBoard, or trainer_state.json.
        loss: the column to fit, nats per token. None: eval_loss, else the only column whose name ends in "loss".
        status: keep rows of this `status` (a row without one is final); None keeps all.
        on_invalid: "raise" an error that lists every unusable row, or "skip" them, with the reasons in `.skipped`.
        revision: branch, tag or commit on the Hub, as in "org/sweep-runs@v1"; once read, it needs no network.
        trunks: which runs share a trunk: "auto", "run" (none do) or the name of a column; see `trunks_of`.
        where: a filter on the columns (`hub.parse_filter`), such as "E in {1, 8}"; None keeps all.
        columns: our name to a column of the source, an expression ("1 - sparsity", "`Training FLOP` / 6"), a number
            (`experts=1` for dense models) or a function of the row; in order, so that later ones may use earlier ones.
        format: a public table read as its authors publish it: "step_law", "marin_isoflop", "open_athena",
            "epoch_chinchilla", "gemstones", "clark" or "clark_curves" (from where: docs/runs.md).
        final: the loss of a run that logged many, in a tracker, in logs or in a table of steps: the "last" value (the
            default), the "minimum", or "smoothed", the mean of the last 5 %; `.read_as` says which.
        config: which config (subset) of a dataset on the Hub that is no index of runs, or which of its files; all
            splits of it are read, parquet, JSON lines, JSON or CSV. None: the only one, or "default".
        mapping: `columns` that are kept in a YAML file (or a dict of them). `columns` adds to it; a field in both is
            replaced where it stands. The error for a missing column proposes one.

    Runs of other classes than ours (`model_type`) have as `experts` the E of laws, total over active feed-forward
    width, and their routed experts in `routed_experts`. Columns that are named as in the paper or in our own tables
    (N_act, D, E, Held-out loss) are read as ours, and counts that are texts ("80M") as numbers.

    A row needs `experts`, `tokens`, the loss, and `n_active` or `d_model` and `n_blocks` (`vocab_size` is 50,257
    where not given). Of a run record that was trained in two sweeps, to the same loss, the first is read and the other
    listed in `.skipped`. RunsError for missing columns, no rows, non-finite or non-positive numbers, duplicates, sizes
    that contradict their shape (unless `columns` or `format` say what n_active is), and numbers that cannot be in
    parameters, tokens and nats per token (`runs.checks`); `hub.HubError` for what the Hub does not have.
    """
    for name, value in (("revision", revision), ("config", config)):
        if value is not None and is_tracker(source):
            reason = " goes with a dataset on the Hub: a tracker keeps the newest alone"
            raise InputError(given(name, value), reason)

    renamed = {**(columns or {})}
    if mapping is not None:
        renamed = {**read_mapping(mapping), **renamed}
    problems: list[str] | None = [] if on_invalid == "skip" else None
    public = reader(format) if format else None
    options: dict[str, Any] = {"revision": revision, "problems": problems, "config": config}
    table = _read_table(source, renamed, public, final, loss, None, **options)
    loss = loss or ("loss" if "loss" in renamed else None)
    if public and table.rows:
        loss = loss or public.loss
        where = ", ".join(filter(None, (table.authors_filter, where)))
        trunks = public.trunks if trunks == "auto" else trunks

    places = _select(table, status, where, public, problems or ())
    loss = _find_loss(table, [table.rows[i] for i in places], loss)
    clusters, trunk_source = trunks_of(table.rows, trunks, table.origin)
    mapped = renamed.get(loss)
    places, repeats = check_rows(
        table.rows,
        places,
        loss,
        table.origin,
        source_loss=mapped if isinstance(mapped, str) and mapped in table.source_columns else loss,
        trunk=clusters if trunk_source.startswith(("column", "checkpoints")) else None,
        settings=[name for name in names_of(table.rows) if name in _TUNED or name.startswith("schedule")],
        failed=table.failed,
        check_ids=True,
        check_sizes=public is None and "n_active" not in renamed,
        is_step_log=not table.has_final_losses and lines_by_run(table.rows) is not None,
        problems=problems,
    )

    rows = [table.rows[i] for i in places]
    sizes, losses = arrays_of(rows, loss)
    numbers, texts = columns_of(rows)
    final_loss = f"{loss} {RULES[final or 'last']}" if table.has_final_losses else ""
    named_columns = {*OWN_COLUMNS, "run_id", "status", loss, *table.aliases.values()}
    warmups = numbers.get("warmup_tokens", numbers.get(column_name("schedule_warmup_tokens", numbers)))
    left_out = [i for i, row in enumerate(table.rows) if not _has_ended(row, status)]
    ended = describe_left_out(table.rows, left_out, table.status_columns)
    return Runs(
        **sizes,
        loss=losses,
        trunk=codes_of([clusters[i] for i in places]),
        run_id=tuple(row_name(i, table.rows[i]) for i in places),
        source=table.origin,
        loss_name=loss,
        skipped=(*(problems or ()), *repeats, *ended, *table.skipped_steps),
        dataset=table.dataset,
        commit=table.commit,
        trunk_source=trunk_source,
        warmup_tokens=None if warmups is None else float(np.nanmax(warmups)),
        vocab_size=_only_count(numbers.get("vocab_size")),
        where=where or None,
        read_as=_describe_reading(format, {**table.aliases, **renamed}, final_loss),
        columns={name: values for name, values in numbers.items() if name not in named_columns},
        recipe=recipe_of(rows),
        texts={name: values for name, values in texts.items() if name not in named_columns},
    )


def read_models(source: Any) -> list[Row]:
    """Read the rows of a table of models, which have no losses yet, with our columns; RunsError for no rows."""
    loaded = read_rows(source)
    if not loaded.rows:
        raise RunsError(f"{loaded.name}: no rows")

    return _with_our_columns(_Table(loaded.rows, loaded.name), {}).rows


def is_step_log(source: Any) -> bool:
    """Return whether a table is the log of one run: its rows have no name, and are steps of one size."""
    rows = read_rows(source).rows
    has_steps = not {*STEPS}.isdisjoint(names_of(rows))
    return [*places_by_run(rows)] == [None] and has_steps and len(rows) > 1 and is_log(rows)


def read_histories(source: Any) -> list[tuple[Row, Mapping[str, Sequence[Any]]]]:
    """Read the settings of each run of logs, with our columns, and the columns that it logged, a value for each line.

    RunsError for a source that is no log.
    """
    histories: list[Mapping[str, Sequence[Any]]] = []
    table = _read_table(source, {}, None, None, None, histories)
    places = {} if histories else places_by_run(table.rows)
    logs = []
    for lines in places.values():
        logs.append([table.rows[i] for i in lines])

    if 0 < len(logs) < len(table.rows) and all(map(is_log, logs)):
        # The steps of runs whose tokens grow with them, or of one run that has no name.
        histories = list(map(collect, logs))
        table.rows = []
        for name, history in zip(places, histories, strict=True):
            settings = {column: values[-1] for column, values in history.items()}
            table.rows.append({"run_id": name, **settings})

    if not histories:
        columns = first_words(names_of(table.rows), 20)
        raise RunsError(f"{table.origin}: no log, whose lines are steps of a run; there are {columns}")

    return [*zip(table.rows, histories, strict=True)]


# ------------------------------------------------------------------ rows with our columns


@dataclass
class _Table:
    """The rows of a source with our columns.

    `is_logged`: they are of a tracker, of logs or of a chart. `failed` has the problems of single rows, by place;
    `aliases` our names for columns that the source calls otherwise; `authors_filter` drops the rows that the authors
    of a public table dropped; `skipped_steps` notes that only the last steps of runs are here; `remark` says why
    columns may be missing.
    """

    rows: list[Row]
    origin: str
    is_logged: bool = False
    dataset: str | None = None
    commit: str | None = None
    failed: Mapping[int, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    authors_filter: str = ""
    skipped_steps: Strings = ()
    remark: str = ""

    def __post_init__(self) -> None:
        self.source_rows = self.rows
        self.source_columns = names_of(self.rows)

    @property
    def has_final_losses(self) -> bool:
        """True if each row has one of many losses that its run logged."""
        return self.is_logged or bool(self.skipped_steps)

    @property
    def status_columns(self) -> list[str]:
        """Columns that say how each run ended."""
        return self.aliases.get("status", "status").split(", ")


def _read_source(source: Any, end: End, **options: Any) -> _Table:
    """Read the rows of any source; all but tables have one row for a run.

    The `options` and errors are those of `read_rows`, `tracker_rows` and `log_rows`.
    """
    loaded: LoadedRows | None = None
    if is_tracker(source):
        loaded = tracker_rows(source, end)
    elif isinstance(source, (str, Path)):
        loaded = log_rows(source, end)

    if loaded is not None:
        return _Table(loaded.rows, loaded.name, True, loaded.dataset, loaded.commit)

    loaded = read_rows(source, **options)
    if set(names_of(loaded.rows)) == CURVE:
        advice = "name the folder of its event files instead"
        raise RunsError(f"{loaded.name}: a curve that TensorBoard exports: {advice}")

    chart = chart_rows(loaded.rows, end)
    if chart is not None:
        return _Table(chart, loaded.name, True, loaded.dataset, loaded.commit, remark=LACKS)
    return _Table(loaded.rows, loaded.name, False, loaded.dataset, loaded.commit)


def _read_table(
    source: Any,
    columns: Mapping[str, Column],
    public: Reader | None,
    final: Final | None,
    loss: str | None,
    histories: list[Mapping[str, Sequence[Any]]] | None,
    **options: Any,
) -> _Table:
    """Read a source, give its rows our columns, and take one row of each run of a table of steps.

    `histories` gets all that each run logged.
    """
    losses = [name for name in (loss, columns.get("loss")) if isinstance(name, str)]
    end = End(final or "last", losses, histories)

    try:
        table = _read_source(source, end, **options)
    except RunsError as error:
        place = f"; {public.name} is {public.place}" if public else ""
        raise RunsError(*error.args, place) from None

    if public and table.rows:
        table.rows, table.failed, table.authors_filter = public.read(table.rows, table.origin)
        table.origin = f"{table.origin} ({public.name})"

    _with_our_columns(table, columns, guesses=public is None)
    if table.is_logged:
        return table

    groups = None
    if public is None:
        groups = lines_by_run(table.rows, table.origin if final else None)
    # If the tokens grow with the steps, each row may be a measurement, and if no run is named, a run: then one row of
    # each run is taken only if `final` is given.
    if groups is None or (final is None and varies(table.rows, groups, "tokens")):
        if final is not None:
            raise InputError(given("final", final), f" goes with a tracker, with logs, or with {STEP_LOG}")
        return table

    plural = "s" if len(groups) > 1 else ""
    earlier_rows = len(table.rows) - len(groups)
    table.skipped_steps = (f"{earlier_rows} rows: steps before the last of {len(groups)} run{plural}",)
    table.failed = {i: table.failed[lines[-1]] for i, lines in enumerate(groups.values()) if lines[-1] in table.failed}
    rows = table.rows
    table.rows = []

    for name, lines in groups.items():
        table.rows.append({**end(collect(rows[i] for i in lines)), "run_id": str(name)})

    return table


def _with_our_columns(table: _Table, columns: Mapping[str, Column], guesses: bool = True) -> _Table:
    """Add the requested columns to a table, and our names for columns that the source calls otherwise."""
    rows = in_terms_of_laws(table.rows)
    mapping: dict[str, Column] = {**columns}
    if guesses:
        table.aliases = {name: column for name, column in _guess_columns(rows).items() if name not in columns}
        mapping = {**table.aliases, **columns}

    if "status" in table.aliases:
        mapping["status"] = lambda row: read_status(row, table.status_columns)[1]

    if mapping:
        rows, failed = with_columns(rows, mapping, table.origin)
        table.failed = {**failed, **table.failed}

    table.rows = [with_size(with_counts(row)) for row in rows]
    return table


def _guess_columns(rows: Sequence[Row]) -> dict[str, str]:
    """Find our names that a table lacks, and its columns of other names that hold the same."""
    present = names_of(rows)
    aliases = aliases_of(present)
    name_column = next((column for column in RUNS if column in present), "run_id")
    names = [row.get(name_column) for row in rows]
    are_texts = all(isinstance(name, str) for name in names)
    if name_column != "run_id" and are_texts and len({*names}) == len(names):
        aliases.setdefault("run_id", name_column)

    end_columns = status_columns(rows)
    if end_columns not in ([], ["status"]):
        aliases["status"] = ", ".join(end_columns)

    return aliases


# ------------------------------------------------------------------ rows of this question


def _select(
    table: _Table,
    status: str | None,
    where: str | None,
    public: Reader | None,
    problems: Sequence[str],
) -> list[int]:
    """Choose the rows with this status that pass the filter; RunsError if there are none.

    `problems` are the rows that could not be read.
    """
    places = [i for i, row in enumerate(table.rows) if _has_ended(row, status)]
    if not places:
        raise RunsError(f"{table.origin}: ", _explain_no_rows(table.rows, status, problems))

    if where:
        places = _filter_rows(table, places, where)

    if public and public.apart:
        _check_comparable([table.rows[i] for i in places], public.apart, table.origin)

    return places


def _has_ended(row: Row, status: str | None) -> bool:
    """Return whether a run has this status, in the words of its table or of run records; None is any status."""
    word = row.get("status")
    return status in (None, word, status_of(word))


def _explain_no_rows(rows: Sequence[Row], status: str | None, problems: Sequence[str]) -> Message:
    if not rows:
        unreadable = f"; {len(problems)} rows were left out, e.g. {problems[0]}" if problems else ""
        return message(f"no runs{unreadable}")

    counts = Counter(str(row.get("status") or "final") for row in rows)
    present = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    all_runs = given("status", None, in_shell="--status all")
    return message(f"no runs with status {status!r}; there are {present} (", all_runs, " takes every run)")


def _filter_rows(table: _Table, places: Sequence[int], where: str) -> list[int]:
    """Choose the rows that pass the filter; RunsError if none does."""
    # Objects of records, such as the optimizer, are one word.
    columns: dict[str, Sequence[Any]] = dict(recipe_of(table.rows))
    numbers = []

    for name in names_of(table.rows):
        cells = [row.get(name) for row in table.rows]
        if any(number(cell) is not None and not is_missing(cell) for cell in cells if not isinstance(cell, str)):
            numbers.append(name)
            columns[name] = [None if is_missing(cell) else number(cell) for cell in cells]
        else:
            # True and False are words, as in a CSV file.
            columns[name] = [str(cell) if isinstance(cell, (bool, np.bool_)) else cell for cell in cells]

    try:
        test = hub.parse_filter(where, sorted(numbers), sorted({*columns} - {*numbers}))
    except RecordError as error:
        raise RunsError(f"{table.origin}: {error}") from None

    matches = []

    for i in places:
        row = {name: cells[i] for name, cells in columns.items()}
        if test(row):
            matches.append(i)

    if not matches:
        raise RunsError(f"{table.origin}: ", given("where", where), f" keeps none of {len(places)} runs")
    return matches


def _check_comparable(rows: Sequence[Row], column: str, origin: str) -> None:
    values = sorted({str(row.get(column)) for row in rows})
    if len(values) > 1:
        raise RunsError(
            f"{origin}: losses of different {column}s cannot be compared; choose one with ",
            given("where", f"{column} = {values[0]}"),
            f"; there are: {', '.join(values)}",
        )


# ------------------------------------------------------------------ checks


def _find_loss(table: _Table, rows: Sequence[Row], loss: str | None) -> str:
    """Return the name of the loss column; RunsError if any needed column is missing.

    A loss that is not named is eval_loss, or the only one.
    """
    present = sorted(names_of(rows))
    losses = [name for name in present if is_loss(name)]
    missing = [name for name in INPUTS if name not in present]
    if loss is None and "eval_loss" not in losses and len(losses) > 1:
        if missing:
            raise _missing_columns(table, rows, [*missing, "loss"], loss)
        problem = f"{table.origin}: no column eval_loss, but other losses ({', '.join(losses)}): choose with "
        raise RunsError(problem, given("loss"))

    column = loss
    if column is None:
        column = losses[0] if len(losses) == 1 else "eval_loss"
    if column not in present:
        missing.append(column)
    if missing:
        raise _missing_columns(table, rows, missing, loss)
    return column


def _missing_columns(table: _Table, rows: Sequence[Row], missing: Sequence[str], loss: str | None) -> RunsError:
    """Write the error for missing columns: the columns of the source, what looks like them, and what to type."""
    names = ", ".join(missing).replace("n_active", "n_active (or d_model and n_blocks)")
    columns = [name for name in sorted(names_of(rows)) if name not in table.aliases]
    if table.is_logged:
        values = collect(table.source_rows)
        columns = [f"{name} ({literal(next(filter(None, cells), cells[0]))})" for name, cells in values.items()]

    problem = f"{table.origin}{table.remark}: missing column {names}; there are: {', '.join(columns) or 'none'}"
    inputs = [name for name in missing if name in INPUTS]
    lacks_loss = len(inputs) < len(missing)
    # A loss that was named is not replaced by another.
    proposal = propose(rows, [*inputs, "loss"] if lacks_loss and loss is None else inputs)
    unlike = [name for name in inputs if name not in proposal]
    hints: list[str] = []
    if lacks_loss and "loss" not in proposal:
        hints += ["; name the loss column with ", given("loss")]
    if unlike:
        name = unlike[0]
        option = given("columns", {name: "column or number"}, in_shell=f"--column {name}='column or number'")
        hints += ["; say which is which with ", option]

    if proposal:
        hints += describe(rows, proposal, table.origin)
    return RunsError(problem, *hints)


def _only_count(values: FloatArray | None) -> int | None:
    """Return the count that all runs share which record one; None if they differ or none does."""
    counts = [] if values is None else np.unique(values[np.isfinite(values)]).tolist()
    return int(counts[0]) if len(counts) == 1 and counts[0] >= 1 and counts[0].is_integer() else None


def _describe_reading(format: str | None, columns: Mapping[str, Column], final_loss: str) -> str | None:
    """Describe the format, final loss and columns by which a table was read; None if it had our columns."""
    notes = [f"format {format}"] if format else []
    if final_loss:
        notes.append(final_loss)

    for name, column in columns.items():
        notes.append(f"{name} = {getattr(column, '__name__', column)}")

    return "; ".join(notes) or None
