"""The configuration of a run: one pydantic model per section. The defaults are the paper's recipe."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    SerializeAsAny,
    ValidationInfo,
    WrapValidator,
    field_validator,
    model_validator,
)

from hub.base.atomic import write_bytes
from hub.base.errors import InputError
from hub.base.paths import is_utf8
from hub.base.strict_yaml import as_typed
from hub.base.types import Fields
from hub.base.units import parse_count
from hub.record.names import size_name
from hub.record.run_record import NAME_PATTERN
from hub.release.cards import LICENSES
from scaling_law.rates.law import READINGS, LearningRateLaw
from scaling_law.size.recipe import PAPER, BatchRamp, RampStage, parse_stages
from training.configuration.errors import ConfigurationError
from training.configuration.model_classes import OURS, ModelClassArguments
from training.configuration.schedule import Branch, Schedule

# Default: 32 sequences of 512, as in the authors' runs of larger models.
CAPACITY_GROUP_TOKENS = 16_384


def _must(rule: str, follows_rule: Callable[[Any], object]) -> AfterValidator:
    """Make a constraint that pydantic does not have."""

    def check(value: Any) -> Any:
        if not follows_rule(value):
            raise InputError(f"it must {rule}")
        return value

    return AfterValidator(check)


def _parse_whole(value: int | float | str) -> int:
    with suppress(ValueError, TypeError):
        count = parse_count(value)
        if count.is_integer():
            return int(count)
    raise InputError("it must be a whole number of at least 0, such as 2000000, 2e6, 2M or 0.5B")


# The largest integer of torch and numpy.
LARGEST = 2**63 - 1
PositiveInt = Annotated[int, Field(gt=0, le=LARGEST)]
# May be written as 2_000_000, 2e6, 2M or 0.5B.
Count = Annotated[int, BeforeValidator(_parse_whole), Field(le=LARGEST)]
PositiveCount = Annotated[Count, Field(gt=0)]
Seed = Annotated[int, _must("lie between 0 and 4,294,967,295", lambda seed: 0 <= seed < 2**32)]
Share = Annotated[float, _must("lie between 0 and 1", lambda share: 0 < share < 1)]
_is_range = _must(
    "be two steps, the second after the first",
    lambda steps: not steps or (len(steps) == 2 and 0 <= steps[0] < steps[1]),
)
# Without it the model would be lost at the end.
_is_utf8 = _must("be UTF-8; rename it", is_utf8)
# A file or folder, or a name on the Hub.
LocalPath = Annotated[str, AfterValidator(os.path.expanduser), _is_utf8]
_names_a_repository = _must("be letters, digits, '.', '_' and '-'", re.compile(NAME_PATTERN).match)
Compile = bool | Literal["auto"]
License = Annotated[str, _must("be a licence of the Hub, such as mit, cc-by-4.0 or other", LICENSES.__contains__)]


class _Section(BaseModel):
    # Validators are built when they are first used: --help needs the fields alone.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None or name not in cls.model_fields}

    @field_validator("*", mode="before")
    @classmethod
    def _read_words(cls, value: Any, info: ValidationInfo) -> Any:
        """Read the words, one or a list of them, of a flag or a YAML file."""
        if value is None or isinstance(value, (dict, BaseModel)):
            return value
        items = value if isinstance(value, (list, tuple)) else [value]
        if any(item is None or isinstance(item, (dict, list, tuple)) for item in items):
            raise InputError("it must be one value, or a list of them")
        words = [as_typed(item) for item in items]
        kind = cls.model_fields[info.field_name or ""].annotation
        if get_origin(kind) is list:
            return words
        is_switch = kind in (bool, Compile)
        if is_switch and not words:
            # A flag such as --run.compile stands for itself.
            return True
        if len(words) != 1:
            raise InputError("it must be one value")
        return _read_switch(words[0], kind) if is_switch else words[0]


def _read_switch(word: str, kind: Any) -> bool | str:
    """Read the word of a field that is on or off; pydantic would also take yes, on, 1 and their like."""
    if word in ("true", "True", "TRUE"):
        return True
    if word in ("false", "False", "FALSE"):
        return False
    if kind is not bool and word == "auto":
        return word
    raise InputError("it must be true or false" if kind is bool else "it must be auto, true or false")


class RunArguments(_Section):
    """Execution of a run, and where its results go."""

    output_dir: Annotated[LocalPath, _must("name a folder for this run", bool)] = ""
    """Folder of this run: trunk, branches, checkpoints, logs."""
    sweep: Annotated[str, Field(max_length=32), _names_a_repository] = "run"
    """Name of the sweep that the run belongs to."""
    seed: Seed = 0
    """Seed of the weights and of the data order."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Autocast precision; weights stay fp32."""
    micro_batch_sequences: PositiveInt = 32
    """Sequences in one forward pass of one device; affects speed and memory only."""
    compile: Compile = "auto"
    """Compile each repeated block with torch.compile: auto on a GPU, where blocks allow it, true or false."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass."""
    experts_implementation: Literal["auto", "capacity", "grouped_mm", "batched_mm", "eager"] = "auto"
    """How experts are multiplied: auto as the class does, capacity (ours only) in buffers, eager by a plain loop."""
    expert_parallel: PositiveInt = 1
    """Processes that divide the experts of a block among them, under FSDP2; affects speed and memory only."""
    tensor_parallel: PositiveInt = 1
    """Processes that share micro-batches and divide heads and inner widths, under FSDP2; affects speed and memory
    only."""
    checkpoint_seconds: PositiveFloat = 600.0
    """Write a checkpoint to resume from at least this often (wall seconds)."""
    async_checkpoints: bool = True
    """Write checkpoints in a thread, from a copy in host memory."""
    log_steps: PositiveInt = 10
    """Write a line to log.jsonl every this many steps."""
    train_loss_window: Share = 0.05
    """The final training loss is the mean over this last share of the tokens."""
    eval_sequences: PositiveCount = 16384
    """Held-out sequences of an evaluation; the record has its standard error."""
    eval_tokens: list[PositiveCount] = []
    """Also evaluate after this many training tokens (trunk and branches), into the log."""
    release_tokens: list[PositiveCount] = []
    """Save an intermediate model with its record when the trunk has trained this many tokens."""
    law: LocalPath | None = None
    """Law whose forecast of the final loss is shown and updated: published, a name that `scaling-law compare` lists, a
    folder, or a Hub repo."""
    max_skipped_steps: PositiveInt = 10
    """Stop as diverged after this many consecutive non-finite steps."""
    trackers: list[str] = []
    """tensorboard, trackio, wandb or another of Accelerate's trackers."""
    progress: bool = True
    """Show a progress bar; without a terminal, a line once a minute."""
    profile_steps: Annotated[list[int], _is_range] = []
    """`FIRST LAST`: write a profiler trace of the steps from FIRST up to, but not including, LAST."""
    dry_run: bool = False
    """Print the plan and the cost of the run, make one step, and write nothing."""
    push_to_hub: LocalPath | None = None
    """Push branches as they finish: hf://ORGANISATION, or a folder."""
    private: bool = False
    """Create private repositories when pushing."""
    license: License | None = None
    """Licence of the models, such as apache-2.0; default: the cards name none."""


