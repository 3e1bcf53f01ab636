"""The step log beside a model: the trunk up to the branch point and the branch, bounded, and without secrets."""

import itertools
import json

import pytest

from tests.hub.loopback import TOKEN
from tests.hub.samples import make_record
from training.run.log import NAME, run_log, write_log


def write(path, tokens, **extra):
    lines = [{"step": t // 1000, "tokens": t, "loss": 5.0, **extra.get(str(t), {})} for t in tokens]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def record():
    return make_record(tokens=20_000, parent_run_id="trunk", branch_point_tokens=10_000)


def tokens_of(content):
    return [json.loads(line)["tokens"] for line in content.splitlines()]


def test_the_trunk_up_to_the_branch_point_then_the_branch(tmp_path, record):
    trunk = write(tmp_path / "trunk", range(1000, 16_000, 1000))
    branch = write(tmp_path / "branch", range(11_000, 21_000, 1000))
    with open(branch, "a") as file:
        file.write('{"step": 21, "tok')  # cut short by a kill
    assert tokens_of(run_log(record, trunk, branch)) == list(range(1000, 21_000, 1000))
    intermediate = make_record(tokens=5000, status="intermediate")
    assert tokens_of(run_log(intermediate, trunk, branch)) == [1000, 2000, 3000, 4000, 5000]
    assert run_log(record, tmp_path / "none", tmp_path / "none") == b""


def test_a_long_log_is_thinned_and_keeps_its_events(tmp_path, record):
    events = {"3377": {"loss_spike": True}, "7777": {"skipped_batch": [1, 2]}, "9001": {"eval_loss": 4.0}}
    trunk = write(tmp_path / "trunk", range(1, 10_001), **events)
    whole = run_log(record, trunk, tmp_path / "none", max_bytes=10**9)
    assert len(tokens_of(whole)) == 10_000
    thin = run_log(record, trunk, tmp_path / "none", max_bytes=20_000)
    assert len(thin) <= 20_000
    found = tokens_of(thin)
    assert {1, 10_000, 3377, 7777, 9001} <= set(found)
    steps = {later - earlier for earlier, later in itertools.pairwise(found)}
    assert len(found) > 300
    assert max(steps) < 50
    assert found == sorted(set(found))
    assert len(run_log(record, trunk, tmp_path / "none", max_bytes=10)) < 200  # first and last, whatever happens


def test_a_log_with_a_token_stays_behind(tmp_path, record, caplog):
    trunk = write(tmp_path / "trunk", [1000], **{"1000": {"note": TOKEN}})
    write_log(tmp_path, record, trunk, tmp_path / "none")
    assert not (tmp_path / NAME).exists()
    assert "access token" in caplog.text
    assert TOKEN not in caplog.text
