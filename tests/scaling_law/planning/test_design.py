"""Experimental design: what it promises is what a simulation finds, and a grid needs far more FLOPs for as much."""

from dataclasses import replace

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.base.errors import InputError
from scaling_law import ExtrapolationError, JointLaw, Runs, fit, load_runs
from scaling_law.law.shelf import choose_law
from scaling_law.planning import advantage, candidate_grid, log_optimal_parameters, predicted_loss
from scaling_law.planning.design import next_runs, read_candidates
from scaling_law.size.family import Family
from tests.conftest import examples

NOISE = 0.002
HELD = {"e_start": 2.083, "e_max": 290.45}
BUDGET = 2e20
LOSS = predicted_loss(1e9, 2e10, 8)
DENSE = choose_law("besiroglu")


def measured(candidates, chosen, seed):
    """Columns of the chosen runs with losses of the published law and noise."""
    n, d, e = (candidates[name][chosen] for name in ("n_active", "tokens", "experts"))
    noise = np.random.default_rng(seed).normal(0.0, NOISE, len(n))
    return n, d, e, JointLaw.published().loss(n, d, e) * np.exp(noise)


@pytest.fixture(scope="module")
def sweep():
    """A cheap first sweep: four widths, E = 1 and 4, 1e19 FLOPs in all."""
    return candidate_grid(3e18, experts=(1, 4), widths=(256, 384, 512, 640), tokens_per_parameter=(2, 40))


@pytest.fixture(scope="module")
def law(sweep):
    runs = Runs.from_columns(*measured(sweep, np.arange(len(sweep["tokens"])), 0), trunk="run")
    return fit(runs, fixed=HELD).bootstrap(400).law


def found_deviation(answer, sweep, candidates, chosen, seeds=6):
    """Spread of the answer over repeated sweeps with the chosen runs added."""
    answers = []
    for seed in range(seeds):
        first = measured(sweep, np.arange(len(sweep["tokens"])), seed)
        extra = measured(candidates, list(chosen), 1000 + seed)
        runs = Runs.from_columns(*(np.concatenate(pair) for pair in zip(first, extra, strict=True)))
        answers.append(answer(fit(runs, fixed=HELD, starts=[JointLaw.published()]).law))
    return float(np.sqrt(np.mean((np.array(answers) - answer(JointLaw.published())) ** 2)))


def test_design_beats_grids_of_several_times_its_cost(law, sweep):
    answer = log_optimal_parameters(1e21, 4)
    # Without ranges no candidate is left out: this is about the choice alone.
    unbounded = law.replace(conditions=None)
    design = unbounded.next_runs(answer, BUDGET, candidate_grid(BUDGET / 3, experts=(1, 2, 4, 8)), noise=NOISE)
    assert design.flops <= BUDGET
    assert design.deviation_after < 0.3 * design.deviation_before
    ours = found_deviation(answer, sweep, design.columns, range(len(design.chosen)))
    assert ours == pytest.approx(design.deviation_after, rel=0.6)
    for multiple in (1, 4):
        grid = candidate_grid(multiple * BUDGET / 6, (1, 4), (512, 768, 1024, 1280, 1536), (2, 40))
        order = np.random.default_rng(1).permutation(len(grid["flops"]))
        kept = order[np.cumsum(grid["flops"][order]) <= multiple * BUDGET]
        assert grid["flops"][kept].sum() > 0.5 * multiple * BUDGET
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
    assert {row.architecture.experts for row in design.rows} & {2, 4, 8, 16, 32}
    assert all(row.architecture.training_flops(row.tokens) <= 1e20 / 4 for row in design.rows)


def test_the_grid_of_a_family():
    """N is counted with the vocabulary of laws, FLOPs with the family's own."""
    family = Family.read("qwen3-30b-a3b")
    grid = candidate_grid(1e19, like=family)
    assert {a.experts for a in grid["architecture"]} == {1, *family.list_experts([1, 2, 4, 8, 16, 32])}
    assert {256, 512, 1024} <= {a.d_model for a in grid["architecture"]} <= {*family.rungs(3072)}
    rows = read_candidates(grid)
    for i in range(0, len(grid["tokens"]), 7):
        a = grid["architecture"][i]
        assert a == family.architecture(a.d_model, rows["experts"][i])
        assert rows["routed_experts"][i] == a.experts
        for size in ("n_active", "n_total"):
            difference = 2 * a.d_model * (50257 - 151_936)
            assert rows[size][i] == getattr(a, size) + difference
        assert rows["training_flops"][i] == 6 * a.n_active * grid["tokens"][i] <= 1e19
    small = candidate_grid(1e19, [16], [256], vocab_size=1000, like=family)
    assert {*small["vocab_size"]} == {151_936}
    assert small["n_active"][0] == small["architecture"][0].n_active_non_embedding + 2 * 256 * 1000
    with pytest.raises(InputError, match="d_model=1000 is not a width of qwen3-30b-a3b; the nearest is 1024"):
        candidate_grid(1e19, widths=[1000], like=family)


