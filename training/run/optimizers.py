"""The optimizers of a run: AdamW for all parameters, or Muon for the hidden matrices and AdamW for the rest.

Muon (Jordan et al. 2024; torch.optim.Muon) orthogonalises the momentum of each matrix. Its rate is scaled by the
matrix's shape so that updates are as large as AdamW's (Liu et al. 2025, arXiv 2502.16982), whose rate it then shares.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from transformers import PreTrainedModel

from hub.base.types import Fields
from training.configuration.arguments import OptimizerArguments
from training.run import causal_model

_PAIR = "gate_up_proj"
_DOWN = "down_proj"
# Key of a group: how many matrices lie above one another in each of its parameters.
_PARTS = "matrices_of_rows"
# Numbers in bf16 that stay in the caches of a CPU.
_CACHED = 2**20


class StackedMuon(torch.optim.Muon):
    """Muon for matrices [out, in] and for experts that are stacked, [E, out, in]: each expert is a matrix of its own.

    Equal matrices are orthogonalised together, with the bits of `torch.optim.Muon`, which takes 2-D parameters one by
    one; state and checkpoint keep the parameters' shapes. Gate and up projections that share a parameter,
    [E, 2 · width, in], are two matrices each, as in a class that keeps them apart: a dense model and an MoE are then
    updated alike.

    Of sharded parameters (FSDP2) each process updates its share: it orthogonalises the experts that it holds, and
    gathers matrices that are cut, in bf16, in which the iteration runs anyway.

    As torch's fused AdamW it divides gradients by `grad_scale`, and a step changes nothing where `found_inf` is 1.
    Both are on the device, so the host need not know them.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, matrices: Iterable[Tensor], gate_ups: Iterable[Tensor], **settings: float | str):
        matrices = list(matrices)
        flat = [matrix for matrix in matrices if matrix.ndim == 2]
        super().__init__([{"params": flat, _PARTS: 1}], lr=0.0, **settings)  # type: ignore[arg-type]
        stacked = [matrix for matrix in matrices if matrix.ndim > 2]
        for parameters, matrices_of_rows in ((stacked, 1), (list(gate_ups), 2)):
            if parameters:
                self.add_param_group({"params": parameters, _PARTS: matrices_of_rows})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # overloads
        """Update every parameter that has a gradient."""
        skips = None if self.found_inf is None else self.found_inf > 0
        for group in self.param_groups:
            tensors: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
            self._init_group(group, *tensors)
            batches: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for weights, directions in _directions(zip(*tensors, strict=True), group, self.grad_scale, skips):
                batch = batches[directions.shape[1:]]
                batch.append((weights, directions))
                if sum(stack.numel() for _, stack in batch) >= _most_together(directions.device):
                    _update(batch, group, skips)
                    batch.clear()
            for batch in filter(None, batches.values()):
                _update(batch, group, skips)


def _directions(
    tensors: Iterable[tuple[Tensor, ...]], group: Fields, scale: Tensor | None, skips: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Advance the momenta of (parameter, gradient, momentum); yields weights and their directions, bf16 [n, out, in].

    The weights are a few matrices of this process or, where matrices are cut, the sharded parameter.
    """

    def direction(gradient: Tensor, momentum: Tensor) -> Tensor:
        if scale is not None:
            gradient = gradient / scale
        if skips is not None:
            # Moved towards itself, the momentum stays as it is.
            gradient = torch.where(skips, momentum, gradient)
        momentum.lerp_(gradient, 1 - group["momentum"])
        return (gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum).bfloat16()

    for parameter, gradient, momentum in tensors:
        rows = parameter.shape[-2] // group[_PARTS]
        columns = parameter.shape[-1]
        # Single matrices may be cut, and not only a stack of them.
        if isinstance(parameter, DTensor) and any(
            getattr(placement, "dim", 0) >= parameter.ndim - 2 for placement in parameter.placements
        ):
            share = DTensor.from_local(
                direction(_share(gradient), _share(momentum)),
                parameter.device_mesh,
                parameter.placements,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
            yield parameter, share.full_tensor().view(-1, rows, columns)
            continue
        shares = [_share(tensor).view(-1, rows, columns) for tensor in (parameter, gradient, momentum)]
        number = max(1, _most_together(shares[0].device) // (rows * columns))
        pieces = [share.split(number) for share in shares]
        for weights, gradients, momenta in zip(*pieces, strict=True):
            yield weights, direction(gradients, momenta)


def _update(batch: list[tuple[Tensor, Tensor]], group: Fields, skips: Tensor | None) -> None:
    """Decay weights, and move them along their orthogonalised directions, which are all of one shape.

    Where `skips` is true, on the device, they stay.
    """
    rate = group["lr"]
    sizes = [len(directions) for _, directions in batch]
    stack = torch.cat([directions for _, directions in batch])
    updates = orthogonalise(stack, group["ns_coefficients"], group["ns_steps"], group["eps"])
    adjusted_rate = rate * _scale_of_shape(group["adjust_lr_fn"], *updates.shape[1:])
    for (weights, _), flat_update in zip(batch, updates.split(sizes), strict=True):
        update = flat_update.reshape(weights.shape)
        # Every process has the whole update, and takes its share.
        if isinstance(weights, DTensor):
            mesh = weights.device_mesh
            replicated = DTensor.from_local(update, mesh, [Replicate()] * mesh.ndim)
            update = replicated.redistribute(placements=weights.placements)
        share = _share(weights)
        updated = share if skips is None else share.clone()
        updated.mul_(1 - rate * group["weight_decay"])
        updated.add_(_share(update), alpha=-adjusted_rate)
        if skips is not None:
            share.copy_(torch.where(skips, share, updated))


def _scale_of_shape(adjustment: str, rows: int, columns: int) -> float:
    """Return the factor of Muon's rate for matrices of this shape, as in torch.optim.Muon."""
    if adjustment == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


def orthogonalise(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, epsilon: float) -> Tensor:
    """Iterate by Newton-Schulz (Jordan et al. 2024) on bf16 `[n, out, in]`, in the order of operations of torch's.

    Equal to torch's to the bit, except that below 8 × 8 a CPU sums small products in another order.
    """
    a, b, c = coefficients
    # Tall matrices are iterated from their short side, which torch transposes for.
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices / torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True).clamp(min=epsilon)
    for _ in range(steps):
        gram = torch.bmm(x.mT, x) if is_tall else torch.bmm(x, x.mT)
        # It is symmetric, as the Gram matrix is.
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factors = (x, polynomial) if is_tall else (polynomial, x)
        x = torch.baddbmm(x, *factors, beta=a)
    return x


