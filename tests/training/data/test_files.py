"""Files of text in every form that is read; of those that cannot be, the file, and the row or line, are named."""

import gzip
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.token_caches import prepare
from training import TextSource

TEXTS = [f"text {i} é" for i in range(200)]
LINES = [json.dumps({"text": text, "id": str(i)}).encode() + b"\n" for i, text in enumerate(TEXTS)]
SEEDS = pytest.mark.parametrize("seed", [None, 0], ids=["stored", "shuffled"])


def zst(content: bytes) -> bytes:
    """Two frames, as of two files that were joined, with a skippable one between, as pzstd writes them."""
    codec, half = pa.Codec("zstd"), len(content) // 2
    first, second = (codec.compress(part, asbytes=True) for part in (content[:half], content[half:]))
    return first + b"\x50\x2a\x4d\x18\x01\0\0\0x" + second


def gz(content: bytes) -> bytes:
    """Two members."""
    half = len(content) // 2
    return gzip.compress(content[:half]) + gzip.compress(content[half:])


COMPRESSED = {"": bytes, ".gz": gz, ".zst": zst}


def documents(path, seed=None, **options):
    return list(TextSource(str(path), file_seed=seed, **options).documents())


def refusal(path, seed=None, **options) -> str:
    with pytest.raises(ValueError, match=r"^data\.") as caught:
        documents(path, seed, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def folder_of(path, files: dict[str, bytes]):
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def parquet(path, columns, **options):
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path


# -- what is read


@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_compressed_lines_are_read_whole(tmp_path, suffix, compression):
    content = COMPRESSED[compression](b"".join(LINES))
    folder = folder_of(tmp_path / "text", {f"train-{i}{suffix}{compression}": content for i in range(2)})
    assert documents(folder) == TEXTS * 2
    assert documents(folder / f"train-0{suffix}{compression}") == TEXTS
    assert sorted(documents(folder, seed=1)) == sorted(TEXTS * 2)
    held_out = {is_held: documents(folder, held_out_buckets=300, held_out=is_held) for is_held in (False, True)}
    assert 0 < len(held_out[True]) < 200
    assert sorted(held_out[True] + held_out[False]) == sorted(TEXTS * 2)


def test_a_long_window_of_zstandard_is_refused(tmp_path):
    window = bytes([(30 - 10) << 3])  # of 1 GB, as `zstd --long=30` writes it
    block = ((len(LINES[0]) << 3) | 1).to_bytes(3, "little") + LINES[0]
    folder = folder_of(tmp_path / "text", {"a.jsonl.zst": b"\x28\xb5\x2f\xfd\x00" + window + block})
    assert refusal(folder).endswith("ZSTD decompress failed: Frame requires too much memory for decoding")


def test_lines_of_windows_with_a_byte_order_mark_are_read(tmp_path):
    content = "\ufeff" + "".join(json.dumps({"text": text}) + "\r\n\n" for text in TEXTS)
    assert documents(folder_of(tmp_path / "text", {"train.json": content.encode()})) == TEXTS


@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_of_objects_is_read(tmp_path, indent):
    content = "\ufeff" + json.dumps([{"text": text} for text in TEXTS], indent=indent)
    assert documents(folder_of(tmp_path / "plain", {"train.json": content.encode()})) == TEXTS
    assert documents(folder_of(tmp_path / "gz", {"train.json.gz": gz(content.encode())})) == TEXTS


def test_an_array_of_something_else_is_refused(tmp_path):
    for name, content, reason in (
        ("texts", b'[{"text": "a"},\n"b"]', """line 1 is not a JSON object but b'[{"text": "a"},\\n"b"]'"""),
        ("cut", b'[{"text": "a"},\n{"text": "b"', "line 2 is not JSON: Expecting ',' delimiter"),
        ("rows", b'[{"text": "a"}]\n{"text": "b"}', "line 2 is not JSON: Extra data"),
    ):
        folder = folder_of(tmp_path / name, {"train.json": content})
        assert refusal(folder) == f"data.dataset: {folder}/train.json, {reason}"


@pytest.mark.parametrize("name", ["br[1]ck", "st*r", "wh?t", "a [b] *", "c::d", "50% #1", "{x,y}", "[", "it's"])
def test_a_folder_of_any_name_is_read(tmp_path, name):
    folder = folder_of(tmp_path / name / "data", {"train-[1].jsonl": b"".join(LINES), "validation.jsonl": LINES[0]})
    assert documents(folder) == TEXTS
    assert documents(folder, split="validation") == TEXTS[:1]
    assert documents(folder / "train-[1].jsonl") == TEXTS
    (folder / "train-[1].jsonl").unlink()
    parquet(folder / "train.parquet", {"text": TEXTS, "id": TEXTS})
    (folder / "validation.jsonl").unlink()
    assert sorted(documents(folder.parent, seed=1)) == sorted(TEXTS)


def test_notes_beside_the_data_are_not_read(tmp_path):
    notes = {f"{name}.txt": b"a note\n" for name in ("license", "notes", "more")}
    assert (
        documents(folder_of(tmp_path / "text", {"train.jsonl": b"".join(LINES), **notes, "a.csv": b"text\nno\n"}))
        == TEXTS
    )


def test_a_name_with_brackets_is_no_pattern_for_other_folders(tmp_path):
    folder_of(tmp_path / "v1", {"train.jsonl": LINES[0]})
    assert documents(folder_of(tmp_path / "v[1]", {"train.jsonl": LINES[1]})) == TEXTS[1:2]


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path, tokenizer, monkeypatch):
    folder_of(tmp_path / "text", {"train.jsonl": b"".join(LINES)})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert documents("~/text") == documents("~/text/train.jsonl") == TEXTS
    assert prepare(TextSource("~/text"), tokenizer, tmp_path / "cache").recipe["source"]["dataset"] == "text"


