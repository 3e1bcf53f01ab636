"""`live` on logs of every source: the schedule and the end are read from them, given, or asked for in one error."""

import json

import numpy as np
import pytest

import scaling_law
from scaling_law.forecasting.curves import NOTE
from scaling_law.forecasting.schedules import plan_rates, recognize
from tests.scaling_law.forecasting.test_live import LAW, curve

pytestmark = pytest.mark.light
N, TOKENS, BATCH = 2e8, 4e9, 2e7
SIZE = {"n_active": N, "law": LAW}


def lines_of(form="cosine", value=0.1, share=0.5, warmup=0.05, seed=0):
    """The lines of a log of a run with this schedule until a share of its tokens, and its final loss."""
    rates = plan_rates(form, value, warmup)
    run = curve(n=N, tokens=TOKENS, noise=0.001, seed=seed, rates=rates)
    shares = run.tokens / TOKENS
    rate_of_line = 3e-4 * np.interp(shares, np.linspace(0, 1, len(rates)), rates)
    lines = []
    for i in range(round(share * len(shares))):
        lines.append({"step": i + 1, "loss": float(run.losses[i]), "learning_rate": float(rate_of_line[i])})
    return lines, run.final


def write_csv(path, lines, tokens_per_step=BATCH):
    rows = [{**line, "tokens": tokens_per_step * line["step"]} for line in lines] if tokens_per_step else lines
    text = "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)])
    path.write_text(text + "\n")
    return path


@pytest.mark.parametrize(
    ("form", "value", "share"),
    [("cosine", 0.1, 0.5), ("cosine", 0.0, 0.3), ("linear", 0.0, 0.4), ("linear", 0.2, 0.9), ("wsd", 0.3, 0.8)],
)
def test_a_schedule_is_recognised_from_the_rates_so_far(form, value, share):
    shares = np.linspace(0.005, share, 100)
    rates = plan_rates(form, value, 0.05)
    found_form, found_value = recognize(shares, np.interp(shares, np.linspace(0, 1, len(rates)), rates), 0.05)
    assert found_form == form
    assert found_value == pytest.approx(value, abs=0.03)


