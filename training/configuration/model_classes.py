"""A decoder of transformers instead of ours: its model type with the fields of its class, or a config.json.

The class is transformers' own: nothing is downloaded, and no other code is run. What laws ask about such a model is
its `Architecture`, counted on the class (`class_counts`).
"""

from __future__ import annotations

import difflib
import inspect
import logging
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields as fields_of_dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from hub.base import strict_json, strict_yaml
from hub.base.errors import InputError, unknown
from hub.base.paths import local_path
from hub.base.strict_json import MAX_FILE_BYTES
from hub.base.types import Fields, Strings
from hub.record.names import size_name
from scaling_law.size.architecture import VOCAB_SIZE, Architecture
from scaling_law.size.model_configs import FAMILIES, Model

# `class_counts` imports torch, which a run of our class needs only when it starts, and --help never.
from training import configuration
from training.configuration.class_fields import modeling_module, names_read_by

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

OURS: Final = "switch_moe"
# The buffer's name in DeepSeek-V3 and in the classes made after it.
SELECTION_BIAS = "e_score_correction_bias"
# It is small beside the scores, which lie between 0 and 1.
BIAS_UPDATE_RATE = 0.001
# The special tokens that the tokenizer has.
_TOKENS = {"bos_token_id", "eos_token_id", "pad_token_id"}
# Tokens of classes that were made from encoders.
_ENCODER_TOKENS = {"cls_token_id", "sep_token_id"}
# How a class reads a field that it does not declare, and how a configuration takes one.
_UNDECLARED_READ = re.compile(r'getattr\((?:self\.)?config, "(\w+)"')
_UNDECLARED_KEYWORD = re.compile(r'kwargs\.pop\("(\w+)"')
_PADDED_POSITIONS = re.compile(r"position_embeddings = nn\.Embedding\([^)]*padding_idx")
_PARTIAL = "partial_rotary_factor"
# transformers puts these into `rope_parameters`.
_ROTARY = {"rope_theta", "rope_scaling", _PARTIAL}


