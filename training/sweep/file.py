"""What a sweep file says: its runs, each with its whole configuration, checked.

    sweep: my-sweep                 # name
    output_dir: out/runs            # one folder per run below it
    base: {...}                     # the sections of a run, as for train.py; `preset: NAME` works here too
    grid:                           # every combination of these fields is one run (one trunk with its branches)
      model.d_model: [512, 1024]
      model.experts: [1, 8]
    overrides:                      # for the runs where all of `where` holds
      - where: {model.d_model: 512}
        set: {schedule.tokens: [1B, 2B]}

Instead of a grid, or to be multiplied with one (by seeds, say), the runs may come

    runs: [{model.d_model: 512, schedule.tokens: [1B]}, ...]    # from a list, of dotted fields or sections
    from: paper                                                 # from the paper's listing, or the part of it
    where: experts in {1, 8}, d_model <= 1024, tokens <= 4B     #   for which all of `where` holds
    from: [plan-a.json, plan-b.yaml]                            # from what `scaling-law plan` or `match` wrote

Later wins: base, then the run, then the grid, then overrides.

A grid over `optimizer.learning_rate` finds the best one: each rate is then a sweep of its own, `my-sweep-lr0.01`, and
its runs are named so too (`d512-E8-seed0-lr0.01`); `LearningRateLaw` is fitted to the best rates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import yaml

from hub.plain.errors import RecordError
from hub.record.filter import parse
from hub.record.names import final_branch_name
from scaling_law.planning import matched
from scaling_law.planning.matched import MatchedPlan
from scaling_law.size.architecture import VOCAB_SIZE, Architecture
from training.configuration import presets
from training.configuration.arguments import SECTIONS, ConfigurationError, TrainingArguments
from training.configuration.reading import from_dict
from training.configuration.schedule import Branch, total_tokens
from training.data.tokenizer import load_tokenizer
from training.run.inputs import settled
from training.run.model import architecture

_KEYS = {"sweep", "output_dir", "base", "grid", "runs", "from", "where", "overrides"}


@dataclass(frozen=True, eq=False)
class SweepRun:
    """One trunk of the sweep with its branches.

    Attributes:
        folder: where it is trained; `launch.yaml`, `output.log` and `state.json` lie there beside the run's own files.
    """

    name: str
    folder: Path
    arguments: TrainingArguments

    @cached_property
    def branches(self) -> list[Branch]:
        """The branches, shortest first."""
        schedule = self.arguments.schedule_at(1.0)
        return [schedule.branch(tokens) for tokens in sorted(set(self.arguments.schedule.tokens))]

    def folder_of(self, branch: Branch) -> Path:
        """Where the branch is trained."""
        return self.folder / final_branch_name(branch.tokens, self.arguments.run.seed)

    def finished(self) -> list[Path]:
        """Folders of the models of the branches that are through, each with its run.json."""
        folders = [self.folder_of(branch) / "model" for branch in self.branches]
        return [folder for folder in folders if (folder / "run.json").exists()]

    @cached_property
    def architecture(self) -> Architecture:
        """Sizes of the model. A tokenizer that is not at hand is taken to have GPT-2's 50257 tokens."""
        return architecture(self.arguments.model, self._known_vocab_size or VOCAB_SIZE)

    @property
    def assumes_vocabulary(self) -> bool:
        """Whether the tokenizer is not at hand, so that sizes are those with GPT-2's."""
        return self._known_vocab_size is None

    @property
    def _known_vocab_size(self) -> int | None:
        return _vocab_size(self.arguments.data.tokenizer, self.arguments.data.tokenizer_revision)

    @property
    def target_tokens(self) -> int:
        """Tokens that this run trains: the trunk to its last branch point, and every branch's decay."""
        return total_tokens(self.branches)

    @property
    def separate_tokens(self) -> int:
        """Tokens that the same branches would take as runs of their own."""
        return sum(branch.tokens for branch in self.branches)

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
    def from_dict(cls, values: dict, output_dir: Path | None = None, folder: Path = Path()) -> Sweep:
        """The sweep of a file's values.

        Args:
            output_dir: takes the place of the file's.
            folder: where relative paths in `from` start.

        Raises:
            ConfigurationError: an unknown key, an empty sweep, or a run whose configuration cannot be used.
        """
        if unknown := set(values) - _KEYS:
            raise ConfigurationError(f"sweep file: no such keys {sorted(unknown)}; there are {sorted(_KEYS)}")
        name = values.get("sweep") or "sweep"
        runs_folder = Path(output_dir or values.get("output_dir") or ".")
        points = itertools.product(_listed(values, folder), _grid(values.get("grid") or {}))
        runs = [_run(name, runs_folder, values, listed, point) for listed, point in points]
        if not runs:
            raise ConfigurationError("sweep file: there are no runs; give each field of the grid at least one value")
        names = [run.name for run in runs]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigurationError(f"sweep file: two runs have the same name: {', '.join(twice)}")
        return cls(name, tuple(runs))

    @classmethod
    def load(cls, path: str | Path, output_dir: Path | None = None) -> Sweep:
        """Read a sweep file; raises as `from_dict` does."""
        try:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise ConfigurationError(f"sweep file {str(path)!r}: {error}") from error
        if not isinstance(values, dict):
            raise ConfigurationError(f"sweep file {str(path)!r}: holds no mapping")
        return cls.from_dict(values, output_dir, Path(path).parent)

    def only(self, names: list[str]) -> Sweep:
        """The sweep with the runs of these names; all where none is given. Raises ConfigurationError."""
        if unknown := set(names) - {run.name for run in self.runs}:
            there = ", ".join(run.name for run in self.runs)
            raise ConfigurationError(f"the sweep has no run {', '.join(sorted(unknown))}; there are {there}")
        return Sweep(self.name, tuple(run for run in self.runs if not names or run.name in names))