# -- what is refused


def cut(content: bytes) -> bytes:
    return content[:-7]


@SEEDS
@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_a_truncated_file_is_named_with_the_last_line_that_is_whole(tmp_path, seed, compression):
    whole = COMPRESSED[compression](b"".join(LINES))
    files = {f"a.jsonl{compression}": whole, f"b.jsonl{compression}": cut(whole)}
    folder = folder_of(tmp_path / "text", files)
    message = refusal(folder, seed)
    match = re.match(
        rf"data.dataset: {folder}/b.jsonl{compression} is damaged or truncated after line (\d+): ", message
    )
    assert 50 < int(match[1]) <= 200
    for content in (b"no archive", whole[:2], whole + b"no archive"):
        (folder / f"b.jsonl{compression}").write_bytes(content)
        assert f"{folder}/b.jsonl{compression} is damaged or truncated after line " in refusal(folder, seed)


def test_a_file_that_is_not_compressed_as_its_name_says_is_refused(tmp_path):
    plain = b"".join(LINES)
    for name in ("a.jsonl.gz", "a.jsonl.zst", "a.json.gz"):
        assert f"{name} is damaged or truncated after line 0" in refusal(folder_of(tmp_path / name, {name: plain}))
    assert "line 1 is not JSON" in refusal(folder_of(tmp_path / "text", {"a.jsonl": gz(plain)}))


@SEEDS
def test_a_damaged_parquet_file_is_named(tmp_path, seed):
    for name in "ab":
        parquet(tmp_path / "text" / f"{name}.parquet", {"text": TEXTS}, row_group_size=50, compression="zstd")
    path = tmp_path / "text" / "b.parquet"
    whole = path.read_bytes()
    for content in (whole[:-100], whole[: len(whole) // 2], b"", b"PAR1"):
        path.write_bytes(content)
        assert refusal(tmp_path / "text", seed).startswith(f"data.dataset: {path} is damaged or no parquet file: ")
    start = pq.ParquetFile(tmp_path / "text" / "a.parquet").metadata.row_group(2).column(0).data_page_offset
    path.write_bytes(whole[:start] + bytes(40) + whole[start + 40 :])
    assert re.match(rf"data.dataset: {path} cannot be read after row \d+: ", refusal(tmp_path / "text", seed))


@SEEDS
def test_a_file_without_the_text_column_is_named(tmp_path, seed):
    parquet(tmp_path / "text" / "a.parquet", {"id": TEXTS, "text": TEXTS})
    parquet(tmp_path / "text" / "b.parquet", {"id": TEXTS, "content": TEXTS})
    message = f"data.text_column: no column 'text' in {tmp_path}/text/b.parquet; it has ['id', 'content']"
    assert refusal(tmp_path / "text", seed) == message
    other = b"".join(json.dumps({"id": text, "content": text}).encode() + b"\n" for text in TEXTS)
    folder = folder_of(tmp_path / "lines", {"a.jsonl": b"".join(LINES), "b.jsonl": other})
    message = f"data.text_column: no column 'text' in {folder}/b.jsonl; it has ['content', 'id']"
    assert refusal(folder, seed) == message
    assert "no column 'body' in" in refusal(folder, seed, text_column="body")


@SEEDS
@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (list(range(200)), "'0' of type int"),
        ([b"bytes"] * 200, "\"b'bytes'\" of type bytes"),
        ([["a", "list"]] * 200, "\"['a', 'list']\" of type list"),
    ],
)
def test_a_column_of_another_type_is_named_with_its_row(tmp_path, seed, values, shown):
    parquet(tmp_path / "text" / "a.parquet", {"text": TEXTS})
    parquet(tmp_path / "text" / "b.parquet", {"text": values})
    place = f"row 1 of {tmp_path}/text/b.parquet"
    assert refusal(tmp_path / "text", seed) == f"data.text_column: 'text' holds {shown} in {place}; it must hold text"


