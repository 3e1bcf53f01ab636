"""The run record: what is accepted, what is refused and how it is said, and that nothing is lost on the way."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hub import load_records
from hub.plain.errors import FilesError, RecordError
from hub.record.run_record import RunRecord, plain
from tests.hub.samples import DECIDING, make_record, record_fields

ROOT = Path(__file__).parents[3]


def test_round_trip_keeps_every_field_also_unknown_ones(tmp_path: Path) -> None:
    nested = {"later": [1, 2.5, None, {"deep": True}], "text": "naïve – 日本"}
    record = make_record(from_a_later_version=nested, schedule={**record_fields()["schedule"], "new_knob": 3})
    path = record.save(tmp_path)
    assert path == tmp_path / "run.json"
    again = RunRecord.load(tmp_path)
    assert again == record
    assert again.to_dict()["from_a_later_version"] == nested
    assert again.to_dict()["schedule"]["new_knob"] == 3


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "results").rglob("*.jsonl")), ids=lambda path: path.stem)
def test_records_of_before_a_field_was_there_have_null_for_it(path: Path) -> None:
    for record in load_records(path):
        assert {getattr(record, name) for name in DECIDING if name != "optimizer"} == {None}
        assert record.optimizer.weight_decay_on is None


@pytest.mark.parametrize(
    ("name", "value"), [("capacity_group_tokens", 0), ("capacity_factor", -1.0), ("final_norm", "yes")]
)
def test_what_decides_the_model_is_checked(name: str, value: object) -> None:
    with pytest.raises(RecordError, match=f"{name}: {value!r}; it must"):
        make_record(**{name: value})


def test_replaced_validates(record: RunRecord) -> None:
    assert record.replaced(seed=7).seed == 7
    assert record.seed == 0
    with pytest.raises(RecordError, match="experts"):
        record.replaced(experts=0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"experts": 0}, ["experts", "experts: 0; it must be greater than or equal to 1"]),
        ({"tokens": "1500000"}, ["tokens", "must be a number", "'1500000'"]),
        ({"tokens": True}, ["tokens", "must be a number"]),
        ({"tokens": 1.5}, ["tokens", "integer", "1.5"]),
        ({"tokens": 10**19}, ["tokens", "less than or equal"]),
        ({"train_loss": math.nan}, ["train_loss"]),
        ({"eval_loss": math.inf}, ["eval_loss"]),
        ({"train_loss": None}, ["train_loss is null", "diverged"]),
        ({"drop_rate": 1.2}, ["drop_rate", "less than or equal to 1", "1.2"]),
        ({"status": "done"}, ["status", "'final', 'intermediate' or 'diverged'", "'done'"]),
        ({"n_heads": 3}, ["n_heads is 3", "divisors of d_model 64"]),
        ({"n_total": 100}, ["n_total is 100", "at least n_active"]),
        ({"experts": 1}, ["n_total", "with experts 1"]),
        ({"branch_point_tokens": 5}, ["branch_point_tokens", "parent_run_id"]),
        ({"parent_run_id": "trunk", "branch_point_tokens": 10**9}, ["branch_point_tokens", "at most 1500000"]),
        ({"schema_version": 2}, ["schema_version is 2", "reads up to 1", "update the package"]),
        ({"run_id": "../../etc"}, ["run_id", "pattern"]),
        ({"run_id": "a" * 65}, ["run_id", "64"]),
        ({"repo": "../evil"}, ["repo", "pattern"]),
        ({"repo": "org/.."}, ["repo", "pattern"]),
        ({"branch": "../main"}, ["branch", "pattern"]),
        ({"weights_sha256": {"../x.safetensors": "0" * 64}}, ["weights_sha256"]),
        ({"weights_sha256": {"model.safetensors": "zz"}}, ["weights_sha256.model.safetensors"]),
        ({"weights_sha256": {"model.bin": "0" * 64}}, ["weights_sha256"]),
        ({"commit": "main"}, ["commit"]),
        ({"versions": {f"v{i}": "1" for i in range(65)}}, ["versions", "64"]),
        ({"dataset": {"id": "x"}}, ["dataset.fingerprint", "missing"]),
        ({"dataset": None}, ["dataset"]),
        ({"hardware": "two\nlines"}, ["hardware"]),
    ],
)
def test_wrong_values_are_named_with_what_is_allowed(changes: dict[str, object], named: list[str]) -> None:
    with pytest.raises(RecordError) as caught:
        make_record(**changes)
    for part in ["demo-d64-E4-a" if "run_id" not in changes else "", *named]:
        assert part in str(caught.value)


def test_all_problems_are_reported_at_once() -> None:
    fields = record_fields(experts=0, seed="x")
    del fields["steps"]
    with pytest.raises(RecordError) as caught:
        RunRecord(**fields)
    assert all(name in str(caught.value) for name in ("experts", "seed", "steps: missing"))


PRIVATE = ["/home/someone/data", "/data", "loaded from /mnt/disk/corpus", "~/corpus", "path=~someone/x", "D:/data"]
PRIVATE += ["C:\\Users\\x", "file:///srv/x", "\\\\server\\share", "someone@example.org"]


@pytest.mark.parametrize("text", PRIVATE)
@pytest.mark.parametrize("place", ["hardware", "unknown", "nested", "key"])
def test_paths_and_addresses_are_refused_everywhere(text: str, place: str) -> None:
    change = {
        "hardware": {"hardware": text},
        "unknown": {"note": text},
        "nested": {"note": [{"deep": {"deeper": text}}]},
        "key": {"note": {text: 1}},
    }[place]
    with pytest.raises(RecordError, match=r"absolute path|e-mail"):
        make_record(**change)


def test_ordinary_texts_are_accepted() -> None:
    for text in ("21k tokens/s", "and/or", "https://huggingface.co/datasets/a/b", "a/b", "1/2", "hf_hub_download"):
        assert make_record(hardware=text, note=text).hardware == text


@pytest.mark.parametrize("token", ["hf_" + "aB3" * 11, "hf_oauth_" + "x" * 30, "api_org_" + "y" * 30])
@pytest.mark.parametrize("place", ["hardware", "note", "key", "run_id", "tokens"])
def test_tokens_are_refused_and_not_repeated_in_the_error(token: str, place: str) -> None:
    change: dict[str, object] = {place: token} if place != "key" else {"note": {token: 1}}
    with pytest.raises(RecordError) as caught:
        make_record(**change)
    assert token not in str(caught.value)
    assert token not in repr(caught.value.__cause__) + repr(caught.value.args)


def test_losses_of_a_diverged_run_become_null() -> None:
    record = make_record(status="diverged", train_loss=math.inf, eval_loss=math.nan)
    assert record.train_loss is None
    assert record.eval_loss is None
    assert make_record(status="diverged", train_loss=11.5, eval_loss=None).train_loss == 11.5


def test_numpy_scalars_and_whole_floats_are_plain_numbers() -> None:
    record = make_record(tokens=np.int64(1_500_000), eval_loss=np.float64(4.5), steps=733.0, note=np.float32(0.5))
    assert type(record.tokens) is int
    assert type(record.eval_loss) is float
    assert type(record.steps) is int
    assert json.loads(record.to_json())["note"] == 0.5


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", np.zeros(3), math.nan, 10**40, {1: 2}, "\ud800"])
def test_unknown_fields_hold_json_only(value: object) -> None:
    with pytest.raises(RecordError):
        make_record(note=value)


def test_sizes_are_bounded() -> None:
    with pytest.raises(RecordError, match="4,000"):
        make_record(note="x" * 4001)
    with pytest.raises(RecordError, match="larger than"):
        make_record(note=["x" * 3999] * 70)
    nested: object = 1
    for _ in range(40):
        nested = [nested]
    with pytest.raises(RecordError, match="nested"):
        make_record(note=nested)
    with pytest.raises(RecordError, match="entries"):
        make_record(note=list(range(5000)))


@pytest.mark.parametrize("text", ["x" * 3999, "a@" * 1999, "a." * 1999 + "@", "@a.a" * 999, "=/" * 1999, "=~x" * 1333])
def test_checking_a_text_takes_no_longer_for_a_nasty_one(text: str) -> None:
    """A pattern that backtracks would take seconds. The thread's own time: a busy machine does not count."""
    started = time.thread_time()
    for i in range(20):
        with contextlib.suppress(ValueError):
            plain(f"{text}{i}")  # each another one: what was checked is remembered
    assert (time.thread_time() - started) / 20 < 0.05


