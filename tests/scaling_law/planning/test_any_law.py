"""Optima of laws in other variables: the search against the closed form, and against brute force."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling_law import ExtrapolationError, Form, JointLaw, Law, Runs, Term, fit, register
from scaling_law.formulas import LAWS
from scaling_law.formulas.conditions import Conditions
from scaling_law.planning.optimum import Constraints, optimal_widths, searched_widths
from scaling_law.size.architecture import HEAD_DIM, active_parameters, total_parameters

EXPERTS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])


@dataclass(frozen=True, repr=False)
class SparsityLaw(Law):
    """L = a/N^α + b/D^β + s ρ^λ + d/(ρ^δ N^γ) + c, with N total and ρ = 1/E."""

    name: ClassVar[str] = "sparsity_of_the_tests"
    form: ClassVar[Form] = Form(
        (
            Term("a", {"n_total": "-alpha"}),
            Term("b", {"tokens": "-beta"}),
            Term("s", {"density": "lambda_"}),
            Term("d", {"density": "-delta", "n_total": "-gamma"}),
            Term("c"),
        )
    )
    a: float = 16612.5
    alpha: float = 0.5962
    b: float = 5455.67
    beta: float = 0.3954
    s: float = 0.4598
    lambda_: float = 0.1666
    d: float = 17.26
    delta: float = 0.1603
    gamma: float = 0.1595
    c: float = 0.94


@dataclass(frozen=True, repr=False)
class DenseLaw(Law):
    """Of N without embeddings, with an outer exponent."""

    name: ClassVar[str] = "dense_of_the_tests"
    form: ClassVar[Form] = Form(
        (Term("a", {"n_active_non_embedding": "-x"}), Term("b", {"tokens": -1.0})), outer="alpha_d"
    )
    a: float = (6.4e13) ** (0.076 / 0.103)
    x: float = 0.076 / 0.103
    b: float = 1.8e13
    alpha_d: float = 0.103


@settings(max_examples=60)
@given(st.floats(18, 25), st.one_of(st.just(0.0), st.floats(1e6, 1e12)), st.floats(9, 13), st.booleans())
def test_the_search_finds_the_closed_form(log_flops, served, log_memory, integral):
    limits = {"max_memory_bytes": 10**log_memory, "inference_tokens": served, "kv_cache_tokens": 1e5}
    law, constraints, flops = JointLaw.published(), Constraints(**limits), np.full(6, 10**log_flops)
    try:
        closed = optimal_widths(law, flops, EXPERTS, constraints, integral)
    except ValueError:
        return
    found = searched_widths(law, flops, EXPERTS, constraints, integral)
    assert np.array_equal(found.fits, closed.fits)
    assert np.array_equal(found.truncated, closed.truncated)
    for name in ("free", "d_model", "n_active", "tokens", "loss"):
        own, other = getattr(found, name)[closed.fits], getattr(closed, name)[closed.fits]
        np.testing.assert_allclose(own, other, rtol=1e-10)


@pytest.mark.parametrize("limits", [{}, {"max_parameters": 3e9}, {"inference_tokens": 1e11}])
@pytest.mark.parametrize("flops", [1e20, 1e22])
def test_the_optimum_of_a_law_of_sparsity_is_that_of_brute_force(flops, limits):
    table = SparsityLaw().optimal(flops, EXPERTS, force=True, **limits)
    widths = np.geomspace(HEAD_DIM, 64_000, 200_001)
    n = active_parameters(widths)
    tokens = flops / (6 * n) - limits.get("inference_tokens", 0.0) / 3
    for row in table.rows:
        total = total_parameters(widths, row.experts)
        allowed = (tokens > 0) & (total <= limits.get("max_parameters", np.inf))
        losses = SparsityLaw().loss(n_total=total[allowed], tokens=tokens[allowed], density=1 / row.experts)
        at_a_limit = row.limited_by == "memory"  # where the error is first order in the step of the grid
        assert row.loss == pytest.approx(losses.min(), abs=1e-5 if at_a_limit else 1e-8)
        assert row.loss <= losses.min() + 1e-12
        assert row.n_total == pytest.approx(total[allowed][np.argmin(losses)], rel=2e-2)
    assert table.best.loss == min(row.loss for row in table.rows)


def test_a_law_of_dense_models_answers_for_dense_models():
    table = DenseLaw().optimal(1e21, force=True)
    assert [row.experts for row in table.rows] == [1]
    widths = np.geomspace(64, 64_000, 100_001)
    n, non_embedding = active_parameters(widths), active_parameters(widths, vocab_size=0)
    losses = DenseLaw().loss(n_active_non_embedding=non_embedding, tokens=1e21 / (6 * n))
    assert table.best.loss == pytest.approx(losses.min(), abs=1e-9)
    with pytest.raises(ValueError, match="experts=8: the dense_of_the_tests law is one of dense models, E = 1"):
        DenseLaw().optimal(1e21, 8)


def test_compute_optima_of_many_budgets():
    found = SparsityLaw().compute_optimal([1e20, 1e21, 1e22], [1, 8], force=True)
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
    losses = SparsityLaw().loss(tokens=tokens, **own) * np.exp(random.normal(0, 0.002, 200))
    try:
        result = fit(Runs.from_columns(n, tokens, experts, losses, "run", columns=own), law=register(SparsityLaw).name)
        law = result.bootstrap(20).law
    finally:
        LAWS.pop(SparsityLaw.name, None)
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

    with pytest.raises(ValueError, match="batch, a variable of the batch law, is none of an architecture: n_active"):
        Batch().optimal(1e20)
