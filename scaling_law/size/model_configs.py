"""Architectures of released models, read from their `config.json` alone: no weights, no code, no transformers.

A row of `families.json` says how configurations of some model types are read, with what it has from a row that it is
`like`: `architecture` has fields of `Architecture`, each a field of config.json or a constant; `left_out` the
parameters that laws do not count, as arithmetic on fields of both; `defaults` the class's values of fields that may be
absent. `windows` names the field that limits the keys of a block, and in which blocks, where no `layer_types` say it:
those in which arithmetic on fields and the number of the `block` is positive (absent: all). `Model.parameters` is
exact (tests build the classes). The class of any other type is asked by whoever is installed and can: an entry point
of the group `CLASSES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import hub  # lazy: its rooms are imported when a file is read
from hub.base import strict_json
from hub.base.arithmetic import Arithmetic
from hub.base.errors import InputError, unknown
from hub.base.paths import local_path
from scaling_law.size.architecture import Architecture, Span, check_size, selected_keys

Config = Mapping[str, Any]
Family = Mapping[str, Mapping[str, Any]]
# From the fields of a configuration to the architecture, and the parameters that laws leave out, by name.
Reader = Callable[[Config], tuple[Architecture, Mapping[str, int]]]
FILE_NAME = "config.json"
# Entry points for functions like `Reader`.
CLASSES = "scaling_law.classes"
# Fields whose null says something.
_MAYBE_NULL: tuple[str, ...] = ("head_dim", "n_shared_experts", "num_key_value_heads", "q_lora_rank")
_MAYBE_NULL += ("sliding_window", "attention_chunk_size")


def _families() -> dict[str, Family]:
    families: dict[str, Family] = {}
    for row in strict_json.loads(Path(__file__).with_name("families.json").read_bytes(), what="families.json"):
        like = families.get(row.get("like"), {})
        parts = ("architecture", "left_out", "defaults")
        family = {part: {**like.get(part, {}), **row.get(part, {})} for part in parts}
        # Windows are of this row alone.
        family["windows"] = row.get("windows", {})
        families |= dict.fromkeys(row["types"], family)
    return families


FAMILIES: Mapping[str, Family] = _families()


@dataclass(frozen=True)
class Model:
    """A released model as laws see it, and the parameters that they leave out, by name: norms, router, biases, …

    "idle biases" are those of experts that a token does not take.
    """

    name: str
    model_type: str
    architecture: Architecture
    left_out: Mapping[str, int]
    # The model reads more than text, of which only text is counted.
    text_only: bool = False

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
        if not isinstance(source, Mapping) and not hasattr(source, "to_dict"):
            allowed = "org/model on the Hub, a folder, a config.json, a mapping, or a configuration of transformers"
            raise InputError(f"model={source!r} must be {allowed}")
        config = source if isinstance(source, Mapping) else source.to_dict()
        name = str(config.get("_name_or_path") or config.get("model_type"))
    if not isinstance(config, Mapping):
        raise InputError(f"{name}: the configuration must be an object with fields, not a {type(config).__name__}")
    try:
        return _model(name, config)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from None


def _read(source: str | Path, revision: str | None) -> Any:
    path = local_path(source)
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
    kind = str(config.get("model_type"))
    read = partial(_of_table, FAMILIES[kind]) if kind in FAMILIES else _installed(config.get("model_type"))
    return Model(name, kind, *read(config), text is not None)


def _installed(kind: Any) -> Reader:
    with suppress(ImportError, StopIteration):
        return next(iter(entry_points(group=CLASSES))).load()
    needed = 'others are counted on their classes, with pip install "joint-moe-scaling-laws[train]"'
    raise InputError(f"{unknown('model_type=', kind, FAMILIES)}; {needed}")


class _Fields(dict[str, Any]):
    """A configuration in which a field that is needed and missing is computed from others, or named."""

    def __missing__(self, key: str) -> Any:
        if key in _COMPUTED:
            return _COMPUTED[key](self)
        raise InputError(f"{FILE_NAME} lacks {key}, which model_type {self['model_type']!r} needs")


def _of_table(family: Family, config: Config) -> tuple[Architecture, dict[str, int]]:
    stated = {key: value for key, value in config.items() if value is not None or key in _MAYBE_NULL}
    if not stated.get("no_rope_layers"):
        # Classes read an empty list.
        stated.pop("no_rope_layers", None)
    values = _Fields({**family["defaults"], **stated})
    # transformers 5 writes the num_experts of Qwen3 so.
    if "num_local_experts" in values:
        values.setdefault("num_experts", values["num_local_experts"])
    values |= {"head_dim": _head_dim(values), "layer_norm": values.get("norm_type") == "layer_norm"}

    def at(key: Any) -> Any:
        # The key is that of latent attention.
        if isinstance(key, Mapping):
            return {name: at(inner) for name, inner in key.items()}
        return values[key] if isinstance(key, str) else key

    names = family["architecture"]
    options = {name: at(key) for name, key in names.items() if name != "d_ff" or values["dense_blocks"]}
    a = Architecture(**options | {"shared_experts": options.get("shared_experts") or 0})
    if family["windows"]:
        a = a.attending(_layers(a, values, **family["windows"]))
    numbers = _Fields({name: value or 0 for name, value in {**values, **vars(a)}.items()})
    numbers |= {"qk": a.head_dim * (a.heads + a.n_kv_heads), "qkv": a.head_dim * (a.heads + 2 * a.n_kv_heads)}
    numbers["routed_blocks"] = a.routed_blocks if a.experts > 1 else 0
    counts = {name: int(Arithmetic.parse(text).value(numbers)) for name, text in family["left_out"].items()}
    return a, {name: count for name, count in counts.items() if count}


def _layers(a: Architecture, config: _Fields, limit: str, blocks: str | None = None) -> list[list[Span]]:
    """Read what each block attends to: as many keys as the field `limit` says, or all."""
    size = config[limit] if config.get("use_sliding_window", True) else None
    if not size:
        return [[a.attention]] * a.blocks
    if limit == "index_topk":
        return [_selecting(a, config, own_indexer) for own_indexer in _own_indexers(config)]
    window = replace(a.attention, limit=size)
    return [[window if is_limited else a.attention] for is_limited in _limited(a, config, blocks)]


def _limited(a: Architecture, config: _Fields, blocks: str | None) -> list[bool]:
    """Say of each block whether it sees a window or a chunk alone."""
    if blocks is None:
        return [True] * a.blocks
    if kinds := config.get("layer_types"):
        allowed = ("full_attention", "attention", "sliding_attention", "chunked_attention")
        if not isinstance(kinds, list) or len(kinds) != a.blocks or not {*kinds} <= {*allowed}:
            raise InputError(f"layer_types={kinds!r} must be a list of {a.blocks}, each one of {', '.join(allowed)}")
        return [kind not in ("full_attention", "attention") for kind in kinds]
    rule = Arithmetic.parse(blocks)
    values = {name: config[name] for name in rule.names.values() if name != "block"}
    for name, value in values.items():
        if isinstance(value, list) and len(value) != a.blocks:
            raise InputError(f"{name} has {len(value)} entries; it must have one for each of {a.blocks} blocks")
        for number in value if isinstance(value, list) else [value]:
            check_size(name, number, least=1 if name.endswith("pattern") else 0)
    limited = []
    for block in range(a.blocks):
        numbers = {name: value[block] if isinstance(value, list) else value for name, value in values.items()}
        limited.append(rule.value(numbers | {"block": block}) > 0)
    return limited


def _selecting(a: Architecture, config: _Fields, own_indexer: bool) -> list[Span]:
    """Read what a block with sparse attention (DeepSeek-V3.2) attends to."""
    if not own_indexer:
        return selected_keys(a.attention, config["index_topk"])
    heads, width = config["index_n_heads"], config["index_head_dim"]
    check_size("index_n_heads", heads)
    check_size("index_head_dim", width)
    weights = (config["q_lora_rank"] or 0) * heads * width + a.d_model * (width + heads)
    return selected_keys(a.attention, config["index_topk"], heads, width, weights)


def _head_dim(config: Config) -> int | None:
    """As classes divide: Glm4Moe's default, 4096 over 96 heads, has heads of 42."""
    d, heads = config["hidden_size"], config["num_attention_heads"]
    whole = isinstance(d, int) and isinstance(heads, int) and 0 < heads <= d
    stated = config.get("head_dim")
    return stated if stated is not None else (d // heads if whole else None)


def _dense_blocks(config: Config) -> int:
    """How many blocks have a dense feed-forward, by whichever field says it."""
    check_size("num_hidden_layers", config["num_hidden_layers"])
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


def _own_indexers(config: Config) -> list[bool]:
    """Say of each block whether it has an indexer of its own for sparse attention (DeepSeek-V3.2)."""
    if (kinds := config.get("indexer_types")) is not None:
        return [kind != "shared" for kind in kinds]
    if config.get("index_topk_pattern") or config.get("index_topk_freq", 1) != 1:
        raise InputError("index_topk_pattern and index_topk_freq are read with indexer_types only")
    return [True] * int(config["num_hidden_layers"])


def _rotary_blocks(config: Config) -> list[int]:
    """Say of each block whether it has rotary positions (Llama 4, SmolLM 3)."""
    interval = config["no_rope_layer_interval"]
    check_size("no_rope_layer_interval", interval)
    return [int((block + 1) % interval != 0) for block in range(config["num_hidden_layers"])]


_COMPUTED: Mapping[str, Callable[[Any], Any]] = {
    "dense_blocks": _dense_blocks,
    "indexers": lambda config: sum(_own_indexers(config)),
    "no_rope_layers": _rotary_blocks,
}
