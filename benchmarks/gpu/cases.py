"""What is measured, part by part and most informative first; `smoke` is the same on shapes for a CPU."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from hub.base.errors import InputError

Options = dict[str, Any]
PARTS = ("suite", "steps", "decoding", "checkpoints", "sweep")
# Blocks by the paper's rule up to d_model 1024; at 2048 four, so that E = 32 is 80 GB with its optimizer.
BLOCKS = {64: 1, 512: 8, 1024: 16, 2048: 4}
SUITE = (
    "test_losses_gradients_and_drops_equal_the_cpus",
    "test_a_step_waits_for_the_device_once",
    "test_training_steps_equal_the_cpus",
    "test_generated_tokens_equal_the_cpus",
    "test_a_compiled_step_equals_the_eager_one",
    "test_fsdp2_on_one_device_gives_the_same_gradients",
)


# Seconds that a case may take. A training run goes on from its checkpoint in the next call, and is never too long.
CASE_SECONDS = dict.fromkeys(PARTS, 300.0) | {"sweep": 86_400.0}


@dataclass(frozen=True)
class Case:
    """One measurement; its options decide it, and a result counts for these options only."""

    name: str
    options: Options


def cases(part: str, smoke: bool = False) -> list[Case]:
    """Of a part, in the order in which they are run. ValueError names what is no part."""
    if part not in PARTS:
        raise InputError(f"part {part!r}; it must be one of {', '.join(PARTS)}")
    makers = {
        "suite": suite,
        "steps": steps,
        "decoding": decoding,
        "checkpoints": checkpoints,
        "sweep": sweep,
    }
    found = makers[part](smoke)
    return list({case.name: case for case in found}.values())  # one that is listed twice stays at its first place


def suite(smoke: bool) -> list[Case]:
    """A test each, with all of its parameters; `make test` runs them on the CPU anyway."""
    return [Case(name, {"test": name}) for name in (SUITE[3:4] if smoke else SUITE)]


def step(model: str, width: int, experts: int, implementation: str = "auto", **changes: Any) -> Case:
    """Training steps of one model; the name says what differs from bf16 with attention in bf16, uncompiled."""
    options: Options = {
        "model": model,
        "width": width,
        "blocks": BLOCKS[width],
        "experts": experts,
        "implementation": implementation,
        "precision": "bf16",
        "attention": "compute",
        "capacity_factor": 1.0,
        "gradient_checkpointing": False,
        "compile": False,
        "micro_batch": 32,
        "passes": 4,
        "length": 512,
        "vocab": 50257,
        "rounds": 10,
    } | changes
    extra = [f"{name.replace('_', ' ')} {value}" for name, value in changes.items() if name in NAMED]
    return Case(", ".join([f"{model} d{width} E{experts}", implementation, *extra]), options)


NAMED = ("precision", "attention", "capacity_factor", "gradient_checkpointing", "compile")


def steps(smoke: bool) -> list[Case]:
    """Ours, then what each choice costs, then transformers' models; compiled at two widths only."""
    if smoke:
        tiny = {"micro_batch": 2, "passes": 2, "length": 16, "vocab": 128, "rounds": 2}
        return [
            step("matmul", 64, 1, **tiny),
            step("ours", 64, 1, **tiny),
            step("ours", 64, 8, **tiny),
            step("mixtral", 64, 8, "grouped_mm", **tiny),
        ]
    first = [step("matmul", 1024, 1), *(step("ours", 1024, experts) for experts in (1, 8, 32))]
    choices = [
        step("ours", 1024, 8, attention="float32"),
        step("ours", 1024, 1, attention="float32"),
        step("ours", 1024, 8, capacity_factor=0),
        step("ours", 1024, 8, "eager"),
        step("ours", 1024, 8, gradient_checkpointing=True),
        step("ours", 1024, 8, precision="fp32"),
    ]
    # batched_mm gathers weights for every token, and the last two need kernels from the Hub: they say why they fail
    every = ("grouped_mm", "eager", "batched_mm", "deepgemm", "sonicmoe")
    peers = [step(model, 1024, 8, way) for way in every for model in ("mixtral", "olmoe")]
    widths = [step(model, width, e) for width in (512, 2048) for model, e in [("matmul", 1), *OURS]]
    compiled = [step("ours", width, e, compile=True) for width in (1024, 512) for e in (1, 8, 32)]
    compiled += [step("mixtral", width, 8, "grouped_mm", compile=True) for width in (1024, 512)]
    others = itertools.product(("mixtral", "olmoe"), (1024, 512, 2048), (8, 32), ("grouped_mm", "eager"))
    return [*first, *choices, *peers, *widths, *compiled, *(step(m, w, e, way) for m, w, e, way in others)]


OURS = (("ours", 1), ("ours", 8), ("ours", 32))


def decoding(smoke: bool) -> list[Case]:
    """Greedy generation in bf16, after a prompt, by the number of sequences."""

    def one(model: str, width: int, experts: int, way: str, batch: int, **changes: int) -> Case:
        options = {"model": model, "width": width, "blocks": BLOCKS[width], "experts": experts, "implementation": way}
        options |= {"batch": batch, "prompt": 512, "new": 64, "vocab": 50257, "rounds": 3} | changes
        return Case(f"{model} d{width} E{experts}, {way}, batch {batch}", options)

    if smoke:
        tiny = {"prompt": 8, "new": 4, "vocab": 128, "rounds": 1}
        return [one("ours", 64, 4, "auto", 2, **tiny), one("mixtral", 64, 4, "grouped_mm", 2, **tiny)]
    models = [("ours", 1, "auto"), ("ours", 8, "auto"), ("ours", 32, "auto"), ("mixtral", 8, "grouped_mm")]
    models += [("mixtral", 8, "batched_mm"), ("olmoe", 8, "batched_mm"), ("ours", 8, "grouped_mm")]
    models += [("ours", 8, "batched_mm")]
    return [one(model, 1024, experts, way, batch) for batch in (1, 16, 128) for model, experts, way in models]


def checkpoints(smoke: bool) -> list[Case]:
    """Saving and loading the state of a run."""
    shapes = [(64, 2)] if smoke else [(512, 8), (1024, 1), (512, 32)]
    rounds = 1 if smoke else 3
    return [Case(f"d{d} E{e}", {"d_model": d, "experts": e, "rounds": rounds}) for d, e in shapes]


def sweep(smoke: bool) -> list[Case]:
    """Trunks with three branches: of 12M, 44M and 94M active parameters, most informative (the cheapest) first.

    A peak learning rate for each size, since the paper's law was fitted to larger batches of another vocabulary.
    """
    shared: Options = {"vocab": 16384, "tokens": ["8M", "16M", "32M"], "warmup": "800K"}
    shared |= {"batch": 64, "micro_batch": 32, "length": 512, "eval_sequences": 2048, "corpus_bytes": None}
    shapes = {256: 2e-3, 512: 1.4e-3, 704: 1.2e-3}
    if smoke:
        shared |= {"vocab": 257, "tokens": ["1K", "2K", "4K"], "warmup": 512, "batch": 4, "micro_batch": 4}
        shared |= {"length": 32, "eval_sequences": 16, "corpus_bytes": 300_000}
        shapes = {64: 2e-3}
    grid = itertools.product(shapes.items(), (4,) if smoke else (1, 4, 8))
    return [
        Case(f"d{width} E{experts}", {"width": width, "experts": experts, "learning_rate": rate} | shared)
        for (width, rate), experts in grid
    ]
