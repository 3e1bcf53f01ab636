"""Cards without drawings: two of them take as long as a tiny run."""

import pytest

from scaling_law.figures.run_pictures import CAPTIONS, run_pictures
from training.run import releaser


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_drawn():
    """Each picture of a run is a few bytes; `drawings` has it drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(releaser, "run_pictures", lambda *_: dict.fromkeys(CAPTIONS, b"\x89PNG\r\n\x1a\n"))
        yield


@pytest.fixture
def drawings(monkeypatch):
    """Has the pictures of cards drawn as outside of tests."""
    monkeypatch.setattr(releaser, "run_pictures", run_pictures)
