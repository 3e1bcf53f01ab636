"""Architectures of released models, read from their `config.json`: no weights, no code, no transformers.

A row of `families.json` says how configurations of some model types are read, beside what it takes from a row that it
is `like`: `architecture` has fields of `Architecture`, each a field of config.json or a constant; `left_out` the
parameters that laws do not count, as arithmetic on fields of both; `defaults` the class's values of fields that may be
absent. `windows` names the field that limits the keys of a block, and where no `layer_types` say it, the blocks: those
in which arithmetic on fields and the number of the `block` is positive (absent: all). `Model.parameters` is exact
(tests build the classes). Any other class is counted by an installed package that can, an entry point of the group
`CLASSES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

# Lazy: the rooms of hub are imported when a file is read.
import hub
from hub.base import strict_json
from hub.base.arithmetic import Arithmetic
from hub.base.errors import InputError, shorten, unknown
from hub.base.paths import local_path
from hub.base.strict_json import MAX_FILE_BYTES
from hub.base.types import Fields, Strings
from scaling_law.size.architecture import Architecture, Span, check_size, selected_keys
from scaling_law.size.config_fields import Precision, explain_prediction_modules, list_unread, read_precision

Config = Mapping[str, Any]
Family = Mapping[str, Mapping[str, Any]]
# From the fields of a configuration to the architecture, and the parameters that laws leave out, by name.
Reader = Callable[[Config], tuple[Architecture, Mapping[str, int]]]
FILE_NAME = "config.json"
# Entry points for functions like `Reader`. Their module may have `names_read_by(model_type)`, the fields that a class
# reads.
CLASSES = "scaling_law.classes"
# Sections of the text model in the configuration of a larger one.
_TEXT = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")
# Fields of the larger one that hold for it, unless it has its own.
_OF_ALL = ("quantization_config", "dtype", "torch_dtype")
# Sections of its other models.
_OTHER_MODELS = ("vision_config", "audio_config")
# Names of the number of routed experts.
EXPERT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts")
# Fields that say which blocks have experts, an indexer or rotary positions, and how wide they are.
_READ_BESIDE = {
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", *EXPERT_FIELDS),
    *("moe_layers", "moe_layer_freq", "interleave_moe_layer_step", "decoder_sparse_step", "mlp_only_layers"),
    *("first_k_dense_replace", "no_rope_layers", "index_topk"),
    # Other architectures of the same fields have them.
    *("intermediate_size", "max_window_layers", "n_shared_experts"),
}
# Fields that say from which block on, and how often, blocks have experts.
_FIRST_ROUTED = ("first_k_dense_replace", "interleave_moe_layer_step", "decoder_sparse_step")
# Fields in which null has a meaning.
_MAYBE_NULL = (
    "head_dim",
    "n_shared_experts",
    "num_key_value_heads",
    "q_lora_rank",
    "sliding_window",
    "attention_chunk_size",
)
_FULL_ATTENTION = ("full_attention", "attention")
_LAYER_TYPES = (*_FULL_ATTENTION, "sliding_attention", "chunked_attention")


# Families by model type.
FAMILIES: dict[str, Family] = {}
for _row in strict_json.loads(Path(__file__).with_name("families.json").read_bytes(), what="families.json"):
    _base = FAMILIES.get(_row.get("like"), {})
    # Windows are not inherited.
    _family = {"windows": _row.get("windows", {})}
    for _section in ("architecture", "left_out", "defaults"):
        _family[_section] = {**_base.get(_section, {}), **_row.get(_section, {})}
    FAMILIES.update(dict.fromkeys(_row["types"], _family))
# Configurations of released models, with where they were read.
RELEASED = Path(__file__).with_name("released.json")
# The sizes that classes of transformers have where a file leaves a field out, by model type.
CLASS_DEFAULTS: Mapping[str, Config] = strict_json.loads(
    Path(__file__).with_name("class_defaults.json").read_bytes(), what="class_defaults.json"
)


class UnknownTypeError(InputError):
    """A model type that nothing here reads."""


@dataclass(frozen=True)
class Model:
    """A released model as laws see it, and the parameters that they leave out, by name: norms, router, biases, …

    "idle biases" are those of experts that a token does not take.
    """

    name: str
    model_type: str
    architecture: Architecture
    left_out: Mapping[str, int]
    # The model reads more than text, but only its text model is counted.
    text_only: bool = False
    # The precision of the checkpoint's weights, where it is neither bf16 nor fp16.
    precision: Precision | None = None
    # What is not counted, or assumed.
    notes: Strings = ()
    # Fields of the file that nothing reads: the count is then one of another model.
    unread: Strings = ()

    @property
    def parameters(self) -> int:
        """The exact number of parameters of the class in transformers."""
        return self.architecture.n_total + sum(self.left_out.values())

    @property
    def warnings(self) -> list[str]:
        """Reasons not to trust the count."""
        if not self.unread:
            return []
        return [f"{_explain_unread(self.model_type, self.unread)}: the count is one of another model"]

    @property
    def active_parameters(self) -> int:
        """The parameters that one token multiplies: all except tables and the experts it is not routed to."""
        active = sum(count for name, count in self.left_out.items() if name != "idle biases")
        return self.architecture.n_active + active


def read_model(source: str | Path | Config | Any, revision: str | None = None) -> Model:
    """Read the model of a configuration.

    Args:
        source: a folder, a config.json, "org/model" on the Hub (of which only config.json is read), the name of a
            released model that is shipped such as "qwen3-30b-a3b", a mapping, or a configuration of transformers.
        revision: branch, tag or commit on the Hub.

    FileNotFoundError where there is no config.json; ValueError, in one line, for an encoder-decoder, a field that is
    missing or impossible, a class that cannot be counted, and where nothing is installed that counts classes.
    """
    name, config = read_source(source, "model", revision)
    try:
        return _model(name, config)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from None


def read_source(source: Any, field: str, revision: str | None = None) -> tuple[str, Config]:
    """Read the name and the configuration of a model, of any source that `read_model` takes; `field` is its name."""
    if isinstance(source, (str, Path)):
        name = str(source)
        config = read_config(source, revision)
    elif isinstance(source, Mapping) or hasattr(source, "to_dict"):
        config = source if isinstance(source, Mapping) else source.to_dict()
        name = str(config.get("_name_or_path") or config.get("model_type"))
    else:
        sources = (
            "org/model on the Hub, a folder, a config.json, a mapping, a configuration of transformers, or the name "
            "of a released model"
        )
        raise InputError(f"{field}={shorten(source)} must be {sources}")
    if not isinstance(config, Mapping):
        raise InputError(f"{name}: the configuration must be an object with fields, not a {type(config).__name__}")
    return name, config


def read_config(source: str | Path, revision: str | None = None) -> Any:
    """Read the config.json of a folder or of the Hub, or the one that is shipped of a released model."""
    path = local_path(source)
    released = released_configs().get(_squeeze(str(source)))
    if released is not None and not path.exists():
        return released
    try:
        content = path.read_bytes() if path.is_file() else hub.read_file(source, FILE_NAME, revision)
    except hub.NotFoundError as error:
        names = ", ".join(released_names())
        advice = f"; released models whose configurations are here: {names}" if "/" not in str(source) else ""
        raise FileNotFoundError(f"{source}: no folder or Hub repo with a {FILE_NAME} ({error}){advice}") from None
    # Python writes infinities, which some models have among their fields; a list of unquantized modules may be long.
    return strict_json.loads(content, what=f"{source}: {FILE_NAME}", max_bytes=MAX_FILE_BYTES, finite=False)


@cache
def released_models() -> list[Fields]:
    """Read the released models that are shipped: `name`, `config`, its `source`, and training `tokens` if known."""
    return list(strict_json.loads(RELEASED.read_bytes(), what=RELEASED.name)["models"])


@cache
def released_configs() -> Mapping[str, Config]:
    """Return the configurations of released models, by the letters and digits of their names."""
    return {_squeeze(model["name"]): model["config"] for model in released_models()}


def released_names() -> list[str]:
    """List the names by which a released model is asked for, such as qwen3-30b-a3b."""
    return [re.sub(r"[^a-z0-9.]+", "-", model["name"].lower()) for model in released_models()]


def _squeeze(name: str) -> str:
    """Leave the letters and digits of a name."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _model(name: str, config: Config) -> Model:
    """Read a configuration, or that of its text model, by the family of its model type or an installed reader."""
    if config.get("is_encoder_decoder"):
        raise InputError("is_encoder_decoder=True: laws here are of decoders only")
    text = text_config(config)
    model_type = str(text.get("model_type") or config.get("model_type"))
    is_part = text is not config or any(isinstance(config.get(section), Mapping) for section in _OTHER_MODELS)
    notes = ["Only the language model is counted."] if is_part else []
    if model_type in FAMILIES:
        values = _read_fields(model_type, text)
        architecture = _read_architecture(model_type, values)
        left_out = _count_left_out(model_type, values, architecture)
        unread = list_unread(text, names_of_family(model_type), model_type)
        if values.defaults:
            sizes = ", ".join(f"{field} {value}" for field, value in values.defaults.items())
            notes.append(f"Defaults of the class, since {FILE_NAME} leaves them out: {sizes}.")
    else:
        architecture, left_out, unread = _count_class(model_type, text, config)
    notes += explain_prediction_modules(text)
    return Model(
        name,
        model_type,
        architecture,
        left_out,
        text_only=is_part,
        precision=read_precision(text, architecture),
        notes=tuple(notes),
        unread=tuple(unread),
    )


