"""What the study of designs found widens intervals of models with experts, and is said; it shifts no loss."""

import numpy as np
import pytest

from scaling_law import JointLaw
from scaling_law.formulas.designs import draw_design_factors, find_ignored, read_findings
from scaling_law.planning.limits import Limits, explain_ignored_design

LAW = JointLaw.published()
FINE = {"granularity": 8.0, "shared_ratio": 0.125}


def test_a_law_ignores_what_it_has_no_variable_of():
    design = {"granularity": 8.0, "shared_ratio": 0.0, "routed_share": 0.5}
    assert [*find_ignored(design, ("n_active", "tokens", "experts"))] == ["granularity", "routed_share"]
    assert [*find_ignored(design, ("n_active", "granularity"))] == ["routed_share"]
    # One dense block among many is as good as none.
    assert find_ignored({**design, "granularity": 1.0, "routed_share": 0.95}, ("n_active",)) == {}


def test_losses_of_a_design_err_alike_and_dense_ones_do_not():
    factors = draw_design_factors(["granularity", "shared_ratio"], np.array([1.0, 8.0, 32.0]), 2000)
    spread = np.hypot(read_findings()["granularity"]["spread"], read_findings()["shared_ratio"]["spread"])
    assert (factors[:, 0] == 1).all()
    np.testing.assert_array_equal(factors[:, 1], factors[:, 2])
    assert np.log(factors[:, 1]).mean() == pytest.approx(0, abs=1e-9)
    assert np.log(factors[:, 1]).std() == pytest.approx(spread, rel=0.02)
    assert draw_design_factors([], 8.0, 100) == 1.0


@pytest.mark.parametrize("question", [FINE, {"like": "deepseek-v3"}, {"like": "llama-4-maverick"}])
def test_what_is_ignored_is_said_and_widens_intervals(question):
    """Shift no loss, and name each field with what was found of it."""
    (sentence,) = explain_ignored_design(LAW, Limits.of(LAW, **question))
    fields = find_ignored(Limits.of(LAW, **question).ladder.design, LAW.variables)
    assert len(fields) >= 2
    for name in fields:
        assert name in sentence
        assert read_findings()[name]["finding"] in sentence
    variables = {"n_active": np.array([1e9]), "tokens": np.array([2e10]), "experts": np.array([8.0])}
    losses = Limits.of(LAW).loss(LAW, LAW.columns_of_draws(1), variables)
    plain = Limits.of(LAW).drawn_losses(LAW, losses, variables)
    wide = Limits.of(LAW, **question).drawn_losses(LAW, losses, variables)
    assert wide.std() > 1.1 * plain.std()
    assert np.median(wide) == pytest.approx(np.median(plain), rel=3e-3)


def test_intervals_of_every_question_take_it():
    """The interval of the loss, and what the design is worth beside a dense model."""
    plain, fine = (LAW.optimal(1e20, [1, 8], **question) for question in ({}, FINE))
    for experts, wider in ((1, False), (8, True)):
        low, high = plain[experts].loss_interval
        fine_low, fine_high = fine[experts].loss_interval
        assert fine[experts].loss == pytest.approx(plain[experts].loss, rel=1e-12)
        assert ((fine_high - fine_low) > 1.05 * (high - low)) is wider
    plain, fine = (LAW.speedup(8, flops=1e20, **question).best for question in ({}, FINE))
    assert fine.compute == pytest.approx(plain.compute, rel=1e-9)
    assert np.diff(np.log(fine.compute_interval)) > np.diff(np.log(plain.compute_interval))


def test_pairs_carry_e_45_for_shapes_like_theirs():
    """Fine experts beside a shared one; the law's own runs end at E = 32, where its trust ends for others."""
    carried = LAW.optimal(1e20, [43], granularity=6, shared_ratio=1 / 3)
    assert carried.trusted
    assert not LAW.optimal(1e20, [43]).trusted
    assert not LAW.optimal(1e20, [64], granularity=6, shared_ratio=1 / 3).trusted
