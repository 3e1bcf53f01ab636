"""Bad runs: named always, set aside only when asked, at any part of the runs up to the breakdown."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from hub.base.tables import as_text
from scaling_law import JointLaw, Runs, fit
from scaling_law.law_files import law_card
from tests.conftest import sweep
from tests.scaling_law.synthetic import TINY_LAW, synthetic_runs, tiny_runs

LAW = JointLaw.published()


def corrupted(runs, part, nats=0.3, seed=5):
    """The runs with `part` of them off by `nats`, and which these are."""
    hit = np.random.default_rng(seed).choice(len(runs), round(part * len(runs)), replace=False)
    loss = runs.loss.copy()
    loss[hit] += nats
    return replace(runs, loss=loss), hit


def moved(result, reference, runs):
    """By how much the two laws differ at most on the sizes of the runs."""
    at = (runs.n_active, runs.tokens, runs.experts)
    return float(np.abs(result.law.loss(*at) - reference.law.loss(*at)).max())


@pytest.mark.parametrize("part", sweep([0.05, 0.09, 0.10, 0.11, 0.12, 0.20, 0.28], [0.05, 0.11, 0.28]))
def test_bad_runs_set_aside_hardly_move_the_rest_at_any_part(paper_runs, paper_fit, part):
    runs, hit = corrupted(paper_runs, part)
    result = fit(runs, outliers="set_aside", starts=[LAW])
    assert set(result.status.set_aside) == {runs.run_id[i] for i in hit}
    assert moved(result, paper_fit, paper_runs) < 0.004, "kept, a tenth of such runs moves it by 0.01 to 0.05"
    assert result.rmse == pytest.approx(0.0059, abs=4e-4)
    assert result.status.converged


@pytest.mark.parametrize(
    ("part", "seed"), sweep([*product([0.06, 0.12, 0.2], range(3))], [(0.06, 0), (0.12, 1), (0.2, 2)])
)
def test_small_tables_too(part, seed):
    """36 runs for 11 coefficients: the first fit is pulled to the bad runs, so it alone cannot tell them."""
    clean = tiny_runs(sigma=0.0025)
    runs, hit = corrupted(clean, part, 0.5, seed)
    assert set(fit(runs, starts=[JointLaw(**TINY_LAW)]).status.suspicious) == {runs.run_id[i] for i in hit}


def test_by_default_bad_runs_are_named_and_fitted(paper_runs, paper_fit):
    runs, hit = corrupted(paper_runs, 0.05)
    kept = fit(runs, starts=[LAW])
    status = kept.status
    assert kept.used.all()
    assert status.set_aside == ()
    assert set(status.suspicious) == {runs.run_id[i] for i in hit}
    assert status.deviations == pytest.approx([0.3] * len(hit), abs=0.03)
    assert kept.law.conditions.n_runs == 270
    assert kept.law.conditions.set_aside == ()
    assert any("14 runs lie far from the law of the others (still fitted" in m for m in status.messages)
    assert kept.to_dict()["status"]["suspicious"] == status.suspicious
    assert moved(kept, paper_fit, paper_runs) > 0.003


def test_what_is_set_aside_is_written_down(paper_runs, tmp_path):
    runs, hit = corrupted(paper_runs, 0.05)
    result = fit(runs, outliers="set_aside", starts=[LAW])
    text = as_text(result)
    assert "256 runs of 51 trunks (given), 14 set aside" in text
    assert "set aside): row-" in " ".join(result.warnings)
    result.law.save_pretrained(tmp_path)
    conditions = JointLaw.from_pretrained(tmp_path).conditions
    assert set(conditions.set_aside) == {runs.run_id[i] for i in hit}
    assert "14 of 270 runs set aside" in conditions.provenance
    assert conditions.n_runs == 256
    assert conditions.objective["outliers"] == "set_aside"
    card = law_card(result.law, "org/law").replace("\\", "")  # Markdown's escapes
    assert "256 runs of 51 trunks (given)" in card
    assert f"Excluded as outliers: {conditions.set_aside[0]}, " in card


def test_intervals_of_new_runs_do_not_know_what_was_set_aside(paper_runs, paper_fit):
    """With the residuals of the bad runs among those drawn, the low end falls by 0.2 nats."""
    runs, _ = corrupted(paper_runs, 0.05)
    drawn = fit(runs, outliers="set_aside", starts=[LAW]).bootstrap(100)
    assert len(drawn.log_residuals) == 256
    clean = paper_fit.bootstrap(100)
    ours, theirs = (one.prediction_interval(1e9, 20e9, 8, kind="prediction") for one in (drawn, clean))
    assert ours == pytest.approx(theirs, abs=0.004)
    assert ours[1] - ours[0] < 0.05


def test_a_trunk_that_was_set_aside_is_not_drawn(paper_runs):
    runs = replace(paper_runs, loss=paper_runs.loss + 0.3 * (paper_runs.trunk == 3))
    result = fit(runs, outliers="set_aside", starts=[LAW])
    assert result.status.n_trunks == 50
    assert result.bootstrap(3).n_clusters == 50


def test_too_many_to_be_outliers(paper_runs):
    runs, hit = corrupted(paper_runs, 0.36)
    result = fit(runs, outliers="set_aside", starts=[LAW])
    assert result.used.all()
    assert result.status.suspicious == result.status.set_aside == ()
    assert len(result.status.warnings) == 1
    assert f"{len(hit)} of 270 runs lie far from the law" in result.status.warnings[0]


def test_one_loss_near_zero_does_not_bind_the_constant(paper_runs, paper_fit):
    """The irreducible loss stays below the lowest loss: that of the runs which are fitted."""
    runs = replace(paper_runs, loss=np.where(np.arange(270) == 7, 0.01, paper_runs.loss))
    result = fit(runs, outliers="set_aside", starts=[LAW])
    assert result.status.set_aside == ("row-7",)
    assert moved(result, paper_fit, paper_runs) < 0.002


@pytest.mark.parametrize("seed", sweep(range(3), [0]))
def test_no_run_of_a_clean_table_is_named(seed):
    for runs in (synthetic_runs(seed=seed), tiny_runs(seed=seed), tiny_runs(seed=seed).subset(np.arange(36) % 2 == 0)):
        assert fit(runs, starts=[LAW]).status.suspicious == ()


def test_a_distant_run_of_the_law_is_not_named(paper_runs):
    """One run far outside the others has little to be judged by: the uncertainty there counts in its favour."""
    far = (2e10, 2e12, 64)
    columns = [
        np.append(getattr(paper_runs, name), v) for name, v in zip(("n_active", "tokens", "experts"), far, strict=True)
    ]
    loss = np.append(paper_runs.loss, LAW.loss(*far))
    assert fit(Runs.from_columns(*columns, loss), starts=[LAW]).status.suspicious == ()
