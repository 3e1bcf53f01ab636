"""A run from arguments to records: branches, resume, reload, what is refused, and what happens to a broken run."""

import itertools
import json
import logging
import math
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import modeling_switch_moe  # noqa: F401 (registers the Auto classes)
from hub import RunRecord
from tests.model_classes import BIAS, CLASSES, DENSE, NOISY, SHARED, TOP_K
from training import ConfigurationError, Run
from training.run import step
from training.run.attempt import lock_run
from training.run.evaluation import evaluate
from training.run.inputs import HeldOutText, check_inputs, resolve_arguments


def finish(arguments) -> dict[str, RunRecord]:
    """Run to the end; records by token count."""
    check_inputs(arguments)
    assert Run(arguments).execute() == 0
    return {record.tokens: record for record in map(RunRecord.load, folders(arguments))}


def lines_of(arguments, folder="trunk") -> list[dict]:
    path = Path(arguments.run.output_dir) / folder / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def folders(arguments):
    return sorted(Path(arguments.run.output_dir).glob("*/model"))


def weights(arguments, tokens):
    (folder,) = [f for f in folders(arguments) if RunRecord.load(f).tokens == tokens]
    return load_file(folder / "model.safetensors")


def assert_same_weights(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def assert_same(one, other, *tokens) -> None:
    """These branches of two runs are equal bit for bit, weights and record."""
    for count in tokens:
        assert_same_weights(weights(one, count), weights(other, count))
        expected, record = (
            next(record for record in map(RunRecord.load, folders(run)) if record.tokens == count)
            for run in (one, other)
        )
        for name in ("train_loss", "eval_loss", "drop_rate", "expert_load_max_over_mean", "steps"):
            assert getattr(record, name) == getattr(expected, name), name


def stop_run(arguments, at: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Train until the loop has looked `at` times whether it is to stop."""
    run = Run(arguments)
    calls, requested = itertools.count(1), run.stop.requested

    def stop():
        if next(calls) == at:
            signal.raise_signal(number)
        return requested()

    run.stop.requested = stop
    assert run.execute() == 128 + number


def poison(run, monkeypatch, is_bad) -> None:
    """Make a gradient of some updates (counted from 1) not a number."""
    add_gradients, calls = step.add_gradients, itertools.count(1)

    def add_poisoned(session, number):
        result = add_gradients(session, number)
        if session is run.session and is_bad(next(calls)):
            next(session.model.parameters()).grad.mul_(math.nan)
        return result

    monkeypatch.setattr(step, "add_gradients", add_poisoned)


@pytest.fixture
def finished(tiny):
    arguments = tiny()
    return arguments, finish(arguments)


def test_many_departures_from_the_recipe_are_a_hash_in_the_names_of_runs(tiny):
    departures = {"optimizer__beta2": 0.95, "optimizer__gradient_clip": 1.0, "model__final_norm": True}
    records = finish(tiny(**departures))
    trunks = {record.parent_run_id for record in records.values()}
    assert len(trunks) == 1
    assert re.fullmatch("tiny-d64-E4-seed0-[0-9a-f]{8}", next(iter(trunks)))
    assert {record.run_id for record in records.values()} == {
        f"{next(iter(trunks))}-tokens{tokens}" for tokens in ("001.28K", "002.56K")
    }


def test_every_branch_leaves_a_model_and_a_true_record(finished):
    arguments, records = finished
    assert sorted(records) == [1280, 2560]
    record = records[2560]
    assert record.run_id == "tiny-d64-E4-seed0-lr0.01-tokens002.56K"
    assert (record.parent_run_id, record.status) == ("tiny-d64-E4-seed0-lr0.01", "final")
    assert record.branch_point_tokens == 2048
    assert record.schedule.decay_tokens == 512
    assert record.n_active == 2 * 64 * 300 + 13 * 64**2
    assert record.n_total == 2 * 64 * 300 + (4 + 9 * 4) * 64**2
    assert record.training_flops == 6 * record.n_active * 2560
    assert record.steps == 8 + 16  # 512 tokens in batches of 2 sequences of 32, the rest in batches of 4
    assert 0 < record.drop_rate < 1
    assert 1 <= record.expert_load_max_over_mean <= 4
    assert 0 < record.eval_loss < math.log(300) + 1
    assert record.eval_tokens == 8 * 32
    assert 2 <= record.eval_documents <= 8
    assert record.eval_data.startswith("split 'validation'; sequences from the first 1,")
    assert record.data_order.endswith("in windows that double from 1,024 to 65,536 by seed 0")
    assert record.schedule.peak_learning_rate == 0.01
    line = lines_of(arguments)[-1]
    assert line["memory_bytes"] > 50e6
    assert line["data_wait_seconds"] >= 0
    assert 0 < line["router_entropy"] < 1.4
    assert sum(line["tokens_per_expert"][0]) == 4 * 32
    for other in records.values():
        assert "/" not in other.dataset.id
        assert str(arguments.run.output_dir) not in other.to_json()


def test_the_record_says_what_decides_the_model_and_the_reloaded_one_has_its_loss_and_generates(tiny):
    changes = {
        "model.capacity_factor": 1.25,
        "model.capacity_group_tokens": 32,
        "model.z_loss": 0.002,
        "model.attention_precision": "compute",
        "model.initialization": "normal",
        "optimizer.decay_all": False,
    }
    arguments = tiny(schedule__tokens=[1280], **changes)
    (record,), (folder,) = finish(arguments).values(), folders(arguments)
    assert (record.micro_batch_sequences, record.capacity_factor, record.capacity_group_tokens) == (2, 1.25, 32)
    assert (record.balance_loss_coefficient, record.z_loss_coefficient) == (0.01, 0.002)
    assert (record.attention_precision, record.initialization, record.final_norm) == ("compute", "normal", False)
    assert (record.optimizer.weight_decay_on, record.eval_tokens) == ("matrices", 8 * 32)
    assert (record.gradient_checkpointing, record.compile) == (False, False)
    assert 0 < record.step_seconds < record.wall_time_seconds
    assert record.peak_memory_bytes > 16 * record.n_total
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    measured = evaluate(model, HeldOutText(arguments, tokenizer).wait(), 2, torch.device("cpu"))
    assert measured.loss == pytest.approx(record.eval_loss, abs=1e-6)
    assert measured.standard_error == pytest.approx(record.eval_loss_standard_error, abs=1e-6)
    prompt = tokenizer("the model", return_tensors="pt")
    assert model.generate(**prompt, max_new_tokens=5, do_sample=False).shape[1] > prompt["input_ids"].shape[1]


def test_longer_branches_can_be_added_and_equal_the_same_run_trained_alone(tiny, tmp_path):
    first = tiny(schedule__tokens=[1280])
    finish(first)
    before = {path: path.stat().st_mtime_ns for folder in folders(first) for path in folder.iterdir()}
    assert sorted(finish(tiny())) == [1280, 2560]
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    alone = tiny(schedule__tokens=[2560], run__output_dir=str(tmp_path / "alone"))
    finish(alone)
    assert_same(alone, tiny(), 2560)


MUON = {"optimizer.name": "muon"}
# On the trunk, at its branch point, in the decays.
PLACES = {12: signal.SIGTERM, 22: signal.SIGTERM, 24: signal.SIGTERM, 3: signal.SIGINT, 21: signal.SIGINT}
# What has a state of its own to resume: masks, selection biases and Muon's momentum, each of another class.
OWN_STATE = {
    "dropout and jitter": {"model": NOISY},
    "balanced by a bias": {"model": BIAS},
    "Muon": MUON,
}
OTHER_STATES = {
    **{kind: {"model": section} for kind, section in CLASSES.items()},
    "qwen3_moe by Muon": MUON | {"model": TOP_K},
    "deepseek_v3 by Muon": MUON | {"model": SHARED},
}
STOPPED = [
    *(pytest.param({}, at, number, id=f"at {at}") for at, number in PLACES.items() if at != 3),
    # The trunk again, which is stopped at 12, too.
    pytest.param({}, 3, PLACES[3], id="at 3", marks=pytest.mark.slow),
    *(pytest.param(settings, 5, signal.SIGTERM, id=name) for name, settings in OWN_STATE.items()),
    *(
        pytest.param(settings, 5, signal.SIGTERM, id=name, marks=pytest.mark.slow)
        for name, settings in OTHER_STATES.items()
    ),
]


@pytest.fixture(scope="module")
def run_alone(tmp_path_factory):
    """A function: a finished run of these settings and tokens, which is trained once for all places to stop at."""
    trained = {}

    def run(tiny, settings, tokens):
        key = repr(settings), tokens
        if key not in trained:
            folder = tmp_path_factory.mktemp("alone")
            trained[key] = tiny(**settings, schedule__tokens=[tokens], run__output_dir=str(folder / "run"))
            finish(trained[key])
        return trained[key]

    return run


@pytest.mark.parametrize(("settings", "stop_at", "number"), STOPPED)
def test_branches_of_a_run_that_was_stopped_and_resumed_equal_runs_alone(tiny, run_alone, settings, stop_at, number):
    arguments = tiny(**settings)
    stop_run(arguments, at=stop_at, number=number)
    assert sorted(finish(arguments)) == [1280, 2560]
    for tokens in (1280, 2560):
        assert_same(run_alone(tiny, settings, tokens), arguments, tokens)


def test_steps_that_are_not_finite_are_not_taken_and_end_the_run(tiny, monkeypatch):
    arguments = tiny(run__max_skipped_steps=3, schedule__tokens=[1280])
    run = Run(arguments)
    before = {name: tensor.clone() for name, tensor in run.session.model.state_dict().items()}
    poison(run, monkeypatch, lambda call: True)
    assert run.execute() == 1
    assert_same_weights(run.session.model.state_dict(), before)
    lines = lines_of(arguments)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[-1]["gradient_norm"] is None
    monkeypatch.undo()
    assert Run(arguments).execute() == 1


@pytest.mark.parametrize("limit", [1, 10])  # stopped at once, or at the end without a finite step to report
def test_a_branch_that_diverges_is_recorded_as_such(tiny, monkeypatch, caplog, limit):
    arguments = tiny(run__max_skipped_steps=limit, schedule__tokens=[1280])
    run = Run(arguments)
    poison(run, monkeypatch, lambda call: call > 13)  # the decay is steps 12 and 13
    assert run.execute() == 1
    (folder,) = folders(arguments)
    record = RunRecord.load(folder)
    assert (record.status, record.train_loss, record.eval_loss) == ("diverged", None, None)
    assert "This run diverged" in (folder / "README.md").read_text()
    monkeypatch.undo()
    assert Run(arguments).execute() == 1  # started again, it is no success either
    assert f"diverged before, and not trained again: {folder.parent.name}" in caplog.text


BALANCE, MUON_RATE = "model.balance", "optimizer.muon_learning_rate"
GROUP, WAY = "model.capacity_group_tokens", "run.experts_implementation"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({MUON_RATE: 0.1}, f"{MUON_RATE}: 0.1; it needs optimizer.name muon"),
        (MUON | {"optimizer.muon_adjust_lr": "original"}, f"{MUON_RATE}: missing; muon_adjust_lr"),
        ({"optimizer.name": "sgd"}, "optimizer.name: 'sgd'"),
        (
            {"model": TOP_K | {"balance": "bias"}},
            f"{BALANCE}: bias; transformers' qwen3_moe has no selection bias; deepseek",
        ),
        ({"model": SHARED | {"balance": "both"}}, f"{BALANCE}: 'both'; it must be 'loss' or 'bias'"),
        ({"model": SHARED | {"bias_update_rate": 0.1}}, f"model.bias_update_rate: 0.1; it needs {BALANCE} bias"),
        ({"model": BIAS | {"bias_update_rate": 0}}, "model.bias_update_rate: 0; it must be greater than 0"),
        ({"model": BIAS | {"bias_update_rate": "fast"}}, "model.bias_update_rate: 'fast'; it must be a valid number"),
        # Larger than a micro-batch, and no part of it.
        ({GROUP: 128}, "(64 or a divisor of it), make run.micro_batch_sequences a multiple of 4, or train dropless"),
        ({GROUP: 48}, "(64 or a divisor of it), make run.micro_batch_sequences a multiple of 3, or train dropless"),
        ({WAY: "fastest"}, f"{WAY}: 'fastest'; it must be 'auto', 'capacity', 'grouped_mm', 'batched_mm' or"),
        ({WAY: "capacity", "model": TOP_K}, f"{WAY}: capacity; for qwen3_moe it must be auto or grouped_mm or"),
        ({WAY: "eager", "model": DENSE}, f"{WAY}: eager; for llama it must be auto"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tiny, changes, problem):
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        tiny(**changes)


def test_the_same_folder_with_another_configuration_is_refused(finished, tiny):
    with pytest.raises(ConfigurationError, match=r"model.experts: 8, but .*config.yaml has 4"):
        check_inputs(tiny(model__experts=8))
    check_inputs(tiny(run__log_steps=7, run__progress=True, run__push_to_hub="elsewhere", run__private=True))


@pytest.mark.parametrize(("text", "problem"), [("a: [", "cannot be read"), ("model: 5", "no section run, model")])
def test_a_folder_with_another_file_of_that_name_is_refused(tiny, text, problem):
    folder = Path(tiny().run.output_dir)
    folder.mkdir()
    (folder / "config.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=f"run.output_dir: .*config.yaml.*{problem}"):
        check_inputs(tiny())


def test_other_tokens_under_the_same_configuration_are_refused(finished):
    arguments, records = finished
    path = Path(arguments.run.output_dir) / "data.json"
    path.write_text(path.read_text().replace(records[1280].dataset.fingerprint, "sha256:0"))
    with pytest.raises(ConfigurationError, match="was trained on other tokens"):
        Run(arguments).execute()


def test_data_that_lie_elsewhere_now_are_known_by_their_content(finished, tiny, tmp_path, corpus, tokenizer_folder):
    """Another mount, under other names; with another text in it the run is refused."""
    _, records = finished
    places = {
        "data__dataset": str(shutil.copytree(corpus, tmp_path / "mount/text")),
        "data__tokenizer": str(shutil.copytree(tokenizer_folder, tmp_path / "mount/tok")),
    }
    longer = finish(tiny(schedule__tokens=[1280, 2560, 3200], **places))
    assert longer[3200].dataset == records[1280].dataset
    assert {record.tokenizer.fingerprint for record in longer.values()} == {records[1280].tokenizer.fingerprint}
    other = tmp_path / "mount/text/train-00000-of-00001.parquet"
    other.write_bytes((corpus / "validation-00000-of-00001.parquet").read_bytes())
    check_inputs(tiny(**places))
    with pytest.raises(ConfigurationError, match="was trained on other tokens"):
        Run(tiny(**places)).execute()


def test_a_run_of_an_earlier_version_goes_on_holding_out_by_id(tiny, tokenizer):
    arguments = tiny(data__validation_split=None, data__held_out_per_mille=50)
    assert resolve_arguments(arguments).data.held_out_by == "text"
    cache = HeldOutText(arguments.replaced(data={"held_out_by": "id"}), tokenizer).tokens.cache
    assert "held_out_by" not in cache.recipe["source"]
    values = resolve_arguments(arguments).to_dict()
    del values["data"]["held_out_by"]
    folder = Path(arguments.run.output_dir)
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    check_inputs(arguments)
    assert resolve_arguments(arguments).data.held_out_by == "id"


def test_the_last_line_has_the_loss_and_the_folder(tiny, caplog):
    caplog.set_level(logging.INFO, "training")
    arguments = tiny()
    records = finish(arguments)
    *_, folder = folders(arguments)
    assert caplog.messages[-1] == f"held-out loss {records[2560].eval_loss:.4f} after 2,560 tokens: {folder}"
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.safetensors")} == {
        (folder / "config.json").stat().st_mode & 0o777
    }


def test_two_processes_do_not_train_in_one_folder(tiny):
    run = Run(tiny())
    with lock_run(run.folder), pytest.raises(ConfigurationError, match="another process is training in"):
        Run(tiny()).execute()
    assert run.execute() == 0
