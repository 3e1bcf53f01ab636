"""What supports an answer: each sentence against the numbers that it is of."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from hub.base.tables import as_text
from scaling_law import ChinchillaLaw, JointLaw
from scaling_law.commands.cli import app
from scaling_law.formulas.conditions import evidence
from scaling_law.planning.design import predicted_loss


@pytest.fixture(scope="module")
def law():
    return JointLaw.published()


def test_an_answer_far_outside_says_what_backtests_missed_there(law):
    answer = law.optimal(1e22, memory="80GB")
    why = answer.why()
    best = answer.best
    assert f"loss {best.loss:.3f}" in why.answer
    assert "270 runs" in why.fit
    assert "0.0062 nats" in why.fit
    assert why.outside == best.warnings
    assert [line.partition(":")[0] for line in why.backtests] == ["C = 6·N·D", "N_act, D", "D/N"]
    assert evidence()["trusted"][0]["because"] in why.backtests[0]
    assert why.nearest == f"18 runs with E = {best.experts}: 78.7M…321M active on 500M…16B tokens"
    assert why.trusted
    losses = law.replace(conditions=None).loss_draws(best.n_active, best.tokens, best.experts)
    low, high = np.percentile(losses, [2.5, 97.5])
    assert f"draws of the coefficients alone {low:.2f} to {high:.2f}; the rest is the error of extra" in why.interval
    assert "{:.2f} to {:.2f}".format(*best.loss_interval) in why.interval


def test_the_runs_that_make_it_surer_are_those_of_next_runs(law):
    best = law.optimal(1e21, experts=8).best
    ask = predicted_loss(best.n_active, best.tokens, best.experts)
    design = law.next_runs(ask, 0.1 * best.training_flops, max_runs=3)
    why = law.optimal(1e21, experts=8).why()
    for run in design.rows:
        assert f"d_model {run.d_model}, E = {run.experts}" in why.surer
    assert f"{design.deviation_before:.2g} to {design.deviation_after:.2g} nats" in why.surer


def test_inside_the_ranges_and_without_records():
    inside = JointLaw.published().optimal(1e20, experts=1).why()
    assert inside.outside == ("inside the fitted ranges",)
    assert inside.backtests == ("none are needed inside the fitted ranges",)
    assert "the rest" not in inside.interval
    law = ChinchillaLaw(400.0, -0.34, 410.0, -0.28, 1.7)
    why = law.optimal(1e20).why()
    assert why.interval == "none: the law has no draws"
    assert why.nearest == "unknown: the law does not record its runs"
    assert why.surer.startswith("unknown: the law needs at least 30 draws")


def test_the_shell_says_it_on_one_screen():
    words = ["optimal", "--flops", "1e22", "--memory", "80GB", "--why"]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert len(result.output.splitlines()) <= 40
    answer = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    why = JointLaw.published().optimal("1e22", memory="80GB").why()
    assert answer == json.loads(json.dumps(why.to_dict()))
    assert why.interval in " ".join(as_text(why, 400).split())
