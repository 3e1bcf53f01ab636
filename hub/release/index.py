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

from hub.plain.errors import ConflictError, FilesError, IntegrityError, NotFoundError, RecordError
from hub.plain.markdown import block_of, replace_block
from hub.plain.metadata import check_metadata, license_of, updated
from hub.plain.strict_json import MAX_RECORD_BYTES
from hub.record.names import branch_name, index_name, repo_name
from hub.record.run_record import RunRecord
from hub.record.table import (
    JSONL_NAME,
    PARQUET_NAME,
    OnInvalid,
    UnreadableRow,
    parse_records,
    split_rows,
    to_jsonl,
    to_parquet,
)
from hub.store.base import CopyOf, Present, Publication, Store
from hub.store.files import Content, check_secrets, is_allowed

logger = logging.getLogger(__name__)

CARD_NAME = "README.md"
MAX_LISTED = 2000  # branches of a sweep without an index
_LISTING_WORKERS = 4
_MAX_REWRITES = 8  # of the repositories' cards, when other writers change the index meanwhile
SweepCard = str | Callable[[list[RunRecord]], str]


def push_index(
    store: Store,
    sweep: str,
    records: Iterable[RunRecord],
    *,
    card: SweepCard | None = None,
    license: str | None = None,
) -> Publication:
    """Add records to the index of a sweep, or replace those of the same run; other writers' rows are kept.

    So are rows that this version cannot read, byte for byte (`release.repair` rebuilds them); the parquet file and the
    card are without them.

    Args:
        store: where to.
        sweep: the sweep's name; every record must have it.
        records: what `push_run` returned.
        card: the text of the data set's README.md, or a function from all rows (the merged ones) to it.
        license: of the records, an identifier of the Hub's list; default: the one that the card there names, if any.

    Raises:
        FilesError: private and public would mix (`Store.check_visibility`).
        RecordError: a record of another sweep.
        ConflictError: two runs have the same weights, so one of them was released under a wrong name.
    """
    new = list(records)
    for record in new:
        if record.sweep != sweep:
            raise RecordError(f"sweep of run {record.run_id} is {record.sweep!r}, allowed here is {sweep!r}")

    store.check_visibility(sorted({repo_name(record) for record in new}), index_name(sweep))

    def change(present: Present) -> dict[str, bytes | None]:
        there, unreadable = split_rows(present.get(JSONL_NAME, b""))
        merged = merge(there, new)
        _refuse_shared_weights(merged)
        lines = to_jsonl(merged) + _kept(sweep, unreadable, new)
        old = present.get(CARD_NAME, b"").decode("utf-8", "replace")
        if lines == present.get(JSONL_NAME) and (license is None or license_of(old) == license):
            return {}
        text = card(merged) if callable(card) else card
        if text is None:
            text = _default_card(store, sweep, merged, old, license)
        check_metadata(text)
        check_secrets({CARD_NAME: text.encode()})
        return {CARD_NAME: text.encode(), **_parquet(present, merged), JSONL_NAME: lines}

    count = f"{len(new)} run{'s' if len(new) != 1 else ''}"
    return store.update("dataset", index_name(sweep), (JSONL_NAME, CARD_NAME), change, f"Add {count} to the index")


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
    from hub.release.cards import LAW

    contents = {name: data if isinstance(data, bytes) else data.read_bytes() for name, data in files.items()}
    for name in contents:
        if not is_allowed(name) or name == CARD_NAME:
            raise FilesError(f"file {name!r} is not on the list of what may lie beside a law")
    check_secrets({**contents, CARD_NAME: section.encode()})
    if index_name(sweep) not in store.repos("dataset", index_name(sweep)):
        raise NotFoundError(f"{store.uri} has no index of the sweep {sweep!r}; push its runs first")

    def change(present: Present) -> dict[str, bytes]:
        card = present.get(CARD_NAME, b"").decode("utf-8", "replace")
        if block_of(card, LAW) is None:
            raise NotFoundError(f"the card of {store.repo_id(index_name(sweep))} has no place for a law")
        wanted = {**contents, CARD_NAME: replace_block(card, LAW, section).encode()}
        return {name: data for name, data in wanted.items() if present.get(name) != data}

    message = "Describe the law that was fitted to these runs"
    return store.update("dataset", index_name(sweep), (CARD_NAME, *contents), change, message)


