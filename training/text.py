"""Where training text comes from: a Hugging Face data set by name, or local parquet / jsonl files.

FineWeb-Edu is read with `datasets` in streaming mode, so nothing is downloaded that is not needed; a local folder is
read the same way. The only column that must be there is the text; a document's `id` decides whether it is held out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hub.atomic import sha256_of

_DATA_SUFFIXES = {".parquet", ".json", ".jsonl"}
HELD_OUT_BUCKETS = 1000  # documents fall into this many buckets by the hash of their id


@dataclass(frozen=True)
class TextSource:
    """One split of a data set.

    Attributes:
        dataset: the name of a data set on the Hub, or a local folder or file (parquet, jsonl).
        config: the data set's configuration, such as `sample-10BT`; None for the default.
        revision: a commit of a Hub data set; None for its newest.
        split: the split that is read.
        text_column: the column with the text.
        held_out_buckets: documents with hash bucket below this (of 1000) are the held-out part of this split.
        held_out: whether this source is that held-out part or the rest.
    """

    dataset: str
    config: str | None = None
    revision: str | None = None
    split: str = "train"
    text_column: str = "text"
    held_out_buckets: int = 0
    held_out: bool = False

    @property
    def is_local(self) -> bool:
        return is_local_path(self.dataset)

    def identify(self) -> dict[str, str | None]:
        """`dataset` and `revision` as a record states them: for local files the folder's name and a hash of them all,
        for a Hub data set its name and commit (looked up when `revision` is None).

        Raises:
            FileNotFoundError: see `check_dataset_exists`.
            ValueError: no such data set on the Hub, or no way to ask it.
        """
        if not self.is_local:
            return {"dataset": self.dataset, "revision": self.revision or _newest_commit(self.dataset)}
        check_dataset_exists(self.dataset)
        root = Path(self.dataset)
        paths = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.suffix in _DATA_SUFFIXES)
        listing = "\n".join(f"{path.name} {sha256_of(path)}" for path in paths)
        return {"dataset": root.resolve().name, "revision": "sha256:" + hashlib.sha256(listing.encode()).hexdigest()}

    def documents(self, skip: int = 0) -> Iterator[str]:
        """The texts in their stored order, without the first `skip` (counted after the held-out selection).

        Raises:
            FileNotFoundError: a local path that does not exist or holds no data files.
            ValueError: no such split or text column.
        """
        rows = self._open()
        taken = 0
        for row in rows:
            if self.held_out_buckets and self._is_held_out(row) != self.held_out:
                continue
            taken += 1
            if taken > skip:
                yield row[self.text_column]

    def _is_held_out(self, row: dict) -> bool:
        # Data sets without ids are split by their text instead; both are stable against reordering.
        key = str(row["id"]) if row.get("id") is not None else row[self.text_column]
        bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % HELD_OUT_BUCKETS
        return bucket < self.held_out_buckets

    def _open(self):
        import datasets
        import huggingface_hub

        check_dataset_exists(self.dataset)
        name, options = self._loader()
        if not self.is_local:
            # The listing that huggingface_hub 2.4 caches after resolving one glob lacks the folders that the glob did
            # not touch, and a second load in the same process then finds no data files.
            huggingface_hub.HfFileSystem.clear_instance_cache()
        try:
            rows = datasets.load_dataset(name, split=self.split, streaming=True, **options)
        except ValueError as error:
            raise ValueError(f"data.dataset {self.dataset!r}, split {self.split!r}: {error}") from error
        columns = rows.column_names or list(next(iter(rows), {}))
        if self.text_column not in columns:
            raise ValueError(f"data.text_column: no column {self.text_column!r} in {self.dataset!r}; it has {columns}")
        return rows

    def _loader(self) -> tuple[str, dict]:
        path = Path(self.dataset)
        if path.is_file():
            kind = "parquet" if path.suffix == ".parquet" else "json"
            return kind, {"data_files": {self.split: str(path)}}
        if self.is_local:
            return str(path), {}
        return self.dataset, {"name": self.config, "revision": self.revision}


def _newest_commit(dataset: str) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        return HfApi().dataset_info(dataset).sha
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        raise ValueError(
            f"data.revision: the Hub cannot be asked for the newest commit of {dataset!r} ({error}); check "
            "data.dataset, or name a commit that is in the cache"
        ) from error


def is_local_path(dataset: str) -> bool:
    """Whether a data set is named by a path: one that exists, or one that is written as a path."""
    return Path(dataset).exists() or dataset.startswith((".", "~", os.sep)) or Path(dataset).suffix != ""


def check_dataset_exists(dataset: str) -> None:
    """Raises FileNotFoundError for a local data set that is not there or is empty; Hub names are not looked up."""
    if not is_local_path(dataset):
        return
    path = Path(dataset)
    if not path.exists():
        raise FileNotFoundError(f"data.dataset: {dataset!r} does not exist; give a folder or file of parquet or jsonl")
    if path.is_dir() and not any(p.suffix in _DATA_SUFFIXES for p in path.rglob("*")):
        raise FileNotFoundError(f"data.dataset: the folder {dataset!r} holds no parquet or jsonl file")
