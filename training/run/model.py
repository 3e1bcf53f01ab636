"""The model, sizes and peak learning rate that follow from a run's arguments."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM
from scaling_law.rates.law import READINGS, LearningRateLaw
from scaling_law.size.architecture import Architecture
from training.configuration.arguments import ConfigurationError, ModelArguments, TrainingArguments
from training.configuration.class_counts import training_flops
from training.configuration.model_classes import ModelClassArguments
from training.data.pins import RunData
from training.run import causal_model

logger = logging.getLogger(__name__)


def architecture(model: ModelArguments | ModelClassArguments, vocab_size: int) -> Architecture:
    """Return the architecture in the paper's terms; it counts parameters and FLOPs."""
    if isinstance(model, ModelClassArguments):
        return model.model(vocab_size).architecture
    return Architecture(model.d_model, model.experts, model.n_blocks, model.n_heads, vocab_size)


class Flops(NamedTuple):
    """FLOPs of training on one token: those of a record, and all matrix products, of which the MFU is a share.

    `count` says whose they are (`RunRecord.flops_count`): torch's on the "class", for both; or those of the "formula",
    which for records is the paper's 6 N_act. Attention has no causal half in both counts of products, and no more keys
    than a window, chunk or selection holds.
    """

    recorded: float
    multiplied: float
    # It hides `tuple.count`, which nothing calls.
    count: str  # type: ignore[assignment]


def flops_per_token(config: Any, arch: Architecture, length: int) -> Flops:
    """Count the FLOPs of a token by torch on the class.

    By formula for ours, where both agree, and for what has no path on the meta device.
    """
    flops = None if isinstance(config, SwitchMoeConfig) else training_flops(config, length)
    if flops is None:
        return Flops(arch.training_flops(1), arch.training_flops(1, length), "formula")
    return Flops(flops, flops, "class")


def model_config(arguments: TrainingArguments, vocab_size: int, eos_token_id: int) -> PreTrainedConfig:
    """Build the configuration of this run's model; ConfigurationError where tokenizer or sequences do not fit it."""
    model = arguments.model
    length = arguments.data.sequence_length
    try:
        if isinstance(model, ModelClassArguments):
            return model.config(vocab_size, length, eos_token_id)
        arch = architecture(model, vocab_size)
        assert arch.n_blocks is not None
        assert arch.n_heads is not None
        return SwitchMoeConfig(
            vocab_size=vocab_size,
            hidden_size=arch.d_model,
            num_hidden_layers=arch.n_blocks,
            num_attention_heads=arch.n_heads,
            num_experts=arch.experts,
            max_position_embeddings=length,
            capacity_factor=model.capacity_factor or None,
            capacity_group_tokens=model.capacity_group_tokens,
            router_aux_loss_coef=model.balance_loss,
            router_z_loss_coef=model.z_loss,
            attention_precision=model.attention_precision,
            final_norm=model.final_norm,
            initialization=model.initialization,
            bos_token_id=eos_token_id,
            eos_token_id=eos_token_id,
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def build_model(config: PreTrainedConfig, seed: int, group_tokens: int | None = None) -> PreTrainedModel:
    """Build an fp32 model, the same for the same seed on every process; `group_tokens` as in `causal_model.build`."""
    torch.manual_seed(seed)
    if isinstance(config, SwitchMoeConfig):
        return SwitchMoeForCausalLM(config)
    return causal_model.build(config, group_tokens)


def peak_learning_rate(arguments: TrainingArguments, arch: Architecture) -> tuple[float, str]:
    """Return the peak learning rate and its source, as at the run's first start.

    A law's rate changes with its file and with the longest run, at whose end it is asked, but a trunk is one run.
    """
    peak, law = _configured_peak(arguments, arch)
    first_peak = _first_peak(arguments)
    if first_peak is None:
        return peak, law
    if math.isclose(first_peak, peak, rel_tol=1e-9):
        return first_peak, law
    logger.warning("peak learning rate: %.4g, as at the first start; the law now gives %.4g", first_peak, peak)
    return first_peak, f"as at the first start; now {peak:.4g} by {law}"[:300]


def _first_peak(arguments: TrainingArguments) -> float | None:
    """Read the peak learning rate with which the run in the output folder was begun; None without such a run."""
    folder = arguments.run.output_dir
    return RunData.of(Path(folder)).peak_learning_rate if folder else None


def _configured_peak(arguments: TrainingArguments, arch: Architecture) -> tuple[float, str]:
    o = arguments.optimizer
    if o.learning_rate is not None:
        return o.learning_rate, "given"
    law = LearningRateLaw.named(o.learning_rate_law)
    tokens, batch_tokens = arguments.longest_run()
    rate = law.learning_rate(arch, tokens, batch_tokens) * o.learning_rate_scale
    scaled = "" if o.learning_rate_scale == 1 else f", times {o.learning_rate_scale:g}"
    if o.learning_rate_law in READINGS:
        return rate, f"Ludziejewski et al. 2025, reading '{law.reading}'{scaled}"
    batch = f" at batches of {batch_tokens:,} tokens" if law.slope_batch else ""
    return rate, f"{law.formula}{batch}, {law.source}{scaled}"


def check_rate(arguments: TrainingArguments, arch: Architecture) -> list[str]:
    """Return warnings about a rate by a law, at the end of the longest run; none for a rate that is given.

    Raises ConfigurationError where the law has no rate, unless the run in the output folder was begun with one.
    """
    if arguments.optimizer.learning_rate is not None:
        return []
    law = LearningRateLaw.named(arguments.optimizer.learning_rate_law)
    peak = law.of(arch, *arguments.longest_run())
    if peak.refusal and _first_peak(arguments) is None:
        raise ConfigurationError(f"optimizer.learning_rate: {peak.refusal}")
    return [f"optimizer.learning_rate: {text}" for text in peak.check.warnings]
