"""Releasing checkpoints: each run as one atomic publication, then the index that makes them visible.

Pushing writes the files of a branch that differ from what should be there, so an interrupted push is started again.
A record that says the same in other words causes no new commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hub.base.errors import (
    AccessError,
    ConflictError,
    FilesError,
    HubError,
    InputError,
    NewerError,
    RecordError,
    redact,
)
from hub.base.markdown import license_of
from hub.record.names import branch_name, index_name, repo_name
from hub.record.run_record import RunRecord
from hub.release.cards import check_license, model_card, refresh_card
from hub.release.index import push_index, push_repo_cards
from hub.store.base import Publication, Store, check_name
from hub.store.files import Release, check_secrets, content_of, release_of
from hub.store.hub import HubStore

MAX_WORKERS = 32
_MAX_TAG_LENGTH = 64
_AWAKE_SECONDS = 0.2

# Folder and record.
Run = tuple[str | Path, RunRecord]


class PushErrors(HubError):
    """Some pushes failed; push again to resume.

    `failures` has (run id, error) of each, `pushed` the records of those that succeeded.
    """

    exit_status = 4

    def __init__(self, failures: Sequence[tuple[str, BaseException]], pushed: list[RunRecord]) -> None:
        self.failures = list(failures)
        self.pushed = pushed
        # A reason that holds for many runs is given once.
        runs_by_reason: dict[str, list[str]] = {}
        for run_id, error in failures:
            runs_by_reason.setdefault(redact(str(error)), []).append(run_id)
        clauses = []
        for reason, run_ids in runs_by_reason.items():
            names = ", ".join(run_ids[:3])
            if len(run_ids) > 3:
                names += f" and {len(run_ids) - 3} more"
            clauses.append(f"{names}: {reason}")
        super().__init__(f"{len(failures)} of the pushes failed: {'; '.join(clauses)}")


def push_run(
    store: Store,
    folder: str | Path,
    record: RunRecord,
    *,
    branch: str | None = None,
    predicted_loss: float | None = None,
    license: str | None = None,
) -> RunRecord:
    """Release one run's checkpoint as one branch of its model repository.

    Returns the record with `weights_sha256`, `repo`, `branch` and `commit`, whose id `run.json` cannot hold.

    Args:
        folder: the checkpoint as `save_pretrained` writes it, with its README.md and pictures if there are any; files
            that `hub.store.files` does not list stay behind.
        record: its `weights_sha256`, if set, must be those of the files.
        branch: default: `branch_name(record)`.
        predicted_loss: a law's (nats/token), for the card.
        license: an identifier of the Hub's list; default: the one that the folder's card names.

    Raises:
        FilesError: the folder cannot be released as it is.
        ConflictError: the branch has other weights, is another run's, or has a record of a newer package version.
    """
    release = release_of(folder)
    prepared = prepare(store, release, record, branch=branch)
    files = dict(release.files)
    pictures = {name: "" for name in files if name.endswith((".png", ".svg"))}
    card = fresh = model_card(prepared, pictures=pictures, predicted_loss=predicted_loss, license=license)
    if "README.md" in files:
        card = refresh_card(content_of(files["README.md"]).decode("utf-8", "replace"), fresh)
    record_json = prepared.to_json(indent=2).encode() + b"\n"
    files["README.md"] = card.encode()
    files["run.json"] = record_json
    check_secrets(files)
    assert prepared.branch is not None
    published = store.publish(
        repo_name(record),
        prepared.branch,
        files,
        release.weights_sha256,
        f"{prepared.status} run {prepared.run_id}: {prepared.tokens:,} tokens, {prepared.experts} experts",
        {
            "run.json": partial(_merge_record, prepared, record_json),
            "README.md": partial(_merge_card, fresh),
        },
    )
    return prepared.replaced(commit=published.commit)


def prepare(store: Store, release: Release, record: RunRecord, *, branch: str | None = None) -> RunRecord:
    """Return the record as it will be in `run.json`: with sha256, repository and branch, without a commit."""
    if record.weights_sha256 is not None and dict(record.weights_sha256) != dict(release.weights_sha256):
        raise RecordError(
            f"weights_sha256 of run {record.run_id} do not match the files in {release.folder.name}: "
            f"{dict(record.weights_sha256)} in the record, {dict(release.weights_sha256)} in the folder"
        )
    return record.replaced(
        weights_sha256=dict(release.weights_sha256),
        repo=store.repo_id(repo_name(record)),
        branch=branch or branch_name(record),
        commit=None,
    )


def _merge_record(record: RunRecord, record_json: bytes, present: bytes) -> bytes:
    """Return the stored record if it is equal, else the new one; ConflictError if it is another run's or newer."""
    place = f"branch {record.branch!r} of {record.repo}"
    try:
        present_record = RunRecord.from_json(present, what=place)
    except NewerError as error:
        raise ConflictError(str(error)) from None
    except RecordError:
        return record_json
    if present_record.run_id != record.run_id:
        raise ConflictError(
            f"{place} belongs to run {present_record.run_id}, not {record.run_id}; push under another branch or "
            "sweep name, or remove it first"
        )
    return present if present_record == record else record_json


