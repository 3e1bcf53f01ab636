"""Rates of the engine that `train.py` is, PyTorch's own: its steps on one H100, and torchtitan's FSDP2 on many.

Seconds of a step are those of public runs with four more terms, which one engine shows and many do not: weights of
every micro-batch and parameters of every step by the memory's bandwidth, passes through blocks and steps in seconds of
the host. Rates of public runs, with the spread between labs, are the prior of the first four; so what the few steps of
one engine cannot show stays that of others. What tensor parallelism sends, and the time in which stages of a pipeline
idle, are counted besides, without a rate of their own.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from scaling_law import Architecture
from scaling_law.machine import GPUS, Efficiency, Gpu, ModelWork
from scaling_law.machine.communication import Sent, bubble, tensor_bytes
from scaling_law.machine.efficiency import OWN_TERMS, PARAMETERS, SHARDED, TERMS
from scaling_law.machine.layout import RECOMPUTED
from scaling_law.size import draw_normal
from studies.common import FloatArray, read_csv, rms, rows_of, write_csv
from studies.hours.runs import Timed, parse_row

STEPS = Path(__file__).parents[2] / "benchmarks/results/gpu/steps-1-x-nvidia-h100-80gb-hbm3.json"
RUNS = Path(__file__).with_name("torchtitan.csv")
OURS = "train.py"
# The table's name of torchtitan's H100s, their power, and that of an H100's data sheet.
LOW_POWER = "H100-96-500W"
LOW_POWER_WATTS = 500
WATTS = 700
# Of the PCIe card, whose peak and bandwidth tell how a peak follows power and what HBM2e moves.
PCIE_WATTS = 350
# Torchtitan's tables and commands in FP8 or with asynchronous tensor parallelism are all compiled.
ALWAYS_COMPILED = re.compile("Float8|async TP")
# Stages of a GPU in torchtitan's interleaved pipeline. By its default there are as many micro-batches as GPUs in a
# pipeline: then one stage a GPU takes 1.30 times as long as two, and its table says 1.28 (100 and 128 tokens/s).
STAGES_PER_GPU = 2
# Sequences of a GPU and step where no batch is published; torchtitan's 8B has two.
SEQUENCES = 2
# Rates: seconds of a unit of each term; then ln factors: on memory-bound work and on passes of blocks without
# compilation, and on a step of a sharded model.
NAMES = (*TERMS, *OWN_TERMS, "eager", "eager_blocks", "sharded")
# Bytes of a weight that is read in fp32, written and read in bf16, with a gradient added in fp32; bytes of AdamW.
CENTRE = np.array([*np.log([16.0, 28.0, 1e-4, 5e-3]), 0.4, 2.0, 0.0])
WIDTH = np.array([1.0, 0.5, 1.5, 1.5, 0.4, 1.5, 0.3])
# Deviations of ln seconds: of steps on one machine, and of what others published.
NOISE = {OURS: 0.05, "torchtitan": 0.15}


@dataclass(frozen=True)
class Step:
    """One timed step: what was trained and how, and its seconds.

    Attributes:
        name: of the case or of the published row.
        group: who timed it, a key of `NOISE`.
        model: what is left out together, as steps of one model tell of each other.
        gpu: its data sheet.
        gpus: the number that shared the step.
        work: of one GPU, [8], by `TERMS` and `OWN_TERMS`.
        precision: "bf16" or "fp8".
        recomputed: the part of the forward pass that is computed again.
        is_compiled: whether blocks were compiled.
        is_divided: whether tensor or pipeline parallelism divided the model.
        sending_seconds: of what tensor parallelism sends over the links of a node.
        bubble: the time in which stages of a pipeline idle, over that in which they work.
        seconds: of the step.
        source: where it is published.
    """

    name: str
    group: str
    model: str
    gpu: Gpu
    gpus: int
    work: FloatArray
    precision: str
    recomputed: float
    is_compiled: bool
    is_divided: bool
    sending_seconds: float
    bubble: float
    seconds: float
    source: str


@dataclass(frozen=True)
class Published(Timed):
    """A row of torchtitan's: `recomputed` is the part of the forward pass that is computed again.

    `tp` and `pp` are degrees of tensor and of pipeline parallelism.
    """

    recomputed: float = 0.0
    is_compiled: int = 0
    tp: int = 1
    pp: int = 1
    watts: int = WATTS


def derive(table: Path, path: Path = RUNS) -> Path:
    """Write `torchtitan.csv` from the rows of a public table that publish tokens/s."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    published = []
    for row in rows:
        is_low_power = row["gpu"] == LOW_POWER
        timed = parse_row({**row, "gpu": "H100"} if is_low_power else row)
        if timed is None:
            continue
        words = row["parallelism_words"]
        is_compiled = "compile" in words and "no compile" not in words
        recomputed = 0.0
        if "selective AC" in words:
            recomputed = 0.5
        elif "full AC" in words:
            recomputed = 1.0
        published.append(
            Published(
                **{**vars(timed), "lab": "torchtitan"},
                recomputed=recomputed,
                is_compiled=int(is_compiled or ALWAYS_COMPILED.search(timed.name) is not None),
                tp=int(row["tp"] or 1),
                pp=int(row["pp"] or 1),
                watts=LOW_POWER_WATTS if is_low_power else WATTS,
            )
        )
    return write_csv(path, rows_of(published, Published))


