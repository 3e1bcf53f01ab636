"""The configuration of a run: presets, YAML and flags -> `TrainingArguments`, or every problem at once.

The file wins over presets, and flags over both. `paper` and `paper/d1024-E8` are the recipe and the 51 configurations
of the paper; what differs from them is in `configs/presets`.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hub.base import strict_yaml
from hub.base.commands import version
from hub.base.errors import InputError, problem_lines
from hub.base.paths import local_path
from hub.base.types import Fields
from hub.record.names import size_name
from scaling_law.size.architecture import Architecture
from scaling_law.size.recipe import ROWS
from training.configuration.arguments import SECTIONS, ConfigurationError, TrainingArguments

PAPER = "paper"
PRESETS = Path(__file__).parents[1] / "configs" / "presets"
ALIASES = {"--dry-run": "--run.dry_run=true", "--push-to-hub": "--run.push_to_hub"}
_NUMBER = re.compile(r"nan|[-+]?(inf|[\d.]+(e[-+]?\d+)?)")


def parse_command_line(argv: list[str], output_dir: str = "") -> TrainingArguments:
    """Read `--preset NAME …`, `--config FILE.yaml` and any `--section.field value`; `--help` lists them all.

    `--preset` takes the place of the file's presets; `output_dir` and errors are those of `from_dict`.
    """
    answer_help(argv)
    parser = argparse.ArgumentParser(prog="train.py", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config")
    parser.add_argument("--preset", nargs="+")
    names = [word.partition("=")[0] for word in argv]
    for name in ("--config", "--preset"):
        if names.count(name) > 1:
            raise ConfigurationError(f"{name}: given more than once")
    try:
        options, flags = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigurationError(f"{error.argument_name}: {error.message}") from None
    values = read_yaml(options.config, "--config") if options.config else {}
    if options.preset:
        values["preset"] = options.preset
    return from_dict(values, flags, output_dir)


def answer_help(argv: Sequence[str]) -> None:
    """Print the help or the version, if a flag asks for it, and exit."""
    if {"-h", "--help"} & {*argv}:
        print(_help())
        raise SystemExit(0)
    if "--version" in argv:
        print(f"joint-moe-scaling-laws {version()}")
        raise SystemExit(0)


def read_yaml(path: str | Path, source: str, numbers: bool = False) -> Fields:
    """Read the mapping in a YAML or JSON file, without its top-level keys x-…, which may hold anchors.

    `numbers` as in `hub.base.strict_yaml`. Raises ConfigurationError, which names the `source` of the path.
    """
    file = f"{source}: {str(path)!r}"
    try:
        values = strict_yaml.read(local_path(path), numbers)
    except (OSError, InputError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{file} cannot be read: {reason}") from None
    if not isinstance(values, dict):
        raise ConfigurationError(f"{file} holds {type(values).__name__}; it must be a mapping")
    return {name: value for name, value in values.items() if not name.startswith("x-")}


def from_dict(values: Fields, flags: Sequence[str] = (), output_dir: str = "") -> TrainingArguments:
    """Make arguments from nested sections, with `--section.field value` flags winning over them.

    `preset`, one name or a list, stands for sections that the others win over; None is a field's default; `output_dir`
    is the default of run.output_dir. Raises ConfigurationError with one line per problem.
    """
    problems: list[str] = []
    preset: Fields = {}
    try:
        preset = preset_sections(values.get("preset") or [])
    except ConfigurationError as error:
        problems.append(str(error))
    sections = merge({"run": {}}, preset, values, _read_flags(flags, problems))
    run = sections["run"]
    if isinstance(run, dict):
        if run.get("output_dir") is None:
            # Every other default is valid; this one is checked.
            run["output_dir"] = output_dir
        # Configurations of earlier versions hold this field, which did nothing if it was false.
        former_value = run.pop("stop_hopeless", False)
        if str(former_value).lower() != "false":
            problems.append(f"run.stop_hopeless: {former_value!r}; this field was removed: leave it out")
    try:
        arguments = TrainingArguments.model_validate(sections)
    except ValidationError as error:
        keys = [*SECTIONS]
        for section, model in SECTIONS.items():
            keys += [f"{section}.{name}" for name in model.model_fields]
        problems += describe_errors(error, keys)
    if problems:
        raise ConfigurationError("invalid configuration:\n  " + "\n  ".join(problems))
    return arguments


def _read_flags(flags: Sequence[str], problems: list[str]) -> dict[str, Fields]:
    """Collect `--section.field word …` as sections of words, and of lists where there are several or none."""
    sections: dict[str, Fields] = {}
    words: list[str] | None = None
    for flag in flags:
        if flag.startswith("--"):
            name, _, word = ALIASES.get(flag, flag)[2:].partition("=")
            section, _, field = name.partition(".")
            words = [word] if word else []
            fields = sections.setdefault(section, {})
            if field in fields:
                problems.append(f"--{name} is given more than once; a list follows one flag")
            fields[field] = words
        elif words is not None:
            words.append(flag)
        else:
            problems.append(f"{flag!r}: expected a flag such as --model.experts 8")
    for section, fields in sections.items():
        for name, words in fields.items():
            if len(words) == 1:
                fields[name] = _read_word(f"{section}.{name}", words[0], problems)
    return sections


def _read_word(field: str, word: str, problems: list[str]) -> str | None:
    """Return the single word of a flag, or None for null, as YAML has it."""
    try:
        return None if strict_yaml.read_word(word) is None else word
    except InputError as error:
        problems.append(f"{field}: {error}")
        return None


def describe_errors(error: ValidationError, keys: Sequence[str]) -> list[str]:
    """Write a line for each problem that pydantic has: field, value, what is allowed. `keys`: all valid keys."""
    lines = []
    for problem in error.errors():
        lines += _describe(problem, keys)
    return lines


def _describe(problem: Any, keys: Sequence[str]) -> list[str]:
    name = ".".join(step for step in problem["loc"] if isinstance(step, str))
    value = problem["input"]
    if problem["type"] == "extra_forbidden":
        return [f"{name}: no such key; {_suggest_key(name, keys)}"]
    if problem["type"].startswith("model_"):
        return [f"{name}: {value!r}; it must be a section with fields"]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    value_text = str(value) if _NUMBER.fullmatch(str(value)) else repr(value)
    return problem_lines({**problem, "loc": name.split(".")}, value_text)


def _suggest_key(name: str, keys: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, keys, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]}?"
    return f"valid keys: {', '.join(keys)}" if len(keys) < 20 else "train.py --help lists them all"


def _help() -> str:
    lines = ["usage: accelerate launch train.py [--preset NAME ...] [--config FILE.yaml] [--section.field value ...]"]
    lines += ["", *(f"{short} is {long}" for short, long in ALIASES.items())]
    lines += ["", "A preset gives values that FILE.yaml and flags change; python -m training.presets lists them."]
    for section, model in SECTIONS.items():
        lines += ["", f"{section}: {model.__doc__}"]
        for name, field in model.model_fields.items():
            description = " ".join((field.description or "").split())
            default = field.default
            if isinstance(default, list):
                default = " ".join(map(str, default))
            lines.append(f"  --{section}.{name:<24} {description} [{'' if default is None else default}]")
    return "\n".join(lines)


@dataclass(frozen=True)
class PaperConfiguration:
    """One configuration of the paper's listing with the token counts of all its runs, ascending."""

    architecture: Architecture
    tokens: tuple[int, ...]

    @property
    def sizes(self) -> Fields:
        """Parameters and shape."""
        arch = self.architecture
        return {"n_active": arch.n_active, "n_total": arch.n_total, **arch.shape}

    def sections(self) -> dict[str, dict]:
        """Return the fields that it sets; depth and heads only where they are not d_model / 64."""
        arch = self.architecture
        model = {"d_model": arch.d_model, "experts": arch.experts}
        by_rule = arch.d_model // 64
        if arch.blocks != by_rule or arch.heads != by_rule:
            model.update(n_blocks=arch.blocks, n_heads=arch.heads)
        return {"model": model, "schedule": {"tokens": list(self.tokens)}}


