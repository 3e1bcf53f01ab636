"""Sweep files: their runs, each with its whole configuration, checked."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hub import RunRecord
from hub.base.errors import InputError, RecordError, unknown
from hub.base.paths import check_utf8, local_path
from hub.base.strict_yaml import as_typed
from hub.base.types import Fields
from hub.base.units import parse_count
from hub.record.filter import parse_filter
from hub.record.names import final_branch_name
from scaling_law.size.architecture import VOCAB_SIZE, Architecture
from training.configuration import reading
from training.configuration.arguments import SECTIONS, ConfigurationError, TrainingArguments
from training.configuration.schedule import Branch, total_tokens
from training.data.tokenizer import load_tokenizer, vocabulary_size
from training.run.inputs import resolve_arguments
from training.run.model import architecture


def _nest(values: Fields) -> Fields:
    """Make sections of a mapping that may have dotted fields (model.experts), sections and `preset`."""
    sections: Fields = {}
    for name, value in values.items():
        section, dot, field = str(name).partition(".")
        if name == "preset":
            sections["preset"] = value
        elif dot or isinstance(value, dict):
            sections.setdefault(section, {}).update({field: value} if dot else value)
        else:
            raise InputError(f"it must hold sections with fields, not {name}: {value!r}")
    return sections


def _as_text(value: Any) -> Any:
    """Return words of YAML as they were typed, such as the sweep 2026; other values are left for validation."""
    return as_typed(value) if isinstance(value, (bool, int, float)) else value


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _comparable(value: Any) -> Any:
    """Return a value in a form in which 1B, 1e9 and 1000000000 are equal, and a list of one is its value."""
    if isinstance(value, (list, tuple)):
        items = [_comparable(item) for item in value]
        return items[0] if len(items) == 1 else items
    text = as_typed(value)
    try:
        return parse_count(text)
    except ValueError:
        return text


Text = Annotated[str, BeforeValidator(_as_text)]
Sections = Annotated[Fields, AfterValidator(_nest)]


class Override(BaseModel):
    """Fields for the runs where all of `where` holds."""

    model_config = ConfigDict(extra="forbid")
    where: Fields = {}
    set: Sections


class SweepFile(BaseModel):
    """The keys of a sweep file; later wins: base, then the run, then the grid, then overrides.

        sweep: my-sweep                 # name
        output_dir: out/runs            # one folder per run below it
        base: {...}                     # the sections of a run, as for train.py; `preset: NAME` works here too
        grid:                           # every combination of these fields is one run (one trunk with its branches)
          model.d_model: [512, 1024]
        overrides:                      # for the runs where all of `where` holds
          - {where: {model.d_model: 512}, set: {schedule.tokens: [1B, 2B]}}

    Instead of a grid, or to be multiplied with one (by seeds, say), the runs may come

        runs: [{model.d_model: 512, schedule.tokens: [1B]}, ...]    # from a list, of dotted fields or sections
        from: paper                                                 # from the paper's listing, or the part of it
        where: experts in {1, 8}, d_model <= 1024, tokens <= 4B     #   for which all of `where` holds
        from: [plan-a.json, plan-b.yaml]                            # from what `scaling-law plan` or `match` wrote

    A grid over `optimizer.learning_rate` makes each rate a sweep of its own, `my-sweep-lr0.01`, with its runs named so
    too (`d512-E8-seed0-lr0.01`); `LearningRateLaw` is fitted to the best rates.
    """

    model_config = ConfigDict(extra="forbid")
    sweep: Text = "sweep"
    output_dir: Annotated[Path, BeforeValidator(_as_text)] = Path()
    base: Sections = {}
    grid: dict[str, list[Any]] = {}
    runs: list[Sections] = [{}]
    source: Annotated[list[Text], BeforeValidator(_as_list)] = Field([], alias="from")
    where: Text = ""
    overrides: list[Override] = []

    @model_validator(mode="after")
    def _check_keys(self) -> SweepFile:
        if {"runs", "source"} <= self.model_fields_set:
            raise InputError("give either runs or from")
        if self.where and self.source != [reading.PAPER]:
            raise InputError("where goes with `from: paper`; a grid has overrides")
        return self

    def list_runs(self, folder: Path) -> list[Fields]:
        """List the runs of `runs` or `from`, whose relative paths start in `folder`; one empty run for a grid."""
        if self.source == [reading.PAPER]:
            return _select_paper_runs(self.where)
        if not self.source:
            return self.runs
        return [_read_plan(folder / local_path(path)) for path in self.source]

    def points(self) -> list[Fields]:
        """List every combination of the grid's values, as sections."""
        combinations = itertools.product(*self.grid.values())
        return [_nest(dict(zip(self.grid, combination, strict=True))) for combination in combinations]


