"""The token cache: a split of a data set as one long row of token ids on disk, read by memory map.

    <cache>/<key>/tokens-00000.bin ...    uint16 or uint32 little endian, each shard ending at a document's end
    <cache>/<key>/manifest.json           what it was made from, every shard's sha256, and whether it is complete

Each document is followed by the end-of-text token. The manifest is rewritten after every shard, so an interrupted
build goes on at the document after the last whole shard. The key is a hash of everything that decides the tokens.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from hub.atomic import sha256_of

from . import files
from .text import TextSource
from .tokenizer import fingerprint

FORMAT = 1
SHARD_TOKENS = 1 << 26
_BATCH_DOCUMENTS = 512


class CorruptCacheError(RuntimeError):
    """A shard of the token cache is missing or is not what the manifest says."""


@dataclass(frozen=True)
class TokenCache:
    """A complete token cache, memory-mapped.

    Attributes:
        folder: where it lies.
        manifest: the parsed manifest.json.
    """

    folder: Path
    manifest: dict

    def __post_init__(self) -> None:
        dtype = np.dtype(self.manifest["dtype"])
        maps, ends, total = [], [], 0
        for shard in self.manifest["shards"]:
            path = self.folder / shard["file"]
            if not path.exists() or path.stat().st_size != shard["tokens"] * dtype.itemsize:
                raise CorruptCacheError(f"{path} does not hold {shard['tokens']} tokens; delete {self.folder}")
            maps.append(np.memmap(path, dtype=dtype, mode="r"))
            total += shard["tokens"]
            ends.append(total)
        object.__setattr__(self, "_maps", maps)
        object.__setattr__(self, "_ends", np.array(ends))

    def __len__(self) -> int:
        """Tokens, end-of-text tokens included."""
        return int(self._ends[-1])

    @property
    def fingerprint(self) -> str:
        """sha256 over the shards' checksums: equal fingerprints, equal tokens."""
        digests = "\n".join(shard["sha256"] for shard in self.manifest["shards"])
        return "sha256:" + hashlib.sha256(digests.encode()).hexdigest()

    def read(self, start: int, count: int) -> np.ndarray:
        """Token ids start .. start + count - 1 as int64, across shard borders."""
        out = np.empty(count, dtype=np.int64)
        filled = 0
        shard = int(np.searchsorted(self._ends, start, side="right"))
        while filled < count:
            begin = start + filled - (self._ends[shard - 1] if shard else 0)
            part = self._maps[shard][begin : begin + count - filled]
            out[filled : filled + len(part)] = part
            filled += len(part)
            shard += 1
        return out

    def n_sequences(self, sequence_length: int) -> int:
        """Sequences of this length (each needs one token more, for its last target)."""
        return (len(self) - 1) // sequence_length

    def sequences(self, indices: np.ndarray, sequence_length: int) -> np.ndarray:
        """Sequences by index: int64 (len(indices), sequence_length + 1); inputs are [:, :-1] and targets [:, 1:]."""
        return np.stack([self.read(int(i) * sequence_length, sequence_length + 1) for i in indices])

    def verify(self) -> None:
        """Read every shard and compare its sha256. Raises CorruptCacheError naming the first that differs."""
        for shard in self.manifest["shards"]:
            if sha256_of(self.folder / shard["file"]) != shard["sha256"]:
                raise CorruptCacheError(f"{self.folder / shard['file']}: the sha256 differs; delete {self.folder}")


