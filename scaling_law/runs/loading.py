"""`load_runs`: from any source of runs to the checked table that a law is fitted on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

# Lazy: the rooms of hub are imported when runs are read.
import hub
from hub.base.errors import InputError, Message, RecordError, given, message
from hub.base.inputs import reads
from hub.base.tables import literal
from hub.base.types import Fields, Strings
from scaling_law.runs.architectures import in_terms_of_laws, with_size
from scaling_law.runs.checks import repeated_runs, row_problems, unusable_rows
from scaling_law.runs.columns import INPUTS, Column, aliases_of, with_columns, with_counts
from scaling_law.runs.logged import RULES, RUNS, Final, check_final, collect, end_of, lines_by_run, varies
from scaling_law.runs.readers import Reader, reader
from scaling_law.runs.recipes import recipe_of
from scaling_law.runs.rows import (
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
    read_rows,
    row_name,
    text_columns,
    whole,
)
from scaling_law.runs.sources import LACKS, Kind, read_source
from scaling_law.runs.statuses import RECORDED, describe_left_out, read_status, status_columns, status_of
from scaling_law.runs.table import OWN_COLUMNS, Runs
from scaling_law.runs.trackers import is_tracker
from scaling_law.runs.trunks import RATES, trunks_of
from scaling_law.runs.units import check_no_accuracy, unit_problems
from scaling_law.size.arrays import merge_rounded

if TYPE_CHECKING:
    from hub import LoadedRows

STEP_LOG = "a table of steps: several rows of each run, with its name (run_id) and the step"
# Runs that differ in these are no duplicates; the last is the name in runs.parquet.
_TUNED = ("seed", *RATES, "schedule", "schedule_peak_learning_rate")


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

    Runs of other classes than ours (`model_type`) have as `experts` the E of laws, total over active feed-forward
    width, and their routed experts in `routed_experts`. Columns that are named as in the paper or in our own tables
    (N_act, D, E, Held-out loss) are read as ours, and counts that are texts ("80M") as numbers.

    A row needs `experts`, `tokens`, the loss, and `n_active` or `d_model` and `n_blocks` (`vocab_size` is 50,257
    where not given). Of a run record that was trained in two sweeps, to the same loss, the first is read and the other
    listed in `.skipped`. RunsError for missing columns, no rows, non-finite or non-positive numbers, duplicates, sizes
    that contradict their shape (unless `columns` or `format` say what n_active is), and numbers that cannot be in
    parameters, tokens and nats per token (`runs.units`); `hub.HubError` for what the Hub does not have.
    """
    if on_invalid not in ("raise", "skip"):
        raise InputError(given("on_invalid", on_invalid), " must be 'raise' or 'skip'")
    check_final(final or "last")

    mapping = columns or {}
    public = reader(format) if format else None
    for name, value in (("revision", revision), ("config", config)):
        if value is not None and is_tracker(source):
            reason = " goes with a dataset on the Hub: a tracker keeps the newest alone"
            raise InputError(given(name, value), reason)
    problems: list[str] = []
    skipped_lines = problems if on_invalid == "skip" else None
    table = _read_table(source, loss, mapping, public, final, revision, skipped_lines, config)
    loss = loss or ("loss" if "loss" in mapping else None)
    if public and table.loaded.rows:
        loss = loss or public.loss
        where = ", ".join(filter(None, (table.authors_filter, where)))
        trunks = public.trunks if trunks == "auto" else trunks

    places = _select(table, status, where, public, problems)
    loss = _find_loss(table, [table.rows[i] for i in places], loss)
    repeats = repeated_runs(table.rows, places, loss, _settings_of(table))
    places = [i for i in places if i not in repeats]

    wrong = _row_problems(table, places, loss, check_sizes=public is None and "n_active" not in mapping)
    problems += filter(None, wrong)
    sound = [i for i, problem in zip(places, wrong, strict=True) if not problem]

    clusters, trunk_source = trunks_of(table.rows, trunks, table.origin)
    # The source's own name says more of the unit than ours.
    mapped = mapping.get(loss)
    measured = mapped if isinstance(mapped, str) and mapped in names_in(table.loaded.rows) else loss
    sound_rows = [table.rows[i] for i in sound]
    check_no_accuracy(_sizes(sound_rows), _numbers(sound_rows, loss), measured, table.origin)
    misfits = _unit_problems(table.rows, sound, loss, clusters, trunk_source)
    for i, problem in zip(sound, misfits, strict=True):
        if problem:
            problems.append(f"{label(i, table.rows[i])}: {problem}")
    if all(misfits) or (problems and on_invalid == "raise"):
        raise RunsError(unusable_rows(table.origin, problems, skippable=not all(misfits)))

    usable = [i for i, problem in zip(sound, misfits, strict=True) if not problem]
    rows = [table.rows[i] for i in usable]
    final_loss = f"{loss} {RULES[final or 'last']}" if table.has_final_losses else ""
    named_columns = (*OWN_COLUMNS, loss, *table.aliases.values())
    other_columns = {}
    for name, values in numeric_columns(rows).items():
        if name not in named_columns:
            other_columns[name] = values
    return Runs(
        **_sizes(rows),
        loss=_numbers(rows, loss),
        trunk=np.unique([clusters[i] for i in usable], return_inverse=True)[1],
        run_id=tuple(row_name(i, table.rows[i]) for i in usable),
        source=table.origin,
        loss_name=loss,
        skipped=(*problems, *repeats.values(), *_describe_ended(table, status), *table.skipped_steps),
        dataset=table.loaded.dataset,
        commit=table.loaded.commit,
        trunk_source=trunk_source,
        warmup_tokens=_longest_warmup(rows),
        vocab_size=_shared_vocabulary(rows),
        where=where or None,
        read_as=_describe_reading(format, {**table.aliases, **mapping}, final_loss),
        columns=other_columns,
        recipe=recipe_of(rows),
        texts=text_columns(rows, {*other_columns, *named_columns, "run_id", "status"}),
    )


