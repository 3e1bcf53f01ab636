"""The cost of a run before it starts (`train.py --dry-run`), and advice after a step that did not fit.

The dry run refuses what cannot fit before it builds the model, then makes a warm-up step and a measured one on random
token ids, and leaves nothing behind.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console

from hub.base.tables import Table
from hub.base.units import format_bytes, format_flops
from modeling_switch_moe.expert_parallel import rows_to_send
from scaling_law.law.describe import describe_experts, shape_of
from scaling_law.machine.memory import TrainingMemory, saved_bytes, training_memory
from scaling_law.size.architecture import Architecture
from scaling_law.size.model_configs import read_model
from training.configuration.arguments import TrainingArguments
from training.configuration.model_classes import ModelClassArguments, causal_class
from training.configuration.schedule import total_tokens
from training.data.tokenizer import load_tokenizer, vocabulary_size
from training.run import devices
from training.run.checkpoint import most_at_a_time
from training.run.inputs import settled
from training.run.model import architecture, flops_per_token, model_config, peak_learning_rate
from training.run.sharding import Layout, check_layout
from training.run.step import Session, StepResult, make_session
from training.run.timing import RandomTokens, device_memory, timed_step


def dry_run(arguments: TrainingArguments, console: Console | None = None) -> int:
    """Print the plan, before the model is built, then make the steps and print what they measured; returns 0.

    Raises:
        ConfigurationError: the processes cannot share the batches, or a micro-batch holds no whole capacity groups.
        OutOfMemory: a step cannot fit, or did not; says what to try.
    """
    a = settled(arguments)
    found_group = devices.has_process_group()
    accelerator = devices.make_accelerator(a.run)
    check_layout(a, accelerator)
    a.check_processes(Layout.of(accelerator, a.run).readers)
    tokenizer = load_tokenizer(a.data.tokenizer, a.data.tokenizer_revision)
    data = RandomTokens(vocabulary_size(tokenizer), a.data.sequence_length, a.run.micro_batch_sequences)
    console = (console or Console()) if accelerator.is_main_process else Console(quiet=True)
    _show(console, _plan(a, tokenizer))
    predicted = check_memory(a, accelerator, architecture(a.model, vocabulary_size(tokenizer)))
    session = make_session(a, accelerator, tokenizer, data)
    session.model.train()
    with advice_on_memory(session):
        timed_step(session)  # warms up
        result, seconds = timed_step(session)
    _show(console, _measured(session, result, seconds, predicted))
    accelerator.wait_for_everyone()
    devices.end_processes(accelerator, keep_group=found_group)
    return 0


def _show(console: Console, tables: dict[str, dict[str, str]]) -> None:
    """Print tables, by title, without what is empty."""
    for title, rows in tables.items():
        console.print(Table((), [row for row in rows.items() if row[1]], title=title))


def _plan(a: TrainingArguments, tokenizer) -> dict[str, dict[str, str]]:
    """Model, schedule and disk space of the run."""
    arch, ramp = architecture(a.model, vocabulary_size(tokenizer)), a.batch_ramp()
    branches = a.branches()
    trunk, total = max(b.branch_point_tokens for b in branches), total_tokens(branches)
    config = model_config(a, vocabulary_size(tokenizer), tokenizer.eos_token_id)
    factor = f"capacity factor {a.model.capacity_factor:g}" if a.model.capacity_factor else "dropless"
    routing = f"{factor}, counted over groups of {a.model.capacity_group_tokens:,} tokens"
    flops = flops_per_token(config, arch, a.data.sequence_length)
    whose = "counted on the class" if flops.count == "class" else "6 N"
    counted = read_model(config)
    model = {
        "class": f"{causal_class(config).__name__}, {counted.parameters:,} parameters",
        "not counted by laws": ", ".join(f"{name} {count:,}" for name, count in counted.left_out.items()),
        "architecture": shape_of(arch),
        "experts": describe_experts(arch),
        "parameters": f"{arch.n_active:,} active, {arch.n_total:,} total",
        "routing": routing if arch.experts > 1 else "",  # a dense model routes nothing
        "FLOPs per token": f"{format_flops(flops.recorded)}, {whose}",
        "FLOPs of trunk": format_flops(flops.recorded * trunk),
        "FLOPs of branches": format_flops(flops.recorded * (total - trunk)),
        "FLOPs in all": f"{format_flops(flops.recorded * total)} ({total:,} tokens)",
    }

    peak, law = peak_learning_rate(a.optimizer, arch, *a.longest_run())
    stages = (
        f"{s.sequences} sequences ({s.sequences * ramp.sequence_length:,} tokens) from {s.from_tokens:,} tokens"
        for s in ramp.stages
    )
    schedule = {
        "batch ramp": "\n".join(stages),
        "peak learning rate": f"{peak:.4g} ({law})",
        "warm-up": f"{a.schedule.warmup_tokens:,} tokens, {ramp.steps(a.schedule.warmup_tokens):,} steps",
    }
    for b in branches:
        decay = f"decays from step {b.decay_step:,} ({b.branch_point_tokens:,} tokens) to step {b.end_step:,}"
        schedule[f"run of {b.tokens:,} tokens"] = decay

    size = 4 * counted.parameters  # weights are fp32
    saved = saved_bytes(counted.parameters, arch.n_total_non_embedding, a.optimizer.name)
    checkpoints, models = most_at_a_time(branches), len(branches) + len(set(a.run.release_tokens))
    needed = checkpoints * saved + models * size
    folder = Path(a.run.output_dir).absolute()
    free = shutil.disk_usage(next(path for path in [folder, *folder.parents] if path.exists())).free
    warning = " - NOT ENOUGH" if needed > free else ""
    disk = {
        "checkpoints": f"at most {checkpoints} of {format_bytes(saved)}",
        "models": f"{models} of {format_bytes(size)}",
        "in all": f"{format_bytes(needed)}; free: {format_bytes(free)}{warning}",
    }
    return {"Model": model, "Schedule": schedule, "Disk": disk}


def check_memory(a: TrainingArguments, accelerator, arch: Architecture) -> TrainingMemory:
    """Predict a step's memory on each device. Raises OutOfMemory if the device has less; the message says what fits.

    The prediction was validated for our class only, so it refuses no other; nor a run whose processes divide heads and
    inner widths, the activations of which it counts whole.
    """
    available, size = device_memory(accelerator.device), a.run.micro_batch_sequences
    largest, layout = max(stage.sequences for stage in a.schedule.stages()), Layout.of(accelerator, a.run)

    def with_micro_batch(sequences: int) -> TrainingMemory:
        return training_memory(
            arch,
            sequences,
            a.data.sequence_length,
            passes=max(1, largest // (sequences * layout.readers)),
            precision=a.run.precision,
            gradient_checkpointing=a.run.gradient_checkpointing,
            capacity_factor=a.model.capacity_factor,
            optimizer=a.optimizer.name,
            sharding="fsdp2" if accelerator.is_fsdp2 else "ddp" if accelerator.num_processes > 1 else "none",
            devices=layout.shards,
            ep=layout.experts,
            on_cpu=accelerator.device.type == "cpu",
        )

    predicted = with_micro_batch(size)
    if predicted.total <= available or isinstance(a.model, ModelClassArguments) or layout.tensor > 1:
        return predicted
    smaller = smaller_micro_batches(a, layout.readers)
    fitting = [micro for micro in smaller if with_micro_batch(micro).total <= available]
    needed = f"a step needs about {format_bytes(predicted.total)} on a device that has {format_bytes(available)}"
    raise OutOfMemory(f"run.micro_batch_sequences {size}: {needed}; {_advice(a, fitting, 'what would fit')}")


def _measured(
    session: Session, result: StepResult, seconds: float, predicted: TrainingMemory
) -> dict[str, dict[str, str]]:
    """Memory and speed of the first step."""
    a, accelerator, device = session.arguments, session.accelerator, session.accelerator.device
    state = "Muon's momentum, Adam's moments" if a.optimizer.name == "muon" else "Adam's moments"
    kind = "tensors" if device.type == "cuda" else "process"
    of_memory = f" of {format_bytes(device_memory(device))}"
    peak_title = "predicted peak"
    if session.layout.experts > 1 and not a.model.capacity_factor:
        peak_title += ", experts with equally many tokens"
    memory = {
        "weights": format_bytes(predicted.weights),
        "gradients": format_bytes(predicted.gradients),
        state: format_bytes(predicted.optimizer),
        "activations": format_bytes(predicted.activations),
        "logits, inner gradients": format_bytes(predicted.workspace),
        peak_title: f"{format_bytes(predicted.total)}{of_memory}",
        f"measured, peak of the {kind}": f"{format_bytes(devices.peak_memory(device))}{of_memory}",
    }
    tokens, peak = session.schedule.ramp.tokens(1), session.peak_flops
    speed = tokens / seconds
    hours = total_tokens(a.branches()) / speed / 3600
    sequences = f"{a.run.micro_batch_sequences} sequences of {a.data.sequence_length} tokens"
    step = {
        "loss": f"{result.loss:.3f} on random ids, gradient norm {result.gradient_norm:.3g}",
        "time": f"{seconds:.3g} s for {tokens:,} tokens: {speed:,.0f} tokens/s",
        "MFU": f"{session.flops.multiplied * speed / peak:.1%}" if peak else "",
        "micro-batch": f"{sequences}; {a.run.precision}",
        "weights": str(session.layout) if accelerator.is_fsdp2 else "",
        "rows of a device's experts": _rows_of_experts(session) if session.layout.experts > 1 else "",
        "estimated for the whole run": f"{hours:.3g} hours (from this one step)",
    }
    hardware = devices.describe(device, accelerator.num_processes)
    return {"Memory per device": memory, f"One step, measured on {hardware}": step}


def _rows_of_experts(session: Session) -> str:
    """Say how many rows the experts of one device compute in a block, where they are divided."""
    a, layout, arch = session.arguments, session.layout, session.architecture
    tokens = a.run.micro_batch_sequences * a.data.sequence_length
    if a.model.capacity_factor:
        rows = rows_to_send(a.model, tokens, arch.experts, layout.tensor)
        return f"{arch.experts * rows:,} in a block, whatever is routed"
    balanced = tokens * arch.experts_per_token // layout.tensor
    chosen = min(arch.experts_per_token, arch.experts // layout.experts)
    most = tokens * chosen * layout.experts // layout.tensor
    return f"{balanced:,} in a block if experts are balanced, at most {most:,}"


class OutOfMemory(RuntimeError):
    """A step did not fit into the memory of a device; the message names the micro-batches to try instead."""

    exit_status = 3


@contextmanager
def advice_on_memory(session: Session) -> Iterator[None]:
    """Replace an allocator's error, on GPU or CPU, by OutOfMemory, which says what to try."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
            raise
        a = session.arguments
        choices = smaller_micro_batches(a, session.layout.readers)
        head = f"out of memory with run.micro_batch_sequences {a.run.micro_batch_sequences}"
        advice = _advice(a, choices, "smaller ones with which this run can resume")
        raise OutOfMemory(f"{head} ({str(error).splitlines()[0][:200]}); {advice}") from None


def _advice(a: TrainingArguments, choices: list[int], what: str) -> str:
    """Advice on micro-batches, and on gradient checkpointing if it is off."""
    advice = f"{what}: {', '.join(map(str, choices))}"
    if not choices:
        group = f"holds whole capacity groups of {a.model.capacity_group_tokens} tokens and cuts the batches evenly"
        also = " and fits" if what.endswith("fit") else ""
        advice = f"no smaller one {group}{also}: use more devices with FSDP2, or a smaller model"
    return advice if a.run.gradient_checkpointing else f"{advice}; or set run.gradient_checkpointing"


def smaller_micro_batches(arguments: TrainingArguments, world: int) -> list[int]:
    """Micro-batches that hold whole capacity groups and that the processes can share at every stage; descending."""
    sequences = math.gcd(*(stage.sequences for stage in arguments.schedule.stages()))
    smaller = range(arguments.run.micro_batch_sequences - 1, 0, -1)
    return [micro for micro in smaller if sequences % (micro * world) == 0 and arguments.holds_whole_groups(micro)]
