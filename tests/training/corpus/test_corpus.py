"""The documentation corpus: extraction, cleaning, de-duplication, the split, and what is on the disk afterwards."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training import corpus
from training.corpus import builder, cleaning, documents, writer
from training.corpus import sources as corpus_sources
from training.corpus.sources import Source, extract, installed_sources

COLUMNS = {
    "text": pa.string(),
    "id": pa.string(),
    "dump": pa.string(),
    "url": pa.string(),
    "file_path": pa.string(),
    "language": pa.string(),
    "language_score": pa.float64(),
    "token_count": pa.int64(),
    "score": pa.float64(),
    "int_score": pa.int64(),
}


def clean(text: str) -> str:
    return "\n".join(cleaning.readable_lines(text, Counter()))


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
        sources.append(Source("sample", "1.2", name, str(path)))
    return sources


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    return write_sources(
        tmp_path / "installed", {f"sample/part{i}.py": f'"""{prose(i)}"""\nx = {i}\n' for i in range(40)}
    )


def read(folder: Path, split: str) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob(f"{split}-*.parquet")))


# ---- Cleaning ----


def test_wrapped_paragraphs_are_joined_and_parameters_are_lines():
    text = """Apply the linear map to the data that is given, and return the
        result of it in a new array.

        Parameters
        ----------
        x : array_like
            The input of the map, which
            may have any shape.
        scale : float, optional
            The factor of the result.
        """
    assert clean(text).split("\n") == [
        "Apply the linear map to the data that is given, and return the result of it in a new array.",
        "Parameters:",
        "x (array_like): The input of the map, which may have any shape.",
        "scale (float, optional): The factor of the result.",
    ]


@pytest.mark.parametrize(
    ("markup", "reason"),
    [
        (">>> add(1, 2)\n3", "code"),
        ("```python\nresult = add(1, 2)\n```", "code"),
        ("+-----+-----+\n| one | two |\n+-----+-----+", "table"),
        (".. plot::\n\n    draw(the, picture)", "markup"),
        ("{common_arguments}", "markup"),
        ("Permission is hereby granted, free of charge, to any person obtaining a copy.", "licence"),
        ("Die Funktion liefert eine Liste aller Werte, welche der Nutzer zuvor angegeben hatte.", "not English"),
        ("Examples\n--------", "fragment"),
    ],
)
def test_what_is_not_prose_is_dropped_and_counted(markup: str, reason: str):
    dropped: Counter[str] = Counter()
    before, after = "This is the first sentence of the text.", "And this is what comes after it, at the end."
    lines = cleaning.readable_lines(f"{before}\n\n{markup}\n\n{after}\n", dropped)
    if reason == "fragment":  # this heading has something under it
        assert lines == [before, "Examples:", after]
        lines = cleaning.readable_lines(f"{before}\n\n{after}\n\n{markup}\n", dropped)
    assert lines == [before, after]
    assert dropped[reason] > 0
    assert set(dropped) == {reason}


def test_inline_markup_is_removed():
    text = (
        "See :class:`~torch.nn.Linear`, :func:`torch.add`, ``x_1``, `the guide <https://a.b/c>`_, [`~Trainer.train`] "
        "and [the manual](https://d.e/f), which are *all* **good** for what this is about [1]_."
    )
    assert clean(text) == (
        "See Linear, torch.add, x_1, the guide, Trainer.train and the manual, "
        "which are all good for what this is about."
    )


def test_a_note_stays_and_its_directive_goes():
    text = "Add the two numbers that are given.\n\n.. note::\n\n   This is slow for the very large ones."
    assert clean(text).split("\n")[1:] == ["Note: This is slow for the very large ones."]
    beside = text.replace("\n\n   This", " This")
    assert ".. note:: This" in beside
    assert clean(beside) == clean(text)


@settings(max_examples=200)
@given(st.text(alphabet=st.sampled_from(list("ab the.:`*-=|>#\n\\_[]()<{}\t é\u200b\x07")), max_size=200))
def test_any_text_is_cleaned_without_an_error_and_has_no_control_characters(text: str):
    for line in cleaning.readable_lines(text, Counter()):
        assert line == line.strip() != ""
        assert line.isprintable()


# ---- De-duplication ----


def test_a_short_text_inside_a_long_one_goes_and_a_new_one_stays():
    long, other = prose(1, 10).split("\n\n"), prose(2, 3).split("\n\n")
    dropped: Counter[str] = Counter()
    kept = cleaning.keep_unrepeated([long[2:5], other, long], dropped)
    assert kept == [[], other, long]
    assert dropped == {"repeated": sum(map(len, long[2:5]))}


def test_near_duplicates_with_a_changed_name_go():
    sentence = (
        "The {} model takes the sequence of tokens that it is given and returns the hidden states of the last layer."
    )
    longer = [sentence.format("BERT"), *prose(3, 3).split("\n\n")]
    assert cleaning.keep_unrepeated([longer, [sentence.format("GPT")]], Counter()) == [longer, []]


def test_the_repeated_line_goes_and_the_own_lines_stay():
    shared, own = prose(4, 1), prose(5, 4).split("\n\n")
    longer = [shared, *prose(6, 8).split("\n\n")]
    assert cleaning.keep_unrepeated([[own[0], shared, *own[1:]], longer], Counter()) == [own, longer]


def _plain_rule(docstrings: list[list[str]]) -> list[list[str]]:
    """The rule of `keep_unrepeated` with sets of tuples, one line after the other."""

    def words(line: str) -> list[str]:
        return cleaning._WORD.findall(line.lower())

    def shingles(line: str) -> list[tuple]:
        w = words(line)
        return [tuple(w[i : i + 8]) for i in range(max(1, len(w) - 7))] if w else []

    seen, result = set(), [[] for _ in docstrings]
    sizes = [sum(len(words(line)) for line in lines) for lines in docstrings]
    for i in sorted(range(len(docstrings)), key=lambda i: -sizes[i]):
        kept = [x for x in docstrings[i] if sum(s in seen for s in shingles(x)) <= 0.4 * len(shingles(x))]
        n_words = sum(len(words(line)) for line in kept)
        if n_words >= 8 and not (n_words < 16 and n_words < sizes[i] / 2):
            result[i] = kept
            seen.update(s for line in kept for s in shingles(line))
    return result


@settings(max_examples=60)
@given(st.lists(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=14), max_size=4), max_size=8))
def test_the_fast_rule_is_the_plain_rule(words: list[list[list[str]]]):
    docstrings = [[" ".join(line) for line in lines] for lines in words]
    assert cleaning.keep_unrepeated(docstrings, Counter()) == _plain_rule(docstrings)


# ---- Extraction ----


def test_documentation_is_found_in_source_order_and_nothing_is_executed(tmp_path: Path):
    body = [prose(i, 4) for i in range(6)]
    code = f'''"""{body[0]}"""
open({str(tmp_path / "executed")!r}, "w")
if True:
    class Thing:
        """{body[1]}"""
        size = 3
        """{body[2]}"""
        async def run(self):
            """{body[3]}"""
add_newdoc("numpy", "sin", ("out", """{body[4]}"""))
add_docstr(torch.abs, r"""{body[5]}""".format(**common))
print("""short string""")
'''
    (source,) = write_sources(tmp_path, {"a.py": code})
    extracted = extract(source)
    assert [d.name for d in extracted.docstrings] == [
        "",
        "Thing",
        "Thing.size",
        "Thing.run",
        "numpy.sin.out",
        "torch.abs",
    ]
    assert [d.lines for d in extracted.docstrings] == [text.split("\n\n") for text in body]
    assert extracted.skipped is None
    assert not (tmp_path / "executed").exists()


def test_broken_binary_huge_unreadable_and_special_files_are_skipped_and_counted(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(corpus_sources, "MAX_FILE_BYTES", 10_000)
    sources = write_sources(
        tmp_path,
        {"good.py": f'"""{prose(1)}"""', "broken.py": 'def f(:\n  """', "huge.py": '"""' + "x" * 20_000},
    )
    (tmp_path / "binary.py").write_bytes(b'"""\x00\xff\xfe')
    (tmp_path / "deep.py").write_text('"""d"""\nx = ' + "(" * 4000)
    (tmp_path / "latin.rst").write_bytes(b"caf\xe9 \xff" * 20)
    os.mkfifo(tmp_path / "pipe.py")
    names = ["binary.py", "deep.py", "latin.rst", "pipe.py", "missing.py"]
    sources += [Source("sample", "1", name, str(tmp_path / name)) for name in names]
    results = {Path(source.path).name: extract(source).skipped for source in sources}
    assert results == {
        "good.py": None,
        "broken.py": "not parsable",
        "huge.py": "too large",
        "binary.py": "not parsable",
        "deep.py": "not parsable",
        "latin.rst": "not parsable",
        "pipe.py": "no regular file",
        "missing.py": "unreadable",
    }