def _merge_card(fresh: str, present: bytes) -> bytes:
    """Update the blocks of the stored card that follow from records."""
    before = present.decode("utf-8", "replace")
    text = refresh_card(before, fresh)
    check_secrets({"README.md": text.encode()})
    return present if text == before else text.encode()


def push_runs(
    store: Store,
    runs: Sequence[Run],
    *,
    workers: int = 1,
    predicted_losses: Mapping[str, float] | None = None,
    license: str | None = None,
    done: Callable[[RunRecord], object] = lambda record: None,
) -> list[RunRecord]:
    """Release runs, `workers` at a time, and return their records as released, in the order of `runs`.

    `predicted_losses` (run id -> nats/token) are a law's; `done` is called with each record as released, in no order,
    one call at a time.

    Raises:
        FilesError: two runs would be one branch, or private and public would mix; nothing was written.
        PushErrors: some failed; the others were pushed, and are in its `pushed`.
        AccessError: none was pushed, because there is no token or the store does not accept it.
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise InputError(f"workers is {workers}, allowed are 1 to {MAX_WORKERS}")
    records = [
        record.replaced(repo=store.repo_id(repo_name(record)), branch=branch_name(record)) for _, record in runs
    ]
    check_places(store, records)

    def push(position: int) -> RunRecord:
        folder, record = runs[position]
        loss = (predicted_losses or {}).get(record.run_id)
        return push_run(store, folder, record, predicted_loss=loss, license=license)

    pushed: list[RunRecord] = []
    errors: list[tuple[str, BaseException]] = []
    for (_, record), future in zip(runs, _run_in_threads(push, done, len(runs), workers), strict=True):
        error = future.exception()
        if error is None:
            pushed.append(future.result())
        else:
            errors.append((record.run_id, error))
    for _, error in errors:
        if isinstance(error, AccessError) and not pushed:
            raise error
    if errors:
        raise PushErrors(errors, pushed)
    return pushed


def _run_in_threads(
    push: Callable[[int], RunRecord],
    done: Callable[[RunRecord], object],
    count: int,
    workers: int,
) -> list[Future[RunRecord]]:
    """Push the runs in threads, and call `done` with each, one call at a time.

    A refusal of the store, which holds for all runs and is the error of those that are not started, and an
    interruption end what is not started; an error of `done` does not.
    """
    refusals: list[AccessError] = []
    done_lock = threading.Lock()
    # Nothing is sent before all is submitted: the pool would not wait for a thread that an interruption catches while
    # it is being started.
    is_submitted = threading.Event()
    is_stopped = threading.Event()

    def push_unless_stopped(position: int) -> RunRecord:
        is_submitted.wait()
        if is_stopped.is_set():
            raise CancelledError
        if refusals:
            raise refusals[0]
        try:
            released = push(position)
        except AccessError as error:
            refusals.append(error)
            raise
        with done_lock:
            done(released)
        return released

    with ThreadPoolExecutor(workers, thread_name_prefix="hub-push") as pool:
        try:
            futures = [pool.submit(push_unless_stopped, position) for position in range(count)]
            is_submitted.set()
            # Now and then awake: a signal that arrives as a thread begins to wait does not wake it.
            while wait(futures, timeout=_AWAKE_SECONDS).not_done:
                pass
        except BaseException:
            # An interruption: end what is being sent, start nothing more.
            is_stopped.set()
            is_submitted.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return futures


def check_places(store: Store, records: Iterable[RunRecord]) -> None:
    """Raise FilesError, before anything is sent, if two runs would be one branch or private and public would mix."""
    run_ids: dict[tuple[str, str], str] = {}
    models: dict[str, set[str]] = {}
    for record in records:
        repo = repo_name(record)
        branch = branch_name(record)
        if (repo, branch) in run_ids:
            raise FilesError(
                f"runs {run_ids[repo, branch]} and {record.run_id} would both be branch {branch!r} of {repo}: a "
                "branch is named by tokens, seed and what differs from the recipe; push them as two sweeps"
            )
        run_ids[repo, branch] = record.run_id
        models.setdefault(record.sweep, set()).add(repo)
    for sweep, names in models.items():
        store.check_visibility(sorted(names), index_name(sweep))


@dataclass
class Released:
    """The result of `release_runs`."""

    records: list[RunRecord] = field(default_factory=list)
    # The index of each sweep, as it is at the end.
    indexes: dict[str, Publication] = field(default_factory=dict)
    # Messages on further steps, and on runs that name no licence.
    messages: list[str] = field(default_factory=list)
    # If set, nothing was made of a law or a tag.
    failed: PushErrors | None = None


def release_runs(
    store: Store,
    runs: Sequence[Run],
    *,
    index: bool = True,
    describe: Callable[[str], tuple[str, Publication]] | None = None,
    tag: str = "",
    collection: bool = False,
    license: str | None = None,
    **options: Any,
) -> Released:
    """Release runs as `push_runs` does, then, if asked, write each sweep's `index` and `main` of its repositories.

    `describe` is called with each sweep once all its runs are in the index: it publishes a law and returns the law's
    repository and the new state of the index. `tag` names that state, `collection` collects the repositories. Raises
    PushErrors also if the runs were pushed, and a later step failed.
    """
    check_options(store, license=license, tag=tag, collection=collection)
    result = Released()
    try:
        result.records = push_runs(store, runs, license=license, **options)
    except PushErrors as errors:
        result.records = errors.pushed
        result.failed = errors
    sweeps = sorted({record.sweep for record in result.records}) if index else []
    for sweep in sweeps:
        records = [record for record in result.records if record.sweep == sweep]
        laws: list[str] = []
        try:
            result.indexes[sweep] = push_listing(store, sweep, records, license=license)
            if result.failed is not None:
                continue
            if describe is not None:
                law, result.indexes[sweep] = describe(sweep)
                laws.append(law)
            if tag and isinstance(store, HubStore):
                commit = tag_index(store, sweep, tag, commit=result.indexes[sweep].commit)
                result.messages.append(f"tag {tag} {commit}")
            if collection and isinstance(store, HubStore):
                result.messages.append(f"collection {collect(store, sweep, records, others=laws)}")
        except HubError as error:
            raise PushErrors([(f"the index of {sweep}", error)], result.records) from None
    if license is None:
        result.messages += _warn_of_no_license([Path(folder) for folder, _ in runs])
    return result


def push_listing(store: Store, sweep: str, records: Sequence[RunRecord], *, license: str | None = None) -> Publication:
    """Put released runs into the index of their sweep, and bring `main` of their repositories up to date."""
    index = push_index(store, sweep, records, license=license)
    push_repo_cards(store, sweep, [record.repo or "" for record in records], license=license)
    return index


def _warn_of_no_license(folders: Sequence[Path]) -> list[str]:
    """Say how many of these runs' cards name no licence; nothing if all do."""
    missing = 0
    for folder in folders:
        card = folder / "README.md"
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
        missing += license_of(text) is None
    if not missing:
        return []
    return [f"no licence: {missing} of {len(folders)} runs name none; pass --license, e.g. --license apache-2.0"]


