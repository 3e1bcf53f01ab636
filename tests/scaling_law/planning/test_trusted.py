"""The best model that can be trusted: by brute force over widths and tokens, and never worse with more of anything."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_law import Budget, ExtrapolationError, JointLaw, Limits, published
from scaling_law.figures.curves import best_experts, memory_curves
from scaling_law.size.architecture import active_parameters, inference_flops, total_parameters, training_flops
from tests.conftest import examples

LAW = JointLaw.published()
EXPERTS = [1, 2, 4, 8, 16, 32]
# Losses are minima that a search finds to about 1e-9 of them.
TOLERANCE = 1e-8


def trusted_loss(**question):
    """The best trusted loss, within bounds: that of a refusal has the three digits of its message."""
    try:
        loss = LAW.optimal(**question).trusted_loss
        digits = TOLERANCE
    except ExtrapolationError as error:
        message = re.search(r"that can be trusted is .* with a loss of ([\d.]+)", str(error))
        loss = float(message.group(1)) if message else None
        digits = 5.1e-4
    except ValueError:
        # Nothing fits the limits.
        loss = None
    return (np.inf, np.inf) if loss is None else (loss - digits, loss + digits)


def assert_no_worse(question, than):
    """Compare two questions, of which the first asks for more of a budget or a limit."""
    assert trusted_loss(**question)[0] <= trusted_loss(**than)[1]


def by_brute_force(flops, experts, *, memory=np.inf, kv_tokens=0.0, served=0.0, max_parameters=np.inf):
    """The least loss over all whole widths and 4,000 token counts that `check` trusts and the budget buys."""
    limits = Limits(kv_tokens=kv_tokens)
    widths = 64.0 * np.arange(1, 80)[:, None]
    n_active = active_parameters(widths)
    tokens = (flops - inference_flops(n_active, served)) / training_flops(n_active, 1.0)
    tokens = tokens * np.geomspace(1e-3, 1.0, 4000)
    n_total = total_parameters(widths, experts)
    fits = (tokens > 0) & (limits.memory_bytes(widths, experts) <= memory) & (n_total <= max_parameters)
    tokens = np.where(fits, tokens, 1.0)
    trusted = LAW.check(n_active, tokens, experts).trusted & fits
    losses = LAW.loss(*np.broadcast_arrays(n_active, tokens), experts)
    return float(np.min(np.where(trusted, losses, np.inf)))


@pytest.mark.parametrize(
    "question",
    [
        {"flops": 1e22, "memory": 400e9, "kv_tokens": 16384},
        {"flops": 1e22, "memory": 80e9, "kv_tokens": 16384},
        {"flops": 7e21},
        {"flops": 3e22},
        {"flops": 1e24},
        {"flops": 5e21, "memory": 2e9},
        {"flops": 3e19, "inference_tokens": 2e10},
        {"flops": 1e22, "max_parameters": 200e9},
        {"flops": 2e18},
    ],
)
def test_the_best_trusted_loss_is_that_of_brute_force(question):
    limits = {name: value for name, value in question.items() if name not in ("flops", "inference_tokens")}
    served = question.get("inference_tokens", 0.0)
    table = LAW.optimal(**question, integral=True)
    for experts in EXPERTS:
        expected = by_brute_force(question["flops"], experts, served=served, **limits)
        # The grid of tokens is coarser than the answer, which cannot be worse.
        answer = table.trusted_losses.get(experts, np.inf)
        assert answer <= expected + 1e-12
        assert answer == pytest.approx(expected, abs=5e-4)


def test_more_memory_is_never_worse_at_1e22():
    """E = 32 was the answer with 400 GB, and E = 8 of higher loss with more."""
    tables = [
        LAW.optimal(1e22, memory=memory, kv_tokens=16384, integral=True) for memory in ("400GB", "470GB", "1.2TB")
    ]
    tables.append(LAW.optimal(1e22, kv_tokens=16384, integral=True))
    losses = [table.best.loss for table in tables]
    assert [table.best.experts for table in tables] == [32] * 4
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == pytest.approx(2.0715, abs=1e-4)
    assert losses[-1] == pytest.approx(2.0710, abs=1e-4)
    assert [row.limited_by for row in tables[-1]] == [*["compute"] * 4, "evidence", "evidence"]
    assert tables[-1].verdict.endswith("; E = 32 is 0.001 lower outside the trusted region")


def test_the_answer_is_trusted_as_long_as_it_spends_half_of_the_budget():
    within = LAW.optimal(3e22)
    assert within.trusted
    assert within.edge is None
    assert 0.5 < within.best.training_flops / 3e22 < 0.6
    beyond = LAW.optimal(1e24)
    assert not beyond.trusted
    assert beyond.best.training_flops == pytest.approx(1e24)
    assert beyond.edge.trusted
    assert beyond.trusted_loss == beyond.edge.loss == pytest.approx(within.best.loss)
    assert "trusted up to 9.64B active on 275B tokens (E = 32): loss 2.042" in str(beyond)
    small = LAW.optimal(5e21, memory="2GB")
    assert not small.trusted
    assert small.best.training_flops == pytest.approx(5e21)
    assert small.edge.tokens_per_parameter == pytest.approx(218, rel=2e-3)
    forced = LAW.optimal(3e22, force=True)
    assert not forced.trusted
    assert forced.best.loss < within.best.loss


def test_a_law_without_ranges_answers_as_before():
    law = LAW.replace(conditions=None)
    table = law.optimal(1e22)
    assert (table.trusted, table.trusted_loss, table.edge) == (False, None, None)
    assert table.best.loss == LAW.optimal(1e22, force=True).best.loss
    assert law.reach(2.2).best["flops"] == LAW.reach(2.2, force=True).best["flops"]


QUESTIONS = {
    "flops": st.floats(17, 27).map(lambda x: 10**x),
    "memory": st.none() | st.floats(8, 14).map(lambda x: 10**x),
    "max_parameters": st.none() | st.floats(7, 13).map(lambda x: 10**x),
    "inference_tokens": st.just(0.0) | st.floats(8, 13).map(lambda x: 10**x),
    "integral": st.booleans(),
}


def with_more(question, factor, name):
    """Ask with more of a budget or a limit, or with fewer tokens to serve."""
    value = question[name] / factor if name == "inference_tokens" else question[name] * factor
    return {**question, name: value}


@examples(8, 100)
@given(st.fixed_dictionaries(QUESTIONS), st.floats(0, 3).map(lambda x: 10**x))
def test_more_of_anything_is_never_worse(question, factor):
    for name in ("flops", "memory", "max_parameters", "inference_tokens"):
        if question[name] is not None:
            assert_no_worse(with_more(question, factor, name), question)
    assert_no_worse({**question, "memory": None, "max_parameters": None}, question)
    fewer = {**question, "experts": [1, 4, 16]}
    assert_no_worse({**question, "experts": [1, 2, 4, 16, 64]}, fewer)


@examples(2, 30)
@given(st.floats(0, 3.5).map(lambda x: 10**x), st.floats(0, 1).map(lambda x: 10**x), st.sampled_from([1, 8, 64]))
def test_more_hours_are_never_worse(hours, factor, gpus):
    question = {"gpu": "h100", "gpus": gpus, "integral": True}
    less = {**question, "hours": hours}
    assert_no_worse({**question, "hours": hours * factor}, less)
    assert_no_worse({**question, "money": hours * gpus * 2.0 * factor, "price": 2.0}, less)


@pytest.mark.slow
def test_ten_thousand_random_pairs():
    rng = np.random.default_rng(0)
    names = ("flops", "memory", "max_parameters", "inference_tokens")
    for _ in range(10_000):
        question = {
            "flops": 10 ** rng.uniform(17, 27),
            "memory": 10 ** rng.uniform(8, 14),
            "max_parameters": 10 ** rng.uniform(7, 13),
            "inference_tokens": 10 ** rng.uniform(8, 13),
            "integral": bool(rng.integers(2)),
        }
        # Half of the questions have no limit of a kind.
        for name in names[1:]:
            if rng.integers(2):
                question[name] = 0.0 if name == "inference_tokens" else None
        name = rng.choice([name for name in names if question[name]])
        assert_no_worse(with_more(question, 10 ** rng.uniform(0, 3), name), question)


@examples(8, 100)
@given(st.floats(2.043, 2.75), st.none() | st.floats(9.8, 13).map(lambda x: 10**x))
def test_the_cheapest_budget_of_a_loss_buys_it(loss, memory):
    """`optimal(reach(L))` gives L wherever `reach` is trusted."""
    try:
        reached = LAW.reach(loss, memory=memory)
    except ExtrapolationError:
        return
    if reached.best is None or not reached.trusted:
        return
    table = LAW.optimal(reached.best["flops"] * (1 + 1e-9), memory=memory)
    assert table.trusted
    assert table.best.loss == pytest.approx(loss, abs=2e-7)
    assert LAW.optimal(reached.best["flops"] * 0.999, memory=memory).trusted_loss > loss


def test_the_least_memory_of_a_loss_is_enough_for_it():
    for loss in (2.15, 2.2, 2.4):
        reached = LAW.reach(loss, flops=1e22)
        assert reached.trusted
        memory = reached.best["memory_bytes"]
        assert LAW.optimal(1e22, memory=memory * (1 + 1e-9)).trusted_loss == pytest.approx(loss, abs=1e-7)
        assert LAW.optimal(1e22, memory=memory * 0.999).trusted_loss > loss


def test_a_loss_below_the_lowest_trusted_one_has_an_untrusted_answer():
    assert LAW.reach(2.0424).trusted
    below = LAW.reach(2.042)
    assert not below.trusted
    assert below.best["flops"] == LAW.reach(2.042, force=True).best["flops"]


def test_a_speedup_limits_the_model_that_is_asked_about():
    answer = LAW.speedup(32, 1, flops=1e22)
    trusted = LAW.optimal(1e22, [32]).best
    assert (answer.n_active, answer.tokens) == pytest.approx((trusted.n_active, trusted.tokens), rel=1e-6)
    assert not any("not trusted" in warning for warning in answer.warnings if warning.startswith("E = 32"))
    assert [row.trusted for row in answer.rows] == [False, False]
    assert LAW.speedup(32, 1, flops=1e22, force=True).n_active > 11e9


def test_a_tie_is_the_smallest_set_that_wins_nine_draws_of_ten():
    """E = 1 and 32, 0.039 apart, were called a tie where E = 32 won 96 % of the draws."""
    for question in ({"gpu": "h100", "gpus": 8, "hours": 1.5}, {"flops": 1e22, "memory": 80e9, "kv_tokens": 16384}):
        comparison = LAW.optimal(**question).comparison
        shares = comparison.win_shares
        tied = set(comparison.tied)
        others = [share for e, share in shares.items() if e not in tied]
        total = sum(shares[e] for e in tied)
        assert total >= 0.9 - 1e-12
        assert max(others, default=0.0) <= min(shares[e] for e in tied)
        # Without its rarest winner, the set would not be enough.
        assert len(tied) == 1 or total - min(shares[e] for e in tied) < 0.9


def test_the_map_and_the_curves_answer_as_the_table_does():
    flops = np.geomspace(1e19, 1e24, 6)
    memory = np.geomspace(4e9, 2e12, 5)
    grid = best_experts(LAW, flops, memory, EXPERTS, kv_tokens=16384)
    for i, limit in enumerate(memory):
        for j, budget in enumerate(flops):
            try:
                table = LAW.optimal(budget, memory=limit, kv_tokens=16384)
            except ExtrapolationError:
                continue
            assert grid.loss[i, j] == pytest.approx(table.best.loss, abs=5e-4)
            assert grid.trusted[i, j] == table.trusted
            assert grid.experts[i, j] == table.best.experts or abs(table.comparison.difference) < 5e-4
    models = {"kv_tokens": 16384, "bytes_per_parameter": 2.0, "bytes_per_kv": 2.0}
    curves = memory_curves(LAW, Budget.of(1e22), prefers_trusted=True, **models)
    for region in curves.regions:
        middle = (region.points.start + region.points.stop) // 2
        table = LAW.optimal(1e22, memory=curves.memory[middle], kv_tokens=16384)
        assert table.best.experts == region.experts
        assert curves.loss[middle] == pytest.approx(table.best.loss, abs=5e-4)


def test_trusted_tokens_are_those_that_the_check_trusts():
    """For random models: trusted from the fewest to the most tokens, and nowhere else."""
    rng = np.random.default_rng(1)
    n_active = 10 ** rng.uniform(6.5, 11.5, 500)
    experts = rng.choice([1.0, 2.0, 3.0, 8.0, 20.0, 32.0, 43.0], 500)
    fewest, most = LAW.check(n_active, 1e12, experts).trusted_tokens()
    has_tokens = most >= fewest
    assert 0.2 < has_tokens.mean() < 0.8
    for tokens, expected in ((fewest, True), (most, True), (fewest * 0.998, False), (most * 1.002, False)):
        trusted = LAW.check(n_active[has_tokens], tokens[has_tokens], experts[has_tokens]).trusted
        assert np.all(trusted == expected)
    for tokens in 10 ** rng.uniform(8, 13, 20):
        assert not LAW.check(n_active[~has_tokens], tokens, experts[~has_tokens]).trusted.any()


@pytest.fixture(scope="module")
def edge_grid():
    flops = np.geomspace(1e17, 1e25, 161)
    memory = np.geomspace(5e8, 5e12, 60)
    return flops, memory, best_experts(LAW.replace(draws=None), flops, memory, EXPERTS, kv_tokens=16384)


def test_the_edge_of_the_map_is_that_of_its_cells(edge_grid):
    # At 3.2e22 FLOPs five neighbours differed.
    flops, memory, grid = edge_grid
    budgets, limits = grid.edge
    low, high = (
        np.interp(np.log(memory), np.log(limits[side]), budgets[side]) for side in (slice(200), slice(201, 401))
    )
    # Between the points of the edge it is interpolated.
    is_clear = (np.abs(np.log(flops / high[:, None])) > 0.01) & (np.abs(np.log(flops / low[:, None])) > 0.01)
    is_inside = (flops >= low[:, None]) & (flops <= high[:, None])
    assert np.all((grid.trusted == is_inside)[is_clear])
    assert is_inside.any()
    assert np.all(np.diff(grid.trusted.astype(int), axis=0) >= 0)


@examples(10, 200)
@given(st.floats(17.5, 23).map(lambda x: 10**x), st.floats(1.0, 1.02))
def test_the_edge_moves_little_and_upwards_with_the_budget(flops, factor):
    law = LAW.replace(draws=None)
    sizes = {"kv_tokens": 16384, "bytes_per_parameter": 2.0, "bytes_per_kv": 2.0}
    edges = [
        memory_curves(law, Budget.of(budget), points=120, prefers_trusted=True, **sizes).edge
        for budget in (flops, flops * factor)
    ]
    if None in edges:
        # Nothing is trusted above, and below the edge no model of any budget.
        assert not 1e20 < flops < 3.1e22
        return
    below, above = edges
    assert 1 - 1e-3 <= above / below <= factor**1.5 * (1 + 1e-3)


def test_the_edge_of_a_law_whose_region_ends_below_the_memory_goes_on():
    flops, memory = np.geomspace(1e17, 1e24, 40), np.geomspace(5e8, 5e12, 30)
    grid = best_experts(published("kaplan"), flops, memory)
    budgets, limits = grid.edge
    top = np.isin(memory[:, None] <= limits[:200][np.isfinite(budgets[:200])].max(), True)[:, 0]
    assert np.all(grid.trusted.any(axis=1) <= top)


def test_no_edge_is_drawn_where_tokens_are_served():
    """The best trusted model is then not the largest, which spends the most."""
    served = {"inference_tokens": "1T"}
    assert np.isnan(best_experts(LAW, [1e20, 1e22], [1e10, 1e12], **served).edge[0]).all()
    assert memory_curves(LAW, Budget.of(1e22), **served).edge is None


@pytest.mark.parametrize("conditions", [None, "of one E"])
def test_a_law_without_a_trusted_region_has_no_edge(conditions):
    law = LAW.replace(conditions=None) if conditions is None else published("krajewski_e16")
    grid = best_experts(law, [1e20, 1e22], [1e10, 1e12])
    assert np.isnan(grid.edge[0]).all()
    assert memory_curves(law, Budget.of(1e20)).edge is None
