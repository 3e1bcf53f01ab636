"""Which files are released, and how releases are named."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub import FilesError, RecordError, branch_name, load_records, repo_name, run_folders
from hub.record.names import format_tokens
from hub.store.files import is_allowed, release_of
from tests.hub.conftest import sharded
from tests.hub.samples import make_record

BRANCH = "tokens001.5M-seed0"


def test_a_release_is_what_is_on_the_list(checkpoint):
    release = release_of(checkpoint())
    assert sorted(release.files) == ["config.json", "model.safetensors", "modeling_switch_moe.py", "tokenizer.json"]
    assert release.skipped == ("checkpoints", "optimizer.pt", "training_args.bin")
    off = (
        "pytorch_model.bin",
        "model.pkl",
        ".env",
        ".gitattributes",
        "notes.txt",
        "../config.json",
        "sub/config.json",
    )
    off += ("x.PY", "config.json.bak", ".hidden.safetensors", "model.safetensors.tmp")
    assert not any(map(is_allowed, off))


def test_what_cannot_be_released_is_named(tmp_path, checkpoint):
    with pytest.raises(FilesError, match="there is no folder"):
        release_of(tmp_path / "nothing")
    folder = checkpoint()
    for content in (b"\x80\x04K\x01.", b"", struct.pack("<Q", 10**15) + b"{}", struct.pack("<Q", 2) + b"[]"):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(FilesError, match="not a safetensors file"):
            release_of(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FilesError, match=r"no weights.*optimizer.pt, training_args.bin is pickled"):
        release_of(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FilesError, match=r"no config\.json"):
        release_of(folder)


def test_shards_must_match_their_index(checkpoint):
    folder = sharded(checkpoint())
    assert list(release_of(folder).weights_sha256) == ["model-00001-of-00001.safetensors"]
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"weight": "model-00001-of-00001.safetensors", "b": "model-2"}}))
    with pytest.raises(FilesError, match=r"no shard of its index: .*model-2"):
        release_of(folder)
    index.unlink()
    with pytest.raises(FilesError, match="shards with their index"):
        release_of(folder)


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "tokenizer.json", "log.jsonl", "README.md", "modeling_switch_moe.py"),
        *("curve.png", "curve.svg", "tokenizer.model", "model.safetensors"),
    ],
)
@pytest.mark.parametrize(
    ("secret", "token"),
    [
        ("an access token", "hf_" + "q" * 34),
        ("a private key", "-----BEGIN PRIVATE KEY-----\nMIIE"),
        ("a private key", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl"),
        ("a private key", "-----BEGIN PGP PRIVATE KEY BLOCK-----\nlQVY"),
    ],
    ids=["token", "PKCS 8", "OpenSSH", "PGP"],
)
def test_a_secret_is_found_in_every_kind_of_file(checkpoint, name, secret, token):
    """In a picture's text chunk, and in the metadata of weights, too."""
    folder = checkpoint()
    if name == "model.safetensors":
        header = json.dumps({"__metadata__": {"note": token}}).encode()
        (folder / name).write_bytes(len(header).to_bytes(8, "little") + header)
    elif name.endswith(".json"):
        (folder / name).write_text(json.dumps({"token": token}))
    else:
        (folder / name).write_bytes(b"\x89PNG\r\n\x1a\n\x00tEXtnote\x00" + token.encode() + b"\xff\x00")
    with pytest.raises(FilesError, match=f"{name} holds what looks like {secret}") as caught:
        release_of(folder)
    assert token not in str(caught.value)


def test_a_key_that_is_public_or_only_named_is_none(checkpoint):
    folder = checkpoint()
    (folder / "README.md").write_text("Keys: `PRIVATE KEY` and\n-----BEGIN PUBLIC KEY-----\nMIIB")
    assert "README.md" in release_of(folder).files


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors"])
def test_a_link_that_leads_out_of_the_folder_is_refused(checkpoint, tmp_path, name):
    """It would publish a file that nobody put there."""
    folder = checkpoint()
    outside = tmp_path / "outside"
    outside.write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"private")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    with pytest.raises(FilesError, match=f"{name} is a link to .*outside, which is outside .*; copy the file into it"):
        release_of(folder)


def test_links_within_the_folder_and_to_the_folder_are_followed(checkpoint, tmp_path):
    folder = checkpoint()
    (folder / "model.safetensors").rename(folder / "weights")
    (folder / "model.safetensors").symlink_to("weights")
    (tmp_path / "link").symlink_to(folder)
    (folder / "notes.txt").symlink_to("/etc/hostname")  # is not released
    assert release_of(tmp_path / "link").weights_sha256 == release_of(folder).weights_sha256


