"""Many runs from one file: `python -m training.sweep plan|run|status SWEEP.yaml`.

    sweep: my-sweep                 # name
    output_dir: out/runs            # one folder per run below it
    base: {...}                     # the sections of a run, as for train.py
    grid:                           # every combination of these fields is one run (one trunk with its branches)
      model.d_model: [512, 1024]
      model.experts: [1, 8]
    overrides:                      # for the runs where all of `where` holds
      - where: {model.d_model: 512}
        set: {schedule.tokens: [1B, 2B]}

Each run is one `accelerate launch train.py`, which goes on from what is there; a run that fails does not stop the
others.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
import yaml

from . import launch
from .arguments import ConfigurationError, TrainingArguments
from .configuration import from_dict

app = typer.Typer(help="Plan, run and look at a sweep of training runs.", no_args_is_help=True)


@dataclass(frozen=True, eq=False)
class SweepRun:
    """One trunk of the sweep with its branches."""

    name: str
    folder: Path
    arguments: TrainingArguments

    @property
    def target_tokens(self) -> int:
        """Tokens that this run trains: the trunk to its last branch point, and every branch's decay."""
        schedule = self.arguments.schedule_at(1.0)
        branches = [schedule.branch(tokens) for tokens in set(self.arguments.schedule.tokens)]
        return max(b.branch_point_tokens for b in branches) + sum(b.tokens - b.branch_point_tokens for b in branches)

    @property
    def separate_tokens(self) -> int:
        """Tokens that the same branches would take as runs of their own."""
        schedule = self.arguments.schedule_at(1.0)
        return sum(schedule.branch(tokens).tokens for tokens in set(self.arguments.schedule.tokens))

    @property
    def cost(self) -> float:
        """Proportional to the FLOPs of the blocks, to start the longest runs first and to show the progress by."""
        return self.target_tokens * self.arguments.model.d_model**3

    def finished(self) -> list[Path]:
        """Folders of the finished models, each with its run.json."""
        return sorted(path.parent for path in self.folder.glob("*/model/run.json"))

    @property
    def is_finished(self) -> bool:
        return len(self.finished()) == len(set(self.arguments.schedule.tokens))

    def trained_tokens(self) -> int:
        """Tokens trained so far, as far as the logs tell."""
        done = 0
        for log in self.folder.glob("*/log.jsonl"):
            for line in reversed(_last_lines(log)):
                try:
                    tokens = json.loads(line)["tokens"]
                except ValueError:
                    continue  # being written just now
                done += tokens - (0 if log.parent.name == "trunk" else self._branch_point(tokens, log.parent.name))
                break
        return min(done, self.target_tokens)

    def _branch_point(self, tokens: int, name: str) -> int:
        from hub.names import final_branch_name

        schedule = self.arguments.schedule_at(1.0)
        for target in self.arguments.schedule.tokens:
            branch = schedule.branch(target)
            if final_branch_name(branch.tokens, self.arguments.run.seed) == name:
                return branch.branch_point_tokens
        return tokens


def _last_lines(log: Path, size: int = 1 << 16) -> list[bytes]:
    """The last lines of a file, the first possibly cut: a long log is not read whole at every look."""
    with open(log, "rb") as file:
        file.seek(max(0, file.seek(0, 2) - size))
        return file.read().splitlines()


@dataclass(frozen=True)
class Sweep:
    """A sweep file, checked: every run's configuration has been parsed."""

    name: str
    runs: tuple[SweepRun, ...]

    @classmethod
    def from_dict(cls, values: dict, output_dir: Path | None = None) -> Sweep:
        """Raises ConfigurationError: an unknown key, an empty sweep, or a run whose configuration cannot be used."""
        unknown = set(values) - {"sweep", "output_dir", "base", "grid", "overrides"}
        if unknown:
            raise ConfigurationError(f"sweep file: no such keys {sorted(unknown)}")
        name = values.get("sweep") or "sweep"
        folder = Path(output_dir or values.get("output_dir") or ".")
        runs = [_run(name, folder, values, point) for point in _grid(values.get("grid") or {})]
        if not runs:
            raise ConfigurationError("sweep file: the grid is empty; give at least one value for each of its fields")
        names = [run.name for run in runs]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"sweep file: two runs have the same name, in {names}")
        return cls(name, tuple(runs))

    @classmethod
    def load(cls, path: str | Path, output_dir: Path | None = None) -> Sweep:
        """Read a sweep file."""
        try:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise ConfigurationError(f"sweep file {str(path)!r}: {error}") from error
        if not isinstance(values, dict):
            raise ConfigurationError(f"sweep file {str(path)!r}: holds no mapping")
        return cls.from_dict(values, output_dir)


def _grid(grid: dict[str, list]) -> Iterator[dict]:
    for field_name, choices in grid.items():
        if not isinstance(choices, list):
            raise ConfigurationError(f"sweep file: grid.{field_name} is {choices!r}; give a list of values")
    for combination in itertools.product(*grid.values()):
        yield dict(zip(grid, combination, strict=True))


def _run(sweep: str, folder: Path, values: dict, point: dict) -> SweepRun:
    sections = {name: dict(fields) for name, fields in (values.get("base") or {}).items()}
    _set(sections, point)
    for override in values.get("overrides") or []:
        if all(_get(sections, name) == value for name, value in override.get("where", {}).items()):
            _set(sections, override["set"])
    model = sections.get("model", {})
    seed = sections.get("run", {}).get("seed", 0)
    name = f"d{model.get('d_model', 'default')}-E{model.get('experts', 1)}-seed{seed}"
    _set(sections, {"run.sweep": sweep, "run.output_dir": str(folder / name)})
    try:
        return SweepRun(name, folder / name, from_dict(sections))
    except ConfigurationError as error:
        raise ConfigurationError(f"run {name}: {error}") from error