def test_what_experts_of_a_family_are_worth_as_the_answer(law):
    few = law.replace(draws=law.draws[:60])
    answer = advantage(1e20, 64, 1, like="qwen3-30b-a3b")
    table = JointLaw.published().optimal(1e20, [1, 64], like="qwen3-30b-a3b", integral=False)
    assert answer(JointLaw.published()) == pytest.approx(table.rows[0].loss - table.rows[1].loss, abs=1e-6)
    candidates = candidate_grid(BUDGET / 4, [1, 16, 64], like="qwen3-30b-a3b")
    design = few.next_runs(answer, BUDGET, candidates, noise=NOISE)
    assert design.deviation_after < design.deviation_before
    assert {row["routed_experts"] for row in design.rows} <= {1, 16, 64}
    assert sum(row["training_flops"] for row in design.rows) == pytest.approx(design.flops)
    assert design.flops <= BUDGET
    with pytest.raises(InputError, match="experts=8 must be a whole number above the 8"):
        advantage(1e20, 8, 1, like="qwen3-30b-a3b")(law)


def test_no_run_is_shorter_than_its_warmup(law):
    """Warm-up first, and then a decay of the last fifth: a run of 160M tokens has no time for 130M of warm-up."""
    short, given = (law.next_runs(LOSS, 1e19, noise=NOISE, warmup_tokens=tokens) for tokens in (None, 130e6))
    assert short.warmup_tokens is None
    assert min(short.tokens) < 130e6 / 0.8 <= min(given.tokens)
    known = law.replace(conditions=replace(law.conditions, warmup_tokens=130e6))
    assert next_runs(known, LOSS, 1e19, noise=NOISE).to_dict() == given.to_dict()
    assert next_runs(known, LOSS, 1e19, noise=NOISE, warmup_tokens=0).chosen == short.chosen


GRID = candidate_grid(1e20 / 4, experts=(1, 8, 32))


@given(
    least_n=st.floats(1e7, 3e9),
    least_ratio=st.floats(0.1, 200.0),
    warmup=st.none() | st.floats(0.0, 5e9),
)
@examples(25, 250)
def test_no_run_is_far_below_the_fitted_ones(law, least_n, least_ratio, warmup):
    """Whatever the runs were, each proposed run outlasts their warm-up and has a third of their N and D/N."""
    ranges = {
        "N_act": (least_n, 1e10),
        "D/N": (least_ratio, 1e3),
    }
    conditions = replace(law.conditions, ranges=(), variables=ranges, warmup_tokens=warmup)
    few = law.replace(draws=law.draws[:40], conditions=conditions)

    def is_allowed(n_active, tokens):
        is_past = 0.8 * tokens >= (warmup or 0.0)
        is_large = n_active >= least_n / 3 * (1 - 1e-9)
        is_long = tokens / n_active >= least_ratio / 3 * (1 - 1e-9)
        return is_past & is_large & is_long

    if is_allowed(GRID["n_active"], GRID["tokens"]).any():
        design = few.next_runs(LOSS, 1e20, GRID, noise=NOISE, max_runs=4, force=True)
        assert design.rows
        assert is_allowed(design.n_active, design.tokens).all()
    else:
        message = "a third of the least of the fitted runs|the fitted runs warm up over"
        with pytest.raises(InputError, match=message):
            few.next_runs(LOSS, 1e20, GRID, noise=NOISE, force=True)


# N and D of dense runs, the smallest N and D/N first.
DENSE_RUNS = (
    (3e8, 6e9),
    (3e8, 1.2e10),
    (3e8, 2.4e10),
    (6e8, 1.2e10),
    (6e8, 2.4e10),
    (1.2e9, 2.4e10),
)


