"""Releasing checkpoints, each as one atomic publication; the index that makes them visible is `hub.release.index`.

A release is a state: pushing compares every file of a branch with what should be there and writes what differs, be it
all of them, a corrected record or nothing. So an interrupted push is simply started again.

What may differ without being written again: how a record is written down, if it says the same (a later version may
know more fields), and the part of a card that shows the run's neighbours, which changes with every run of the sweep.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from pathlib import Path

from hub.plain.errors import AccessError, ConflictError, FilesError, PushErrors, RecordError
from hub.record.names import branch_name, index_name, repo_name
from hub.record.run_record import RunRecord
from hub.store.base import Equivalent, Store
from hub.store.files import Content, Release, check_secrets, content_of, release_of

MAX_WORKERS = 32
_AWAKE_SECONDS = 0.2


def push_run(
    store: Store,
    folder: str | Path,
    record: RunRecord,
    *,
    card: str | None = None,
    pictures: Mapping[str, Content] | None = None,
    branch: str | None = None,
    siblings: Iterable[RunRecord] = (),
    predicted_loss: float | None = None,
    license: str | None = None,
) -> RunRecord:
    """Release one run's checkpoint as one branch of its model repository.

    Args:
        store: where to.
        folder: the checkpoint as `save_pretrained` leaves it; what is not on the list of `store.files` stays behind.
        record: the run's record. Its `weights_sha256`, if set, must be those of the files.
        card: the text of README.md; default: the folder's, and without one `hub.release.cards.model_card` writes it.
        pictures: further files for the card, name (`*.png`, `*.svg`) -> file or bytes.
        branch: another branch name than `branch_name(record)`.
        siblings: other runs of the sweep, and
        predicted_loss: what a law predicts for this one (nats/token): for the card's "place in the sweep".
        license: of the weights, an identifier of the Hub's list; default: the one that the card names, if any.

    Returns:
        The record as released: `weights_sha256`, `repo`, `branch` and `commit` are filled in. (`run.json` inside the
        commit cannot hold the commit's own id.)

    Raises:
        FilesError: the folder cannot be released as it is.
        ConflictError: the branch exists with other weights, or is that of another run.
    """
    release = release_of(folder)
    prepared = prepare(store, release, record, branch=branch)
    files = release_files(
        release,
        prepared,
        card=card,
        pictures=pictures,
        siblings=siblings,
        predicted_loss=predicted_loss,
        license=license,
    )
    message = f"{prepared.status} run {prepared.run_id}: {prepared.tokens:,} tokens, {prepared.experts} experts"
    assert prepared.branch is not None
    published = store.publish(
        repo_name(record),
        prepared.branch,
        files,
        release.weights_sha256,
        message,
        _equivalent(prepared, content_of(files["README.md"]), with_prediction=predicted_loss is not None),
    )
    return prepared.replaced(commit=published.commit)


def _equivalent(record: RunRecord, card: bytes, *, with_prediction: bool) -> Equivalent:
    """What may differ from the files of this release without being written again; see the module."""
    from hub.release.cards import same_card

    def same_record(present: bytes) -> bool:
        try:
            there = RunRecord.from_json(present)
        except RecordError:
            return False
        if there.run_id != record.run_id:
            raise ConflictError(
                f"branch {record.branch!r} of {record.repo} is that of run {there.run_id}, not {record.run_id}; "
                "push under another branch or sweep name, or remove it first"
            )
        return there == record

    return {
        "run.json": same_record,
        "README.md": lambda present: same_card(present, card, with_prediction=with_prediction),
    }


def push_runs(
    store: Store,
    runs: Sequence[tuple[str | Path, RunRecord]],
    *,
    workers: int = 1,
    predicted_losses: Mapping[str, float] | None = None,
    license: str | None = None,
    done: Callable[[RunRecord], object] = lambda record: None,
) -> list[RunRecord]:
    """Release several runs, `workers` at a time; each one's card shows it among the others of its sweep.

    Args:
        store: where to; its threads share one pause when the Hub asks for one.
        runs: folder and record of each.
        workers: how many are pushed at the same time.
        predicted_losses: run id -> what a law predicts (nats/token).
        license: of the weights; see `push_run`.
        done: called with each record as released, in no order, one call at a time.

    Returns:
        The records as released, in the order of `runs`.

    Raises:
        FilesError: two runs would be one branch, or private and public would mix; nothing was written.
        PushErrors: some failed; the others were pushed, and are in its `pushed`.
        AccessError: none was pushed, because there is no token or the store does not accept it.
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise ValueError(f"workers is {workers}, allowed are 1 to {MAX_WORKERS}")
    placed = [record.replaced(repo=store.repo_id(repo_name(record)), branch=branch_name(record)) for _, record in runs]
    check_places(store, placed)
    predicted = predicted_losses or {}
    lock = threading.Lock()
    # Nothing is sent before all is submitted: a thread that an interruption catches while the pool starts it is not
    # one that the pool waits for.
    submitted, stopped = threading.Event(), threading.Event()

    def push(position: int) -> RunRecord:
        submitted.wait()
        if stopped.is_set():
            raise CancelledError
        folder, record = runs[position]
        siblings = [other for other in placed if other.sweep == record.sweep]
        loss = predicted.get(record.run_id)
        try:
            released = push_run(store, folder, record, siblings=siblings, predicted_loss=loss, license=license)
        except AccessError:  # true of all the runs: start none of the others
            stopped.set()
            raise
        with lock:
            done(released)
        return released

    with ThreadPoolExecutor(workers, thread_name_prefix="hub-push") as pool:
        try:
            futures = [pool.submit(push, position) for position in range(len(runs))]
            submitted.set()
            # Now and then awake: a signal that arrives as a thread begins to wait does not wake it.
            while wait(futures, timeout=_AWAKE_SECONDS).not_done:
                pass
            errors = [future.exception() for future in futures]
            refused = next((error for error in errors if isinstance(error, AccessError)), None)
            errors = [refused if isinstance(error, CancelledError) else error for error in errors]
        except BaseException:  # interrupted: end what is being sent, start nothing more
            stopped.set()
            submitted.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    failures = [(record.run_id, error) for (_, record), error in zip(runs, errors, strict=True) if error is not None]
    pushed = [future.result() for future, error in zip(futures, errors, strict=True) if error is None]
    if refused is not None and not pushed:
        raise refused
    if failures:
        raise PushErrors(failures, pushed)
    return pushed


def check_places(store: Store, records: Iterable[RunRecord]) -> None:
    """Refuse, before anything is sent, runs that cannot lie where they would go.

    Args:
        store: where to.
        records: what is to be pushed.

    Raises:
        FilesError: two of the runs would be one branch, or private and public would mix (`Store.check_visibility`).
    """
    taken: dict[tuple[str, str], str] = {}
    models: dict[str, set[str]] = {}
    for record in records:
        place = (repo_name(record), branch_name(record))
        if place in taken:
            raise FilesError(
                f"runs {taken[place]} and {record.run_id} would both be branch {place[1]!r} of {place[0]}: a branch "
                "is named by tokens, seed and what differs from the recipe; push them as two sweeps"
            )
        taken[place] = record.run_id
        models.setdefault(record.sweep, set()).add(place[0])
    for sweep, names in models.items():
        store.check_visibility(sorted(names), index_name(sweep))


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
    siblings: Iterable[RunRecord] = (),
    predicted_loss: float | None = None,
    license: str | None = None,
) -> dict[str, Content]:
    """Everything that one publication holds, name -> content; checked for access tokens."""
    files: dict[str, Content] = dict(release.files)
    for name, content in (pictures or {}).items():
        if not name.endswith((".png", ".svg")) or "/" in name:
            raise FilesError(f"picture {name!r}: allowed are names that end in .png or .svg, without a folder")
        files[name] = content
    from hub.plain.metadata import check_metadata
    from hub.release.cards import located, model_card

    if card is None and "README.md" in release.files:
        card = content_of(release.files["README.md"]).decode("utf-8", "replace")
    if card is None:
        card = model_card(record, pictures=tuple(name for name in files if name.endswith((".png", ".svg"))))
    card = located(card, record, siblings=siblings, predicted_loss=predicted_loss, license=license)
    check_metadata(card)
    files["README.md"] = card.encode()
    files["run.json"] = record.to_json(indent=2).encode() + b"\n"
    check_secrets(files)
    return files