@pytest.mark.parametrize("content", ["[]", "3", '"x"', "null"])
def test_a_record_is_an_object(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RecordError, match=r"run\.json: a .*allowed is an object"):
        RunRecord.load(tmp_path)


def test_fields_named_like_python_internals_do_no_harm() -> None:
    names = {"self": 1, "cls": 2, "__class__": "x", "to_dict": 3, "model_config": {"frozen": False}}
    record = RunRecord.from_dict(record_fields() | names)
    assert type(record) is RunRecord
    assert record.to_dict()["self"] == 1
    assert record.to_dict()["to_dict"] == 3
    with pytest.raises(ValidationError, match="frozen"):
        record.tokens = 1


def test_a_missing_file_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(FilesError, match=r"cannot read the run record .*run\.json"):
        RunRecord.load(tmp_path)


def test_saving_replaces_and_leaves_nothing_behind(tmp_path: Path, record: RunRecord) -> None:
    record.save(tmp_path)
    record.replaced(seed=3).save(tmp_path)
    assert RunRecord.load(tmp_path).seed == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="/\\~@:"), max_size=20)
)
_keys = st.text("abcdef_", min_size=1, max_size=8)
_json_values = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3), max_leaves=8
)


@given(note=_json_values, seed=st.integers(-(2**63), 2**63 - 1), loss=st.floats(0, 1e4))
def test_any_plain_content_survives_json(note: object, seed: int, loss: float) -> None:
    record = make_record(note=note, seed=seed, eval_loss=loss)
    assert RunRecord.from_json(record.to_json()) == record


@given(st.dictionaries(st.sampled_from(sorted(record_fields())), _json_values, min_size=1))
def test_any_change_is_accepted_or_refused_with_a_record_error(changes: dict[str, object]) -> None:
    try:
        record = make_record(**changes)
    except RecordError:
        return
    assert RunRecord.from_json(record.to_json()) == record


def test_importing_the_records_is_light() -> None:
    heavy = ["torch", "transformers", "huggingface_hub", "pyarrow", "pandas", "numpy", "datasets"]
    code = f"import sys, hub, hub.record.run_record; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
