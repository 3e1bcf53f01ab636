"""docs/studies/hours.md: which rows count, and rates that were put in are found."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from scaling_law.machine import GPUS, published_runs
from studies.common import read_csv, rows_of, write_csv
from studies.hours import engine, runs, study, trials
from studies.hours.fit import Table, fastest_layout, fit_rates, leave_labs_out, misses, spreads
from studies.hours.runs import derive, read


@pytest.fixture(scope="module")
def rows():
    return read(study.RUNS)


def test_rates_that_were_put_in_are_found(rows):
    """On the work of the public rows: all but what few of them say anything of."""
    true = published_runs().parameters + np.array([0.1, -0.2, 0.3, 0.3, 0.1, 0, 0.2, 0.02, -0.02])
    noise = np.random.default_rng(0).normal(0, 0.02, len(rows))
    seconds = np.exp(Table(rows).predict(true) + noise)
    made = [replace(row, tokens_per_second=1 / s) for row, s in zip(rows, seconds, strict=True)]
    found, covariance = fit_rates(made)
    np.testing.assert_allclose(found, true, atol=0.2)
    np.testing.assert_array_less(np.abs(found - true)[:2], 0.05)
    assert np.linalg.eigvalsh(covariance).min() > 0
    error, width = leave_labs_out(made)
    assert np.abs(error).max() < 0.3
    assert np.median(width) < 0.15
    assert spreads(made)[0] < 0.1 < spreads(rows)[0]


@pytest.fixture(scope="module")
def predicted(rows):
    return leave_labs_out(rows)


def test_a_lab_that_is_left_out_does_not_decide_its_prediction(rows, predicted):
    slow = [replace(row, tokens_per_second=row.tokens_per_second / 3) if row.lab == "Arcee" else row for row in rows]
    (i,) = (i for i, row in enumerate(rows) if row.lab == "Arcee")
    assert misses(slow)[0][i] - predicted[0][i] == pytest.approx(-np.log(3))


def test_the_goals_of_the_page_are_comparisons(rows, predicted):
    results = study.Results(rows)
    vars(results)["misses"] = predicted
    table = {row[0]: row for row in study.errors(results) if isinstance(row, tuple)}
    assert [table[group][5] for group in study.GOALS] == ["met"] * 4
    worse = study.Results(rows)
    vars(worse)["misses"] = predicted[0] + np.random.default_rng(1).normal(0, 0.8, len(rows)), predicted[1]
    assert next(row for row in study.errors(worse) if row[0] == "dense, steady state")[5] == "missed"


def test_a_goal_is_missed_by_a_bias_alone(rows, predicted):
    biased = study.Results(rows)
    in_group = np.array([row.group == "MoE, steady state" for row in rows])
    vars(biased)["misses"] = np.where(in_group, 0.25, 0.0), predicted[1]
    table = {row[0]: row for row in study.errors(biased) if isinstance(row, tuple)}
    assert [table[group][5] for group in study.GOALS] == ["met", "missed", "met", "met"]


@pytest.fixture(scope="module")
def steps():
    return engine.read()


def test_rates_of_an_engine_that_were_put_in_are_found(steps):
    """Predictions of its steps, and the rate of FLOPs."""
    public = published_runs()
    true, _ = engine.prior(public)
    true = true + np.array([-0.1, -0.5, -0.5, -0.3, 0.2, 0.1, 0.5, 0.5, 0.1, 0.3, 0.2])
    seconds = np.exp(engine.predict(steps, true, public)).tolist()
    made = [replace(step, seconds=one) for step, one in zip(steps, seconds, strict=True)]
    found, covariance = engine.fit(made, public)
    np.testing.assert_allclose(engine.predict(steps, found, public), engine.predict(steps, true, public), atol=0.03)
    assert abs(found - true)[engine.NAMES.index("flops")] < 0.05
    assert np.linalg.eigvalsh(covariance).min() > 0


def test_a_models_steps_do_not_decide_their_prediction(steps):
    """The misses of one model widen the intervals of the rest."""
    public = published_runs()
    error, width = engine.misses(steps, public)
    slow = [replace(step, seconds=step.seconds * (3 if step.model == steps[0].model else 1)) for step in steps]
    is_slow = np.array([step.model == steps[0].model for step in steps])
    slow_error, slow_width = engine.misses(slow, public)
    np.testing.assert_allclose((slow_error - error)[is_slow], -np.log(3))
    assert np.all(slow_width[~is_slow] > width[~is_slow])
    compiled = np.array([step.is_compiled and step.group == engine.OURS for step in steps])
    assert np.sqrt(np.mean(error[compiled] ** 2)) < 0.1
    blind = engine.misses_of_torchtitan(steps, public)
    assert np.sqrt(np.mean(blind**2)) < 0.3


def test_rows_of_torchtitan_say_how_they_were_made(tmp_path):
    columns = {
        "kind": "benchmark",
        "gpu": engine.LOW_POWER,
        "n_gpus": "64",
        "precision": "bf16",
        "moe": "0",
        "hidden": "4096",
        "layers": "32",
        "heads": "32",
        "head_dim": "128",
        "top_k": "",
        "routing": "",
        "dense_first_layers": "",
        "moe_every_n_layers": "",
        "params_total_calc_B": "7",
        "params_active_matmul_calc_B": "6.9",
        "seq_len": "2048",
        "tflops_per_gpu_reported": "",
        "source": "a page",
    }
    words = {
        "FSDP, selective AC": 100,
        "FSDP2 TP8, full AC, compile": 200,
        "FSDP, no compile": 300,
        "FSDP8 TP8 PP8, full AC, Float8": 400,
        "MFU alone": "",
    }
    degrees = {"FSDP2 TP8, full AC, compile": (8, 1), "FSDP8 TP8 PP8, full AC, Float8": (8, 8)}
    with (tmp_path / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["name", *columns, "parallelism_words", "tokens_per_s_per_gpu", "tp", "pp"])
        writer.writeheader()
        for name, speed in words.items():
            row = columns | {"name": name, "parallelism_words": name, "tokens_per_s_per_gpu": speed}
            row["tp"], row["pp"] = degrees.get(name, ("", ""))
            writer.writerow(row)
    rows = read_csv(engine.derive(tmp_path / "table.csv", tmp_path / "rows.csv"), engine.Published)
    assert [(row.recomputed, row.is_compiled, row.tp, row.pp, row.watts) for row in rows] == [
        (0.5, 0, 1, 1, 500),
        (1.0, 1, 8, 1, 500),
        (0.0, 0, 1, 1, 500),
        (1.0, 1, 8, 8, 500),
    ]
    h100, card = GPUS["H100"], GPUS["H100 PCIe"]
    assert engine.low_power(h100, 350).peak_flops == pytest.approx(card.peak_flops)
    assert engine.low_power(h100, 700).peak_flops == pytest.approx(h100.peak_flops)


def test_divided_steps_take_what_they_send_and_the_bubble(steps):
    """They send four all-reduces a block, the forward's twice; stages idle for 7 of 16 micro-batches."""
    (of_405b,) = (step for step in steps if "405B" in step.name)
    (plain,) = (step for step in steps if step.name.endswith("TP8, no compile"))
    received = 1.5 * 4 * 2 * (7 / 8) * 2 * 64 * 5120
    tokens_of_group = 8 * 2 * 4096
    assert plain.sending_seconds == pytest.approx(received * tokens_of_group / 450e9)
    assert plain.bubble == 0
    assert of_405b.bubble == 7 / 16
    for step in steps:
        assert step.is_divided or step.sending_seconds == 0
    public = published_runs()
    parameters, _ = engine.prior(public)
    alone = replace(of_405b, sending_seconds=0, bubble=0)
    both = np.exp(engine.predict([alone, of_405b], parameters, public))
    assert both[1] == pytest.approx((both[0] + of_405b.sending_seconds) * (1 + 7 / 16))


