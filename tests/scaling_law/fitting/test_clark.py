"""The routed law on the public runs of Clark et al. 2022, against the optima that two independent optimisers found."""

import numpy as np
import pytest

from scaling_law import fit
from tests.scaling_law.clark import clark_runs


@pytest.mark.parametrize(
    ("router", "count", "log10_form", "transform", "error"),
    [
        ("S-Base", 58, (-0.0830, -0.1180, 0.00992, 1.1136), (2.0746, 238.7), 1.042e-5),
        ("RL-R", 59, (-0.0827, -0.1234, 0.01123, 1.1070), (1.7219, 470.05), 1.043e-5),
        ("Hash", 56, (-0.0874, -0.1384, 0.01264, 1.1595), (4.2688, 427.3), 8.89e-6),
    ],
)
def test_known_optima_are_reached(router, count, log10_form, transform, error):
    runs = clark_runs(router)
    result = fit(runs, "routed", huber_delta=10.0)  # a threshold this wide is least squares
    law = result.law
    assert len(runs) == count
    assert result.status.converged
    assert 2 * result.objective / count / np.log(10) ** 2 <= error * (1 + 4e-4)
    found = (law.alpha, law.delta, law.gamma * np.log(10), np.log10(law.a))
    assert found == pytest.approx(log10_form, abs=6e-5)
    assert (law.e_start, law.e_max) == pytest.approx(transform, rel=3e-4)
