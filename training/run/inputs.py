"""The inputs of a run, from its arguments: training tokens, held-out sequences, and what may change on resuming."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hub.base.types import Fields
from training.configuration.arguments import SECTIONS, ConfigurationError, ModelArguments, TrainingArguments
from training.configuration.model_classes import ModelClassArguments, unread_fields
from training.configuration.reading import read_yaml
from training.data.batches import SequenceOrder, TrainingData
from training.data.builder import GrowingCache
from training.data.cache import TokenCache, open_cache
from training.data.pins import FIELDS, RunData
from training.data.text import GROUP, PART_BYTES, TextSource, check_dataset_exists, is_local_path
from training.run.evaluation import HeldOut
from training.run.log import check_trackers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

_HELD_OUT_ORDER_SEED = 0
# Runs whose configuration lacks these fields of `data` began with these values.
_DATA_BEFORE = {"special_tokens": "tokens", "held_out_by": "id"}

# Fields that may differ when a run is resumed: they do not change the numbers, beyond the rounding of sums in another
# order (and, with micro-batches and `compile`, the masks of dropout and jitter; see `step`).
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
    _warn_of_unreached_tokens(arguments)
    resolved = resolve_arguments(arguments)
    before = _read_first_configuration(arguments)
    if before is None:
        return
    problems = _describe_differences(resolved, before)
    if problems:
        hint = "choose another run.output_dir, or use its configuration:\n  "
        raise ConfigurationError("the output folder holds another run; " + hint + "\n  ".join(problems))


def _describe_differences(arguments: TrainingArguments, before: Fields) -> list[str]:
    """List the fields that differ from those of the run in the output folder, and may not."""
    path = Path(arguments.run.output_dir) / "config.yaml"
    now = arguments.to_dict()
    # A field of a class may be in one of the configurations only.
    now["model"] = {**dict.fromkeys(before["model"]), **now["model"]}
    if isinstance(arguments.model, ModelClassArguments):
        # Runs could be begun with fields that their class ignores.
        for name in unread_fields(arguments.model.type) & now["model"].keys():
            del now["model"][name]
    problems = []
    for section, fields in now.items():
        for name, value in fields.items():
            first_value = before[section].get(name)
            is_free = name in _FREE.get(section, ()) or (
                section == "data" and _is_compared_by_content(name, arguments)
            )
            if not is_free and first_value != value:
                problems.append(f"{section}.{name}: {value!r}, but {path} has {first_value!r}")
    return problems


def _is_compared_by_content(name: str, arguments: TrainingArguments) -> bool:
    """Return whether `data.json` holds hashes of local files, for `Run` to compare: these may lie elsewhere now."""
    data = RunData.of(Path(arguments.run.output_dir))
    was_local = data.dataset is not None and name not in {pin.kind for pin in data.pins}
    return name in FIELDS and was_local and is_local_path(getattr(arguments.data, name))


def _warn_of_unreached_tokens(arguments: TrainingArguments) -> None:
    """Warn of evaluations after the end, and of releases after the end of the trunk, on which models are saved."""
    ramp = arguments.batch_ramp()
    branches = arguments.branches()
    last_steps = {
        "eval_tokens": branches[-1].end_step,
        "release_tokens": max(branch.decay_step for branch in branches),
    }
    for name, last_step in last_steps.items():
        missed = [tokens for tokens in getattr(arguments.run, name) if not 0 < ramp.steps(tokens) <= last_step]
        if missed and os.environ.get("RANK", "0") == "0":
            first = ramp.tokens(1)
            last = ramp.tokens(last_step)
            logger.warning("run.%s: nothing happens at %s; it must be from %s to %s tokens", name, missed, first, last)


def resolve_arguments(arguments: TrainingArguments) -> TrainingArguments:
    """Return the arguments with this run's capacity group and attention precision: as given, or as at its first start.

    The attention's default was fp32 once, and names of special tokens in documents were these tokens: runs begun then
    go on with it. Raises ConfigurationError if a micro-batch does not hold whole groups.
    """
    before = _read_first_configuration(arguments)
    arguments = arguments.with_capacity_group(before["model"]["capacity_group_tokens"] if before else None)
    if before:
        names = _DATA_BEFORE.keys() - arguments.data.model_fields_set
        arguments = arguments.replaced(data={name: before["data"][name] for name in names})
        is_given = "attention_precision" in arguments.model.model_fields_set
        if isinstance(arguments.model, ModelArguments) and not is_given:
            precision = before["model"].get("attention_precision", "float32")
            arguments = arguments.replaced(model={"attention_precision": precision})
    arguments.check_capacity_group()
    return arguments


def _read_first_configuration(arguments: TrainingArguments) -> Fields | None:
    """Read the configuration with which the run in the output folder was started; None without one."""
    path = Path(arguments.run.output_dir) / "config.yaml"
    if not path.exists():
        return None
    configuration = read_yaml(path, "run.output_dir", numbers=True)
    missing = [name for name in SECTIONS if not isinstance(configuration.get(name), dict)]
    if missing:
        raise ConfigurationError(f"run.output_dir: {path} is not of a run: it has no section {', '.join(missing)}")
    return {**configuration, "data": {**_DATA_BEFORE, **configuration["data"]}}


def text_sources(arguments: TrainingArguments) -> tuple[TextSource, TextSource]:
    """Return the training text and the held-out text."""
    d = arguments.data
    is_shuffled = d.order == "shuffled"
    training = TextSource(
        d.dataset,
        d.dataset_config,
        d.revision,
        d.split,
        d.text_column,
        held_out_buckets=0 if d.validation_split else d.held_out_per_mille,
        file_seed=d.order_seed if is_shuffled else None,
        held_out_by=d.held_out_by,
    )
    held_out = replace(
        training,
        split=d.validation_split or d.split,
        held_out=True,
        # An order of its own: runs that read their training text in another order compare.
        file_seed=_HELD_OUT_ORDER_SEED if is_shuffled else None,
    )
    return training, held_out


def data_order(arguments: TrainingArguments) -> str:
    """Say how training text is ordered and shuffled, as a run record states it."""
    d = arguments.data
    file_order = "files in their stored order"
    if d.order == "shuffled":
        group = f"{GROUP} parts of {PART_BYTES >> 20} MB of parquet (whole files of other formats)"
        file_order = f"drawn across all files, {group} at a time, in the order of seed {d.order_seed}"
    windows = f"windows of {d.shuffle_window:,}"
    if d.first_window < d.shuffle_window:
        windows = f"windows that double from {d.first_window:,} to {d.shuffle_window:,}"
    return f"{file_order}; sequences shuffled in {windows} by seed {arguments.run.seed}"


def _order(arguments: TrainingArguments) -> SequenceOrder:
    return SequenceOrder(arguments.run.seed, arguments.data.shuffle_window, arguments.data.first_window)


def tokens_needed(arguments: TrainingArguments) -> tuple[int, int | None]:
    """Count the tokens of the cache that the longest branch reads, and the sequences of an epoch (None: all).

    Raises ConfigurationError if `data.train_tokens` is less than a sequence.
    """
    d = arguments.data
    end = arguments.branches()[-1].tokens // d.sequence_length
    n_sequences = _order(arguments).count_to_tokenise(0, end)
    if d.train_tokens is None:
        return n_sequences * d.sequence_length + 1, None
    epoch_sequences = d.train_tokens // d.sequence_length
    if epoch_sequences == 0:
        raise ConfigurationError(
            f"data.train_tokens: {d.train_tokens}; it must hold a sequence of {d.sequence_length} tokens"
        )
    return min(n_sequences, epoch_sequences) * d.sequence_length + 1, epoch_sequences


def training_tokens(
    arguments: TrainingArguments, tokenizer: PreTrainedTokenizerFast, patience: float = 0.0
) -> GrowingCache:
    """Open the cache of the training tokens, which are needed as far as the longest branch reads them."""
    text, _ = text_sources(arguments)
    cache = _open_cache(arguments, text, tokenizer)
    return GrowingCache(cache, text, tokens_needed(arguments)[0], patience)


def held_out_tokens(
    arguments: TrainingArguments, tokenizer: PreTrainedTokenizerFast, patience: float = 0.0
) -> GrowingCache:
    """Open the cache of the held-out tokens, which end where the evaluation has enough."""
    d = arguments.data
    _, text = text_sources(arguments)
    # A fixed shuffle chooses among more sequences than it takes: more documents make a smaller error. Not where text
    # is held out by a hash, since a hundred documents are read for each that it holds out.
    choices = 4 if d.validation_split else 1
    max_tokens = arguments.run.eval_sequences * d.sequence_length * choices + 1
    return GrowingCache(_open_cache(arguments, text, tokenizer, max_tokens), text, None, patience)


def _open_cache(
    arguments: TrainingArguments, text: TextSource, tokenizer: PreTrainedTokenizerFast, max_tokens: int | None = None
) -> TokenCache:
    as_text = arguments.data.special_tokens == "text"
    return open_cache(text, tokenizer, arguments.data.cache_dir, max_tokens, as_text)


def training_data(
    arguments: TrainingArguments, tokenizer: PreTrainedTokenizerFast, patience: float = 0.0
) -> TrainingData:
    """Open the training sequences; tokenising of those that are missing starts now and continues during training.

    Leaves it to other processes for `patience` seconds; see `GrowingCache`. Raises as `TrainingData`.
    """
    _, epoch_sequences = tokens_needed(arguments)
    return TrainingData(
        training_tokens(arguments, tokenizer, patience),
        _order(arguments),
        arguments.data.sequence_length,
        epoch_sequences,
    )


class HeldOutText:
    """Held-out sequences that may still be being tokenised; only the first evaluation waits for them."""

    def __init__(self, arguments: TrainingArguments, tokenizer: PreTrainedTokenizerFast, patience: float = 0.0):
        self.tokens = held_out_tokens(arguments, tokenizer, patience)
        self._arguments = arguments
        self.tokens.start()

    def wait(self) -> HeldOut:
        """Wait for the sequences. Raises as `GrowingCache.wait_for`."""
        return self._sequences

    @cached_property
    def _sequences(self) -> HeldOut:
        self.tokens.wait_for(None)
        return HeldOut.from_cache(
            self.tokens.cache,
            self._arguments.data.sequence_length,
            self._arguments.run.eval_sequences,
            self._describe_origin(),
        )

    def _describe_origin(self) -> str:
        """Say of which text the sequences are, as a run record states it."""
        d = self._arguments.data
        cache = self.tokens.cache
        text = f"split {d.validation_split!r}"
        if not d.validation_split:
            text = (
                f"{d.held_out_per_mille} in 1,000 documents of split {d.split!r}, by the hash of their {d.held_out_by}"
            )
        tokens = f"all of its {len(cache):,} tokens"
        if len(cache) >= cache.recipe["max_tokens"]:
            order = "drawn across all files" if d.order == "shuffled" else "in the stored order"
            tokens = f"the first {len(cache):,} tokens {order}"
        return f"{text}; sequences from {tokens}"
