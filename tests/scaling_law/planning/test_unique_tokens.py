"""Optima on repeated data against brute force, and what follows from them: Muennighoff et al. 2023, Section 3."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy.interpolate import CubicSpline

from scaling_law import Budget, Law, Limits, Throughput, published
from scaling_law.figures.curves import memory_curves
from scaling_law.formulas import Form, Term, effective_tokens
from scaling_law.formulas.repeated import R_STAR_PARAMETERS
from scaling_law.size.architecture import active_parameters, total_parameters
from tests.conftest import sweep

MUENNIGHOFF, JOINT, SPARSITY = (published(name) for name in ("muennighoff", "ludziejewski", "abnar"))


def test_the_papers_law_chooses_half_the_size():
    """Discounting tokens alone it would be 3.94B, which the paper's law puts at 2.456 nats."""
    best = MUENNIGHOFF.optimal(1e21, unique_tokens="5B", force=True).best
    assert (best.n_active, best.loss) == (pytest.approx(2.0664e9, rel=1e-4), pytest.approx(2.43686, abs=5e-6))
    assert best.epochs == pytest.approx(1e21 / (6 * best.n_active) / 5e9)
    larger = MUENNIGHOFF.loss(3.94e9, 1e21 / (6 * 3.94e9), unique_tokens="5B")
    assert larger == pytest.approx(2.456, abs=5e-4)


def sizes_called_for(law, experts):
    """ln N_opt against ln D, from compute-optimal models of many budgets."""
    best = law.compute_optimal(np.geomspace(1e13, 1e31, 600), [experts], force=True)
    return CubicSpline(np.log(np.ravel(best.tokens)), np.log(np.ravel(best.n_active)))


def every_model(law, flops, experts, limits, widths, called_for):
    """The lowest discounted loss over a grid of widths that fit, and its width."""
    n, total = (
        sizes(widths, *e, vocab_size=limits.vocab_size)
        for sizes, e in ((active_parameters, ()), (total_parameters, (experts,)))
    )
    tokens = flops / (6 * n) - limits.inference_tokens / 3
    fits = (tokens > 0) & (limits.memory_bytes(widths, experts) <= (limits.memory or np.inf))
    tokens = np.where(fits, tokens, 1.0)
    unique = np.minimum(limits.unique_tokens, tokens)
    worth = effective_tokens(n, np.minimum(n, np.exp(called_for(np.log(unique)))), R_STAR_PARAMETERS)
    at = {"n_active": worth, "n_total": total * worth / n, "tokens": effective_tokens(tokens, unique)}
    at |= {"experts": np.array(experts), "density": np.array(1 / experts)}
    losses = np.where(fits, law.evaluate(tuple(law.coefficients.values()), at), np.inf)
    best = int(np.argmin(losses))
    return float(losses[best]), float(widths[best])


@pytest.mark.parametrize(
    ("law", "experts"),
    sweep(
        [(MUENNIGHOFF, 1.0), (JOINT, 1.0), (JOINT, 32.0), (SPARSITY, 1.0), (SPARSITY, 32.0)],
        [(MUENNIGHOFF, 1.0), (JOINT, 32.0)],
    ),
)
def test_the_optimum_is_that_of_brute_force(law, experts):
    called_for = sizes_called_for(law, experts)
    for flops in (1e19, 1e21, 1e24, 1e27):
        for unique in (1e8, 5e9, 1e12, 1e20):
            for question in ({}, {"memory": 8e9}, {"inference_tokens": 1e9}):
                limits = Limits.of(law, unique_tokens=unique, **question)
                found = law.optimal(flops, [experts], unique_tokens=unique, force=True, **question).best
                low, high = 64.0, 3e5
                for reach in (3e-3, 3e-6, 3e-9):
                    widths = np.geomspace(low, high, 4001)
                    loss, width = every_model(law, flops, experts, limits, widths, called_for)
                    low, high = max(width * (1 - reach), 64.0), width * (1 + reach)
                assert found.loss == pytest.approx(loss, rel=3e-8)
                assert found.loss <= loss * (1 + 3e-8)


