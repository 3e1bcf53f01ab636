"""Studies have their own check, `make studies`; their tests take minutes and run with `make test-slow`."""

from pathlib import Path

import pytest

# What other processors' kernels would change first is tried each time.
OFTEN = ("test_learning_rates.py", "test_headline_numbers.py")


def pytest_collection_modifyitems(items):
    for item in items:
        is_study = item.path.is_relative_to(Path(__file__).parent)
        if is_study and item.path.name not in OFTEN:
            item.add_marker(pytest.mark.slow)
