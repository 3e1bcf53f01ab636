"""Fetching released checkpoints, with the hash of every file checked."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
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
    repo = record.repo.rpartition("/")[2] if record.repo else repo_name(record)
    folder = store.fetch(repo, revision, destination)
    found = atomic.weights_sha256(folder)
    if found != dict(record.weights_sha256):
        raise IntegrityError(
            f"the weights of run {record.run_id} at {repo}@{revision} have sha256 {found}, "
            f"the index says {dict(record.weights_sha256)}"
        )
    _check_files(store, repo, revision, folder, found, record.run_id)
    return folder


def _check_files(
    store: Store, repo: str, revision: str, folder: Path, weights: Mapping[str, str], run_id: str
) -> None:
    try:
        listed = store.files("model", repo, revision)
    except UnavailableError as error:
        logger.warning("%s; of run %s only the weights were checked", error, run_id)
        return
    released = {name: file for name, file in listed.items() if is_allowed(name)}
    problems = [f"{name} is missing" for name in released if not (folder / name).is_file()]
    problems += [
        f"{name} has other content"
        for name, file in released.items()
        if (folder / name).is_file() and not file.holds(folder / name, weights.get(name))
    ]
    if problems:
        raise IntegrityError(f"run {run_id} as fetched from {repo}@{revision}: {', '.join(problems[:10])}")


def pull_runs(
    store: Store, records: Iterable[RunRecord], destination: Path | None = None
) -> Iterator[tuple[RunRecord, Path]]:
    """Fetch several checkpoints, one after the other, each into `destination/<repository>/<branch>`."""
    for record in records:
        repo = record.repo.rpartition("/")[2] if record.repo else repo_name(record)
        target = None if destination is None else destination / repo / (record.branch or record.commit or "main")
        yield record, pull_run(store, record, target)


def check_parameters(store: Store, record: RunRecord, *, tolerance: float = 0.02) -> int:
    """Compare a record's `n_total` with the tensors that were really released, without fetching them.

    Args:
        store: where the run was released.
        record: a row of the index.
        tolerance: allowed relative difference; the record's count leaves out routers and norms, which are below 1 %.

    Returns:
        The number of elements of all released tensors.

    Raises:
        IntegrityError: the counts differ by more.
        NotFoundError: the run was never released.
    """
    revision = record.commit or record.branch
    if revision is None:
        raise NotFoundError(f"run {record.run_id} has no released weights")
    repo = record.repo.rpartition("/")[2] if record.repo else repo_name(record)
    elements = sum(math.prod(shape) for shape in store.tensor_shapes(repo, revision).values())
    if abs(elements - record.n_total) > tolerance * record.n_total:
        raise IntegrityError(
            f"n_total of run {record.run_id} is {record.n_total:,}, its released tensors have {elements:,} elements"
        )
    return elements