class ModelArguments(_Section):
    """The architecture and its losses."""

    type: Annotated[Literal["switch_moe"], Field(exclude=True)] = OURS
    """The class: ours, or a model type of transformers with the fields of its class, or the path of a config.json
    (docs/bring_your_own_architecture.md)."""
    d_model: PositiveInt = 512
    """Width of the residual stream."""
    experts: PositiveInt = 1
    """Experts per block; 1 is a dense model."""
    n_blocks: PositiveInt | None = Field(default=None, validate_default=True)
    """Blocks; default d_model / 64."""
    n_heads: PositiveInt | None = Field(default=None, validate_default=True)
    """Attention heads; default d_model / 64."""
    capacity_factor: NonNegativeFloat = PAPER.capacity_factor
    """Expert capacity in training, times tokens / experts; 0 trains dropless."""
    capacity_group_tokens: PositiveCount | None = None
    """Consecutive tokens over which expert capacity and the balance loss are counted; default: 16384, or the
    micro-batch of the first start if that is smaller."""
    balance_loss: NonNegativeFloat = PAPER.balance_loss
    """Coefficient of the load-balancing loss."""
    z_loss: NonNegativeFloat = PAPER.z_loss
    """Coefficient of the router z-loss."""
    attention_precision: Literal["float32", "compute"] = "compute"
    """Precision of attention under autocast: compute is that of the autocast, as in the paper's runs; float32, as in
    its text, has no flash kernel on a GPU."""
    final_norm: bool = False
    """Normalise before the head, which the paper's runs do not."""
    initialization: Literal["paper", "normal"] = "paper"
    """Initial weights: the paper's truncated normal, or normal with std 0.02."""

    @field_validator("n_heads")
    @classmethod
    def _check_width(cls, n_heads: int | None, info: ValidationInfo) -> int | None:
        width = info.data.get("d_model")
        if width is None:
            # The width itself was refused.
            return n_heads
        if width % 64 and (n_heads is None or info.data.get("n_blocks", 0) is None):
            raise InputError(
                f"model.d_model: {width}; it must be a multiple of 64 unless n_blocks and n_heads are set"
            )
        heads = n_heads or width // 64
        if width % (2 * heads):
            raise InputError(
                f"model.d_model: {width}; it must give each of the {heads} heads an even number of dimensions"
            )
        return n_heads

    @property
    def bias_rate(self) -> float:
        """Zero, since our routers have no selection bias."""
        return 0.0

    @property
    def name(self) -> str:
        """Name of the size in runs and repositories; see `hub.record.names.size_name`."""
        by_rule = self.d_model // 64
        return size_name(self.d_model, self.experts, self.n_blocks or by_rule, self.n_heads or by_rule)


