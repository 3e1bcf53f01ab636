"""What is measured, part by part and most informative first; `smoke` is the same on shapes for a CPU."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from hub.base.errors import InputError

Options = dict[str, Any]
PARTS = ("steps", "suite", "heads", "data", "decoding", "checkpoints", "registered", "sweep")
# Blocks by the paper's rule up to d_model 1024; at 2048 four, so that E = 32 is 80 GB with its optimizer.
BLOCKS = {64: 1, 512: 8, 1024: 16, 2048: 4}
SUITE = (
    "test_losses_gradients_and_drops_equal_the_cpus",
    "test_other_classes_equal_the_cpus",
    "test_steps_after_a_resume_equal_those_of_a_run_that_was_not_stopped",
    "test_a_step_waits_for_the_device_once",
    "test_training_steps_equal_the_cpus",
    "test_generated_tokens_equal_the_cpus",
    "test_a_compiled_step_equals_the_eager_one",
    "test_fsdp2_on_one_device_gives_the_same_gradients",
)


# Seconds that a case may take. A training run goes on from its checkpoint in the next call, and is never too long.
CASE_SECONDS = dict.fromkeys(PARTS, 300.0) | {"registered": 86_400.0, "sweep": 86_400.0}


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
        "heads": heads,
        "data": data,
        "decoding": decoding,
        "checkpoints": checkpoints,
        "registered": registered,
        "sweep": sweep,
    }
    found = makers[part](smoke)
    return list({case.name: case for case in found}.values())  # one that is listed twice stays at its first place


def first(smoke: bool = False) -> list[tuple[str, Case]]:
    """(part, case) of the first 15 minutes: speed, Muon, fine-grained experts, parity, resuming, data and heads."""
    every = {part: cases(part, smoke) for part in PARTS}
    parity = [case for case in every["suite"] if case.name in SUITE[:3]]
    chosen = {"steps": every["steps"][:FIRST_STEPS], "suite": parity, "data": every["data"], "heads": every["heads"]}
    return [(part, case) for part, of_part in chosen.items() for case in of_part]


def suite(smoke: bool) -> list[Case]:
    """A test each, with all of its parameters; `make test` runs them on the CPU anyway."""
    return [Case(name, {"test": name}) for name in (SUITE[2:3] if smoke else SUITE)]


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
        "optimizer": "adamw",
        "top_k": 1,
        "micro_batch": 32,
        "passes": 4,
        "length": 512,
        "vocab": 50257,
        "rounds": 10,
    } | changes
    extra = [f"{name.replace('_', ' ')} {value}" for name, value in changes.items() if name in NAMED]
    return Case(", ".join([f"{model} d{width} E{experts}", implementation, *extra]), options)


NAMED = ("precision", "attention", "capacity_factor", "gradient_checkpointing", "compile", "optimizer", "top_k")
FIRST_STEPS = 18


def steps(smoke: bool) -> list[Case]:
    """Ours beside transformers', Muon, finer experts; then what each choice costs; compiled at two widths only."""
    if smoke:
        tiny = {"micro_batch": 2, "passes": 2, "length": 16, "vocab": 128, "rounds": 2}
        return [
            step("matmul", 64, 1, **tiny),
            step("ours", 64, 1, **tiny),
            step("ours", 64, 8, **tiny),
            step("mixtral", 64, 8, "grouped_mm", **tiny),
            step("qwen3_moe", 64, 16, "grouped_mm", top_k=2, **tiny),
            step("ours", 64, 8, optimizer="muon", **tiny),
        ]
    first = []
    for width in (1024, 512):
        first += [step("matmul", width, 1), *(step("ours", width, experts) for experts in (1, 8, 32))]
        first += [step(model, width, 8, "grouped_mm") for model in ("mixtral", "qwen3_moe")]
    first += [step("ours", width, 32, optimizer="muon") for width in (1024, 512)]
    first += [step("qwen3_moe", 1024, 8 * k, "grouped_mm", top_k=k) for k in (2, 4, 8)]
    first += [step("qwen3_moe", 512, 64, "grouped_mm", top_k=8, optimizer="muon")]
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