_KEYS = [field.alias or name for name, field in SweepFile.model_fields.items()]
_KEYS += [f"overrides.{name}" for name in Override.model_fields]


@dataclass(frozen=True, eq=False)
class SweepRun:
    """One trunk of the sweep with its branches; `launch.yaml`, `output.log` and `state.json` lie in its folder."""

    name: str
    folder: Path
    arguments: TrainingArguments

    @cached_property
    def branches(self) -> list[Branch]:
        """Branches of the trunk, shortest first."""
        return self.arguments.branches()

    def folder_of(self, branch: Branch) -> Path:
        """Return the folder of a branch."""
        return self.folder / final_branch_name(branch.tokens, self.arguments.run.seed)

    def finished(self) -> list[Path]:
        """List the model folders of the branches that have ended, each with its run.json."""
        folders = [self.folder_of(branch) / "model" for branch in self.branches]
        return [folder for folder in folders if (folder / "run.json").exists()]

    def records(self) -> list[RunRecord]:
        """Read the records of the branches that have ended, final or diverged."""
        return [RunRecord.load(folder) for folder in self.finished()]

    @property
    def complete(self) -> bool:
        """True if every branch has its record."""
        return len(self.finished()) == len(self.branches)

    @property
    def vocab_size(self) -> int | None:
        """Size of the tokenizer's vocabulary; None if it is not on this machine."""
        return _vocab_size(self.arguments.data.tokenizer, self.arguments.data.tokenizer_revision)

    @cached_property
    def architecture(self) -> Architecture:
        """Sizes of the model; with GPT-2's vocabulary where the tokenizer is not on this machine."""
        return architecture(self.arguments.model, self.vocab_size or VOCAB_SIZE)

    @property
    def target_tokens(self) -> int:
        """Tokens that this run trains: the trunk to its last branch point, and every branch's decay."""
        return total_tokens(self.branches)

    @property
    def cost(self) -> float:
        """FLOPs of training the trunk and its branches."""
        return self.architecture.training_flops(self.target_tokens)


@dataclass(frozen=True)
class Sweep:
    """A sweep file, checked: every run's configuration has been parsed."""

    name: str
    runs: tuple[SweepRun, ...]

    @classmethod
    def from_dict(cls, values: Fields, output_dir: Path | None = None, folder: Path = Path()) -> Sweep:
        """Read a file's values; `output_dir` replaces the file's, relative paths in `from` start in `folder`.

        Raises:
            ConfigurationError: an unknown key, an empty sweep, or a run whose configuration cannot be used.
        """
        try:
            file = SweepFile.model_validate({name: value for name, value in values.items() if value is not None})
            points = file.points()
        except ValidationError as error:
            raise ConfigurationError("sweep file: " + "\n  ".join(reading.describe_errors(error, _KEYS))) from None
        except InputError as error:
            raise ConfigurationError(f"sweep file: grid: {error}") from None
        sweep_folder = local_path(output_dir or file.output_dir)
        pairs = itertools.product(file.list_runs(folder), points)
        runs = [_make_run(file, sweep_folder, fields, point) for fields, point in pairs]
        if not runs:
            raise ConfigurationError("sweep file: there are no runs; give each field of the grid at least one value")
        names = [run.name for run in runs]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ConfigurationError(f"sweep file: two runs have the same name: {', '.join(repeated)}")
        return cls(file.sweep, tuple(runs))

    @classmethod
    def load(cls, path: str | Path, output_dir: Path | None = None) -> Sweep:
        """Read a sweep file; raises as `from_dict` does."""
        check_utf8(path, "sweep file")
        return cls.from_dict(reading.read_yaml(path, "sweep file"), output_dir, Path(path).parent)

    @property
    def folder(self) -> Path:
        """Parent of the runs' folders."""
        return self.runs[0].folder.parent

    def only(self, names: list[str]) -> Sweep:
        """Return the sweep with only these runs; without names, with all.

        Raises ConfigurationError for an unknown name.
        """
        all_names = [run.name for run in self.runs]
        for name in names:
            if name not in all_names:
                raise ConfigurationError(unknown("run ", name, all_names))
        return Sweep(self.name, tuple(run for run in self.runs if not names or run.name in names))


