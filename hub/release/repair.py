"""Reading a sweep from its branches: for a sweep without an index, and to rebuild an index that is damaged.

The branches are the truth: a run is where its checkpoint and `run.json` lie. Rows that cannot be checked stay in the
index and are listed: rows that were never released, rows of repositories that this token cannot see, and rows written
by a later version of the schema.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hub.plain.errors import IntegrityError, NotFoundError, RecordError
from hub.plain.strict_json import MAX_RECORD_BYTES
from hub.record.names import index_name
from hub.record.run_record import RunRecord
from hub.record.table import JSONL_NAME, UnreadableRow, split_rows
from hub.release.index import CARD_NAME, index_files, merge, row_key
from hub.store.base import Present, Publication, Store

logger = logging.getLogger(__name__)

MAX_LISTED = 2000  # branches of a sweep that are read one by one
_LISTING_WORKERS = 4


@dataclass(frozen=True)
class Branches:
    """What the branches of a sweep's repositories hold.

    Attributes:
        records: the `run.json` of each, with its repository, branch and commit.
        broken: (repository, branch) -> why its `run.json` cannot be read.
        names: repository -> its branches; none if there is no such repository, or none that this token may see.
        count: branches that were read.
    """

    records: list[RunRecord]
    broken: dict[tuple[str, str], str]
    names: dict[str, frozenset[str]]
    count: int


def read_branches(store: Store, sweep: str, repos: Iterable[str]) -> Branches:
    """Read the `run.json` of every branch but `main`; a branch without one, or of another sweep, is none of a run.

    Raises:
        RecordError: more than `MAX_LISTED` branches.
    """
    listed = {repo: store.branches("model", repo) for repo in repos}
    places = [(repo, branch, at) for repo, heads in listed.items() for branch, at in heads.items() if branch != "main"]
    if len(places) > MAX_LISTED:
        raise RecordError(f"the sweep {sweep!r} has {len(places)} branches; without an index {MAX_LISTED} are read")

    def read(place: tuple[str, str, str]) -> RunRecord | str | None:
        repo, branch, commit = place
        try:
            content = store.read("model", repo, "run.json", commit, max_bytes=MAX_RECORD_BYTES)
            record = RunRecord.from_json(content, what=f"run.json of {repo}@{branch}")
            return record.replaced(repo=store.repo_id(repo), branch=branch, commit=commit)
        except NotFoundError:
            return None
        except (RecordError, IntegrityError) as error:
            return str(error)

    with ThreadPoolExecutor(_LISTING_WORKERS, thread_name_prefix="hub-list") as pool:
        found = list(pool.map(read, places))
    records = [item for item in found if isinstance(item, RunRecord) and item.sweep == sweep]
    broken = {place[:2]: item for place, item in zip(places, found, strict=True) if isinstance(item, str)}
    return Branches(records, broken, {repo: frozenset(heads) for repo, heads in listed.items()}, len(places))


def list_runs(store: Store, sweep: str, *, problems: list[str] | None = None) -> list[RunRecord]:
    """All records of a sweep that has no index, from the `run.json` of every branch of its model repositories.

    The repositories are found by the tag of their cards. This takes requests for each run, where an index takes three
    in all, and a warning says how many branches were read.

    Args:
        store: where to look.
        sweep: the sweep's name.
        problems: as for `load_index`; a branch without a `run.json` is none of a run.

    Raises:
        RecordError: broken records, or more than `MAX_LISTED` branches.
    """
    read = read_branches(store, sweep, store.repos("model", tag=f"sweep:{sweep}"))
    broken = list(read.broken.values())
    if broken and problems is None:
        raise RecordError("\n".join([f"{len(broken)} of {read.count} run records are not valid", *broken[:20]]))
    if problems is not None:
        problems.extend(broken)
    if read.count:
        logger.warning(
            "%s has no index of the sweep %s; its %d runs were read from %d branches, one by one",
            *(store.uri, sweep, len(read.records), read.count),
        )
    return merge([], read.records)


@dataclass(frozen=True)
class Repair:
    """What a repair changes, one line for each row: added, replaced, removed; and which wrong rows stay, and why.

    `rows` is the number of records afterwards; `publication` is None for a dry run.
    """

    changes: tuple[str, ...]
    stays: tuple[str, ...]
    rows: int
    publication: Publication | None


def repair_index(store: Store, sweep: str, *, dry_run: bool = False, drop_missing: bool = False) -> Repair:
    """Rebuild the index of a sweep from the `run.json` of its branches, at the commits that the branches are at.

    Rows that another writer adds meanwhile are kept.

    Args:
        store: where the sweep lies.
        sweep: its name.
        dry_run: say what would be changed, and write nothing.
        drop_missing: also remove the rows of repositories that are gone, or that this token does not see.

    Raises:
        NotFoundError: the store has neither an index nor a run of this sweep.
        ConflictError: two runs have the same weights.
    """
    try:
        before = store.read("dataset", index_name(sweep), JSONL_NAME)
    except NotFoundError:
        before = b""
    rows, unreadable = split_rows(before)
    repos = {*store.repos("model", tag=f"sweep:{sweep}"), *store.repos("model", f"{sweep}-d")}
    repos |= {_repo(row) for row in rows if row.repo and row.repo == store.repo_id(row.repo)}
    branches = read_branches(store, sweep, sorted(repos))
    if not branches.records and not before:
        raise NotFoundError(f"{store.uri} has no index and no released run of the sweep {sweep!r}")
    plan = _Plan(store, branches, {row_key(row) for row in rows}, drop_missing)

    def change(present: Present) -> dict[str, bytes | None]:
        kept = plan.apply(*split_rows(present.get(JSONL_NAME, b"")))
        files = index_files(store, sweep, plan.rows, kept, present)
        return {} if files[JSONL_NAME] == present.get(JSONL_NAME) else files

    message = "Rebuild the index from the branches"
    publication = None
    if dry_run:
        plan.apply(rows, unreadable)
    else:
        publication = store.update("dataset", index_name(sweep), (JSONL_NAME, CARD_NAME), change, message)
    return Repair(tuple(plan.changes), tuple(plan.stays), len(plan.rows), publication)


class _Plan:
    """What becomes of each row; `apply` may be called again, for the rows as another writer left them."""

    def __init__(self, store: Store, branches: Branches, before: set[tuple[str, str]], drop_missing: bool) -> None:
        self.store, self.branches, self.before, self.drop_missing = store, branches, before, drop_missing
        self.rebuilt = {row_key(record): record for record in branches.records}
        self.changes: list[str] = []
        self.stays: list[str] = []
        self.rows: list[RunRecord] = []

    def apply(self, rows: list[RunRecord], unreadable: list[UnreadableRow]) -> list[bytes]:
        """Fill `rows`, `changes` and `stays`; returns the lines that cannot be read and stay."""
        self.changes, self.stays = [], []
        there = {row_key(row): row for row in rows}
        others = [row for key, row in there.items() if key not in self.rebuilt and self._stays(row)]
        lines = [row.line for row in unreadable if self._unreadable_stays(row)]
        broken = {(row.run_id, row.branch) for row in unreadable}
        for key, record in self.rebuilt.items():
            if key not in there and key not in broken:
                self.changes.append(f"added {_shown(record)}")
            elif key in there and there[key] != record:
                old, new = there[key].to_dict(), record.to_dict()
                differing = ", ".join(name for name in new | old if old.get(name) != new.get(name))
                self.changes.append(f"replaced {_shown(record)}: {differing}")
        self.rows = merge(others, self.rebuilt.values())
        return lines

    def _stays(self, row: RunRecord) -> bool:
        """Whether a row that no branch gives stays in the index; says why, and why not."""
        repo, branch = _repo(row), row.branch or ""
        if not row.repo or row.commit is None or row_key(row) not in self.before:
            return True  # never released, or another writer's of this minute
        gone = "the repository is gone, or not visible with this token"
        if row.repo != self.store.repo_id(row.repo):
            self.stays.append(f"kept {_shown(row)}: it lies in another organisation")
        elif not self.branches.names.get(repo) and not self.drop_missing:
            self.stays.append(f"kept {_shown(row)}: {gone}")
        elif (repo, branch) in self.branches.broken:
            self.stays.append(f"kept {_shown(row)}: {self.branches.broken[(repo, branch)]}")
        else:
            names = self.branches.names.get(repo)
            why = "the branch holds no such run" if branch in (names or ()) else "the branch is gone"
            self.changes.append(f"removed {_shown(row)}: {why if names else gone}")
            return False
        return True

    def _unreadable_stays(self, row: UnreadableRow) -> bool:
        named = (row.run_id or "", row.branch or "")
        if named in self.rebuilt:
            self.changes.append(f"replaced {_shown(self.rebuilt[named])}: {row.reason}")
            return False
        lines, verb = (self.stays, "kept") if row.newer else (self.changes, "removed")
        lines.append(f"{verb} {row.run_id or 'a row'}: {row.reason}")
        return row.newer


def _repo(row: RunRecord) -> str:
    return (row.repo or "").rpartition("/")[2]


def _shown(row: RunRecord) -> str:
    return f"{row.run_id} ({_repo(row)}@{row.branch})" if row.repo else row.run_id