# -- where the runs come from


def _listed(values: dict, folder: Path) -> list[dict]:
    """The runs of `runs` or `from` as sections; one without fields where a grid alone makes the runs."""
    if "runs" in values and "from" in values:
        raise ConfigurationError("sweep file: give either runs or from")
    if "where" in values and values.get("from") != presets.PAPER:
        raise ConfigurationError("sweep file: where goes with `from: paper`; a grid has overrides")
    if "runs" in values:
        if not isinstance(values["runs"], list) or not all(isinstance(run, dict) for run in values["runs"]):
            raise ConfigurationError(f"sweep file: runs is {values['runs']!r}; give a list of mappings")
        return [_nested(run, "runs") for run in values["runs"]]
    if values.get("from") == presets.PAPER:
        return _of_the_paper(str(values.get("where") or ""))
    if "from" in values:
        paths = values["from"] if isinstance(values["from"], list) else [values["from"]]
        return [run for path in paths for run in _planned(folder / str(path))]
    return [{}]


def _of_the_paper(where: str) -> list[dict]:
    """The configurations of the paper's listing that a filter keeps, each with the tokens for which it holds."""
    shape = ("d_model", "experts", "n_blocks", "n_heads", "n_active", "n_total")
    try:
        test = parse(where, (*shape, "tokens"), ())
    except RecordError as error:
        raise ConfigurationError(f"sweep file: where: {error}") from error
    found = []
    for listed in presets.listing().values():
        sizes = {name: getattr(listed.architecture, name) for name in shape}
        if tokens := [tokens for tokens in listed.tokens if test(sizes | {"tokens": tokens})]:
            found.append(listed.sections() | {"schedule": {"tokens": tokens}})
    if not found:
        raise ConfigurationError(f"sweep file: where: {where!r} leaves none of the paper's listing")
    return found


