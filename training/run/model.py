"""From arguments to a model and its optimizer."""

from __future__ import annotations

import torch

from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM
from scaling_law.fitting.learning_rate import READINGS, LearningRateLaw
from scaling_law.size.architecture import Architecture, training_flops
from training.configuration.arguments import ModelArguments, OptimizerArguments, TrainingArguments


def architecture(model: ModelArguments, vocab_size: int) -> Architecture:
    """The architecture in the paper's terms; it counts parameters and FLOPs."""
    return Architecture(model.d_model, model.experts, model.n_blocks, model.n_heads, vocab_size)


def utilisation_flops(arch: Architecture) -> float:
    """FLOPs per token for the model FLOPs utilisation (MFU): of the matrix products with the active weights, 6 each.

    The paper's 6 N_act D, by which runs are compared, also counts the embedding, which is looked up and not
    multiplied; a device does nothing for it. Attention's scores and values are in neither.
    """
    return arch.training_flops(1) - float(training_flops(arch.d_model * arch.vocab_size, 1))


def model_config(arguments: TrainingArguments, vocab_size: int, eos_token_id: int) -> SwitchMoeConfig:
    """The transformers configuration of this run."""
    arch = architecture(arguments.model, vocab_size)
    return SwitchMoeConfig(
        vocab_size=vocab_size,
        hidden_size=arch.d_model,
        num_hidden_layers=arch.n_blocks,
        num_attention_heads=arch.n_heads,
        num_experts=arch.experts,
        max_position_embeddings=arguments.data.sequence_length,
        capacity_factor=arguments.model.capacity_factor or None,
        capacity_group_tokens=arguments.model.capacity_group_tokens,
        router_aux_loss_coef=arguments.model.balance_loss,
        router_z_loss_coef=arguments.model.z_loss,
        attention_precision=arguments.model.attention_precision,
        final_norm=arguments.model.final_norm,
        initialization=arguments.model.initialization,
        bos_token_id=eos_token_id,
        eos_token_id=eos_token_id,
    )


def build_model(config: SwitchMoeConfig, seed: int) -> SwitchMoeForCausalLM:
    """A freshly initialised model, fp32, the same for the same seed on every process."""
    torch.manual_seed(seed)
    return SwitchMoeForCausalLM(config)


def peak_learning_rate(arguments: OptimizerArguments, arch: Architecture) -> tuple[float, str]:
    """The peak learning rate and where it comes from."""
    if arguments.learning_rate is not None:
        return arguments.learning_rate, "given"
    law = LearningRateLaw.named(arguments.learning_rate_law)
    rate = law.learning_rate(arch) * arguments.learning_rate_scale
    scaled = "" if arguments.learning_rate_scale == 1 else f", times {arguments.learning_rate_scale:g}"
    if arguments.learning_rate_law in READINGS:
        return rate, f"Ludziejewski et al. 2025, reading '{law.reading}'{scaled}"
    return rate, f"exp({law.intercept:.6g} {law.slope_n:+.6g} ln N {law.slope_e:+.6g} ln E), {law.source}{scaled}"


def build_optimizer(model: torch.nn.Module, arguments: OptimizerArguments, device: torch.device):
    """AdamW over fp32 weights: one group in the paper's runs, else decayed matrices and the undecayed rest."""
    decayed, exempt = [], []
    for name, parameter in model.named_parameters():
        is_exempt = not arguments.decay_all and (parameter.ndim < 2 or "router" in name)
        (exempt if is_exempt else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": arguments.weight_decay}]
    if exempt:
        groups.append({"params": exempt, "weight_decay": 0.0})
    return torch.optim.AdamW(
        groups,
        lr=0.0,  # the loop sets it at every step
        betas=(arguments.beta1, arguments.beta2),
        eps=arguments.epsilon,
        fused=device.type in {"cuda", "cpu"},
    )
