"""Both readings of the published learning-rate law, and its fit."""

import json

import numpy as np
import pytest

from scaling_law import Architecture, LearningRateLaw, fit_learning_rate
from scaling_law.fitting.learning_rate import best_of_grid


@pytest.mark.parametrize(
    ("d_model", "paper", "code"), [(512, 4.18e-3, 1.70e-3), (1024, 7.75e-4, 5.43e-4), (1664, 2.38e-4, 2.00e-4)]
)
def test_readings(d_model, paper, code):
    for reading, expected in (("paper", paper), ("code", code)):
        rate = LearningRateLaw.published(reading).learning_rate(Architecture(d_model))
        assert rate == pytest.approx(expected, rel=3e-3)


def test_more_experts_need_a_lower_rate():
    law = LearningRateLaw.published()
    rates = [law.learning_rate(Architecture(512, e)) for e in (1, 16)]
    assert rates[1] / rates[0] == pytest.approx(16**-0.25)


def test_fit_recovers_a_law():
    law = LearningRateLaw.published()
    sizes, experts = np.meshgrid([2e7, 1e8, 5e8], [1, 8])
    rates = law.at(sizes, experts)
    fitted = fit_learning_rate(sizes.ravel(), experts.ravel(), rates.ravel())
    assert (fitted.intercept, fitted.slope_n, fitted.slope_e) == pytest.approx(
        (law.intercept, law.slope_n, law.slope_e), rel=1e-9
    )
    assert fitted.rmse == pytest.approx(0, abs=1e-12)
    without = fit_learning_rate(sizes.ravel(), experts.ravel(), rates.ravel(), with_experts=False)
    assert without.slope_e == 0
    # without E the rate is half-way between those of the two E, so wrong by 8^(1/8) on both, more at E = 32
    assert without.rmse == pytest.approx(np.log(8) / 8, rel=1e-9)


def test_fit_refuses_what_determines_nothing():
    with pytest.raises(ValueError, match="too few different"):
        fit_learning_rate([1e8, 2e8, 3e8], [4, 4, 4], [1e-3, 8e-4, 7e-4])
    with pytest.raises(ValueError, match="learning_rates"):
        fit_learning_rate([1e8, 2e8], [1, 2], [1e-3, -1])
    with pytest.raises(ValueError, match="reading='text'"):
        LearningRateLaw(1.0, 1.0, 1.0, "text")


def test_a_saved_law_is_the_same_law(tmp_path):
    law = LearningRateLaw(8.1, -0.79, -0.2, "paper", "least squares on 6 models", 0.03)
    assert LearningRateLaw.load(law.save(tmp_path / "law.json")) == law
    assert LearningRateLaw.named(tmp_path / "law.json") == law
    assert LearningRateLaw.named("paper") == LearningRateLaw.published("paper")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 4}, "version is 4, .* reads up to 3"),
        ({"version": 1}, "the fields must be exactly"),
        ({"n_range": [2.0, 1.0]}, r"n_range=\[2.0, 1.0\] must be two positive numbers"),
        ({"format": "scaling_law"}, "allowed is .learning_rate_law"),
        ({"slope_n": "-0.8"}, "slope_n='-0.8' must be a finite number"),
        ({"slope_e": True}, "slope_e=True must be a finite number"),
        ({"intercept": float("nan")}, "NaN is not a JSON number"),
        ({"reading": "text"}, "reading='text'"),
        ({"vocab_size": 0}, "vocab_size=0 must be an integer of at least 1"),
        ({"slope": 1}, "the fields must be exactly"),
    ],
)
def test_what_is_no_law_is_refused_by_file_and_field(tmp_path, change, message):
    path = LearningRateLaw.published().save(tmp_path / "law.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message) as error:
        LearningRateLaw.load(path)
    assert str(path) in str(error.value)


def test_older_files_without_ranges_and_vocabulary_are_read(tmp_path):
    law = LearningRateLaw.published()
    data = json.loads(law.save(tmp_path / "law.json").read_text())

    def load(version, *without):
        kept = {name: value for name, value in data.items() if name not in without}
        (tmp_path / "law.json").write_text(json.dumps(kept | {"version": version}))
        return LearningRateLaw.load(tmp_path / "law.json")

    assert load(2, "vocab_size") == law
    unranged = load(1, "n_range", "experts_range", "vocab_size")
    assert (unranged.n_range, unranged.intercept) == (None, law.intercept)
    assert unranged.warnings(Architecture(512)) == [
        "this learning-rate law carries no ranges: nothing checks how far it extrapolates"
    ]
    assert not unranged.beyond_guard(Architecture(512))


def test_rates_outside_the_range_are_warned_of():
    law = LearningRateLaw.published()
    assert law.experts_range == (1, 32)
    assert law.warnings(Architecture(512, 32)) == []
    assert law.warnings(Architecture(512, 64)) == ["learning rate: E = 64 is outside the fitted 1…32 (×2)"]
    assert not law.beyond_guard(Architecture(512, 128))
    assert law.beyond_guard(Architecture(512, 129))
    assert law.beyond_guard(Architecture(32, 1, 1, 1, 16))
    fitted = fit_learning_rate([1e7, 1e8, 1e9], [1, 8, 8], [1e-2, 1e-3, 5e-4])
    assert (fitted.n_range, fitted.experts_range) == ((1e7, 1e9), (1, 8))


def test_best_of_grid_interpolates():
    rates = np.geomspace(1e-4, 1e-2, 7)
    losses = 3 + 0.1 * (np.log(rates) - np.log(1.3e-3)) ** 2
    assert best_of_grid(rates, losses) == pytest.approx(1.3e-3, rel=1e-9)
    assert best_of_grid([1e-4, 1e-3], [3.0, 2.0]) == pytest.approx(1e-3)
    assert best_of_grid([1e-4, 1e-3, 1e-2], [3.0, 2.0, np.inf]) == pytest.approx(1e-3)


def test_fit_on_one_and_eight_experts_carries_to_four_and_thirty_two():
    """The paper's check, on rates of its law with 5 % scatter: without E, 32 experts get too high a rate."""
    law, rng = LearningRateLaw.published(), np.random.default_rng(0)
    sizes, experts = (v.ravel() for v in np.meshgrid([4e7, 1e8, 3e8, 1e9], [1, 4, 8, 32]))
    rates = law.at(sizes, experts) * np.exp(rng.normal(0.0, 0.05, len(sizes)))
    fitted_on = np.isin(experts, [1, 8])
    for with_experts in (True, False):
        fitted = fit_learning_rate(sizes[fitted_on], experts[fitted_on], rates[fitted_on], with_experts=with_experts)
        errors = {e: np.log(fitted.at(sizes, e) / rates)[experts == e] for e in (4, 32)}
        if with_experts:
            assert max(np.abs(e).max() for e in errors.values()) < 0.15
        else:
            assert errors[32].mean() > 0.4  # half of ln 32 / 4 and more: far too high a rate
