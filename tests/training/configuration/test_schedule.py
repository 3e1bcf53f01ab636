"""Schedule and batch ramp: exact values of the authors' runs, and what must hold for any ramp."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_law.size.recipe import BatchRamp, RampStage
from training.configuration.schedule import Schedule


@pytest.fixture
def paper_ramp():
    return BatchRamp([RampStage(0, 128), RampStage(500_000_000, 256), RampStage(1_000_000_000, 512)], 512)


def test_paper_batches_change_at_the_steps_of_the_authors_runs(paper_ramp):
    sequences = {0: 128, 7628: 128, 7629: 256, 11443: 256, 11444: 512, 10**6: 512}
    assert {step: paper_ramp.sequences(step) for step in sequences} == sequences


def test_paper_token_counts_are_the_steps_of_the_authors_files(paper_ramp):
    """The last steps of the authors' runs, which name their checkpoint files."""
    billions = [0.5, 1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128]
    steps = [7629, 11443, 15258, 22888, 38146, 68664, 129699, 190734, 251769, 312805, 373840, 434875, 495910]
    assert [paper_ramp.steps(count * 1e9) for count in billions] == steps


def test_paper_warmup_ends_after_1983_steps(paper_ramp):
    schedule = Schedule(paper_ramp, warmup_tokens=130_000_000, decay_fraction=0.2, peak=1.0)
    rates = [schedule.learning_rate(step) for step in (0, 1, 1983, 1984, 5000)]
    assert rates[0] == 0
    assert rates[1] == 65536 / 130e6
    assert rates[2] < 1
    assert rates[3:] == [1, 1]


def test_decay_is_linear_in_tokens_and_ends_at_zero(paper_ramp):
    schedule = Schedule(paper_ramp, 130_000_000, 0.2, peak=2.0)
    branch = schedule.branch(2_000_000_000)
    assert branch.end_step == 15258
    assert branch.branch_point_tokens <= 0.8 * branch.tokens < branch.branch_point_tokens + 512 * 512
    assert schedule.learning_rate(branch.decay_step, branch) == 2.0
    middle = (branch.decay_step + branch.end_step) // 2
    expected = 2.0 * (branch.end_step - middle) / (branch.end_step - branch.decay_step)  # the batch is constant here
    assert schedule.learning_rate(middle, branch) == pytest.approx(expected, rel=1e-12)
    assert schedule.learning_rate(branch.end_step - 1, branch) > 0
    assert schedule.learning_rate(branch.end_step, branch) == 0


ramps = st.builds(
    lambda lengths, batches, length: BatchRamp(
        [RampStage(sum(lengths[:i]), batch) for i, batch in enumerate(batches[: len(lengths)])], length
    ),
    st.lists(st.integers(1, 100_000), min_size=1, max_size=4),
    st.lists(st.integers(1, 64), min_size=4, max_size=4),
    st.sampled_from([16, 128, 512]),
)


@given(ramps, st.integers(0, 500))
def test_positions_add_up_the_batches(ramp, step):
    assert ramp.position(step) == sum(ramp.sequences(earlier) for earlier in range(step))


@given(ramps, st.integers(0, 3_000_000))
def test_steps_is_the_largest_number_that_fits(ramp, tokens):
    steps = ramp.steps(tokens)
    assert ramp.tokens(steps) <= tokens < ramp.tokens(steps + 1)


@given(ramps, st.integers(1, 10**6))
def test_the_trunk_is_the_same_run_before_every_branch_point(ramp, tokens):
    schedule = Schedule(ramp, 0, 0.2, 1.0)
    try:
        branch = schedule.branch(tokens)
    except ValueError:
        return  # fewer than two steps
    for step in {0, branch.decay_step - 1} & set(range(branch.decay_step)):
        assert schedule.learning_rate(step, branch) == schedule.learning_rate(step)
    rates = [schedule.learning_rate(step, branch) for step in range(branch.decay_step, min(branch.end_step, 10**4))]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "no stage"),
        ([RampStage(5, 8)], "must start at 0"),
        ([RampStage(0, 8), RampStage(0, 16)], "after the one before"),
        ([RampStage(0, 0)], "at least 1"),
    ],
)
def test_a_ramp_that_makes_no_sense_is_refused(stages, message):
    with pytest.raises(ValueError, match=message):
        BatchRamp(stages, 128)


def test_a_run_too_short_for_its_warmup_is_refused():
    schedule = Schedule(BatchRamp([RampStage(0, 4)], 128), warmup_tokens=10_000, decay_fraction=0.2, peak=1.0)
    with pytest.raises(ValueError, match=r"schedule\.warmup_tokens: 10000; it must be at most 8192"):
        schedule.branch(10_240)
    with pytest.raises(ValueError, match="at least 2 steps"):
        schedule.branch(600)
