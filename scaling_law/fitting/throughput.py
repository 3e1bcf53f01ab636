"""A throughput fitted to measured steps: seconds per unit of work, non-negative, by least squares on relative errors.

Measurements of one architecture share the machine's state, and the question is about other architectures: the error is
that of architectures left out of the fit, and the draws are refits to architectures drawn anew, widened by that error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hub.base.errors import InputError
from hub.base.inputs import reads, whole
from hub.record.run_record import RunRecord
from scaling_law.machine.throughput import Measurement, ModelWork, Throughput
from scaling_law.size.architecture import Architecture
from scaling_law.size.arrays import FloatArray
from scaling_law.size.recipe import BatchRamp, RampStage

FITTED = ("steps", "blocks", "flops", "activations", "routing", "weights", "update")
N_DRAWS = 200
LEAST_ARCHITECTURES = 3


@reads(seed=whole())
def fit_throughput(
    measurements: Sequence[Measurement],
    device: str,
    precision: str,
    devices: int = 1,
    terms: Sequence[str] = FITTED,
    seed: int = 0,
    **known: Any,
) -> Throughput:
    """The throughput of `device` from steps that `devices` shared; `known` are more fields of `Throughput`.

    ValueError for fewer than three architectures, and for a time that is not positive.
    """
    for measured in measurements:
        if not isinstance(measured, Measurement):
            raise InputError(f"measurements: {measured!r} must be a Measurement")
        if not measured.step_seconds > 0:
            raise InputError(f"step_seconds={measured.step_seconds!r} of {measured.architecture} must be positive")
    models = list(dict.fromkeys(measured.architecture for measured in measurements))
    if len(models) < LEAST_ARCHITECTURES:
        raise InputError(f"{len(models)} architectures were measured; at least {LEAST_ARCHITECTURES} are needed")
    relative = _relative_work(measurements, devices, terms)
    groups = np.array([models.index(measured.architecture) for measured in measurements])
    misses = _left_out(relative, groups)
    error = float(np.sqrt(np.mean(misses**2)))
    random = np.random.default_rng(seed)
    drawn = random.choice(len(models), size=(N_DRAWS, len(models)))
    draws = np.stack([_rates(np.concatenate([relative[groups == model] for model in row])) for row in drawn])
    draws *= np.exp(error * random.standard_normal((N_DRAWS, 1)))
    return Throughput(
        device=device,
        precision=precision,
        seconds=dict(zip(terms, _rates(relative).tolist(), strict=True)),
        devices=devices,
        draws=draws,
        micro_batch_tokens=max(measured.micro_batch_tokens for measured in measurements),
        sequence_length=max(measured.sequence_length for measured in measurements),
        error=error,
        measurements=tuple(measurements),
        **known,
    )


def left_out_ratios(throughput: Throughput) -> dict[Architecture, float]:
    """Predicted over measured seconds of each architecture, by a fit without it: the geometric mean of its steps."""
    measured = throughput.measurements
    models = list(dict.fromkeys(m.architecture for m in measured))
    groups = np.array([models.index(m.architecture) for m in measured])
    misses = _left_out(_relative_work(measured, throughput.devices, list(throughput.seconds)), groups)
    return {model: float(np.exp(misses[groups == i].mean())) for i, model in enumerate(models)}


def of_records(records: Iterable[RunRecord]) -> Throughput:
    """A throughput fitted to the records of finished runs that have step times, of one device and one way to train.

    A run is one measurement, at its last batch size. ValueError if the runs differ in hardware, precision,
    checkpointing or compilation (filter them), and as `fit_throughput`.
    """
    timed = [record for record in records if record.step_seconds and record.hardware and record.micro_batch_sequences]
    ways = sorted({_way(record) for record in timed})
    if len(ways) != 1:
        present = "; ".join(map(str, ways)) or "none that says step_seconds, hardware and micro_batch_sequences"
        raise InputError(
            f"runs of one hardware, precision, checkpointing and compilation are needed; there are: {present}"
        )
    hardware, precision, checkpointing, compiled = ways[0]
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


def _way(record: RunRecord) -> tuple[str, str, bool, bool]:
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


def _relative_work(measurements: Sequence[Measurement], devices: int, terms: Sequence[str]) -> FloatArray:
    """Work of each step over its seconds, [n, terms]: rates that fit make every row's sum 1."""
    rows = []
    for m in measurements:
        work = ModelWork.of(m.architecture).in_step(
            m.tokens_per_step, m.micro_batch_tokens, m.sequence_length, devices
        )
        rows.append([float(work[name]) / m.step_seconds for name in terms])
    return np.array(rows)


def _rates(relative: FloatArray) -> FloatArray:
    from scipy.optimize import nnls

    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1.0  # a term that no measurement has, such as routing among dense models
    return np.asarray(nnls(relative / scale, np.ones(len(relative)))[0] / scale)


def _left_out(relative: FloatArray, groups: NDArray[np.int64]) -> FloatArray:
    """ln(predicted / measured) of every step by the fit to the other architectures."""
    misses = np.empty(len(relative))
    for group in np.unique(groups):
        out = groups == group
        misses[out] = np.log(relative[out] @ _rates(relative[~out]))
    return misses
