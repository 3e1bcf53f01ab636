"""The model written out token by token, from the description and for reading only: the measure of the fast code.

Nothing is batched or fused: each position attends by a loop over earlier positions' vectors, each token is routed by
itself, capacity is a counter per expert that is full or not. Works on the tensors of a state dict and lets autograd
differentiate everything, in whatever precision the tensors have.
"""

import math
from types import SimpleNamespace

import torch


def norm(x, weights, name, config):
    if config.norm_type == "rms_norm":
        return x / torch.sqrt((x * x).mean() + config.norm_eps) * weights[name + ".weight"]
    centred = x - x.mean()
    scaled = centred / torch.sqrt((centred * centred).mean() + config.norm_eps)
    return scaled * weights[name + ".weight"] + weights[name + ".bias"]


def rotate(vector, position, base=10000.0):
    """Turn pairs (i, i + D/2) of one head's vector by position * base^(-2i/D)."""
    first, second = vector.chunk(2)
    angles = [position * base ** (-2 * i / len(vector)) for i in range(len(first))]
    cos, sin = (torch.tensor([of(angle) for angle in angles], dtype=vector.dtype) for of in (math.cos, math.sin))
    return torch.cat([first * cos - second * sin, second * cos + first * sin])


def attention(stream, weights, prefix, config, real):
    """Causal attention of one row `stream` (list of S vectors); `real[s]`: may position s be attended to?"""
    heads, positions = range(config.num_attention_heads), range(len(stream))
    queries, keys, values = (
        [(weights[f"{prefix}.{name}_proj.weight"] @ x).view(len(heads), -1) for x in stream] for name in "qkv"
    )
    queries, keys = ([[rotate(part[s][h], s) for h in heads] for s in positions] for part in (queries, keys))
    outputs = []
    for position in positions:
        visible = [s for s in range(position + 1) if real[s]] or [position]
        mixed = []
        for head in heads:
            scores = torch.stack([queries[position][head] @ keys[s][head] for s in visible])
            shares = torch.softmax(scores / math.sqrt(config.head_dim), 0)
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
    experts, inner = config.num_experts, config.intermediate_size
    gate_up, down = weights[prefix + ".experts.gate_up_proj"], weights[prefix + ".experts.down_proj"]
    zero = torch.zeros((), dtype=tokens[0].dtype)
    outputs, balance, z, dropped, counts = [], zero, zero, [], [0] * experts
    size = config.capacity_group_tokens or len(tokens)
    for start in range(0, len(tokens), size):
        group = range(start, min(start + size, len(tokens)))
        n_real = sum(real[number] for number in group)
        capacity = len(group)
        if training and config.capacity_factor is not None:
            capacity = math.floor(config.capacity_factor * n_real / experts)
        chosen, probability_sum = [0] * experts, torch.zeros(experts, dtype=zero.dtype)
        for number in group:
            x = tokens[number]
            outputs.append(torch.zeros_like(x))
            if not real[number]:
                continue
            logits = weights[prefix + ".router.weight"] @ x
            probabilities = torch.softmax(logits, 0)
            expert = int(torch.argmax(probabilities))
            probability_sum = probability_sum + probabilities
            z = z + torch.log(torch.exp(logits).sum()) ** 2 / sum(real)
            chosen[expert] += 1
            if chosen[expert] > capacity:
                dropped.append(number)
                continue
            y = swiglu(x, gate_up[expert, :inner], gate_up[expert, inner:], down[expert])
            outputs[-1] = probabilities[expert] * y
        if n_real:  # else a group of padding alone
            share = torch.tensor(chosen, dtype=zero.dtype) / n_real
            balance = balance + experts * (probability_sum * share).sum() / sum(real)
        counts = [a + b for a, b in zip(counts, chosen, strict=True)]
    return outputs, balance, z, dropped, counts


def run(weights, config, input_ids, training, attention_mask=None):
    """The whole model on `input_ids [B, S]`; `weights` is the state dict of a `SwitchMoeForCausalLM`.

    Returns logits `[B, S, V]`; losses summed over blocks; per block dropped tokens as (row, position), and counts.
    """
    rows, length = input_ids.shape
    real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    stream = [[weights["model.embed_tokens.weight"][int(t)] for t in row] for row in input_ids]
    zero = torch.zeros((), dtype=weights["lm_head.weight"].dtype)
    result = SimpleNamespace(balance_loss=zero, z_loss=zero, dropped=[], counts=[])
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
