"""docs/studies/crossing.md: runs of a known law have its crossings; .ci/run makes the numbers of the page again."""

import json
import math
import re
import sys
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from hub import RecordError, RunRecord
from hub.plain.units import parse_count
from scaling_law import Architecture, JointLaw, Runs, break_even
from studies.crossing import figures, laws
from studies.crossing.__main__ import main
from studies.crossing.gaps import cell_means, gaps_of, scatter_of
from studies.crossing.goals import goals_of
from studies.crossing.laws import CALIBRATED, FITTED, PUBLISHED, Results
from studies.crossing.page import level_in_words, range_in_words, read_page, short, write_page
from studies.crossing.prediction import load, predict, save
from studies.crossing.records import WIDTHS, gather, read_sweep
from studies.crossing.words import measured_in_words
from tests.guides import DOCS, ROOT
from tests.hub.samples import record_fields

FOLDER, PAGE = ROOT / "studies" / "crossing", DOCS / "studies" / "crossing.md"
# As small models fall with D, four times as steeply as the paper's; its terms of E, so that experts pay from 1M to 3M.
LAW = JointLaw(
    **{"a": 6.3, "alpha": -0.215, "delta": -0.2, "b": 8.3e3, "beta": -0.69, "omega": 0.49, "c": 0.7},
    **{name: JointLaw.published().coefficients[name] for name in laws.KEPT},
)
TOKENS, SEEDS = (999_424, 1_998_848, 3_999_744, 7_999_488, 15_998_976, 32_000_000), (8, 8, 4, 2, 2, 2)
SCATTER = (0.025, 0.02, 0.015, 0.008, 0.006, 0.006)
RATE = {32: 0.009, 48: 0.006, 64: 0.004, 80: 0.0033, 96: 0.0027, 128: 0.0018}


def record(d=64, e=1, tokens=TOKENS[2], seed=0, rate=None, loss=1.5, sweep="crossing", **changes):
    """One run of the recipe."""
    a, rate = Architecture(d, e, 3, d // 16, 257), rate or RATE[d]
    trunk = f"{sweep}-d{d}-E{e}-lr{rate:.4g}-seed{seed}".replace("+", "")
    schedule = {
        **{"horizon_tokens": tokens, "warmup_tokens": 50_000, "decay_tokens": tokens // 5},
        **{"batch_ramp": [{"from_tokens": 0, "sequences": 8}], "peak_learning_rate": rate},
        "learning_rate_law": "given",
    }
    fields = a.shape | {
        **{"run_id": f"{trunk}-{tokens}", "sweep": sweep, "parent_run_id": trunk, "vocab_size": 257, "seed": seed},
        **{"branch_point_tokens": int(0.8 * tokens), "n_active": a.n_active, "n_total": a.n_total, "tokens": tokens},
        **{"steps": tokens // 2048, "sequence_length": 256, "precision": "fp32", "drop_rate": 0.0},
        **{"capacity_factor": 0.0, "schedule": schedule, "eval_loss": loss},
    }
    return RunRecord(**record_fields(**fields | changes))


def swept(widths=WIDTHS, experts=(1, 2, 4, 8), scatter=1.0, seed=0):
    """Records of a sweep with losses of the law; scatter is shared in part by the D of a trunk."""
    rng = np.random.default_rng(seed)
    for d in widths:
        for e in experts:
            n = Architecture(d, e, 3, d // 16, 257).n_active
            for s in range(max(SEEDS)):
                shared = rng.normal()
                for tokens, seeds, deviation in zip(TOKENS, SEEDS, SCATTER, strict=True):
                    if s < seeds:
                        off = scatter * deviation * (0.7 * shared + math.sqrt(0.51) * rng.normal())
                        yield record(d, e, tokens, s, loss=float(LAW.loss(n, float(f"{tokens:.2g}"), e)) + off)


def grid(d, e, losses, seed=0):
    """Records of a grid of rates at 4M: rate → loss."""
    return [record(d, e, seed=seed, rate=rate, loss=loss, sweep="rates") for rate, loss in losses.items()]


@pytest.fixture(scope="module")
def sweep():
    return read_sweep([*swept()])


@pytest.fixture(scope="module")
def results():
    """Of a part of the sweep with half the scatter; few draws."""
    return Results(read_sweep([*swept((32, 48, 64, 128), (1, 2, 8), scatter=0.5)]), draws=40)


# ------------------------------------------------------------------ which runs count


def test_tokens_are_nominal_and_every_planned_cell_is_there(sweep):
    nominal = (1e6, 2e6, 4e6, 8e6, 16e6, 32e6)
    assert set(sweep.runs.tokens) == {*nominal}
    assert (sweep.left_out, sweep.missing()) == ({}, [])
    part = read_sweep([*swept(widths=(32,), experts=(1, 8))])
    assert {(d, t) for e, d, t in part.missing() if e == 8} == {*product(WIDTHS[1:], nominal)}
    assert {(d, t) for e, d, t in part.missing() if e == 2} == {*product(WIDTHS, nominal)}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"n_blocks": 2}, "of another recipe"),
        ({"precision": "bf16"}, "of another recipe"),
        ({"final_norm": False}, "of another recipe"),
        ({"drop_rate": 0.1}, "not dropless"),
        ({"tokens": 249_856}, "shorter than 500K tokens"),
        ({"status": "diverged", "eval_loss": None}, "not finished"),
    ],
)
def test_other_runs_do_not_count_and_the_sweep_says_why(changes, reason):
    if changes.get("n_blocks"):
        changes |= {name: getattr(Architecture(64, 1, 2, 4, 257), name) for name in ("n_active", "n_total")}
    found = read_sweep([record(), record(seed=1, **changes)])
    assert (len(found.counted), found.left_out) == (1, {reason: 1})
    with pytest.raises(RecordError, match=reason):
        read_sweep([record(**changes)])


