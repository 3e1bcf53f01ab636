"""Every answer has one shape: rows, best, verdict, warnings, trusted, JSON, a data frame, text at any width, HTML."""

import dataclasses
import inspect
import json

import pandas
import pytest
from pydantic_core import to_json

from hub.base.tables import as_text
from scaling_law import (
    Architecture,
    JointLaw,
    compare,
    describe,
    diagnose,
    fit,
    forecast,
    laws,
    live,
    promote,
    scale_out,
    speedup,
)
from scaling_law.answer.answer import Answer
from scaling_law.answer.columns import COLUMNS
from scaling_law.commands.questions import predict_losses
from scaling_law.planning import candidate_grid, log_optimal_parameters
from scaling_law.planning.question import QuestionFields
from tests.scaling_law.configs import SWITCH
from tests.scaling_law.synthetic import tiny_runs

pytestmark = pytest.mark.usefixtures("shared_searches")

LAW = JointLaw.published()
LAW = LAW.replace(draws=LAW.draws[:60])
LOG = [{"step": step, "tokens": 1e8 * step, "loss": 2.5 + 3 * step**-0.5} for step in range(1, 61)]
ANSWERS = {
    "loss": lambda: predict_losses(LAW, [{"n_active": 1e9, "tokens": 2e10, "experts": e} for e in (1, 8)]),
    "optimal": lambda: LAW.optimal(1e22, memory="80GB", kv_tokens="16k"),
    "optimal in hours": lambda: LAW.optimal(hours=72, gpus=8, gpu="h100", experts=[1, 8]),
    "optimal far outside": lambda: LAW.optimal(1e30, [1, 8], force=True),
    "compute_optimal": lambda: LAW.compute_optimal([1e20, 1e21], [1, 8]),
    "plan": lambda: LAW.plan(1e21, [8], branches=2),
    "reach": lambda: LAW.reach(2.4, [1, 8]),
    "reach in hours": lambda: LAW.reach(2.4, [1, 8], gpus=8, gpu="h100"),
    "reach within a budget": lambda: LAW.reach(2.3, [1, 8], flops=1e21, force=True),
    "reach out of reach": lambda: LAW.reach(1.2, [1, 8]),
    "speedup": lambda: LAW.speedup(8, flops=1e21),
    "crossovers": lambda: LAW.speedup([2, 8], n_active=[1e8, 1e9]),
    "next_runs": lambda: LAW.next_runs(
        log_optimal_parameters(1e21), 1e20, candidate_grid(1e19, (1, 8), (256, 512)), noise=1e-3, max_runs=2
    ),
    "speedup of runs": lambda: speedup(tiny_runs(), tiny_runs()),
    "describe": lambda: describe(SWITCH, law=LAW),
    "describe with tokens": lambda: describe(SWITCH, 1e10, law=LAW),
    "forecast": lambda: forecast(tiny_runs(), {"n_active": "10M", "tokens": "50M", "experts": 8}),
    "live": lambda: live(LOG, n_active="400M", tokens="12B", schedule="wsd:0.2"),
    "diagnose": lambda: diagnose("qwen3-30b-a3b", gpu="h100", gpus=64, tokens_per_second="600K"),
    "promote": lambda: promote(tiny_runs(), tiny_runs()),
    "fit": lambda: fit(tiny_runs(), "chinchilla"),
    "compare": lambda: compare(1e21, laws=["chinchilla", "besiroglu"]),
    "scale_out": lambda: scale_out(Architecture(512, 8), (8, 64)),
}


