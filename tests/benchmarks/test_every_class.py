"""docs/tables/every_class.csv: every causal type of transformers makes two steps, or its line says why not."""

import csv

import pytest

from benchmarks.every_class import PAGE, verdict
from training.configuration.model_classes import model_types

TABLE = dict(list(csv.reader(PAGE.open(encoding="utf-8")))[1:])
# One type is tried each time, the others by `make test-slow`.
OFTEN = "qwen3_moe"


def test_the_table_has_every_type():
    assert tuple(TABLE) == model_types()
    assert sum(line == "trains" for line in TABLE.values()) >= 141


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind == OFTEN else pytest.mark.slow) for kind in TABLE],
)
def test_two_steps_end_as_the_table_says(kind):
    assert verdict(kind) == TABLE[kind]