def _read_model(section: Any, read_ours: Callable[[Any], ModelArguments]) -> ModelArguments | ModelClassArguments:
    """Read the section `model` by its `type`."""
    if isinstance(section, ModelClassArguments):
        return section
    if isinstance(section, dict) and section.get("type") not in (None, OURS, [OURS]):
        return ModelClassArguments.model_validate(section)
    return read_ours(section)


class DataArguments(_Section):
    """Text to train on, its tokens, and the order in which it is read."""

    dataset: LocalPath = PAPER.dataset
    """Dataset on the Hub, or a local folder or file."""
    dataset_config: str | None = None
    """Its configuration, such as sample-10BT."""
    revision: str | None = None
    """Commit, branch or tag of the dataset; default: the newest commit at the first start."""
    split: str = "train"
    """The split to train on."""
    validation_split: str | None = None
    """The held-out split; default: documents of `split` chosen by a hash, see held_out_by."""
    held_out_per_mille: int = 10
    """Documents of `split` held out, in thousandths, without a validation_split."""
    held_out_by: Literal["text", "id"] = "text"
    """What is hashed: the text, so that no copy of a held-out document is trained on, or the id, as in runs begun
    before this option, which go on with it."""
    text_column: str = "text"
    """The column with the text."""
    tokenizer: LocalPath = PAPER.tokenizer
    """Fast tokenizer: Hub name or folder."""
    tokenizer_revision: str | None = None
    """Commit, branch or tag of the tokenizer; default as for the dataset."""
    special_tokens: Literal["text", "tokens"] = "text"
    """What the name of a special token, such as <|endoftext|>, is within a document: text, or that token, as in runs
    begun before this option, which go on with it."""
    sequence_length: PositiveInt = PAPER.sequence_length
    """Tokens of a training sequence."""
    train_tokens: PositiveCount | None = None
    """Use only the first so many tokens of the dataset, and repeat them; default: all."""
    shuffle_window: PositiveCount = 1 << 16
    """Sequences that are shuffled together."""
    first_window: PositiveCount = 1 << 10
    """Sequences that are shuffled together at first, doubled up to `shuffle_window`: training starts once they are
    tokenised."""
    order: Literal["shuffled", "stored"] = "shuffled"
    """shuffled: text is drawn across all files; stored: files are read one after the other."""
    order_seed: Seed = 0
    """Seed of the order `shuffled`; held-out text has the same order for every seed."""
    cache_dir: LocalPath = "token-cache"
    """Folder of the token caches."""

    @field_validator("held_out_per_mille")
    @classmethod
    def _check_held_out(cls, value: int, info: ValidationInfo) -> int:
        if not 0 < value < 1000 and info.data.get("validation_split") is None:
            raise InputError("it must lie between 0 and 1000")
        return value


class ScheduleArguments(_Section):
    """Lengths in tokens, and the batch ramp."""

    tokens: Annotated[list[PositiveCount], Field(min_length=1)] = [2_000_000_000]
    """Training tokens. Several make branches of one trunk, each with a decay of its own."""
    warmup_tokens: Count = PAPER.warmup_tokens
    """Tokens of linear warmup."""
    decay_fraction: Share = PAPER.decay_fraction
    """Share of a run's tokens over which the learning rate decays to 0."""
    batch_ramp: list[str] = [f"{stage.from_tokens}:{stage.sequences}" for stage in PAPER.batch_ramp]
    """Stages `from_tokens:sequences` of the global batch."""

    @field_validator("batch_ramp")
    @classmethod
    def _check_ramp(cls, stages: list[str]) -> list[str]:
        try:
            BatchRamp(parse_stages(stages), sequence_length=1)
        except ValueError as error:
            raise InputError(f"schedule.{error}") from None
        return stages

    def stages(self) -> tuple[RampStage, ...]:
        """Return the parsed batch ramp."""
        return parse_stages(self.batch_ramp)

    @property
    def largest_batch(self) -> int:
        """Sequences of the largest global batch."""
        return max(stage.sequences for stage in self.stages())


