"""What a run reads, from its arguments: the training tokens and the held-out sequences."""

from __future__ import annotations

from pathlib import Path

import yaml

from .arguments import ConfigurationError, TrainingArguments
from .evaluation import HeldOut
from .text import TextSource, check_dataset_exists
from .tokens import TokenCache, prepare

# What may differ when a run goes on: it does not change the numbers.
_FREE = {
    "run": {
        *("output_dir", "checkpoint_seconds", "log_steps", "progress", "trackers"),
        *("eval_tokens", "release_tokens", "profile_steps", "dry_run"),
    },
    "schedule": {"tokens"},
    "data": {"cache_dir"},
}


def check_inputs(arguments: TrainingArguments) -> None:
    """Everything that can be found wrong before torch is asked to do anything.

    Raises:
        ConfigurationError: the output folder holds a run of another configuration.
        FileNotFoundError: the data set is a local path that is not there.
    """
    check_dataset_exists(arguments.data.dataset)
    path = Path(arguments.run.output_dir) / "config.yaml"
    if not path.exists():
        return
    before, now = yaml.safe_load(path.read_text()), arguments.to_dict()
    problems = [
        f"{section}.{name}: {now[section][name]!r}, but {path} has {before.get(section, {}).get(name)!r}"
        for section in now
        for name in now[section]
        if name not in _FREE.get(section, ()) and before.get(section, {}).get(name) != now[section][name]
    ]
    if problems:
        hint = "choose another run.output_dir, or the configuration that is there:\n  "
        raise ConfigurationError("the output folder holds another run; " + hint + "\n  ".join(problems))


def text_sources(arguments: TrainingArguments) -> tuple[TextSource, TextSource]:
    """(training, held-out) text."""
    d = arguments.data
    buckets = 0 if d.validation_split else d.held_out_per_mille

    def source(split: str, held_out: bool) -> TextSource:
        return TextSource(d.dataset, d.dataset_config, d.revision, split, d.text_column, buckets, held_out)

    return source(d.split, False), source(d.validation_split or d.split, True)


def train_cache(arguments: TrainingArguments, tokenizer) -> TokenCache:
    """The tokens to train on, prepared if need be.

    Raises:
        ConfigurationError: a split or column that is not there, or no text.
    """
    return _prepare(arguments, text_sources(arguments)[0], tokenizer, arguments.data.train_tokens)


def held_out(arguments: TrainingArguments, tokenizer) -> HeldOut:
    """The held-out sequences of the evaluation. Raises as `train_cache` does."""
    length, sequences = arguments.data.sequence_length, arguments.run.eval_sequences
    # Half as much again as the evaluation reads, so that a fixed shuffle has something to choose from.
    tokens = int(1.5 * sequences * length) + length
    cache = _prepare(arguments, text_sources(arguments)[1], tokenizer, tokens)
    return HeldOut.from_cache(cache, length, sequences)


def _prepare(arguments: TrainingArguments, source: TextSource, tokenizer, max_tokens: int | None) -> TokenCache:
    try:
        return prepare(source, tokenizer, arguments.data.cache_dir, max_tokens, arguments.run.progress)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
