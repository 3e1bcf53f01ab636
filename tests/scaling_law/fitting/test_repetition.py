"""A fit with unique tokens: Muennighoff's terms on top of any form of law."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from hub.base.tables import as_text
from scaling_law import ChinchillaLaw, JointLaw, Runs, fit
from scaling_law.commands.cli import app
from scaling_law.fitting.problem import make_problem, start_points
from scaling_law.fitting.repetition import LOG_ERROR, repeated, with_unique_tokens
from scaling_law.formulas import Repetition

pytestmark = pytest.mark.usefixtures("shared_searches")

TRUTH = ChinchillaLaw(521.0, -0.35, 1488.0, -0.35, 1.87, repetition=Repetition(8.0, 2.0))
CHINCHILLA = {"kind": "chinchilla", "unique_tokens": "unique_tokens"}


def repeated_runs(law=TRUTH, noise=0.001, unique=(1e8, 1e9, 1e10), epochs=(1, 3, 10, 40), experts=(1.0,)):
    """Runs of every size, number of unique tokens and epochs, with losses of the law."""
    sizes = (2e7, 1e8, 5e8, 3e9)
    grid = np.meshgrid(sizes, unique, epochs, experts, indexing="ij")
    n, u, repeats, e = (column.ravel().astype(float) for column in grid)
    loss = law.loss(n, u * repeats, e, unique_tokens=u) if law else np.ones_like(n)
    loss = loss * np.exp(np.random.default_rng(0).normal(0, noise, len(n)))
    return Runs.from_columns(n, u * repeats, e, loss, "run", columns={"unique_tokens": u, "epochs": repeats})


@pytest.fixture(scope="module")
def runs():
    return repeated_runs()


@pytest.fixture(scope="module")
def result(runs):
    return fit(runs, **CHINCHILLA)


def test_the_coefficients_and_both_r_star_are_found(result):
    for name, value in TRUTH.coefficients.items():
        assert result.law.coefficients[name] == pytest.approx(value, rel=0.15)
    assert result.law.repetition.tokens == pytest.approx(8.0, rel=0.03)
    assert result.law.repetition.parameters == pytest.approx(2.0, rel=0.1)
    assert result.rmse < 0.004
    assert result.repetition.undetermined == ()
    assert all(error < 0.1 for error in result.repetition.standard_errors.values())
    table = as_text(result)
    assert "r_star_tokens" in table
    assert "r_star_parameters" in table
    assert result.status.converged


def test_the_optimum_is_that_of_all_coefficients_at_once(result):
    """No step of any coefficient or R* lowers the objective; a prior says next to nothing of such runs."""
    objective = result.problem.objective
    theta = result.theta
    unique = result.runs["unique_tokens"]
    for step in np.vstack([np.eye(5), -np.eye(5)]) * 1e-4:
        assert objective.evaluate((theta + step)[None]).cost[0] > result.objective * (1 - 1e-9)
    for factors in ((1.01, 1.0), (0.99, 1.0), (1.0, 1.01), (1.0, 0.99)):
        moved = Repetition(objective.repetition.tokens * factors[0], objective.repetition.parameters * factors[1])
        solved = repeated(result.problem, unique, moved).solve(theta[None], max_iterations=200, tolerance=1e-12)
        assert solved.cost[0] > result.objective * (1 - 1e-9)


@pytest.mark.parametrize("kind", ["chinchilla", "joint", "interaction", "crossing", "sparsity"])
def test_gradients_are_those_of_finite_differences(kind):
    runs = repeated_runs(None, noise=0.3, experts=(1.0, 8.0))
    runs = replace(
        runs, columns={**runs.columns, "n_total": runs.n_active * runs.experts, "density": 1 / runs.experts}
    )
    problem = repeated(make_problem(runs, kind), runs["unique_tokens"], Repetition())
    starts = start_points(problem)
    theta = starts[:: len(starts) // 3] + np.random.default_rng(0).normal(0, 0.02, (1, starts.shape[1]))
    residual, jacobian = map(np.stack, zip(*map(problem.objective.linearise_at, theta), strict=True))
    for k, step in enumerate(1e-5 * np.eye(theta.shape[1])):
        high, low = (problem.objective.residuals(theta + sign * step) for sign in (1, -1))
        np.testing.assert_allclose(jacobian[..., k], (high - low) / 2e-5, rtol=1e-5, atol=3e-6)
    law = problem.objective.make_law(theta[0])
    values = {name: runs.column(name) for name in law.variables} | {"unique_tokens": runs["unique_tokens"]}
    np.testing.assert_allclose(np.log(law.loss(**values) / runs.loss), residual[0], atol=1e-9)


def test_another_form_has_the_same_terms():
    truth = JointLaw.published().replace(draws=None, conditions=None, repetition=Repetition(6.0, 2.0))
    runs = repeated_runs(truth, noise=0.0005, experts=(1.0, 4.0, 16.0))
    found = fit(runs, "joint", unique_tokens="unique_tokens", starts=[JointLaw.published()])
    assert found.law.repetition.tokens == pytest.approx(6.0, rel=0.05)
    assert found.rmse < 0.003


def test_what_the_runs_do_not_tell_is_near_the_published_value():
    once = repeated_runs(TRUTH.replace(repetition=None), epochs=(1,), unique=(3e9, 1e10, 3e10, 1e11))
    found = fit(once, **CHINCHILLA)
    assert found.repetition.undetermined == ("r_star_tokens",)
    assert found.repetition.standard_errors["r_star_tokens"] == pytest.approx(LOG_ERROR)
    assert found.law.repetition.tokens == pytest.approx(Repetition().tokens)
    (message,) = found.status.repetition
    assert message.startswith("Hardly told by these runs, so near the values published by Muennighoff et al. 2023: r_")
    assert message in found.status.messages


def test_few_epochs_of_noisy_runs_leave_r_star_open_by_their_error():
    found = fit(repeated_runs(noise=0.01, epochs=(1, 2, 4)), **CHINCHILLA).repetition
    assert all(0.1 < error < 0.5 for error in found.standard_errors.values())
    distances = np.log([found.value.tokens / 8.0, found.value.parameters / 2.0])
    assert np.all(np.abs(distances) < 2 * np.array([*found.standard_errors.values()]))


def test_unique_tokens_are_a_column_numbers_or_one_number(runs):
    renamed = replace(runs, columns={"corpus_tokens": runs["unique_tokens"]})
    for given in ("corpus_tokens", runs["unique_tokens"].tolist()):
        np.testing.assert_allclose(with_unique_tokens(renamed, given)["unique_tokens"], runs["unique_tokens"])
    assert {*with_unique_tokens(renamed, "5B")["unique_tokens"]} == {5e9}


def test_the_law_keeps_and_uses_them(result, tmp_path):
    law = result.law
    law.save_pretrained(tmp_path)
    loaded = ChinchillaLaw.from_pretrained(tmp_path)
    assert loaded == law
    assert loaded.conditions.variables == {"epochs": (1.0, 40.0)}
    row = loaded.optimal(1e20, [1], unique_tokens="1B", force=True).best
    assert row.loss == pytest.approx(float(loaded.loss(row.n_active, row.tokens, unique_tokens=1e9)))
    published = loaded.replace(repetition=None).optimal(1e20, [1], unique_tokens="1B", force=True).best
    assert published.loss < row.loss  # whose repeated tokens are worth more
    beyond = loaded.check(1e9, 1e12, unique_tokens=1e9)
    assert "epochs 1K is outside the fitted 1…40 (×25)" in beyond.warnings
    assert beyond.beyond
    assert not loaded.check(1e9, 1e10, unique_tokens=1e9).beyond


def test_a_table_that_repeats_is_told_so(runs):
    plain = fit(runs, "chinchilla")
    (sentence,) = plain.status.omitted
    assert sentence.startswith("epochs varies in the runs but not in this law: its mean error is ")
    assert "at epochs = 40; unique_tokens='unique_tokens'" in sentence or "at epochs = 1; unique_tokens=" in sentence
    assert "(--unique-tokens unique_tokens)" in sentence
    assert sentence in plain.law.warnings(1e9, 1e10)
    only_epochs = replace(runs, columns={"epochs": runs["epochs"]})
    assert "with the column unique_tokens = tokens / epochs" in fit(only_epochs, "chinchilla").status.omitted[0]


def test_it_is_not_told_without_reason(result):
    once = repeated_runs(TRUTH.replace(repetition=None), epochs=(1,), unique=(3e9, 1e10, 3e10, 1e11))
    assert fit(once, "chinchilla").status.omitted == ()
    free = TRUTH.replace(repetition=Repetition(1e9, 1e9))  # repeated tokens are as good as new
    assert fit(repeated_runs(free), "chinchilla").status.omitted == ()
    assert result.status.omitted == ()


def test_a_fit_from_one_start_is_the_same(runs, result):
    again = fit(runs, **CHINCHILLA, starts=[result.law])
    assert again.law.repetition.tokens == pytest.approx(result.law.repetition.tokens, rel=1e-3)
    assert again.objective == pytest.approx(result.objective, rel=1e-4)


def test_bootstrap_and_outliers_count_alike(runs, result):
    drawn = result.bootstrap(20)
    assert drawn.converged.all()
    assert drawn.law.repetition == result.law.repetition
    low, high = drawn.interval("mu")
    assert low < result.law.mu < high
    loss = runs.loss.copy()
    loss[7] *= 1.3
    aside = fit(replace(runs, loss=loss), **CHINCHILLA, outliers="set_aside")
    assert aside.status.set_aside == ("row-7",)
    assert aside.law.repetition.tokens == pytest.approx(8.0, rel=0.05)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"unique_tokens": "tokens_unique"}, "numeric column 'tokens_unique'"),
        ({"unique_tokens": -1.0}, "unique_tokens=-1 must be positive and finite"),
        (
            {"unique_tokens": [1.0, 2.0]},
            "must be a column, or positive numbers, one for all 48 runs or for each",
        ),
    ],
)
def test_bad_input(runs, given, message):
    with pytest.raises(ValueError, match=message):
        fit(runs, "chinchilla", **given)


def test_in_the_shell(runs, result, tmp_path):
    table = tmp_path / "runs.csv"
    law = tmp_path / "law"
    runs.to_pandas().to_csv(table, index=False)
    command = ["fit", str(table), "--kind", "chinchilla", "--loss", "loss", "--trunks", "run"]
    told = CliRunner().invoke(app, command)
    assert "--unique-tokens unique_tokens" in told.output.replace("\n", " ")
    done = CliRunner().invoke(app, [*command, "--unique-tokens", "unique_tokens", "-o", str(law), "--json"])
    assert done.exit_code == 0
    data = json.loads(done.stdout)
    assert data["repetition"]["value"]["tokens"] == pytest.approx(result.law.repetition.tokens, rel=1e-4)
    asked = CliRunner().invoke(
        app, ["loss", "--law", str(law), "--n-active", "1e9", "--tokens", "1e10", "--unique-tokens", "1B", "--json"]
    )
    loss = json.loads(asked.stdout)["rows"][0]["loss"]
    assert loss == pytest.approx(float(result.law.loss(1e9, 1e10, unique_tokens=1e9)), rel=1e-4)


def test_a_law_without_tokens_cannot_count_them():
    runs = repeated_runs(epochs=(1, 4), experts=(1.0, 8.0))
    with pytest.raises(ValueError, match="unique_tokens: the routed law does not depend on tokens"):
        fit(runs, "routed", unique_tokens="unique_tokens")
