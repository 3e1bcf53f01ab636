"""Repeated data (Muennighoff et al. 2023) against the paper's repository and its toy case."""

import numpy as np
import pytest

from scaling_law import published
from scaling_law.formulas import effective_tokens
from scaling_law.formulas.repeated import R_STAR_PARAMETERS

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
