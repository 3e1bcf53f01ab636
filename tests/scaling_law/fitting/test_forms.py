"""Forms over any variables: shared and fixed coefficients, products, transforms, an outer exponent."""

from dataclasses import make_dataclass

import numpy as np
import pytest

from scaling_law import Law, Runs, fit, register
from scaling_law.fitting.problem import make_problem
from scaling_law.formulas import Form, Parameter, Term, Transform
from scaling_law.law import LAWS
from tests.scaling_law.synthetic import checked_gradient

SHARED = Form(
    (
        Term("g", {"granularity": "-gamma", "n_active": "-alpha"}),
        Term("a", {"n_active": "-alpha"}),
        Term("b", {"tokens": "-beta"}),
        Term("c"),
    )
)
FIVE = Form(
    (
        Term("a", {"n_active": "-alpha"}),
        Term("b", {"tokens": "-beta"}),
        Term("s", {"density": "-lambda_"}),
        Term("d", {"density": "-delta", "n_active": "-gamma"}),
        Term("c"),
    )
)
OUTER = Form((Term("a", {"n_active": "-x"}), Term("b", {"tokens": -1.0})), outer="alpha_d")
POWERED = Form((Term("c"), Term("a", {"n_active": "-x"}), Term("b", {"tokens": "-y"})), outer="q")
SQUARES = Form((Term("a", {"n_active": "-alpha", "density": "p", "density*density": "q"}), Term("c")))
SATURATION = Transform(
    "worth",
    ("density",),
    (Parameter("half", floor=0.0, box=(1e-3, 1e3)),),
    lambda density, half: np.log(density / (density + half)),
    lambda density, half: (np.log(density / (density + half)), -1.0 / (density + half)),
    starts=((0.3,), (3.0,)),
)
TRANSFORMED = Form(
    (Term("a", {"n_active": "-alpha", "worth": "-delta"}), Term("b", {"tokens": "-beta"})), (SATURATION,)
)
LAWS_OF_FORMS = {
    "shared": (SHARED, {"g": 2.1, "gamma": 0.58, "alpha": 0.115, "a": 18.1, "b": 30.8, "beta": 0.147, "c": 0.47}),
    "five": (
        FIVE,
        {"a": 1612.5, "alpha": 0.45, "b": 545.0, "beta": 0.31, "s": 0.4598, "lambda_": -0.1666, "d": 17.26}
        | {"delta": 0.1603, "gamma": 0.1595, "c": 0.94},
    ),
    "outer": (OUTER, {"a": 1.5e10, "x": 0.738, "b": 1.8e13, "alpha_d": 0.103}),
    "powered": (POWERED, {"c": 1.7, "a": 3.5e5, "x": 0.72, "b": 1.1e6, "y": 0.65, "q": 0.45}),
    "squares": (SQUARES, {"a": 40.0, "alpha": 0.17, "p": -0.2, "q": 0.04, "c": 1.3}),
    "transformed": (TRANSFORMED, {"a": 40.0, "alpha": 0.15, "delta": 0.3, "b": 50.0, "beta": 0.17, "half": 0.5}),
}


def written_out(name, v, n, d, density, granularity):
    """The same losses without any of the package's code."""
    match name:
        case "shared":
            return (v["g"] / granularity ** v["gamma"] + v["a"]) / n ** v["alpha"] + v["b"] / d ** v["beta"] + v["c"]
        case "five":
            by_density = v["s"] / density ** v["lambda_"] + v["d"] / (density ** v["delta"] * n ** v["gamma"])
            return v["a"] / n ** v["alpha"] + v["b"] / d ** v["beta"] + by_density + v["c"]
        case "outer":
            return (v["a"] / n ** v["x"] + v["b"] / d) ** v["alpha_d"]
        case "powered":
            return v["c"] + (v["a"] / n ** v["x"] + v["b"] / d ** v["y"]) ** v["q"]
        case "squares":
            return v["a"] / n ** v["alpha"] * density ** v["p"] * np.exp(v["q"] * np.log(density) ** 2) + v["c"]
    worth = density / (density + v["half"])
    return v["a"] / n ** v["alpha"] / worth ** v["delta"] + v["b"] / d ** v["beta"]