def _planned(path: Path) -> list[dict]:
    """The run of `scaling-law plan` (`--json` or `--output`), or the runs of `scaling-law match`."""
    try:
        plan = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"sweep file: from: {error}") from error
    if isinstance(plan, dict) and plan.get("format") == matched.FORMAT:
        try:
            return MatchedPlan.load(path).configurations()
        except ValueError as error:
            raise ConfigurationError(f"sweep file: from: {error}") from error
    sections = plan.get("configuration", plan) if isinstance(plan, dict) else None
    if not isinstance(sections, dict) or not set(sections) <= {*SECTIONS, "preset"}:
        raise ConfigurationError(
            f"sweep file: from: {str(path)!r} is neither 'paper' nor a plan of scaling-law plan or match"
        )
    sections = _nested(sections, str(path))
    for decided_here in ("output_dir", "sweep"):
        sections.get("run", {}).pop(decided_here, None)
    return [sections]


def _grid(grid: dict[str, list]) -> Iterator[dict]:
    for field_name, choices in grid.items():
        if not isinstance(choices, list):
            raise ConfigurationError(f"sweep file: grid.{field_name} is {choices!r}; give a list of values")
    for combination in itertools.product(*grid.values()):
        yield _nested(dict(zip(grid, combination, strict=True)), "grid")


def _run(sweep: str, folder: Path, values: dict, listed: dict, point: dict) -> SweepRun:
    layers = [_nested(values.get("base") or {}, "base"), listed, point]
    chosen = next((layer["preset"] for layer in reversed(layers) if "preset" in layer), [])
    sections: dict[str, dict] = {}
    for layer in (presets.sections(chosen), *layers):
        _update(sections, layer)
    for override in values.get("overrides") or []:
        if all(_get(sections, name) == value for name, value in override.get("where", {}).items()):
            _update(sections, _nested(override["set"], "overrides"))
    rate = f"-lr{_rate(point):g}" if "learning_rate" in point.get("optimizer", {}) else ""
    _update(sections, {"run": {"sweep": f"{sweep}{rate}", "output_dir": str(folder)}})
    try:
        arguments = from_dict(sections)
        name = f"{arguments.model.name}-seed{arguments.run.seed}{rate}"
        return SweepRun(name, folder / name, settled(arguments.replaced(run={"output_dir": str(folder / name)})))
    except ConfigurationError as error:
        size = {name: value for name, value in sections.get("model", {}).items() if name in ("d_model", "experts")}
        raise ConfigurationError(f"run {size or 'of the sweep'}: {error}") from error


def _rate(point: dict) -> float:
    value = point["optimizer"]["learning_rate"]
    try:
        return float(value)  # YAML reads 1e-3, without a point, as text
    except (TypeError, ValueError):
        raise ConfigurationError(f"sweep file: grid.optimizer.learning_rate has {value!r}; give numbers") from None


def _nested(values: dict, where: str) -> dict:
    """Sections from a mapping that may have dotted fields (model.experts), sections and `preset`."""
    sections: dict = {}
    for name, value in values.items():
        section, dot, field_name = str(name).partition(".")
        if dot:
            sections.setdefault(section, {})[field_name] = value
        elif name == "preset":
            sections["preset"] = value
        elif isinstance(value, dict):
            sections.setdefault(name, {}).update(value)
        else:
            raise ConfigurationError(f"sweep file: {where}.{name} is {value!r}; it is a section with fields")
    return sections


def _update(sections: dict, layer: dict) -> None:
    for section, fields in layer.items():
        if section != "preset":
            sections.setdefault(section, {}).update(fields)


def _get(sections: dict, name: str):
    section, _, field_name = name.partition(".")
    return sections.get(section, {}).get(field_name)


@cache
def _vocab_size(tokenizer: str, revision: str | None) -> int | None:
    if (tokenizer, revision) == ("openai-community/gpt2", None):
        return VOCAB_SIZE
    try:
        return len(load_tokenizer(tokenizer, revision))
    except ConfigurationError:
        return None  # the run itself will say what is wrong
