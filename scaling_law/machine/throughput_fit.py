"""A throughput fitted to measured steps: seconds per unit of work, non-negative, by least squares on relative errors.

Measurements of one architecture share the machine's state, and the question is about other architectures: the error is
that of architectures left out of the fit, and the draws are refits to architectures drawn anew, widened by that error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hub.base.errors import InputError
from hub.base.fields import Whole, reads
from hub.record.run_record import RunRecord
from scaling_law.machine.throughput import Measurement, ModelWork, Throughput
from scaling_law.size.architecture import Architecture
from scaling_law.size.arrays import FloatArray, IntArray
from scaling_law.size.recipe import BatchRamp, RampStage

FITTED = ("steps", "blocks", "flops", "activations", "routing", "weights", "update")
N_DRAWS = 200
LEAST_ARCHITECTURES = 3


@reads
def fit_throughput(
    measurements: Sequence[Measurement],
    device: str,
    precision: str,
    devices: int = 1,
    terms: Sequence[str] = FITTED,
    seed: Whole = 0,
    **known: Any,
) -> Throughput:
    """Fit the throughput of `device` to steps that `devices` shared; `known` are more fields of `Throughput`.

    ValueError for fewer than three architectures.
    """
    for measurement in measurements:
        if not isinstance(measurement, Measurement):
            raise InputError(f"measurements: {measurement!r} must be a Measurement")
    models, groups = _group_by_architecture(measurements)
    if len(models) < LEAST_ARCHITECTURES:
        raise InputError(f"{len(models)} architectures were measured; at least {LEAST_ARCHITECTURES} are needed")
    relative = _relative_work(measurements, devices, terms)
    log_ratios = _leave_one_out_errors(relative, groups)
    error = float(np.sqrt(np.mean(log_ratios**2)))

    random = np.random.default_rng(seed)
    resamples = random.choice(len(models), size=(N_DRAWS, len(models)))
    refits = []
    for resample in resamples:
        rows = np.concatenate([relative[groups == model] for model in resample])
        refits.append(_fit_rates(rows))
    draws = np.stack(refits) * np.exp(error * random.standard_normal((N_DRAWS, 1)))
    return Throughput(
        device=device,
        precision=precision,
        seconds=dict(zip(terms, _fit_rates(relative).tolist(), strict=True)),
        devices=devices,
        draws=draws,
        micro_batch_tokens=max(measurement.micro_batch_tokens for measurement in measurements),
        sequence_length=max(measurement.sequence_length for measurement in measurements),
        error=error,
        measurements=tuple(measurements),
        **known,
    )


def _group_by_architecture(measurements: Sequence[Measurement]) -> tuple[list[Architecture], IntArray]:
    """Return the architectures, and the index of that of each measurement [n]."""
    models = list(dict.fromkeys(measurement.architecture for measurement in measurements))
    return models, np.array([models.index(measurement.architecture) for measurement in measurements])


def left_out_ratios(throughput: Throughput) -> dict[Architecture, float]:
    """Return predicted over measured seconds of each architecture, by a fit without it.

    That is the geometric mean over its steps.
    """
    measurements = throughput.measurements
    models, groups = _group_by_architecture(measurements)
    relative = _relative_work(measurements, throughput.devices, list(throughput.seconds))
    log_ratios = _leave_one_out_errors(relative, groups)
    return {model: float(np.exp(log_ratios[groups == i].mean())) for i, model in enumerate(models)}


def of_records(records: Iterable[RunRecord]) -> Throughput:
    """Fit a throughput to the records of finished runs that have step times, of one device and one way to train.

    A run is one measurement, at its last batch size. ValueError if the runs differ in hardware, precision,
    checkpointing or compilation (filter them), and as `fit_throughput`.
    """
    timed = [record for record in records if record.step_seconds and record.hardware and record.micro_batch_sequences]
    setups = sorted({_setup_of(record) for record in timed})
    if len(setups) != 1:
        present = "; ".join(map(str, setups)) or "none that says step_seconds, hardware and micro_batch_sequences"
        raise InputError(
            f"runs of one hardware, precision, checkpointing and compilation are needed; there are: {present}"
        )
    hardware, precision, checkpointing, compiled = setups[0]
    count, _, device = hardware.partition(" x ")
    if not (count.isdigit() and device):
        raise InputError(f"{hardware=}; 'COUNT x DEVICE' is needed")
    return fit_throughput(
        [_measurement_of(record) for record in timed],
        device=device,
        precision=precision,
        devices=int(count),
        settings={"gradient_checkpointing": checkpointing, "compile": compiled},
        source=f"medians of the last steps of {len(timed)} runs",
    )


def _setup_of(record: RunRecord) -> tuple[str, str, bool, bool]:
    return str(record.hardware), record.precision, bool(record.gradient_checkpointing), bool(record.compile)


def _measurement_of(record: RunRecord) -> Measurement:
    stages = [RampStage(stage.from_tokens, stage.sequences) for stage in record.schedule.batch_ramp]
    model = Architecture(record.d_model, record.experts, record.n_blocks, record.n_heads, record.vocab_size)
    return Measurement(
        architecture=model,
        sequence_length=record.sequence_length,
        tokens_per_step=BatchRamp(stages, record.sequence_length).last_batch_tokens(record.tokens),
        micro_batch_tokens=(record.micro_batch_sequences or 0) * record.sequence_length,
        step_seconds=record.step_seconds or math.nan,
        memory_bytes=record.peak_memory_bytes,
    )


def _relative_work(
    measurements: Sequence[Measurement],
    devices: int,
    terms: Sequence[str],
) -> FloatArray:
    """Return the work of each step over its seconds, [n, terms]: rates that fit make every row's sum 1."""
    rows = []
    for m in measurements:
        model = ModelWork.of(m.architecture)
        work = model.in_step(m.tokens_per_step, m.micro_batch_tokens, m.sequence_length, devices)
        rows.append([float(work[name]) / m.step_seconds for name in terms])
    return np.array(rows)


def _fit_rates(relative: FloatArray) -> FloatArray:
    """Fit non-negative seconds per unit of each term, [terms], by least squares on relative errors."""
    from scipy.optimize import nnls

    scale = np.linalg.norm(relative, axis=0)
    # No measurement may have a term, such as routing among dense models.
    scale[scale == 0] = 1.0
    rates, _ = nnls(relative / scale, np.ones(len(relative)))
    return np.asarray(rates / scale)


def _leave_one_out_errors(relative: FloatArray, groups: IntArray) -> FloatArray:
    """Return ln(predicted / measured) of every step [n] by the fit to the other architectures."""
    log_ratios = np.empty(len(relative))
    for group in np.unique(groups):
        is_left_out = groups == group
        rates = _fit_rates(relative[~is_left_out])
        log_ratios[is_left_out] = np.log(relative[is_left_out] @ rates)
    return log_ratios
