"""The documentation corpus: extraction, line filters, repeated lines, splits, and the files that are written."""

from __future__ import annotations

import inspect
import os
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
        sources.append(Source(name.split("/")[0], "1.2", "MIT", name, str(path)))
    return sources


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    texts = {f"sample{i % 10}/part{i}.py": f'"""{prose(i)}"""\nx = {i}\n' for i in range(40)}
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
    (source,) = write_sources(tmp_path, {"a.py": code})
    assert extract(source) == [line for text in body for line in text.split("\n\n")]
    assert not (tmp_path / "executed").exists()


def test_broken_binary_huge_unreadable_and_special_files_give_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(corpus, "MAX_FILE_BYTES", 10_000)
    texts = {"good.py": f'"""{prose(1)}"""', "broken.py": 'def f(:\n  """', "huge.py": '"""' + "x" * 20_000}
    sources = write_sources(tmp_path, texts)
    (tmp_path / "binary.py").write_bytes(b'"""\x00\xff\xfe')
    (tmp_path / "deep.py").write_text('"""d"""\nx = ' + "(" * 4000)
    (tmp_path / "latin.py").write_bytes(b'"""caf\xe9 \xff"""' * 20)
    os.mkfifo(tmp_path / "pipe.py")
    names = ["binary.py", "deep.py", "latin.py", "pipe.py", "missing.py"]
    sources += [Source("sample", "1", "MIT", name, str(tmp_path / name)) for name in names]
    assert [Path(source.path).name for source in sources if extract(source)] == ["good.py"]


def test_installed_sources_have_relative_paths_licences_and_no_editable_installation():
    sources = {source.file_path: source for source in installed_sources()}
    assert {"python/argparse.py", "numpy/_core/fromnumeric.py", "torch/functional.py"} <= sources.keys()
    assert not [path for path in sources if path.startswith(("/", "..")) or "/tests/" in path]
    assert "BSD" in sources["numpy/_core/fromnumeric.py"].licence
    assert "joint-moe-scaling-laws" not in {source.distribution for source in sources.values()}


# ---- The build ----


def test_columns_split_and_report(tmp_path: Path, sources: list[Source], monkeypatch):
    monkeypatch.setattr(corpus, "HELD_OUT", 0.25)
    report = corpus.build(tmp_path / "c", sources=sources)
    loaded = datasets.load_dataset(str(tmp_path / "c"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(rows) for name, rows in loaded.items()} == report.documents
    tables = {split: read(tmp_path / "c", split) for split in SPLITS}
    for split, table in tables.items():
        assert table.schema.names == ["id", "text"]
        assert report.documents[split] == table.num_rows > 0
        assert report.text_bytes[split] == sum(len(text.encode()) for text in table["text"].to_pylist())
        assert all(i.startswith("<urn:uuid:") and i.endswith(">") for i in table["id"].to_pylist())
    assert sum(report.documents.values()) == len(sources)
    validation = set(tables["validation"]["text"].to_pylist())
    assert {i % 10 for i in range(40) if prose(i) in validation}.isdisjoint(
        i % 10 for i in range(40) if prose(i) not in validation
    )
    assert 0.15 < report.text_bytes["validation"] / sum(report.text_bytes.values()) <= 0.25  # two packages of ten
    assert str(tmp_path) not in "".join(p.read_text(errors="ignore") for p in (tmp_path / "c").iterdir())
    assert report.packages == 10
    assert "| sample3 1.2 | MIT |" in (tmp_path / "c" / "README.md").read_text()


def test_a_repeated_line_stays_once(tmp_path: Path):
    shared = prose(99, 1)
    texts = {f"sample{i % 3}/m{i}.py": f'"""{prose(i)}\n\n{shared if i else shared.upper()}"""' for i in range(9)}
    corpus.build(tmp_path / "c", sources=write_sources(tmp_path / "s", texts))
    lines = [line.lower() for text in texts_of(tmp_path / "c") for line in text.split("\n\n")]
    assert len(lines) == len(set(lines)) == 9 * 12 + 1


def test_order_of_files_and_processes_change_nothing(tmp_path: Path, monkeypatch):
    sources = write_sources(tmp_path / "s", {f"sample{i % 3}/m{i}.py": f'"""{prose(i)}"""' for i in range(70)})
    two = corpus.build(tmp_path / "two", sources=sources[::-1])
    monkeypatch.setattr(corpus, "_extract_all", lambda sources: map(extract, sources))
    one = corpus.build(tmp_path / "one", sources=sources)
    assert one == two
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_long_files_are_cut_between_lines(tmp_path: Path):
    functions = "\n".join(f'def f{i}():\n    """{prose(i, 20)}"""' for i in range(39))
    files = {"sample/long.py": functions, "other/short.py": f'"""{prose(39, 20)}"""'}
    corpus.build(tmp_path / "c", sources=write_sources(tmp_path, files))
    texts = texts_of(tmp_path / "c")
    assert len(texts) > 2
    assert max(map(len, texts)) < 1.2 * corpus.MAX_CHARACTERS
    assert sorted("\n\n".join(texts).split("\n\n")) == sorted(x for i in range(40) for x in prose(i, 20).split("\n\n"))


def test_a_complete_corpus_is_kept(tmp_path: Path, sources: list[Source]):
    first = corpus.build(tmp_path / "c", sources=sources)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").iterdir()}
    assert corpus.build(tmp_path / "c", sources=sources[:20]) == first
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "c").iterdir()}
    with pytest.raises(FileExistsError, match="was built with max_bytes=None"):
        corpus.build(tmp_path / "c", sources=sources, max_bytes=1000)
    with pytest.raises(FileExistsError, match="is no corpus; give a new or an empty folder"):
        corpus.build(tmp_path / "installed", sources=sources)


def test_an_interrupted_build_leaves_nothing(tmp_path: Path, sources: list[Source], monkeypatch):
    monkeypatch.setattr(corpus, "readme", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        corpus.build(tmp_path / "c", sources=sources)
    assert [path.name for path in tmp_path.iterdir()] == ["installed"]


def test_bad_options_are_one_clear_error(tmp_path: Path, sources: list[Source]):
    for options, message in (
        ({"max_bytes": 0}, "max_bytes: 0; give a positive"),
        ({"max_bytes": 10}, "within max_bytes=10; documents of at least 2 packages"),
    ):
        with pytest.raises(ValueError, match=message):
            corpus.build(tmp_path / "c", sources=sources, **options)
        assert not (tmp_path / "c").exists()
