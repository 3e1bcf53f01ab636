"""The order in which text is drawn when its files are sorted: by crawl, by source, by date.

FineWeb-Edu's files are sorted by crawl. Read as stored, a run of few tokens sees other text than a run of many, and
the number of tokens D and the crawl become one variable. Here any prefix of the text is a sample of all of it:

    split -> parts     a parquet file of n MB is cut into n / 8 parts of whole row groups; other files are one part
          -> order     the parts of all files in the order of a hash of (seed, file, number): nothing has to be opened
                       for it, so a data set of 2,000 files starts as fast as one of two
          -> groups    16 parts at a time are read together, in proportion to their rows, so that they end together
          -> rows      row k of a part of n rows comes at time (k + 1/2) / n

So at any time documents of up to 16 files alternate, whatever the number of files and the size of their row groups; a
hash of the file's name and not its place in a listing decides, so the folder does not matter. What stays as stored is
the order within a part: the shuffle of sequences (`batches.order`) mixes it. A single jsonl file is read from front to
back. On the Hub a part costs about three requests: one for its file's footer, and one for 5 to 10 MB of rows.
"""

from __future__ import annotations

import hashlib
import heapq
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

PART_BYTES = 8 << 20  # of a file, compressed: some 2.5M tokens of FineWeb-Edu
GROUP = 16  # parts that are read together
# Part of the recipe of a cache: another way to draw makes another cache.
RECIPE = {"drawn": "parts", "part_bytes": PART_BYTES, "group": GROUP}
_ROWS_AT_A_TIME = 64  # decoded of one part: their texts lie in memory for each part of a group
_BUFFER_BYTES = 1 << 20  # of a column's pages: a row group of 100 MB need not lie in memory whole


class Part(NamedTuple):
    """Part `number` of the `count` that a file is cut into."""

    file: int
    number: int
    count: int


@dataclass(frozen=True)
class Lane:
    """A part that is being read: its rows, and what they weigh against those of the other parts of its group."""

    weight: float
    rows: Iterator[dict]


class ShuffledRows:
    """Rows of a split in the order above. Iterating goes on from the state, and moves it.

    Args:
        files: URLs or paths of the files of the split.
        seed: of the order.
        columns: of parquet files that are wanted; those that a file lacks are left out.
        rows_of_file: the rows of one file, where the files are of another format.
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
        self._parts = _drawn(files, self._sizes, seed)
        self._row_groups: dict[int, int] = {}  # of the files that were opened
        self._group, self._taken = 0, 0

    def state_dict(self) -> dict[str, int]:
        """Where the next row is: the first part of its group, and rows of the group before it."""
        return {"part": self._group, "rows": self._taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from here."""
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

    def _open_group(self, opened: ExitStack) -> tuple[list[Lane], int]:
        """The next parts that hold rows, and the number of the part behind them. A part can be empty: a file's row
        groups are not cut, so one of 300 MB lies in one part and the file's other parts are without any."""
        lanes, at = [], self._group
        with ThreadPoolExecutor(GROUP) as threads:  # on the Hub opening is waiting
            while at < len(self._parts) and len(lanes) < GROUP:
                some = self._parts[at : at + GROUP - len(lanes)]
                at += len(some)
                for lane, close in threads.map(self._open, some):
                    opened.callback(close)
                    lanes += [lane] if lane else []
        return lanes, at

    def _open(self, part: Part) -> tuple[Lane | None, Callable[[], None]]:
        if not is_parquet(self._files[part.file]):
            return Lane(self._sizes[part.file], self._rows_of_file(part.file)), _nothing
        if not self._row_groups_of(part):
            return None, _nothing
        from datasets.utils.file_utils import xopen  # with its retries and the Hub's token
        from pyarrow.parquet import ParquetFile

        stream = xopen(self._files[part.file], "rb")
        file = ParquetFile(stream, buffer_size=_BUFFER_BYTES)
        self._row_groups[part.file] = file.num_row_groups
        groups = self._row_groups_of(part)
        n_rows = sum(file.metadata.row_group(i).num_rows for i in groups)
        if not n_rows:
            stream.close()
            return None, _nothing
        return Lane(n_rows, self._rows(file, groups)), stream.close

    def _row_groups_of(self, part: Part) -> range:
        """The row groups of a part; of a file that was not opened yet: some."""
        n = self._row_groups.get(part.file, part.count)
        return range(part.number * n // part.count, (part.number + 1) * n // part.count)

    def _rows(self, file, groups: range) -> Iterator[dict]:
        columns = [name for name in self._columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(_ROWS_AT_A_TIME, list(groups), columns, use_threads=False):
            yield from batch.to_pylist()


def is_parquet(file: str) -> bool:
    """Whether a file is cut into parts by its row groups."""
    return file.partition("?")[0].endswith(".parquet")


def parquet_columns(file: str) -> list[str]:
    """The columns of a parquet file. Raises ValueError (pyarrow's) where it is none."""
    from datasets.utils.file_utils import xopen
    from pyarrow.parquet import read_schema

    with xopen(file, "rb") as stream:
        return read_schema(stream).names


def _drawn(files: list[str], sizes: list[int], seed: int) -> list[Part]:
    """The parts of all files in the order of a hash of what tells them apart."""
    common = len(os.path.commonprefix(files)) if len(files) > 1 else 0  # noqa: RUF071 (of strings: may be URLs)
    names = [file[common:] for file in files] if len(files) > 1 else [os.path.basename(files[0])]
    parts = []
    for i, (file, size) in enumerate(zip(files, sizes, strict=True)):
        count = max(1, round(size / PART_BYTES)) if is_parquet(file) else 1
        parts += [Part(i, number, count) for number in range(count)]
    return sorted(parts, key=lambda part: hashlib.sha256(f"{seed}:{names[part.file]}:{part.number}".encode()).digest())


def _merged(lanes: list[Lane]) -> Iterator[dict]:
    """The rows of all lanes, each in proportion to its weight."""

    def timed(number: int, lane: Lane) -> Iterator[tuple[float, int, dict]]:
        for k, row in enumerate(lane.rows):
            yield (k + 0.5) / lane.weight, number, row

    for _, _, row in heapq.merge(*(timed(*lane) for lane in enumerate(lanes)), key=lambda item: item[:2]):
        yield row


def _size(file: str) -> int:
    """Bytes of a file, for the Hub from the listing that is at hand; 1 where nobody says."""
    from fsspec.core import url_to_fs

    system, path = url_to_fs(file)
    try:
        return system.info(path).get("size") or 1
    except (OSError, NotImplementedError):
        return 1


def _nothing() -> None:
    """What closing a part that holds nothing open does."""
