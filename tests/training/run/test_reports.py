"""What a run shows beside its records: step log, evaluations, intermediate models, traces; and its modes."""

import gzip
import itertools
import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from hub import RunRecord
from hub.base import progress
from tests.hub.loopback import TOKEN
from tests.hub.samples import make_record
from tests.training.run.test_run import assert_same_weights, finish, lines_of, weights
from training import Run
from training.run import checkpoint
from training.run.inputs import check_inputs
from training.run.log import NAME, run_log, write_log


def test_evaluations_and_intermediate_models_change_nothing_and_are_left(tiny, tmp_path, caplog):
    plain = tiny(schedule__tokens=[2560], run__output_dir=str(tmp_path / "plain"))
    finish(plain)
    arguments = tiny(schedule__tokens=[2560], run__eval_tokens=[640, 2304], run__release_tokens=[640])
    finished = []

    def finisher(folder, record):
        assert RunRecord.load(folder) == record
        finished.append((folder.parent.name, record.status))

    assert Run(arguments, [finisher]).execute() == 0
    assert_same_weights(weights(plain, 2560), weights(arguments, 2560))

    check_inputs(tiny(schedule__tokens=[2560], run__eval_tokens=[640, 2560], run__release_tokens=[10, 640, 2304]))
    assert "run.release_tokens: nothing happens at [10, 2304]; it must be from 64 to 2048 tokens" in caplog.text
    assert "run.eval_tokens" not in caplog.text

    evaluations = [line for line in lines_of(arguments) if "eval_loss" in line]
    assert [(line["step"], line["tokens"]) for line in evaluations] == [(9, 640)]
    (name,) = [path.parent.name for path in Path(arguments.run.output_dir).glob("tokens*/model")]
    (late,) = [line for line in lines_of(arguments, name) if "eval_loss" in line]
    assert late["tokens"] == 2304
    (folder,) = (Path(arguments.run.output_dir) / "intermediate").glob("*/model")
    assert folder.parent.name == "step0000009-tokens000.64K-seed0"
    record = RunRecord.load(folder)
    assert (record.status, record.tokens, record.steps) == ("intermediate", 640, 9)
    assert record.eval_loss == evaluations[0]["eval_loss"]
    trained = [line["loss"] for line in lines_of(arguments) if "loss" in line][:9]
    assert record.train_loss == pytest.approx(sum(trained) / 9)
    assert record.train_loss_window_tokens == 640
    assert AutoModelForCausalLM.from_pretrained(folder).config.num_experts == 4
    assert finished == [(folder.parent.name, "intermediate"), (name, "final")]

    finished.clear()  # started again, the finishers get what is there: they may not have seen it
    assert Run(arguments, [finisher]).execute() == 0
    assert sorted(finished) == [(folder.parent.name, "intermediate"), (name, "final")]


def test_a_trace_of_the_steps_that_were_asked_for(tiny):
    arguments = tiny(schedule__tokens=[1280], run__profile_steps=[3, 5])
    finish(arguments)
    with gzip.open(Path(arguments.run.output_dir) / "profile" / "trace-0.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event.get("name") == "Optimizer.step#AdamW.step" for event in events) == 2


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_run_has_the_losses_and_the_names_of_an_eager_one(tiny, tmp_path, monkeypatch, backend):
    """The real back end takes a minute; the steps are captured for the other one in the same way."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    gentle = {"schedule.tokens": [1280], "optimizer.learning_rate": 1e-3, "model.capacity_group_tokens": 32}
    eager = tiny(**gentle, run__output_dir=str(tmp_path / "eager"))
    compiled = tiny(**gentle, run__compile=True)
    finish(eager)
    finish(compiled)
    for one, other in zip(lines_of(eager), lines_of(compiled), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], abs=2e-5)
        assert other["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-4)
        assert other["drop_rate"] == pytest.approx(one["drop_rate"], abs=0.01)
    assert weights(eager, 1280).keys() == weights(compiled, 1280).keys()
    trunk = Path(compiled.run.output_dir) / "trunk"  # an eager process reads the compiled one's checkpoint
    (step,) = checkpoint.steps(trunk)
    assert checkpoint.load(checkpoint.path_of(trunk, step), Run(eager).session).step == step


def test_without_a_terminal_a_run_writes_how_far_it_is(tiny, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.02)
    finish(tiny(schedule__tokens=[1280], run__progress=True))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("d64 E4 ")]
    assert any(re.match(r"d64 E4 trunk: \d+% of 1\.02K tok, loss \d\.\d{3}", line) for line in lines), lines


# -- the log that is released with a model: bounded, and without secrets


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
    assert len(tokens_of(run_log(record, trunk, tmp_path / "none", max_bytes=10**9))) == 10_000
    thin = run_log(record, trunk, tmp_path / "none", max_bytes=20_000)
    assert len(thin) <= 20_000
    found = tokens_of(thin)
    assert {1, 10_000, 3377, 7777, 9001} <= set(found)
    assert len(found) > 300
    assert all(0 < later - earlier < 50 for earlier, later in itertools.pairwise(found))
    assert len(run_log(record, trunk, tmp_path / "none", max_bytes=10)) < 200  # first and last, whatever happens


def test_a_log_with_a_token_stays_behind(tmp_path, record, caplog):
    trunk = write(tmp_path / "trunk", [1000], **{"1000": {"note": TOKEN}})
    write_log(tmp_path, record, trunk, tmp_path / "none")
    assert not (tmp_path / NAME).exists()
    assert "access token" in caplog.text
    assert TOKEN not in caplog.text
