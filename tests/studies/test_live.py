"""The study of live forecasts: its records and logs, what is left out, and the numbers that its page shows."""

import csv
import json
import re

import numpy as np
import pytest

from scaling_law import LiveEstimate
from scaling_law.forecasting import live, schedules
from studies.live import left_out, study, trunks
from studies.live import schedules as under_schedules
from studies.live.study import FIRST, LAWLESS, SHARES, SIZE, TRUNK, Judged, Results
from tests.guides import ROOT
from tests.hub.samples import make_record

PAGE = ROOT / "docs" / "studies" / "live.md"


@pytest.fixture(scope="module")
def crossing():
    return trunks.read()[0]


def test_nothing_of_what_is_left_out_is_used(crossing, monkeypatch):
    fitted = []
    monkeypatch.setattr("studies.live.study._fit", lambda runs, start: fitted.append(runs))
    one = next(one for one in crossing.logged if one.d_model == 48)
    _, of_trunk = study._without(crossing, one, None, TRUNK)
    _, of_size = study._without(crossing, one, None, SIZE)
    assert len(fitted[0]) == len(crossing.runs) - 3, "its branches of 1M, 2M and 4M bytes"
    assert not any(str(run).startswith(f"{one.trunk}-tokens") for run in fitted[0].run_id)
    assert one.d_model not in fitted[1]["d_model"]
    assert {curve.trunk for curve in of_trunk} == {other.trunk for other in crossing.logged} - {one.trunk}
    assert not {curve.model["d_model"] for curve in of_size} & {one.d_model}


def test_a_trunk_without_others_in_its_sweep_is_not_judged(crossing):
    alone = [one for one in crossing.logged if one.trunk == crossing.logged[0].trunk]
    runs = crossing.runs.subset(np.array([crossing.trunks[run] == alone[0].trunk for run in crossing.runs.run_id]))
    one_trunk = trunks.Sweep("live", runs, tuple(alone), crossing.trunks)
    assert len(runs) > 2
    assert [*study._judge(one_trunk)] == []


def test_the_first_look_is_at_the_first_line_after_a_tenth(crossing):
    run = next(one.curve for one in crossing.logged if one.curve.horizon > 3.9e6)
    seen = study._seen(run, SHARES[0])
    assert 0.1 <= seen.share < 0.13
    assert len(seen.tokens) == len(run.until(0.0999).tokens) + 1
    assert study._seen(run, 0.5).share <= 0.5


def test_constants_are_chosen_where_final_losses_are_most_probable(monkeypatch):
    best = {name: grid[-1] for name, grid in left_out.GRIDS.items()} | {"GAP": left_out.GRIDS["GAP"][0]}
    monkeypatch.setattr(left_out, "_score", lambda _, values: sum(values[name] == best[name] for name in best))
    assert left_out.choose([]) == best


def test_constants_of_the_library_are_changed_for_a_while():
    shipped = live.GAP, schedules.LAG
    with left_out._changed({"GAP": 0.1, "LAG": 7.0}):
        assert (live.GAP, schedules.LAG) == (0.1, 7.0)
    assert shipped == (live.GAP, schedules.LAG)


def test_each_model_is_judged_by_constants_that_the_other_chose(monkeypatch):
    chosen_on = []
    monkeypatch.setattr(
        left_out, "choose", lambda runs: chosen_on.append({run.model for run in runs}) or {"GAP": 0.05}
    )
    monkeypatch.setattr(left_out, "_judge", lambda runs, constants, shares: [{run.model for run in runs}, constants])
    results = [*left_out.judge_left_out(under_schedules.read())]
    assert chosen_on == [{"400M"}, {"25M"}]
    assert [(row.model, row.chosen_on) for row in results[1::2]] == [("25M", "400M"), ("400M", "25M")]
    assert [row.judged for row in results] == [[{row.model}, row.constants] for row in results]