@pytest.mark.parametrize("count", [1, len(DENSE_RUNS)])
@pytest.mark.parametrize("warmup", [None, 2e9])
def test_a_table_of_dense_runs(count, warmup):
    """One run or several, with a column of warm-up or without: nothing much smaller than them is proposed."""
    table = []
    for n_active, tokens in DENSE_RUNS[:count]:
        loss = DENSE.loss(n_active, tokens)
        row = {"n_active": n_active, "tokens": tokens, "experts": 1, "loss": loss}
        if warmup is not None:
            row["warmup_tokens"] = warmup
        table.append(row)
    result = fit(load_runs(table, loss="loss"), "chinchilla", prior="public")
    grid = candidate_grid(1e21 / 4, experts=[1])
    design = result.bootstrap(100).law.next_runs(predicted_loss(7e9, 1.4e11), 1e21, grid, max_runs=6)
    assert design.warmup_tokens == warmup
    assert min(design.n_active) >= 1e8
    assert min(design.tokens / design.n_active) >= 20 / 3
    assert min(design.tokens) >= (warmup or 0.0) / 0.8
    assert ("warm-up unknown" in str(design)) == (warmup is None)


def test_no_candidate_is_near_the_fitted_runs(law):
    """A run that is too small and one that is too short; of a larger one and the short one, the larger is proposed."""
    too_small = {"n_active": [9e6, 3e7], "tokens": [1e9, 1e7]}
    message = r"candidates: none .* N_act ≥ 9.71M and D/N ≥ 0.761, a third of the least"
    with pytest.raises(InputError, match=message):
        law.next_runs(LOSS, 1e20, too_small, noise=NOISE)
    large_enough = {"n_active": [1e7, 3e7], "tokens": [1e9, 1e7]}
    design = law.next_runs(LOSS, 1e20, large_enough, noise=NOISE)
    assert design.columns["row"].tolist() == [0]


def test_candidates_of_a_table_that_are_left_out_are_counted(law):
    """One that ends before its warm-up, two that are too small; those of a grid are not counted."""
    table = {"n_active": [3e7, 3e6, 3e6, 4e8], "tokens": [1e8, 1e9, 2e9, 1.6e10]}
    design = law.next_runs(LOSS, 2e20, table, noise=NOISE, warmup_tokens=1e8)
    expected = (
        "3 of 4 candidates left out: 1 too short for warm-up and decay; "
        "2 without N_act ≥ 9.71M and D/N ≥ 0.761, a third of the least of the fitted runs"
    )
    assert expected in design.summary().notes
    assert design.columns["row"].tolist() == [3]
    for without in (law.next_runs(LOSS, 2e20, noise=NOISE, warmup_tokens=1e9), law.next_runs(LOSS, 2e20, TABLE)):
        assert "left out" not in str(without)


def test_under_a_prior_the_promise_is_what_the_posterior_says():
    """The deviation before is that of the posterior's draws, and the one after that of the next posterior."""

    def posterior_of(n_active, tokens):
        noise = np.random.default_rng(1).normal(0, 0.004, len(n_active))
        losses = DENSE.loss(n_active, tokens) * np.exp(noise)
        runs = Runs.from_columns(n_active, tokens, np.ones(len(noise)), losses, trunk="run")
        return fit(runs, "chinchilla", prior="public").bootstrap(1000).law

    def deviation_of(law):
        return law.replace(conditions=None).loss_draws(7e9, 1.4e11).std()

    n_active = np.repeat([1e8, 2e8, 4e8], 3)
    tokens = n_active * np.tile([5, 20, 60], 3)
    law = posterior_of(n_active, tokens)
    sizes = np.repeat([2e8, 4e8, 8e8, 1.6e9], 3)
    candidates = {"n_active": sizes, "tokens": sizes * np.tile([5, 20, 60], 4)}
    design = law.next_runs(predicted_loss(7e9, 1.4e11), 5e20, candidates)
    assert design.deviation_before == pytest.approx(deviation_of(law), rel=0.05)
    assert design.deviation_after < 0.7 * design.deviation_before
    refit = posterior_of(np.append(n_active, design.n_active), np.append(tokens, design.tokens))
    assert design.deviation_after == pytest.approx(deviation_of(refit), rel=0.3)