class ModelClassArguments(BaseModel):
    """The architecture of a class of transformers: its model type, and fields of its configuration as extras.

    `balance` "bias" moves the selection bias of classes that have one, instead of their balance loss, by
    `bias_update_rate` a step. An absent field has the class's default, except the vocabulary and special tokens (the
    tokenizer's; none is padding, whose embedding is not trained) and the positions (the sequence length).
    """

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    type: str
    capacity_group_tokens: PositiveInt | None = None
    balance: Literal["loss", "bias"] = "loss"
    bias_update_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = BIAS_UPDATE_RATE
    # These classes drop nothing, and have no such loss.
    capacity_factor: ClassVar[float] = 0.0
    z_loss: ClassVar[float] = 0.0

    @model_validator(mode="before")
    @classmethod
    def _read_section(cls, values: Fields) -> Fields:
        """Read a section of a YAML file or of flags; null is a value of a class's fields (`q_lora_rank`)."""
        fields = {name: _as_typed(value) for name, value in values.items()}
        settings = {name: fields.pop(name) for name in cls.model_fields if name in fields}
        kind = str(settings["type"])
        if kind.endswith(".json"):
            kind, fields_in_file = _read_config_file(local_path(kind))
            fields = {**fields_in_file, **fields}
        _check_type(kind)
        _check_fields(kind, fields)
        settings = {name: value for name, value in settings.items() if value is not None}
        return {**settings, **fields, "type": kind}

    @model_validator(mode="after")
    def _check_model(self) -> ModelClassArguments:
        """Check what no single field shows: balancing, the class's own checks, and those of `Architecture`."""
        if counts_from_padding(self.type):
            raise InputError(
                f"model.type: {self.type} counts positions by a padding token, which the text here does not have; "
                "choose another type, such as gpt2"
            )
        if self.balance == "bias" and not has_selection_bias(self.type):
            able = ", ".join(name for name in model_types() if name in FAMILIES and has_selection_bias(name))
            raise InputError(
                f"model.balance: bias; transformers' {self.type} has no selection bias; {able}, … have one"
            )
        if self.balance != "bias" and self.bias_update_rate != BIAS_UPDATE_RATE:
            raise InputError(f"model.bias_update_rate: {self.bias_update_rate!r}; it needs model.balance bias")
        try:
            _check_groups(self.config(1, eos_token_id=0))
            self.model()
        except Exception as error:
            # Every class has checks of its own.
            refusal = " ".join(str(error).split())
            component_types = list_default_parts(self.type)
            if component_types:
                refusal = configuration.class_counts.explain_parts(self.type, component_types)
            raise InputError(f"model: {refusal}") from None
        return self

    def config(self, vocab_size: int, sequence_length: int | None = None, eos_token_id: int | None = None) -> Any:
        """Make the configuration of transformers.

        Raises ValueError if the tokens or the sequences do not fit into it.
        """
        from transformers import AutoConfig

        least: Fields = {"vocab_size": vocab_size}
        if sequence_length is not None:
            least["max_position_embeddings"] = sequence_length
        fields: Fields = {**least, **(self.model_extra or {})}
        tokens: dict[str, int | None] = dict.fromkeys(_TOKENS, eos_token_id)
        tokens["pad_token_id"] = None
        tokens.update(dict.fromkeys(list_required_tokens(self.type), eos_token_id or 0))
        # This checks the types of the fields.
        config = AutoConfig.for_model(self.type, **fields, **tokens)
        for name, value in least.items():
            if (fields[name] or value) < value:
                owner = "the tokenizer's" if name == "vocab_size" else "data.sequence_length,"
                raise InputError(f"model.{name}: {fields[name]}; it must be at least {owner} {value}")
        return configuration.class_counts.as_decoder(config)

    def model(self, vocab_size: int | None = None) -> Model:
        """Return the model in the terms of laws, counted on its class.

        Without a `vocab_size`, with the configured vocabulary or GPT-2's. Raises ValueError if the class refuses its
        configuration, or cannot run.
        """
        if not vocab_size:
            vocab_size = (self.model_extra or {}).get("vocab_size", VOCAB_SIZE)
        config = self.config(vocab_size, eos_token_id=0)
        architecture, left_out = configuration.class_counts.read_class(config.to_dict())
        return Model(self.type, self.type, architecture, left_out)

    # The loop asks the following of the section `model`; see `ModelArguments`.

    @property
    def name(self) -> str:
        """Name of the size, as in repositories."""
        a = self._architecture
        return size_name(
            **a.shape,
            model_type=self.type,
            experts_per_token=a.experts_per_token,
            d_expert=a.d_expert,
            shared_experts=a.shared_experts,
            n_kv_heads=a.n_kv_heads,
        )

    @property
    def experts(self) -> int:
        """Routed experts of a block; 1 for a dense model."""
        return self._architecture.experts

    @cached_property
    def experts_ways(self) -> Strings:
        """Ways to multiply experts that the class has a choice of; without experts, none but its own."""
        if causal_class(self.config(1))._can_set_experts_implementation():
            return ("auto", "grouped_mm", "batched_mm", "eager")
        return ("auto",)

    @cached_property
    def balance_loss(self) -> float:
        """Coefficient that the class has for its load-balancing loss; 0 without one, or if its bias balances it."""
        config = self.config(1, eos_token_id=0)
        if self.balance == "bias" or self.experts == 1 or balance_loss_of(causal_class(config)) is None:
            return 0.0
        return float(getattr(config, "router_aux_loss_coef", 0.0))

    @property
    def bias_rate(self) -> float:
        """Step by which an update moves each expert's selection bias; 0 leaves it alone."""
        return self.bias_update_rate if self.balance == "bias" else 0.0

    @cached_property
    def _architecture(self) -> Architecture:
        return self.model().architecture


