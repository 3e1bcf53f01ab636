"""Top-1 routing as in the Switch Transformer: decision, capacity, auxiliary losses and statistics.

Shapes use T tokens (batch-major: position s of row b is token b * S + s), E experts, and n groups of G tokens.
Definitions are those of the runs of Ludziejewski et al. 2025 (balance loss of Fedus et al. 2021, z-loss of Zoph et al.
2022):

    p = softmax(logits), e(t) = argmax_e p[t, e], output of token t = p[t, e(t)] * expert_e(t)(x_t)
    capacity  = floor(capacity_factor * G / E) tokens per expert and group, first come first kept; dropped tokens
                output 0
    balance   = mean over groups of E * sum_e mean_t(p[t, e]) * n_e / G, with n_e tokens of the group choosing e before
                anything is dropped
    z         = mean_t(logsumexp(logits[t])^2)

Group k is tokens k * G to (k + 1) * G - 1 of a call. Capacity and balance loss are the only quantities that depend on
which tokens stand together, and both are counted within a group: calls that hold whole groups give the same drops,
losses and gradients however many groups each of them holds. Without a group size a call is one group; in the authors'
runs a group was one micro-batch on one device. What remains behind the last whole group is a group of its own, and the
mean over groups weighs each by its tokens.

Padding takes no part: a masked token is not routed, takes no capacity, and G counts the others only. Nothing here
waits for the device (no `.item()`, no data-dependent shapes), so it can stand inside a compiled or captured step.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F


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


def group_size(tokens: int, group_tokens: int | None) -> int:
    """Tokens of a whole group among `tokens` tokens; `None`, and groups larger than the call, mean all of them."""
    return tokens if group_tokens is None else min(group_tokens, tokens)


def grouped(values: torch.Tensor, size: int, dim: int = -1) -> torch.Tensor:
    """Cut dimension `dim` of length T into `[n, size]`; what is missing in the last group is filled with zeros."""
    dim %= values.dim()
    if missing := -values.shape[dim] % size:
        values = F.pad(values, [0, 0] * (values.dim() - dim - 1) + [0, missing])
    return values.unflatten(dim, (-1, size))


def position_in_expert(assignment: torch.Tensor, expert: torch.Tensor, size: int | None = None) -> torch.Tensor:
    """`[T]` int64, how many earlier tokens (batch-major) of its group chose the same expert as this one.

    Args:
        assignment: `[E, T]` bool from `assignment_matrix`.
        expert: `[T]` int64, the chosen experts.
        size: tokens of a group; `None` means that all are one group.
    """
    tokens = assignment.shape[1]
    if size is None or size == tokens:
        count = assignment.cumsum(1)
    else:
        count = grouped(assignment, size).cumsum(2).flatten(1)[:, :tokens]
    return count.gather(0, expert.unsqueeze(0)).squeeze(0) - 1


def expert_capacity(tokens: torch.Tensor | int, num_experts: int, capacity_factor: float) -> torch.Tensor | int:
    """Tokens an expert may take: floor(capacity_factor * tokens / num_experts), never more than there are."""
    if isinstance(tokens, torch.Tensor):
        return torch.minimum((capacity_factor * tokens.double() / num_experts).floor().long(), tokens)
    return min(int(capacity_factor * tokens / num_experts), tokens)


def most_kept(tokens: int, num_experts: int, capacity_factor: float, group_tokens: int | None) -> int:
    """The most tokens that one expert keeps of a call of `tokens` tokens: its capacity, summed over the groups."""
    size = group_size(tokens, group_tokens)
    whole = tokens // size * expert_capacity(size, num_experts, capacity_factor)
    return whole + expert_capacity(tokens % size, num_experts, capacity_factor)


def within_capacity(
    assignment: torch.Tensor,
    expert: torch.Tensor,
    capacity_factor: float,
    size: int,
    token_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """`[T]` bool, true for the tokens that come before their expert is full in their group.

    Args:
        assignment: `[E, T]` bool, the choices of real tokens.
        expert: `[T]` int64, the chosen experts.
        capacity_factor: capacity as a multiple of the balanced share.
        size: tokens of a group.
        token_mask: `[T]` bool, real tokens; `None` means all.
    """
    num_experts, tokens = assignment.shape
    position = position_in_expert(assignment, expert, size)
    if token_mask is None and tokens % size == 0:
        return position < expert_capacity(size, num_experts, capacity_factor)
    mask = torch.ones_like(expert, dtype=torch.bool) if token_mask is None else token_mask
    capacity = expert_capacity(grouped(mask, size).sum(1), num_experts, capacity_factor)
    return position < capacity.repeat_interleave(size, output_size=capacity.shape[0] * size)[:tokens]


def route(
    logits: torch.Tensor,
    capacity_factor: float | None = None,
    token_mask: torch.Tensor | None = None,
    with_statistics: bool = True,
    group_tokens: int | None = None,
) -> tuple[Routing, LayerStatistics | None]:
    """Choose one expert per token, drop what is over capacity, and measure.

    Args:
        logits: `[T, E]` float32 router logits.
        capacity_factor: capacity per expert as a multiple of the balanced share; `None` drops nothing.
        token_mask: `[T]` bool, false for padding; `None` means that every token is real.
        with_statistics: compute losses and statistics (skipped while generating).
        group_tokens: tokens that capacity and balance loss are counted over; `None` means all of the call.

    Returns:
        The routing and, if asked for, the statistics.
    """
    num_experts = logits.shape[1]
    log_normaliser = logits.logsumexp(-1)
    top_logit, expert = logits.max(-1)
    gate = (top_logit - log_normaliser).exp()
    kept = token_mask
    if capacity_factor is not None or with_statistics:
        assignment = assignment_matrix(expert, num_experts, token_mask)
        size = group_size(logits.shape[0], group_tokens)
    if capacity_factor is not None:
        within = within_capacity(assignment, expert, capacity_factor, size, token_mask)
        kept = within if token_mask is None else within & token_mask
    if kept is not None:
        gate = torch.where(kept, gate, 0.0)
    statistics = None
    if with_statistics:
        statistics = measure(logits, log_normaliser, assignment, kept, token_mask, size)
    return Routing(expert, gate), statistics


def measure(
    logits: torch.Tensor,
    log_normaliser: torch.Tensor,
    assignment: torch.Tensor,
    kept: torch.Tensor | None = None,
    token_mask: torch.Tensor | None = None,
    size: int | None = None,
) -> LayerStatistics:
    """Losses and statistics of one router call; see the module docstring for the formulas.

    Args:
        logits: `[T, E]` float32.
        log_normaliser: `[T]` float32, logsumexp of the logits.
        assignment: `[E, T]` bool, the choices of real tokens before dropping.
        kept: `[T]` bool, tokens that an expert computes; `None` means all.
        token_mask: `[T]` bool, real tokens; `None` means all.
        size: tokens of a group; `None` means that all are one group.
    """
    num_tokens = logits.shape[0]
    probabilities = (logits - log_normaliser.unsqueeze(1)).exp()
    tokens_per_expert = assignment.sum(1)
    entropies = log_normaliser.detach() - (probabilities.detach() * logits.detach()).sum(-1)
    if token_mask is None:
        z_loss = log_normaliser.square().mean()
        entropy = entropies.mean()
    else:
        # A batch of padding alone measures 0 and not 0/0.
        real = token_mask.sum().clamp(min=1)
        probabilities = torch.where(token_mask.unsqueeze(1), probabilities, 0.0)
        z_loss = torch.where(token_mask, log_normaliser.square(), 0.0).sum() / real
        entropy = torch.where(token_mask, entropies, 0.0).sum() / real
    balance_loss = grouped_balance_loss(probabilities, assignment, token_mask, num_tokens if size is None else size)
    dropped = tokens_per_expert.new_zeros(()) if kept is None else tokens_per_expert.sum() - kept.sum()
    return LayerStatistics(balance_loss, z_loss, tokens_per_expert, dropped, entropy)


def grouped_balance_loss(
    probabilities: torch.Tensor, assignment: torch.Tensor, token_mask: torch.Tensor | None, size: int
) -> torch.Tensor:
    """Scalar: E * sum_e mean(p_e) * n_e / G within each group, and the mean over groups weighed by their real tokens.

    A product of two means is not the same over a batch as over its parts, so this one is tied to groups and not to
    micro-batches or processes.

    Args:
        probabilities: `[T, E]` float32, zero for padding.
        assignment: `[E, T]` bool, the choices of real tokens.
        token_mask: `[T]` bool, real tokens; `None` means all.
        size: tokens of a group.
    """
    num_tokens, num_experts = probabilities.shape
    chosen = grouped(assignment, size).sum(2)  # [E, n]
    probability = grouped(probabilities, size, 0).sum(1)  # [n, E]
    if token_mask is None:
        in_group = chosen.sum(0)  # every real token chooses one expert
        real: torch.Tensor | int = num_tokens
    else:
        in_group, real = chosen.sum(0).clamp(min=1), token_mask.sum().clamp(min=1)
    # E * (P / G) * (n_e / G), weighed by G of all tokens
    return num_experts * (probability * chosen.t() / in_group.unsqueeze(1)).sum() / real


def dense_statistics(tokens: torch.Tensor) -> LayerStatistics:
    """Statistics of a block without a router (E = 1): all tokens to the one expert, both losses 0.

    Args:
        tokens: scalar int64, how many real tokens the block saw.
    """
    zero = torch.zeros((), dtype=torch.float32, device=tokens.device)
    return LayerStatistics(zero, zero, tokens.reshape(1), torch.zeros_like(tokens), zero)
