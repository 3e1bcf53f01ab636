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
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from hub.base import strict_json, strict_yaml
from hub.base.errors import InputError, unknown
from hub.base.paths import local_path
from hub.base.strict_json import MAX_FILE_BYTES
from hub.record.names import size_name
from scaling_law.size.architecture import VOCAB_SIZE, Architecture
from scaling_law.size.model_configs import FAMILIES, Model

logger = logging.getLogger(__name__)

OURS = "switch_moe"
# The buffer's name in DeepSeek-V3 and in the classes made after it.
SELECTION_BIAS = "e_score_correction_bias"
BIAS_UPDATE_RATE = 0.001  # small beside the scores, which lie between 0 and 1
_TOKENS = {"bos_token_id", "eos_token_id", "pad_token_id"}  # the tokenizer's
# Tokens of classes that were made from encoders.
_OTHER_TOKENS = {"cls_token_id", "sep_token_id"}
_READ, _TAKEN = re.compile(r'getattr\((?:self\.)?config, "(\w+)"'), re.compile(r'kwargs\.pop\("(\w+)"')
_PADDED_POSITIONS = re.compile(r"position_embeddings = nn\.Embedding\([^)]*padding_idx")
_PARTIAL = "partial_rotary_factor"
# transformers puts these into `rope_parameters`.
_ROTARY = {"rope_theta", "rope_scaling", _PARTIAL}
# What transformers reads for every class, beside the class's own file.
_READ_BY_ALL = {"initializer_range", "init_std", "initializer_factor", "tie_word_embeddings", "rope_theta"}
_READ_BY_ALL |= {"rope_scaling", "max_position_embeddings"}


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
    capacity_factor: ClassVar[float] = 0.0  # these classes drop nothing,
    z_loss: ClassVar[float] = 0.0  # and have no such loss

    @model_validator(mode="before")
    @classmethod
    def _of_a_class(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Read a section of a YAML file or of flags; null is a value of a class's fields (`q_lora_rank`)."""
        fields = {name: _plain(value) for name, value in values.items()}
        settings = {name: fields.pop(name) for name in cls.model_fields if name in fields}
        if (kind := str(settings["type"])).endswith(".json"):
            kind, of_file = _of_file(local_path(kind))
            fields = of_file | fields
        if kind not in model_types():
            near = difflib.get_close_matches(kind, model_types(), n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            allowed = f"{OURS}, a config.json or a causal type of transformers ({', '.join(FAMILIES)}, …)"
            raise InputError(f"model.type: {kind!r}; {meant}it must be {allowed}")
        known = sorted(fields_of(kind))
        if ignored := [name for name in fields if name in unread_fields(kind)]:
            raise InputError("\n".join(_ignored(kind, name) for name in ignored))
        if _PARTIAL in unread_fields(kind) and _rotates_a_part(fields.get("rope_parameters")):
            raise InputError(_ignored(kind, _PARTIAL, "rope_parameters."))
        if others := [name for name in fields if name not in known]:
            raise InputError("\n".join(unknown(f"model: {kind}'s field ", name, known) for name in others))
        return {name: value for name, value in settings.items() if value is not None} | fields | {"type": kind}

    @model_validator(mode="after")
    def _is_a_model(self) -> ModelClassArguments:
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
        except Exception as error:  # every class has checks of its own
            refusal = " ".join(str(error).split())
            parts = list_default_parts(self.type)
            if parts:
                from training.configuration.class_counts import explain_parts

                refusal = explain_parts(self.type, parts)
            raise InputError(f"model: {refusal}") from None
        return self

    def config(self, vocab_size: int, sequence_length: int | None = None, eos_token_id: int | None = None) -> Any:
        """The configuration of transformers. ValueError if the tokens or the sequences do not fit into it."""
        from transformers import AutoConfig

        # It imports torch, which a run of our class needs only when it starts, and --help never.
        from training.configuration.class_counts import as_decoder

        least = {"vocab_size": (vocab_size, "the tokenizer's")}
        if sequence_length is not None:
            least["max_position_embeddings"] = (sequence_length, "data.sequence_length,")
        fields = {name: value for name, (value, _) in least.items()} | (self.model_extra or {})
        tokens = dict.fromkeys(_TOKENS, eos_token_id)
        tokens["pad_token_id"] = None
        tokens |= dict.fromkeys(list_required_tokens(self.type), eos_token_id or 0)
        config = AutoConfig.for_model(self.type, **fields, **tokens)  # checks the types of fields
        for name, (value, whose) in least.items():
            if (fields[name] or value) < value:
                raise InputError(f"model.{name}: {fields[name]}; it must be at least {whose} {value}")
        return as_decoder(config)

    def model(self, vocab_size: int | None = None) -> Model:
        """The model in the terms of laws, counted on its class.

        Without a `vocab_size`, with the configured vocabulary or GPT-2's. ValueError if the class refuses its
        configuration, or cannot run.
        """
        from training.configuration.class_counts import read_class

        config = self.config(vocab_size or (self.model_extra or {}).get("vocab_size", VOCAB_SIZE), eos_token_id=0)
        return Model(self.type, self.type, *read_class(config.to_dict()))

    # -- what the loop asks of the section `model`; see `ModelArguments`

    @property
    def name(self) -> str:
        a = self._architecture
        names = ("experts_per_token", "d_expert", "shared_experts", "n_kv_heads")
        return size_name(**a.shape, model_type=self.type, **{name: getattr(a, name) for name in names})

    @property
    def experts(self) -> int:
        """Routed experts of a block; 1 for a dense model."""
        return self._architecture.experts

    @cached_property
    def experts_ways(self) -> tuple[str, ...]:
        """The ways to multiply experts that the class has a choice of; without experts, none but its own."""
        choice = ("grouped_mm", "batched_mm", "eager")
        return ("auto", *(choice if causal_class(self.config(1))._can_set_experts_implementation() else ()))

    @cached_property
    def balance_loss(self) -> float:
        """The class's coefficient of its load-balancing loss; 0 where it has none, or is balanced by its bias."""
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


def causal_class(config: Any) -> type:
    """The class of transformers that trains this configuration."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def balance_loss_of(model_class: type) -> Callable[..., Any] | None:
    """The load-balancing loss that a class adds to its own, a function of its file; None where it has none."""
    return getattr(sys.modules[model_class.__module__], "load_balancing_loss_func", None)


@cache
def model_types() -> tuple[str, ...]:
    """The causal model types of the installed transformers. Some refuse: docs/bring_your_own_architecture.md."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return tuple(sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {OURS}))


def list_default_parts(model_type: str) -> list[str]:
    """List the types of the models that a type is made of by default; none of a decoder of tokens."""
    from transformers import CONFIG_MAPPING

    defaults = getattr(CONFIG_MAPPING[model_type], "sub_configs_defaults", {})
    return [part.model_type for part in defaults.values() if part.model_type]


@cache
def list_required_tokens(model_type: str) -> frozenset[str]:
    """List the special tokens that cannot be null; the end token then stands for each."""
    from transformers import CONFIG_MAPPING

    fields = fields_of_dataclass(CONFIG_MAPPING[model_type])
    return frozenset(field.name for field in fields if field.type is int) & (_TOKENS | _OTHER_TOKENS)


@cache
def counts_from_padding(model_type: str) -> bool:
    """Tell whether positions count from the padding token's id on and skip that token, as RoBERTa's do."""
    return _PADDED_POSITIONS.search(_source(model_type)) is not None


@cache
def has_selection_bias(model_type: str) -> bool:
    """Whether a class chooses experts by their scores plus a bias that no gradient moves."""
    return SELECTION_BIAS in _source(model_type)


def _source(model_type: str) -> str:
    """The file of a class."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[model_type]]
    return inspect.getsource(sys.modules[model_class.__module__])


@cache
def fields_of(model_type: str) -> frozenset[str]:
    """The fields of a configuration that say what the architecture is, but for parts that are models of their own.

    Those that it declares, older names that it takes for rotary positions, and those that the class reads if they are
    there: `head_dim` of Qwen3-MoE, for one, is not declared. Not those that it declares and never reads.
    """
    return _declared_fields(model_type) - unread_fields(model_type)


@cache
def unread_fields(model_type: str) -> frozenset[str]:
    """Find the fields that a class takes and ignores: their names are nowhere in its code, nor are their aliases."""
    from transformers import CONFIG_MAPPING, cache_utils, masking_utils

    kind = CONFIG_MAPPING[model_type]
    # Layer types and windows are read where masks and caches are made.
    code = "".join([_source(model_type), inspect.getsource(masking_utils), inspect.getsource(cache_utils)])
    of_class = {*re.findall(r"\w+", re.sub(r"#.*", "", code))}
    of_configuration = {
        *re.findall(r"""(?:self\.|["'])(\w+)""", inspect.getsource(kind).replace(kind.__doc__ or "", ""))
    }
    read = of_class | of_configuration | _READ_BY_ALL
    read |= {name for pair in kind.attribute_map.items() if not read.isdisjoint(pair) for name in pair}
    return _declared_fields(model_type) - read


def _ignored(model_type: str, field: str, section: str = "") -> str:
    """Word the refusal of a field that a class ignores, with the nearest that it reads."""
    near = difflib.get_close_matches(field, sorted(fields_of(model_type)), n=1)
    meant = f", or did you mean {near[0]}?" if near else ""
    return f"model.{section}{field}: transformers' {model_type} does not read it; leave it out{meant}"


def _rotates_a_part(rotary: Any) -> bool:
    """Return whether rotary parameters, of all layers or by their type, leave a part of each head unrotated."""
    if not isinstance(rotary, dict):
        return False
    return rotary.get(_PARTIAL, 1) not in (None, 1) or any(map(_rotates_a_part, rotary.values()))


def _declared_fields(model_type: str) -> frozenset[str]:
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    fields = {field.name for field in fields_of_dataclass(kind)} | {*kind.attribute_map}
    fields |= {*_READ.findall(_source(model_type)), *_TAKEN.findall(inspect.getsource(kind))}
    fields |= _ROTARY if "rope_parameters" in fields else set()
    return frozenset(name for name in fields - _not_of_the_architecture() if not re.search("^_|_config$", name))


def _of_file(path: Path) -> tuple[str, dict[str, Any]]:
    """Model type and fields of a config.json; what the class does not read is left out, with a warning."""
    try:
        config = strict_json.loads(path.read_bytes(), what=path.name, max_bytes=MAX_FILE_BYTES, finite=False)
        kind = str(config["model_type"])
    except (OSError, ValueError, TypeError, LookupError) as error:
        reason = f"{str(path)!r} cannot be read: {getattr(error, 'strerror', repr(error))}"
        raise InputError(f"model.type: {reason}; it must be a config.json with the model_type of a class") from None
    known = fields_of(kind) if kind in model_types() else frozenset(config)
    if left := sorted({*config} - known - _not_of_the_architecture()):
        logger.warning("%s: left out, since transformers' %s does not read it: %s", path.name, kind, ", ".join(left))
    return kind, {name: value for name, value in config.items() if name in known}


@cache
def _not_of_the_architecture() -> frozenset[str]:
    """What a configuration says of its file, of how a checkpoint was saved or is used, and of its tokenizer."""
    from transformers import PreTrainedConfig

    common = {field.name for field in fields_of_dataclass(PreTrainedConfig)} - {"tie_word_embeddings"}
    used = {"output_router_logits", "use_cache"}
    of_the_file = {"auto_map", "model_type", "_name_or_path", "quantization_config", "torch_dtype"}
    return frozenset(common | used | of_the_file | _TOKENS | _OTHER_TOKENS)


def _plain(value: Any) -> Any:
    """Return a value of YAML or of flags, with words as numbers where they are: the class knows which fields are."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        # A flag may hold a list or a mapping; what is no YAML is text.
        with suppress(InputError):
            return strict_yaml.loads(value, numbers=True)
    return value


def _check_groups(config: Any) -> None:
    """Refuse groups of experts (DeepSeek-V3) that do not divide them evenly, or hold fewer than a token takes."""
    names = ("n_routed_experts", "num_experts_per_tok", "n_group", "topk_group")
    experts, k, groups, top = (getattr(config, name, None) for name in names)
    if not experts or not groups:
        return
    size, rest = divmod(experts, groups)
    if rest or (groups > 1 and size < 2) or (top and (top > groups or k > top * size)):
        raise InputError(
            f"n_group={groups} must divide n_routed_experts={experts} into groups of at least 2, and topk_group={top} "
            f"of them must hold the num_experts_per_tok={k} experts of a token"
        )
