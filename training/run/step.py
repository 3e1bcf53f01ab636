"""From arguments to a model, one update of it from one global batch, and what is remembered from step to step.

Loss, gradient and drops do not depend on how a batch is cut into micro-batches and spread over processes: the balance
loss is a mean over capacity groups, which micro-batches hold whole, and the other losses are means over tokens.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch

from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM
from modeling_switch_moe.precision import keep_casts
from scaling_law.formulas.learning_rate import READINGS, LearningRateLaw
from scaling_law.size.architecture import Architecture, training_flops
from training.configuration.arguments import (
    ConfigurationError,
    ModelArguments,
    OptimizerArguments,
    TrainingArguments,
)
from training.configuration.model_classes import ModelClassArguments
from training.configuration.schedule import Branch, Schedule
from training.data.batches import TrainingData
from training.run import causal_model, devices, sharding
from training.run.optimizers import build_optimizers, muon_rate, set_rates

_SPIKE_WINDOW = 128  # steps to compare with
_SPIKE_LEAST = 16  # of them before anything is called a spike
_SPIKE_DEVIATIONS = 6.0
_MAD_TO_DEVIATION = 1.4826  # for normally distributed values
_TIMED = 64  # last steps whose times are kept
_LEAST_DEVIATION = 0.002  # of the median: where all losses are nearly equal, a small rise is no spike


# -- model and optimizer


def architecture(model: ModelArguments | ModelClassArguments, vocab_size: int) -> Architecture:
    """The architecture in the paper's terms; it counts parameters and FLOPs."""
    if isinstance(model, ModelClassArguments):
        return model.model(vocab_size).architecture
    return Architecture(model.d_model, model.experts, model.n_blocks, model.n_heads, vocab_size)


def utilisation_flops(arch: Architecture) -> float:
    """FLOPs per token for the model FLOPs utilisation (MFU): 6 for each active weight that is multiplied.

    The paper's 6 N_act D also counts the embedding, which is only looked up. Attention's scores are in neither.
    """
    return arch.training_flops(1) - float(training_flops(arch.d_model * arch.vocab_size, 1))


def model_config(arguments: TrainingArguments, vocab_size: int, eos_token_id: int):
    """The transformers configuration of this run; ConfigurationError where tokenizer or sequences do not fit it."""
    if isinstance(arguments.model, ModelClassArguments):
        try:
            return arguments.model.config(vocab_size, arguments.data.sequence_length, eos_token_id)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
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


def build_model(config, seed: int, group_tokens: int | None = None) -> torch.nn.Module:
    """A new model, fp32, the same for the same seed on every process; `group_tokens` as in `causal_model.build`."""
    torch.manual_seed(seed)
    if isinstance(config, SwitchMoeConfig):
        return SwitchMoeForCausalLM(config)
    return causal_model.build(config, group_tokens)


def peak_learning_rate(
    arguments: OptimizerArguments, arch: Architecture, tokens: int | None = None, batch_tokens: int | None = None
) -> tuple[float, str]:
    """The peak learning rate and where it comes from; `tokens` and `batch_tokens` are for laws that have them."""
    if arguments.learning_rate is not None:
        return arguments.learning_rate, "given"
    law = LearningRateLaw.named(arguments.learning_rate_law)
    rate = law.learning_rate(arch, tokens, batch_tokens) * arguments.learning_rate_scale
    scaled = "" if arguments.learning_rate_scale == 1 else f", times {arguments.learning_rate_scale:g}"
    if arguments.learning_rate_law in READINGS:
        return rate, f"Ludziejewski et al. 2025, reading '{law.reading}'{scaled}"
    batch = f" at batches of {batch_tokens:,} tokens" if law.slope_batch else ""
    return rate, f"{law.formula}{batch}, {law.source}{scaled}"


# -- one update


