"""Architectures of released models, read from their `config.json` alone: no weights, no code, no transformers.

For each model_type, `FAMILIES` names the fields that an `Architecture` needs, and what the class has besides the
parameters that laws count: `Model.parameters` is exact (tests build the classes of transformers). The class of any
other type is asked by whoever is installed and can: an entry point of the group `CLASSES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import hub  # lazy: its rooms are imported when a file is read
from hub.base import strict_json
from hub.base.errors import InputError, unknown
from scaling_law.size.architecture import Architecture, LatentAttention

Config = Mapping[str, Any]
FILE_NAME = "config.json"
CLASSES = "scaling_law.classes"  # of entry points: functions like `Reader`
# From the fields of a configuration to the architecture, and the parameters that laws leave out, by name.
Reader = Callable[[Config], tuple[Architecture, Mapping[str, int]]]


@dataclass(frozen=True)
class Family:
    """How the configurations of one model_type name things: each value is a field of `config.json`, or a constant.

    `defaults` are the class's values of fields that a configuration may leave out; any other field must be there.

    Attributes:
        experts: number of routed experts; None for dense models, whose feed-forward is `d_expert` wide.
        shared, d_shared: number and width of shared experts (width None: that of a routed one; else they have a gate).
        d_ff: width of the feed-forward in dense blocks.
        latent: multi-head latent attention.
        gated: feed-forwards of three matrices, else of two.
        norms: norms of a block of width d_model.
        qk_norm: "head" for one weight per element of a head, "all" for one per element of all heads.
        query_bias, output_bias, expert_bias: of query, key and value; of the output projection; of all feed-forwards,
            and of the router where there is one.
        sinks, indexer: attention sinks, DeepSeek's sparse-attention indexer.
    """

    experts: str | None = None
    d_expert: str = "moe_intermediate_size"
    shared: str | int = 0
    d_shared: str | None = None
    d_ff: str = "intermediate_size"
    latent: bool = False
    gated: bool = True
    norms: int = 2
    qk_norm: str | None = None
    query_bias: str | bool = "attention_bias"
    output_bias: str | bool = "attention_bias"
    expert_bias: str | bool = "mlp_bias"
    sinks: bool = False
    indexer: bool = False
    defaults: Config = field(default_factory=dict)


PER_TOKEN = "num_experts_per_tok"  # of every family
# of multi-head latent attention, in the order of the fields of `LatentAttention`
LATENT = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "q_lora_rank")
_MAYBE_NULL = ("head_dim", "n_shared_experts", "num_key_value_heads", "q_lora_rank")  # null says something here
_AS_HEADS: Config = {"num_key_value_heads": None}  # as many key-value heads as heads
_TIED: Config = {"tie_word_embeddings": True}
_HEADS_OF_128: Config = {"head_dim": 128}
_GEMMA: Config = {**_TIED, "head_dim": 256}
_NEOX: Config = {**_AS_HEADS, "attention_bias": True, "norm_type": "layer_norm"}
_OURS: Config = {**_AS_HEADS, PER_TOKEN: 1, "final_norm": False}
_DENSE = partial(Family, d_expert="intermediate_size")
_LOCAL = partial(Family, "num_local_experts", d_expert="intermediate_size")
_ROUTED = partial(Family, "n_routed_experts", shared="n_shared_experts")
_DEEPSEEK, _DEEPSEEK_SPARSE = (_ROUTED(latent=True, indexer=sparse) for sparse in (False, True))
_QWEN2_MOE = partial(Family, "num_experts", shared=1, d_shared="shared_expert_intermediate_size")

FAMILIES: Mapping[str, Family] = {
    "llama": _DENSE(defaults=_AS_HEADS),
    "mistral": _DENSE(),
    "smollm3": _DENSE(defaults=_TIED),
    "qwen2": _DENSE(query_bias=True, output_bias=False),
    "qwen3": _DENSE(qk_norm="head", defaults=_HEADS_OF_128),
    "olmo2": _DENSE(qk_norm="all", defaults=_AS_HEADS),
    "olmo3": _DENSE(qk_norm="all", defaults=_AS_HEADS),
    "phi3": _DENSE(defaults=_AS_HEADS),
    "gpt_neox": _DENSE(gated=False, expert_bias=True, defaults=_NEOX),
    "glm4": _DENSE(norms=4, output_bias=False, defaults=_HEADS_OF_128),
    "gemma2": _DENSE(norms=4, defaults=_GEMMA),
    "gemma3_text": _DENSE(norms=4, qk_norm="head", defaults=_GEMMA),
    "mixtral": _LOCAL(),
    "olmoe": _DENSE("num_experts", qk_norm="all", defaults=_AS_HEADS),
    "qwen2_moe": _QWEN2_MOE(query_bias="qkv_bias", output_bias=False, defaults={"qkv_bias": True}),
    "qwen3_moe": Family("num_experts", qk_norm="head"),
    "qwen3_vl_moe_text": Family("num_experts", qk_norm="head"),
    "deepseek": _ROUTED(),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK_SPARSE,
    "glm_moe_dsa": _DEEPSEEK_SPARSE,
    "dots1": _ROUTED(qk_norm="head"),
    "granitemoe": _LOCAL(defaults=_AS_HEADS),
    "glm4_moe": _ROUTED(qk_norm="head", output_bias=False, defaults={"use_qk_norm": False}),
    "bailing_moe": Family(
        "num_experts", shared="num_shared_experts", query_bias="use_qkv_bias", output_bias="use_bias"
    ),
    "minimax_m2": _LOCAL(qk_norm="all", defaults=_HEADS_OF_128),
    "llama4_text": _LOCAL(shared=1, d_ff="intermediate_size_mlp", defaults=_HEADS_OF_128),
    "gpt_oss": _LOCAL(expert_bias=True, sinks=True, defaults={"attention_bias": True, "head_dim": 64}),
    "switch_moe": _DENSE("num_experts", defaults=_OURS),
}


@dataclass(frozen=True)
class Model:
    """A released model as laws see it, and the parameters that they leave out, by name: norms, router, biases, …

    "idle biases" are those of experts that a token does not take.
    """

    name: str
    model_type: str
    architecture: Architecture
    left_out: Mapping[str, int]
    text_only: bool = False  # of a model that reads more than text

    @property
    def parameters(self) -> int:
        """The exact number of parameters of the class in transformers."""
        return self.architecture.n_total + sum(self.left_out.values())

    @property
    def active_parameters(self) -> int:
        """Those of them that one token uses: all but the experts that it does not take."""
        active = sum(count for name, count in self.left_out.items() if name != "idle biases")
        return self.architecture.n_active + active


def read_model(source: str | Path | Config | Any, revision: str | None = None) -> Model:
    """The model of a folder, a config.json, "org/model" on the Hub (of which only config.json is read), a mapping, or
    a configuration object of transformers.

    FileNotFoundError where there is no config.json; ValueError, in one line, for an encoder-decoder, a field that is
    missing or impossible, a class that cannot be counted, and where nothing is installed that counts classes.
    """
    if isinstance(source, (str, Path)):
        name, config = str(source), _read(source, revision)
    else:
        config = source if isinstance(source, Mapping) else source.to_dict()
        name = str(config.get("_name_or_path") or config.get("model_type"))
    if not isinstance(config, Mapping):
        raise InputError(f"{name}: the configuration must be an object with fields, not a {type(config).__name__}")
    try:
        return _model(name, config)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from None


def _read(source: str | Path, revision: str | None) -> Any:
    path = Path(source)
    try:
        content = path.read_bytes() if path.is_file() else hub.read_file(source, FILE_NAME, revision)
    except hub.NotFoundError as error:
        raise FileNotFoundError(f"{source}: neither a folder or Hub repo with a {FILE_NAME} ({error})") from None
    return strict_json.loads(content, what=f"{source}: {FILE_NAME}")


def _model(name: str, config: Config) -> Model:
    if config.get("is_encoder_decoder"):
        raise InputError("is_encoder_decoder=True: laws here are of decoders only")
    text = config.get("text_config")
    if text is not None:
        config = dict(text) | {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    kind = config.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None:
        return Model(name, str(kind), *_installed(kind)(config), text is not None)
    stated = {key: value for key, value in config.items() if value is not None or key in _MAYBE_NULL}
    fields = _Fields({**family.defaults, **stated})
    if "num_local_experts" in fields:  # as transformers 5 writes the num_experts of Qwen3
        fields.setdefault("num_experts", fields["num_local_experts"])
    architecture = _architecture(family, fields)
    return Model(name, str(kind), architecture, _left_out(family, architecture, fields), text is not None)


def _installed(kind: Any) -> Reader:
    with suppress(ImportError, StopIteration):
        return next(iter(entry_points(group=CLASSES))).load()
    needed = 'others are counted on their classes, with pip install "joint-moe-scaling-laws[train]"'
    raise InputError(f"{unknown('model_type=', kind, FAMILIES)}; {needed}")


class _Fields(dict[str, Any]):
    """A configuration in which a field that is needed and missing is named."""

    def __missing__(self, key: str) -> Any:
        raise InputError(f"{FILE_NAME} lacks {key}, which model_type {self['model_type']!r} needs")


def _architecture(family: Family, config: Config) -> Architecture:
    def at(key: str | int | None) -> Any:
        return config[key] if isinstance(key, str) else key

    options: dict[str, Any] = {"gated": family.gated}
    if family.experts:
        shared, dense = at(family.shared) or 0, _dense_blocks(config)
        options |= {"experts_per_token": config[PER_TOKEN], "shared_experts": shared}
        options |= {"d_shared": at(family.d_shared)} if shared else {}
        options |= {"dense_blocks": dense} | ({"d_ff": config[family.d_ff]} if dense else {})
    if family.latent:
        options["latent_attention"] = LatentAttention(*(config[key] for key in LATENT))
    else:
        options |= {"n_kv_heads": config["num_key_value_heads"], "head_dim": _head_dim(config)}
    return Architecture(
        config["hidden_size"],
        at(family.experts) if family.experts else 1,
        config["num_hidden_layers"],
        config["num_attention_heads"],
        config["vocab_size"],
        d_expert=config[family.d_expert],
        tied_embeddings=bool(config.get("tie_word_embeddings")),
        **options,
    )


def _head_dim(config: Config) -> int | None:
    """As classes divide: Glm4Moe's default, 4096 over 96 heads, has heads of 42."""
    d, heads = config["hidden_size"], config["num_attention_heads"]
    whole = isinstance(d, int) and isinstance(heads, int) and 0 < heads <= d
    return config.get("head_dim") or (d // heads if whole else None)


def _dense_blocks(config: Config) -> int:
    """How many blocks have a dense feed-forward, by whichever field says it."""
    blocks = range(config["num_hidden_layers"])
    if (kinds := config.get("mlp_layer_types")) is not None:
        return sum(kind == "dense" for kind in kinds)
    if (routed := config.get("moe_layers")) is not None:
        return len(blocks) - len(routed)
    if step := config.get("interleave_moe_layer_step") or config.get("decoder_sparse_step"):
        dense = config.get("mlp_only_layers") or ()
        return sum(i in dense or (i + 1) % step != 0 for i in blocks)
    if config.get("moe_layer_freq", 1) != 1:
        raise InputError(f"moe_layer_freq={config['moe_layer_freq']!r} must be 1")
    return int(config.get("first_k_dense_replace") or 0)


def _left_out(family: Family, a: Architecture, config: Config) -> dict[str, int]:
    """The parameters of the class that laws do not count, by name; those that it lacks are left out."""

    def has(flag: str | bool) -> bool:
        return bool(config.get(flag)) if isinstance(flag, str) else flag

    d, queries, keys = a.d_model, a.heads * a.head_dim, a.n_kv_heads * a.head_dim
    mla, routed = a.latent_attention, a.routed_blocks if a.experts > 1 else 0
    norm = 2 * d if config.get("norm_type") == "layer_norm" else d  # with biases
    norms = norm * (family.norms * a.blocks + bool(config.get("final_norm", True)))
    query_bias = queries + 2 * keys
    if mla:
        norms += a.blocks * (mla.kv_rank + (mla.query_rank or 0))
        query_bias = mla.kv_rank + mla.rope_dim + (mla.query_rank or 0)
    if config.get("use_qk_norm", True) and family.qk_norm:
        norms += a.blocks * (queries + keys if family.qk_norm == "all" else 2 * a.head_dim)
    biases = a.blocks * (has(family.query_bias) * query_bias + has(family.output_bias) * d)
    each = has(family.expert_bias) * a.blocks * ((1 + a.gated) * a.d_expert + d)
    biases += each * a.experts_per_token + has(family.expert_bias) * routed * a.experts
    counts = {
        "norms": norms,
        "router": routed * d * (a.experts + bool(family.d_shared)),
        "biases": biases,
        "idle biases": each * (a.experts - a.experts_per_token),
        "sinks": family.sinks * a.blocks * a.heads,
        "indexer": _indexer(a, config) if family.indexer else 0,
    }
    return {name: count for name, count in counts.items() if count}


def _indexer(a: Architecture, config: Config) -> int:
    """DeepSeek sparse attention (DeepSeek-V3.2): queries from the latent, one key per token, a weight per head."""
    kinds = config.get("indexer_types")
    if kinds is None and (config.get("index_topk_pattern") or config.get("index_topk_freq", 1) != 1):
        raise InputError("index_topk_pattern and index_topk_freq are read with indexer_types only")
    heads, width = config["index_n_heads"], config["index_head_dim"]
    rank = a.latent_attention.query_rank if a.latent_attention else 0
    blocks = sum(kind != "shared" for kind in kinds or ["full"] * a.blocks)
    return int(blocks * ((rank or 0) * heads * width + a.d_model * (width + heads) + 2 * width))
