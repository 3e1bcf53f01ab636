"""The documentation corpus: extraction, line filters, repeated lines, splits, and the files that are written."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from unittest.mock import Mock

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.demo import corpus
from training.demo.corpus import Source, extract, installed_sources

SPLITS = ("train", "validation")


def clean(text: str) -> list[str]:
    return list(corpus.readable(inspect.cleandoc(text)))


def prose(seed: int, sentences: int = 12) -> str:
    """English that repeats nowhere: random nouns in sentences of many forms."""
    random = np.random.default_rng(seed)

    def noun() -> str:
        return "".join(random.choice(list("bdfgklmnprst"), 4)) + random.choice(["ation", "er", "ity", "ing"])

    forms = ["The {} of the {} is given to the {} when it has no {}.", "If there is a {} then use the {} for each {}."]
    return "\n\n".join(forms[i % 2].format(noun(), noun(), noun(), noun()) for i in range(sentences))


def write_sources(folder: Path, texts: dict[str, str]) -> list[Source]:
    sources = []
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sources.append(Source(name.split("/")[0], name, path))
    return sources


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    """Files of ten packages, more of them than fit; one line is everywhere, in small letters and in capitals."""
    shared = prose(99, 1)
    texts = {f"sample{i % 10}/m{i}.py": f'"""{prose(i)}\n\n{shared if i else shared.upper()}"""\n' for i in range(40)}
    return write_sources(tmp_path / "installed", texts)


def read(folder: Path, split: str) -> pa.Table:
    return pq.read_table(next(folder.glob(f"{split}-*.parquet")))


def texts_of(folder: Path) -> list[str]:
    return [text for split in SPLITS for text in read(folder, split)["text"].to_pylist()]


# ---- Lines ----


@pytest.mark.parametrize(
    "markup",
    [
        ">>> add(1, 2)\n3",
        "```python\nresult = add(1, 2)\n```",
        "+-----+-----+\n| one | two |\n+-----+-----+",
        ".. plot::\n\n    draw(the, picture)",
        "{common_arguments}",
        "Die Funktion liefert eine Liste aller Werte, welche der Nutzer zuvor angegeben hatte.",
        "result[i, j] = {first: x_1, second: x_2} / (a * b)",
        "Examples\n--------",
    ],
)
def test_what_is_not_prose_is_left_out(markup: str):
    before, after = "This is the first sentence of the text.", "And this is what comes after it, at the end."
    assert clean(f"{before}\n\n{markup}\n\n{after}\n") == [before, after]


@settings(max_examples=200)
@given(st.text(alphabet=st.sampled_from(list("ab the.:`*-=|>#\n\\_[]()<{}\t é\u200b\x07")), max_size=200))
def test_any_text_is_cleaned_without_an_error_and_has_no_control_characters(text: str):
    for line in clean(text):
        assert line == line.strip() != ""
        assert line.isprintable()


# ---- Files ----


def test_docstrings_are_read_in_source_order_and_nothing_is_executed(tmp_path: Path):
    body = [prose(i, 4) for i in range(3)]
    code = f'''"""{body[0]}"""
open({str(tmp_path / "executed")!r}, "w")
if True:
    class Thing:
        """{body[1]}"""
        async def run(self):
            """{body[2]}"""
print("""{prose(3)}""")
'''
    (tmp_path / "a.py").write_text(code)
    assert extract(tmp_path / "a.py") == [line for text in body for line in text.split("\n\n")]
    assert not (tmp_path / "executed").exists()


def test_broken_binary_huge_unreadable_and_special_files_give_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(corpus, "MAX_FILE_BYTES", 10_000)
    texts = {"good.py": f'"""{prose(1)}"""', "broken.py": 'def f(:\n  """', "huge.py": '"""' + "x" * 20_000}
    write_sources(tmp_path, texts)
    (tmp_path / "binary.py").write_bytes(b'"""\x00\xff\xfe')
    (tmp_path / "deep.py").write_text('"""d"""\nx = ' + "(" * 4000)
    (tmp_path / "latin.py").write_bytes(b'"""caf\xe9 \xff"""' * 20)
    os.mkfifo(tmp_path / "pipe.py")
    names = [*texts, "binary.py", "deep.py", "latin.py", "pipe.py", "missing.py"]
    assert [name for name in names if extract(tmp_path / name)] == ["good.py"]


