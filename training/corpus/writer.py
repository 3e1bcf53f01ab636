"""Documents as parquet files in FineWeb-Edu's columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.corpus.documents import Document
from training.corpus.report import Amount, sum_of
from training.corpus.sources import Source

SHARD_BYTES = 8_000_000  # of text


def write(
    folder: Path, splits: dict[str, list[Document]], count_tokens: Callable[[list[str]], list[int]]
) -> tuple[dict[str, Amount], dict[str, Amount]]:
    """Parquet files of all splits; returns the amounts per split and per distribution."""
    import pyarrow.parquet as pq

    amounts: dict[str, Amount] = {}
    of_distributions: dict[str, Amount] = {}
    for split, documents in splits.items():
        texts = [document.text for document in documents]
        tokens = [int(n) for i in range(0, len(texts), 1000) for n in count_tokens(texts[i : i + 1000])]
        if len(tokens) != len(texts):
            raise ValueError(f"count_tokens: gave {len(tokens)} counts for {len(texts)} texts; one per text is needed")
        sizes = np.array([len(text.encode()) for text in texts])
        n_shards = max(1, round(sizes.sum() / SHARD_BYTES)) if split == "train" else 1
        borders = np.searchsorted(np.cumsum(sizes), np.arange(1, n_shards) * sizes.sum() / n_shards)
        for shard, rows in enumerate(np.split(np.arange(len(documents)), borders)):
            table = _table([documents[i] for i in rows], [tokens[i] for i in rows])
            pq.write_table(table, folder / f"{split}-{shard:05d}-of-{n_shards:05d}.parquet", compression="zstd")
        each = [Amount(1, int(size), n) for size, n in zip(sizes, tokens, strict=True)]
        amounts[split] = sum_of(each)
        for document, amount in zip(documents, each, strict=True):
            name = f"{document.source.distribution} {document.source.version}"
            of_distributions[name] = sum_of([of_distributions.get(name, Amount(0, 0, 0)), amount])
    return amounts, dict(sorted(of_distributions.items()))


def _table(documents: Sequence[Document], tokens: Sequence[int]):
    """FineWeb-Edu's columns. Language and educational score are constants: no classifier was run."""
    import pyarrow as pa

    n = len(documents)
    columns = {
        "text": pa.array([document.text for document in documents], pa.string()),
        "id": pa.array([document.id for document in documents], pa.string()),
        "dump": pa.array(["installed-documentation"] * n, pa.string()),
        "url": pa.array([_url(document.source) for document in documents], pa.string()),
        "file_path": pa.array([document.source.file_path for document in documents], pa.string()),
        "language": pa.array(["en"] * n, pa.string()),
        "language_score": pa.array([1.0] * n, pa.float64()),
        "token_count": pa.array(tokens, pa.int64()),
        "score": pa.array([3.0] * n, pa.float64()),
        "int_score": pa.array([3] * n, pa.int64()),
    }
    return pa.table(columns)


def _url(source: Source) -> str:
    if source.distribution == "python":
        return f"https://www.python.org/downloads/release/python-{source.version.replace('.', '')}/"
    return f"https://pypi.org/project/{source.distribution}/{source.version}/"


def source_of(row: dict[str, Any]) -> Source:
    """The source that a stored row came from, as far as its columns tell."""
    distribution, version = row["url"].rstrip("/").split("/")[-2:]
    if distribution == "release":
        digits = version.removeprefix("python-")
        distribution, version = "python", f"{digits[0]}.{digits[1:3]}.{digits[3:]}"
    return Source(distribution, version, row["file_path"], "")
