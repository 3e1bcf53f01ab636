"""A run that lies above a shorter one of its model, or far from the others, is named by fits and forecasts."""

import numpy as np
import pytest

from scaling_law import ChinchillaLaw, Runs, fit, forecast

LAW = ChinchillaLaw(m=406.0, mu=-0.34, n=410.0, nu=-0.28, c=1.7)
N = np.repeat([5e7, 1e8, 2e8, 4e8], 4)[:14]
D = N * np.tile([10, 20, 40, 80], 4)[:14]
LOSS = LAW.loss(N, D) * np.exp(0.002 * np.random.default_rng(1).standard_normal(14))
FAR = {"n_active": 1e9, "tokens": 2e10}


def table(**wrong):
    """Return the runs, some of which have another loss."""
    loss = LOSS.copy()
    for name, value in wrong.items():
        loss[int(name.removeprefix("r"))] = value
    return Runs.from_columns(N, D, 1.0, loss, run_id=[f"r{i}" for i in range(14)])


def said(warnings, topic):
    return [text for text in warnings if topic in text]


@pytest.mark.parametrize(("run", "loss", "pair"), [("r5", 3.9465, "54"), ("r2", 3.0714, "32"), ("r13", 8.2736, "")])
def test_a_loss_with_two_digits_swapped_is_named(run, loss, pair):
    runs = table(**{run: loss})
    longer, shorter = [f"r{i}" for i in pair] or ["r13", "r12"]
    topic = f"run {longer} lies above {shorter}, a shorter run of its model"
    (warning,) = said(runs.warnings, topic)
    assert warning.topic == topic
    for warnings in (fit(runs, "chinchilla").warnings, forecast(runs, FAR, kind="chinchilla").warnings):
        assert said(warnings, topic[1:])
        assert said(warnings, f"{run} lies far from the law of the others") or said(warnings, f"{run} (")


def test_a_loss_that_no_shorter_run_contradicts_is_far_from_the_others():
    runs = table(r13=2.7836)
    assert not runs.warnings
    (text,) = said(forecast(runs, FAR, kind="chinchilla").warnings, "far from the law of the others")
    assert text.startswith("run r13 lies far")
    (text,) = said(fit(runs, "chinchilla").warnings, "far from the law of the others")
    assert text.topic == "run r13 lies far from the law of the others"


def test_sound_runs_and_runs_of_many_recipes_are_not_named():
    assert not table().warnings
    assert not said(forecast(table(), FAR, kind="chinchilla").warnings, "others")
    mixed = Runs.from_columns(N, D, 1.0, LOSS * np.tile([1.0, 1.2], 7))
    assert not said(mixed.warnings, "of its model")
