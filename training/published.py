"""The authors' released checkpoints as folders for `from_pretrained`, with the run record of what is known of them.

`python -m hub pull-published D E HEADS STEPS` fetches a file (`hub.release.published`) and calls `convert`, which is
registered as an entry point. The recipe in the record is that of the authors' public training code; what it does not
say (seed, losses, hardware, the revision of the data) is null.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from hub.plain import atomic
from hub.plain.atomic import weights_sha256
from hub.plain.errors import FilesError
from hub.record.names import formatted_tokens
from hub.record.run_record import RunRecord
from hub.release.cards import model_card
from hub.release.published import PublishedFile
from modeling_switch_moe import SwitchMoeConfig
from modeling_switch_moe.convert import ConversionError
from modeling_switch_moe.convert import convert as read_checkpoint
from scaling_law.size.architecture import Architecture
from scaling_law.size.recipe import PAPER, BatchRamp
from training.configuration.arguments import OptimizerArguments
from training.run.step import peak_learning_rate

SWEEP = "joint-moe-scaling-laws"
_RAMP = BatchRamp(PAPER.batch_ramp, PAPER.sequence_length)


def convert(file: PublishedFile, destination: Path) -> Path:
    """Write config, code, weights (fp32), run.json and README.md into a new or empty folder, which appears whole.

    Raises:
        FilesError: the file is no checkpoint of the runs, or is not the one that its path says; or the destination is
            not empty.
    """
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise FilesError(f"{destination} exists and is not an empty folder; nothing was written")
    run = file.run
    try:
        model = read_checkpoint(file.path)
    except (ConversionError, OSError) as error:
        raise FilesError(f"{run.path}: {error}") from None
    config = model.config
    found = (config.hidden_size, config.num_experts, config.num_attention_heads)
    if found != (run.d_model, run.experts, run.n_heads):
        raise FilesError(f"{run.path} holds a model of width, experts and heads {found}")
    destination.parent.mkdir(parents=True, exist_ok=True)
    with atomic.atomic_folder(destination) as folder:
        model.save_pretrained(folder)
        weights = weights_sha256(folder)
        record = run_record(file, config.num_hidden_layers, config.vocab_size, weights)
        record.save(folder)
        (folder / "README.md").write_text(_card(record, file), encoding="utf-8")
    return destination


def run_record(file: PublishedFile, n_blocks: int, vocab_size: int, weights: dict[str, str]) -> RunRecord:
    """What is known of one of the authors' runs. Steps that end no run of theirs make an intermediate checkpoint."""
    run = file.run
    arch = Architecture(run.d_model, run.experts, n_blocks, run.n_heads, vocab_size)
    tokens = run.tokens or _RAMP.tokens(run.steps)
    config = SwitchMoeConfig()  # the defaults are the authors' recipe, as those of the optimizer
    peak, law = peak_learning_rate(OptimizerArguments(), arch)
    return RunRecord(
        run_id=f"published-d{run.d_model}-E{run.experts}-h{run.n_heads}-tokens{formatted_tokens(tokens)}",
        sweep=SWEEP,
        status="final" if run.tokens else "intermediate",
        d_model=run.d_model,
        n_blocks=n_blocks,
        n_heads=run.n_heads,
        experts=run.experts,
        vocab_size=vocab_size,
        sequence_length=PAPER.sequence_length,
        n_active=arch.n_active,
        n_total=arch.n_total,
        tokens=tokens,
        steps=run.steps,
        train_loss=None,
        train_loss_window_tokens=0,
        schedule={
            "horizon_tokens": tokens,
            "warmup_tokens": _RAMP.tokens(_RAMP.steps(PAPER.warmup_tokens)),
            "decay_tokens": round(tokens * PAPER.decay_fraction) if run.tokens else 0,
            "batch_ramp": [asdict(stage) for stage in PAPER.batch_ramp],
            "peak_learning_rate": peak,
            "learning_rate_law": law,
        },
        optimizer={
            "name": "adamw",
            **{name: getattr(PAPER, name) for name in ("beta1", "beta2", "epsilon", "weight_decay")},
            "weight_decay_on": "all",
            "gradient_clip_norm": PAPER.gradient_clip,
        },
        # A capacity group was one micro-batch on one device, of a size that differed between the runs.
        capacity_factor=config.capacity_factor,
        balance_loss_coefficient=config.router_aux_loss_coef,
        z_loss_coefficient=config.router_z_loss_coef,
        initialization=config.initialization,
        final_norm=config.final_norm,
        seed=None,
        precision="bf16",
        attention_precision="compute",
        dataset={"id": PAPER.dataset, "fingerprint": None},
        tokenizer={"id": PAPER.tokenizer, "fingerprint": None},
        training_flops=float(arch.training_flops(tokens)),
        tokens_per_second=None,
        hardware=None,
        wall_time_seconds=None,
        versions={},
        weights_sha256=weights,
        published_as={"repository": file.repository, "commit": file.commit, "path": run.path},
    )


def _card(record: RunRecord, file: PublishedFile) -> str:
    origin = (
        f"Converted from `{file.run.path}` of "
        f"[{file.repository}](https://huggingface.co/{file.repository}/tree/{file.commit}) at commit "
        f"`{file.commit}`, the checkpoints that the authors of the paper released; see there for their licence and "
        "how to cite them. The weights are theirs, in the layout of `modeling_switch_moe`. The recipe above is that "
        "of their public training code; what it does not say is left open."
    )
    return model_card(record, sections={"Where it comes from": origin}, license="other")
