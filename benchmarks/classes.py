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

DENSE, ROUTED, SHARED = ("llama", "qwen3", "olmo2"), ("qwen3_moe", "olmoe", "mixtral"), "qwen2_moe"
EXPERTS, BALANCE = 8, 0.01
BY_ITSELF, LOOP = "qwen3_moe", "the class by itself, its loop over experts"
OURS_DENSE, OURS = "ours, E = 1", f"ours, E = {EXPERTS}"


def loss_of_the_loop(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """As train.py computes it."""
    out = model(input_ids=tokens, shift_labels=tokens.roll(-1, 1), use_cache=False, output_logits=False)
    return out.lm_loss + BALANCE * out.balance_loss


def contenders(shape: Options, of_ours: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """Name → (configuration, which of ours has as many parameters). ValueError for one that has others."""
    found = {kind: (fields_of(kind, shape, 1), OURS_DENSE) for kind in DENSE}
    for g, kind in itertools.product(shape.granularity, ROUTED):
        found[f"{kind}, top-{g} of {EXPERTS * g}"] = fields_of(kind, shape, EXPERTS * g, g), OURS
    for g in (g for g in shape.granularity if g > 1):
        name = f"{SHARED}, 1 shared and top-{g - 1} of {EXPERTS * g - 1}"
        found[name] = fields_of(SHARED, shape, EXPERTS * g, g, shared=1), OURS
    configs = {name: (config_of(fields, shape), peer) for name, (fields, peer) in found.items()}
    for name, (config, peer) in configs.items():
        a, b = read_model(config).architecture, read_model(of_ours[peer]).architecture
        if (a.n_active, a.n_total) != (b.n_active, b.n_total):
            raise InputError(f"{name}: {a.n_active:,} active of {a.n_total:,}, {peer} {b.n_active:,} of {b.n_total:,}")
    return configs


@benchmark(SHAPE | {"--granularity": ([1, 2, 4, 8], [1, 2])})
def main(report: Report, shape: Options) -> None:
    for precision in shape.precision:
        torch.manual_seed(0)
        configs = {name: ours(shape, e, capacity_factor=None) for name, e in ((OURS_DENSE, 1), (OURS, EXPERTS))}
        others = contenders(shape, configs)
        configs |= {name: config for name, (config, _) in others.items()}
        models = {name: (build_model(config, 0).to(DEVICE), loss_of_the_loop) for name, config in configs.items()}
        loops = {(name, LOOP): by_itself(config, "eager") for name, config in configs.items() if BY_ITSELF in name}
        spent = step_seconds(shape, precision, models | {name: (model, own_loss) for name, model in loops.items()})
        for name, (_, peer) in others.items():
            for key in (peer, LOOP) if (name, LOOP) in spent else (peer,):
                beside = spent | {LOOP: spent.get((name, LOOP))}
                report.add_of(beside, f"train {precision}, {name}", key, BOUND, ours=name)


if __name__ == "__main__":
    main()
