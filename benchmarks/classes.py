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

import argparse
import copy
import itertools
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.model_speed import DEVICE, SHAPE, matmul_bound, training_step
from benchmarks.report import Report, in_turns, parse
from hub.base.errors import InputError
from modeling_switch_moe import SwitchMoeConfig
from scaling_law.size.model_configs import FAMILIES, read_model
from training.configuration.model_classes import ModelClassArguments
from training.run.model import build_model

DENSE, ROUTED, SHARED = ("llama", "qwen3", "olmo2"), ("qwen3_moe", "olmoe", "mixtral"), "qwen2_moe"
EXPERTS, BALANCE = 8, 0.01
BY_ITSELF, LOOP = "qwen3_moe", "the class by itself, its loop over experts"
MATMUL, OURS_DENSE, OURS = "matmul bound", "ours, E = 1", f"ours, E = {EXPERTS}"


def ours(shape: argparse.Namespace, experts: int) -> Any:
    return SwitchMoeConfig(
        num_experts=experts,
        capacity_factor=None,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.width // 64,
        **{"vocab_size": shape.vocab, "max_position_embeddings": shape.length},
    )


def of_a_class(kind: str, shape: argparse.Namespace, granularity: int = 1) -> Any:
    """The configuration of a class, by the names of its own fields; `SHARED` has one of its G experts shared."""
    family, heads = FAMILIES[kind]["architecture"], shape.width // 64
    fields: dict[str, Any] = {
        **{"type": kind, "hidden_size": shape.width, "num_hidden_layers": shape.layers},
        **{
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            family["d_expert"]: 3 * shape.width // granularity,
        },
    }
    if "head_dim" in FAMILIES[kind]["defaults"]:
        fields["head_dim"] = 64
    if "experts" in family:
        shared = kind == SHARED
        fields |= {family["experts"]: EXPERTS * granularity - shared, "num_experts_per_tok": granularity - shared}
        fields |= {"shared_expert_intermediate_size": 3 * shape.width // granularity} if shared else {}
    return ModelClassArguments.model_validate(fields).config(shape.vocab, shape.length, 0)


def loss_of_the_loop(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """As train.py computes it."""
    out = model(input_ids=tokens, shift_labels=tokens.roll(-1, 1), use_cache=False, output_logits=False)
    return out.lm_loss + BALANCE * out.balance_loss


def by_itself(config: Any) -> torch.nn.Module:
    """The class as transformers makes it, with its load-balancing loss."""
    config = copy.deepcopy(config)
    config.output_router_logits = True
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.set_experts_implementation("eager")
    return model.to(DEVICE)


def contenders(shape: argparse.Namespace) -> dict[str, tuple[Any, str]]:
    """Name → (configuration, which of ours has as many parameters). ValueError for one that has others."""
    found = {kind: (of_a_class(kind, shape), OURS_DENSE) for kind in DENSE}
    for g, kind in itertools.product(shape.granularity, ROUTED):
        found[f"{kind}, top-{g} of {EXPERTS * g}"] = of_a_class(kind, shape, g), OURS
    for g in (g for g in shape.granularity if g > 1):
        name = f"{SHARED}, 1 shared and top-{g - 1} of {EXPERTS * g - 1}"
        found[name] = of_a_class(SHARED, shape, g), OURS
    of_ours = {name: read_model(ours(shape, e)).architecture for name, e in ((OURS_DENSE, 1), (OURS, EXPERTS))}
    for name, (config, peer) in found.items():
        a, b = read_model(config).architecture, of_ours[peer]
        if (a.n_active, a.n_total) != (b.n_active, b.n_total):
            raise InputError(f"{name}: {a.n_active:,} active of {a.n_total:,}, {peer} {b.n_active:,} of {b.n_total:,}")
    return found


def main() -> None:
    shape = parse(
        __doc__,
        ("--precision", {"nargs": "+", "choices": ["fp32", "bf16"], "default": ["fp32", "bf16"]}),
        ("--granularity", {"nargs": "+", "type": int, "default": [1, 2, 4, 8]}),
        *SHAPE,
        fast={"granularity": [1, 2], "width": 64, "layers": 1, "length": 32, "batch": 2, "vocab": 512, "rounds": 1},
    )
    report = Report("classes", shape)
    for precision in shape.precision:
        torch.manual_seed(0)
        found = contenders(shape)
        configs = {OURS_DENSE: ours(shape, 1), OURS: ours(shape, EXPERTS), **{n: c for n, (c, _) in found.items()}}
        models = {name: build_model(config, 0).to(DEVICE) for name, config in configs.items()}
        race = {MATMUL: matmul_bound(shape, precision)}
        race |= {name: training_step(model, shape, precision, loss_of_the_loop) for name, model in models.items()}
        loops = {name: by_itself(config) for name, (config, _) in found.items() if name.startswith(BY_ITSELF)}
        race |= {f"{name}, {LOOP}": training_step(model, shape, precision) for name, model in loops.items()}
        spent = in_turns(race, shape.rounds)
        bound = ("the matrix products alone", spent[MATMUL])
        for name, (_, peer) in found.items():
            report.add(f"train {precision}, {name}", spent[name], "s", peer=(peer, spent[peer]), bound=bound)
            if name in loops:
                loop = (LOOP, spent[f"{name}, {LOOP}"])
                report.add(f"train {precision}, {name}", spent[name], "s", peer=loop, bound=bound)
    report.finish()


if __name__ == "__main__":
    main()
