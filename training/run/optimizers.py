"""The optimizers of a run: AdamW for all parameters, or Muon for the hidden matrices and AdamW for the rest.

Muon (Jordan et al. 2024; torch.optim.Muon) orthogonalises the momentum of each matrix. Its rate is scaled by the
matrix's shape so that updates are as large as AdamW's (Liu et al. 2025, arXiv 2502.16982), whose rate it then shares.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from training.configuration.arguments import OptimizerArguments
from training.run import causal_model

_PAIR, _DOWN = "gate_up_proj", "down_proj"
_PARTS = "matrices_of_rows"  # of a group: how many matrices lie above one another in each of its own


class StackedMuon(torch.optim.Muon):
    """Muon for matrices [out, in] and for experts that are stacked, [E, out, in]: each expert is a matrix of its own.

    torch's Muon takes 2-D parameters only, so it is handed views of each matrix; state and checkpoint keep the
    parameters' shapes. Gate and up projections that share a parameter, [E, 2 · width, in], are two matrices each, as
    in a class that keeps them apart: a dense model and an MoE are then updated alike.
    """

    def __init__(self, matrices: Iterable[Tensor], gate_ups: Iterable[Tensor], **settings: float | str):
        matrices = list(matrices)
        flat = [matrix for matrix in matrices if matrix.ndim == 2]
        super().__init__([{"params": flat, _PARTS: 1}], lr=0.0, **settings)  # type: ignore[arg-type]
        for parameters, parts in (([p for p in matrices if p.ndim > 2], 1), (list(gate_ups), 2)):
            if parameters:
                self.add_param_group({"params": parameters, _PARTS: parts})

    def _init_group(
        self,
        group: MutableMapping,
        params_with_grad: list[Tensor],
        grads: list[Tensor],
        muon_momentum_bufs: list[Tensor],
    ) -> bool:
        whole: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
        has_complex = super()._init_group(group, *whole)
        for matrices, tensors in zip((params_with_grad, grads, muon_momentum_bufs), whole, strict=True):
            for tensor in tensors:
                rows, columns = tensor.shape[-2:]
                matrices += tensor.view(-1, rows // group[_PARTS], columns).unbind(0)
        return has_complex


def build_optimizers(
    model: nn.Module, arguments: OptimizerArguments, device: torch.device
) -> list[torch.optim.Optimizer]:
    """Build AdamW over fp32 weights, preceded by Muon if configured. The loop sets their rates at every step.

    All is decayed, as in the paper's runs, or (`decay_all` false) only matrices that are no router.
    """
    matrices, gate_ups = hidden_matrices(model) if arguments.name == "muon" else ([], [])
    by_muon = {*matrices, *gate_ups}
    momentum, shape_scale = arguments.muon_momentum, arguments.muon_adjust_lr
    settings = {"weight_decay": arguments.weight_decay, "momentum": momentum, "adjust_lr_fn": shape_scale}
    muon = [StackedMuon(matrices, gate_ups, **settings)] if by_muon else []
    decayed, exempt = [], []
    routing = _routing(model)
    for parameter in model.parameters():
        if parameter in by_muon:
            continue
        is_exempt = not arguments.decay_all and (parameter.ndim < 2 or parameter in routing)
        (exempt if is_exempt else decayed).append(parameter)
    groups = [(decayed, arguments.weight_decay), (exempt, 0.0)]
    adamw = torch.optim.AdamW(
        [{"params": parameters, "weight_decay": decay} for parameters, decay in groups if parameters],
        lr=0.0,
        betas=(arguments.beta1, arguments.beta2),
        eps=arguments.epsilon,
        fused=device.type in {"cuda", "cpu"},
    )
    return [*muon, adamw]


def hidden_matrices(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """What Muon updates: matrices of attention and feed-forward, and those that hold a gate and an up projection.

    Not embeddings, the head, routers, gates of one row, norms and biases (those of experts are stacked). Matrices that
    a class fuses otherwise or stores transposed (gate and up of gpt-oss and Llama 4) are taken whole.
    """
    ends = [part for part in model.modules() if isinstance(part, nn.Embedding)] + [model.get_output_embeddings()]
    left_out = _routing(model) | {parameter for part in ends for parameter in part.parameters()}
    named = dict(model.named_parameters())
    matrices, gate_ups = [], []
    for name, parameter in named.items():
        is_matrix = parameter.ndim in (2, 3) and min(parameter.shape[-2:]) > 1 and not name.endswith("bias")
        if parameter in left_out or not is_matrix:
            continue
        is_pair = False
        if name.removesuffix(".weight").endswith(_PAIR):
            # Gate and up may be stacked by rows: [2 · width, in], with down [in, width].
            *_, rows, width = named[name.replace(_PAIR, _DOWN)].shape
            is_pair = parameter.shape[-2:] == (2 * width, rows)
        (gate_ups if is_pair else matrices).append(parameter)
    return matrices, gate_ups


def set_rates(optimizers: Iterable[Any], rate: float, muon_share: float) -> None:
    """AdamW's learning rate, and `muon_share` of it as Muon's."""
    for optimizer in optimizers:
        share = muon_share if "momentum" in optimizer.defaults else 1.0
        for group in optimizer.param_groups:
            group["lr"] = rate * share


def muon_rate(arguments: OptimizerArguments, peak: float) -> float:
    """Muon's peak rate: its own, or AdamW's `peak`."""
    return arguments.muon_learning_rate or peak


def _routing(model: nn.Module) -> set[Tensor]:
    return {parameter for router in causal_model.routers(model) for parameter in router.parameters()}
