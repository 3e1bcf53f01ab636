"""Fetching releases: which runs (a filter), and their checkpoints with the hash of every file checked."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from hub.plain import atomic
from hub.plain.errors import IntegrityError, NotFoundError, RecordError, UnavailableError
from hub.record.names import repo_name
from hub.record.run_record import RunRecord
from hub.store.base import Store
from hub.store.files import is_allowed

logger = logging.getLogger(__name__)

_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_TERM = re.compile(r"([A-Za-z_]+)\s*(>=|<=|==|=|≥|≤|!=|>|<)\s*([^\s]+)")
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}
_SYMBOLS = {"≥": ">=", "≤": "<=", "==": "="}
# The paper's letters beside the records' names.
_FIELDS = {"E": "experts", "D": "tokens", "N": "n_active", "N_act": "n_active", "N_total": "n_total", "d": "d_model"}
_NUMBERS = [
    "experts",
    "tokens",
    "n_active",
    "n_total",
    "d_model",
    "n_blocks",
    "n_heads",
    "seed",
    "steps",
    "sequence_length",
    "train_loss",
    "eval_loss",
    "training_flops",
]
_STATUSES = ("final", "intermediate", "diverged")


def select(records: Iterable[RunRecord], where: str = "") -> list[RunRecord]:
    """The records that a filter keeps, e.g. "E=8, D >= 1B, final".

    Terms are joined by commas and must all hold. A term is a status, or a field, a comparison (=, !=, <, <=, >, >=)
    and a number with an optional K, M, B or T; fields are E, D, N, N_total, d and the records' own names of numbers.

    Raises:
        RecordError: a term that is none of these.
    """
    tests = [_test(term.strip()) for term in where.split(",") if term.strip()]
    return [record for record in records if all(test(record) for test in tests)]


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


def _test(term: str) -> Callable[[RunRecord], bool]:
    if term in _STATUSES:
        return lambda record: record.status == term
    match = _TERM.fullmatch(term)
    field = _FIELDS.get(match[1], match[1]) if match else ""
    if match is None or field not in _NUMBERS:
        raise RecordError(
            f"filter term {term!r}: allowed are {', '.join(_STATUSES)}, or FIELD COMPARISON NUMBER with a FIELD of "
            f"{', '.join([*_FIELDS, *_NUMBERS])}"
        )
    compare = _COMPARISONS[_SYMBOLS.get(match[2], match[2])]
    bound = _number(match[3], term)

    def test(record: RunRecord) -> bool:
        value = getattr(record, field)
        return value is not None and compare(float(value), bound)

    return test


def _number(text: str, term: str) -> float:
    match = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)([KMBT]?)", text)
    if match is None:
        raise RecordError(f"filter term {term!r}: {text!r} is no number such as 8, 1e9, 2.5B or 300M")
    return float(match[1]) * _SUFFIXES[match[2]]
