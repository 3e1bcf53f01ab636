"""Sources of runs, laws and files, each named by one text: a file, a folder, a store or a repository of the Hub.

`organisation/name` is a repository of the Hub only if neither such a path nor a folder `organisation` exists here, and
if it does not end as files do; `hf://organisation/name` and `hf://datasets/organisation/name` always are. `@revision`
at the end picks a branch, tag or commit.
"""

from __future__ import annotations

import gzip
import logging
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hub.base import atomic, checksums
from hub.base.errors import FilesError, IntegrityError, NotFoundError, RecordError, UnavailableError, given, shorten
from hub.base.markdown import read_card
from hub.base.paths import local_path
from hub.record.names import index_name
from hub.record.run_record import RunRecord
from hub.record.table import (
    JSONL_NAME,
    MAX_FILE_BYTES,
    PARQUET_NAME,
    RECORD_NAME,
    TEXT_SUFFIXES,
    LoadedRows,
    require_readable,
    split_rows,
)
from hub.release.dataset_tables import load_table
from hub.release.index import list_runs, repository_of
from hub.store.base import Kind, Publication, Store
from hub.store.files import Contents, check_allowed, check_secrets, content_of, run_folders
from hub.store.hub import open_store

logger = logging.getLogger(__name__)

_REPOSITORY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)/([A-Za-z0-9][A-Za-z0-9._-]*)(?:@([A-Za-z0-9._/-]+))?")

_TABLES = (".jsonl", ".ndjson", ".parquet", ".json")
_COMPRESSED = tuple(f"{suffix}.gz" for suffix in (".jsonl", ".ndjson", ".json", *TEXT_SUFFIXES))
# Endings of files that are not read, the name of such a file, and what to do with it.
_UNSUPPORTED_TYPES = (
    (".xlsx .xls .xlsm .ods .numbers", "a workbook", "save its sheet as CSV"),
    (".pkl .pickle .pt .pth", "a pickle", "it could run code; write the table with to_csv"),
    (".feather .arrow .h5 .hdf5 .npz .npy", "a binary table", "write it with to_parquet or to_csv"),
    (".zip .tar .bz2 .xz .zst .7z", "an archive", "unpack it, or compress the table itself as .csv.gz"),
    (".db .sqlite .sqlite3", "a database", "a project of trackio is named trackio:PROJECT"),
    (".yaml .yml .toml .md .html .log .ipynb .wandb", "a file of this kind", "write the runs as a table"),
)
_UNSUPPORTED: dict[str, tuple[str, str]] = {}
for _suffixes, _label, _advice in _UNSUPPORTED_TYPES:
    _UNSUPPORTED.update(dict.fromkeys(_suffixes.split(), (_label, _advice)))
# Files that trackers leave in folders, and how their runs are read.
_TRACKER_FILES = {
    "**/*.wandb": "wandb sync uploads these runs of W&B, which are then read as wandb:ENTITY/PROJECT",
    "**/meta.yaml": "mlflow.search_runs().to_csv('runs.csv') writes these runs of MLflow as a table",
    "*.db": "projects of trackio are named trackio:PROJECT",
}
# Tables of a folder that an error names.
_MAX_TABLE_NAMES = 8
_FILE_SUFFIXES = {*_TABLES, *TEXT_SUFFIXES, ".gz", *_UNSUPPORTED}


@dataclass(frozen=True)
class RepositoryReference:
    """A repository of the Hub: `organisation/name`, at a revision if one was named."""

    organisation: str
    name: str
    revision: str | None = None

    @property
    def store(self) -> Store:
        return open_store(f"hf://{self.organisation}")


def repository(source: str | Path) -> RepositoryReference | None:
    """Parse the repository of the Hub that `source` names; None for a path here. FilesError for another `hf://`."""
    text = os.path.expanduser(source)
    is_explicit = text.startswith("hf://")
    if not is_explicit and (isinstance(source, Path) or Path(text).exists()):
        return None
    name = text.removeprefix("hf://datasets/").removeprefix("hf://")
    match = _REPOSITORY.fullmatch(name)
    if match is None and is_explicit:
        raise FilesError(f"{text!r}: allowed is hf://ORGANISATION/NAME, optionally with @REVISION")
    if match is None:
        return None
    if match[3] and ".." in match[3]:
        raise FilesError(f"{text!r}: the revision {match[3]!r} is not a branch, tag or commit")
    # A path whose end is missing here is not a repository.
    is_missing_path = Path(text).suffix.lower() in _FILE_SUFFIXES or Path(match[1]).is_dir()
    if is_missing_path and not is_explicit:
        return None
    return RepositoryReference(match[1], match[2], match[3])


