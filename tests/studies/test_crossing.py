"""docs/studies/crossing.md: which runs count, and runs of a known law have its crossings."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hub import RecordError, RunRecord
from scaling_law import Architecture, JointLaw, Runs
from studies.__main__ import PAGES, main
from studies.common import fill, write_page
from studies.crossing import figures, laws, pieces, prediction, study
from studies.crossing.cells import Cells, gaps_of
from studies.crossing.forms import BENT, JOINT
from studies.crossing.laws import FITTED, PRIOR, PUBLISHED, SCALES, Results
from studies.crossing.rates import grids_of, moved
from studies.crossing.records import WIDTHS, gather, read_sweep
from tests.hub.samples import record_fields

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


def gather_all(records, path):
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
    return study.read()


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
    assert (dense.tuned, dense.used, dense.tried) == (0.0045, 0.004, {0.003: 1.5, 0.0045: 1.4, 0.007: 1.45})
    assert (dense.longer, dense.checked) == (8e6, {0.004: 1.4, 0.006: 1.3})
    assert (routed.tuned, routed.used, routed.checked) == (None, 0.002, {})
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


def test_without_scatter_the_crossing_is_that_of_the_law():
    """But for the straight lines between two D."""
    for gap in gaps_of(read_sweep([*swept((32, 128), scatter=1e-9)]).runs):
        expected = float(LAW.break_even(gap.n_active, gap.experts).tokens)
        assert gap.bracketed
        assert (gap.crossing, *gap.interval) == pytest.approx([expected] * 3, rel=0.12)


def test_intervals_cover_the_crossing_of_the_law(sweep):
    gaps = gaps_of(sweep.runs)
    true = [float(LAW.break_even(gap.n_active, gap.experts).tokens) for gap in gaps]
    inside = [gap.interval[0] <= t <= gap.interval[1] for gap, t in zip(gaps, true, strict=True)]
    assert len(inside) == 15
    assert sum(inside) >= 13


def test_draws_of_the_dense_models_are_shared_by_all_experts(sweep):
    """So the crossings of two E move together, and their ratio is known better than either."""
    two, eight = (next(g for g in gaps_of(sweep.runs) if (g.d_model, g.experts) == (64, e)) for e in (2, 8))
    assert np.corrcoef(two.draws[:, 0], eight.draws[:, 0])[0, 1] == pytest.approx(0.4, abs=0.3)


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
    assert laws.counted(gap, gap.crossing) == pytest.approx(np.clip(crossing, 0.25e6, 16e6))


def test_seeds_that_were_not_repeated_take_the_scatter_of_the_nearest_tokens():
    runs = pairs((2.0, 1.7, 1.5), (2.1, 1.68, 1.4), seeds=8, scatter=0.02)
    short = runs.subset((runs.tokens < 4e6) | (runs["seed"] == 0))
    (gap,) = gaps_of(short)
    assert gap.seeds.tolist() == [[8, 8], [8, 8], [1, 1]]
    assert gap.error[2] == pytest.approx(np.sqrt(8) * gap.error[1])
    assert gap.interval[0] < gap.crossing < gap.interval[1]


def test_every_dense_seed_counts():
    """Also where experts have one seed: the error is that of one MoE run and eight dense ones."""
    runs = pairs((2.0, 1.7, 1.5), (2.1, 1.68, 1.4), seeds=8, scatter=0.02)
    few = runs.subset((runs.experts == 1) | (runs["seed"] < 2))
    (gap,) = gaps_of(few)
    assert gap.seeds.tolist() == [[2, 8]] * 3
    one, two = (np.diag(Cells.of(few).scatter[kind][0]) for kind in (True, False))
    np.testing.assert_allclose(gap.error**2, one / 2 + two / 8)


def test_half_a_million_tokens_bracket_a_crossing_and_are_not_fitted():
    sweep = [record(64, e, t, loss=loss) for e, losses in ((1, (2.0, 1.8)), (8, (2.1, 1.7)))
             for t, loss in zip((499_712, 999_424), losses, strict=True)]  # fmt: skip
    found = read_sweep(sweep)
    assert ({*found.runs.tokens}, found.left_out) == ({1e6}, {})  # nominal
    (gap,) = gaps_of(found.counted)
    assert gaps_of(found.counted.subset(found.counted.experts > 1)) == []  # without dense twins
    assert 5e5 < gap.crossing < 1e6


# ------------------------------------------------------------------ laws, goals, predictions


def test_a_law_fitted_to_runs_of_a_law_has_its_crossings(results):
    """And the published law is too late, as it is by construction."""
    fitted, own = results.laws[FITTED], [g.n_active for g in results.of(8)]
    np.testing.assert_allclose(results.asked(fitted, own, 8), LAW.break_even(own, 8).tokens, rtol=0.3)
    (late, low, _), (right, least, most) = (results.lateness(results.laws[name], 8) for name in (PUBLISHED, FITTED))
    assert late > low > 2
    assert least < 1 < most
    assert 0.7 < right < 1.4
    assert all(test.laws[FITTED].rmse < 0.02 for test in results.held_out.values())


def test_a_prior_chooses_as_well_as_we_did(results):
    """Nothing held, the crossings of runs whose exponents the published law lacks are found, and models left out."""
    late, *_ = results.lateness(results.moved.law, 8)
    assert 0.7 < late < 1.4
    assert results.left_out[PRIOR] < 1.2 * results.left_out[FITTED]
    assert results.left_out[SCALES] > 2 * results.left_out[PRIOR]


def test_pieces_that_cross_at_half_the_tokens_are_told_from_tokens_and_from_bytes(results, tmp_path, monkeypatch):
    fewer = {"branch_point_tokens": None}
    halved = [r.model_copy(update={"tokens": r.tokens // 2} | fewer) for r in swept((32, 64), (1, 8))]
    monkeypatch.setattr(pieces, "PIECES", gather_all(halved, tmp_path / "pieces.jsonl"))
    told = pieces.Pieces(results.gaps)
    assert [(a.d_model, a.experts, b.d_model, b.experts) for a, b in told.pairs] == [(d, 8, d, 8) for d in (32, 64)]
    ratio, low, high = told.in_tokens
    assert low < ratio < high < 1
    assert ratio == pytest.approx(0.5, rel=0.3)
    assert told.in_bytes == pytest.approx([pieces.BYTES_PER_PIECE * value for value in (ratio, low, high)])


@pytest.mark.parametrize(("dense", "routed"), [(1.5, 1.0), (1.5, 1.5), (1.0, 1.3)])
def test_crossings_move_by_what_each_kind_gains_at_its_best_rate(dense, routed):
    records, bent = [*swept((32,), (1, 8), scatter=0.02)], 0.1
    for r in [r for r in records if r.tokens < TOKENS[2]]:
        best = np.log(routed if r.experts > 1 else dense)
        for step in (1 / 1.5, 1.5, 2.25):
            loss = r.eval_loss + bent * ((np.log(step) - best) ** 2 - best**2)
            rate = r.schedule.peak_learning_rate * step
            records.append(record(32, r.experts, r.tokens, r.seed, rate, loss, f"rates-x{step:.2f}"))
    sweep = read_sweep(records)
    (gap,) = gaps_of(sweep.counted)
    grids = grids_of(sweep)
    assert [(g.experts, g.tokens, len(g.rates)) for g in grids] == [(e, t, 4) for e in (1, 8) for t in (1e6, 2e6)]
    for grid in grids:
        best = routed if grid.experts > 1 else dense
        factor, gain = grid.best(grid.losses)
        assert factor == pytest.approx(best, rel=0.01)
        assert gain == pytest.approx(bent * np.log(best) ** 2, abs=1e-4)
    shift = bent * (np.log(dense) ** 2 - np.log(routed) ** 2)
    at = np.isin(gap.tokens, (1e6, 2e6))
    later = replace(gap, mean=gap.mean + np.where(at, shift, 0.0)).crossing / gap.crossing
    value, low, high = moved([gap], grids)
    assert value == pytest.approx(later, rel=1e-3)
    assert low <= value <= high


def test_each_verdict_of_the_page_holds_and_can_come_out_the_other_way(page, results, monkeypatch):
    assert [claim for claim, holds in study.CLAIMS.items() if not holds(page)] == []
    assert study.agreeing(results) == []
    noisy = Results(read_sweep([*swept((32, 64), (1, 2, 8), scatter=3.0)]))
    noisy.__dict__["left_out"] = {FITTED: 0.02, PRIOR: 0.03}
    noisy.__dict__["gap_errors"] = (0.4, 0.06, 105)
    noisy.__dict__["forms"] = SimpleNamespace(laws=dict.fromkeys((BENT, JOINT), LAW), left_out={BENT: 1.0, JOINT: 0.9})
    noisy.__dict__["fitted"] = SimpleNamespace(status=SimpleNamespace(converged=False))
    beyond = {"interval": (2e6, 1e6, 3e6), "others": {PUBLISHED: 4e6}}
    monkeypatch.setattr(study, "_predicted", lambda _: [(beyond, None, None)] * 3)
    monkeypatch.setattr(study, "forecasts", lambda _: [("inside",), ("yes",), ("no",)])
    noisy_pieces = SimpleNamespace(in_tokens=(0.4, 0.3, 0.5), in_bytes=(1.1, 0.9, 1.3))
    monkeypatch.setattr(study, "Pieces", lambda _: noisy_pieces)
    monkeypatch.setattr(study, "moved", lambda *_: (5.0, 2.0, 9.0))
    monkeypatch.setattr(study, "_again", lambda _: [(record(), 1.5, -2.3, 0.01)])
    assert [claim for claim, holds in study.CLAIMS.items() if holds(noisy)] == []


def test_the_goals_are_judged_by_the_cells(results, monkeypatch):
    monkeypatch.setattr(study, "_predicted", lambda _: [])
    assert [goal[3] for goal in study.goals(results)] == ["", *["met"] * 4, "missed"]  # signs that are kept
    worse = Results(read_sweep([*swept((32, 64, 128), (1, 2, 8), scatter=4.0)]), draws=5)
    assert [*study.goals(worse)][1][3] == "missed"


def test_predictions_are_made_once_and_judged_by_later_runs(results, tmp_path):
    records = gather([], tmp_path / "runs.jsonl")
    path = prediction.write(results, [(80, 12)], records, tmp_path / "prediction.json")
    with pytest.raises(FileExistsError, match="made once"):
        prediction.write(results, [(80, 12)], records, path)
    (model,) = prediction.load(path)["models"]
    value, low, high = model["interval"]
    assert low < value < high
    assert low < float(LAW.break_even(model["n_active"], 12).tokens) < high
    assert model["others"].keys() == {PUBLISHED}
    later = Results(read_sweep([*swept(widths=(80,), experts=(1, 12)), *swept(widths=(32,))]))
    gap = next(gap for gap in later.all_gaps if gap.experts == 12)
    assert prediction.holds(model, gap)
    assert not prediction.holds({"interval": (value, 2 * gap.crossing, 3 * gap.crossing)}, gap)
    assert all(gap.d_model == 32 for gap in later.gaps)
    for swept_or_measured in ((64, 8), (80, 12)):
        with pytest.raises(ValueError, match="fitted or measured already"):
            prediction.write(later, [swept_or_measured], records, tmp_path / "other.json")


def test_with_enough_crossings_of_its_e_a_prediction_takes_the_scatter_of_these_alone(results, tmp_path):
    """Crossings of other E far from the law then widen nothing; with too few of its own they do."""
    wild = Results(results.sweep, results.draws)
    moved = [replace(gap, mean=gap.mean + (0.0 if gap.experts == 8 else 0.03)) for gap in results.gaps]
    wild.__dict__.update(gaps=moved, all_gaps=results.all_gaps, fitted=results.fitted, drawn=results.drawn)
    ends = [prediction._prediction(r, 80, 8)["interval"] for r in (results, wild)]
    assert len([gap for gap in results.of(8) if gap.bracketed]) >= prediction.LEAST
    assert ends[0] == ends[1]
    assert prediction._prediction(results, 80, 12)["interval"] != prediction._prediction(wild, 80, 12)["interval"]


def test_losses_are_forecast_into_a_ledger_and_shown_beside_the_means_over_seeds(results, tmp_path, monkeypatch):
    names = prediction.register(results, [(80, 8)], tmp_path / "ledger")
    assert len(names) == 2 * len(prediction.FORECAST_AT)
    prediction.write(results, [(80, 12)], gather([], tmp_path / "runs.jsonl"), tmp_path / "80.json")
    monkeypatch.setattr(study, "PREDICTIONS", tmp_path)
    monkeypatch.setattr(study, "LEDGER", tmp_path / "ledger")
    _, *before = study.forecasts(results)
    assert {row[-2:] for row in before} == {("–", "–")}
    later = Results(read_sweep([*swept(widths=(80,), experts=(1, 8), scatter=1e-4)]))
    _, *rows = study.forecasts(later)
    shown = {(e, tokens): (measured, inside) for _, e, tokens, _, measured, inside in rows}
    assert shown["8", "4M"] == (f"{LAW.loss(290_720, 4e6, 8) / np.log(2):.3f}", "yes")


def test_cells_trained_again_are_kept_apart_and_judged_by_the_scatter_of_a_run(results, tmp_path, monkeypatch):
    first, other = record(32, 8, TOKENS[0]), {"id": "books", "fingerprint": f"sha256:{'1' * 64}"}
    deviation = float(np.sqrt(Cells.of(results.sweep.counted).scatter[True][0][0, 0]))
    mean = Cells.of(results.sweep.counted).mean_at((32, 8), 1e6)
    again = record(32, 8, TOKENS[0], loss=mean + 1.5 * deviation, dataset=other, run_id="again")
    pieces = record(32, 8, TOKENS[0], dataset=other, run_id="pieces", vocab_size=1024)
    kept = {"RECORDS": [first], "REPRODUCED": [], "PIECES": []}
    files = {"runs": [first], "later": [again], "bpe": [pieces], **kept}
    paths = {name: tmp_path / f"{name}.jsonl" for name in files}
    for name, records in files.items():
        paths[name].write_text("".join(f"{r.to_json()}\n" for r in records))
    for name in kept:
        monkeypatch.setattr(study, name, paths[name])
    study.take([paths["runs"], paths["later"], paths["bpe"]])
    assert [paths[name].read_text().count("\n") for name in kept] == [1, 1, 1]
    ((_, _, off, _),) = study._again(results)
    assert math.isclose(off, 1.5)


def test_one_command_takes_runs_and_writes_all_of_it(page, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "read", lambda: page)
    for name in ("RECORDS", "REPRODUCED", "PIECES"):
        target = tmp_path / getattr(study, name).name
        target.write_bytes(getattr(study, name).read_bytes())
        monkeypatch.setattr(study, name, target)
    target = tmp_path / "crossing.md"
    target.write_bytes((PAGES / target.name).read_bytes())
    monkeypatch.setattr("studies.__main__.PAGES", tmp_path)
    monkeypatch.setattr("sys.argv", ["studies", "crossing", "--runs", str(study.RECORDS)])
    main()
    written = capsys.readouterr().out.splitlines()
    assert written[:4] == [str(study.RECORDS), str(study.REPRODUCED), str(study.PIECES), str(target)]
    assert {"crossing.png", "crossing.csv", "crossing-rates.csv"} <= {line.rpartition("/")[2] for line in written}
    monkeypatch.setattr("sys.argv", ["studies", "crossing", "--predict", "80:12"])
    with pytest.raises(ValueError, match="d_model=80, experts=12: fitted or measured already"):
        main()
    target.write_text("nothing\n")
    with pytest.raises(ValueError, match="no block `<!-- counted -->`"):
        study.write(target)


def test_a_page_has_the_values_of_its_study_and_says_what_they_say(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("At <!-- =crossing -->1M<!-- = --> bytes.\n")
    for values in ({}, {"crossing": "2M", "late": "6.6"}):
        with pytest.raises(ValueError, match=r"lacks the value `<!-- =(crossing|late) -->`"):
            fill(page, {}, values, dict)
    with pytest.raises(ValueError, match="its numbers refute what it says: experts pay"):
        write_page(
            page, {"crossing": "2M"}, {}, {}, {}, dict, {"experts pay": lambda _: False, "late": lambda _: True}
        )
    assert page.read_text() == "At <!-- =crossing -->2M<!-- = --> bytes.\n"


def test_the_figures_show_every_size_and_dash_what_is_outside(results):
    panels = figures.where_experts_pay(results, (2, 8))
    assert [ax.get_title() for ax in panels] == ["E = 2 against dense", "E = 8 against dense"]
    assert "_outside the fitted range" in {line.get_label() for line in panels[0].get_lines()}
    assert len(figures.gaps_by_size(results)) == 2
