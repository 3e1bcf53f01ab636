"""Large tables: memory and time grow with rows, samples and batches change no answer, checkpoints are thinned."""

import csv
import tracemalloc

import numpy as np
import pytest

from scaling_law import ChinchillaLaw, JointLaw, Runs, fit, forecast, load_runs
from scaling_law.fitting import fitting, problem
from scaling_law.fitting.uncertainty import cluster_counts
from scaling_law.forecasting import forecast as forecasting
from scaling_law.runs import thinning

LAW = ChinchillaLaw(m=200.0, mu=-0.3, n=400.0, nu=-0.3, c=1.7)
BYTES_PER_ROW = 5_000  # at most: a matrix of runs × runs would take 160,000 at 20,000 rows


def many(count, experts=(1.0,), noise=0.003, seed=0):
    rng = np.random.default_rng(seed)
    n = 10 ** rng.uniform(7.9, 9.4, count)
    d = n * 10 ** rng.uniform(0, 1.8, count)
    return Runs.from_columns(n, d, rng.choice(experts, count), LAW.loss(n, d) + rng.normal(0, noise, count))


def curves(runs=6, points=100):
    """Checkpoints of runs, each with an error of its own."""
    rng = np.random.default_rng(1)
    rows = []
    for i, n in enumerate(np.geomspace(1e8, 2e9, runs)):
        end, error = n * 10 * 2 ** (i % 4), rng.normal(0, 0.003)
        for d in np.linspace(end / points, end, points):
            rows.append(
                {"run_id": f"run{i}", "n_active": n, "tokens": d, "experts": 1, "eval_loss": LAW.loss(n, d) + error}
            )
    return rows


def test_memory_of_a_fit_with_outliers_grows_with_rows():
    runs = many(20_000)
    loss = runs.loss.copy()
    loss[:20] += 1.0
    runs = Runs.from_columns(runs.n_active, runs.tokens, 1.0, loss)
    tracemalloc.start()
    result = fit(runs, "chinchilla")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < BYTES_PER_ROW * len(runs)
    assert {*result.status.suspicious} == {f"row-{i}" for i in range(20)}
    assert result.law.mu == pytest.approx(LAW.mu, abs=0.002)


def test_a_search_on_a_sample_ends_at_the_optimum_of_all_runs(monkeypatch):
    runs = many(3_000)
    sampled = fit(runs, "chinchilla")
    monkeypatch.setattr(fitting, "SEARCHED", 10_000)
    whole = fit(runs, "chinchilla")
    assert (sampled.status.n_released, whole.status.n_released) == (fitting.FINALISTS, 36)
    assert sampled.objective == pytest.approx(whole.objective, rel=1e-9)
    assert sampled.law.coefficients == pytest.approx(whole.law.coefficients, rel=1e-5)


def test_a_sample_has_every_extreme():
    runs = many(5_000)
    sample = problem.make_problem(runs, "chinchilla").sample(500)
    for name, values in sample.columns.items():
        assert (values.min(), values.max()) == (
            (runs[name].min(), runs[name].max()) if name != "weight" else (1.0, 1.0)
        )
    assert 500 <= len(sample.columns["loss"]) <= 510


def test_batches_of_a_bootstrap_draw_what_one_draws():
    runs = many(50)
    rng = np.random.default_rng(3)
    parts = [cluster_counts(runs, count, rng) for count in (1, 7, 12)]
    assert np.array_equal(np.concatenate(parts), cluster_counts(runs, 20, 3))


def test_smaller_batches_give_the_same_bootstrap(monkeypatch):
    result = fit(many(60), "chinchilla")
    whole = result.bootstrap(12, seed=1)
    monkeypatch.setattr(problem, "CELLS", 60 * 5)
    assert result.problem.batch == 5
    np.testing.assert_allclose(result.bootstrap(12, seed=1).draws, whole.draws, rtol=1e-6)


def test_rows_of_one_run_after_different_tokens_are_its_checkpoints(tmp_path):
    path = tmp_path / "curves.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(curves()[0]))
        writer.writeheader()
        writer.writerows(curves())
    runs = load_runs(path)
    assert (len(runs), runs.n_trunks, runs.trunk_source) == (600, 6, "checkpoints of one run_id")
    result = fit(runs, "chinchilla")
    said = f"{len(result.runs)} of 600 rows are fitted: of a run at most 40 checkpoints"
    assert len(result.runs) < 6 * thinning.POINTS
    assert any(said in message for message in result.status.messages)
    assert said in result.law.conditions.provenance
    assert result.status.n_trunks == 6
    for i in range(6):  # the end of every run is kept
        of_run = runs.trunk == i
        assert runs.tokens[of_run].max() in result.runs.tokens
    everything = fit(load_runs(path, trunks="run"), "chinchilla")
    assert len(everything.runs) == 600
    assert not everything.runs.thinned


def test_weights_follow_their_runs_through_thinning():
    runs = load_runs(curves())
    weights = np.where(runs.tokens > np.median(runs.tokens), 1.0, 0.5)
    result = fit(runs, "chinchilla", weights=weights)
    _, kept = thinning.with_few_checkpoints(runs)
    assert np.array_equal(result.problem.objective.weight, weights[kept])


def test_a_run_id_of_several_models_is_a_duplicate():
    rows = curves(points=2)
    rows[2]["run_id"] = "run0"
    with pytest.raises(ValueError, match=r"row 2 \(run0\): duplicate of row 0 \(run0\) \(same run_id"):
        load_runs(rows)
    same = [*curves(points=2), {**curves(points=2)[0], "eval_loss": 3.0}]
    with pytest.raises(ValueError, match=r"row 12 \(run0\): duplicate of row 0"):
        load_runs(same)


def test_a_few_dozen_points_are_all_fitted():
    runs = load_runs(curves(points=thinning.POINTS))
    assert len(fit(runs, "chinchilla").runs) == 6 * thinning.POINTS


def test_a_forecast_of_many_runs_is_that_of_a_sample_and_says_so(monkeypatch):
    monkeypatch.setattr(forecasting, "MOST", 300)
    runs = many(2_000, experts=(1.0, 8.0))
    at = {"n_active": "5B", "tokens": "200B", "experts": 8}
    answer = forecast(runs, at)
    assert 300 <= len(answer.runs) < 330
    assert any(warning.startswith(f"forecast from {len(answer.runs)} of 2,000 rows") for warning in answer.warnings)
    for e in (1.0, 8.0):
        part, whole = (table.subset(table.experts == e) for table in (answer.runs, runs))
        for name in ("n_active", "tokens", "flops"):
            ends = [(getattr(table, name).min(), getattr(table, name).max()) for table in (part, whole)]
            assert ends[0] == ends[1]


def test_mean_errors_of_a_variable_with_as_many_values_as_runs():
    runs = many(3_000)
    sizes = np.random.default_rng(5).uniform(0.01, 0.5, len(runs))
    table = Runs.from_columns(runs.n_active, runs.tokens, 1.0, runs.loss + sizes, columns={"density": sizes})
    assert any("density varies" in each for each in fit(table, "chinchilla").status.omitted)


def test_published_law_is_found_again_in_a_joint_fit_of_many_runs():
    law = JointLaw.published()
    rng = np.random.default_rng(2)
    count = fitting.SEARCHED + 200
    n = 10 ** rng.uniform(7.9, 9.4, count)
    d, e = n * 10 ** rng.uniform(0.3, 1.8, count), rng.choice([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], count)
    result = fit(Runs.from_columns(n, d, e, law.loss(n, d, e)), "joint")
    assert result.rmse < 1e-4
