"""Optima of laws in other variables: the search against the closed form, and against brute force."""

from dataclasses import dataclass, make_dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scaling_law import ExtrapolationError, JointLaw, Law, Runs, fit, published
from scaling_law.formulas import Form, Term
from scaling_law.formulas.conditions import Conditions
from scaling_law.planning.budget import Budget
from scaling_law.planning.limits import Limits
from scaling_law.planning.optimum import optimal_widths
from scaling_law.size.architecture import HEAD_DIM, active_parameters, total_parameters

EXPERTS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])


SPARSITY, DENSE = published("abnar"), published("kaplan")  # of N total and the density 1/E; of N without embeddings


# The joint law, of which nobody knows that it has a closed form
Searched = make_dataclass(
    "Searched",
    [(name, float) for name in JointLaw.coefficient_names()],
    bases=(Law,),
    namespace={"name": "searched", "form": JointLaw.form},
    frozen=True,
    repr=False,
)
SEARCHED = Searched(**JointLaw.published().coefficients)


@settings(max_examples=60)
@given(st.floats(18, 25), st.one_of(st.just(0.0), st.floats(1e6, 1e12)), st.floats(9, 13), st.booleans())
def test_the_search_finds_the_closed_form(log_flops, served, log_memory, integral):
    limits = {"memory": 10**log_memory, "inference_tokens": served, "kv_tokens": 1e5}
    limits, budget = Limits(**limits), Budget(10**log_flops)
    try:
        closed = optimal_widths(JointLaw.published(), budget, EXPERTS, limits, integral)
    except ValueError:
        return
    found = optimal_widths(SEARCHED, budget, EXPERTS, limits, integral)
    assert np.array_equal(found.fits, closed.fits)
    assert np.array_equal(found.truncated, closed.truncated)
    for name in ("free", "d_model", "n_active", "tokens", "loss"):
        own, other = getattr(found, name)[closed.fits], getattr(closed, name)[closed.fits]
        np.testing.assert_allclose(own, other, rtol=1e-13 if name == "loss" else 1e-6)


@pytest.mark.parametrize("limits", [{}, {"max_parameters": 3e9}, {"inference_tokens": 1e11}])
@pytest.mark.parametrize("flops", [1e20, 1e22])
def test_the_optimum_of_a_law_of_sparsity_is_that_of_brute_force(flops, limits):
    table = SPARSITY.optimal(flops, EXPERTS, force=True, **limits)
    widths = np.geomspace(HEAD_DIM, 64_000, 500_001)
    n = active_parameters(widths, vocab_size=SPARSITY.vocab_size)
    tokens = flops / (6 * n) - limits.get("inference_tokens", 0.0) / 3
    for row in table.rows:
        total = total_parameters(widths, row.experts, vocab_size=SPARSITY.vocab_size)
        allowed = (tokens > 0) & (total <= limits.get("max_parameters", np.inf))
        losses = SPARSITY.loss(n_total=total[allowed], tokens=tokens[allowed], density=1 / row.experts)
        at_a_limit = row.limited_by == "memory"  # where the error is first order in the step of the grid
        assert row.loss == pytest.approx(losses.min(), abs=1e-5 if at_a_limit else 1e-8)
        assert row.loss <= losses.min() + 1e-12
        assert row.n_total == pytest.approx(total[allowed][np.argmin(losses)], rel=2e-2)
    assert table.best.loss == min(row.loss for row in table.rows)


def test_a_law_of_dense_models_answers_for_dense_models():
    table = DENSE.optimal(1e21, force=True)
    assert [row.experts for row in table.rows] == [1]
    widths = np.geomspace(64, 64_000, 100_001)
    n, non_embedding = active_parameters(widths), active_parameters(widths, vocab_size=0)
    losses = DENSE.loss(n_active_non_embedding=non_embedding, tokens=1e21 / (6 * n))
    assert table.best.loss == pytest.approx(losses.min(), abs=1e-9)
    with pytest.raises(ValueError, match="experts=8: the kaplan law holds for dense models only, E = 1"):
        DENSE.optimal(1e21, 8)


@dataclass(frozen=True, repr=False)
class Ridge(Law):
    """A Chinchilla law with a ridge around one N_total, a squared logarithm, which leaves a minimum on either side."""

    name: ClassVar[str] = "ridge"
    form: ClassVar[Form] = Form(
        (
            Term("a", {"n_active": "-alpha"}),
            Term("b", {"tokens": "-beta"}),
            Term("c", {"n_total": "slope", "n_total*n_total": "-curvature"}),
            Term("d"),
        )
    )
    a: float = 400.0
    alpha: float = 0.34
    b: float = 410.0
    beta: float = 0.28
    c: float = 1.0
    slope: float = 0.0
    curvature: float = 1.0
    d: float = 1.7

    @classmethod
    def around(cls, log_size, height, curvature):
        """`height` nats at e^log_size parameters."""
        c = height * np.exp(-curvature * log_size**2)
        return cls(c=c, slope=2 * curvature * log_size, curvature=curvature)


