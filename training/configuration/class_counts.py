"""A decoder of transformers in the terms of laws, counted on its class: built on the meta device, without memory.

Experts are the modules that hold `num_experts` stacked matrices [E, …]; how many of them a token takes says the
configuration.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as fx_config
from torch.utils.flop_counter import FlopCounterMode

from hub.base.errors import InputError
from hub.base.types import Fields
from scaling_law.size.architecture import Architecture
from scaling_law.size.model_configs import FAMILIES, UnknownTypeError
from training.configuration.class_fields import is_causal_type, text_model_class

# The entry point of `scaling_law.size.model_configs` looks for it beside `read_class`.
from training.configuration.class_fields import names_read_by as names_read_by
from training.configuration.class_layers import (
    FlopsByModule,
    count_elements,
    is_matrix,
    list_matrices,
    spans_of_blocks,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Names that classes have for the same: widths of feed-forwards, shared experts, and experts that a token takes.
_WIDTHS = ("intermediate_size_mlp", "intermediate_size", "ffn_dim", "decoder_ffn_dim", "n_inner", "ffn_hidden_size")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
# Recurrences cut a sequence into chunks of this many tokens.
_CHUNKS = ("chunk_size", "mamba_chunk_size", "block_size")
_LATENT = FAMILIES["deepseek_v3"]["architecture"]["latent_attention"]
_POSITIONS = re.compile(r"wpe\.|\w*position\w*\.")
_LOOKUPS = "lookups"
# The number of matrices that a module of experts stacks.
_EXPERTS = ("num_experts", "num_routed_experts")
_OTHER_TYPE = "choose another type, such as llama"
# Most characters that are quoted of a class's own error.
_LONGEST_REASON = 200


def as_decoder(config: Any) -> Any:
    """Set a configuration to attend to the past alone, and return it.

    Raises ValueError for what is more than a decoder of tokens.
    """
    kind = config.model_type
    component_types = [value.model_type for value in vars(config).values() if getattr(value, "model_type", None)]
    if component_types:
        raise InputError(explain_parts(kind, component_types))
    if config.is_encoder_decoder:
        raise InputError(f"{kind}: is_encoder_decoder=True: laws here are of decoders only; {_OTHER_TYPE}")
    if kind in ("cpmant", "xlm", "xlnet"):
        raise InputError(f"{kind} is not causal: transformers gives it the tokens that it predicts; {_OTHER_TYPE}")
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    return config


def explain_parts(kind: str, component_types: list[str]) -> str:
    """Explain why a type that is made of these types is refused, and which of them to choose instead."""
    causal = [*filter(is_causal_type, component_types)]
    advice = f"choose {causal[0]}" if causal else _OTHER_TYPE
    return f"{kind} is more than a decoder of tokens; its parts are {', '.join(component_types)}; {advice}"


def on_meta(config: Any) -> Any:
    """Build the class of a configuration without weights, with kernels whose FLOPs torch counts.

    Raises ValueError, in one line, if the class refuses the configuration.
    """
    from transformers import AutoModelForCausalLM

    kernels = {"attn_implementation": "eager", "experts_implementation": "batched_mm"}
    text_class = None if is_causal_type(config.model_type) else text_model_class(config)
    with _errors_in_one_line(config, "built"), torch.device("meta"):
        # The kernels are written into the configuration, with which a run then trains: so this is a copy.
        config = copy.deepcopy(config)
        if text_class is None:
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False, **kernels)
        model = text_class._from_config(config, **kernels)
        return model if model.get_output_embeddings() is not None else _WithHead(model)


class _WithHead(nn.Module):
    """The text model of a larger model, which has the head outside of it."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        weight = model.get_input_embeddings().get_parameter("weight")
        self.lm_head = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        if model.config.tie_word_embeddings:
            self.lm_head.weight = weight

    def forward(self, **inputs: Any) -> Any:
        from transformers.modeling_outputs import CausalLMOutputWithPast

        output = self.model(**inputs)
        logits = self.lm_head(output.last_hidden_state)
        return CausalLMOutputWithPast(logits=logits, past_key_values=output.past_key_values)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head


