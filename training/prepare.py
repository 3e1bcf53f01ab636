"""`python -m training.prepare --config X.yaml [--section.field value ...]`: tokenise before training, and inspect.

It fills the caches of training tokens, as far as the longest branch reads them (`--all`: all), and of held-out tokens.
One process builds a cache at a time, a training or another `prepare` beside it waits for its shards; an interrupted
build resumes.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from hub.base.commands import App, Version
from hub.base.progress import progress_line
from hub.base.tables import Table, print_table
from hub.base.types import Strings

# It imports torch where it is used: --help does not wait for it.
from training import run as running
from training.configuration.arguments import TrainingArguments
from training.configuration.reading import parse_command_line
from training.data.builder import GrowingCache
from training.data.cache import TokenCache
from training.data.pins import pinned
from training.data.text import TextSource
from training.data.tokenizer import load_tokenizer

app = App(single=True)
_FLAGS_OF_TRAIN = {"help_option_names": ["-h", "--help"], "allow_extra_args": True, "ignore_unknown_options": True}


@dataclass(frozen=True)
class CacheOfRun:
    """One cache of a run, and how far the run needs it (None: to its end)."""

    name: str
    cache: TokenCache
    source: TextSource
    until_tokens: int | None

    @property
    def state(self) -> str:
        """Share of the data that the cache holds, in words."""
        if self.cache.complete:
            return "all of it"
        if self.cache.has(self.until_tokens):
            return f"enough for the run ({self.until_tokens:,})"
        return "less than the run reads"

    def fill(self, progress: bool) -> None:
        """Build the cache as far as a training would, and wait for it. Raises as `GrowingCache.wait_for`."""
        tokens = len(self.cache)
        with (
            closing(GrowingCache(self.cache, self.source, self.until_tokens)) as growing,
            progress_line(f"{self.name} tokens", self.until_tokens, "tok", progress, done=tokens) as advance,
        ):

            def update() -> None:
                nonlocal tokens
                advance(len(self.cache) - tokens, "")
                tokens = len(self.cache)

            growing.wait_for(self.until_tokens, update)


def caches_of_run(arguments: TrainingArguments, everything: bool) -> list[CacheOfRun]:
    """Open the training and the held-out cache of a run, as they are now."""
    arguments, _ = pinned(running.with_data_as_begun(arguments), Path(arguments.run.output_dir))
    tokenizer = load_tokenizer(arguments.data.tokenizer, arguments.data.tokenizer_revision)
    training = CacheOfRun("training", *running.training_cache(arguments, tokenizer))
    held_out = CacheOfRun("held-out", *running.held_out_cache(arguments, tokenizer))
    return [replace(training, until_tokens=None) if everything else training, held_out]


def report(caches: list[CacheOfRun]) -> Table:
    """Tabulate the caches, a column for each."""
    names = ("", "documents", "rows without text", "tokens", "shards", "bytes", "holds", "fingerprint", "folder")
    columns: list[Strings] = [names]
    for cache_of_run in caches:
        cache = cache_of_run.cache
        numbers = (
            sum(shard["documents"] for shard in cache.shards),
            len(cache.rows_without_text),
            len(cache),
            len(cache.shards),
            sum(shard["tokens"] for shard in cache.shards) * cache.dtype.itemsize,
        )
        fingerprint = cache.fingerprint if cache.shards else ""
        cells = [f"{number:,}" for number in numbers]
        columns.append((cache_of_run.name, *cells, cache_of_run.state, fingerprint, str(cache.folder)))
    header, *rows = zip(*columns, strict=True)
    return Table(header, rows, title="token caches")


@app.command(context_settings=_FLAGS_OF_TRAIN)
def main(
    context: typer.Context,
    everything: Annotated[
        bool, typer.Option("--all", help="Tokenise all of the data, not just what the run reads.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Build nothing; report what is there.")] = False,
    check: Annotated[bool, typer.Option("--verify", help="Compare the sha256 of every shard.")] = False,
    version: Version = False,
) -> None:
    """Build the token caches of a run. Further flags are those of train.py: --config, --preset, --section.field.

    Exit status: 0 done, 2 the configuration or the data cannot be used, 3 the disk is full or a cache is damaged.
    """
    # No run is made, so a folder for one need not be named. One that is there pins the data.
    arguments = parse_command_line(context.args, output_dir="unused")
    progress = arguments.run.progress
    caches = caches_of_run(arguments, everything)
    if not status:
        for cache_of_run in caches:
            cache_of_run.fill(progress)
    print_table(report(caches))
    if check:
        print(f"{_check_shards(caches, progress)} shards are intact")


def _check_shards(caches: list[CacheOfRun], progress: bool) -> int:
    """Compare the sha256 of every shard, and return how many there are. Raises CorruptCacheError where it differs."""
    total = sum(len(cache_of_run.cache.shards) for cache_of_run in caches)
    with progress_line("verifying", total, "shards", progress) as advance:
        for cache_of_run in caches:
            for number in range(len(cache_of_run.cache.shards)):
                cache_of_run.cache.check_shard(number)
                advance(1, "")
    return total


if __name__ == "__main__":
    app()
