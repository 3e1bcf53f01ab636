"""What a config.json says beside the sizes that are counted: the checkpoint's precision, MTP, and unread fields."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scaling_law.size.architecture import Architecture

Config = Mapping[str, Any]
# Bits of a number in the formats of `quantization_config`, scales of small groups included.
_BITS = {"mxfp4": 4.25, "nvfp4": 4.5, "mxfp8": 8.25, "fp8": 8.0, "int8": 8.0, "int4": 4.0}
# Their names in files that do not use these words.
_FORMATS = {"fbgemm_fp8": "fp8", "w4a16_nvfp4": "nvfp4", "eetq": "int8", "float8": "fp8", "fp4": "mxfp4"}
# Fields that list modules that stay as they were.
_SPARED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
# Fields that count modules for multi-token prediction, of which classes have none.
_MTP = (
    "num_nextn_predict_layers",
    "num_mtp_modules",
    "mtp_num_hidden_layers",
    "num_mtp_layers",
    "mtp_num_layers",
    "num_nextn_layers",
)
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
    if not isinstance(quantization, Mapping):
        dtype = str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")
        return Precision("fp32", 4.0) if dtype == "float32" else None
    name, bits = _format_of(quantization)
    if bits is None:
        return Precision(name, None)
    experts = (3 if a.gated else 2) * a.d_model * a.routed_blocks * a.experts * a.d_expert if a.experts > 1 else 0
    spared = str([quantization.get(field) for field in _SPARED])
    others = 0 if experts and (name == "mxfp4" or "attn" in spared) else a.n_total_non_embedding - experts
    expert_bits = bits
    expert_format = str(config.get("expert_dtype") or quantization.get("moe_quant_algo") or "").lower()
    if experts and _FORMATS.get(expert_format, expert_format) in _BITS:
        expert_bits = _BITS[_FORMATS.get(expert_format, expert_format)]
        name = f"{name} with experts in {expert_format}"
    rest = a.n_total - experts - others
    mean = (expert_bits / 8 * experts + bits / 8 * others + 2 * rest) / a.n_total
    return Precision(name, round(mean, 2))


def _format_of(quantization: Config) -> tuple[str, float | None]:
    """Read the name of a quantization, and the bits of a weight with its share of a scale."""
    method = str(quantization.get("quant_method")).lower()
    algorithm = str(quantization.get("quant_algo") or quantization.get("fmt") or "").lower()
    for name in (method, algorithm):
        known_name = _FORMATS.get(name, name)
        if known_name in _BITS:
            return known_name, _BITS[known_name]
    weights: Config = quantization
    for group in (quantization.get("config_groups") or {}).values():
        if isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping):
            weights = group["weights"]
            break
    if quantization.get("load_in_4bit") or quantization.get("load_in_8bit"):
        bits: Any = 4 if quantization.get("load_in_4bit") else 8
    else:
        bits = weights.get("num_bits") or weights.get("bits") or weights.get("w_bit")
    if not isinstance(bits, int) or isinstance(bits, bool) or algorithm == "mixed_precision":
        return method, None
    kind = "fp" if weights.get("type") == "float" else "int"
    size = weights.get("group_size") or quantization.get("q_group_size")
    scale_bits = 16 / size if isinstance(size, int) and size > 0 else 0.0
    return f"{kind}{bits} ({method})", bits + scale_bits


def explain_prediction_modules(config: Config) -> str | None:
    """Say which modules for multi-token prediction are not counted; None without any."""
    for name in _MTP:
        modules = config.get(name)
        if isinstance(modules, int) and modules > 0:
            plural = "s are" if modules > 1 else " is"
            return f"{modules} multi-token prediction module{plural} not counted ({name})."
    return None


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
    for name, value in config.items():
        if _HARMLESS.search(name):
            continue
        if name not in names:
            yield name, value
        elif isinstance(value, Mapping):
            yield from _unread_fields(value, names)


def _is_size(name: str, value: Any) -> bool:
    if isinstance(value, (list, Mapping)):
        return bool(value) and _SIZE.search(name) is not None
    is_number = isinstance(value, int) and not isinstance(value, bool) and value > 1
    return is_number and _SIZE.search(name) is not None
