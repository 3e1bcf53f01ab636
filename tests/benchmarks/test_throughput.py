"""Step Law's iteration times, read from rows in their format."""

import pytest

from benchmarks.throughput import step_law_steps
from scaling_law.runs.rows import RunsError
from tests.scaling_law.runs.test_readers import DENSE, MOE, step_law_moe, write

TIME = MOE.split(",").index("average_iter_time")


def timed(shape, batch, rate, seconds):
    row = list(step_law_moe(*shape, rate, batch, 2.6 + rate))
    row[TIME] = seconds
    return row


def test_the_fastest_of_each_shape_and_batch_is_read(tmp_path):
    few, many = (1, 8, 3528, 3528), (1, 89, 352, 352)
    rows = [timed(few, *row) for row in ((64, 0.0003, 0.71), (64, 0.0006, 0.55), (32, 0.0003, 0.45))]
    rows += [timed(many, 64, *row) for row in ((0.0003, 0.43), (0.0006, ""))]
    steps = step_law_steps(write(tmp_path / "moe.csv", MOE, *rows))
    found = [(m.architecture.experts, m.tokens_per_step // 2048, m.step_seconds) for m in steps]
    assert found == [(8, 32, 0.45), (8, 64, 0.55), (89, 64, 0.43)]
    model = steps[-1].architecture
    assert model.n_active_non_embedding == 187_973_632  # as the authors count them
    assert (model.experts_equivalent, model.dense_blocks, model.vocab_size) == (45, 1, 65_536)
    assert {(m.sequence_length, m.micro_batch_tokens == m.tokens_per_step) for m in steps} == {(2048, True)}


def test_a_table_without_times_is_refused(tmp_path):
    row = (1024, 2048, 16, 8, 0.001, 64, 1000, 2.8, 2.7, "name", 131072000, 100_663_296, 1.3)
    with pytest.raises(RunsError, match="no column average_iter_time; Step Law's MoE table has the times"):
        step_law_steps(write(tmp_path / "dense.csv", DENSE, row))
