"""Building a corpus in a folder, which appears complete or not at all."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from hub.plain import folders as files
from training.corpus.documents import Document, fingerprint, read_documents, split
from training.corpus.report import MANIFEST, CorpusReport, readme, sum_of
from training.corpus.sources import Source, installed_sources
from training.corpus.writer import source_of, write

WORDS = "whitespace-separated words"


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
    found, report = read_documents(sources, max_bytes, workers, progress)
    if len(found) < 2:
        limit = "" if max_bytes is None else f" within max_bytes={max_bytes}"
        raise ValueError(f"sources: {report['files']} files gave {len(found)} documents{limit}; at least 2 are needed")
    splits = split(found, validation_fraction)
    with files.atomic_folder(folder) as temporary:
        amounts, of_distributions = write(temporary, splits, count_tokens or count_words)
        result = CorpusReport(
            total=sum_of(amounts.values()),
            splits=amounts,
            distributions=of_distributions,
            token_counter=name,
            fingerprint=fingerprint(splits),
            recipe=recipe,
            **report,
        )
        (temporary / "README.md").write_text(readme(result), encoding="utf-8")
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
    for name in old.splits:
        rows = [row for path in sorted(folder.glob(f"{name}-*.parquet")) for row in pq.read_table(path).to_pylist()]
        splits[name] = [Document(row["id"], source_of(row), row["text"]) for row in rows]
    with files.atomic_folder(folder) as temporary:
        amounts, of_distributions = write(temporary, splits, count_tokens)
        total = sum_of(amounts.values())
        new = replace(old, total=total, splits=amounts, distributions=of_distributions, token_counter=token_counter)
        (temporary / "README.md").write_text(readme(new), encoding="utf-8")
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
    for module in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(module.read_bytes())
    for source in sources:
        digest.update(f"{source.distribution} {source.version} {source.file_path}\n".encode())
    return "sha256:" + digest.hexdigest()


def _reusable(folder: Path, recipe: str) -> CorpusReport | None:
    try:
        report = CorpusReport.load(folder)
    except (TypeError, KeyError, ValueError):  # written by another version
        return None
    complete = all(any(folder.glob(f"{name}-*.parquet")) for name in report.splits)
    return report if complete and report.recipe == recipe else None
