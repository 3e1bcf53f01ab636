"""Forecasts of runs that do not exist, from synthetic sweeps of a law that is known."""

import dataclasses
import json

import numpy as np
import pytest
from pydantic_core import to_json

from scaling_law import ChinchillaLaw, JointLaw, Runs, forecast, load_runs, prior
from scaling_law.fitting.posterior import MISFIT, functions_of, posterior
from scaling_law.forecasting import forecast as forecasting
from scaling_law.formulas.terms import Form, Term
from tests.scaling_law.synthetic import synthetic_runs

LAW = ChinchillaLaw(m=120.0, mu=-0.3, n=600.0, nu=-0.3, c=1.7)
FAR = {"n_active": 1e10, "tokens": "300B"}


def sweep(sizes=(5e7, 1e8, 2e8, 4e8, 8e8), ratios=(5, 20, 80), noise=0.004, seed=0, law=LAW) -> Runs:
    n, ratio = (values.ravel() for values in np.meshgrid(sizes, ratios))
    scatter = np.exp(noise * np.random.default_rng(seed).standard_normal(len(n)))
    return Runs.from_columns(n, ratio * n, 1.0, law.loss(n, ratio * n) * scatter, "run")


@pytest.fixture(scope="module")
def answer():
    return forecast(sweep(), [{"n_active": 1e9, "tokens": 2e10}, FAR])


def test_the_truth_lies_in_the_interval(answer):
    for row in answer.rows:
        assert row["low"] < LAW.loss(row["n_active"], row["tokens"]) < row["high"]
    near, far = (row["high"] / row["low"] for row in answer.rows)
    assert 1 < near < far < 1.2


def test_it_says_its_law(answer):
    assert answer.to_dict()["kind"] == "interaction"
    assert "interaction law of 15 runs" in str(answer)


def test_it_is_an_answer(answer, tmp_path):
    assert answer.verdict.startswith("E = 1, 1B active parameters, 20B tokens: loss 2.")
    data = json.loads(to_json(answer.to_dict(), inf_nan_mode="null"))
    assert {"verdict", "rows", "trusted", "warnings", "kind"} <= {*data}
    assert len(answer.to_dataframe()) == 2
    assert "share of c" in str(answer)
    from scaling_law.figures import drawing

    assert drawing.save(answer.figure(), tmp_path / "fan.png").stat().st_size > 1000


def test_a_point_is_answered_alike_alone_and_among_others(answer):
    alone = forecast(sweep(), {"n_active": "10B", "tokens": 3e11, "experts": 1}).rows[0]
    assert alone == pytest.approx(answer.rows[1])


def test_the_order_of_runs_does_not_matter(answer):
    runs = sweep()
    shuffled = runs.take(np.random.default_rng(0).permutation(len(runs)))
    row = forecast(shuffled, FAR).rows[0]
    assert row["loss"] == pytest.approx(answer.rows[1]["loss"], rel=1e-3)
    assert row["high"] - row["low"] == pytest.approx(answer.rows[1]["high"] - answer.rows[1]["low"], rel=0.1)


def test_more_runs_narrow_the_interval(answer):
    few = forecast(sweep(sizes=(5e7, 2e8, 8e8), ratios=(5, 80)), FAR).rows[0]
    assert few["high"] / few["low"] > answer.rows[1]["high"] / answer.rows[1]["low"]


def test_many_exact_runs_give_their_law():
    runs = sweep(sizes=5e7 * 2.0 ** np.arange(8), ratios=(5, 10, 20, 40, 80), noise=1e-4)
    row = forecast(runs, FAR, kind="chinchilla").rows[0]
    assert row["loss"] == pytest.approx(LAW.loss(1e10, 3e11), rel=0.004)


def test_the_misfit_opens_along_compute_within_the_ranges_of_n_and_d():
    """Below a cut in C the largest N and the largest D occur, but in no one run."""
    runs = sweep(sizes=5e7 * 2.0 ** np.arange(6), ratios=5 * 2.0 ** np.arange(6))
    below = runs.subset(runs.flops <= runs.flops.max() / 100)
    corner = forecasting.points_of({"n_active": below.n_active.max(), "tokens": below.tokens.max()}, below)
    knots = posterior(below, prior("public"), "interaction", misfit=MISFIT).knots
    largest_of_runs = functions_of(below, knots).max(axis=0)
    assert np.sum(functions_of(corner, knots) > largest_of_runs + 1e-9) == 2


def test_without_a_prior_the_runs_decide_alone():
    """Losses fall more slowly with N, and to a lower constant, than those of any lab."""
    law = ChinchillaLaw(m=0.4 * 1e9**0.12, mu=-0.12, n=0.4 * 2e10**0.3, nu=-0.3, c=0.5)
    runs = sweep(sizes=5e7 * 2.0 ** np.arange(7), noise=0.001, law=law)
    alone, public = (forecast(runs, FAR, prior=prior).rows[0] for prior in (None, "public"))
    truth = law.loss(1e10, 3e11)
    assert abs(alone["loss"] - truth) <= abs(public["loss"] - truth) + 0.002
    assert alone["low"] < truth < alone["high"]


def test_intervals_hold_the_runs_of_laws_that_the_prior_did_not_see():
    rng, inside = np.random.default_rng(3), []
    for seed in range(20):
        mu, nu = -rng.uniform(0.25, 0.4, 2)
        law = ChinchillaLaw(m=0.45 * 1e9**-mu, mu=mu, n=0.4 * 2e10**-nu, nu=nu, c=rng.uniform(1.5, 1.9))
        runs = sweep(sizes=(5e7, 2e8, 8e8), ratios=(5, 20, 80), seed=seed, law=law)
        row = forecast(runs, {"n_active": 3e9, "tokens": 1e11}).rows[0]
        inside.append(row["low"] < law.loss(3e9, 1e11) < row["high"])
    assert np.mean(inside) >= 0.8


