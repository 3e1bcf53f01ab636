"""Nonsense for each argument of the public functions: an answer or one InputError, never an error of Python's own."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Collection
from typing import Annotated, Any

import numpy as np
import pytest

import scaling_law
from hub.base.errors import HubError, InputError
from hub.base.fields import Field, reads
from scaling_law import (
    Architecture,
    ChinchillaLaw,
    ExtrapolationError,
    JointLaw,
    LiveForecast,
    Runs,
    Throughput,
    TrainingCurve,
    backtest,
    compare,
    diagnose,
    errors_of,
    fit,
    fit_learning_rate,
    fit_throughput,
    forecast,
    hold_out,
    live,
    load_runs,
    prior,
    promote,
    published,
    scale_out,
    speedup,
)
from scaling_law.planning.question import QuestionFields

pytestmark = pytest.mark.usefixtures("shared_searches")

NONSENSE = [None, True, "", "x", "nan", 0, -1, -1.5, float("nan"), float("inf"), 1e300, 1e-300, 10**400]
NONSENSE += [[], ["x"], [None], [[1, 2], [3]], {}, {"a": 1}, object(), b"x", 1j, np.array([]), np.array(3), set()]
LAW, DENSE = JointLaw.published().replace(draws=None), published("chinchilla")
RNG = np.random.default_rng(0)
N = 10 ** RNG.uniform(7.9, 9.4, 24)
D = N * 10 ** RNG.uniform(0, 1.8, 24)
RUNS = Runs.from_columns(N, D, 1.0, DENSE.loss(N, D) + RNG.normal(0, 0.003, 24))
ROWS = [
    dict(zip(("n_active", "tokens", "experts", "eval_loss"), row, strict=True))
    for row in zip(N, D, N / N, RUNS.loss, strict=True)
]
FITTED = fit(RUNS, "chinchilla")
DRAWN = FITTED.bootstrap(3)
MODEL, MEASURED = Architecture(512, 8), Throughput("a GPU", "bf16", {"flops": 1e-14}, devices=8)
LOG = [{"step": i, "tokens": 1e6 * i, "loss": 3.0 - 1e-4 * i} for i in range(1, 300)]
CURVE = {"tokens": [1e8, 2e8, 3e8], "losses": [4.0, 3.5, 3.0], "horizon": 1e9, "model": {"n_active": 1e8}}
RATES = Runs.from_columns(
    np.repeat([1e8, 2e8, 4e8], 3), 1e9, 1.0, [3.1, 3.0, 3.1] * 3, columns={"learning_rate": [1e-3, 2e-3, 4e-3] * 3}
)
HOURS = {"hours": 72, "gpus": 8, "gpu": "h100"}


def one_row(**fields):
    """Read a table whose first row has other values."""
    return load_runs([{**ROWS[0], **fields}, *ROWS[1:]])


def at(**model):
    return forecast(RUNS, model)


CALLS = [
    (LAW.loss, {"n_active": 1e9, "tokens": 2e10, "experts": 8}),
    (LAW.check, {"n_active": 1e9, "tokens": 2e10, "experts": 8}),
    (LAW.warnings, {"n_active": 1e9, "tokens": 2e10, "experts": 8}),
    (LAW.optimal, {"flops": 1e21, "experts": [1, 8]}),
    (LAW.optimal, {**HOURS, "experts": [1]}),
    (LAW.compute_optimal, {"flops": 1e21}),
    (LAW.reach, {"loss": 2.6, "experts": [1]}),
    (LAW.speedup, {"model": 8, "flops": 1e21}),
    (LAW.speedup, {"model": 8, "n_active": 1e9}),
    (ChinchillaLaw, DENSE.coefficients),
    (Architecture, {"d_model": 512, "experts": 8}),
    (compare, {"flops": 1e21, "laws": ["chinchilla"]}),
    (fit, {"runs": RUNS, "kind": "chinchilla", "starts": [FITTED.law]}),
    (fit_learning_rate, {"runs": RATES, "extras": (), "draws": 2}),
    (fit_throughput, {"measurements": [], "device": "x", "precision": "bf16"}),
    (forecast, {"runs": RUNS, "at": {"n_active": "2B", "tokens": "1T"}, "kind": "chinchilla"}),
    (at, {"n_active": 1e9, "tokens": 1e12, "experts": 1}),
    (load_runs, {"source": ROWS}),
    (one_row, dict.fromkeys(("n_active", "tokens", "experts", "eval_loss", "vocab_size", "d_model", "optimizer"), 3)),
    (one_row, dict.fromkeys(("trunk", "seed", "schedule", "parent_run_id"), 3)),
    (Runs.from_columns, {"n_active": N, "tokens": D, "experts": 1.0, "loss": RUNS.loss}),
    (RUNS.column, {"name": "loss"}),
    (speedup, {"runs": RUNS, "baseline": RUNS}),
    (live, {"source": LOG, "n_active": 1e8, "tokens": 1e9, "schedule": "cosine", "law": DENSE}),
    (diagnose, {"model": MODEL, "tokens_per_second": 1e5, "gpu": "h100"}),
    (promote, {"baseline": RUNS, "variant": RUNS}),
    (prior, {"name": "public"}),
    (published, {"name": "chinchilla"}),
    (scale_out, {"model": MODEL}),
    (hold_out, {"runs": RUNS, "test": 5}),
    (backtest, {"train": RUNS, "test": RUNS, "laws": {"c": DENSE}}),
    (errors_of, {"law": DENSE, "runs": RUNS}),
    (FITTED.bootstrap, {"n_resamples": 2}),
    (DRAWN.interval, {"coefficient": "mu"}),
    (DRAWN.prediction_interval, {"n_active": 1e9, "tokens": 1e10, "experts": 1}),
    (TrainingCurve, CURVE),
    (LiveForecast, {"finished": (), "law": DENSE}),
    (LiveForecast((), DENSE).of, {"curve": TrainingCurve(**CURVE)}),
    (Throughput, {"device": "a GPU", "precision": "bf16", "seconds": {"flops": 1e-14}}),
    (Throughput.assumed, {"gpu": "h100"}),
    (MEASURED.step_seconds, {"model": MODEL, "tokens_per_step": 1e6}),
]
ELSEWHERE = {  # tested in rooms of their own, or without arguments
    "describe": "its sources and tokens: tests/scaling_law/test_refused.py",
    "explore": "starts a server",
    "register": "takes a class",
    "laws": "takes nothing",
    "published_design": "takes nothing",
    "question_schema": "takes nothing",
    "memory_optimal": "draws: tests/scaling_law/figures",
}


def parameters(function, arguments):
    """The names of all that a call may give, with keywords of questions."""
    names = dict.fromkeys(arguments)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            names[parameter.name] = None
        elif "QuestionFields" in str(parameter.annotation):
            names |= dict.fromkeys(QuestionFields.__annotations__)
    return list(names)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize(
    ("function", "arguments"), CALLS, ids=[f"{i}-{function.__qualname__}" for i, (function, _) in enumerate(CALLS)]
)
def test_nonsense_is_answered_or_refused_in_words(function, arguments, step, tmp_path, monkeypatch):
    """Each argument has every fourth value, from another one on."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for i, name in enumerate(parameters(function, arguments)):
            for value in NONSENSE[i % step :: step]:
                try:
                    function(**{**arguments, name: value})
                except (InputError, HubError, ExtrapolationError, FileNotFoundError):
                    continue
                except Exception as error:
                    pytest.fail(f"{name}={str(value)[:40]}: {type(error).__name__}: {error}")


