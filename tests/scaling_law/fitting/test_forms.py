"""Forms over any variables, of every law and of two of our own: a squared logarithm, and a transform of one's own."""

from dataclasses import make_dataclass

import numpy as np
import pytest

from scaling_law import Law, Runs, fit, published, register
from scaling_law.fitting.problem import make_problem
from scaling_law.formulas import Form, Parameter, Term, Transform
from scaling_law.law import LAWS
from scaling_law.law.base import register_form
from tests.conftest import sweep
from tests.scaling_law.formulas.test_laws import EXAMPLES, columns, inputs_of  # noqa: F401 (a fixture)
from tests.scaling_law.synthetic import checked_gradient

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
OUR_OWN = {
    "squares": (SQUARES, {"a": 40.0, "alpha": 0.17, "p": -0.2, "q": 0.04, "c": 1.3}),
    "transformed": (TRANSFORMED, {"a": 40.0, "alpha": 0.15, "delta": 0.3, "b": 50.0, "beta": 0.17, "half": 0.5}),
}
EVERY = {law.name: law for law in EXAMPLES if law.form.terms} | OUR_OWN


def written_out(name, v, n, d, density):
    """The same losses without any of the package's code."""
    if name == "squares":
        return v["a"] / n ** v["alpha"] * density ** v["p"] * np.exp(v["q"] * np.log(density) ** 2) + v["c"]
    worth = density / (density + v["half"])
    return v["a"] / n ** v["alpha"] / worth ** v["delta"] + v["b"] / d ** v["beta"]


@pytest.fixture
def law(request):
    """The law of a name; a kind of our own is known while the test runs."""
    name = request.param
    if name not in OUR_OWN:
        yield EVERY[name]
        return
    form, values = OUR_OWN[name]
    if form.is_data:
        yield register_form(name, {"form": form.to_dict()})(**values)
    else:
        kind = make_dataclass(name, [(c, float) for c in form.coefficients], bases=(Law,), frozen=True, repr=False)
        kind.name, kind.formula, kind.form = name, name, form
        yield register(kind)(**values)
    LAWS.pop(name)


def runs_of(law, columns, noise=0.0):  # noqa: F811
    """Runs with all columns and the losses of the law."""
    losses = law.loss(**inputs_of(law, columns))
    losses = losses * np.exp(np.random.default_rng(1).normal(0, noise, len(losses)))
    sizes = ("n_active", "tokens", "experts")
    others = {name: values for name, values in columns.items() if name not in sizes}
    return Runs.from_columns(*(columns[name] for name in sizes), losses, "run", columns=others)


def every_other(columns):  # noqa: F811
    return {name: values[::2] for name, values in columns.items()}


@pytest.mark.parametrize("law", OUR_OWN, indirect=True)
def test_values_are_those_of_the_formula(law, columns):  # noqa: F811
    expected = written_out(law.name, law.coefficients, *(columns[name] for name in ("n_active", "tokens", "density")))
    np.testing.assert_allclose(runs_of(law, columns).loss, expected, rtol=1e-12)


@pytest.mark.parametrize("law", EVERY, indirect=True)
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("away", [0.01, 0.1], ids=["near", "far"])
def test_gradients_against_finite_differences(law, columns, limited, away):  # noqa: F811
    fixed = {next(iter(law.coefficients)): next(iter(law.coefficients.values()))} if limited else {}
    runs = runs_of(law, columns, 0.01)
    objective = make_problem(runs, law.name, fixed=fixed).objective
    theta = objective.from_coefficients(law.coefficients)
    np.testing.assert_allclose(objective.coefficients(theta), list(law.coefficients.values()), rtol=1e-9)
    moved = theta + np.random.default_rng(1).normal(0, away, (4, objective.size))
    at = checked_gradient(objective, moved, rtol=1e-5)
    assert np.linalg.eigvalsh(at.curvature).min() > -1e-9 * np.abs(at.curvature).max()


@pytest.mark.parametrize("law", EVERY, indirect=True)
def test_a_fit_finds_the_law_that_made_the_runs(law, columns):  # noqa: F811
    at = inputs_of(law, columns)
    result = fit(runs_of(law, every_other(columns)), kind=law.name)
    assert result.status.converged
    np.testing.assert_allclose(result.law.loss(**at), law.loss(**at), rtol=1e-5)


# Of the laws with most starts, `test_fit_of_the_papers_design` fits noisy runs, too.
@pytest.mark.parametrize("law", sweep(EVERY, {*EVERY} - {"crossing", "joint", "saturation"}), indirect=True)
def test_a_fit_to_noisy_runs_converges(law, columns):  # noqa: F811
    noisy = fit(runs_of(law, every_other(columns), 0.003), kind=law.name)
    assert noisy.status.converged
    assert noisy.rmse < 0.004 * noisy.runs.loss.mean()


@pytest.mark.parametrize(
    ("law", "variable", "left_open"),
    [
        ("granularity", "granularity", "gamma"),
        ("sparsity", "density", "delta, lambda_"),
        ("transformed", "density", "delta, half"),
    ],
    indirect=["law"],
)
def test_a_constant_column_is_named_with_what_it_leaves_open(law, variable, left_open, columns):  # noqa: F811
    constant = columns | {variable: np.full_like(columns[variable], 0.5)}
    with pytest.raises(ValueError, match=rf"all runs have {variable}=0.5: {left_open} are not identifiable"):
        fit(runs_of(law, constant), kind=law.name)


def test_runs_without_a_variable_of_the_law_are_refused(columns):  # noqa: F811
    runs = runs_of(published("abnar"), columns)
    others = {"n_total": columns["n_total"]}
    with pytest.raises(ValueError, match=r"the \w+ law reads density, which these runs do not have"):
        fit(Runs.from_columns(runs.n_active, runs.tokens, 1.0, runs.loss, "run", columns=others), kind="sparsity")
