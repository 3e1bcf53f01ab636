"""Documents to the bytes of their token ids, for the token cache.

A byte-level BPE cuts a text into words by a regular expression and then encodes each word by itself, so the same word
always has the same ids and text is mostly words that were seen before. `tokenizers` builds offsets and strings for
every token and remembers ten thousand words; looking words up in a dictionary of their finished bytes is several times
faster (benchmarks/data_pipeline.py). That way is taken only where it is exact: for GPT-2's word pattern, for texts
without special tokens, and for characters that Python's `re` and the tokenizer's own pattern are seen to class alike.
Every other text, and every other tokenizer, goes through `tokenizers`.
"""

from __future__ import annotations

import json
import re

import numpy as np

# GPT-2's pattern in classes that the standard library has, for ASCII and for the rest. \d is narrower than \p{N} and
# [^\W\d_] wider than \p{L}: characters where that matters are found by `_is_exact` and go the other way.
_SUFFIXES = r"'(?:[sdmt]|ll|re|ve)"
_ASCII_WORDS = re.compile(rf" ?[A-Za-z]+|{_SUFFIXES}| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
_WORDS = re.compile(rf" ?[^\W\d_]+|{_SUFFIXES}| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
_GPT2_PRE_TOKENIZER = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_MAX_WORDS = 300_000  # remembered at a time: about 50 MB


class DocumentEncoder:
    """Texts -> token ids with end-of-text behind each.

    Args:
        description: a tokenizer's JSON (`tokenizer.json`).
        eos_token_id: what a document ends with.
        dtype: "<u2" or "<u4".
    """

    def __init__(self, description: str, eos_token_id: int, dtype: str):
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(description)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._dtype = dtype
        self._eos = np.array([eos_token_id], dtype=dtype).tobytes()
        parts = json.loads(description)
        self._by_words = (
            parts["model"]["type"] == "BPE"
            and not parts["model"].get("dropout")
            and parts.get("normalizer") is None
            and _GPT2_PRE_TOKENIZER.items() <= (parts.get("pre_tokenizer") or {}).items()
        )
        self._special = [token["content"] for token in parts.get("added_tokens") or []]
        self._exact: dict[str, bool] = {}
        self._words = _WordBytes(self._encode)

    def __call__(self, texts: list[str]) -> list[bytes]:
        """Little-endian ids of each text, end-of-text included."""
        encoded: list[bytes | None] = [self._look_up(text) if self._by_words else None for text in texts]
        rest = [i for i, value in enumerate(encoded) if value is None]
        for i, encoding in zip(
            rest,
            self._tokenizer.encode_batch_fast([texts[i] for i in rest], add_special_tokens=False),
            strict=True,
        ):
            encoded[i] = self._bytes(encoding)
        return [value + self._eos for value in encoded]

    def _look_up(self, text: str) -> bytes | None:
        """None where the way by words is not known to be exact."""
        if any(token in text for token in self._special) or not all(map(self._is_exact, set(text))):
            return None
        if len(self._words) > _MAX_WORDS:
            self._words.clear()
        pattern = _ASCII_WORDS if text.isascii() else _WORDS
        return b"".join(map(self._words.__getitem__, pattern.findall(text)))

    def _is_exact(self, character: str) -> bool:
        """Whether the patterns class this character as the tokenizer does: tried out once, at every kind of border."""
        known = self._exact.get(character)
        if known is None:
            c = character
            text = f"a{c}a {c} {c}{c}b1{c}1 {c}1{c}!{c}! {c}!{c}  {c}\n{c} {c}' {c}'{c}s's{c}"
            try:
                words = [text[start:end] for _, (start, end) in self._tokenizer.pre_tokenizer.pre_tokenize_str(text)]
            except UnicodeEncodeError:  # half of a surrogate pair: the tokenizer will say so better
                return False
            known = words == _WORDS.findall(text) and (not c.isascii() or words == _ASCII_WORDS.findall(text))
            self._exact[character] = known
        return known

    def _encode(self, word: str) -> bytes:
        return self._bytes(self._tokenizer.encode(word, add_special_tokens=False))

    def _bytes(self, encoding) -> bytes:
        return np.asarray(encoding.ids, dtype=self._dtype).tobytes()


class _WordBytes(dict):
    """Word -> bytes of its ids, filled as words are asked for."""

    def __init__(self, encode):
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> bytes:
        value = self[word] = self._encode(word)
        return value
