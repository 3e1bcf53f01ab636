"""The token cache: a split of a dataset as one long row of token ids on disk, read by memory map while it grows.

`recipe.json` holds what decides the tokens, `group-….json` the finished shards of a group of parts of the text (see
`text`) and, once these are all, where the next group begins. A shard ends with the document that reaches
`shard_tokens`, or with its group, so a cache that was interrupted, extended, or made by many processes is byte for
byte the one built in one go. Readers take no lock, and open shards when they come.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hub.base import atomic
from hub.base.atomic import sha256_of, write_bytes
from training.data.text import ORDER_RECIPE, Place, TextSource
from training.data.tokenizer import (
    check_end_token,
    description,
    fingerprint,
    read_names_as_text,
    special_tokens,
    vocabulary_size,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FORMAT = 3
SHARD_TOKENS = 1 << 24
WITHOUT_TEXT = "rows-without-text.txt"
# A key of recipes; those of earlier versions lack it.
AS_TEXT = "special_tokens_as_text"
# Memory maps that are open at a time; a training window lies in a few.
_OPEN_SHARDS = 256


class CorruptCacheError(RuntimeError):
    """A file of the token cache is missing or damaged. The message names it and what to do."""

    exit_status = 3

    def __init__(self, path: Path, problem: str):
        super().__init__(f"{path} {problem}; delete the folder {path.parent}, and the next start tokenises it again")


class TokenCache:
    """A token cache as far as it is built; `refresh` looks for more.

    Attributes:
        recipe: everything that decides the tokens; the folder is named after its hash.
        dtype: of the ids on disk, uint16 or uint32 little endian.
        max_tokens: at which the cache ends, though the data may go on.
        shards: the entries of the finished shards, in the order of the text.
        group: number of the group whose shards come next; None where the data ends.
        complete: whether the data ends with these shards.

    Raises CorruptCacheError, when opened or refreshed, for a damaged recipe or group.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.shards: list[dict] = []
        self.complete = False
        self.group: int | None = 0
        path = folder / "recipe.json"
        try:
            self.recipe = json.loads(path.read_text())
            self.dtype = np.dtype(self.recipe["dtype"])
            self.max_tokens = self.recipe["max_tokens"] or math.inf
        except (ValueError, KeyError, TypeError):
            # A file that is neither JSON nor UTF-8 raises ValueError.
            raise CorruptCacheError(path, "is damaged") from None
        # Ends of the shards, in tokens.
        self._ends: list[int] = []
        # Number of the group's shards that are in `shards`.
        self._group_shards = 0
        # Numbers of the shards whose sha256 was compared.
        self._checked: set[int] = set()
        self._map = lru_cache(_OPEN_SHARDS)(self._open)
        self.refresh()

    def refresh(self) -> bool:
        """Take in the shards finished since, and return whether there were any, or the end was reached."""
        before = len(self.shards)
        while self.group is not None:
            group = read_group(self.folder, self.group)
            for shard in group["shards"][self._group_shards :]:
                self.shards.append(shard)
                self._ends.append(len(self) + shard["tokens"])
            # A network's file system may show an older file again.
            self._group_shards = max(self._group_shards, len(group["shards"]))
            is_full = len(self) >= self.max_tokens
            if not is_full and "following" not in group:
                break
            following = None if is_full else group["following"]
            self.group = Place(*following).group if following else None
            self._group_shards = 0
            self.complete = self.group is None and bool(self.shards)
        return self.complete or len(self.shards) > before

    def check_shard(self, number: int) -> None:
        """Compare the sha256 of a shard, once; this takes a second for each 1.5 GB. Raises CorruptCacheError."""
        if number in self._checked:
            return
        path = self.check_size(number)
        if sha256_of(path) != self.shards[number]["sha256"]:
            raise CorruptCacheError(path, "has a wrong sha256")
        self._checked.add(number)

    def check_size(self, number: int) -> Path:
        """Return the file of a shard, unread. Raises CorruptCacheError if it is missing or has another size."""
        shard = self.shards[number]
        path = self.folder / shard["file"]
        if not path.exists() or path.stat().st_size != shard["tokens"] * self.dtype.itemsize:
            raise CorruptCacheError(path, f"does not hold {shard['tokens']} tokens")
        return path

    def _open(self, number: int) -> np.ndarray:
        self.check_shard(number)
        mapped = np.memmap(self.folder / self.shards[number]["file"], dtype=self.dtype, mode="r")
        # Slices of a plain array are several times cheaper to make.
        return mapped.view(np.ndarray)

    def __len__(self) -> int:
        """Count the tokens so far, end-of-text tokens included."""
        return self._ends[-1] if self._ends else 0

    @property
    def rows_without_text(self) -> list[str]:
        """Names of the rows skipped so far because their text is null, in the order of reading."""
        path = self.folder / WITHOUT_TEXT
        if not path.exists():
            return []
        # A row that was read twice stands there twice.
        return list(dict.fromkeys(path.read_text(encoding="utf-8").splitlines()))

    @property
    def dropped(self) -> Counter[str]:
        """Counts, so far, of the characters that the tokenizer drops."""
        counts: Counter[str] = Counter()
        for shard in self.shards:
            counts.update(shard.get("dropped", {}))
        return counts

    def shards_until(self, tokens: int | None) -> int:
        """Count the finished shards that hold the first `tokens` tokens; None: all."""
        if tokens is None:
            return len(self.shards)
        return min(bisect_left(self._ends, tokens) + 1, len(self.shards))

    def has(self, tokens: int | None) -> bool:
        """Return whether the cache holds this many tokens (None: all of the data), or the data ends before."""
        return self.complete or (tokens is not None and len(self) >= tokens)

    @property
    def dataset(self) -> dict[str, str]:
        """Id, revision and fingerprint of the dataset as a run record states them, however far the cache is built."""
        source = self.recipe["source"]
        return {"id": source["dataset"], "revision": source["revision"], "fingerprint": self.fingerprint}

    @property
    def fingerprint(self) -> str:
        """Hash over the recipe and the first shard's checksum; there must be a shard.

        The recipe decides every shard; the checksum notices a library that makes other tokens than it used to.
        """
        text = f"{recipe_hash(self.recipe)}\n{self.shards[0]['sha256']}"
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def n_sequences(self, sequence_length: int) -> int:
        """Count the sequences of this length so far (each needs one more token, for its last target)."""
        return max(0, len(self) - 1) // sequence_length

    def sequences(self, indices: np.ndarray, sequence_length: int) -> np.ndarray:
        """Read sequences: int64 (len(indices), sequence_length + 1); inputs are [:, :-1] and targets [:, 1:]."""
        out = np.empty((len(indices), sequence_length + 1), dtype=np.int64)
        for row, start in zip(out, (indices * sequence_length).tolist(), strict=True):
            self._read_into(row, start)
        return out

    def read(self, start: int, count: int) -> np.ndarray:
        """Read token ids start .. start + count - 1 as int64, across shard borders."""
        out = np.empty(count, dtype=np.int64)
        self._read_into(out, start)
        return out

    def _read_into(self, out: np.ndarray, start: int) -> None:
        shard = bisect_right(self._ends, start)
        begin = start - (self._ends[shard - 1] if shard else 0)
        filled = 0
        while filled < len(out):
            segment = self._map(shard)[begin : begin + len(out) - filled]
            out[filled : filled + len(segment)] = segment
            filled += len(segment)
            shard += 1
            begin = 0


