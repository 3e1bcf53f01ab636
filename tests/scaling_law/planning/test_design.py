"""Experimental design: what it promises is what a simulation finds, and a grid needs far more FLOPs for as much."""

from dataclasses import replace

import numpy as np
import pytest

from scaling_law import ExtrapolationError, JointLaw, Runs, fit
from scaling_law.planning import advantage, candidate_grid, log_optimal_parameters, predicted_loss
from scaling_law.planning.design import next_runs

NOISE = 0.002
HELD = {"e_start": 2.083, "e_max": 290.45}
BUDGET = 2e20
LOSS = predicted_loss(1e9, 2e10, 8)


def measured(candidates, chosen, seed):
    """Columns of the chosen runs with losses of the published law and noise."""
    n, d, e = (v[chosen] for v in (candidates.n_active, candidates.tokens, candidates.experts))
    noise = np.random.default_rng(seed).normal(0.0, NOISE, len(n))
    return n, d, e, JointLaw.published().loss(n, d, e) * np.exp(noise)


@pytest.fixture(scope="module")
def sweep():
    """A cheap first sweep: four widths, E = 1 and 4, 1e19 FLOPs in all."""
    return candidate_grid(3e18, experts=(1, 4), widths=(256, 384, 512, 640), tokens_per_parameter=(2, 40))


@pytest.fixture(scope="module")
def law(sweep):
    runs = Runs.from_columns(*measured(sweep, np.arange(len(sweep.tokens)), 0), trunk="run")
    return fit(runs, fixed=HELD).bootstrap(400).law


def found_deviation(answer, sweep, candidates, chosen, seeds=6):
    """Spread of the answer over repeated sweeps with the chosen runs added."""
    answers = []
    for seed in range(seeds):
        first = measured(sweep, np.arange(len(sweep.tokens)), seed)
        extra = measured(candidates, list(chosen), 1000 + seed)
        runs = Runs.from_columns(*(np.concatenate(pair) for pair in zip(first, extra, strict=True)))
        answers.append(answer(fit(runs, fixed=HELD, starts=[JointLaw.published()]).law))
    return float(np.sqrt(np.mean((np.array(answers) - answer(JointLaw.published())) ** 2)))


def test_design_beats_grids_of_several_times_its_cost(law, sweep):
    answer = log_optimal_parameters(1e21, 4)
    design = law.next_runs(answer, BUDGET, candidate_grid(BUDGET / 3, experts=(1, 2, 4, 8)), noise=NOISE)
    assert design.flops <= BUDGET
    assert design.deviation_after < 0.3 * design.deviation_before
    ours = found_deviation(answer, sweep, design.candidates, design.chosen)
    assert ours == pytest.approx(design.deviation_after, rel=0.6)
    for multiple in (1, 4):
        grid = candidate_grid(multiple * BUDGET / 6, (1, 4), (512, 768, 1024, 1280, 1536), (2, 40))
        order = np.random.default_rng(1).permutation(len(grid.flops))
        kept = order[np.cumsum(grid.flops[order]) <= multiple * BUDGET]
        assert grid.flops[kept].sum() > 0.5 * multiple * BUDGET
        assert found_deviation(answer, sweep, grid, kept) > 1.3 * ours


def test_more_budget_means_less_variance(law):
    candidates = candidate_grid(1e19)
    after = [law.next_runs(LOSS, flops, candidates, noise=NOISE).deviation_after for flops in (1e19, 1e20, 1e21)]
    assert after[0] > after[1] > after[2]
    few = law.next_runs(LOSS, 1e20, candidates, noise=NOISE, max_runs=3)
    assert len(few.chosen) == 3
    assert few.deviation_after > after[1]


def test_the_best_number_of_experts_as_the_answer(law):
    answer = advantage(1e21, 4, 1, memory=24e9)
    assert answer(JointLaw.published()) > 0  # four experts have the lower loss
    design = law.next_runs(answer, 1e20, noise=NOISE)
    assert design.deviation_after < design.deviation_before
    assert {a.experts for a, _ in design.runs()} & {2, 4, 8, 16, 32}
    assert all(a.training_flops(t) <= 1e20 / 4 for a, t in design.runs())


def test_no_run_is_shorter_than_its_warmup(law):
    """Warm-up first, and then a decay of the last fifth: a run of 160M tokens has no time for 130M of warm-up."""
    short, given = (law.next_runs(LOSS, 1e19, noise=NOISE, warmup_tokens=tokens) for tokens in (None, 130e6))
    assert short.warmup_tokens is None
    assert min(tokens for _, tokens in short.runs()) < 130e6 / 0.8 <= min(tokens for _, tokens in given.runs())
    known = law.replace(conditions=replace(law.conditions, warmup_tokens=130e6))
    assert next_runs(known, LOSS, 1e19, noise=NOISE).to_dict() == given.to_dict()
    assert next_runs(known, LOSS, 1e19, noise=NOISE, warmup_tokens=0).chosen == short.chosen


def test_each_answer_beyond_the_guard_is_refused(law):
    """What is forced is flagged: tests/scaling_law/test_every_question.py."""
    for far in (log_optimal_parameters(1e32), predicted_loss(1e15, 2e16, 8), advantage(1e32, 8, 1)):
        with pytest.raises(ExtrapolationError, match="beyond the guard"):
            law.next_runs(far, 1e20, noise=NOISE)
