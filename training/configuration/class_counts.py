"""A decoder of transformers in the terms of laws, counted on its class: built on the meta device, without memory.

Experts are the modules that hold `num_experts` stacked matrices [E, …]; how many of them a token takes says the
configuration.
"""

from __future__ import annotations

import copy
import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as fx_config
from torch.utils.flop_counter import FlopCounterMode

from hub.base.errors import InputError
from scaling_law.size.architecture import Architecture
from scaling_law.size.model_configs import FAMILIES
from training.configuration.class_layers import Parts, is_matrix, spans_of_blocks

# What classes call the same: widths of feed-forwards, shared experts, and experts that a token takes.
_WIDTHS = ("intermediate_size_mlp", "intermediate_size", "ffn_dim", "decoder_ffn_dim", "n_inner", "ffn_hidden_size")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_CHUNKS = ("chunk_size", "mamba_chunk_size", "block_size")  # into which recurrences cut a sequence
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
_LATENT = FAMILIES["deepseek_v3"]["architecture"]["latent_attention"]
_POSITIONS = re.compile(r"wpe\.|\w*position\w*\.")
# The number of matrices that a module of experts stacks.
_EXPERTS = ("num_experts", "num_routed_experts")
_OTHER_TYPE = "choose another type, such as llama"
_LONGEST_REASON = 200  # characters of a class's own error


def as_decoder(config: Any) -> Any:
    """The configuration, set to attend to the past alone. ValueError for what is more than a decoder of tokens."""
    kind = config.model_type
    parts = [part.model_type for part in vars(config).values() if getattr(part, "model_type", None)]
    if parts:
        raise InputError(explain_parts(kind, parts))
    if config.is_encoder_decoder:
        raise InputError(f"{kind}: is_encoder_decoder=True: laws here are of decoders only; {_OTHER_TYPE}")
    if kind in ("cpmant", "xlm", "xlnet"):
        raise InputError(f"{kind} is not causal: transformers gives it the tokens that it predicts; {_OTHER_TYPE}")
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    return config


def explain_parts(kind: str, parts: list[str]) -> str:
    """Explain why a type that is made of these types is refused, and which of them to choose instead."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    causal = [part for part in parts if part in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]
    advice = f"choose {causal[0]}" if causal else _OTHER_TYPE
    return f"{kind} is more than a decoder of tokens; its parts are {', '.join(parts)}; {advice}"


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
    """Raise a class's error, whatever its type, as a ValueError of one line; drop one that has the word `but`.

    `config` is a configuration, or the model type of one that cannot be made.
    """
    try:
        yield
    except Exception as error:
        if but is None or but not in str(error):
            kind = getattr(config, "model_type", config)
            raise InputError(f"transformers' {kind} cannot be {what}: {_reason(config, error)}") from None


def _reason(config: Any, error: Exception) -> str:
    """A class's error in one line, cut after a word, with the fields that caused it, and what to do."""
    reason = textwrap.shorten(str(error), _LONGEST_REASON, placeholder=" …") or "it does not say why"
    culprits = "" if isinstance(config, str) else _culprits(config, error)
    if not culprits:
        return f"{reason} ({type(error).__name__}); give other fields, or {_OTHER_TYPE}"
    if isinstance(error, ZeroDivisionError):
        return f"{culprits} must be at least 1"
    return f"{culprits}: {type(error).__name__} {reason}; give another value"


def _culprits(config: Any, error: Exception) -> str:
    """Changed fields with the value that is looked up in vain or divided by, which Python's errors do not name."""
    value = str(error) if isinstance(error, KeyError) else "0" if isinstance(error, ZeroDivisionError) else None
    fields = config.to_diff_dict()
    fields |= {name: at for part in fields.values() if isinstance(part, dict) for name, at in part.items()}
    equal = [name for name, at in fields.items() if repr(at) == value and not name.endswith("_token_id")]
    return ", ".join(f"{name}={value}" for name in equal)


def forward_flops(model: nn.Module, tokens: int) -> float:
    """FLOPs per token of a forward pass of one sequence of `tokens` through a model on the meta device.

    All matrix products, with the whole square of attention, windows or not. Any error of a class whose path depends on
    values.
    """
    return sum(_flops_by_part(model, tokens)["Global"].values())


