"""Run records and releases: what a training run was, where its checkpoint lies, and how to fetch both.

    from hub import RunRecord, open_store, push_run, push_index, load_index

    store = open_store("releases")                     # a folder; "hf://some-org" is the Hub
    pushed = push_run(store, "checkpoint", record)     # one atomic publication, checked afterwards
    push_index(store, record.sweep, [pushed])
    records = load_index(store, record.sweep)

The package imports none of the project's other packages, and no name is imported before it is used:
`hub.record` needs pydantic only, and huggingface_hub is imported when a Hub is talked to.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hub.plain.errors import (
        AccessError,
        ConflictError,
        FilesError,
        HubError,
        IntegrityError,
        NotFoundError,
        PushErrors,
        RecordError,
        UnavailableError,
    )
    from hub.record.filter import select
    from hub.record.names import branch_name, index_name, repo_name
    from hub.record.run_record import RunRecord
    from hub.record.table import read_records, write_records
    from hub.release.background import BackgroundPusher
    from hub.release.cards import model_card, sweep_card
    from hub.release.discovery import collect, tag_index
    from hub.release.index import describe_index, load_index, push_index, push_repo_cards
    from hub.release.published import PublishedRun, list_published, pull_published
    from hub.release.pull import pull_run, pull_runs
    from hub.release.push import push_run, push_runs, release_runs
    from hub.release.repair import list_runs, repair_index
    from hub.release.sources import load_records, publish_files, read_file
    from hub.store.base import Publication, Store
    from hub.store.files import run_folders
    from hub.store.folder import LocalStore
    from hub.store.hub import HubStore
    from hub.store.opening import open_store

_HOME = {
    "release.background": ("BackgroundPusher",),
    "release.cards": ("model_card", "sweep_card"),
    "release.discovery": ("collect", "tag_index"),
    "plain.errors": (
        "AccessError",
        "ConflictError",
        "FilesError",
        "HubError",
        "IntegrityError",
        "NotFoundError",
        "PushErrors",
        "RecordError",
        "UnavailableError",
    ),
    "store.files": ("run_folders",),
    "store.hub": ("HubStore",),
    "release.index": ("describe_index", "load_index", "push_index", "push_repo_cards"),
    "store.folder": ("LocalStore",),
    "record.filter": ("select",),
    "record.names": ("branch_name", "index_name", "repo_name"),
    "release.published": ("PublishedRun", "list_published", "pull_published"),
    "release.pull": ("pull_run", "pull_runs"),
    "release.push": ("push_run", "push_runs", "release_runs"),
    "record.run_record": ("RunRecord",),
    "release.repair": ("list_runs", "repair_index"),
    "release.sources": ("load_records", "publish_files", "read_file"),
    "store.base": ("Publication", "Store"),
    "store.opening": ("open_store",),
    "record.table": ("read_records", "write_records"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [  # noqa: RUF022 - sorted as a person reads them
    "RunRecord",
    "read_records",
    "write_records",
    "Store",
    "LocalStore",
    "HubStore",
    "Publication",
    "open_store",
    "run_folders",
    "push_run",
    "push_runs",
    "release_runs",
    "push_index",
    "push_repo_cards",
    "describe_index",
    "load_index",
    "repair_index",
    "list_runs",
    "load_records",
    "read_file",
    "publish_files",
    "BackgroundPusher",
    "PushErrors",
    "select",
    "pull_run",
    "pull_runs",
    "PublishedRun",
    "list_published",
    "pull_published",
    "collect",
    "tag_index",
    "model_card",
    "sweep_card",
    "repo_name",
    "branch_name",
    "index_name",
    "HubError",
    "RecordError",
    "FilesError",
    "ConflictError",
    "IntegrityError",
    "NotFoundError",
    "AccessError",
    "UnavailableError",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
