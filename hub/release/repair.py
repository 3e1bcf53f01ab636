"""Rebuilding a sweep's index from what its branches hold, for an index that was damaged or that lacks runs.

The branches are the truth: a run is where its checkpoint and `run.json` lie. Rows that cannot be checked stay and are
listed: rows that were never released, rows of repositories that this token cannot see, and rows written by a later
version of the schema.
"""

from __future__ import annotations

from dataclasses import dataclass

from hub.plain.errors import NotFoundError
from hub.record.names import branch_name, index_name
from hub.record.run_record import RunRecord
from hub.record.table import JSONL_NAME, UnreadableRow, split_rows
from hub.release.index import CARD_NAME, Branches, merge, read_branches, rebuilt_files
from hub.store.base import Present, Publication, Store

Key = tuple[str, str]  # of a row: run and branch


@dataclass(frozen=True)
class Repair:
    """What a repair changes, one line for each row: added, replaced, removed; and what stays though it is not right.

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
    before = _present(store, sweep)
    rows, unreadable = split_rows(before)
    repos = {*store.repos("model", tag=f"sweep:{sweep}"), *store.repos("model", f"{sweep}-d")}
    repos |= {_repo(row) for row in rows if row.repo and row.repo == store.repo_id(row.repo)}
    branches = read_branches(store, sweep, sorted(repos))
    if not branches.records and not before:
        raise NotFoundError(f"{store.uri} has no index and no released run of the sweep {sweep!r}")
    plan = _Plan(store, branches, frozenset(map(_key, rows)), drop_missing)
    if dry_run:
        plan.apply(rows, unreadable)
        return Repair(tuple(plan.changes), tuple(plan.stays), len(plan.rows), None)

    def change(present: Present) -> dict[str, bytes | None]:
        kept = plan.apply(*split_rows(present.get(JSONL_NAME, b"")))
        return rebuilt_files(store, sweep, plan.rows, kept, present)

    message = "Rebuild the index from the branches"
    publication = store.update("dataset", index_name(sweep), (JSONL_NAME, CARD_NAME), change, message)
    return Repair(tuple(plan.changes), tuple(plan.stays), len(plan.rows), publication)


class _Plan:
    """What becomes of each row; `apply` may be called again, for the rows as another writer left them."""

    def __init__(self, store: Store, branches: Branches, before: frozenset[Key], drop_missing: bool) -> None:
        self.store, self.branches, self.before, self.drop_missing = store, branches, before, drop_missing
        self.rebuilt = {_key(record): record for record in branches.records}
        self.changes: list[str] = []
        self.stays: list[str] = []
        self.rows: list[RunRecord] = []

    def apply(self, rows: list[RunRecord], unreadable: list[UnreadableRow]) -> bytes:
        """Fill `rows`, `changes` and `stays`; returns the lines that cannot be read and stay."""
        self.changes, self.stays = [], []
        there = {_key(row): row for row in rows}
        others = [row for key, row in there.items() if key not in self.rebuilt and self._stays(row)]
        lines = [row.line + b"\n" for row in unreadable if self._unreadable_stays(row)]
        mended = {(row.run_id, row.branch) for row in unreadable}
        for key, record in self.rebuilt.items():
            if key in there:
                if differing := _differing(there[key], record):
                    self.changes.append(f"replaced {_shown(record)}: {', '.join(differing)}")
            elif key not in mended:
                self.changes.append(f"added {_shown(record)}")
        self.rows = merge(others, self.rebuilt.values())
        return b"".join(lines)

    def _stays(self, row: RunRecord) -> bool:
        """Whether a row that no branch gives stays in the index; says why, and why not."""
        place = (_repo(row), row.branch or "")
        if not row.repo or row.commit is None or _key(row) not in self.before:
            return True  # never released, or another writer's of this minute
        if row.repo != self.store.repo_id(row.repo):
            self.stays.append(f"kept {_shown(row)}: it lies in another organisation")
        elif not self.branches.names.get(place[0]):
            if self.drop_missing:
                self.changes.append(f"removed {_shown(row)}: the repository is gone, or not visible with this token")
                return False
            self.stays.append(f"kept {_shown(row)}: the repository is gone, or not visible with this token")
        elif place in self.branches.broken:
            self.stays.append(f"kept {_shown(row)}: {self.branches.broken[place]}")
        else:
            gone = place[1] not in self.branches.names[place[0]]
            why = "the branch is gone" if gone else "the branch holds no such run"
            self.changes.append(f"removed {_shown(row)}: {why}")
            return False
        return True

    def _unreadable_stays(self, row: UnreadableRow) -> bool:
        named = (row.run_id or "", row.branch or "")
        if named in self.rebuilt:
            self.changes.append(f"replaced {_shown(self.rebuilt[named])}: {row.reason}")
            return False
        if row.newer:
            self.stays.append(f"kept {row.run_id or 'a row'}: {row.reason}")
            return True
        self.changes.append(f"removed {row.run_id or 'a row'}: {row.reason}")
        return False


def _present(store: Store, sweep: str) -> bytes:
    try:
        return store.read("dataset", index_name(sweep), JSONL_NAME)
    except NotFoundError:
        return b""


def _key(row: RunRecord) -> Key:
    return row.run_id, row.branch or branch_name(row)


def _repo(row: RunRecord) -> str:
    return (row.repo or "").rpartition("/")[2]


def _shown(row: RunRecord) -> str:
    return f"{row.run_id} ({_repo(row)}@{row.branch})" if row.repo else row.run_id


def _differing(old: RunRecord, new: RunRecord) -> list[str]:
    """The names of the fields that differ."""
    before, after = old.to_dict(), new.to_dict()
    return [name for name in after | before if before.get(name) != after.get(name)]
