"""The answers on record are those that Python, the shell and the API give now, number by number."""

from __future__ import annotations

import json

import pytest

from tests.conftest import sweep
from tests.scaling_law.golden.questions import ANSWERS, QUESTIONS, ask_all, differences, write_models

RECORDED = json.loads(ANSWERS.read_text())
# Several seconds each; "optimal hours", "reach hours" and "optimal mfu" take the same paths, and test_batches.py asks
# every question with a batch.
LONG = ("plan hours", "optimal money", "optimal throughput", "optimal serving", "optimal batch")


def test_each_question_is_on_record():
    assert [*RECORDED] == [*QUESTIONS]


@pytest.mark.parametrize("question", sweep(QUESTIONS, [name for name in QUESTIONS if name not in LONG]))
def test_the_answer_is_the_one_on_record(question, tmp_path):
    write_models(tmp_path)
    assert differences(RECORDED[question], ask_all(question, tmp_path)) == []