def kinds(base: type) -> set[type]:
    """The classes below it."""
    return {kind for child in base.__subclasses__() for kind in (child, *kinds(child))}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_has_one_shape(name):
    answer = ANSWERS[name]()
    rows = answer.to_rows()
    assert len(answer.rows) == len(rows) >= 1
    assert isinstance(answer.trusted, bool)
    assert all(isinstance(warning, str) for warning in answer.warnings)
    assert answer.best is None or any(answer.best is row or answer.best == row for row in answer.rows)
    data = json.loads(to_json(answer.to_dict(), inf_nan_mode="null"))
    assert {"verdict", "rows", "best", "trusted", "warnings"} <= {*data}
    assert len(data["rows"]) == len(rows)
    assert isinstance(answer.to_dataframe(), pandas.DataFrame)
    assert "\n" not in answer.verdict
    assert answer.verdict in answer._repr_html_().replace("&amp;", "&").replace("&gt;", ">")
    assert str(answer).startswith(answer.verdict)
    narrow = as_text(answer, 80)
    assert " ".join(narrow.split()).startswith(" ".join(answer.verdict.split()))
    assert max(map(len, narrow.splitlines())) <= 80


def test_all_kinds_of_answers_stand_here():
    assert {type(ask()) for ask in ANSWERS.values()} == kinds(Answer)


@pytest.mark.parametrize("kind", sorted(kinds(Answer), key=lambda kind: kind.__name__))
def test_no_answer_is_made_without_its_range_check(kind):
    check = next(own for own in dataclasses.fields(kind) if own.name == "check")
    assert check.default is dataclasses.MISSING
    assert inspect.signature(kind).parameters["check"].kind is inspect.Parameter.KEYWORD_ONLY


def test_the_verdict_is_the_answer_in_a_sentence():
    table = ANSWERS["optimal"]()
    assert table.verdict.startswith(f"E = {table.best.experts:g}: ")
    assert "tokens: loss 2." in table.verdict
    assert table.verdict.endswith("8 and 16 are a tie")
    assert "not trusted" in ANSWERS["optimal far outside"]().verdict
    assert ANSWERS["reach out of reach"]().verdict == "no model reaches loss 1.200"


RESULTS = {
    "row": lambda: LAW.optimal(1e21, [1, 8]).best,
    "check": lambda: LAW.check(1e9, [1e10, 1e13], 8),
    "conditions": lambda: LAW.conditions,
    "learning-rate law": lambda: LAW.optimal(1e21, [8]).best.learning_rate_from,
    "throughput": lambda: LAW.optimal(hours=72, gpus=8, gpu="h100", experts=[8]).budget.cluster.throughput,
    "laws": laws,
    "law": lambda: LAW,
    "runs": tiny_runs,
    "table": lambda: LAW.optimal(1e21, [1, 8]).summary(),
    "tables": lambda: fit(tiny_runs(), "chinchilla").summary(),
}


@pytest.mark.parametrize("name", [*RESULTS, *ANSWERS])
def test_print_is_a_table_and_repr_a_line(name):
    result = (RESULTS | ANSWERS)[name]()
    assert len(repr(result).splitlines()) == 1
    assert len(repr(result)) < 300
    assert len(str(result).splitlines()) > 1
    assert "object at 0x" not in str(result)
    assert "<table>" in result._repr_html_()


def test_every_column_has_a_meaning_that_a_notebook_shows():
    assert all(column.meaning for column in COLUMNS.values())
    answer = ANSWERS["optimal"]()
    assert {*answer.summary().header} <= {column.label for column in COLUMNS.values()}
    assert 'title="Active parameters, with embedding and head [parameters]"' in answer._repr_html_()


def test_whole_counts_are_integers():
    best = LAW.optimal(1e21, integral=True).best
    for name in ("experts", "d_model", "n_active", "n_total", "tokens"):
        assert isinstance(getattr(best, name), int), name
    assert isinstance(LAW.reach(2.4, [1, 8]).best["experts"], int)
    assert LAW.optimal(1e21, [10.5]).best.experts == 10.5


@pytest.mark.parametrize("name", ["optimal", "plan", "reach", "speedup"])
def test_help_lists_every_keyword(name):
    method = getattr(LAW, name)
    keywords = inspect.signature(method).parameters
    assert {*QuestionFields.__annotations__} <= {*keywords}
    documentation = inspect.getdoc(method)
    for keyword in QuestionFields.__annotations__:
        assert f"    {keyword}: " in documentation
    assert "--" not in documentation
