"""docs/studies/crossing.md: which runs count, and runs of a known law have its crossings."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from hub import RecordError, RunRecord
from scaling_law import Architecture, JointLaw, Runs
from studies.__main__ import PAGES, main
from studies.common import Page, gather, redraw
from studies.crossing import laws, study
from studies.crossing.cells import Cells, gaps_of, ratio_of
from studies.crossing.laws import BENT, FITTED, PRIOR, PUBLISHED, Results
from studies.crossing.records import WIDTHS, read_sweep
from tests.hub.samples import record_fields

# As small models fall with D, four times as steeply as the paper's; its terms of E, so that experts pay from 1M to 3M.
LAW = JointLaw(
    **{"a": 6.3, "alpha": -0.215, "delta": -0.2, "b": 8.3e3, "beta": -0.69, "omega": 0.49, "c": 0.7},
    **{name: JointLaw.published().coefficients[name] for name in laws.KEPT},
)
TOKENS, SEEDS = (999_424, 1_998_848, 3_999_744, 7_999_488, 15_998_976, 32_000_000), (8, 8, 4, 2, 2, 2)
SCATTER = (0.025, 0.02, 0.015, 0.008, 0.006, 0.006)
OTHER_TEXT = {"id": "books", "revision": None, "fingerprint": "sha256:" + 64 * "0"}
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


def written(records, path):
    """A runs.jsonl of these records."""
    path.write_text("".join(f"{one.to_json()}\n" for one in records), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def sweep():
    return read_sweep([*swept()])


@pytest.fixture(scope="module")
def results():
    """Of a part of the sweep with half the scatter; few draws."""
    return Results(read_sweep([*swept((32, 48, 64, 128), (1, 2, 8), scatter=0.5)]), draws=40)


@pytest.fixture(scope="module")
def page():
    """The study of the records."""
    return study.PAGE.read()


# ------------------------------------------------------------------ which runs count


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


def test_the_rate_of_most_runs_counts_within_a_step_of_the_grid():
    """Tuned at 4M by the seeds that all rates share: seed 1, which only one rate has, is of low loss."""
    grids = grid(64, 1, {0.003: 1.5, 0.0045: 1.4, 0.007: 1.45}) + grid(64, 1, {0.007: 1.0}, seed=1)
    sweep = [record(e=1, rate=0.004, seed=s) for s in range(3)]
    longer = [record(rate=rate, tokens=TOKENS[3], loss=loss) for rate, loss in ((0.004, 1.4), (0.006, 1.3))]
    found = read_sweep([*grids, *sweep, *longer, record(tokens=TOKENS[3], seed=1, loss=1.0), record(e=4, rate=0.002)])
    dense, routed = found.rates
    assert (dense.tuned, dense.used, dense.losses_by_rate) == (0.0045, 0.004, {0.003: 1.5, 0.0045: 1.4, 0.007: 1.45})
    assert (dense.longer, dense.longer_losses) == (8e6, {0.004: 1.4, 0.006: 1.3})
    assert (routed.tuned, routed.used, routed.longer_losses) == (None, 0.002, {})
    assert (len(found.counted), found.left_out) == (6, {"of another learning rate": 5})
    with pytest.raises(RecordError, match=r"most runs have a learning rate of 0.01, more than a factor of 1.5 from 0"):
        read_sweep([*grids, *(record(rate=0.01, seed=s) for s in range(3))])


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
        assert rate.losses_by_rate == {0.004: own.eval_loss, 0.006: 1.8}


def test_what_is_to_be_predicted_and_half_a_million_tokens_are_never_fitted():
    """Which bracket a crossing."""
    others = [record(d=80), record(d=80, e=12), record(e=12)]
    losses = {1: (2.0, 1.8), 8: (2.1, 1.7)}
    short = [record(64, e, t, loss=losses[e][i]) for e in (1, 8) for i, t in enumerate((499_712, 999_424))]
    found = read_sweep([*others, *short])
    assert ({*found.runs["d_model"]}, {*found.runs.experts}, {*found.runs.tokens}) == ({64}, {1, 8}, {1e6})  # nominal
    assert (len(found.counted), found.left_out) == (7, {})
    (gap,) = (gap for gap in gaps_of(found.counted) if gap.experts == 8)
    assert gaps_of(found.counted.subset(found.counted.experts > 1)) == []  # without dense twins
    assert 5e5 < gap.crossing < 1e6


def test_losses_of_different_texts_are_refused():
    with pytest.raises(RecordError, match="losses on 2 different texts"):
        read_sweep([record(), record(seed=1, dataset=OTHER_TEXT)])


def test_records_are_gathered_once_and_whole(tmp_path, monkeypatch):
    """Beside those that are there; models that read pieces have a file of their own."""
    pieces = record(32, 8, run_id="pieces", vocab_size=1024)
    for i, one in enumerate((record(seed=1), pieces)):
        one.save(tmp_path / "a" / str(i))
    record().save(tmp_path / "b")
    for name in ("RECORDS", "PIECES"):
        monkeypatch.setattr(study, name, tmp_path / f"{name}.jsonl")
    written([record()], study.RECORDS)
    study.take([tmp_path / "a", tmp_path / "b"])
    kept = [[json.loads(line) for line in file.read_text().splitlines()] for file in (study.RECORDS, study.PIECES)]
    assert kept == [[record().to_dict(), record(seed=1).to_dict()], [pieces.to_dict()]]
    record(loss=1.4).save(tmp_path / "b")
    with pytest.raises(RecordError, match="another run of this run_id"):
        gather([tmp_path / "b"], study.RECORDS)
    record(seed=2, dataset=OTHER_TEXT).save(tmp_path / "b")
    with pytest.raises(RecordError, match="losses on 2 different texts"):  # before anything is written
        study.take([tmp_path / "b"])
    assert len(study.RECORDS.read_text().splitlines()) == 2


# ------------------------------------------------------------------ cells and crossings


def test_scatter_and_standard_errors_are_those_that_were_put_in(sweep):
    """By kind: of five sizes, one dense and three with experts."""
    cells = Cells.of(sweep.runs)
    for kind, models in ((False, 5), (True, 15)):
        covariance, freedom = cells.scatter[kind]
        assert list(freedom) == [models * (n - 1) for n in SEEDS]
        np.testing.assert_allclose(np.sqrt(np.diag(covariance)), SCATTER, rtol=0.55)
        shared = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
        assert shared == pytest.approx(0.49, abs=0.25)  # in part by the D of a trunk
    table = cells.table()
    deviation = np.sqrt(np.diag(cells.scatter[True][0]))
    np.testing.assert_allclose(table["standard_error"][table.experts == 8], np.tile(deviation / np.sqrt(SEEDS), 5))
    assert (len(table), table["precision"].mean()) == (120, pytest.approx(1.0))


def test_crossings_and_their_intervals_are_those_of_the_law(sweep):
    """Without scatter but for the straight lines between two D; draws of the dense models are shared by all E."""
    for gap in gaps_of(read_sweep([*swept((32, 128), scatter=1e-9)]).runs):
        expected = LAW.speedup(gap.experts, n_active=gap.n_active).rows[0]["tokens"]
        assert gap.bracketed
        assert (gap.crossing, *gap.interval) == pytest.approx([expected] * 3, rel=0.12)
    gaps = {(gap.d_model, gap.experts): gap for gap in gaps_of(sweep.runs)}
    true = [LAW.speedup(gap.experts, n_active=gap.n_active).rows[0]["tokens"] for gap in gaps.values()]
    inside = [gap.interval[0] <= t <= gap.interval[1] for gap, t in zip(gaps.values(), true, strict=True)]
    assert (len(inside), sum(inside) >= 13) == (15, True)
    shared = np.corrcoef(gaps[64, 2].draws[:, 0], gaps[64, 8].draws[:, 0])[0, 1]
    assert shared == pytest.approx(0.4, abs=0.3)


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
    assert np.isnan(gap.interval).all()
    assert gap.crossing == pytest.approx(crossing)
    assert gap.clip(gap.crossing) == pytest.approx(np.clip(crossing, 0.25e6, 16e6))


def test_errors_are_those_of_the_seeds_that_each_kind_has_at_each_d():
    """All dense seeds count, also where experts have fewer; where none is repeated, the nearest D tells."""
    runs = pairs((2.0, 1.7, 1.5), (2.1, 1.68, 1.4), seeds=8, scatter=0.02)
    (gap,) = gaps_of(runs.subset((runs.tokens < 4e6) | (runs["seed"] == 0)))
    assert gap.seeds.tolist() == [[8, 8], [8, 8], [1, 1]]
    assert gap.error[2] == pytest.approx(np.sqrt(8) * gap.error[1])
    assert gap.interval[0] < gap.crossing < gap.interval[1]
    few = runs.subset((runs.experts == 1) | (runs["seed"] < 2))
    (gap,) = gaps_of(few)
    assert gap.seeds.tolist() == [[2, 8]] * 3
    one, two = (np.diag(Cells.of(few).scatter[kind][0]) for kind in (True, False))
    np.testing.assert_allclose(gap.error**2, one / 2 + two / 8)


# ------------------------------------------------------------------ laws, goals, predictions


@pytest.mark.slow  # `make studies` writes the page, with its claims, for every change
def test_a_law_fitted_to_runs_of_a_law_has_its_crossings(results):
    """And the published law is too late, as it is by construction. A prior chooses as well as we did."""
    fitted, own = results.laws[FITTED], [g.n_active for g in results.of(8)]
    expected = [row["tokens"] for row in LAW.speedup(8, n_active=own).rows]
    np.testing.assert_allclose(results.break_even(fitted, own, 8), expected, rtol=0.3)
    (late, low, _), (right, least, most), (moved, *_) = (
        results.lateness(law, 8) for law in (results.laws[PUBLISHED], fitted, results.prior_fit.law)
    )
    assert late > low > 2
    assert least < 1 < most
    assert 0.7 < min(right, moved) < max(right, moved) < 1.4
    assert all(test.laws[FITTED].rmse < 0.02 for test in results.held_out.values())
    assert results.left_out[PRIOR] < 1.2 * results.left_out[FITTED]


def test_pieces_that_cross_at_half_the_tokens_are_told_from_tokens_and_from_bytes(results, tmp_path, monkeypatch):
    fewer = {"branch_point_tokens": None}
    halved = [r.model_copy(update={"tokens": r.tokens // 2} | fewer) for r in swept((32, 64), (1, 8))]
    monkeypatch.setattr(laws, "PIECES", written(halved, tmp_path / "pieces.jsonl"))
    pairs = Results(results.sweep).pieces
    assert [(a.d_model, a.experts, b.d_model, b.experts) for a, b in pairs] == [(d, 8, d, 8) for d in (32, 64)]
    (ratio, low, high), _ = ratio_of(pairs)
    assert low < ratio < high < 1
    assert ratio == pytest.approx(0.5, rel=0.3)


@pytest.mark.slow  # `make studies` writes the page, with its claims, for every change
def test_each_verdict_of_the_page_holds_and_can_come_out_the_other_way(page, results, monkeypatch):
    assert study.PAGE.refuted(page) == []
    assert study.agreeing(results) == []
    noisy = Results(read_sweep([*swept((32, 64), (1, 2, 8), scatter=3.0)]))
    status = SimpleNamespace(status=SimpleNamespace(converged=False), law=LAW)
    noisy.__dict__.update(left_out={FITTED: 0.02, PRIOR: 0.03, BENT: 0.03}, gap_errors=(0.4, 0.06, 105))
    noisy.__dict__.update(joint_fit=status, kappa_fit=status, pieces=[])
    beyond = {"interval": (2e6, 1e6, 3e6), "others": {PUBLISHED: 4e6}}
    monkeypatch.setattr(study, "predicted_models", lambda _: [(beyond, None, None)] * 3)
    monkeypatch.setattr(study, "forecasts", lambda _: [("inside",), ("yes",), ("no",)])
    monkeypatch.setattr(study, "ratio_of", lambda _: ((0.4, 0.3, 0.5), None))
    assert study.PAGE.refuted(noisy) == [*study.CLAIMS]


def test_the_goals_are_judged_by_the_cells(results):
    assert [goal[3] for goal in study.goals(results)] == ["", *["met"] * 4, "missed"]  # signs that are kept
    worse = Results(read_sweep([*swept((32, 64, 128), (1, 2, 8), scatter=4.0)]), draws=5)
    assert [*study.goals(worse)][1][3] == "missed"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Records of a sweep, predictions and ledger in a folder of their own."""
    for module in (laws, study):
        monkeypatch.setattr(module, "RECORDS", tmp_path / "runs.jsonl")
        monkeypatch.setattr(module, "PREDICTIONS", tmp_path / "predictions")
        monkeypatch.setattr(module, "LEDGER", tmp_path / "predictions" / "ledger")
    laws.PREDICTIONS.mkdir()
    return written(swept((32, 64, 128), (1, 8), scatter=0.5), laws.RECORDS)