def _check_type(kind: str) -> None:
    """Refuse a model type that transformers does not have, and name the nearest."""
    if kind in model_types():
        return
    near = difflib.get_close_matches(kind, model_types(), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    choices = f"{OURS}, a config.json or a causal type of transformers ({', '.join(FAMILIES)}, …)"
    raise InputError(f"model.type: {kind!r}; {hint}it must be {choices}")


def _check_fields(kind: str, fields: Fields) -> None:
    """Refuse fields that a class ignores, and fields that it does not have, each in a line."""
    ignored = unread_fields(kind)
    valid_names = sorted(fields_of(kind))
    problems = []
    for name in fields:
        if name in ignored:
            problems.append(_refuse_ignored(kind, name))
        elif name not in valid_names:
            problems.append(unknown(f"model: {kind}'s field ", name, valid_names))
    if _PARTIAL in ignored and _rotates_a_part(fields.get("rope_parameters")):
        problems.append(_refuse_ignored(kind, _PARTIAL, "rope_parameters."))
    if problems:
        raise InputError("\n".join(problems))


def causal_class(config: Any) -> type[PreTrainedModel]:
    """Return the class of transformers that trains this configuration."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    # transformers annotates this mapping of models as it does that of tokenizers.
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]  # type: ignore[return-value]


def balance_loss_of(model_class: type) -> Callable[..., Any] | None:
    """Return the load-balancing loss that a class adds to its own, a function of its file; None where it has none."""
    return getattr(sys.modules[model_class.__module__], "load_balancing_loss_func", None)


@cache
def model_types() -> Strings:
    """List the causal model types of the installed transformers.

    Some refuse: docs/bring_your_own_architecture.md.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return tuple(sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {OURS}))


def list_default_parts(model_type: str) -> list[str]:
    """List the types of the models that a type is made of by default; none of a decoder of tokens."""
    from transformers import CONFIG_MAPPING

    defaults = getattr(CONFIG_MAPPING[model_type], "sub_configs_defaults", {})
    return [component.model_type for component in defaults.values() if component.model_type]


@cache
def list_required_tokens(model_type: str) -> frozenset[str]:
    """List the special tokens that cannot be null; the end token then stands for each."""
    from transformers import CONFIG_MAPPING

    fields = fields_of_dataclass(CONFIG_MAPPING[model_type])
    return frozenset(field.name for field in fields if field.type is int) & (_TOKENS | _ENCODER_TOKENS)


@cache
def counts_from_padding(model_type: str) -> bool:
    """Return whether positions count from the padding token's id on and skip that token, as RoBERTa's do."""
    return _PADDED_POSITIONS.search(_read_source(model_type)) is not None


@cache
def has_selection_bias(model_type: str) -> bool:
    """Return whether a class chooses experts by their scores plus a bias that no gradient moves."""
    return SELECTION_BIAS in _read_source(model_type)


def _read_source(model_type: str) -> str:
    """Read the file of a class."""
    return inspect.getsource(modeling_module(model_type))


@cache
def fields_of(model_type: str) -> frozenset[str]:
    """List the fields of a configuration that say what the architecture is, except parts that are models of their own.

    Those that it declares, older names that it takes for rotary positions, and those that the class reads if they are
    there: `head_dim` of Qwen3-MoE, for one, is not declared. Not those that it declares and never reads.
    """
    return _declared_fields(model_type) - unread_fields(model_type)


@cache
def unread_fields(model_type: str) -> frozenset[str]:
    """Find the fields that a class takes and ignores: their names are nowhere in its code, nor are their aliases."""
    from transformers import CONFIG_MAPPING

    names = names_read_by(model_type)
    aliases = [pair for pair in CONFIG_MAPPING[model_type].attribute_map.items() if not names.isdisjoint(pair)]
    return _declared_fields(model_type) - names.union(*aliases)


