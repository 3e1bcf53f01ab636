"""The results of a run: a model folder for `from_pretrained`, with its run record beside the weights."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from hub.base.atomic import weights_sha256, write_bytes
from hub.record.names import MAX_ID_LENGTH, recipe_suffix, shortened
from hub.record.run_record import OF_A_CLASS, RunRecord
from hub.store.files import portable_tokenizer_config
from scaling_law.size.architecture import Architecture
from scaling_law.size.recipe import BatchRamp
from training.configuration.arguments import ModelArguments, OptimizerArguments
from training.configuration.model_classes import ModelClassArguments, causal_class
from training.configuration.schedule import Branch
from training.data.tokenizer import description, fingerprint
from training.run import devices
from training.run.evaluation import HeldOut, HeldOutLoss
from training.run.inputs import data_order
from training.run.log import balance
from training.run.model import utilisation_flops
from training.run.optimizers import muon_rate
from training.run.progress import Progress
from training.run.step import Session

# Fields that a record has from the architecture and from the configuration under the same name.
_SIZE = ("d_model", "n_blocks", "n_heads", "experts", "vocab_size", "n_active", "n_total")
_RUN = {"sweep", "seed", "precision", "micro_batch_sequences", "gradient_checkpointing", "compile"}
_MODEL = ("capacity_factor", "capacity_group_tokens", "initialization", "final_norm", "attention_precision")
_LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "joint-moe-scaling-laws")


def run_record(
    session: Session,
    branch: Branch,
    progress: Progress,
    branch_name: str,
    status: str,
    measured: tuple[HeldOut, HeldOutLoss] | None,
    weights_sha256: dict[str, str] | None,
) -> RunRecord:
    """The record of a branch, or of an intermediate model, whose training loss is the mean over its last steps."""
    a, arch, ramp, accelerator = session.arguments, session.architecture, session.schedule.ramp, session.accelerator
    tokens = ramp.tokens(progress.step)
    speed = tokens / progress.wall_seconds
    unique = min(tokens, session.data.unique_tokens or tokens)  # None while the rest of the data is unknown
    held_out, held_out_loss = measured or (None, None)
    loss, n_losses, drop_rate, load = 0.0, 0, None, None
    if status == "intermediate":
        loss, n_losses = sum(progress.recent_losses), len(progress.recent_losses)
    elif status == "final":  # a dense model drops nothing and is balanced
        loss, n_losses, routed = progress.window_loss, progress.window_steps, progress.window_routed
        drop_rate = progress.window_dropped / sum(map(sum, routed)) if routed else 0.0
        load = balance(routed) if routed else 1.0
    # Branches share sweep, size, E and seed with their trunk; runs with one trunk are not independent.
    trunk, end = f"{a.run.sweep}-{a.model.name}-seed{a.run.seed}", branch_name.partition("-")[0]
    record = RunRecord(
        run_id=shortened(f"{trunk}-{end}", MAX_ID_LENGTH),
        parent_run_id=shortened(trunk, MAX_ID_LENGTH),
        branch_point_tokens=min(branch.branch_point_tokens, tokens) if status != "intermediate" else None,
        status=status,
        **{name: getattr(arch, name) for name in _SIZE},
        **_of_a_class(a.model, arch),
        sequence_length=a.data.sequence_length,
        tokens=tokens,
        unique_tokens=unique,
        epochs=tokens / unique,
        steps=progress.step,
        train_loss=loss / n_losses if n_losses else None,
        train_loss_window_tokens=tokens - ramp.tokens(progress.step - n_losses),
        eval_loss=held_out_loss and held_out_loss.loss,
        eval_loss_standard_error=held_out_loss and held_out_loss.standard_error,
        eval_tokens=held_out and held_out.documents.size,
        eval_documents=held_out and held_out.n_documents,
        eval_data=held_out and held_out.origin,
        drop_rate=drop_rate,
        expert_load_max_over_mean=load,
        schedule={
            "horizon_tokens": branch.tokens,
            "warmup_tokens": a.schedule.warmup_tokens,
            "decay_tokens": branch.tokens - branch.branch_point_tokens,
            "batch_ramp": [asdict(stage) for stage in ramp.stages],
            "peak_learning_rate": session.schedule.peak,
            "learning_rate_law": session.learning_rate_law,
        },
        optimizer={
            "name": a.optimizer.name,
            **a.optimizer.model_dump(include={"beta1", "beta2", "epsilon", "weight_decay"}),
            "weight_decay_on": "all" if a.optimizer.decay_all else "matrices",
            "gradient_clip_norm": a.optimizer.gradient_clip or None,
            **_of_muon(a.optimizer, session.schedule.peak),
        },
        **a.run.model_dump(include=_RUN),
        **{name: getattr(a.model, name, None) for name in _MODEL},
        balance_loss_coefficient=a.model.balance_loss,
        z_loss_coefficient=a.model.z_loss,
        balance_bias_rate=a.model.bias_rate or None,
        dataset=session.data.tokens.cache.dataset,
        data_order=data_order(a),
        tokenizer=tokenizer_identity(session),
        training_flops=float(arch.training_flops(tokens)),
        tokens_per_second=speed,
        mfu=utilisation_flops(arch) * speed / session.peak_flops if session.peak_flops else None,
        step_seconds=step_seconds(progress, ramp),
        peak_memory_bytes=devices.peak_memory(accelerator.device),
        hardware=devices.describe(accelerator.device, accelerator.num_processes),
        wall_time_seconds=progress.wall_seconds,
        versions={"python": sys.version.split()[0], **{name: version(name) for name in _LIBRARIES}},
        code_commit=code_commit(),
        weights_sha256=weights_sha256,
        # Beyond the schema, which keeps them.
        skipped_steps=len(progress.skipped_steps),
        loss_spikes=len(progress.spikes),
    )
    return _named_by_recipe(record, end)


def step_seconds(progress: Progress, ramp: BatchRamp) -> float | None:
    """The median of the last steps whose batches are as large as the last; None if none was timed."""
    last = ramp.sequences(max(0, progress.step - 1))
    latest = enumerate(reversed(progress.recent_seconds), start=1)
    same = itertools.takewhile(lambda back: ramp.sequences(progress.step - back[0]) == last, latest)
    times = [seconds for _, seconds in same]
    return median(times) if times else None


def _of_a_class(model: ModelArguments | ModelClassArguments, arch: Architecture) -> dict[str, Any]:
    """Extra fields of a record for another class than ours: its type, and the variables of laws."""
    if not isinstance(model, ModelClassArguments):
        return {}
    variables = arch.variables() | {name: getattr(arch, name) for name in ("experts_equivalent", "dense_blocks")}
    of_class = {"model_type": model.type, "n_kv_heads": arch.n_kv_heads}
    return of_class | {name: variables[name] for name in OF_A_CLASS - {"model_type"}}


def _of_muon(optimizer: OptimizerArguments, peak: float) -> dict[str, Any]:
    """Muon's settings, where it is used."""
    if optimizer.name != "muon":
        return {}
    settings = optimizer.model_dump(include={"muon_momentum", "muon_adjust_lr"})
    return {"muon_learning_rate": muon_rate(optimizer, peak), **settings}


