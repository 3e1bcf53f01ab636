"""Bad input to fits and what follows from them: one line that names the field, its value and what is allowed."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from scaling_law import (
    ChinchillaLaw,
    JointLaw,
    LearningRateLaw,
    Prior,
    backtest,
    fit,
    fit_learning_rate,
    hold_out,
    load_runs,
    prior,
    published,
    speedup,
)
from scaling_law.rates.surface import SettingsGrid
from scaling_law.runs.rows import RunsError
from studies.forecasts.members import estimate
from studies.learning_rates.best_rates import best_rates
from tests.scaling_law.fitting.test_measured import runs_of
from tests.scaling_law.fitting.test_prior import USUAL, lab_laws
from tests.scaling_law.rates.test_learning_rate import FULL, rows
from tests.scaling_law.rates.test_surface import BATCHES, MODELS, grid
from tests.scaling_law.synthetic import synthetic_runs

JOINT, RUNS = JointLaw.published(), synthetic_runs()
NONE = RUNS.subset(RUNS.loss < 0)
ROW = next(iter(rows()))
NO_SHAPE = [{name: value for name, value in row.items() if name not in ("d_model", "n_blocks")} for row in rows()]


@cache
def fitted():
    return fit(RUNS, starts=[JOINT])


def of_settings(runs, **options):
    return fit_learning_rate(runs, **{"reading": "paper", "draws": 0} | options)


def drawn(**law):
    return ChinchillaLaw(120.0, -0.3, 600.0, -0.3, 1.7, **law)


FITS = [
    ({"kind": "cubic"}, "kind='cubic' is unknown"),
    ({"kind": ["joint"]}, r"kind=\['joint'\] is unknown"),
    ({"kind": "five_factor"}, "kind='five_factor' is not a sum of terms, so it cannot be fitted"),
    ({"huber_delta": 0}, "huber_delta=0"),
    ({"huber_delta": "wide"}, "huber_delta='wide' must be a number"),
    ({"huber_delta": np.float64(np.inf)}, "huber_delta=inf must be a number"),
    ({"weights": [1.0]}, "weights"),
    ({"weights": "loss"}, "weights='loss'"),
    ({"weights": [-1.0] * 270}, "weights must be .*, or a column or list of 270 finite numbers"),
    ({"weights": ["heavy"] * 270}, "weights must be"),
    ({"fixed": {"kappa": 1}}, "kappa"),
    ({"fixed": {"a": -1}}, "positive"),
    ({"fixed": {"e_start": 0.5}}, "e_start"),
    ({"fixed": {"c": 1.5}, "bounds": {"c": (1.0, 1.2)}}, r"fixed: c=1.5 lies outside its bounds \(1.0, 1.2\)"),
    ({"fixed": {"c": np.float64(9.0)}}, r"fixed: c=9 must be below the losses of the runs, 2\.\d+ to \d"),
    ({"fixed": {"c": "x"}}, "fixed: c='x' must be a number"),
    ({"fixed": {"c": float("nan")}}, "fixed: c=nan must be finite"),
    ({"bounds": {"alpha": (0, -1)}}, "alpha"),
    ({"bounds": {"e_max": (1.5, 2), "e_start": (3, 4)}}, "e_start=3.0 must be below e_max=2.0"),
    ({"bounds": {"e_max": (0.5, 20)}}, r"bounds: e_max=\(0.5, 20.0\) must be above 1"),
    ({"kind": "chinchilla", "bounds": {"e_max": (10, 20)}}, "coefficient 'e_max' is unknown.* m, mu"),
    ({"bounds": {"kappa": (0, 1)}}, "bounds: coefficient 'kappa' is unknown.* a, alpha"),
    ({"bounds": {"c": 1.0}}, r"bounds: c=1.0 must be a pair \(low, high\)"),
    ({"bounds": {"c": ("low", 2)}}, "bounds: c='low' must be a number"),
    ({"bounds": {"c": (8.0, 9.0)}}, r"bounds: c=8 must be below the losses"),
    ({"starts": 5}, "starts=5"),
    ({"starts": "paper"}, "starts='paper'"),
    ({"starts": []}, "starts"),
    ({"outliers": "hide"}, "outliers='hide'"),
    ({"kind": "routed", "prior": USUAL}, r"kind='routed': the prior is one of chinchilla \(or joint\) laws"),
    ({"kind": "chinchilla", "prior": JOINT}, "kind='chinchilla': the prior is one of joint laws"),
    ({"prior": "private"}, "prior='private' must be 'public', a law that predicts a loss, a Prior or None"),
    ({"prior": 0.5}, "prior=0.5 must be 'public'"),
    ({"prior": LearningRateLaw.published()}, "must be 'public', a law that predicts a loss"),
    ({"prior": published("hunyuan")}, "the five_factor law is not a sum of terms"),
    ({"prior": JOINT.replace(c=0.0)}, "prior: c=0 of .* must be positive"),
    ({"prior": drawn(draws=[[120.0, -0.3, 600.0, -0.3, 1.7]])}, "must have no draws, or at least two"),
]
OTHERS = [
    (lambda: fit(NONE), "columns: no runs"),
    (lambda: Prior(USUAL.mean, -USUAL.covariance), "prior: mean and covariance must be of 5 coordinates"),
    (lambda: prior(JOINT, experts="pooled"), "experts='pooled' must be None beside a law"),
    (lambda: prior(experts="mean"), "experts='mean' is unknown; there are pooled, published, None"),
    (lambda: estimate(lab_laws(1, 3), 0.5, 4.0, 1.0), "two labs"),
    (lambda: hold_out(RUNS, "size"), "by='size'"),
    (lambda: hold_out(RUNS, test=270), "by='flops' must leave some of the 270 runs to fit"),
    (lambda: hold_out(RUNS, test=2.5), "test=2.5 must be a whole number"),
    (lambda: backtest(RUNS, NONE, {"law": JOINT}), "train has 270 runs and test 0: both need at least one"),
    (lambda: fitted().bootstrap(1), "n_resamples=1 must be a whole number of at least 2"),
    (lambda: fitted().bootstrap(2.5), "n_resamples=2.5 must be a whole number"),
    (lambda: fitted().bootstrap(2, seed=-1), "^seed=-1 must be a whole number of at least 0$"),
    (lambda: fitted().bootstrap(2).interval("kappa"), "coefficient='kappa'"),
    (lambda: fitted().bootstrap(2).interval("a", 1), "level=1 must be above 0 and below 1"),
    (lambda: fitted().bootstrap(2).interval("a", "0.9"), "level='0.9' must be a number"),
    (lambda: fitted().bootstrap(2).prediction_interval(1e8, 1e9, 1, kind="tolerance"), "kind='tolerance'"),
    (lambda: fit(replace(RUNS, trunk=0 * RUNS.trunk), starts=[JOINT]).bootstrap(5), "two independent trunks"),
    (lambda: JointLaw.published(rounded=True).loss_draws(1e8, 1e9, 1), "no draws"),
    (lambda: JointLaw.published(rounded=True).optimum_draws(1e20), "no draws"),
    (lambda: speedup(runs_of(), runs_of(), "paloma"), "numeric column 'paloma' is unknown"),
    (
        lambda: speedup(runs_of(), runs_of(), None, {"lost": 1.6}),
        "'lost' is unknown: did you mean 'loss'",
    ),
    (lambda: speedup(runs_of(), runs_of(), None, {"loss": 9.0}), "c=9 must be below the losses of the runs"),
    (lambda: speedup(runs_of(), runs_of(), level=1.0), "level=1.0 must be above 0"),
    (
        lambda: speedup(runs_of(), runs_of().take(np.arange(3))),
        "3 runs of the baseline .* 4 are needed",
    ),
    (
        lambda: LearningRateLaw(1.0, 1.0, 1.0, slope_batch=np.nan),
        r"slope_batch=nan must be a number, finite and up to 1e\+60",
    ),
    (lambda: FULL.at(1e8, 8), "tokens=None must be given, the tokens of the run, on which"),
    (lambda: FULL.at(1e8, 8, batch_tokens=1e5), "tokens=None"),
    (lambda: FULL.at(1e8, 8, 2e9), "batch_tokens=None must be given, the tokens of a batch"),
    (lambda: FULL.at(1e8, 8, 0, 1e5), "tokens=0 must be positive and finite"),
    (lambda: FULL.at(0, 8, 2e9, 1e5), "counted_parameters=0 must be positive and finite"),
    (lambda: FULL.at(1e8, 0, 2e9, 1e5), "experts=0 must be positive and finite"),
    (lambda: FULL.interval_at(1e8, 8, 2e9, 1e5, level=1.0), r"level=1\.0 must be above 0 and below 1"),
    (lambda: LearningRateLaw.named("public:step"), "'public:step' is unknown"),
    (lambda: of_settings(load_runs([ROW | {"schedule": {}}]), extras=()), "column 'learning_rate' is unknown"),
    (lambda: of_settings(load_runs(NO_SHAPE), extras=()), "n_active_non_embedding, or d_model and n_blocks"),
    (lambda: of_settings(load_runs([ROW]), extras=()), "1 models with too few distinct N"),
    (lambda: of_settings(grid(), extras=["width"]), "extras='width' must be among tokens, batch"),
    (lambda: of_settings(grid(), within=0), "within=0 must be positive"),
    (lambda: of_settings(grid(), draws=-1), "draws=-1 must be a whole number of at least 0"),
    (lambda: of_settings(grid(), reading="text"), "reading='text'"),
    (
        lambda: of_settings(replace(g := grid(), columns={"learning_rate": g["learning_rate"]}), reading="paper"),
        "needed",
    ),
    (lambda: of_settings(grid(batches=BATCHES[:1])), "batch: no model has runs of several batch_tokens"),
    (lambda: of_settings(grid(MODELS[::2])), "9 models with too few distinct N, E, D"),
    (lambda: of_settings(replace(g := grid(), loss=5 - g.loss), within=9.0), "no minimum of the loss"),
    (lambda: of_settings([]), "no runs to fit"),
    (lambda: best_rates(SettingsGrid.of([replace(g := grid(MODELS[:2]), loss=-g.loss)], "paper"), 1.0), "no minimum"),
]


@pytest.mark.parametrize(
    ("call", "words"), [*((partial(fit, RUNS, **options), words) for options, words in FITS), *OTHERS]
)
def test_it_is_one_line_that_names_field_and_value(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)
    assert "np." not in str(error.value)
    assert hasattr(error.value, "exit_status")


def test_what_runs_do_not_have_is_an_error_of_runs():
    bare = replace(grid(), columns={})
    for call in (lambda: of_settings(bare), lambda: fit(NONE), lambda: of_settings([])):
        with pytest.raises(RunsError):
            call()