def _flops_by_part(model: nn.Module, tokens: int) -> dict[str, dict[str, float]]:
    """FLOPs per token by module and operation; "Global" is the whole model."""
    with torch.no_grad():
        counter = _forward(model, tokens, counting=lambda: FlopCounterMode(display=False))[1]
    parts = counter.get_flop_counts()
    return {part: {str(op): flops / tokens for op, flops in counts.items()} for part, counts in parts.items()}


def _forward(
    model: nn.Module, tokens: int, counting: Callable[[], Any] = nullcontext, use_cache: bool = False, **options: Any
) -> tuple[Any, Any]:
    """Its output, and what counted the pass; a mask keeps most classes from looking into the values of their own."""
    errors = []
    with torch.device("meta"):
        ids = torch.zeros(1, tokens, dtype=torch.long)
        for mask in (torch.zeros(1, 1, tokens, tokens), None):
            try:
                with counting() as counter:
                    return model(input_ids=ids, attention_mask=mask, use_cache=use_cache, **options), counter
            except Exception as error:
                errors.append(error)
    raise errors[0] if "meta" in str(errors[1]) else errors[1]


def training_flops(config: Any, length: int) -> float | None:
    """FLOPs per token of training in sequences of `length`: three forward passes, as torch counts them on the class.

    Of attention's whole square, without the causal half, only the keys count that windows, chunks and indexers leave.
    None for a class whose path depends on values, which has none on the meta device.
    """
    a, _, flops = _count(_text(config.to_dict()))
    if flops is None:
        return None
    unseen = sum(span.blocks * (span.multiplied or 0) * span.hidden(length) for span in a.all_spans)
    return 3 * (flops[0] + flops[1] * length - 2 * unseen)


def without_gradient(config: Any) -> list[str]:
    """Parameters of a class that no loss moves, such as DeepSeek's indexer, which picks positions by top-k.

    In sequences of at most 256 tokens; [] where a class cannot be passed on the meta device.
    """
    model, length = on_meta(config).train(), min(getattr(config, "max_position_embeddings", None) or 256, 256)
    # The path of a class may depend on values, which the meta device lacks.
    with suppress(Exception):
        _forward(model, length)[0].logits.sum().backward()
        return [name for name, parameter in model.named_parameters() if parameter.grad is None]
    return []


def read_class(fields: Mapping[str, Any]) -> tuple[Architecture, dict[str, int]]:
    """The architecture of a class of transformers with these fields of config.json, and what laws leave out, by name.

    Laws leave out norms, biases and other vectors, routers, learned positions and DeepSeek's indexer; every other
    parameter is counted.
    ValueError, in one line, for a type that is not causal, for what does not build or run, and for experts that cannot
    be told.
    """
    return _count(_text(fields))[:2]


def _text(fields: Mapping[str, Any]) -> str:
    """Fields as a key of the cache."""
    return json.dumps(dict(fields), sort_keys=True, default=str)