def text_config(config: Config) -> Config:
    """Return the section of the text model, with what the larger model says of it; the configuration without such."""
    for section in _TEXT:
        inner = config.get(section)
        if isinstance(inner, Mapping):
            text = {field: config[field] for field in _OF_ALL if field in config}
            text_type = f"{config.get('model_type')}_text"
            if text_type in FAMILIES:
                text["model_type"] = text_type
            text.update(inner)
            if "tie_word_embeddings" in config:
                text["tie_word_embeddings"] = config["tie_word_embeddings"]
            return text_config(text)
    return config


def _count_class(
    model_type: str,
    text: Config,
    config: Config,
) -> tuple[Architecture, Mapping[str, int], list[str]]:
    """Count a text model on its class, or on that of the larger model, and list the fields that no class reads."""
    reader, names_read_by = _installed_reader(text)
    names = names_read_by(model_type)
    unread = list_unread(text, names, model_type) if names else []
    try:
        return *reader(text), unread
    except UnknownTypeError as error:
        if text is config:
            raise InputError(f"{error}; {_suggest_twin(text)}") from None
        return _count_class(model_type, config, config)
    except InputError as error:
        if not unread:
            raise
        reason = str(error).partition("; give ")[0]
        raise InputError(f"{_explain_unread(model_type, unread)}: it is another model ({reason})") from None


