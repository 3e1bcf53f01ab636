"""`python -m training.prepare --config X.yaml [--section.field value ...]`: tokenise before training, and inspect.

It fills the caches of training tokens, as far as the longest branch reads them (`--all`: all), and of held-out tokens.
Several at once, or one beside a training, share the work; an interrupted build resumes. `--workers` and
`--shard` spread the training tokens over processes and machines; the tokens are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from hub.base.commands import App, Version, parser
from hub.base.progress import progress_line
from hub.base.tables import Table, print_table
from training.configuration.arguments import TrainingArguments
from training.configuration.reading import parse_command_line
from training.data.builder import GrowingCache, build_by_many
from training.data.cache import TokenCache
from training.data.filling import Share, finished, group_starts
from training.data.pins import pinned
from training.data.text import TextSource
from training.data.tokenizer import load_tokenizer

app = App(single=True)
_FLAGS_OF_TRAIN = {"help_option_names": ["-h", "--help"], "allow_extra_args": True, "ignore_unknown_options": True}


@dataclass(frozen=True)
class Part:
    """One cache of a run, and how far the run needs it (None: to its end)."""

    name: str
    cache: TokenCache
    source: TextSource
    until_tokens: int | None

    @property
    def state(self) -> str:
        """How much of the data the cache holds."""
        if self.cache.complete:
            return "all of it"
        enough = self.cache.has(self.until_tokens)
        return f"enough for the run ({self.until_tokens:,})" if enough else "less than the run reads"

    def fill(self, progress: bool) -> None:
        """Build the cache as far as a training would, and wait for it. Raises as `GrowingCache.wait_for`."""
        with closing(GrowingCache(self.cache, self.source, self.until_tokens)) as tokens, self._line(progress) as look:
            tokens.wait_for(self.until_tokens, look)

    @contextmanager
    def _line(self, progress: bool) -> Iterator[Callable[[], None]]:
        """A progress line; what it yields looks how far the cache is."""
        done = len(self.cache)
        with progress_line(f"{self.name} tokens", self.until_tokens, "tok", progress, done=done) as advance:

            def look() -> None:
                nonlocal done
                before, done = done, len(self.cache)
                advance(done - before, "")

            yield look

    def fill_by_many(self, workers: int, share: Share, progress: bool) -> str:
        """Build a share of the cache by so many processes; says how far all shares are. Raises as `build_by_many`."""
        folder, total = self.cache.folder, len(group_starts(self.cache.folder, self.source.open()))
        with self._line(progress) as look:
            build_by_many(self.source, self.cache, self.until_tokens, workers, share, look)
        return f"{len(finished(folder))} of {total} groups are tokenised"


def parts(arguments: TrainingArguments, everything: bool) -> list[Part]:
    """The training and the held-out cache of a run, as they are now."""
    # It imports torch, for which --help does not wait.
    from training.run.inputs import held_out_cache, training_cache, with_data_as_begun

    arguments, _ = pinned(with_data_as_begun(arguments), Path(arguments.run.output_dir))
    tokenizer = load_tokenizer(arguments.data.tokenizer, arguments.data.tokenizer_revision)
    training = Part("training", *training_cache(arguments, tokenizer))
    held_out = Part("held-out", *held_out_cache(arguments, tokenizer))
    return [replace(training, until_tokens=None) if everything else training, held_out]


def report(all_parts: list[Part]) -> Table:
    """The caches as a table, a column for each part."""
    columns = [("", "documents", "rows without text", "tokens", "shards", "bytes", "holds", "fingerprint", "folder")]
    for part in all_parts:
        cache, shards, empty = part.cache, part.cache.shards, len(part.cache.rows_without_text)
        documents, size = sum(s["documents"] for s in shards), sum(s["tokens"] for s in shards) * cache.dtype.itemsize
        numbers = [f"{number:,}" for number in (documents, empty, len(cache), len(shards), size)]
        fingerprint = cache.fingerprint if shards else ""
        columns.append((part.name, *numbers, part.state, fingerprint, str(cache.folder)))
    header, *rows = zip(*columns, strict=True)
    return Table(header, rows, title="token caches")


@app.command(context_settings=_FLAGS_OF_TRAIN)
def main(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="All of the data, not only what the run reads.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Build nothing; report what is there.")] = False,
    check: Annotated[bool, typer.Option("--verify", help="Compare the sha256 of every shard.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that tokenise; 1 uses a thread for each core.")] = 1,
    shard: Annotated[
        Share | None,
        typer.Option(parser=parser(Share.parse, "share"), metavar="I/N", help="Do the I-th of N shares only."),
    ] = None,
    version: Version = False,
) -> None:
    """Build the token caches of a run. Further flags are those of train.py: --config, --preset, --section.field.

    Exit status: 0 done, 2 the configuration or the data cannot be used, 3 the disk is full or a cache is damaged.
    """
    # No run is made, so a folder for one need not be named. One that is there pins the data.
    arguments = parse_command_line(context.args, output_dir="unused")
    all_parts, progress = parts(arguments, everything), arguments.run.progress
    if not status:
        training, held_out = all_parts
        if workers > 1 or shard is not None:
            print(training.fill_by_many(workers, shard or Share(), progress))
        if shard is None:
            training.fill(progress)  # and what many processes left: in order, one shard after the other
        if shard is None or shard.index == 0:
            held_out.fill(progress)
    print_table(report(all_parts))
    if check:
        shards = [(part.cache, number) for part in all_parts for number in range(len(part.cache.shards))]
        with progress_line("verifying", len(shards), "shards", progress) as advance:
            for cache, number in shards:
                cache.check_shard(number)  # raises CorruptCacheError where it differs
                advance(1, "")
        print(f"{len(shards)} shards are intact")


if __name__ == "__main__":
    app()
