"""The model written out token by token, from the description and for reading only: the measure of the fast code.

Nothing is batched or fused: each position attends by a loop over earlier positions' vectors, each token is routed by
itself, capacity is a counter per expert that is full or not. Works on the tensors of a state dict and lets autograd
differentiate everything, in whatever precision the tensors have.
"""

import math
from dataclasses import dataclass, field

import torch

IMPLEMENTATIONS = ("auto", "capacity", "grouped_mm", "batched_mm", "eager")


@dataclass
class ReferenceResult:
    """Logits `[B, S, V]`; losses summed over blocks; per block dropped tokens as (row, position), counts."""

    logits: torch.Tensor
    balance_loss: torch.Tensor
    z_loss: torch.Tensor
    dropped: list[list[tuple[int, int]]] = field(default_factory=list)
    counts: list[list[int]] = field(default_factory=list)


def norm(x, weights, name, config):
    if config.norm_type == "rms_norm":
        return x / torch.sqrt((x * x).mean() + config.norm_eps) * weights[name + ".weight"]
    centred = x - x.mean()
    scaled = centred / torch.sqrt((centred * centred).mean() + config.norm_eps)
    return scaled * weights[name + ".weight"] + weights[name + ".bias"]


def rotate(vector, position, base=10000.0):
    """Turn pairs (i, i + D/2) of one head's vector by position * base^(-2i/D)."""
    half = len(vector) // 2
    turned = [None] * len(vector)
    for i in range(half):
        angle = position * base ** (-2 * i / len(vector))
        turned[i] = vector[i] * math.cos(angle) - vector[i + half] * math.sin(angle)
        turned[i + half] = vector[i + half] * math.cos(angle) + vector[i] * math.sin(angle)
    return torch.stack(turned)


def attention(stream, weights, prefix, config, real):
    """Causal attention of one row `stream` (list of S vectors); `real[s]`: may position s be attended to."""
    width = config.head_dim
    queries, keys, values = [], [], []
    for position, x in enumerate(stream):
        q, k, v = (weights[f"{prefix}.{name}_proj.weight"] @ x for name in "qkv")
        heads = [slice(h * width, (h + 1) * width) for h in range(config.num_attention_heads)]
        queries.append([rotate(q[h], position) for h in heads])
        keys.append([rotate(k[h], position) for h in heads])
        values.append([v[h] for h in heads])
    outputs = []
    for position in range(len(stream)):
        visible = [s for s in range(position + 1) if real[s]] or [position]
        mixed = []
        for head in range(config.num_attention_heads):
            scores = torch.stack([queries[position][head] @ keys[s][head] for s in visible]) / math.sqrt(width)
            shares = torch.softmax(scores, 0)
            mixed.append(sum(share * values[s][head] for share, s in zip(shares, visible, strict=True)))
        outputs.append(weights[f"{prefix}.o_proj.weight"] @ torch.cat(mixed))
    return outputs


def swiglu(x, gate, up, down):
    g = gate @ x
    return down @ (g * torch.sigmoid(g) * (up @ x))


def switch(tokens, weights, prefix, config, training, real):
    """One Switch feed-forward over the T tokens of a call: outputs, balance loss, z-loss, dropped, counts.

    One group of tokens after the other; a mean over all tokens is one over groups, weighed by their real tokens.
    """
    size = config.capacity_group_tokens or len(tokens)
    zero = torch.zeros((), dtype=tokens[0].dtype)
    outputs, balance, z, dropped, counts = [], zero, zero, [], [0] * config.num_experts
    for start in range(0, len(tokens), size):
        in_group = real[start : start + size]
        part = switch_group(tokens[start : start + size], weights, prefix, config, training, in_group)
        outputs += part[0]
        balance, z = balance + part[1] * sum(in_group) / sum(real), z + part[2] * sum(in_group) / sum(real)
        dropped += [start + number for number in part[3]]
        counts = [a + b for a, b in zip(counts, part[4], strict=True)]
    return outputs, balance, z, dropped, counts