def _installed_reader(config: Config) -> tuple[Reader, Callable[[str], Collection[str]]]:
    """Find the reader of classes that an installed package offers, and what lists the fields that a class reads."""
    for point in entry_points(group=CLASSES):
        try:
            return point.load(), getattr(import_module(point.module), "names_read_by", lambda model_type: ())
        except ImportError:
            continue
    advice = 'others are counted on their classes, with pip install "joint-moe-scaling-laws[train]"'
    refusal = unknown("model_type=", config.get("model_type"), FAMILIES)
    raise InputError(f"{refusal}; {advice}; {_suggest_twin(config)}")


def _explain_unread(model_type: str, unread: Collection[str]) -> str:
    return f"{FILE_NAME} has fields that {model_type} does not read, {', '.join(unread)}"


def _suggest_twin(config: Config) -> str:
    """Say which model types have the fields of a configuration, for one whose own type is unknown."""
    stated = {name for name, value in config.items() if value is not None}
    ranks = {}
    for model_type, family in FAMILIES.items():
        sizes = {*_names_in(family["architecture"])}
        if "_vl" not in model_type and stated | {*family["defaults"], *_COMPUTED} >= sizes:
            ranks[model_type] = len(stated & {*family["defaults"], *sizes})
    twins = sorted(ranks, key=lambda name: -ranks[name])[:3]
    fits = f": {', '.join(twins)} have its fields" if twins else ""
    return f'if it is built as a known type, write that as "model_type" into a copy of its {FILE_NAME}{fits}'


def names_of_family(model_type: str) -> set[str]:
    """List the fields of a configuration that a family reads."""
    family = FAMILIES[model_type]
    names = {*_READ_BESIDE, *family["defaults"], *_names_in(family["architecture"]), *_names_in(family["windows"])}
    for formula in family["left_out"].values():
        names.update(Arithmetic.parse(formula).names)
    return names


