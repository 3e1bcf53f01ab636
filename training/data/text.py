"""The sources of training text, and the order in which they are read.

Only the text column must be there. Files are often sorted, FineWeb-Edu's by crawl, which would confound the number of
tokens D with the crawl, so every prefix of a shuffled source is a sample of all of it (`GroupedRows`).
"""

from __future__ import annotations

import glob
import hashlib
import heapq
import itertools
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hub.base.atomic import sha256_of, write_bytes
from hub.base.errors import InputError
from training.data.files import (
    ALLOWED,
    JSON,
    PARQUET,
    format_of,
    is_damage,
    json_rows,
    open_parquet,
    parquet_rows,
    rows_before,
    size_of,
)

# Compressed bytes of a part of a file, some 2.5M tokens of FineWeb-Edu.
PART_BYTES = 8 << 20
GROUP = 16  # parts that are read together
# In a cache's recipe: another way to order the text makes another cache.
ORDER_RECIPE = {"drawn": "parts", "part_bytes": PART_BYTES, "group": GROUP}
HELD_OUT_BUCKETS = 1000  # documents fall into this many buckets by the hash of their id
# Rows that `documents` reads at a time.
_ROWS_AT_A_TIME = 64
# If none of the first rows of a JSON file has the text column, the file lacks it.
_ROWS_FOR_COLUMNS = 64
_OTHER_SUFFIXES = {".txt", ".csv", ".tsv", ".arrow"}
_NO_PLAIN_PATH = re.compile(r"[*?\[\]]|::|://")  # `datasets` takes such a path for a pattern or a URL


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
    """One split of a dataset on the Hub, or of local parquet or JSON files.

    Attributes:
        dataset: its name, or a local folder or file; `~` is the home folder.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", os.path.expanduser(self.dataset))

    def identify(self, checksums: Path | None = None) -> dict[str, str | None]:
        """`dataset` and `revision` as a record states them; for local files the folder's name and a hash of them all.

        `checksums` is a file that remembers those of unchanged files. Raises as `check_dataset_exists`.
        """
        if not is_local_path(self.dataset):
            return {"dataset": self.dataset, "revision": self.revision}
        check_dataset_exists(self.dataset)
        root = Path(self.dataset)
        paths = [root] if root.is_file() else _data_paths(root)
        listing = "\n".join(f"{name} {sha256}" for name, sha256 in _checksums(paths, checksums))
        return {"dataset": root.resolve().name, "revision": "sha256:" + _digest(listing)}

    def check_formats(self) -> None:
        """Raise InputError for a local folder with data of both formats: those of one would not be read.

        A few plain .json files beside more of parquet are taken for notes, and where a README says which files are
        read, any others may lie beside them.
        """
        from datasets.data_files import FILES_TO_IGNORE

        root = Path(self.dataset)
        if not root.is_dir() or (root / "README.md").exists():
            return
        paths: dict[str | None, list[Path]] = {PARQUET: [], JSON: []}
        for path in _data_paths(root):
            is_hidden = any(part.startswith((".", "__")) for part in path.relative_to(root).parts)
            if path.name not in FILES_TO_IGNORE and not is_hidden:
                paths[format_of(path.name)].append(path)
        are_notes = all(path.suffix == ".json" for path in paths[JSON]) and len(paths[JSON]) < len(paths[PARQUET])
        if paths[PARQUET] and paths[JSON] and not are_notes:
            raise InputError(
                f"data.dataset: the folder {self.dataset!r} mixes formats, such as {paths[PARQUET][0]} and "
                f"{paths[JSON][0]}; it must hold either parquet or JSON files"
            )

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
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        bucket = int.from_bytes(digest[:8], "big") % HELD_OUT_BUCKETS
        return (bucket < self.held_out_buckets) == self.held_out

    def loading_options(self) -> tuple[str, dict]:
        """Name and options of the dataset for `datasets.load_dataset`."""
        path = Path(self.dataset)
        if path.is_file():
            builder = "parquet" if format_of(path.name) == PARQUET else "json"
            return builder, {"data_files": {self.split: glob.escape(os.path.abspath(path))}}
        return self.dataset, {} if path.exists() else {"name": self.config, "revision": self.revision}

    def rows(self) -> GroupedRows:
        """The rows of the split. Raises as `open`."""
        check_dataset_exists(self.dataset)
        if Path(self.dataset).is_file():
            return GroupedRows([os.path.abspath(self.dataset)], self.file_seed, ["id"], self.text_column)
        try:
            with _path_without_patterns(self.dataset) as (name, name_of):
                return self._listed_rows(name, name_of)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"data.dataset {self.dataset!r}, split {self.split!r}: {error}") from error

    def _listed_rows(self, name: str, name_of: Callable[[str], str]) -> GroupedRows:
        """The rows of the files that `datasets` lists under `name`; each has a name of its own by `name_of`."""
        import datasets
        import huggingface_hub

        # The listing that huggingface_hub 2.4 caches after resolving one glob lacks the folders that the glob did not
        # touch, and a second load in the same process then finds no data files.
        huggingface_hub.HfFileSystem.clear_instance_cache()
        _, options = self.loading_options()
        builder = datasets.load_dataset_builder(name, **options)
        listed = builder.config.data_files or {}
        files = [name_of(file) for file in listed.get(self.split, [])]
        all_files = list(itertools.chain(*listed.values()))
        if all_files and _is_plain(builder.config) and all(format_of(file) == JSON for file in all_files):
            if not files:
                raise ValueError(f"no such split; there are {list(map(str, listed))}")
            return GroupedRows(files, self.file_seed, ["id"], self.text_column)
        if any(file.endswith(".zst") for file in files):
            # fsspec ends at the first frame of such a file, and at the end of a truncated one, without a word.
            raise InputError(f"data.dataset: {files[0]} cannot be read; of .zst files .json and .jsonl are")
        try:
            splits = builder.as_streaming_dataset(split=None)
            if self.split not in splits:
                raise ValueError(f"no such split; there are {list(splits)}")
            rows = splits[self.split]
            names = rows.column_names or list(next(iter(rows), {}))
        # `datasets` raises it.
        except StopIteration:
            raise InputError(f"data.dataset: a file of {self.dataset!r} is empty; remove it") from None
        except Exception as error:
            if not is_damage(error):
                raise
            raise self._damaged(error, map(name_of, all_files)) from error
        if self.text_column not in names:
            raise InputError(f"data.text_column: no column {self.text_column!r} in {self.dataset!r}; it has {names}")
        more_columns = ["id"] if "id" in names else []
        if files and all(format_of(file) == PARQUET for file in files):
            return GroupedRows(files, self.file_seed, more_columns, self.text_column)
        rows = rows.select_columns([*more_columns, self.text_column])
        if files and rows.num_shards == len(files):
            return GroupedRows(files, self.file_seed, [], self.text_column, partial(rows.shard, len(files)))
        if self.file_seed is not None:
            raise InputError(f"data.order: 'shuffled'; it must be 'stored': {self.dataset!r} is not read file by file")
        # One part, read front to back.
        return GroupedRows([self.dataset], None, [], self.text_column, lambda _: rows)

    def _damaged(self, error: Exception, files: Iterable[str]) -> InputError:
        """What to raise for an error of listing: which of these files is damaged, where that can be told."""
        for file in files:
            if format_of(file) == PARQUET:
                with ExitStack() as opened:
                    open_parquet(file, opened)  # raises for a damaged one
        return InputError(f"data.dataset: {self.dataset!r} cannot be read: {error}")


def _is_plain(config) -> bool:
    """Whether JSON files hold the rows themselves, not in a field, in UTF-8."""
    return getattr(config, "field", None) is None and getattr(config, "encoding", "utf-8") == "utf-8"


def _data_paths(root: Path) -> list[Path]:
    """The data files below a folder, sorted."""
    return sorted(path for path in root.rglob("*") if format_of(path.name) and path.is_file())


@contextmanager
def _path_without_patterns(dataset: str) -> Iterator[tuple[str, Callable[[str], str]]]:
    """(name of a dataset for `datasets`, function: a file's path there -> its own path).

    `datasets` takes folders with brackets, asterisks and such in their names for patterns, and reads notes (.txt) as
    data where these are more than the data files. Under a plain name it gets links to the files of such a folder.
    """
    root = Path(dataset).resolve()
    if not root.is_dir():
        yield dataset, str
        return
    # A README may list files of any format.
    has_readme = (root / "README.md").exists()
    has_others = not has_readme and any(path.suffix in _OTHER_SUFFIXES for path in root.rglob("*"))
    if not has_others and not _NO_PLAIN_PATH.search(str(root)):
        yield dataset, str
        return
    with TemporaryDirectory() as temporary:
        plain = Path(temporary).resolve()
        for path in root.rglob("*"):
            if path.is_file() and (has_readme or format_of(path.name)):
                link = plain / path.relative_to(root)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)
        yield str(plain), lambda file: str(root / Path(file).relative_to(plain))


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
        for row, file, number in self._rows.read(group):
            text = row.get(source.text_column)
            if text is None:
                self.without_text.append(f"row {number:,} of {file}")
                continue
            _check_text(text, source.text_column, f"row {number:,} of {file}")
            if source.selects(row):
                yield text


def _check_text(text: object, column: str, place: str) -> None:
    """Raise InputError for a value that is no text, or no Unicode text."""
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
        more_columns: read of parquet files besides the text column, from those that have them.
        text_column: what every parquet or JSON file must have. Raises InputError, in reading, for one without.
        rows_of_file: the rows of one file that is not parquet; default: it is JSON.
    """

    def __init__(
        self,
        files: list[str],
        seed: int | None,
        more_columns: list[str],
        text_column: str,
        rows_of_file: Callable[[int], Iterable[dict]] | None = None,
    ):
        self.files, self._more_columns, self._text_column = files, more_columns, text_column
        self._rows_of_file = rows_of_file or self._json_rows
        self._sizes, self._shuffled = [size_of(file) for file in files], seed is not None
        self._parts = _ordered_parts(files, self._sizes, seed)
        # Row groups of the files opened so far.
        self._row_groups: dict[int, int] = {}
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
        files = [i for i, file in enumerate(self.files) if format_of(file) == PARQUET]
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
            metadata = open_parquet(self.files[number], opened).metadata
            return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    def _open_group(self, at: int, opened: ExitStack) -> tuple[list[Lane], int]:
        """The next parts from `at` that hold rows (large row groups leave parts empty), and the part after."""
        lanes: list[Lane] = []
        # Opening a file on the Hub is waiting.
        with ThreadPoolExecutor(GROUP) as threads:
            while at < len(self._parts) and len(lanes) < GROUP:
                some = self._parts[at : at + GROUP - len(lanes)]
                at += len(some)
                lanes += filter(None, threads.map(lambda part: self._open(part, opened), some))
        return lanes, at

    def _open(self, part: Part, opened: ExitStack) -> Lane | None:
        name = self.files[part.file]
        if format_of(name) != PARQUET:
            return Lane(self._sizes[part.file], name, 0, self._rows_of_file(part.file))
        if not self._row_groups_of(part):
            return None
        file = open_parquet(name, opened)
        self._row_groups[part.file] = file.num_row_groups
        groups = self._row_groups_of(part)
        n_rows = sum(file.metadata.row_group(number).num_rows for number in groups)
        if not n_rows:
            return None
        names = file.schema_arrow.names
        if self._text_column not in names:
            raise self._no_column(name, names)
        columns = [column for column in self._more_columns if column in names]
        rows = parquet_rows(file, name, groups, [*columns, self._text_column])
        return Lane(n_rows, name, rows_before(file, groups), rows)

    def _json_rows(self, number: int) -> Iterator[dict]:
        """Yield the rows of a file of JSON; of those a single one may lack the text column, which is null there."""
        rows = json_rows(self.files[number])
        first = list(itertools.islice(rows, _ROWS_FOR_COLUMNS))
        if first and not any(self._text_column in row for row in first):
            raise self._no_column(self.files[number], sorted(set().union(*first)))
        yield from first
        yield from rows

    def _no_column(self, file: str, names: list[str]) -> InputError:
        return InputError(f"data.text_column: no column {self._text_column!r} in {file}; it has {names}")

    def _row_groups_of(self, part: Part) -> range:
        """The row groups of a part; before its file is opened, a guess that is not empty."""
        n = self._row_groups.get(part.file, part.count)
        return range(part.number * n // part.count, (part.number + 1) * n // part.count)


def _ordered_parts(files: list[str], sizes: list[int], seed: int | None) -> list[Part]:
    """The parts of all files, sorted by a hash of the seed and of what tells them apart, wherever their folder is."""
    common = len(os.path.commonprefix(files)) if len(files) > 1 else 0  # noqa: RUF071 (of strings: may be URLs)
    names = [file[common:] for file in files] if len(files) > 1 else [os.path.basename(files[0])]
    parts = []
    for i, (file, size) in enumerate(zip(files, sizes, strict=True)):
        count = max(1, round(size / PART_BYTES)) if format_of(file) == PARQUET else 1
        parts += [Part(i, number, count) for number in range(count)]
    if seed is None:
        return parts
    return sorted(parts, key=lambda part: hashlib.sha256(f"{seed}:{names[part.file]}:{part.number}".encode()).digest())


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
    path = os.path.expanduser(name)
    return os.path.exists(path) or name.startswith((".", "~", os.sep)) or format_of(name) is not None


def check_dataset_exists(dataset: str) -> None:
    """Raises FileNotFoundError for a local dataset that is missing or empty; Hub names are not looked up."""
    if not is_local_path(dataset):
        return
    path = Path(os.path.expanduser(dataset))
    if not path.exists():
        raise FileNotFoundError(f"data.dataset: {dataset!r} does not exist; give a folder or file of {ALLOWED}")
    if path.is_dir() and not _data_paths(path):
        raise FileNotFoundError(f"data.dataset: the folder {dataset!r} holds no file of {ALLOWED}")
