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
PEER, BOUND = "torch.optim.Muon, matrix by matrix", "its iterations alone"


def experts(options: Options, shape: str) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """Stacked down projections, and pairs of gate and up, of all layers; with gradients."""
    d_model, width = map(int, shape.split("x"))
    torch.manual_seed(0)
    downs, pairs = (
        [torch.nn.Parameter(torch.randn(options.experts, *size, device=DEVICE)) for _ in range(options.layers)]
        for size in ((d_model, width), (2 * width, d_model))
    )
    for parameter in (*downs, *pairs):
        parameter.grad = torch.randn_like(parameter)
    return downs, pairs


def one_by_one(parameters: list[torch.nn.Parameter], parts: int) -> list[torch.nn.Parameter]:
    """Copies of the same matrices, of which each expert has so many parts, as parameters of their own."""
    matrices = []
    for parameter in parameters:
        views = (t.flatten(0, 1).chunk(len(t) * parts) for t in (parameter.detach(), parameter.grad))
        for weights, gradient in zip(*views, strict=True):
            matrices.append(torch.nn.Parameter(weights.clone()))
            matrices[-1].grad = gradient.clone()
    return matrices


def iterations(options: Options, shape: str, settings: dict[str, Any]) -> None:
    """Those of all matrices, a layer at a time."""
    least, most = sorted(map(int, shape.split("x")))
    directions = torch.ones(3 * options.experts, least, most, dtype=torch.bfloat16, device=DEVICE)
    for _ in range(options.layers):
        orthogonalise(directions, settings["ns_coefficients"], settings["ns_steps"], settings["eps"])
    finish(DEVICE)


@benchmark(
    {
        "--experts": (64, 4),
        "--layers": (16, 2),
        "--shapes": (["64x32", "128x64", "256x64"], ["32x16"], "d_model × width of an expert"),
        "--rounds": (5, 1, "steps measured"),
    }
)
def main(report: Report, options: Options) -> None:
    a = OptimizerArguments(name="muon")
    settings = {"weight_decay": a.weight_decay, "momentum": a.muon_momentum, "adjust_lr_fn": a.muon_adjust_lr}
    for shape in options.shapes:
        downs, pairs = experts(options, shape)
        matrices = one_by_one(downs, 1) + one_by_one(pairs, 2)
        ours, theirs = StackedMuon(downs, pairs, **settings), torch.optim.Muon(matrices, lr=RATE, **settings)
        set_rates([ours], RATE, 1.0)

        def step(optimizer: torch.optim.Optimizer) -> None:
            optimizer.step()
            finish(DEVICE)

        works = {
            "ours": partial(step, ours),
            PEER: partial(step, theirs),
            BOUND: partial(iterations, options, shape, theirs.defaults),
        }
        spent = in_turns(works, options.rounds)
        ends = [torch.cat([matrix.flatten() for matrix in of]) for of in ((*downs, *pairs), matrices)]
        name = f"a step of {options.layers} × {options.experts} experts of {shape}"
        note = f"{len(matrices):,} matrices; {'the same' if torch.equal(*ends) else 'OTHER'} weights after it"
        report.add_of(spent, name, PEER, BOUND, note=note)


if __name__ == "__main__":
    main()