def _names_in(section: Any) -> list[str]:
    """List the texts in a section of a family."""
    if isinstance(section, Mapping):
        return [name for value in section.values() for name in _names_in(value)]
    return [section] if isinstance(section, str) else []


class _Fields(Fields):
    """A configuration that computes a missing field from others, or else raises an error with its name.

    `defaults` are sizes that the file leaves out.
    """

    defaults: Mapping[str, Any]

    def __missing__(self, key: str) -> Any:
        if key in _COMPUTED:
            return _COMPUTED[key](self)
        raise InputError(f"{FILE_NAME} lacks {key}, which model_type {self['model_type']!r} needs")


def read_architecture(config: Config) -> Architecture:
    """Read the architecture of a configuration, as `read_model` does: by the table of its type, or on its class."""
    model_type = config["model_type"]
    if model_type not in FAMILIES:
        return read_model(config).architecture
    return _read_architecture(model_type, _read_fields(model_type, config))


def sizes_left_out(config: Config) -> Mapping[str, Any]:
    """Return the sizes that a configuration of such a type leaves to its class."""
    values = _read_fields(config["model_type"], config)
    names = {*values.defaults, *_FIRST_ROUTED} & {*values} - {*config}
    return {name: values[name] for name in sorted(names)}


def _read_architecture(model_type: str, values: _Fields) -> Architecture:
    """Read an architecture as the row of `families.json` says."""
    family = FAMILIES[model_type]
    options = {}
    for name, key in family["architecture"].items():
        if name != "d_ff" or values["dense_blocks"]:
            options[name] = _value_of(values, key)
    options["shared_experts"] = options.get("shared_experts") or 0
    a = Architecture(**options)
    windows = family["windows"]
    if not windows or not values.get("use_sliding_window", True) or not values[windows["limit"]]:
        return a
    limit = values[windows["limit"]]
    if windows["limit"] == "index_topk":
        return a.attending(_selected_spans(a, values, limit, has_indexer) for has_indexer in _own_indexers(values))
    window = replace(a.attention, limit=limit)
    blocks = _limited_blocks(a, values, windows.get("blocks"))
    return a.attending([window if is_limited else a.attention] for is_limited in blocks)


def _count_left_out(model_type: str, values: _Fields, a: Architecture) -> Mapping[str, int]:
    """Count the parameters that laws leave out, by name, as the row of `families.json` says."""
    numbers = _Fields({name: value or 0 for name, value in {**values, **vars(a)}.items()})
    numbers["qk"] = a.head_dim * (a.heads + a.n_kv_heads)
    numbers["qkv"] = a.head_dim * (a.heads + 2 * a.n_kv_heads)
    numbers["routed_blocks"] = a.routed_blocks if a.experts > 1 else 0
    left_out = {}
    for name, formula in FAMILIES[model_type]["left_out"].items():
        count = int(Arithmetic.parse(formula).value(numbers))
        if count:
            left_out[name] = count
    return left_out


def _read_fields(model_type: str, config: Config) -> _Fields:
    """Complete the fields of a configuration by the defaults of its class."""
    family = FAMILIES[model_type]
    stated = {key: value for key, value in config.items() if value is not None or key in _MAYBE_NULL}
    # Classes read an empty list as none.
    if not stated.get("no_rope_layers"):
        stated.pop("no_rope_layers", None)
    values = _Fields({**family["defaults"], **stated})
    # transformers 5 writes the num_experts of Qwen3 as num_local_experts; other fields have aliases, too.
    experts = next((values[name] for name in EXPERT_FIELDS if name in values), None)
    if experts is not None:
        for name in EXPERT_FIELDS:
            values.setdefault(name, experts)
    # A field that is null is not left out.
    defaults = CLASS_DEFAULTS.get(model_type, {})
    left_out = {name: value for name, value in defaults.items() if name not in config and name not in values}
    values.update(left_out)
    values.defaults = {name: left_out[name] for name in _names_in(family["architecture"]) if name in left_out}
    values["head_dim"] = _head_dim(values)
    values["layer_norm"] = values.get("norm_type") == "layer_norm"
    return values


def _value_of(values: _Fields, key: Any) -> Any:
    """Return the value of a field, or a constant; latent attention has a mapping of these."""
    if isinstance(key, Mapping):
        return {name: _value_of(values, inner) for name, inner in key.items()}
    return values[key] if isinstance(key, str) else key