@cache
def listing() -> dict[str, PaperConfiguration]:
    """List the paper's configurations (Appendix "Experiments Listing") by name, smallest first.

    The listing has some configurations in two rows; here each stands once, with the tokens of all its rows.
    """
    tokens: dict[Architecture, set[int]] = {}
    for row in ROWS:
        tokens.setdefault(row.architecture, set()).update(round(billions * 1e9) for billions in row.tokens)
    configurations = {}
    for arch in sorted(tokens, key=lambda a: (a.n_active, a.experts)):
        name = size_name(arch.d_model, arch.experts, arch.blocks, arch.heads)
        configurations[f"{PAPER}/{name}"] = PaperConfiguration(arch, tuple(sorted(tokens[arch])))
    return configurations


def recipes() -> dict[str, Path]:
    """List the recipes other than the paper's: name -> YAML file."""
    return {path.stem: path for path in sorted(PRESETS.glob("*.yaml"))}


def preset_sections(preset: str | list[str]) -> Fields:
    """Read the fields that presets set, by section; later presets win.

    Raises ConfigurationError, which names the nearest preset.
    """
    names = preset if isinstance(preset, list) else [preset]
    return merge(*(_read_preset(strict_yaml.as_typed(name)) for name in names))


def merge(*layers: Fields) -> Fields:
    """Merge sections of fields; later layers win. Values that are not mappings are left for validation to refuse."""
    sections: Fields = {}
    for layer in layers:
        for name, fields in layer.items():
            # The fields of an empty section are all left out.
            if name == "preset" or fields is None:
                continue
            before = sections.setdefault(name, {})
            if isinstance(before, dict):
                sections[name] = {**before, **fields} if isinstance(fields, dict) else fields
    return sections


def _read_preset(name: str) -> dict[str, dict]:
    if name == PAPER:
        # The defaults of `arguments` are the paper's recipe.
        return {}
    if name in listing():
        return listing()[name].sections()
    if name in recipes():
        return read_yaml(recipes()[name], "preset")
    names = [PAPER, *recipes(), *listing()]
    # A size of the paper whose number of experts or shape is not given as there gets all of that width offered.
    near = [preset for preset in listing() if preset.startswith(name.partition("-")[0] + "-")]
    near = near or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    raise ConfigurationError(f"preset: no preset is named {name!r}; {hint}`python -m training.presets` lists them all")
