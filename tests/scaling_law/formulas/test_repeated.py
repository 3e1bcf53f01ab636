"""Repeated data (Muennighoff et al. 2023) against the paper's repository and its toy case."""

import numpy as np
import pytest

from scaling_law import ChinchillaLaw, JointLaw, published
from scaling_law.formulas import Formula, Repetition, effective_tokens
from scaling_law.formulas.repeated import R_STAR_PARAMETERS, tokens_worth
from scaling_law.formulas.roots import find_root
from scaling_law.law_files import law_card

EPOCHS = {2: 1.968199, 4: 3.725673, 8: 6.624119, 16: 10.582457, 40: 15.167465, 100: 16.363034}


def repeated_loss(n, tokens, unique):
    """The paper's law: both modifiers on the law for unique data."""
    law = published("muennighoff")
    called_for = (law.nu * law.n / (law.mu * law.m)) ** (1 / law.mu) * unique ** (law.nu / law.mu)
    return law.loss(effective_tokens(n, called_for, R_STAR_PARAMETERS), effective_tokens(tokens, unique))


def test_losses_of_the_papers_repository():
    """huggingface/datablations, README.md: the two models of Figure 1, right."""
    assert repeated_loss(6.34e9, 242e9, 25e9) == pytest.approx(2.2256440889984477, rel=1e-14)
    assert repeated_loss(8.67e9, 178e9, 25e9) == pytest.approx(2.2269634075087867, rel=1e-14)


def test_optimum_of_the_papers_repository():
    """README.md: 1e22 FLOPs on 25B unique tokens, on its grid; 9.4884 epochs without the grid."""
    tokens = 25e9 * np.linspace(9, 10, 10_001)
    best = tokens[np.argmin(repeated_loss(1e22 / (6 * tokens), tokens, 25e9))]
    assert best / 25e9 == pytest.approx(9.4884, abs=2e-4)
    assert best == pytest.approx(237336955477.55, rel=1e-3)
    assert 1e22 / (6 * best) == pytest.approx(7022364735.88, rel=1e-3)


def test_the_law_for_unique_data_at_chinchillas_budget():
    """Appendix B: 70.0B parameters and 1.37T tokens."""
    best = published("muennighoff").compute_optimal(5.76e23, experts=[1])
    assert float(np.ravel(best.n_active)[0]) == pytest.approx(69962173313.52, rel=1e-9)
    assert float(np.ravel(best.tokens)[0]) == pytest.approx(1372170066384.24, rel=1e-9)


def test_worth_of_epochs():
    found = effective_tokens(np.array([*EPOCHS]) * 1e9, 1e9) / 1e9
    np.testing.assert_allclose(found, [*EPOCHS.values()], atol=6e-7)
    assert effective_tokens(1e30, 1.0) == pytest.approx(16.387756)  # 1 + R*
    assert effective_tokens(5, 1, r_star=3) == pytest.approx(3.21, abs=0.005)  # the paper's toy case
    assert effective_tokens(101, 1, r_star=3) == pytest.approx(4.0, abs=0.01)
    assert effective_tokens([1e8, 1e9], 1e9).tolist() == [1e8, 1e9]  # less than an epoch


@pytest.mark.parametrize(
    ("arguments", "field"), [((0, 1e9), "tokens"), ((1e9, -1), "unique_tokens"), ((1, 1, 0), "r_star")]
)
def test_senseless_questions_are_refused(arguments, field):
    with pytest.raises(ValueError, match=rf"^{field}=-?\d must be positive"):
        effective_tokens(*arguments)


def test_a_law_counts_both():
    """The terms above, written out; the paper's repository gives the first two losses."""
    law = published("muennighoff")
    n, tokens, unique = np.array([6.34e9, 8.67e9, 1e7, 2e12]), np.array([242e9, 178e9, 1e9, 1e9]), 25e9
    expected = [2.2256440889984477, 2.2269634075087867]
    np.testing.assert_allclose(law.loss(n, tokens, unique_tokens="25B")[:2], expected, rtol=1e-14)
    called_for = (law.nu * law.n / (law.mu * law.m)) ** (1 / law.mu) * np.minimum(tokens, unique) ** (law.nu / law.mu)
    worth = effective_tokens(n, np.minimum(n, called_for), R_STAR_PARAMETERS)
    by_hand = law.loss(worth, effective_tokens(tokens, np.minimum(tokens, unique)))
    np.testing.assert_allclose(law.loss(n, tokens, unique_tokens=unique), by_hand, rtol=1e-14)


def test_laws_of_one_form_call_for_one_size():
    """What a search finds for a form without a formula for it is what the formula says."""
    law, at = (
        JointLaw.published(),
        {"n_active": np.array(1e9), "tokens": np.array(1.0), "experts": np.array([1.0, 32.0])},
    )
    tokens, coefficients = np.array([1e8, 1e12]), tuple(law.coefficients.values())
    closed = law.size_called_for(coefficients, at, tokens)
    searched = Formula.size_called_for(law, coefficients, at, tokens)
    np.testing.assert_allclose(searched, closed, rtol=1e-7)
    optimum = law.compute_optimal(6 * closed[1] * tokens[1], [32], force=True)
    assert float(np.ravel(optimum.n_active)[0]) == pytest.approx(closed[1], rel=1e-9)


def test_a_law_with_values_of_its_own_keeps_them(tmp_path):
    law = ChinchillaLaw(400, -0.34, 410, -0.28, 1.7, repetition=Repetition(8.0, 3.0))
    law.save_pretrained(tmp_path)
    loaded = ChinchillaLaw.from_pretrained(tmp_path)
    assert loaded == law
    assert loaded.repetition == Repetition(8.0, 3.0)
    assert law.replace(m=401).repetition == law.repetition
    assert law.loss(5e9, 1e11, unique_tokens=1e10) > law.replace(repetition=None).loss(5e9, 1e11, unique_tokens=1e10)
    for text in (repr(law), str(law.summary()), law_card(law, "a/law")):
        assert "repeated data with R*_D = 8, R*_N = 3" in text
    assert "repetition" not in JointLaw.published().summary().markdown()
    with pytest.raises(ValueError, match=r"repetition: tokens=-1\.0 must be positive and finite"):
        Repetition(-1.0)


@pytest.mark.parametrize(
    ("unique", "field"), [(0, "unique_tokens=0 must be positive"), ([1e9, 2e9], "unique_tokens of")]
)
def test_wrong_unique_tokens(unique, field):
    with pytest.raises(ValueError, match=field):
        published("muennighoff").loss([1e9, 2e9, 3e9], 1e10, unique_tokens=unique)


def test_epochs_become_tokens_again():
    tokens = 1e9 * np.array([0.5, 1.0, 3.0, 40.0])
    np.testing.assert_allclose(tokens_worth(effective_tokens(tokens, 1e9), 1e9), tokens, rtol=1e-12)
    assert tokens_worth(1e11, 1e9) == np.inf


def test_roots():
    targets = np.array([[1e-9, 0.3], [5.0, 1e6]])
    found = find_root(lambda x: np.exp(x) - targets, np.full((2, 2), -50.0), np.full((2, 2), 50.0))
    np.testing.assert_allclose(found, np.log(targets), rtol=1e-14)
    none = find_root(lambda x: x**2 + np.array([1.0, -4.0]), np.array([0.0, 0.0]), np.array([9.0, 9.0]))
    assert np.isnan(none[0])
    assert none[1] == pytest.approx(2.0, rel=1e-15)