def _named_by_recipe(record: RunRecord, end: str) -> RunRecord:
    """The record with departures from the recipe in the ids of run and trunk: such runs are different runs."""
    if not (suffix := recipe_suffix(record)):
        return record
    trunk = f"{record.parent_run_id}{suffix}"
    return record.replaced(
        run_id=shortened(f"{trunk}-{end}", MAX_ID_LENGTH), parent_run_id=shortened(trunk, MAX_ID_LENGTH)
    )


def tokenizer_identity(session: Session) -> dict[str, str]:
    """Id and fingerprint of the tokenizer; of a local folder only its last part, since records hold no path."""
    name = session.arguments.data.tokenizer
    public = Path(name).name if Path(name).exists() else name
    return {"id": public, "fingerprint": fingerprint(description(session.tokenizer))}


def code_commit() -> str | None:
    """The git commit of this code, with `-dirty` if it was changed; None outside a checkout."""
    here = Path(__file__)

    def git(*words: str) -> str:
        command = ["git", "-C", str(here.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", here.name):
            return None  # installed into an environment that happens to lie in another checkout
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def save_model(config, tokenizer, state_dict: dict, folder: Path) -> dict[str, str]:
    """Write config, whole weights (safetensors), tokenizer and, of our class, its code; returns the files' sha256."""
    with torch.device("meta"):  # only for the configuration: however the trained model is wrapped does not matter
        shell = causal_class(config)(config)
    shell.save_pretrained(folder, state_dict=state_dict)
    tokenizer.save_pretrained(folder)
    if (config_file := folder / "tokenizer_config.json").exists():  # which says how this machine loaded it
        write_bytes(config_file, portable_tokenizer_config(config_file.read_bytes()))
    return weights_sha256(folder)
