"""Text is text: no document gets the id of a special token, whatever the tokenizer; ids may have holes."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hub import RunRecord
from tests.conftest import make_documents, write_dataset
from tests.training.token_caches import prepare
from training import ConfigurationError, Run, TextSource, load_tokenizer
from training.data.builder import GrowingCache
from training.data.cache import AS_TEXT, TokenCache
from training.data.filling import encoder
from training.data.tokenizer import (
    END_OF_TEXT,
    DroppedText,
    check_end_token,
    description,
    read_names_as_text,
    special_tokens,
    vocabulary_size,
)
from training.run.inputs import check_inputs, resolve_arguments, training_tokens

LETTERS = [*"abcdefghijklmnopqrstuvwxyz<>/[]|_ACDEKLMNPSU"]
END, SEPARATOR = "</s>", "[SEP]"


def add_and_wrap(tokenizer, unknown=None, end=END):
    """Add the end token and two others that match differently, and one token that is not special."""
    special = [
        AddedToken(end, special=True),
        AddedToken(SEPARATOR, special=True, lstrip=True, rstrip=True),
        AddedToken("<mask>", special=True, normalized=True),
    ]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken("<plain>", special=False, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, unk_token=unknown)


def byte_level(**options):
    """A BPE on bytes, as GPT-2's; with `ignore_merges`, as Llama 3's, whole words of the vocabulary are taken."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate([*alphabet, END, SEPARATOR, "ab"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")], **options))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return add_and_wrap(tokenizer)


def merges_to_the_end():
    """A BPE as converted from SentencePiece, whose merges lead to the end token."""
    pieces = ["<unk>", *LETTERS, "▁", "</", "s>", END, "▁a"]
    merges = [("<", "/"), ("s", ">"), ("</", "s>"), ("▁", "a")]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return add_and_wrap(tokenizer, "<unk>")


def unigram():
    """A SentencePiece-like model that has its special tokens among its pieces, with the best score."""
    pieces = [("<unk>", 0.0), (END, 0.0), (SEPARATOR, 0.0), ("▁", -2.0), *((letter, -4.0) for letter in LETTERS)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return add_and_wrap(tokenizer, "<unk>")


def word_piece():
    """BERT's: lower case, with its special tokens in the vocabulary and put around each text."""
    pieces = ["[UNK]", "[CLS]", SEPARATOR, END, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 1)])
    return add_and_wrap(tokenizer, "[UNK]")


def word_level():
    """Whole words, with holes between ids."""
    vocabulary = {"[UNK]": 0, END: 3, SEPARATOR: 90_000, "a": 7, "b": 70_000}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return add_and_wrap(tokenizer, "[UNK]")


TOKENIZERS = {
    "bytes": byte_level,
    "bytes, whole words": lambda: byte_level(ignore_merges=True),
    "merges": merges_to_the_end,
    "unigram": unigram,
    "word piece": word_piece,
    "word level": word_level,
}


@pytest.fixture(params=TOKENIZERS, name="tokenizer")
def tokenizer_of_a_kind(request):
    return TOKENIZERS[request.param]()


def test_what_a_tokenizer_drops_is_counted(tokenizer, request):
    """BERT's normalizer drops invisible characters; what a model does not know is not dropped."""
    dropped = DroppedText(read_names_as_text(description(tokenizer), special_tokens(tokenizer)))
    dropped.count("a b\u200b \U00012000 \u200b")
    is_word_piece = request.node.callspec.params["tokenizer"] == "word piece"
    assert dropped.counts == ({"\u200b": 2} if is_word_piece else {})


def test_letters_outside_of_a_vocabulary_without_an_unknown_token_are_dropped():
    dropped = DroppedText(Tokenizer(models.BPE({"a": 0, "b": 1, "aa": 2}, [("a", "a")])).to_str())
    dropped.count("ab\u0416a")
    assert dropped.counts == {"\u0416": 1}