@contextmanager
def _errors_in_one_line(config: Any, participle: str, ignored_word: str | None = None) -> Iterator[None]:
    """Raise a class's error, whatever its type, as a ValueError of one line; drop one that has the `ignored_word`.

    `config` is a configuration, or the model type of one that cannot be made.
    """
    try:
        yield
    except Exception as error:
        if ignored_word is None or ignored_word not in str(error):
            kind = getattr(config, "model_type", config)
            raise InputError(f"transformers' {kind} cannot be {participle}: {_reason(config, error)}") from None


def _reason(config: Any, error: Exception) -> str:
    """Word a class's error in one line, cut after a word, with the fields that caused it, and what to do."""
    reason = textwrap.shorten(str(error), _LONGEST_REASON, placeholder=" …") or "it does not say why"
    culprits = "" if isinstance(config, str) else _culprits(config, error)
    if not culprits:
        return f"{reason} ({type(error).__name__}); give other fields, or {_OTHER_TYPE}"
    if isinstance(error, ZeroDivisionError):
        return f"{culprits} must be at least 1"
    return f"{culprits}: {type(error).__name__} {reason}; give another value"


def _culprits(config: Any, error: Exception) -> str:
    """List the changed fields whose value Python looked up in vain, or divided by: its errors do not name them."""
    if not isinstance(error, (KeyError, ZeroDivisionError)):
        return ""
    culprit = str(error) if isinstance(error, KeyError) else "0"
    fields = config.to_diff_dict()
    for value in [*fields.values()]:
        if isinstance(value, dict):
            fields.update(value)
    names = [name for name, value in fields.items() if repr(value) == culprit and not name.endswith("_token_id")]
    return ", ".join(f"{name}={culprit}" for name in names)


def forward_flops(model: nn.Module, tokens: int) -> tuple[float, dict[str, float]]:
    """Count the FLOPs per token of a forward pass of one sequence of `tokens` through a model on the meta device.

    All matrix products count, with the whole square of attention, windows or not; those of batched products also by
    module. A class whose path depends on values may raise any error.
    """
    with torch.no_grad():
        _, counter = _forward(model, tokens, counting=lambda: FlopCounterMode(display=False))
    batched = {}
    for module, counts in counter.get_flop_counts().items():
        batched[module] = sum(flops for operation, flops in counts.items() if "bmm" in str(operation)) / tokens
    return counter.get_total_flops() / tokens, batched


def _forward(
    model: nn.Module, tokens: int, counting: Callable[[], Any] = nullcontext, use_cache: bool = False, **options: Any
) -> tuple[Any, Any]:
    """Pass one sequence forward, and return the output and what counted the pass.

    A mask keeps most classes from looking into the values of their own; the others are passed without.
    """
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
    """Count the FLOPs per token of training in sequences of `length`: three forward passes, as torch counts them.

    Of attention's whole square, without the causal half, only the keys count that windows, chunks and indexers leave.
    None for a class whose path depends on values, which has none on the meta device.
    """
    architecture, _, flops, _ = _count(_cache_key(config.to_dict()))
    if flops is None:
        return None
    per_token, per_position, _ = flops
    unseen = sum(span.blocks * (span.multiplied or 0) * span.hidden(length) for span in architecture.all_spans)
    return 3 * (per_token + per_position * length - 2 * unseen)


def without_gradient(config: Any) -> list[str]:
    """List the parameters of a class that no loss moves, such as DeepSeek's indexer, which picks positions by top-k.

    In sequences of at most 256 tokens; [] where a class cannot be passed on the meta device.
    """
    model = on_meta(config).train()
    length = min(getattr(config, "max_position_embeddings", None) or 256, 256)
    # The path of a class may depend on values, which the meta device lacks.
    with suppress(Exception):
        output, _ = _forward(model, length)
        output.logits.sum().backward()
        return [name for name, parameter in model.named_parameters() if parameter.grad is None]
    return []


def read_class(fields: Mapping[str, Any]) -> tuple[Architecture, dict[str, int]]:
    """Read the architecture of a class with these fields of config.json, and count what laws leave out of it.

    Laws leave out norms, biases and other vectors, routers, learned positions and DeepSeek's indexer, counted by name;
    every other parameter is the architecture's.
    Raises ValueError, in one line, for a type that is not causal, for what does not build or run, and for experts that
    cannot be told.
    """
    architecture, left_out, *_ = _count(_cache_key(fields))
    return architecture, left_out


def _cache_key(fields: Mapping[str, Any]) -> str:
    return json.dumps(dict(fields), sort_keys=True, default=str)