class OptimizerArguments(_Section):
    """The optimizer and its peak learning rate."""

    name: Literal["adamw", "muon"] = "adamw"
    """adamw; or muon for the hidden matrices, with adamw for embeddings, head, routers, norms and biases."""
    learning_rate: PositiveFloat | None = None
    """Peak learning rate; default: by the law."""
    learning_rate_law: LocalPath = "code"
    """The learning-rate law: code or paper (readings of the paper's), public:LAB (of public grids), or a JSON file."""
    learning_rate_scale: PositiveFloat = 1.0
    """Multiplies the law's rate, for example for other batch sizes than the paper's."""
    beta1: Share = PAPER.beta1
    """Decay rate of the first moment."""
    beta2: Share = PAPER.beta2
    """Decay rate of the second moment."""
    epsilon: PositiveFloat = PAPER.epsilon
    """Added to the root of the second moment."""
    weight_decay: NonNegativeFloat = PAPER.weight_decay
    """Weight decay, times the learning rate."""
    decay_all: bool = PAPER.decay_all
    """Decay every parameter, as the paper's runs do; else only matrices, not the router."""
    gradient_clip: NonNegativeFloat = PAPER.gradient_clip
    """Maximum L2 norm of the gradient; 0 does not clip."""
    muon_learning_rate: PositiveFloat | None = None
    """Peak learning rate of the matrices under muon; default: that of the rest."""
    muon_momentum: Share = 0.95
    """Muon's momentum, by Nesterov."""
    muon_adjust_lr: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    """How a matrix's shape scales Muon's rate: to updates as large as AdamW's, or as in Muon's first version."""

    @field_validator("learning_rate_law")
    @classmethod
    def _check_law(cls, name: str) -> str:
        try:
            LearningRateLaw.named(name)
        except (ValueError, OSError) as error:
            raise InputError(f"it must be {' or '.join(READINGS)}, or the file of a law ({error})") from None
        return name


