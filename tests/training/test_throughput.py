"""`python -m training.throughput` on a grid of tiny models."""

import math

import pytest
from typer.testing import CliRunner

from hub import write_records
from scaling_law import Architecture, Throughput
from tests.hub.samples import make_record
from training.run.grid import Grid
from training.run.timing import session_on_random_tokens, timed_step
from training.throughput import app

TINY = ["--shape", "64x1", "--micro-batch", "2", "--sequence-length", "16", "--vocab-size", "100", "--repeats", "2"]


def measure(path, *flags):
    return CliRunner().invoke(app, ["-o", str(path), *TINY, "--precision", "fp32", *flags])


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
    write_records(records, tmp_path)
    path = tmp_path / "throughput.json"
    asked = ["-o", str(path), "--runs", str(tmp_path / "runs.jsonl")]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    found = Throughput.from_file(path, device="a device")
    assert [m.step_seconds for m in found.measurements] == [1.5, 2.5, 4.5]
    result = CliRunner().invoke(app, [*asked, "--where", "E > 1"])
    assert result.exit_code == 2
    assert "2 architectures were measured; at least 3 are needed" in result.output
