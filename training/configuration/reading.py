"""Reading and checking the configuration of a run: YAML and flags -> `TrainingArguments`, or every problem at once.

    accelerate launch train.py --preset paper/d512-E8 --config run.yaml --schedule.tokens 1B 2B

Values of presets, of the YAML file and from flags take the same way through transformers' `HfArgumentParser`; the file
wins over presets and flags over both.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
from pathlib import Path

import yaml

from hub.record.run_record import NAME_PATTERN
from hub.release.licenses import LICENSES
from scaling_law.fitting.learning_rate import READINGS, LearningRateLaw
from training.configuration import presets
from training.configuration.arguments import SECTIONS, ConfigurationError, ModelArguments, TrainingArguments

ALIASES = {"--dry-run": "--run.dry_run=true", "--push-to-hub": "--run.push_to_hub"}


def parse_command_line(argv: list[str]) -> TrainingArguments:
    """`--preset NAME …`, `--config FILE.yaml` and any `--section.field value`; `--help` lists them all.

    The file may name presets too (`preset: NAME`); `--preset` then takes their place.

    Raises:
        ConfigurationError: with one line per problem.
    """
    parser = argparse.ArgumentParser(prog="train.py", add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("--preset", nargs="+")
    parser.add_argument("-h", "--help", action="store_true")
    known, rest = parser.parse_known_args(argv)
    if known.help:
        print(_help())
        raise SystemExit(0)
    rest = [ALIASES.get(word, word) for word in rest]
    values = read_yaml(known.config) if known.config else {}
    return from_dict(values | {"preset": known.preset} if known.preset else values, rest)


def read_yaml(path: str) -> dict:
    """The sections of a configuration file. Raises ConfigurationError where there is none or it is not one."""
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

    Args:
        values: sections of fields; `preset`, one name or a list, stands for sections that the others win over.

    Raises:
        ConfigurationError: with one line per problem.
    """
    problems: list[str] = []
    words: dict[str, dict[str, list[str]]] = {section: {} for section in SECTIONS}
    for section, fields in _with_presets(values, problems):
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


def _with_presets(values: dict, problems: list[str]) -> list[tuple[str, object]]:
    own = [(section, fields) for section, fields in values.items() if section != "preset"]
    try:
        return [*presets.sections(values.get("preset") or []).items(), *own]
    except ConfigurationError as error:
        problems.append(str(error))
        return own


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


def _help() -> str:
    lines = ["usage: accelerate launch train.py [--preset NAME ...] [--config FILE.yaml] [--section.field value ...]"]
    lines += ["", *(f"{short} is {long}" for short, long in ALIASES.items())]
    lines += [
        "",
        "A preset gives values that FILE.yaml and flags change; python -m training.configuration.presets lists them.",
    ]
    for section, cls in SECTIONS.items():
        lines += ["", f"{section}:"]
        for f in dataclasses.fields(cls):
            default = f.default_factory() if callable(f.default_factory) else f.default
            shown = " ".join(map(str, default)) if isinstance(default, list) else default
            lines.append(f"  --{section}.{f.name:<24} {f.metadata.get('help', '')} [{'' if shown is None else shown}]")
    return "\n".join(lines)


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
        "data.shuffle_window": d.shuffle_window,
        "optimizer.epsilon": o.epsilon,
        "optimizer.learning_rate_scale": o.learning_rate_scale,
        **{f"schedule.tokens[{i}]": tokens for i, tokens in enumerate(s.tokens)},
        **{f"run.eval_tokens[{i}]": tokens for i, tokens in enumerate(r.eval_tokens)},
        **{f"run.release_tokens[{i}]": tokens for i, tokens in enumerate(r.release_tokens)},
    }
    positive |= {k: v for k, v in {"model.n_blocks": m.n_blocks, "model.n_heads": m.n_heads}.items() if v is not None}
    positive |= {} if o.learning_rate is None else {"optimizer.learning_rate": o.learning_rate}
    positive |= {} if d.train_tokens is None else {"data.train_tokens": d.train_tokens}
    group = m.capacity_group_tokens
    positive |= {} if group is None else {"model.capacity_group_tokens": group}
    yield from (f"{name}: {value}; it must be greater than 0" for name, value in positive.items() if not value > 0)
    if r.license is not None and r.license not in LICENSES:
        yield f"run.license: {r.license!r} is no identifier of the Hub, such as apache-2.0, mit, cc-by-4.0 or other"
    try:
        LearningRateLaw.named(o.learning_rate_law)
    except (ValueError, OSError) as error:
        readings = " or ".join(READINGS)
        yield f"optimizer.learning_rate_law: {o.learning_rate_law!r} is neither {readings} nor a law's file ({error})"
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
    if r.profile_steps and (len(r.profile_steps) != 2 or not 0 <= r.profile_steps[0] < r.profile_steps[1]):
        yield f"run.profile_steps: {r.profile_steps}; give two steps, the second after the first"
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
    group = a.model.capacity_group_tokens
    if group is not None and min(group, a.micro_batch_tokens) > 0:
        try:
            a.check_capacity_group()
        except ConfigurationError as error:
            yield str(error)
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
