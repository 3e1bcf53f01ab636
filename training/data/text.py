"""Where training text comes from: a Hugging Face dataset by name, or local parquet / jsonl files.

`datasets` finds the files of a split, which are streamed: nothing is downloaded that is not needed, and a local folder
is read the same way. They are drawn in the order of `parts`, or read as they are stored. The only column that must be
there is the text; a document's `id` decides whether it is held out.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hub.plain.atomic import sha256_of, write_bytes
from training.data.parts import ShuffledRows, is_parquet, parquet_columns

_DATA_SUFFIXES = {".parquet", ".json", ".jsonl"}
HELD_OUT_BUCKETS = 1000  # documents fall into this many buckets by the hash of their id


class Place(NamedTuple):
    """Where a reader stands in a source, as JSON takes it.

    Attributes:
        documents: documents before this place, counted after the held-out selection.
        last: sha256 of the last of them; "" at the beginning. It is checked when reading goes on from here.
        state: a state of the reader (`ShuffledRows`, or `datasets`) before this place; None at the beginning.
        after_state: documents between that state and this place.
        datasets: the version of the reader whose state it is.
    """

    documents: int = 0
    last: str = ""
    state: dict | None = None
    after_state: int = 0
    datasets: str = ""

    def behind(self, texts: list[str], count: int) -> Place:
        """The place behind the first `count` of the texts that follow this one."""
        return self._replace(
            documents=self.documents + count, last=digest(texts[count - 1]), after_state=self.after_state + count
        )


@dataclass(frozen=True)
class TextSource:
    """One split of a data set.

    Attributes:
        dataset: the name of a data set on the Hub, or a local folder or file (parquet, jsonl).
        config: the data set's configuration, such as `sample-10BT`; None for the default.
        revision: a commit of a Hub dataset.
        split: the split that is read.
        text_column: the column with the text.
        held_out_buckets: documents with hash bucket below this (of 1000) are the held-out part of this split.
        held_out: whether this source is that held-out part or the rest.
        file_seed: seed of the order in which the text is drawn from all files (`parts`); None reads them as stored.
    """

    dataset: str
    config: str | None = None
    revision: str | None = None
    split: str = "train"
    text_column: str = "text"
    held_out_buckets: int = 0
    held_out: bool = False
    file_seed: int | None = None

    @property
    def is_local(self) -> bool:
        return is_local_path(self.dataset)

    def identify(self, checksums: Path | None = None) -> dict[str, str | None]:
        """`dataset` and `revision` as a record states them: for local files the folder's name and a hash of them all,
        for a Hub dataset its name and `revision`, a commit (`training.data.pins`).

        Args:
            checksums: a file that remembers the checksums of files that have not changed since (by size and time), so
                that a large local data set is not read through at every start.

        Raises:
            FileNotFoundError: see `check_dataset_exists`.
        """
        if not self.is_local:
            return {"dataset": self.dataset, "revision": self.revision}
        check_dataset_exists(self.dataset)
        root = Path(self.dataset)
        paths = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.suffix in _DATA_SUFFIXES)
        listing = "\n".join(f"{name} {digest}" for name, digest in _checksums(paths, checksums))
        return {"dataset": root.resolve().name, "revision": "sha256:" + hashlib.sha256(listing.encode()).hexdigest()}

    def documents(self, skip: int = 0) -> Iterator[str]:
        """The texts in their stored order, without the first `skip` (counted after the held-out selection).

        Raises:
            FileNotFoundError: a local path that does not exist or holds no data files.
            ValueError: no such split or text column, or a row without a text.
        """
        return itertools.islice(self._selected(iter(self._open())), skip, None)

    def batches(self, size: int, start: Place | None = None) -> Iterator[tuple[list[str], Place]]:
        """Up to `size` texts at a time from a place on, each batch with the place that it begins at.

        Of what lies before the place only the group of parts (or, as stored, the file) that it lies in is read again,
        without anything being done with its rows.

        Raises:
            ValueError: as `documents`, or the documents before the place are not those that were there.
        """
        rows, start = self._open(), start or Place()
        version = _state_version(rows)
        resumed = start.state is not None and start.datasets == version
        if resumed:
            rows.load_state_dict(start.state)
        # Else the place was noted by another version of the reader, and is found by counting from the beginning.
        documents = self._selected(iter(rows))
        skipped = start.after_state if resumed else start.documents
        if start.documents:
            before = next(itertools.islice(documents, skipped - 1, None), "")
            if digest(before) != start.last:
                raise ValueError(f"data.dataset: {self.dataset!r} holds other documents than when its cache was begun")
        place, state = start, rows.state_dict()
        while batch := list(itertools.islice(documents, size)):
            yield batch, place
            # The state before this batch, not behind it: so there is always a document to check when going on.
            last = digest(batch[-1])
            place = Place(place.documents + len(batch), last, state, len(batch), version)
            state = rows.state_dict()

    def _selected(self, rows: Iterator[dict]) -> Iterator[str]:
        for row in rows:
            if not isinstance(text := row[self.text_column], str):
                raise ValueError(f"data.text_column: {self.text_column!r} holds {text!r} in a row of {self.dataset!r}")
            if not self.held_out_buckets or self._is_held_out(row) == self.held_out:
                yield text

    def _is_held_out(self, row: dict) -> bool:
        # Data sets without ids are split by their text instead; both are stable against reordering.
        key = str(row["id"]) if row.get("id") is not None else row[self.text_column]
        bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % HELD_OUT_BUCKETS
        return bucket < self.held_out_buckets

    def _open(self):
        """The rows of the split: an IterableDataset as they are stored, or `ShuffledRows`; both keep their state."""
        import datasets
        import huggingface_hub

        check_dataset_exists(self.dataset)
        name, options = self._loader()
        if not self.is_local:
            # The listing that huggingface_hub 2.4 caches after resolving one glob lacks the folders that the glob did
            # not touch, and a second load in the same process then finds no data files.
            huggingface_hub.HfFileSystem.clear_instance_cache()
        rows = schema = None
        try:
            builder = datasets.load_dataset_builder(name, **options)
            files = (builder.config.data_files or {}).get(self.split)
            if self.file_seed is not None and files and all(map(is_parquet, files)):
                schema = parquet_columns(files[0])
            else:
                rows = self._stream(builder)
        except ValueError as error:
            raise ValueError(f"data.dataset {self.dataset!r}, split {self.split!r}: {error}") from error
        if rows is None:
            return ShuffledRows(files, self.file_seed, self._columns(schema))
        rows = rows.select_columns(self._columns(rows.column_names or list(next(iter(rows), {}))))
        if self.file_seed is None:
            return rows
        if files is None or rows.num_shards != len(files):
            raise ValueError(
                f"data.order: 'shuffled', but {self.dataset!r} is not read file by file; it must be 'stored'"
            )
        return ShuffledRows(files, self.file_seed, [], lambda i: iter(rows.shard(num_shards=len(files), index=i)))

    def _columns(self, there: list[str]) -> list[str]:
        if self.text_column not in there:
            raise ValueError(f"data.text_column: no column {self.text_column!r} in {self.dataset!r}; it has {there}")
        return [name for name in ("id", self.text_column) if name in there]

    def _stream(self, builder):
        rows = builder.as_streaming_dataset(split=None)
        if self.split not in rows:
            raise ValueError(f"no such split; there are {list(rows)}")
        return rows[self.split]

    def _loader(self) -> tuple[str, dict]:
        path = Path(self.dataset)
        if path.is_file():
            kind = "parquet" if path.suffix == ".parquet" else "json"
            return kind, {"data_files": {self.split: str(path)}}
        if self.is_local:
            return str(path), {}
        return self.dataset, {"name": self.config, "revision": self.revision}


def _state_version(rows) -> str:
    """Of the states that a reader of rows gives."""
    import datasets

    return rows.version if isinstance(rows, ShuffledRows) else datasets.__version__


def digest(text: str) -> str:
    """sha256 (hex) of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _checksums(paths: list[Path], memory: Path | None) -> Iterator[tuple[str, str]]:
    """(name, sha256) of files; those that `memory` knows by their size and time of change are not read."""
    known = json.loads(memory.read_text()) if memory is not None and memory.exists() else {}
    now = {}
    for path in paths:
        status = path.stat()
        key = [status.st_size, status.st_mtime_ns]
        entry = known.get(str(path.resolve()))
        now[str(path.resolve())] = entry = entry if entry and entry[:2] == key else [*key, sha256_of(path)]
        yield path.name, entry[2]
    if memory is not None and any(known.get(name) != entry for name, entry in now.items()):
        write_bytes(memory, json.dumps({**known, **now}, indent=0).encode())


def is_local_path(name: str) -> bool:
    """Whether a dataset or tokenizer is named by a path: one that exists, or one that is written as a path."""
    return Path(name).exists() or name.startswith((".", "~", os.sep)) or Path(name).suffix in _DATA_SUFFIXES


def check_dataset_exists(dataset: str) -> None:
    """Raises FileNotFoundError for a local data set that is not there or is empty; Hub names are not looked up."""
    if not is_local_path(dataset):
        return
    path = Path(dataset)
    if not path.exists():
        raise FileNotFoundError(f"data.dataset: {dataset!r} does not exist; give a folder or file of parquet or jsonl")
    if path.is_dir() and not any(p.suffix in _DATA_SUFFIXES for p in path.rglob("*")):
        raise FileNotFoundError(f"data.dataset: the folder {dataset!r} holds no parquet or jsonl file")
