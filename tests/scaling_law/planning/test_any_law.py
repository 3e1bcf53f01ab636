"""Optima of laws in other variables: the search against the closed form, and against brute force."""

from dataclasses import dataclass, make_dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scaling_law import Budget, Conditions, ExtrapolationError, JointLaw, Law, Limits, Runs, fit, published
from scaling_law.formulas import Form, Term
from scaling_law.planning.optimum import optimal_widths
from scaling_law.size.architecture import active_parameters, total_parameters
from tests.conftest import examples

EXPERTS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])


JOINT, SPARSITY, DENSE = (published(name) for name in ("ludziejewski", "abnar", "kaplan"))


# The joint law, of which nobody knows that it has a closed form
Searched = make_dataclass(
    "Searched",
    [(name, float) for name in JointLaw.coefficient_names()],
    bases=(Law,),
    namespace={"name": "searched", "form": JointLaw.form},
    frozen=True,
    repr=False,
)
SEARCHED = Searched(**JOINT.coefficients)


@examples(20, 200)
@given(st.floats(18, 25), st.one_of(st.just(0.0), st.floats(1e6, 1e12)), st.floats(9, 13), st.booleans())
def test_the_search_finds_the_closed_form(log_flops, served, log_memory, integral):
    limits = {"memory": 10**log_memory, "inference_tokens": served, "kv_tokens": 1e5}
    limits, budget = Limits(**limits), Budget(10**log_flops)
    try:
        closed = optimal_widths(JOINT, budget, EXPERTS, limits, integral)
    except ValueError:
        return
    found = optimal_widths(SEARCHED, budget, EXPERTS, limits, integral)
    assert np.array_equal(found.fits, closed.fits)
    assert np.array_equal(found.truncated, closed.truncated)
    for name in ("free", "d_model", "n_active", "tokens", "loss"):
        own, other = getattr(found, name)[closed.fits], getattr(closed, name)[closed.fits]
        np.testing.assert_allclose(own, other, rtol=1e-13 if name == "loss" else 1e-6)


def test_a_law_of_dense_models_answers_for_dense_models():
    assert [row.experts for row in DENSE.optimal(1e21, force=True)] == [1]
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


def every_model(law, flops, experts, limits, widths):
    """Lowest loss over a grid of widths that fit, and its width; sizes, tokens and bytes are counted by hand."""
    n, non_embedding = (active_parameters(widths, vocab_size=size) for size in (limits.vocab_size, 0))
    tokens = flops / (6 * n) - limits.inference_tokens / 3
    total = total_parameters(widths, experts, vocab_size=limits.vocab_size)
    kv = limits.kv_heads_ratio * 2 * limits.kv_tokens * widths**2 / 64
    memory = limits.bytes_per_parameter * total + limits.bytes_per_kv * kv
    fits = (tokens > 0) & (total <= (limits.max_parameters or np.inf)) & (memory <= (limits.memory or np.inf))
    at = {"n_active": n, "n_total": total, "n_active_non_embedding": non_embedding, "experts": np.array(experts)}
    at |= {"density": np.array(1 / experts), "tokens": np.where(fits, tokens, 1.0)}
    losses = np.where(fits, law.evaluate(tuple(law.coefficients.values()), at), np.inf)
    best = int(np.argmin(losses))
    return float(losses[best]), float(widths[best])


LIMITS = {
    "max_parameters": st.floats(7, 12),
    "memory": st.floats(7, 13),
    "kv_tokens": st.floats(0, 7),
    "inference_tokens": st.floats(6, 13),
}  # log10
COSTS = {
    "bytes_per_parameter": st.sampled_from([0.5, 1.0]),
    "bytes_per_kv": st.just(1.0),
    "kv_heads_ratio": st.floats(0.1, 1),
    "vocab_size": st.sampled_from([1000, 128_000]),
}
RIDGE = st.builds(Ridge.around, st.floats(16, 25), st.floats(0.01, 1), st.floats(0.1, 1))