@dataclass
class Session:
    """What stays the same over the trunk and its branches."""

    arguments: TrainingArguments
    accelerator: object
    tokenizer: object
    data: TrainingData
    architecture: Architecture
    schedule: Schedule
    learning_rate_law: str  # where the peak comes from
    model: torch.nn.Module  # prepared
    optimizers: list[Any]  # prepared; see `training.run.optimizers`
    muon_share: float = 1.0  # Muon's rate in terms of the schedule's

    @property
    def peak_flops(self) -> float | None:
        """Dense bf16 FLOP/s of all devices together; None where unknown."""
        peak = devices.peak_flops(self.accelerator.device)
        return peak * self.accelerator.num_processes if peak else None

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all processes; collective."""
        return self.accelerator.reduce(value, "sum")


def make_session(a: TrainingArguments, accelerator, tokenizer, data: TrainingData) -> Session:
    """Model and optimizer, prepared for this process, with all that a step needs besides."""
    arch = architecture(a.model, len(tokenizer))
    peak, law = peak_learning_rate(a.optimizer, arch, *a.longest_run())
    config = model_config(a, len(tokenizer), tokenizer.eos_token_id)
    if a.optimizer.name == "muon" and accelerator.is_fsdp2:
        raise ConfigurationError("optimizer.name: muon; FSDP2 shards matrices that Muon needs whole, use adamw or DDP")
    draw = partial(build_model, config, a.run.seed, a.model.capacity_group_tokens)
    if accelerator.is_fsdp2:
        reshard = accelerator.state.fsdp_plugin.reshard_after_forward
        model = sharding.build(draw, a.run.precision == "bf16", reshard, tied=config.tie_word_embeddings)
    else:
        model = draw()
    if a.run.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model, *optimizers = accelerator.prepare(model, *build_optimizers(model, a.optimizer, accelerator.device))
    if a.run.compile:
        model.compile()  # in place: names of parameters stay as they are
    share = muon_rate(a.optimizer, peak) / peak
    return Session(a, accelerator, tokenizer, data, arch, a.schedule_at(peak), law, model, optimizers, share)


@dataclass
class StepResult:
    """Sums of one step over its micro-batches; only `loss` and `gradient_norm` leave the device at every step."""

    lm_loss: torch.Tensor  # this process's part of the loss
    balance_loss: torch.Tensor  # unscaled, summed over layers, mean over capacity groups
    z_loss: torch.Tensor
    tokens_per_expert: torch.Tensor | None = None  # (layers, experts), before dropping; None for a dense model
    dropped_tokens: torch.Tensor | None = None  # (layers,)
    router_entropy: torch.Tensor | None = None  # (layers,), mean over micro-batches, nats
    loss: float = math.nan  # cross-entropy, mean over the tokens of the global batch
    gradient_norm: float = math.nan  # of all processes' parameters, before clipping
    is_spike: bool = False

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)

    def add(self, out, n_micro: int) -> None:
        """Add the output of one of `n_micro` forward passes."""
        self.lm_loss += out.lm_loss.detach()
        self.balance_loss += out.balance_loss.detach() / n_micro
        self.z_loss += out.z_loss.detach() / n_micro
        if out.routing is None:
            return
        for name, share in {"tokens_per_expert": 1, "dropped_tokens": 1, "router_entropy": n_micro}.items():
            value, before = getattr(out.routing, name).double() / share, getattr(self, name)
            setattr(self, name, value if before is None else before + value)


def add_gradients(session: Session, step: int) -> StepResult:
    """Forward and backward passes over this process's micro-batches of one global batch."""
    a, accelerator, ramp = session.arguments, session.accelerator, session.schedule.ramp
    world, rank = accelerator.num_processes, accelerator.process_index
    sequences = ramp.sequences(step)
    tokens = sequences * session.data.sequence_length
    n_micro = sequences // session.data.micro_batch_sequences
    own = range(rank, n_micro, world)
    position = ramp.position(step)
    batches = session.data.micro_batches(position, sequences, rank, world, accelerator.device)

    result = StepResult(*(torch.zeros((), device=accelerator.device) for _ in range(3)))
    for j, (inputs, targets) in zip(own, batches, strict=True):
        # DDP reduces gradients once a step, with the last micro-batch; FSDP2 with each, or it would keep whole ones.
        # (Accelerate's own accumulation keeps a phase counter that goes wrong when the number of micro-batches changes
        # along the batch ramp.)
        reduces = j == own[-1] or accelerator.is_fsdp2
        _seed_masks(accelerator.device, a.run.seed, position + j * session.data.micro_batch_sequences)
        with nullcontext() if reduces else accelerator.no_sync(session.model):
            with accelerator.autocast():
                # Without logits the cross-entropy is computed in chunks, and [tokens, vocabulary] is never held.
                out = session.model(
                    input_ids=inputs,
                    shift_labels=targets,
                    num_items_in_batch=tokens,
                    use_cache=False,
                    output_logits=False,
                )
            auxiliary = a.model.balance_loss * out.balance_loss + a.model.z_loss * out.z_loss
            # The gradient is averaged over processes, so a process's part of a mean is multiplied by their number.
            accelerator.backward((out.lm_loss + auxiliary / n_micro) * world)
        result.add(out, n_micro)
    return result