def group_file(folder: Path, start: int) -> Path:
    """Return the file of the group that begins at part `start`."""
    return folder / f"group-{start:07d}.json"


def read_group(folder: Path, start: int) -> dict:
    """Read the `shards` of a group so far, and, once these are all, where the `following` group begins.

    null stands for the end of the data. Raises CorruptCacheError for a damaged file.
    """
    path = group_file(folder, start)
    if not path.exists() or not path.stat().st_size:
        return {"shards": []}
    try:
        group = json.loads(path.read_text())
        for shard in group["shards"]:
            if not (shard["sha256"] and shard["documents"] > 0 and shard["tokens"] > 0 and shard["file"]):
                raise ValueError(shard)
        if group.get("following") and Place(*group["following"]).group <= start:
            raise ValueError(group)
        return group
    except (ValueError, KeyError, TypeError):
        raise CorruptCacheError(path, "is damaged") from None


def open_cache(
    source: TextSource,
    tokenizer: PreTrainedTokenizerFast,
    cache_dir: str | Path,
    max_tokens: int | None = None,
    special_tokens_as_text: bool = True,
) -> TokenCache:
    """Open the cache of a source, with its recipe on disk but possibly no tokens yet.

    It ends with the document that reaches `max_tokens`, and is another cache for another number; with None it ends
    where the data does, and is shared by all who want more or less of it. `cache_dir` holds all caches.

    Without `special_tokens_as_text` it is the cache of earlier versions, in which a special token's name within a
    document is that token.

    Raises as `TextSource.identify` and `TokenCache`, ConfigurationError for a tokenizer to which
    text can be its end token, and CorruptCacheError for another recipe.
    """
    cache_dir = Path(cache_dir)
    dataset = source.identify(cache_dir / "checksums.json")
    tokenizer_json = description(tokenizer)
    text = asdict(source)
    # Caches of earlier versions held out by id, if at all.
    if source.held_out_by == "id" or not source.held_out_buckets:
        del text["held_out_by"]
    recipe = {
        "format": FORMAT,
        "shard_tokens": SHARD_TOKENS,
        "source": {**text, **dataset},
        "tokenizer": fingerprint(tokenizer_json),
        "eos_token_id": tokenizer.eos_token_id,
        "dtype": "<u2" if vocabulary_size(tokenizer) <= 1 << 16 else "<u4",
        "max_tokens": max_tokens,
        "order": ORDER_RECIPE,
    }
    names = special_tokens(tokenizer)
    if special_tokens_as_text:
        recipe[AS_TEXT] = names
    folder = cache_dir / f"{Path(source.dataset).name}-{source.split}-{recipe_hash(recipe)[:16]}"
    if not (folder / "recipe.json").exists():
        if special_tokens_as_text:
            check_end_token(tokenizer, read_names_as_text(tokenizer_json, names), names)
        write_bytes(folder / "tokenizer.json", tokenizer_json.encode())
        # A network's file system would remember its absence.
        group_file(folder, 0).touch()
        # This comes last: a folder with a recipe is complete.
        atomic.write_json(folder / "recipe.json", recipe)
    cache = TokenCache(folder)
    if cache.recipe != recipe:
        raise CorruptCacheError(folder / "recipe.json", "does not match the name of its folder")
    return cache


def recipe_hash(recipe: dict) -> str:
    """Return the sha256 (hex) of everything that decides the tokens."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
