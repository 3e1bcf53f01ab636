"""What steps take, measured; and the memory model beside what torch's allocator counted."""

import itertools
import math

import pytest
import torch
from accelerate.state import AcceleratorState

from modeling_switch_moe import losses
from scaling_law import Architecture
from scaling_law.machine import training_memory
from scaling_law.machine.memory import chunk_rows
from scaling_law.size.recipe import BatchRamp, RampStage
from training.run.progress import Progress
from training.run.results import step_seconds
from training.run.timing import arguments_of_steps, peak_bytes, session_on_random_tokens, timed_step

CPU = torch.device("cpu")


def session(model: Architecture, micro: int, length: int, passes: int = 1, **run):
    """A session whose batches have `passes` micro-batches of random tokens."""
    run = {"precision": "fp32", "micro_batch_sequences": micro} | run
    a = arguments_of_steps(run, model.shape | {"capacity_group_tokens": micro * length}, length, passes)
    AcceleratorState._reset_state()  # which keeps the precision of the session before
    return session_on_random_tokens(a, model.vocab_size)


def test_the_peak_of_tensors_is_exact():
    def work():
        kept = torch.ones(1000, dtype=torch.float64)
        for _ in range(3):
            torch.ones(500, dtype=torch.float64)
        return kept

    kept, peak = peak_bytes(CPU, work)
    assert kept.sum() == 1000
    assert peak == 12_000


def test_a_step_that_made_no_update_is_not_timed():
    """It is skipped where loss or gradient is not finite, and shorter for that."""
    made = session(Architecture(64, 1, 1, 1, 100), 2, 16)
    with torch.no_grad():
        made.model.get_output_embeddings().weight[0, 0] = math.nan
    with pytest.raises(RuntimeError, match="a timed step diverged: loss nan"):
        timed_step(made)


def test_chunks_of_logits_are_those_of_the_model():
    for vocabulary, half, on_gpu in itertools.product((1000, 50_257), (False, True), (False, True)):
        dtype = torch.bfloat16 if half else torch.float32
        for tokens in (50, 3_000, 16_384, 1_000_000):
            rows = losses.rows_per_chunk(tokens, vocabulary, dtype, on_gpu)
            assert chunk_rows(tokens, vocabulary, half, not on_gpu) == (rows if on_gpu else min(rows, tokens))


DENSE, MOE = Architecture(128, 1, 2, 2, 1000), Architecture(128, 4, 2, 2, 1000)
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("model", "micro", "passes", "precision", "checkpointing", "experts"),
    [
        (DENSE, 8, 1, "fp32", False, None),
        (DENSE, 8, 2, "bf16", False, None),
        (MOE, 8, 2, "fp32", False, None),
        pytest.param(MOE, 8, 1, "bf16", False, None, marks=slow),
        pytest.param(Architecture(128, 4, 4, 2, 1000), 8, 2, "bf16", True, None, marks=slow),
        pytest.param(Architecture(128, 1, 4, 2, 500), 32, 2, "bf16", True, None, marks=slow),
        pytest.param(Architecture(128, 1, 4, 2, 500), 32, 1, "fp32", False, None, marks=slow),
        pytest.param(Architecture(128, 16, 2, 2, 500), 4, 1, "fp32", False, None, marks=slow),
        # With buffers, as on a GPU; the vocabulary is so small that there, too, all logits are one chunk.
        pytest.param(Architecture(128, 4, 2, 2, 256), 8, 2, "bf16", False, "capacity", marks=slow),
        pytest.param(Architecture(128, 4, 2, 2, 256), 8, 1, "fp32", False, "capacity", marks=slow),
    ],
)
def test_predicted_memory_is_within_ten_percent(model, micro, passes, precision, checkpointing, experts):
    length = 128

    def work():
        made = session(model, micro, length, passes, precision=precision, gradient_checkpointing=checkpointing)
        if experts:
            made.model.set_experts_implementation(experts)
        for _ in range(2):  # the moments are made in the first
            timed_step(made)
        return made

    _, measured = peak_bytes(CPU, work)
    batch = {"passes": passes, "precision": precision, "gradient_checkpointing": checkpointing}
    predicted = training_memory(model, micro, length, **batch, on_cpu=experts is None)
    assert predicted.total == pytest.approx(measured, rel=0.1)


def test_the_step_time_of_a_run_is_that_of_its_last_batch_size():
    ramp = BatchRamp([RampStage(0, 2), RampStage(64, 4)], 8)  # 4 steps of 2 sequences, then of 4
    progress = Progress(step=7)
    for second, step in enumerate((1.0, 1.0, 1.0, 9.0, 2.0, 4.0, 3.0), start=1):
        progress.add_time(progress.wall_seconds + step)
        assert len(progress.recent_seconds) == second
    assert progress.wall_seconds == 21
    assert step_seconds(progress, ramp) == 3
    assert step_seconds(Progress(step=4, recent_seconds=[1.0, 5.0]), ramp) == 3  # resumed: two are known
    assert step_seconds(Progress(), ramp) is None