@lru_cache
def _count(fields: str) -> tuple[Architecture, dict[str, int], tuple[float, float] | None]:
    """Architecture, what laws leave out, and FLOPs of one token's forward pass and of each position that it sees."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    values = json.loads(fields)
    if (kind := values.get("model_type")) not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise InputError(f"model_type={kind!r}: transformers has no causal language model of this type")
    with _one_line(kind, "read"):
        config = CONFIG_MAPPING[kind].from_dict(values)
    config = as_decoder(config)
    model = on_meta(config)
    blocks = max((part for part in model.modules() if isinstance(part, nn.ModuleList)), key=_size)
    _check_layers(blocks, config)
    experts, parts = _experts(blocks), _flops_of_positions(model, config)
    a, left_out = _plain(model, blocks, experts, config), Counter[str]()
    for name, parameter in model.named_parameters():
        left_out[_left_out_as(name, parameter, a)] += parameter.numel()
    if biases := sum(p.numel() for part in experts for p in part.parameters()) - _size(*experts):
        idle = biases - biases * a.experts_per_token // a.experts
        left_out.update({"biases": -idle, "idle biases": idle})
    mixers = left_out.pop("") - a.n_total + a.attention_parameters
    if mixers < 0:
        raise InputError(_explain_fewer_parameters(model, blocks, a))
    if mixers != a.attention_parameters:
        a = replace(a, mixer_parameters=mixers)
    slopes = None if parts is None else parts[1]
    a = a.attending(spans_of_blocks(model, blocks, config, a, slopes, _cached(model, config)))
    flops = None if parts is None else (sum(parts[0]["Global"].values()), sum(parts[1]["Global"].values()))
    if parts is None:
        # The path of a class may depend on values, which the meta device lacks.
        with _one_line(config, "run", but="meta"):
            forward_flops(model, 2)
    return a, dict(left_out), flops


def _flops_of_positions(model: nn.Module, config: Any) -> tuple[Parts, Parts] | None:
    """FLOPs of one token's forward pass, and what each position of its sequence adds; None where a class has no path.

    From two short sequences of whole chunks: attention here has its whole square, all else is the same for each token
    (but for the reference code of Mamba 2, which passes states on between all pairs of chunks).
    """
    length = _chunk(config)
    with suppress(Exception):  # every class has errors of its own
        short, long = (_flops_by_part(model, tokens) for tokens in (length, 2 * length))
        constant: dict[str, dict[str, float]] = {}
        slope: dict[str, dict[str, float]] = {}
        for part, counts in long.items():
            before = short.get(part, {})
            constant[part] = {op: 2 * before.get(op, 0.0) - flops for op, flops in counts.items()}
            slope[part] = {op: (flops - before.get(op, 0.0)) / length for op, flops in counts.items()}
        return constant, slope
    return None


def _chunk(config: Any) -> int:
    """Tokens of one chunk of recurrent blocks; 2 without such."""
    # Linear attention works in chunks of 64.
    linear = "linear_attention" in (getattr(config, "layer_types", None) or ())
    return _first(config, *_CHUNKS) or (64 if linear else 2)


def _cached(model: nn.Module, config: Any) -> Any:
    """The output of a short forward pass with the cache of the class; None where it has no such path."""
    output = _pass_with_cache(model, config)
    if output is None:  # hybrids without attention cannot find the positions
        output = _pass_with_cache(model, config, position_ids=torch.arange(_chunk(config), device="meta")[None])
    return output


def _pass_with_cache(model: nn.Module, config: Any, **options: Any) -> Any:
    """Make a pass with the cache of the class; returns its output, None where it fails."""
    # Every class has errors of its own. An indexer may look for the keys that are visible (Qwen4): here all of them.
    with suppress(Exception), torch.no_grad(), fx_config.patch(meta_nonzero_assume_all_nonzero=True):
        return _forward(model, _chunk(config), use_cache=True, **options)[0]
    return None


def generates(config: Any) -> bool:
    """Tell whether the class can count the tokens before, as `generate` must; a hybrid without attention cannot.

    True also for a class that cannot be passed on the meta device.
    """
    model = on_meta(config).eval()
    positions = torch.arange(_chunk(config), device="meta")[None]
    return (
        _pass_with_cache(model, config) is not None or _pass_with_cache(model, config, position_ids=positions) is None
    )


def _left_out_as(name: str, parameter: Tensor, a: Architecture) -> str:
    """What laws leave a parameter out as; "" if they count it."""
    if part := next((part for part in ("indexer", "sinks") if part in name), ""):
        return part
    if not is_matrix(name, parameter):
        return "norms" if "norm" in name else "biases" if name.endswith("bias") else "vectors"
    # There are as many positions as the longest sequence has.
    if _POSITIONS.search(name):
        return "positions"
    routers = {(a.experts, a.d_model), (1, a.d_model)}  # and gates of one row
    return "router" if tuple(parameter.shape) in routers else ""


def _matrices(*modules: nn.Module) -> list[tuple[str, Tensor]]:
    return [item for module in modules for item in module.named_parameters() if is_matrix(*item)]


def _size(*modules: nn.Module, part: str = "") -> int:
    """Elements of the matrices whose names have `part`."""
    return sum(p.numel() for name, p in _matrices(*modules) if part in name)


def _check_layers(blocks: nn.ModuleList, config: Any) -> None:
    """Refuse blocks that are passed several times (HRM), or that hold several layers each (LongCat)."""
    numbers = {getattr(part, "layer_idx", None) for part in blocks.modules()} - {None}
    layers = max(len(numbers), config.num_hidden_layers)
    if layers > len(blocks):
        sizes = f"{config.model_type} makes {layers} layers of {len(blocks)} blocks"
        raise InputError(f"{sizes}, where laws count one layer a block; {_OTHER_TYPE}")


def _explain_fewer_parameters(model: nn.Module, blocks: nn.ModuleList, a: Architecture) -> str:
    """Explain why a model has fewer parameters than laws count for its sizes, and what to do."""
    every = sum(p.numel() for _, p in blocks.named_parameters(remove_duplicate=False))
    own = sum(p.numel() for p in blocks.parameters())
    width = model.get_input_embeddings().weight.shape[1]
    if every > own:
        reason = f"its blocks share weights ({own:,} of {every:,} are their own), where laws count each block's"
    elif width != a.d_model:
        reason = f"its embedding is {width} wide and its blocks {a.d_model}, where laws have one width"
    else:
        reason = "it has fewer parameters than laws count for its width, blocks and vocabulary"
    return f"{reason}; {_OTHER_TYPE}"


def _count_experts(module: nn.Module) -> int:
    """Count a module's routed experts, by the name that its class has for them; 1 for a module without any."""
    return next((getattr(module, name) for name in _EXPERTS if hasattr(module, name)), 1)


