"""What the models return, beside what every transformers model does: the router's losses and statistics.

Shapes: B rows, S positions, T = B * S tokens, E experts, V vocabulary, L blocks.
"""

from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache
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
class SwitchMoeModelOutputWithPast(ModelOutput):
    """Output of [`SwitchMoeModel`].

    Attributes:
        last_hidden_state: `[B, S, hidden_size]`.
        balance_loss, z_loss: scalars, summed over blocks, not scaled by their coefficients; in training or on demand.
        routing: [`RoutingStatistics`], at the same times.
        past_key_values, hidden_states, attentions, router_logits: as everywhere in transformers; `router_logits` is
            one float32 `[T, E]` per block, empty for a dense model.
    """

    last_hidden_state: torch.FloatTensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    attentions: tuple[torch.FloatTensor, ...] | None = None
    router_logits: tuple[torch.FloatTensor, ...] | None = None
    balance_loss: torch.FloatTensor | None = None
    z_loss: torch.FloatTensor | None = None
    routing: RoutingStatistics | None = None


@dataclass
class SwitchMoeCausalLMOutputWithPast(ModelOutput):
    """Output of [`SwitchMoeForCausalLM`].

    Attributes:
        loss: scalar. In training lm_loss + router_aux_loss_coef * balance_loss + router_z_loss_coef * z_loss; in
            evaluation lm_loss alone.
        lm_loss: scalar, cross-entropy in nats per target.
        token_losses: fp32 `[B, S]`, the cross-entropy of every target, where it was asked for; without a gradient.
        balance_loss, z_loss: scalars, summed over blocks, not scaled by their coefficients.
        logits: `[B, S, V]`.
        routing: [`RoutingStatistics`].
        past_key_values, hidden_states, attentions, router_logits: as everywhere in transformers.
    """

    loss: torch.FloatTensor | None = None
    logits: torch.FloatTensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    attentions: tuple[torch.FloatTensor, ...] | None = None
    router_logits: tuple[torch.FloatTensor, ...] | None = None
    lm_loss: torch.FloatTensor | None = None
    token_losses: torch.FloatTensor | None = None
    balance_loss: torch.FloatTensor | None = None
    z_loss: torch.FloatTensor | None = None
    routing: RoutingStatistics | None = None
