"""Speed of the Switch-MoE against the dense model and against transformers' Mixtral and OLMoE at top-1.

    python benchmarks/model_speed.py [--precision fp32 bf16] [--experts 1 4 8 32] [--threads 2] [--clock wall|cpu]

All contenders live in one process and take turns step by step, so that a slow minute of the machine hits them all;
reported is the median over rounds, and the ratio to the dense model of the same active parameters (E = 1). A training
step is forward and backward with gradients freed in between; decoding is one token per row with a filled cache. The
matmul bound is the time of the step's matrix products alone, at the same shapes and in the same precision.

`--clock cpu` counts the process's CPU time, for machines that others use too (with `--threads 1`).
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import MixtralConfig, MixtralForCausalLM, OlmoeConfig, OlmoeForCausalLM
from transformers.cache_utils import DynamicCache

from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM

PEERS = {"Mixtral": (MixtralConfig, MixtralForCausalLM), "OLMoE": (OlmoeConfig, OlmoeForCausalLM)}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass
class Contender:
    """One model in the race: `run(number of the step)` does one step."""

    name: str
    experts: int
    run: Callable[[int], None]


def ours(shape: argparse.Namespace, experts: int, **changes) -> torch.nn.Module:
    config = SwitchMoeConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.width // 64,
        num_experts=experts,
        max_position_embeddings=shape.length + shape.rounds + 8,
        **changes,
    )
    return SwitchMoeForCausalLM(config)


def peer(name: str, shape: argparse.Namespace, experts: int) -> torch.nn.Module:
    config_class, model_class = PEERS[name]
    config = config_class(
        vocab_size=shape.vocab,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.width // 64,
        num_key_value_heads=shape.width // 64,
        intermediate_size=3 * shape.width,
        num_experts=experts,
        num_experts_per_tok=1,
        max_position_embeddings=shape.length + shape.rounds + 8,
        output_router_logits=True,  # else their router losses are not computed at all
        pad_token_id=None,
    )
    return model_class(config)


def training_step(model: torch.nn.Module, shape: argparse.Namespace, precision: str, **options) -> Callable:
    """Forward and backward over `batch x length` tokens; each step on other tokens."""
    model.train()
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, shape.vocab, (shape.batch, shape.length), generator=generator) for _ in range(4)]

    def run(step: int) -> None:
        model.zero_grad(set_to_none=True)
        tokens = ids[step % len(ids)].to(model.device)
        with autocast(model.device.type, precision):
            loss = model(tokens, labels=tokens, use_cache=False, **options).loss
        loss.backward()

    return run


def decoding_step(
    model: torch.nn.Module, shape: argparse.Namespace, precision: str, implementation: str | None = None
) -> Callable:
    """One new token per row after a prompt of `length` tokens, which the model reads with its own default."""
    model.eval()
    ids = torch.randint(0, shape.vocab, (shape.batch, shape.length), device=model.device)
    cache = DynamicCache(config=model.config)

    @torch.no_grad()
    def run(step: int) -> None:
        with autocast(model.device.type, precision):
            if cache.get_seq_length() == 0:
                model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                if implementation is not None:
                    model.set_experts_implementation(implementation)
            model(ids[:, :1], past_key_values=cache, use_cache=True)

    return run


def autocast(device: str, precision: str):
    return torch.autocast(device, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def matmul_bound(shape: argparse.Namespace, precision: str) -> Callable:
    """The matrix products of a dense training step and nothing else: each weight matrix forward and twice backward."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    rows, d = shape.batch * shape.length, shape.width
    per_block = [(d, d)] * 4 + [(d, 3 * d)] * 2 + [(3 * d, d)]
    products = per_block * shape.layers + [(d, shape.vocab)]
    operands = {
        size: tuple(torch.randn(s, dtype=dtype, device=shape.device) for s in ((rows, size[0]), size, (rows, size[1])))
        for size in set(products)
    }

    def run(step: int) -> None:
        for size in products:
            inputs, weight, outputs = operands[size]
            torch.mm(inputs, weight)
            torch.mm(outputs, weight.t())
            torch.mm(inputs.t(), outputs)

    return run


