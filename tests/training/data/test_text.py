"""Text: a prefix in the shuffled order is a sample of all files, reading resumes anywhere, bad sources are refused."""

import json
import logging
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hub.base.errors import FilesError
from tests.conftest import make_documents, write_dataset
from tests.training.conftest import CRAWLS, ROWS, write_crawls
from tests.training.token_caches import prepare
from training import TextSource, load_tokenizer
from training.data import cache as cache_module
from training.data import text as text_module
from training.data.builder import GrowingCache
from training.data.text import Place
from training.run.inputs import HeldOutText, data_order, text_sources


@pytest.fixture(params=[1 << 23, 700], ids=["files", "row groups"])
def part_bytes(request, monkeypatch):
    """Whole files are parts, or a few row groups are."""
    monkeypatch.setattr(text_module, "PART_BYTES", request.param)
    monkeypatch.setattr(text_module, "GROUP", 5)


def crawl_of(text):
    return int(text.split()[1])


def test_a_prefix_is_a_sample_of_all_files_and_nothing_is_lost(crawls, part_bytes, monkeypatch):
    documents = list(TextSource(str(crawls), file_seed=0).documents())
    assert sorted(documents) == sorted(TextSource(str(crawls)).documents())
    if text_module.PART_BYTES > 700:
        monkeypatch.setattr(text_module, "GROUP", 16)
        documents = list(TextSource(str(crawls), file_seed=0).documents())
        for n in (CRAWLS, 10 * CRAWLS, 50 * CRAWLS):  # every file at the same rate, from the first documents on
            counts = [sum(crawl_of(text) == crawl for text in documents[:n]) for crawl in range(CRAWLS)]
            assert max(counts) - min(counts) <= 2
    else:  # as many as chance has
        assert len({crawl_of(text) for text in documents[: len(documents) // 5]}) >= 10
    # The mean crawl does not drift with the number of documents, as it does in the stored order.
    half = len(documents) // 2
    means = [sum(map(crawl_of, part)) / half for part in (documents[:half], documents[half:])]
    assert abs(means[0] - means[1]) < 1


def test_the_order_depends_on_the_seed_and_not_on_the_folder(crawls, tmp_path, part_bytes):
    orders = [list(TextSource(str(crawls), file_seed=seed).documents()) for seed in (0, 1)]
    assert orders[0] != orders[1]
    copy = shutil.copytree(crawls, tmp_path / "elsewhere")
    assert list(TextSource(str(copy), file_seed=1).documents()) == orders[1]


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [None, 3])
def test_reading_resumes_at_any_place_and_notices_other_documents(crawls, part_bytes, seed, every):
    source = TextSource(str(crawls), held_out_buckets=300, file_seed=seed)
    batches = list(source.batches(170))
    whole = [text for texts, _ in batches for text in texts]
    assert whole == list(source.documents())
    for texts, place in batches[-1::-every]:
        kept = Place(*json.loads(json.dumps(place.after(texts, 5))))
        assert [text for part, _ in source.batches(200, kept) for text in part] == whole[kept.documents :]
    with pytest.raises(ValueError, match="has changed since its token cache was begun"):
        next(source.batches(7, kept._replace(last="0" * 64)))


def test_what_lies_before_the_group_of_a_place_is_not_opened_again(crawls, monkeypatch):
    monkeypatch.setattr(text_module, "PART_BYTES", 700)
    source = TextSource(str(crawls), file_seed=0)
    *_, (_, place) = source.batches(16)
    opened, open_part = [], text_module.OpenText._open
    monkeypatch.setattr(
        text_module.OpenText, "_open", lambda self, *part: opened.append(part) or open_part(self, *part)
    )
    assert sum(len(texts) for texts, _ in source.batches(16, place)) == CRAWLS * ROWS - place.documents
    assert len(opened) <= 2 * text_module.GROUP


def test_row_groups_larger_than_a_part_are_read_beside_each_other(tmp_path, monkeypatch):
    """Most parts of such files are empty: a row group is not cut."""
    folder = write_crawls(tmp_path / "large", row_group_size=ROWS)
    monkeypatch.setattr(text_module, "PART_BYTES", 100)
    documents = list(TextSource(str(folder), file_seed=0).documents())
    assert len(documents) == CRAWLS * ROWS
    assert len({crawl_of(text) for text in documents[:CRAWLS]}) == CRAWLS


def test_files_of_other_formats_alternate_in_proportion_to_their_size(tmp_path):
    folder = tmp_path / "lines"
    folder.mkdir()
    for crawl, rows in enumerate((100, 300)):
        lines = [json.dumps({"text": f"crawl {crawl} document {i:03d}"}) for i in range(rows)]
        (folder / f"train-{crawl}.jsonl").write_text("\n".join(lines) + "\n")
    source = TextSource(str(folder), file_seed=0)
    documents = list(source.documents())
    assert len(documents) == 400
    assert sum(crawl_of(text) for text in documents[:100]) == pytest.approx(75, abs=2)
    *_, (texts, place) = source.batches(60)
    assert [text for part, _ in source.batches(60, place) for text in part] == texts


def test_held_out_documents_are_fixed_by_their_id_and_never_trained_on(corpus):
    source = {held: TextSource(str(corpus), held_out_buckets=200, held_out=held) for held in (False, True)}
    train, held_out = list(source[False].documents()), list(source[True].documents())
    assert sorted(train + held_out) == sorted(make_documents(300, 0))
    assert 30 < len(held_out) < 90  # 20 % of 300


def test_checksums_of_local_files_are_remembered_until_they_change(corpus, tmp_path, monkeypatch):
    memory, source = tmp_path / "checksums.json", TextSource(str(corpus))
    identity = source.identify(memory)
    with monkeypatch.context() as patched:
        patched.setattr(text_module, "sha256_of", None)  # nothing is read
        assert source.identify(memory) == identity
    changed = shutil.copytree(corpus, tmp_path / "corpus")
    assert TextSource(str(changed)).identify(memory) == identity
    write_dataset(changed, {"train": make_documents(5, 1)})
    assert TextSource(str(changed)).identify(memory) != identity


def test_files_that_a_readme_selects_identify_a_folder(tmp_path):
    (tmp_path / "part.jsonl").write_text('{"text": "a"}\n')
    table = tmp_path / "table.csv"
    table.write_text("text\na\n")
    before = TextSource(str(tmp_path)).identify()
    table.write_text("text\nb\n")
    assert TextSource(str(tmp_path)).identify() == before
    (tmp_path / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: table.csv\n---\n")
    selected = TextSource(str(tmp_path)).identify()
    table.write_text("text\nc\n")
    assert TextSource(str(tmp_path)).identify() != selected
    assert list(TextSource(str(tmp_path)).documents()) == ["c"]


@pytest.mark.parametrize("seed", [None, 0], ids=["stored", "shuffled"])
@pytest.mark.parametrize("suffix", ["csv", "txt", "arrow"])
def test_other_formats_that_a_readme_selects_are_read_by_datasets(tmp_path, suffix, seed):
    """Each file is one part, read front to back, and a place inside is found again."""
    card = f"---\nconfigs:\n- config_name: default\n  data_files: '*.{suffix}'\n---\n"
    (tmp_path / "README.md").write_text(card)
    (tmp_path / "notes.jsonl").write_text('{"text": "a note"}\n')
    texts = {name: [f"{name} {i}" for i in range(50)] for name in "ab"}
    for name, lines in texts.items():
        path = tmp_path / f"{name}.{suffix}"
        if suffix == "arrow":
            table = pa.table({"text": lines})
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table)
        else:
            path.write_text("\n".join([*["text"] * (suffix == "csv"), *lines, ""]))
    source = TextSource(str(tmp_path), file_seed=seed)
    read = list(source.documents())
    for name, lines in texts.items():
        assert [text for text in read if text.startswith(name)] == lines
    assert (read == texts["a"] + texts["b"]) == (seed is None)
    *_, (last, place) = source.batches(8)
    assert list(source.batches(8, place)) == [(last, place)]
    with pytest.raises(ValueError, match=r"^data.text_column: no column 'body' in .*a\.|b\."):
        list(TextSource(str(tmp_path), text_column="body").documents())


def test_files_that_datasets_would_cut_off_or_not_find_are_refused(tmp_path):
    (tmp_path / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: a.csv.zst\n---\n")
    (tmp_path / "notes.jsonl").write_text('{"text": "a note"}\n')
    (tmp_path / "a.csv.zst").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.csv\.zst cannot be read; of \.zst files \.json and \.jsonl are$"):
        list(TextSource(str(tmp_path)).documents())
    (tmp_path / "table.csv").write_text("text\na\n")
    with pytest.raises(ValueError, match=r"^data\.dataset: the file .*table\.csv' must be parquet, or \.json"):
        list(TextSource(str(tmp_path / "table.csv")).documents())


def test_bad_sources_are_refused(corpus, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "train.parquet").write_bytes(b"PAR1 and no more")
    for source, error, message in (
        (TextSource("./nowhere"), FileNotFoundError, "does not exist"),
        (TextSource(str(tmp_path / "empty")), FileNotFoundError, "holds no file of parquet, or .json"),
        (TextSource(str(corpus), text_column="body"), ValueError, r"^data.text_column: no column 'body' in"),
        (TextSource(str(corpus), split="test"), ValueError, r"^data.dataset '.*', split 'test': "),
        (
            TextSource(str(tmp_path / "none")),
            ValueError,
            r"^data.dataset: .*none/train.parquet is damaged or no parquet",
        ),
    ):
        with pytest.raises(error, match=message):
            list(source.documents())


LINES = [json.dumps({"text": f"text {i}", "id": str(i)}).encode() for i in range(300)]


@pytest.mark.parametrize("seed", [None, 0], ids=["stored", "shuffled"])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (LINES[7][:15], "is not JSON: Unterminated string starting at"),
        (b'{"text": "\xff"}', "is not JSON: 'utf-8' codec can't decode byte 0xff in position 10: invalid start byte"),
        (b"[1, 2]", r"is not a JSON object but b'[1, 2]\n'"),
    ],
)
@pytest.mark.parametrize("place", [0, 7, 300])
def test_a_broken_line_is_named_with_its_file(tmp_path, seed, line, reason, place):
    for number, lines in enumerate((LINES, [*LINES[:place], line, *LINES[place:]])):
        (tmp_path / f"train-{number}.jsonl").write_bytes(b"\n".join([*lines, b""]))
    source = TextSource(str(tmp_path), file_seed=seed)
    if place == 0 and line.startswith(b"["):
        return  # a file that is one array
    with pytest.raises(ValueError, match=rf"^data.dataset: {tmp_path}/train-1.jsonl, line {place + 1} ") as caught:
        list(source.documents())
    assert str(caught.value).endswith(reason)
    (tmp_path / "train-0.jsonl").unlink()  # the first file is the broken one, from which the columns are found
    with pytest.raises(ValueError, match=rf"^data.dataset: {tmp_path}/train-1.jsonl, line {place + 1} "):
        list(source.documents())


def rows_with_nulls(folder, row_group_size=10):
    """Two files of 60 rows, each with every tenth text null, and two in a row."""
    folder.mkdir()
    null = {*range(9, 60, 10), 30}
    for name in ("a", "b"):
        texts = [None if i in null else f"{name} {i} {'word ' * 20}" for i in range(60)]
        pq.write_table(pa.table({"text": texts}), folder / f"{name}.parquet", row_group_size=row_group_size)
    return [f"row {i + 1} of {folder / name}.parquet" for name in "ab" for i in null]


@pytest.mark.parametrize("seed", [None, 0], ids=["stored", "shuffled"])
def test_rows_without_text_are_passed_over_and_counted_with_their_row(tmp_path, tokenizer, caplog, seed, monkeypatch):
    """Also where building was cut off again and again."""
    names = rows_with_nulls(tmp_path / "nulls")
    monkeypatch.setattr(text_module, "PART_BYTES", 300)
    monkeypatch.setattr(cache_module, "SHARD_TOKENS", 500)
    source = TextSource(str(tmp_path / "nulls"), file_seed=seed)
    assert len(list(source.documents())) == 120 - len(names)
    assert sum(len(texts) for texts, _ in source.batches(7)) == 120 - len(names)
    whole = prepare(source, tokenizer, tmp_path / "whole")
    for until in range(1000, len(whole), 1500):
        parts = prepare(source, tokenizer, tmp_path / "parts", until=until)
    parts = prepare(source, tokenizer, tmp_path / "parts")
    assert parts.shards == whole.shards
    for cache in (whole, parts):
        assert sorted(cache.rows_without_text) == sorted(names)
    caplog.set_level(logging.WARNING)
    tokens = GrowingCache(whole, source, None)
    tokens.start()
    tokens.close()
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(
        f"{len(names)} rows of '{tmp_path / 'nulls'}' have no text (null) and are skipped, the fir"
    )
    assert whole.rows_without_text[0] in message


def test_runs_read_across_files_unless_they_ask_for_the_stored_order(tiny):
    for changes, seeds in (({}, [0, 0]), ({"data.order_seed": 5}, [5, 0]), ({"data.order": "stored"}, [None, None])):
        assert [source.file_seed for source in text_sources(tiny(**changes))] == seeds
    assert data_order(tiny()) == (
        "drawn across all files, 16 parts of 8 MB of parquet (whole files of other formats) at a time, in the order "
        "of seed 0; sequences shuffled in windows that double from 1,024 to 65,536 by seed 0"
    )
    assert data_order(tiny(data__order="stored")).startswith("files in their stored order; sequences shuffled")


def test_the_record_says_which_text_was_held_out(tiny, tokenizer, builds_here):
    def found(**changes):
        pending = HeldOutText(tiny(**changes), tokenizer)
        text = pending.wait()
        pending.tokens.close()
        return text

    some = found().origin  # 4 times 8 sequences of 32
    assert re.fullmatch(r"split 'validation'; sequences from the first 1,\d+ tokens drawn across all files", some)
    everything = found(run__eval_sequences=100_000)
    assert everything.origin.startswith("split 'validation'; sequences from all of its ")
    assert everything.n_documents == 40
    by_hash = found(data__validation_split=None, data__held_out_per_mille=50)
    assert by_hash.origin.startswith(
        "50 in 1,000 documents of split 'train', by the hash of their text; sequences from"
    )
    by_id = found(data__validation_split=None, data__held_out_per_mille=50, data__held_out_by="id")
    assert "by the hash of their id; sequences from" in by_id.origin


def test_no_copy_of_a_held_out_document_is_trained_on(tmp_path):
    """Two dumps of the same pages have other ids."""
    rows = [{"id": f"dump{dump}-{i}", "text": f"page {i}"} for dump in range(2) for i in range(200)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def texts(held_out, **changes):
        source = TextSource(str(tmp_path), held_out_buckets=100, held_out=held_out, **changes)
        return {*source.documents()}

    assert texts(True)
    assert not texts(True) & texts(False)
    assert texts(True, held_out_by="id") & texts(False, held_out_by="id")


def test_a_link_to_a_file_that_is_gone_is_no_smaller_dataset(tmp_path, tokenizer_folder):
    (tmp_path / "a.jsonl").write_text('{"text": "a page"}\n')
    (tmp_path / "b.jsonl").symlink_to("/purged/b.jsonl")
    for read in (TextSource(str(tmp_path)).identify, lambda: [*TextSource(str(tmp_path)).documents()]):
        with pytest.raises(
            FilesError, match=r"data\.dataset: .*b\.jsonl is a link to /purged/b\.jsonl, which does not"
        ):
            read()
    copy = shutil.copytree(tokenizer_folder, tmp_path / "tokenizer")
    (copy / "special_tokens_map.json").unlink(missing_ok=True)
    (copy / "special_tokens_map.json").symlink_to("/purged/map.json")
    with pytest.raises(FilesError, match=r"data\.tokenizer: .*special_tokens_map\.json is a link"):
        load_tokenizer(str(copy))
