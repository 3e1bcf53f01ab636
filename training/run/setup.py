"""What a run is made of, built from its arguments: data, model and optimizer, and what its records share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from training.configuration.arguments import TrainingArguments
from training.configuration.schedule import Branch
from training.data.tokenizer import fingerprint, load_tokenizer
from training.data.training_data import TrainingData
from training.run import inputs, results
from training.run.evaluation import HeldOut
from training.run.loop import Session
from training.run.model import architecture, build_model, build_optimizer, model_config, peak_learning_rate

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunData:
    """What a run reads."""

    tokenizer: object
    training: TrainingData
    held_out: HeldOut

    def close(self) -> None:
        """End what still tokenises or reads ahead."""
        self.training.close()
        self.held_out.close()


def read_data(a: TrainingArguments, accelerator) -> RunData:
    """Tokenizer, training and held-out sequences. What is not tokenised yet is made beside the training.

    Raises:
        ConfigurationError: a split or column that is not there, or no text.
        TokenBuildError: the text cannot be tokenised for a reason outside the configuration.
    """
    with accelerator.local_main_process_first():
        tokenizer = load_tokenizer(a.data.tokenizer, a.data.tokenizer_revision)
    # The first process of each node begins; the others take over if it does not.
    patience = 0.0 if accelerator.is_local_main_process else 5.0
    held_out = inputs.held_out(a, tokenizer, patience)
    training = inputs.training_data(a, tokenizer, patience)
    training.watch(held_out.check)
    return RunData(tokenizer, training, held_out)


def run_context(a: TrainingArguments, accelerator, data: RunData) -> results.RunContext:
    """What every record of this run shares."""
    arch = architecture(a.model, len(data.tokenizer))
    peak, law = peak_learning_rate(a.optimizer, arch)
    hardware, peak_flops = results.describe_hardware(accelerator.device, accelerator.num_processes)
    return results.RunContext(
        arguments=a,
        architecture=arch,
        data=data.training,
        dataset=data.training.dataset,
        data_order=inputs.data_order(a),
        tokenizer={"id": _public_name(a.data.tokenizer), "fingerprint": fingerprint(data.tokenizer)},
        peak_learning_rate=peak,
        learning_rate_law=law,
        hardware=hardware,
        peak_flops=peak_flops,
    )


def make_session(
    a: TrainingArguments,
    accelerator,
    data: TrainingData,
    vocab_size: int,
    eos_token_id: int,
    peak_learning_rate: float,
    stop_requested: Callable[[], bool],
) -> Session:
    """Model and optimizer, prepared for this process, with all that the loop needs besides."""
    config = model_config(a, vocab_size, eos_token_id)
    model = build_model(config, a.run.seed)
    if a.run.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = build_optimizer(model, a.optimizer, accelerator.device)
    model, optimizer = accelerator.prepare(model, optimizer)
    if a.run.compile:
        model.compile()  # in place: names of parameters stay as they are
    return Session(
        accelerator=accelerator,
        model=model,
        optimizer=optimizer,
        data=data,
        schedule=a.schedule_at(peak_learning_rate),
        gradient_clip=a.optimizer.gradient_clip,
        balance_loss=a.model.balance_loss,
        z_loss=a.model.z_loss,
        max_skipped_steps=a.run.max_skipped_steps,
        train_loss_window=a.run.train_loss_window,
        stop_requested=stop_requested,
    )


def announce(context: results.RunContext, branches: list[Branch]) -> None:
    """Say what will be trained."""
    arch, longest = context.architecture, branches[-1]
    logger.info(
        "d_model %d, %d blocks, E = %d: %.3g active of %.3g parameters; %s tokens; peak learning rate %.3g (%s)",
        *(arch.d_model, arch.n_blocks, arch.experts, arch.n_active, arch.n_total),
        ", ".join(f"{branch.tokens:,}" for branch in branches),
        *(context.peak_learning_rate, context.learning_rate_law),
    )
    unique = context.data.unique_tokens  # None while it is not known whether more follows
    if unique is not None and (epochs := longest.tokens / unique) > 1:
        logger.warning("the data repeats: %.2f epochs of %s tokens", epochs, f"{unique:,}")


def _public_name(path_or_name: str) -> str:
    """The name of a Hub repository as it is, of a local folder only its last part: records hold no path."""
    return Path(path_or_name).name if Path(path_or_name).exists() else path_or_name
