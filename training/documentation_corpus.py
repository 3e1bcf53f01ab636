"""A corpus of real English that is already on the machine: the documentation of what is installed.

Docstrings of the standard library and of every installed distribution, documentation given as string arguments
(`add_newdoc`, `add_docstr`, decorators, help texts), Python's `pydoc_data` topics, and packaged READMEs. Sources are
parsed with `ast` and never imported or executed. The result is a data set with the columns and types of FineWeb-Edu
(Penedo et al. 2024), in the splits train and validation, for runs without a network; losses on it cannot be compared
with losses on FineWeb-Edu.

One file of a distribution gives one document (several when it is long), its docstrings in source order.
The way: list files -> extract and clean (in parallel) -> remove repetition over everything -> documents -> split by
the hash of the document's id -> parquet. Files are taken in the order of the hash of their name, so nothing depends on
the file system or on the number of workers, and a build of `max_bytes` need not read more than it uses.

    python -m training.documentation_corpus FOLDER [--max-bytes N]
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from training import documentation_sources, files, text_cleaning
from training.documentation_sources import Docstring, Extract, Source, extract, installed_sources

MANIFEST = "corpus.json"  # written last; a folder without it is not a complete corpus
MAX_DOCUMENT_CHARACTERS = 20_000
MIN_DOCUMENT_CHARACTERS = 250
SHARD_BYTES = 8_000_000  # of text
WORDS = "whitespace-separated words"
_HASH_BUCKETS = 10_000


class Document(NamedTuple):
    """One row of the corpus; `id` is FineWeb-Edu's `<urn:uuid:...>`."""

    id: str
    source: Source
    text: str


@dataclass(frozen=True)
class Amount:
    """How much text: documents, UTF-8 bytes, and tokens as counted by the report's `token_counter`."""

    documents: int
    text_bytes: int
    tokens: int


@dataclass(frozen=True)
class CorpusReport:
    """What a corpus holds and what was left out.

    Attributes:
        total, splits, distributions: amounts overall, per split, and per distribution the text comes from.
        token_counter: what `token_count` counts.
        files: source files looked at (with `max_bytes`: until there was enough).
        skipped_files: files that could not be used, by reason.
        characters: of documentation found in them, before cleaning, with the indentation removed.
        dropped_characters: left out, by reason (`text_cleaning`; `repeated` is de-duplication, `beyond max_bytes` is
            what a small build did not need). Inline markup taken out of kept lines is not counted.
        fingerprint: `sha256:` over ids and texts in stored order; equal for equal corpora.
        recipe: hash of the code, the options and the installed files; a folder with the same one is used again.
        reused: whether the folder was already complete. seconds: wall time of this call.
    """

    total: Amount
    splits: dict[str, Amount]
    distributions: dict[str, Amount]
    token_counter: str
    files: int
    skipped_files: dict[str, int]
    characters: int
    dropped_characters: dict[str, int]
    fingerprint: str
    recipe: str
    reused: bool = False
    seconds: float = 0.0

    @classmethod
    def load(cls, folder: str | Path) -> CorpusReport:
        """The report of a finished corpus.

        Raises:
            FileNotFoundError: the folder is no finished corpus.
        """
        path = Path(folder) / MANIFEST
        if not path.is_file():
            raise FileNotFoundError(f"folder: {str(folder)!r} is no finished corpus (it has no {MANIFEST})")
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored["total"] = Amount(**stored["total"])
        for group in ("splits", "distributions"):
            stored[group] = {name: Amount(**amount) for name, amount in stored[group].items()}
        return cls(**stored)

    def save(self, folder: Path) -> None:
        """Write the manifest. Times are left out, so that equal corpora are equal files."""
        stored = {name: value for name, value in asdict(self).items() if name not in ("reused", "seconds")}
        files.write_json(folder / MANIFEST, stored)

    def __rich__(self) -> Table:
        table = Table("", "documents", "MB of text", "tokens", title="Documentation corpus")
        largest = sorted(self.distributions.items(), key=lambda item: -item[1].text_bytes)[:8]
        for name, amount in [*self.splits.items(), *largest]:
            style = "bold" if name in self.splits else "dim"
            cells = (f"{amount.documents:,}", f"{amount.text_bytes / 1e6:.2f}", f"{amount.tokens:,}")
            table.add_row(name, *cells, style=style)
        shares = ", ".join(f"{why} {n / max(1, self.characters):.1%}" for why, n in self.dropped_characters.items())
        how = "reused" if self.reused else f"built in {self.seconds:.0f} s"
        table.caption = f"{self.files:,} files, {how}; tokens are {self.token_counter}; left out: {shares}"
        return table


