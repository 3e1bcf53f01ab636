"""`python -m training.prepare --config X.yaml [--section.field value ...]`: tokenise before training, and look.

Takes the configuration of a run, as `train.py` does, and builds its token caches: the training tokens as far as the
run's longest branch reads them, or all there are with `--all`, and the held-out tokens. It goes on where an
interrupted build stopped, and two at once (or one beside a training) share the work of one. `--verify` reads every
shard and compares its checksum; `--status` only says what is there.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from filelock import Timeout
from rich.console import Console
from rich.table import Table

from hub.plain.commands import App, Version
from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.configuration.reading import parse_command_line, read_yaml
from training.data.builder import build, lock_of
from training.data.cache import TokenCache, open_cache
from training.data.pins import pinned
from training.data.text import TextSource
from training.data.tokenizer import load_tokenizer
from training.run.inputs import held_out_tokens, text_sources, tokens_needed

app = App(single=True)
_SECTION_FLAGS = {"help_option_names": ["-h", "--help"], "allow_extra_args": True, "ignore_unknown_options": True}


@dataclass(frozen=True)
class Part:
    """One cache of a run, and how far the run needs it (None: to its end)."""

    name: str
    cache: TokenCache
    source: TextSource
    until_tokens: int | None

    @property
    def has_enough(self) -> bool:
        return self.cache.complete or (self.until_tokens is not None and len(self.cache) >= self.until_tokens)


def parts(arguments: TrainingArguments, everything: bool = False) -> list[Part]:
    """The training and the held-out cache of a run, as they are now.

    Raises:
        ConfigurationError: the data set or tokenizer cannot be read.
    """
    try:
        arguments, _ = pinned(arguments, Path(arguments.run.output_dir))
        d = arguments.data
        tokenizer = load_tokenizer(d.tokenizer, d.tokenizer_revision)
        text, held_out_text = text_sources(arguments)
        training = open_cache(text, tokenizer, d.cache_dir)
        held_out = open_cache(held_out_text, tokenizer, d.cache_dir, held_out_tokens(arguments))
    except (ValueError, OSError) as error:
        raise ConfigurationError(str(error)) from error
    until = None if everything else tokens_needed(arguments)[0]
    return [Part("training", training, text, until), Part("held-out", held_out, held_out_text, None)]


def fill(part: Part, progress: bool) -> None:
    """Build a part as far as it is needed, or wait while another process does.

    Raises:
        ValueError: the source cannot be read, or holds no document.
        OSError: the disk is full, the network is gone.
    """
    from tqdm.auto import tqdm

    bar = tqdm(desc=f"{part.name} tokens", total=part.until_tokens, unit="tok", unit_scale=True, disable=not progress)
    with bar:
        while part.cache.refresh() or not part.has_enough:
            bar.update(len(part.cache) - bar.n)
            try:
                with lock_of(part.cache.folder, timeout=0.5):
                    build(part.source, part.cache.folder, part.until_tokens, bar.update)
            except Timeout:
                continue  # another process builds this cache: watch it


def report(every: list[Part]) -> Table:
    """What is there."""
    table = Table(title="token caches", title_justify="left")
    table.add_column("")
    for part in every:
        table.add_column(part.name, overflow="fold")
    caches = [part.cache for part in every]
    table.add_row("documents", *(f"{cache.documents:,}" for cache in caches))
    table.add_row("tokens", *(f"{len(cache):,}" for cache in caches))
    table.add_row("shards", *(f"{len(cache.shards):,}" for cache in caches))
    table.add_row("bytes", *(f"{_size(cache):,}" for cache in caches))
    table.add_row("there is", *map(_state, every))
    table.add_row("fingerprint", *(cache.fingerprint if cache.shards else "" for cache in caches))
    table.add_row("folder", *(str(cache.folder) for cache in caches))
    return table


def _size(cache: TokenCache) -> int:
    return sum((cache.folder / shard["file"]).stat().st_size for shard in cache.shards)


def _state(part: Part) -> str:
    if part.cache.complete:
        return "all of it"
    return f"enough for the run ({part.until_tokens:,})" if part.has_enough else "less than the run reads"


def verify(every: list[Part], progress: bool) -> int:
    """Compare the sha256 of every shard; returns how many there are. Raises CorruptCacheError at one that differs."""
    from tqdm.auto import tqdm

    total = sum(len(part.cache.shards) for part in every)
    checked = itertools.chain.from_iterable(part.cache.verify() for part in every)
    return sum(1 for _ in tqdm(checked, desc="verifying", total=total, unit="shard", disable=not progress))


@app.command(context_settings=_SECTION_FLAGS)
def main(
    context: typer.Context,
    config: Annotated[str | None, typer.Option(help="The run's configuration (YAML).")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of the data, not what the run reads.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Build nothing; say what is there.")] = False,
    check: Annotated[bool, typer.Option("--verify", help="Compare the sha256 of every shard.")] = False,
    processes: Annotated[int | None, typer.Option(min=1, help="Threads that tokenise; default: one per core.")] = None,
    version: Version = False,
) -> None:
    """Build the token caches of a run. Further flags are those of train.py: --section.field value."""
    console = Console()
    if processes is not None:
        os.environ["RAYON_NUM_THREADS"] = str(processes)  # read by `tokenizers` when it first encodes
    # This command makes no run: a folder for one need not be named. One that is there pins the data.
    folder = ((read_yaml(config).get("run") or {}) if config else {}).get("output_dir") or "unused"
    flags = ["--run.output_dir", folder, *(["--config", config] if config else []), *context.args]
    arguments = parse_command_line(flags)
    every = parts(arguments, everything)
    for part in every if not status else ():
        fill(part, arguments.run.progress)
    console.print(report(every))
    if check:
        console.print(f"{verify(every, arguments.run.progress)} shards are as they were written")


if __name__ == "__main__":
    app()
