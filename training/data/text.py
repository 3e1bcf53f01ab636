"""Where training text comes from: a Hugging Face dataset by name, or local parquet or jsonl files.

`datasets` finds the files of a split, which are streamed: nothing is downloaded that is not needed, and a local folder
is read the same way. They are read in the order of `parts`, or as they are stored. Only the text column must be there;
a document's `id` decides whether it is held out.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version as package_version
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow.parquet import read_schema

from hub.plain.atomic import sha256_of, write_bytes
from training.data.parts import ShuffledRows, is_parquet, open_file

_DATA_SUFFIXES = {".parquet", ".json", ".jsonl"}
HELD_OUT_BUCKETS = 1000  # documents fall into this many buckets by the hash of their id


class Place(NamedTuple):
    """Where a reader stands in a source, as JSON takes it.

    Attributes:
        documents: documents before this place, counted after the held-out selection.
        last: sha256 of the last of them, which is checked on resuming; "" at the beginning.
        state: a state of the reader (`ShuffledRows`, or `datasets`) before this place; None at the beginning.
        after_state: documents between that state and this place.
        datasets: the version of the reader whose state it is.
    """

    documents: int = 0
    last: str = ""
    state: dict | None = None
    after_state: int = 0
    datasets: str = ""

    def after(self, texts: list[str], count: int) -> Place:
        """The place after the first `count` of the texts that follow this one."""
        return self._replace(
            documents=self.documents + count, last=digest(texts[count - 1]), after_state=self.after_state + count
        )


@dataclass(frozen=True)
class TextSource:
    """One split of a dataset.

    Attributes:
        dataset: the name of a dataset on the Hub, or a local folder or file (parquet, jsonl).
        config: the dataset's configuration, such as `sample-10BT`; None for the default.
        revision: a commit of a Hub dataset.
        split: the split to read.
        text_column: the column with the text.
        held_out_buckets: documents with hash bucket below this (of 1000) are the held-out part of this split.
        held_out: whether this source is that held-out part or the rest.
        file_seed: seed of the order in which the files are read (`parts`); None reads them as stored.
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
        """`dataset` and `revision` as a record states them: for local files the folder's name and a hash of them all,
        for a Hub dataset its name and `revision`, a commit (`training.data.pins`).

        Args:
            checksums: a file that remembers the checksums of files that have not changed since (by size and time), so
                that a large local dataset is not read through at every start.

        Raises as `check_dataset_exists`.
        """
        if not is_local_path(self.dataset):
            return {"dataset": self.dataset, "revision": self.revision}
        check_dataset_exists(self.dataset)
        root = Path(self.dataset)
        paths = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.suffix in _DATA_SUFFIXES)
        listing = "\n".join(f"{name} {sha256}" for name, sha256 in _checksums(paths, checksums))
        return {"dataset": root.resolve().name, "revision": "sha256:" + hashlib.sha256(listing.encode()).hexdigest()}

    def documents(self) -> Iterator[str]:
        """The texts in their order. Raises as `batches`."""
        return self._selected(iter(self._open()))

    def batches(self, size: int, start: Place | None = None) -> Iterator[tuple[list[str], Place]]:
        """Up to `size` texts at a time from a place on, each batch with the place that it begins at.

        Of what lies before the place, only the group of parts (or, as stored, the file) that it lies in is read again,
        without processing its rows.

        Raises:
            FileNotFoundError: a local path that does not exist or holds no data files.
            ValueError: no such split or text column, a row without a text, a file that cannot be read, or the
                documents before the place have changed.
        """
        rows, start = self._open(), start or Place()
        version = rows.version if isinstance(rows, ShuffledRows) else package_version("datasets")
        resumed = start.state is not None and start.datasets == version
        if resumed:
            rows.load_state_dict(start.state)
        # Else another version of the reader noted the place, and it is found by counting from the beginning.
        documents = self._selected(iter(rows))
        skipped = start.after_state if resumed else start.documents
        if start.documents:
            before = next(itertools.islice(documents, skipped - 1, None), "")
            if digest(before) != start.last:
                raise ValueError(f"data.dataset: {self.dataset!r} has changed since its token cache was begun")
        place, state = start, rows.state_dict()
        while batch := list(itertools.islice(documents, size)):
            yield batch, place
            # The state before this batch, not after it, so that there is always a document to check on resuming.
            place = Place(place.documents + len(batch), digest(batch[-1]), state, len(batch), version)
            state = rows.state_dict()

    def _selected(self, rows: Iterator[dict]) -> Iterator[str]:
        try:
            for row in rows:
                if not isinstance(text := row[self.text_column], str):
                    raise ValueError(
                        f"data.text_column: {self.text_column!r} holds {text!r} in a row of {self.dataset!r}"
                    )
                if self.held_out_buckets:
                    # Datasets without ids are split by their text instead; both are stable against reordering.
                    key = str(row["id"]) if row.get("id") is not None else text
                    bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % HELD_OUT_BUCKETS
                    if (bucket < self.held_out_buckets) != self.held_out:
                        continue
                yield text
        except pa.ArrowException as error:  # a damaged or empty file; `datasets` logs which
            raise ValueError(f"data.dataset: {self.dataset!r} cannot be read: {error}") from error

    def _open(self):
        """The rows of the split: an IterableDataset as they are stored, or `ShuffledRows`; both keep their state."""
        import datasets
        import huggingface_hub

        check_dataset_exists(self.dataset)
        name, options = self.dataset, {"name": self.config, "revision": self.revision}
        if (path := Path(self.dataset)).is_file():
            name = "parquet" if path.suffix == ".parquet" else "json"
            options = {"data_files": {self.split: str(path)}}
        elif is_local_path(self.dataset):
            options = {}
        # The listing that huggingface_hub 2.4 caches after resolving one glob lacks the folders that the glob did not
        # touch, and a second load in the same process then finds no data files.
        huggingface_hub.HfFileSystem.clear_instance_cache()
        try:
            builder = datasets.load_dataset_builder(name, **options)
            files = (builder.config.data_files or {}).get(self.split)
            if self.file_seed is not None and files and all(map(is_parquet, files)):
                with open_file(files[0]) as stream:
                    return ShuffledRows(files, self.file_seed, self._columns(read_schema(stream).names))
            splits = builder.as_streaming_dataset(split=None)
            if self.split not in splits:
                raise ValueError(f"no such split; there are {list(splits)}")
            rows = splits[self.split]
            rows = rows.select_columns(self._columns(rows.column_names or list(next(iter(rows), {}))))
        except ValueError as error:
            if str(error).startswith("data."):
                raise
            raise ValueError(f"data.dataset {self.dataset!r}, split {self.split!r}: {error}") from error
        if self.file_seed is None:
            return rows
        if files is None or rows.num_shards != len(files):
            raise ValueError(
                f"data.order: 'shuffled', but {self.dataset!r} is not read file by file; it must be 'stored'"
            )
        return ShuffledRows(files, self.file_seed, [], lambda i: iter(rows.shard(num_shards=len(files), index=i)))

    def _columns(self, found: list[str]) -> list[str]:
        if self.text_column not in found:
            raise ValueError(f"data.text_column: no column {self.text_column!r} in {self.dataset!r}; it has {found}")
        return [name for name in ("id", self.text_column) if name in found]


def digest(text: str) -> str:
    """sha256 (hex) of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _checksums(paths: list[Path], memory: Path | None) -> Iterator[tuple[str, str]]:
    """(name, sha256) of files; those that `memory` knows by their size and time of change are not read."""
    known = json.loads(memory.read_text()) if memory is not None and memory.exists() else {}
    now = {}
    for path in paths:
        status, name = path.stat(), str(path.resolve())
        size_and_time = [status.st_size, status.st_mtime_ns]
        entry = known.get(name)
        now[name] = entry if entry and entry[:2] == size_and_time else [*size_and_time, sha256_of(path)]
        yield path.name, now[name][2]
    if memory is not None and any(known.get(name) != entry for name, entry in now.items()):
        write_bytes(memory, json.dumps({**known, **now}, indent=0).encode())


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