def test_metadata_gives_the_long_description(tmp_path: Path):
    (source,) = write_sources(
        tmp_path, {"s-1.dist-info/METADATA": f"Name: s\nAuthor: Somebody\n\n# Title\n\n{prose(1)}\n"}
    )
    (docstring,) = extract(source).docstrings
    assert docstring.lines == ["Title:", *prose(1).split("\n\n")]


def test_installed_sources_have_relative_paths_and_no_editable_installation():
    found = installed_sources()
    paths = {source.file_path for source in found}
    assert {"python/pydoc_data/topics.py", "numpy/_core/_add_newdocs.py", "torch/_torch_docs.py"} <= paths
    assert not [path for path in paths if path.startswith(("/", "..")) or "/tests/" in path]
    assert "joint-moe-scaling-laws" not in {source.distribution for source in found}


# ---- The build ----


def test_columns_split_and_report(tmp_path: Path, sources: list[Source]):
    report = corpus.build(tmp_path / "c", sources=sources, validation_fraction=0.2, progress=False)
    tables = {split: read(tmp_path / "c", split) for split in ("train", "validation")}
    for split, table in tables.items():
        assert dict(zip(table.schema.names, table.schema.types, strict=True)) == COLUMNS
        assert report.splits[split].documents == table.num_rows > 0
        texts = table["text"].to_pylist()
        assert report.splits[split].text_bytes == sum(len(text.encode()) for text in texts)
        assert table["token_count"].to_pylist() == [len(text.split()) for text in texts]
        assert set(table["url"].to_pylist()) == {"https://pypi.org/project/sample/1.2/"}
        assert all(i.startswith("<urn:uuid:") and i.endswith(">") for i in table["id"].to_pylist())
    assert report.total.documents == len(sources)
    assert {*tables["train"]["id"].to_pylist()}.isdisjoint(tables["validation"]["id"].to_pylist())
    assert str(tmp_path) not in "".join(p.read_text(errors="ignore") for p in (tmp_path / "c").iterdir())
    assert report.distributions == {"sample 1.2": report.total}


