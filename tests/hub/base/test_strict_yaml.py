"""YAML's traps: each is read as it was typed, or refused with its line and field."""

import re

import pytest

from hub.base.strict_yaml import YamlError, as_typed, loads, read, read_word

pytestmark = pytest.mark.light

AS_TYPED = (
    "yes no on off y n True FALSE None nil NaN .inf -.INF .nan nan inf 500:16 1:30:00 0:128 1e3 1E3 1e-6 1.0e-06"
)
AS_TYPED += " 0x10 0o17 0b1 010 1_000 +1 -0 1. .5 0.10 1e400 2026-01-01 = << 1,000 1B a#b " + "9" * 6000


@pytest.mark.parametrize("word", AS_TYPED.split(), ids=lambda word: word[:20])
def test_words_are_the_text_that_was_typed(word):
    assert loads(f"a: {word}\nb: [{word}]" if "," not in word else f"a: {word}\nb: [x]")["a"] == word
    assert read_word(word) == word


VALUES = [("null", None), ("true", True), ("false", False), ("5", 5), ("-3", -3), ("0.1", 0.1), ("1e-06", 1e-06)]


@pytest.mark.parametrize(("word", "value"), VALUES)
def test_values_are_few_and_give_back_their_text(word, value):
    for read_value in (loads(f"a: {word}")["a"], read_word(word)):
        assert read_value == value
        assert type(read_value) is type(value)
        assert value is None or as_typed(read_value) == word
    assert loads(f"a: '{word}'\nb: \"{word}\"") == {"a": word, "b": word}
    assert loads(f"{word}: x") == {word: "x"}  # keys are text


def test_numbers_may_be_wanted_in_any_decimal_form():
    words = "[1e-6, 1.0e-06, 1_000, 010, 0.10, 1e400, 0x10, '5', no, 1:30]"
    assert loads(words, numbers=True) == [1e-6, 1e-6, 1000, 10, 0.1, "1e400", "0x10", "5", "no", "1:30"]


def test_a_key_without_a_value_is_null():
    assert loads("a:\nb: {c: }") == {"a": None, "b": {"c": None}}


ANCHORS = "x-run: &run {seed: 1, sweep: a}\nx-other: &other {seed: 2}\n"


def test_anchors_are_repeated_and_merged():
    assert loads(f"{ANCHORS}run: *run")["run"] == {"seed": 1, "sweep": "a"}
    assert loads(f"{ANCHORS}run: {{seed: 3, <<: *run}}")["run"] == {"seed": 3, "sweep": "a"}


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)
REFUSED = [
    ("run: {seed: 1}\nmodel: {}\nrun: {seed: 2}", "line 3: run occurs twice, first in line 1"),
    ("run:\n  seed: 1\n  sweep: a\n  seed: 2", "line 4: run.seed occurs twice, first in line 2"),
    ("runs:\n- {}\n- a: {b: 1, b: 1}", "line 3: runs.2.a.b occurs twice, first in line 3"),
    ('{"run": {"seed": 1,\n "seed": 1}}', "line 2: run.seed occurs twice, first in line 1"),
    ("a: 1\n'a': 2", "line 2: a occurs twice"),
    ("1: 1\n1: 2", "line 2: 1 occurs twice"),
    (f"{ANCHORS}run: {{<<: [*run, *other]}}", "line 3: run.seed occurs twice, in two mappings that << merges"),
    (f"{ANCHORS}run: {{<<: *run, <<: *other}}", "line 3: run.<< occurs twice"),
    ("run: {<<: 5}", "line 1: run.<< must be a mapping"),
    ("a:\n  b: ~", "line 2: a.b: ~ is ambiguous; write null"),
    ("a: Null", "Null is ambiguous"),
    ("a: NULL", "NULL is ambiguous"),
    ("a: !!python/object/apply:os.system [x]", "line 1: a has the tag !!python/object/apply:os.system; tags are not"),
    ("a: !ours 1", "line 1: a has the tag !ours"),
    ("a: !!int '3'", "line 1: a has the tag !!int"),
    ("!!set {a}", "line 1: the document has the tag !!set"),
    ("? [a]\n: 1", "line 1: the document has a key that is not text"),
    ("a:\n\tb: 1", "line 2, column 1: .*indent with spaces"),
    ("a: 1\n---\nb: 2", "line 2, column 1: expected a single document .* found another document"),
    ("", "it is empty"),
    ("# nothing\n", "it is empty"),
    ("a: [", "line 1, column 5: while parsing"),
    ("a: 'x", "line 1, column 6: .*unexpected end"),
    ("a: *all", "line 1, column 4: found undefined alias"),
    ("a: b: c", "line 1, column 5: mapping values are not allowed here"),
    ("a: &a [*a]", r"line 1: a\.1\.1 is nested deeper than 32 levels, or in itself"),
    ("[" * 4000, "nested deeper than 32 levels"),
    (LAUGHS, "is beyond 300,000 values"),
    ('a: "\\ud83d"', "line 1: a has half of a surrogate pair"),
    ('a: "\\0"', "line 1: a has a character 0"),
    ("a: \x07", "unacceptable character #x0007"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_ambiguous_or_no_yaml_is_refused_in_one_line(text, message):
    with pytest.raises(YamlError) as caught:
        loads(text)
    assert re.search(message, str(caught.value))
    assert "\n" not in str(caught.value)


def test_files_are_utf8_with_or_without_a_mark(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes('\ufeffa: é\r\nb: "\\ud83d\\ude00"\r\n'.encode())
    assert read(path) == {"a": "é", "b": "😀"}
    path.write_bytes("a: é".encode("latin-1"))
    with pytest.raises(YamlError, match="it must be UTF-8 text, which it is not from byte 4 on"):
        read(path)
    path.write_text("a: 1", encoding="utf-16")
    with pytest.raises(YamlError, match="UTF-8"):
        read(path)