def _select_paper_runs(where: str) -> list[Fields]:
    """Select the configurations of the paper's listing by a filter, each with the tokens for which it holds."""
    configurations = list(reading.listing().values())
    try:
        holds = parse_filter(where, [*configurations[0].sizes, "tokens"], ())
    except RecordError as error:
        raise ConfigurationError(f"sweep file: where: {error}") from error
    runs = []
    for configuration in configurations:
        sizes = configuration.sizes
        tokens = [count for count in configuration.tokens if holds({**sizes, "tokens": count})]
        if tokens:
            runs.append({**configuration.sections(), "schedule": {"tokens": tokens}})
    if not runs:
        raise ConfigurationError(f"sweep file: where: {where!r} leaves none of the paper's listing")
    return runs


def _read_plan(path: Path) -> Fields:
    """Read the run of `scaling-law plan` (`--json` or `--output`); JSON is YAML, too."""
    plan = reading.read_yaml(path, "sweep file: from")
    try:
        sections = plan.get("configuration", plan)
        if not set(sections) <= {*SECTIONS, "preset"}:
            raise InputError(f"{str(path)!r} is neither 'paper' nor a plan of scaling-law plan")
        sections = _nest(sections)
    except ValueError as error:
        raise ConfigurationError(f"sweep file: from: {error}") from error
    run = {name: value for name, value in sections.get("run", {}).items() if name not in ("output_dir", "sweep")}
    return {**sections, "run": run}


def _make_run(file: SweepFile, folder: Path, fields: Fields, point: Fields) -> SweepRun:
    """Make the run with the fields of `runs` or `from`, at a point of the grid."""
    layers = [file.base, fields, point]
    preset: Any = next((layer["preset"] for layer in reversed(layers) if "preset" in layer), [])
    sections = reading.merge(reading.preset_sections(preset), *layers)
    for override in file.overrides:
        if _holds(override.where, sections):
            sections = reading.merge(sections, override.set)
    rate = ""
    # A text that is not a rate is refused below.
    with suppress(KeyError, TypeError, ValueError):
        rate = f"-lr{float(point['optimizer']['learning_rate']):g}"
    try:
        run = {"sweep": file.sweep + rate, "output_dir": str(folder)}
        arguments = reading.from_dict(reading.merge(sections, {"run": run}))
        name = f"{arguments.model.name}-seed{arguments.run.seed}{rate}"
        arguments = arguments.replaced(run={"output_dir": str(folder / name)})
        return SweepRun(name, folder / name, resolve_arguments(arguments))
    except ConfigurationError as error:
        size = {name: value for name, value in sections.get("model", {}).items() if name in ("d_model", "experts")}
        raise ConfigurationError(f"run {size or 'of the sweep'}: {error}") from error


def _holds(where: Fields, sections: Fields) -> bool:
    """Return whether the sections have all values of `where`, whose names are dotted fields."""
    values = {}
    for section, fields in sections.items():
        values.update({f"{section}.{name}": value for name, value in fields.items()})
    return all(_comparable(values.get(name)) == _comparable(value) for name, value in where.items())


@cache
def _vocab_size(tokenizer: str, revision: str | None) -> int | None:
    if (tokenizer, revision) == ("openai-community/gpt2", None):
        return VOCAB_SIZE
    try:
        return vocabulary_size(load_tokenizer(tokenizer, revision))
    except ConfigurationError:
        # The run itself will say what is wrong.
        return None
