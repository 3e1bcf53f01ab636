"""From docstrings to documents: read in parallel, without repetition, cut to size, and split."""

from __future__ import annotations

import hashlib
import math
import os
import uuid
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing import get_context
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from training.corpus.cleaning import keep_unrepeated
from training.corpus.sources import Docstring, Extract, Source, extract

MAX_DOCUMENT_CHARACTERS = 20_000
MIN_DOCUMENT_CHARACTERS = 250
_HASH_BUCKETS = 10_000


class Document(NamedTuple):
    """One row of the corpus; `id` is FineWeb-Edu's `<urn:uuid:...>`."""

    id: str
    source: Source
    text: str


def read_documents(
    sources: Sequence[Source], max_bytes: int | None, workers: int | None, progress: bool
) -> tuple[list[Document], dict[str, Any]]:
    """All documents in hash order of their files, and the counts of the report."""
    extracts: list[Extract] = []
    characters, goal = 0, math.inf if max_bytes is None else 1.4 * max_bytes
    with _progress(progress) as bar, closing(_extract_all(sources, workers)) as results:
        task = bar.add_task("reading documentation", total=len(sources) if max_bytes is None else goal)
        for extracted in results:
            extracts.append(extracted)
            here = sum(len(line) for docstring in extracted.docstrings for line in docstring.lines)
            characters += here
            bar.update(task, advance=1 if max_bytes is None else here)
            if characters >= goal:
                documents, dropped = _assemble(sources, extracts, max_bytes)
                if dropped["beyond max_bytes"]:
                    break
                goal *= 1.15
                bar.update(task, total=goal)
        else:
            documents, dropped = _assemble(sources, extracts, max_bytes)
    for extracted in extracts:
        dropped.update(extracted.dropped)
    return documents, {
        "files": len(extracts),
        "skipped_files": dict(sorted(Counter(e.skipped for e in extracts if e.skipped).items())),
        "characters": sum(extracted.characters for extracted in extracts),
        "dropped_characters": {reason: dropped[reason] for reason in sorted(dropped, key=lambda r: (-dropped[r], r))},
    }


def _extract_all(sources: Sequence[Source], workers: int | None) -> Generator[Extract, None, None]:
    """`extract` of each source in order, in processes started afresh (safe with threads and with torch loaded)."""
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    done, window = 0, 512  # files handed out at a time, so that an early stop wastes little
    if workers > 1 and len(sources) > 64:
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
        try:
            while done < len(sources):
                for extracted in pool.map(extract, sources[done : done + window], chunksize=16):
                    done += 1
                    yield extracted
        except BrokenProcessPool:  # a calling script without a __main__ guard, or a worker out of memory
            warnings.warn("worker processes stopped; going on in this one", RuntimeWarning, stacklevel=2)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    yield from map(extract, sources[done:])


def _assemble(
    sources: Sequence[Source], extracts: Sequence[Extract], max_bytes: int | None
) -> tuple[list[Document], Counter[str]]:
    dropped: Counter[str] = Counter()
    unrepeated = iter(keep_unrepeated([d.lines for e in extracts for d in e.docstrings], dropped))
    documents: list[Document] = []
    n_bytes = 0
    for source, extracted in zip(sources, extracts, strict=False):
        kept = [Docstring(docstring.name, next(unrepeated)) for docstring in extracted.docstrings]
        texts = _texts(_title(source), [docstring for docstring in kept if docstring.lines])
        for part, text in enumerate(texts):
            n_bytes += len(text.encode())
            if len(text) < MIN_DOCUMENT_CHARACTERS:
                dropped["short document"] += len(text)
            elif max_bytes is not None and n_bytes > max_bytes:
                dropped["beyond max_bytes"] += len(text)
            else:
                key = f"{source.distribution}/{source.file_path}#{part}"
                documents.append(Document(f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, key)}>", source, text))
    return documents, dropped


def _title(source: Source) -> str:
    path = PurePosixPath(source.file_path)
    if path.suffix != ".py":
        return source.distribution
    parts = path.with_suffix("").parts
    return ".".join(part for part in (parts[1:] if source.distribution == "python" else parts) if part != "__init__")


def _texts(title: str, docstrings: Sequence[Docstring]) -> Iterator[str]:
    """The text of a file, cut between docstrings (or lines of a long one) where it gets too long."""
    blocks: list[str] = []
    for docstring in docstrings:
        lines = [docstring.name, *docstring.lines] if docstring.name else list(docstring.lines)
        start, size = 0, 0
        for i, line in enumerate(lines):
            if size and size + len(line) > MAX_DOCUMENT_CHARACTERS // 2:
                blocks.append("\n".join(lines[start:i]))
                start, size = i, 0
            size += len(line)
        blocks.append("\n".join(lines[start:]))
    size = sum(map(len, blocks))
    limit = size / max(1, math.ceil(size / MAX_DOCUMENT_CHARACTERS))  # nearly equal parts
    part: list[str] = []
    for block in blocks:
        if part and sum(map(len, part)) + len(block) / 2 > limit:
            yield "\n\n".join([title, *part])
            part = []
        part.append(block)
    if part:
        yield "\n\n".join([title, *part])


def split(documents: Sequence[Document], validation_fraction: float) -> dict[str, list[Document]]:
    """Train and validation, each in the order of the hash of the ids; neither is empty."""
    hashed = sorted((hashlib.sha256(document.id.encode()).hexdigest(), document) for document in documents)
    held_out = {h for h, _ in hashed if int(h[:8], 16) % _HASH_BUCKETS < validation_fraction * _HASH_BUCKETS}
    if not held_out or len(held_out) == len(hashed):
        held_out = {hashed[0][0]}
    return {
        "train": [document for h, document in hashed if h not in held_out],
        "validation": [document for h, document in hashed if h in held_out],
    }


def fingerprint(splits: dict[str, list[Document]]) -> str:
    """`sha256:` over ids and texts in stored order."""
    digest = hashlib.sha256()
    for name, documents in splits.items():
        for document in documents:
            digest.update(f"{name}\0{document.id}\0{document.text}\0".encode())
    return "sha256:" + digest.hexdigest()


def _progress(show: bool) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), disable=not show, transient=True)
