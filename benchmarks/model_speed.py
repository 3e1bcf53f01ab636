"""Training speed of the Switch-MoE against the dense model and against transformers' Mixtral and OLMoE at top-1.

    python -m benchmarks.model_speed [--precision fp32 bf16] [--experts 1 4 8 32]
    python -m benchmarks.model_speed --precision bf16 --width 1024 --layers 16 --batch 64 --length 512 \
        --vocab 50257 --experts 1 8 32 --peers --compile          # one GPU, the paper's shapes

All contenders live in one process and take turns step by step, so that a slow minute of the machine hits them all;
reported is the median over rounds. A step is forward and backward with gradients freed in between. Peers are the
fastest of transformers, our dense model of the same active parameters (E = 1), and our plain loop over the experts.
Bound: the dense step's matrix products alone, at the same shapes and in the same precision (a Switch model multiplies
as much as the dense one). Decoding has no code of ours to measure: transformers computes the experts.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import torch
from transformers import MixtralConfig, MixtralForCausalLM, OlmoeConfig, OlmoeForCausalLM

from benchmarks.report import Report, in_turns, parse
from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM

PEERS = {"Mixtral": (MixtralConfig, MixtralForCausalLM), "OLMoE": (OlmoeConfig, OlmoeForCausalLM)}
MATMUL = "matmul bound"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Race = dict[tuple[str, int], Callable[[], object]]  # steps by name and E
SHAPE = (  # options of a training step, of `benchmarks.classes` too
    ("--width", {"type": int, "default": 256}),
    ("--layers", {"type": int, "default": 4}),
    ("--batch", {"type": int, "default": 8}),
    ("--length", {"type": int, "default": 256}),
    ("--vocab", {"type": int, "default": 4096}),
    ("--rounds", {"type": int, "default": 5, "help": "steps measured"}),
)


def ours(shape: argparse.Namespace, experts: int, **changes) -> torch.nn.Module:
    config = SwitchMoeConfig(num_experts=experts, **sizes(shape), **changes)
    return finished(SwitchMoeForCausalLM(config), shape)


def peer(name: str, shape: argparse.Namespace, experts: int) -> torch.nn.Module:
    config_class, model_class = PEERS[name]
    config = config_class(
        num_key_value_heads=shape.width // 64,
        intermediate_size=3 * shape.width,
        num_experts=experts,
        num_experts_per_tok=1,
        output_router_logits=True,  # else their router losses are not computed at all
        pad_token_id=None,
        **sizes(shape),
    )
    return finished(model_class(config), shape)


def sizes(shape: argparse.Namespace) -> dict[str, int]:
    return {
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.width // 64,
        "max_position_embeddings": shape.length,
    }


def finished(model: torch.nn.Module, shape: argparse.Namespace) -> torch.nn.Module:
    model = model.to(DEVICE)
    if shape.compile:
        model.compile()
    return model


def own_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """As any user of the class gets it."""
    return model(tokens, labels=tokens, use_cache=False).loss


def training_step(
    model: torch.nn.Module,
    shape: argparse.Namespace,
    precision: str,
    loss_of: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor] = own_loss,
) -> Callable[[], None]:
    """Forward and backward over `batch x length` tokens; each step on other tokens."""
    model.train()
    generator = torch.Generator().manual_seed(0)
    size = (shape.batch, shape.length)
    ids = itertools.cycle([torch.randint(0, shape.vocab, size, generator=generator) for _ in range(4)])

    def run() -> None:
        model.zero_grad(set_to_none=True)
        tokens = next(ids).to(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(model, tokens)
        loss.backward()
        finish()

    return run


def finish() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def matmul_bound(shape: argparse.Namespace, precision: str) -> Callable[[], None]:
    """The matrix products of a dense training step and nothing else: each weight matrix forward and twice backward."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    rows, d = shape.batch * shape.length, shape.width
    per_block = [(d, d)] * 4 + [(d, 3 * d)] * 2 + [(3 * d, d)]
    products = per_block * shape.layers + [(d, shape.vocab)]
    operands = {
        size: tuple(torch.randn(s, dtype=dtype, device=DEVICE) for s in ((rows, size[0]), size, (rows, size[1])))
        for size in set(products)
    }

    def run() -> None:
        for size in products:
            inputs, weight, outputs = operands[size]
            torch.mm(inputs, weight)
            torch.mm(outputs, weight.t())
            torch.mm(inputs.t(), outputs)
        finish()

    return run


def training_race(shape: argparse.Namespace, precision: str) -> Race:
    race = {(MATMUL, 1): matmul_bound(shape, precision)}
    for experts in shape.experts:
        race["ours", experts] = training_step(ours(shape, experts), shape, precision)
        if experts == 1:
            continue
        race["ours, dropless", experts] = training_step(ours(shape, experts, capacity_factor=None), shape, precision)
        loop = ours(shape, experts)
        loop.set_experts_implementation("eager")
        race["ours, eager", experts] = training_step(loop, shape, precision)
        for name in shape.peers:
            for implementation in ("eager", "grouped_mm"):  # batched_mm would gather the weights for every token
                model = peer(name, shape, experts)
                model.set_experts_implementation(implementation)
                race[f"{name}, {implementation}", experts] = training_step(model, shape, precision)
    return race


def add_rows(report: Report, title: str, spent: dict[tuple[str, int], float], experts: list[int]) -> None:
    bound = ("the matrix products alone", spent[MATMUL, 1])
    for count in experts:
        name, ours = f"{title}, E = {count}", spent["ours", count]
        others = {name: value for (name, e), value in spent.items() if e == count and name.split(",")[0] in PEERS}
        best = min(others, key=others.__getitem__, default=None)
        peer = (f"fastest of transformers: {best}", others[best]) if best else None
        report.add(name, ours, "s", peer=peer, bound=bound)
        if count > 1:
            report.add(name, ours, "s", peer=("our dense model (E = 1)", spent["ours", 1]), bound=bound)
            loop = ("our plain loop over the experts (eager)", spent["ours, eager", count])
            report.add(name, ours, "s", peer=loop, bound=bound)
            report.add(f"{name}, dropless", spent["ours, dropless", count], "s", peer=peer, bound=bound)


def main() -> None:
    shape = parse(
        __doc__,
        ("--precision", {"nargs": "+", "choices": ["fp32", "bf16"], "default": ["fp32", "bf16"]}),
        ("--experts", {"nargs": "+", "type": int, "default": [1, 8, 32]}),
        *SHAPE,
        ("--peers", {"nargs": "*", "choices": list(PEERS), "default": list(PEERS), "help": "transformers models"}),
        ("--compile", {"action": "store_true", "help": "torch.compile every model"}),
        fast={"experts": [1, 4], "width": 64, "layers": 1, "length": 32, "batch": 2, "vocab": 512, "rounds": 1},
    )
    if 1 not in shape.experts:
        raise SystemExit("--experts must hold 1, the dense model that the ratios refer to")
    report = Report("model_speed", shape)
    for precision in shape.precision:
        torch.manual_seed(0)
        spent = in_turns(training_race(shape, precision), shape.rounds)
        add_rows(report, f"train {precision}", spent, shape.experts)
    report.finish()


if __name__ == "__main__":
    main()