def _set(sections: dict, values: dict) -> None:
    for name, value in values.items():
        section, _, field_name = name.partition(".")
        sections.setdefault(section, {})[field_name] = value


def _get(sections: dict, name: str):
    section, _, field_name = name.partition(".")
    return sections.get(section, {}).get(field_name)


@dataclass
class Outcome:
    """What became of the runs: finished names, and for each failed one its exit status and log."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, tuple[int, Path]] = field(default_factory=dict)


def run_sweep(sweep: Sweep, workers: int, watch: Callable[[list[SweepRun]], None] = lambda running: None) -> Outcome:
    """Work off the sweep, `workers` runs at a time, the dearest first; what is finished already is not run again.

    Args:
        watch: called about twice a second with the runs that are running now.
    """
    outcome = Outcome(finished=[run.name for run in sweep.runs if run.is_finished])
    waiting = sorted((run for run in sweep.runs if not run.is_finished), key=lambda run: run.cost, reverse=True)
    free = launch.workers(workers)
    busy: dict[str, tuple[SweepRun, launch.Worker]] = {}
    try:
        while waiting or busy:
            while waiting and free:
                run, worker = waiting.pop(0), free.pop()
                run.folder.mkdir(parents=True, exist_ok=True)
                config = run.folder / "launch.yaml"
                run.arguments.save(config)
                worker.start(config, run.folder / "output.log")
                busy[run.name] = run, worker
            time.sleep(0.5)
            watch([run for run, _ in busy.values()])
            for run, worker in list(busy.values()):
                if (status := worker.exit_status()) is None:
                    continue
                free.append(busy.pop(run.name)[1])
                if status == 0 and run.is_finished:
                    outcome.finished.append(run.name)
                else:
                    outcome.failed[run.name] = status, run.folder / "output.log"
    finally:
        for _, worker in busy.values():
            worker.stop()
    return outcome


def plan_table(sweep: Sweep):
    """A rich table of the runs: size, tokens, FLOPs, and what sharing trunks saves."""
    from rich.table import Table

    table = Table(title=f"sweep {sweep.name}: {len(sweep.runs)} trunks")
    for heading in ("run", "branches (tokens)", "tokens trained", "as separate runs", "state"):
        table.add_column(heading, justify="left" if heading == "run" else "right")
    for run in sweep.runs:
        branches = ", ".join(f"{tokens / 1e6:g}M" for tokens in sorted(set(run.arguments.schedule.tokens)))
        state = "finished" if run.is_finished else f"{run.trained_tokens() / run.target_tokens:.0%}"
        table.add_row(run.name, branches, f"{run.target_tokens:,}", f"{run.separate_tokens:,}", state)
    shared, separate = sum(r.target_tokens for r in sweep.runs), sum(r.separate_tokens for r in sweep.runs)
    table.caption = f"trunks shared by branches save {1 - shared / separate:.0%} of the tokens"
    return table


_SweepFile = Annotated[Path, typer.Argument(help="The sweep file (YAML).")]


@app.command()
def plan(sweep_file: _SweepFile) -> None:
    """Show the trunks and branches of a sweep; nothing is run."""
    _show(sweep_file)


@app.command()
def status(sweep_file: _SweepFile) -> None:
    """Show how far each run has come."""
    _show(sweep_file)


@app.command()
def run(
    sweep_file: _SweepFile,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time; on CPU the cores are shared out.")] = 1,
) -> None:
    """Work off the sweep; start it again to go on after an interruption."""
    from rich.console import Console

    sweep = _load(sweep_file)
    with sweep_progress(sweep) as watch:
        outcome = run_sweep(sweep, workers, watch)
    _show(sweep_file)
    for name, (exit_status, log) in outcome.failed.items():
        Console(stderr=True).print(f"[red]run {name} failed with exit status {exit_status}[/]: see {log}")
    raise typer.Exit(1 if outcome.failed else 0)


@contextmanager
def sweep_progress(sweep: Sweep) -> Iterator[Callable[[list[SweepRun]], None]]:
    """A live display of the running runs and of the whole sweep; the value is the `watch` for `run_sweep`."""
    from rich import progress

    columns = (
        progress.TextColumn("{task.description:<20}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, transient=True) as display:
        whole = display.add_task(f"[bold]sweep {sweep.name}", total=sum(run.cost for run in sweep.runs))
        tasks = {run.name: display.add_task(run.name, total=run.target_tokens, visible=False) for run in sweep.runs}

        def watch(running: list[SweepRun]) -> None:
            names = {run.name for run in running}
            trained = {run.name: run.trained_tokens() for run in sweep.runs}
            for name, task in tasks.items():
                display.update(task, completed=trained[name], visible=name in names)
            done = sum(run.cost * trained[run.name] / run.target_tokens for run in sweep.runs)
            display.update(whole, completed=done)

        yield watch


def _load(path: Path) -> Sweep:
    try:
        return Sweep.load(path)
    except ConfigurationError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


def _show(path: Path) -> None:
    from rich.console import Console

    Console().print(plan_table(_load(path)))


if __name__ == "__main__":
    app()