def read() -> list[Step]:
    """Read the steps of `train.py` on an H100, and torchtitan's."""
    cases = json.loads(STEPS.read_text())["cases"]
    own_steps = [_read_case(name, case) for name, case in cases.items() if case["options"]["model"] == "ours"]
    return own_steps + [_read_published(row) for row in read_csv(RUNS, Published)]


def _read_case(name: str, case: dict[str, Any]) -> Step:
    measurement = case["result"]["measurement"]
    architecture = Architecture(**measurement["architecture"])
    work = ModelWork.of(architecture).in_step(
        measurement["tokens_per_step"], measurement["micro_batch_tokens"], measurement["sequence_length"], 1
    )
    return Step(
        name=name,
        group=OURS,
        model=f"{architecture.d_model}, {architecture.experts}",
        gpu=GPUS["H100"],
        gpus=1,
        work=np.array([float(work[term]) for term in (*TERMS, *OWN_TERMS)]),
        precision="bf16",
        recomputed=0.0,
        is_compiled=case["options"]["compile"],
        is_divided=False,
        sending_seconds=0.0,
        bubble=0.0,
        seconds=measurement["step_seconds"],
        source=f"benchmarks/results/gpu, commit {case['commit']}",
    )


def _read_published(row: Published) -> Step:
    tokens = (row.batch_tokens or SEQUENCES * row.sequence_length * row.gpus) / row.gpus
    model = row.model_work
    work = model.in_step(tokens, None, row.sequence_length, 1, shards=row.gpus)
    # Where activations are computed again, so are the all-reduces of the forward pass, which are half of all.
    received = (1 + row.recomputed / 2) * tensor_bytes(row.architecture, tokens, row.tp)
    return Step(
        name=row.name,
        group=row.lab,
        model=f"{row.d_model}, {row.n_blocks}",
        gpu=GPUS[row.gpu] if row.watts == WATTS else low_power(GPUS["H100"], row.watts),
        gpus=row.gpus,
        work=np.array([float(work[term]) for term in (*TERMS, *OWN_TERMS)]),
        precision=row.precision,
        recomputed=row.recomputed,
        is_compiled=bool(row.is_compiled),
        is_divided=row.tp * row.pp > 1,
        sending_seconds=float(Sent(received, row.tp).seconds(GPUS[row.gpu])),
        bubble=float(bubble(row.pp, STAGES_PER_GPU * row.pp)),
        seconds=tokens / row.tokens_per_second,
        source=row.source,
    )


def low_power(gpu: Gpu, watts: float) -> Gpu:
    """Return an H100 of less power with 96 GB of HBM2e: between the sheets of SXM and PCIe cards, in logarithms."""
    card = GPUS["H100 PCIe"]
    exponent = np.log(card.peak_flops / gpu.peak_flops) / np.log(PCIE_WATTS / WATTS)
    peak = gpu.peak_flops * (watts / WATTS) ** exponent
    # Six stacks of the memory of which the PCIe card has five.
    return gpu._replace(peak_flops=float(peak), bandwidth=card.bandwidth * 96 / 80)


def fit(steps: Sequence[Step], public: Efficiency) -> tuple[FloatArray, FloatArray]:
    """Fit the parameters to the steps, by least squares on ln seconds.

    Returns:
        The parameters [11] in the order of `NAMES`, and their covariance [11, 11].
    """
    centre, width = prior(public)
    log_seconds = np.log([step.seconds for step in steps])
    noise = np.array([NOISE[step.group] for step in steps])

    def residuals(parameters: Any) -> FloatArray:
        errors = (predict(steps, parameters, public) - log_seconds) / noise
        return np.concatenate([errors, (parameters - centre) / width])

    solution = least_squares(residuals, centre)
    return solution.x, np.linalg.inv(solution.jac.T @ solution.jac)


def prior(public: Efficiency) -> tuple[FloatArray, FloatArray]:
    """Return the centre and the deviation of each parameter: of the first four by public runs and their labs."""
    rates = len(TERMS)
    all_terms, of_activations, of_experts, *_ = public.spread
    balanced = np.array([0.0, public.parameters[PARAMETERS.index("balanced")], 0.0, 0.0])
    between = np.array([0.0, of_experts, of_activations, of_experts])
    variance = np.diag(public.covariance)[:rates] + all_terms**2 + between**2
    centre = np.concatenate([public.parameters[:rates] + balanced, CENTRE])
    return centre, np.concatenate([np.sqrt(variance), WIDTH])