@lru_cache
def _count(fields: str) -> tuple[Architecture, dict[str, int], tuple[float, float, FlopsByModule] | None, bool]:
    """Count a class: architecture, what laws leave out, and FLOPs of one token and of each position that it sees.

    And tell whether the class counts positions by itself.
    """
    config = _read_config(json.loads(fields))
    model = on_meta(config)
    blocks = max((module for module in model.modules() if isinstance(module, nn.ModuleList)), key=count_elements)
    _check_layers(blocks, config)
    experts = _experts(blocks)
    architecture = _read_architecture(model, blocks, experts, config)
    left_out = _count_left_out(model, experts, architecture)
    lookups = left_out.pop(_LOOKUPS, 0)
    mixers = left_out.pop("") - architecture.n_total + architecture.attention_parameters
    if mixers < 0:
        raise InputError(_explain_fewer_parameters(model, blocks, architecture))
    if mixers != architecture.attention_parameters:
        architecture = replace(architecture, mixer_parameters=mixers)
    architecture = replace(architecture, lookup_parameters=lookups)
    flops = _flops_of_positions(model, config)
    slopes = flops[2] if flops else None
    # As when they are served: a class keeps some states in fp32 nevertheless.
    output, counts_positions = _pass_with_cache(model.to(torch.bfloat16), config)
    architecture = architecture.attending(spans_of_blocks(model, blocks, config, architecture, slopes, output))
    return architecture, dict(left_out), flops, counts_positions


def _read_config(values: Fields) -> Any:
    """Read the configuration of a causal decoder, or of a larger model's text decoder, from its config.json."""
    from transformers import CONFIG_MAPPING

    kind: Any = values.get("model_type")
    refusal = UnknownTypeError(f"model_type={kind!r}: transformers has no causal language model of this type")
    if kind not in CONFIG_MAPPING:
        raise refusal
    with _errors_in_one_line(kind, "read"):
        config = CONFIG_MAPPING[kind].from_dict(values)
    if not is_causal_type(kind):
        config = _text_part(config, values)
    if not is_causal_type(config.model_type) and text_model_class(config) is None:
        raise refusal
    return as_decoder(config)


def _text_part(config: Any, values: Fields) -> Any:
    """Return the configuration of a model's text decoder, the whole where it is one."""
    text = config.get_text_config(decoder=True)
    sections = [name for name in config.sub_configs if getattr(config, name, None) is text]
    if sections and sections[0] not in values:
        # Older files have the fields of the text model beside those of the whole.
        text = type(text).from_dict({name: value for name, value in values.items() if name != "model_type"})
    # Of a text model alone, the larger one would say it.
    text.tie_word_embeddings = getattr(config, "tie_word_embeddings", False)
    return text


def _flops_of_positions(model: nn.Module, config: Any) -> tuple[float, float, FlopsByModule] | None:
    """Count the FLOPs of one token's forward pass, those that each position adds, and of these the batched by module.

    From two short sequences of whole chunks: attention here has its whole square, all else is the same for each token
    (but for the reference code of Mamba 2, which passes states on between all pairs of chunks). None where the path of
    a class depends on values, which the meta device lacks.
    """
    length = _chunk(config)
    with _errors_in_one_line(config, "run", ignored_word="meta"):
        short, short_batched = forward_flops(model, length)
        long, long_batched = forward_flops(model, 2 * length)
        slopes = {}
        for module, flops in long_batched.items():
            slopes[module] = (flops - short_batched.get(module, 0.0)) / length
        return 2 * short - long, (long - short) / length, slopes
    return None


def _chunk(config: Any) -> int:
    """Return the tokens of one chunk of recurrent blocks; 2 without such."""
    # Linear attention works in chunks of 64.
    is_linear = "linear_attention" in (getattr(config, "layer_types", None) or ())
    return _first(config, *_CHUNKS) or (64 if is_linear else 2)


