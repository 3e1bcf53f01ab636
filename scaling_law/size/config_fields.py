"""What a config.json says beside the sizes that are counted: the checkpoint's precision, MTP, and unread fields."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scaling_law.size.architecture import Architecture

Config = Mapping[str, Any]
# Bits of a number in named formats, scales of small groups included.
_BITS = {"mxfp4": 4.25, "nvfp4": 4.5, "mxfp8": 8.25, "fp8": 8.0, "fp4": 4.25}
# Bits of other formats, the size of the groups that share a scale, and attention among the modules left as they were.
_INTEGER = re.compile(r'"(?:num_bits|bits|w_bit)": (\d+)|"load_in_(\d)bit": true')
_GROUP = re.compile(r'group_size": (\d+)')
_SPARES_ATTENTION = re.compile(r'"(?:modules_to_not_convert|ignore\w*|exclude_modules)": \[[^]]*attn')
# Fields that count modules for multi-token prediction, of which classes have none.
_MTP = re.compile(r"num_nextn_\w+|num_mtp_\w+|mtp_num_\w+")
# Words in the name of a field that a count of parameters may depend on.
_SIZE = re.compile(
    r"size|dim(s|_|$)|rank|width|heads?(_|$)|experts?(_|$)|layers?(_|$)|blocks?(_|$)|hidden|latent|n_?gram|engram"
    r"|streams|sparse|compress|attn_config|attention_config"
)
# Fields of that kind that do not change it: of generation, tokens, positions, other parts of a larger model, kernels
# and balancing, and sizes that follow from others.
_HARMLESS = re.compile(
    r"token|vision|visual|image|video|audio|mtp|nextn|rope|rotary|position|window|context|chunk|beam|no_repeat|pruned"
    r"|^(ep|tp|pp)_size|pretraining_tp|time_step|topk|top_k|_group$|groups$|drop|init|_std$|loss|quant|parallel|batch"
    r"|^qk_head_dim$|^attention_head_dim$|cross_attention|(_act|_activation|_func|_type|_types|_pattern)$"
    r"|_freq$|_step$|_offset$|_interval$|output_hidden|shared_expert_overlap|eps|disable"
)
# Sizes of blocks with windows that a class derives from those of the others.
_DERIVED = {"mimo_v2_flash": ("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim")}
# Fields that every configuration may have.
_GENERAL = ("auto_map", "use_cache", "tie_word_embeddings", "torchscript", "is_decoder", "return_dict", "do_sample")


@dataclass(frozen=True)
class Precision:
    """The precision of a checkpoint's weights: its name, and the mean bytes of a parameter, None if not known."""

    name: str
    bytes_per_parameter: float | None


def read_precision(config: Config, a: Architecture) -> Precision | None:
    """Read the precision of a checkpoint; None for one in bf16 or fp16.

    Embedding and head stay in bf16; attention and shared experts, too, where the configuration spares attention in a
    mixture.
    """
    quantization = config.get("quantization_config")
    if not quantization:
        dtypes = (config.get("dtype"), config.get("torch_dtype"))
        return Precision("fp32", 4.0) if "float32" in dtypes else None
    text = json.dumps(quantization)
    name, bits = _read_format(quantization, text)
    if bits is None:
        return Precision(name, None)
    experts = a.routed_experts_parameters
    other_matrices = a.n_total_non_embedding - experts
    if experts and _SPARES_ATTENTION.search(text):
        other_matrices = 0
    expert_format = str(config.get("expert_dtype", name)).lower()
    if expert_format != name:
        name = f"{name} with experts in {expert_format}"
    quantized_bits = _BITS.get(expert_format, bits) * experts + bits * other_matrices
    mean = (quantized_bits / 8 + 2 * (a.n_total - experts - other_matrices)) / a.n_total
    return Precision(name, round(mean, 2))


def _read_format(quantization: Config, text: str) -> tuple[str, float | None]:
    """Read the name of a quantization, and the bits of a weight with its share of a scale; `text` is all of it."""
    method = str(quantization.get("quant_method"))
    words = f"{method} {quantization.get('quant_algo')} {quantization.get('fmt')}".lower()
    match = re.search("mxfp4|nvfp4|mxfp8|fp8", words)
    if match:
        return match[0], _BITS[match[0]]
    integer = _INTEGER.search(text)
    if integer is None or "mixed" in words:
        return method, None
    bits = int(integer[1] or integer[2])
    group = _GROUP.search(text)
    scale_bits = 16 / int(group[1]) if group else 0.0
    kind = "fp" if '"type": "float"' in text else "int"
    return f"{kind}{bits} ({method})", bits + scale_bits


def explain_prediction_modules(config: Config) -> list[str]:
    """Say which modules for multi-token prediction are not counted; [] without any."""
    for name, modules in config.items():
        if _MTP.fullmatch(name) and isinstance(modules, int) and modules > 0:
            return [f"Not counted: modules for multi-token prediction ({name} {modules})."]
    return []


def list_unread(config: Config, names: Collection[str], model_type: str) -> list[str]:
    """List the fields that a count may depend on and that are not among the `names` that are read, with their values.

    Sizes, ranks and widths; where there are such, also the switches that are on.
    """
    unread = [*_unread_fields(config, {*names, *_DERIVED.get(model_type, ()), *_GENERAL})]
    sizes = [(name, value) for name, value in unread if _is_size(name, value)]
    if not sizes:
        return []
    switches = [name for name, value in unread if value is True]
    return [f"{name}={value}" if isinstance(value, int) else name for name, value in sizes] + switches


def _unread_fields(config: Config, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Find the fields that are not read, and those of mappings that are."""
    for key, value in config.items():
        # Labels of a configuration in memory have numbers.
        name = str(key)
        if _HARMLESS.search(name):
            continue
        if name not in names:
            yield name, value
        elif isinstance(value, Mapping):
            yield from _unread_fields(value, names)


def _is_size(name: str, value: Any) -> bool:
    if not isinstance(value, (list, Mapping)):
        # True is a switch.
        value = isinstance(value, int) and value > 1
    return bool(value) and _SIZE.search(name) is not None
