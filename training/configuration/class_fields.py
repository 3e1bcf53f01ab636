"""Classes of transformers by the type of their configuration, and the fields of a config.json that they read."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Fields that transformers reads for every class, beside the class's own file.
_READ_FOR_ALL = {
    "initializer_range",
    "init_std",
    "initializer_factor",
    "tie_word_embeddings",
    "rope_theta",
    "rope_scaling",
    "max_position_embeddings",
}


def is_causal_type(model_type: str) -> bool:
    """Return whether transformers has a causal language model of this type."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def text_model_class(config: Any) -> type[PreTrainedModel] | None:
    """Find the class of a larger model's text decoder, with a head or without; None where there is none."""
    for ending in ("ForCausalLM", "TextModel"):
        for name, value in vars(modeling_module(config.model_type)).items():
            is_own = inspect.isclass(value) and getattr(value, "config_class", None) is type(config)
            if is_own and name.endswith(ending) and not name.endswith("EncoderTextModel"):
                # Text models of older classes are encoders, or parts of one.
                return None if config.model_type.endswith("text_model") and ending == "TextModel" else value
    return None


def modeling_module(model_type: str) -> ModuleType:
    """Import the file with the classes of a type, which may be those of another."""
    import transformers
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    causal_class = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    if isinstance(causal_class, str):
        return importlib.import_module(getattr(transformers, causal_class).__module__)
    configuration_module = CONFIG_MAPPING[model_type].__module__
    return importlib.import_module(configuration_module.replace(".configuration_", ".modeling_"))


@cache
def names_read_by(model_type: str) -> frozenset[str]:
    """List the words of a type's code, without its documentation: a field that a class reads is among them.

    None of no known type.
    """
    from transformers import CONFIG_MAPPING, PreTrainedConfig, cache_utils, masking_utils

    if model_type not in CONFIG_MAPPING:
        return frozenset()
    config_class = CONFIG_MAPPING[model_type]
    # Layer types and windows are read where masks and caches are made.
    modules = (modeling_module(model_type), masking_utils, cache_utils)
    code = "".join(inspect.getsource(module) for module in modules)
    config_code = ""
    for component in (config_class, *config_class.sub_configs.values()):
        if inspect.isclass(component):
            config_code += inspect.getsource(component).replace(component.__doc__ or "", "")
    words = re.findall(r"\w+", re.sub(r"#.*", "", code))
    common = [field.name for field in fields(PreTrainedConfig)]
    return frozenset({*words, *common, *re.findall(r"""(?:self\.|["'])(\w+)""", config_code), *_READ_FOR_ALL})
