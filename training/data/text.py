"""The sources of training text, and the order in which they are read.

Only the text column must be there. Files are often sorted, FineWeb-Edu's by crawl, which would confound the number of
tokens D with the crawl, so every prefix of a shuffled source is a sample of all of it (`GroupedRows`).
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from fsspec.core import url_to_fs
from pyarrow.parquet import ParquetFile

from hub.base.atomic import sha256_of, write_bytes
from hub.base.errors import InputError

PART_BYTES = 8 << 20  # of a file, compressed: some 2.5M tokens of FineWeb-Edu
GROUP = 16  # parts that are read together
# In a cache's recipe: another way to order the text makes another cache.
ORDER_RECIPE = {"drawn": "parts", "part_bytes": PART_BYTES, "group": GROUP}
HELD_OUT_BUCKETS = 1000  # documents fall into this many buckets by the hash of their id
_UNREADABLE = (pa.ArrowException, UnicodeDecodeError)  # what a damaged or empty file raises; `datasets` logs which
_DATA_SUFFIXES = {".parquet", ".json", ".jsonl"}
_ROWS_AT_A_TIME = 64  # decoded of one part: their texts lie in memory for each part of a group
_BUFFER_BYTES = 1 << 20  # of a column's pages: a row group of 100 MB need not lie in memory whole


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
        """The place after the first `count` of the texts that follow this one."""
        last = _digest(texts[count - 1])
        return Place(self.documents + count, last, self.group, self.in_group + count)


@dataclass(frozen=True)
class TextSource:
    """One split of a dataset on the Hub, or of local parquet or jsonl files.

    Attributes:
        dataset: its name, or a local folder or file.
        held_out_buckets: documents whose id hashes to a bucket below this (of 1000) are held out of this split.
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

    def identify(self, checksums: Path | None = None) -> dict[str, str | None]:
        """`dataset` and `revision` as a record states them; for local files the folder's name and a hash of them all.

        `checksums` is a file that remembers those of unchanged files. Raises as `check_dataset_exists`.
        """
        if not is_local_path(self.dataset):
            return {"dataset": self.dataset, "revision": self.revision}
        check_dataset_exists(self.dataset)
        root = Path(self.dataset)
        paths = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.suffix in _DATA_SUFFIXES)
        listing = "\n".join(f"{name} {sha256}" for name, sha256 in _checksums(paths, checksums))
        return {"dataset": root.resolve().name, "revision": "sha256:" + _digest(listing)}

    def check_formats(self) -> None:
        """Raise InputError for a local folder of several formats, of which only one would be read."""

    def documents(self) -> Iterator[str]:
        """Yield the texts in order. Raises as `open`."""
        return (text for texts, _ in self.batches(_ROWS_AT_A_TIME) for text in texts)

    def batches(self, size: int, start: Place | None = None) -> Iterator[tuple[list[str], Place]]:
        """Yield up to `size` texts at a time from a place on, each batch with the place where it begins.

        A batch ends with its group; only the group of `start` is read again from its beginning. Raises as `open`.
        """
        text, place = self.open(), start or Place()
        while place is not None:
            yield from text.batches(size, place)
            place = text.following

    def open(self) -> OpenText:
        """The text, to be read; it is looked up when that begins, once.

        Raises in reading:
            FileNotFoundError: a local path that does not exist or holds no data files.
            ValueError: no such split or text column, a text that is none, a file that cannot be read (of JSON lines
                with the line), or the documents before a place have changed.
        """
        return OpenText(self)

    def selects(self, row: dict) -> bool:
        """Whether a row is in the part that this source is: the held-out one, or the rest."""
        if not self.held_out_buckets:
            return True
        # Datasets without ids are split by their text; both are stable against reordering.
        key = str(row["id"]) if row.get("id") is not None else row[self.text_column]
        bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % HELD_OUT_BUCKETS
        return (bucket < self.held_out_buckets) == self.held_out

    def loading_options(self) -> tuple[str, dict]:
        """Name and options of the dataset for `datasets.load_dataset`."""
        path = Path(self.dataset)
        if path.is_file():
            return "parquet" if path.suffix == ".parquet" else "json", {"data_files": {self.split: str(path)}}
        return self.dataset, {} if path.exists() else {"name": self.config, "revision": self.revision}

    def rows(self) -> GroupedRows:
        """The rows of the split. Raises as `open`."""
        import datasets
        import huggingface_hub

        check_dataset_exists(self.dataset)
        name, options = self.loading_options()
        # The listing that huggingface_hub 2.4 caches after resolving one glob lacks the folders that the glob did not
        # touch, and a second load in the same process then finds no data files.
        huggingface_hub.HfFileSystem.clear_instance_cache()
        data_files: dict[str, list[str]] = {}
        try:
            builder = datasets.load_dataset_builder(name, **options)
            data_files = builder.config.data_files or {}
            splits = builder.as_streaming_dataset(split=None)
            if self.split not in splits:
                raise InputError(f"no such split; there are {list(splits)}")
            rows = splits[self.split]
            names = rows.column_names or list(next(iter(rows), {}))
        except _UNREADABLE as error:
            raise self.unreadable(error, itertools.chain(*data_files.values())) from error
        except StopIteration:  # of `datasets`
            raise InputError(f"data.dataset: a file of {self.dataset!r} is empty; remove it") from None
        except ValueError as error:
            raise InputError(f"data.dataset {self.dataset!r}, split {self.split!r}: {error}") from error
        if self.text_column not in names:
            raise InputError(f"data.text_column: no column {self.text_column!r} in {self.dataset!r}; it has {names}")
        columns = [column for column in ("id", self.text_column) if column in names]
        rows = rows.select_columns(columns)
        files = data_files.get(self.split)
        if files is not None and (rows.num_shards == len(files) or all(map(_is_parquet, files))):
            return GroupedRows(files, self.file_seed, columns, partial(rows.shard, len(files)))
        if self.file_seed is not None:
            raise InputError(f"data.order: 'shuffled'; it must be 'stored': {self.dataset!r} is not read file by file")
        return GroupedRows([self.dataset], None, columns, lambda _: rows)  # one part, read front to back

    def unreadable(self, error: Exception, files: Iterable[str]) -> ValueError:
        """What to raise for an error of reading one of these files: which line it is about, where that can be told."""
        return InputError(f"data.dataset: {broken_line(files) or f'{self.dataset!r} cannot be read: {error}'}")