def _pass_with_cache(model: nn.Module, config: Any) -> tuple[Any, bool]:
    """Make a short forward pass with the cache of the class.

    Return its output, None where the class has no such path, and whether the class counts the positions by itself:
    hybrids without attention cannot.
    """
    length = _chunk(config)
    positions: Fields = {"position_ids": torch.arange(length, device="meta")[None]}
    for options in (dict[str, Any](), positions):
        # An indexer may look for the keys that are visible (Qwen4): here all of them.
        # Torch adds `patch` when the module is imported.
        patched = fx_config.patch(meta_nonzero_assume_all_nonzero=True)  # type: ignore[attr-defined]
        # Every class has errors of its own.
        with suppress(Exception), torch.no_grad(), patched:
            return _forward(model, length, use_cache=True, **options)[0], not options
    return None, True


def generates(config: Any) -> bool:
    """Return whether the class can count the tokens before, as `generate` must; a hybrid without attention cannot.

    True also for a class that cannot be passed on the meta device.
    """
    return _count(_cache_key(config.to_dict()))[3]


def _count_left_out(
    model: Any,
    experts: list[nn.Module],
    architecture: Architecture,
) -> Counter[str]:
    """Count the parameters that laws leave out, by what they are; under "" those that laws count."""
    left_out = Counter[str]()
    tables = _lookup_tables(model)
    for name, parameter in model.named_parameters():
        label = _LOOKUPS if id(parameter) in tables else _left_out_as(name, parameter, architecture)
        left_out[label] += parameter.numel()
    expert_parameters = itertools.chain(*(module.parameters() for module in experts))
    biases = sum(parameter.numel() for parameter in expert_parameters) - count_elements(*experts)
    if biases:
        idle = biases - biases * architecture.experts_per_token // architecture.experts
        left_out.update({"biases": -idle, "idle biases": idle})
    return left_out


def _lookup_tables(model: Any) -> set[int]:
    """Find the weights, by identity, of which a token only looks up rows, beside its embedding and positions."""
    embedding = model.get_input_embeddings()
    tables = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and module is not embedding and not _POSITIONS.search(f"{name}."):
            tables.add(id(module.weight))
    return tables - {id(embedding.weight), id(getattr(model.get_output_embeddings(), "weight", None))}


def _left_out_as(name: str, parameter: Tensor, architecture: Architecture) -> str:
    """Name what laws leave a parameter out as; "" if they count it."""
    for label in ("indexer", "sinks"):
        if label in name:
            return label
    if not is_matrix(name, parameter):
        if "norm" in name:
            return "norms"
        return "biases" if name.endswith("bias") else "vectors"
    # There are as many positions as the longest sequence has.
    if _POSITIONS.search(name):
        return "positions"
    # Gates of one row are routers, too. Projections may have as many rows as there are experts.
    routers = {(architecture.experts, architecture.d_model), (1, architecture.d_model)}
    is_router = tuple(parameter.shape) in routers and "_proj" not in name
    return "router" if is_router else ""


def _check_layers(blocks: nn.ModuleList, config: Any) -> None:
    """Refuse blocks that are passed several times (HRM), or that hold several layers each (LongCat)."""
    numbers = {getattr(module, "layer_idx", None) for module in blocks.modules()} - {None}
    layers = max(len(numbers), config.num_hidden_layers)
    if layers > len(blocks):
        sizes = f"{config.model_type} makes {layers} layers of {len(blocks)} blocks"
        raise InputError(f"{sizes}, where laws count one layer a block; {_OTHER_TYPE}")


def _explain_fewer_parameters(model: PreTrainedModel, blocks: nn.ModuleList, architecture: Architecture) -> str:
    """Explain why a model has fewer parameters than laws count for its sizes, and what to do."""
    with_repeats = sum(p.numel() for _, p in blocks.named_parameters(remove_duplicate=False))
    distinct = sum(p.numel() for p in blocks.parameters())
    width = model.get_input_embeddings().get_parameter("weight").shape[1]
    if with_repeats > distinct:
        reason = (
            f"its blocks share weights ({distinct:,} of {with_repeats:,} are their own), where laws count each block's"
        )
    elif width != architecture.d_model:
        reason = f"its embedding is {width} wide and its blocks {architecture.d_model}, where laws have one width"
    else:
        reason = "it has fewer parameters than laws count for its width, blocks and vocabulary"
    return f"{reason}; {_OTHER_TYPE}"


def _count_experts(module: nn.Module) -> int:
    """Count a module's routed experts, by the name that its class has for them; 1 for a module without any."""
    return next((getattr(module, name) for name in _EXPERTS if hasattr(module, name)), 1)