def predict(steps: Sequence[Step], parameters: FloatArray, public: Efficiency) -> FloatArray:
    """Predict ln seconds of each step, [n]."""
    log_rates = dict(zip(NAMES, parameters, strict=True))
    gains = dict(zip(PARAMETERS, public.parameters, strict=True))
    by_precision = np.array([gains.get(step.precision, 0.0) for step in steps])
    is_eager = np.array([not step.is_compiled for step in steps])
    scale = {
        "flops": by_precision,
        "routed_flops": by_precision,
        "activations": log_rates["eager"] * is_eager,
        "routing": log_rates["eager"] * is_eager,
        "blocks": log_rates["eager_blocks"] * is_eager,
    }
    peak = np.array([step.gpu.peak_flops for step in steps])
    bandwidth = np.array([step.gpu.bandwidth for step in steps])
    # Rates are FLOPs and bytes of a unit, and of the last two seconds.
    speeds = [peak] * 2 + [bandwidth] * 4 + [np.ones(len(steps))] * 2
    again = 1 + np.array([step.recomputed for step in steps]) * (RECOMPUTED - 1)
    seconds = np.zeros(len(steps))
    for name, work, speed in zip((*TERMS, *OWN_TERMS), np.array([step.work for step in steps]).T, speeds, strict=True):
        repeated = again if name in TERMS else 1.0
        seconds += repeated * work * np.exp(log_rates[name] + scale.get(name, 0.0)) / speed
    gpus = np.array([step.gpus for step in steps])
    nodes = np.maximum(1.0, gpus / [step.gpu.node for step in steps])
    factor = np.exp(log_rates["sharded"] * (gpus > 1) + gains["growth"] * np.log(nodes))
    sending_seconds = np.array([step.sending_seconds for step in steps])
    idle = np.array([step.bubble for step in steps])
    return np.asarray(np.log(seconds * factor + sending_seconds) + np.log1p(idle))


def misses(steps: Sequence[Step], public: Efficiency) -> tuple[FloatArray, FloatArray]:
    """Predict each step by the fit without its model.

    Returns:
        ln(predicted / measured) [n] and the standard deviation foreseen [n]: by the covariance of that fit, and what
        it misses of other models.
    """
    models = np.array([step.model for step in steps])
    groups = np.array([step.group for step in steps])
    error, width = _leave_out(steps, models, public)
    of_other_models = [spread_of(error[models != model], groups[models != model]) for model in models]
    return error, np.hypot(width, of_other_models)


def spread_of(error: FloatArray, groups: NDArray[np.str_]) -> float:
    """Return the mean of the rms errors of each group, in which either group counts alike."""
    return float(np.mean([rms(error[groups == group]) for group in NOISE]))


def misses_of_torchtitan(steps: Sequence[Step], public: Efficiency) -> FloatArray:
    """Return ln(predicted / measured) of torchtitan's steps [n] by those of `train.py` alone."""
    groups = np.array([step.group for step in steps])
    return _leave_out(steps, groups, public)[0][groups != OURS]


def _leave_out(steps: Sequence[Step], labels: NDArray[np.str_], public: Efficiency) -> tuple[FloatArray, FloatArray]:
    """Predict the steps of each label by the others: errors [n], and their deviations by the covariance [n]."""
    error = np.empty(len(steps))
    width = np.empty(len(steps))
    for label in np.unique(labels):
        is_left_out = labels == label
        remaining = [step for step, is_out in zip(steps, is_left_out, strict=True) if not is_out]
        held_out = [step for step, is_out in zip(steps, is_left_out, strict=True) if is_out]
        parameters, covariance = fit(remaining, public)
        draws = draw_normal(parameters, covariance, 100)
        width[is_left_out] = np.std([predict(held_out, draw, public) for draw in draws], axis=0)
        error[is_left_out] = predict(held_out, parameters, public) - np.log([step.seconds for step in held_out])
    return error, width


def efficiency_of(steps: Sequence[Step], public: Efficiency) -> Efficiency:
    """Fit all steps, as the library ships it: with what `train.py` was not timed for from public runs."""
    estimate, covariance = fit(steps, public)
    names = (*PARAMETERS, *OWN_TERMS, *SHARDED)
    is_fitted = np.array([name in NAMES for name in names])
    places = [NAMES.index(name) for name in names if name in NAMES]
    count = len(PARAMETERS)
    parameters = np.zeros(len(names))
    parameters[:count] = public.parameters
    parameters[is_fitted] = estimate[places]
    all_covariance = np.zeros((len(names), len(names)))
    all_covariance[:count, :count] = public.covariance
    all_covariance[is_fitted] = 0.0
    all_covariance[:, is_fitted] = 0.0
    all_covariance[np.ix_(is_fitted, is_fitted)] = covariance[np.ix_(places, places)]
    # Experts were balanced in its steps, whose router drops what is beyond the capacity.
    balanced = names.index("balanced")
    parameters[balanced] = 0.0
    all_covariance[balanced] = 0.0
    all_covariance[:, balanced] = 0.0
    error, _ = misses(steps, public)
    of_code = spread_of(error, np.array([step.group for step in steps]))
    spread = np.array([of_code, 0.0, 0.0, 0.0, public.spread[-1]])
    return Efficiency(parameters, all_covariance, spread, len(steps), len(NOISE))
