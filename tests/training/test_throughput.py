"""`python -m training.throughput` on a grid of tiny models."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from hub.record.table import to_jsonl
from scaling_law import Architecture, JointLaw, Throughput
from scaling_law.size.family import Family
from tests.hub.samples import make_record
from training.run.grid import Grid
from training.run.timing import session_on_random_tokens, timed_step
from training.throughput import app

# Fields of config.json: the model type with a dense twin, small.
TOY = {
    "model_type": "qwen3_moe",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 512,
    "moe_intermediate_size": 64,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "vocab_size": 300,
    "tie_word_embeddings": False,
}
STEPS = ["--micro-batch", "2", "--sequence-length", "16", "--repeats", "2", "--precision", "fp32"]
TINY = ["--shape", "64x1", "--vocab-size", "100"]


def measure(path, *flags):
    return CliRunner().invoke(app, ["-o", str(path), *TINY, *STEPS, *flags])


@pytest.fixture
def toy(tmp_path):
    """A folder with a config.json."""
    (tmp_path / "config.json").write_text(json.dumps(TOY))
    return tmp_path


def test_a_grid_is_measured_into_a_file(tmp_path):
    path = tmp_path / "throughput.json"
    result = measure(path, "--experts", "1", "--experts", "2", "--experts", "4")
    assert result.exit_code == 0, result.output
    assert "shapes that the fit has not seen are off by" in result.output
    found = Throughput.from_file(path)
    assert "threads" in found.device
    assert (found.precision, found.devices, found.is_assumed) == ("fp32", 1, False)
    assert [m.architecture.experts for m in found.measurements] == [1, 1, 1, 2, 2, 2, 4, 4, 4]
    assert [m.tokens_per_step for m in found.measurements[:3]] == [32, 64, 16]
    memory = [m.memory_bytes for m in found.measurements[::3]]
    assert memory == sorted(memory)
    assert memory[0] > 16 * found.measurements[0].architecture.n_total * 0.9
    seconds = found.step_seconds(found.measurements[0].architecture, 32)
    assert seconds == pytest.approx(found.measurements[0].step_seconds, rel=2)
    assert found.step_seconds_draws(found.measurements[0].architecture, 32).shape == (200,)


def test_a_model_that_is_timed_does_not_diverge():
    """Its loss stays that of random tokens: step times of a diverged model are those of subnormal numbers."""
    sizes = {"vocab_size": 100, "precision": "fp32", "gradient_checkpointing": False, "compile": False}
    grid = Grid(("64x1",), (1, 8), 4, 32, **sizes)
    for model in grid.architectures():
        session = session_on_random_tokens(grid.arguments(model), 100)
        assert [timed_step(session)[0].loss for _ in range(20)] == pytest.approx([math.log(100)] * 20, rel=0.01)


def test_what_cannot_be_measured_is_refused(tmp_path):
    path = tmp_path / "throughput.json"
    result = measure(path, "--shape", "wide")
    assert result.exit_code == 2
    assert "--shape 'wide': give a width such as 512" in result.output
    result = measure(path, "--experts", "1")
    assert result.exit_code == 2
    assert "1 architectures would be measured; at least 3 are needed" in result.output
    assert not path.exists()


def test_finished_runs_stand_in_for_a_measurement(tmp_path):
    records = []
    for experts in (1, 2, 4):
        model = Architecture(64, experts)
        sizes = {"n_active": model.n_active, "n_total": model.n_total, "vocab_size": model.vocab_size} | model.shape
        how = {"hardware": "1 x a device", "step_seconds": 0.5 + experts, "micro_batch_sequences": 8}
        records.append(make_record(run_id=f"run-E{experts}", **sizes, **how))
    (tmp_path / "runs.jsonl").write_bytes(to_jsonl(records))
    path = tmp_path / "throughput.json"
    asked = ["-o", str(path), "--runs", str(tmp_path / "runs.jsonl")]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    found = Throughput.from_file(path, device="a device")
    assert [m.step_seconds for m in found.measurements] == [1.5, 2.5, 4.5]
    result = CliRunner().invoke(app, [*asked, "--where", "E > 1"])
    assert result.exit_code == 2
    assert "2 architectures were measured; at least 3 are needed" in result.output


def test_the_grid_of_a_family_is_of_its_widths_and_experts(monkeypatch):
    """On a CPU widths of 128 to 384, and each model as its class builds it."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    family = Family.read(TOY)
    names = ("shapes", "experts", "micro_batch_sequences", "sequence_length", "vocab_size", "compile")
    grid = Grid.by_device(family=family, **dict.fromkeys(names), precision="fp32", gradient_checkpointing=False)
    models = grid.architectures()
    shapes = {(a.d_model, a.blocks, a.experts) for a in models}
    assert shapes == {(128 * k, 2 * k, e) for k in (1, 2, 3) for e in (1, 8, 16, 32)}
    assert (grid.vocab_size, {a.vocab_size for a in models}) == (300, {300})
    for model in models[:2]:
        section = grid.arguments(model).model
        assert section.type == ("qwen3_moe" if model.experts > 1 else "qwen3")
        assert section.model(300).architecture == model


def test_widths_and_experts_that_a_family_lacks_are_refused(toy):
    for flags, message in (
        (("--shape", "200"), "d_model=200 is not a width of"),
        (("--shape", "128x2"), "--shape '128x2': give a width alone"),
        (("--shape", "128", "--experts", "2"), "must be a whole number above the 2 that a token of"),
    ):
        result = CliRunner().invoke(app, ["--like", str(toy), *STEPS, *flags])
        assert result.exit_code == 2
        assert message in result.output.replace("\n", " ")


@pytest.mark.slow
def test_questions_of_a_family_read_its_step_times(toy):
    path = toy / "throughput.json"
    grid = ("--shape", "128", "--shape", "256", "--experts", "1", "--experts", "16")
    result = CliRunner().invoke(app, ["-o", str(path), "--like", str(toy), *grid, *STEPS])
    assert result.exit_code == 0, result.output
    throughput = Throughput.from_file(path)
    family = Family.read(toy)
    timed = {m.architecture for m in throughput.measurements}
    expansions = family.expansion([1, 16]).tolist()
    assert timed == {family.architecture(width, e) for width in (128, 256) for e in expansions}

    law = JointLaw.published()
    cluster = {"gpus": 1, "throughput": path, "batch": 64, "sequence_length": 16, "like": toy, "force": True}
    for row in law.optimal(hours=100, experts=[1, 8, 16], **cluster):
        steps = row.tokens / 64
        seconds = steps * throughput.step_seconds(row.architecture, 64, sequence_length=16)
        assert seconds == pytest.approx(100 * 3600, rel=1e-3)
    answer = law.speedup(16, flops=1e17, match="hours", **cluster)
    assert np.isfinite(answer.rows[0].time)
    assert not any("assumed" in warning for warning in answer.warnings)