@pytest.mark.parametrize(("law", "experts"), [(JOINT, [1, 8]), (SPARSITY, [1, 32])])
def test_more_unique_tokens_than_are_trained_on_change_nothing(law, experts):
    plain, repeated = (law.optimal(1e21, experts, force=True, **u) for u in ({}, {"unique_tokens": 1e15}))
    for before, after in zip(plain, repeated, strict=True):
        assert after.loss == pytest.approx(before.loss, rel=1e-12)
        assert after.n_active == pytest.approx(before.n_active, rel=1e-5)
    assert after.epochs < 1


def test_excess_parameters_are_discounted_at_one_epoch():
    n, tokens = 50e9, 5e9
    assert MUENNIGHOFF.loss(n, tokens, unique_tokens=tokens) > MUENNIGHOFF.loss(n, tokens) + 0.05
    small = 1e7  # less than the tokens call for
    assert MUENNIGHOFF.loss(small, tokens, unique_tokens=tokens) == pytest.approx(MUENNIGHOFF.loss(small, tokens))


def test_where_everything_is_saturated_the_smallest_model_is_best():
    """With 1e5 unique tokens, models of very different size have one loss; none above d_model 64 is better."""
    row = JOINT.optimal(1e24, [8], unique_tokens=1e5, force=True).best
    assert (row.d_model, row.limited_by) == (64, "smallest")
    row = JOINT.optimal(1e24, [1], unique_tokens=1e9, force=True).best
    sizes = row.n_active * np.geomspace(1, 10, 20)
    losses = JOINT.loss(sizes, 1e24 / (6 * sizes), unique_tokens=1e9)
    np.testing.assert_allclose(losses, row.loss, rtol=1e-12)


@dataclass(frozen=True, repr=False)
class Compute(Law):
    """A law of compute alone, for which no size is optimal."""

    name: ClassVar[str] = "compute"
    form: ClassVar[Form] = Form((Term("a", {"n_active": "-alpha", "tokens": "-alpha"}), Term("c")))
    a: float = 1e4
    alpha: float = 0.2
    c: float = 1.5


def test_a_law_without_an_optimum_discounts_tokens_only_and_says_so():
    law = Compute()
    table = law.optimal(1e21, [1], unique_tokens="5B", force=True)
    assert table.best.tokens <= 5e9 * (1 + 1e-6)  # the smallest of the models that repeat nothing
    assert any("E = 1: without a compute optimum, repeated tokens are discounted" in w for w in table.warnings)
    assert not any("are discounted" in w for w in JOINT.optimal(1e21, [1], unique_tokens="5B").warnings)
    repeated = law.loss(1e9, 40e9, unique_tokens=5e9)
    assert repeated == pytest.approx(law.loss(1e9, effective_tokens(40e9, 5e9)))


def test_intervals_plans_and_figures_count_alike():
    row = JOINT.optimal(1e21, [8], integral=True, unique_tokens="5B").best
    drawn = JOINT.loss_draws(row.n_active, row.tokens, 8, unique_tokens=5e9)
    assert row.loss_interval == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])))
    assert JOINT.plan(1e21, [8], unique_tokens="5B").loss == pytest.approx(row.loss, abs=1e-3)
    curves = memory_curves(JOINT, Budget(1e21), [8], points=20, unique_tokens=5e9)
    free = JOINT.optimal(1e21, [8], unique_tokens="5B").best
    assert curves.loss.min() == pytest.approx(free.loss, abs=1e-9)
    assert curves.curves[0].loss.min() == pytest.approx(free.loss, abs=1e-9)


def test_hours_count_alike():
    times = Throughput("a GPU", "bf16", {"steps": 0.02, "flops": 1 / 4e14, "weights": 1e-12}, devices=8)
    row = JOINT.optimal(hours=400, gpus=8, throughput=times, experts=[8], unique_tokens="1B", force=True).best
    loss = JOINT.loss(row.n_active, row.tokens, 8, unique_tokens=1e9)
    assert (row.loss, row.epochs) == (pytest.approx(float(loss)), pytest.approx(row.tokens / 1e9))
    alone = JOINT.optimal(hours=400, gpus=8, throughput=times, experts=[8], force=True).best
    assert row.n_active != pytest.approx(alone.n_active, rel=0.05)
