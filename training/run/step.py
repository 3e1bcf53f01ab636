"""One update of the model from one global batch.

Loss, gradient and drops do not depend on how a batch is cut into micro-batches and spread over processes: the balance
loss is a mean over capacity groups, which micro-batches hold whole, and the other losses are means over tokens.
"""

from __future__ import annotations

import hashlib
import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from scaling_law.size.architecture import Architecture
from training.configuration.arguments import TrainingArguments
from training.configuration.model_classes import ModelClassArguments
from training.configuration.schedule import Schedule
from training.data.tokenizer import vocabulary_size
from training.run import causal_model, devices, memory, passes, sharding
from training.run.model import (
    Flops,
    architecture,
    build_model,
    check_rate,
    flops_per_token,
    model_config,
    peak_learning_rate,
)
from training.run.optimizers import StackedMuon, build_optimizers, muon_rate, set_rates

if TYPE_CHECKING:
    from accelerate import Accelerator

logger = logging.getLogger(__name__)


@dataclass
class Session:
    """All that stays the same over the trunk and its branches."""

    arguments: TrainingArguments
    accelerator: Accelerator
    # A tokenizer of transformers, and `TrainingData`; of steps that are only timed both are `RandomTokens`.
    tokenizer: Any
    data: Any
    architecture: Architecture
    flops: Flops
    schedule: Schedule
    # The source of the peak.
    learning_rate_law: str
    # It is prepared by Accelerate.
    model: torch.nn.Module
    # Without Accelerate's wrappers; see `training.run.optimizers`.
    optimizers: list[torch.optim.Optimizer]
    runner: passes.PassRunner
    # Muon's rate in terms of the schedule's.
    muon_share: float = 1.0
    # See `training.run.memory`.
    reduces_once: bool = False

    @cached_property
    def layout(self) -> sharding.Layout:
        """The way in which the processes share the model and the batch."""
        return sharding.Layout.of(self.accelerator, self.arguments.run)

    @property
    def reader(self) -> int:
        """Number of this process, or of its group, among the layout's `readers`."""
        return self.accelerator.process_index // self.layout.tensor

    @cached_property
    def updates_on_device(self) -> bool:
        """True if optimizers skip steps on the device: Muon and fused AdamW do, but not of sharded parameters."""
        can_skip = all(isinstance(opt, StackedMuon) or opt.defaults.get("fused", False) for opt in self.optimizers)
        return can_skip and not self.accelerator.is_fsdp2

    def mfu(self, tokens_per_second: float) -> float | None:
        """Return the share of all devices' dense bf16 FLOP/s that a speed is; None where these are unknown."""
        peak = devices.peak_flops(self.accelerator.device)
        if peak is None:
            return None
        return self.flops.multiplied * tokens_per_second / (peak * self.accelerator.num_processes)

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all micro-batches, of which each reader has its own; collective."""
        return self.accelerator.reduce(value, "sum") / self.layout.tensor


def make_session(a: TrainingArguments, accelerator: Accelerator, tokenizer: Any, data: Any) -> Session:
    """Build model and optimizers, and prepare them for this process, with all that a step needs besides."""
    vocab_size = vocabulary_size(tokenizer)
    arch = architecture(a.model, vocab_size)
    warnings = check_rate(a, arch)
    peak, law = peak_learning_rate(a, arch)
    if accelerator.process_index == 0:
        for warning in warnings:
            logger.warning("%s", warning)
    config = model_config(a, vocab_size, tokenizer.eos_token_id)
    is_compiled = wants_compiled_blocks(a, accelerator)
    model = _make_model(a, accelerator, config, is_compiled)
    optimizers = build_optimizers(model, a.optimizer, accelerator.device)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            # Only parameters that move have a state.
            group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    # FSDP2 gathers weights in bf16 by itself.
    is_cast = a.run.precision == "bf16" and not accelerator.is_fsdp2
    is_single_gpu = accelerator.num_processes == 1 and accelerator.device.type == "cuda" and not accelerator.is_fsdp2
    runner = passes.PassRunner(
        model,
        passes.matrices_in_bf16(model) if is_cast else [],
        is_compiled=is_compiled,
        captures=is_single_gpu and not a.run.gradient_checkpointing,
    )
    # FSDP2 puts its own parameters into the optimizers.
    prepared_model, *_ = accelerator.prepare(model, *optimizers)
    return Session(
        a,
        accelerator,
        tokenizer,
        data,
        arch,
        flops_per_token(config, arch, a.data.sequence_length),
        a.schedule_at(peak),
        law,
        prepared_model,
        optimizers,
        runner,
        muon_share=muon_rate(a.optimizer, peak) / peak,
        reduces_once=memory.reduces_once(a, accelerator, arch),
    )


def _make_model(a: TrainingArguments, accelerator: Accelerator, config: Any, is_compiled: bool) -> PreTrainedModel:
    """Build the model, sharded and compiled as this run has it."""
    draw = partial(build_model, config, a.run.seed, a.model.capacity_group_tokens)
    layout = sharding.Layout.of(accelerator, a.run)
    if accelerator.is_fsdp2:
        reshard = accelerator.state.fsdp_plugin.reshard_after_forward
        # Inkling's configuration does not have it.
        tied = getattr(config, "tie_word_embeddings", False)
        model = sharding.build(draw, a.run.precision == "bf16", layout, reshard, tied)
    else:
        model = draw()
    # FSDP2 has changed the blocks' classes, and with them what their `forward` is.
    if is_compiled:
        passes.compile_blocks(model, fullgraph=not layout.is_divided)
    if a.run.experts_implementation != "auto":
        model.set_experts_implementation(a.run.experts_implementation)
    if a.run.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def wants_compiled_blocks(a: TrainingArguments, accelerator: Accelerator) -> bool:
    """Decide `run.compile: auto`: on GPUs, unless a block's hooks would break its graph or hold its activations.

    Older versions of transformers recompute blocks from outside of their graphs, with what their hooks do.
    """
    if a.run.compile != "auto":
        return a.run.compile
    if accelerator.device.type != "cuda":
        return False
    if sharding.Layout.of(accelerator, a.run).is_divided:
        logger.info("blocks are not compiled: divided experts and widths are gathered inside of them")
        return False
    checkpoints_around_blocks = "__call__" in vars(GradientCheckpointingLayer)
    if a.run.gradient_checkpointing and checkpoints_around_blocks and isinstance(a.model, ModelClassArguments):
        logger.info("blocks are not compiled: recomputed ones would keep what their routers measure")
        return False
    return True


class Routing(NamedTuple):
    """Routing of a step, over its micro-batches."""

    # (layers, experts), before dropping.
    tokens_per_expert: torch.Tensor
    # (layers,)
    dropped_tokens: torch.Tensor
    # (layers,), mean over micro-batches, nats.
    router_entropy: torch.Tensor


@dataclass
class StepResult:
    """Sums of one step over its micro-batches; only `loss` and `gradient_norm` leave the device at every step."""

    # This process's part of the loss.
    lm_loss: torch.Tensor
    # Unscaled, summed over layers, mean over capacity groups.
    balance_loss: torch.Tensor
    z_loss: torch.Tensor
    # None for a dense model.
    routing: Routing | None = None
    # Cross-entropy, mean over the tokens of the global batch.
    loss: float = math.nan
    # Norm over all processes' parameters, before clipping.
    gradient_norm: float = math.nan
    is_spike: bool = False

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)

    def add(self, out: Any, n_micro: int) -> None:
        """Add the output of one of `n_micro` forward passes."""
        self.lm_loss += out.lm_loss.detach()
        self.balance_loss += out.balance_loss.detach() / n_micro
        self.z_loss += out.z_loss.detach() / n_micro
        if out.routing is None:
            return
        routed, dropped, entropy = (value.double() for value in out.routing.to_tuple())
        routing = Routing(routed, dropped, entropy / n_micro)
        self.routing = Routing(*map(torch.add, self.routing, routing)) if self.routing else routing


def add_gradients(session: Session, step: int) -> StepResult:
    """Run forward and backward passes over this process's micro-batches of one global batch."""
    accelerator = session.accelerator
    device = accelerator.device
    ramp = session.schedule.ramp
    sequences = ramp.sequences(step)
    tokens = sequences * session.data.sequence_length
    world = session.layout.readers
    micro_batch_sequences = session.arguments.micro_batch_of(sequences, world)
    n_micro = sequences // micro_batch_sequences
    position = ramp.position(step)
    rank = session.reader
    micro_batches = range(rank, n_micro, world)
    batches = session.data.micro_batches(position, sequences, micro_batch_sequences, rank, world, device)

    zeros = [torch.zeros((), device=device) for _ in range(3)]
    result = StepResult(lm_loss=zeros[0], balance_loss=zeros[1], z_loss=zeros[2])
    run_pass = partial(_forward_and_backward, session, tokens, n_micro)
    with session.runner.step(run_pass, (tokens, n_micro, micro_batch_sequences)) as run:
        for j, (inputs, targets) in zip(micro_batches, batches, strict=True):
            # DDP reduces gradients once a step, with the last micro-batch; FSDP2 with each, unless whole ones fit.
            # (Accelerate's own accumulation keeps a phase counter that goes wrong when the number of micro-batches
            # changes along the batch ramp.)
            reduces = j == micro_batches[-1] or (accelerator.is_fsdp2 and not session.reduces_once)
            _seed_masks(device, session.arguments.run.seed, position + j * micro_batch_sequences)
            context = nullcontext() if reduces else accelerator.no_sync(session.model)
            result.add(run(inputs, targets, context), n_micro)
    if accelerator.is_fsdp2:
        sharding.average_gradients(session.model)
    return result