def test_installed_sources_are_those_of_the_library_and_of_packages_without_tests():
    sources = {source.name: source for source in installed_sources()}
    assert {"python/argparse.py", "numpy/_core/fromnumeric.py", "torch/functional.py"} <= sources.keys()
    assert {sources[name].package for name in ("python/argparse.py", "numpy/_core/fromnumeric.py")} == {
        "python",
        "numpy",
    }
    assert not [name for name in sources if name.startswith(("/", "..", "training/")) or "/tests/" in name]


# ---- The build ----


def test_columns_splits_and_lines(tmp_path: Path, sources: list[Source], monkeypatch):
    """Neither the order of files changes anything, nor is there anything of where they lie."""
    monkeypatch.setattr(corpus, "HELD_OUT", 0.25)
    said = corpus.build(tmp_path / "c", sources=sources)
    assert re.fullmatch(r"[\d.]+ kB of English in 40 documents of 10 packages, [\d.]+ kB of it held out", said)
    loaded = datasets.load_dataset(str(tmp_path / "c"), cache_dir=str(tmp_path / "cache"))
    sizes, packages = {}, {}
    for split in SPLITS:
        table = read(tmp_path / "c", split)
        assert loaded[split].column_names == table.schema.names == ["id", "text"]
        assert all(i.startswith("<urn:uuid:") and i.endswith(">") for i in table["id"].to_pylist())
        texts = table["text"].to_pylist()
        sizes[split] = sum(map(len, texts))
        packages[split] = {i % 10 for i in range(40) if any(prose(i) in text for text in texts)}
    assert packages["train"].isdisjoint(packages["validation"])
    assert 0.15 < sizes["validation"] / sum(sizes.values()) <= 0.25  # two packages of ten
    lines = [line.lower() for text in texts_of(tmp_path / "c") for line in text.split("\n\n")]
    assert len(lines) == len(set(lines)) == 40 * 12 + 1  # a line that is repeated stays once
    assert str(tmp_path) not in "".join(p.read_text(errors="ignore") for p in (tmp_path / "c").iterdir())
    assert corpus.build(tmp_path / "again", sources=sources[::-1]) == said
    for path in (tmp_path / "c").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_a_complete_corpus_is_kept(tmp_path: Path, sources: list[Source]):
    first = corpus.build(tmp_path / "c", sources=sources)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").iterdir()}
    assert corpus.build(tmp_path / "c", sources=sources[:20]) == first
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "c").iterdir()}
    with pytest.raises(FileExistsError, match="was built with max_bytes=None"):
        corpus.build(tmp_path / "c", sources=sources, max_bytes=1000)
    with pytest.raises(FileExistsError, match="is not a corpus; give a new or an empty folder"):
        corpus.build(tmp_path / "installed", sources=sources)


def test_an_interrupted_build_leaves_nothing(tmp_path: Path, sources: list[Source], monkeypatch):
    monkeypatch.setattr(corpus, "_write", Mock(side_effect=[None, KeyboardInterrupt]))
    with pytest.raises(KeyboardInterrupt):
        corpus.build(tmp_path / "c", sources=sources)
    assert [path.name for path in tmp_path.iterdir()] == ["installed"]


@pytest.mark.parametrize("max_bytes", [-1, 0, 10])
def test_too_little_text_is_one_clear_error(tmp_path: Path, sources: list[Source], max_bytes: int):
    with pytest.raises(ValueError, match=f"max_bytes: {max_bytes}; it must allow text of at least 2 packages"):
        corpus.build(tmp_path / "c", sources=sources, max_bytes=max_bytes)
    assert not (tmp_path / "c").exists()


def test_no_more_text_is_taken_than_asked(tmp_path: Path, sources: list[Source]):
    corpus.build(tmp_path / "c", sources=sources, max_bytes=20_000)
    assert 15_000 < sum(map(len, texts_of(tmp_path / "c"))) <= 20_000
