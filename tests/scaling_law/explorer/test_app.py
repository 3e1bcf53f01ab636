"""What the page's events return, without a browser: the package's answers, messages in one line, and nothing kept."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import astuple, replace

import numpy as np
import pytest
from typer.testing import CliRunner
from yaml import safe_load

from scaling_law import ChinchillaLaw, Conditions, JointLaw, Law, StackLaw
from scaling_law.commands.cli import app as shell
from scaling_law.explorer import app
from scaling_law.explorer.answer import best_models
from scaling_law.explorer.question import PUBLISHED, VIEWS, Question
from scaling_law.formulas.conditions import fitted_ranges
from tests.scaling_law.synthetic import synthetic_runs

pytestmark = pytest.mark.usefixtures("shared_searches")

SKIP = app.SKIP
FIRST = Question()


@pytest.fixture(scope="module", autouse=True)
def _gradio():
    assert pytest.importorskip("gradio").skip() == SKIP


@pytest.fixture(scope="module")
def laws():
    return app.offer_laws()


def test_published_laws_with_an_optimum_are_offered(laws, published):
    assert next(iter(laws)) == PUBLISHED
    assert {"chinchilla", "abnar", "krajewski"} < {*laws}
    assert not {"clark_rl", "step_law"} & {*laws}
    assert next(iter(app.offer_laws({"ours": published.replace(a=36.0)}))) == "ours"


def test_the_page_opens_with_the_first_law_at_the_size_of_its_runs(published):
    runs = synthetic_runs()
    ranges = fitted_ranges(runs.n_active / 1e3, runs.tokens / 1e3, runs.experts)
    small = published.replace(conditions=Conditions("small runs", ranges=ranges, vocab_size=64))
    first = Question.first("ours", small)
    assert float(first.flops) == pytest.approx(10 * max(6e-6 * runs.n_active * runs.tokens), rel=1e-2)
    for law in (small, published.replace(beta=0.3)):  # the loss of the second rises: it has no optimum to open with
        texts = [c["props"].get("value") for c in app.page({"ours": law}).get_config_file()["components"]]
        assert ("no compute optimum" in str(texts)) == (law is not small)


def rows_of(html):
    """Return the texts of the cells of each row."""
    return [re.findall("<td.*?>(.*?)</td>", row) for row in re.findall("<tr.*?>(<td.*?)</tr>", html)]


def test_an_answer_and_its_link(laws, published):
    question = replace(FIRST, memory="24GB", view="map")
    answered = app._answer_components(laws, question, False)
    problem, sentence, figure, table, command, yaml, _, query = answered
    assert (problem, query) == ("", "unit=flops&flops=1e22&memory=24GB&kv_tokens=16k&law=published&view=map")
    assert sentence == f"**{best_models(question, published).verdict}**"
    assert [cells[:2] for cells in rows_of(table) if cells[0] == "best"] == [["best", "4"]]
    assert "--memory 24GB" in command
    assert "d_model: 2368" in yaml
    assert figure.layout.paper_bgcolor == "#ffffff"
    assert "question" in [trace.name for trace in figure.data]
    assert app._answer_components(laws, question, True)[2].layout.paper_bgcolor != "#ffffff"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flops": "much"}, "flops='much' is not a quantity"),
        ({"flops": ""}, "flops=0 must be positive"),
        ({"experts": "0"}, "experts='0' must lie between 1 and 65,536"),
        ({"memory": "1MB"}, "nothing fits: the smallest model"),
        ({"law": "/etc/passwd"}, "law='/etc/passwd' is unknown; there are published"),
        ({"law": "chinchilla", "experts": "8"}, "this Chinchilla law holds for E = 1 only"),
        ({"unit": "hours", "hours": ""}, "hours=0 must be positive"),
        ({"unit": "hours", "gpus": "1.5"}, "gpus=1.5 must be a whole number"),
        ({"unit": "hours", "inference_tokens": "1B"}, "give a budget of flops, not of hours"),
        ({"flops": "<b>"}, "flops='<b>' is not"),
    ],
)
def test_wrong_input_is_one_message_and_changes_nothing_else(laws, changes, message):
    shown, *others = app._answer_components(laws, replace(FIRST, **changes), False)
    assert message.replace("'", "&#x27;").replace("<", "&lt;").replace(">", "&gt;") in shown
    assert shown.count('role="alert"') == 1
    assert others == [SKIP] * (app.SHOWN - 1)


@pytest.mark.parametrize(("message", "field"), [("memory='a lot' is no quantity", "memory"), ("nothing fits", "")])
def test_a_problem_names_the_field_that_it_is_about(message, field):
    assert f'data-field="{field}"' in app.describe_problem(ValueError(message))


def asked(laws, question, answered="", turn="", positions=(22.0, 2.25, 10.9), link=""):
    opening = app._echo("", astuple(FIRST))
    return app._refresh(laws, opening, answered, turn, *astuple(question), *positions, link, False)


def test_an_answer_comes_with_what_it_is_for_and_is_given_once(laws):
    question = replace(FIRST, memory="10GB")
    *sliders, problem, _, _, _, _, _, _, link, answered = asked(laws, question, turn="3")
    assert (sliders, problem) == ([SKIP, SKIP, 10.0], "")
    assert link == question.query()
    assert json.loads(answered) == ["3", *astuple(question)]
    nothing = [SKIP] * (len(app.SLIDERS) + app.SHOWN + 1)
    assert asked(laws, question, answered, "3") == nothing
    assert asked(laws, question, answered, "4")[-1] != answered  # another turn asks anew
    wrong = asked(laws, replace(FIRST, memory="a lot"), answered, "3")
    assert "memory=&#x27;a lot&#x27;" in wrong[3]
    assert wrong[4:-1] == nothing[4:-1]
    assert json.loads(wrong[-1])[1:] == [*astuple(replace(FIRST, memory="a lot"))]


def test_a_page_that_opens_with_what_has_no_answer_shows_none(laws):
    first = app._echo("", astuple(FIRST))
    wrong = replace(FIRST, memory="1MB")
    answered = asked(laws, wrong, first, "1", link=wrong.query())
    *_, problem, sentence, figure, table, _, _, _, link, _ = answered
    assert "unanswered" in problem
    assert (sentence, figure, table, link) == ("", None, "", SKIP)


def test_a_second_problem_leaves_the_last_answer_in_sight(laws):
    """Texts that were typed have no turn, as what the page opens with has none."""
    good, bad = replace(FIRST, kv_tokens="8k"), replace(FIRST, memory="1MB")
    *_, link, answered = asked(laws, good, app._echo("", astuple(FIRST)), link=FIRST.query())
    *_, answered = asked(laws, bad, answered, link=link)
    worse = replace(bad, kv_tokens="4k")
    *_, problem, sentence, figure, table, _, _, _, _, _ = asked(laws, worse, answered, link=link)
    assert "unanswered" in problem
    assert (sentence, figure, table) == (SKIP, SKIP, SKIP)


def test_a_field_that_cannot_be_read_leaves_the_first_answer_in_sight(laws):
    """The page dims it; only what a link has asked would be shown instead."""
    first = app._echo("", astuple(FIRST))
    *_, problem, sentence, figure, table, _, _, _, link, _ = asked(
        laws, replace(FIRST, memory="a lot"), first, "1", link=FIRST.query()
    )
    assert "unanswered" in problem
    assert [sentence, figure, table, link] == [SKIP] * 4


def test_the_page_speaks_of_no_parameter_that_it_does_not_have(laws):
    far = replace(FIRST, flops="1e27", experts="1024", memory="")
    problem = app._answer_components(laws, far, False)[0]
    assert "too far from the runs" in problem
    assert "force" not in problem


def test_what_a_link_cannot_ask_is_said_beside_the_answer(laws):
    *_, problem, sentence, _, _, _, _, _, link, _ = asked(laws, FIRST, "", "1", link="flops=1e22&budget=1")
    assert "part of a question &#x27;budget&#x27; is unknown" in problem
    assert "unanswered" not in problem
    assert (sentence, link) == (f"**{best_models(FIRST, laws[PUBLISHED]).verdict}**", FIRST.query())
    assert asked(laws, FIRST, "", "1", link=replace(FIRST, memory="", kv_tokens="").query())[3] == ""


@pytest.mark.parametrize("name", app.SLIDERS)
def test_the_text_of_each_position_of_a_slider_moves_it_nowhere_else(name):
    texts = json.loads(re.search(r"\[\[?(\[.*?\])", app._slider_script(name))[1])
    low, high, _ = app.SLIDERS[name]
    assert len(texts) == round((high - low) / app.STEP) + 1
    for i, text in enumerate(texts):
        assert app._slider_positions(replace(FIRST, **{name: text}))[name] == pytest.approx(
            low + app.STEP * i, abs=1e-9
        )


def test_the_best_model_of_hours_is_the_one_that_is_planned(laws):
    question = replace(FIRST, unit="hours", hours="168", gpus="8", view="map")
    problem, _, figure, _, command, yaml, _, query = app._answer_components(laws, question, False)
    assert problem == ""
    assert query == "unit=hours&hours=168&gpus=8&gpu=h100&memory=80GB&kv_tokens=16k&law=published&view=map"
    options = "--hours 168 --gpus 8 --gpu h100 --memory 80GB --kv-tokens 16k"
    assert command == f"scaling-law optimal {options} --integral\nscaling-law plan {options} -o run.yaml"
    table = best_models(question, laws[PUBLISHED])
    assert safe_load(yaml)["model"]["d_model"] == table.best.d_model
    assert next(trace.x[0] for trace in figure.data if trace.name == "question") == table.flops


def test_gpus_that_can_train_no_model_have_an_answer_and_the_reason_for_no_plan(laws, monkeypatch):
    def refuse(*args, **options):
        raise ValueError("no model can be trained on these GPUs, however few of its parameters are active")

    monkeypatch.setattr(Law, "plan", refuse)
    question = replace(FIRST, unit="hours", hours="168", gpus="8", experts="8")
    problem, *_, command, yaml, _, _ = app._answer_components(laws, question, False)
    assert problem == ""
    options = "--hours 168 --gpus 8 --gpu h100 --memory 80GB --kv-tokens 16k --experts 8 --integral"
    assert command == f"scaling-law optimal {options}"
    assert yaml.startswith("# no plan: no model can be trained")
    assert all(line.startswith("# ") for line in yaml.splitlines())


def test_a_law_of_ones_own_is_asked_and_saved(published, tmp_path):
    law = published.replace(a=36.0)
    laws = app.offer_laws({"ours": law})
    answered = app._answer_components(laws, replace(FIRST, law="ours"), False)
    assert answered[1] == f"**{best_models(FIRST, law).verdict}**"
    assert answered[6]["visible"]
    (tmp_path / "scaling_law.json").write_text(app._law_text(laws, "ours"))
    again = Law.from_pretrained(tmp_path / "scaling_law.json")
    assert again.coefficients == law.coefficients
    np.testing.assert_array_equal(again.draws, law.draws)
    assert not app._answer_components(laws, FIRST, False)[6]["visible"]


def test_a_stack_of_laws_is_asked_in_every_view():
    dense = ChinchillaLaw(m=30.0, mu=-0.18, n=54.0, nu=-0.2, c=1.4)
    law = StackLaw([JointLaw.published().replace(draws=None), dense], [0.6, 0.4])
    laws = app.offer_laws({"ours": law})
    for view in VIEWS:
        problem, verdict, figure, *_ = app._answer_components(laws, replace(FIRST, law="ours", view=view), False)
        assert problem == ""
        assert "parameters" in verdict
        assert figure.data
    again = json.loads(app._law_text(laws, "ours"))
    assert (again["law"], len(again["laws"])) == ("stack", len(law.laws))


def lab_runs(every=9):
    """Return runs of a law that lies 0.1 nats above the published one."""
    runs = synthetic_runs()
    return replace(runs, loss=runs.loss + 0.1).subset(np.arange(len(runs)) % every == 0)


def test_the_law_of_runs_comes_first_with_intervals(monkeypatch, tmp_path):
    served = {}
    monkeypatch.setattr("scaling_law.explorer.app.explore", lambda laws, **options: served.update(laws))
    lab_runs(every=4).to_pandas().to_csv(tmp_path / "runs.csv", index=False)
    done = CliRunner().invoke(shell, ["explore", "--runs", str(tmp_path / "runs.csv"), "--no-browser"])
    assert done.exit_code == 0, done.output
    (law,) = served.values()
    low, high = best_models(FIRST, law).best.loss_interval
    assert low < high


def test_plotly_is_asked_for_with_the_page():
    assert app.settings()["head"].count('<link rel="modulepreload" href="./assets/PlotlyPlot-') == 1


def test_without_gradio_one_line_says_what_to_install(monkeypatch, capsys):
    from scaling_law.commands.cli import main

    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.setattr("sys.argv", ["scaling-law", "explore"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error == 'error: the explorer needs gradio and plotly: pip install "joint-moe-scaling-laws[explorer]"\n'
