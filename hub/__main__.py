"""`python -m hub push|pull|runs|repair`: releases from the shell.

A store is a folder, or `hf://ORGANISATION` for the Hub; nothing leaves the machine unless the latter is given.
Results go to standard output, progress and messages to standard error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hub.base import commands
from hub.base.errors import FilesError
from hub.base.progress import progress_line
from hub.base.tables import Table, print_table
from hub.base.units import format_bytes
from hub.record.filter import select
from hub.record.run_record import RunRecord
from hub.record.table import to_jsonl
from hub.release.cards import loading_code, runs_table, tokenizer_name
from hub.release.index import load_index, repair_index
from hub.release.push import MAX_WORKERS, check_options, prepare, release_runs
from hub.release.sources import pull_runs
from hub.store.base import Store
from hub.store.files import release_of, run_folders, size_of
from hub.store.folder import LocalStore
from hub.store.hub import open_store

app = commands.App(name="hub", help="Release training runs to a folder or to the Hugging Face Hub, and fetch them.")
log = Console(stderr=True)

Sweep = Annotated[str, typer.Argument(help="The sweep's name.")]
Where = Annotated[
    list[str], typer.Option("--where", help='Filter, e.g. "E=8, D >= 1B, final"; repeated ones must all hold.')
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be written without writing it.")]


@app.command()
def push(
    source: Annotated[
        Path, typer.Argument(metavar="RUN_OR_SWEEP", help="A run folder, or any parent of run folders.")
    ],
    store: commands.Store,
    private: commands.Private = False,
    dry_run: DryRun = False,
    index: Annotated[bool, typer.Option(help="Write the sweep's index at the end.")] = True,
    tag: commands.Tag = "",
    collection: commands.Collection = False,
    license: commands.License = None,
    workers: Annotated[int, typer.Option(min=1, max=MAX_WORKERS, help="Runs pushed at the same time.")] = 4,
) -> None:
    """Release a run's folder, or every run below a sweep's folder, and then the sweep's index.

        python -m hub push runs releases

    Only files that differ from what is there are sent: re-run the command to resume, or to correct a release whose
    records, code or cards changed. Exit status 4: not all of it was pushed.
    """
    runs = [(folder, RunRecord.load(folder)) for folder in run_folders(source)]
    target = open_store(store, private=private)
    check_options(target, license=license, tag=tag, collection=collection)
    if dry_run:
        print_table(_plan(target, runs))
        return
    with progress_line("push", len(runs), "runs", console=log) as advance:

        def show_progress(record: RunRecord) -> None:
            loss = record.train_loss if record.eval_loss is None else record.eval_loss
            advance(1, record.status if loss is None else f"loss {loss:.3f}")

        released = release_runs(
            target,
            runs,
            workers=workers,
            license=license,
            index=index,
            tag=tag,
            collection=collection,
            done=show_progress,
        )
    for publication in released.indexes.values():
        _say(f"index {publication.repo} at {publication.commit[:12]}")
    for line in released.messages:
        _say(line)
    for record in released.records:
        typer.echo(f"{record.repo}@{record.branch} {record.commit}")
    if released.records:
        # The code comes last, so that it can be copied to the end.
        _say("\nTo load one of them in Python (this runs the code of the release):\n")
        _say(_loading_code(target, released.records[-1]))
    if released.failed:
        raise released.failed


@app.command()
def pull(
    store: commands.Store,
    sweep: Sweep,
    to: Annotated[Path, typer.Option("--to", help="Folder to fetch into.")],
    where: Where = ["final"],  # noqa: B006
    revision: commands.Revision = None,
) -> None:
    """Fetch the checkpoints that match a filter; every file is checked against what was released.

        python -m hub pull releases my-sweep --to fetched --where "E = 8, D >= 1B, final"

    `--revision` is that of the sweep's index.
    """
    source = open_store(store)
    conditions = commands.join_filters(where)
    selected = select(load_index(source, sweep, revision), conditions)
    if not selected:
        raise FilesError(f"no run of {sweep!r} matches {conditions!r}")
    with progress_line("pull", len(selected), "runs", console=log) as advance:
        for _, folder in pull_runs(source, selected, to):
            typer.echo(str(folder))
            advance(1, "")


@app.command()
def runs(
    store: commands.Store,
    sweep: Annotated[str | None, typer.Argument(help="The sweep's name; without one, the sweeps are listed.")] = None,
    where: Where = [],  # noqa: B006
    revision: commands.Revision = None,
    json: Annotated[bool, typer.Option("--json", help="Print one record per line.")] = False,
) -> None:
    """List a sweep's runs, or the sweeps of a store.

        python -m hub runs releases my-sweep

    `--revision` is that of the sweep's index.
    """
    source = open_store(store)
    if sweep is None:
        for name in source.repos("dataset"):
            if name.endswith("-runs"):
                typer.echo(name.removesuffix("-runs"))
        return
    problems: list[str] = []
    selected = select(load_index(source, sweep, revision, problems=problems), commands.join_filters(where))
    for problem in problems:
        _say(f"left out: {problem}")
    if json:
        print(to_jsonl(selected).decode(), end="")
    else:
        print_table(runs_table(selected, title=f"{len(selected)} runs of {sweep}"))


@app.command()
def repair(store: commands.Store, sweep: Sweep) -> None:
    """Rebuild a sweep's index from the run.json of its branches.

    python -m hub repair releases my-sweep
    """
    with log.status("reading the branches"):
        publication = repair_index(open_store(store), sweep)
    if publication.written:
        _say(f"index {publication.repo} at {publication.commit[:12]} was rebuilt from the branches of {sweep}")
    else:
        _say(f"the index of {sweep} agrees with its branches")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _loading_code(store: Store, record: RunRecord) -> str:
    """Write Python that loads a released run, in unbroken lines, so that it can be pasted."""
    place = record.repo or ""
    revision = record.commit or record.branch
    if isinstance(store, LocalStore):
        place = str(store.folder("model", place, record.branch or "").resolve())
        revision = None
    return loading_code(place, revision, tokenizer=tokenizer_name(record), has_code=record.model_type is None)


def _plan(store: Store, runs: list[tuple[Path, RunRecord]]) -> Table:
    """Make a table of the files that a push would send."""
    rows = []
    for folder, record in runs:
        release = release_of(folder)
        prepared = prepare(store, release, record)
        row = (
            record.run_id,
            prepared.repo,
            prepared.branch,
            len(release.files),
            format_bytes(sum(map(size_of, release.files.values()))),
            ", ".join(release.skipped) or None,
        )
        rows.append(row)
    header = ("run", "repository", "branch", "files", "size", "not pushed")
    return Table(header, rows, title=f"would be pushed to {store.uri}")


def main() -> None:
    """Run `python -m hub`."""
    app(prog_name="python -m hub")


if __name__ == "__main__":
    main()