def _experts(blocks: nn.ModuleList) -> list[nn.Module]:
    """Find the modules of routed experts. Raises ValueError for experts that are not stacked matrices."""
    holders = [
        module for name, module in blocks.named_modules() if "shared" not in name and _count_experts(module) > 1
    ]
    stacked = []
    for module in holders:
        if any(parameter.ndim == 3 for parameter in module.parameters(recurse=False)):
            stacked.append(module)
    if holders and not stacked:
        holder = type(holders[0]).__name__
        raise InputError(f"{holder}: its experts are not stacked matrices, [experts, …]; {_OTHER_TYPE}")
    return stacked


def _read_architecture(
    model: PreTrainedModel, blocks: nn.ModuleList, experts: list[nn.Module], config: Any
) -> Architecture:
    """Read experts and feed-forwards as the class has them, and attention as the configuration has it."""
    embedding = model.get_input_embeddings()
    head = model.get_output_embeddings()
    sparse = [block for block in blocks if not {*experts}.isdisjoint(block.modules())]
    dense = [block for block in blocks if block not in sparse]
    options: Fields = {"tied_embeddings": head is None or head.weight is embedding.weight}
    if dense:
        options.update(_dense_fields(dense, config), dense_blocks=len(dense) if sparse else 0)
    if sparse:
        options.update(_sparse_fields(sparse, experts, config))
    options.update(_attention_fields(config))
    return Architecture(config.hidden_size, n_blocks=config.num_hidden_layers, vocab_size=config.vocab_size, **options)


def _dense_fields(dense: list[nn.Module], config: Any) -> Fields:
    """Read the width and kind of the feed-forwards of dense blocks."""
    d_model = config.hidden_size
    unit = d_model * len(dense)
    width = _first(config, *_WIDTHS) or 4 * d_model
    shapes = ({d_model, width}, {d_model, 2 * width})
    sizes = [p.numel() for name, p in list_matrices(*dense) if "att" not in name and {*p.shape} in shapes]
    matrices = sum(sizes) / (unit * width)
    if matrices not in (2, 3):
        # There is no such feed-forward: take one as large as the blocks.
        matrices = 3
        width = max(1, count_elements(*dense) // (3 * unit))
    return {"d_ff": width, "gated": matrices == 3}


def _sparse_fields(sparse: list[nn.Module], experts: list[nn.Module], config: Any) -> Fields:
    """Read the number and widths of routed and shared experts."""
    unit = config.hidden_size * len(sparse)
    size = count_elements(*experts)
    number = _count_experts(experts[0])
    gated = all(getattr(module, "has_gate", True) for module in experts) and size % (3 * unit * number) == 0
    unit *= 3 if gated else 2
    per_token = experts_per_token(config)
    if per_token is None:
        raise InputError(f"no field says how many experts a token takes; {_OTHER_TYPE}")
    if size % (unit * number) or any(_count_experts(module) != number for module in experts):
        raise InputError(f"its experts differ in number or width from block to block; {_OTHER_TYPE}")
    fields = {
        "experts": number,
        "experts_per_token": per_token,
        "gated": gated,
        "d_expert": size // (unit * number),
    }
    shared = _first(config, *_SHARED) or 1
    d_shared = count_elements(*sparse, word="shared") // (unit * shared)
    if d_shared:
        fields.update(shared_experts=shared, d_shared=d_shared)
    return fields


def _attention_fields(config: Any) -> Fields:
    heads = _first(config, "num_attention_heads", "num_heads") or 1
    if _first(config, "kv_lora_rank"):
        latent = {name: _first(config, field) for name, field in _LATENT.items()}
        return {"n_heads": heads, "latent_attention": latent}
    return {
        "n_heads": heads,
        "n_kv_heads": _first(config, "num_key_value_heads") or heads,
        "head_dim": _first(config, "head_dim") or config.hidden_size // heads,
    }


def experts_per_token(config: Any) -> int | None:
    """Return the configured number, by any of its names."""
    return _first(config, *_PER_TOKEN)


def _first(config: Any, *names: str) -> int | None:
    """Return the number in the first field that has one; of fields that differ between blocks, the first block's."""
    if getattr(config, "is_heterogeneous", False):
        config = config.per_layer_config[0]
    values = (getattr(config, name, None) for name in names)
    value = next((value for value in values if value is not None), None)
    return value[0] if isinstance(value, list) else value
