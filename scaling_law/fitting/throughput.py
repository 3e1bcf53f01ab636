"""From measured steps to a throughput: seconds per unit of work, non-negative, by least squares on relative errors.

Measurements of one architecture share a machine's mood, and the question is about other architectures: the error is
that of architectures left out of the fit, and the draws are refits to architectures drawn anew, widened by that error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_law.size.architecture import Architecture
from scaling_law.size.throughput import Measurement, ModelWork, Throughput

FITTED = ("steps", "blocks", "flops", "activations", "routing", "weights", "update")
N_DRAWS = 200
LEAST_ARCHITECTURES = 3

FloatArray = NDArray[np.float64]


def fit_throughput(
    measurements: Sequence[Measurement], device: str, precision: str, devices: int = 1, seed: int = 0, **known: Any
) -> Throughput:
    """The throughput of `device` from steps that `devices` shared; `known` are more fields of `Throughput`.

    ValueError for fewer than three architectures, and for a time that is not positive.
    """
    for measured in measurements:
        if not measured.step_seconds > 0:
            raise ValueError(f"step_seconds={measured.step_seconds!r} of {measured.architecture} must be positive")
    models = list(dict.fromkeys(measured.architecture for measured in measurements))
    if len(models) < LEAST_ARCHITECTURES:
        raise ValueError(f"{len(models)} architectures were measured; at least {LEAST_ARCHITECTURES} are needed")
    relative = _relative_work(measurements, devices)
    groups = np.array([models.index(measured.architecture) for measured in measurements])
    misses = _left_out(relative, groups)
    error = float(np.sqrt(np.mean(misses**2)))
    random = np.random.default_rng(seed)
    draws = np.stack([_redrawn(relative, groups, random) for _ in range(N_DRAWS)])
    draws *= np.exp(error * random.standard_normal((N_DRAWS, 1)))
    return Throughput(
        device=device,
        precision=precision,
        seconds=dict(zip(FITTED, _rates(relative).tolist(), strict=True)),
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
    misses = _left_out(_relative_work(measured, throughput.devices), groups)
    return {model: float(np.exp(misses[groups == i].mean())) for i, model in enumerate(models)}


def without(throughput: Throughput, model: Architecture) -> Throughput:
    """The fit to all architectures but this one."""
    rest = [m for m in throughput.measurements if m.architecture != model]
    fitted = fit_throughput(rest, throughput.device, throughput.precision, throughput.devices)
    return replace(fitted, settings=throughput.settings, memory_bytes=throughput.memory_bytes)


def _relative_work(measurements: Sequence[Measurement], devices: int) -> FloatArray:
    """Work of each step over its seconds, [n, terms]: rates that fit make every row's sum 1."""
    rows = []
    for m in measurements:
        work = ModelWork.of(m.architecture).in_step(
            m.tokens_per_step, m.micro_batch_tokens, m.sequence_length, devices
        )
        rows.append([float(work[name]) / m.step_seconds for name in FITTED])
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


def _redrawn(relative: FloatArray, groups: NDArray[np.int64], random: np.random.Generator) -> FloatArray:
    chosen = random.choice(np.unique(groups), size=len(np.unique(groups)))
    return _rates(np.concatenate([relative[groups == group] for group in chosen]))
