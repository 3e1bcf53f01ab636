"""Forecasts of runs that train: exact where runs are, calibrated where they scatter, else silent or refused."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from scaling_law import ChinchillaLaw, LiveForecast, TrainingCurve
from scaling_law.forecasting.curves import curve_of
from scaling_law.forecasting.normals import Mixture
from tests.hub.samples import make_record

pytestmark = pytest.mark.light
LAW = ChinchillaLaw(m=400.0, mu=-0.34, n=1000.0, nu=-0.30, c=1.7)
SIZES = (1e8, 2e8, 4e8)


def multi_power(shares, rates, slope, gap):
    """ln L along a run, by the multi-power law of Luo et al. (2025); runs are equal until their rates differ."""
    fall, drop = terms(tuple(rates))
    return np.interp(shares, np.linspace(0, 1, len(rates)), slope * fall - gap * drop)


@lru_cache
def terms(rates):
    """The power of the progress and the drop from falls of the rate, per unit of slope and gap."""
    rates = np.array(rates)
    middle = (rates[1:] + rates[:-1]) / 2
    progress = np.concatenate([[0.01], 0.01 + np.cumsum(middle ** (2 / 3)) / len(middle)])
    falls = rates[:-1] - rates[1:]
    since = np.maximum(progress[:, None] - progress[None, 1:], 0.0) * (falls != 0)
    drop = (1 - (1 + 100.0 * since * np.maximum(rates[1:], 0.01) ** -0.5) ** -0.7) @ falls
    return progress**-0.45 / 0.45, drop


CONSTANT = np.ones(401)
COSINE = 0.55 + 0.45 * np.cos(np.pi * np.linspace(0, 1, 401))
LINEAR = np.minimum(1.0, (1 - np.linspace(0, 1, 401)) / 0.2)
TWO_STAGES = np.where(np.linspace(0, 1, 401) < 0.55, 1.0, 0.3)


def curve(
    n=2e8,
    tokens=4e9,
    miss=0.0,
    gap=0.05,
    noise=0.0,
    seed=0,
    lines=200,
    final=True,
    rates=None,
    **fields,
):
    """A run that ends exp(`miss`) above the law, or above what it ends at with `LINEAR` under other `rates`."""
    rng = np.random.default_rng(seed)
    shares = np.linspace(1 / lines, 1, lines)
    slope = float(np.log(LAW.loss(n, tokens / 1.1) / LAW.loss(n, tokens)) / np.log(1.1))
    planned = LINEAR if rates is None else rates
    end = float(np.log(LAW.loss(n, tokens))) + miss - multi_power(0.995, LINEAR, slope, gap)
    log_loss = end + multi_power(shares, planned, slope, gap) + noise * rng.normal(size=lines)
    last = float(np.exp(end + multi_power(0.995, planned, slope, gap))) if final else None
    return TrainingCurve(
        shares * tokens,
        np.exp(log_loss),
        tokens,
        {"n_active": n},
        final=last,
        trunk=f"{seed}",
        rates=rates,
        **fields,
    )


def test_a_curve_like_those_of_its_peers_ends_as_they_do():
    peers = [curve(n, 4e9 * f, miss=0.02, seed=i) for i, (n, f) in enumerate((n, f) for n in SIZES for f in (0.5, 1))]
    run = curve(miss=0.02)
    for share in (0.1, 0.5, 0.85, 0.95):
        estimate = LiveForecast(peers, LAW).of(run.until(share))
        assert estimate.loss == pytest.approx(run.final, rel=0.003)
        assert not estimate.off_track()
        low, high = estimate.interval(0.9)
        assert low < run.final < high
        assert high / low < 1.08


def test_its_own_curve_moves_a_forecast_as_far_as_it_told_of_the_end_before():
    """Misses of the law by 5 % that last from the start are seen in the curve; those of the last step are not."""
    rng = np.random.default_rng(1)
    misses = 0.05 * rng.normal(size=24)
    peers = [curve(miss=miss, noise=0.005, seed=i + 1) for i, miss in enumerate(misses)]
    run = curve(miss=0.08, noise=0.005, seed=99)
    estimate = LiveForecast(peers, LAW).of(run.until(0.5))
    assert estimate.loss == pytest.approx(run.final, rel=0.01)
    assert abs(np.log(estimate.law / run.final)) > 0.04
    assert estimate.spread < 0.5 * estimate.law_spread
    late = [replace(peer, final=float(peer.final * np.exp(x))) for peer, x in zip(peers, -misses, strict=True)]
    assert LiveForecast(late, LAW).of(run.until(0.5)).loss == pytest.approx(float(LAW.loss(2e8, 4e9)), rel=0.02)


def test_intervals_hold_what_they_say():
    """100 families of runs whose law misses, gaps and noise scatter: 50, 90 and 99 % of the ends are inside."""
    inside = []
    for family in range(100):
        rng = np.random.default_rng(family)
        runs = [
            curve(
                *(rng.choice(SIZES), 4e9 * rng.choice([0.5, 1.0, 2.0])),
                miss=0.02 * rng.normal(),
                gap=0.05 + 0.02 * rng.normal(),
                noise=0.02,
                seed=1000 * family + i,
                lines=60,
            )
            for i in range(9)
        ]
        estimate = LiveForecast(runs[1:], LAW).of(runs[0].until(0.6))
        inside.append([low < runs[0].final < high for low, high in map(estimate.interval, (0.5, 0.9, 0.99))])
    half, nine, most = np.mean(inside, axis=0)
    assert 0.45 < half < 0.68
    assert 0.87 < nine < 0.97
    assert most >= 0.97


def test_branches_of_one_trunk_tell_no_more_than_one_run():
    peers = [curve(miss=0.03, noise=0.01, seed=i) for i in range(3)]
    copies = [replace(peer, horizon=peer.horizon * (1 + k / 1e9)) for peer in peers for k in range(10)]
    one, ten = (LiveForecast(runs, LAW).of(curve(seed=9).until(0.5)) for runs in (peers, copies))
    assert ten.freedom == pytest.approx(one.freedom)
    assert ten[:7] == pytest.approx(one[:7], rel=1e-3)


def test_without_a_law_runs_as_long_carry_the_forecast_and_nothing_else_does():
    peers = [curve(n, miss=0.5, seed=i) for i, n in enumerate(SIZES)]
    run = curve(n=3e8, miss=0.5)
    assert LiveForecast(peers).of(run.until(0.6)).loss == pytest.approx(run.final, rel=0.01)
    assert LiveForecast().of(run.until(0.6)) is None
    assert LiveForecast(peers).of(curve(tokens=8e9, final=False).until(0.6)) is None, "beyond the longest of them"
    for n in (0.5 * min(SIZES), 2.0 * max(SIZES)):
        assert LiveForecast(peers).of(curve(n=n).until(0.6)) is None, "of another size than all of them"
        assert LiveForecast(peers, LAW).of(curve(n=n).until(0.6)) is not None
    others = [replace(peer, model={**peer.model, "experts": 8.0}) for peer in peers]
    assert LiveForecast(others).of(run.until(0.6)) is None, "of another number of experts"


@pytest.mark.parametrize("miss", [0.0, 0.12, -0.15])
def test_a_law_alone_is_trusted_until_the_run_shows_that_it_is_of_another_corpus(miss):
    run = curve(miss=miss, noise=0.001)
    forecast = LiveForecast(law=LAW)
    estimate = forecast.of(run.until(0.5))
    assert estimate.law == pytest.approx(float(LAW.loss(2e8, 4e9)), rel=0.005)
    assert estimate.is_law_foreign() == (miss != 0)
    assert any("another corpus" in warning for warning in forecast.warnings(run.until(0.5))) == (miss != 0)
    assert estimate.loss == pytest.approx(run.final, rel=0.02)
    low, high = estimate.interval()
    assert low < run.final < high


@pytest.mark.parametrize("probabilities", [(1.0, 0.0), (0.0, 1.0), (0.7, 0.3), (0.97, 0.03)])
def test_the_interval_of_a_mixture_holds_nine_tenths_of_it(probabilities):
    rng = np.random.default_rng(0)
    means = np.array([[0.0], [6.0]])
    covariances = np.array([[[1.0]], [[9.0]]])
    with np.errstate(divide="ignore"):
        mixture = Mixture(np.log(probabilities), means, covariances)
    mean, spread = mixture.project(np.ones(1), noise=0.5)
    draws = []
    for probability, center, variance in zip(probabilities, (0.0, 6.0), (1.0, 9.0), strict=True):
        draws.append(center + np.sqrt(variance + 0.25) * rng.normal(size=round(200_000 * probability)))
    values = np.concatenate(draws)
    assert mean == pytest.approx(values.mean(), abs=0.02)
    assert np.mean(np.abs(values - mean) < 1.6449 * spread) == pytest.approx(0.9, abs=0.005)


def test_the_final_loss_of_the_training_text_is_told_from_a_held_out_one():
    """One finished run shows which of the two its final loss is: a longer run is then forecast as surely as that."""
    peer = curve(noise=0.001, seed=1)
    held_out = replace(peer, final=0.97 * peer.final)
    run, longer = curve(noise=0.001, seed=2), curve(noise=0.001, seed=2, tokens=1.2e10)
    assert LiveForecast([peer], LAW).of(run.until(0.95)).loss == pytest.approx(run.final, rel=0.003)
    assert LiveForecast([held_out], LAW).of(run.until(0.95)).loss == pytest.approx(0.97 * run.final, rel=0.003)
    spreads = [LiveForecast([finished], LAW).of(longer.until(0.95)).spread for finished in (peer, held_out)]
    assert spreads[0] < 0.3 * spreads[1]


def test_nothing_is_said_before_the_first_tenth_or_during_the_warm_up():
    forecast = LiveForecast([curve(seed=i) for i in range(1, 4)], LAW)
    assert forecast.of(curve().until(0.09)) is None
    assert forecast.of(curve().until(0.1)) is not None
    assert forecast.of(curve(warmup_tokens=4e8).until(0.15)) is None
    assert forecast.of(TrainingCurve([], [], 4e9, {"n_active": 2e8})) is None


def test_a_run_off_its_track_is_seen_and_a_spike_is_not():
    forecast = LiveForecast([curve(miss=0.01 * (i - 3), noise=0.01, seed=i) for i in range(1, 7)], LAW)
    run = curve(noise=0.01).until(0.6)
    assert not forecast.of(run).off_track()
    worse = run.losses * np.where(run.tokens > 0.4 * run.horizon, 1.25, 1.0)
    estimate = forecast.of(replace(run, losses=worse))
    assert estimate.off_track()
    assert not estimate._replace(lines=9).off_track()


def test_a_record_and_its_log_make_a_curve_without_spikes_and_skipped_steps():
    run = make_record()
    lines = [{"tokens": t, "loss": 3.0 - t / run.tokens} for t in np.linspace(1, run.tokens, 50).astype(int).tolist()]
    spoilt = [*lines[:20], lines[20] | {"loss": 20.0, "loss_spike": True}, lines[21] | {"loss": None}, *lines[22:]]
    from_log = curve_of(run, [*spoilt, {"tokens": run.tokens, "eval_loss": 2.5}])
    assert len(from_log.tokens) == 48
    assert from_log.losses.max() < 3.0
    assert from_log.final == run.eval_loss
    assert from_log.model["n_active"] == run.n_active
    assert (from_log.horizon, from_log.trunk) == (run.schedule.horizon_tokens, run.run_id), "its own trunk"
    assert curve_of(run.replaced(status="intermediate"), lines).final is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"horizon": None}, "horizon=None must be a number"),
        ({"decay": 0.0}, "decay=0.0 must be above 0 and at most 1"),
        ({"model": {"d_model": 64.0}}, "model: n_active=0 must be positive"),
        ({"final": -1.0}, "final=-1.0 must be positive and finite"),
        ({"losses": [1.0, np.nan]}, "losses=nan must be positive and finite"),
        ({"rates": [0.0, 0.0]}, "rates=.* must be two or more learning rates"),
        ({"rates": [1.0, -1.0]}, "rates=.* must be two or more learning rates"),
        ({"losses": [1.0]}, "one loss each is needed"),
        ({"tokens": [2.0, 2.0]}, "tokens must increase"),
    ],
)
def test_what_is_no_curve_is_refused(wrong, message):
    fields = {"tokens": [1.0, 2.0], "losses": [3.0, 2.0], "horizon": 4.0, "model": {"n_active": 10.0}}
    with pytest.raises(ValueError, match=message):
        TrainingCurve(**fields | wrong)


@pytest.mark.parametrize("planned", [CONSTANT, COSINE, LINEAR, TWO_STAGES])
@pytest.mark.parametrize("taught", [COSINE, LINEAR])
def test_a_run_of_another_schedule_tells_what_the_fall_of_the_rate_will_gain(planned, taught):
    """Truths are of a multi-power law whose lags and powers, but for that of the progress, are not the forecast's."""
    peer = curve(gap=0.06, noise=0.001, seed=1, rates=taught)
    run = curve(gap=0.06, noise=0.001, seed=2, rates=planned)
    for share, error in ((0.5, 0.01), (0.9, 0.007)):
        estimate = LiveForecast([peer], LAW).of(run.until(share))
        assert estimate.loss == pytest.approx(run.final, rel=error)
        low, high = estimate.interval(0.99)
        assert low < run.final < high


def test_a_schedule_is_its_rates_in_any_unit_and_the_decay_is_one():
    whole = curve(noise=0.01)
    at_rates = replace(whole, rates=3e-4 * LINEAR, decay=1.0)
    forecast = LiveForecast(law=LAW)
    assert forecast.of(at_rates.until(0.6)).loss == pytest.approx(forecast.of(whole.until(0.6)).loss, rel=1e-6)
    flat = replace(whole, rates=CONSTANT)
    assert forecast.of(flat.until(0.6)).loss > 1.02 * forecast.of(whole.until(0.6)).loss, "no decay is to come"


def test_runs_that_cannot_be_compared_are_refused_or_said():
    with pytest.raises(ValueError, match="has no final loss yet"):
        LiveForecast([curve(final=False)])
    assert not [w for w in LiveForecast([curve(miss=0.1)], LAW).warnings(curve()) if "nats" in w]
    assert any("×0.22 the law's" in w for w in LiveForecast([curve(miss=-1.5)], LAW).warnings(curve()))
    assert LiveForecast([curve()]).warnings(curve()) == []