def push_repo_cards(store: Store, sweep: str, repos: Iterable[str], *, license: str | None = None) -> None:
    """Bring `main` of model repositories up to date with the index: one commit for each that changed.

    `main` gets the files of the repository's longest final run, copied inside the store, so that it can be loaded and
    the Hub's search finds it; and a card with the table of all revisions, their results, data sets and tags. A
    README.md that is not of this kind is somebody's own and stays, and so do weights that are of no run in the index.

    Args:
        store: where the repositories lie.
        sweep: the sweep's name.
        repos: the repositories' names or ids.
        license: for the cards; default: the one that the copied run's card names, if any.

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
                change = partial(_main, store, name, there, license)
                store.update("model", name, (CARD_NAME,), change, "List the revisions")
        now = store.read("dataset", index_name(sweep), JSONL_NAME)
        if now == before:
            return
        before = now  # another writer added rows meanwhile, and may have written its cards before ours
    logger.warning("the index of %s keeps changing; the cards of its repositories may lack the newest runs", sweep)


def _main(
    store: Store, name: str, rows: list[RunRecord], license: str | None, present: Present
) -> dict[str, bytes | CopyOf | None]:
    """What changes on `main`: the files of the run that it shows, then the card."""
    from hub.release.cards import shown_on_main

    files: dict[str, CopyOf | None] = {}
    record, source = shown_on_main(rows), None
    stored = present.stored
    weights = {file: stored[file].sha256 for file in stored if file.endswith(".safetensors")}
    if weights and all(weights != row.weights_sha256 for row in rows):
        logger.warning("%s: main has weights of no run in the index; they stay, and no run is copied there", name)
        record = None
    if record is not None and record.commit is not None:
        source = record.commit
        wanted = {file: found for file, found in store.files("model", name, source).items() if file != CARD_NAME}
        files = {file: CopyOf(source) for file, found in wanted.items() if stored.get(file) != found}
        # Of the run that main showed before: its weights would be loaded, and its code run, beside the new ones.
        stale = (file for file in stored if file not in wanted and is_allowed(file))
        files |= dict.fromkeys(file for file in stale if not file.endswith((".md", ".png", ".svg")))
        if license is None and CARD_NAME not in present:
            of_run = store.read("model", name, CARD_NAME, source)
            license = license_of(of_run.decode("utf-8", "replace"))
    return {**files, **_repo_card(rows, present, on_main=source is not None, license=license)}


def _repo_card(
    rows: list[RunRecord], present: Mapping[str, bytes], *, on_main: bool, license: str | None
) -> dict[str, bytes]:
    from hub.release.cards import REVISIONS, relisted, repo_card

    new = repo_card(rows, on_main=on_main, license=license)
    if CARD_NAME in present:
        old = present[CARD_NAME].decode("utf-8", "replace")
        if block_of(old, REVISIONS) is None:
            return {}
        new = relisted(old, new, license=license)
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
        RecordError: rows that break the schema, unless `on_invalid="skip"`; see `hub.record.table.read_records`.
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
    store: Store, sweep: str, rows: list[RunRecord], kept: bytes, present: Present
) -> dict[str, bytes | None]:
    """The files of an index with these rows, and with the lines `kept` after them; none if it has them already."""
    _refuse_shared_weights(rows)
    lines = to_jsonl(rows) + kept
    if lines == present.get(JSONL_NAME):
        return {}
    text = _default_card(store, sweep, rows, present.get(CARD_NAME, b"").decode("utf-8", "replace"), None)
    check_metadata(text)
    return {CARD_NAME: text.encode(), **_parquet(present, rows), JSONL_NAME: lines}


def _parquet(present: Present, rows: list[RunRecord]) -> dict[str, bytes | None]:
    """The rows as parquet; without pyarrow, the removal of a file that no longer fits them."""
    table = to_parquet(rows)
    return {PARQUET_NAME: table} if table is not None or PARQUET_NAME in present.stored else {}


def merge(there: Iterable[RunRecord], new: Iterable[RunRecord]) -> list[RunRecord]:
    """Both lists as one in a fixed order; a later record of the same run and branch replaces an earlier one.

    So does one of the same run and weights on another branch: the run was released again under another name.
    """
    rows: dict[tuple[str, str], RunRecord] = {}
    places: dict[tuple[str, object], tuple[str, str]] = {}
    for record in [*there, *new]:
        key = (record.run_id, record.branch or branch_name(record))
        if record.weights_sha256:
            identity = (record.run_id, tuple(sorted(record.weights_sha256.items())))
            if (before := places.setdefault(identity, key)) != key:
                rows.pop(before, None)
                places[identity] = key
        rows[key] = record
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


def _default_card(store: Store, sweep: str, records: list[RunRecord], present: str, license: str | None) -> str:
    """The card for these rows, with the licence and the law (`describe_index`) of the present one."""
    from hub.release.cards import LAW, sweep_card

    card = sweep_card(records, repo=store.repo_id(index_name(sweep)))
    named = license or license_of(present)
    if named is not None:
        card = updated(card, {"license": named}, ("license",))
    return replace_block(card, LAW, block_of(present, LAW) or "")
