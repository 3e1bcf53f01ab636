"""`train.py --dry-run`: what a run will do and cost, and two real steps to measure it by; nothing is left behind.

The steps are made on random token ids, so that no data set has to be there; the first warms up, the second is timed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from hub.plain.tables import Table
from hub.plain.units import format_bytes, format_flops
from scaling_law.size.architecture import Architecture
from training.configuration.arguments import TrainingArguments
from training.configuration.schedule import Branch, total_tokens
from training.data.tokenizer import load_tokenizer
from training.run import devices, memory
from training.run.devices import make_accelerator
from training.run.inputs import settled
from training.run.model import architecture, model_config, peak_learning_rate, utilisation_flops
from training.run.step import Session, StepResult, make_session, train_step

_WEIGHT = 4  # bytes: weights, gradients and each of Adam's moments are fp32


@dataclass(frozen=True)
class RandomTokens:
    """Stands in for `TrainingData`: ids drawn uniformly."""

    vocab_size: int
    sequence_length: int
    micro_batch_sequences: int

    def micro_batches(
        self, position: int, sequences: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """As `TrainingData.micro_batches`."""
        generator = torch.Generator().manual_seed(position + rank)
        shape = (self.micro_batch_sequences, self.sequence_length)
        for _ in range(rank * self.micro_batch_sequences, sequences, world_size * self.micro_batch_sequences):
            ids = torch.randint(self.vocab_size, shape, generator=generator).to(device)
            yield ids, ids.roll(-1, 1)


def dry_run(arguments: TrainingArguments, console: Console | None = None) -> int:
    """Print the plan, make the steps, print what they measured; returns the exit status 0.

    The plan comes before the model is built: it is there also where a step takes long or does not fit.

    Raises:
        ConfigurationError: the processes cannot share the batches, or a micro-batch holds no whole capacity groups.
        OutOfMemory: a step does not fit; says which micro-batch would.
    """
    a = settled(arguments)
    accelerator = make_accelerator(a.run)
    a.check_processes(accelerator.num_processes)
    tokenizer = load_tokenizer(a.data.tokenizer, a.data.tokenizer_revision)
    arch = architecture(a.model, len(tokenizer))
    data = RandomTokens(len(tokenizer), a.data.sequence_length, a.run.micro_batch_sequences)
    console = (console or Console()) if accelerator.is_main_process else Console(quiet=True)
    console.print(_model_table(a, arch))
    console.print(_schedule_table(a, *peak_learning_rate(a.optimizer, arch)))
    console.print(_disk_table(a, model_config(a, len(tokenizer), tokenizer.eos_token_id).num_parameters(exact=True)))
    session = make_session(a, accelerator, tokenizer, data)
    try:
        activations = saved_for_backward(session) * a.run.micro_batch_sequences
        session.model.train()
        train_step(session, 0, session.schedule.learning_rate(0))
        started = time.perf_counter()
        result = train_step(session, 0, session.schedule.learning_rate(0))
        seconds = time.perf_counter() - started
    except RuntimeError as error:
        if not memory.is_out_of_memory(error):
            raise
        raise memory.explained(session, error) from None
    console.print(_memory_table(session, activations))
    console.print(_step_table(session, result, seconds))
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return 0


def saved_for_backward(session: Session) -> int:
    """Bytes that the forward pass of one sequence keeps for the backward pass, beyond the weights."""
    own = {p.untyped_storage().data_ptr() for p in session.model.parameters() if not hasattr(p, "full_tensor")}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter) and not hasattr(tensor, "full_tensor"):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = next(session.data.micro_batches(0, session.data.micro_batch_sequences, 0, 1, session.accelerator.device))[0]
    session.model.train()
    with session.accelerator.autocast(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        session.model(input_ids=ids[:1], shift_labels=ids[:1], use_cache=False, output_logits=False)
    return sum(kept.values())


def _model_table(a: TrainingArguments, arch: Architecture) -> Table:
    branches = _branches(a)
    trunk, total = max(b.branch_point_tokens for b in branches), total_tokens(branches)
    rows = [
        ("architecture", f"d_model {arch.d_model}, {arch.n_blocks} blocks, {arch.n_heads} heads, E = {arch.experts}"),
        ("parameters", f"{arch.n_active:,} active, {arch.n_total:,} total"),
    ]
    if arch.experts > 1:  # a dense model routes nothing
        factor = f"capacity factor {a.model.capacity_factor:g}" if a.model.capacity_factor else "dropless"
        rows.append(("routing", f"{factor}, counted over groups of {a.model.capacity_group_tokens:,} tokens"))
    rows += [
        ("FLOPs per token", format_flops(arch.training_flops(1))),
        ("FLOPs of trunk", format_flops(arch.training_flops(trunk))),
        ("FLOPs of branches", format_flops(arch.training_flops(total - trunk))),
        ("FLOPs in all", f"{format_flops(arch.training_flops(total))} ({total:,} tokens)"),
    ]
    return Table((), rows, title="Model")


def _branches(a: TrainingArguments) -> list[Branch]:
    return [a.schedule_at(1.0).branch(tokens) for tokens in sorted(set(a.schedule.tokens))]


def _schedule_table(a: TrainingArguments, peak: float, law: str) -> Table:
    ramp = a.batch_ramp()
    stages = [
        f"{s.sequences} sequences ({s.sequences * ramp.sequence_length:,} tokens) from {s.from_tokens:,} tokens"
        for s in ramp.stages
    ]
    rows = [("batch ramp", "\n".join(stages)), ("peak learning rate", f"{peak:.4g} ({law})")]
    rows += [("warm-up", f"{a.schedule.warmup_tokens:,} tokens, {ramp.steps(a.schedule.warmup_tokens):,} steps")]
    for b in _branches(a):
        decay = f"decays from step {b.decay_step:,} ({b.branch_point_tokens:,} tokens)"
        rows.append((f"run of {b.tokens:,} tokens", f"{decay} to step {b.end_step:,}"))
    return Table((), rows, title="Schedule")


def _disk_table(a: TrainingArguments, parameters: int) -> Table:
    branches, checkpoint, model = _branches(a), 3 * _WEIGHT * parameters, _WEIGHT * parameters
    # Every branch point, and the newest two of the trunk or of a branch, while a third is written.
    checkpoints = len({b.decay_step for b in branches}) + 3
    models = len(branches) + len(set(a.run.release_tokens))
    folder = Path(a.run.output_dir).absolute()
    free = shutil.disk_usage(next(path for path in [folder, *folder.parents] if path.exists())).free
    needed = checkpoints * checkpoint + models * model
    rows = [
        ("checkpoints", f"at most {checkpoints} of {format_bytes(checkpoint)}"),
        ("models", f"{models} of {format_bytes(model)}"),
        ("in all", f"{format_bytes(needed)}; free: {format_bytes(free)}" + (" - NOT ENOUGH" if needed > free else "")),
    ]
    return Table((), rows, title="Disk")


def _memory_table(session: Session, activations: int) -> Table:
    accelerator, device = session.accelerator, session.accelerator.device
    shards = accelerator.num_processes if accelerator.is_fsdp2 else 1
    weights = _WEIGHT * sum(p.numel() for p in session.model.parameters()) / shards
    kind = "peak of tensors" if device.type == "cuda" else "peak of the process"
    peak, total = devices.peak_memory(device), devices.total_memory(device)
    rows = [
        ("weights", format_bytes(weights)),
        ("gradients", format_bytes(weights)),
        ("Adam's moments", format_bytes(2 * weights)),
        ("activations", f"{format_bytes(activations)} (estimate: measured for one sequence, times the micro-batch)"),
        (f"measured, {kind}", f"{format_bytes(peak)} of {format_bytes(total)}"),
    ]
    return Table((), rows, title="Memory per device")


def _step_table(session: Session, result: StepResult, seconds: float) -> Table:
    ramp, accelerator = session.schedule.ramp, session.accelerator
    tokens = ramp.sequences(0) * ramp.sequence_length
    speed, peak = tokens / seconds, session.peak_flops
    hours = total_tokens(_branches(session.arguments)) / speed / 3600
    rows = [
        ("loss", f"{result.loss:.3f} on random ids, gradient norm {result.gradient_norm:.3g}"),
        ("time", f"{seconds:.3g} s for {tokens:,} tokens: {speed:,.0f} tokens/s"),
        *([("MFU", f"{utilisation_flops(session.architecture) * speed / peak:.1%}")] if peak else []),
        ("estimated for the whole run", f"{hours:.3g} hours (from this one step)"),
    ]
    hardware = devices.describe(accelerator.device, accelerator.num_processes)
    return Table((), rows, title=f"One step, measured on {hardware}")