class OpenText:
    """Text that is read group by group: the parts that are read together.

    `following` is the place where the next group begins once a group was read to its end, None after the last one.
    Rows whose text is null are passed over; `without_text` names them, also again when they are read again.
    """

    def __init__(self, source: TextSource):
        self._source = source
        self.following: Place | None = None
        self.without_text: deque[str] = deque()

    @cached_property
    def _rows(self) -> GroupedRows:
        return self._source.rows()

    def group_starts(self) -> list[int]:
        """Numbers of the parts at which the groups begin; every parquet file is opened for that, but not read."""
        return self._rows.group_starts()

    def batches(self, size: int, start: Place) -> Iterator[tuple[list[str], Place]]:
        """Yield batches like `TextSource.batches`, up to the end of the group."""
        documents, place, last = self._documents(start.group), start, ""
        for last in itertools.islice(documents, start.in_group):  # noqa: B007 (the last one is used)
            pass
        if start.in_group and _digest(last) != start.last:
            raise InputError(f"data.dataset: {self._source.dataset!r} has changed since its token cache was begun")
        while texts := list(itertools.islice(documents, size)):
            yield texts, place
            place = place.after(texts, len(texts))
        end = self._rows.group_end
        self.following = None if end is None else place._replace(group=end, in_group=0)

    def _documents(self, group: int) -> Iterator[str]:
        """The texts of a group. Raises as `TextSource.open`."""
        source = self._source
        try:
            for row, file, number in self._rows.read(group):
                text = row[source.text_column]
                if text is None:
                    self.without_text.append(f"row {number:,} of {file}")
                    continue
                if not isinstance(text, str):
                    column = f"data.text_column: {source.text_column!r}"
                    raise InputError(f"{column} holds {text!r} in a row of {source.dataset!r}")
                if source.selects(row):
                    yield text
        except _UNREADABLE as error:
            raise source.unreadable(error, self._rows.files) from error


class Part(NamedTuple):
    """Part `number` of the `count` that a file is cut into."""

    file: int
    number: int
    count: int


