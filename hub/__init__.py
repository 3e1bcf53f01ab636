"""Run records and releases: what a training run was, where its checkpoint lies, and how to fetch both.

    from hub import RunRecord, open_store, push_run, push_index, load_index

    store = open_store("releases")                     # a folder; "hf://some-org" is the Hub
    pushed = push_run(store, "checkpoint", record)     # one atomic publication, checked afterwards
    push_index(store, record.sweep, [pushed])
    records = load_index(store, record.sweep)

The package imports none of the project's other packages, and no name is imported before it is used:
`hub.record` needs pydantic only, and huggingface_hub is imported when a Hub is talked to.
"""

# ruff: noqa: F401, I001 - the imports below are for type checkers

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hub.plain.errors import AccessError, ConflictError, FilesError, HubError, IntegrityError
    from hub.plain.errors import NotFoundError, PushErrors, RecordError, UnavailableError
    from hub.record.filter import parse_filter, select
    from hub.record.names import branch_name, index_name, repo_name
    from hub.record.run_record import RunRecord
    from hub.record.table import LoadedRows, write_records
    from hub.release.cards import model_card, sweep_card
    from hub.release.index import describe_index, list_runs, load_index, push_index, push_repo_cards, repair_index
    from hub.release.push import collect, push_run, push_runs, release_runs, tag_index
    from hub.release.sources import (
        load_records,
        load_rows,
        publish_files,
        pull_run,
        pull_runs,
        read_file,
        read_records,
    )
    from hub.store.base import Publication, Store
    from hub.store.files import run_folders
    from hub.store.folder import LocalStore
    from hub.store.hub import HubStore, open_store

_NAMES = {
    "plain.errors": "HubError RecordError FilesError ConflictError IntegrityError NotFoundError AccessError "
    "UnavailableError PushErrors",
    "record.run_record": "RunRecord",
    "record.names": "repo_name branch_name index_name",
    "record.table": "LoadedRows write_records",
    "record.filter": "parse_filter select",
    "store.base": "Store Publication",
    "store.folder": "LocalStore",
    "store.hub": "HubStore open_store",
    "store.files": "run_folders",
    "release.push": "push_run push_runs release_runs collect tag_index",
    "release.index": "push_index push_repo_cards describe_index load_index repair_index list_runs",
    "release.sources": "load_records load_rows read_file read_records publish_files pull_run pull_runs",
    "release.cards": "model_card sweep_card",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
