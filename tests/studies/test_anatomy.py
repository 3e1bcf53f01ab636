"""docs/studies/anatomy.md: its verdicts hold, can come out the other way, and gains are derived as it says."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from hub.base import strict_json
from studies.anatomy import pairs as public
from studies.anatomy import study
from studies.anatomy.estimate import (
    Estimate,
    Interval,
    Laboratory,
    answered,
    factor_of,
    gains_by_law,
    interval_of,
    joint_gains,
    laboratories_of,
    routed_share_of,
)
from studies.anatomy.pairs import BLIND, DEEPMIND, EXPERTS, MARIN, ROUTED, STEPFUN, TOP_K, derive, read_pairs


@pytest.fixture(scope="module")
def anatomy():
    return study.read()


def changed(anatomy, change):
    """The same pairs with the gains that `change` makes of each set."""
    return replace(anatomy, pairs=[replace(p, gains=change(p)) for p in anatomy.pairs])


def a_laboratory(name, slope, noise=0.0):
    predicted = np.linspace(0.01, 0.1, 20)
    signs = np.resize([1.0, -1.0], 20)
    return Laboratory(name, slope * predicted + noise * signs, predicted, np.full(20, 8.0), np.ones(20))


def test_the_verdicts_of_the_page_hold(anatomy):
    assert study.PAGE.refuted(anatomy) == []


@pytest.mark.parametrize(
    ("claim", "change"),
    [
        (
            "no factor is used, since the error on Marin doubles",
            lambda p: 1.3 * joint_gains(p) if p.field == EXPERTS else p.gains,
        ),
        (
            "intervals are calibrated on laboratories left out",
            lambda p: joint_gains(p) if p.field == EXPERTS else p.gains,
        ),
        (
            "blind gains are missed where runs are shorter than the law's",
            lambda p: joint_gains(p) if p.is_blind else p.gains,
        ),
        (
            "the exponent of the share helps on the blind sets alone",
            lambda p: joint_gains(p) * p.after["routed_share"] ** 0.4 if p.field == EXPERTS else p.gains,
        ),
        ("E = 43 is carried", lambda p: p.gains - 0.1 * (p.after["experts"] > 40)),
    ],
)
def test_each_verdict_can_come_out_the_other_way(anatomy, claim, change):
    assert not study.CLAIMS[claim](changed(anatomy, change))


def test_tokens_are_judged_by_the_losses_of_isoflop_runs(anatomy):
    """No source is nearer where both name the same D."""
    used = {f"{row.width:g}": row.tokens[0] for row in study.marin_tokens(anatomy)}
    same = replace(anatomy, pairs=[replace(p, other_tokens=used) for p in anatomy.pairs])
    assert not study.CLAIMS["the tokens used here hold"](same)


def test_nothing_is_estimated_from_the_blind_sets(anatomy):
    assert {p.name for p in anatomy.pairs if p.is_blind} == {*BLIND}
    assert [table.name for table in anatomy.estimate.laboratories] == [DEEPMIND, MARIN, STEPFUN]
    turned = changed(anatomy, lambda p: -p.gains if p.is_blind else p.gains)
    assert turned.estimate.interval == anatomy.estimate.interval
    assert turned.routed_share.exponent == anatomy.routed_share.exponent


def test_a_factor_that_all_laboratories_share_is_used():
    estimate = Estimate([a_laboratory(name, slope, 0.001) for name, slope in (("a", 1.4), ("b", 1.5), ("c", 1.6))])
    assert not estimate.worse
    assert estimate.factor == pytest.approx(1.5, abs=0.01)
    assert estimate.interval.spread == pytest.approx(np.sqrt(0.02 / 3), rel=0.05)
    apart = Estimate([a_laboratory(name, slope) for name, slope in (("a", 0.9), ("b", 1.2), ("c", 1.3))])
    assert [row.laboratory.name for row in apart.worse] == ["a"]
    assert apart.factor == 1.0


def test_an_interval_has_the_spread_of_slopes_and_the_scatter_of_pairs():
    tables = [a_laboratory("a", 1.3, 0.01), a_laboratory("b", 0.7, 0.01)]
    assert factor_of(tables) == pytest.approx(1.0, abs=0.01)
    interval = interval_of(tables, 1.0)
    assert interval.spread == pytest.approx(0.3, abs=0.02)
    assert interval.noise == pytest.approx(0.01, rel=0.05)
    half_width = Interval(0.3, 0.4).half_width(np.array([0.0, 1.0]))
    np.testing.assert_allclose(half_width, [1.645 * 0.4, 1.645 * 0.5], rtol=1e-3)


def test_laws_answer_where_they_know_the_variables(anatomy):
    """A law without E says nothing of more experts, and the joint law nothing of a shared expert."""
    by_name = {p.name: gains_by_law(p) for p in anatomy.pairs}
    assert {*by_name["Marin"]} == {"clark_sbase", "clark_rl", "clark_hash", "abnar", "ludziejewski", "hunyuan"}
    assert "ludziejewski" not in by_name["Marin, top-5 with half a shared expert"]
    for p in anatomy.pairs:
        np.testing.assert_allclose(by_name[p.name].get("ludziejewski", joint_gains(p)), joint_gains(p))


def test_pairs_beyond_the_guard_are_not_used(anatomy):
    sbase = anatomy.pairs[0]
    assert sbase.after["experts"].max() == 512
    assert answered(sbase).after["experts"].max() == 128
    assert len(laboratories_of(anatomy.pairs)[0]) == 104


def test_the_exponent_is_that_of_gains_in_the_share(anatomy):
    def as_power(p):
        return p.twins * (p.after["routed_share"] / 0.5) ** 0.7 if p.field == ROUTED else p.gains

    assert routed_share_of(changed(anatomy, as_power).pairs).exponent == pytest.approx(0.7)


def test_what_ships_is_what_was_found(anatomy, tmp_path, monkeypatch):
    """But for the last digit, in which processors differ; a finding fits a warning."""
    shipped = strict_json.read(study.DESIGNS, study.FORMAT, 1)
    monkeypatch.setattr(study, "DESIGNS", tmp_path / "designs.json")
    written = strict_json.read(study.ship(anatomy), study.FORMAT, 1)
    assert written["gain"]["verdict"] == shipped["gain"]["verdict"]
    for name, found in written["fields"].items():
        assert found["finding"] == shipped["fields"][name]["finding"]
        assert len(found["finding"]) <= 140
        assert found["spread"] == pytest.approx(shipped["fields"][name]["spread"], rel=0.02)
    assert written["experts"] == shipped["experts"]


def test_gains_are_derived_from_public_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(public, "PAIRS", tmp_path / "pairs.json")
    with pytest.raises(
        FileNotFoundError, match=r"curves\.csv\.gz, gshard\.csv, spm\.csv, ablations\.csv is not below"
    ):
        derive(tmp_path)
    clark_runs().to_csv(tmp_path / "curves.csv.gz", index=False)
    for file in ("gshard.csv", "spm.csv"):
        hadasah_runs().to_csv(tmp_path / file, index=False)
    losses = {"e64_base": 3.8, "e128": 3.7, "k5_halfshared": 3.6}
    rows = [(variant, 512, 1.44e9, loss) for variant, loss in losses.items()]
    pd.DataFrame(rows, columns=["variant", "d_model", "tokens", "loss"]).to_csv(
        tmp_path / "ablations.csv", index=False
    )
    assert derive(tmp_path) == [tmp_path / "pairs.json"]
    derived = {(p.name, p.field): p for p in read_pairs()}

    shares = derived["Clark et al., S-Base and Hash", ROUTED]
    np.testing.assert_allclose([*shares.gains, *shares.twins], np.log([3.0 / 2.8, 3.0 / 2.7]), rtol=1e-5)
    assert (shares.after["experts"], shares.after["routed_share"]) == (8, 0.25)
    assert shares.after["n_total"] - shares.after["n_active"] == pytest.approx(7e6)
    top_2 = derived["Clark et al., S-Base, top-2 and top-4", TOP_K]
    np.testing.assert_allclose(top_2.gains, np.log(2.9 / 2.6), rtol=1e-5)
    assert (top_2.before["experts"], top_2.after["experts"], top_2.after["granularity"]) == (1, 4, 2)
    assert top_2.before["n_total"] == top_2.before["n_active"] == top_2.after["n_active"]

    for name in BLIND:
        pairs = derived[name, EXPERTS]
        np.testing.assert_allclose(pairs.gains, np.log(np.log(90) / np.log(80)), rtol=1e-5)
        assert (pairs.before["experts"], pairs.after["experts"]) == (2, 8)
        assert (pairs.after["routed_share"], pairs.after["d_model"]) == (0.2, 448)
    (half,) = (p for name, p in derived.items() if name[0].startswith("Marin, top-5"))
    np.testing.assert_allclose(half.gains, np.log(3.8 / 3.6), rtol=1e-5)
    np.testing.assert_allclose([half.before["experts"], half.after["experts"]], [[11], [65 / 6]])
    assert half.other_tokens == {"512": 1.44e9}


def clark_runs():
    """A dense model of 1M, another of twice the width, and models of 8 experts of 1M each."""
    sizes = ("num_experts", "total_parameter_count", "loss_validation", "step")
    columns = ("router_type", "k", "routing_frequency", *sizes)
    rows = [
        ("Dense", 1, 0.5, 1, 10e6, 3.0, 249_000),
        ("Dense", 1, 0.5, 1, 10e6, 9.0, 100_000),
        ("Dense", 2, 0.5, 1, 11e6, 2.9, 249_000),
        ("S-Base", 1, 0.5, 8, 17e6, 2.7, 249_000),
        ("S-Base", 1, 0.25, 8, 17e6, 2.75, 249_000),
        ("S-Base", 1, 0.25, 8, 17e6, 2.85, 249_000),
        ("S-Base", 2, 0.5, 8, 17e6, 2.6, 249_000),
    ]
    return pd.DataFrame(rows, columns=columns).assign(seed=42, d_model=512, dense_parameter_count=10e6)


def hadasah_runs():
    """Four and sixteen experts at two rates, and a longer run."""
    rows = [(4, 95.0, 1e8), (4, 90.0, 1e8), (16, 80.0, 1e8), (16, 85.0, 1e8), (16, 20.0, 1e10)]
    runs = pd.DataFrame(rows, columns=["experts", "perplexity", "tokens"]).assign(blocks=5, heads=7, every=4)
    return runs.rename(columns={name: column for column, name in public.HADASAH_COLUMNS.items()})