def every_model(law, flops, experts, constraints, integral):
    """The losses and widths of all models of a fine grid within the limits, or of all that exist."""
    limit = min(float(constraints.width_limit(experts)), 64_000.0)
    fine = np.geomspace(HEAD_DIM, max(limit, HEAD_DIM), 40_001)
    widths = np.arange(HEAD_DIM, limit * (1 + 1e-12), HEAD_DIM) if integral else fine
    at = constraints.variables(widths, experts, flops)
    losses = law.evaluate(tuple(law.coefficients.values()), at | {"tokens": np.maximum(at["tokens"], 1e-300)})
    return np.where(at["tokens"] > 0, losses, np.inf), widths


@settings(max_examples=100)
@example(Ridge.around(23.71875, 0.1328125, 0.11328125), 20.625, 9.552734375, False)  # least just below a limit
@given(
    st.builds(Ridge.around, st.floats(16, 25), st.floats(0.01, 1), st.floats(0.1, 1)),
    st.floats(18, 24),
    st.floats(8, 12),
    st.booleans(),
)
def test_the_best_of_several_minima_within_a_limit(law, log_flops, log_memory, integral):
    flops, limits = 10**log_flops, Limits(memory=10**log_memory)
    try:
        found = optimal_widths(law, Budget(flops), EXPERTS, limits, integral)
    except ValueError:
        return
    for i in np.flatnonzero(found.fits):
        losses, _ = every_model(law, flops, EXPERTS[i], limits, integral)
        assert found.loss[i] <= losses.min() + 1e-12
        assert found.loss[i] == pytest.approx(losses.min(), abs=0 if integral else 1e-6, rel=1e-12)


def test_a_limit_below_the_free_optimum_leaves_the_minimum_below_the_ridge():
    """Clipping the free optimum to the limit gives a model on the ridge; the draws are of the better model."""
    law = Ridge.around(np.log(3e9), 0.2, 0.3)
    columns = np.array([*law.coefficients.values()]) * np.random.default_rng(0).normal(1, 1e-3, (50, 8))
    question = {"flops": 1e22, "experts": [1], "max_parameters": 3e9, "force": True}
    row, free = law.replace(draws=columns).optimal(**question).best, law.optimal(1e22, [1], force=True).best
    at_limit = law.loss(n_active=3e9, n_total=3e9, tokens=1e22 / 18e9)
    assert free.n_total > 3e9 > 1.5 * row.n_total
    assert row.loss < at_limit - 0.01
    at = {"n_active": row.n_active, "n_total": row.n_total, "tokens": row.tokens}
    drawn = law.evaluate(columns.T, at)
    assert row.loss_interval == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])))
    reached = law.reach(row.loss, [1], max_parameters=3e9, force=True)
    assert (reached.flops[0], reached.n_total[0]) == pytest.approx((1e22, row.n_total), rel=1e-5)


def test_compute_optima_of_many_budgets():
    found = SPARSITY.compute_optimal([1e20, 1e21, 1e22], [1, 8], force=True)
    assert found.loss.shape == (3, 2)
    np.testing.assert_allclose(
        6 * found.n_active * found.tokens, np.array([[1e20], [1e21], [1e22]]) * [1, 1], rtol=1e-12
    )
    assert np.all(np.diff(found.loss, axis=0) < 0)


def test_a_fit_knows_the_ranges_of_its_laws_own_variables():
    random = np.random.default_rng(0)
    width, experts = 64 * random.integers(4, 30, 200), random.choice([1, 2, 4, 8], 200)
    own = {"n_total": total_parameters(width, experts), "density": 1 / experts}
    n = active_parameters(width)
    tokens = n * 10 ** random.uniform(0.5, 2, 200)
    losses = SPARSITY.loss(tokens=tokens, **own) * np.exp(random.normal(0, 0.002, 200))
    law = fit(Runs.from_columns(n, tokens, experts, losses, "run", columns=own), kind="sparsity").bootstrap(20).law
    assert law.conditions.variables == {k: (v.min(), v.max()) for k, v in own.items()}
    assert Conditions.from_dict(law.conditions.to_dict()) == law.conditions
    warnings = law.warnings(n_total=1e9, tokens=1e10, density=1 / 16)
    assert warnings == ["density 0.0625 is outside the fitted 0.125…1 (÷2)"]
    with pytest.raises(
        ExtrapolationError, match=r"density 0.0156 is outside the fitted .*beyond the guard of 4 times"
    ):
        law.optimal(1e21, 64)
    row = law.optimal(1e21, 8)[8]
    assert row.loss_interval[0] < row.loss < row.loss_interval[1]
    assert law.default_experts() == (1, 2, 4, 8, 16, 32)


def test_a_variable_that_no_architecture_has_is_named():
    @dataclass(frozen=True, repr=False)
    class Batch(Law):
        name: ClassVar[str] = "batch"
        form: ClassVar[Form] = Form((Term("a", {"n_active": "-alpha", "batch": "beta"}),))
        a: float = 1.0
        alpha: float = 0.1
        beta: float = 0.1

    with pytest.raises(
        ValueError, match="batch law depends on batch, which an Architecture does not have; it has n_active"
    ):
        Batch().optimal(1e20)