@pytest.mark.parametrize(("slope", "other", "share"), [(1.0, 0.0, 1.0), (0.0, 0.1, 0.0), (-1.0, 0.1, 0.7071)])
def test_the_share_of_the_constant_is_what_its_quartiles_move(slope, other, share):
    """ln L is a slope times ln c, whose deviation is 0.1, and a normal part that c does not know."""
    rng = np.random.default_rng(0)
    log_constants, rest = 0.1 * rng.standard_normal(20_000), other * rng.standard_normal(20_000)
    draws = (slope * log_constants + rest)[:, None]

    class Law:
        noise = 1e-9

        class problem:
            class objective:
                names = ("c",)
                form = Form((Term("c"),))
                coefficients = staticmethod(np.exp)

        def forecast(self, points, count):
            return draws, log_constants[:, None]

    prediction = forecasting._predict(Law(), [None])
    assert prediction.share_of_constant[0] == pytest.approx(share, abs=0.02)


# ------------------------------------------------------------------ what the runs cannot tell


def test_one_run_gives_a_wide_interval_that_says_why(answer):
    one = forecast(sweep(sizes=(1e8,), ratios=(20,)), FAR)
    assert any("one run tells the level" in warning for warning in one.warnings)
    (row,) = one.rows
    assert row["high"] / row["low"] > answer.rows[1]["high"] / answer.rows[1]["low"]


@pytest.mark.parametrize(
    ("design", "warning"),
    [
        ({"sizes": (2e8,), "ratios": (2, 5, 20, 80)}, "all runs have one size"),
        ({"ratios": (20,)}, "all runs have 20 tokens per parameter: they cannot tell N from D"),
    ],
)
def test_blind_spots_are_named(design, warning):
    assert any(warning in text for text in forecast(sweep(**design), FAR).warnings)


def test_losses_in_another_unit_are_noticed():
    runs = sweep()
    bits = dataclasses.replace(runs, loss=runs.loss / np.log(2) / 4.4)
    asked = forecast(bits, FAR)
    assert any("as bits per byte or character are" in warning for warning in asked.warnings)
    assert any("the prior's scale is left free" in warning for warning in asked.warnings)
    row = asked.rows[0]
    assert row["low"] < LAW.loss(1e10, 3e11) / np.log(2) / 4.4 < row["high"]


def test_an_unseen_number_of_experts_is_said_and_not_trusted():
    asked = forecast(sweep(), FAR | {"experts": [1, 64]})
    assert any("no run has E = 64" in warning for warning in asked.warnings)
    assert not asked.trusted
    dense, sparse = asked.rows
    assert sparse["loss"] < dense["loss"]
    assert sparse["high"] / sparse["low"] > dense["high"] / dense["low"]


def test_nearly_equal_numbers_of_experts_are_one():
    runs = sweep()
    blurred = dataclasses.replace(runs, experts=11 + 0.5 * (np.arange(len(runs)) % 2))
    asked = forecast(blurred, FAR)
    assert asked.kind == "interaction"
    assert 11 <= asked.rows[0]["experts"] <= 11.5
    assert asked.rows[0]["loss"] == pytest.approx(forecast(runs, FAR).rows[0]["loss"])


def test_runs_of_several_experts_support_the_joint_law():
    runs = synthetic_runs(sigma=0.002)
    runs = runs.take(np.arange(0, len(runs), 2))
    asked = forecast(runs, {"n_active": 5e9, "tokens": 1e11, "experts": 8})
    assert asked.kind == "joint"
    assert asked.rows[0]["loss"] == pytest.approx(float(JointLaw.published().loss(5e9, 1e11, 8)), rel=0.01)


def test_points_may_be_a_table(answer):
    import pandas

    table = pandas.DataFrame({"n_active": [1e9, 1e10], "tokens": [2e10, 3e11]})
    assert forecast(sweep(), table).to_rows() == [pytest.approx(row) for row in answer.rows]
    points = load_runs([{"n_active": 1e10, "tokens": 3e11, "experts": 1, "loss": 2.0}])
    assert forecast(sweep(), points).rows[0] == pytest.approx(answer.rows[1])


MODEL = {"n_active": 1e9, "tokens": 1e10}
BAD_INPUT = [
    ({"at": {"n_active": 1e9}}, "tokens must be given"),
    ({"at": MODEL | {"tokens": -1}}, "tokens=-1 must be positive"),
    ({"at": MODEL | {"experts": 0}}, "experts=0 must be at least 1"),
    ({"at": MODEL | {"expert": 8}}, "'expert' is unknown: did you mean 'experts'"),
    ({"at": {"n_active": [1e9, 2e9], "tokens": [1e10] * 3}}, r"n_active of \[2\], tokens of \[3\]: arrays must"),
    ({"at": []}, "no model to forecast"),
    ({"at": sweep().subset(np.zeros(15, bool))}, "no model to forecast"),
    ({"at": "2B"}, "must map n_active"),
    ({"prior": "privat"}, "prior='privat' must be 'public'"),
    ({"kind": "interactoin"}, "did you mean 'interaction'"),
    ({"level": 1.5}, r"level=1\.5"),
    ({"level": "0.9"}, "level='0.9' must be a number"),
]


@pytest.mark.parametrize(("options", "words"), BAD_INPUT)
def test_bad_input_is_one_line_that_names_it(options, words):
    with pytest.raises(ValueError, match=words) as error:
        forecast(**{"runs": sweep(), "at": MODEL} | options)
    assert "\n" not in str(error.value)
