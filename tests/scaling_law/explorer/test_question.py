"""A question as a link, as keyword arguments and as a command; and its answer, which is the package's own."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields, replace
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_law import published as shelf
from scaling_law.commands.cli import app
from scaling_law.explorer.answer import best_models
from scaling_law.explorer.question import (
    CHOICES,
    FITTED,
    PRESETS,
    VIEWS,
    Question,
    parse_field,
)
from tests.conftest import sweep

FIELDS = {field.name: st.text(max_size=30) for field in fields(Question)}
FIELDS |= {name: st.sampled_from(allowed) for name, allowed in CHOICES.items()}


@given(st.builds(Question, **FIELDS))
def test_a_link_restores_every_question(question):
    assert Question.of(dict(parse_qsl(question.query(), keep_blank_values=True))) == question


def test_a_link_of_something_else_is_refused():
    for wrong, message in (
        ({"memory_bytes": "1"}, "part of a question 'memory_bytes' is unknown: did you mean 'memory'"),
        ({"view": "pie"}, "view='pie' is unknown.* memory, map"),
        ({"unit": "money"}, "unit='money' is unknown; there are flops, hours"),
        ({"gpu": "abacus"}, "gpu='abacus' is unknown; there are gb300, gb200"),
        ({"gpu": "h10"}, "gpu='h10' is unknown; there are gb300, gb200"),
        ({"flops": "1" * 300}, "flops=.* is too long: at most 200 characters"),
    ):
        with pytest.raises(ValueError, match=message):
            Question.of(wrong)


@pytest.mark.parametrize("name", sweep(PRESETS, [name for name in PRESETS if "H100" not in name]))
def test_presets_have_answers_and_their_commands_parse(name, published):
    import typer

    question = PRESETS[name]
    assert not best_models(question, published).best.beyond_guard
    assert published.plan(**question.keywords()).loss > 0
    lines = question.command().splitlines()
    assert [line.split()[1] for line in lines] == ["optimal", "plan"]
    for line in lines:
        words = shlex.split(line)
        command = typer.main.get_command(app).get_command(None, words[1])
        given = command.make_context(words[1], words[2:]).params
        asked = question.keywords()
        assert asked == {name: parse_field(name, given[name]) for name in asked}


def test_commands_name_the_law():
    asked = Question(experts="1, 2,4-8", law="chinchilla", memory="")
    assert asked.command().endswith("--kv-tokens 16k --experts 1,2,4-8 --law chinchilla -o run.yaml")
    without_plan = asked.command(has_plan=False)
    assert without_plan.startswith("scaling-law optimal --flops 1e22")
    assert without_plan.endswith("--law chinchilla --integral")
    assert asked.command().splitlines()[0] == without_plan
    with_accuracy = replace(asked, accuracy="arc_easy").command().splitlines()
    assert ["--accuracy" in line for line in with_accuracy] == [True, False]
    assert "--law scaling_law.json" in replace(asked, law=FITTED).command()  # which the page saves
    assert Question(law="; rm -rf /").command(has_plan=False).count("'") == 2


HOURS = {"unit": "hours", "hours": "100", "gpus": "64", "experts": "1,8"}
CASES = [  # the law, the question, and the same as keywords of Python
    *((name, {}, {"flops": 1e22}) for name in ("ludziejewski", "chinchilla", "abnar")),
    ("ludziejewski", HOURS, {"hours": 100, "gpus": 64, "gpu": "h100", "experts": [1, 8]}),
]


ASKED = [(*case, view) for case in CASES for view in VIEWS]


@pytest.mark.parametrize(
    ("name", "question", "keywords", "view"),
    sweep(ASKED, [case for case in ASKED if case[1] != HOURS or case[3] == "map"]),
)
def test_an_answer_is_the_packages_own(name, question, keywords, view):
    pytest.importorskip("plotly")
    from scaling_law.explorer.answer import answer

    law = shelf(name)
    results = answer(Question(view=view, **question), law)
    best = law.optimal(**keywords, memory=80e9, kv_tokens=16_384, integral=True).best
    assert f"loss {best.loss:.3f}" in results.headline
    verdict = "best" if best.trusted else "best, not trusted"
    cells = re.findall("<td.*?>(.*?)</td>", results.table)
    start = cells.index(verdict)
    assert cells[start : start + 3] == [verdict, f"{best.experts:g}", f"{best.d_model:.0f}"]
    assert len(results.figure.data) > 1
    assert results.configuration.count("d_model: ") == 1
    options = [f"--{field} {keywords[field]:g}" for field in ("hours", "gpus") if field in keywords]
    assert " ".join(options) in results.command


def test_released_models_lie_where_their_sizes_are():
    from scaling_law.explorer.answer import locate_models

    by_name = {model.name: model for model in locate_models(0.0)}
    with_cache = {model.name: model for model in locate_models(16_384)}
    assert len(by_name) > 15
    assert all(with_cache[name].memory > model.memory for name, model in by_name.items())
    qwen = by_name["Qwen3 8B"]
    assert (qwen.experts, qwen.flops) == (1, pytest.approx(6 * 8.2e9 * 36e12, rel=0.1))
    assert qwen.memory == pytest.approx(2 * 8.2e9, rel=0.1)


def test_the_page_says_how_far_to_trust_where_its_answer_is_not_trusted(published):
    pytest.importorskip("plotly")
    from scaling_law.explorer.answer import answer

    headline = answer(Question(flops="1e24", memory=""), published).headline
    assert headline.endswith("; not trusted**\n\ntrusted up to 9.21B active on 288B tokens (E = 32): loss 2.043")
    assert "trusted" not in answer(Question(flops="1e21", memory=""), published).headline


@pytest.mark.parametrize(
    ("question", "there", "absent"),
    [
        ({}, {"extrapolated", "not trusted", "crossover, 95 %", "limit", "answer"}, {"95 % interval"}),
        ({"law": "chinchilla"}, {"extrapolated", "limit"}, {"crossover, 95 %", "95 % interval"}),
        ({"view": "map"}, {"fitted", "extrapolated", "not trusted", "tie", "models", "question"}, set()),
        ({"view": "map", "law": "chinchilla", "memory": ""}, {"models"}, {"tie", "question"}),
        ({"view": "isoflop"}, {"95 % interval", "extrapolated"}, {"crossover, 95 %"}),
        ({"view": "tokens"}, {"95 % interval", "extrapolated"}, {"limit"}),
    ],
)
def test_the_legend_names_what_is_drawn_and_nothing_else(published, question, there, absent):
    pytest.importorskip("plotly")
    from scaling_law.explorer.answer import answer

    law = shelf("chinchilla") if question.get("law") else published
    figure = answer(Question(**question), law).figure
    names = {trace.name for trace in figure.data if trace.showlegend}
    assert there <= names
    assert not absent & names


def test_a_family_is_a_released_one():
    assert str(parse_field("like", "qwen3-30b-a3b")) == "qwen3-30b-a3b"
    with pytest.raises(ValueError, match="like='/etc/passwd' is unknown"):
        parse_field("like", "/etc/passwd")
