"""Pictures of a run's card: what they show, that they are small, and that the same logs give the same bytes."""

import io
import json
from itertools import zip_longest

import numpy as np
import pytest
from PIL import Image

from hub.store.files import is_allowed
from scaling_law.figures.run_pictures import CAPTIONS, CURVE, LOAD, run_pictures
from tests.hub.samples import make_record


def write_log(path, tokens, losses, routed=()):
    """A log with the tokens per expert `routed` of each step, [layers, E], if any."""
    lines = [
        {"step": i, "tokens": int(t), "loss": loss, **({"tokens_per_expert": load} if load else {})}
        for i, (t, loss, load) in enumerate(zip_longest(tokens, losses, routed))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def logs(tmp_path):
    tokens = np.arange(1000, 2_000_001, 1000)
    losses = [None if i == 7 else float(10 * t**-0.1) for i, t in enumerate(tokens)]
    trunk, load = write_log(tmp_path / "trunk.jsonl", tokens, losses), [[9, 1, 0, 0], [3, 2, 3, 2]]
    branch = write_log(tmp_path / "branch.jsonl", tokens[1200:1500], losses[1200:1500], [load] * 300)
    return trunk, branch


RECORD = make_record(parent_run_id="trunk", branch_point_tokens=1_200_000)


def test_both_pictures_are_small_and_always_the_same(logs):
    pictures = run_pictures(RECORD, *logs)
    assert set(pictures) == {CURVE, LOAD} == set(CAPTIONS)
    assert all(is_allowed(name) for name in pictures)
    assert all(1000 < len(content) < 100_000 for content in pictures.values())
    assert run_pictures(RECORD, *logs) == pictures
    assert all(b"Software" not in content for content in pictures.values())


def test_lines_of_evaluations_change_no_picture(logs):
    pictures = run_pictures(RECORD, *logs)
    for log in logs:
        log.write_text(log.read_text() + '{"event": "eval_loss", "step": 7, "tokens": 1204000, "eval_loss": 3.1}\n')
    assert run_pictures(RECORD, *logs) == pictures


def test_a_large_run_has_small_pictures(tmp_path):
    """32 experts in 42 layers, and a log that a killed process left with half a line."""
    routed = np.random.default_rng(0).integers(0, 1000, (42, 32)).tolist()
    log = write_log(tmp_path / "log.jsonl", range(1000, 60_000, 1000), np.linspace(9, 4, 59).tolist(), [routed] * 59)
    log.write_text(log.read_text() + '{"step": 99, "tok')
    pictures = run_pictures(make_record(experts=32, n_total=10**6), tmp_path / "none.jsonl", log)
    for content in pictures.values():
        assert len(content) < 100_000
        assert max(Image.open(io.BytesIO(content)).size) <= 1100


def test_a_dense_run_has_a_curve_only_and_without_logs_there_is_nothing(logs, tmp_path):
    dense = make_record(experts=1, n_total=118_784)
    assert set(run_pictures(dense, *logs)) == {CURVE}
    assert run_pictures(RECORD, tmp_path / "no.jsonl", tmp_path / "none.jsonl") == {}
    diverged = make_record(status="diverged", train_loss=None, eval_loss=None)
    empty = write_log(tmp_path / "empty.jsonl", [1000], [None])
    assert run_pictures(diverged, empty, empty) == {}


def test_the_trunk_is_shown_up_to_the_branch_point(logs):
    """What the trunk did after it does not belong to the run."""
    later = RECORD.replaced(branch_point_tokens=600_000)
    assert run_pictures(later, *logs)[CURVE] != run_pictures(RECORD, *logs)[CURVE]
    assert run_pictures(later, *logs)[LOAD] == run_pictures(RECORD, *logs)[LOAD]


def test_the_load_of_an_intermediate_model_is_that_of_the_trunk_before_it(tmp_path):
    routed = [[[9, 1]]] * 50 + [[[5, 5]]] * 50
    log = write_log(tmp_path / "trunk.jsonl", range(1000, 100_001, 1000), np.linspace(5, 3, 100).tolist(), routed)
    record = make_record(status="intermediate", experts=2, tokens=100_000)
    even, uneven = (run_pictures(record.replaced(tokens=t), log, tmp_path / "none") for t in (100_000, 50_000))
    assert set(even) == set(uneven) == {CURVE, LOAD}
    assert even[LOAD] != uneven[LOAD]
