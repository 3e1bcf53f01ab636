"""The index of a sweep, which makes its runs visible, and `main` of its repositories, which follows from it.

A fit reads the index, so a run enters it only after its checkpoint was read back. The branches are the truth: a lost
or damaged index is rebuilt from them (`repair_index`).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from hub.base.errors import ConflictError, FilesError, IntegrityError, NotFoundError, RecordError
from hub.base.markdown import block_of, license_of, read_card, replace_block
from hub.base.strict_json import MAX_RECORD_BYTES
from hub.record.names import branch_name, index_name, repo_name
from hub.record.run_record import RunRecord
from hub.record.table import (
    JSONL_NAME,
    PARQUET_NAME,
    UnreadableRow,
    require_readable,
    split_rows,
    to_jsonl,
    to_parquet,
)
from hub.release.cards import LAW, REVISIONS, choose_main_run, refresh_card, repo_card, sweep_card
from hub.store.base import CopyOf, Present, Publication, Store
from hub.store.files import Contents, check_allowed, check_secrets, content_of, is_allowed

logger = logging.getLogger(__name__)

CARD_NAME = "README.md"
# Branches of a sweep that are read one by one.
MAX_LISTED = 2000
_LISTING_WORKERS = 4
# Attempts to rewrite the repositories' cards while other writers change the index.
_MAX_REWRITES = 8

# File names and hashes.
Weights = tuple[tuple[str, str], ...]
# What a branch holds.
Run = RunRecord | UnreadableRow


def push_index(store: Store, sweep: str, records: Iterable[RunRecord], *, license: str | None = None) -> Publication:
    """Add the records of `push_run` to the index of a sweep, in place of rows of the same run; other rows stay.

    So do rows that this version cannot read, byte for byte; the parquet file and the card leave them out. The default
    `license` is the one that the card there names.

    Raises:
        FilesError: private and public would mix.
        RecordError: a record of another sweep.
        ConflictError: two runs have the same weights, so one of them was released under a wrong name.
    """
    new = list(records)
    for record in new:
        if record.sweep != sweep:
            raise RecordError(f"sweep of run {record.run_id} is {record.sweep!r}, allowed here is {sweep!r}")
    store.check_visibility(sorted({repo_name(record) for record in new}), index_name(sweep))
    new_keys = {row_key(record) for record in new}

    def change(present: Present) -> dict[str, bytes | None]:
        if JSONL_NAME in present:
            store.check_written("dataset", index_name(sweep), JSONL_NAME, present[JSONL_NAME])
        rows, unreadable = split_rows(present.get(JSONL_NAME, b""))
        unreadable_lines = []
        for row in unreadable:
            if (row.run_id, row.branch) not in new_keys:
                logger.warning("the index of %s: a row is kept that cannot be read: %s", sweep, row.reason)
                unreadable_lines.append(row.line)
        files = index_files(store, sweep, merge(rows, new), unreadable_lines, present, license)
        is_unchanged = files[JSONL_NAME] == present.get(JSONL_NAME)
        return {} if is_unchanged and license is None else files

    count = "1 run" if len(new) == 1 else f"{len(new)} runs"
    return store.update("dataset", index_name(sweep), (JSONL_NAME, CARD_NAME), change, f"Add {count} to the index")


def _card_text(present: Present) -> str:
    return present.get(CARD_NAME, b"").decode("utf-8", "replace")


def index_files(
    store: Store,
    sweep: str,
    rows: list[RunRecord],
    unreadable_lines: Iterable[bytes],
    present: Present,
    license: str | None = None,
) -> dict[str, bytes | None]:
    """Make the files of an index with these rows and, after them, the unreadable lines.

    The card keeps its law, the text of people, and its licence unless one is given. Without pyarrow a parquet file is
    removed, because it no longer fits the rows. Raises ConflictError if two runs have the same weights.
    """
    _check_weights_differ(rows)
    text = sweep_card(rows, repo=store.repo_id(index_name(sweep)), license=license)
    if CARD_NAME in present:
        text = refresh_card(_card_text(present), text)
    check_secrets({CARD_NAME: text.encode()})
    files: dict[str, bytes | None] = {CARD_NAME: text.encode()}
    table = to_parquet(rows)
    if table is not None or PARQUET_NAME in present.stored:
        files[PARQUET_NAME] = table
    # Readers trust this file most, so it is written last.
    files[JSONL_NAME] = to_jsonl(rows) + b"".join(line + b"\n" for line in unreadable_lines)
    return files


def _check_weights_differ(rows: Iterable[RunRecord]) -> None:
    """Raise ConflictError if two runs have the same weights."""
    runs_by_weights: dict[Weights, list[RunRecord]] = defaultdict(list)
    for row in rows:
        # Where a trunk diverged or was stopped, all its branches end there, with the same weights.
        if row.weights_sha256 and row.status != "diverged" and not row.stopped:
            runs_by_weights[_weights_of(row)].append(row)
    for twins in runs_by_weights.values():
        if len(twins) > 1:
            names = ", ".join(f"{twin.run_id} ({twin.repo}@{twin.branch})" for twin in twins[:5])
            raise ConflictError(f"{len(twins)} runs have the same weights: {names}; the index lists each once")


def _weights_of(record: RunRecord) -> Weights:
    return tuple(sorted((record.weights_sha256 or {}).items()))


def merge(present: Iterable[RunRecord], new: Iterable[RunRecord]) -> list[RunRecord]:
    """Merge two lists of records in a fixed order.

    A later record of the same run and branch, or of the same run and weights (released again under another name),
    replaces an earlier one.
    """
    rows: dict[tuple[str, str], RunRecord] = {}
    keys_by_weights: dict[tuple[str, Weights], tuple[str, str]] = {}
    for record in [*present, *new]:
        key = row_key(record)
        if record.weights_sha256:
            identity = (record.run_id, _weights_of(record))
            earlier_key = keys_by_weights.get(identity, key)
            if earlier_key != key:
                rows.pop(earlier_key, None)
            keys_by_weights[identity] = key
        rows[key] = record
    return sorted(rows.values(), key=lambda row: (row.n_active, row.experts, row.tokens, row.run_id, row.branch or ""))


def row_key(record: RunRecord) -> tuple[str, str]:
    """Return the key of an index row: run and branch."""
    return record.run_id, record.branch or branch_name(record)


def load_index(
    store: Store, sweep: str, revision: str | None = None, *, problems: list[str] | None = None
) -> list[RunRecord]:
    """Load all records of a sweep, from its index at one commit (default: the newest one that can be reached).

    Raises NotFoundError without an index, and RecordError for rows that break the schema, unless a list of `problems`
    takes their reasons.
    """
    rows, unreadable = split_rows(_read_lines(store, sweep, revision))
    return require_readable(rows, unreadable, JSONL_NAME, problems)


def _read_lines(store: Store, sweep: str, revision: str | None = None) -> bytes:
    """Read the JSON lines of an index, as they were written."""
    content = store.read("dataset", index_name(sweep), JSONL_NAME, revision)
    store.check_written("dataset", index_name(sweep), JSONL_NAME, content)
    return content


def describe_index(store: Store, sweep: str, section: str, files: Contents) -> Publication:
    """Put a law (`section`: Markdown with its heading) into the index's card, and its files beside it, in one commit.

    It replaces the law that is there, and later pushes of runs keep it. Raises NotFoundError without an index or a
    place for a law, and FilesError for a name that is not allowed or an access token in a text.
    """
    contents = {name: content_of(content) for name, content in files.items()}
    check_allowed(contents)
    if CARD_NAME in contents:
        raise FilesError(f"file {CARD_NAME!r} may not lie beside a law")
    check_secrets({**contents, CARD_NAME: section.encode()})
    if index_name(sweep) not in store.repos("dataset", index_name(sweep)):
        raise NotFoundError(f"{store.uri} has no index of the sweep {sweep!r}; push its runs first")

    def change(present: Present) -> dict[str, bytes]:
        card = _card_text(present)
        if block_of(card, LAW) is None:
            raise NotFoundError(f"the card of {store.repo_id(index_name(sweep))} has no place for a law")
        return {**contents, CARD_NAME: replace_block(card, LAW, section).encode()}

    message = "Describe the law that was fitted to these runs"
    return store.update("dataset", index_name(sweep), (CARD_NAME,), change, message)


def push_repo_cards(store: Store, sweep: str, repos: Iterable[str], *, license: str | None = None) -> None:
    """Bring `main` of model repositories up to date with the index: one commit for each that changed.

    `main` gets the files of the longest final run, so that it can be loaded and the Hub's search finds it, and a card
    of all revisions, with that run's licence by default. A README.md of another kind and weights of no run in the
    index are somebody's own and stay. Raises NotFoundError without an index.
    """
    names = sorted({repo.rpartition("/")[2] for repo in repos})
    lines = _read_lines(store, sweep)
    for _ in range(_MAX_REWRITES):
        rows, _ = split_rows(lines)
        for name in names:
            runs = [row for row in rows if row.commit and row.repo and repository_of(row) == name]
            if runs:
                change = partial(_change_main, store, name, runs, license)
                store.update("model", name, (CARD_NAME,), change, "List the revisions")
        lines_before = lines
        lines = _read_lines(store, sweep)
        # Another writer that added rows meanwhile may have written its cards before ours.
        if lines == lines_before:
            return
    logger.warning("the index of %s keeps changing; the cards of its repositories may lack the newest runs", sweep)


def _change_main(
    store: Store, name: str, rows: list[RunRecord], license: str | None, present: Present
) -> dict[str, bytes | CopyOf | None]:
    """Make the changes to `main`: the files of the run that it shows, then the card."""
    files: dict[str, bytes | CopyOf | None] = {}
    main_run = choose_main_run(rows)
    weights = {file: entry.sha256 for file, entry in present.stored.items() if file.endswith(".safetensors")}
    if weights and all(weights != row.weights_sha256 for row in rows):
        logger.warning("%s: main has weights of no run in the index; they stay, and no run is copied there", name)
        main_run = None
    if main_run is not None and main_run.commit is not None:
        files.update(_copy_to_main(store, name, main_run.commit, present))
        if license is None and CARD_NAME not in present:
            card = store.read("model", name, CARD_NAME, main_run.commit)
            license = license_of(card.decode("utf-8", "replace"))
    text = repo_card(rows, on_main=main_run is not None, license=license)
    if CARD_NAME in present:
        present_text = _card_text(present)
        if block_of(present_text, REVISIONS) is None:
            return files
        text = refresh_card(present_text, text)
    read_card(text)
    files[CARD_NAME] = text.encode()
    return files


def _copy_to_main(store: Store, name: str, commit: str, present: Present) -> dict[str, CopyOf | None]:
    """Make the changes that copy the files of a run to `main`, and remove those of the run that it showed before.

    Weights of that run would be loaded, and its code run, beside the new ones.
    """
    changes: dict[str, CopyOf | None] = {}
    run_files = store.files("model", name, commit)
    for file, entry in run_files.items():
        if file != CARD_NAME and present.stored.get(file) != entry:
            changes[file] = CopyOf(commit)
    for file in present.stored:
        if file not in run_files and is_allowed(file) and not file.endswith((".md", ".png", ".svg")):
            changes[file] = None
    return changes


# -- the branches of a sweep, read where there is no index or to rebuild it


def read_branches(store: Store, sweep: str, repos: Iterable[str]) -> dict[tuple[str, str], Run | None]:
    """Read the runs of a sweep by repository and branch, with `repo`, `branch` and `commit` set.

    A `run.json` that cannot be read is an unreadable row; None stands where there is no run of this sweep, as on
    `main`. Raises RecordError for more than `MAX_LISTED` branches.
    """
    heads: list[tuple[str, str, str]] = []
    for repo in repos:
        heads += [(repo, branch, commit) for branch, commit in store.branches("model", repo).items()]
    if len(heads) > MAX_LISTED:
        raise RecordError(f"the sweep {sweep!r} has {len(heads)} branches; without an index {MAX_LISTED} are read")

    def read(head: tuple[str, str, str]) -> Run | None:
        repo, branch, commit = head
        if branch == "main":
            return None
        try:
            content = store.read("model", repo, "run.json", commit, max_bytes=MAX_RECORD_BYTES)
            record = RunRecord.from_json(content, what=f"run.json of {repo}@{branch}")
        except NotFoundError:
            return None
        except (RecordError, IntegrityError) as error:
            return UnreadableRow(b"", str(error), None, branch, newer=False)
        if record.sweep != sweep:
            return None
        return record.replaced(repo=store.repo_id(repo), branch=branch, commit=commit)

    with ThreadPoolExecutor(_LISTING_WORKERS, thread_name_prefix="hub-list") as pool:
        runs = pool.map(read, heads)
        return {(repo, branch): run for (repo, branch, _), run in zip(heads, runs, strict=True)}


def list_runs(store: Store, sweep: str, *, problems: list[str] | None = None) -> list[RunRecord]:
    """List all records of a sweep without an index, from every branch of the repositories whose cards have its tag.

    This takes a request or more for each run, so a warning says how many branches were read. Raises RecordError for
    broken records, unless a list of `problems` takes their reasons.
    """
    runs = read_branches(store, sweep, store.repos("model", tag=f"sweep:{sweep}"))
    branch_count = sum(branch != "main" for _, branch in runs)
    records = [run for run in runs.values() if isinstance(run, RunRecord)]
    unreadable = [run for run in runs.values() if isinstance(run, UnreadableRow)]
    if branch_count:
        logger.warning(
            "%s has no index of the sweep %s; its %d runs were read from %d branches, one by one",
            store.uri,
            sweep,
            len(records),
            branch_count,
        )
    return merge([], require_readable(records, unreadable, store.uri, problems))


def repair_index(store: Store, sweep: str) -> Publication:
    """Rebuild the index of a sweep from the `run.json` at the head of each branch.

    Rows that no branch vouches for stay: of runs that were never released, of another organisation, of repositories
    that this token cannot see, of a later schema, and those that another writer adds meanwhile.

    Raises:
        NotFoundError: the store has neither an index nor a run of this sweep.
        ConflictError: two runs have the same weights.
    """
    try:
        before = store.read("dataset", index_name(sweep), JSONL_NAME)
    except NotFoundError:
        before = b""
    rows, _ = split_rows(before)
    repos = {*store.repos("model", tag=f"sweep:{sweep}"), *store.repos("model", f"{sweep}-d")}
    repos.update(repository_of(row) for row in rows if row.repo and row.repo == store.repo_id(row.repo))
    heads = read_branches(store, sweep, sorted(repos))
    released = {row_key(head): head for head in heads.values() if isinstance(head, RunRecord)}
    if not released and not before:
        raise NotFoundError(f"{store.uri} has no index and no released run of the sweep {sweep!r}")
    visible_repos = {repo for repo, _ in heads}
    rows_before = {row_key(row) for row in rows}

    def is_gone(row: RunRecord) -> bool:
        """Return whether the row's branch could be looked at, and no longer holds its run."""
        is_ours = row.repo is not None and row.commit is not None and row.repo == store.repo_id(row.repo)
        if not is_ours or row_key(row) not in rows_before or repository_of(row) not in visible_repos:
            return False
        return not isinstance(heads.get((repository_of(row), row.branch or "")), UnreadableRow)

    def rebuild(present: Present) -> dict[str, bytes | None]:
        rows, unreadable = split_rows(present.get(JSONL_NAME, b""))
        remaining = [row for row in rows if row_key(row) not in released and not is_gone(row)]
        newer_lines = [row.line for row in unreadable if row.newer and _key(row) not in released]
        return index_files(store, sweep, merge(remaining, released.values()), newer_lines, present)

    message = "Rebuild the index from the branches"
    return store.update("dataset", index_name(sweep), (JSONL_NAME, CARD_NAME), rebuild, message)


def _key(row: UnreadableRow) -> tuple[str, str]:
    return row.run_id or "", row.branch or ""


def repository_of(record: RunRecord) -> str:
    """Return the name of a record's repository, without organisation: where it was released, or will be."""
    return (record.repo or repo_name(record)).rpartition("/")[2]
