"""The published law, runs of the paper's design with its losses, and their fit."""

from __future__ import annotations

import pytest

from scaling_law import FitResult, JointLaw, Runs, fit
from tests.scaling_law.synthetic import synthetic_runs


@pytest.fixture(scope="session")
def published() -> JointLaw:
    return JointLaw.published()


@pytest.fixture(scope="session")
def paper_runs() -> Runs:
    return synthetic_runs()


@pytest.fixture(scope="session")
def paper_fit(paper_runs: Runs) -> FitResult:
    return fit(paper_runs)
