"""Out of memory: how it is recognised, and which micro-batch would have fitted."""

from __future__ import annotations

import math

import torch
from accelerate.utils.memory import clear_device_cache

from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.run.step import Session


class OutOfMemory(RuntimeError):
    """A step did not fit into the memory of a device; the message names a micro-batch that does."""

    exit_status = 3


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether this is how an allocator reports it, on an accelerator or on CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def smaller_micro_batches(arguments: TrainingArguments, world: int) -> list[int]:
    """Micro-batches below the run's, descending, with which it may be resumed: each holds whole capacity groups, and
    the processes can share every stage of the batch ramp in such pieces."""
    allowed = []
    batches = math.gcd(*(stage.sequences for stage in arguments.schedule.stages()))
    for micro in range(arguments.run.micro_batch_sequences - 1, 0, -1):
        if batches % micro or not arguments.holds_whole_groups(micro):
            continue
        try:
            arguments.check_processes(world, micro)
        except ConfigurationError:
            continue
        allowed.append(micro)
    return allowed


def explained(session: Session, error: BaseException) -> OutOfMemory:
    """The error to show for an out-of-memory error: the micro-batch it came with, and the largest that fits."""
    arguments, world = session.arguments, session.accelerator.num_processes
    session.optimizer.zero_grad(set_to_none=True)
    clear_device_cache(garbage_collection=True)
    micro = arguments.run.micro_batch_sequences
    head = f"out of memory with run.micro_batch_sequences {micro} ({str(error).splitlines()[0][:200]})"
    choices, fits = smaller_micro_batches(arguments, world), None
    if session.accelerator.is_fsdp2 and choices:
        # A trial would gather the shards of the other processes, which wait elsewhere.
        advice = f"the batch ramp and {world} processes allow {', '.join(map(str, choices[:4]))}"
    elif choices and (fits := _largest_that_fits(session, choices)):
        advice = f"{fits} fits (tried: forward and backward pass)"
    else:
        why, group = "cuts the batches of the ramp evenly", arguments.model.capacity_group_tokens
        if choices:
            why = "fits"
        elif not all(map(arguments.holds_whole_groups, range(1, micro))):
            why = f"holds whole capacity groups of {group} tokens (a new run can have smaller ones)"
        advice = f"no smaller micro-batch {why}: use more devices with FSDP2, or a smaller model"
    checkpointing = "" if arguments.run.gradient_checkpointing else "; or set run.gradient_checkpointing"
    return OutOfMemory(f"{head}; {advice}{checkpointing}")


def _largest_that_fits(session: Session, choices: list[int]) -> int | None:
    """The first micro-batch whose forward and backward pass fits, by trying; None if none does.

    Tried with gradients and Adam's two moments in place, in the process that ran out of memory alone: no collective.
    """
    accelerator = session.accelerator
    model = accelerator.unwrap_model(session.model)
    moments = []
    for micro in choices:
        try:
            if not session.optimizer.state and not moments:
                moments += [torch.empty_like(p) for p in model.parameters() for _ in range(2)]
            ids = torch.zeros(micro, session.data.sequence_length, dtype=torch.long, device=accelerator.device)
            for _ in range(2):  # the second with the gradients of the first in place
                with accelerator.autocast():
                    out = model(
                        input_ids=ids,
                        shift_labels=ids,
                        num_items_in_batch=ids.numel(),
                        use_cache=False,
                        output_logits=False,
                    )
                out.loss.backward()
            return micro
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        finally:
            out = None
            session.optimizer.zero_grad(set_to_none=True)
            clear_device_cache(garbage_collection=True)
    return None