def load_records(
    source: str | Path, *, revision: str | None = None, problems: list[str] | None = None
) -> list[RunRecord]:
    """Load run records from a file, a folder, a local store or the Hub.

    Args:
        source: a `.jsonl`, `.parquet` or `run.json` file; a folder that has one of them; the root of a local store, or
            a sweep's folder of checkpoints (every `run.json` below); or a dataset of the Hub, `org/sweep-runs`. If
            the organisation has no such dataset, the sweep's model repositories are read one by one.
        revision: branch, tag or commit of the dataset; the same as `org/sweep-runs@revision`.
        problems: given a list, broken rows are left out and their reasons are appended to it.

    Raises:
        RecordError: rows that break the schema.
        NotFoundError: the Hub has no such dataset, or it is not an index of runs.
        FilesError: the path does not exist or has no records, or a `revision` was given for a path.
    """
    return load_rows(source, revision=revision, problems=problems, foreign=False).rows


def load_rows(
    source: str | Path,
    *,
    revision: str | None = None,
    problems: list[str] | None = None,
    foreign: bool = True,
    config: str | None = None,
) -> LoadedRows:
    """Load run records with their source's name and commit, or the rows of any table of runs.

    Arguments are those of `load_records`. With `foreign`, rows that are not run records stay mappings; `.csv`, `.tsv`,
    `.txt` and `.json` tables are read, too, compressed or not; a folder with several sweeps is refused; and of a
    dataset on the Hub that is no index of runs, the tables of a `config` are read (`dataset_tables.load_table`).
    """
    if not isinstance(source, (str, Path)):
        raise FilesError(f"source={shorten(source)} must be the name of a file, a folder or a dataset on the Hub")
    reference = repository(source)
    if reference is not None:
        try:
            return _load_from_hub(reference, str(source), revision, problems, foreign, config)
        except (NotFoundError, UnavailableError) as error:
            if str(source).startswith("hf://"):
                raise
            # Somebody who mistyped a path looks for it here, not on the Hub.
            raise type(error)(f"no file or folder {source} here; on the Hub: {error}") from error
    for name, value in (("revision", revision), ("config", config)):
        if value is not None:
            raise FilesError(f"{source}: ", given(name, value), " only applies to a dataset on the Hub")
    path = _local_path(source)
    if not path.exists():
        raise FilesError(f"{source}: no such file or folder{_suggest(path)}")
    files = _find_tables(path) if path.is_dir() else [path]
    if foreign and len(files) > 1 and files[0].name != RECORD_NAME:
        names = ", ".join(str(file.parent.relative_to(path)) for file in files)
        raise FilesError(f"{path}: several sweeps ({names}); name one of these folders")
    rows: list[Any] = []
    for file in files:
        rows += _read_rows(file, foreign, problems)
    return LoadedRows(rows, path.name or str(source))


def _local_path(source: str | Path) -> Path:
    return local_path(str(source).removeprefix("file:"))


def _suggest(path: Path) -> str:
    """Say what else a missing path may have meant, for the end of an error."""
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    matches = get_close_matches(path.name, names, n=1)
    suffix = path.suffix.lower()
    if matches:
        return f"; did you mean {path.parent / matches[0]}?"
    if suffix in _UNSUPPORTED:
        return f", and {_UNSUPPORTED[suffix][0]} would not be read"
    if _REPOSITORY.fullmatch(str(path)) and suffix not in _FILE_SUFFIXES:
        return f"; a repository beside this folder is named hf://{path}"
    return "" if path.suffix or path.parent.name else ", and not a dataset on the Hub of the form org/sweep-runs"


def _read_rows(file: Path, foreign: bool, problems: list[str] | None) -> list[Any]:
    name = file.name.lower()
    _check_suffix(file, foreign)
    try:
        with gzip.open(file) if name.endswith(".gz") else file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise RecordError(f"{file.name}: not a readable gzip file ({error})") from None
    if name == RECORD_NAME or (name.endswith(".json") and not foreign):
        return [RunRecord.from_json(content, what=str(file))]
    checksums.check(file, content)
    if len(content) > MAX_FILE_BYTES:
        raise RecordError(f"{file.name}: more than {MAX_FILE_BYTES:,} bytes")
    label = file.name[:-3] if name.endswith(".gz") else file.name
    return require_readable(*split_rows(content, label, foreign=foreign), file.name, problems)


def _check_suffix(file: Path, foreign: bool) -> None:
    """Raise FilesError for a file whose name does not end as those of tables do."""
    suffixes = [*_TABLES, *TEXT_SUFFIXES] if foreign else list(_TABLES)
    compressed = _COMPRESSED if foreign else ()
    if file.name.lower().endswith((*suffixes, *compressed)):
        return
    unsupported = _UNSUPPORTED.get(file.suffix.lower())
    if foreign and unsupported is not None:
        label, advice = unsupported
        raise FilesError(f"{file}: {label} is not read: {advice}")
    hint = " (with or without .gz)" if foreign else ""
    raise FilesError(
        f"{file}: not a table of runs; allowed are a folder, or a file that ends in {', '.join(suffixes)}{hint}"
    )