class Lane(NamedTuple):
    """The rows of a part, of which there are `weight`, or in another unit; `before` of its file come before them."""

    weight: float
    file: str
    before: int
    rows: Iterable[dict]


class GroupedRows:
    """Rows of a split in parts, of which groups of 16 are read together.

    A parquet file of n MB is cut into n / 8 parts of whole row groups; other files are one part. With a seed, each
    prefix is a sample of all rows: the parts are sorted by a hash of (seed, file name, number), so no file is opened
    for it, and row k of a part of n rows comes at time (k + 1/2) / n of its group. Within a part the stored order
    remains, for `batches` to shuffle. Without a seed, the parts come as they are stored, one after the other.

    Attributes:
        files: URLs or paths of the files of the split.
        group_end: the part after the group that was read last; None where that was the last one.

    Args:
        columns: wanted of parquet files; those that a file lacks are left out.
        rows_of_file: the rows of one file of another format.
    """

    def __init__(
        self,
        files: list[str],
        seed: int | None,
        columns: list[str],
        rows_of_file: Callable[[int], Iterable[dict]],
    ):
        self.files, self._columns, self._rows_of_file = files, columns, rows_of_file
        self._sizes, self._shuffled = [_size(file) for file in files], seed is not None
        self._parts = _ordered_parts(files, self._sizes, seed)
        self._row_groups: dict[int, int] = {}  # of the files opened so far
        self.group_end: int | None = None

    def read(self, group: int) -> Iterator[tuple[dict, str, int]]:
        """Yield the rows of the group that begins at a part, each with its file and its number there, from 1."""
        with ExitStack() as opened:
            lanes, end = self._open_group(group, opened)
            self.group_end = end if end < len(self._parts) else None
            timed = (self._timed(number, lane) for number, lane in enumerate(lanes))
            for _, _, row, file, number in heapq.merge(*timed, key=itemgetter(0, 1)):
                yield row, file, number

    def _timed(self, number: int, lane: Lane) -> Iterator[tuple[float, int, dict, str, int]]:
        """Yield (time, number of the lane, row, file, row's number): rows in proportion to weights, or as stored."""
        for k, row in enumerate(lane.rows):
            yield (k + 0.5) / lane.weight if self._shuffled else 0.0, number, row, lane.file, lane.before + k + 1

    def group_starts(self) -> list[int]:
        """Numbers of the first parts of the groups, as iterating finds them."""
        files = [i for i, file in enumerate(self.files) if _is_parquet(file)]
        with ThreadPoolExecutor(GROUP) as threads:
            sizes = dict(zip(files, threads.map(self._row_group_sizes, files), strict=True))
        self._row_groups.update((i, len(counts)) for i, counts in sizes.items())
        held = [
            number
            for number, part in enumerate(self._parts, start=1)
            if part.file not in sizes or any(sizes[part.file][i] for i in self._row_groups_of(part))
        ]
        return [start for start in [0, *held[GROUP - 1 :: GROUP]] if start < len(self._parts)]

    def _row_group_sizes(self, number: int) -> list[int]:
        with ExitStack() as opened:
            metadata = self._parquet(number, opened).metadata
            return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    def _parquet(self, number: int, opened: ExitStack) -> ParquetFile:
        from datasets.utils.file_utils import xopen  # with retries, and the Hub's token

        return ParquetFile(opened.enter_context(xopen(self.files[number], "rb")), buffer_size=_BUFFER_BYTES)

    def _open_group(self, at: int, opened: ExitStack) -> tuple[list[Lane], int]:
        """The next parts from `at` that hold rows (large row groups leave parts empty), and the part after."""
        lanes: list[Lane] = []
        with ThreadPoolExecutor(GROUP) as threads:  # on the Hub, opening is waiting
            while at < len(self._parts) and len(lanes) < GROUP:
                some = self._parts[at : at + GROUP - len(lanes)]
                at += len(some)
                lanes += filter(None, threads.map(lambda part: self._open(part, opened), some))
        return lanes, at

    def _open(self, part: Part, opened: ExitStack) -> Lane | None:
        name = self.files[part.file]
        if not _is_parquet(name):
            return Lane(self._sizes[part.file], name, 0, self._rows_of_file(part.file))
        if not self._row_groups_of(part):
            return None
        file = self._parquet(part.file, opened)
        self._row_groups[part.file] = file.num_row_groups
        groups = self._row_groups_of(part)
        before, n_rows = (
            sum(file.metadata.row_group(i).num_rows for i in some) for some in (range(groups.start), groups)
        )
        columns = [name for name in self._columns if name in file.schema_arrow.names]
        batches = file.iter_batches(_ROWS_AT_A_TIME, list(groups), columns, use_threads=False)
        return Lane(n_rows, name, before, (row for batch in batches for row in batch.to_pylist())) if n_rows else None

    def _row_groups_of(self, part: Part) -> range:
        """The row groups of a part; before its file is opened, a guess that is not empty."""
        n = self._row_groups.get(part.file, part.count)
        return range(part.number * n // part.count, (part.number + 1) * n // part.count)


def _is_parquet(file: str) -> bool:
    return file.partition("?")[0].endswith(".parquet")


def _ordered_parts(files: list[str], sizes: list[int], seed: int | None) -> list[Part]:
    """The parts of all files, sorted by a hash of the seed and of what tells them apart, wherever their folder is."""
    common = len(os.path.commonprefix(files)) if len(files) > 1 else 0  # noqa: RUF071 (of strings: may be URLs)
    names = [file[common:] for file in files] if len(files) > 1 else [os.path.basename(files[0])]
    parts = []
    for i, (file, size) in enumerate(zip(files, sizes, strict=True)):
        count = max(1, round(size / PART_BYTES)) if _is_parquet(file) else 1
        parts += [Part(i, number, count) for number in range(count)]
    if seed is None:
        return parts
    return sorted(parts, key=lambda part: hashlib.sha256(f"{seed}:{names[part.file]}:{part.number}".encode()).digest())


def broken_line(files: Iterable[str]) -> str | None:
    """The first line in these files of JSON lines that is no JSON object, and what is wrong; None if there is none."""
    from datasets.utils.file_utils import xopen

    for file in files:
        if not file.partition("?")[0].endswith((".json", ".jsonl")):
            continue
        with xopen(file, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if number == 1 and line.startswith(b"["):  # one array, which is read as such
                    break
                try:
                    if line.strip() and not isinstance(json.loads(line.strip()), dict):
                        return f"{file}, line {number:,} is no JSON object but {line[:40]!r}"
                except ValueError as error:
                    return f"{file}, line {number:,} is no JSON: {getattr(error, 'msg', error)}"
    return None


def _size(file: str) -> int:
    """Bytes of a file, on the Hub from the cached listing; 1 where they are unknown."""
    system, path = url_to_fs(file)
    try:
        return system.info(path).get("size") or 1
    except (OSError, NotImplementedError):
        return 1


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _checksums(paths: list[Path], memory: Path | None) -> Iterator[tuple[str, str]]:
    """(name, sha256) of files; those that `memory` knows by their size and time of change are not read."""
    remembered = json.loads(memory.read_text()) if memory is not None and memory.exists() else {}
    now = {}
    for path in paths:
        status, name = path.stat(), str(path.resolve())
        size_and_time = [status.st_size, status.st_mtime_ns]
        entry = remembered.get(name)
        now[name] = entry if entry and entry[:2] == size_and_time else [*size_and_time, sha256_of(path)]
        yield path.name, now[name][2]
    if memory is not None and any(remembered.get(name) != entry for name, entry in now.items()):
        write_bytes(memory, json.dumps({**remembered, **now}, indent=0).encode())


def is_local_path(name: str) -> bool:
    """Whether a dataset or tokenizer is named by a path: one that exists, or one that is written as a path."""
    return Path(name).exists() or name.startswith((".", "~", os.sep)) or Path(name).suffix in _DATA_SUFFIXES


def check_dataset_exists(dataset: str) -> None:
    """Raises FileNotFoundError for a local dataset that is missing or empty; Hub names are not looked up."""
    if not is_local_path(dataset):
        return
    path = Path(dataset)
    if not path.exists():
        raise FileNotFoundError(f"data.dataset: {dataset!r} does not exist; give a folder or file of parquet or jsonl")
    if path.is_dir() and not any(p.suffix in _DATA_SUFFIXES for p in path.rglob("*")):
        raise FileNotFoundError(f"data.dataset: the folder {dataset!r} holds no parquet or jsonl file")