def _limited_blocks(a: Architecture, config: _Fields, blocks: str | None) -> list[bool]:
    """Find which blocks see only a window or a chunk."""
    if blocks is None:
        return [True] * a.blocks
    layer_types = config.get("layer_types")
    if layer_types:
        is_list = isinstance(layer_types, list) and len(layer_types) == a.blocks
        if not is_list or not {*layer_types} <= {*_LAYER_TYPES}:
            choices = ", ".join(_LAYER_TYPES)
            raise InputError(f"layer_types={layer_types!r} must be a list of {a.blocks}, each one of {choices}")
        return [layer_type not in _FULL_ATTENTION for layer_type in layer_types]
    rule = Arithmetic.parse(blocks)
    rows: list[Fields] = [{"block": block} for block in range(a.blocks)]
    for name in {*rule.names.values()} - {"block"}:
        # One value for all blocks, or one for each.
        values = config[name] if isinstance(config[name], list) else [config[name]] * a.blocks
        if len(values) != a.blocks:
            raise InputError(f"{name} has {len(values)} entries; it must have one for each of {a.blocks} blocks")
        for row, number in zip(rows, values, strict=True):
            check_size(name, number, least=1 if name.endswith("pattern") else 0)
            row[name] = number
    return [rule.value(row) > 0 for row in rows]


def _selected_spans(a: Architecture, config: _Fields, limit: int, has_indexer: bool) -> list[Span]:
    """Read the spans of a block with sparse attention (DeepSeek-V3.2)."""
    if not has_indexer:
        return selected_keys(a.attention, limit)
    heads = config["index_n_heads"]
    width = config["index_head_dim"]
    check_size("index_n_heads", heads)
    check_size("index_head_dim", width)
    weights = (config["q_lora_rank"] or 0) * heads * width + a.d_model * (width + heads)
    return selected_keys(a.attention, limit, heads, width, weights)


def _head_dim(config: Config) -> Any:
    """Divide as classes do: Glm4Moe's default, 4096 over 96 heads, has heads of 42."""
    d = config["hidden_size"]
    heads = config["num_attention_heads"]
    stated = config.get("head_dim")
    if stated is not None:
        return stated
    if isinstance(d, int) and isinstance(heads, int) and 0 < heads <= d:
        return d // heads
    return None


def _dense_blocks(config: Config) -> int:
    """Count the blocks that have a dense feed-forward, by whichever field says it."""
    check_size("num_hidden_layers", config["num_hidden_layers"])
    blocks = range(config["num_hidden_layers"])
    layer_types = config.get("mlp_layer_types")
    if layer_types is not None:
        return sum(layer_type == "dense" for layer_type in layer_types)
    routed = config.get("moe_layers")
    if routed is not None:
        return len(blocks) - len(routed)
    step = config.get("interleave_moe_layer_step") or config.get("decoder_sparse_step")
    if step:
        dense = config.get("mlp_only_layers") or ()
        return sum(i in dense or (i + 1) % step != 0 for i in blocks)
    if config.get("moe_layer_freq", 1) != 1:
        raise InputError(f"moe_layer_freq={config['moe_layer_freq']!r} must be 1")
    return int(config.get("first_k_dense_replace") or 0)


def _own_indexers(config: Config) -> list[bool]:
    """Find which blocks have an indexer for sparse attention (DeepSeek-V3.2)."""
    indexer_types = config.get("indexer_types")
    if indexer_types is not None:
        return [indexer_type != "shared" for indexer_type in indexer_types]
    if config.get("index_topk_pattern") or config.get("index_topk_freq", 1) != 1:
        raise InputError("index_topk_pattern and index_topk_freq are read with indexer_types only")
    return [True] * int(config["num_hidden_layers"])


def _rotary_blocks(config: Config) -> list[int]:
    """Find which blocks have rotary positions (Llama 4, SmolLM 3): 1 for each that has, else 0."""
    interval = config["no_rope_layer_interval"]
    check_size("no_rope_layer_interval", interval)
    return [int((block + 1) % interval != 0) for block in range(config["num_hidden_layers"])]


_COMPUTED: Mapping[str, Callable[[Any], Any]] = {
    "dense_blocks": _dense_blocks,
    "indexers": lambda config: sum(_own_indexers(config)),
    "no_rope_layers": _rotary_blocks,
}
