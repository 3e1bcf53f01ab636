"""The inputs of a run, from its arguments: training tokens, held-out sequences, and what may change on resuming."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from training.configuration.arguments import SECTIONS, ConfigurationError, ModelArguments, TrainingArguments
from training.configuration.model_classes import ModelClassArguments, unread_fields
from training.configuration.reading import read_yaml
from training.data.batches import SequenceOrder, TrainingData
from training.data.builder import GrowingCache
from training.data.cache import TokenCache, open_cache
from training.data.text import GROUP, PART_BYTES, TextSource, check_dataset_exists
from training.run.evaluation import HeldOut
from training.run.log import check_trackers

logger = logging.getLogger(__name__)

_HELD_OUT_ORDER_SEED = 0
# Runs whose configuration lacks `data.special_tokens` began with this.
_SPECIAL_TOKENS_BEFORE = "tokens"

# What may differ when a run is resumed: it does not change the numbers, beyond the rounding of sums in another order
# (and, with micro-batches and `compile`, the masks of dropout and jitter; see `step`).
_FREE = {
    "run": {
        *("output_dir", "checkpoint_seconds", "async_checkpoints", "log_steps", "progress", "trackers"),
        *("micro_batch_sequences", "gradient_checkpointing", "compile", "experts_implementation"),
        *("expert_parallel", "tensor_parallel"),
        *("eval_tokens", "release_tokens", "profile_steps", "dry_run", "push_to_hub", "private", "license"),
    },
    "schedule": {"tokens"},
    # On the last two see `pins`.
    "data": {"cache_dir", "revision", "tokenizer_revision"},
}


def check_inputs(arguments: TrainingArguments) -> None:
    """Check everything that can be checked before torch is needed.

    Raises:
        ConfigurationError: the output folder holds a run of another configuration, or a tracker is not installed.
        FileNotFoundError: the dataset is a local path that does not exist.
    """
    check_dataset_exists(arguments.data.dataset)
    check_trackers(arguments.run.trackers)
    _warn_of_what_is_not_reached(arguments)
    now, path = settled(arguments).to_dict(), Path(arguments.run.output_dir) / "config.yaml"
    before = _started(arguments) or now
    before["data"].setdefault("special_tokens", _SPECIAL_TOKENS_BEFORE)
    now["model"] = dict.fromkeys(before["model"]) | now["model"]  # a field of a class may be in one of them only
    if isinstance(arguments.model, ModelClassArguments):
        # Runs could be begun with fields that their class ignores.
        now["model"] = {
            name: at for name, at in now["model"].items() if name not in unread_fields(arguments.model.type)
        }
    problems = [
        f"{section}.{name}: {value!r}, but {path} has {before[section].get(name)!r}"
        for section, fields in now.items()
        for name, value in fields.items()
        if name not in _FREE.get(section, ()) and before[section].get(name) != value
    ]
    if problems:
        hint = "choose another run.output_dir, or use its configuration:\n  "
        raise ConfigurationError("the output folder holds another run; " + hint + "\n  ".join(problems))


def _warn_of_what_is_not_reached(arguments: TrainingArguments) -> None:
    """Models are saved on the trunk, which ends before the last decay."""
    ramp, branches = arguments.batch_ramp(), arguments.branches()
    ends = {"eval_tokens": branches[-1].end_step, "release_tokens": max(branch.decay_step for branch in branches)}
    for name, end in ends.items():
        missed = [tokens for tokens in getattr(arguments.run, name) if not 0 < ramp.steps(tokens) <= end]
        if missed and os.environ.get("RANK", "0") == "0":
            first, last = ramp.tokens(1), ramp.tokens(end)
            logger.warning("run.%s: nothing happens at %s; it must be from %s to %s tokens", name, missed, first, last)


def settled(arguments: TrainingArguments) -> TrainingArguments:
    """Return the arguments with this run's capacity group and attention precision: as given, or as at its first start.

    The attention's default was fp32 once, and names of special tokens in documents were these tokens: runs begun then
    go on with it. Raises ConfigurationError if a micro-batch does not hold whole groups.
    """
    before = _started(arguments)
    arguments = with_data_as_begun(arguments)
    arguments = arguments.with_capacity_group(before and before["model"]["capacity_group_tokens"])
    is_given = "attention_precision" in arguments.model.model_fields_set
    if before and isinstance(arguments.model, ModelArguments) and not is_given:
        precision = before["model"].get("attention_precision", "float32")
        arguments = arguments.replaced(model={"attention_precision": precision})
    arguments.check_capacity_group()
    return arguments


def with_data_as_begun(arguments: TrainingArguments) -> TrainingArguments:
    """Return the arguments with `data.special_tokens` as given, or as at the run's first start."""
    before = _started(arguments)
    if not before or "special_tokens" in arguments.data.model_fields_set:
        return arguments
    return arguments.replaced(data={"special_tokens": before["data"].get("special_tokens", _SPECIAL_TOKENS_BEFORE)})


def _started(arguments: TrainingArguments) -> dict | None:
    """The configuration with which the run in the output folder was started; None without one."""
    path = Path(arguments.run.output_dir) / "config.yaml"
    if not path.exists():
        return None
    before = read_yaml(path, "run.output_dir", numbers=True)
    if missing := [name for name in SECTIONS if not isinstance(before.get(name), dict)]:
        raise ConfigurationError(f"run.output_dir: {path} is not of a run: it has no section {', '.join(missing)}")
    return before