class TrainingArguments(_Section):
    """Everything that decides a run. `reading` makes it from YAML and flags."""

    run: RunArguments = RunArguments()
    model: Annotated[SerializeAsAny[ModelArguments], WrapValidator(_read_model)] = ModelArguments()
    data: DataArguments = DataArguments()
    schedule: ScheduleArguments = ScheduleArguments()
    optimizer: OptimizerArguments = OptimizerArguments()

    @model_validator(mode="after")
    def _check_sections(self) -> TrainingArguments:
        """Check what several sections decide together, one line per problem."""
        problems = [*self._problems()]
        branch = self.schedule_at(peak=1.0).branch
        checks: list[Callable[[], object]] = [self.check_capacity_group]
        checks += [partial(branch, tokens) for tokens in self.schedule.tokens]
        for check in checks:
            try:
                check()
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise InputError("\n".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        """Find what micro-batches, processes, the class of the model or the optimizer do not allow."""
        run = self.run
        model = self.model
        optimizer = self.optimizer
        largest = self.schedule.largest_batch
        size = run.micro_batch_sequences
        if largest % size:
            yield f"run.micro_batch_sequences: {size}; it must divide the batch of {largest} sequences"
        if model.experts % run.expert_parallel:
            yield f"run.expert_parallel: {run.expert_parallel}; it must divide the number of experts, {model.experts}"
        for name, field in OptimizerArguments.model_fields.items():
            value = getattr(optimizer, name)
            if optimizer.name != "muon" and name.startswith("muon_") and value != field.default:
                yield f"optimizer.{name}: {value}; it needs optimizer.name muon"
        if optimizer.name == "muon" and optimizer.muon_adjust_lr == "original" and not optimizer.muon_learning_rate:
            yield "optimizer.muon_learning_rate: missing; muon_adjust_lr original needs a rate of its own"
        way = run.experts_implementation
        if way != "auto" and isinstance(model, ModelClassArguments) and way not in model.experts_ways:
            choices = " or ".join(model.experts_ways)
            yield f"run.experts_implementation: {way}; for {model.type} it must be {choices}"

    def replaced(self, **sections: Fields) -> TrainingArguments:
        """Copy with other values of some fields, such as `replaced(run={"seed": 1})`; they are not checked again."""
        update = {name: getattr(self, name).model_copy(update=fields) for name, fields in sections.items()}
        return self.model_copy(update=update)

    def batch_ramp(self) -> BatchRamp:
        """Return the stages of the global batch, in sequences of the data's length."""
        return BatchRamp(self.schedule.stages(), self.data.sequence_length)

    def longest_run(self) -> tuple[int, int]:
        """Return the tokens of the trunk's longest run, and of its last batch."""
        tokens = max(self.schedule.tokens)
        return tokens, self.batch_ramp().last_batch_tokens(tokens)

    def schedule_at(self, peak: float) -> Schedule:
        """Return the schedule of this run for a peak learning rate."""
        return Schedule(self.batch_ramp(), self.schedule.warmup_tokens, self.schedule.decay_fraction, peak)

    def branches(self) -> list[Branch]:
        """List the branches of the trunk, one for each of `schedule.tokens`, shortest first."""
        schedule = self.schedule_at(peak=1.0)
        return [schedule.branch(tokens) for tokens in sorted(set(self.schedule.tokens))]

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens in one forward pass of one device."""
        return self.run.micro_batch_sequences * self.data.sequence_length

    def micro_batch_of(self, sequences: int, processes: int) -> int:
        """Return the sequences of a micro-batch of a global batch.

        The first batches of a ramp may have fewer for each process than a micro-batch.
        """
        return math.gcd(self.run.micro_batch_sequences, sequences // processes)

    def with_capacity_group(self, tokens: int | None = None) -> TrainingArguments:
        """Copy with `model.capacity_group_tokens` set: as configured, else `tokens`, else as at a first start."""
        if self.model.capacity_group_tokens is not None:
            return self
        group = tokens or min(CAPACITY_GROUP_TOKENS, self.micro_batch_tokens)
        return self.replaced(model={"capacity_group_tokens": group})

    def holds_whole_groups(self, micro_batch_sequences: int) -> bool:
        """Return whether a micro-batch holds whole capacity groups, or nothing is counted by group."""
        group = self.model.capacity_group_tokens
        has_limit = self.model.capacity_factor > 0 or self.model.balance_loss > 0
        if self.model.experts == 1 or not has_limit or group is None:
            return True
        return micro_batch_sequences * self.data.sequence_length % group == 0

    def check_capacity_group(self) -> None:
        """Raise ConfigurationError if a micro-batch does not hold whole capacity groups, and say what would."""
        size = self.run.micro_batch_sequences
        if self.holds_whole_groups(size):
            return
        group = self.model.capacity_group_tokens or 0
        length = self.data.sequence_length
        raise ConfigurationError(
            f"model.capacity_group_tokens: {group}; a micro-batch ({size} sequences of "
            f"{length} tokens) must hold whole groups: make the group smaller ({self.micro_batch_tokens} or a divisor "
            f"of it), make run.micro_batch_sequences a multiple of {group // math.gcd(group, length)}, or train "
            "dropless and without balance loss (model.capacity_factor 0, model.balance_loss 0)"
        )

    def check_processes(self, processes: int) -> None:
        """Raise ConfigurationError if this many processes cannot share every batch's micro-batches equally.

        Where a batch of a ramp has too few sequences for whole micro-batches, these are smaller.
        """
        size = self.run.micro_batch_sequences
        largest = self.schedule.largest_batch
        for stage in self.schedule.stages():
            own_size = size if stage.sequences == largest else self.micro_batch_of(stage.sequences, processes)
            if stage.sequences // own_size % processes or not self.holds_whole_groups(own_size):
                raise ConfigurationError(
                    f"run.micro_batch_sequences: {size} cuts the batch of {stage.sequences} sequences into a number "
                    f"of micro-batches that {processes} processes cannot share equally"
                )

    def to_dict(self) -> dict[str, Fields]:
        """Return plain values for YAML and JSON."""
        return self.model_dump()

    def flat(self) -> Fields:
        """Map `section.field` to its value, as types that trackers accept."""
        values = {}
        for section, fields in self.to_dict().items():
            for name, value in fields.items():
                values[f"{section}.{name}"] = value if isinstance(value, (int, float)) else str(value)
        return values

    def save(self, path: Path) -> None:
        """Write the configuration as YAML; `reading.parse_command_line` reads it back as it was."""
        write_bytes(path, yaml.safe_dump(self.to_dict(), sort_keys=False).encode())


SECTIONS = {name: type(field.default) for name, field in TrainingArguments.model_fields.items()}
