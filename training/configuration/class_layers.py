"""What each block of a decoder of transformers attends to and keeps, read from its class on the meta device.

Its layer type says how many keys a block sees, torch's count of the block's products how many elements each is
multiplied with, and the cache that the class itself fills what is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from scaling_law.size.architecture import Architecture, Span, selected_keys

# FLOPs of batched products by module.
FlopsByModule = Mapping[str, float]
# Layer types that attend to no position.
_WITHOUT_KEYS = ("conv", "linear_attention", "moe", "mlp")
# Fields that say in which type engines keep recurrent states.
_STATE_DTYPES = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
# Layer types that see so many keys as a field says.
_LIMITS = {"local": "window_size", "chunked_attention": "attention_chunk_size", "indexed_attention": "index_topk"}
_INDEXER = "indexer"
# Layer types whose keys an indexer selects.
_SELECTING = ("indexed_attention", "minimax_m3_sparse")


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Return whether a parameter is neither a vector nor a bias."""
    return parameter.ndim > 1 and not name.endswith("bias")


def list_matrices(*modules: nn.Module) -> list[tuple[str, Tensor]]:
    """List the matrices of modules with their names."""
    matrices: list[tuple[str, Tensor]] = []
    for module in modules:
        matrices += [item for item in module.named_parameters() if is_matrix(*item)]
    return matrices


def count_elements(*modules: nn.Module, word: str = "") -> int:
    """Count the elements of the matrices whose names have the `word`."""
    return sum(matrix.numel() for name, matrix in list_matrices(*modules) if word in name)


def spans_of_blocks(
    model: nn.Module,
    blocks: nn.ModuleList,
    config: Any,
    architecture: Architecture,
    slopes: FlopsByModule | None,
    output: Any,
) -> Iterator[list[Span]]:
    """Read the spans of every block.

    `slopes` are FLOPs of one token for each position of its sequence, None for a class without a path on the meta
    device; `output` that of a short forward pass with a cache, None where the class has no such path: then the layer
    types alone say what a block attends to, and states are not known.
    """
    kinds = _layer_types(config)
    no_layers = [None] * len(blocks)
    layers = [*_cache_layers(output), *no_layers][: len(blocks)]
    sharing_modes = getattr(config, "kv_sharing_modes", None) or no_layers
    root = next(f"{type(model).__name__}.{name}" for name, module in model.named_modules() if module is blocks)
    keys = []
    for i, (kind, layer, mode) in enumerate(zip(kinds, layers, sharing_modes, strict=True)):
        of_block = None
        if slopes is not None:
            of_block = {name: flops for name, flops in slopes.items() if f"{name}.".startswith(f"{root}.{i}.")}
        keys.append(_keys_of_block(architecture.attention, kind, layer, mode == "reuse", of_block))
    recurrent_blocks = sum(not span.multiplied for span in keys)
    for span, kind, layer, fields, block in zip(keys, kinds, layers, config.per_layer_config, blocks, strict=True):
        if hasattr(layer, "compressed_kv"):
            yield _compressed_keys(architecture.attention, fields, block, layer)
            continue
        state = _state(layer, config)
        if not state and not span.multiplied:
            state = _loose_state(output, block, recurrent_blocks)
        yield [*_keys_in_sight(span, kind, fields, block), *state]


def _keys_of_block(
    attention: Span,
    kind: str,
    layer: Any,
    is_reused: bool,
    slopes: FlopsByModule | None,
) -> Span:
    """Return the span of a block: what the class multiplies a key with, and what its cache holds for it."""
    keys = getattr(layer, "keys", None)
    span = attention
    if is_reused:
        span = replace(attention, cached=0)
    elif isinstance(keys, Tensor):
        span = replace(attention, cached=_width(keys) + _width(layer.values))
    elif layer is not None or kind in _WITHOUT_KEYS:
        return replace(attention, multiplied=0, cached=0)
    if slopes is None:
        return span
    multiplied = _products_of_keys(slopes, has_state=bool(_state(layer, None)))
    return replace(span, multiplied=multiplied, cached=span.cached if multiplied else 0)


def _keys_in_sight(span: Span, kind: str, fields: Any, block: nn.Module) -> list[Span]:
    """Read the keys that a block sees: all, a window, a chunk, or a selection."""
    if hasattr(fields, "indexer_budget") and kind == "indexed_attention":
        return _pooled_selection(span, fields, block)
    limit = _limit(kind, fields)
    if kind not in _SELECTING or limit is None:
        return [replace(span, limit=limit)]
    weights = count_elements(block, word=_INDEXER)
    if not weights:
        return selected_keys(span, limit)
    return selected_keys(span, limit, fields.index_n_heads, fields.index_head_dim, weights)


def _pooled_selection(span: Span, fields: Any, block: nn.Module) -> list[Span]:
    """Read keys that an indexer selects by the means of some consecutive ones (Qwen4); all keys stay in the cache."""
    width = fields.indexer_head_dim
    return [
        *selected_keys(span, fields.indexer_budget, index_width=width),
        Span(1, stride=fields.indexer_compress_ratio, multiplied=fields.indexer_n_heads * width, cached=0),
        Span(1, once=True, multiplied=count_elements(block, word=_INDEXER), cached=0),
    ]