def read_models(source: Any) -> list[Row]:
    """Read the rows of a table of models, which have no losses yet, with our columns; RunsError for no rows."""
    table = read_rows(source)
    if not table.rows:
        raise RunsError(f"{table.name}: no rows")
    rows, _, _ = _with_our_columns(table.rows, {}, table.name, is_public=False)
    return rows


# ------------------------------------------------------------------ rows with our columns


@dataclass(frozen=True)
class _Table:
    """The rows of a source with our columns.

    `failed` has the problems of single rows, by their place; `aliases` our names for columns that the source calls
    otherwise; `authors_filter` drops the rows that the authors of a public table dropped; `skipped_steps` notes that
    only the last steps of runs are here.
    """

    loaded: LoadedRows
    kind: Kind
    origin: str
    rows: list[Row]
    failed: Mapping[int, str]
    aliases: Mapping[str, str]
    authors_filter: str
    skipped_steps: Strings

    @property
    def is_logged(self) -> bool:
        """True if the source is a log, of which only the ends of runs were read."""
        return self.kind != "table"

    @property
    def has_final_losses(self) -> bool:
        """True if each row has one of many losses that its run logged."""
        return self.is_logged or bool(self.skipped_steps)


def _read_table(
    source: Any,
    loss: str | None,
    columns: Mapping[str, Column],
    public: Reader | None,
    final: Final | None,
    revision: str | None,
    skipped_lines: list[str] | None,
    config: str | None,
) -> _Table:
    """Read a source, give its rows our columns, and take one row of each run of a table of steps.

    A list `skipped_lines` gets what could not be read.
    """
    losses = {name for name in (loss, columns.get("loss")) if isinstance(name, str)}
    try:
        loaded, kind = read_source(source, final or "last", losses, revision, skipped_lines, config)
    except RunsError as error:
        place = f"; {public.name} is {public.place}" if public else ""
        raise RunsError(*error.args, place) from None
    rows: Sequence[Row] = loaded.rows
    origin = loaded.name
    authors_filter = ""
    failed: Mapping[int, str] = {}
    if public and rows:
        rows, failed, authors_filter = public.read(rows, origin)
        origin = f"{origin} ({public.name})"
    rows, aliases, failed_columns = _with_our_columns(rows, columns, origin, public is not None)
    failed = {**failed_columns, **failed}

    is_table = kind == "table"
    groups = _group_steps(rows, final, origin) if is_table and public is None else None
    skipped_steps: Strings = ()
    if groups is not None:
        plural = "s" if len(groups) > 1 else ""
        earlier_rows = len(rows) - len(groups)
        skipped_steps = (f"{earlier_rows} rows: steps before the last of {len(groups)} run{plural}",)

        last_rows: list[Row] = []
        failed_runs = {}
        for name, lines in groups.items():
            last_line = lines[-1]
            if last_line in failed:
                failed_runs[len(last_rows)] = failed[last_line]
            logged = collect(rows[i] for i in lines)
            last_rows.append({**end_of(logged, final or "last", losses), "run_id": str(name)})
        rows = last_rows
        failed = failed_runs
    elif final is not None and is_table:
        raise InputError(given("final", final), f" goes with a tracker, with logs, or with {STEP_LOG}")
    return _Table(loaded, kind, origin, rows, failed, aliases, authors_filter, skipped_steps)