def test_the_rate_is_tuned_at_4m_by_the_seeds_that_all_rates_share():
    """Seed 1, which only one rate has, is of low loss; E = 4 lies between the rates of E = 1 and 8."""
    grids = grid(64, 1, {0.003: 1.5, 0.0045: 1.4, 0.007: 1.45}) + grid(64, 8, {0.002: 1.41, 0.003: 1.4, 0.0045: 1.5})
    lucky = grid(64, 1, {0.007: 1.0}, seed=1)
    sweep = [record(e=1, rate=0.004), record(e=1, rate=0.004, seed=1), record(e=1, rate=0.003, seed=2)]
    sweep += [record(e=8, rate=0.006), record(e=4, rate=0.0035), record(e=4, rate=0.01, seed=1)]
    found = read_sweep([*grids, *lucky, *sweep])
    rates = {rate.experts: rate for rate in found.rates}
    assert (rates[1].tuned, rates[1].used, rates[1].at_edge) == (0.0045, 0.004, False)
    assert rates[1].tried == {0.003: 1.5, 0.0045: 1.4, 0.007: 1.45}
    assert (rates[8].tuned, rates[8].used) == (0.003, 0.003)  # 0.006 is out of the window
    assert (rates[4].tuned, rates[4].used) == (None, 0.0035)
    assert len(found.counted) == 4
    assert found.left_out == {"of another learning rate": 9}


def test_the_rate_is_checked_at_the_longest_tokens_that_several_rates_have():
    """Seed 1 and 8M tokens, which only one rate has, do not count; nor do several rates at 4M."""
    runs = [record(rate=rate, tokens=TOKENS[3], loss=loss) for rate, loss in ((0.004, 1.4), (0.006, 1.3))]
    more = [record(tokens=TOKENS[3], seed=1, loss=1.0), record(tokens=TOKENS[4], loss=1.2), record(rate=0.006)]
    (rate,) = read_sweep([record(), *runs, *more]).rates
    assert rate.checked == (8e6, {0.004: 1.4, 0.006: 1.3})
    (rate,) = read_sweep([record(), *more]).rates
    assert rate.checked is None


def test_a_run_trained_again_counts_once():
    """To the same loss or another one. Its trunk of one run is the grid's; the trunk of the sweep stays."""
    swept_again = [*swept(widths=(64,), experts=(1,))]
    (own,) = (run for run in swept_again if (run.tokens, run.seed) == (TOKENS[2], 0))
    for loss in (own.eval_loss, 1.7):
        found = read_sweep([*grid(64, 1, {0.004: loss, 0.006: 1.8}), *swept_again])
        assert found.left_out == {"of another learning rate": 1, "trained twice": 1}
        assert len(found.counted) == sum(SEEDS)
        assert own.run_id in found.counted.run_id
        (rate,) = found.rates
        assert rate.tried == {0.004: own.eval_loss, 0.006: 1.8}


