"""The order in which text is read when its files are sorted: by crawl, by source, by date.

FineWeb-Edu's files are sorted by crawl. Read as stored, a short run sees other text than a long one, and the number of
tokens D is confounded with the crawl. Here every prefix of the text is a sample of all of it:

    split -> parts     a parquet file of n MB is cut into n / 8 parts of whole row groups; other files are one part
          -> order     the parts of all files, sorted by a hash of (seed, file, number): nothing has to be opened for
                       it, so a dataset of 2,000 files starts as fast as one of two
          -> groups    16 parts at a time are read together, in proportion to their rows, so that they end together
          -> rows      row k of a part of n rows comes at time (k + 1/2) / n

So documents of up to 16 files alternate at any time, whatever the number of files and the size of their row groups.
The hash takes a file's name, not its place in a listing, so the folder does not matter. Within a part the stored order
remains; the shuffle of sequences (`batches`) mixes it. A single jsonl file is read from front to back. On the Hub a
part costs about three requests: one for its file's footer, and one for every 5 to 10 MB of rows.
"""

from __future__ import annotations

import hashlib
import heapq
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

from fsspec.core import url_to_fs
from pyarrow.parquet import ParquetFile

PART_BYTES = 8 << 20  # of a file, compressed: some 2.5M tokens of FineWeb-Edu
GROUP = 16  # parts that are read together
# Part of a cache's recipe: another way to order the text makes another cache.
RECIPE = {"drawn": "parts", "part_bytes": PART_BYTES, "group": GROUP}
_ROWS_AT_A_TIME = 64  # decoded of one part: their texts lie in memory for each part of a group
_BUFFER_BYTES = 1 << 20  # of a column's pages: a row group of 100 MB need not lie in memory whole


class Part(NamedTuple):
    """Part `number` of the `count` that a file is cut into."""

    file: int
    number: int
    count: int


class ShuffledRows:
    """Rows of a split in the order above. Iterating continues from the state, and moves it.

    Args:
        files: URLs or paths of the files of the split.
        seed: of the order.
        columns: wanted of parquet files; those that a file lacks are left out.
        rows_of_file: the rows of one file, for other formats.
    """

    version = "parts-1"  # of the state

    def __init__(
        self,
        files: list[str],
        seed: int,
        columns: list[str],
        rows_of_file: Callable[[int], Iterator[dict]] | None = None,
    ):
        self._files, self._columns, self._rows_of_file = files, columns, rows_of_file
        self._sizes = [_size(file) for file in files]
        self._parts = _ordered_parts(files, self._sizes, seed)
        self._row_groups: dict[int, int] = {}  # of the files opened so far
        self._group, self._taken = 0, 0

    def state_dict(self) -> dict[str, int]:
        """Where the next row is: the first part of its group, and rows of the group before it."""
        return {"part": self._group, "rows": self._taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from here."""
        self._group, self._taken = state["part"], state["rows"]

    def __iter__(self) -> Iterator[dict]:
        while self._group < len(self._parts):
            with ExitStack() as opened:
                lanes, following = self._open_group(opened)
                skipped = self._taken
                for number, row in enumerate(_merged(lanes)):
                    if number >= skipped:
                        self._taken = number + 1
                        yield row
            self._group, self._taken = following, 0

    def _open_group(self, opened: ExitStack) -> tuple[list[tuple[float, Iterator[dict]]], int]:
        """(weight, rows) of the next parts that hold rows, and the number of the part after them.

        A part can be empty: row groups are not cut, so one of 300 MB lies in one part and leaves others without any.
        """
        lanes, at = [], self._group
        with ThreadPoolExecutor(GROUP) as threads:  # on the Hub, opening is waiting
            while at < len(self._parts) and len(lanes) < GROUP:
                some = self._parts[at : at + GROUP - len(lanes)]
                at += len(some)
                lanes += filter(None, threads.map(lambda part: self._open(part, opened), some))
        return lanes, at

    def _open(self, part: Part, opened: ExitStack) -> tuple[float, Iterator[dict]] | None:
        if not is_parquet(self._files[part.file]):
            return self._sizes[part.file], self._rows_of_file(part.file)
        if not self._row_groups_of(part):
            return None
        stream = opened.enter_context(open_file(self._files[part.file]))
        file = ParquetFile(stream, buffer_size=_BUFFER_BYTES)
        self._row_groups[part.file] = file.num_row_groups
        groups = self._row_groups_of(part)
        n_rows = sum(file.metadata.row_group(i).num_rows for i in groups)
        columns = [name for name in self._columns if name in file.schema_arrow.names]
        batches = file.iter_batches(_ROWS_AT_A_TIME, list(groups), columns, use_threads=False)
        return (n_rows, (row for batch in batches for row in batch.to_pylist())) if n_rows else None

    def _row_groups_of(self, part: Part) -> range:
        """The row groups of a part; before its file is opened, a guess that is not empty."""
        n = self._row_groups.get(part.file, part.count)
        return range(part.number * n // part.count, (part.number + 1) * n // part.count)


def is_parquet(file: str) -> bool:
    """Whether a file is cut into parts by its row groups."""
    return file.partition("?")[0].endswith(".parquet")


def open_file(file: str):
    """A file by path or URL, with the retries and the Hub's token of `datasets`."""
    from datasets.utils.file_utils import xopen

    return xopen(file, "rb")


def _ordered_parts(files: list[str], sizes: list[int], seed: int) -> list[Part]:
    """The parts of all files, sorted by a hash of the seed and of what tells them apart."""
    common = len(os.path.commonprefix(files)) if len(files) > 1 else 0  # noqa: RUF071 (of strings: may be URLs)
    names = [file[common:] for file in files] if len(files) > 1 else [os.path.basename(files[0])]
    parts = []
    for i, (file, size) in enumerate(zip(files, sizes, strict=True)):
        count = max(1, round(size / PART_BYTES)) if is_parquet(file) else 1
        parts += [Part(i, number, count) for number in range(count)]
    return sorted(parts, key=lambda part: hashlib.sha256(f"{seed}:{names[part.file]}:{part.number}".encode()).digest())


def _merged(lanes: list[tuple[float, Iterator[dict]]]) -> Iterator[dict]:
    """The rows of all parts, each in proportion to its weight."""

    def timed(number: int, weight: float, rows: Iterator[dict]) -> Iterator[tuple[float, int, dict]]:
        for k, row in enumerate(rows):
            yield (k + 0.5) / weight, number, row

    times = (timed(number, *lane) for number, lane in enumerate(lanes))
    return (row for _, _, row in heapq.merge(*times, key=lambda item: item[:2]))


def _size(file: str) -> int:
    """Bytes of a file, on the Hub from the cached listing; 1 where they are unknown."""
    system, path = url_to_fs(file)
    try:
        return system.info(path).get("size") or 1
    except (OSError, NotImplementedError):
        return 1
