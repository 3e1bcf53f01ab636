"""Runs left out in turn: nothing of a run is in what predicts it, and the nearest runs are those of brute force."""

import math

import numpy as np
import pytest

from scaling_law import JointLaw, load_runs
from studies.common import rms
from studies.demo_runs.left_out import (
    OTHER_E,
    OTHER_SIZE,
    OTHER_TOKENS,
    PLANE,
    LeftOut,
    leave_out_each,
    left_out_table,
    predict_without_law,
)

LAW = JointLaw.published().replace(a=5.2, alpha=-0.11, b=9200.0, beta=-0.71, c=0.1, conditions=None)
SIZES = ((40_000, 1), (40_000, 8), (140_000, 1), (140_000, 8), (300_000, 1))
TOKENS = (1e6, 2e6, 4e6)


def runs_of(loss=LAW.loss):
    rows = []
    for n_active, experts in SIZES:
        for tokens in TOKENS:
            rows.append(
                {
                    "run_id": f"{n_active}-{experts}-{tokens:g}",
                    "parent_run_id": f"{n_active}-{experts}",
                    "n_active": n_active,
                    "tokens": tokens,
                    "experts": experts,
                    "eval_loss": float(loss(n_active, tokens, experts)),
                }
            )
    return load_runs(rows)


@pytest.mark.parametrize("leaves_model", [False, True])
def test_the_nearest_runs_are_those_of_brute_force(leaves_model):
    runs = runs_of()
    group = runs.trunk if leaves_model else np.arange(len(runs))
    predictions = predict_without_law(runs, group)
    rows = list(zip(runs.n_active, runs.experts, runs.tokens, runs.loss, group, strict=True))
    for i, (n, e, d, _, g) in enumerate(rows):
        expected = {OTHER_E: {}, OTHER_SIZE: {}, OTHER_TOKENS: {}}
        for n2, e2, d2, loss, g2 in rows:
            is_other = {OTHER_SIZE: n2 != n, OTHER_E: e2 != e, OTHER_TOKENS: d2 != d}
            differences = [name for name, differs in is_other.items() if differs]
            if g2 != g and len(differences) == 1:
                distance = abs(math.log(n2 / n)) + abs(math.log(e2 / e)) + abs(math.log(d2 / d))
                expected[differences[0]].setdefault(distance, loss)
        for name, losses in expected.items():
            nearest = losses[min(losses)] if losses else math.nan
            assert predictions[name][i] == pytest.approx(nearest, nan_ok=True)


def test_a_plane_in_the_logarithms_predicts_its_own_losses():
    runs = runs_of(lambda n, d, e: 9.0 * n**-0.05 * d**-0.07 * e**-0.02)
    for group in (np.arange(len(runs)), runs.trunk):
        assert predict_without_law(runs, group)[PLANE] == pytest.approx(runs.loss)


def test_the_loss_of_a_run_is_in_none_of_its_predictions():
    runs = runs_of()
    for i, name in enumerate(runs.run_id):
        changed = runs_of(lambda n, d, e, name=name: LAW.loss(n, d, e) + 9.0 * (f"{n}-{e}-{d:g}" == name))
        for group in (np.arange(len(runs)), runs.trunk):
            before = predict_without_law(runs, group)
            after = predict_without_law(changed, group)
            for source, losses in before.items():
                assert after[source][i] == pytest.approx(losses[i], nan_ok=True)


class OneLaw:
    """A fit that answers with the mean loss of the runs that it was given, and records them."""

    def __init__(self, runs, fits):
        self.mean = runs.loss.mean()
        fits.append(set(runs.run_id))

    def errors_on(self, runs):
        return self.mean - runs.loss

    def bootstrap(self, draws):
        return self

    def prediction_interval(self, n_active, tokens, experts, kind):
        assert kind == "prediction"
        shape = np.shape(n_active)
        return np.full(shape, self.mean - 0.1), np.full(shape, self.mean + 0.1)


def test_each_run_and_each_model_is_predicted_once_by_the_others():
    runs = runs_of()
    fits = []
    by_run, by_model = leave_out_each(runs, lambda table: OneLaw(table, fits), 10)
    left_out = [set(runs.run_id) - fitted for fitted in fits]
    assert left_out[: len(runs)] == [{name} for name in runs.run_id]
    models = [{f"{n}-{e}-{tokens:g}" for tokens in TOKENS} for n, e in SIZES]
    assert sorted(map(sorted, left_out[len(runs) :])) == sorted(map(sorted, models))
    for i, name in enumerate(runs.run_id):
        assert by_run.law[i] == pytest.approx(np.delete(runs.loss, i).mean())
        is_other = runs.trunk != runs.trunk[i]
        assert by_model.law[i] == pytest.approx(runs.loss[is_other].mean()), name
    held = np.abs(by_run.errors) <= 0.1
    assert 0 < by_run.n_covered == held.sum() < len(runs)


def test_the_table_compares_over_the_runs_that_have_both():
    loss = np.array([1.0, 2.0, 3.0, 4.0])
    without_law = {
        OTHER_E: np.array([1.2, 2.05, np.nan, np.nan]),
        OTHER_SIZE: np.full(4, np.nan),
        OTHER_TOKENS: loss + 0.3,
        PLANE: loss - 0.05,
    }
    law = np.array([1.1, 2.1, 3.1, 3.5])
    high = np.array([2.0, 3.0, 2.5, 5.0])
    sweep = LeftOut("each run", tuple("abcd"), loss, law, loss - 1.0, high, without_law)
    both = LeftOut.concatenate([sweep, sweep])
    table = left_out_table([both])
    assert [tuple(row) for row in table.rows] == [
        ("each run", OTHER_E, "0.100", "0.100", "0.125", f"{rms(np.array([0.2, 0.05])):.3f}", "2 of 4"),
        ("each run", OTHER_TOKENS, "0.100", "0.265", "0.300", "0.300", "6 of 8"),
        ("each run", PLANE, "0.100", "0.265", "0.050", "0.050", "0 of 8"),
    ]
    assert "6 of 8" in table.notes[0]
