"""A step of Muon over stacked experts, beside torch's Muon over the same matrices one by one.

    python -m benchmarks.muon [--experts 64] [--layers 16] [--shapes 64x32 128x64 256x64]

A shape is d_model × width of an expert, which has a gate, an up and a down projection. Both optimizers have the same
matrices and gradients, take turns in one process, and end with the same weights. Bound: the Newton-Schulz iterations.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.model_speed import DEVICE
from benchmarks.report import Options, Report, benchmark, in_turns
from training.configuration.arguments import OptimizerArguments
from training.run.optimizers import StackedMuon, orthogonalise, set_rates
from training.run.timing import finish

RATE = 1e-6
PEER = "torch.optim.Muon, matrix by matrix"
BOUND = "its iterations alone"


def experts(options: Options, shape: str) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """Draw stacked down projections, and pairs of gate and up, of all layers; with gradients."""
    d_model, width = map(int, shape.split("x"))
    torch.manual_seed(0)

    def draw(*size: int) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(torch.randn(options.experts, *size, device=DEVICE)) for _ in range(options.layers)]

    downs = draw(d_model, width)
    pairs = draw(2 * width, d_model)
    for parameter in (*downs, *pairs):
        parameter.grad = torch.randn_like(parameter)
    return downs, pairs


def one_by_one(parameters: list[torch.nn.Parameter], matrices_per_expert: int) -> list[torch.nn.Parameter]:
    """Copy the same matrices as parameters of their own."""
    matrices = []
    for parameter in parameters:
        count = len(parameter) * matrices_per_expert
        weights = parameter.detach().flatten(0, 1).chunk(count)
        gradients = parameter.grad.flatten(0, 1).chunk(count)
        for weight, gradient in zip(weights, gradients, strict=True):
            matrix = torch.nn.Parameter(weight.clone())
            matrix.grad = gradient.clone()
            matrices.append(matrix)
    return matrices


def iterate(options: Options, shape: str, settings: dict[str, Any]) -> None:
    """Make the iterations of all matrices, a layer at a time."""
    least, most = sorted(map(int, shape.split("x")))
    directions = torch.ones(3 * options.experts, least, most, dtype=torch.bfloat16, device=DEVICE)
    for _ in range(options.layers):
        orthogonalise(directions, settings["ns_coefficients"], settings["ns_steps"], settings["eps"])
    finish(DEVICE)


def step(optimizer: torch.optim.Optimizer) -> None:
    """Make a step and wait for it."""
    optimizer.step()
    finish(DEVICE)


def compare(report: Report, options: Options, shape: str) -> None:
    """Add the row of a shape."""
    a = OptimizerArguments(name="muon")
    settings = {"weight_decay": a.weight_decay, "momentum": a.muon_momentum, "adjust_lr_fn": a.muon_adjust_lr}
    downs, pairs = experts(options, shape)
    matrices = one_by_one(downs, 1) + one_by_one(pairs, 2)
    ours = StackedMuon(downs, pairs, **settings)
    theirs = torch.optim.Muon(matrices, lr=RATE, **settings)
    set_rates([ours], RATE, 1.0)
    works = {
        "ours": partial(step, ours),
        PEER: partial(step, theirs),
        BOUND: partial(iterate, options, shape, theirs.defaults),
    }
    seconds = in_turns(works, options.rounds)
    name = f"a step of {options.layers} × {options.experts} experts of {shape}"
    verdict = "the same" if torch.equal(_flat([*downs, *pairs]), _flat(matrices)) else "OTHER"
    report.add_of(seconds, name, PEER, BOUND, note=f"{len(matrices):,} matrices; {verdict} weights after it")


def _flat(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in parameters])


@benchmark(
    {
        "--experts": (64, 4),
        "--layers": (16, 2),
        "--shapes": (["64x32", "128x64", "256x64"], ["32x16"], "d_model × width of an expert"),
        "--rounds": (5, 1, "steps measured"),
    }
)
def main(report: Report, options: Options) -> None:
    for shape in options.shapes:
        compare(report, options, shape)


if __name__ == "__main__":
    main()
