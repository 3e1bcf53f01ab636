"""The index of a sweep, which makes its runs visible, and the cards that follow from it.

The order matters: the index is what a fit reads, so a run is in it only after its checkpoint lies in the store and was
read back. What is there already is not written again, so an interrupted push is simply started again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from .errors import ConflictError, FilesError, IntegrityError, NotFoundError, RecordError
from .files import Content, check_secrets, is_allowed
from .markdown import block_of, replace_block
from .names import branch_name, index_name
from .records import RunRecord
from .store import Publication, Store
from .strict_json import MAX_RECORD_BYTES
from .tables import JSONL_NAME, PARQUET_NAME, OnInvalid, UnreadableRow, parse_records, split_rows, to_jsonl, to_parquet

logger = logging.getLogger(__name__)

CARD_NAME = "README.md"
MAX_LISTED = 2000  # branches of a sweep without an index
_LISTING_WORKERS = 4
_MAX_REWRITES = 8  # of the repositories' cards, when other writers change the index meanwhile
SweepCard = str | Callable[[list[RunRecord]], str]


def push_index(
    store: Store, sweep: str, records: Iterable[RunRecord], *, card: SweepCard | None = None
) -> Publication:
    """Add records to the index of a sweep, or replace those of the same run; other writers' rows are kept.

    So are rows that this version cannot read, byte for byte (`hub.repair` rebuilds them); the parquet file and the
    card are without them.

    Args:
        store: where to.
        sweep: the sweep's name; every record must have it.
        records: what `push_run` returned.
        card: the text of the data set's README.md, or a function from all rows (the merged ones) to it.

    Raises:
        RecordError: a record of another sweep.
        ConflictError: two runs have the same weights, so one of them was released under a wrong name.
    """
    new = list(records)
    for record in new:
        if record.sweep != sweep:
            raise RecordError(f"sweep of run {record.run_id} is {record.sweep!r}, allowed here is {sweep!r}")

    from .cards import check_metadata

    def change(present: Mapping[str, bytes]) -> dict[str, bytes]:
        there, unreadable = split_rows(present.get(JSONL_NAME, b""))
        merged = merge(there, new)
        _refuse_shared_weights(merged)
        lines = to_jsonl(merged) + _kept(sweep, unreadable, new)
        if lines == present.get(JSONL_NAME):
            return {}
        text = card(merged) if callable(card) else card
        if text is None:
            text = _default_card(store, sweep, merged, present.get(CARD_NAME, b"").decode("utf-8", "replace"))
        check_metadata(text)
        check_secrets({CARD_NAME: text.encode()})
        return {CARD_NAME: text.encode(), PARQUET_NAME: to_parquet(merged), JSONL_NAME: lines}

    count = f"{len(new)} run{'s' if len(new) != 1 else ''}"
    reads = (JSONL_NAME,) if card is not None else (JSONL_NAME, CARD_NAME)
    return store.update("dataset", index_name(sweep), reads, change, f"Add {count} to the index")


def _kept(sweep: str, unreadable: Iterable[UnreadableRow], new: Iterable[RunRecord]) -> bytes:
    """The rows that cannot be read, as they are, but those of runs that are pushed now."""
    replaced = {(record.run_id, record.branch or branch_name(record)) for record in new}
    kept = [row for row in unreadable if (row.run_id, row.branch) not in replaced]
    for row in kept:
        logger.warning("the index of %s: a row is kept that cannot be read: %s", sweep, row.reason)
    return b"".join(row.line + b"\n" for row in kept)


def describe_index(store: Store, sweep: str, section: str, files: Mapping[str, Content]) -> Publication:
    """Put a law into the index's card, and its files (pictures, `scaling_law.json`) beside it, in one commit.

    Args:
        store: where the index lies.
        sweep: the sweep's name.
        section: Markdown with its heading; it replaces the law that is there, and later pushes of runs keep it.
        files: name -> file or bytes, of the names that a release may hold.

    Raises:
        NotFoundError: the sweep has no index, or its card has no place for a law.
        FilesError: a name that is not allowed, or an access token in a text.
    """
    from .cards import LAW

    contents = {name: data if isinstance(data, bytes) else data.read_bytes() for name, data in files.items()}
    for name in contents:
        if not is_allowed(name) or name == CARD_NAME:
            raise FilesError(f"file {name!r} is not on the list of what may lie beside a law")
    check_secrets({**contents, CARD_NAME: section.encode()})
    if index_name(sweep) not in store.repos("dataset", index_name(sweep)):
        raise NotFoundError(f"{store.uri} has no index of the sweep {sweep!r}; push its runs first")

    def change(present: Mapping[str, bytes]) -> dict[str, bytes]:
        card = present.get(CARD_NAME, b"").decode("utf-8", "replace")
        if block_of(card, LAW) is None:
            raise NotFoundError(f"the card of {store.repo_id(index_name(sweep))} has no place for a law")
        wanted = {**contents, CARD_NAME: replace_block(card, LAW, section).encode()}
        return {name: data for name, data in wanted.items() if present.get(name) != data}

    message = "Describe the law that was fitted to these runs"
    return store.update("dataset", index_name(sweep), (CARD_NAME, *contents), change, message)


def push_repo_cards(store: Store, sweep: str, repos: Iterable[str]) -> None:
    """Bring the cards on `main` of model repositories up to date with the index: one commit for each that changed.

    A README.md that is not of this kind is somebody's own and stays.

    Raises:
        NotFoundError: the sweep has no index.
    """
    names = sorted({repo.rpartition("/")[2] for repo in repos})
    before = store.read("dataset", index_name(sweep), JSONL_NAME)
    for _ in range(_MAX_REWRITES):
        rows = parse_records(before, name=JSONL_NAME, on_invalid="skip")
        for name in names:
            there = [row for row in rows if row.commit and row.repo and row.repo.rpartition("/")[2] == name]
            if there:
                store.update("model", name, (CARD_NAME,), partial(_repo_card, there), "List the revisions")
        now = store.read("dataset", index_name(sweep), JSONL_NAME)
        if now == before:
            return
        before = now  # another writer added rows meanwhile, and may have written its cards before ours
    logger.warning("the index of %s keeps changing; the cards of its repositories may lack the newest runs", sweep)


def _repo_card(rows: list[RunRecord], present: Mapping[str, bytes]) -> dict[str, bytes]:
    from .cards import LOADING, REVISIONS, check_metadata, repo_card

    new = repo_card(rows)
    if CARD_NAME in present:
        old = present[CARD_NAME].decode("utf-8", "replace")
        if block_of(old, REVISIONS) is None:
            return {}
        for part in (REVISIONS, LOADING):
            old = replace_block(old, part, block_of(new, part) or "")
        new = old
    check_metadata(new)
    return {} if new.encode() == present.get(CARD_NAME) else {CARD_NAME: new.encode()}


def load_index(
    store: Store,
    sweep: str,
    revision: str | None = None,
    *,
    on_invalid: OnInvalid = "raise",
    problems: list[str] | None = None,
) -> list[RunRecord]:
    """All records of a sweep, from its index at one commit (default: the newest one that can be reached).

    Raises:
        NotFoundError: the sweep has no index in this store.
        RecordError: rows that break the schema, unless `on_invalid="skip"`; see `hub.tables.read_records`.
    """
    content = store.read("dataset", index_name(sweep), JSONL_NAME, revision)
    return parse_records(content, name=JSONL_NAME, on_invalid=on_invalid, problems=problems)


def list_runs(
    store: Store, sweep: str, *, on_invalid: OnInvalid = "raise", problems: list[str] | None = None
) -> list[RunRecord]:
    """All records of a sweep that has no index, from the `run.json` of every branch of its model repositories.

    The repositories are found by the tag of their cards. This takes requests for each run, where an index takes three
    in all, and a warning says how many branches were read.

    Args:
        store: where to look.
        sweep: the sweep's name.
        on_invalid, problems: as for `load_index`; a branch without a `run.json` is none of a run.

    Raises:
        RecordError: broken records, or more than `MAX_LISTED` branches.
    """
    read = read_branches(store, sweep, store.repos("model", tag=f"sweep:{sweep}"))
    broken = list(read.broken.values())
    if broken and on_invalid == "raise":
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


def rebuilt_files(
    store: Store, sweep: str, rows: list[RunRecord], kept: bytes, present: Mapping[str, bytes]
) -> dict[str, bytes]:
    """The files of an index with these rows, and with the lines `kept` after them; none if it has them already."""
    from .cards import check_metadata

    _refuse_shared_weights(rows)
    lines = to_jsonl(rows) + kept
    if lines == present.get(JSONL_NAME):
        return {}
    text = _default_card(store, sweep, rows, present.get(CARD_NAME, b"").decode("utf-8", "replace"))
    check_metadata(text)
    return {CARD_NAME: text.encode(), PARQUET_NAME: to_parquet(rows), JSONL_NAME: lines}


def merge(there: Iterable[RunRecord], new: Iterable[RunRecord]) -> list[RunRecord]:
    """Both lists as one in a fixed order; a later record of the same run and branch replaces an earlier one."""
    rows = {(record.run_id, record.branch or branch_name(record)): record for record in [*there, *new]}
    return sorted(rows.values(), key=lambda r: (r.n_active, r.experts, r.tokens, r.run_id, r.branch or ""))


def _refuse_shared_weights(records: Iterable[RunRecord]) -> None:
    """Two runs with byte-equal weights are one checkpoint released twice.

    Only where a trunk diverged, all its branches end there, with the same weights.
    """
    listed = [record for record in records if record.weights_sha256 and record.status != "diverged"]
    counts = Counter(tuple(sorted((record.weights_sha256 or {}).items())) for record in listed)
    for weights, count in counts.items():
        if count > 1:
            same = [r for r in listed if tuple(sorted((r.weights_sha256 or {}).items())) == weights]
            names = ", ".join(f"{r.run_id} ({r.repo}@{r.branch})" for r in same[:5])
            raise ConflictError(f"{count} runs have the same weights: {names}; the index lists each checkpoint once")


def _default_card(store: Store, sweep: str, records: list[RunRecord], present: str) -> str:
    """The card for these rows, with the law that `describe_index` put into the present one."""
    from .cards import LAW, sweep_card

    card = sweep_card(records, repo=store.repo_id(index_name(sweep)))
    return replace_block(card, LAW, block_of(present, LAW) or "")