def build(
    folder: str | Path,
    *,
    max_bytes: int | None = None,
    validation_fraction: float = 0.025,
    count_tokens: Callable[[list[str]], list[int]] | None = None,
    token_counter: str | None = None,
    sources: Sequence[Source] | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> CorpusReport:
    """Build the corpus in `folder`, or use the one that is there when recipe and environment are the same.

    The folder appears complete or not at all. De-duplication comes before the split, over everything.

    Args:
        folder: gets `train-*.parquet`, `validation-*.parquet`, `README.md` and `corpus.json`.
        max_bytes: at most that many UTF-8 bytes of text, files in hash order; None for all.
        validation_fraction: expected share of documents held out, by the hash of their id (0 < share < 1).
        count_tokens: texts to numbers of tokens, for the column `token_count`; None counts words between white space
            (about 0.7 of a GPT-2 token count). `recount_tokens` rewrites the column when there is a tokenizer.
        token_counter: what `count_tokens` counts, kept in the report.
        sources: files to read; None for `installed_sources()`.
        workers: processes; None for the number of usable cores, 1 for none but this one.
        progress: show a progress bar on standard error.

    Raises:
        ValueError: an option out of its range, or too little documentation for two documents.
        FileExistsError: `folder` holds something that is not a corpus.
    """
    started = time.monotonic()
    folder = Path(folder).expanduser().resolve()
    if max_bytes is not None and max_bytes < 1:
        raise ValueError(f"max_bytes: {max_bytes}; give a positive number of bytes, or None for everything")
    if not 0 < validation_fraction < 1:
        raise ValueError(f"validation_fraction: {validation_fraction}; give a share between 0 and 1")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file()):
        raise FileExistsError(f"folder: {str(folder)!r} is there and is no corpus; give a new or an empty folder")
    sources = sorted(installed_sources() if sources is None else sources, key=_order)
    recipe = _recipe(sources, max_bytes, validation_fraction)
    name = token_counter or (WORDS if count_tokens is None else getattr(count_tokens, "__name__", "count_tokens"))
    if (folder / MANIFEST).is_file() and (report := _reusable(folder, recipe)) is not None:
        if count_tokens is not None and report.token_counter != name:
            report = recount_tokens(folder, count_tokens, name)
        return replace(report, reused=True, seconds=time.monotonic() - started)
    found, report = _documents(sources, max_bytes, workers, progress)
    if len(found) < 2:
        limit = "" if max_bytes is None else f" within max_bytes={max_bytes}"
        raise ValueError(f"sources: {report['files']} files gave {len(found)} documents{limit}; at least 2 are needed")
    splits = _split(found, validation_fraction)
    with files.atomic_folder(folder) as temporary:
        amounts, of_distributions = _write(temporary, splits, count_tokens or count_words)
        result = CorpusReport(
            total=_sum(amounts.values()),
            splits=amounts,
            distributions=of_distributions,
            token_counter=name,
            fingerprint=_fingerprint(splits),
            recipe=recipe,
            **report,
        )
        (temporary / "README.md").write_text(_readme(result), encoding="utf-8")
        result.save(temporary)
    return replace(result, seconds=time.monotonic() - started)


def recount_tokens(
    folder: str | Path, count_tokens: Callable[[list[str]], list[int]], token_counter: str = "tokens"
) -> CorpusReport:
    """Rewrite the column `token_count` of a finished corpus, such as with the tokenizer trained on it.

    Texts, ids and `fingerprint` stay. The folder is replaced as a whole.

    Raises:
        FileNotFoundError: the folder is no finished corpus.
        ValueError: `count_tokens` gave another number of counts than of texts.
    """
    import pyarrow.parquet as pq

    folder = Path(folder).expanduser().resolve()
    old = CorpusReport.load(folder)
    splits = {}
    for split in old.splits:
        rows = [row for path in sorted(folder.glob(f"{split}-*.parquet")) for row in pq.read_table(path).to_pylist()]
        splits[split] = [Document(row["id"], _source_of(row), row["text"]) for row in rows]
    with files.atomic_folder(folder) as temporary:
        amounts, of_distributions = _write(temporary, splits, count_tokens)
        total = _sum(amounts.values())
        new = replace(old, total=total, splits=amounts, distributions=of_distributions, token_counter=token_counter)
        (temporary / "README.md").write_text(_readme(new), encoding="utf-8")
        new.save(temporary)
    return new


def count_words(texts: list[str]) -> list[int]:
    """Words between white space: a stand-in for tokens where there is no tokenizer yet."""
    return [len(text.split()) for text in texts]