def _experts(blocks: nn.ModuleList) -> list[nn.Module]:
    """The modules of routed experts. ValueError for experts that are not stacked matrices."""
    named = [p for name, p in blocks.named_modules() if "shared" not in name and _count_experts(p) > 1]
    stacked = [part for part in named if any(p.ndim == 3 for p in part.parameters(recurse=False))]
    if named and not stacked:
        holder = type(named[0]).__name__
        raise InputError(f"{holder}: its experts are not stacked matrices, [experts, …]; {_OTHER_TYPE}")
    return stacked


def _plain(model: nn.Module, blocks: nn.ModuleList, experts: list[nn.Module], config: Any) -> Architecture:
    """Experts and feed-forwards as the class has them, and attention as the configuration has it."""
    d, heads = config.hidden_size, _first(config, "num_attention_heads", "num_heads") or 1
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    options: dict[str, Any] = {"tied_embeddings": head is None or head.weight is embedding.weight}
    sparse = [block for block in blocks if not {*experts}.isdisjoint(block.modules())]
    if dense := [block for block in blocks if block not in sparse]:
        unit, width = d * len(dense), _first(config, *_WIDTHS) or 4 * d
        shapes = ({d, width}, {d, 2 * width})
        sizes = [p.numel() for name, p in _matrices(*dense) if "att" not in name and {*p.shape} in shapes]
        if (matrices := sum(sizes) / (unit * width)) not in (2, 3):  # no such feed-forward: one as large as the blocks
            matrices, width = 3, max(1, _size(*dense) // (3 * unit))
        options |= {"d_ff": width, "gated": matrices == 3, "dense_blocks": len(dense) if sparse else 0}
    if sparse:
        unit, size, k = d * len(sparse), _size(*experts), experts_per_token(config)
        number = _count_experts(experts[0])
        gated = all(getattr(part, "has_gate", True) for part in experts) and size % (3 * unit * number) == 0
        unit *= 3 if gated else 2
        if k is None:
            raise InputError(f"no field says how many experts a token takes; {_OTHER_TYPE}")
        if size % (unit * number) or any(_count_experts(part) != number for part in experts):
            raise InputError(f"its experts differ in number or width from block to block; {_OTHER_TYPE}")
        options |= {"experts": number, "experts_per_token": k, "gated": gated, "d_expert": size // (unit * number)}
        shared = _first(config, *_SHARED) or 1
        if d_shared := _size(*sparse, part="shared") // (unit * shared):
            options |= {"shared_experts": shared, "d_shared": d_shared}
    if _first(config, "kv_lora_rank"):
        options["latent_attention"] = {name: _first(config, field) for name, field in _LATENT.items()}
    else:
        options["n_kv_heads"] = _first(config, "num_key_value_heads") or heads
        options["head_dim"] = _first(config, "head_dim") or d // heads
    return Architecture(d, n_blocks=config.num_hidden_layers, n_heads=heads, vocab_size=config.vocab_size, **options)


def experts_per_token(config: Any) -> int | None:
    """The configured number, by any of its names."""
    return _first(config, *_PER_TOKEN)


def _first(config: Any, *names: str) -> int | None:
    """The value of the first field that has a number; of fields that differ between blocks, the first block's."""
    config = config.per_layer_config[0] if getattr(config, "is_heterogeneous", False) else config
    values = (getattr(config, name, None) for name in names)
    value = next((value for value in values if value is not None), None)
    return value[0] if isinstance(value, list) else value