def test_sizes_and_experts_to_be_predicted_are_never_fitted():
    found = read_sweep([record(), record(d=80), record(d=80, e=12), record(e=12)])
    assert found.runs.run_id == (record().run_id,)
    assert len(found.counted) == 4


def test_losses_of_different_texts_are_refused():
    other = {"id": "books", "revision": None, "fingerprint": "sha256:" + 64 * "0"}
    with pytest.raises(RecordError, match="losses on 2 different texts"):
        read_sweep([record(), record(seed=1, dataset=other)])


def test_records_are_gathered_once_and_whole(tmp_path):
    for i, found in enumerate((record(), record(seed=1))):
        found.save(tmp_path / "a" / str(i))
    record().save(tmp_path / "b")
    target = gather([tmp_path / "a", tmp_path / "b"], tmp_path / "runs.jsonl")
    lines = target.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [record().to_dict(), record(seed=1).to_dict()]
    record(loss=1.4).save(tmp_path / "b")
    with pytest.raises(RecordError, match="another run of this run_id"):
        gather([tmp_path / "a", tmp_path / "b"], target)


# ------------------------------------------------------------------ cells and crossings


def test_scatter_and_standard_errors_are_those_that_were_put_in(sweep):
    scatter, cells = scatter_of(sweep.runs), cell_means(sweep.runs)
    assert list(scatter.freedom) == [140, 140, 60, 20, 20, 20]
    np.testing.assert_allclose(scatter.deviation, SCATTER, rtol=0.4)
    assert len(cells) == 120
    expected = scatter.deviation / np.sqrt(SEEDS)
    np.testing.assert_allclose(cells["standard_error"], np.tile(expected, 20))
    assert cells["precision"].mean() == pytest.approx(1.0)


def test_without_scatter_the_crossing_is_that_of_the_law():
    """But for the straight lines between two D."""
    runs = read_sweep([*swept((32, 128), scatter=1e-9)]).runs
    for gap in gaps_of(runs):
        expected = float(break_even(LAW, gap.n_active, gap.experts).tokens)
        assert gap.bracketed
        assert gap.crossing == pytest.approx([expected] * 3, rel=0.12)


def test_intervals_cover_the_crossing_of_the_law(sweep):
    gaps = gaps_of(sweep.runs)
    true = [float(break_even(LAW, gap.n_active, gap.experts).tokens) for gap in gaps]
    inside = [gap.crossing[1] <= t <= gap.crossing[2] for gap, t in zip(gaps, true, strict=True)]
    assert len(inside) == 15
    assert sum(inside) >= 13


def pairs(dense, routed, seeds=1, scatter=0.0):
    """Runs at 1M, 2M and 4M with these losses, dense and of E = 8."""
    rows = [(d, e, loss, s) for e, losses in ((1, dense), (8, routed)) for s in range(seeds)
            for d, loss in zip((1e6, 2e6, 4e6), losses, strict=True)]  # fmt: skip
    tokens, experts, losses, seed = np.array(rows, float).T
    noise = scatter * np.random.default_rng(0).normal(size=len(rows))
    return Runs.from_columns(1e5, tokens, experts, losses + noise, "run", columns={"seed": seed, "d_model": 32})


@pytest.mark.parametrize(
    ("routed", "crossing"),
    [
        ((1.9, 1.6, 1.4), 0.0),
        ((2.1, 1.8, 1.6), np.inf),
        ((2.1, 1.6, 1.4), 2**0.5 * 1e6),
        ((2.1, 1.65, 1.56), np.inf),  # the last two are pooled: 0.005
        ((2.1, 1.65, 1.53), 2 ** (10 / 11) * 1e6),  # −0.01
    ],
)
def test_one_seed_has_a_crossing_and_no_interval(routed, crossing):
    (gap,) = gaps_of(pairs((2.0, 1.7, 1.5), routed))
    value, low, high = gap.crossing
    assert np.isnan([low, high]).all()
    assert value == pytest.approx(crossing)


def test_seeds_that_were_not_repeated_take_the_scatter_of_the_nearest_tokens():
    runs = pairs((2.0, 1.7, 1.5), (2.1, 1.68, 1.4), seeds=8, scatter=0.02)
    short = runs.subset((runs.tokens < 4e6) | (runs["seed"] == 0))
    (gap,) = gaps_of(short)
    assert list(gap.pairs) == [8, 8, 1]
    assert gap.error[2] == pytest.approx(np.sqrt(8) * gap.error[1])
    assert gap.crossing[1] < gap.crossing[0] < gap.crossing[2]
    assert scatter_of(short).at(np.array([4e6])) == scatter_of(short).deviation[1]


