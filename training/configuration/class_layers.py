"""What each block of a decoder of transformers attends to and keeps, read from its class on the meta device.

Its layer type says how many keys a block sees, torch's count of the block's products how many elements each is
multiplied with, and the cache that the class itself fills what is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from scaling_law.size.architecture import Architecture, Span, selected_keys

Parts = Mapping[str, Mapping[str, float]]  # FLOPs by module and operation
# Layer types that attend to no position.
_WITHOUT_KEYS = ("conv", "linear_attention", "moe", "mlp")
_SELECTING = ("indexed_attention", "minimax_m3_sparse")  # keys, by an indexer


def is_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim > 1 and not name.endswith("bias")


def spans_of_blocks(
    model: nn.Module, blocks: nn.ModuleList, config: Any, a: Architecture, slopes: Parts | None, output: Any
) -> Iterator[list[Span]]:
    """Read the spans of every block.

    `slopes` are FLOPs of one token for each position of its sequence, None for a class without a path on the meta
    device; `output` that of a short forward pass with a cache, None where the class has no such path: then the layer
    types alone say what a block attends to, and states are not known.
    """
    root = next(f"{type(model).__name__}.{name}" for name, part in model.named_modules() if part is blocks)
    kinds, configs = _layer_types(config), config.per_layer_config
    layers = [*_cache_layers(output), *[None] * len(blocks)][: len(blocks)]
    shared = getattr(config, "kv_sharing_modes", None) or [None] * len(blocks)
    keys = []
    for i, (kind, layer, mode) in enumerate(zip(kinds, layers, shared, strict=True)):
        own = _own_keys(a.attention, kind, layer, is_reused=mode == "reuse")
        if slopes is not None and own.multiplied:
            part = {name: counts for name, counts in slopes.items() if f"{name}.".startswith(f"{root}.{i}.")}
            multiplied = _products_of_keys(part, has_state=bool(_state(layer)))
            own = replace(own, multiplied=multiplied, cached=own.cached if multiplied else 0)
        keys.append(own)
    loose = _loose_states(output, blocks, keys)
    for i, block in enumerate(blocks):
        if hasattr(layers[i], "compressed_kv"):
            yield _compressed(a.attention, configs[i], block, layers[i])
        else:
            yield [*_attended(keys[i], kinds[i], configs[i], block), *(_state(layers[i]) or loose[i])]


def _own_keys(attention: Span, kind: str, layer: Any, is_reused: bool) -> Span:
    """Say what the cache holds for a key of a block; a block without keys multiplies none."""
    if is_reused:
        return replace(attention, cached=0)
    if layer is None:
        return replace(attention, multiplied=0, cached=0) if kind in _WITHOUT_KEYS else attention
    if not isinstance(keys := getattr(layer, "keys", None), Tensor):
        return replace(attention, multiplied=0, cached=0)
    return replace(attention, cached=_width(keys) + _width(layer.values))


def _attended(own: Span, kind: str, fields: Any, block: nn.Module) -> list[Span]:
    """Read the keys that a block sees: all, a window, a chunk, or a selection."""
    limit = _limit(kind, fields)
    if kind not in _SELECTING or limit is None:
        return [replace(own, limit=limit)]
    if hasattr(fields, "indexer_budget"):
        return _read_pooled_selection(own, limit, fields, block)
    weights = _indexer_weights(block)
    return selected_keys(own, limit, *((fields.index_n_heads, fields.index_head_dim, weights) if weights else ()))


def _read_pooled_selection(own: Span, limit: int, fields: Any, block: nn.Module) -> list[Span]:
    """Read keys that an indexer selects by the means of some consecutive ones (Qwen4); all keys stay in the cache."""
    width = fields.indexer_head_dim
    return [
        replace(own, limit=limit, cached=0),
        replace(own, multiplied=0, cached=(own.cached or 0) + width),
        Span(1, stride=fields.indexer_compress_ratio, multiplied=fields.indexer_n_heads * width, cached=0),
        Span(1, once=True, multiplied=_indexer_weights(block), cached=0),
    ]


def _limit(kind: str, fields: Any) -> int | None:
    """The most keys that a token of this layer type sees; None for all of them."""
    match kind:
        case "local":
            return int(fields.window_size)
        case "chunked_attention":
            return fields.attention_chunk_size
        case "indexed_attention":
            return int(fields.indexer_budget if hasattr(fields, "indexer_budget") else fields.index_topk)
        case "minimax_m3_sparse":
            return int(fields.index_topk_blocks * fields.index_block_size)
        case _ if "sliding" in kind:
            return fields.sliding_window or None
    return None


def _compressed(own: Span, fields: Any, block: nn.Module, layer: Any) -> list[Span]:
    """Read a window of keys that are their values, too, and compressed keys of all that is before (DeepSeek-V4)."""
    stride, widths = layer.compress_rate, {name: kv.shape[-1] for name, kv in layer.compressed_kv.items()}
    window = replace(own, limit=layer.sliding_window, cached=_width(layer.keys))
    if "indexer" not in widths:
        return [window, Span(1, stride=stride, multiplied=own.multiplied, cached=widths["compressor"])]
    index = fields.index_n_heads * fields.index_head_dim
    return [
        window,
        Span(1, fields.index_topk, stride, multiplied=own.multiplied, cached=0),
        Span(1, stride=stride, multiplied=index, cached=sum(widths.values())),
        Span(1, once=True, multiplied=_indexer_weights(block), cached=0),
    ]


def _indexer_weights(block: nn.Module) -> int:
    return sum(p.numel() for name, p in block.named_parameters() if "indexer" in name and is_matrix(name, p))


def _products_of_keys(slopes: Parts, has_state: bool) -> int:
    """Elements that a block multiplies one key with, in scores and values, by torch's count of batched products.

    Those of an indexer are not of attention, nor are those of a scan in a block that has a state beside its keys.
    """
    attention = [name for name in slopes if not has_state or "att" in name.rpartition(".")[2]]
    outermost = [name for name in attention if not any(name.startswith(f"{other}.") for other in attention)]
    indexers = [name for name in slopes if name.endswith(".indexer")]
    flops = sum(_batched(slopes[name]) for name in outermost) - sum(_batched(slopes[name]) for name in indexers)
    return round(flops / 2)


def _batched(counts: Mapping[str, float]) -> float:
    return sum(flops for operation, flops in counts.items() if "bmm" in operation)


def _layer_types(config: Any) -> list[str]:
    """The type of every layer, by whichever field says it."""
    if (kinds := getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)) is not None:
        return list(kinds)
    kinds = []
    for fields in config.per_layer_config:
        windowed = getattr(fields, "sliding_window", None)
        chunked = getattr(fields, "attention_chunk_size", None)
        kinds.append("sliding_attention" if windowed else "chunked_attention" if chunked else "full_attention")
    return kinds


def _cache_layers(output: Any) -> list[Any]:
    """The layers of the cache in a model's output."""
    for value in (output or {}).values():
        cache = getattr(value, "self_attention_cache", value)
        if hasattr(cache, "layers"):
            return list(cache.layers)
    return []


