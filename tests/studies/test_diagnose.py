"""docs/studies/diagnose.md: its claims hold, and the shipped runs are those of the study."""

import pytest

from scaling_law.forecasting.diagnose import public_runs
from studies.diagnose import study


@pytest.fixture(scope="module")
def results():
    return study.PAGE.read()


def test_what_the_page_says_holds(results):
    assert study.PAGE.refuted(results) == []


def test_the_library_ships_these_runs(results):
    for shipped, computed in zip(public_runs(), results.public, strict=True):
        assert shipped[:6] == computed[:6]
        assert shipped.mfu == pytest.approx(computed.mfu, abs=2e-4)
        assert shipped.relative_speed == pytest.approx(computed.relative_speed, abs=2e-3)
