"""What the page's events return, without a browser: the package's answers, messages in one line, and nothing kept."""

from __future__ import annotations

import json
import sys
from dataclasses import astuple, replace

import pytest
from yaml import safe_load

from scaling_law import Conditions
from scaling_law.explorer import answer as answers
from scaling_law.explorer import app, uploads
from scaling_law.explorer.answer import best_models, headline
from scaling_law.explorer.question import PRESETS, PUBLISHED, YOURS, Question
from scaling_law.formulas.conditions import fitted_ranges
from tests.scaling_law.synthetic import synthetic_runs

gradio = pytest.importorskip("gradio")
SKIP = gradio.skip()
FIRST = Question()


@pytest.fixture(scope="module")
def laws():
    return app.offered_laws()


def test_published_laws_with_an_optimum_are_offered(laws, published):
    assert next(iter(laws)) == PUBLISHED
    assert {"chinchilla", "abnar", "krajewski"} < {*laws}
    assert not {"clark_rl", "step_law"} & {*laws}
    assert next(iter(app.offered_laws({"ours": published.replace(a=36.0)}))) == "ours"


def test_the_page_opens_with_the_first_law_at_the_size_of_its_runs(published):
    runs = synthetic_runs()
    ranges = fitted_ranges(runs.n_active / 1e3, runs.tokens / 1e3, runs.experts)
    small = published.replace(conditions=Conditions("small runs", ranges=ranges, vocab_size=64))
    first = Question.first("ours", small)
    assert first.budget == pytest.approx(10 * max(6e-6 * runs.n_active * runs.tokens), rel=1e-2)
    for law in (small, published.replace(beta=0.3)):  # the loss of the second rises: it has no optimum to open with
        texts = [c["props"].get("value") for c in app.page({"ours": law}).get_config_file()["components"]]
        assert ("no compute optimum" in str(texts)) == (law is not small)


def test_an_answer_and_its_link(laws, published):
    question = replace(FIRST, memory="24GB", view="map")
    problem, sentence, figure, table, _, command, yaml, query = app._asked(laws, *astuple(question), False, None)
    assert (problem, query) == ("", "memory=24GB&view=map")
    assert sentence == headline(best_models(question, published))
    assert '<tr class="best"><td>best</td><td>4</td>' in table
    assert "--memory 24GB" in command
    assert "d_model: 2368" in yaml
    assert figure.layout.paper_bgcolor == "#ffffff"
    assert app._asked(laws, *astuple(question), True, None)[2].layout.paper_bgcolor != "#ffffff"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flops": "much"}, "flops='much' is not a quantity"),
        ({"flops": ""}, "flops=0 must be positive"),
        ({"experts": "0"}, "experts='0': '0' must be within 1 and 65536"),
        ({"memory": "1MB"}, "nothing fits: the smallest model"),
        ({"law": "/etc/passwd"}, "law='/etc/passwd' is not one of published"),
        ({"law": YOURS}, "upload a law or a table of runs first"),
        ({"law": "chinchilla", "experts": "8"}, "this Chinchilla law holds for E = 1 only"),
        ({"unit": "hours", "hours": ""}, "hours=0 must be positive"),
        ({"unit": "hours", "gpus": "1.5"}, "gpus=1.5 must be a whole number"),
        ({"unit": "hours", "inference_tokens": "1B"}, "they go with a budget of flops, not of hours"),
        ({"flops": "<b>"}, "flops='<b>' is not"),
    ],
)
def test_wrong_input_is_one_message_and_changes_nothing_else(laws, changes, message):
    shown, *others = app._asked(laws, *astuple(replace(FIRST, **changes)), False, None)
    assert message.replace("'", "&#x27;").replace("<", "&lt;").replace(">", "&gt;") in shown
    assert shown.count('role="alert"') == 1
    assert others == [SKIP] * (app.SHOWN - 1)


def test_sliders_texts_and_links_agree(laws):
    text, problem, *_, query = app._slid(laws, "memory", 10.0, *astuple(FIRST), False, None)
    assert (text, problem, query) == ("10GB", "", "memory=10GB")
    state = [*astuple(replace(FIRST, memory="10GB")), False, None]
    assert app._typed(laws, "", *state)[:3] == [22.0, 2.23, 10.0]
    assert app._typed(laws, "memory=10GB", *state) == [*[SKIP] * 3, "", *[SKIP] * 7]
    opened = app._opened(laws, FIRST, "memory=10GB&unit=hours&hours=100", False)
    question = replace(FIRST, memory="10GB", unit="hours", hours="100")
    assert opened[: app.STATE] == [*astuple(question), 22.0, 2.0, 10.0]
    unlimited = replace(FIRST, memory="", kv_tokens="")
    assert app._opened(laws, FIRST, unlimited.query(), False)[: len(app.FIELDS)] == [*astuple(unlimited)]
    assert app._opened(laws, FIRST, "", False) == [SKIP] * (app.STATE + app.SHOWN)
    wrong = app._opened(laws, FIRST, "budget=1", False)
    assert "is no part of a question" in wrong[app.STATE]
    assert wrong[: app.STATE] == [SKIP] * app.STATE
    name = list(PRESETS)[1]
    preset = app._preset(laws, name, *astuple(replace(FIRST, view="isoflop")), False, None)
    assert preset[: len(app.FIELDS)] == [*astuple(replace(PRESETS[name], view="isoflop"))]


