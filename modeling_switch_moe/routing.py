"""Top-1 routing as in the Switch Transformer: decision, capacity, auxiliary losses and statistics; groups of any k.

Shapes: T tokens (position s of row b is token b * S + s), E experts, n groups of G tokens. Nothing here waits for the
device (no `.item()`, no data-dependent shapes), so all of it can be compiled.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F


class Routing(NamedTuple):
    """`[T]` int64 expert and `[T]` float32 gate of its output, exactly 0 for dropped and masked tokens alone."""

    expert: torch.Tensor
    gate: torch.Tensor


class LayerStatistics(NamedTuple):
    """The report of one block on its routing; only the losses carry gradients.

    Attributes:
        balance_loss, z_loss: scalar float32, not scaled by their coefficients; balance is 1 when balanced.
        tokens_per_expert, dropped_tokens: `[E]` and scalar int64; choices before dropping, and tokens over capacity.
        router_entropy: scalar float32, mean entropy of the router's distribution in nats per token (0 to ln E).
    """

    balance_loss: torch.Tensor
    z_loss: torch.Tensor
    tokens_per_expert: torch.Tensor
    dropped_tokens: torch.Tensor
    router_entropy: torch.Tensor


def assignment_matrix(expert: torch.Tensor, num_experts: int, routed: torch.Tensor | None = None) -> torch.Tensor:
    """Return `[E, T]` bool, true where token t goes to expert e; tokens outside `routed` (`[T]` bool) go nowhere."""
    assignment = expert == torch.arange(num_experts, device=expert.device).unsqueeze(1)
    return assignment if routed is None else assignment & routed


class Groups(NamedTuple):
    """The S = T * k choices of k experts for each token, in the order of their experts.

    Attributes:
        expert: `[S]` int16, ascending.
        order: `[S]` int64, the number t * k + j of each choice.
        place: `[T, k]` int64, where each choice lies in this order.
        bounds: `[E]` int32, the number of choices up to and with those of an expert.
    """

    expert: torch.Tensor
    order: torch.Tensor
    place: torch.Tensor
    bounds: torch.Tensor


def group_by_expert(index: torch.Tensor, num_experts: int) -> Groups:
    """Order the choices `index [T, k]` by expert; those of experts from `num_experts` on come last."""
    # A GPU sorts keys of two bytes in a quarter of the passes.
    expert, order = index.flatten().to(torch.int16).sort(stable=True)
    place = torch.empty_like(order)
    place.scatter_(0, order, torch.arange(len(order), device=index.device))
    numbers = torch.arange(num_experts, dtype=torch.int16, device=index.device)
    bounds = torch.searchsorted(expert, numbers, right=True, out_int32=True)
    return Groups(expert, order, place.view(index.shape), bounds)


def split_groups(values: torch.Tensor, size: int, dim: int = -1) -> torch.Tensor:
    """Cut dimension `dim` of length T into `[n, size]`; zeros fill the last group."""
    dim %= values.dim()
    missing = -values.shape[dim] % size
    if missing:
        values = F.pad(values, [0, 0] * (values.dim() - dim - 1) + [0, missing])
    return values.unflatten(dim, (-1, size))


def position_in_expert(assignment: torch.Tensor, expert: torch.Tensor, size: int) -> torch.Tensor:
    """Count for each token, `[T]` int64, the earlier ones of its group of `size` that chose the same expert."""
    # Not by `len`, which an export takes for a constant.
    count = split_groups(assignment, size).cumsum(2).flatten(1)[:, : expert.shape[0]]
    return count.gather(0, expert.unsqueeze(0)).squeeze(0) - 1


def expert_capacity(tokens: torch.Tensor | int, num_experts: int, capacity_factor: float) -> torch.Tensor | int:
    """Compute the tokens an expert may take: floor(capacity_factor * tokens / num_experts), at most all tokens."""
    if isinstance(tokens, torch.Tensor):
        return torch.minimum((capacity_factor * tokens.double() / num_experts).floor().long(), tokens)
    return min(int(capacity_factor * tokens / num_experts), tokens)


def most_kept(tokens: int, num_experts: int, capacity_factor: float, group_tokens: int | None) -> int:
    """Compute the most tokens that one expert keeps of a call of `tokens`: its capacity, summed over the groups."""
    size = min(group_tokens or tokens, tokens)
    full_groups = tokens // size * expert_capacity(size, num_experts, capacity_factor)
    return full_groups + expert_capacity(tokens % size, num_experts, capacity_factor)


def route(
    logits: torch.Tensor,
    capacity_factor: float | None = None,
    token_mask: torch.Tensor | None = None,
    with_statistics: bool = True,
    group_tokens: int | None = None,
) -> tuple[Routing, LayerStatistics | None]:
    """Send each token t to e(t) = argmax_e p[t, e], p = softmax(logits), drop what is over capacity, and measure.

    The output is p[t, e(t)] * expert_e(t)(x_t). Group k is tokens k * G to (k + 1) * G - 1 of a call, and what is left
    over is a group of its own; in the authors' runs a group was one micro-batch on one device. In each group an expert
    keeps its first floor(capacity_factor * G / E) tokens. Masked tokens take no capacity and do not count in G.

    Args:
        logits: `[T, E]` float32.
        capacity_factor: `None` drops nothing.
        token_mask: `[T]` bool, false for padding; `None` means that every token is real.
        group_tokens: G, over which the balance loss is counted, too; `None` means all of the call.
    """
    num_tokens, num_experts = logits.shape
    size = min(group_tokens or num_tokens, num_tokens)
    log_normaliser = logits.logsumexp(-1)
    top_logit, expert = logits.max(-1)
    gate = (top_logit - log_normaliser).exp()
    if capacity_factor is None and not with_statistics:
        return Routing(expert, gate if token_mask is None else torch.where(token_mask, gate, 0.0)), None
    assignment = assignment_matrix(expert, num_experts, token_mask)
    is_kept = token_mask
    if capacity_factor is not None:
        capacity = expert_capacity(size, num_experts, capacity_factor)
        # Groups may differ in their real tokens.
        if token_mask is not None or num_tokens % size:
            real = split_groups(assignment, size).sum((0, 2))
            capacity = expert_capacity(real, num_experts, capacity_factor)
            capacity = capacity.repeat_interleave(size, output_size=len(capacity) * size)[:num_tokens]
        is_kept = position_in_expert(assignment, expert, size) < capacity
        if token_mask is not None:
            is_kept = is_kept & token_mask
    if is_kept is not None:
        gate = torch.where(is_kept, gate, 0.0)
    if not with_statistics:
        return Routing(expert, gate), None
    return Routing(expert, gate), measure(logits, log_normaliser, assignment, is_kept, token_mask, size)


def measure(
    logits: torch.Tensor,
    log_normaliser: torch.Tensor,
    assignment: torch.Tensor,
    is_kept: torch.Tensor | None,
    token_mask: torch.Tensor | None,
    size: int,
) -> LayerStatistics:
    """Compute losses and statistics of one router call with groups of `size` tokens.

        balance = mean over groups, by tokens, of E * sum_e mean_t(p[t, e]) * n_e / G  (Fedus et al. 2021)
        z       = mean_t(logsumexp(logits[t])^2)  (Zoph et al. 2022)

    Here n_e tokens of the group choose e: `assignment [E, T]`, before dropping. `is_kept` and `token_mask` (`[T]`
    bool) are true for the tokens that an expert computes and for the real ones; `None` means all.
    """
    num_tokens, num_experts = logits.shape
    probabilities = (logits - log_normaliser.unsqueeze(1)).exp()
    entropies = log_normaliser.detach() - (probabilities.detach() * logits.detach()).sum(-1)
    squares = log_normaliser.square()
    # [E, n]
    counts = split_groups(assignment, size).sum(2)
    # Every real token chooses one expert.
    group_tokens = counts.sum(0)
    real_tokens: torch.Tensor | int = num_tokens
    if token_mask is not None:
        probabilities = torch.where(token_mask.unsqueeze(1), probabilities, 0.0)
        entropies = torch.where(token_mask, entropies, 0.0)
        squares = torch.where(token_mask, squares, 0.0)
        # A batch or a group of padding alone measures 0 and not 0/0.
        group_tokens = group_tokens.clamp(min=1)
        real_tokens = token_mask.sum().clamp(min=1)
    # E * (P / G) * (n_e / G) of each group, weighed by its share G / T of the tokens
    by_group = split_groups(probabilities, size, 0).sum(1) * counts.t() / group_tokens.unsqueeze(1)
    tokens_per_expert = assignment.sum(1)
    dropped = tokens_per_expert.new_zeros(()) if is_kept is None else tokens_per_expert.sum() - is_kept.sum()
    return LayerStatistics(
        balance_loss=num_experts * by_group.sum() / real_tokens,
        z_loss=squares.sum() / real_tokens,
        tokens_per_expert=tokens_per_expert,
        dropped_tokens=dropped,
        router_entropy=entropies.sum() / real_tokens,
    )


def dense_statistics(tokens: torch.Tensor) -> LayerStatistics:
    """Return the statistics of a block without a router (E = 1) with `tokens` real tokens, a scalar int64."""
    zero = torch.zeros((), dtype=torch.float32, device=tokens.device)
    return LayerStatistics(zero, zero, tokens.reshape(1), torch.zeros_like(tokens), zero)