def test_a_trial_without_columns_is_the_fit(rows, predicted):
    plain = trials.TRIALS[0]
    error = trials.misses_of(rows, plain)
    np.testing.assert_allclose(error, predicted[0], atol=1e-9)


def test_a_trial_scales_what_experts_add(rows):
    """Fine experts by their coefficient, top-1 by its own, a dense model by none."""
    kinds = trials.TRIALS[1]
    by_links = trials.TRIALS[-1]
    names = ("DeepSeek-V3 pretraining", "Llama 4 Scout 17Bx16E", "Llama 1 7B")
    fine, top_1, dense = (next(row for row in rows if row.name == name) for name in names)
    assert kinds.columns(fine) == (0, 1)
    assert kinds.columns(top_1) == (1, 0)
    assert kinds.columns(dense) == (0, 0)
    parameters = np.append(published_runs().parameters, [0.3, 0.7])
    table = trials.TrialTable([fine, top_1, dense], kinds)
    ratio = table.terms(parameters)[:, :2] / Table([fine, top_1]).terms(parameters)
    scaled = np.exp([0.7, 0.3])
    np.testing.assert_allclose(ratio, [[1, 1], scaled, [1, 1], scaled])
    assert table.terms(parameters)[1, 2] == 0
    without = Table([fine]).terms(parameters)
    linked = trials.TrialTable([fine], by_links).terms(parameters[:9])
    sent = 8 * fine.work["routing"] / 200e9
    np.testing.assert_allclose(linked - without, [[0], [0], [0], [sent]], atol=1e-20)


