"""What a finished run leaves: a model folder for `from_pretrained` with its run record beside the weights."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from hub.plain.atomic import weights_sha256, write_bytes
from hub.record.names import MAX_ID_LENGTH, recipe_suffix, shortened
from hub.record.run_record import RunRecord
from hub.store.files import portable_tokenizer_config
from modeling_switch_moe import SwitchMoeForCausalLM
from scaling_law.size.architecture import Architecture
from training.configuration.arguments import TrainingArguments
from training.configuration.schedule import Branch
from training.data.training_data import TrainingData
from training.run import hardware
from training.run.checkpoint import Progress
from training.run.evaluation import HeldOutLoss
from training.run.inputs import PendingHeldOut
from training.run.model import utilisation_flops
from training.run.step_log import balance

_LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "joint-moe-scaling-laws")


@dataclass(frozen=True)
class RunContext:
    """What every record of one training process shares."""

    arguments: TrainingArguments
    architecture: Architecture
    data: TrainingData
    dataset: dict  # id, revision, fingerprint
    data_order: str
    tokenizer: dict  # id, fingerprint
    peak_learning_rate: float
    learning_rate_law: str
    hardware: str
    peak_flops: float | None  # of all devices


def trunk_id(arguments: TrainingArguments) -> str:
    """Names the (sweep, size, E, seed) that branches share; runs with one trunk are not independent."""
    return f"{arguments.run.sweep}-{arguments.model.name}-seed{arguments.run.seed}"


def run_record(
    context: RunContext,
    branch: Branch,
    progress: Progress,
    *,
    branch_name: str,
    status: str,
    measured: HeldOutLoss | None,
    held_out: PendingHeldOut,
    weights_sha256: dict[str, str] | None,
) -> RunRecord:
    """The record of a branch, final or diverged, or of an intermediate checkpoint of its trunk.

    The training loss of an intermediate one is the mean over its last steps (`Progress.recent_losses`).
    """
    a, arch = context.arguments, context.architecture
    tokens = a.batch_ramp().tokens(progress.step)
    flops = float(arch.training_flops(tokens))
    speed = tokens / progress.wall_seconds
    final = status == "final"
    routed = progress.window_routed
    losses, n_losses = progress.window_loss, progress.window_steps
    if status == "intermediate":
        losses, n_losses = sum(progress.recent_losses), len(progress.recent_losses)
    if status == "diverged":
        n_losses = 0
    end = branch_name.partition("-")[0]
    record = RunRecord(
        run_id=f"{trunk_id(a)}-{end}",
        sweep=a.run.sweep,
        parent_run_id=trunk_id(a),
        branch_point_tokens=min(branch.branch_point_tokens, tokens) if status != "intermediate" else None,
        status=status,
        d_model=arch.d_model,
        n_blocks=arch.n_blocks,
        n_heads=arch.n_heads,
        experts=arch.experts,
        vocab_size=arch.vocab_size,
        sequence_length=a.data.sequence_length,
        n_active=arch.n_active,
        n_total=arch.n_total,
        tokens=tokens,
        # How often each of them was read; how much more data there is may not be known, and does not matter here.
        unique_tokens=context.data.unique_among(tokens),
        epochs=tokens / context.data.unique_among(tokens),
        steps=progress.step,
        train_loss=losses / n_losses if n_losses else None,
        train_loss_window_tokens=_window_tokens(a, progress.step, n_losses),
        eval_loss=measured and measured.loss,
        eval_loss_standard_error=measured and measured.standard_error,
        eval_tokens=measured and held_out.tokens,
        eval_documents=measured and held_out.n_documents,
        eval_data=measured and held_out.origin,
        drop_rate=progress.window_dropped / sum(map(sum, routed)) if final and routed else (0.0 if final else None),
        expert_load_max_over_mean=balance(routed) if final and routed else (1.0 if final else None),
        schedule={
            "horizon_tokens": branch.tokens,
            "warmup_tokens": int(a.schedule.warmup_tokens),
            "decay_tokens": branch.tokens - branch.branch_point_tokens,
            "batch_ramp": [{"from_tokens": s.from_tokens, "sequences": s.sequences} for s in a.schedule.stages()],
            "peak_learning_rate": context.peak_learning_rate,
            "learning_rate_law": context.learning_rate_law,
        },
        optimizer={
            "name": "adamw",
            "beta1": a.optimizer.beta1,
            "beta2": a.optimizer.beta2,
            "epsilon": a.optimizer.epsilon,
            "weight_decay": a.optimizer.weight_decay,
            "weight_decay_on": "all" if a.optimizer.decay_all else "matrices",
            "gradient_clip_norm": a.optimizer.gradient_clip or None,
        },
        micro_batch_sequences=a.run.micro_batch_sequences,
        capacity_factor=a.model.capacity_factor,
        capacity_group_tokens=a.model.capacity_group_tokens,
        balance_loss_coefficient=a.model.balance_loss,
        z_loss_coefficient=a.model.z_loss,
        initialization=a.model.initialization,
        final_norm=a.model.final_norm,
        seed=a.run.seed,
        precision=a.run.precision,
        attention_precision=a.model.attention_precision,
        dataset=context.dataset,
        data_order=context.data_order,
        tokenizer=context.tokenizer,
        training_flops=flops,
        tokens_per_second=speed,
        mfu=utilisation_flops(arch) * speed / context.peak_flops if context.peak_flops else None,
        hardware=context.hardware,
        wall_time_seconds=progress.wall_seconds,
        versions={"python": sys.version.split()[0], **{name: version(name) for name in _LIBRARIES}},
        code_commit=code_commit(),
        weights_sha256=weights_sha256,
        # Beyond the schema, which keeps them: what a reader of the loss wants to know of its way.
        skipped_steps=len(progress.skipped_steps),
        loss_spikes=len(progress.spikes),
    )
    return _named_by_recipe(record, end)


def _named_by_recipe(record: RunRecord, end: str) -> RunRecord:
    """The record with what departs from the recipe in the ids of run and trunk: runs that differ in it are not one."""
    if not (suffix := recipe_suffix(record)):
        return record
    trunk = f"{record.parent_run_id}{suffix}"
    return record.replaced(
        run_id=shortened(f"{trunk}-{end}", MAX_ID_LENGTH), parent_run_id=shortened(trunk, MAX_ID_LENGTH)
    )


def _window_tokens(a: TrainingArguments, step: int, n_steps: int) -> int:
    ramp = a.batch_ramp()
    return ramp.tokens(step) - ramp.tokens(step - n_steps)


def code_commit() -> str | None:
    """The git commit of this code, with `-dirty` if it was changed; None outside a checkout."""
    here = Path(__file__).parents[1]

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        if not git("ls-files", "results.py"):
            return None  # installed into an environment that happens to lie in somebody else's checkout
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def save_model(config, tokenizer, state_dict: dict, folder: Path) -> dict[str, str]:
    """Write config, safetensors, remote code and tokenizer; returns the weight files' sha256. Main process only.

    Args:
        state_dict: the whole weights by the names of the bare model.
    """
    with torch.device("meta"):  # a shell for the configuration: however the trained model is wrapped does not matter
        shell = SwitchMoeForCausalLM(config)
    shell.save_pretrained(folder, state_dict=state_dict)
    tokenizer.save_pretrained(folder)
    if (config_file := folder / "tokenizer_config.json").exists():  # which says how this machine loaded it
        write_bytes(config_file, portable_tokenizer_config(config_file.read_bytes()))
    return weights_sha256(folder)


def describe_hardware(device, world_size: int) -> tuple[str, float | None]:
    """(name, peak FLOP/s of all devices or None)."""
    peak = hardware.peak_flops(device)
    return hardware.describe(device, world_size), peak * world_size if peak else None