@pytest.mark.slow
def test_predictions_are_made_once_and_judged_by_later_runs(elsewhere, monkeypatch):
    _, *forecasts = study.predict(["80:8"])
    assert len(forecasts) == 2 * len(laws.FORECAST_AT)
    assert all(forecast.exists() for forecast in forecasts)
    with pytest.raises(FileExistsError, match="made once"):
        study.predict(["80:8"])
    before = Results(read_sweep(elsewhere))
    ((model, gap, _),) = study.predicted_models(before)
    assert gap is None
    _, *rows = study.forecasts(before)
    assert {row[-2:] for row in rows} == {("–", "–")}
    value, low, high = model["interval"]
    assert low < value < high
    assert model["others"].keys() == {PUBLISHED}
    later = Results(read_sweep([*swept((80,), (1, 8), scatter=1e-4), *swept((32,))]))
    ((_, gap, _),) = study.predicted_models(later)
    assert laws.holds(model, gap)
    assert not laws.holds({"interval": (value, 2 * gap.crossing, 3 * gap.crossing)}, gap)
    assert all(gap.d_model == 32 for gap in later.gaps)
    shown = {(e, tokens): (measured, inside) for _, e, tokens, _, measured, inside in [*study.forecasts(later)][1:]}
    assert shown["8", "4M"] == (f"{LAW.loss(290_720, 4e6, 8) / np.log(2):.3f}", "yes")
    written(swept((80,), (1, 12)), elsewhere)
    for swept_or_measured in ("64:8", "80:12"):
        with pytest.raises(ValueError, match="fitted or measured already"):
            study.predict([swept_or_measured])


