"""The shell's side of `hub`: push a run or a sweep, fetch checkpoints by filter, list a sweep's runs.

A store is a folder, or `hf://ORGANISATION` for the Hub; nothing leaves the machine unless the latter is given.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hub.plain import commands
from hub.plain.errors import FilesError, HubError, PushErrors
from hub.plain.units import format_bytes, format_count, format_decimal
from hub.record.filter import select
from hub.record.run_record import RunRecord
from hub.release.discovery import announce, check_announcement
from hub.release.index import load_index, push_index, push_repo_cards
from hub.release.licenses import checked_license, without_license
from hub.release.published import REPOSITORY, PublishedRun, list_published, pull_published
from hub.release.pull import pull_runs
from hub.release.push import MAX_WORKERS, prepare, push_runs
from hub.release.repair import repair_index
from hub.store.base import Store
from hub.store.files import release_of, run_folders, size_of
from hub.store.opening import open_store

app = commands.App(
    name="hub",
    help="Release training runs to a folder or to the Hugging Face Hub, and fetch them.",
)
# Progress and messages go to standard error, so that standard output can be piped.
out, log = Console(), Console(stderr=True)

Where = Annotated[str, typer.Option("--where", help='Filter, e.g. "E=8, D >= 1B, final".')]


@app.command()
def push(
    source: Annotated[Path, typer.Argument(metavar="RUN_OR_SWEEP", help="A folder with run.json, or one with such.")],
    store: commands.Store,
    private: commands.Private = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")] = False,
    index: Annotated[bool, typer.Option(help="Write the sweep's index at the end.")] = True,
    tag: commands.Tag = "",
    collection: commands.Collection = False,
    license: commands.License = None,
    workers: Annotated[int, typer.Option(min=1, max=MAX_WORKERS, help="Runs that are pushed at the same time.")] = 4,
) -> None:
    """Release a run's folder, or every run below a sweep's folder, and then the sweep's index.

    Every file that differs from what is there is sent, and nothing else: the same command goes on after an
    interruption, and puts a release right whose records, code or cards changed. Exit status 4: not all is pushed.
    """
    folders = run_folders(source)
    records = [RunRecord.load(folder) for folder in folders]
    target = open_store(store, private=private)
    check_announcement(target, tag, collection)
    license = checked_license(license) if license else None
    if dry_run:
        _show_plan(target, folders, records)
        return
    failed: PushErrors | None = None
    with _progress() as progress:
        task = progress.add_task("pushing", total=len(folders))
        runs = list(zip(folders, records, strict=True))
        advance = partial(progress.advance, task)
        try:
            pushed = push_runs(target, runs, workers=workers, license=license, done=lambda record: advance())
        except PushErrors as errors:
            pushed, failed = errors.pushed, errors
    if index:
        for sweep in sorted({record.sweep for record in pushed}):
            _list(target, sweep, [record for record in pushed if record.sweep == sweep], license, tag, collection)
    for record in pushed:
        out.print(f"{record.repo}@{record.branch} {record.commit}", highlight=False, markup=False, soft_wrap=True)
    if text := without_license(folders, license):
        log.print(f"[yellow]no licence:[/] {escape(text)}", highlight=False, soft_wrap=True)
    if pushed:  # last, so that it can be copied to the end
        _show_loading(target, pushed[-1])
    if failed:
        raise failed


def _list(store: Store, sweep: str, records: list[RunRecord], license: str | None, tag: str, collection: bool) -> None:
    """The index of a sweep and what follows from it. A failure here leaves pushed runs that nobody finds.

    Raises:
        PushErrors: the index, a card, the tag or the collection failed.
    """
    try:
        place = push_index(store, sweep, records, license=license)
        push_repo_cards(store, sweep, [record.repo or "" for record in records], license=license)
        log.print(f"index [bold]{escape(place.repo)}[/] at {place.commit[:12]}")
        for line in announce(store, sweep, records, commit=place.commit, tag=tag, collection=collection):
            log.print(escape(line), highlight=False, soft_wrap=True)
    except HubError as error:
        raise PushErrors([(f"the index of {sweep}", error)], records) from None


@app.command()
def pull(
    store: commands.Store,
    sweep: Annotated[str, typer.Argument(help="The sweep's name.")],
    to: Annotated[Path, typer.Option("--to", help="Folder to fetch into.")],
    where: Where = "final",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the index.")] = None,
) -> None:
    """Fetch the checkpoints that a filter keeps; their weights are checked against the index."""
    source = open_store(store)
    chosen = select(load_index(source, sweep, revision), where)
    if not chosen:
        raise FilesError(f"no run of {sweep!r} fulfils {where!r}")
    with _progress() as progress:
        task = progress.add_task("fetching", total=len(chosen))
        for _, folder in pull_runs(source, chosen, to):
            out.print(str(folder), highlight=False, markup=False, soft_wrap=True)
            progress.advance(task)


@app.command()
def runs(
    store: commands.Store,
    sweep: Annotated[str | None, typer.Argument(help="The sweep's name; without one, the sweeps are listed.")] = None,
    where: Where = "",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the index.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One record per line.")] = False,
) -> None:
    """List a sweep's runs, or the sweeps of a store."""
    source = open_store(store)
    if sweep is None:
        for name in source.repos("dataset"):
            if name.endswith("-runs"):
                out.print(name.removesuffix("-runs"), highlight=False, markup=False)
        return
    problems: list[str] = []
    chosen = select(load_index(source, sweep, revision, on_invalid="skip", problems=problems), where)
    for problem in problems:
        log.print(f"[yellow]left out:[/] {escape(problem)}")
    if json:
        for record in chosen:
            sys.stdout.write(record.to_json() + "\n")
    else:
        out.print(_table(sweep, chosen))


