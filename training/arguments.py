"""The configuration of a run: dataclasses, one per section, read from YAML and from flags.

    accelerate launch train.py --config run.yaml --model.experts 8 --schedule.tokens 1B 2B

Values from the YAML file and from flags take the same way through transformers' `HfArgumentParser`, flags winning.
Whatever is wrong is reported at once, before any work is done. The paper's names are used here (d_model, experts, …);
`SwitchMoeConfig` has transformers' names.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml

from hub.records import NAME_PATTERN
from scaling_law.units import parse_count

from .schedule import BatchRamp, RampStage, Schedule


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
        default=32, metadata={"help": "Sequences in one forward pass of one device; capacity is counted over these."}
    )
    compile: bool = field(default=False, metadata={"help": "torch.compile the model."})
    gradient_checkpointing: bool = field(default=False, metadata={"help": "Recompute activations in the backward."})
    checkpoint_seconds: float = field(
        default=600.0, metadata={"help": "A checkpoint to resume from at least this often (wall seconds)."}
    )
    log_steps: int = field(default=10, metadata={"help": "A line in log.jsonl every this many steps."})
    train_loss_window: float = field(
        default=0.05, metadata={"help": "The final training loss is the mean over this last share of the tokens."}
    )
    eval_sequences: Count = field(
        default=Count(2048), metadata={"help": "Held-out sequences of the final evaluation."}
    )
    max_skipped_steps: int = field(
        default=10, metadata={"help": "Stop as diverged after this many non-finite steps in a row."}
    )
    trackers: list[str] = field(
        default_factory=list, metadata={"help": "Accelerate trackers: tensorboard, trackio, wandb, …"}
    )
    progress: bool = field(default=True, metadata={"help": "Show a progress bar."})


@dataclass
class ModelArguments:
    d_model: int = field(default=512, metadata={"help": "Width of the residual stream."})
    experts: int = field(default=1, metadata={"help": "Experts per block; 1 is a dense model."})
    n_blocks: int | None = field(default=None, metadata={"help": "Blocks; default d_model / 64."})
    n_heads: int | None = field(default=None, metadata={"help": "Attention heads; default d_model / 64."})
    capacity_factor: float = field(
        default=1.0, metadata={"help": "Expert capacity in training, times tokens / experts; 0 trains dropless."}
    )
    balance_loss: float = field(default=0.01, metadata={"help": "Coefficient of the load-balancing loss."})
    z_loss: float = field(default=0.001, metadata={"help": "Coefficient of the router z-loss."})


@dataclass
class DataArguments:
    dataset: str = field(
        default="HuggingFaceFW/fineweb-edu", metadata={"help": "Data set on the Hub, or a local folder or file."}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Its configuration, such as sample-10BT."})
    revision: str | None = field(default=None, metadata={"help": "A commit of the data set."})
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
    tokenizer_revision: str | None = field(default=None, metadata={"help": "A commit of the tokenizer."})
    sequence_length: int = field(default=512, metadata={"help": "Tokens of a training sequence."})
    train_tokens: Count | None = field(
        default=None,
        metadata={"help": "Tokens of the data set to prepare; default: all. The order of the data depends on it."},
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
        default_factory=lambda: ["0:128", "0.5B:256", "1B:512"],
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
    learning_rate_law: Literal["code", "paper"] = field(
        default="code", metadata={"help": "Which reading of the paper's law sets the peak learning rate."}
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

    def to_dict(self) -> dict:
        """Plain values, as YAML and JSON take them."""
        return _plain(dataclasses.asdict(self))

    def save(self, path: Path) -> None:
        from hub.atomic import write_bytes

        write_bytes(path, yaml.safe_dump(self.to_dict(), sort_keys=False).encode())


SECTIONS = {
    "run": RunArguments,
    "model": ModelArguments,
    "data": DataArguments,
    "schedule": ScheduleArguments,
    "optimizer": OptimizerArguments,
}


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, Count) else value


def parse_command_line(argv: list[str]) -> TrainingArguments:
    """`--config FILE.yaml` and any `--section.field value`; `--help` lists them all.

    Raises:
        ConfigurationError: with one line per problem.
    """
    parser = argparse.ArgumentParser(prog="train.py", add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("-h", "--help", action="store_true")
    known, rest = parser.parse_known_args(argv)
    if known.help:
        print(_help())
        raise SystemExit(0)
    return from_dict(_read_yaml(known.config) if known.config else {}, rest)


def _read_yaml(path: str) -> dict:
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except FileNotFoundError as error:
        raise ConfigurationError(f"--config: {path!r} does not exist") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"--config: {path!r} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"--config: {path!r} holds {type(values).__name__}, not sections {list(SECTIONS)}")
    return values


def from_dict(values: dict, flags: list[str] = ()) -> TrainingArguments:
    """Arguments from nested sections, with `--section.field value` flags winning over them.

    Raises:
        ConfigurationError: with one line per problem.
    """
    problems: list[str] = []
    words: dict[str, dict[str, list[str]]] = {section: {} for section in SECTIONS}
    for section, fields in values.items():
        if section in SECTIONS and isinstance(fields, dict):
            for name, value in fields.items():
                _take(words, problems, f"{section}.{name}", _as_words(value))
        elif section in SECTIONS:
            problems.append(f"{section}: holds {fields!r}; it is a section with fields of its own")
        else:
            problems.append(_unknown(section, list(SECTIONS)))
    for name, value in _flags(flags, problems):
        _take(words, problems, name, value)
    sections = {}
    if not problems:
        sections = {name: _parse_section(name, words[name], problems) for name in SECTIONS}
    if not problems:
        arguments = TrainingArguments(**sections)
        problems = list(_problems(arguments))
    if problems:
        raise ConfigurationError("the configuration cannot be used:\n  " + "\n  ".join(problems))
    return arguments


def _as_words(value) -> list[str] | None:
    """A YAML value as command-line words; None where it asks for the default."""
    if value is None:
        return None
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _flags(flags: list[str], problems: list[str]):
    name, words = None, []
    for word in flags:
        if word.startswith("--"):
            if name:
                yield name, words
            name, _, value = word[2:].partition("=")
            words = [value] if value else []
        elif name:
            words.append(word)
        else:
            problems.append(f"{word!r}: expected a flag such as --model.experts 8")
    if name:
        yield name, words


def _take(words, problems, name: str, value: list[str] | None) -> None:
    known = [f"{s}.{f.name}" for s, cls in SECTIONS.items() for f in dataclasses.fields(cls)]
    if name not in known:
        problems.append(_unknown(name, known))
        return
    section, _, field_name = name.partition(".")
    if value is None:
        words[section].pop(field_name, None)
    else:
        words[section][field_name] = value


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"{name}: no such key" + (f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}")


def _parse_section(section: str, words: dict[str, list[str]], problems: list[str]):
    from transformers import HfArgumentParser

    parser = HfArgumentParser(SECTIONS[section], allow_abbrev=False, exit_on_error=False)
    lists = {f.name for f in dataclasses.fields(SECTIONS[section]) if "list" in str(f.type)}
    empty = [name for name, values in words.items() if not values and name in lists]
    argv = [part for name, values in words.items() if name not in empty for part in (f"--{name}", *values)]
    try:
        parsed, *extra = parser.parse_args_into_dataclasses(
            argv, look_for_args_file=False, return_remaining_strings=True
        )
    except (argparse.ArgumentError, argparse.ArgumentTypeError) as error:
        # argparse names an option by all its spellings: --d_model/--d-model
        name = (getattr(error, "argument_name", None) or "--?").split("/")[0].removeprefix("--")
        problems.append(f"{section}.{name}: {getattr(error, 'message', error)}")
        return None
    if extra := [word for words_left in extra for word in words_left]:
        problems.append(f"{section}: one value too many, {' '.join(map(repr, extra))}")
    for name in empty:  # argparse has no way to write an empty list
        setattr(parsed, name, [])
    return parsed


def _problems(a: TrainingArguments):
    """What single fields and their combinations break; one line each."""
    m, d, s, o, r = a.model, a.data, a.schedule, a.optimizer, a.run
    positive = {
        "run.micro_batch_sequences": r.micro_batch_sequences,
        "run.log_steps": r.log_steps,
        "run.eval_sequences": r.eval_sequences,
        "run.checkpoint_seconds": r.checkpoint_seconds,
        "run.max_skipped_steps": r.max_skipped_steps,
        "model.experts": m.experts,
        "model.d_model": m.d_model,
        "data.sequence_length": d.sequence_length,
        "optimizer.epsilon": o.epsilon,
        **{f"schedule.tokens[{i}]": tokens for i, tokens in enumerate(s.tokens)},
    }
    positive |= {k: v for k, v in {"model.n_blocks": m.n_blocks, "model.n_heads": m.n_heads}.items() if v is not None}
    positive |= {} if o.learning_rate is None else {"optimizer.learning_rate": o.learning_rate}
    positive |= {} if d.train_tokens is None else {"data.train_tokens": d.train_tokens}
    yield from (f"{name}: {value}; it must be greater than 0" for name, value in positive.items() if not value > 0)
    not_negative = {
        "model.capacity_factor": m.capacity_factor,
        "model.balance_loss": m.balance_loss,
        "model.z_loss": m.z_loss,
        "optimizer.weight_decay": o.weight_decay,
        "optimizer.gradient_clip": o.gradient_clip,
    }
    yield from (f"{name}: {value}; it must be 0 or more" for name, value in not_negative.items() if not value >= 0)
    fractions = {
        "run.train_loss_window": r.train_loss_window,
        "schedule.decay_fraction": s.decay_fraction,
        "optimizer.beta1": o.beta1,
        "optimizer.beta2": o.beta2,
    }
    yield from (
        f"{name}: {value}; it must lie between 0 and 1" for name, value in fractions.items() if not 0 < value < 1
    )
    if d.validation_split is None and not 0 < d.held_out_per_mille < 1000:
        yield f"data.held_out_per_mille: {d.held_out_per_mille}; it must lie between 0 and 1000"
    if not r.output_dir:
        yield "run.output_dir: is empty; name a folder for this run"
    if not re.match(NAME_PATTERN, r.sweep) or len(r.sweep) > 32:
        yield f"run.sweep: {r.sweep!r}; at most 32 letters, digits, '.', '_' and '-': it names repositories"
    if not s.tokens:
        yield "schedule.tokens: is empty; give at least one token count"
    yield from _architecture_problems(m)
    yield from _schedule_problems(a)


def _architecture_problems(m: ModelArguments):
    if m.d_model <= 0:
        return
    if m.d_model % 64 and (m.n_blocks is None or m.n_heads is None):
        yield f"model.d_model: {m.d_model} is not a multiple of 64; give n_blocks and n_heads, or a multiple"
    elif (heads := m.n_heads or m.d_model // 64) > 0:
        if m.d_model % heads:
            yield f"model.d_model: {m.d_model} is not divisible by n_heads {heads}"
        elif m.d_model // heads % 2:
            yield f"model.n_heads: {heads} gives heads of {m.d_model // heads} dimensions; rotary embedding needs even"


def _schedule_problems(a: TrainingArguments):
    try:
        ramp = a.batch_ramp()
    except (ValueError, argparse.ArgumentTypeError) as error:
        yield f"schedule.batch_ramp: {error}"
        return
    for stage in ramp.stages:
        if a.run.micro_batch_sequences > 0 and stage.sequences % a.run.micro_batch_sequences:
            yield (
                f"run.micro_batch_sequences: {a.run.micro_batch_sequences} does not divide the batch of "
                f"{stage.sequences} sequences from {stage.from_tokens} tokens on"
            )
    if 0 < a.schedule.decay_fraction < 1:
        for tokens in a.schedule.tokens:
            try:
                a.schedule_at(1.0).branch(tokens)
            except ValueError as error:
                yield str(error)


def _help() -> str:
    lines = ["usage: accelerate launch train.py --config FILE.yaml [--section.field value ...]"]
    for section, cls in SECTIONS.items():
        lines += ["", f"{section}:"]
        for f in dataclasses.fields(cls):
            default = f.default_factory() if callable(f.default_factory) else f.default
            shown = " ".join(map(str, default)) if isinstance(default, list) else default
            lines.append(f"  --{section}.{f.name:<24} {f.metadata.get('help', '')} [{'' if shown is None else shown}]")
    return "\n".join(lines)