def test_with_enough_crossings_of_its_e_a_prediction_takes_the_scatter_of_these_alone(results):
    """Crossings of other E far from the law then widen nothing; with too few of its own they do."""
    wild = Results(results.sweep, results.draws)
    moved = [replace(gap, mean=gap.mean + (0.0 if gap.experts == 8 else 0.03)) for gap in results.gaps]
    wild.__dict__.update(gaps=moved, all_gaps=results.all_gaps)
    wild.__dict__.update(joint_fit=results.joint_fit, bootstrap=results.bootstrap)
    one, two = ([laws.prediction(r, 80, e)["interval"] for r in (results, wild)] for e in (8, 12))
    assert len([gap for gap in results.of(8) if gap.bracketed]) >= laws.LEAST
    assert one[0] == one[1]
    assert two[0] != two[1]


@pytest.mark.slow
def test_one_command_takes_runs_and_writes_all_of_it(page, tmp_path, monkeypatch, capsys):
    for name in ("RECORDS", "PIECES"):
        kept = tmp_path / getattr(study, name).name
        kept.write_bytes(getattr(study, name).read_bytes())
        monkeypatch.setattr(study, name, kept)
    monkeypatch.setattr(study, "PAGE", replace(study.PAGE, read=lambda: page))
    monkeypatch.setattr("studies.__main__.PAGES", tmp_path)
    target = tmp_path / "crossing.md"
    target.write_bytes((PAGES / target.name).read_bytes())
    monkeypatch.setattr("sys.argv", ["studies", "crossing", "--runs", str(laws.RECORDS)])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [str(study.RECORDS), str(study.PIECES), str(target)]
    assert study.RECORDS.read_bytes() == laws.RECORDS.read_bytes()
    assert {line.rpartition("/")[2] for line in lines[3:]} == {
        *("where-experts-pay.png", "crossing-gaps.png", "crossing.csv", "crossing-losses.csv", "crossing-rates.csv")
    }
    assert target.read_bytes() == (PAGES / target.name).read_bytes()
    target.write_text("nothing\n")
    with pytest.raises(ValueError, match="no block `<!-- counted -->`"):
        main()


