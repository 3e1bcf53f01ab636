"""Releasing runs: first the checkpoints, each as one atomic publication, then the index that makes them visible.

The order matters: the index is what a fit reads, so a run is in it only after its checkpoint lies in the store and was
read back. Pushing again what is there already writes nothing, so an interrupted push is simply started again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .errors import ConflictError, FilesError, RecordError
from .files import Content, Release, check_secrets, release_of
from .names import branch_name, index_name, repo_name
from .records import RunRecord
from .store import Publication, Store
from .tables import JSONL_NAME, PARQUET_NAME, OnInvalid, parse_records, to_jsonl, to_parquet

SweepCard = str | Callable[[list[RunRecord]], str]


def push_run(
    store: Store,
    folder: str | Path,
    record: RunRecord,
    *,
    card: str | None = None,
    pictures: Mapping[str, Content] | None = None,
    branch: str | None = None,
) -> RunRecord:
    """Release one run's checkpoint as one branch of its model repository.

    Args:
        store: where to.
        folder: the checkpoint as `save_pretrained` leaves it; what is not on the list of `hub.files` stays behind.
        record: the run's record. Its `weights_sha256`, if set, must be those of the files.
        card: the text of README.md; without one `hub.cards.model_card` writes it.
        pictures: further files for the card, name (`*.png`, `*.svg`) -> file or bytes.
        branch: another branch name than `branch_name(record)`.

    Returns:
        The record as released: `weights_sha256`, `repo`, `branch` and `commit` are filled in. (`run.json` inside the
        commit cannot hold the commit's own id.)

    Raises:
        FilesError: the folder cannot be released as it is.
        ConflictError: the branch exists with other weights.
    """
    release = release_of(folder)
    prepared = prepare(store, release, record, branch=branch)
    files = release_files(release, prepared, card=card, pictures=pictures)
    message = f"{prepared.status} run {prepared.run_id}: {prepared.tokens:,} tokens, {prepared.experts} experts"
    assert prepared.branch is not None
    published = store.publish(repo_name(record), prepared.branch, files, release.weights_sha256, message)
    return prepared.replaced(commit=published.commit)


def prepare(store: Store, release: Release, record: RunRecord, *, branch: str | None = None) -> RunRecord:
    """The record as it will stand in `run.json`: with the weights' sha256, repository and branch, without a commit."""
    if record.weights_sha256 is not None and dict(record.weights_sha256) != dict(release.weights_sha256):
        raise RecordError(
            f"weights_sha256 of run {record.run_id} are not those of the files in {release.folder.name}: "
            f"{dict(record.weights_sha256)} against {dict(release.weights_sha256)}"
        )
    return record.replaced(
        weights_sha256=dict(release.weights_sha256),
        repo=store.repo_id(repo_name(record)),
        branch=branch or branch_name(record),
        commit=None,
    )


def release_files(
    release: Release,
    record: RunRecord,
    *,
    card: str | None = None,
    pictures: Mapping[str, Content] | None = None,
) -> dict[str, Content]:
    """Everything that one publication holds, name -> content; checked for access tokens."""
    files: dict[str, Content] = dict(release.files)
    for name, content in (pictures or {}).items():
        if not name.endswith((".png", ".svg")) or "/" in name:
            raise FilesError(f"picture {name!r}: allowed are names that end in .png or .svg, without a folder")
        files[name] = content
    from .cards import check_metadata, model_card

    if card is None:
        card = model_card(record, pictures=tuple(name for name in files if name.endswith((".png", ".svg"))))
    check_metadata(card)
    files["README.md"] = card.encode()
    files["run.json"] = record.to_json(indent=2).encode() + b"\n"
    check_secrets(files)
    return files


def push_index(
    store: Store, sweep: str, records: Iterable[RunRecord], *, card: SweepCard | None = None
) -> Publication:
    """Add records to the index of a sweep, or replace those of the same run; other writers' rows are kept.

    Args:
        store: where to.
        sweep: the sweep's name; every record must have it.
        records: what `push_run` returned.
        card: the text of the data set's README.md, or a function from all rows (the merged ones) to it.

    Raises:
        RecordError: a record of another sweep, or the index that is there is broken.
        ConflictError: two runs have the same weights, so one of them was released under a wrong name.
    """
    new = list(records)
    for record in new:
        if record.sweep != sweep:
            raise RecordError(f"sweep of run {record.run_id} is {record.sweep!r}, allowed here is {sweep!r}")

    from .cards import check_metadata

    def change(present: Mapping[str, bytes]) -> dict[str, bytes]:
        there = parse_records(present[JSONL_NAME], name=JSONL_NAME) if JSONL_NAME in present else []
        merged = merge(there, new)
        _refuse_shared_weights(merged)
        lines = to_jsonl(merged)
        if lines == present.get(JSONL_NAME):
            return {}
        text = card(merged) if callable(card) else card if card is not None else _default_card(store, sweep, merged)
        check_metadata(text)
        check_secrets({"README.md": text.encode()})
        return {"README.md": text.encode(), PARQUET_NAME: to_parquet(merged), JSONL_NAME: lines}

    count = f"{len(new)} run{'s' if len(new) != 1 else ''}"
    return store.update("dataset", index_name(sweep), (JSONL_NAME,), change, f"Add {count} to the index")


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


def merge(there: Iterable[RunRecord], new: Iterable[RunRecord]) -> list[RunRecord]:
    """Both lists as one in a fixed order; a later record of the same run and branch replaces an earlier one."""
    rows = {(record.run_id, record.branch or branch_name(record)): record for record in [*there, *new]}
    return sorted(rows.values(), key=lambda r: (r.n_active, r.experts, r.tokens, r.run_id, r.branch or ""))


def _refuse_shared_weights(records: Iterable[RunRecord]) -> None:
    """Two runs with byte-equal weights are one checkpoint released twice."""
    listed = [record for record in records if record.weights_sha256]
    counts = Counter(tuple(sorted((record.weights_sha256 or {}).items())) for record in listed)
    for weights, count in counts.items():
        if count > 1:
            same = [r for r in listed if tuple(sorted((r.weights_sha256 or {}).items())) == weights]
            names = ", ".join(f"{r.run_id} ({r.repo}@{r.branch})" for r in same[:5])
            raise ConflictError(f"{count} runs have the same weights: {names}; the index lists each checkpoint once")


def _default_card(store: Store, sweep: str, records: list[RunRecord]) -> str:
    from .cards import sweep_card

    return sweep_card(records, repo=store.repo_id(index_name(sweep)))