def _forward_and_backward(
    session: Session, tokens: int, n_micro: int, inputs: torch.Tensor, targets: torch.Tensor
) -> Any:
    """Run one of the `n_micro` micro-batches of a global batch of so many tokens; returns the model's output."""
    with session.accelerator.autocast():
        # Without logits the cross-entropy is computed in chunks, and [tokens, vocabulary] is never held.
        out = session.model(
            input_ids=inputs,
            shift_labels=targets,
            num_items_in_batch=tokens,
            use_cache=False,
            output_logits=False,
        )
    coefficients = session.arguments.model
    auxiliary = coefficients.balance_loss * out.balance_loss + coefficients.z_loss * out.z_loss
    # The gradient is averaged over readers, so a reader's part of a mean is multiplied by their number.
    session.accelerator.backward((out.lm_loss + auxiliary / n_micro) * session.layout.readers)
    return out


def _seed_masks(device: torch.device, seed: int, position: int) -> None:
    """Make dropout and jitter of a micro-batch depend on the run's seed and its first sequence's position alone.

    Whatever a class draws comes from torch's generators. So masks are the same after a resume and for any number of
    processes; drawn for all of its sequences together, they are others in a micro-batch of another size.
    """
    number = int.from_bytes(hashlib.sha256(f"masks:{seed}:{position}".encode()).digest()[:8], "little")
    # `torch.manual_seed` takes a millisecond where there is no GPU.
    torch.default_generator.manual_seed(number)
    if device.type not in ("cpu", "meta"):
        torch.get_device_module(device).manual_seed(number)


