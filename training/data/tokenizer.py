"""Tokenizers: GPT-2's from the Hub for the paper's setting, or a small byte-level BPE trained on a corpus.

Text is text: a document that contains the name of a special token, such as `<|endoftext|>`, gets the ids of those
characters and never the special token's.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tokenizers import Tokenizer

from hub.base.errors import InputError, NotFoundError, UnavailableError
from hub.base.paths import check_links
from hub.store import cache
from hub.store.transport import Transport
from training.configuration.errors import ConfigurationError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
# A Cyrillic and a cuneiform letter, which few vocabularies have.
_RARE_LETTERS = "\ua66e\U00012000"


def train_tokenizer(
    documents: Iterable[str], vocab_size: int, folder: str | Path, progress: bool = True
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of `vocab_size` tokens, end-of-text included; save and return it as a fast tokenizer.

    Raises ValueError if `vocab_size` is less than 257 or more than the text has tokens for.
    """
    from tokenizers import decoders, models, pre_tokenizers, trainers
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


def load_tokenizer(name_or_path: str, revision: str | None = None) -> PreTrainedTokenizerFast:
    """Load a fast tokenizer from the Hub or a folder.

    Raises ConfigurationError if there is none, or none with an eos token, and IntegrityError for files of the Hub's
    cache that are damaged and cannot be fetched again.
    """
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from transformers import AutoTokenizer

    if Path(name_or_path).is_dir():
        check_links(Path(name_or_path).iterdir(), "data.tokenizer")
    load = partial(AutoTokenizer.from_pretrained, name_or_path, revision=revision)
    try:
        if Path(name_or_path).exists():
            tokenizer = load()
        else:
            cache.restore(name_or_path, "tokenizer_config.json", revision)
            # The library would ask again for a minute where there is no network.
            tokenizer = Transport().call(load, patient=False)
    except UnavailableError as error:
        reason = "HF_HUB_OFFLINE=1 asks nobody for it" if HF_HUB_OFFLINE else f"{error} (HF_HUB_OFFLINE=1 asks nobody)"
        raise ConfigurationError(
            f"data.tokenizer: {name_or_path!r} is not in the Hub's cache, and {reason}; give a folder, or download it "
            f"once: hf download {name_or_path} --include 'tokenizer*'"
        ) from error
    except (OSError, ValueError, NotFoundError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(
            f"data.tokenizer: {name_or_path!r} is neither a folder with a tokenizer nor one on the Hub: {reason}"
        ) from error
    if not tokenizer.is_fast:
        raise ConfigurationError(f"data.tokenizer: {name_or_path!r} has no fast implementation; one is needed")
    if tokenizer.eos_token_id is None:
        raise ConfigurationError(f"data.tokenizer: {name_or_path!r} has no eos token to end documents with")
    # A fast tokenizer is of this class; `is_fast` does not tell mypy.
    return tokenizer  # type: ignore[return-value]


def description(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return the JSON of everything that decides which ids a text gets; `tokenizers.Tokenizer.from_str` reads it."""
    values = json.loads(tokenizer.backend_tokenizer.to_str())
    # How a caller last asked for padding or truncation is state of the object, not of the tokenizer.
    values.update(padding=None, truncation=None)
    return json.dumps(values, sort_keys=True)


def fingerprint(description: str) -> str:
    """Return `sha256:<hex>` of a tokenizer's description. Raises ValueError or KeyError for any other text."""
    values = json.loads(description)
    del values["padding"], values["truncation"]
    return "sha256:" + hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


class Vocabulary(Protocol):
    """A tokenizer, or a stand-in for one, that lists its ids."""

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token."""


def vocabulary_size(tokenizer: Vocabulary) -> int:
    """Return the size that an embedding needs: the largest id plus one, since ids may have holes."""
    return max(tokenizer.get_vocab().values()) + 1


def special_tokens(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """List the names of all special tokens, sorted."""
    marked = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(marked.union(tokenizer.all_special_tokens))


def read_names_as_text(description: str, names: Iterable[str]) -> str:
    """Return the description of a tokenizer with the same ids, to which these names of tokens are text.

    The tokens get names that no text contains, in the list of added tokens and in the model itself. To leave them
    unmatched (`encode_special_tokens`) is not enough: Unigram and WordPiece models have them among their pieces, and
    merges of a BPE may lead to them.
    """
    values = json.loads(description)
    new_names = {name: _name_without_text(name) for name in names}
    for token in values["added_tokens"]:
        if token["content"] in new_names:
            token.update(content=new_names[token["content"]], normalized=False)
    model = values["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {new_names.get(piece, piece): number for piece, number in vocabulary.items()}
    else:
        model["vocab"] = [[new_names.get(piece, piece), score] for piece, score in vocabulary]
    if model.get("unk_token") in new_names:
        model["unk_token"] = new_names[model["unk_token"]]
    if "merges" in model:
        prefix_length = len(model.get("continuing_subword_prefix") or "")
        model["merges"] = [
            [first, second]
            for first, second in model["merges"]
            if new_names.keys().isdisjoint((first, second, first + second[prefix_length:]))
        ]
    return json.dumps(values)


class DroppedText:
    """Counts of the characters that a tokenizer maps to nothing.

    Whitespace, which many tokenizers drop between words, is not counted.
    """

    def __init__(self, description: str):
        self._tokenizer = Tokenizer.from_str(description)
        self._is_dropped: dict[str, bool] = {}
        self.counts: Counter[str] = Counter()

    def count(self, text: str) -> None:
        """Count what is dropped of a text."""
        for character in set(text):
            if character not in self._is_dropped:
                self._is_dropped[character] = not character.isspace() and self._drops(character)
            if self._is_dropped[character]:
                self.counts[character] += text.count(character)

    def _drops(self, character: str) -> bool:
        """Return whether a letter gets the same ids with and without a character, which is not as unknown as it."""
        texts = ["a", f"a{character}", character]
        try:
            letter, word, alone = (encoding.ids for encoding in self._tokenizer.encode_batch(texts, False, False))
        except Exception:
            # The model has no unknown token; a document with such a text is refused.
            return False
        return bool(alone != letter == word)


def _name_without_text(name: str) -> str:
    """Return 64 letters in the place of a name, by its hash: normalizers leave them, and no document holds them."""
    digits = hashlib.sha256(f"special token {name}".encode("utf-8", "surrogatepass")).hexdigest()
    return digits.translate(str.maketrans("0123456789", "ghijklmnop"))


def check_end_token(tokenizer: PreTrainedTokenizerFast, text_description: str, names: Iterable[str]) -> None:
    """Raise ConfigurationError if text can become the end token, or if a special token's name has no ids as text.

    `text_description` is that of `read_names_as_text` for these `names`.
    """
    end = tokenizer.eos_token
    shared = [name for name, number in tokenizer.get_vocab().items() if number == tokenizer.eos_token_id]
    if len(shared) > 1:
        raise ConfigurationError(
            f"data.tokenizer: {' and '.join(map(repr, sorted(shared)))} share the id {tokenizer.eos_token_id}; "
            "the end token needs an id of its own"
        )
    backend = Tokenizer.from_str(text_description)
    for text in (*names, _RARE_LETTERS):
        try:
            ids = backend.encode(text, add_special_tokens=False).ids
        except Exception:
            # The model has no unknown token; a document with such a text is refused.
            continue
        if tokenizer.eos_token_id in ids:
            raise ConfigurationError(
                f"data.tokenizer: text that it does not know, such as {text!r}, becomes its end token {end!r}; "
                "give a tokenizer whose unknown token is another one"
            )
        if text.strip() and not ids and text in names:
            raise ConfigurationError(
                f"data.tokenizer: its special token {text!r} is the only token for that text, which would be lost; "
                "give a tokenizer whose special tokens do not occur in text"
            )
