"""The run record: what is accepted, what is refused and how it is said, and that nothing is lost on the way."""

import contextlib
import json
import math
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hub import FilesError, RecordError, RunRecord, load_records, repo_name
from hub.record.run_record import OF_A_CLASS, to_plain
from tests.hub.samples import make_record, record_fields


def test_round_trip_keeps_every_field_also_unknown_ones(tmp_path):
    nested = {"later": [1, 2.5, None, {"deep": True}], "text": "naïve – 日本"}
    record = make_record(from_a_later_version=nested, schedule={**record_fields()["schedule"], "new_knob": 3})
    record.replaced(seed=7).save(tmp_path)
    assert RunRecord.load(tmp_path).seed == 7
    assert record.save(tmp_path) == tmp_path / "run.json"
    again = RunRecord.load(tmp_path)
    assert again == record
    assert again.to_dict()["from_a_later_version"] == nested
    assert again.to_dict()["schedule"]["new_knob"] == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_only_records_of_another_class_say_which():
    assert not (OF_A_CLASS | {"stopped"}) & {*make_record().to_dict()}
    of_a_class = dict.fromkeys(OF_A_CLASS, 1) | {"model_type": "qwen3_moe", "d_expert": 24, "experts_per_token": 2}
    record = make_record(**of_a_class)
    # A dense class may have tables that no token multiplies.
    assert make_record(**of_a_class, experts=1).n_total > record.n_active
    assert of_a_class.items() <= record.to_dict().items()
    assert repo_name(record) == "demo-qwen3_moe-d64-E4-k2-f24-s1"
    assert repo_name(record.replaced(n_kv_heads=record.n_heads)) == repo_name(record)
    grouped = make_record(**of_a_class, n_heads=4, n_blocks=2, n_kv_heads=2)
    assert repo_name(grouped) == "demo-qwen3_moe-d64-b2-h4-kv2-E4-k2-f24-s1"
    with pytest.raises(RecordError, match="density, granularity missing, required with one of the others"):
        make_record(**{name: value for name, value in of_a_class.items() if name not in ("granularity", "density")})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"experts": 0}, ["experts: 0; it must be greater than or equal to 1"]),
        ({"capacity_group_tokens": 0}, ["capacity_group_tokens: 0; it must"]),
        ({"final_norm": "yes"}, ["final_norm: 'yes'; it must"]),
        ({"tokens": "1500000"}, ["tokens", "must be a number", "'1500000'"]),
        ({"tokens": True}, ["tokens", "must be a number"]),
        ({"tokens": 1.5}, ["tokens", "integer", "1.5"]),
        ({"tokens": 10**19}, ["tokens: 1", "less than or equal"]),
        ({"tokens": 1e27}, ["tokens: 1", "less than or equal"]),
        ({"train_loss": math.nan}, ["train_loss"]),
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
        ({"repo": "org/../../etc"}, ["repo", "pattern"]),
        ({"branch": "../main"}, ["branch", "pattern"]),
        ({"commit": "main"}, ["commit"]),
        ({"weights_sha256": {"../x.safetensors": "0" * 64}}, ["weights_sha256"]),
        ({"weights_sha256": {"model.safetensors": "zz"}}, ["weights_sha256.model.safetensors"]),
        ({"weights_sha256": {"model.bin": "0" * 64}}, ["weights_sha256"]),
        ({"versions": {f"v{i}": "1" for i in range(65)}}, ["versions", "64"]),
        ({"dataset": {"id": "x"}}, ["dataset.fingerprint", "missing"]),
        ({"hardware": "two\nlines"}, ["hardware"]),
    ],
)
def test_wrong_values_are_named_with_what_is_allowed(changes, named):
    for make in (lambda: make_record(**changes), lambda: make_record().replaced(**changes)):
        with pytest.raises(RecordError) as caught:
            make()
        for part in ["demo-d64-E4-a" if "run_id" not in changes else "", *named]:
            assert part in str(caught.value)


def test_all_problems_are_reported_at_once():
    fields = record_fields(experts=0, seed="x")
    del fields["steps"]
    with pytest.raises(RecordError) as caught:
        RunRecord(**fields)
    assert all(name in str(caught.value) for name in ("experts", "seed", "steps: missing"))


PRIVATE = ["/home/someone/data", "/data", "loaded from /mnt/disk/corpus", "~/corpus", "path=~someone/x", "D:/data"]
PRIVATE += ["C:\\Users\\x", "file:///srv/x", "\\\\server\\share", "someone@example.org"]


@pytest.mark.parametrize("text", PRIVATE)
def test_paths_and_addresses_are_refused_everywhere(text):
    for change in ({"hardware": text}, {"note": text}, {"note": [{"deep": {"deeper": text}}]}, {"note": {text: 1}}):
        with pytest.raises(RecordError, match=r"absolute path|e-mail"):
            make_record(**change)


def test_ordinary_texts_are_accepted():
    for text in ("21k tokens/s", "and/or", "https://huggingface.co/datasets/a/b", "a/b", "1/2", "hf_hub_download"):
        assert make_record(hardware=text, note=text).hardware == text


