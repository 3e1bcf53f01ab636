"""Run records and releases: what a training run was, where its checkpoint lies, and how to fetch both.

    from hub import RunRecord, open_store, push_run, push_index, load_index

    store = open_store("releases")                     # a folder; "hf://some-org" is the Hub
    pushed = push_run(store, "checkpoint", record)     # one atomic publication, checked afterwards
    push_index(store, record.sweep, [pushed])
    records = load_index(store, record.sweep)

The package imports none of the project's other packages, and no name is imported before it is used: `hub.records`
needs pydantic only, and huggingface_hub is imported when a Hub is talked to.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .background import BackgroundPusher
    from .cards import model_card, sweep_card
    from .discovery import collect, tag_index
    from .errors import (
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
    from .files import run_folders
    from .hub_store import HubStore
    from .index import describe_index, list_runs, load_index, push_index, push_repo_cards
    from .local_store import LocalStore
    from .names import branch_name, index_name, repo_name
    from .published import PublishedRun, list_published, pull_published
    from .pull import check_parameters, pull_run, pull_runs, select
    from .push import push_run, push_runs
    from .records import RunRecord
    from .repair import repair_index
    from .sources import load_records, publish_files, read_file
    from .store import Publication, Store, open_store
    from .tables import read_records, write_records

_HOME = {
    "background": ("BackgroundPusher",),
    "cards": ("model_card", "sweep_card"),
    "discovery": ("collect", "tag_index"),
    "errors": (
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
    "files": ("run_folders",),
    "hub_store": ("HubStore",),
    "index": ("describe_index", "list_runs", "load_index", "push_index", "push_repo_cards"),
    "local_store": ("LocalStore",),
    "names": ("branch_name", "index_name", "repo_name"),
    "published": ("PublishedRun", "list_published", "pull_published"),
    "pull": ("check_parameters", "pull_run", "pull_runs", "select"),
    "push": ("push_run", "push_runs"),
    "records": ("RunRecord",),
    "repair": ("repair_index",),
    "sources": ("load_records", "publish_files", "read_file"),
    "store": ("Publication", "Store", "open_store"),
    "tables": ("read_records", "write_records"),
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
    "check_parameters",
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
