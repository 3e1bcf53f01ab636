"""A decoder of transformers in the terms of laws, counted on its class: built on the meta device, without memory.

Experts are the modules that transformers marks (`use_experts_implementation` gives them `_is_expert_parallel`), else
those of stacked matrices [E, …]; how many of them a token takes says the configuration.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hub.base.errors import InputError
from scaling_law.size.architecture import Architecture, LatentAttention
from scaling_law.size.model_configs import LATENT

# What classes call the same: widths of feed-forwards, shared experts, and experts that a token takes.
_WIDTHS = ("intermediate_size_mlp", "intermediate_size", "ffn_dim", "decoder_ffn_dim", "n_inner", "ffn_hidden_size")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_CHUNKS = ("chunk_size", "mamba_chunk_size", "block_size")  # into which recurrences cut a sequence
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")


_POSITIONS = re.compile(r"wpe\.|\w*position\w*\.")
_NOT_CAUSAL = ("cpmant", "xlm", "xlnet")


def as_decoder(config: Any) -> Any:
    """The configuration, set to attend to the past alone. ValueError for what is more than a decoder of tokens."""
    kind = config.model_type
    if parts := [name for part in vars(config).values() if (name := getattr(part, "model_type", None))]:
        raise InputError(f"{kind} is more than a decoder of tokens; its parts are {', '.join(parts)}")
    if config.is_encoder_decoder:
        raise InputError(f"{kind}: is_encoder_decoder=True: laws here are of decoders only")
    if kind in _NOT_CAUSAL:
        raise InputError(f"{kind} is not causal: transformers gives it the tokens that it predicts")
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    return config


def on_meta(config: Any) -> nn.Module:
    """The class of a configuration without weights, with kernels whose FLOPs torch counts.

    ValueError, in one line, where the class refuses the configuration.
    """
    from transformers import AutoModelForCausalLM

    kernels = {"attn_implementation": "eager", "experts_implementation": "batched_mm"}
    with _one_line(config, "built"), torch.device("meta"):
        # Of a copy: the kernels are written into the configuration, with which a run then trains.
        return AutoModelForCausalLM.from_config(copy.deepcopy(config), trust_remote_code=False, **kernels)


@contextmanager
def _one_line(config: Any, what: str, but: str | None = None) -> Iterator[None]:
    """Raise a class's error, whatever its type, as a ValueError of one line; drop one that has the word `but`."""
    try:
        yield
    except Exception as error:
        if but and but in str(error):
            return
        reason = _culprit(config, error) + (" ".join(str(error).split()) or type(error).__name__)
        raise InputError(f"transformers' {config.model_type} cannot be {what}: {reason[:200]}") from None


def _culprit(config: Any, error: Exception) -> str:
    """The fields that hold what a class looks up in vain, or the zero by which it divides; they differ from defaults.

    Such errors of Python's say the value alone, or not even that.
    """
    if not isinstance(error, KeyError | ZeroDivisionError):
        return ""
    value = next(iter(error.args), None) if isinstance(error, KeyError) else 0
    fields = config.to_diff_dict()
    fields |= {name: at for part in fields.values() if isinstance(part, dict) for name, at in part.items()}
    equal = {name: at for name, at in fields.items() if type(at) is type(value) and at == value}
    named = [f"{name}={at!r}" for name, at in equal.items() if not name.endswith("_token_id")]
    return f"{', '.join(named)}: {type(error).__name__} " if named else ""


