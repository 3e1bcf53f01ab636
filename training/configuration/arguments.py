"""The configuration of a run: one dataclass per section. The defaults are the paper's recipe, the preset `paper`.

The paper's names are used here (d_model, experts, …); `SwitchMoeConfig` has transformers' names. Values are read and
checked in `configuration`.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml

from hub.plain.units import parse_count
from hub.record.names import size_name
from scaling_law.size.batch_ramp import BatchRamp, RampStage
from scaling_law.size.recipe import PAPER
from training.configuration.schedule import Schedule

CAPACITY_GROUP_TOKENS = 16_384  # by default: 32 sequences of 512, as in the authors' runs of larger models


class ConfigurationError(ValueError):
    """The configuration cannot be used; the message lists every problem that was found."""


class Count(int):
    """A whole number that may be written as 2_000_000, 2e6, 2M or 0.5B."""

    def __new__(cls, value: int | float | str) -> Count:
        try:
            number = parse_count(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{value!r} is not a count; write 2000000, 2e6, 2M or 0.5B") from None
        if number != int(number):
            raise argparse.ArgumentTypeError(f"{value!r} is not a whole number")
        return super().__new__(cls, number)


@dataclass
class RunArguments:
    output_dir: str = field(default="", metadata={"help": "Folder of this run: trunk, branches, checkpoints, logs."})
    sweep: str = field(default="run", metadata={"help": "Name of the sweep that the run belongs to."})
    seed: int = field(default=0, metadata={"help": "Seed of the weights and of the data order."})
    precision: Literal["fp32", "bf16"] = field(default="bf16", metadata={"help": "Autocast; weights stay fp32."})
    micro_batch_sequences: int = field(
        default=32, metadata={"help": "Sequences in one forward pass of one device; decides speed and memory only."}
    )
    compile: bool = field(default=False, metadata={"help": "torch.compile the model."})
    gradient_checkpointing: bool = field(default=False, metadata={"help": "Recompute activations in the backward."})
    checkpoint_seconds: float = field(
        default=600.0, metadata={"help": "A checkpoint to resume from at least this often (wall seconds)."}
    )
    async_checkpoints: bool = field(
        default=True, metadata={"help": "Write checkpoints in a thread, from a copy in the host's memory."}
    )
    log_steps: int = field(default=10, metadata={"help": "A line in log.jsonl every this many steps."})
    train_loss_window: float = field(
        default=0.05, metadata={"help": "The final training loss is the mean over this last share of the tokens."}
    )
    eval_sequences: Count = field(
        default=Count(16384),
        metadata={"help": "Held-out sequences of an evaluation; the record has its standard error."},
    )
    eval_tokens: list[Count] = field(
        default_factory=list,
        metadata={"help": "Evaluate when this many tokens are trained, too (trunk and branches), into the log."},
    )
    release_tokens: list[Count] = field(
        default_factory=list,
        metadata={"help": "Leave an intermediate model with its record when the trunk has trained this many tokens."},
    )
    max_skipped_steps: int = field(
        default=10, metadata={"help": "Stop as diverged after this many non-finite steps in a row."}
    )
    trackers: list[str] = field(
        default_factory=list, metadata={"help": "tensorboard, trackio, wandb or another of Accelerate's trackers."}
    )
    progress: bool = field(default=True, metadata={"help": "Show a progress bar."})
    profile_steps: list[int] = field(
        default_factory=list,
        metadata={"help": "`FIRST LAST`: a profiler's trace of the steps from FIRST up to before LAST."},
    )
    dry_run: bool = field(
        default=False, metadata={"help": "Print the plan and the cost of the run, make one step, leave nothing."}
    )
    push_to_hub: str | None = field(
        default=None, metadata={"help": "Push branches as they finish: hf://ORGANISATION, or a folder."}
    )
    private: bool = field(default=False, metadata={"help": "Repositories that pushing makes are private."})
    license: str | None = field(
        default=None, metadata={"help": "Licence of the models, such as apache-2.0; default: the cards name none."}
    )


@dataclass
class ModelArguments:
    d_model: int = field(default=512, metadata={"help": "Width of the residual stream."})
    experts: int = field(default=1, metadata={"help": "Experts per block; 1 is a dense model."})
    n_blocks: int | None = field(default=None, metadata={"help": "Blocks; default d_model / 64."})
    n_heads: int | None = field(default=None, metadata={"help": "Attention heads; default d_model / 64."})
    capacity_factor: float = field(
        default=1.0, metadata={"help": "Expert capacity in training, times tokens / experts; 0 trains dropless."}
    )
    capacity_group_tokens: Count | None = field(
        default=None,
        metadata={
            "help": "Tokens that compete for an expert's places, and that the balance loss is counted over; default: "
            f"{CAPACITY_GROUP_TOKENS}, or the micro-batch of the first start where that is smaller."
        },
    )
    balance_loss: float = field(default=0.01, metadata={"help": "Coefficient of the load-balancing loss."})
    z_loss: float = field(default=0.001, metadata={"help": "Coefficient of the router z-loss."})
    attention_precision: Literal["float32", "compute"] = field(
        default="float32", metadata={"help": "Precision of attention under autocast; compute: the autocast's own."}
    )
    final_norm: bool = field(
        default=False, metadata={"help": "Normalise before the head, which the paper's runs do not."}
    )
    initialization: Literal["paper", "normal"] = field(
        default="paper", metadata={"help": "Initial weights: the paper's truncated normal, or normal with std 0.02."}
    )

    @property
    def name(self) -> str:
        """The size as names of runs and repositories have it; see `hub.record.names.size_name`."""
        by_rule = self.d_model // 64
        return size_name(self.d_model, self.experts, self.n_blocks or by_rule, self.n_heads or by_rule)


@dataclass
class DataArguments:
    dataset: str = field(
        default="HuggingFaceFW/fineweb-edu", metadata={"help": "Dataset on the Hub, or a local folder or file."}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Its configuration, such as sample-10BT."})
    revision: str | None = field(
        default=None,
        metadata={"help": "Commit, branch or tag of the dataset; default: the newest commit at the first start."},
    )
    split: str = field(default="train", metadata={"help": "The split to train on."})
    validation_split: str | None = field(
        default=None,
        metadata={"help": "The held-out split; default: documents of `split` chosen by the hash of their id."},
    )
    held_out_per_mille: int = field(
        default=10, metadata={"help": "Documents of `split` held out, in thousandths, without a validation_split."}
    )
    text_column: str = field(default="text", metadata={"help": "The column with the text."})
    tokenizer: str = field(default="openai-community/gpt2", metadata={"help": "Fast tokenizer: Hub name or folder."})
    tokenizer_revision: str | None = field(
        default=None, metadata={"help": "Commit, branch or tag of the tokenizer; default as for the dataset."}
    )
    sequence_length: int = field(default=512, metadata={"help": "Tokens of a training sequence."})
    train_tokens: Count | None = field(
        default=None,
        metadata={"help": "Use only the first so many tokens of the dataset, and repeat them; default: all."},
    )
    shuffle_window: Count = field(
        default=Count(1 << 16),
        metadata={"help": "Sequences that are shuffled together; training starts when the first window is tokenised."},
    )
    order: Literal["shuffled", "stored"] = field(
        default="shuffled",
        metadata={"help": "shuffled: text is drawn across all files; stored: files are read one after the other."},
    )
    order_seed: int = field(
        default=0, metadata={"help": "Seed of the order shuffled; held-out text has the same order for every seed."}
    )
    cache_dir: str = field(default="token-cache", metadata={"help": "Folder of the token caches."})


@dataclass
class ScheduleArguments:
    tokens: list[Count] = field(
        default_factory=lambda: [Count("2B")],
        metadata={"help": "Training tokens. Several make branches of one trunk, each with a decay of its own."},
    )
    warmup_tokens: Count = field(default=Count("130M"), metadata={"help": "Tokens of linear warm-up."})
    decay_fraction: float = field(default=0.2, metadata={"help": "Share of a run's tokens that decays to 0."})
    batch_ramp: list[str] = field(
        default_factory=lambda: [f"{stage.from_tokens}:{stage.sequences}" for stage in PAPER.batch_ramp],
        metadata={"help": "Stages `from_tokens:sequences` of the global batch."},
    )

    def stages(self) -> list[RampStage]:
        """The parsed batch ramp."""
        stages = []
        for stage in self.batch_ramp:
            start, colon, sequences = stage.partition(":")
            if not colon:
                raise ValueError(f"{stage!r} is not a stage; write from_tokens:sequences, such as 0.5B:256")
            stages.append(RampStage(int(Count(start)), int(Count(sequences))))
        return stages


@dataclass
class OptimizerArguments:
    learning_rate: float | None = field(default=None, metadata={"help": "Peak learning rate; default: by the law."})
    learning_rate_law: str = field(
        default="code",
        metadata={
            "help": "The law of the peak learning rate: a reading of the paper's (code, paper), or a JSON file."
        },
    )
    learning_rate_scale: float = field(
        default=1.0, metadata={"help": "Multiplies the law's rate, say for other batch sizes than the paper's."}
    )
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = field(default=0.1, metadata={"help": "AdamW's decay."})
    decay_all: bool = field(
        default=True,
        metadata={"help": "Decay every parameter, as the paper's runs do; else only matrices, no router."},
    )
    gradient_clip: float = field(default=0.1, metadata={"help": "Global L2 norm of the gradient; 0 does not clip."})


@dataclass(frozen=True)
class TrainingArguments:
    """Everything that decides a run."""

    run: RunArguments
    model: ModelArguments
    data: DataArguments
    schedule: ScheduleArguments
    optimizer: OptimizerArguments

    def batch_ramp(self) -> BatchRamp:
        return BatchRamp(self.schedule.stages(), self.data.sequence_length)

    def schedule_at(self, peak: float) -> Schedule:
        """The schedule of this run for a peak learning rate."""
        return Schedule(self.batch_ramp(), self.schedule.warmup_tokens, self.schedule.decay_fraction, peak)

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens in one forward pass of one device."""
        return self.run.micro_batch_sequences * self.data.sequence_length

    def with_capacity_group(self, tokens: int | None = None) -> TrainingArguments:
        """With `model.capacity_group_tokens` filled in where it was not given: by `tokens`, or as at a first start."""
        if self.model.capacity_group_tokens is not None:
            return self
        group = Count(tokens or min(CAPACITY_GROUP_TOKENS, self.micro_batch_tokens))
        return dataclasses.replace(self, model=dataclasses.replace(self.model, capacity_group_tokens=group))

    def holds_whole_groups(self, micro_batch_sequences: int | None = None) -> bool:
        """Whether a micro-batch (by default the run's) holds whole capacity groups, or needs none.

        Nothing is counted over groups without experts, and where neither tokens are dropped nor load is balanced.
        """
        m, size = self.model, micro_batch_sequences or self.run.micro_batch_sequences
        counted = m.experts > 1 and (m.capacity_factor > 0 or m.balance_loss > 0)
        group = m.capacity_group_tokens
        return not counted or group is None or size * self.data.sequence_length % group == 0

    def check_capacity_group(self) -> None:
        """Raises ConfigurationError where a micro-batch does not hold whole capacity groups; says what would."""
        if self.holds_whole_groups():
            return
        group, length = self.model.capacity_group_tokens, self.data.sequence_length
        raise ConfigurationError(
            f"model.capacity_group_tokens: {group}; a micro-batch ({self.run.micro_batch_sequences} sequences of "
            f"{length} tokens) must hold whole groups: make the group smaller ({self.micro_batch_tokens} or a divisor "
            f"of it), make run.micro_batch_sequences a multiple of {group // math.gcd(group, length)}, or train "
            "dropless and without balance loss (model.capacity_factor 0, model.balance_loss 0)"
        )

    def check_processes(self, processes: int, micro_batch_sequences: int | None = None) -> None:
        """Raises ConfigurationError where so many processes cannot share the micro-batches of every batch equally."""
        size = micro_batch_sequences or self.run.micro_batch_sequences
        for stage in self.schedule.stages():
            if stage.sequences // size % processes:
                raise ConfigurationError(
                    f"run.micro_batch_sequences: {size} cuts the batch of {stage.sequences} "
                    f"sequences into a number of micro-batches that {processes} processes cannot share equally"
                )

    def to_dict(self) -> dict:
        """Plain values, as YAML and JSON take them."""
        return to_plain(self)

    def flat(self) -> dict:
        """`section.field` to value, of the kinds that a tracker takes."""
        return {
            f"{section}.{name}": value if isinstance(value, (int, float, str, bool)) else str(value)
            for section, fields in self.to_dict().items()
            for name, value in fields.items()
        }

    def save(self, path: Path) -> None:
        from hub.plain.atomic import write_bytes

        write_bytes(path, yaml.safe_dump(self.to_dict(), sort_keys=False).encode())


def to_plain(value):
    """A section, or anything in it, as YAML and JSON take it."""
    if dataclasses.is_dataclass(value):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    return int(value) if isinstance(value, Count) else value


SECTIONS = {
    "run": RunArguments,
    "model": ModelArguments,
    "data": DataArguments,
    "schedule": ScheduleArguments,
    "optimizer": OptimizerArguments,
}
