"""Top-1 routing as in the Switch Transformer: decision, capacity, auxiliary losses and statistics.

Shapes use T tokens (batch-major: position s of row b is token b * S + s) and E experts. Definitions are those of the
runs of Ludziejewski et al. 2025 (balance loss of Fedus et al. 2021, z-loss of Zoph et al. 2022):

    p = softmax(logits), e(t) = argmax_e p[t, e], output of token t = p[t, e(t)] * expert_e(t)(x_t)
    capacity  = floor(capacity_factor * T / E) tokens per expert, first come first kept; dropped tokens output 0
    balance   = E * sum_e mean_t(p[t, e]) * n_e / T, with n_e tokens choosing e before anything is dropped
    z         = mean_t(logsumexp(logits[t])^2)

Padding takes no part: a masked token is not routed, takes no capacity, and T counts the others only. Nothing here
waits for the device (no `.item()`, no data-dependent shapes), so it can stand inside a compiled or captured step.
"""

from typing import NamedTuple

import torch


class Routing(NamedTuple):
    """Where each token goes.

    Attributes:
        expert: `[T]` int64, the chosen expert; valid also for tokens that go nowhere.
        gate: `[T]` float32, the probability that scales the expert's output; exactly 0 for dropped and masked tokens
            (a kept token has at least 1/E), so `gate != 0` says which tokens are computed. NaN logits give a NaN gate.
    """

    expert: torch.Tensor
    gate: torch.Tensor


class LayerStatistics(NamedTuple):
    """What one block reports of its routing; the first two carry gradients, the rest are detached.

    Attributes:
        balance_loss: scalar float32, 1 when balanced, not scaled by its coefficient.
        z_loss: scalar float32, not scaled by its coefficient.
        tokens_per_expert: `[E]` int64, tokens choosing each expert before dropping.
        dropped_tokens: scalar int64, tokens over capacity.
        router_entropy: scalar float32, mean entropy of the router's distribution in nats per token (0 to ln E).
    """

    balance_loss: torch.Tensor
    z_loss: torch.Tensor
    tokens_per_expert: torch.Tensor
    dropped_tokens: torch.Tensor
    router_entropy: torch.Tensor


def assignment_matrix(expert: torch.Tensor, num_experts: int, routed: torch.Tensor | None = None) -> torch.Tensor:
    """`[E, T]` bool, true where token t goes to expert e; tokens outside `routed` (`[T]` bool) go nowhere."""
    chosen = expert == torch.arange(num_experts, device=expert.device).unsqueeze(1)
    return chosen if routed is None else chosen & routed


def position_in_expert(assignment: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    """`[T]` int64, how many earlier tokens (batch-major) chose the same expert as this one.

    Args:
        assignment: `[E, T]` bool from `assignment_matrix`.
        expert: `[T]` int64, the chosen experts.
    """
    return assignment.cumsum(1).gather(0, expert.unsqueeze(0)).squeeze(0) - 1


def expert_capacity(tokens: torch.Tensor | int, num_experts: int, capacity_factor: float) -> torch.Tensor | int:
    """Tokens an expert may take: floor(capacity_factor * tokens / num_experts), never more than there are."""
    if isinstance(tokens, int):
        return min(int(capacity_factor * tokens / num_experts), tokens)
    return torch.minimum((capacity_factor * tokens.double() / num_experts).floor().long(), tokens)


def route(
    logits: torch.Tensor,
    capacity_factor: float | None = None,
    token_mask: torch.Tensor | None = None,
    with_statistics: bool = True,
) -> tuple[Routing, LayerStatistics | None]:
    """Choose one expert per token, drop what is over capacity, and measure.

    Args:
        logits: `[T, E]` float32 router logits.
        capacity_factor: capacity per expert as a multiple of the balanced share; `None` drops nothing.
        token_mask: `[T]` bool, false for padding; `None` means that every token is real.
        with_statistics: compute losses and statistics (skipped while generating).

    Returns:
        The routing and, if asked for, the statistics.
    """
    num_experts = logits.shape[1]
    log_normaliser = logits.logsumexp(-1)
    top_logit, expert = logits.max(-1)
    gate = (top_logit - log_normaliser).exp()
    assignment = None
    kept = token_mask
    if capacity_factor is not None:
        assignment = assignment_matrix(expert, num_experts, token_mask)
        tokens = logits.shape[0] if token_mask is None else token_mask.sum()
        within = position_in_expert(assignment, expert) < expert_capacity(tokens, num_experts, capacity_factor)
        kept = within if token_mask is None else within & token_mask
    if kept is not None:
        gate = torch.where(kept, gate, 0.0)
    statistics = None
    if with_statistics:
        if assignment is None:
            assignment = assignment_matrix(expert, num_experts, token_mask)
        statistics = measure(logits, log_normaliser, assignment, kept, token_mask)
    return Routing(expert, gate), statistics


def measure(
    logits: torch.Tensor,
    log_normaliser: torch.Tensor,
    assignment: torch.Tensor,
    kept: torch.Tensor | None = None,
    token_mask: torch.Tensor | None = None,
) -> LayerStatistics:
    """Losses and statistics of one router call; see the module docstring for the formulas.

    Args:
        logits: `[T, E]` float32.
        log_normaliser: `[T]` float32, logsumexp of the logits.
        assignment: `[E, T]` bool, the choices of real tokens before dropping.
        kept: `[T]` bool, tokens that an expert computes; `None` means all.
        token_mask: `[T]` bool, real tokens; `None` means all.
    """
    num_tokens, num_experts = logits.shape
    probabilities = (logits - log_normaliser.unsqueeze(1)).exp()
    tokens_per_expert = assignment.sum(1)
    entropies = log_normaliser.detach() - (probabilities.detach() * logits.detach()).sum(-1)
    if token_mask is None:
        real = num_tokens
        mean_probability = probabilities.mean(0)
        z_loss = log_normaliser.square().mean()
        entropy = entropies.mean()
    else:
        # A batch of padding alone measures 0 and not 0/0.
        real = token_mask.sum().clamp(min=1)
        mean_probability = torch.where(token_mask.unsqueeze(1), probabilities, 0.0).sum(0) / real
        z_loss = torch.where(token_mask, log_normaliser.square(), 0.0).sum() / real
        entropy = torch.where(token_mask, entropies, 0.0).sum() / real
    balance_loss = num_experts * (mean_probability * (tokens_per_expert / real)).sum()
    dropped = tokens_per_expert.new_zeros(()) if kept is None else tokens_per_expert.sum() - kept.sum()
    return LayerStatistics(balance_loss, z_loss, tokens_per_expert, dropped, entropy)


def dense_statistics(tokens: torch.Tensor) -> LayerStatistics:
    """Statistics of a block without a router (E = 1): all tokens to the one expert, both losses 0.

    Args:
        tokens: scalar int64, how many real tokens the block saw.
    """
    zero = torch.zeros((), dtype=torch.float32, device=tokens.device)
    return LayerStatistics(zero, zero, tokens.reshape(1), torch.zeros_like(tokens), zero)
