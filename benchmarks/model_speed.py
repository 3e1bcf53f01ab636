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

import copy
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.report import Options, Report, benchmark, in_turns
from modeling_switch_moe import SwitchMoeConfig
from scaling_law.size.model_configs import FAMILIES
from training.configuration.model_classes import ModelClassArguments
from training.run.model import build_model
from training.run.timing import finish

PEERS = {"Mixtral": "mixtral", "OLMoE": "olmoe"}
BOUND = "the matrix products alone"
FASTEST = "fastest of transformers: "
OUR_DENSE = "our dense model (E = 1)"
LOOP = "our plain loop over the experts (eager)"
Loss = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Options of a training step.
SHAPE: dict[str, tuple] = {
    "--precision": (("fp32", "bf16"), ["fp32", "bf16"]),
    "--width": (256, 64),
    "--layers": (4, 1),
    "--batch": (8, 2),
    "--length": (256, 32),
    "--vocab": (4096, 512),
    "--rounds": (5, 1, "steps measured"),
}


def ours(shape: Options, experts: int, **changes: Any) -> SwitchMoeConfig:
    """Return our configuration of a shape."""
    return SwitchMoeConfig(
        num_experts=experts,
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.width // 64,
        max_position_embeddings=shape.length,
        **changes,
    )


def fields_of(kind: str, shape: Options, experts: int, granularity: int = 1, shared: int = 0) -> dict[str, Any]:
    """Return a class of transformers with as many parameters as ours, by the names of its own fields.

    Experts are 1 / `granularity` of ours in width, `granularity` of them active; `shared` of these are for all tokens.
    """
    family = FAMILIES[kind]["architecture"]
    heads = shape.width // 64
    inner_width = 3 * shape.width // granularity
    fields: dict[str, Any] = {
        "type": kind,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        family["d_expert"]: inner_width,
    }
    if "head_dim" in FAMILIES[kind]["defaults"]:
        fields["head_dim"] = 64
    if "experts" in family:
        fields[family["experts"]] = experts - shared
        fields["num_experts_per_tok"] = granularity - shared
        if shared:
            fields["shared_expert_intermediate_size"] = inner_width
    return fields


def config_of(fields: dict[str, Any], shape: Options) -> Any:
    """Return the configuration of a class with these fields."""
    return ModelClassArguments.model_validate(fields).config(shape.vocab, shape.length, 0)


def by_itself(config: Any, experts: str = "auto") -> torch.nn.Module:
    """Build the class as any user has it, with its own losses, which transformers computes only if asked."""
    if isinstance(config, SwitchMoeConfig):
        model = build_model(config, 0)
    else:
        config = copy.deepcopy(config)
        config.output_router_logits = True
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if experts != "auto":
        model.set_experts_implementation(experts)
    return model.to(DEVICE)


def own_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Compute the loss as any user of the class gets it."""
    return model(tokens, labels=tokens, use_cache=False).loss


def step_seconds(shape: Options, precision: str, models: dict[Any, tuple[torch.nn.Module, Loss]]) -> dict[Any, float]:
    """Measure forward and backward over `batch x length` tokens of each model with its loss, and the bound.

    Each step is on other tokens.
    """
    generator = torch.Generator().manual_seed(0)
    size = (4, shape.batch, shape.length)
    ids = itertools.cycle(torch.randint(shape.vocab, size, generator=generator))

    def step(model: torch.nn.Module, loss_of: Loss) -> None:
        model.zero_grad(set_to_none=True)
        tokens = next(ids).to(DEVICE)
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(model, tokens)
        loss.backward()
        finish(DEVICE)

    works: dict[Any, Callable[[], object]] = {BOUND: matmul_bound(shape, precision)}
    for name, (model, loss_of) in models.items():
        model.train()
        works[name] = partial(step, model, loss_of)
    return in_turns(works, shape.rounds)


def matmul_bound(shape: Options, precision: str) -> Callable[[], None]:
    """Return the matrix products of a dense training step alone: each weight matrix forward and twice backward.

    The vocabulary is rounded up to a multiple of 128: a GPU multiplies rows that are not aligned several times slower.
    """
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    rows = shape.batch * shape.length
    d = shape.width
    per_block = [(d, d)] * 4 + [(d, 3 * d)] * 2 + [(3 * d, d)]
    products = per_block * shape.layers + [(d, math.ceil(shape.vocab / 128) * 128)]
    operands = {}
    for n_in, n_out in set(products):
        inputs = torch.randn((rows, n_in), dtype=dtype, device=DEVICE)
        weight = torch.randn((n_in, n_out), dtype=dtype, device=DEVICE)
        outputs = torch.randn((rows, n_out), dtype=dtype, device=DEVICE)
        operands[n_in, n_out] = (inputs, weight, outputs)

    def run() -> None:
        for size in products:
            inputs, weight, outputs = operands[size]
            torch.mm(inputs, weight)
            torch.mm(outputs, weight.t())
            torch.mm(inputs.t(), outputs)
        finish(DEVICE)

    return run


def contenders(shape: Options, experts: int) -> dict[str, torch.nn.Module]:
    """Build models of one E, by what they are called in a row; ours first."""
    models = {"ours": by_itself(ours(shape, experts))}
    if experts > 1:
        models["dropless"] = by_itself(ours(shape, experts, capacity_factor=None))
        models[LOOP] = by_itself(ours(shape, experts), "eager")
        # batched_mm is left out: it gathers weights for every token.
        for name, implementation in itertools.product(shape.peers, ("eager", "grouped_mm")):
            config = config_of(fields_of(PEERS[name], shape, experts), shape)
            models[f"{FASTEST}{name}, {implementation}"] = by_itself(config, implementation)
    if shape.compile:
        for model in models.values():
            model.compile()
    return models


@benchmark(
    {
        **SHAPE,
        "--experts": ([1, 8, 32], [1, 4]),
        "--peers": (tuple(PEERS), list(PEERS), "transformers models"),
        "--compile": (False, False, "torch.compile every model"),
    }
)
def main(report: Report, shape: Options) -> None:
    if 1 not in shape.experts:
        raise SystemExit("--experts must hold 1, the dense model that the ratios refer to")
    for precision in shape.precision:
        torch.manual_seed(0)
        models = {}
        for experts in shape.experts:
            for name, model in contenders(shape, experts).items():
                models[experts, name] = (model, own_loss)
        times = step_seconds(shape, precision, models)
        for experts in shape.experts:
            times_of_experts = {BOUND: times[BOUND], OUR_DENSE: times[1, "ours"]}
            for model_experts, name in models:
                if model_experts == experts:
                    times_of_experts[name] = times[experts, name]
            add_rows(report, f"train {precision}, E = {experts}", times_of_experts)


def add_rows(report: Report, title: str, times: dict[str, float]) -> None:
    """Add the rows of one E and precision beside each peer."""
    # A dense model has no peers.
    if "dropless" not in times:
        report.add_of(times, title, "", BOUND)
        return
    transformers_names = [name for name in times if name.startswith(FASTEST)]
    fastest = min(transformers_names, key=times.__getitem__, default="")
    for peer in (fastest, OUR_DENSE, LOOP):
        report.add_of(times, title, peer, BOUND)
    report.add_of(times, f"{title}, dropless", fastest, BOUND, "dropless")


if __name__ == "__main__":
    main()
