"""Tokenizers: GPT-2's from the Hub for the paper's setting, or a small byte-level BPE trained on a corpus."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from hub.base.errors import InputError
from hub.store import cache
from training.configuration.arguments import ConfigurationError

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(documents: Iterable[str], vocab_size: int, folder: str | Path, progress: bool = True):
    """Train a byte-level BPE of `vocab_size` tokens, end-of-text included; save and return it as a fast tokenizer.

    Raises ValueError if `vocab_size` is less than 257 or more than the text has tokens for.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if vocab_size < 257:
        raise InputError(f"vocab_size: {vocab_size}; a byte-level BPE needs at least 257 (256 bytes and end-of-text)")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=progress,
    )
    tokenizer.train_from_iterator(documents, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise InputError(f"vocab_size: {vocab_size}; this text allows only {tokenizer.get_vocab_size()} tokens")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, unk_token=END_OF_TEXT
    )
    fast.save_pretrained(folder)
    return fast


def load_tokenizer(name_or_path: str, revision: str | None = None):
    """A fast tokenizer from the Hub or a folder; raises ConfigurationError for none, or one without an eos token.

    IntegrityError for files of the Hub's cache that are damaged and cannot be fetched again.
    """
    from transformers import AutoTokenizer

    try:
        if not Path(name_or_path).exists():
            cache.restore(name_or_path, "tokenizer_config.json", revision)
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, revision=revision)
    except (OSError, ValueError) as error:
        what = f"data.tokenizer: {name_or_path!r} is neither a folder with a tokenizer nor one on the Hub"
        raise ConfigurationError(f"{what}: {str(error).strip().splitlines()[0]}") from error
    if not tokenizer.is_fast:
        raise ConfigurationError(f"data.tokenizer: {name_or_path!r} has no fast implementation; one is needed")
    if tokenizer.eos_token_id is None:
        raise ConfigurationError(f"data.tokenizer: {name_or_path!r} has no eos token to end documents with")
    return tokenizer


def description(tokenizer) -> str:
    """The JSON of everything that decides which ids a text gets; `tokenizers.Tokenizer.from_str` reads it."""
    values = json.loads(tokenizer.backend_tokenizer.to_str())
    # How a caller last asked for padding or truncation is state of the object, not of the tokenizer.
    values.update(padding=None, truncation=None)
    return json.dumps(values, sort_keys=True)


def fingerprint(description: str) -> str:
    """sha256 of a tokenizer's description, as `sha256:<hex>`. Raises ValueError or KeyError where it is none."""
    values = json.loads(description)
    del values["padding"], values["truncation"]
    return "sha256:" + hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