def kind_of(name, form):
    """A class of laws of this form."""
    kind = make_dataclass(name, [(c, float) for c in form.coefficients], bases=(Law,), frozen=True, repr=False)
    kind.name, kind.formula, kind.form = name, name, form
    return kind


@pytest.fixture(params=LAWS_OF_FORMS)
def law(request):
    form, values = LAWS_OF_FORMS[request.param]
    yield register(kind_of(request.param, form))(**values)
    LAWS.pop(request.param)


@pytest.fixture
def columns():
    random = np.random.default_rng(0)
    shape = 160
    n, d = 10 ** random.uniform(6, 10, shape), 10 ** random.uniform(8, 12, shape)
    return n, d, random.choice([0.02, 0.1, 0.25, 0.5, 1.0], shape), random.choice([1.0, 2.0, 4.0, 8.0, 16.0], shape)


def runs_of(law, columns, noise=0.0):
    n, d, density, granularity = columns
    own = {"n_active": n, "tokens": d, "density": density, "granularity": granularity}
    losses = law.loss(**{name: own[name] for name in law.form.variables})
    losses = losses * np.exp(np.random.default_rng(1).normal(0, noise, len(n)))
    return Runs.from_columns(n, d, 1.0, losses, "run", columns={"density": density, "granularity": granularity})


def test_values_are_those_of_the_formula(law, columns):
    np.testing.assert_allclose(
        runs_of(law, columns).loss, written_out(law.name, law.coefficients, *columns), rtol=1e-12
    )


@pytest.mark.parametrize("limited", [False, True])
def test_gradients_against_finite_differences(law, columns, limited):
    fixed = {next(iter(law.coefficients)): next(iter(law.coefficients.values()))} if limited else {}
    runs = runs_of(law, columns, 0.01)
    objective = make_problem(runs, law.name, l2=1e-6, fixed=fixed).objective
    theta = objective.from_coefficients(law.coefficients)
    np.testing.assert_allclose(objective.coefficients(theta), list(law.coefficients.values()), rtol=1e-9)
    checked_gradient(objective, theta + np.random.default_rng(1).normal(0, 0.01, (4, objective.size)), rtol=1e-5)


def test_a_fit_finds_the_law_that_made_the_runs(law, columns):
    result = fit(runs_of(law, columns), kind=law.name)
    assert result.status.converged
    np.testing.assert_allclose(result.law.loss(**inputs_of(result)), result.runs.loss, rtol=1e-4)
    noisy = fit(runs_of(law, columns, 0.003), kind=law.name)
    assert noisy.status.converged
    assert noisy.rmse < 0.004 * noisy.runs.loss.mean()


def inputs_of(result):
    return {name: result.runs.column(name) for name in result.law.form.variables}


@pytest.mark.parametrize(("name", "column"), [("shared", 3), ("five", 2), ("transformed", 2)])
def test_a_constant_column_is_named_with_what_it_leaves_open(name, column, columns):
    form, values = LAWS_OF_FORMS[name]
    kind = kind_of(name, form)
    try:
        columns = [*columns]
        columns[column] = np.full_like(columns[column], 0.5)
        variable = ("n_active", "tokens", "density", "granularity")[column]
        open_ones = {"shared": "gamma", "five": "delta, lambda_", "transformed": "delta, half"}[name]
        with pytest.raises(ValueError, match=rf"all runs have {variable}=0.5: {open_ones} are not identifiable"):
            fit(runs_of(register(kind)(**values), columns), kind=name)
    finally:
        LAWS.pop(name, None)


def test_runs_without_a_variable_of_the_law_are_refused(columns):
    kind = kind_of("five", FIVE)
    try:
        runs = runs_of(register(kind)(**LAWS_OF_FORMS["five"][1]), columns)
        with pytest.raises(ValueError, match="density"):
            fit(Runs.from_columns(runs.n_active, runs.tokens, 1.0, runs.loss, "run"), kind="five")
    finally:
        LAWS.pop("five", None)
