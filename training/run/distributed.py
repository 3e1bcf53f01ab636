"""Processes and devices: the Accelerator of a run, sums over its processes, and decisions that all of them share.

`accelerate launch` says how many processes there are and whether the model is replicated (DDP) or sharded (FSDP2).
What its configuration file cannot say, or says in a way that would change the numbers, is set here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from training.configuration.arguments import ConfigurationError, RunArguments


def make_accelerator(run: RunArguments):
    """The Accelerator of this process.

    Raises:
        ConfigurationError: the launcher's FSDP settings are of a kind that is not supported, or its processes cannot
            find each other.
    """
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    launched = int(os.environ.get("WORLD_SIZE", "1"))
    # The only buffers are the constant tables of the rotary positions: nothing to send before every forward pass.
    ddp = DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True)
    accelerator = Accelerator(
        # Accelerate's launcher does not hand on a file's `use_cpu` to several processes; without it and without a GPU
        # each of them would train alone.
        cpu=launched > 1 and not torch.accelerator.is_available(),
        mixed_precision="bf16" if run.precision == "bf16" else "no",
        project_dir=str(Path(run.output_dir)),
        fsdp_plugin=_fsdp_plugin() if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" else None,
        kwargs_handlers=[ddp],
    )
    if accelerator.num_processes < launched:
        raise ConfigurationError(
            f"accelerate launch: {launched} processes were started, and each of them would train alone on "
            f"{accelerator.device.type}; set ACCELERATE_USE_CPU=true to train on CPU"
        )
    return accelerator


def _fsdp_plugin():
    """The launcher's FSDP settings, with what keeps losses and router in fp32.

    Autocast alone decides the precision. FSDP's own mixed precision would round what passes between the blocks, the
    returned losses (steps of 0.008) and the router's weights to bf16; gradients are summed in fp32 as well.
    """
    from accelerate.utils import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if (version := os.environ.get("FSDP_VERSION", "1")) != "2":
        raise ConfigurationError(f"accelerate's fsdp_config.fsdp_version: {version}; it must be 2")
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        mixed_precision_policy=MixedPrecisionPolicy(),
        auto_wrap_policy="transformer_based_wrap",  # one group per block, as the model's _no_split_modules says
        state_dict_type="SHARDED_STATE_DICT",
        cpu_ram_efficient_loading=False,  # every process draws the same weights from the seed; nothing is loaded
    )
    if plugin.activation_checkpointing:
        raise ConfigurationError(
            "accelerate's fsdp_activation_checkpointing: true; it must be false, use run.gradient_checkpointing"
        )
    return plugin


def sum_over_processes(accelerator, value: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor over all processes; collective with more than one."""
    return accelerator.reduce(value, "sum") if accelerator.num_processes > 1 else value


def any_process(accelerator, *flags: bool) -> list[bool]:
    """Which of the flags are set on any process; collective with more than one."""
    if accelerator.num_processes == 1:
        return list(flags)  # without a look at the device
    counts = torch.tensor([float(flag) for flag in flags], device=accelerator.device)
    return [count > 0 for count in sum_over_processes(accelerator, counts).tolist()]


def on_main(accelerator, function: Callable[[], Any]) -> Any:
    """Call it on the main process and return its (picklable) result, or raise its OSError or ValueError, on all."""
    if accelerator.num_processes == 1:
        return function()
    from accelerate.utils import broadcast_object_list

    outcome = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = function()
        except (OSError, ValueError) as error:
            outcome[1] = error
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def full_tensor(value: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that FSDP2 may have sharded."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value