def _state(layer: Any) -> list[Span]:
    """Read the state that a layer of the cache holds beside keys: of a recurrence, and of a short convolution."""
    recurrent, convolved = (_elements(getattr(layer, name, None)) for name in ("recurrent_states", "conv_states"))
    return _state_of(recurrent, recurrent + convolved)


def _state_of(recurrent: int, cached: int) -> list[Span]:
    """A state of which each element is updated and read once per token."""
    return [Span(1, once=True, multiplied=2 * recurrent, cached=cached)] if cached else []


def _loose_states(output: Any, blocks: nn.ModuleList, keys: list[Span]) -> list[list[Span]]:
    """Read states that a class hands out in its own way (RWKV, MiniMax), or keeps in its blocks (RecurrentGemma)."""
    values = [value for name, value in (output or {}).items() if name != "logits"]
    handed = sum(_elements({**vars(value), "layers": None} if hasattr(value, "layers") else value) for value in values)
    recurrent = sum(not own.multiplied for own in keys)
    states: list[list[Span]] = []
    for block, own in zip(blocks, keys, strict=True):
        elements = handed // recurrent if handed and recurrent else 0
        if not values and output is not None:
            elements = sum(_elements(value) for part in block.modules() for value in vars(part).values())
        states.append([] if own.multiplied else _state_of(elements, elements))
    return states


def _elements(value: Any) -> int:
    """Elements of all tensors in lists and mappings, parameters aside."""
    if isinstance(value, Tensor):
        return 0 if isinstance(value, nn.Parameter) else value.numel()
    if isinstance(value, Mapping):
        return sum(_elements(item) for name, item in value.items() if name != "_buffers")
    return sum(map(_elements, value)) if isinstance(value, (list, tuple)) else 0


def _width(keys: Tensor) -> int:
    """Elements of one position."""
    return keys.numel() // (keys.shape[0] * keys.shape[-2])