def prepare(
    source: TextSource, tokenizer, cache_dir: str | Path, max_tokens: int | None = None, progress: bool = True
) -> TokenCache:
    """The token cache of a source, built or completed if need be.

    Args:
        source: the text.
        tokenizer: a fast tokenizer with an eos token.
        cache_dir: folder of all caches.
        max_tokens: stop after the document that reaches this many tokens; None for the whole split.
        progress: show a progress bar.

    Raises:
        ValueError: the source has no document.
    """
    from filelock import FileLock

    dataset = source.identify()
    if not source.is_local:
        source = replace(source, revision=dataset["revision"])  # what is read is what is recorded
    recipe = {
        "format": FORMAT,
        "source": {**asdict(source), **dataset},
        "tokenizer": fingerprint(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "max_tokens": max_tokens,
    }
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    folder = Path(cache_dir) / f"{Path(source.dataset).name}-{source.split}-{key}"
    if (cache := _complete(folder)) is not None:
        return cache
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder) + ".lock"):
        if (cache := _complete(folder)) is None:  # somebody else may have built it while we waited
            _build(source, tokenizer, folder, recipe, max_tokens, progress)
            cache = _complete(folder)
    return cache


def _complete(folder: Path) -> TokenCache | None:
    manifest = _read_manifest(folder)
    return TokenCache(folder, manifest) if manifest and manifest["complete"] else None


def _read_manifest(folder: Path) -> dict | None:
    path = folder / "manifest.json"
    return json.loads(path.read_text()) if path.exists() else None


def _build(source, tokenizer, folder: Path, recipe: dict, max_tokens: int | None, progress: bool) -> None:
    from tqdm.auto import tqdm

    dtype = "<u2" if len(tokenizer) <= 1 << 16 else "<u4"
    manifest = _read_manifest(folder) or {
        "recipe": recipe,
        "dataset": {"id": recipe["source"]["dataset"], "revision": recipe["source"]["revision"]},
        "dtype": dtype,
        "documents": 0,
        "tokens": 0,
        "shards": [],
        "complete": False,
    }
    documents = _tokenised(source.documents(skip=manifest["documents"]), tokenizer)
    with tqdm(
        desc=f"tokenising {source.split}",
        unit="tok",
        unit_scale=True,
        disable=not progress,
        total=max_tokens,
        initial=manifest["tokens"],
    ) as bar:
        while max_tokens is None or manifest["tokens"] < max_tokens:
            wanted = SHARD_TOKENS if max_tokens is None else min(SHARD_TOKENS, max_tokens - manifest["tokens"])
            shard = _write_shard(documents, wanted, folder, len(manifest["shards"]), dtype, bar)
            if shard is None:
                break
            manifest["documents"] += shard["documents"]
            manifest["tokens"] += shard["tokens"]
            manifest["shards"].append(shard)
            files.write_json(folder / "manifest.json", manifest)
    if not manifest["tokens"]:
        raise ValueError(f"data.dataset: split {source.split!r} of {source.dataset!r} has no document to train on")
    files.write_json(folder / "manifest.json", {**manifest, "complete": True})


def _tokenised(documents: Iterable[str], tokenizer) -> Iterator[list[int]]:
    """The ids of each document with end-of-text behind it; the tokenizer works in parallel on a batch of them."""
    documents = iter(documents)
    encoder, eos = tokenizer.backend_tokenizer, tokenizer.eos_token_id
    while batch := list(itertools.islice(documents, _BATCH_DOCUMENTS)):
        for encoding in encoder.encode_batch_fast(batch, add_special_tokens=False):
            yield [*encoding.ids, eos]


def _write_shard(
    documents: Iterator[list[int]], wanted: int, folder: Path, number: int, dtype: str, bar
) -> dict | None:
    """Write documents until the shard holds `wanted` tokens; None when there was no document left."""
    path = folder / f"tokens-{number:05d}.bin"
    temporary = path.with_suffix(".tmp")
    digest, n_documents, n_tokens = hashlib.sha256(), 0, 0
    with open(temporary, "wb") as file:
        for ids in documents:
            data = np.asarray(ids, dtype=dtype).tobytes()
            file.write(data)
            digest.update(data)
            n_documents += 1
            n_tokens += len(ids)
            bar.update(len(ids))
            if n_tokens >= wanted:
                break
        file.flush()
        os.fsync(file.fileno())
    if not n_documents:
        temporary.unlink()
        return None
    os.replace(temporary, path)
    return {"file": path.name, "tokens": n_tokens, "documents": n_documents, "sha256": digest.hexdigest()}