@pytest.mark.parametrize("steps", [1000, 1237, 2400, 7001])
def test_a_cosine_to_zero_is_one_at_any_length(steps):
    """Its end is a difference of nearly equal numbers, below 0 by rounding for some lengths."""
    shares = np.arange(1, steps // 2) / steps
    assert recognize(shares, 0.5 * (1 + np.cos(np.pi * shares)), 0.0) == ("cosine", pytest.approx(0.0, abs=1e-4))


def test_a_column_of_the_peak_rate_is_not_the_rate(tmp_path):
    lines = [{"peak_learning_rate": 3e-4, **line} for line in lines_of()[0]]
    assert scaling_law.live(write_csv(tmp_path / "log.csv", lines), tokens=TOKENS, **SIZE).rows[0]["share"] == 0.5


def test_a_constant_rate_shows_no_schedule():
    shares = np.linspace(0.01, 0.6, 50)
    assert recognize(shares, np.ones(50), 0.01) is None


def test_a_log_tells_the_final_loss_by_the_schedule_that_its_rates_show(tmp_path):
    lines, final = lines_of()
    answer = scaling_law.live(write_csv(tmp_path / "log.csv", lines), tokens=TOKENS, **SIZE)
    (row,) = answer.rows
    assert row["loss"] == pytest.approx(final, rel=0.01)
    assert row["low"] < final < row["high"]
    assert (row["share"], row["tokens"], row["track"]) == (0.5, TOKENS, "on its track")
    assert answer.trusted
    peer = write_csv(tmp_path / "peer.csv", lines_of(share=1.0, seed=1)[0])
    with_peer = scaling_law.live(tmp_path / "log.csv", tokens=TOKENS, peers=[str(peer)], **SIZE).rows[0]
    assert with_peer["high"] - with_peer["low"] < row["high"] - row["low"]
    assert with_peer["low"] < final < with_peer["high"]


@pytest.mark.parametrize("name_column", ["run_id", "Name"])
def test_lines_of_several_runs_in_one_table_are_told_apart_by_their_names_and_ends(tmp_path, name_column):
    rows = []
    for name, share, seed in (("new", 0.5, 0), ("old", 1.0, 1)):
        lines, final = lines_of(share=share, seed=seed)
        rows += [{name_column: name, "tokens": BATCH * line["step"], **line} for line in lines]
    table = write_csv(tmp_path / "log.csv", rows, None)
    (row,) = scaling_law.live(table, tokens=TOKENS, **SIZE).rows
    assert (row["run_id"], row["share"]) == ("new", 0.5)
    assert row["low"] < final < row["high"]
    peer = write_csv(tmp_path / "peer.csv", lines_of(share=1.0, seed=1)[0])
    alone = scaling_law.live(lines_of()[0], tokens=TOKENS, batch=BATCH, peers=[str(peer)], **SIZE).rows[0]
    assert row["loss"] == pytest.approx(alone["loss"], rel=1e-3)
    with pytest.raises(ValueError, match="all of its 2 runs have ended"):
        scaling_law.live(table, **SIZE)


def test_a_run_of_few_lines_without_a_warm_up_shows_its_schedule(tmp_path):
    steps = np.arange(10, 301, 10)
    rates = 5e-4 * (1 + np.cos(np.pi * steps / 500))
    lines = [{"step": int(s), "loss": 3 + 4 * s**-0.4, "lr": rate} for s, rate in zip(steps, rates, strict=True)]
    answer = scaling_law.live(lines, batch="1M", tokens="500M", n_active="100M")
    assert answer.rows[0]["loss"] is not None


def test_a_run_off_its_track_is_said_to_be_so(tmp_path):
    lines, _ = lines_of(share=0.7)
    worse = [{**line, "loss": line["loss"] * (1.1 if line["step"] > 80 else 1.0)} for line in lines]
    peer = write_csv(tmp_path / "peer.csv", lines_of(share=1.0, seed=1)[0])
    answer = scaling_law.live(write_csv(tmp_path / "log.csv", worse), tokens=TOKENS, peers=[str(peer)], **SIZE)
    assert answer.rows[0]["track"].endswith("% above its track")


def test_all_that_is_missing_is_asked_for_in_one_error(tmp_path):
    lines, _ = lines_of()
    bare = write_csv(tmp_path / "log.csv", [{"step": x["step"], "loss": x["loss"]} for x in lines], None)
    with pytest.raises(ValueError, match=r"log: .*batch=.*n_active=.*tokens=.*schedule=") as error:
        scaling_law.live(bare)
    assert "\n" not in str(error.value)
    answer = scaling_law.live(bare, batch=BATCH, tokens=TOKENS, schedule="cosine:0.1", **SIZE)
    assert answer.rows[0]["loss"] is not None
    constant = write_csv(tmp_path / "constant.csv", lines_of("wsd", 0.2)[0])
    with pytest.raises(ValueError, match=r"constant: needed besides its log: schedule=\.\.\. "):
        scaling_law.live(constant, tokens=TOKENS, **SIZE)
    with pytest.raises(ValueError, match="schedule='exponential' must be one of cosine, linear"):
        scaling_law.live(constant, tokens=TOKENS, schedule="exponential", **SIZE)


def test_a_trainer_state_has_the_end_and_a_folder_of_them_the_peers(tmp_path):
    for name, share, seed in (("run", 0.5, 0), ("peer", 1.0, 1)):
        folder = tmp_path / "runs" / name / "checkpoint-100"
        folder.mkdir(parents=True)
        lines, final = lines_of(share=share, seed=seed)
        evaluation = {"step": lines[-1]["step"], "eval_loss": 9.0}
        state = {"log_history": [*lines, evaluation], "global_step": len(lines), "max_steps": 200}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    alone = scaling_law.live(tmp_path / "runs" / "run", batch=BATCH, **SIZE).rows
    (row,) = scaling_law.live(tmp_path / "runs", batch=BATCH, **SIZE).rows
    assert row["run_id"].startswith("run")
    assert row["tokens"] == alone[0]["tokens"] == TOKENS
    assert row["loss"] == pytest.approx(final, rel=0.01)
    assert row["high"] - row["low"] < alone[0]["high"] - alone[0]["low"]
    (tmp_path / "runs" / "run" / "checkpoint-100" / "trainer_state.json").unlink()
    peer = (tmp_path / "runs" / "peer" / "checkpoint-100" / "trainer_state.json").read_text()
    (tmp_path / "runs" / "trainer_state.json").write_text(peer)
    with pytest.raises(ValueError, match="all of its 2 runs have ended"):
        scaling_law.live(tmp_path / "runs", batch=BATCH, **SIZE)


def test_a_folder_of_train_py_is_read_by_its_note(tmp_path):
    lines, final = lines_of("wsd", 0.2, 0.9)
    trunk, branch = tmp_path / "run" / "trunk", tmp_path / "run" / "tokens004.0B-seed0"
    plan = {"horizon": TOKENS, "model": {"n_active": N}, "decay": 0.2, "warmup_tokens": 0.05 * TOKENS}
    for part, part_lines in ((trunk, lines[:165]), (branch, lines[160:])):
        part.mkdir(parents=True)
        log = [json.dumps({**line, "tokens": BATCH * line["step"]}) for line in part_lines]
        (part / "log.jsonl").write_text("\n".join(log) + "\n")
        (part / NOTE).write_text(json.dumps({"finished": [], "plan": plan}))
    (row,) = scaling_law.live(tmp_path / "run", law=LAW).rows
    assert row["share"] == pytest.approx(0.9)
    assert row["run_id"] == "run/tokens004.0B-seed0"
    assert row["loss"] == pytest.approx(final, rel=0.01)
    (branch / "model").mkdir()
    with pytest.raises(ValueError, match="run: it has ended"):
        scaling_law.live(tmp_path / "run", law=LAW)
    longer = json.dumps({"finished": [], "plan": {**plan, "horizon": 2 * TOKENS}})
    (trunk / NOTE).write_text(longer)
    assert scaling_law.live(tmp_path / "run", law=LAW).rows[0]["share"] == pytest.approx(165 / 400)


def test_too_early_a_run_gets_no_forecast_and_says_why(tmp_path):
    lines, _ = lines_of(share=0.08)
    answer = scaling_law.live(write_csv(tmp_path / "log.csv", lines), tokens=TOKENS, schedule="cosine", **SIZE)
    assert answer.rows[0]["loss"] is None
    assert not answer.trusted
    assert any("no forecast before 10%" in note for note in answer.warnings)
