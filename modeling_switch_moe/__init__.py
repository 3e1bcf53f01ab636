"""Switch-MoE language model of Ludziejewski et al. 2025 for transformers; importing it registers the Auto classes.

A saved model carries these files with it, so that `trust_remote_code=True` loads it where this package is missing.
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from .configuration_switch_moe import SwitchMoeConfig
from .modeling_switch_moe import (
    RoutingStatistics,
    SwitchMoeCausalLMOutputWithPast,
    SwitchMoeForCausalLM,
    SwitchMoeForSequenceClassification,
    SwitchMoeModel,
    SwitchMoeModelOutputWithPast,
    SwitchMoePreTrainedModel,
)

AutoConfig.register(SwitchMoeConfig.model_type, SwitchMoeConfig, exist_ok=True)
AutoModel.register(SwitchMoeConfig, SwitchMoeModel, exist_ok=True)
AutoModelForCausalLM.register(SwitchMoeConfig, SwitchMoeForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(SwitchMoeConfig, SwitchMoeForSequenceClassification, exist_ok=True)

__all__ = [
    "RoutingStatistics",
    "SwitchMoeCausalLMOutputWithPast",
    "SwitchMoeConfig",
    "SwitchMoeForCausalLM",
    "SwitchMoeForSequenceClassification",
    "SwitchMoeModel",
    "SwitchMoeModelOutputWithPast",
    "SwitchMoePreTrainedModel",
]
