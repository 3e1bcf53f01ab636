"""The results of a run: a model folder for `from_pretrained`, with its run record beside the weights."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from hub.base.atomic import weights_sha256, write_bytes
from hub.record.names import MAX_ID_LENGTH, recipe_suffix, shorten
from hub.record.run_record import OF_A_CLASS, RunRecord
from hub.store.files import portable_tokenizer_config
from scaling_law.size.architecture import Architecture
from scaling_law.size.recipe import BatchRamp
from training.configuration.arguments import TrainingArguments
from training.configuration.model_classes import ModelClassArguments, causal_class
from training.configuration.schedule import Branch
from training.data.tokenizer import description, fingerprint
from training.run import devices
from training.run.environment import MAX_CHARACTERS, MAX_RECORDED
from training.run.evaluation import HeldOut, HeldOutLoss
from training.run.inputs import data_order
from training.run.log import balance
from training.run.optimizers import muon_rate
from training.run.progress import Progress
from training.run.step import Session

# Fields that a record has from the architecture and from the configuration under the same name.
_SIZE = ("d_model", "n_blocks", "n_heads", "experts", "vocab_size", "n_active", "n_total")
_RUN = {
    *("sweep", "seed", "precision", "micro_batch_sequences", "gradient_checkpointing"),
    *("expert_parallel", "tensor_parallel"),
}
_MODEL = ("capacity_factor", "capacity_group_tokens", "initialization", "final_norm", "attention_precision")
_LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "joint-moe-scaling-laws")
# Kernels that classes of transformers use where they are installed, and what compiles and shuffles.
_OPTIONAL_LIBRARIES = (
    *("numpy", "triton", "kernels", "flash-attn", "flash-linear-attention", "fla-core", "causal-conv1d", "mamba-ssm"),
    *("torchao", "liger-kernel", "xformers"),
)


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
        load = balance(routed) if routed else 1.0 if arch.experts == 1 else None  # some classes record no routers

    def ids(trunk: str) -> dict[str, str]:
        """Branches share sweep, size, E and seed with their trunk; runs with one trunk are not independent."""
        end = branch_name.partition("-")[0]
        return {"run_id": shorten(f"{trunk}-{end}", MAX_ID_LENGTH), "parent_run_id": shorten(trunk, MAX_ID_LENGTH)}

    fields = configured_fields(a, arch, session.schedule.peak, session.learning_rate_law)
    fields["schedule"] |= {"horizon_tokens": branch.tokens, "decay_tokens": branch.tokens - branch.branch_point_tokens}
    record = RunRecord(
        **fields,
        compile=session.runner.is_compiled,
        **ids(f"{a.run.sweep}-{a.model.name}-seed{a.run.seed}"),
        branch_point_tokens=min(branch.branch_point_tokens, tokens) if status != "intermediate" else None,
        status=status,
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
        dataset=session.data.tokens.cache.dataset,
        data_order=data_order(a),
        tokenizer=tokenizer_identity(session),
        training_flops=session.flops.recorded * tokens,
        flops_count=session.flops.count,
        tokens_per_second=speed,
        mfu=session.flops.multiplied * speed / session.peak_flops if session.peak_flops else None,
        step_seconds=step_seconds(progress, ramp),
        peak_memory_bytes=devices.peak_memory(accelerator.device),
        hardware=devices.describe(accelerator.device, accelerator.num_processes),
        wall_time_seconds=progress.wall_seconds,
        versions=installed_versions(),
        environment=environment_of_starts(progress) or None,
        code_commit=code_commit(),
        weights_sha256=weights_sha256,
        # Beyond the schema, which keeps them.
        skipped_steps=len(progress.skipped_steps),
        loss_spikes=len(progress.spikes),
    )
    suffix = recipe_suffix(record)  # runs that depart from the recipe are different runs
    return record.replaced(**ids(f"{record.parent_run_id}{suffix}")) if suffix else record


def configured_fields(a: TrainingArguments, arch: Architecture, peak: float, law: str) -> dict[str, Any]:
    """Fields of a record that follow from the configuration; the schedule lacks what depends on the tokens."""
    o = a.optimizer
    fields = {
        **{name: getattr(arch, name) for name in _SIZE},
        "sequence_length": a.data.sequence_length,
        "schedule": {
            "warmup_tokens": a.schedule.warmup_tokens,
            "batch_ramp": [asdict(stage) for stage in a.schedule.stages()],
            "peak_learning_rate": peak,
            "learning_rate_law": law,
        },
        "optimizer": {
            **o.model_dump(include={"name", "beta1", "beta2", "epsilon", "weight_decay"}),
            "weight_decay_on": "all" if o.decay_all else "matrices",
            "gradient_clip_norm": o.gradient_clip or None,
        },
        **a.run.model_dump(include=_RUN),
        **{name: getattr(a.model, name, None) for name in _MODEL},
        "balance_loss_coefficient": a.model.balance_loss,
        "z_loss_coefficient": a.model.z_loss,
        "balance_bias_rate": a.model.bias_rate or None,
    }
    if o.name == "muon":
        settings = o.model_dump(include={"muon_momentum", "muon_adjust_lr"})
        fields["optimizer"] |= {"muon_learning_rate": muon_rate(o, peak), **settings}
    if isinstance(a.model, ModelClassArguments):  # its type, and the variables of laws
        variables = arch.variables() | {name: getattr(arch, name) for name in ("experts_equivalent", "dense_blocks")}
        fields |= {name: variables[name] for name in OF_A_CLASS - {"model_type"}}
        fields |= {"model_type": a.model.type, "n_kv_heads": arch.n_kv_heads}
    return fields


def step_seconds(progress: Progress, ramp: BatchRamp) -> float | None:
    """The median of the last steps whose batches are as large as the last; None if none was timed."""
    steps = range(progress.step - len(progress.recent_seconds), progress.step)
    timed = zip(steps, progress.recent_seconds, strict=True)
    times = [seconds for step, seconds in timed if ramp.sequences(step) == ramp.sequences(steps[-1])]
    return median(times) if times else None


def tokenizer_identity(session: Session) -> dict[str, str]:
    """Id and fingerprint of the tokenizer; of a local folder only its last part, since records hold no path."""
    name = session.arguments.data.tokenizer
    public = Path(name).name if Path(name).exists() else name
    return {"id": public, "fingerprint": fingerprint(description(session.tokenizer))}


def environment_of_starts(progress: Progress) -> dict[str, str]:
    """Return what the environment of any start set, the values of several starts after one another."""
    names = sorted(progress.environment)[:MAX_RECORDED]
    return {name: ", ".join(progress.environment[name])[:MAX_CHARACTERS] for name in names}


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that a model depends on, by name."""
    versions = {"python": sys.version.split()[0]}
    for name in _LIBRARIES:
        versions[name] = version(name)
    for name in _OPTIONAL_LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def code_commit() -> str | None:
    """The git commit of this code, with `-dirty` if it was changed; None outside a checkout."""
    here = Path(__file__)
    describe = ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        # Fails where this is installed into an environment that happens to lie in another checkout.
        subprocess.run(["git", "ls-files", "--error-unmatch", here], cwd=here.parent, capture_output=True, check=True)
        return subprocess.check_output(["git", *describe], cwd=here.parent, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def save_model(config, tokenizer, state_dict: dict, folder: Path) -> dict[str, str]:
    """Write config, whole weights (safetensors), tokenizer and, of our class, its code; returns the files' sha256."""
    with torch.device("meta"):  # only for the configuration: however the trained model is wrapped does not matter
        shell = causal_class(config)(config)
    shell.save_pretrained(folder, state_dict=state_dict)
    tokenizer.save_pretrained(folder)
    # The file says how this machine loaded the tokenizer.
    if (config_file := folder / "tokenizer_config.json").exists():
        write_bytes(config_file, portable_tokenizer_config(config_file.read_bytes()))
    return weights_sha256(folder)