def told():
    """What the page's table of forecasts tells, with intervals of a normal distribution."""
    results, judged = Results([]), []
    for row in csv.DictReader((PAGE.parent / "tables" / "live.csv").open()):
        numbers = (float(row[n]) for n in ("share", "final", "last", "law", "forecast", "low", "high"))
        share, final, last, law, loss, low, high = numbers
        said = LiveEstimate(share, loss, np.log(high / low) / 3.29, law, 0.0, 0.0, 1.0, 1e6, "law")
        judged.append(Judged(row["left_out"], None, share, final, last, law, said))
    results.__dict__["judged"] = judged
    return results


def test_the_page_shows_what_its_table_of_forecasts_gives():
    shown, results = dict(re.findall(r"<!-- =([a-z]+) -->(.*?)<!-- = -->", PAGE.read_text())), told()
    half, end = (results.at(TRUNK, share) for share in (0.5, 0.9))
    errors = study.forecast_error(half), study.forecast_error(end), study.law_error(half), study.last_error(end)
    assert [float(shown[name]) for name in ("half", "end", "law", "last")] == pytest.approx(errors, abs=6e-4)
    assert shown["held"] == f"{study.coverage([one for one in results.judged if one.left_out == TRUNK], 0.9):.0%}"


def turned(one, left_out, **changes):
    """Of the forecasts with this left out: multiplied."""
    values = {name: getattr(one.forecast, name) * factor for name, factor in changes.items()}
    return one._replace(forecast=one.forecast._replace(**values)) if one.left_out == left_out else one


@pytest.mark.parametrize(
    ("claim", "left_out", "changes"),
    [
        ("the forecast is far nearer than the last loss", SIZE, {"loss": 1.2}),
        ("against a law of the sweep it gains only late", TRUNK, {"loss": 1.1}),
        ("from half of the tokens on it does without a law", LAWLESS, {"loss": 1.1}),
        ("its intervals hold", TRUNK, {"spread": 0.5}),
        ("a young run moves an unchecked law a little too far", FIRST, {"loss": 1.1}),
    ],
)
def test_each_claim_of_the_page_holds_and_can_be_refuted(claim, left_out, changes):
    results = told()
    assert study.CLAIMS[claim](results)
    results.judged[:] = [turned(one, left_out, **changes) for one in results.judged]
    assert not study.CLAIMS[claim](results)


def test_trunks_are_kept_with_records_and_losses(tmp_path, monkeypatch):
    run = tmp_path / "main" / "d64-E4-seed0"
    record = make_record(
        sweep="live",
        run_id="live-d64-E4-seed0-lr0.004-beta0.9-0.95-clip1-472d3059",  # shortened: it does not hold its tokens
        parent_run_id="live-d64-E4-seed0-lr0.004-beta0.9-0.95-clip1-finalnorm",
        branch_point_tokens=1_200_000,
    )
    (run / "tokens001.5M-seed0" / "model").mkdir(parents=True)
    record.save(run / "tokens001.5M-seed0" / "model")
    for name, tokens in {
        "trunk": range(100_000, 1_300_000, 100_000),
        "tokens001.5M-seed0": [1_400_000, 1_500_000],
    }.items():
        (run / name).mkdir(exist_ok=True)
        lines = [{"step": t // 1000, "tokens": t, "loss": 5.0 - t / 1e6, "mfu": None} for t in tokens]
        (run / name / "log.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in [*lines, {"eval_loss": 4.0}])
        )
    monkeypatch.setattr(trunks, "FOLDER", tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    assert len(trunks.take([tmp_path / "main"])) == 2
    runs = trunks.load_runs(tmp_path / "kept" / "runs.jsonl")
    (one,) = trunks._sweep("live", runs, tmp_path / "kept").logged
    assert one.curve.tokens.tolist() == [*range(100_000, 1_300_000, 100_000), 1_400_000, 1_500_000]
    assert one.curve.losses[0] == pytest.approx(4.9)
    assert (one.curve.final, one.curve.horizon) == (record.eval_loss, 1_500_000)