def test_datasets_finds_the_splits(tmp_path: Path, sources: list[Source]):
    datasets = pytest.importorskip("datasets")
    report = corpus.build(tmp_path / "c", sources=sources, validation_fraction=0.2, progress=False)
    loaded = datasets.load_dataset(str(tmp_path / "c"), cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in loaded.items()} == {
        split: amount.documents for split, amount in report.splits.items()
    }


def test_order_of_files_and_number_of_workers_change_nothing(tmp_path: Path):
    sources = write_sources(tmp_path / "s", {f"sample/m{i}.py": f'"""{prose(i)}"""' for i in range(70)})
    one = corpus.build(tmp_path / "one", sources=sources, workers=1, progress=False)
    two = corpus.build(tmp_path / "two", sources=sources[::-1], workers=2, progress=False)
    assert one.fingerprint == two.fingerprint
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_max_bytes_takes_a_prefix_of_the_files_and_reads_no_more(tmp_path: Path, sources: list[Source]):
    whole = corpus.build(tmp_path / "whole", sources=sources, progress=False)
    part = corpus.build(tmp_path / "part", sources=sources, max_bytes=whole.total.text_bytes // 4, progress=False)
    assert 0.15 < part.total.text_bytes / whole.total.text_bytes <= 0.25
    assert part.files < 0.6 * whole.files
    ids = [{*read(tmp_path / n, s)["id"].to_pylist()} for n in ("part", "whole") for s in ("train", "validation")]
    assert ids[0] | ids[1] < ids[2] | ids[3]


def test_long_files_are_cut_between_docstrings(tmp_path: Path):
    functions = "\n".join(f'def f{i}():\n    """{prose(i, 20)}"""' for i in range(40))
    sources = write_sources(tmp_path, {"sample/long.py": f'"""{prose(99)}"""\n{functions}'})
    corpus.build(tmp_path / "c", sources=sources, progress=False)
    texts = [t for split in ("train", "validation") for t in read(tmp_path / "c", split)["text"].to_pylist()]
    assert len(texts) > 2
    assert max(map(len, texts)) < 1.2 * documents.MAX_DOCUMENT_CHARACTERS
    assert all(text.startswith("sample.long\n\n") for text in texts)
    assert len(re.findall(r"^f\d+$", "\n".join(texts), re.MULTILINE)) == 40


def test_a_complete_corpus_is_reused_and_another_recipe_is_not(tmp_path: Path, sources: list[Source]):
    first = corpus.build(tmp_path / "c", sources=sources, progress=False)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").iterdir()}
    second = corpus.build(tmp_path / "c", sources=sources, progress=False)
    assert (first.reused, second.reused) == (False, True)
    assert second.fingerprint == first.fingerprint
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "c").iterdir()}
    third = corpus.build(tmp_path / "c", sources=sources[:20], progress=False)
    assert not third.reused
    assert third.files == 20
    next((tmp_path / "c").glob("train-*.parquet")).unlink()
    assert not corpus.build(tmp_path / "c", sources=sources[:20], progress=False).reused


