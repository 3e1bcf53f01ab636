"""The results of a run: a model folder for `from_pretrained`, with its run record beside the weights."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from hub.base.atomic import share_weights, weights_sha256, write_bytes
from hub.base.types import Fields
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

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Characters of what departs from the recipe in the name of a run, and of a hash with its hyphen.
MAX_SUFFIX_LENGTH = 24
HASH_LENGTH = 9
# Fields that a record has from the architecture and from the configuration under the same name.
_SIZE = ("d_model", "n_blocks", "n_heads", "experts", "vocab_size", "n_active", "n_total")
_RUN = {
    *("sweep", "seed", "precision", "micro_batch_sequences", "gradient_checkpointing"),
    *("expert_parallel", "tensor_parallel"),
}
_MODEL = ("capacity_factor", "capacity_group_tokens", "initialization", "final_norm", "attention_precision")
_LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "joint-moe-scaling-laws")
# Kernels that classes of transformers use where they are installed, and libraries that compile and shuffle.
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
    held_out: tuple[HeldOut, HeldOutLoss] | None,
    weights_sha256: dict[str, str] | None,
) -> RunRecord:
    """Make the record of a branch, or of an intermediate model.

    The training loss of an intermediate model is the mean over its last steps.
    """
    a = session.arguments
    arch = session.architecture
    ramp = session.schedule.ramp
    tokens = ramp.tokens(progress.step)
    # They are None while the rest of the data is unknown.
    unique = min(tokens, session.data.unique_tokens or tokens)
    # The sum of training losses whose mean is stated, over so many steps; none of a diverged run.
    total_loss = 0.0
    loss_steps = 0
    if status == "intermediate":
        total_loss = sum(progress.recent_losses)
        loss_steps = len(progress.recent_losses)
    elif status == "final":
        total_loss = progress.window_loss
        loss_steps = progress.window_steps

    fields = configured_fields(a, arch, session.schedule.peak, session.learning_rate_law)
    decay_tokens = branch.tokens - branch.branch_point_tokens
    fields["schedule"].update(horizon_tokens=branch.tokens, decay_tokens=decay_tokens)
    record = RunRecord(
        **fields,
        compile=session.runner.is_compiled,
        **_identity(f"{a.run.sweep}-{a.model.name}-seed{a.run.seed}", branch_name),
        branch_point_tokens=min(branch.branch_point_tokens, tokens) if status != "intermediate" else None,
        status=status,
        tokens=tokens,
        unique_tokens=unique,
        epochs=tokens / unique,
        steps=progress.step,
        train_loss=total_loss / loss_steps if loss_steps else None,
        train_loss_window_tokens=tokens - ramp.tokens(progress.step - loss_steps),
        **_evaluation(held_out),
        **_routing_at_end(progress, status, arch),
        dataset=session.data.tokens.cache.dataset,
        data_order=data_order(a),
        tokenizer=tokenizer_identity(session),
        **_cost(session, progress, tokens),
        versions=installed_versions(),
        environment=environment_of_starts(progress) or None,
        code_commit=code_commit(),
        weights_sha256=weights_sha256,
        # Beyond the schema, which keeps them.
        skipped_steps=len(progress.skipped_steps),
        loss_spikes=len(progress.spikes),
    )
    # Runs that depart from the recipe are different runs. A hash replaces a long list of departures, which the record
    # and its branch have in full.
    suffix = recipe_suffix(record)
    if len(suffix) > MAX_SUFFIX_LENGTH:
        suffix = shorten(suffix, HASH_LENGTH)
    return record.replaced(**_identity(f"{record.parent_run_id}{suffix}", branch_name)) if suffix else record


def _identity(trunk: str, branch_name: str) -> dict[str, str]:
    """Name a run after its trunk and its end.

    Branches share sweep, size, E and seed with their trunk; runs with one trunk are not independent.
    """
    end = branch_name.partition("-")[0]
    return {"run_id": shorten(f"{trunk}-{end}", MAX_ID_LENGTH), "parent_run_id": shorten(trunk, MAX_ID_LENGTH)}


def _evaluation(held_out: tuple[HeldOut, HeldOutLoss] | None) -> Fields:
    """Return the fields of the held-out loss, null without one."""
    sequences, loss = held_out or (None, None)
    return {
        "eval_loss": loss and loss.loss,
        "eval_loss_standard_error": loss and loss.standard_error,
        "eval_tokens": sequences and sequences.documents.size,
        "eval_documents": sequences and sequences.n_documents,
        "eval_data": sequences and sequences.origin,
    }


def _cost(session: Session, progress: Progress, tokens: int) -> Fields:
    """Return the fields of FLOPs, time, memory and hardware."""
    accelerator = session.accelerator
    flops = session.flops
    speed = tokens / progress.wall_seconds
    return {
        "training_flops": flops.recorded * tokens,
        "flops_count": flops.count,
        "tokens_per_second": speed,
        "mfu": session.mfu(speed),
        "step_seconds": step_seconds(progress, session.schedule.ramp),
        "peak_memory_bytes": devices.peak_memory(accelerator.device),
        "hardware": devices.describe(accelerator.device, accelerator.num_processes),
        "wall_time_seconds": progress.wall_seconds,
    }


def _routing_at_end(progress: Progress, status: str, arch: Architecture) -> dict[str, float | None]:
    """Return drop rate and balance of the experts at the end of a finished run."""
    drop_rate: float | None = None
    load: float | None = None
    routed = progress.window_routed
    if status == "final" and routed:
        drop_rate = progress.window_dropped / sum(map(sum, routed))
        load = balance(routed)
    elif status == "final":
        drop_rate = 0.0
        # A dense model is balanced; some classes with experts record no routers.
        load = 1.0 if arch.experts == 1 else None
    return {"drop_rate": drop_rate, "expert_load_max_over_mean": load}


def configured_fields(a: TrainingArguments, arch: Architecture, peak: float, law: str) -> Fields:
    """Return the fields of a record that follow from the configuration.

    The schedule lacks its fields that depend on the tokens.
    """
    o = a.optimizer
    fields: Fields = {
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
        fields["optimizer"]["muon_learning_rate"] = muon_rate(o, peak)
        fields["optimizer"].update(o.model_dump(include={"muon_momentum", "muon_adjust_lr"}))
    if isinstance(a.model, ModelClassArguments):
        variables = {
            **arch.variables(),
            "experts_equivalent": arch.experts_equivalent,
            "dense_blocks": arch.dense_blocks,
            "model_type": a.model.type,
        }
        fields.update({name: variables[name] for name in OF_A_CLASS}, n_kv_heads=arch.n_kv_heads)
    return fields


def step_seconds(progress: Progress, ramp: BatchRamp) -> float | None:
    """Return the median of the last steps whose batches are as large as the last; None if none was timed."""
    steps = range(progress.step - len(progress.recent_seconds), progress.step)
    steps_and_seconds = zip(steps, progress.recent_seconds, strict=True)
    times = [seconds for step, seconds in steps_and_seconds if ramp.sequences(step) == ramp.sequences(steps[-1])]
    return median(times) if times else None


def tokenizer_identity(session: Session) -> dict[str, str]:
    """Return id and fingerprint of the tokenizer; of a local folder only its name, since records hold no path."""
    name = session.arguments.data.tokenizer
    public = Path(name).name if Path(name).exists() else name
    return {"id": public, "fingerprint": fingerprint(description(session.tokenizer))}


def environment_of_starts(progress: Progress) -> dict[str, str]:
    """Return the settings of the environment of all starts, the values of several starts after one another."""
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
    """Return the git commit of this code, with `-dirty` if it was changed; None outside a checkout."""
    file = Path(__file__)
    describe = ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        # Fails where this is installed into an environment that happens to lie in another checkout.
        subprocess.run(["git", "ls-files", "--error-unmatch", file], cwd=file.parent, capture_output=True, check=True)
        return subprocess.check_output(["git", *describe], cwd=file.parent, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def save_model(
    config: Any, tokenizer: PreTrainedTokenizerFast, state_dict: dict[str, torch.Tensor], folder: Path
) -> dict[str, str]:
    """Write config, whole weights (safetensors), tokenizer and, of our class, its code; returns the files' sha256."""
    # It is there only for the configuration: however the trained model is wrapped does not matter.
    with torch.device("meta"):
        shell = causal_class(config)(config)
    shell.save_pretrained(folder, state_dict=state_dict)
    share_weights(folder)
    tokenizer.save_pretrained(folder)
    # The file says how this machine loaded the tokenizer.
    config_file = folder / "tokenizer_config.json"
    if config_file.exists():
        write_bytes(config_file, portable_tokenizer_config(config_file.read_bytes()))
    return weights_sha256(folder)