def test_a_page_has_the_values_of_its_study_and_says_what_they_say(tmp_path):
    page, text = tmp_path / "page.md", "At <!-- =crossing -->1M<!-- = --> bytes.\n"
    page.write_text(text)
    for values in ({}, {"crossing": "2M", "late": "6.6"}):
        with pytest.raises(ValueError, match=r"lacks the value `<!-- =(crossing|late) -->`"):
            Page(lambda values=values: values, values=dict).write(page)
    claims = {"experts pay": lambda _: False, "late": lambda _: True}
    with pytest.raises(ValueError, match=r"its numbers refute what it says: experts pay$"):
        Page(lambda: {"crossing": "2M"}, values=dict, claims=claims).write(page)
    assert page.read_text() == text.replace("1M", "2M")


def test_the_figures_show_every_size_and_dash_what_is_outside(results):
    panels = study.where_experts_pay(results, (2, 8))
    assert [ax.get_title() for ax in panels] == ["E = 2 against dense", "E = 8 against dense"]
    assert "_outside the fitted range" in {line.get_label() for line in panels[0].get_lines()}
    assert len(study.crossing_gaps(results)) == 2


def test_a_figure_is_drawn_again_only_if_a_pixel_changes_by_more_than_a_level(tmp_path):
    figure, path = plt.figure(facecolor="#808080"), tmp_path / "figure.png"
    drawn = redraw(figure, path).read_bytes()
    for shade, is_kept in (("#818080", True), ("#848080", False)):
        figure.set_facecolor(shade)
        assert (redraw(figure, path).read_bytes() == drawn) == is_kept
    plt.close(figure)