def test_a_best_model_that_the_gpus_cannot_train_has_a_plan_of_another(laws):
    question = replace(FIRST, unit="hours", hours="168", gpus="8", view="map")
    problem, _, figure, _, notes, command, yaml, query = app._asked(laws, *astuple(question), False, None)
    assert (problem, query) == ("", "unit=hours&view=map")
    assert command == ("scaling-law plan --hours 168 --gpus 8 --gpu h100 --memory 80GB --kv-tokens 16k -o run.yaml")
    table = best_models(question, laws[PUBLISHED])
    assert (table.best.d_model, safe_load(yaml)["model"]["d_model"]) == (1984, 1920)
    first, second, *_ = notes.splitlines()
    assert "the plan is for d\\_model 1920, E = 32" in first
    assert "the star is at the" in second
    assert next(trace.x[0] for trace in figure.data if trace.name == "question") == table.flops


def test_gpus_that_can_train_no_model_have_an_answer_and_the_reason_for_no_plan(laws, monkeypatch):
    def refuse(*args, **options):
        raise ValueError("no model can be trained on these GPUs, however few of its parameters are active")

    monkeypatch.setattr(answers, "plan_of", refuse)
    question = replace(FIRST, unit="hours", hours="168", gpus="8")
    problem, *_, command, yaml, _ = app._asked(laws, *astuple(question), False, None)
    assert problem == ""
    assert command == ("scaling-law optimal --hours 168 --gpus 8 --gpu h100 --memory 80GB --kv-tokens 16k --integral")
    assert yaml.startswith("# no plan: no model can be trained")
    assert all(line.startswith("# ") for line in yaml.splitlines())


def test_a_law_is_uploaded_and_deleted(laws, published, tmp_path):
    file = published.replace(a=36.0, draws=None).save_pretrained(tmp_path)
    law, said, cleared, name, problem = app._take(laws, str(file), uploads.USE, PUBLISHED)
    assert (law.a, cleared, name, problem) == (36.0, None, YOURS, "")
    assert "a=36" in said
    assert not file.exists()
    assert headline(best_models(FIRST, law)) == app._asked(laws, *astuple(replace(FIRST, law=YOURS)), False, law)[1]


def test_uploads_are_data_of_a_size_and_a_kind(laws, tmp_path):
    (tmp_path / "law.json").write_text(json.dumps({"format": "scaling_law"}))
    (tmp_path / "runs.pkl").write_bytes(b"\x80")
    (tmp_path / "runs.csv").write_text("a,b\n1,2\n")
    (tmp_path / "big.csv").write_bytes(b" " * (uploads.MAX_BYTES + 1))
    for name, action, message in (
        ("law.json", uploads.USE, "law.json"),
        ("runs.pkl", uploads.JOINT, "takes a file that ends in .jsonl, .csv, .parquet"),
        ("runs.csv", uploads.JOINT, "n_active"),
        ("big.csv", uploads.JOINT, "has 5,000,001 bytes; at most 5,000,000 are read"),
    ):
        *unchanged, shown = app._take(laws, str(tmp_path / name), action, PUBLISHED)
        assert unchanged == [SKIP, SKIP, None, SKIP]
        assert message in shown
    assert [*tmp_path.iterdir()] == []
    assert "choose a file first" in app._take(laws, None, uploads.USE, PUBLISHED)[-1]


def test_runs_calibrate_the_chosen_law(laws, tmp_path):
    runs = synthetic_runs()
    columns = (runs.n_active, runs.tokens, runs.experts, runs.loss + 0.1, runs.trunk)
    lines = [",".join(map(repr, map(float, row))) for row in zip(*columns, strict=True)][::12]
    (tmp_path / "runs.csv").write_text("\n".join(["n_active,tokens,experts,loss,trunk", *lines]))
    law, said, *_ = app._take(laws, str(tmp_path / "runs.csv"), uploads.CALIBRATE, PUBLISHED)
    assert law.c == pytest.approx(laws[PUBLISHED].c + 0.1, abs=0.02)
    assert "runs" in said


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