def _seed_masks(device: torch.device, seed: int, position: int) -> None:
    """Make dropout and jitter of a micro-batch depend on the run's seed and its first sequence's position alone.

    Whatever a class draws comes from torch's generators. So masks are the same after a resume and for any number of
    processes; drawn for all of its sequences together, they are others in a micro-batch of another size.
    """
    number = int.from_bytes(hashlib.sha256(f"masks:{seed}:{position}".encode()).digest()[:8], "little")
    torch.default_generator.manual_seed(number)  # `torch.manual_seed` takes a millisecond where there is no GPU
    if device.type not in ("cpu", "meta"):
        torch.get_device_module(device).manual_seed(number)


def train_step(session: Session, step: int, rate: float) -> StepResult:
    """One update from one global batch; it is skipped if the loss or gradient is not finite."""
    a, accelerator = session.arguments, session.accelerator
    # FSDP2 frees whole weights after their use; to keep casts of them would undo that.
    with nullcontext() if accelerator.is_fsdp2 else keep_casts(accelerator.device.type):
        result = add_gradients(session, step)

    set_rates(session.optimizers, rate, session.muon_share)
    limit = a.optimizer.gradient_clip or math.inf
    norm = accelerator.clip_grad_norm_(session.model.parameters(), limit)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # FSDP2 shards it
    result.loss, result.gradient_norm = torch.stack([session.total(result.lm_loss), norm.to(result.lm_loss)]).tolist()
    for optimizer in session.optimizers:
        if result.is_finite:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if a.model.bias_rate and result.is_finite:
        causal_model.move_biases(session.model, session.total(result.tokens_per_expert), a.model.bias_rate)
    return result


@dataclass
class Progress:
    """Where training stands; with the tensors of a checkpoint, all that is needed to resume."""

    step: int = 0  # updates made; the schedule turns it into tokens, batch size and learning rate
    wall_seconds: float = 0.0  # spent training, over all resumes
    window_steps: int = 0  # sums over the last share of a branch, for its final training loss and routing
    window_loss: float = 0.0
    window_routed: list[list[float]] | None = None
    window_dropped: float = 0.0
    skipped_steps: list[int] = field(default_factory=list)  # whose loss or gradient was not finite
    skipped_in_a_row: int = 0
    recent_losses: list[float] = field(default_factory=list)  # of finite steps; a spike lies far above them
    recent_seconds: list[float] = field(default_factory=list)  # wall seconds of the last steps
    spikes: list[int] = field(default_factory=list)

    def spent(self, wall_seconds: float) -> None:
        """After a step: how long the run has trained by now."""
        seconds = wall_seconds - self.wall_seconds
        self.wall_seconds, self.recent_seconds = wall_seconds, [*self.recent_seconds, seconds][-_TIMED:]


def count(session: Session, progress: Progress, result: StepResult, branch: Branch | None) -> None:
    """Add a step to the progress: skipped, or its loss with those before it and, at a branch's end, to its window."""
    step = progress.step
    progress.step += 1
    if not result.is_finite:
        progress.skipped_steps.append(step)
        progress.skipped_in_a_row += 1
        return
    progress.skipped_in_a_row = 0
    result.is_spike = is_spike(progress.recent_losses, result.loss)
    if result.is_spike:
        progress.spikes.append(step)
    progress.recent_losses = [*progress.recent_losses, result.loss][-_SPIKE_WINDOW:]
    if branch is None:
        return
    window = session.schedule.ramp.steps(branch.tokens * (1 - session.arguments.run.train_loss_window))
    if step < min(window, branch.end_step - 1):  # the window has at least one step
        return
    progress.window_steps += 1
    progress.window_loss += result.loss
    if result.tokens_per_expert is not None:
        routed = session.total(result.tokens_per_expert)
        before = torch.tensor(progress.window_routed or 0.0, dtype=routed.dtype, device=routed.device)
        progress.window_routed = (before + routed).tolist()
        progress.window_dropped += session.total(result.dropped_tokens).sum().item()


def is_spike(before: list[float], loss: float) -> bool:
    """Whether `loss` lies far above those before: above their median, in units of their median absolute deviation.

    So earlier spikes do not hide later ones, and the steep fall at the start of training is no spike.
    """
    if len(before) < _SPIKE_LEAST:
        return False
    middle = median(before)
    deviation = _MAD_TO_DEVIATION * median(abs(value - middle) for value in before)
    return loss > middle + _SPIKE_DEVIATIONS * max(deviation, _LEAST_DEVIATION * middle)