def train_step(session: Session, step: int, rate: float) -> StepResult:
    """Make one update from one global batch; it is skipped if the loss or gradient is not finite."""
    a = session.arguments
    result = add_gradients(session, step)
    set_rates(session.optimizers, rate, session.muon_share)
    loss = session.total(result.lm_loss)
    limit = a.optimizer.gradient_clip or math.inf
    if session.updates_on_device:
        result.loss, result.gradient_norm = _update_on_device(session, loss, limit)
    else:
        if session.accelerator.is_fsdp2:
            norm = sharding.clip_gradients(session.model, limit)
        else:
            norm = session.accelerator.clip_grad_norm_(session.model.parameters(), limit)
        result.loss, result.gradient_norm = torch.stack([loss, norm.to(loss)]).tolist()
        if result.is_finite:
            for optimizer in session.optimizers:
                optimizer.step()
    if not session.runner.keeps_gradients:
        for optimizer in session.optimizers:
            optimizer.zero_grad()
    if a.model.bias_rate and result.is_finite:
        assert result.routing is not None
        causal_model.move_biases(session.model, session.total(result.routing.tokens_per_expert), a.model.bias_rate)
    return result


def _update_on_device(session: Session, loss: torch.Tensor, limit: float) -> list[float]:
    """Launch the update, which the device skips where loss or gradient is not finite; returns the loss and the norm.

    The device updates while the host reads both and prepares the next step. Gradients are clipped as the optimizer
    reads them.
    """
    gradients = [parameter.grad for parameter in session.model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    wait_for_values = devices.begin_reading(torch.stack([loss, norm]))
    optimizer: Any
    for optimizer in session.optimizers:
        optimizer.found_inf = (~(loss + norm).isfinite()).float()
        # The step divides gradients by it. 1e-6 as in torch's own clipping.
        optimizer.grad_scale = ((norm + 1e-6) / limit).clamp(min=1.0)
        optimizer.step()
    return wait_for_values()