def _refuse_ignored(model_type: str, field: str, section: str = "") -> str:
    """Word the refusal of a field that a class ignores, with the nearest that it reads."""
    near = difflib.get_close_matches(field, sorted(fields_of(model_type)), n=1)
    hint = f", or did you mean {near[0]}?" if near else ""
    return f"model.{section}{field}: transformers' {model_type} does not read it; leave it out{hint}"


def _rotates_a_part(rotary: Any) -> bool:
    """Return whether rotary parameters, of all layers or by their type, leave a part of each head unrotated."""
    if not isinstance(rotary, dict):
        return False
    return rotary.get(_PARTIAL, 1) not in (None, 1) or any(map(_rotates_a_part, rotary.values()))


def _declared_fields(model_type: str) -> frozenset[str]:
    """List the fields of the architecture that a configuration declares or takes, or that its class looks for."""
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[model_type]
    fields = {
        *(field.name for field in fields_of_dataclass(config_class)),
        *config_class.attribute_map,
        *_UNDECLARED_READ.findall(_read_source(model_type)),
        *_UNDECLARED_KEYWORD.findall(inspect.getsource(config_class)),
    }
    if "rope_parameters" in fields:
        fields.update(_ROTARY)
    return frozenset(name for name in fields - _fields_beside_architecture() if not re.search("^_|_config$", name))


def _read_config_file(path: Path) -> tuple[str, Fields]:
    """Read model type and fields of a config.json; warn of those that the class does not read, and leave them out."""
    try:
        config = strict_json.loads(path.read_bytes(), what=path.name, max_bytes=MAX_FILE_BYTES, finite=False)
        kind = str(config["model_type"])
    except (OSError, ValueError, TypeError, LookupError) as error:
        reason = f"{str(path)!r} cannot be read: {getattr(error, 'strerror', repr(error))}"
        raise InputError(f"model.type: {reason}; it must be a config.json with the model_type of a class") from None
    valid_names = fields_of(kind) if kind in model_types() else frozenset(config)
    omitted = sorted({*config} - valid_names - _fields_beside_architecture())
    if omitted:
        names = ", ".join(omitted)
        logger.warning("%s: left out, since transformers' %s does not read it: %s", path.name, kind, names)
    return kind, {name: value for name, value in config.items() if name in valid_names}


@cache
def _fields_beside_architecture() -> frozenset[str]:
    """List the fields about a configuration's file, about how a checkpoint was saved or is used, and its tokenizer."""
    from transformers import PreTrainedConfig

    common = {field.name for field in fields_of_dataclass(PreTrainedConfig)} - {"tie_word_embeddings"}
    in_use = {"output_router_logits", "use_cache"}
    about_file = {"auto_map", "model_type", "_name_or_path", "quantization_config", "torch_dtype"}
    return frozenset(common | in_use | about_file | _TOKENS | _ENCODER_TOKENS)


def _as_typed(value: Any) -> Any:
    """Return a value of YAML or of flags, with words as numbers where they are: the class knows which fields are."""
    if isinstance(value, dict):
        return {name: _as_typed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_typed(item) for item in value]
    if isinstance(value, str):
        # A flag may hold a list or a mapping; text that is not YAML stays text.
        with suppress(InputError):
            return strict_yaml.loads(value, numbers=True)
    return value


def _check_groups(config: Any) -> None:
    """Refuse groups of experts (DeepSeek-V3) that do not divide them evenly, or hold fewer than a token takes."""
    names = ("n_routed_experts", "num_experts_per_tok", "n_group", "topk_group")
    experts, per_token, groups, top = (getattr(config, name, None) for name in names)
    if not experts or not groups:
        return
    size, remainder = divmod(experts, groups)
    is_uneven = remainder or (groups > 1 and size < 2)
    if is_uneven or (top and (top > groups or per_token > top * size)):
        raise InputError(
            f"n_group={groups} must divide n_routed_experts={experts} into groups of at least 2, and topk_group={top} "
            f"of them must hold the num_experts_per_tok={per_token} experts of a token"
        )