def test_every_public_function_stands_here():
    public = {name for name in dir(scaling_law) if inspect.isfunction(getattr(scaling_law, name))}
    called = {function.__name__ for function, _ in CALLS}
    assert public - called == {*ELSEWHERE}


# ------------------------------------------------------------------ the parsers


@reads
def example(
    runs: Runs,
    level: float = 0.9,
    seed: Annotated[int, Field(ge=0, le=9)] = 0,
    count: int | None = None,
    force: bool = False,
    names: str | Collection[str] = (),
    **further: Any,
):
    return runs, level, seed, count, force, names, further


def test_good_values_pass_and_keep_what_they_are():
    values = example(RUNS, np.float64(0.5), np.int64(3), None, np.bool_(True), ["a"], other=object)
    assert values == (RUNS, 0.5, 3, None, True, ("a",), {"other": object})
    assert example(RUNS, count=4.0)[3] == 4
    assert isinstance(example(RUNS, count=4.0)[3], int)
    assert inspect.signature(example).parameters["level"].default == 0.9


REFUSED = [
    ({"runs": 3}, "runs=3 must be a Runs"),
    ({"level": "high"}, "level='high' must be a number"),
    ({"level": True}, "level=True must be a number"),
    ({"seed": 10}, "seed=10 must be a whole number of at least 0 and at most 9"),
    ({"count": 1.5}, "count=1.5 must be a whole number, or None"),
    ({"count": 10**400}, "count=1…, of 401 digits must be a number, finite and up to 1e+60"),
    ({"force": 1}, "force=1 must be True or False"),
    ({"names": [1]}, "names=[1] must be text or a list of names"),
    ({"names": None}, "names=None must be text or a list of names"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[words[:30] for _, words in REFUSED])
def test_a_value_of_another_type_is_named_with_what_is_allowed(arguments, words):
    with pytest.raises(InputError, match=re.escape(words)):
        example(**{"runs": RUNS, **arguments})