def heads(smoke: bool) -> list[Case]:
    """The loss of a head and its gradients, by our chunks and by fused kernels, where they are installed."""
    sizes = {"tokens": 64, "width": 32, "vocab": 97} if smoke else {"tokens": 16_384, "width": 1024, "vocab": 50_257}
    ways = ("all logits", "chunks", "torch") if smoke else ("all logits", "chunks", "torch", "liger", "cce")
    return [Case(way, {"way": way, "rounds": 1 if smoke else 10} | sizes) for way in ways]


def data(smoke: bool) -> list[Case]:
    """Batches from a token cache onto the device, to set beside the tokens that a step takes."""
    sizes = {"micro_batch": 4, "length": 32, "vocab": 257, "corpus_bytes": 300_000, "batches": 4}
    full = {"micro_batch": 32, "length": 512, "vocab": 16_384, "corpus_bytes": None, "batches": 200}
    return [Case("micro-batches", sizes if smoke else full)]


def checkpoints(smoke: bool) -> list[Case]:
    """Saving and loading the state of a run."""
    shapes = [(64, 2)] if smoke else [(512, 8), (1024, 1), (512, 32)]
    rounds = 1 if smoke else 3
    return [Case(f"d{d} E{e}", {"d_model": d, "experts": e, "rounds": rounds}) for d, e in shapes]


def registered(smoke: bool) -> list[Case]:
    """Between the crossings that were measured here and the paper's range: 5.5M, 9.3M and 15M active parameters.

    E = 1, 8 and 32 on 50M to 1B tokens of the text in --data, which must not repeat. All trunks and decays are 6.7e16
    FLOPs for each E: three E take 45 minutes where a dense step makes 1e14 FLOP/s and E = 32 takes twice as long. The
    crossing law's prediction for these cells is to be committed before (`make crossing PREDICT=`).
    """
    shapes = {256: (2e-3, ["50M", "100M", "200M", "500M", "1B"]), 320: (1.8e-3, ["50M", "100M", "200M"])}
    shapes[384] = 1.6e-3, ["50M", "100M", "200M"]
    shared: Options = {"vocab": 4096, "warmup": "2M", "batch": 128, "micro_batch": 64, "length": 512}
    shared |= {"eval_sequences": 4096, "corpus_bytes": None, "needs_data": True}
    return _trunks({64: (2e-3, ["1K", "2K"])} if smoke else shapes, (8,) if smoke else (1, 8, 32), shared, smoke)


def sweep(smoke: bool) -> list[Case]:
    """Trunks with three branches: of 12M, 44M and 94M active parameters, most informative (the cheapest) first.

    A peak learning rate for each size, since the paper's law was fitted to larger batches of another vocabulary.
    """
    shared: Options = {"vocab": 16384, "warmup": "800K", "batch": 64, "micro_batch": 32, "length": 512}
    shared |= {"eval_sequences": 2048, "corpus_bytes": None, "needs_data": False}
    rates = {64: 2e-3} if smoke else {256: 2e-3, 512: 1.4e-3, 704: 1.2e-3}
    tokens = ["1K", "2K", "4K"] if smoke else ["8M", "16M", "32M"]
    return _trunks(
        {width: (rate, tokens) for width, rate in rates.items()}, (4,) if smoke else (1, 4, 8), shared, smoke
    )


Shapes = dict[int, tuple[float, list[str]]]  # d_model: peak learning rate, tokens of the branches


def _trunks(shapes: Shapes, experts: tuple[int, ...], shared: Options, smoke: bool) -> list[Case]:
    if smoke:
        shared |= {"vocab": 257, "warmup": 512, "batch": 4, "micro_batch": 4, "length": 32, "eval_sequences": 16}
        shared |= {"corpus_bytes": 300_000, "needs_data": False}
    return [
        Case(f"d{width} E{e}", {"width": width, "experts": e, "learning_rate": rate, "tokens": tokens} | shared)
        for (width, (rate, tokens)), e in itertools.product(shapes.items(), experts)
    ]