@pytest.mark.parametrize("token", ["hf_" + "aB3" * 11, "hf_oauth_" + "x" * 30, "api_org_" + "y" * 30])
def test_tokens_are_refused_and_not_repeated_in_the_error(token):
    for change in ({"hardware": token}, {"note": token}, {"note": {token: 1}}, {"run_id": token}, {"tokens": token}):
        with pytest.raises(RecordError) as caught:
            make_record(**change)
        assert token not in str(caught.value)
        assert token not in repr(caught.value.__cause__) + repr(caught.value.args)


def test_losses_of_a_diverged_run_become_null():
    record = make_record(status="diverged", train_loss=math.inf, eval_loss=math.nan)
    assert (record.train_loss, record.eval_loss) == (None, None)
    assert make_record(status="diverged", train_loss=11.5, eval_loss=None).train_loss == 11.5


def test_numpy_scalars_and_whole_floats_are_plain_numbers():
    record = make_record(tokens=np.int64(1_500_000), eval_loss=np.float64(4.5), steps=733.0, note=np.float32(0.5))
    assert [type(value) for value in (record.tokens, record.eval_loss, record.steps)] == [int, float, int]
    assert json.loads(record.to_json())["note"] == 0.5


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *((value, None) for value in (object(), {1, 2}, b"bytes", np.zeros(3), math.nan, 10**40, {1: 2}, "\ud800")),
        ("x" * 4001, "4,000"),
        (["x" * 3999] * 70, "larger than"),
        (list(range(5000)), "entries"),
        (json.loads("[" * 40 + "]" * 40), "nested"),
    ],
    ids=[*("object", "set", "bytes", "array", "nan", "huge", "key", "surrogate"), "text", "size", "entries", "depth"],
)
def test_unknown_fields_hold_json_of_a_bounded_size(value, reason):
    with pytest.raises(RecordError, match=reason):
        make_record(note=value)


@pytest.mark.parametrize("text", ["x" * 3999, "a@" * 1999, "a." * 1999 + "@", "@a.a" * 999, "=/" * 1999, "=~x" * 1333])
def test_checking_a_text_takes_no_longer_for_a_nasty_one(text):
    """A pattern that backtracks would take seconds. The thread's own time: a busy machine does not count."""
    started = time.thread_time()
    for i in range(20):
        with contextlib.suppress(ValueError):
            to_plain(f"{text}{i}")  # each another one: what was checked is remembered
    assert (time.thread_time() - started) / 20 < 0.05


def test_a_file_without_a_record_is_named(tmp_path):
    with pytest.raises(FilesError, match=r"cannot read the run record .*run\.json"):
        RunRecord.load(tmp_path)
    for content in ("[]", "3", '"x"', "null"):
        (tmp_path / "run.json").write_text(content)
        for load in (RunRecord.load, load_records):
            with pytest.raises(RecordError, match=rf"^{tmp_path}/run\.json: a .*allowed is an object"):
                load(tmp_path)


def test_fields_named_like_python_internals_do_no_harm():
    names = {"self": 1, "cls": 2, "__class__": "x", "to_dict": 3, "model_config": {"frozen": False}}
    record = RunRecord.from_dict(record_fields() | names)
    assert type(record) is RunRecord
    assert (record.to_dict()["self"], record.to_dict()["to_dict"]) == (1, 3)
    with pytest.raises(ValidationError, match="frozen"):
        record.tokens = 1


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


@given(note=_json_values, changes=st.dictionaries(st.sampled_from(sorted(record_fields())), _json_values))
def test_any_content_survives_json_or_is_refused_with_a_record_error(note, changes):
    record = make_record(note=note)
    with contextlib.suppress(RecordError):
        record = make_record(note=note, **changes)
    assert RunRecord.from_json(record.to_json()) == record


def test_importing_the_records_is_light():
    heavy = ["torch", "transformers", "huggingface_hub", "pyarrow", "pandas", "numpy", "datasets"]
    code = f"import sys, hub, hub.record.run_record; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**31), 10**31)
    | st.floats()
    | st.sampled_from(["adamw", "/home/someone/data", "a@b.org", "", "x" * 5000, "\ud800"])
    | st.sampled_from([np.float64(1.5), np.int64(3), np.float32("nan"), b"bytes", {1, 2}]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.sampled_from(["tokens", "name", "/etc/passwd", 3, "c@d.org"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def plain_by_a_call_for_each(value, name=""):
    """Return what `to_plain` does, but check each value and each name by itself."""
    if isinstance(value, (list, tuple)):
        return [plain_by_a_call_for_each(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return to_plain(value, name)
    plain = {}
    for key, item in value.items():
        to_plain({key: None}, name)
        plain[key] = plain_by_a_call_for_each(item, f"{name}.{key}".lstrip("."))
    return plain


def outcome(function, value):
    """Return the result in words, or the error."""
    try:
        return repr(function(value))
    except ValueError as error:
        return str(error)


@given(VALUES)
def test_values_are_plain_as_if_each_was_checked_by_itself(value):
    assert outcome(to_plain, value) == outcome(plain_by_a_call_for_each, value)