def _load_from_hub(
    reference: RepositoryReference,
    source: str,
    revision: str | None,
    problems: list[str] | None,
    foreign: bool,
    config: str | None,
) -> LoadedRows:
    if revision is not None and reference.revision not in (None, revision):
        contradiction = f" contradicts the {reference.revision!r} after the @"
        raise FilesError(f"{source}: ", given("revision", revision), contradiction)
    revision = revision or reference.revision
    if config is not None:
        return load_table(reference.store, reference.name, revision, config, problems)
    sweep = reference.name.removesuffix("-runs")
    dataset = f"{reference.organisation}/{index_name(sweep)}"
    name = f"{dataset}@{revision}" if revision else dataset
    try:
        content, commit = reference.store.pinned("dataset", index_name(sweep), JSONL_NAME, revision)
    except NotFoundError as error:
        if foreign:
            with suppress(NotFoundError):
                return load_table(reference.store, reference.name, revision, None, problems)
        runs = [] if revision else list_runs(reference.store, sweep, problems=problems)
        if not runs:
            raise NotFoundError(f"{name}: {error}") from None
        return LoadedRows(runs, name, dataset)
    if not name.endswith(commit):
        name += f" ({commit[:12]})" if revision else f"@{commit[:12]}"
    return LoadedRows(require_readable(*split_rows(content), dataset, problems), name, dataset, commit)


def _table_in(folder: Path, *further_names: str) -> list[Path]:
    """Find the table in a folder itself: JSON lines, else parquet, else the first file of the further names."""
    paths = [folder / name for name in (JSONL_NAME, PARQUET_NAME, *further_names)]
    return [path for path in paths if path.is_file()][:1]


def _find_tables(folder: Path) -> list[Path]:
    """Find the tables of a folder of this machine, or where it has none, the records below it."""
    tables = _table_in(folder, RECORD_NAME) or _table_in(folder / "main")
    if tables:
        return tables
    for index in sorted(folder.glob("datasets/*-runs/main")):
        tables += _table_in(index)
    if tables:
        return tables
    try:
        return [run / RECORD_NAME for run in run_folders(folder)]
    except FilesError as error:
        problem = f"no run records ({JSONL_NAME}, {PARQUET_NAME}): {error}{_hint_at_files(folder)}"
        raise FilesError(problem) from None


def _hint_at_files(folder: Path) -> str:
    """Say which files of a folder without records may hold runs, for the end of an error."""
    suffixes = (*_TABLES, *TEXT_SUFFIXES, ".gz")
    names = sorted(path.name for path in folder.iterdir() if path.name.endswith(suffixes))
    if names:
        return f"; name one of its tables: {', '.join(names[:_MAX_TABLE_NAMES])}"
    for pattern, advice in _TRACKER_FILES.items():
        if any(folder.glob(pattern)):
            return f"; {advice}"
    return ""


def read_file(source: str | Path, name: str, revision: str | None = None, *, kind: Kind = "model") -> bytes:
    """Read a file, e.g. `scaling_law.json`, of a folder or of a repository of the Hub (from its cache when offline).

    Raises NotFoundError for no such folder, repository, revision or file.
    """
    reference = repository(source)
    if reference is not None:
        return reference.store.read(kind, reference.name, name, revision or reference.revision)
    file = _local_path(source) / name
    if not file.is_file():
        raise NotFoundError(f"{file} does not exist")
    return file.read_bytes()


def publish_files(store: Store, repo: str, files: Contents, *, message: str, kind: Kind = "model") -> Publication:
    """Put files (a law, its card and figures) on `main` of a repository, in one commit on the Hub; others stay.

    `repo` is the name without organisation. Raises FilesError for a name that is not allowed, metadata that the Hub
    would refuse, or an access token in a text.
    """
    check_allowed(files)
    check_secrets(files)
    contents = {name: content_of(data) for name, data in files.items()}
    if "README.md" in contents:
        read_card(contents["README.md"].decode())
    return store.update(kind, repo, (), lambda _: contents, message)


def pull_run(store: Store, record: RunRecord, destination: Path | None = None) -> Path:
    """Fetch one run's checkpoint, every file compared with its hash, and the weights with the record, too.

    `destination` must be new or empty; without one the store's own folder (the Hub's cache) is returned.

    Raises:
        NotFoundError: the record was never released, or is gone.
        IntegrityError: a file is damaged, or the weights are not those that were released.
        UnavailableError: the Hub cannot be reached, and the cache lacks the run.
    """
    revision = record.commit or record.branch
    if record.weights_sha256 is None or revision is None:
        raise NotFoundError(f"run {record.run_id} has no released weights")
    repo = repository_of(record)
    folder = store.fetch(repo, revision, destination)
    sha256 = atomic.weights_sha256(folder)
    if sha256 != dict(record.weights_sha256):
        raise IntegrityError(
            f"the weights of run {record.run_id} at {repo}@{revision} have sha256 {sha256}, "
            f"the index says {dict(record.weights_sha256)}"
        )
    return folder


def pull_runs(
    store: Store, records: Iterable[RunRecord], destination: Path | None = None
) -> Iterator[tuple[RunRecord, Path]]:
    """Fetch several checkpoints, one after the other, each into `destination/<repository>/<branch>`."""
    for record in records:
        folder = None
        if destination is not None:
            folder = destination / repository_of(record) / (record.branch or record.commit or "main")
        yield record, pull_run(store, record, folder)
