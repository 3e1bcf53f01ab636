"""A cluster for all tests of this folder; without its packages they are skipped."""

import pytest

from tests.slurm.cluster import Cluster, missing


@pytest.fixture(scope="session")
def cluster():
    if reason := missing():
        pytest.skip(reason)
    with Cluster() as started:
        yield started
