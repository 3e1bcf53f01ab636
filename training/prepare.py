"""`python -m training.prepare --config X.yaml [--section.field value ...]`: tokenise before training, and inspect.

It fills the caches of training tokens, as far as the longest branch reads them (`--all`: all), and of held-out tokens.
One process builds a cache at a time, a training or another `prepare` beside it waits for its shards; an interrupted
build resumes.
"""

from __future__ import annotations

from contextlib import closing
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
from training.data.tokenizer import load_tokenizer

app = App(single=True)
_FLAGS_OF_TRAIN = {"help_option_names": ["-h", "--help"], "allow_extra_args": True, "ignore_unknown_options": True}


def open_caches(arguments: TrainingArguments, everything: bool) -> dict[str, GrowingCache]:
    """Open the training and the held-out cache of a run, to be filled as far as it reads them, or with everything."""
    arguments, _ = pinned(running.resolve_arguments(arguments), Path(arguments.run.output_dir))
    tokenizer = load_tokenizer(arguments.data.tokenizer, arguments.data.tokenizer_revision)
    training = running.training_tokens(arguments, tokenizer)
    if everything:
        training.until_tokens = None
    return {"training": training, "held-out": running.held_out_tokens(arguments, tokenizer)}


def fill(name: str, tokens: GrowingCache, progress: bool) -> None:
    """Build a cache as far as a training would, and wait for it. Raises as `GrowingCache.wait_for`."""
    count = len(tokens.cache)
    with (
        closing(tokens),
        progress_line(f"{name} tokens", tokens.until_tokens, "tok", progress, done=count) as advance,
    ):

        def update() -> None:
            nonlocal count
            advance(len(tokens.cache) - count, "")
            count = len(tokens.cache)

        tokens.wait_for(tokens.until_tokens, update)


def describe_state(tokens: GrowingCache) -> str:
    """Say how much of the data a cache holds."""
    if tokens.cache.complete:
        return "all of it"
    if tokens.cache.has(tokens.until_tokens):
        return f"enough for the run ({tokens.until_tokens:,})"
    return "less than the run reads"


def report(caches: dict[str, GrowingCache]) -> Table:
    """Tabulate the caches, a column for each."""
    names = ("", "documents", "rows without text", "tokens", "shards", "bytes", "holds", "fingerprint", "folder")
    columns: list[Strings] = [names]
    for name, tokens in caches.items():
        cache = tokens.cache
        numbers = (
            sum(shard["documents"] for shard in cache.shards),
            len(cache.rows_without_text),
            len(cache),
            len(cache.shards),
            sum(shard["tokens"] for shard in cache.shards) * cache.dtype.itemsize,
        )
        fingerprint = cache.fingerprint if cache.shards else ""
        cells = [f"{number:,}" for number in numbers]
        columns.append((name, *cells, describe_state(tokens), fingerprint, str(cache.folder)))
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
    caches = open_caches(arguments, everything)
    if not status:
        for name, tokens in caches.items():
            fill(name, tokens, progress)
    print_table(report(caches))
    if check:
        token_caches = [tokens.cache for tokens in caches.values()]
        print(f"{_check_shards(token_caches, progress)} shards are intact")


def _check_shards(caches: list[TokenCache], progress: bool) -> int:
    """Compare the sha256 of every shard, and return how many there are. Raises CorruptCacheError where it differs."""
    total = sum(len(cache.shards) for cache in caches)
    with progress_line("verifying", total, "shards", progress) as advance:
        for cache in caches:
            for number in range(len(cache.shards)):
                cache.check_shard(number)
                advance(1, "")
    return total


if __name__ == "__main__":
    app()
