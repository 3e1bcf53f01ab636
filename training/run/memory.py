"""The memory of a step on each device, predicted, and what is decided by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from scaling_law.machine.memory import TrainingMemory, training_memory
from scaling_law.size.architecture import Architecture
from training.configuration.arguments import TrainingArguments
from training.configuration.model_classes import ModelClassArguments
from training.run.devices import device_memory
from training.run.sharding import Layout

if TYPE_CHECKING:
    from accelerate import Accelerator

# Share of a device's memory that whole gradients may fill up: predictions are off by up to a tenth.
_FILLED = 0.8


def predict(
    a: TrainingArguments,
    accelerator: Accelerator,
    arch: Architecture,
    micro_batch_sequences: int,
    passes: int,
    reduces_once: bool,
) -> TrainingMemory:
    """Predict the peak of a step of so many passes; see `reduces_once`."""
    layout = Layout.of(accelerator, a.run)
    sharding: Literal["none", "ddp", "fsdp2"] = "ddp" if accelerator.num_processes > 1 else "none"
    reshard = True
    if accelerator.is_fsdp2:
        sharding = "fsdp2"
        reshard = accelerator.state.fsdp_plugin.reshard_after_forward
    return training_memory(
        arch,
        micro_batch_sequences,
        a.data.sequence_length,
        passes=passes,
        precision=a.run.precision,
        gradient_checkpointing=a.run.gradient_checkpointing,
        capacity_factor=a.model.capacity_factor,
        optimizer=a.optimizer.name,
        sharding=sharding,
        devices=layout.shards,
        ep=layout.experts,
        on_cpu=accelerator.device.type == "cpu",
        reshard=reshard,
        reduces_once=reduces_once,
    )


def reduces_once(a: TrainingArguments, accelerator: Accelerator, arch: Architecture) -> bool:
    """Decide whether FSDP2 sums gradients over processes once a step, and until then keeps whole ones of all blocks.

    Configuration and card decide, never free memory, so that a resumed run sums in the same order. The prediction was
    validated for our class alone, with undivided widths.
    """
    if not accelerator.is_fsdp2 or isinstance(a.model, ModelClassArguments) or a.run.tensor_parallel > 1:
        return False
    predicted = predict(a, accelerator, arch, a.run.micro_batch_sequences, passes=2, reduces_once=True)
    return predicted.total <= _FILLED * device_memory(accelerator.device)
