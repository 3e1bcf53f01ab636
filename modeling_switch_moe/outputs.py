"""What the models return, beside what every transformers model does: the router's losses and statistics.

Shapes: B rows, S positions, T = B * S tokens, E experts, V vocabulary, L blocks.
"""

from dataclasses import dataclass

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast, MoeModelOutputWithPast
from transformers.utils import ModelOutput


@dataclass
class RoutingStatistics(ModelOutput):
    """Routing of one forward call, per block. Detached, on the model's device, nothing waits for them.

    Attributes:
        tokens_per_expert: `[L, E]` int64, real tokens choosing each expert, before dropping.
        dropped_tokens: `[L]` int64, tokens over capacity (0 outside training).
        router_entropy: `[L]` float32, mean entropy of the router's distribution, nats per token.
    """

    tokens_per_expert: torch.LongTensor | None = None
    dropped_tokens: torch.LongTensor | None = None
    router_entropy: torch.FloatTensor | None = None


@dataclass
class SwitchMoeModelOutputWithPast(MoeModelOutputWithPast):
    """Output of [`SwitchMoeModel`]: `last_hidden_state [B, S, hidden_size]`, the usual fields of transformers, and

    Attributes:
        router_logits: one float32 `[T, E]` per block, if asked for; empty for a dense model.
        balance_loss, z_loss: scalars, summed over blocks, not scaled by their coefficients; in training or on demand.
        routing: [`RoutingStatistics`], at the same times.
    """

    balance_loss: torch.FloatTensor | None = None
    z_loss: torch.FloatTensor | None = None
    routing: RoutingStatistics | None = None


@dataclass
class SwitchMoeCausalLMOutputWithPast(CausalLMOutputWithPast):
    """Output of [`SwitchMoeForCausalLM`]: `logits [B, S, V]`, the usual fields of transformers, and

    Attributes:
        loss: scalar. In training lm_loss + router_aux_loss_coef * balance_loss + router_z_loss_coef * z_loss; in
            evaluation lm_loss alone.
        lm_loss: scalar, cross-entropy in nats per target.
        token_losses: fp32 `[B, S]`, the cross-entropy of every target, where it was asked for; without a gradient.
        router_logits, balance_loss, z_loss, routing: as in [`SwitchMoeModelOutputWithPast`].
    """

    router_logits: tuple[torch.FloatTensor, ...] | None = None
    lm_loss: torch.FloatTensor | None = None
    token_losses: torch.FloatTensor | None = None
    balance_loss: torch.FloatTensor | None = None
    z_loss: torch.FloatTensor | None = None
    routing: RoutingStatistics | None = None
