"""The first of equal numbers is taken, whatever their last digits."""

import numpy as np
import pytest

from scaling_law.size.arrays import first_largest, first_smallest, merge_rounded


@pytest.mark.parametrize("ulps", [-1, 0, 1])
def test_of_equal_numbers_the_first_is_taken(ulps):
    equal = 0.3 * (1 + ulps * np.finfo(float).eps)
    assert first_smallest(np.array([0.5, 0.3, equal, 0.4])) == 1
    assert first_largest(np.array([0.1, 0.3, equal, 0.2])) == 1


def test_places_are_along_the_first_axis():
    seconds = np.array([[2.0, np.inf, 3.0], [1.0, np.inf, 3.0 - 1e-12], [1.5, np.inf, 2.9]])
    np.testing.assert_array_equal(first_smallest(seconds), [1, 0, 2])
    np.testing.assert_array_equal(first_largest(-seconds), [1, 0, 2])


def test_numbers_that_rounding_tells_apart_are_equal():
    values = np.array([8.0, 1.0, 8.0 * (1 + 4e-16), 8.01, 1.0 + 2e-16, np.nan])
    merged = merge_rounded(values)
    np.testing.assert_array_equal(merged, [8.0, 1.0, 8.0, 8.01, 1.0, np.nan])
    assert merge_rounded(np.array([])).shape == (0,)