def test_what_a_tokenizer_drops_is_said_once(tmp_path, caplog):
    write_dataset(tmp_path / "text", {"train": ["a page\u200b", "\u0416 page"] * 200})
    word_piece().save_pretrained(tmp_path / "tokenizer")
    cache = prepare(
        TextSource(str(tmp_path / "text")), load_tokenizer(str(tmp_path / "tokenizer")), tmp_path / "caches"
    )
    assert cache.dropped == {"\u200b": 200}
    for _ in range(2):
        growing = GrowingCache(cache, TextSource(str(tmp_path / "text")), None)
        growing.start()
        growing.close()
    line = "data.tokenizer: it drops 200 characters of the first"
    assert sum(line in message for message in caplog.messages) == 2
    assert caplog.messages[0].endswith("which the model never sees: U+200B 200 times")


def encoder_of_text(tokenizer):
    names = special_tokens(tokenizer)
    return encoder(read_names_as_text(description(tokenizer), names), tokenizer.eos_token_id, "<u4")


def ids_of(data: bytes) -> list[int]:
    return np.frombuffer(data, "<u4").tolist()


@pytest.mark.parametrize(
    "text", [END, f"a {END} b", f"a{END}b", f" {SEPARATOR} ", f"a{SEPARATOR}{END}", "a<mask>", "[UNK]"]
)
def test_the_name_of_a_special_token_is_text(tokenizer, text):
    unknown = {tokenizer.unk_token_id}
    special = set(tokenizer.convert_tokens_to_ids(special_tokens(tokenizer))) - unknown
    *ids, last = ids_of(encoder_of_text(tokenizer)([text])[0])
    assert last == tokenizer.eos_token_id
    assert ids
    assert not special.intersection(ids)
    if tokenizer.unk_token is None:  # bytes: nothing is unknown, and so nothing is lost
        assert tokenizer.decode(ids) == text
    elif len(tokenizer) > 40 and "[" not in text:  # all letters are in the vocabulary
        assert not unknown.intersection(ids)


def test_other_text_and_tokens_that_are_not_special_keep_their_ids(tokenizer):
    texts = ["a b", "ab ba a", "a<plain>b", "  a <plain> b ", "", "<s", "/s>", "mask s"]
    encode = encoder_of_text(tokenizer)
    plain = tokenizer.convert_tokens_to_ids("<plain>")
    for text, data in zip(texts, encode(texts), strict=True):
        expected = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert ids_of(data) == [*expected, tokenizer.eos_token_id]
        assert (plain in expected) == ("<plain>" in text)


def test_the_tokenizer_itself_stays_as_it_is(tokenizer, tmp_path):
    before = description(tokenizer), tokenizer(f"a {END} b")["input_ids"]
    assert tokenizer.eos_token_id in before[1]
    encoder_of_text(tokenizer)([END])
    check_end_token(tokenizer, read_names_as_text(before[0], [END]), [END])
    assert (description(tokenizer), tokenizer(f"a {END} b")["input_ids"]) == before


def test_a_cache_holds_one_end_for_each_document(tokenizer, tmp_path):
    documents = [f"a {END} b" if i % 3 else f"b a{SEPARATOR}" for i in range(50)]
    write_dataset(tmp_path / "text", {"train": documents})
    cache = prepare(TextSource(str(tmp_path / "text")), tokenizer, tmp_path / "cache")
    ids = cache.read(0, len(cache))
    assert (ids == tokenizer.eos_token_id).sum() == sum(shard["documents"] for shard in cache.shards) == 50
    assert ids.max() < vocabulary_size(tokenizer)
    assert END in cache.recipe[AS_TEXT]
    assert TokenCache(cache.folder).recipe == cache.recipe


def test_the_cache_of_an_earlier_version_is_another_and_is_filled_as_before(tmp_path, monkeypatch):
    tokenizer = byte_level()
    documents = [f"a {END} b {i}" for i in range(50)]
    write_dataset(tmp_path / "text", {"train": documents})
    source = TextSource(str(tmp_path / "text"))
    now = prepare(source, tokenizer, tmp_path / "cache")
    before = prepare(source, tokenizer, tmp_path / "cache", special_tokens_as_text=False)
    assert before.folder != now.folder
    assert AS_TEXT not in before.recipe
    expected = []
    for document in documents:
        expected += [*tokenizer(document)["input_ids"], tokenizer.eos_token_id]
    assert before.read(0, len(before)).tolist() == expected
    assert expected.count(tokenizer.eos_token_id) == 100


