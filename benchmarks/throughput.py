"""Step times and memory predicted for shapes that were not in the fit, beside what they take.

    python -m benchmarks.throughput [--precision fp32] [--unseen 192x3 128x6]
    python -m benchmarks.throughput --step-law FOLDER      # or BENCH_STEP_LAW=FOLDER

The grid of `training.throughput` is measured and fitted, then other shapes with other numbers of experts are measured
in the same process. A row's measured time has the predicted one as its peer: a ratio of 1 is perfect. FLOPs alone,
fitted to the same grid, are the peer of the error. The time of a step is the least of a few. Step Law's folder holds
moe_lr_bs_loss.csv of data/ of github.com/step-law/steplaw at 32a8f4cc5024 (no licence stated, so not shipped):
iteration times of four MoE shapes on H800s: each shape is predicted from the other three. Batches of 512 sequences,
where one shape was on fewer GPUs, are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.model_speed import DEVICE
from benchmarks.report import Options, Report, benchmark
from scaling_law.machine.memory import training_memory
from scaling_law.machine.throughput import Measurement, Throughput
from scaling_law.machine.throughput_fit import FITTED, fit_throughput
from scaling_law.runs.loading import load_runs
from scaling_law.runs.rows import RunsError
from scaling_law.size.architecture import Architecture
from training.run.grid import Grid, measure

# Tokens of a sequence, and sequences of the largest batch.
STEP_LAW_LENGTH = 2048
LARGEST_STEP_LAW = 256
# Field of an architecture → column.
STEP_LAW_COLUMNS = {
    "d_model": "d_model",
    "n_blocks": "n_blocks",
    "n_heads": "n_heads",
    "vocab_size": "vocab_size",
    "experts_per_token": "experts_per_token",
    "d_expert": "d_expert",
    "d_ff": "d_ff",
    "experts": "routed_experts",
    "d_shared": "sed",
    "dense_blocks": "numld",
}
SECONDS = "average_iter_time"


def step_law_steps(source: Any) -> list[Measurement]:
    """Read the least iteration time of each shape and batch in Step Law's table of MoE runs, smallest batches first.

    Times of one shape and batch lie in clusters, up to 3.6 times apart, as the runs were on different numbers of GPUs:
    the least are as if on equally many. A step is taken to be one pass. Raises RunsError for another table.
    """
    runs = load_runs(source, format="step_law", on_invalid="skip")
    missing = [name for name in (SECONDS, "batch", *STEP_LAW_COLUMNS.values()) if name not in runs]
    if missing:
        raise RunsError(f"{runs.source}: no column {missing[0]}; Step Law's MoE table has the times of its iterations")
    fastest: dict[tuple[Architecture, int], float] = {}
    for row in np.flatnonzero(runs[SECONDS] > 0):
        counts: dict[str, Any] = {name: int(runs[column][row]) for name, column in STEP_LAW_COLUMNS.items()}
        key = (Architecture(shared_experts=1, **counts), int(runs["batch"][row]))
        fastest[key] = min(fastest.get(key, np.inf), float(runs[SECONDS][row]))
    steps = []
    for (model, batch), seconds in sorted(fastest.items(), key=lambda item: item[0][1]):
        tokens = batch * STEP_LAW_LENGTH
        steps.append(Measurement(model, STEP_LAW_LENGTH, tokens, tokens, seconds))
    return steps


def measure_shapes(options: Options, shapes: list[str], experts: list[int]) -> list[Measurement]:
    """Measure steps of every shape with every number of experts."""
    grid = Grid(
        tuple(shapes),
        tuple(experts),
        options.micro_batch,
        options.length,
        options.vocab,
        options.precision,
        gradient_checkpointing=False,
        compile=False,
    )
    return [step for model in grid.architectures() for step in measure(grid, model, options.repeats)]


def predict_seconds(throughput: Throughput, step: Measurement) -> float:
    """Predict the seconds of a step."""
    seconds = throughput.step_seconds(
        step.architecture,
        step.tokens_per_step,
        micro_batch_tokens=step.micro_batch_tokens,
        sequence_length=step.sequence_length,
    )
    return float(seconds)


def error(throughput: Throughput, steps: list[Measurement]) -> float:
    """Return the rms of ln(predicted / measured), in per cent."""
    squares = [np.log(predict_seconds(throughput, step) / step.step_seconds) ** 2 for step in steps]
    return 100 * float(np.sqrt(np.mean(squares)))


def add_step(report: Report, throughput: Throughput, step: Measurement) -> None:
    """Add rows of the time of a step and, where it was measured, of its memory."""
    a = step.architecture
    options = report.options
    name = f"d_model {a.d_model}, {a.blocks} blocks, E = {a.experts}, {step.tokens_per_step:,} tokens"
    report.add(name, step.step_seconds, "s", peer=("predicted", predict_seconds(throughput, step)))
    if step.memory_bytes is not None:
        memory = training_memory(
            a,
            options.micro_batch,
            options.length,
            passes=1,
            precision=options.precision,
            on_cpu=DEVICE.type == "cpu",
        )
        report.add(f"{name}: memory", step.memory_bytes / 1e6, "MB", peer=("predicted", memory.total / 1e6))


def add_step_law(report: Report, folder: Path) -> None:
    """Add a row of the error of steps on H800s."""
    steps = step_law_steps(folder / "moe_lr_bs_loss.csv")
    steps = [step for step in steps if step.tokens_per_step <= LARGEST_STEP_LAW * step.sequence_length]
    rmse = fit_throughput(steps, "H800", "bf16", terms=("steps", "flops")).error or 0
    flops_rmse = fit_throughput(steps, "H800", "bf16", terms=("flops",)).error or 0
    name = "Step Law's H800s, a shape left out: rms error of step times"
    report.add(name, 100 * rmse, "%", peer=("FLOPs alone", 100 * flops_rmse), note="steps and FLOPs")


@benchmark(
    {
        "--step-law": (Path, None),
        "--shapes": (["64x2", "128x2", "128x6", "256x3"], ["64x1"], "of the fit"),
        "--experts": ([1, 4, 16], [1, 2, 4], "of the fit"),
        "--unseen": (["192x3", "128x4", "320x4"], ["64x2"], "shapes to predict"),
        "--unseen-experts": ([1, 8], [2]),
        "--micro-batch": (4, 2, "sequences"),
        "--length": (128, 32),
        "--vocab": (4096, 512),
        "--precision": ("fp32", "fp32", "fp32 or bf16"),
        "--repeats": (4, 1, "steps of each batch, of which the fastest counts"),
    }
)
def main(report: Report, options: Options) -> None:
    fitted_steps = measure_shapes(options, options.shapes, options.experts)
    unseen_steps = measure_shapes(options, options.unseen, options.unseen_experts)
    throughput = fit_throughput(fitted_steps, "this machine", options.precision, terms=FITTED)
    flops_alone = fit_throughput(fitted_steps, "this machine", options.precision, terms=("flops",))
    for step in unseen_steps:
        add_step(report, throughput, step)
    for name, steps in {"shapes not in the fit": unseen_steps, "the fit's own shapes": fitted_steps}.items():
        peer = ("FLOPs alone", error(flops_alone, steps))
        report.add(f"{name}: rms error of step times", error(throughput, steps), "%", peer=peer)
    if options.step_law is None:
        report.skipped.append("needs Step Law's MoE table (BENCH_STEP_LAW=FOLDER), which is not shipped here")
    else:
        add_step_law(report, options.step_law)


if __name__ == "__main__":
    main()