def training_contenders(shape: argparse.Namespace, precision: str) -> list[Contender]:
    race = [Contender("matmul bound", 1, matmul_bound(shape, precision))]
    for experts in shape.experts:
        model = ours(shape, experts).to(shape.device)
        race.append(Contender("ours", experts, training_step(model, shape, precision)))
        race.append(Contender("ours, no logits", experts, training_step(model, shape, precision, output_logits=False)))
        if experts == 1:
            continue
        dropless = ours(shape, experts, capacity_factor=None).to(shape.device)
        race.append(Contender("ours, dropless", experts, training_step(dropless, shape, precision)))
        for name in PEERS:
            for implementation in ("eager", "grouped_mm"):  # batched_mm would gather the weights for every token
                model = peer(name, shape, experts).to(shape.device)
                model.set_experts_implementation(implementation)
                race.append(Contender(f"{name}, {implementation}", experts, training_step(model, shape, precision)))
    return race


def decoding_contenders(shape: argparse.Namespace, precision: str) -> list[Contender]:
    race = []
    for experts in shape.experts:
        race.append(Contender("ours", experts, decoding_step(ours(shape, experts).to(shape.device), shape, precision)))
        if experts == 1:
            continue
        for name in PEERS:
            for implementation in ("eager", "grouped_mm", "batched_mm"):
                run = decoding_step(peer(name, shape, experts).to(shape.device), shape, precision, implementation)
                race.append(Contender(f"{name}, {implementation}", experts, run))
    return race


def measure(race: list[Contender], shape: argparse.Namespace, title: str) -> dict[tuple[str, int], float]:
    """Median seconds per step of every contender, taking turns."""
    clock = CLOCKS[shape.clock]
    times: dict[tuple[str, int], list[float]] = {(c.name, c.experts): [] for c in race}
    for step in track(range(-shape.warmup, shape.rounds), description=title):
        for contender in race:
            gc.collect() if step == 0 else None
            start = clock()
            contender.run(step)
            if shape.device == "cuda":
                torch.cuda.synchronize()
            if step >= 0:
                times[contender.name, contender.experts].append(clock() - start)
    return {key: statistics.median(values) for key, values in times.items()}


def report(console: Console, title: str, medians: dict[tuple[str, int], float], experts: list[int]) -> None:
    """Rows of contenders, columns of E: milliseconds and the ratio to our dense model."""
    dense = medians["ours", 1]
    table = Table(title=title)
    table.add_column("model")
    for count in experts:
        table.add_column(f"E = {count}", justify="right")
    for name in dict.fromkeys(name for name, _ in medians):
        cells = [medians.get((name, count)) for count in experts]
        table.add_row(name, *(f"{1e3 * cell:.1f} ms  {cell / dense:.2f}x" if cell else "" for cell in cells))
    console.print(table)
    for count in experts:
        others = {n: t for (n, e), t in medians.items() if e == count and n.split(",")[0] in PEERS}
        if others:
            best = min(others, key=others.get)
            console.print(
                f"E = {count}: ours / fastest transformers ({best}) = {medians['ours', count] / others[best]:.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--what", nargs="+", choices=["train", "decode"], default=["train", "decode"])
    parser.add_argument("--experts", nargs="+", type=int, default=[1, 4, 8, 32])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    shape = parser.parse_args()
    if 1 not in shape.experts:
        parser.error("--experts must hold 1, the dense model that the ratios refer to")
    torch.set_num_threads(shape.threads)
    console = Console()
    for precision in shape.precision:
        for what in shape.what:
            contenders = training_contenders if what == "train" else decoding_contenders
            torch.manual_seed(0)
            medians = measure(contenders(shape, precision), shape, f"{what} {precision}")
            size = f"d {shape.width}, {shape.layers} layers, {shape.batch} x {shape.length} tokens, V {shape.vocab}"
            where = f"{shape.device}, {shape.threads} threads, {shape.clock} clock, median of {shape.rounds}"
            report(console, f"{what}, {precision}: {size} ({where})", medians, shape.experts)


if __name__ == "__main__":
    main()