def _with_our_columns(
    rows: Sequence[Row],
    columns: Mapping[str, Column],
    origin: str,
    is_public: bool,
) -> tuple[list[Row], Mapping[str, str], dict[int, str]]:
    """Add the requested columns, and our names for columns that the source calls otherwise.

    Returns the rows, the source's column for each of these names, and the problems of single rows.
    """
    rows = in_terms_of_laws(rows)
    aliases: dict[str, str] = {}
    if not is_public:
        aliases = guess_columns(rows)
        for name in columns:
            aliases.pop(name, None)
    failed: dict[int, str] = {}
    mapping: dict[str, Column] = {**aliases, **columns}
    if "status" in aliases:
        end_columns = status_columns(rows)
        mapping["status"] = lambda row: read_status(row, end_columns)[1]
    if mapping:
        rows, failed = with_columns(rows, mapping, origin)
    return [with_size(with_counts(row)) for row in rows], aliases, failed


def guess_columns(rows: Sequence[Row]) -> dict[str, str]:
    """Find our names that a table lacks, and its columns of other names that hold the same."""
    present = names_in(rows)
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


def _group_steps(rows: Sequence[Row], final: Final | None, origin: str) -> dict[Any, list[int]] | None:
    """Find the rows of each run of a table of steps that is to have one row for each run; None for any other table.

    If the tokens grow with the steps, each row may be a separate measurement, and if no run is named, a separate run:
    then one row is taken only if `final` is given.
    """
    groups = lines_by_run(rows, origin if final else "")
    if groups is None or (final is None and varies(rows, groups, "tokens")):
        return None
    return groups


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


def _describe_ended(table: _Table, status: str | None) -> list[str]:
    """Name the runs that are left out for their status: one by one, or in one line for a table.

    Intermediate and diverged rows of our run records are not mentioned.
    """
    places = [i for i, row in enumerate(table.rows) if not _has_ended(row, status)]
    if table.is_logged:
        lines = []
        for i in places:
            row = table.rows[i]
            lines.append(f"{row['run_id']} is {status_of(row.get('status'))}")
        return lines
    places = [i for i in places if table.rows[i].get("status") not in RECORDED]
    columns = table.aliases.get("status", "status").split(", ")
    line = describe_left_out(table.rows, places, columns)
    return [line] if line else []


def _filter_rows(table: _Table, places: Sequence[int], where: str) -> list[int]:
    """Choose the rows that pass the filter; RunsError if none does."""
    cells = [_filter_cells(row) for row in table.rows]
    # Fields of records are objects, which a filter sees as one word.
    for name, values in recipe_of(table.rows).items():
        for row, value in zip(cells, values, strict=True):
            if isinstance(row.get(name), Mapping):
                row[name] = value

    texts: set[str] = set()
    numeric: set[str] = set()
    for row in cells:
        for name, value in row.items():
            if isinstance(value, str):
                texts.add(name)
            elif number(value) is not None:
                numeric.add(name)
    try:
        test = hub.parse_filter(where, sorted(numeric), sorted(texts - numeric))
    except RecordError as error:
        raise RunsError(f"{table.origin}: {error}") from None

    matches = []
    for i in places:
        row = cells[i]
        for name in numeric & row.keys():
            row[name] = number(row[name])
        if test(row):
            matches.append(i)
    if not matches:
        raise RunsError(f"{table.origin}: ", given("where", where), f" keeps none of {len(places)} runs")
    return matches


def _filter_cells(row: Row) -> Fields:
    """Return the values of a row as a filter sees them: True and False are words, as in a CSV file."""
    cells = {}
    for name, value in row.items():
        if not is_missing(value):
            cells[name] = str(value) if isinstance(value, (bool, np.bool_)) else value
    return cells


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
    """Return the name of the loss column; RunsError if any needed column is missing."""
    present = sorted(names_in(rows))
    if loss is None:
        loss, losses = _guess_loss(present)
        if losses and not loss:
            names = ", ".join(losses)
            problem = f"{table.origin}: no column eval_loss, but other losses ({names}): choose with "
            raise RunsError(problem, given("loss"))
        loss = loss or "eval_loss"
    missing = [name for name in (*INPUTS, loss) if name not in present]
    if missing:
        raise _missing_columns(table, present, missing, loss)
    return loss