def _limit(kind: str, fields: Any) -> int | None:
    """Return the most keys that a token of this layer type sees; None for all of them."""
    if kind == "minimax_m3_sparse":
        return int(fields.index_topk_blocks * fields.index_block_size)
    name = "sliding_window" if "sliding" in kind else _LIMITS.get(kind, "")
    return getattr(fields, name, None) or None


def _compressed_keys(attention: Span, fields: Any, block: nn.Module, layer: Any) -> list[Span]:
    """Read a window of keys that are their values, too, and compressed keys of all that is before (DeepSeek-V4)."""
    stride = layer.compress_rate
    widths = {name: kv.shape[-1] for name, kv in layer.compressed_kv.items()}
    window = replace(attention, limit=layer.sliding_window, cached=_width(layer.keys))
    if "indexer" not in widths:
        return [window, Span(1, stride=stride, multiplied=attention.multiplied, cached=widths["compressor"])]
    index_width = fields.index_n_heads * fields.index_head_dim
    return [
        window,
        Span(1, fields.index_topk, stride, multiplied=attention.multiplied, cached=0),
        Span(1, stride=stride, multiplied=index_width, cached=sum(widths.values())),
        Span(1, once=True, multiplied=count_elements(block, word=_INDEXER), cached=0),
    ]


def _products_of_keys(slopes: FlopsByModule, has_state: bool) -> int:
    """Count the elements that a block multiplies one key with, in scores and values, by torch's batched products.

    Those of an indexer are not of attention, nor are those of a scan in a block that has a state beside its keys.
    """
    attention = [name for name in slopes if not has_state or "att" in name.rpartition(".")[2]]
    folders = tuple(f"{name}." for name in attention)
    outermost = [name for name in attention if not name.startswith(folders)]
    indexers = [name for name in slopes if name.endswith(".indexer")]
    flops = sum(slopes[name] for name in outermost) - sum(slopes[name] for name in indexers)
    return round(flops / 2)


def _layer_types(config: Any) -> list[str]:
    """List the type of every layer, by whichever field says it."""
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if kinds is not None:
        return list(kinds)
    kinds = []
    for fields in config.per_layer_config:
        kind = "chunked_attention" if getattr(fields, "attention_chunk_size", None) else "full_attention"
        kinds.append("sliding_attention" if getattr(fields, "sliding_window", None) else kind)
    return kinds


def _cache_layers(output: Any) -> list[Any]:
    """List the layers of the cache in a model's output."""
    for value in (output or {}).values():
        cache = getattr(value, "self_attention_cache", value)
        if hasattr(cache, "layers"):
            return list(cache.layers)
    return []


def _state(layer: Any, config: Any) -> list[Span]:
    """Read the state that a layer of the cache holds beside keys: of a recurrence, and of a short convolution.

    The configuration may say in which type engines keep a recurrence; else it is kept as the class does.
    """
    recurrent = [*_tensors(getattr(layer, "recurrent_states", None))]
    for name in _STATE_DTYPES:
        dtype = getattr(torch, str(getattr(config, name, None)), None)
        if isinstance(dtype, torch.dtype):
            recurrent = [tensor.to(dtype) for tensor in recurrent]
    return _span_of_state(recurrent, [*_tensors(getattr(layer, "conv_states", None))])


def _span_of_state(
    recurrent: list[Tensor],
    convolved: list[Tensor],
    blocks: int = 1,
) -> list[Span]:
    """Make the span of a state that so many blocks share; none of an empty state.

    Elements of a recurrence are each updated and read once per token.
    """
    tensors = recurrent + convolved
    cached = _elements(tensors) // blocks
    if not cached:
        return []
    state_bytes = sum(tensor.nbytes for tensor in tensors) // blocks
    return [Span(1, once=True, multiplied=_elements(recurrent) // blocks * 2, cached=cached, entry_bytes=state_bytes)]


def _loose_state(output: Any, block: nn.Module, recurrent_blocks: int) -> list[Span]:
    """Read a state that a class hands out in its own way (RWKV, MiniMax), or keeps in its blocks (RecurrentGemma)."""
    if output is None:
        return []
    values = {name: value for name, value in output.items() if name != "logits"}
    if values:
        return _span_of_state([*_tensors(values)], [], recurrent_blocks)
    buffers = [[*vars(module).values()] for module in block.modules()]
    return _span_of_state([*_tensors(buffers)], [])


def _elements(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Find all tensors in lists and mappings, parameters aside, and in a cache beside its layers."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        yield value
    elif hasattr(value, "layers"):
        yield from _tensors({**vars(value), "layers": None})
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name != "_buffers":
                yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _width(keys: Tensor) -> int:
    """Count the elements of one position."""
    return keys.numel() // (keys.shape[0] * keys.shape[-2])