@SEEDS
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": 5}', "data.text_column: 'text' holds '5' of type int in row 8 of {}; it must hold text"),
        (
            b'{"text": {"a": 1}}',
            "data.text_column: 'text' holds \"{{'a': 1}}\" of type dict in row 8 of {}; it must hold text",
        ),
        (
            b'{"text": "ab \\ud800 c"}',
            "data.dataset: row 8 of {} has the lone surrogate '\\ud800' at character 4 of its text; "
            "it must be valid Unicode",
        ),
        (b'{"text": "a\tb"}', "data.dataset: {}, line 8 is not JSON: Invalid control character at"),
        (b"not JSON", "data.dataset: {}, line 8 is not JSON: Expecting value"),
        (b"5", "data.dataset: {}, line 8 is not a JSON object but b'5\\n'"),
    ],
)
def test_a_bad_line_is_named(tmp_path, seed, line, message):
    content = b"".join([*LINES[:7], line + b"\n", *LINES[7:]])
    for compression, compress in COMPRESSED.items():
        name = f"b.jsonl{compression}"
        folder = folder_of(tmp_path / f"text{compression}", {f"a.jsonl{compression}": compress(b"".join(LINES))})
        (folder / name).write_bytes(compress(content))
        assert refusal(folder, seed) == message.format(folder / name)


@SEEDS
def test_text_of_parquet_that_is_no_unicode_is_named_with_its_row(tmp_path, seed):
    values = [text.encode() for text in TEXTS]
    values[130] = b"ab\xff"
    column = pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())
    path = parquet(tmp_path / "text" / "a.parquet", {"text": column}, row_group_size=50)
    message = refusal(path.parent, seed)
    assert message.startswith(f"data.dataset: {path} cannot be read at row 131: 'utf-8' codec can't decode byte 0xff")


def test_one_line_without_text_is_passed_over(tmp_path, tokenizer):
    lines = [*LINES[:3], b'{"id": "x"}\n', b'{"text": null}\n', *LINES[3:]]
    folder = folder_of(tmp_path / "text", {"a.jsonl.gz": gz(b"".join(lines))})
    cache = prepare(TextSource(str(folder)), tokenizer, tmp_path / "cache")
    assert cache.rows_without_text == [f"row {number} of {folder}/a.jsonl.gz" for number in (4, 5)]
    assert sum(shard["documents"] for shard in cache.shards) == len(TEXTS)


def test_a_folder_of_two_formats_is_refused_when_its_cache_is_begun(tmp_path, tokenizer):
    folder = folder_of(tmp_path / "text", {"dataset_info.json": b"{}", ".hidden.json": b"{}"})
    parquet(folder / "a.parquet", {"text": TEXTS})
    source = TextSource(str(folder))
    begun = prepare(source, tokenizer, tmp_path / "cache", until=1)
    (folder / "b.jsonl.gz").write_bytes(gz(b"".join(LINES)))
    with pytest.raises(
        ValueError, match=rf"mixes formats, such as {folder}/a.parquet and {folder}/b.jsonl.gz; it must"
    ):
        prepare(source, tokenizer, tmp_path / "cache")
    (folder / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: a.parquet\n---\n")
    assert prepare(source, tokenizer, tmp_path / "cache").folder != begun.folder


def test_notes_beside_more_files_of_parquet_are_not_data(tmp_path, tokenizer):
    """The demo's corpus has such a note; `datasets` reads the format that more files have."""
    folder = folder_of(tmp_path / "text", {"corpus.json": b'{"sources": ["a"]}'})
    parquet(folder / "a.parquet", {"text": TEXTS})
    source = TextSource(str(folder))
    with pytest.raises(ValueError, match="mixes formats"):
        prepare(source, tokenizer, tmp_path / "cache")
    parquet(folder / "b.parquet", {"text": TEXTS})
    cache = prepare(source, tokenizer, tmp_path / "cache")
    assert sum(shard["documents"] for shard in cache.shards) == 2 * len(TEXTS)


def test_folders_and_files_without_data_are_refused(tmp_path, tokenizer):
    empty = folder_of(tmp_path / "text", {"notes.txt": b"text", "a.jsonl": b"", "b.jsonl": b"\n\n"})
    with pytest.raises(ValueError, match=r"^data.dataset: split 'train' of .* has no document to train on"):
        prepare(TextSource(str(empty)), tokenizer, tmp_path / "cache")
    for name in ("a.jsonl", "b.jsonl"):
        (empty / name).unlink()
    for path, message in ((empty, "holds no file of parquet, or .json"), (empty / "a.jsonl", "does not exist; give")):
        with pytest.raises(FileNotFoundError, match=message):
            documents(path)