@pytest.mark.parametrize(("routed", "words"), [(1.6, "ahead at 2M"), (1.8, "behind at 2M")])
def test_a_single_count_of_tokens_brackets_nothing(routed, words):
    runs = pairs((2.0, 1.7, 1.5), (2.1, routed, 1.4))
    (gap,) = gaps_of(runs.subset(runs.tokens == 2e6))
    assert measured_in_words(gap) == words


def test_an_expert_count_without_dense_twins_has_no_gap():
    runs = pairs((2.0, 1.7, 1.5), (2.1, 1.6, 1.4))
    assert gaps_of(runs.subset(runs.experts > 1)) == []
    assert len(cell_means(runs)) == 6


def test_half_a_million_tokens_bracket_a_crossing_and_are_not_fitted():
    sweep = [record(64, e, t, loss=loss) for e, losses in ((1, (2.0, 1.8)), (8, (2.1, 1.7)))
             for t, loss in zip((499_712, 999_424), losses, strict=True)]  # fmt: skip
    found = read_sweep(sweep)
    assert {*found.runs.tokens} == {1e6}
    (gap,) = gaps_of(found.counted)
    assert 5e5 < gap.crossing[0] < 1e6


# ------------------------------------------------------------------ laws, goals, predictions


def test_laws_fitted_to_runs_of_a_law_have_its_crossings(results):
    """And the published law is too late, as it is by construction."""
    off = {name: results.comparison(law) for name, law in results.laws.items()}
    assert {name: len(found.ratios) >= 4 for name, found in off.items()} == dict.fromkeys(off, True)
    for n in np.unique(results.sweep.runs.n_active):
        true = break_even(LAW, n, [2, 8]).tokens
        for name in (CALIBRATED, FITTED):
            np.testing.assert_allclose(results.asked(results.laws[name], n, [2, 8]), true, rtol=0.3)
    assert off[PUBLISHED].middle > 2 > off[CALIBRATED].middle > 0.5
    assert len(results.forecast) == 36
    assert np.abs(results.forecast).max() < 0.05


def test_the_joint_law_is_not_fitted_to_two_numbers_of_experts():
    two = Results(read_sweep([*swept((32, 48, 64, 128), (1, 8))]))
    assert (two.fitted, two.drawn, two.held_out) == (None, None, [])


def test_the_goals_are_judged_by_the_cells(results):
    goals = [*goals_of(results, None)]
    assert [goal.met for goal in goals[:4]] == [True] * 4
    assert results.rmse < 0.008
    assert results.rmse_of_seeds == pytest.approx(0.5 * np.sqrt(np.mean(np.array(SCATTER) ** 2 / SEEDS)), rel=0.2)
    assert goals[-1].met is None
    open_ones = [*goals_of(Results(read_sweep([record()])), None)]
    assert {goal.met for goal in open_ones} == {None}


def test_a_goal_that_is_missed_says_by_how_much():
    worse = Results(read_sweep([*swept((32, 64, 128), (1, 2, 8), scatter=4.0)]))
    goal = next(goals_of(worse, None))
    assert goal.met is False
    assert re.match(r"[\d.]+ times the goal\. The scatter of seeds alone would leave 0\.0\d+; by D", goal.why)


def test_predictions_are_made_once_and_judged_by_later_runs(results, tmp_path):
    records = gather([], tmp_path / "runs.jsonl")
    made = predict(results, records, [(80, 12)])
    path = save(made, tmp_path / "prediction.json")
    assert load(path) == made
    with pytest.raises(FileExistsError, match="made once"):
        save(made, path)
    (model,) = made.models
    value, low, high = model.interval
    true = float(break_even(LAW, model.n_active, 12).tokens)
    assert low < value < high
    assert low < true < high
    assert model.others.keys() == {PUBLISHED, CALIBRATED}
    later = Results(read_sweep([*swept(widths=(80,), experts=(1, 12)), *swept(widths=(32,))]))
    gap = next(gap for gap in later.all_gaps if gap.experts == 12)
    assert model.holds(gap)
    assert [goal.met for goal in goals_of(later, made)][-1] is True
    far = replace(made, models=(replace(model, interval=(value, 2 * gap.crossing[0], 3 * gap.crossing[0])),))
    missed = [*goals_of(later, far)][-1]
    assert missed.met is False
    assert missed.why.startswith("Outside the interval, 0.5 times its lower end; the measurement's own interval ")
    assert all(gap.d_model == 32 for gap in later.gaps)
    with pytest.raises(ValueError, match="d_model=80, experts=12: measured already"):
        predict(Results(read_sweep([record(80), record(80, 12)])), records, [(80, 12)])
    with pytest.raises(ValueError, match="d_model=64, experts=8: part of the sweep"):
        predict(results, records, [(64, 8)])
    assert load(tmp_path / "none.json") is None


