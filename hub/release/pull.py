"""Fetching released checkpoints, with the hash of every file checked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from hub.plain import atomic
from hub.plain.errors import IntegrityError, NotFoundError, UnavailableError
from hub.record.names import repo_name
from hub.record.run_record import RunRecord
from hub.store.base import Store
from hub.store.files import is_allowed

logger = logging.getLogger(__name__)


def pull_run(store: Store, record: RunRecord, destination: Path | None = None) -> Path:
    """Fetch one run's checkpoint, and check every file: weights against the record, code, tokenizer, card and the rest
    against what the store lists at that commit.

    Without a network only the weights are checked, with a warning: the store cannot be asked for the others' hashes.

    Args:
        store: where from.
        record: a row of the index; its commit pins the content.
        destination: a new or empty folder. Without one, the store's own folder (the Hub's cache) is returned.

    Returns:
        A folder that `from_pretrained` takes.

    Raises:
        NotFoundError: the record was never released, or is gone.
        IntegrityError: a file is missing, or is not the one that was released.
    """
    revision = record.commit or record.branch
    if record.weights_sha256 is None or revision is None:
        raise NotFoundError(f"run {record.run_id} has no released weights")
    repo = _repository(record)
    folder = store.fetch(repo, revision, destination)
    found = atomic.weights_sha256(folder)
    if found != dict(record.weights_sha256):
        raise IntegrityError(
            f"the weights of run {record.run_id} at {repo}@{revision} have sha256 {found}, "
            f"the index says {dict(record.weights_sha256)}"
        )
    try:
        released = {name: file for name, file in store.files("model", repo, revision).items() if is_allowed(name)}
    except UnavailableError as error:
        logger.warning("%s; of run %s only the weights were checked", error, record.run_id)
        return folder
    problems = []
    for name, file in released.items():
        if not (folder / name).is_file():
            problems.append(f"{name} is missing")
        elif not file.holds(folder / name, found.get(name)):
            problems.append(f"{name} has other content")
    if problems:
        raise IntegrityError(f"run {record.run_id} as fetched from {repo}@{revision}: {', '.join(problems[:10])}")
    return folder


def pull_runs(
    store: Store, records: Iterable[RunRecord], destination: Path | None = None
) -> Iterator[tuple[RunRecord, Path]]:
    """Fetch several checkpoints, one after the other, each into `destination/<repository>/<branch>`."""
    for record in records:
        branch = record.branch or record.commit or "main"
        yield record, pull_run(store, record, destination and destination / _repository(record) / branch)


def _repository(record: RunRecord) -> str:
    return record.repo.rpartition("/")[2] if record.repo else repo_name(record)
