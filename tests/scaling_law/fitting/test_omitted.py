"""A variable that varies in the runs but not in the law: the fit names it, the law keeps it, every answer says it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hub.base.tables import as_text
from scaling_law import ChinchillaLaw, JointLaw, Runs, describe, fit
from scaling_law.commands.cli import app
from scaling_law.law_files import law_card
from tests.scaling_law.synthetic import tiny_runs

SIZES, TOKENS = (8e7, 2e8, 5e8, 1e9), (2e9, 8e9, 3e10)
SENTENCE = "E varies in the runs but not in this law: its mean error is -0.04"


def mixed_runs(effect: bool = True, noise: float = 0.004, seed: int = 0) -> Runs:
    """E = 1, 4, 16 of each size and token count; without `effect` all have the losses of dense models."""
    n, d, e = (column.ravel() for column in np.meshgrid(SIZES, TOKENS, (1, 4, 16), indexing="ij"))
    loss = JointLaw.published().loss(n, d, e if effect else 1)
    return Runs.from_columns(n, d, e, loss * np.exp(np.random.default_rng(seed).normal(0, noise, len(n))))


@pytest.fixture(scope="module")
def mixed_fit():
    return fit(mixed_runs(), "chinchilla")


def test_a_fit_names_it_with_its_mean_errors(mixed_fit):
    (sentence,) = mixed_fit.status.omitted
    means = mixed_fit.bias_by_experts()
    assert sentence.startswith(SENTENCE)
    assert sentence.endswith(f"{means[1]:+.3f} nats at E = 1 and {means[16]:+.3f} at E = 16")
    assert mixed_fit.status.messages[0] == f"{sentence}."
    assert sentence in as_text(mixed_fit)
    assert mixed_fit.to_dict()["status"]["omitted"] == (sentence,)


def test_the_law_keeps_it_in_its_file_card_and_summary(mixed_fit, tmp_path):
    mixed_fit.law.save_pretrained(tmp_path)
    law = ChinchillaLaw.from_pretrained(tmp_path)
    assert law.conditions == mixed_fit.law.conditions
    assert law.conditions.omitted == mixed_fit.status.omitted
    assert SENTENCE in as_text(law)
    assert SENTENCE in law_card(law, "org/law").replace("\\", "")


def test_every_answer_says_it(mixed_fit, tmp_path):
    law = mixed_fit.law
    config = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16}
    config |= {"vocab_size": 50257, "intermediate_size": 3072}
    answers = {
        "loss": law.warnings(2e8, 8e9),
        "optimal": law.optimal(1e20).warnings,
        "compute_optimal": law.compute_optimal(1e20).warnings,
        "plan": law.plan(1e20).warnings,
        "reach": law.reach(3.0).warnings,
        "describe": describe(config, tokens="8B", law=law).warnings,
    }
    assert {name for name, warnings in answers.items() if SENTENCE not in " ".join(warnings)} == set()
    law.save_pretrained(tmp_path)
    shell = CliRunner().invoke(app, ["optimal", "--law", str(tmp_path), "--flops", "1e20", "--json"])
    assert SENTENCE in " ".join(json.loads(shell.stdout)["warnings"])


def test_the_shell_says_it_of_a_file(tmp_path):
    runs = mixed_runs()
    rows = zip(runs.n_active, runs.tokens, runs.experts, runs.loss, strict=True)
    table = Path(tmp_path / "mix.csv")
    table.write_text("n_active,tokens,experts,loss\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    shell = CliRunner().invoke(app, ["fit", str(table), "--kind", "chinchilla"])
    assert shell.stdout.count(f"⚠ {SENTENCE}") == 1


@pytest.mark.parametrize("seed", range(5))
def test_one_that_makes_no_difference_is_not_named(seed):
    assert fit(mixed_runs(effect=False, seed=seed), "chinchilla").status.omitted == ()


def test_one_that_does_not_vary_or_that_the_law_has_is_not_named(paper_fit):
    runs = mixed_runs()
    assert fit(runs.subset(runs.experts == 4), "chinchilla").status.omitted == ()
    assert paper_fit.law.conditions.omitted == ()
    assert "omitted" not in paper_fit.law.conditions.to_dict()  # a file that earlier versions read


def test_one_that_the_runs_confound_with_their_size_is_named():
    n, d, e = np.repeat(SIZES, 3), np.tile(TOKENS, 4), np.repeat([1, 2, 8, 16], 3)
    (sentence,) = fit(Runs.from_columns(n, d, e, JointLaw.published().loss(n, d, e)), "chinchilla").status.omitted
    assert sentence.endswith("and the runs cannot tell its effect from that of n_active and tokens")


def test_any_variable_of_an_architecture_is_named_but_not_what_follows_from_it():
    runs = tiny_runs(sigma=0.002)
    granularity = np.where(runs.experts > 1, 1 + 3.0 * (np.arange(len(runs)) // 12 % 2), 1.0)
    columns = {"granularity": granularity, "active_experts": granularity, "density": 1 / runs.experts}
    loss = runs.loss * (1 - 0.02 * (granularity > 1))
    table = Runs.from_columns(runs.n_active, runs.tokens, runs.experts, loss, columns=columns)
    (sentence,) = fit(table, allow_unidentifiable=True).status.omitted
    assert sentence.startswith("granularity varies")
    plain = Runs.from_columns(runs.n_active, runs.tokens, runs.experts, runs.loss, columns=columns)
    assert fit(plain, allow_unidentifiable=True).status.omitted == ()