def test_a_layout_is_searched_where_none_is_published(rows):
    """By the engine of `scale-out`: little changes but where the batch leaves a GPU too little to compute."""
    (apertus,) = (row for row in rows if row.lab == "Apertus")
    assert fastest_layout(apertus, 4e6)[0] == pytest.approx(1 + 1 / 4)  # two stages, four micro-batches
    assert fastest_layout(replace(apertus, has_layout=1), 4e6) == (1, 0)
    assert fastest_layout(replace(apertus, n_heads=0), 4e6) == (1, 0)
    assert apertus.batch(4e6) * 4 == apertus.gpus
    assert apertus.architecture.n_total == pytest.approx(apertus.n_total, rel=1e-3)
    alone, laid_out, large = (
        Table([apertus], batch=batch).predict(published_runs().parameters)[0] for batch in (None, 4e6, 64e6)
    )
    assert laid_out > alone + 0.1
    assert large == pytest.approx(alone, abs=0.03)
    assert sum(not row.has_layout and row.kind == "run" for row in rows) == 21


def test_intervals_of_small_models_hold(rows, predicted):
    """Of 7 below 0.5B, by the spread of the other labs; and the spread by size is what size adds to misses."""
    error, width = predicted
    small = np.array(["below" in row.group for row in rows])
    assert small.sum() == 7
    assert (np.abs(error) <= study.NORMAL * width)[small].all()
    far = [replace(r, tokens_per_second=r.tokens_per_second * (r.n_multiplied < 1e8 or 3) / 3) for r in rows]
    assert spreads(far)[3] > 2 * published_runs().spread[3]


def test_rows_that_do_not_count_are_left_out(tmp_path):
    columns = {
        "kind": "benchmark",
        "gpu": "A100-80",
        "n_gpus": "64",
        "precision": "bf16",
        "moe": "0",
        "hidden": "4096",
        "layers": "32",
        "heads": "32",
        "head_dim": "128",
        "top_k": "",
        "dense_first_layers": "",
        "routing": "",
        "moe_every_n_layers": "",
        "params_total_calc_B": "7",
        "params_active_matmul_calc_B": "6.9",
        "seq_len": "2048",
        "tokens_per_s_per_gpu": "3000",
        "tflops_per_gpu_reported": "",
        "source": "llm-foundry",
    }
    moe = {
        "moe": "1",
        "top_k": "2",
        "dense_first_layers": "2",
        "routing": "forced balance",
        "precision": "mxfp8",
    }
    table = [
        {"name": "a dense model"},
        {"name": "an MoE", "tp": "2", "batch_tokens": "8e6"} | moe,
        {"name": "by TFLOP/s", "tokens_per_s_per_gpu": "", "tflops_per_gpu_reported": "140"},
        {"name": "TRL, two sequences"},
        {"name": "no shape", "hidden": ""},
        {"name": "no speed", "tokens_per_s_per_gpu": ""},
        {"name": "Megatron-Bridge 25.11 M", "source": "NVIDIA"},
        {"name": "Megatron-Bridge 26.02 M", "source": "NVIDIA"},
    ]
    with (tmp_path / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["name", *columns, "tp", "batch_tokens"])
        writer.writeheader()
        writer.writerows(columns | row for row in table)
    kept = read(derive(tmp_path / "table.csv", tmp_path / "runs.csv"))
    names = ["a dense model", "an MoE", "by TFLOP/s", "Megatron-Bridge 26.02 M"]
    assert [row.name for row in kept] == names
    dense, routed, reported, newest = kept
    assert (dense.lab, dense.gpu, dense.group) == ("MosaicML", "A100", "dense, steady state")
    assert (routed.routed_blocks, routed.routing, routed.precision) == (30, "forced", "fp8")
    assert reported.tokens_per_second == pytest.approx(140e12 / (6 * (6.9e9 + 2048 * 32 * 4096)), rel=1e-5)
    assert newest.lab == "NVIDIA"
    assert (routed.has_layout, routed.batch_tokens, dense.has_layout, dense.batch_tokens) == (1, 8e6, 0, 0)
    ladder = replace(dense, source=runs.MARIN, lab="Marin")  # of another table: it stays
    write_csv(tmp_path / "runs.csv", rows_of([ladder], runs.Timed))
    assert read(derive(tmp_path / "table.csv", tmp_path / "runs.csv")) == [*kept, ladder]
