"""What a corpus holds, as its manifest and as its README."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from hub.plain import folders as files

MANIFEST = "corpus.json"  # written last; a folder without it is not a complete corpus


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
        dropped_characters: left out, by reason (`cleaning`; `repeated` is de-duplication, `beyond max_bytes` is
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


def sum_of(amounts: Iterable[Amount]) -> Amount:
    """Everything together."""
    amounts = list(amounts)
    return Amount(*(sum(getattr(a, field) for a in amounts) for field in ("documents", "text_bytes", "tokens")))


def readme(report: CorpusReport) -> str:
    """The card of the data set, with the metadata that `datasets` reads."""
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