def _order(source: Source) -> str:
    """Key of the hash order of files; without the version, so an upgrade changes little."""
    return hashlib.sha256(f"{source.distribution} {source.file_path}".encode()).hexdigest()


def _recipe(sources: Iterable[Source], max_bytes: int | None, validation_fraction: float) -> str:
    digest = hashlib.sha256(f"{max_bytes} {validation_fraction}\n".encode())
    for module in (__file__, documentation_sources.__file__, text_cleaning.__file__):
        digest.update(Path(module).read_bytes())
    for source in sources:
        digest.update(f"{source.distribution} {source.version} {source.file_path}\n".encode())
    return "sha256:" + digest.hexdigest()


def _reusable(folder: Path, recipe: str) -> CorpusReport | None:
    try:
        report = CorpusReport.load(folder)
    except (TypeError, KeyError, ValueError):  # written by another version
        return None
    complete = all(any(folder.glob(f"{split}-*.parquet")) for split in report.splits)
    return report if complete and report.recipe == recipe else None


# ---- From docstrings to documents ----


def _documents(
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
    unrepeated = iter(text_cleaning.keep_unrepeated([d.lines for e in extracts for d in e.docstrings], dropped))
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


def _split(documents: Sequence[Document], validation_fraction: float) -> dict[str, list[Document]]:
    """Train and validation, each in the order of the hash of the ids; neither is empty."""
    hashed = sorted((hashlib.sha256(document.id.encode()).hexdigest(), document) for document in documents)
    held_out = {h for h, _ in hashed if int(h[:8], 16) % _HASH_BUCKETS < validation_fraction * _HASH_BUCKETS}
    if not held_out or len(held_out) == len(hashed):
        held_out = {hashed[0][0]}
    return {
        "train": [document for h, document in hashed if h not in held_out],
        "validation": [document for h, document in hashed if h in held_out],
    }


def _fingerprint(splits: dict[str, list[Document]]) -> str:
    digest = hashlib.sha256()
    for split, documents in splits.items():
        for document in documents:
            digest.update(f"{split}\0{document.id}\0{document.text}\0".encode())
    return "sha256:" + digest.hexdigest()


# ---- Writing ----


def _write(
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
        amounts[split] = _sum(each)
        for document, amount in zip(documents, each, strict=True):
            name = f"{document.source.distribution} {document.source.version}"
            of_distributions[name] = _sum([of_distributions.get(name, Amount(0, 0, 0)), amount])
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


def _source_of(row: dict[str, Any]) -> Source:
    distribution, version = row["url"].rstrip("/").split("/")[-2:]
    if distribution == "release":
        digits = version.removeprefix("python-")
        distribution, version = "python", f"{digits[0]}.{digits[1:3]}.{digits[3:]}"
    return Source(distribution, version, row["file_path"], "")


def _sum(amounts: Iterable[Amount]) -> Amount:
    amounts = list(amounts)
    return Amount(*(sum(getattr(a, field) for a in amounts) for field in ("documents", "text_bytes", "tokens")))


def _readme(report: CorpusReport) -> str:
    sources = "\n".join(
        f"| {name} | {amount.documents:,} | {amount.text_bytes:,} |" for name, amount in report.distributions.items()
    )
    return f"""---
language:
- en
pretty_name: Documentation of the installed packages in the FineWeb-Edu schema
configs:
- config_name: default
  data_files:
  - split: train
    path: train-*.parquet
  - split: validation
    path: validation-*.parquet
---

# Documentation corpus

{report.total.documents:,} documents, {report.total.text_bytes:,} bytes of English: docstrings
and packaged documentation of the Python standard library and of the packages of one environment, cleaned and
de-duplicated. Made for small experiments without a network; it is not a sample of FineWeb-Edu, and losses on it cannot
be compared with losses there. Texts belong to their authors under the licences of the packages below.

Names, order and types of the columns are those of FineWeb-Edu. `token_count` counts {report.token_counter}.
`language_score`, `score` and `int_score` are constants and **not measured**. Train and validation come from the same
packages; repeated text was removed over both before documents were assigned by the hash of their `id`.

Fingerprint of ids and texts: `{report.fingerprint}`

| source | documents | bytes |
|---|---:|---:|
{sources}
"""


def _progress(show: bool) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), disable=not show, transient=True)


def _main(folder: Path, max_bytes: int | None = None, workers: int | None = None, quiet: bool = False) -> None:
    """Build the documentation corpus in FOLDER, or tell what is in the one that is there."""
    try:
        report = build(folder, max_bytes=max_bytes, workers=workers, progress=not quiet)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    Console().print(report)


if __name__ == "__main__":
    typer.run(_main)
