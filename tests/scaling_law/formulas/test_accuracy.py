"""Accuracies to expect at a loss: in Python, the shell, the explorer and its tools; refused where nothing follows."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from scaling_law import ChinchillaLaw, JointLaw, Runs, forecast
from scaling_law.commands.cli import app
from scaling_law.explorer.programs import tools
from scaling_law.explorer.question import Question
from scaling_law.formulas.accuracy import Task, parse_tasks, predict_accuracies

JOINT = JointLaw.published()
JOINT = JOINT.replace(draws=JOINT.draws[:60])
EXAMPLE = Task("example", 0.25, 2.5, 0.3, 0.02, 0.03, 0.1)


def test_the_curve_and_its_interval():
    assert EXAMPLE.accuracy(2.5) == pytest.approx(0.625)
    assert EXAMPLE.accuracy(9.0) == pytest.approx(0.25, abs=1e-8)
    told = predict_accuracies([EXAMPLE], 2.5, None, 0.9)["example"]
    z, off = 1.6449, math.exp(1.6449 * 0.12)
    assert told["accuracy"] == pytest.approx(0.625)
    assert told["low"] == pytest.approx(0.625 - math.hypot(0.625 - EXAMPLE.accuracy(2.5 * off), z * 0.03), abs=1e-4)
    assert told["high"] == pytest.approx(0.625 + math.hypot(EXAMPLE.accuracy(2.5 / off) - 0.625, z * 0.03), abs=1e-4)
    unsure = predict_accuracies([EXAMPLE], 2.5, (2.0, 3.125), 0.9)["example"]
    assert unsure["low"] < told["low"] < told["high"] < unsure["high"] <= 1


@pytest.mark.parametrize(
    ("accuracy", "message"),
    [
        ("helaswag", "accuracy='helaswag' is unknown: did you mean 'hellaswag'?"),
        (
            "arc_easy, mmlu",
            r"accuracy='mmlu' does not follow the loss \(error 0.006 on a corpus left out, standard dev",
        ),
    ],
)
def test_tasks_that_cannot_be_told(accuracy, message):
    with pytest.raises(ValueError, match=message):
        JOINT.optimal(1e21, [1, 8], accuracy=accuracy)


def test_every_task_that_is_offered_beats_half_the_spread_on_corpora_left_out():
    names = [task.name for task in parse_tasks("arc_challenge,arc_easy,hellaswag,lambada_openai,openbook_qa,piqa")]
    assert len(names) == 6
    assert not replace(EXAMPLE, corpora=0.051).follows


def test_optimal_says_what_to_expect_and_what_that_is_worth():
    table = JOINT.optimal(1e21, [1, 8], accuracy=["arc_easy", "hellaswag"])
    for row in table:
        assert row.accuracy == predict_accuracies(parse_tasks("arc_easy,hellaswag"), row.loss, row.loss_interval, 0.95)
    assert [*table.to_dict()["rows"][0]["accuracy"]["arc_easy"]] == ["accuracy", "low", "high"]
    assert "a loss on other text or tokens is off by 12%, alike for all rows" in table.warnings[0]
    assert "no model with a loss below 2.38 was measured" in table.warnings[1]
    assert "hellaswag" in table.summary().header
    assert "accuracy" not in JOINT.optimal(1e21, [1, 8]).to_dict()["rows"][0]
    assert JOINT.optimal(1e18, 1, accuracy="piqa").best.accuracy["piqa"]["accuracy"] < 0.65


def test_losses_in_other_units_are_refused():
    per_byte = ChinchillaLaw(m=40.0, mu=-0.3, n=200.0, nu=-0.3, c=0.57)
    with pytest.raises(
        ValueError, match=r"accuracy: loss 0\.\d+ is far from those measured, 2.38 to 6.12 nats per token"
    ):
        per_byte.optimal(1e21, 1, accuracy="piqa")
    n, d = (values.ravel() for values in np.meshgrid([1e7, 3e7, 1e8, 3e8], [5e8, 2e9, 8e9]))
    runs = Runs.from_columns(n, d, 1.0, JOINT.loss(n, d, 1.0) * 2, "run")
    with pytest.raises(ValueError, match=r"accuracy: the losses .* ×1.9 those of other labs' laws"):
        forecast(runs, {"n_active": 1e9, "tokens": 2e10}, accuracy="piqa")


def test_forecast_says_it_at_its_level():
    n, d = (values.ravel() for values in np.meshgrid([1e7, 3e7, 1e8, 3e8], [5e8, 2e9, 8e9]))
    runs = Runs.from_columns(n, d, 1.0, JOINT.loss(n, d, 1.0), "run")
    answer = forecast(runs, {"n_active": 1e9, "tokens": 2e10}, accuracy="lambada_openai", level=0.5)
    (row,) = answer.rows
    wanted = predict_accuracies(parse_tasks("lambada_openai"), row["loss"], (row["low"], row["high"]), 0.5)
    assert row["accuracy"] == wanted
    assert "{accuracy:.2f} ({low:.2f}–{high:.2f})".format(**wanted["lambada_openai"]) in str(answer)


def test_the_shell_the_explorer_and_its_tools_say_the_same():
    words = ["optimal", "--flops", "1e21", "--experts", "1,8", "--integral", "--accuracy", "arc_easy, piqa", "--json"]
    rows = json.loads(CliRunner().invoke(app, words).stdout)["rows"]
    optimal = tools({"published": JointLaw.published()})[0]
    answered = optimal(flops="1e21", experts="1,8", accuracy="arc_easy, piqa")["rows"]
    assert [row["accuracy"] for row in rows] == [row["accuracy"] for row in answered]
    assert "scaling-law optimal" in Question(accuracy="arc_easy, piqa").command()
    assert "--accuracy arc_easy,piqa" in Question(accuracy="arc_easy, piqa").command()
