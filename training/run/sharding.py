"""Weights, gradients and moments sharded over the processes (FSDP2), with the numbers of one process.

In bf16 the matrices of a block travel as bf16, to which autocast would round them anyway. The rest stays fp32: norms,
routers, embedding and head, and with them the residual stream and the losses. Gradients are summed in fp32 after every
micro-batch, so that whole ones exist for one block at a time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from training.run import causal_model

# A router's gates, which nothing changes in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor", category=UserWarning)
_UNEVEN = 1.1  # the largest share of a parameter over the mean one; above it another dimension is cut

SINGLE = MixedPrecisionPolicy(cast_forward_inputs=False)
HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)


def build(
    draw: Callable[[], nn.Module], half: bool, reshard_after_forward: bool = True, tied: bool = False
) -> nn.Module:
    """The model that `draw` makes, sharded over all processes, which get their shares from the first. Collective.

    Two groups per block, one for the embedding, one for the head, a root for the rest. `half`: gather the matrices of
    blocks in bf16. `reshard_after_forward=False` keeps the weights of blocks gathered until their backward pass. Other
    processes than the first build the model without memory for its weights, unless embedding and head are one
    (`tied`), which emptied weights cannot be.
    """
    from accelerate import init_empty_weights

    def placement(parameter: nn.Parameter) -> Shard:
        return Shard(sharded_dimension(tuple(parameter.shape), dist.get_world_size()))

    def group(modules: nn.Module | list[nn.Module], policy: MixedPrecisionPolicy, reshard: bool) -> None:
        fully_shard(modules, mp_policy=policy, reshard_after_forward=reshard, shard_placement_fn=placement)

    is_first = dist.get_rank() == 0
    is_empty = not (is_first or tied)
    with init_empty_weights(include_buffers=False) if is_empty else nullcontext():
        model = draw()
    drawn = model.state_dict() if is_first else {}
    routers = causal_model.routers(model)
    for block in (part for part in model.modules() if type(part).__name__ in model._no_split_modules):
        if half:
            precise = [part for part in block.modules() if part in routers or _stays_single(part)]
            group(precise, SINGLE, reshard_after_forward)
        group(block, HALF if half else SINGLE, reshard_after_forward)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if embedding.weight is not head.weight:  # else one group must hold both: the root
        group(embedding, SINGLE, reshard_after_forward)
        group(head, SINGLE, False)  # the backward pass begins with it
    group(model, SINGLE, False)
    if is_empty:
        device = next(model.parameters()).device_mesh.device_type
        model._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)
    set_model_state_dict(model, drawn, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return model


def sharded_dimension(shape: tuple[int, ...], world: int) -> int:
    """The dimension to cut: the first, unless that leaves shares too uneven and another divides evenly.

    Ten experts on eight processes would give two to some and none to others.
    """
    if math.ceil(shape[0] / world) * world <= _UNEVEN * shape[0]:
        return 0
    return next((dimension for dimension, size in enumerate(shape) if size % world == 0), 0)


def _stays_single(module: nn.Module) -> bool:
    """Whether its own parameters must stay fp32: norms, which autocast leaves alone, and biases of stacked experts.

    So must stacked weights that are not known to be multiplied in autocast's precision (a convolution's).
    """
    dimensions = {parameter.ndim for parameter in module.parameters(recurse=False)}
    return dimensions == {1} or (3 in dimensions and not (hasattr(module, "is_transposed") and dimensions == {3}))