# -- tokenizers that are refused


def test_an_end_token_that_text_can_become_is_refused(tmp_path):
    write_dataset(tmp_path / "text", {"train": ["a b"]})
    source = TextSource(str(tmp_path / "text"))
    unknown_is_the_end = Tokenizer(models.WordLevel({END: 0, "a": 1, "b": 2}, unk_token=END))
    unknown_is_the_end.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    shared_id = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 3}, unk_token="[UNK]"))
    no_other = Tokenizer(models.BPE({letter: i for i, letter in enumerate(LETTERS)}, []))
    for backend, end, message in (
        (unknown_is_the_end, END, r"^data.tokenizer: text that it does not know, such as .* becomes its end token '<"),
        (shared_id, END, r"^data.tokenizer: '</s>' and 'b' share the id 3; the end token needs an id of its own"),
        (no_other, "e", r"^data.tokenizer: its special token 'e' is the only token for that text"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            prepare(source, add_and_wrap(backend, end=end), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("text-*"))


# -- vocabularies with holes


def test_the_vocabulary_reaches_to_the_largest_id(tmp_path):
    tokenizer = word_level()
    assert len(tokenizer) < 10
    assert vocabulary_size(tokenizer) == 90_001
    write_dataset(tmp_path / "text", {"train": ["a b"] * 5})
    cache = prepare(TextSource(str(tmp_path / "text")), tokenizer, tmp_path / "cache")
    assert cache.dtype == np.dtype("<u4")
    assert cache.read(0, 3).tolist() == [7, 70_000, 3]
    values = json.loads(description(tokenizer))
    assert vocabulary_size(PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(values)))) == 90_001


# -- runs that earlier versions began


def finish(arguments) -> dict[int, RunRecord]:
    """Run to the end; records by token count."""
    check_inputs(arguments)
    assert Run(arguments).execute() == 0
    folders = Path(arguments.run.output_dir).glob("*/model")
    return {record.tokens: record for record in map(RunRecord.load, folders)}


def test_a_run_that_an_earlier_version_began_goes_on_with_its_own_tokens(tiny, tmp_path, builds_here):
    documents = [f"{text} {END_OF_TEXT} {text}" for text in make_documents(300, 0)]
    write_dataset(tmp_path / "text", {"train": documents, "validation": documents[:40]})
    data = {"data.dataset": str(tmp_path / "text"), "data.cache_dir": str(tmp_path / "cache")}
    undisturbed = tiny(**data, data__special_tokens="tokens", run__output_dir=str(tmp_path / "undisturbed"))
    expected = finish(undisturbed)
    finish(tiny(**data, data__special_tokens="tokens", schedule__tokens=[1280]))
    saved = tmp_path / "run" / "config.yaml"
    saved.write_text(saved.read_text().replace("  special_tokens: tokens\n", ""))  # as it was written then
    again = tiny(**data)
    assert [resolve_arguments(again).data.special_tokens, again.data.special_tokens] == ["tokens", "text"]
    with pytest.raises(ConfigurationError, match=r"data.special_tokens: 'text', but .*config.yaml has 'tokens'"):
        check_inputs(tiny(**data, data__special_tokens="text"))
    caches = sorted(path.name for path in (tmp_path / "cache").glob("text-*"))
    for tokens, record in finish(again).items():
        assert (record.weights_sha256, record.dataset) == (expected[tokens].weights_sha256, expected[tokens].dataset)
        assert record.eval_loss == expected[tokens].eval_loss
    assert sorted(path.name for path in (tmp_path / "cache").glob("text-*")) == caches
    assert "special_tokens: tokens" in saved.read_text()
    tokenizer = load_tokenizer(again.data.tokenizer)
    cache = training_tokens(tiny(**data, run__output_dir=str(tmp_path / "now")), tokenizer).cache
    assert cache.folder.name not in caches