def test_an_interrupted_build_leaves_what_was_there(tmp_path: Path, sources: list[Source]):
    first = corpus.build(tmp_path / "c", sources=sources, progress=False)

    def interrupt(texts: list[str]) -> list[int]:
        raise KeyboardInterrupt

    for folder in ("c", "new"):
        with pytest.raises(KeyboardInterrupt):
            corpus.build(tmp_path / folder, sources=sources[:20], count_tokens=interrupt, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "installed"]
    assert corpus.CorpusReport.load(tmp_path / "c").fingerprint == first.fingerprint


def test_tokens_are_recounted_in_place(tmp_path: Path, sources: list[Source]):
    first = corpus.build(tmp_path / "c", sources=sources, progress=False)
    texts = read(tmp_path / "c", "train")["text"].to_pylist()
    report = corpus.recount_tokens(tmp_path / "c", lambda texts: [len(text) for text in texts], "characters")
    table = read(tmp_path / "c", "train")
    assert table["text"].to_pylist() == texts
    assert table["token_count"].to_pylist() == [len(text) for text in texts]
    assert report.token_counter == "characters"
    assert report.fingerprint == first.fingerprint
    assert report.distributions.keys() == first.distributions.keys()
    assert report.splits["train"].tokens == sum(map(len, texts))
    again = corpus.build(tmp_path / "c", sources=sources, progress=False)
    assert again.reused
    assert again.token_counter == "characters"


def test_recounting_keeps_the_standard_library_s_version():
    source = Source("python", "3.11.7", "python/abc.py", "")
    row = {"url": writer._url(source), "file_path": source.file_path}
    assert writer.source_of(row) == source


def test_bad_input_is_one_clear_error(tmp_path: Path, sources: list[Source]):
    def build(**options):
        corpus.build(tmp_path / "c", progress=False, **{"sources": sources, **options})

    with pytest.raises(ValueError, match="max_bytes: 0; give a positive"):
        build(max_bytes=0)
    with pytest.raises(ValueError, match=r"validation_fraction: 1\.0; give a share"):
        build(validation_fraction=1.0)
    with pytest.raises(ValueError, match="sources: 0 files gave 0 documents; at least 2"):
        build(sources=[])
    with pytest.raises(ValueError, match="within max_bytes=10"):
        build(max_bytes=10)
    with pytest.raises(ValueError, match="count_tokens: gave 1 counts for"):
        build(count_tokens=lambda texts: [1])
    assert not (tmp_path / "c").exists()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is no corpus; give a new or an empty folder"):
        build()
    assert (tmp_path / "c" / "thesis.txt").read_text() == "mine"
    with pytest.raises(FileNotFoundError, match="is no finished corpus"):
        corpus.recount_tokens(tmp_path, builder.count_words)


def test_a_manifest_of_another_version_means_a_new_build(tmp_path: Path, sources: list[Source]):
    corpus.build(tmp_path / "c", sources=sources, progress=False)
    path = tmp_path / "c" / corpus.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "more": 1}))
    assert not corpus.build(tmp_path / "c", sources=sources, progress=False).reused


@pytest.mark.slow
def test_the_environment_gives_english_without_overlap_of_the_splits(tmp_path: Path):
    corpus.build(tmp_path / "c", max_bytes=4_000_000, progress=False)
    grams = {}
    for split in ("train", "validation"):
        texts = read(tmp_path / "c", split)["text"].to_pylist()
        words = [cleaning._WORD.findall(text.lower()) for text in texts]
        grams[split] = {tuple(w[i : i + 13]) for w in words for i in range(len(w) - 12)}
        every = [word for w in words for word in w]
        assert sum(word in cleaning._STOP_WORDS for word in every) / len(every) > 0.25
    assert len(grams["train"] & grams["validation"]) < 0.02 * len(grams["validation"])
