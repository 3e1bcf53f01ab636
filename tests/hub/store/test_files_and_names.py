"""Which files are released, and how releases are named."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.plain.errors import FilesError, RecordError
from hub.record.names import branch_name, formatted_tokens, repo_name
from hub.store.files import is_allowed, release_of
from tests.hub.samples import make_record


def test_a_release_is_what_is_on_the_list(checkpoint):
    release = release_of(checkpoint())
    assert sorted(release.files) == ["config.json", "model.safetensors", "modeling_switch_moe.py", "tokenizer.json"]
    assert release.skipped == ("checkpoints", "optimizer.pt", "training_args.bin")


@pytest.mark.parametrize(
    "name",
    [
        *("training_args.bin", "optimizer.pt", "pytorch_model.bin", "model.pkl", ".env", ".gitattributes"),
        *("notes.txt", "../config.json", "sub/config.json", "x.PY", "config.json.bak", ".hidden.safetensors"),
        "model.safetensors.tmp",
    ],
)
def test_names_off_the_list(name):
    assert not is_allowed(name)


def test_pickled_weights_are_named_as_the_reason(checkpoint):
    folder = checkpoint()
    (folder / "model.safetensors").unlink()
    with pytest.raises(FilesError, match=r"no weights.*optimizer.pt, training_args.bin is pickled"):
        release_of(folder)


def test_a_pickle_called_safetensors_is_refused(checkpoint):
    folder = checkpoint()
    for content in (b"\x80\x04K\x01.", b"", struct.pack("<Q", 10**15) + b"{}", struct.pack("<Q", 2) + b"[]"):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(FilesError, match="not a safetensors file"):
            release_of(folder)


def test_shards_must_match_their_index(checkpoint):
    folder = checkpoint()
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(FilesError, match="shards with their index"):
        release_of(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {"weight": "model-00001-of-00002.safetensors", "b": "model-2.safetensors"}})
    )
    with pytest.raises(FilesError, match=r"names \['model-00001"):
        release_of(folder)
    index.write_text(json.dumps({"weight_map": {"weight": "model-00001-of-00002.safetensors"}}))
    assert list(release_of(folder).weights_sha256) == ["model-00001-of-00002.safetensors"]


def test_missing_parts_are_named(tmp_path, checkpoint):
    with pytest.raises(FilesError, match="there is no folder"):
        release_of(tmp_path / "nothing")
    folder = checkpoint()
    (folder / "config.json").unlink()
    with pytest.raises(FilesError, match=r"no config\.json"):
        release_of(folder)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (2_000_000_000, "002.0B"),
        (1_999_978_496, "002.0B"),
        (2_040_000_000, "002.04B"),
        (128_000_000_000, "128.0B"),
        (100_000_000, "000.1B"),
        (99_900_000, "099.9M"),
        (1_500_000, "001.5M"),
        (1_536_000, "001.536M"),
        (99_999, "100.0K"),
        (12_288, "012.3K"),
        (12_345, "012.35K"),
        (512, "000.512K"),
        (0, "000.0K"),
    ],
)
def test_tokens_in_names(tokens, expected):
    assert formatted_tokens(tokens) == expected


@given(st.integers(1, 10**13), st.integers(1, 10**13))
def test_two_runs_share_a_name_only_if_their_tokens_nearly_agree(one, other):
    if formatted_tokens(one) == formatted_tokens(other):
        assert abs(one - other) <= 2.1e-3 * max(one, other)


@given(st.lists(st.integers(10**8, 999 * 10**9), min_size=2, max_size=6))
def test_names_in_billions_sort_by_size(tokens):
    names = [formatted_tokens(value) for value in tokens]
    whole = [int(name[:3]) for name in sorted(names)]
    assert whole == sorted(whole)
    assert all(name.endswith("B") and name[3] == "." for name in names)


def test_names_of_a_run():
    assert repo_name(make_record()) == "demo-d64-E4"
    assert branch_name(make_record(tokens=2_000_000_000, seed=3)) == "tokens002.0B-seed3"
    assert branch_name(make_record(status="intermediate", steps=1000)) == "step0001000-tokens001.5M-seed0"
    with pytest.raises(RecordError, match="seed is -1"):
        branch_name(make_record(seed=-1))


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "tokenizer.json", "modeling_switch_moe.py"),
        *("curve.png", "curve.svg", "tokenizer.model", "model.safetensors", "notes.py"),
    ],
)
def test_a_token_is_found_in_every_kind_of_file(checkpoint, name):
    """In a picture's text chunk, and in the metadata of weights, too."""
    folder = checkpoint()
    token = "hf_" + "q" * 34
    if name == "model.safetensors":
        header = json.dumps({"__metadata__": {"note": token}}).encode()
        (folder / name).write_bytes(len(header).to_bytes(8, "little") + header)
    elif name.endswith(".json"):
        (folder / name).write_text(json.dumps({"token": token}))
    else:
        (folder / name).write_bytes(b"\x89PNG\r\n\x1a\n\x00tEXtnote\x00" + token.encode() + b"\xff\x00")
    with pytest.raises(FilesError, match=f"{name} holds what looks like an access token") as caught:
        release_of(folder)
    assert token not in str(caught.value)