def test_a_loop_of_folders_lists_a_run_once(tmp_path):
    runs = tmp_path / "runs"
    for folder in (runs / "one", runs / "z" / "two", tmp_path / "sibling"):
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(make_record(run_id=folder.name).to_json())
    (runs / "a").symlink_to(runs)
    (runs / "above").symlink_to("..")
    (runs / "one" / "z").symlink_to(runs / "z")
    (runs / "z" / "self").symlink_to(".")
    assert run_folders(runs) == [runs / "one", runs / "z" / "two"]
    unfinished = tmp_path / "store" / "models" / "repo" / ".branch.1.tmp"  # a branch that is being written
    unfinished.mkdir(parents=True)
    (unfinished / "run.json").write_text(make_record(run_id="unfinished").to_json())
    for name in ("branch", "again"):
        (tmp_path / "store" / "models" / "repo" / name).symlink_to(runs / "one")
    assert [record.run_id for record in load_records(tmp_path / "store")] == ["one"]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (2_000_000_000, "002.0B"),
        (1_999_978_496, "002.0B"),
        (2_040_000_000, "002.04B"),
        (128_000_000_000, "128.0B"),
        (99_900_000, "099.9M"),
        (1_536_000, "001.536M"),
        (12_288, "012.3K"),
        (0, "000.0K"),
    ],
)
def test_tokens_in_names(tokens, expected):
    assert format_tokens(tokens) == expected


@given(st.integers(1, 10**13), st.integers(1, 10**13))
def test_two_runs_share_a_name_only_if_their_tokens_nearly_agree(one, other):
    if format_tokens(one) == format_tokens(other):
        assert abs(one - other) <= 2.1e-3 * max(one, other)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, BRANCH),
        ({"tokens": 2_000_000_000, "seed": 3}, "tokens002.0B-seed3"),
        ({"optimizer": {"weight_decay": 0.2, "gradient_clip_norm": 1.0}}, f"{BRANCH}-wd0.2-clip1"),
        ({"optimizer": {"beta2": 0.95, "epsilon": 1e-6}}, f"{BRANCH}-beta0.9-0.95-eps1e-06"),
        ({"schedule": {"decay_tokens": 150_000}}, f"{BRANCH}-decay0.1"),
        ({"schedule": {"peak_learning_rate": 0.5}}, BRANCH),  # by a law
        ({"schedule": {"learning_rate_law": "given"}}, f"{BRANCH}-lr0.002"),
        ({"schedule": {"learning_rate_law": "a law, times 0.5"}}, f"{BRANCH}-lrscale0.5"),
        ({"schedule": {"learning_rate_law": "given"}, "sweep": "demo-lr0.002"}, BRANCH),  # the sweep says it
        ({"capacity_factor": 0, "balance_loss_coefficient": 0.1}, f"{BRANCH}-dropless-balance0.1"),
        ({"status": "diverged", "tokens": 500_000}, "tokens000.5M-seed0-horizon001.5M"),
        ({"status": "intermediate"}, f"step0000733-{BRANCH}"),
    ],
)
def test_branch_names_say_what_departs_from_the_recipe(changes, name):
    record = make_record()
    parts = {
        part: {**getattr(record, part).model_dump(), **changes.get(part, {})} for part in ("optimizer", "schedule")
    }
    assert branch_name(record.replaced(**{**changes, **parts})) == name
    assert repo_name(record) == "demo-d64-E4"


def test_branch_names_are_bounded():
    optimizer = {**make_record().optimizer.model_dump(), "beta1": 0.123456, "beta2": 0.123457, "weight_decay": 1.2e-7}
    schedule = {**make_record().schedule.model_dump(), "learning_rate_law": "given", "peak_learning_rate": 1.23457e-9}
    base = {"status": "intermediate", "steps": 10**18, "tokens": 10**18 - 1, "seed": (1 << 63) - 1}
    records = [make_record(optimizer={**optimizer, "epsilon": e}, schedule=schedule, **base) for e in (1e-7, 1e-6)]
    names = {branch_name(record) for record in records}
    assert len(names) == 2
    assert all(len(name) <= 120 for name in names)
    assert {make_record(branch=name).branch for name in names} == names
    with pytest.raises(RecordError, match="seed is -1"):
        branch_name(make_record(seed=-1))
