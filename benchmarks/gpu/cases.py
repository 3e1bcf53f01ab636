"""The cases to measure, part by part and most informative first, and those that a smoke test makes on tiny shapes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from hub.base.errors import InputError
from scaling_law.size.model_configs import FAMILIES
from training.configuration.model_classes import model_types

Options = dict[str, Any]
# Blocks by width. E = 32 with its gradients and moments fits into 80 GB; the paper has 16 blocks at 1024.
BLOCKS = {1024: 8, 512: 8, 2048: 2}
# Label of a variant of a case → the environment that makes it: layouts of one process, and alternatives of the step
# that are open. The variables are set in the case's process, which has imported torch before.
ONE_PROCESS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29567"}
VARIANTS = {
    "FSDP2": {**ONE_PROCESS, "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"},
    "DDP": ONE_PROCESS,
}
# Seconds for `first`, without a limit of its own.
FIRST_SECONDS = 1200.0
# The first tests, and the seconds that they take.
FIRST_TESTS = {
    "test_a_compiled_step_equals_the_eager_one_and_the_cpus": 60.0,
    "test_steps_after_a_resume_equal_those_of_a_run_that_was_not_stopped": 30.0,
    "test_a_step_waits_for_nothing_but_its_loss": 20.0,
}
LAYOUTS = "test_several_gpus_train_what_one_trains"
CAPTURED_PASSES = (
    "test_replayed_passes_have_the_losses_and_gradients_of_plain_ones",
    "test_the_first_pass_overwrites_the_gradients_of_the_step_before",
    "test_weights_are_cast_by_the_first_pass_alone",
    "test_a_capture_leaves_weights_and_batch_to_the_model_and_the_caller",
    "test_a_result_is_overwritten_by_the_next",
    "test_passes_are_captured_once_for_a_key_and_again_for_another",
    "test_passes_that_cannot_be_captured_run_as_they_are",
    "test_a_skipped_step_between_captured_passes_changes_nothing",
)
OTHER_TESTS = (
    LAYOUTS,
    "test_losses_gradients_and_drops_equal_the_cpus",
    "test_training_steps_equal_the_cpus",
    "test_waits_are_counted_without_the_warning_that_the_mode_is_a_prototype",
    "test_generated_tokens_equal_the_cpus",
    "test_fsdp2_on_one_device_gives_the_same_gradients",
)


@dataclass(frozen=True)
class Case:
    """One measurement; its options decide it, and a result counts for these options only.

    `seconds` estimates how long it takes: it is not started where less is left.
    """

    name: str
    options: Options
    seconds: float = 30.0


# ------------------------------------------------------------------ training steps


def step(model: str, width: int, experts: int, implementation: str = "auto", **changes: Any) -> Case:
    """Make a case of training steps of one model.

    The name says what differs from bf16 with attention in bf16, uncompiled. The steps are those of `train.py`, unless
    `loop` says "plain" (a loop in plain torch) or "Trainer" (transformers' own).
    """
    defaults: Options = {
        "model": model,
        "width": width,
        "blocks": BLOCKS[width],
        "experts": experts,
        "top_k": 1,
        "implementation": implementation,
        "precision": "bf16",
        "attention": "compute",
        "capacity_factor": 1.0,
        "gradient_checkpointing": False,
        "compile": False,
        "optimizer": "adamw",
        "micro_batch": 32,
        "passes": 4,
        "length": 512,
        "vocab": 50257,
        "rounds": 10,
    }
    differences = []
    for name, value in changes.items():
        if defaults.get(name) != value:
            differences.append(f"{name.replace('_', ' ')} {value}")
    case_name = ", ".join([f"{model} d{width} E{experts}", implementation, *differences])
    options = {**defaults, **changes}
    return Case(case_name, options, step_case_seconds(options))


def step_case_seconds(options: Options) -> float:
    """Estimate how long a case of steps takes on an H100, from what others took there."""
    if options["model"] == "matmul":
        return 3.0
    eager, compiling = (13.0, 14.0) if options["model"] == "ours" else (20.0, 17.0)
    # The Trainer compiles all blocks as one graph.
    if options.get("loop") == "Trainer":
        compiling = 40.0
    return eager + compiling * options["compile"]


def vary(case: Case, label: str) -> Case:
    """Make the variant of a case that the environment of this label makes."""
    return Case(f"{case.name}; {label}", {**case.options, "environment": VARIANTS[label]}, case.seconds)


def preset_steps() -> list[Case]:
    """List the steps of the presets of d_model 1024, which have 16 blocks."""
    return [step("ours", 1024, experts, compile=True, blocks=16) for experts in (1, 8)]


def new_steps() -> list[Case]:
    """List what was not measured before: layouts on one process, long sequences, compiled Muon."""
    long = [step("ours", 1024, experts, compile=True, length=4096, micro_batch=4) for experts in (1, 8)]
    variants = []
    for width, label in itertools.product((1024, 2048), VARIANTS):
        variants.append(vary(step("ours", width, 1, compile=True), label))
    return [
        *variants,
        *long,
        step("ours", 1024, 32, compile=True, optimizer="muon"),
    ]


def headline_steps() -> list[Case]:
    """List compiled models for which goals are set, the most informative first."""
    return [
        *(step("ours", 1024, experts, compile=True) for experts in (1, 8, 32)),
        step("qwen3_moe", 1024, 8, "grouped_mm", compile=True),
        *(step("ours", 512, experts, compile=True) for experts in (1, 8)),
        step("ours", 2048, 1, compile=True),
        step("ours", 1024, 1, compile=True, micro_batch=64, passes=2),
    ]


def eager_steps() -> list[Case]:
    """List the same models, not compiled."""
    return [
        *(step("ours", 1024, experts) for experts in (1, 8, 32)),
        step("qwen3_moe", 1024, 8, "grouped_mm"),
        *(step("ours", 512, experts) for experts in (1, 8)),
        step("ours", 2048, 1),
    ]


def peer_steps() -> list[Case]:
    """List classes of transformers as their users train them, compiled and not, and the matrix products alone."""
    peers = [step("matmul", width, 1) for width in BLOCKS]
    for loop, compiled in (("plain", True), ("Trainer", False), ("plain", False), ("Trainer", True)):
        for model in ("qwen3_moe", "mixtral"):
            peers.append(step(model, 1024, 8, "grouped_mm", compile=compiled, loop=loop))
    return peers


def other_first_steps() -> list[Case]:
    """List what else the first minutes answer: attention in fp32, Mixtral in our loop, eager Muon, finer experts."""
    return [
        step("ours", 1024, 8, compile=True, attention="float32"),
        step("mixtral", 1024, 8, "grouped_mm", compile=True),
        step("mixtral", 1024, 8, "grouped_mm"),
        step("ours", 512, 32, compile=True),
        *(step("qwen3_moe", 1024, 8 * k, "grouped_mm", compile=True, top_k=k) for k in (8, 4, 2)),
        step("ours", 512, 32),
        *(step("ours", width, 32, optimizer="muon") for width in (1024, 512)),
        *(step(model, 512, 8, "grouped_mm") for model in ("mixtral", "qwen3_moe")),
        *(step("qwen3_moe", 1024, 8 * k, "grouped_mm", top_k=k) for k in (2, 4, 8)),
    ]


def steps() -> list[Case]:
    """List the first, then what each choice costs, transformers' ways, and other widths and numbers of experts."""
    steps_of_part = [*preset_steps(), *new_steps(), *headline_steps()]
    steps_of_part += [*eager_steps(), *peer_steps(), *other_first_steps()]
    choices: list[Options] = [
        {"capacity_factor": 0},
        {"implementation": "eager"},
        {"gradient_checkpointing": True},
        {"precision": "fp32"},
        {"attention": "float32"},
    ]
    for choice in choices:
        steps_of_part += [step("ours", 1024, 8, compile=True, **choice), step("ours", 1024, 8, **choice)]
    steps_of_part.append(step("ours", 1024, 1, attention="float32"))
    steps_of_part.append(step("qwen3_moe", 512, 64, "grouped_mm", top_k=8, optimizer="muon"))
    # batched_mm gathers weights for every token, and the last two need kernels from the Hub: they say why they fail.
    for implementation in ("grouped_mm", "eager", "batched_mm", "deepgemm", "sonicmoe"):
        steps_of_part += [step(model, 1024, 8, implementation) for model in ("mixtral", "olmoe")]
    for experts in (8, 32):
        steps_of_part += [step("ours", 2048, experts, compile=True), step("ours", 2048, experts)]
    steps_of_part.append(step("mixtral", 512, 8, "grouped_mm", compile=True))
    shapes = itertools.product(("mixtral", "olmoe"), (1024, 512, 2048), (8, 32), ("grouped_mm", "eager"))
    return steps_of_part + [step(*shape) for shape in shapes]


# ------------------------------------------------------------------ the other parts


def suite() -> list[Case]:
    """List tests of `tests/gpu` with all of their parameters; by class, since one may spoil the device for others."""
    test_cases = [Case("captured passes", {"tests": list(CAPTURED_PASSES)}, 45.0)]
    test_cases += [Case(name, {"tests": [name]}, FIRST_TESTS.get(name, 30.0)) for name in (*FIRST_TESTS, *OTHER_TESTS)]
    for family in FAMILIES:
        if family in model_types():
            tests = [f"test_other_classes_equal_the_cpus[{family}-{precision}]" for precision in ("fp32", "bf16")]
            test_cases.append(Case(family, {"tests": tests}, 30.0))
    return test_cases


def run() -> list[Case]:
    """List a whole run of `train.py` of two minutes, on text of this machine, at the size of a preset."""
    sizes = {"seconds": 120.0, "corpus_bytes": 12_000_000, "eval_sequences": 256}
    preset = preset_steps()[-1]
    return [Case(preset.name, {**preset.options, **sizes}, 240.0)]


def heads() -> list[Case]:
    """List the loss of a head and its gradients, by our chunks and by fused kernels, where they are installed."""
    sizes = {"rounds": 10, "rows": 16_384, "width": 1024, "vocab": 50_257}
    return [Case(way, {"way": way, **sizes}) for way in ("all logits", "chunks", "torch", "liger", "cce")]


def data() -> list[Case]:
    """List batches from a token cache onto the device, to set beside the tokens that a step takes."""
    sizes = {"micro_batch": 32, "length": 512, "vocab": 16_384, "corpus_bytes": 30_000_000, "batches": 200}
    return [Case("micro-batches", sizes)]


def decoding() -> list[Case]:
    """List greedy generation in bf16, after a prompt, by the number of sequences."""
    models = [
        ("ours", 1, "auto"),
        ("ours", 8, "auto"),
        ("ours", 32, "auto"),
        ("mixtral", 8, "grouped_mm"),
        ("mixtral", 8, "batched_mm"),
        ("olmoe", 8, "batched_mm"),
        ("ours", 8, "grouped_mm"),
        ("ours", 8, "batched_mm"),
    ]
    generations = []
    for batch, (model, experts, implementation) in itertools.product((1, 16, 128), models):
        options = {
            "model": model,
            "width": 1024,
            "blocks": BLOCKS[1024],
            "experts": experts,
            "implementation": implementation,
            "batch": batch,
            "prompt": 512,
            "new": 64,
            "vocab": 50257,
            "rounds": 3,
        }
        generations.append(Case(f"{model} d1024 E{experts}, {implementation}, batch {batch}", options))
    return generations


def checkpoints() -> list[Case]:
    """List saving and loading the state of a run."""
    return [Case(f"d{d} E{e}", {"width": d, "experts": e, "rounds": 3}) for d, e in ((512, 8), (1024, 1), (512, 32))]


def registered() -> list[Case]:
    """List runs between the crossings that were measured here and the paper's range: 5.5M, 9.3M and 15M active.

    E = 1, 8 and 32 on 50M to 1B tokens of the text in --data, which must not repeat. All trunks and decays are 6.7e16
    FLOPs for each E: three E take 45 minutes where a dense step makes 1e14 FLOP/s and E = 32 takes twice as long. The
    crossing law's prediction for these cells is to be committed before (`make crossing PREDICT=`).
    """
    shared = {
        "vocab": 4096,
        "warmup": "2M",
        "batch": 128,
        "micro_batch": 64,
        "eval_sequences": 4096,
        "needs_data": True,
    }
    short_branches = ["50M", "100M", "200M"]
    rates = {
        256: (2e-3, [*short_branches, "500M", "1B"]),
        320: (1.8e-3, short_branches),
        384: (1.6e-3, short_branches),
    }
    return trunks(rates, (1, 8, 32), shared)


def sweep() -> list[Case]:
    """List trunks with three branches: of 12M, 44M and 94M active parameters, most informative (the cheapest) first.

    A peak learning rate for each size, since the paper's law was fitted to larger batches of another vocabulary.
    """
    shared = {
        "vocab": 16384,
        "warmup": "800K",
        "batch": 64,
        "micro_batch": 32,
        "eval_sequences": 2048,
        "needs_data": False,
    }
    branches = ["8M", "16M", "32M"]
    rates = {256: (2e-3, branches), 512: (1.4e-3, branches), 704: (1.2e-3, branches)}
    return trunks(rates, (1, 4, 8), shared)


def trunks(rates: dict[int, tuple[float, list[str]]], experts: tuple[int, ...], shared: Options) -> list[Case]:
    """List trunks of each width, with its peak learning rate and the tokens of its branches, and each E."""
    trunk_cases = []
    for width, (rate, tokens) in rates.items():
        for e in experts:
            options = {
                "width": width,
                "experts": e,
                "learning_rate": rate,
                "tokens": tokens,
                "length": 512,
                "corpus_bytes": None,
                **shared,
            }
            trunk_cases.append(Case(f"d{width} E{e}", options))
    return trunk_cases


# ------------------------------------------------------------------ parts


PARTS = {
    "steps": steps,
    "run": run,
    "suite": suite,
    "heads": heads,
    "data": data,
    "decoding": decoding,
    "checkpoints": checkpoints,
    "registered": registered,
    "sweep": sweep,
}
# Seconds that a case may take. A training run goes on from its checkpoint in the next call, and is never too long;
# a step that compiles for longer must not take the call from the others.
CASE_SECONDS = {
    **dict.fromkeys(PARTS, 240.0),
    "registered": 86_400.0,
    "sweep": 86_400.0,
    "steps": 120.0,
    "run": 480.0,
    "suite": 480.0,
}
SMOKE = {
    "steps": (
        "matmul d512 E1, auto",
        "ours d512 E1, auto, compile True",
        "ours d512 E8, auto, compile True",
        "ours d512 E8, auto",
        "ours d512 E32, auto, optimizer muon",
        "ours d1024 E1, auto, compile True; FSDP2",
        "qwen3_moe d1024 E16, grouped_mm, top k 2",
        "qwen3_moe d1024 E8, grouped_mm, compile True",
        "mixtral d1024 E8, grouped_mm, loop plain",
        "qwen3_moe d1024 E8, grouped_mm, compile True, loop plain",
        "mixtral d1024 E8, grouped_mm, loop Trainer",
        "qwen3_moe d1024 E8, grouped_mm, compile True, loop Trainer",
    ),
    "run": ("ours d1024 E8, auto, compile True, blocks 16",),
    "suite": ("mixtral",),
    "heads": ("all logits", "chunks", "torch"),
    "data": ("micro-batches",),
    "decoding": ("ours d1024 E8, auto, batch 1", "mixtral d1024 E8, grouped_mm, batch 1"),
    "checkpoints": ("d512 E8",),
    "registered": ("d256 E8",),
    "sweep": ("d256 E4",),
}
TINY = {
    "width": 64,
    "blocks": 1,
    "micro_batch": 4,
    "batch": 4,
    "passes": 2,
    "length": 32,
    "vocab": 257,
    "rounds": 1,
    "rows": 64,
    "prompt": 8,
    "new": 4,
    "batches": 4,
    "corpus_bytes": 300_000,
    "needs_data": False,
    "tokens": ["1K", "2K"],
    "warmup": 512,
    "eval_sequences": 16,
    "seconds": 2.0,
}


def cases(part: str, smoke: bool = False) -> list[Case]:
    """Return the cases of a part, in the order in which they are run. Raises InputError for an unknown part."""
    if part not in PARTS:
        raise InputError(f"part {part!r}; it must be one of {', '.join(PARTS)}")
    # A case that is listed twice stays at its first place.
    cases_by_name = {case.name: case for case in PARTS[part]()}
    if not smoke:
        return list(cases_by_name.values())
    return [tiny(cases_by_name[name]) for name in SMOKE[part]]


def tiny(case: Case) -> Case:
    """Shrink a case to a shape that a CPU computes in seconds; compiling then traces, and makes no code."""
    options = {key: TINY.get(key, value) for key, value in case.options.items()}
    if options.get("compile"):
        options["backend"] = "aot_eager"
    return Case(case.name, options)


def first(smoke: bool = False) -> list[tuple[str, list[Case]]]:
    """Return cases of the first 20 minutes, each as soon as it says more than what follows, then of the next few."""
    cases_of_parts = {}
    for part in ("steps", "run", "suite", "data", "heads"):
        cases_of_parts[part] = {case.name: case for case in cases(part, smoke)}
    later_steps = [case.name for case in (*eager_steps(), *peer_steps(), *other_first_steps())]
    groups = [
        ("steps", [case.name for case in preset_steps()]),
        ("run", list(cases_of_parts["run"])),
        ("steps", [case.name for case in (*new_steps(), *headline_steps())]),
        ("suite", ["captured passes", *FIRST_TESTS]),
        ("steps", later_steps),
        ("suite", list(OTHER_TESTS[:2])),
        ("data", list(cases_of_parts["data"])),
        ("heads", list(cases_of_parts["heads"])),
        ("suite", [name for name in cases_of_parts["suite"] if name in FAMILIES]),
    ]
    available = []
    for part, names in groups:
        cases_by_name = cases_of_parts[part]
        available.append((part, [cases_by_name[name] for name in names if name in cases_by_name]))
    return available