def switch_group(tokens, weights, prefix, config, training, real):
    """`switch` for one capacity group, token by token."""
    experts = config.num_experts
    gate_up, down = weights[prefix + ".experts.gate_up_proj"], weights[prefix + ".experts.down_proj"]
    inner = config.intermediate_size
    capacity = len(tokens)
    if training and config.capacity_factor is not None:
        capacity = math.floor(config.capacity_factor * sum(real) / experts)
    taken, counts, dropped, outputs = [0] * experts, [0] * experts, [], []
    probability_sum, squares = torch.zeros(experts, dtype=tokens[0].dtype), torch.zeros((), dtype=tokens[0].dtype)
    for number, x in enumerate(tokens):
        if not real[number]:
            outputs.append(torch.zeros_like(x))
            continue
        logits = weights[prefix + ".router.weight"] @ x
        probabilities = torch.softmax(logits, 0)
        expert = int(torch.argmax(probabilities))
        counts[expert] += 1
        probability_sum = probability_sum + probabilities
        squares = squares + torch.log(torch.exp(logits).sum()) ** 2
        if taken[expert] >= capacity:
            dropped.append(number)
            outputs.append(torch.zeros_like(x))
            continue
        taken[expert] += 1
        y = swiglu(x, gate_up[expert, :inner], gate_up[expert, inner:], down[expert])
        outputs.append(probabilities[expert] * y)
    n_real = max(sum(real), 1)  # a group of padding alone
    share = torch.tensor(counts, dtype=probability_sum.dtype) / n_real
    balance = experts * (probability_sum / n_real * share).sum()
    return outputs, balance, squares / n_real, dropped, counts


def run(weights, config, input_ids, training, attention_mask=None):
    """The whole model on `input_ids [B, S]`; `weights` is the state dict of a `SwitchMoeForCausalLM`."""
    rows, length = input_ids.shape
    real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    stream = [[weights["model.embed_tokens.weight"][int(t)] for t in row] for row in input_ids]
    zero = torch.zeros((), dtype=weights["lm_head.weight"].dtype)
    result = ReferenceResult(logits=None, balance_loss=zero, z_loss=zero)
    for block in range(config.num_hidden_layers):
        prefix = f"model.layers.{block}"
        for row in range(rows):
            normed = [norm(x, weights, prefix + ".input_layernorm", config) for x in stream[row]]
            attended = attention(normed, weights, prefix + ".self_attn", config, real[row].tolist())
            stream[row] = [x + y for x, y in zip(stream[row], attended, strict=True)]
        tokens = [norm(x, weights, prefix + ".post_attention_layernorm", config) for row in stream for x in row]
        if config.num_experts == 1:
            dense = [weights[f"{prefix}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")]
            outputs, dropped, counts = [swiglu(x, *dense) for x in tokens], [], [int(real.sum())]
        else:
            outputs, balance, z, dropped, counts = switch(
                tokens, weights, prefix + ".mlp", config, training, real.flatten().tolist()
            )
            result.balance_loss, result.z_loss = result.balance_loss + balance, result.z_loss + z
        result.dropped.append([divmod(number, length) for number in dropped])
        result.counts.append(counts)
        for number, output in enumerate(outputs):
            row, position = divmod(number, length)
            stream[row][position] = stream[row][position] + output
    if config.final_norm:
        stream = [[norm(x, weights, "model.norm", config) for x in row] for row in stream]
    result.logits = torch.stack([torch.stack([weights["lm_head.weight"] @ x for x in row]) for row in stream])
    return result


def cross_entropy(logits, labels):
    """Mean over targets of -log softmax, predicting position s from s - 1; -100 is no target."""
    terms = []
    for row in range(labels.shape[0]):
        for position in range(1, labels.shape[1]):
            target = int(labels[row, position])
            if target != -100:
                terms.append(torch.logsumexp(logits[row, position - 1], 0) - logits[row, position - 1, target])
    return sum(terms) / len(terms)