def _guess_loss(present: Iterable[str]) -> tuple[str, list[str]]:
    """Find the loss that nobody needs to name, "" if there is none, and all losses of a table with these columns."""
    losses = [name for name in present if is_loss(name)]
    if "eval_loss" in losses:
        return "eval_loss", losses
    return (losses[0] if len(losses) == 1 else ""), losses


def _missing_columns(table: _Table, present: Sequence[str], missing: Sequence[str], loss: str) -> RunsError:
    """Write the error for missing columns: the columns of the source, and what to type."""
    names = ", ".join(missing).replace("n_active", "n_active (or d_model and n_blocks)")
    available = ""
    if table.is_logged:
        values = collect(table.loaded.rows)
        names_of_values = [name for name in names_in(table.loaded.rows) if name in values]
        available = ", ".join(f"{name} ({literal(values[name][0])})" for name in names_of_values)
    if not available:
        available = ", ".join(name for name in present if name not in table.aliases) or "none"

    hints: list[str] = []
    if loss in missing:
        hints += ["; name the loss column with ", given("loss")]
    if missing != [loss]:
        example = {missing[0]: "column or number"}
        option = given("columns", example, in_shell=f"--column {missing[0]}='column or number'")
        hints += ["; say which is which with ", option]
        if table.kind == "logs":
            option = given("columns", {missing[0]: "N from name"}, in_shell=f'--column "{missing[0]} = N from name"')
            hints += [", or by the number after N in the runs' names with ", option]

    origin = table.origin + LACKS.get(table.kind, "")
    return RunsError(f"{origin}: missing column {names}; there are: {available}", *hints)


def _row_problems(table: _Table, places: Sequence[int], loss: str, check_sizes: bool) -> list[str]:
    """Describe the problem of each row at these places, "" for a sound row."""
    problems = row_problems(
        table.rows,
        places,
        loss,
        _settings_of(table),
        check_ids=True,
        check_sizes=check_sizes,
        is_step_log=not table.has_final_losses and lines_by_run(table.rows) is not None,
    )
    for place, i in enumerate(places):
        if i in table.failed:
            problems[place] = table.failed[i]
    return problems


def _settings_of(table: _Table) -> list[str]:
    """List the columns of the table in which rows of equal N, D, E and loss may differ."""
    present = {*names_of(table.rows)}
    return [name for name in _TUNED if name in present]


def _unit_problems(
    rows: Sequence[Row],
    places: Sequence[int],
    loss: str,
    clusters: Sequence[str],
    trunk_source: str,
) -> list[str]:
    """Describe why each row at these places cannot be in parameters, tokens and nats, "" for a sound row."""
    sound = [rows[i] for i in places]
    trunk = None
    if trunk_source.startswith(("column", "checkpoints")):
        trunk = np.unique([clusters[i] for i in places], return_inverse=True)[1]
    problems = unit_problems(_sizes(sound), _numbers(sound, loss), loss, trunk)
    for place, row in enumerate(sound):
        # The units of a run record are those of its schema, however short the run.
        if "schema_version" in row:
            problems[place] = ""
    return problems


# ------------------------------------------------------------------ what is known about the runs


def _sizes(rows: Sequence[Row]) -> Fields:
    return {name: merge_rounded(_numbers(rows, name)) for name in INPUTS}


def _numbers(rows: Sequence[Row], name: str) -> FloatArray:
    return np.array([number(row[name]) for row in rows], float)


def _longest_warmup(rows: Sequence[Row]) -> float | None:
    """Return the tokens of the longest warm-up; None if no run records one."""
    warmups = []
    for row in rows:
        schedule = row.get("schedule")
        settings = schedule if isinstance(schedule, Mapping) else row
        tokens = number(settings.get("warmup_tokens"))
        if tokens is not None and 0 <= tokens < math.inf:
            warmups.append(tokens)
    return max(warmups, default=None)


def _shared_vocabulary(rows: Sequence[Row]) -> int | None:
    """Return the vocabulary that all runs share which record one; None if they differ or none does."""
    vocabularies = set()
    for row in rows:
        if not is_missing(row.get("vocab_size")):
            size = whole(row, "vocab_size")
            # 0, which no model has, stands for what is no whole number.
            vocabularies.add(size[0] if size else 0)
    if len(vocabularies) != 1:
        return None
    return vocabularies.pop() or None


def _describe_reading(format: str | None, columns: Mapping[str, Column], final_loss: str) -> str | None:
    """Describe the format, final loss and columns by which a table was read; None if it had our columns."""
    notes = [f"format {format}"] if format else []
    if final_loss:
        notes.append(final_loss)
    for name, column in columns.items():
        notes.append(f"{name} = {getattr(column, '__name__', column)}")
    return "; ".join(notes) or None