@examples(25, 400)
@example(Ridge.around(23.71875, 0.1328125, 0.11328125), 20.625, {"memory": 9.552734375}, {}, False)  # below a limit
@example(DENSE, 18.0, {"inference_tokens": 11.0}, {"vocab_size": 1000}, False)  # just before no token is left
@example(DENSE, 19.25, {"max_parameters": 7.0, "inference_tokens": 12.0}, {}, False)  # both at once
@example(DENSE, 19.28515625, {"max_parameters": 7.0, "inference_tokens": 12.16796875}, {}, False)  # a wall beside it
@given(
    st.one_of(RIDGE, st.sampled_from([JOINT, SPARSITY, DENSE])),
    st.floats(18, 24),
    st.fixed_dictionaries({}, optional=LIMITS),
    st.fixed_dictionaries({}, optional=COSTS),
    st.booleans(),
)
def test_the_optimum_is_that_of_brute_force(law, log_flops, log_limits, costs, integral):
    """In closed form, of any variables, of several minima; within limits, and among the models that exist."""
    flops, limits = 10**log_flops, Limits(**costs, **{name: 10**value for name, value in log_limits.items()})
    experts = EXPERTS[:1] if law is DENSE else EXPERTS
    try:
        found = optimal_widths(law, Budget(flops), experts, limits, integral)
    except ValueError:  # no minimum, as where served tokens take the budget
        return
    widths = 64.0 * np.arange(1, 1001) if integral else np.geomspace(64, 64_000, 40_001)
    for i in np.flatnonzero(found.exists):
        loss, width = every_model(law, flops, experts[i], limits, widths)
        for reach in (4e-4, 4e-8) if not integral and np.isfinite(loss) else ():  # at a limit the error is first order
            around = np.geomspace(max(width * (1 - reach), 64), width * (1 + reach), 40_001)
            loss, width = every_model(law, flops, experts[i], limits, around)
        assert found.fits[i] == np.isfinite(loss)
        if np.isfinite(loss):
            assert found.loss[i] <= loss * (1 + (1e-12 if law is JOINT else 1e-10))
            assert found.loss[i] == pytest.approx(loss, rel=1e-12 if integral else 1e-8)
            assert found.d_model[i] == pytest.approx(width, rel=0 if integral else 1e-2)


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


def test_a_fit_knows_the_ranges_of_its_laws_own_variables():
    random = np.random.default_rng(0)
    width, experts = 64 * random.integers(4, 30, 200), random.choice([1, 2, 4, 8], 200)
    own = {"n_total": total_parameters(width, experts), "density": 1 / experts}
    n = active_parameters(width)
    tokens = n * 10 ** random.uniform(0.5, 2, 200)
    losses = SPARSITY.loss(tokens=tokens, **own) * np.exp(random.normal(0, 0.002, 200))
    runs = Runs.from_columns(n, tokens, experts, losses, "run", columns=own)
    law = fit(runs, kind="sparsity", starts=[SPARSITY]).bootstrap(20).law
    assert law.conditions.variables == {k: (v.min(), v.max()) for k, v in own.items()}
    assert Conditions.from_dict(law.conditions.to_dict()) == law.conditions
    warnings = law.warnings(n_total=1e9, tokens=1e10, density=1 / 16)
    assert warnings[0] == "density 0.0625 is outside the fitted 0.125…1 (÷2)"
    assert warnings[1].startswith("not trusted: density ÷2; backtests support ")
    with pytest.raises(ExtrapolationError, match=r"density 0.0156 is outside the fitted .*beyond the limit of .4"):
        law.optimal(1e21, 64)
    row = law.optimal(1e21, 8)[8]
    assert row.loss_interval[0] < row.loss < row.loss_interval[1]
    assert law.default_experts() == (1, 2, 4, 8)


def test_a_variable_that_no_architecture_has_is_named():
    @dataclass(frozen=True, repr=False)
    class Batch(Law):
        name: ClassVar[str] = "batch"
        form: ClassVar[Form] = Form((Term("a", {"n_active": "-alpha", "batch": "beta"}),))
        a: float = 1.0
        alpha: float = 0.1
        beta: float = 0.1

    with pytest.raises(ValueError, match="batch law depends on batch; what is asked has n_active"):
        Batch().optimal(1e20)
