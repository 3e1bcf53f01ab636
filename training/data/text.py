"""The sources of training text, and the order in which they are read.

Only the text column must be there. Files are often sorted, FineWeb-Edu's by crawl, which would confound the number of
tokens D with the crawl, so every prefix of a shuffled source is a sample of all of it (`OpenText`).
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hub.base import atomic
from hub.base.atomic import sha256_of
from hub.base.errors import InputError
from hub.base.paths import check_links
from hub.base.types import Fields
from training.data.files import (
    ALLOWED,
    JSON,
    PARQUET,
    format_of,
    json_rows,
    open_parquet,
    parquet_rows,
    rows_before,
    size_of,
)

# Compressed bytes of a part of a file, some 2.5M tokens of FineWeb-Edu.
PART_BYTES = 8 << 20
# Parts that are read together.
GROUP = 16
# It is in a cache's recipe: another way to order the text makes another cache.
ORDER_RECIPE = {"drawn": "parts", "part_bytes": PART_BYTES, "group": GROUP}
# Documents fall into this many buckets by the hash of their text or id.
HELD_OUT_BUCKETS = 1000
# Rows that `documents` reads at a time.
_ROWS_AT_A_TIME = 64
# If none of the first rows of a file has the text column, the file lacks it.
_ROWS_FOR_COLUMNS = 64


class Place(NamedTuple):
    """Position of a reader in a source, as plain JSON values.

    Attributes:
        documents: documents before this place, counted after the held-out selection.
        last: sha256 of the last of them, which is checked on resuming; "" at the beginning.
        group: number of the first part of the group that is being read.
        in_group: documents of that group before this place.
    """

    documents: int = 0
    last: str = ""
    group: int = 0
    in_group: int = 0

    def after(self, texts: list[str], count: int) -> Place:
        """Return the place after the first `count` of the texts that follow this one."""
        last = _digest(texts[count - 1])
        return Place(self.documents + count, last, self.group, self.in_group + count)


@dataclass(frozen=True)
class TextSource:
    """One split of a dataset on the Hub, or of local files.

    Attributes:
        dataset: its name, or a local folder or file; `~` is the home folder.
        held_out_buckets: documents that hash to a bucket below this (of 1000) are held out of this split.
        held_out_by: what is hashed, the "text" or the "id"; by their id, copies of a text are on both sides.
        held_out: whether this source is that held-out part or the rest.
        file_seed: seed of the order in which the files are read; None reads them as stored.
    """

    dataset: str
    config: str | None = None
    revision: str | None = None
    split: str = "train"
    text_column: str = "text"
    held_out_buckets: int = 0
    held_out: bool = False
    file_seed: int | None = None
    held_out_by: str = "text"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", os.path.expanduser(self.dataset))

    def identify(self, checksums: Path | None = None) -> dict[str, str | None]:
        """Return `dataset` and `revision` as in records; of local files the folder's name and a hash of them all.

        `checksums` is a file that remembers those of unchanged files. Raises as `check_dataset_exists`.
        """
        if not is_local_path(self.dataset):
            return {"dataset": self.dataset, "revision": self.revision}
        check_dataset_exists(self.dataset)
        root = Path(self.dataset)
        paths = [root] if root.is_file() else _readable_paths(root)
        listing = "\n".join(f"{name} {sha256}" for name, sha256 in _checksums(paths, checksums))
        return {"dataset": root.resolve().name, "revision": "sha256:" + _digest(listing)}

    def documents(self) -> Iterator[str]:
        """Yield the texts in order. Raises as `batches`."""
        for texts, _ in self.batches(_ROWS_AT_A_TIME):
            yield from texts

    def batches(self, size: int, start: Place | None = None) -> Iterator[tuple[list[str], Place]]:
        """Yield up to `size` texts at a time from a place on, each batch with the place where it begins.

        A batch ends with its group; only the group of `start` is read again from its beginning.

        Raises:
            FileNotFoundError: a local path that does not exist or holds no data files.
            ValueError: no such split or text column, a value that is not text, a file that cannot be read (of JSON
                lines with the line), or the documents before a place have changed.
        """
        text = OpenText(self)
        place: Place | None = start or Place()
        while place is not None:
            yield from text.batches(size, place)
            place = text.following

    def selects(self, row: dict) -> bool:
        """Return whether a row is in the part that this source is: the held-out one, or the rest."""
        if not self.held_out_buckets:
            return True
        # Datasets without ids are split by their text; both are stable against reordering.
        row_id = row.get("id") if self.held_out_by == "id" else None
        key = row[self.text_column] if row_id is None else str(row_id)
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        bucket = int.from_bytes(digest[:8], "big") % HELD_OUT_BUCKETS
        return (bucket < self.held_out_buckets) == self.held_out

    def list_files(self) -> list[str]:
        """List the files of the split, absolute paths or URLs of the Hub. Raises as `batches`."""
        check_dataset_exists(self.dataset)
        path = Path(self.dataset)
        if path.is_file():
            if format_of(path.name) is None:
                raise InputError(f"data.dataset: the file {self.dataset!r} must be {ALLOWED}")
            return [os.path.abspath(path)]
        if path.is_dir():
            root = path.resolve()
            with _links_to(root) as folder:
                links = self._list_split(str(folder))
            return [str(root / Path(link).relative_to(folder)) for link in links]
        return self._list_split(self.dataset, name=self.config, revision=self.revision)

    def stream(self, files: list[str]) -> dict[str, Iterable[dict]]:
        """Open those of the split's files that are not read here by `datasets`: the rows of each.

        Raises InputError for files that it would cut off.
        """
        import datasets

        options = {} if Path(self.dataset).is_dir() else {"name": self.config, "revision": self.revision}
        rows = datasets.load_dataset(self.dataset, split=self.split, streaming=True, **options)
        streams = {}
        for number, file in enumerate(files):
            if format_of(file) is None:
                # fsspec ends at the first frame of such a file, and at the end of a truncated one, without a word.
                if file.endswith(".zst"):
                    raise InputError(f"data.dataset: {file} cannot be read; of .zst files .json and .jsonl are")
                streams[file] = rows.shard(len(files), number)
        return streams

    def _list_split(self, path: str, **options: str | None) -> list[str]:
        """List the files that `datasets` finds for the split under a path or a name."""
        import datasets
        import huggingface_hub

        # The listing that huggingface_hub 2.4 caches after resolving one glob lacks the folders that the glob did not
        # touch, and a second load in the same process then finds no data files.
        huggingface_hub.HfFileSystem.clear_instance_cache()
        try:
            files_by_split = datasets.load_dataset_builder(path, **options).config.data_files or {}
            if self.split not in files_by_split:
                raise ValueError(f"no such split; there are {list(map(str, files_by_split))}")
            return list(files_by_split[self.split])
        except (ValueError, FileNotFoundError) as error:
            reason = str(error).replace(path, self.dataset)
            raise InputError(f"data.dataset {self.dataset!r}, split {self.split!r}: {reason}") from error


def _data_paths(root: Path) -> list[Path]:
    """List the data files below a folder, sorted."""
    return sorted(path for path in root.rglob("*") if format_of(path.name) and path.is_file())


def _readable_paths(root: Path) -> list[Path]:
    """List the files of a folder that its text may come from, sorted: where a README selects files, any of them."""
    paths = {*_data_paths(root)}
    readme = root / "README.md"
    if readme.exists() and "data_files" in readme.read_text(encoding="utf-8", errors="replace"):
        for path in root.rglob("*"):
            is_hidden = any(name.startswith(".") for name in path.relative_to(root).parts)
            if path.is_file() and path != readme and not is_hidden:
                paths.add(path)
    return sorted(paths)


@contextmanager
def _links_to(root: Path) -> Iterator[Path]:
    """Make a folder of links to the files of another that `datasets` is to see.

    It takes brackets, asterisks and such in a path for patterns, and reads notes (.txt) as data where these are more
    than the data files.
    """
    with TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        for path in _paths_of_text(root):
            link = folder / path.relative_to(root)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        yield folder


def _paths_of_text(root: Path) -> list[Path]:
    """List a folder's data files, all of one format; or its README, which may select files, and any of them.

    A few plain .json files beside more of parquet are taken for notes. Raises InputError for other mixtures: the files
    of one format would not be read.
    """
    from datasets.data_files import FILES_TO_IGNORE

    readme = root / "README.md"
    if readme.exists():
        return [readme, *_readable_paths(root)]
    parquet: list[Path] = []
    json_files: list[Path] = []
    for path in _data_paths(root):
        is_hidden = any(name.startswith((".", "__")) for name in path.relative_to(root).parts)
        if path.name not in FILES_TO_IGNORE and not is_hidden:
            (parquet if path.suffix == ".parquet" else json_files).append(path)
    are_notes = all(path.suffix == ".json" for path in json_files) and len(json_files) < len(parquet)
    if parquet and json_files and not are_notes:
        raise InputError(
            f"data.dataset: the folder {str(root)!r} mixes formats, such as {parquet[0]} and {json_files[0]}; it must "
            "hold either parquet or JSON files"
        )
    return parquet or json_files


def _check_text(text: object, column: str, place: str) -> None:
    """Raise InputError for a value that is not text, or not Unicode."""
    if not isinstance(text, str):
        value = f"{column!r} holds {str(text)[:40]!r} of type {type(text).__name__} in {place}"
        raise InputError(f"data.text_column: {value}; it must hold text")
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        character = f"the lone surrogate {text[error.start]!a} at character {error.start + 1:,} of its text"
        raise InputError(f"data.dataset: {place} has {character}; it must be valid Unicode") from None


class Part(NamedTuple):
    """Part `number` of the `parts_of_file` that a file of `size` bytes is cut into."""

    file: str
    size: int
    number: int
    parts_of_file: int


class Lane(NamedTuple):
    """The rows of a part, of which there are `weight`, or in another unit; `before` of its file come before them."""

    weight: float
    file: str
    before: int
    rows: Iterable[dict]


class OpenText:
    """Text of a source in parts, of which groups of 16 are read together.

    A parquet file of n MB is cut into n / 8 parts of whole row groups; another file is one part. With a seed, each
    prefix is a sample of all rows: the parts are sorted by a hash of (seed, file name, number), so no file is opened
    for it, and row k of a part of n rows comes at time (k + 1/2) / n of its group. Within a part the stored order
    remains, for `batches` to shuffle. Without a seed, the parts come as they are stored, one after the other.

    Attributes:
        following: the place where the next group begins once a group was read to its end, None after the last one.
        without_text: names of the rows whose text is null, which are passed over, also when they are read again.
    """

    def __init__(self, source: TextSource):
        self._source = source
        self.following: Place | None = None
        self.without_text: deque[str] = deque()
        # Row groups of the files opened so far.
        self._row_groups: dict[str, int] = {}
        # Rows of the files that `datasets` reads.
        self._streams: dict[str, Iterable[dict]] = {}

    @cached_property
    def _parts(self) -> list[Part]:
        files = self._source.list_files()
        if None in map(format_of, files):
            self._streams = self._source.stream(files)
        return _ordered_parts(files, self._source.file_seed)

    def batches(self, size: int, start: Place) -> Iterator[tuple[list[str], Place]]:
        """Yield batches like `TextSource.batches`, up to the end of the group."""
        with ExitStack() as stack:
            lanes, end = self._open_group(start.group, stack)
            documents = self._documents(lanes)
            last_text = deque(itertools.islice(documents, start.in_group), maxlen=1)
            if start.in_group and _digest("".join(last_text)) != start.last:
                raise InputError(f"data.dataset: {self._source.dataset!r} has changed since its token cache was begun")
            place = start
            while texts := list(itertools.islice(documents, size)):
                yield texts, place
                place = place.after(texts, len(texts))
            self.following = place._replace(group=end, in_group=0) if end < len(self._parts) else None

    def _documents(self, lanes: list[Lane]) -> Iterator[str]:
        """Yield the texts of a group. Raises as `TextSource.batches`."""
        source = self._source
        timed_rows = (self._timed_rows(number, lane) for number, lane in enumerate(lanes))
        for _, _, row, place in heapq.merge(*timed_rows, key=itemgetter(0, 1)):
            text = row.get(source.text_column)
            if text is None:
                self.without_text.append(place)
                continue
            _check_text(text, source.text_column, place)
            if source.selects(row):
                yield text

    def _timed_rows(self, number: int, lane: Lane) -> Iterator[tuple[float, int, dict, str]]:
        """Yield (time, number of the lane, row, its place): rows in proportion to weights, or as stored."""
        is_shuffled = self._source.file_seed is not None
        for k, row in enumerate(lane.rows):
            time = (k + 0.5) / lane.weight if is_shuffled else 0.0
            yield time, number, row, f"row {lane.before + k + 1:,} of {lane.file}"

    def _open_group(self, start: int, stack: ExitStack) -> tuple[list[Lane], int]:
        """Open the next parts from `start` that hold rows, and return the number of the part after them, too.

        Large row groups leave parts empty.
        """
        lanes: list[Lane] = []
        end = start
        # Opening a file on the Hub is waiting.
        with ThreadPoolExecutor(GROUP) as threads:
            while end < len(self._parts) and len(lanes) < GROUP:
                candidates = self._parts[end : end + GROUP - len(lanes)]
                end += len(candidates)
                lanes += filter(None, threads.map(lambda candidate: self._open(candidate, stack), candidates))
        return lanes, end

    def _open(self, file_part: Part, stack: ExitStack) -> Lane | None:
        """Open a part; None for one without rows."""
        name = file_part.file
        if name in self._streams or format_of(name) == JSON:
            return Lane(file_part.size, name, 0, self._checked_rows(name))
        if not self._row_groups_of(file_part):
            return None
        file = open_parquet(name, stack)
        self._row_groups[name] = file.num_row_groups
        groups = self._row_groups_of(file_part)
        n_rows = sum(file.metadata.row_group(i).num_rows for i in groups)
        if not n_rows:
            return None
        names = file.schema_arrow.names
        if self._source.text_column not in names:
            raise self._no_column(name, names)
        columns = [column for column in ("id", self._source.text_column) if column in names]
        return Lane(n_rows, name, rows_before(file, groups), parquet_rows(file, name, groups, columns))

    def _checked_rows(self, name: str) -> Iterator[dict]:
        """Yield the rows of a file that is not parquet; single rows may lack the text column, which is null there."""
        rows = iter(self._streams[name]) if name in self._streams else json_rows(name)
        first_rows = list(itertools.islice(rows, _ROWS_FOR_COLUMNS))
        if first_rows and not any(self._source.text_column in row for row in first_rows):
            raise self._no_column(name, sorted(set().union(*first_rows)))
        yield from first_rows
        yield from rows

    def _no_column(self, file: str, names: list[str]) -> InputError:
        column = self._source.text_column
        return InputError(f"data.text_column: no column {column!r} in {file}; it has {names}")

    def _row_groups_of(self, file_part: Part) -> range:
        """Return the row groups of a part; before its file is opened, a guess that is not empty."""
        count = file_part.parts_of_file
        n_groups = self._row_groups.get(file_part.file, count)
        start = file_part.number * n_groups // count
        end = (file_part.number + 1) * n_groups // count
        return range(start, end)


def _ordered_parts(files: list[str], seed: int | None) -> list[Part]:
    """Sort the parts of all files by a hash of the seed and of what tells them apart, wherever their folder is."""
    file_parts = []
    for file in files:
        size = size_of(file)
        count = max(1, round(size / PART_BYTES)) if format_of(file) == PARQUET else 1
        file_parts += [Part(file, size, number, count) for number in range(count)]
    if seed is None:
        return file_parts
    common = len(os.path.commonprefix(files))  # noqa: RUF071 (of strings: may be URLs)
    if len(files) == 1:
        common = files[0].rfind("/") + 1

    def shuffled_place(file_part: Part) -> bytes:
        return hashlib.sha256(f"{seed}:{file_part.file[common:]}:{file_part.number}".encode()).digest()

    return sorted(file_parts, key=shuffled_place)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _checksums(paths: list[Path], memory: Path | None) -> Iterator[tuple[str, str]]:
    """Yield (name, sha256) of files; those that `memory` has with their size and time of change are not read."""
    remembered: Fields = atomic.read_json(memory, {}, Fields) if memory else {}
    current: Fields = {**remembered}
    for path in paths:
        status = path.stat()
        name = str(path.resolve())
        size_and_time = [status.st_size, status.st_mtime_ns]
        entry = remembered.get(name)
        if not entry or entry[:2] != size_and_time:
            entry = [*size_and_time, sha256_of(path)]
        current[name] = entry
        yield path.name, entry[2]
    if memory and current != remembered:
        atomic.write_json(memory, current)


def is_local_path(name: str) -> bool:
    """Return whether a dataset or tokenizer is named by a path that exists, or by a name that is written as a path."""
    path = os.path.expanduser(name)
    return os.path.lexists(path) or name.startswith((".", "~", os.sep)) or format_of(name) is not None


def check_dataset_exists(dataset: str) -> None:
    """Raise FileNotFoundError for a local dataset that is missing or empty; Hub names are not looked up.

    Raises FilesError for a link to a file that is gone, which readers would pass over: the rest is another dataset.
    """
    if not is_local_path(dataset):
        return
    path = Path(os.path.expanduser(dataset))
    entries = path.rglob("*") if path.is_dir() else []
    check_links([path, *(entry for entry in entries if not entry.name.startswith("."))], "data.dataset")
    if not path.exists():
        raise FileNotFoundError(f"data.dataset: {dataset!r} does not exist; give a folder or file of {ALLOWED}")
    if path.is_dir() and not _data_paths(path):
        raise FileNotFoundError(f"data.dataset: the folder {dataset!r} holds no file of {ALLOWED}")
