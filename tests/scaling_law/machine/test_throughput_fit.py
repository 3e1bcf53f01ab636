"""The fit of step times: it finds rates that are there, says by how much it misses, and extrapolates."""

from dataclasses import replace

import numpy as np
import pytest

from hub.base.errors import InputError
from scaling_law import Architecture, Throughput, fit_throughput
from scaling_law.machine import ModelWork
from scaling_law.machine.throughput import Measurement
from scaling_law.machine.throughput_fit import FITTED, left_out_ratios, of_records
from scaling_law.size.ladder import PaperLadder
from tests.hub.samples import make_record, record_fields

RATES = {"steps": 2e-3, "blocks": 1e-3, "flops": 1e-12, "activations": 2e-9, "routing": 3e-9, "weights": 2e-10}
MODELS = [Architecture(d, e, b, max(1, d // 64), 4096) for d, b in ((64, 2), (128, 6), (256, 4)) for e in (1, 4, 16)]
TRUTH = Throughput("a device", "bf16", RATES, micro_batch_tokens=2048, sequence_length=256)


def steps(noise=0.0, devices=1, seed=0):
    """Measurements of a device with those rates."""
    random, found = np.random.default_rng(seed), []
    for model in MODELS:
        for micro, passes in ((2048, 1), (2048, 2), (1024, 1)):
            tokens = micro * passes * devices
            seconds = TRUTH.step_seconds(model, tokens, micro_batch_tokens=micro, devices=devices)
            found.append(Measurement(model, 256, tokens, micro, seconds * np.exp(noise * random.standard_normal())))
    return found


def test_rates_that_are_there_are_found():
    fitted = fit_throughput(steps(), "a device", "bf16", memory_bytes=1e9)
    for name in FITTED:
        assert fitted.seconds[name] == pytest.approx(RATES.get(name, 0.0), rel=1e-6, abs=1e-16)
    assert fitted.error < 1e-6
    assert all(ratio == pytest.approx(1, abs=1e-6) for ratio in left_out_ratios(fitted).values())
    assert (fitted.memory_bytes, fitted.micro_batch_tokens, fitted.sequence_length) == (1e9, 2048, 256)
    large = Architecture(1024, 32)
    assert fitted.step_seconds(large, 1 << 18) == pytest.approx(TRUTH.step_seconds(large, 1 << 18))


def test_several_devices_share_the_tokens():
    fitted = fit_throughput(steps(devices=4), "a device", "bf16", devices=4)
    assert fitted.devices == 4
    assert fitted.step_seconds(MODELS[-1], 8192) == pytest.approx(TRUTH.step_seconds(MODELS[-1], 8192, devices=4))


def test_the_error_is_that_of_architectures_left_out():
    fitted = fit_throughput(steps(noise=0.1), "a device", "bf16")
    for model, ratio in left_out_ratios(fitted).items():
        apart = fit_throughput([m for m in fitted.measurements if m.architecture != model], "a device", "bf16")
        misses = [
            apart.step_seconds(model, m.tokens_per_step, micro_batch_tokens=m.micro_batch_tokens) / m.step_seconds
            for m in fitted.measurements
            if m.architecture == model
        ]
        assert np.exp(np.mean(np.log(misses))) == pytest.approx(ratio)
    assert 0.05 < fitted.error < 0.2


def test_intervals_cover_the_truth_of_larger_models_and_are_reproducible():
    asked, covered = PaperLadder().widths(np.repeat([512.0, 1024.0], 3), np.tile([1.0, 8.0, 32.0], 2)), 0
    true = TRUTH.step_seconds(asked, 1 << 16)
    for seed in range(20):
        draws = fit_throughput(steps(0.05, seed=seed), "a device", "bf16").step_seconds_draws(asked, 1 << 16)
        low, high = np.quantile(draws, [0.025, 0.975], axis=0)
        covered += np.sum((low <= true) & (true <= high))
    assert covered >= 0.85 * 20 * len(true)
    twice = [fit_throughput(steps(0.05), "a device", "bf16").draws for _ in range(2)]
    np.testing.assert_array_equal(*twice)


def test_dense_models_alone_say_nothing_of_routing():
    dense = [m for m in steps() if m.architecture.experts == 1]
    assert fit_throughput(dense, "a device", "bf16").seconds["routing"] == 0


def test_flops_alone_miss_what_routing_and_updates_take():
    alone = fit_throughput(steps(), "a device", "bf16", terms=("flops",))
    assert set(alone.seconds) == {"flops"}
    assert alone.error > 0.2


RAMP = record_fields()["schedule"] | {"batch_ramp": [{"from_tokens": 0, "sequences": 4}]}


def record(model, **changes):
    """Of a run on two GPUs whose last batches have 4 sequences in micro-batches of 1, of 1,024 tokens."""
    seconds = TRUTH.step_seconds(model, 4096, micro_batch_tokens=1024, sequence_length=1024, devices=2)
    sizes = {name: getattr(model, name) for name in ("n_active", "n_total", "vocab_size")} | model.shape
    speed = {"step_seconds": seconds, "hardware": "2 x a device", "peak_memory_bytes": 10**9, "precision": "bf16"}
    return make_record(
        **sizes, **(speed | {"sequence_length": 1024, "micro_batch_sequences": 1, "schedule": RAMP} | changes)
    )


def test_finished_runs_are_measurements():
    fitted = of_records(record(model) for model in MODELS)
    assert (fitted.device, fitted.devices, fitted.precision) == ("a device", 2, "bf16")
    assert fitted.error < 1e-6
    first = fitted.measurements[0]
    assert first == Measurement(MODELS[0], 1024, 4096, 1024, record(MODELS[0]).step_seconds, 1e9)
    assert fitted.settings == {"gradient_checkpointing": False, "compile": False}


def test_every_fitted_term_is_work():
    assert set(FITTED) < set(ModelWork.of(MODELS[0]).in_step(1, 1, 1, 1))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fit_throughput([m for m in steps() if m.architecture in MODELS[:2]], "x", "bf16"), "2 architectures"),
        (
            lambda: fit_throughput([replace(steps()[0], step_seconds=0)], "x", "bf16"),
            "step_seconds=0 must be positive and finite",
        ),
        (
            lambda: of_records([record(MODELS[0]), record(MODELS[1], precision="fp32")]),
            r"there are: \('2 x a .*'fp32'",
        ),
        (lambda: of_records([record(MODELS[0], hardware="2 CPU cores")]), "'2 CPU cores'; 'COUNT x DEVICE' is needed"),
        (lambda: of_records([record(MODELS[0], step_seconds=None)]), "there are: none that says step_seconds"),
    ],
)
def test_bad_input_is_an_error_that_names_it(call, words):
    with pytest.raises(InputError, match=words):
        call()
