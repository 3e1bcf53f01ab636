"""Training step of other classes of transformers in the loop of train.py, beside our Switch-MoE.

    python -m benchmarks.classes [--precision fp32 bf16] [--granularity 1 2 4 8]
    python -m benchmarks.classes --precision bf16 --width 1024 --layers 16 --batch 64 --length 512 --vocab 50257

All models have the same active parameters: dense ones beside our dense model, and those with experts beside our E = 8,
dropless, of which they have the total, too: each expert is split into G parts, of which as many are active. A step is
forward and backward as the loop makes them, with the balance loss and in chunks of logits; steps take turns, and
reported is the median. Bound: the matrix products of the dense step alone. Qwen3-MoE is also measured beside the class
by itself, with its own loss and its plain loop over the experts.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from benchmarks.model_speed import (
    BOUND,
    DEVICE,
    SHAPE,
    by_itself,
    config_of,
    fields_of,
    ours,
    own_loss,
    step_seconds,
)
from benchmarks.report import Options, Report, benchmark
from hub.base.errors import InputError
from scaling_law.size.model_configs import read_model
from training.run.model import build_model

DENSE = ("llama", "qwen3", "olmo2")
ROUTED = ("qwen3_moe", "olmoe", "mixtral")
SHARED = "qwen2_moe"
EXPERTS = 8
BALANCE = 0.01
BY_ITSELF = "qwen3_moe"
LOOP = "the class by itself, its loop over experts"
OURS_DENSE = "ours, E = 1"
OURS = f"ours, E = {EXPERTS}"


def loss_of_the_loop(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Compute the loss as train.py does."""
    out = model(input_ids=tokens, shift_labels=tokens.roll(-1, 1), use_cache=False, output_logits=False)
    return out.lm_loss + BALANCE * out.balance_loss


def contenders(shape: Options, our_configs: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """Return name → (configuration, the name of the model of ours with as many parameters).

    Raises InputError for a class that has others.
    """
    configs = {}
    for kind in DENSE:
        configs[kind] = (config_of(fields_of(kind, shape, 1), shape), OURS_DENSE)
    for g, kind in itertools.product(shape.granularity, ROUTED):
        fields = fields_of(kind, shape, EXPERTS * g, g)
        configs[f"{kind}, top-{g} of {EXPERTS * g}"] = (config_of(fields, shape), OURS)
    for g in shape.granularity:
        if g > 1:
            fields = fields_of(SHARED, shape, EXPERTS * g, g, shared=1)
            name = f"{SHARED}, 1 shared and top-{g - 1} of {EXPERTS * g - 1}"
            configs[name] = (config_of(fields, shape), OURS)
    for name, (config, peer) in configs.items():
        theirs = read_model(config).architecture
        our_model = read_model(our_configs[peer]).architecture
        if (theirs.n_active, theirs.n_total) != (our_model.n_active, our_model.n_total):
            sizes = f"{theirs.n_active:,} active of {theirs.n_total:,}"
            raise InputError(f"{name}: {sizes}, {peer} {our_model.n_active:,} of {our_model.n_total:,}")
    return configs


@benchmark({**SHAPE, "--granularity": ([1, 2, 4, 8], [1, 2])})
def main(report: Report, shape: Options) -> None:
    for precision in shape.precision:
        compare(report, shape, precision)


def compare(report: Report, shape: Options, precision: str) -> None:
    """Add a row for each class beside ours, and for one beside the class by itself."""
    torch.manual_seed(0)
    our_configs = {
        OURS_DENSE: ours(shape, 1, capacity_factor=None),
        OURS: ours(shape, EXPERTS, capacity_factor=None),
    }
    classes = contenders(shape, our_configs)
    configs = {**our_configs, **{name: config for name, (config, _) in classes.items()}}
    models: dict[Any, Any] = {}
    for name, config in configs.items():
        models[name] = (build_model(config, 0).to(DEVICE), loss_of_the_loop)
    for name, config in configs.items():
        if BY_ITSELF in name:
            models[name, LOOP] = (by_itself(config, "eager"), own_loss)
    seconds = step_seconds(shape, precision, models)
    for name, (_, peer) in classes.items():
        title = f"train {precision}, {name}"
        report.add_of(seconds, title, peer, BOUND, ours=name)
        if (name, LOOP) in seconds:
            report.add_of({**seconds, LOOP: seconds[name, LOOP]}, title, LOOP, BOUND, ours=name)


if __name__ == "__main__":
    main()