def _share(tensor: Tensor) -> Tensor:
    """Return the share of a tensor that this process holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _most_together(device: torch.device) -> int:
    """Return how many numbers of equal matrices are orthogonalised at once: a CPU's caches full, or a GPU's load."""
    return _CACHED if device.type == "cpu" else 128 * _CACHED


def build_optimizers(
    model: PreTrainedModel, arguments: OptimizerArguments, device: torch.device
) -> list[torch.optim.Optimizer]:
    """Build AdamW over fp32 weights, preceded by Muon if configured. The loop sets their rates at every step.

    All is decayed, as in the paper's runs, or (`decay_all` false) only matrices that are no router.
    """
    matrices, gate_ups = hidden_matrices(model) if arguments.name == "muon" else ([], [])
    by_muon = {*matrices, *gate_ups}
    # By their decay, and by whether they are sharded: torch's AdamW updates no group of both.
    groups: dict[tuple[float, bool], list[Tensor]] = defaultdict(list)
    router_weights = causal_model.router_parameters(model)
    for parameter in model.parameters():
        if parameter in by_muon:
            continue
        is_exempt = not arguments.decay_all and (parameter.ndim < 2 or parameter in router_weights)
        decay = 0.0 if is_exempt else arguments.weight_decay
        groups[decay, isinstance(parameter, DTensor)].append(parameter)
    adamw = torch.optim.AdamW(
        [{"params": parameters, "weight_decay": decay} for (decay, _), parameters in groups.items()],
        lr=0.0,
        betas=(arguments.beta1, arguments.beta2),
        eps=arguments.epsilon,
        fused=device.type in {"cuda", "cpu"},
    )
    if not by_muon:
        return [adamw]
    muon = StackedMuon(
        matrices,
        gate_ups,
        weight_decay=arguments.weight_decay,
        momentum=arguments.muon_momentum,
        adjust_lr_fn=arguments.muon_adjust_lr,
    )
    return [muon, adamw]


def hidden_matrices(model: PreTrainedModel) -> tuple[list[Tensor], list[Tensor]]:
    """List what Muon updates: matrices of attention and feed-forward, and those of a gate and an up projection.

    Not embeddings, the head, routers, gates of one row, norms and biases (those of experts are stacked). Matrices that
    a class fuses otherwise or stores transposed (gate and up of gpt-oss and Llama 4) are taken whole.
    """
    excluded = causal_model.router_parameters(model)
    excluded.update(model.get_output_embeddings().parameters())
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            excluded.update(module.parameters())
    parameters = dict(model.named_parameters())
    matrices: list[Tensor] = []
    gate_ups: list[Tensor] = []
    for name, parameter in parameters.items():
        is_matrix = parameter.ndim in (2, 3) and min(parameter.shape[-2:]) > 1 and not name.endswith("bias")
        if parameter in excluded or not is_matrix:
            continue
        is_pair = False
        if name.removesuffix(".weight").endswith(_PAIR):
            # Gate and up may be stacked by rows: [2 · width, in], with down [in, width].
            *_, rows, width = parameters[name.replace(_PAIR, _DOWN)].shape
            is_pair = parameter.shape[-2:] == (2 * width, rows)
        (gate_ups if is_pair else matrices).append(parameter)
    return matrices, gate_ups


def set_rates(optimizers: Iterable[Any], rate: float, muon_share: float) -> None:
    """Set AdamW's learning rate, and `muon_share` of it as Muon's."""
    for optimizer in optimizers:
        share = muon_share if "momentum" in optimizer.defaults else 1.0
        for group in optimizer.param_groups:
            group["lr"] = rate * share


def muon_rate(arguments: OptimizerArguments, peak: float) -> float:
    """Return Muon's peak rate: the configured one, or AdamW's `peak`."""
    return arguments.muon_learning_rate or peak
