"""The trusted region: bounds for a search, which say the same as the check of each model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_law import JointLaw

LAW = JointLaw.published()
LOG_SIZE = st.floats(15, 27)
LOG_TOKENS = st.floats(17, 31)
EXPERTS = st.sampled_from([1.0, 1.5, 2.0, 4.0, 5.0, 8.0, 16.0, 24.0, 32.0, 32.5, 64.0])


@given(st.lists(st.tuples(LOG_SIZE, LOG_TOKENS, EXPERTS), min_size=1, max_size=20))
def test_the_bounds_of_the_region_are_what_is_trusted(models):
    log_size, log_tokens, experts = np.array(models).T
    n_active, tokens = np.exp(log_size), np.exp(log_tokens)
    check = LAW.check(n_active, tokens, experts)
    values = {"N_act": n_active, "D": tokens, "D/N": tokens / n_active, "C": 6 * n_active * tokens, "E": experts}
    assert {*check.trusted_region} == {*values}

    inside = np.ones(len(models), bool)
    for name, (low, high) in check.trusted_region.items():
        inside &= (low <= values[name]) & (values[name] <= high)
    assert [*check.trusted] == [*inside]


def test_the_region_is_that_of_the_data():
    """30 times the runs of the same E, of the lesser neighbour between two; three times D/N; the E of the runs."""
    region = LAW.check(1e9, 1e10, [1.0, 8.0, 24.0]).trusted_region
    largest = [2.716e9, 6.83e8, 3.21e8]
    assert region["N_act"][1] == pytest.approx(30 * np.array(largest), rel=3e-3)
    assert region["D"][1] == pytest.approx(30 * np.array([8e10, 3.2e10, 1.6e10]), rel=3e-3)

    assert region["N_act"][0] == pytest.approx(7.87e7, rel=3e-3)
    assert region["D/N"] == pytest.approx((0.361 / 3, 72.7 * 3), rel=3e-3)
    assert region["C"][1] == pytest.approx(30 * 5.295e20, rel=3e-3)
    assert region["E"] == pytest.approx((1, 32), rel=3e-3)


def test_a_law_without_ranges_has_no_region():
    assert LAW.replace(conditions=None).check(1e9, 1e10, 1).trusted_region is None
