"""Step times: the work of a step, what is assumed of a GPU, and files."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hub import RecordError
from scaling_law import Architecture, Throughput
from scaling_law.machine import GPUS, ModelWork, published_runs
from scaling_law.machine.efficiency import DRAWS, SMALL, rates_of_engine
from scaling_law.machine.gpus import find_gpu, named_gpu
from scaling_law.machine.throughput import TERMS, Measurement
from scaling_law.size.ladder import PaperLadder
from studies.hours.engine import STEPS
from studies.hours.study import engines

MODELS = [Architecture(512, 1), Architecture(512, 8), Architecture(1024, 32)]
# The same models.
WIDTHS = PaperLadder().widths([512, 512, 1024], [1, 8, 32])
BATCH = {"tokens_per_step": 65_536, "micro_batch_tokens": 8_192}
MEASURED = Throughput(
    device="a device",
    precision="bf16",
    seconds={"steps": 0.01, "blocks": 1e-4, "flops": 1e-13, "routing": 2e-11, "update": 3e-11},
    draws=np.array([[0.01, 1e-4, 1e-13, 2e-11, 3e-11], [0.02, 1e-4, 2e-13, 2e-11, 3e-11]]),
    micro_batch_tokens=8_192,
    measurements=(Measurement(MODELS[0], 512, 65_536, 8_192, 0.5, 1e9),),
    error=0.05,
)


def test_the_work_of_a_step_is_counted_by_hand():
    dense, moe = Architecture(128, 1, 2, 2, 1000), Architecture(128, 4, 2, 2, 1000)
    weights = 2 * 13 * 128**2 + 128 * 1000
    work = ModelWork.of(dense).in_step(4096, 1024, 256, 2)
    assert work["flops"] == 6 * 2048 * (weights + 256 * 2 * 2 * 128)
    assert work["blocks"] == 2 * 2
    assert work["activations"] == 2048 * 2 * 128
    assert work["weights"] == 2 * dense.n_total
    assert work["update"] == dense.n_total
    assert (work["routing"], work["routed_flops"], work["steps"]) == (0, 0, 1)
    routed = ModelWork.of(moe).in_step(4096, 1024, 256, 2)
    assert routed["routing"] == 2048 * 2 * 128
    assert routed["routed_flops"] == routed["flops"] == work["flops"] + 6 * 2048 * 2 * 128 * 4  # the router's


def test_widths_and_architectures_do_the_same_work():
    by_width = ModelWork.of(PaperLadder().widths([512, 512, 1024], [1, 8, 32]))
    for name in vars(by_width):
        of_each = [getattr(ModelWork.of(model), name) for model in MODELS]
        expected = () if name == "bounded" else of_each
        np.testing.assert_allclose(getattr(by_width, name), expected, rtol=1e-12, err_msg=name)
    fine, split = PaperLadder(4, 0.25).widths(1024, 8), PaperLadder(4, 0.25).architecture(1024, 8)
    for name in ("experts", "experts_per_token", "d_expert", "active_width", "n_total", "embedding_parameters"):
        assert getattr(fine, name) == getattr(split, name), name


def test_seconds_are_the_sum_over_the_terms_and_broadcast():
    one = [MEASURED.step_seconds(model, **BATCH) for model in MODELS]
    assert MEASURED.step_seconds(WIDTHS, **BATCH) == pytest.approx(one)
    work = ModelWork.of(MODELS[2]).in_step(65_536, 8_192, 512, 1)
    assert one[2] == pytest.approx(sum(MEASURED.seconds[name] * work[name] for name in MEASURED.seconds))
    draws = MEASURED.step_seconds_draws(WIDTHS, **BATCH)
    assert draws.shape == (2, 3)
    assert draws[0] == pytest.approx(one)


def test_more_devices_share_the_tokens_and_not_the_update():
    model = MODELS[2]
    alone, shared = (MEASURED.step_seconds(model, **BATCH, devices=n) for n in (1, 8))
    fixed = 0.01 + 3e-11 * model.n_total
    assert shared - fixed == pytest.approx((alone - fixed) / 8)


def test_a_given_mfu_is_that_of_a_step():
    h100 = Throughput.assumed("h100", devices=8, mfu=(0.4, 0.2))
    for model, mfu in zip(MODELS, (0.4, 0.2, 0.2), strict=True):
        flops = model.training_flops(65_536, context=512)
        assert h100.step_seconds(model, 65_536) == pytest.approx(flops / (8 * 989e12 * mfu))
    assert h100.draws is None
    assert "assumed" in Throughput.assumed().warnings(WIDTHS)[0]


def mfu(gpu="h100", precision="bf16", devices=8, **shape):
    """Of a step at the rates of public runs."""
    model = Architecture(**{"d_model": 2048} | shape)
    rates = Throughput.assumed(gpu, precision=precision, engine="megatron")
    seconds = rates.step_seconds(model, 524_288, devices=devices)
    return model.training_flops(524_288, context=512) / (devices * GPUS[gpu.upper()].peak_flops * seconds)


def test_public_rates_have_what_public_runs_show():
    """Wide dense models at 35 to 55 % of an H100, narrow ones and experts less; memory that keeps up helps."""
    assert 0.35 < mfu(d_model=4096) < 0.55
    assert mfu(d_model=512) < mfu(d_model=1024) < mfu(d_model=4096)
    assert mfu(experts=64, experts_per_token=8, d_expert=768) < mfu(experts=8) < mfu()
    assert mfu("h100") < mfu("h200")
    assert 1.2 < mfu(d_model=4096, precision="fp8") / mfu(d_model=4096) < 1.8
    assert mfu(devices=1024) < mfu(devices=64) < mfu(devices=8) == pytest.approx(mfu(devices=1))
    rates = Throughput.assumed("h100", engine="megatron")
    assert rates.overhead_of(8) == 1 < rates.overhead_of(512)
    drawn = rates.step_seconds_draws(WIDTHS, 65_536)
    assert drawn.shape == (DRAWS, 3)
    of_labs = published_runs().spread[0]
    assert np.log(drawn[:, 0]).std() > of_labs
    np.testing.assert_allclose(np.median(drawn, axis=0), rates.step_seconds(WIDTHS, 65_536), rtol=0.1)
    large = rates.step_seconds_draws(PaperLadder().widths(2048, [1, 8, 32]), 65_536)
    assert 0.15 < np.log(large).std(axis=0).min() < np.log(large).std(axis=0).max() < 0.6


def test_labs_differ_more_the_smaller_the_model():
    """Below 0.5B parameters: by a power of the size that is drawn with the rest, and is 0 for the rates themselves."""
    rates, fit = Throughput.assumed("h100", engine="megatron"), published_runs()
    without = replace(rates, small_draws=None)
    small = Architecture(256)
    drawn, plain = (each.step_seconds_draws(PaperLadder().widths([256, 2048], 1), 65_536) for each in (rates, without))
    assert np.array_equal(drawn[:, 1], plain[:, 1])
    by = np.log(SMALL / ModelWork.of(small).weights)
    np.testing.assert_allclose(np.log(drawn / plain)[:, 0], by * fit.small_draws)
    assert fit.small_draws.std() == pytest.approx(fit.spread[3], rel=0.15)
    assert rates.step_seconds(small, 65_536) == without.step_seconds(small, 65_536)


def timed_cases(compiled):
    cases = json.loads(STEPS.read_text())["cases"].values()
    return [case for case in cases if case["options"]["model"] == "ours" and case["options"]["compile"] == compiled]


def test_the_rates_that_are_shipped_are_those_of_the_study():
    """Refitted to its runs; but for the last digits, in which processors differ."""
    for engine, fresh in engines().items():
        shipped = rates_of_engine(engine)
        np.testing.assert_allclose(shipped.parameters, fresh.parameters, atol=2e-3)
        np.testing.assert_allclose(shipped.spread, fresh.spread, atol=2e-3)
        assert (shipped.runs, shipped.labs) == (fresh.runs, fresh.labs)


def test_the_rates_of_train_py_are_those_of_its_own_steps():
    """Every shape that was timed on one H100, also where public runs are far off."""
    ours = Throughput.assumed("h100")
    public = Throughput.assumed("h100", engine="megatron")
    steps = [case["result"]["measurement"] for case in timed_cases(compiled=True)]
    measured = np.array([step["step_seconds"] for step in steps])
    ratios = {}
    for name, throughput in {"ours": ours, "public": public}.items():
        predicted = []
        for step in steps:
            model = Architecture(**step["architecture"])
            predicted.append(throughput.step_seconds(model, 65_536, micro_batch_tokens=step["micro_batch_tokens"]))
        ratios[name] = np.log(np.array(predicted) / measured)
    assert np.abs(ratios["ours"]).max() < 0.12
    assert np.abs(ratios["public"]).max() > 0.4
    dense, moe = Architecture(1024, 1, 8), Architecture(1024, 8, 8)
    dense_seconds = ours.step_seconds(dense, 65_536, micro_batch_tokens=16_384)
    moe_seconds = ours.step_seconds(moe, 65_536, micro_batch_tokens=16_384)
    assert 1.1 < moe_seconds / dense_seconds < 1.35
    assert min(ours.sharded.values()) > 1
    assert public.sharded == {}
    assert {*ours.seconds} - {*public.seconds} == {"weights", "update", "blocks", "steps"}


def test_steps_under_fsdp2_take_longer_in_every_draw():
    """Blocks are not compiled there, so that many small passes take longest."""
    ours = Throughput.assumed("h100")
    for micro_batch_tokens, least in ((65_536, 1.2), (1_024, 4.0)):
        step = {"tokens_per_step": 65_536, "micro_batch_tokens": micro_batch_tokens}
        alone = ours.step_seconds(MODELS[0], **step)
        sharded = ours.step_seconds(MODELS[0], **step, is_sharded=True)
        assert sharded / alone > least
        drawn = ours.step_seconds_draws(MODELS[0], **step, is_sharded=True)
        assert np.median(drawn) == pytest.approx(sharded, rel=0.1)
        assert np.log(drawn).std() < 0.5
    either = ours.step_seconds(MODELS[0], **step, is_sharded=np.array([False, True]))
    np.testing.assert_allclose(either, [alone, sharded])


def test_a_file_keeps_what_fsdp2_takes(tmp_path):
    ours = Throughput.assumed("h100")
    again = Throughput.from_file(ours.save(tmp_path / "throughput.json"))
    assert again.sharded == ours.sharded
    np.testing.assert_allclose(again.sharded_draws, ours.sharded_draws)


def test_gpus_that_share_parameters_cast_and_update_their_part():
    work = ModelWork.of(MODELS[2])
    alone, shared = (work.in_step(**BATCH, sequence_length=512, devices=8, shards=n) for n in (1, 8))
    assert {name for name in alone if alone[name] != shared[name]} == {"weights", "update"}
    assert shared["update"] == alone["update"] / 8


def test_a_measured_one_names_what_lies_outside():
    assert MEASURED.warnings(MODELS[0]) == ()
    active, total, *shape = MEASURED.warnings(MODELS[2])
    assert "the largest that was timed" in active
    assert "total parameters" in total
    assert shape == [
        f"{name} outside those that were timed, {of}" for name, of in (("a d_model (1,024)", "512"), ("E (32)", "1"))
    ]
    assert "measured on 1 devices" in MEASURED.warnings(MODELS[0], devices=8)[0]


@pytest.mark.parametrize(
    ("shape", "tokens", "note"),
    [
        ({"vocab_size": 300}, 12 * 512, "a vocabulary (300) outside those that were timed, 4,096"),
        ({}, 12 * 128, "tokens of a step on one device (1,536) outside those that were timed, 8,192"),
        ({"d_model": 80}, 8192, "a d_model (80) outside those that were timed, 128 to 256"),
        ({"d_model": 320}, 8192, "a d_model (320) outside those that were timed, 128 to 256"),
        ({"experts": 6}, 8192, "E (6) outside those that were timed, 1 to 4"),
    ],
)
def test_each_thing_outside_the_grid_is_named(shape, tokens, note):
    """One line for each, also of a smaller model with fewer parameters than the largest that was timed."""
    timed = [Architecture(d, e, 4, 4, 4096) for d in (128, 256) for e in (1, 4)]
    grid = replace(MEASURED, measurements=tuple(Measurement(a, 512, 8192, 8192, 0.5) for a in timed))
    inside = {"d_model": 128, "experts": 4, "vocab_size": 4096}
    asked = inside | shape
    assert grid.warnings(Architecture(**inside, n_blocks=4, n_heads=4), tokens_per_step=8192) == ()
    notes = grid.warnings(Architecture(**asked, n_blocks=4, n_heads=4), tokens_per_step=tokens)
    assert [each for each in notes if "the largest that was timed" not in each] == [note]
    widths = PaperLadder(vocab_size=asked["vocab_size"]).widths([128.0, asked["d_model"]], asked["experts"])
    assert note in grid.warnings(widths, tokens_per_step=tokens)


def test_files_keep_everything(tmp_path):
    path = MEASURED.save(tmp_path / "throughput.json")
    read = Throughput.from_file(path)
    assert read == MEASURED
    np.testing.assert_array_equal(read.draws, MEASURED.draws)
    assert Throughput.from_file(path, device="a device") == MEASURED
    with pytest.raises(RecordError, match=r"measured on 'a device', not on 'another'"):
        Throughput.from_file(path, device="another")
    assumed = Throughput.assumed("H100-PCIe")
    kept = Throughput.from_file(assumed.save(path))
    assert kept == assumed
    np.testing.assert_array_equal(kept.small_draws, assumed.small_draws)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "law"}, "format is 'law', allowed is 'throughput'"),
        ({"version": 99}, "update the package"),
        ({"seconds": {"fflops": 1.0}}, "'fflops' is none of steps, blocks"),
        ({"seconds": {"flops": -1.0}, "draws": None}, "seconds of flops=-1.0 must be finite and at least 0"),
        ({"seconds": {"flops": 0.0}, "draws": None}, "all are 0"),
        ({"draws": [[1.0]]}, r"draws have shape \(1, 1\); \[n, 5\] is needed"),
        ({"devices": 0}, "devices=0 must be a whole number of at least 1"),
        ({"device": None}, "device=None must be text"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused(tmp_path, change, message):
    path = MEASURED.save(tmp_path / "throughput.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RecordError, match=message):
        Throughput.from_file(path)


@pytest.mark.parametrize(
    ("driver", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("h200", "H200"),
    ],
)
def test_gpus_are_found_by_their_drivers_name(driver, key):
    assert find_gpu(driver) is GPUS[key]


@pytest.mark.parametrize("key", GPUS)
def test_gpus_have_names_without_spaces(key):
    assert named_gpu(key.lower().replace(" ", "")) is named_gpu(key.lower().replace(" ", "-")) is GPUS[key]


def test_other_gpus_are_not_taken_for_one_of_these():
    assert find_gpu("NVIDIA A1000") is None
    assert find_gpu("NVIDIA B100") is None
    assert find_gpu("AMD EPYC 9354") is None


def test_fp8_is_of_other_engines():
    assert "train.py has no fp8" in Throughput.assumed("gb200", precision="fp8").warnings(MODELS[0])[0]
    assert "train.py has no" not in Throughput.assumed("gb200").warnings(MODELS[0])[0]
    assert Throughput.assumed("b200", precision="fp4").precision == "fp4"


def test_every_term_says_what_it_counts():
    assert set(ModelWork.of(MODELS[1]).in_step(1, 1, 1, 1)) == set(TERMS)