@app.command()
def repair(
    store: commands.Store,
    sweep: Annotated[str, typer.Argument(help="The sweep's name.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be changed, and write nothing.")] = False,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Remove rows of repositories that are gone or not visible.")
    ] = False,
) -> None:
    """Rebuild a sweep's index from the run.json of its branches, and say what changed."""
    with log.status(f"reading the branches of {escape(sweep)}"):
        repaired = repair_index(open_store(store), sweep, dry_run=dry_run, drop_missing=drop_missing)
    for line in (*repaired.changes, *repaired.stays):
        out.print(" ".join(line.split()), highlight=False, markup=False, soft_wrap=True)
    rows = f"{repaired.rows} run{'s' if repaired.rows != 1 else ''}"
    if not repaired.changes:
        log.print(f"the index of {escape(sweep)} is as its branches say: {rows}")
    elif repaired.publication is None:
        log.print(f"dry run, nothing was written; changes: {len(repaired.changes)}")
    else:
        place = repaired.publication
        log.print(f"index [bold]{escape(place.repo)}[/] at {place.commit[:12]}: {rows}")


@app.command()
def published(
    repository: Annotated[str, typer.Option(help="Where the checkpoints lie.")] = REPOSITORY,
    revision: Annotated[str | None, typer.Option(help="Branch or commit.")] = None,
) -> None:
    """List the checkpoints that the paper's authors released, as arguments of pull-published."""
    for run in list_published(repository, revision=revision):
        tokens = format_count(run.tokens or None)
        row = f"{run.d_model} {run.experts} {run.n_heads} {run.steps}  {tokens} tokens"
        out.print(row, highlight=False, markup=False, soft_wrap=True)


@app.command("pull-published")
def pull_published_command(
    d_model: Annotated[int, typer.Argument(metavar="D", help="Width d_model.")],
    experts: Annotated[int, typer.Argument(metavar="E", help="Number of experts.")],
    heads: Annotated[int, typer.Argument(metavar="HEADS", help="Attention heads.")],
    steps: Annotated[int, typer.Argument(metavar="STEPS", help="Optimizer steps.")],
    to: Annotated[Path, typer.Option("--to", help="New or empty folder.")],
    repository: Annotated[str, typer.Option(help="Where the checkpoints lie.")] = REPOSITORY,
    revision: Annotated[str | None, typer.Option(help="Branch or commit; the commit goes into the record.")] = None,
) -> None:
    """Fetch one of the paper's checkpoints and convert it to a folder for from_pretrained, with its run record."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise FilesError(f"{to} exists and is not an empty folder; nothing was fetched")
    run = PublishedRun(d_model, experts, heads, steps)
    with log.status(f"fetching and converting {run.path}"):
        commit = pull_published(run, to, repository=repository, revision=revision)
    out.print(f"{to} {repository}@{commit}", highlight=False, markup=False, soft_wrap=True)


def _show_loading(store: Store, record: RunRecord) -> None:
    """How to load one of the runs, unbroken, so that it can be pasted."""
    from hub.release.cards import loading_code, tokenizer_name
    from hub.store.folder import LocalStore

    repo, tokenizer = record.repo or "", tokenizer_name(record)
    if isinstance(store, LocalStore):
        folder = store.folder("model", repo, record.branch or "")
        code = loading_code(str(folder.resolve()), tokenizer=tokenizer)
    else:
        code = loading_code(repo, record.commit or record.branch, tokenizer=tokenizer)
    log.print("\nTo load one of them in Python (this runs the code of the release):\n", markup=False, soft_wrap=True)
    log.print(code, markup=False, highlight=False, soft_wrap=True)


def _show_plan(store: Store, folders: list[Path], records: list[RunRecord]) -> None:
    table = Table(title=f"would be pushed to {store.uri}")
    for heading in ("run", "repository", "branch", "files", "size", "left behind"):
        table.add_column(heading, overflow="fold")
    for folder, record in zip(folders, records, strict=True):
        release = release_of(folder)
        prepared = prepare(store, release, record)
        size = sum(map(size_of, release.files.values()))
        row = (record.run_id, prepared.repo or "", prepared.branch or "", str(len(release.files)), format_bytes(size))
        table.add_row(*map(escape, row), escape(", ".join(release.skipped)) or "–")
    out.print(table)


def _table(sweep: str, records: list[RunRecord]) -> Table:
    table = Table(title=f"{len(records)} runs of {sweep}")
    for heading in ("run", "status", "N active", "N total", "E", "tokens", "eval loss", "train loss", "revision"):
        table.add_column(heading, justify="left" if heading in ("run", "status", "revision") else "right")
    for record in records:
        where = f"{record.repo}@{record.branch}" if record.repo else "–"
        sizes = (
            format_count(record.n_active),
            format_count(record.n_total),
            str(record.experts),
            format_count(record.tokens),
        )
        losses = (format_decimal(record.eval_loss), format_decimal(record.train_loss))
        table.add_row(escape(record.run_id), record.status, *sizes, *losses, escape(where))
    return table


def _progress() -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=log)


def main() -> None:
    """`python -m hub`."""
    app(prog_name="python -m hub")
