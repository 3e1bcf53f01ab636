"""Where things are read from, by one text: a file, a folder, a store, or a repository of the Hub.

`load_records` answers for run records, `read_file` and `publish_files` for single files such as a fitted law. A text
with the form `organisation/name` is a repository of the Hub only if no such path exists here; `hf://organisation/name`
always is (`hf://datasets/organisation/name` as well). `@revision` at the end of either picks a branch, tag or commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hub.plain.errors import FilesError, NotFoundError, RecordError
from hub.plain.metadata import read_card
from hub.record.names import index_name
from hub.record.run_record import RunRecord
from hub.record.table import JSONL_NAME, OnInvalid, parse_records, read_records
from hub.release.repair import list_runs
from hub.store.base import Kind, Publication, Store
from hub.store.files import Content, check_secrets, is_allowed, without_copies
from hub.store.opening import open_store

_REPOSITORY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)/([A-Za-z0-9][A-Za-z0-9._-]*)(?:@([A-Za-z0-9._/-]+))?")


@dataclass(frozen=True)
class RepositoryReference:
    """A repository of the Hub: `organisation/name`, at a revision if one was named."""

    organisation: str
    name: str
    revision: str | None = None

    @property
    def store(self) -> Store:
        """The store that has it."""
        return open_store(f"hf://{self.organisation}")


def repository(source: str | Path) -> RepositoryReference | None:
    """The repository of the Hub that `source` names; None if it names a path of this machine.

    Raises:
        FilesError: an `hf://` text with another form than `hf://organisation/name[@revision]`.
    """
    text = str(source)
    explicit = text.startswith("hf://")
    if not explicit and (isinstance(source, Path) or Path(text).exists()):
        return None
    match = _REPOSITORY.fullmatch(text.removeprefix("hf://").removeprefix("datasets/" if explicit else ""))
    if match is None:
        if explicit:
            raise FilesError(f"{text!r}: allowed is hf://ORGANISATION/NAME, with @REVISION if wanted")
        return None
    if match[3] and ".." in match[3]:
        raise FilesError(f"{text!r}: the revision {match[3]!r} is no branch, tag or commit")
    suffix = Path(text).suffix
    if not explicit and suffix in (".json", ".jsonl", ".parquet"):
        return None  # a file that is missing, not a repository
    return RepositoryReference(match[1], match[2], match[3])


@dataclass(frozen=True)
class LoadedRecords:
    """Run records and where they are from: the data set of the Hub, and its commit if they are of its index."""

    records: list[RunRecord]
    dataset: str | None = None
    commit: str | None = None


def load_records(
    source: str | Path,
    *,
    revision: str | None = None,
    on_invalid: OnInvalid = "raise",
    problems: list[str] | None = None,
) -> list[RunRecord]:
    """Run records from wherever they lie.

    Args:
        source: a `.jsonl`, `.parquet` or `run.json` file; a folder that has one of them; the root of a local store, or
            a sweep's folder of checkpoints (every `run.json` below); or a data set of the Hub, `org/sweep-runs`. If
            the organisation has no such data set, the sweep's model repositories are read one by one.
        revision: branch, tag or commit of the data set; the same as `org/sweep-runs@revision`.
        on_invalid: "raise" reports all broken rows in one error; "skip" leaves them out.
        problems: with "skip", one message per row left out is appended here.

    Raises:
        RecordError: rows that break the schema.
        NotFoundError: the Hub has no such data set, or it is no index of runs.
        FilesError: there is no such file or folder, or nothing in it; a revision of what has none.
    """
    return load_pinned(source, revision=revision, on_invalid=on_invalid, problems=problems).records


def load_pinned(
    source: str | Path,
    *,
    revision: str | None = None,
    on_invalid: OnInvalid = "raise",
    problems: list[str] | None = None,
) -> LoadedRecords:
    """As `load_records`, with the data set and the commit, from which the same records are read again."""
    reference = repository(source)
    if reference is None:
        if revision is not None:
            raise FilesError(f"{source}: revision={revision!r} is allowed with a data set of the Hub only")
        return LoadedRecords(_records_in(source, on_invalid, problems))
    if revision is not None and reference.revision not in (None, revision):
        raise FilesError(f"{source}: revision={revision!r} contradicts the {reference.revision!r} after the @")
    wanted = revision or reference.revision
    sweep = reference.name.removesuffix("-runs")
    if sweep == reference.name:
        raise NotFoundError(f"{source}: the index of a sweep is a data set whose name ends in -runs")
    store, dataset = reference.store, f"{reference.organisation}/{reference.name}"
    try:
        content, commit = store.pinned("dataset", index_name(sweep), JSONL_NAME, wanted)
    except NotFoundError as error:
        listed = list_runs(store, sweep, on_invalid=on_invalid, problems=problems) if not wanted else []
        if not listed:
            raise NotFoundError(f"{source}: {error}") from None
        return LoadedRecords(listed, dataset)
    try:
        records = parse_records(content, name=JSONL_NAME, on_invalid=on_invalid, problems=problems)
    except RecordError as error:
        raise RecordError(f'{dataset}: {error}\non_invalid="skip" leaves them out') from None
    return LoadedRecords(records, dataset, commit)


def _records_in(source: str | Path, on_invalid: OnInvalid, problems: list[str] | None) -> list[RunRecord]:
    """Those of a file or folder of this machine."""
    path = Path(str(source).removeprefix("file:"))
    if not path.is_dir():
        return read_records(path, on_invalid=on_invalid, problems=problems)
    if any((path / name).is_file() for name in ("runs.jsonl", "runs.parquet", "run.json")):
        return read_records(path, on_invalid=on_invalid, problems=problems)
    indexes = sorted(path.glob("datasets/*-runs/main")) or sorted(path.glob("main/runs.jsonl"))
    records = sorted(path.glob("models/*/*/run.json")) or sorted(path.rglob("run.json"))
    files = indexes or [folder / "run.json" for folder in without_copies([file.parent for file in records])]
    if not files:
        raise FilesError(f"{path} has no run records: neither runs.jsonl nor runs.parquet nor a run.json below it")
    found: list[RunRecord] = []
    for file in files:
        found += read_records(file, on_invalid=on_invalid, problems=problems)
    return found


def read_file(source: str | Path, name: str, revision: str | None = None, *, kind: Kind = "model") -> bytes:
    """One file, e.g. `scaling_law.json`, of a folder here or of a repository of the Hub (from its cache when offline).

    Raises:
        NotFoundError: there is no such folder, repository, revision or file.
    """
    reference = repository(source)
    if reference is not None:
        return reference.store.read(kind, reference.name, name, revision or reference.revision)
    file = Path(str(source).removeprefix("file:")) / name
    if not file.is_file():
        raise NotFoundError(f"there is no file {file}")
    return file.read_bytes()


def publish_files(
    store: Store, repo: str, files: Mapping[str, Content], *, message: str, kind: Kind = "model"
) -> Publication:
    """Put files (a law, its card and figures) on the main branch of a repository, in one commit on the Hub.

    Files that are there with the same content are not sent again; others of the branch stay.

    Args:
        store: where to.
        repo: the repository's name, without organisation.
        files: name -> file or bytes; only names that a release may hold.
        message: says in the history what this is.
        kind: "model" or "dataset".

    Raises:
        FilesError: a name that is not allowed, metadata that the Hub would refuse, or an access token in a text.
    """
    for name in files:
        if not is_allowed(name):
            raise FilesError(f"file {name!r} is not on the list of what a release may hold")
    check_secrets(files)
    contents = {name: data if isinstance(data, bytes) else data.read_bytes() for name, data in files.items()}
    if "README.md" in contents:
        read_card(contents["README.md"].decode())

    def change(present: Mapping[str, bytes]) -> dict[str, bytes]:
        return {name: data for name, data in contents.items() if present.get(name) != data}

    return store.update(kind, repo, tuple(contents), change, message)