def test_each_answer_beyond_the_guard_is_refused(law):
    """What is forced is flagged: tests/scaling_law/test_every_question.py."""
    for far in (log_optimal_parameters(1e32), predicted_loss(1e15, 2e16, 8), advantage(1e32, 8, 1)):
        with pytest.raises(ExtrapolationError, match="beyond the limit"):
            law.next_runs(far, 1e20, noise=NOISE)


TABLE = {
    "n_active": [1e8, 2e8, 4e8, 8e8, 1.6e9],
    "tokens": [4e9, 4e9, 1.6e10, 1.6e10, 3.2e10],
    "experts": [1, 4, 4, 8, 8],
}


def test_a_table_of_candidates_in_each_shape(law):
    """Columns, rows, a DataFrame and Runs choose the same; rows name where each run stands in the table."""
    frame = pandas.DataFrame(TABLE)
    runs = Runs.from_columns(**TABLE, loss=np.full(5, 3.0), trunk="run")
    designs = [
        law.next_runs(LOSS, 2e20, table, noise=NOISE) for table in (TABLE, frame, frame.to_dict("records"), runs)
    ]
    assert len({design.chosen for design in designs}) == 1
    for row in designs[0].rows:
        assert row["n_active"] == TABLE["n_active"][row["row"]]
        assert row["training_flops"] == 6 * row["n_active"] * row["tokens"]
    assert designs[3].rows[0]["run_id"] == f"row-{designs[3].rows[0]['row']}"
    # The place is that of the whole table, of which the first two runs end before their warm-up.
    longer = law.next_runs(LOSS, 2e20, TABLE, noise=NOISE, warmup_tokens=4e9)
    assert {row["row"] for row in longer.rows} <= {2, 3, 4}
    assert "architecture" not in designs[0].rows[0]


def test_costs_of_a_table_are_what_it_says(law):
    costs = np.array([1.0, 1.0, 9e20, 1.0, 1.0])
    design = law.next_runs(LOSS, 100.0, {**TABLE, "flops": costs}, noise=NOISE)
    assert 2 not in design.chosen
    assert design.flops == len(design.chosen)


def test_the_chosen_pair_is_the_best_of_all_pairs(law):
    """Brute force over the variances of two answers together, with a noise for each run."""
    answer = predicted_loss([1e9, 4e9], [2e10, 8e10], [8, 4])
    noises = np.array([0.02, 0.002, 0.004, 0.001, 0.008])
    design = law.next_runs(answer, 1e30, TABLE, noise=noises, max_runs=2)
    # Designs count the coefficients alone.
    refits = law.replace(conditions=None)
    losses = refits.loss_draws(**{name: np.array(values, float) for name, values in TABLE.items()})
    answers = refits.loss_draws([1e9, 4e9], [2e10, 8e10], [8, 4])
    centred = answers - np.median(answers, axis=0)
    is_usable = (np.abs(centred) <= 5 * 1.4826 * np.median(np.abs(centred), axis=0)).all(axis=1)
    draws = np.column_stack([np.log(losses), answers])[is_usable]
    covariance = np.cov(draws.T, bias=True)

    def variance_after(pair):
        gain = covariance[np.ix_(pair, pair)] + np.diag(noises[list(pair)] ** 2)
        after = covariance[5:, 5:] - covariance[5:, pair] @ np.linalg.solve(gain, covariance[pair, 5:])
        return np.trace(after)

    pairs = [[i, j] for i in range(5) for j in range(i)]
    best = min(variance_after(pair) for pair in pairs)
    assert variance_after(sorted(design.chosen)) == pytest.approx(best)
    assert design.deviation_after == pytest.approx(np.sqrt(best / 2))
    assert design.deviation_before == pytest.approx(np.sqrt(np.trace(covariance[5:, 5:]) / 2))


def test_a_table_that_cannot_be_chosen_from(law):
    for table, message in (
        ({"n_active": [1e8]}, "candidates: tokens is needed"),
        ([], "candidates: n_active is needed"),
        ({"n_active": [1e8], "tokens": [-1.0]}, "candidates: tokens=-1 must be positive"),
    ):
        with pytest.raises(InputError, match=message):
            read_candidates(table)
    with pytest.raises(InputError, match="one for each of the 5 candidates, not 2"):
        law.next_runs(LOSS, 1e20, TABLE, noise=[0.1, 0.2])
