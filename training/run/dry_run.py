"""The cost of a run before it starts (`train.py --dry-run`), and advice after a step that did not fit.

The dry run refuses what cannot fit before it builds the model, then makes a warm-up step and a measured one on random
token ids, and leaves nothing behind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from hub.base.disk import measure_free_space
from hub.base.tables import Table
from hub.base.units import format_bytes, format_flops
from scaling_law.law.describe import describe_experts, shape_of
from scaling_law.machine.memory import TrainingMemory, saved_bytes
from scaling_law.size.architecture import Architecture
from scaling_law.size.model_configs import Model, read_model
from training.configuration.arguments import TrainingArguments
from training.configuration.model_classes import ModelClassArguments, causal_class
from training.configuration.schedule import total_tokens
from training.data.tokenizer import load_tokenizer, vocabulary_size
from training.run import devices, memory
from training.run.checkpoint import most_at_a_time
from training.run.devices import device_memory
from training.run.inputs import resolve_arguments
from training.run.model import architecture, flops_per_token, model_config, peak_learning_rate
from training.run.sharding import Layout, check_layout
from training.run.step import Session, StepResult, make_session
from training.run.timing import RandomTokens, timed_step

if TYPE_CHECKING:
    from accelerate import Accelerator


def dry_run(arguments: TrainingArguments) -> int:
    """Print the plan, before the model is built, then make the steps and print what they measured; returns 0.

    Raises:
        ConfigurationError: the processes cannot share the batches, or a micro-batch holds no whole capacity groups.
        OutOfMemory: a step cannot fit, or did not; says what to try.
    """
    a = resolve_arguments(arguments)
    has_callers_group = devices.has_process_group()
    accelerator = devices.make_accelerator(a.run)
    check_layout(a, accelerator)
    tokenizer = load_tokenizer(a.data.tokenizer, a.data.tokenizer_revision)
    vocab_size = vocabulary_size(tokenizer)
    data = RandomTokens(vocab_size, a.data.sequence_length)
    console = Console(quiet=not accelerator.is_main_process)
    arch = architecture(a.model, vocab_size)
    config = model_config(a, vocab_size, tokenizer.eos_token_id)
    model = read_model(config)
    _show(console, "Model", _plan_of_model(a, arch, config, model))
    _show(console, "Schedule", _plan_of_schedule(a, arch))
    _show(console, "Disk", _plan_of_disk(a, arch, model.parameters))
    predicted = check_memory(a, accelerator, arch)
    session = make_session(a, accelerator, tokenizer, data)
    session.model.train()
    with advice_on_memory(session):
        # The first step warms up.
        timed_step(session)
        result, seconds = timed_step(session)
    _show(console, "Memory per device", _describe_memory(session, predicted))
    hardware = devices.describe(accelerator.device, accelerator.num_processes)
    _show(console, f"One step, measured on {hardware}", _describe_speed(session, result, seconds))
    accelerator.wait_for_everyone()
    if not has_callers_group:
        accelerator.end_training()
    return 0


def _show(console: Console, title: str, rows: dict[str, str]) -> None:
    """Print a table without its empty rows."""
    console.print(Table((), [row for row in rows.items() if row[1]], title=title))


def _plan_of_model(a: TrainingArguments, arch: Architecture, config: Any, model: Model) -> dict[str, str]:
    """Describe class, size, routing and FLOPs."""
    flops = flops_per_token(config, arch, a.data.sequence_length)
    tokens = total_tokens(a.branches())
    factor = f"capacity factor {a.model.capacity_factor:g}" if a.model.capacity_factor else "dropless"
    routing = f"{factor}, counted over groups of {a.model.capacity_group_tokens:,} tokens"
    method = "counted on the class" if flops.count == "class" else "6 N"
    return {
        "class": f"{causal_class(config).__name__}, {model.parameters:,} parameters",
        "not counted by laws": ", ".join(f"{name} {count:,}" for name, count in model.left_out.items()),
        "architecture": shape_of(arch),
        "experts": describe_experts(arch),
        "parameters": f"{arch.n_active:,} active, {arch.n_total:,} total",
        # A dense model routes nothing.
        "routing": routing if arch.experts > 1 else "",
        "FLOPs per token": f"{format_flops(flops.recorded)}, {method}",
        "FLOPs in all": f"{format_flops(flops.recorded * tokens)} ({tokens:,} tokens)",
    }


def _plan_of_schedule(a: TrainingArguments, arch: Architecture) -> dict[str, str]:
    """Describe batches, learning rate and branches."""
    ramp = a.batch_ramp()
    stages = []
    for stage in ramp.stages:
        batch = f"{stage.sequences} sequences ({stage.sequences * ramp.sequence_length:,} tokens)"
        stages.append(f"{batch} from {stage.from_tokens:,} tokens")
    peak, law = peak_learning_rate(a, arch)
    warmup_tokens = a.schedule.warmup_tokens
    schedule = {
        "batch ramp": "\n".join(stages),
        "peak learning rate": f"{peak:.4g} ({law})",
        "warm-up": f"{warmup_tokens:,} tokens, {ramp.steps(warmup_tokens):,} steps",
    }
    for branch in a.branches():
        start = f"step {branch.decay_step:,} ({branch.branch_point_tokens:,} tokens)"
        schedule[f"run of {branch.tokens:,} tokens"] = f"decays from {start} to step {branch.end_step:,}"
    return schedule


def _plan_of_disk(a: TrainingArguments, arch: Architecture, parameters: int) -> dict[str, str]:
    """Describe the disk space that checkpoints and models take."""
    # Weights are fp32.
    model_bytes = 4 * parameters
    checkpoint_bytes = saved_bytes(parameters, arch.n_total_non_embedding, a.optimizer.name)
    branches = a.branches()
    n_checkpoints = most_at_a_time(branches)
    n_models = len(branches) + len(set(a.run.release_tokens))
    total_bytes = n_checkpoints * checkpoint_bytes + n_models * model_bytes
    free_bytes, _ = measure_free_space(Path(a.run.output_dir))
    warning = " - NOT ENOUGH" if total_bytes > free_bytes else ""
    return {
        "checkpoints": f"at most {n_checkpoints} of {format_bytes(checkpoint_bytes)}",
        "models": f"{n_models} of {format_bytes(model_bytes)}",
        "in all": f"{format_bytes(total_bytes)}; free: {format_bytes(free_bytes)}{warning}",
    }


def check_memory(a: TrainingArguments, accelerator: Accelerator, arch: Architecture) -> TrainingMemory:
    """Predict a step's memory on each device. Raises OutOfMemory if the device has less; the message says what fits.

    The prediction was validated for our class only, so it refuses no other; nor a run whose processes divide heads and
    inner widths, the activations of which it counts whole.
    """
    available = device_memory(accelerator.device)
    size = a.run.micro_batch_sequences
    largest_batch = a.schedule.largest_batch
    layout = Layout.of(accelerator, a.run)

    def with_micro_batch(sequences: int, reduces_once: bool = False) -> TrainingMemory:
        passes = max(1, largest_batch // (sequences * layout.readers))
        return memory.predict(a, accelerator, arch, sequences, passes, reduces_once)

    predicted = with_micro_batch(size, memory.reduces_once(a, accelerator, arch))
    if predicted.total <= available or isinstance(a.model, ModelClassArguments) or layout.tensor > 1:
        return predicted
    smaller = smaller_micro_batches(a, layout.readers)
    fitting = [micro for micro in smaller if with_micro_batch(micro).total <= available]
    problem = f"a step needs about {format_bytes(predicted.total)} on a device that has {format_bytes(available)}"
    raise OutOfMemory(f"run.micro_batch_sequences {size}: {problem}; {_advise(a, fitting, 'what would fit')}")


def _describe_memory(session: Session, predicted: TrainingMemory) -> dict[str, str]:
    """Show the predicted memory beside the measured peak."""
    device = session.accelerator.device
    is_muon = session.arguments.optimizer.name == "muon"
    owner = "tensors" if device.type == "cuda" else "process"
    is_uneven = session.layout.experts > 1 and not session.arguments.model.capacity_factor
    sizes = {
        "weights": predicted.weights,
        "gradients": predicted.gradients,
        "Muon's momentum, Adam's moments" if is_muon else "Adam's moments": predicted.optimizer,
        "activations": predicted.activations,
        "logits, inner gradients": predicted.workspace,
        f"predicted peak{', experts with equally many tokens' if is_uneven else ''}": predicted.total,
        f"measured, peak of the {owner}": devices.peak_memory(device),
        "memory of the device": device_memory(device),
    }
    return {name: format_bytes(n_bytes) for name, n_bytes in sizes.items()}


def _describe_speed(session: Session, result: StepResult, seconds: float) -> dict[str, str]:
    """Show what a step of so many seconds tells of the run."""
    a = session.arguments
    tokens = session.schedule.ramp.tokens(1)
    speed = tokens / seconds
    mfu = session.mfu(speed)
    hours = total_tokens(a.branches()) / speed / 3600
    sequences = f"{a.run.micro_batch_sequences} sequences of {a.data.sequence_length} tokens"
    return {
        "loss": f"{result.loss:.3f} on random ids, gradient norm {result.gradient_norm:.3g}",
        "time": f"{seconds:.3g} s for {tokens:,} tokens: {speed:,.0f} tokens/s",
        "MFU": f"{mfu:.1%}" if mfu else "",
        "micro-batch": f"{sequences}; {a.run.precision}",
        "weights": str(session.layout) if session.accelerator.is_fsdp2 else "",
        "estimated for the whole run": f"{hours:.3g} hours (from this one step)",
    }


class OutOfMemory(RuntimeError):
    """A step did not fit into the memory of a device; the message names the micro-batches to try instead."""

    exit_status = 3


@contextmanager
def advice_on_memory(session: Session) -> Iterator[None]:
    """Raise OutOfMemory, which says what to try, instead of an allocator's error on GPU or CPU."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
            raise
        a = session.arguments
        choices = smaller_micro_batches(a, session.layout.readers)
        head = f"out of memory with run.micro_batch_sequences {a.run.micro_batch_sequences}"
        advice = _advise(a, choices, "smaller ones with which this run can resume")
        raise OutOfMemory(f"{head} ({str(error).splitlines()[0][:200]}); {advice}") from None


def _advise(a: TrainingArguments, choices: list[int], label: str) -> str:
    """Advise on micro-batches, and on gradient checkpointing if it is off."""
    advice = f"{label}: {', '.join(map(str, choices))}"
    if not choices:
        group = f"holds whole capacity groups of {a.model.capacity_group_tokens} tokens and cuts the batches evenly"
        addition = " and fits" if label.endswith("fit") else ""
        advice = f"no smaller one {group}{addition}: use more devices with FSDP2, or a smaller model"
    return advice if a.run.gradient_checkpointing else f"{advice}; or set run.gradient_checkpointing"


def smaller_micro_batches(arguments: TrainingArguments, world: int) -> list[int]:
    """List smaller micro-batches that hold whole capacity groups and that the processes can share at every stage.

    The largest comes first.
    """
    sequences = math.gcd(*(stage.sequences for stage in arguments.schedule.stages()))
    smaller = range(arguments.run.micro_batch_sequences - 1, 0, -1)
    return [micro for micro in smaller if sequences % (micro * world) == 0 and arguments.holds_whole_groups(micro)]