def text_sources(arguments: TrainingArguments) -> tuple[TextSource, TextSource]:
    """(training, held-out) text."""
    d = arguments.data
    buckets = 0 if d.validation_split else d.held_out_per_mille
    # The held-out text has an order of its own, so runs that read their training text in another order compare.
    seeds = (d.order_seed, _HELD_OUT_ORDER_SEED) if d.order == "shuffled" else (None, None)
    training = TextSource(d.dataset, d.dataset_config, d.revision, d.split, d.text_column, buckets, False, seeds[0])
    return training, replace(training, split=d.validation_split or d.split, held_out=True, file_seed=seeds[1])


def data_order(arguments: TrainingArguments) -> str:
    """How training text is ordered and shuffled, as a run record states it."""
    d, drawn = arguments.data, "files in their stored order"
    if d.order == "shuffled":
        group = f"{GROUP} parts of {PART_BYTES >> 20} MB of parquet (whole files of other formats)"
        drawn = f"drawn across all files, {group} at a time, in the order of seed {d.order_seed}"
    windows = f"windows of {d.shuffle_window:,}"
    if d.first_window < d.shuffle_window:
        windows = f"windows that double from {d.first_window:,} to {d.shuffle_window:,}"
    return f"{drawn}; sequences shuffled in {windows} by seed {arguments.run.seed}"


def _order(arguments: TrainingArguments) -> SequenceOrder:
    return SequenceOrder(arguments.run.seed, arguments.data.shuffle_window, arguments.data.first_window)


def tokens_needed(arguments: TrainingArguments) -> tuple[int, int | None]:
    """Tokens of the cache that the longest branch reads, and sequences of an epoch (None: all).

    Raises ConfigurationError if `data.train_tokens` is less than a sequence.
    """
    d, longest = arguments.data, arguments.branches()[-1]
    end = longest.tokens // d.sequence_length
    needed = _order(arguments).count_to_tokenise(0, end)
    if d.train_tokens is None:
        return needed * d.sequence_length + 1, None
    most = d.train_tokens // d.sequence_length
    if most == 0:
        raise ConfigurationError(
            f"data.train_tokens: {d.train_tokens}; it must hold a sequence of {d.sequence_length} tokens"
        )
    return min(needed, most) * d.sequence_length + 1, most


Source = tuple[TokenCache, TextSource, int | None]  # a cache as it is now, its text, and tokens needed (None: all)


def training_cache(arguments: TrainingArguments, tokenizer) -> Source:
    """The training tokens, as far as the longest branch reads them."""
    text, _ = text_sources(arguments)
    return _open_cache(arguments, text, tokenizer), text, tokens_needed(arguments)[0]


def held_out_cache(arguments: TrainingArguments, tokenizer) -> Source:
    """The held-out tokens, which end where the evaluation has enough."""
    d, (_, text) = arguments.data, text_sources(arguments)
    # A fixed shuffle chooses among more sequences than it takes: more documents make a smaller error. Not where text
    # is held out by a hash: each document found means reading a hundred others.
    enough = arguments.run.eval_sequences * d.sequence_length * (4 if d.validation_split else 1) + 1
    return _open_cache(arguments, text, tokenizer, enough), text, None


def _open_cache(
    arguments: TrainingArguments, text: TextSource, tokenizer, max_tokens: int | None = None
) -> TokenCache:
    as_text = arguments.data.special_tokens == "text"
    return open_cache(text, tokenizer, arguments.data.cache_dir, max_tokens, as_text)


def training_data(arguments: TrainingArguments, tokenizer, patience: float = 0.0) -> TrainingData:
    """The training sequences; tokenising what is missing starts now and continues during training.

    Leaves it to other processes for `patience` seconds; see `GrowingCache`. Raises as `TrainingData`.
    """
    sizes = arguments.data.sequence_length, arguments.run.micro_batch_sequences, tokens_needed(arguments)[1]
    return TrainingData(GrowingCache(*training_cache(arguments, tokenizer), patience), _order(arguments), *sizes)


class HeldOutText:
    """Held-out sequences that may still be being tokenised; only the first evaluation waits for them."""

    def __init__(self, arguments: TrainingArguments, tokenizer, patience: float = 0.0):
        self.tokens = GrowingCache(*held_out_cache(arguments, tokenizer), patience)
        self._arguments = arguments
        self.tokens.start()

    def wait(self) -> HeldOut:
        """Wait for the sequences. Raises as `GrowingCache.wait_for`."""
        return self._sequences

    @cached_property
    def _sequences(self) -> HeldOut:
        self.tokens.wait_for(None)
        d, cache = self._arguments.data, self.tokens.cache
        text = f"split {d.validation_split!r}"
        if not d.validation_split:
            text = f"{d.held_out_per_mille} in 1,000 documents of split {d.split!r}, by the hash of their id"
        part = f"all of its {len(cache):,} tokens"
        if len(cache) >= cache.recipe["max_tokens"]:
            drawn = "drawn across all files" if d.order == "shuffled" else "in the stored order"
            part = f"the first {len(cache):,} tokens {drawn}"
        sequences = self._arguments.run.eval_sequences
        return HeldOut.from_cache(cache, d.sequence_length, sequences, f"{text}; sequences from {part}")