def forward_flops(model: nn.Module, tokens: int) -> float:
    """FLOPs per token of a forward pass of one sequence of `tokens` through a model on the meta device.

    All matrix products, with the whole square of attention. Any error of a class whose path depends on values.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad(), torch.device("meta"):
        _forward(model, tokens)
    return counter.get_total_flops() / tokens


def training_flops(config: Any, length: int) -> float | None:
    """FLOPs per token of training in sequences of `length`: three forward passes, as torch counts them on the class.

    None for a class whose path depends on values, which has none on the meta device.
    """
    with suppress(Exception):  # every class has errors of its own
        first, each = _flops_of_positions(_text(config.to_dict()))
        return 3 * (first + each * length)
    return None


@lru_cache
def _flops_of_positions(fields: str) -> tuple[float, float]:
    """FLOPs of one token's forward pass, and what each position of its sequence adds.

    From two short sequences of whole chunks: attention here has its whole square, all else is the same for each token
    (but for the reference code of Mamba 2, which passes states on between all pairs of chunks).
    """
    config = _config(fields)
    linear = "linear_attention" in (getattr(config, "layer_types", None) or ())  # in chunks of 64
    length, model = _first(config, _CHUNKS) or (64 if linear else 2), on_meta(config)
    short, long = (forward_flops(model, tokens) for tokens in (length, 2 * length))
    return 2 * short - long, (long - short) / length


def _forward(model: nn.Module, tokens: int) -> Any:
    ids, mask = torch.zeros(1, tokens, dtype=torch.long), torch.zeros(1, 1, tokens, tokens)
    try:  # a mask keeps most classes from looking into the values of one of their own
        return model(input_ids=ids, attention_mask=mask, use_cache=False)
    except Exception as error:
        first = error
    try:
        return model(input_ids=ids, use_cache=False)
    except Exception as error:
        raise (first if "meta" in str(error) else error) from None


def without_gradient(config: Any) -> list[str]:
    """Parameters of a class that no loss moves, such as DeepSeek's indexer, which picks positions by top-k.

    In sequences of at most 256 tokens; [] where a class cannot be passed on the meta device.
    """
    model, length = on_meta(config).train(), min(getattr(config, "max_position_embeddings", None) or 256, 256)
    with suppress(Exception), torch.device("meta"):  # of a class whose path depends on values
        _forward(model, length).logits.sum().backward()
        return [name for name, parameter in model.named_parameters() if parameter.grad is None]
    return []


def read_class(fields: Mapping[str, Any]) -> tuple[Architecture, dict[str, int]]:
    """The architecture of a class of transformers with these fields of config.json, and what laws leave out, by name.

    Laws leave out norms, biases and other vectors, routers, learned positions and DeepSeek's indexer; every other
    parameter is counted.
    ValueError, in one line, for a type that is not causal, for what does not build or run, and for experts that cannot
    be told.
    """
    return _read(_text(fields))


def _text(fields: Mapping[str, Any]) -> str:
    """Fields as a key of caches."""
    return json.dumps(dict(fields), sort_keys=True, default=str)


def _config(fields: str) -> Any:
    """The decoder's configuration of such a text. ValueError for a type that is none."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    values = json.loads(fields)
    if (kind := values.get("model_type")) not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise InputError(f"model_type={kind!r}: transformers has no causal language model of this type")
    return as_decoder(CONFIG_MAPPING[kind].from_dict(values))


@lru_cache
def _read(fields: str) -> tuple[Architecture, dict[str, int]]:
    config = _config(fields)
    model = on_meta(config)
    sparse = [block for block in _blocks(model) if _experts(block)]
    experts = [part for block in sparse for part in _experts(block)]
    routed = _routed(sparse, experts, config) if sparse else {}
    number = routed.get("experts", 1)
    left_out: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        left_out[_left_out_as(name, parameter, config.hidden_size, number)] += parameter.numel()
    counted = left_out.pop("")
    biases = sum(p.numel() for part in experts for name, p in part.named_parameters() if not _is_matrix(name, p))
    if idle := biases - biases * routed.get("experts_per_token", 1) // number:
        left_out.update({"biases": -idle, "idle biases": idle})
    architecture = _architecture(model, config, routed, counted)
    with _one_line(config, "run", but="meta"):  # where the path of a class depends on values
        forward_flops(model, 2)
    return architecture, dict(left_out)


def _left_out_as(name: str, parameter: Tensor, d: int, experts: int) -> str:
    """What laws leave a parameter out as; "" if they count it."""
    if part := next((part for part in ("indexer", "sinks") if part in name), ""):
        return part
    if not _is_matrix(name, parameter):
        return "norms" if "norm" in name else "biases" if name.endswith("bias") else "vectors"
    if _POSITIONS.search(name):  # as many as the longest sequence has
        return "positions"
    return "router" if tuple(parameter.shape) in {(experts, d), (1, d)} else ""  # and gates of one row


def _is_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim > 1 and not name.endswith("bias")


def _size(module: nn.Module, part: str = "") -> int:
    """Elements of the matrices whose names have `part`, gates of one row left out."""
    named = module.named_parameters()
    return sum(p.numel() for name, p in named if part in name and _is_matrix(name, p) and p.shape[0] > 1)


def _blocks(model: nn.Module) -> nn.ModuleList:
    """The blocks of a decoder: of its lists of modules the one with most parameters."""
    return max((part for part in model.modules() if isinstance(part, nn.ModuleList)), key=_size)


def _experts(module: nn.Module) -> list[nn.Module]:
    """The modules of routed experts. ValueError for experts that are not stacked matrices."""
    parts = [part for name, part in module.named_modules() if "shared" not in name]
    if marked := [part for part in parts if hasattr(part, "_is_expert_parallel")]:
        return marked
    named = [part for part in parts if getattr(part, "num_experts", 1) > 1]
    stacked = [part for part in named if any(p.ndim == 3 for p in part.parameters(recurse=False))]
    if named and not stacked:
        raise InputError(f"{type(named[0]).__name__}: its experts are not stacked matrices, [experts, …]")
    return stacked


