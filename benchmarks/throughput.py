"""Step times and memory predicted for shapes that were not in the fit, beside what they take.

    python -m benchmarks.throughput [--precision fp32] [--unseen 192x3 128x6]
    python -m benchmarks.throughput --step-law FOLDER      # or BENCH_STEP_LAW=FOLDER

The grid of `training.throughput` is measured and fitted, then other shapes with other numbers of experts are measured
in the same process. A row's measured time has the predicted one as its peer, so that its ratio is predicted over
measured: 1 is perfect. FLOPs alone, fitted to the same grid, are the peer of the error. The time of a step is the
least of a few. Step Law's folder holds moe_lr_bs_loss.csv of data/ of github.com/step-law/steplaw at 32a8f4cc5024 (no
licence stated, so not shipped): iteration times of four MoE shapes on H800s, their number not stated: each shape
is predicted from the other three. Batches of 512 sequences, where one shape was on fewer GPUs, are left out.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch

from benchmarks.report import Report, parse
from benchmarks.step_times import step_law_steps
from scaling_law.fitting.throughput import FITTED, fit_throughput
from scaling_law.machine.memory import training_memory
from scaling_law.machine.throughput import Measurement, Throughput
from training.throughput import Grid, measure

LARGEST_STEP_LAW = 256  # sequences


def grid(options: argparse.Namespace, shapes: list[str], experts: list[int]) -> Grid:
    return Grid(
        shapes=tuple(shapes),
        experts=tuple(experts),
        micro_batch_sequences=options.micro_batch,
        sequence_length=options.length,
        vocab_size=options.vocab,
        precision=options.precision,
        gradient_checkpointing=False,
        compile=False,
    )


def measured(options: argparse.Namespace, shapes: list[str], experts: list[int]) -> list[Measurement]:
    chosen = grid(options, shapes, experts)
    return [step for model in chosen.architectures() for step in measure(chosen, model, options.repeats)]


def predicted(throughput: Throughput, step: Measurement) -> float:
    batch = {"micro_batch_tokens": step.micro_batch_tokens, "sequence_length": step.sequence_length}
    return float(throughput.step_seconds(step.architecture, step.tokens_per_step, **batch))


def error(throughput: Throughput, steps: list[Measurement]) -> float:
    """rms of ln(predicted / measured), in per cent."""
    return 100 * float(np.sqrt(np.mean([np.log(predicted(throughput, m) / m.step_seconds) ** 2 for m in steps])))


def add_memory(report: Report, options: argparse.Namespace, step: Measurement, name: str) -> None:
    if step.memory_bytes is None:
        return
    batch = {"passes": 1, "precision": options.precision, "on_cpu": not torch.cuda.is_available()}
    model = training_memory(step.architecture, options.micro_batch, options.length, **batch)
    report.add(f"{name}: memory", step.memory_bytes / 1e6, "MB", peer=("predicted", model.total / 1e6))


def main() -> None:
    options = parse(
        __doc__,
        ("--step-law", {"type": Path, "default": os.environ.get("BENCH_STEP_LAW") or None}),
        ("--shapes", {"nargs": "+", "default": ["64x2", "128x2", "128x6", "256x3"], "help": "of the fit"}),
        ("--experts", {"nargs": "+", "type": int, "default": [1, 4, 16], "help": "of the fit"}),
        ("--unseen", {"nargs": "+", "default": ["192x3", "128x4", "320x4"], "help": "shapes to predict"}),
        ("--unseen-experts", {"nargs": "+", "type": int, "default": [1, 8]}),
        ("--micro-batch", {"type": int, "default": 4, "help": "sequences"}),
        ("--length", {"type": int, "default": 128}),
        ("--vocab", {"type": int, "default": 4096}),
        ("--precision", {"choices": ["fp32", "bf16"], "default": "fp32"}),
        ("--repeats", {"type": int, "default": 4, "help": "steps of each batch, of which the fastest counts"}),
        fast={
            "shapes": ["64x1"],
            "experts": [1, 2, 4],
            "unseen": ["64x2"],
            "unseen_experts": [2],
            "micro_batch": 2,
            "length": 32,
            "vocab": 512,
            "repeats": 1,
        },
    )
    report = Report("throughput", options)
    seen = measured(options, options.shapes, options.experts)
    unseen = measured(options, options.unseen, options.unseen_experts)
    fits = {
        name: fit_throughput(seen, "this machine", options.precision, terms=terms)
        for name, terms in {"all": FITTED, "FLOPs alone": ("flops",)}.items()
    }
    for step in unseen:
        a = step.architecture
        name = f"d_model {a.d_model}, {a.blocks} blocks, E = {a.experts}, {step.tokens_per_step:,} tokens"
        report.add(name, step.step_seconds, "s", peer=("predicted", predicted(fits["all"], step)))
        add_memory(report, options, step, name)
    for name, steps in {"shapes not in the fit": unseen, "the fit's own shapes": seen}.items():
        alone = error(fits["FLOPs alone"], steps)
        report.add(f"{name}: rms error of step times", error(fits["all"], steps), "%", peer=("FLOPs alone", alone))
    if options.step_law is None:
        report.skip("needs Step Law's MoE table (BENCH_STEP_LAW=FOLDER), which is not shipped here")
    else:
        steps = step_law_steps(options.step_law / "moe_lr_bs_loss.csv")
        fewer = [step for step in steps if step.tokens_per_step <= LARGEST_STEP_LAW * step.sequence_length]
        terms = {"FLOPs and steps": ("steps", "flops"), "FLOPs alone": ("flops",)}
        misses = {name: fit_throughput(fewer, "H800", "bf16", terms=t).error or 0 for name, t in terms.items()}
        alone = ("FLOPs alone", 100 * misses["FLOPs alone"])
        name = "Step Law's H800s, a shape left out: rms error of step times"
        report.add(name, 100 * misses["FLOPs and steps"], "%", peer=alone, note="steps and FLOPs")
    report.finish()


if __name__ == "__main__":
    main()
