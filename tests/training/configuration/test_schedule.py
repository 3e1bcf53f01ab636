"""Schedule and batch ramp: exact values of the authors' runs, and what must hold for any ramp."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scaling_law.size.recipe import BatchRamp, RampStage
from training import Schedule
from training.published import STEP_TOKENS


@pytest.fixture
def paper_ramp():
    return BatchRamp([RampStage(0, 128), RampStage(500_000_000, 256), RampStage(1_000_000_000, 512)], 512)


def test_paper_token_counts_are_the_steps_that_name_the_authors_files(paper_ramp):
    assert {paper_ramp.steps(tokens): tokens for tokens in STEP_TOKENS.values()} == STEP_TOKENS
    sequences = {0: 128, 7628: 128, 7629: 256, 11443: 256, 11444: 512, 10**6: 512}
    assert {step: paper_ramp.sequences(step) for step in sequences} == sequences


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
    assume(ramp.steps(tokens) >= 2)
    branch = schedule.branch(tokens)
    for step in {0, branch.decay_step - 1} & set(range(branch.decay_step)):
        assert schedule.learning_rate(step, branch) == schedule.learning_rate(step)
    rates = [schedule.learning_rate(step, branch) for step in range(branch.decay_step, min(branch.end_step, 10**4))]
    assert rates == sorted(rates, reverse=True)