# ------------------------------------------------------------------ the page


def test_every_state_of_the_sweep_has_a_page(tmp_path):
    """One run, one E, one seed: what is missing is said, nothing fails."""
    template = PAGE.read_text()
    nothing = "E = 1, 2, 4, 8 at d_model 32, 48, 64, 96, 128"
    states = [
        ([record()], nothing),
        ([*swept((64,), (1,))], "E = 1 at d_model 32, 48, 96, 128"),
        ([*grid(64, 1, {0.004: 1.5, 0.006: 1.6})], nothing),
        ([*swept((32, 64), (1, 8))], "E = 1, 8 at d_model 48, 96, 128"),
    ]
    for i, (records, missing) in enumerate(states):
        folder, page = tmp_path / str(i), tmp_path / str(i) / "page.md"
        folder.mkdir()
        page.write_text(template)
        (folder / "runs.jsonl").write_text("".join(found.to_json() + "\n" for found in records))
        write_page(folder, page)
        assert f"Missing of what was planned: {missing} and 1M tokens" in page.read_text()
    assert {path.name for path in (folder / "figures").iterdir()} == {
        "crossing.png", "crossing-gaps.png", "crossing-losses.png"
    }  # fmt: skip


def test_one_command_takes_runs_and_writes_all_of_it(tmp_path, monkeypatch, capsys):
    folder, page = tmp_path / "crossing", tmp_path / "crossing.md"
    folder.mkdir()
    page.write_text(PAGE.read_text())
    for found in (record(), record(e=8)):
        found.save(tmp_path / "runs" / found.run_id)
    words = ["crossing", str(folder), str(page), "--runs", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", words)
    main()
    assert capsys.readouterr().out.splitlines()[:2] == [str(folder / "runs.jsonl"), str(page)]
    assert "1 pairs of a size and E were measured" in page.read_text()
    monkeypatch.setattr(sys, "argv", [*words, "--predict", "80:12"])
    with pytest.raises(ValueError, match="do not determine the law"):
        main()


def test_the_crossings_of_each_number_of_experts_are_in_the_short_account(tmp_path):
    records = [*swept((32, 64), (1, 2, 8), scatter=0.1)]
    (tmp_path / "runs.jsonl").write_text("".join(found.to_json() + "\n" for found in records))
    (text,) = short(read_page(tmp_path))
    sizes = sorted({found.n_active for found in records})
    for e in (2, 8):
        (ends,) = re.findall(rf"E = {e} at (\S+) to (\S+) \(published law", text)
        true = break_even(LAW, sizes, e).tokens
        np.testing.assert_allclose([*map(parse_count, ends)], true, rtol=0.15)


def test_the_account_of_the_published_law_can_come_out_either_way(results):
    """Its level on losses of its own, and its range where it was fitted."""
    published, cells = JointLaw.published(), results.cells
    assert "another matter" in level_in_words(cells)
    own = replace(cells, loss=0.3 + published.loss(cells.n_active, cells.tokens, cells.experts))
    assert level_in_words(own).startswith("**The level is the law's, too.** Moved by a constant")
    assert range_in_words([5e4], [1e6], [8]).startswith("far outside its range; asked here, it warns: N_act 50K")
    assert range_in_words([5e8], [1e10], [8]) == "inside its range"


def test_the_figures_show_every_size_and_experts(results):
    panels = figures.where_experts_pay(results, [2, 8])
    assert [ax.get_title() for ax in panels] == ["E = 2 against dense", "E = 8 against dense"]
    assert len(figures.gaps_by_size(results)) == len(figures.losses_by_size(results)) == 4


def test_a_page_without_a_block_is_refused(tmp_path):
    (tmp_path / "page.md").write_text("nothing\n")
    with pytest.raises(ValueError, match="no block `<!-- short -->`"):
        write_page(FOLDER, tmp_path / "page.md")
