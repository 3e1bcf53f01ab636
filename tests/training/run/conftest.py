"""A fixture for tests of what a run draws."""

import pytest

from scaling_law.figures.run_pictures import run_pictures
from training.run import releaser


@pytest.fixture
def drawings(monkeypatch):
    """Has the pictures of cards drawn as outside of tests."""
    monkeypatch.setattr(releaser, "run_pictures", run_pictures)