def _routed(sparse: list[nn.Module], experts: list[nn.Module], config: Any) -> dict[str, Any]:
    """What an `Architecture` has of the experts in the blocks `sparse`."""
    numbers = {next(part.parameters()).shape[0] for part in experts}
    if len(numbers) > 1 or getattr(config, "zero_expert_num", 0):
        raise InputError("its blocks or tokens have different numbers of experts")
    number, unit, size = numbers.pop(), config.hidden_size * len(sparse), sum(map(_size, experts))
    gated = all(getattr(part, "has_gate", True) for part in experts) and not size % (3 * unit * number)
    unit *= 3 if gated else 2
    width, rest = divmod(size, unit * number)
    if rest:
        raise InputError("its experts have no whole width in terms of hidden_size")
    shared = max(1, _first(config, _SHARED) or 1)
    d_shared = sum(_size(block, "shared") for block in sparse) // (unit * shared)
    if (per_token := experts_per_token(config)) is None:
        raise InputError("no field says how many experts a token takes")
    options = {"experts_per_token": per_token, "experts": number, "gated": gated, "d_expert": width}
    return options | ({"shared_experts": shared, "d_shared": d_shared} if d_shared else {})


def _architecture(model: nn.Module, config: Any, routed: dict[str, Any], counted: int) -> Architecture:
    d, heads = config.hidden_size, _first(config, ("num_attention_heads",)) or 1
    blocks, embedding, head = config.num_hidden_layers, model.get_input_embeddings(), model.get_output_embeddings()
    options = {"tied_embeddings": head is None or head.weight is embedding.weight} | routed
    dense = [block for block in _blocks(model) if not _experts(block)]
    if dense or not routed:
        width, gated = _feed_forward(dense, config)
        options |= {"dense_blocks": len(dense), "d_ff": width} if routed else {"d_expert": width, "gated": gated}
    if latent := _first(config, LATENT[:1]):
        options["latent_attention"] = LatentAttention(latent, *(_first(config, (name,)) for name in LATENT[1:]))
    else:
        options["n_kv_heads"] = _first(config, ("num_key_value_heads",)) or heads
        options["head_dim"] = _first(config, ("head_dim",)) or d // heads
    plain = Architecture(d, n_blocks=blocks, n_heads=heads, vocab_size=config.vocab_size, **options)
    mixers = counted - plain.n_total + plain.attention_parameters
    if mixers == plain.attention_parameters:
        return plain
    if mixers < 0:
        raise InputError("its embedding is narrower than hidden_size, or its blocks share weights, which laws do not")
    return replace(plain, mixer_parameters=mixers, attention_blocks=_attention_blocks(config, plain))


def _feed_forward(blocks: list[nn.Module], config: Any) -> tuple[int, bool]:
    """Width of the feed-forward of dense blocks, and whether it has three matrices.

    That of the configuration, if all have such matrices; else that of feed-forwards as large as the blocks.
    """
    d, width = config.hidden_size, _first(config, _WIDTHS) or 4 * config.hidden_size
    counts = set()
    for block in blocks:
        matrices = [p for name, p in block.named_parameters() if _is_matrix(name, p) and "att" not in name]
        counts.add(sum(p.numel() for p in matrices if {*p.shape} in ({d, width}, {d, 2 * width})) / (d * width))
    if counts in ({2}, {3}):
        return width, counts == {3}
    return max(1, sum(map(_size, blocks)) // (3 * d * len(blocks))), True


def _attention_blocks(config: Any, a: Architecture) -> int:
    """Blocks whose FLOPs grow with the positions before a token; all, where a class cannot be passed on meta."""
    if (counted := training_flops(config, 1)) is None:
        return a.blocks
    share = (training_flops(config, 2) - counted) / (a.training_flops(1, 2) - a.training_flops(1, 1))
    return min(a.blocks, max(0, round(share * a.blocks)))


def experts_per_token(config: Any) -> int | None:
    """The configured number, by any of its names."""
    return _first(config, _PER_TOKEN)


def _first(config: Any, names: Iterable[str]) -> int | None:
    """The value of the first field that has a number; of fields that differ between blocks, the first block's."""
    config = config.per_layer_config[0] if getattr(config, "is_heterogeneous", False) else config
    values = (getattr(config, name, None) for name in names)
    value = next((value for value in values if value is not None), None)
    return value[0] if isinstance(value, list) else value
