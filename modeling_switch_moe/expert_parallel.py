"""Expert parallelism with a capacity: buffers of a fixed size travel, so no layer waits for the host.

Each process lays the tokens that its routers keep into a buffer of C rows per expert and sends every process the rows
of that process's experts. A process computes E_local · C rows from each of the others, whatever the routers choose.
Without a capacity, transformers' own exchange is used, which reads the number of tokens back in every layer.

Importing this registers `DistributedConfig(ep_implementation="capacity")` where transformers (5.23) has a registry.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .experts import bounds_tokens, multiply_buffer, rows_per_expert, through_buffer
from .precision import compute_dtype

try:
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from transformers.distributed.expert_parallel import AutoEP, EPImplementationInterface
except ImportError:
    # An older transformers, or a torch without distributed.
    AutoEP = EPImplementationInterface = None

NAME = "capacity"


def rows_to_send(config: Any, num_tokens: int, num_experts: int, sharers: int = 1) -> int:
    """Count the rows that each expert gets from a process, of `sharers` with the same `num_tokens` tokens."""
    return math.ceil(rows_per_expert(config, num_tokens, num_experts) / sharers)


class ExchangeParts(torch.autograd.Function):
    """Send part k of equal parts of `rows [n, …]` to process k of a group; parts arrive in the order of processes.

    Sent again, each part is where it came from: the gradient takes the same way.
    """

    @staticmethod
    def forward(rows, group):
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows, group=group)
        return received

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.group = inputs

    @staticmethod
    def backward(ctx, gradient):
        return ExchangeParts.apply(gradient.contiguous(), ctx.group), None


if AutoEP is not None:

    class CapacityEP(AutoEP):
        """Exchange buffers of the capacity's size in training; elsewhere, and without a capacity, do as `AutoEP`.

        All processes that divide experts must call it with as many tokens as the others. Of those that share a batch
        (`tp_mesh`), each sends its part of the rows of every expert. Buffers are multiplied as they arrive, whatever
        implementation of experts is configured.
        """

        def __init__(self, experts: nn.Module, ep_mesh: Any, tp_mesh: Any):
            super().__init__(experts, ep_mesh, tp_mesh)
            self.experts = experts

        def __call__(
            self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
        ) -> torch.Tensor:
            if not bounds_tokens(self.experts):
                return super().__call__(hidden_states, top_k_index, top_k_weights)
            num_experts = self.num_local_experts * self.ep_mesh.size()
            sharers = self.tp_mesh.size()
            capacity = sharers * rows_to_send(self.experts.config, len(hidden_states), num_experts, sharers)
            states = hidden_states.to(compute_dtype(self.experts.down_proj))
            expert = top_k_index.squeeze(1)
            gate = top_k_weights.squeeze(1)
            return through_buffer(states, expert, gate, (num_experts, capacity), self._exchange)

        def _exchange(self, buffer: torch.Tensor) -> torch.Tensor:
            """Have a buffer `[E, C, H]` multiplied by the processes that hold its experts."""
            if self.tp_mesh.size() > 1:
                replicated = DTensor.from_local(buffer, self.tp_mesh, [Replicate()], run_check=False)
                buffer = replicated.redistribute(self.tp_mesh, [Shard(1)]).to_local()
            group = self.ep_mesh.get_group()
            received = ExchangeParts.apply(buffer.contiguous(), group)
            # [E_local, senders, C, H]
            by_expert = received.unflatten(0, (self.ep_mesh.size(), -1)).transpose(0, 1)
            outputs = multiply_buffer(self.experts, by_expert.flatten(1, 2))
            by_sender = outputs.view(by_expert.shape).transpose(0, 1).flatten(0, 1)
            returned = ExchangeParts.apply(by_sender.contiguous(), group)
            if self.tp_mesh.size() > 1:
                returned = DTensor.from_local(returned, self.tp_mesh, [Shard(1)], run_check=False).full_tensor()
            return returned

    EPImplementationInterface.register(NAME, CapacityEP)
