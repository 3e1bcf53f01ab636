"""The first of equal numbers is taken, whatever their last digits."""

import numpy as np
import pytest

from scaling_law.size.arrays import first_largest, first_smallest


@pytest.mark.parametrize("ulps", [-1, 0, 1])
def test_of_equal_numbers_the_first_is_taken(ulps):
    equal = 0.3 * (1 + ulps * np.finfo(float).eps)
    assert first_smallest(np.array([0.5, 0.3, equal, 0.4])) == 1
    assert first_largest(np.array([0.1, 0.3, equal, 0.2])) == 1


def test_places_are_along_the_first_axis():
    seconds = np.array([[2.0, np.inf, 3.0], [1.0, np.inf, 3.0 - 1e-12], [1.5, np.inf, 2.9]])
    np.testing.assert_array_equal(first_smallest(seconds), [1, 0, 2])
    np.testing.assert_array_equal(first_largest(-seconds), [1, 0, 2])