def check_options(store: Store, *, license: str | None, tag: str, collection: bool) -> None:
    """Raise FilesError for an unknown licence, an invalid tag, and a tag or a collection in a folder store."""
    if license is not None:
        check_license(license)
    if (tag or collection) and not isinstance(store, HubStore):
        raise FilesError(f"--tag and --collection: allowed with a store on the Hub, not with {store.uri}")
    if tag:
        check_name(tag, "tag", _MAX_TAG_LENGTH)


def tag_index(store: HubStore, sweep: str, tag: str, *, commit: str | None = None) -> str:
    """Name a commit of a sweep's index (default: the newest), for a paper or a fit to cite; return the commit.

    Raises ConflictError if the tag exists on another commit: tags are not moved.
    """
    check_name(tag, "tag", _MAX_TAG_LENGTH)
    repo_id = store.repo_id(index_name(sweep))
    api = store.transport.api
    call = store.transport.call
    commit = commit or str(call(lambda: api.repo_info(repo_id, repo_type="dataset")).sha)
    try:
        call(lambda: api.create_tag(repo_id, tag=tag, revision=commit, repo_type="dataset"))
    except ConflictError:
        refs = call(lambda: api.list_repo_refs(repo_id, repo_type="dataset"))
        tagged = next((ref.target_commit for ref in refs.tags if ref.name == tag), None)
        if tagged != commit:
            raise ConflictError(f"{repo_id} has a tag {tag!r} on commit {tagged}, not {commit}") from None
    return commit


def collect(store: HubStore, sweep: str, records: Iterable[RunRecord], *, others: Iterable[str] = ()) -> str:
    """Put a sweep's index and models, and `others` such as the law, into the collection "Runs of <sweep>".

    Returns its address. Raises FilesError if the store is private and a collection of this title public.
    """
    api = store.transport.api
    call = store.transport.call
    store.transport.require_token()
    options = {"namespace": store.organisation, "private": store.private, "exists_ok": True}
    collection = call(lambda: api.create_collection(f"Runs of {sweep}", **options))
    if store.private and not collection.private:
        raise FilesError(f"private: the collection {collection.title!r} is public; nothing was added to it")
    names = [record.repo or repo_name(record) for record in records]
    models = {store.repo_id(name) for name in (*names, *others)}
    for item, kind in ((store.repo_id(index_name(sweep)), "dataset"), *((model, "model") for model in sorted(models))):
        call(partial(api.add_collection_item, collection.slug, item_id=item, item_type=kind, exists_ok=True))
    return str(collection.url)
