"""Tables of any dataset on the Hub, found as `datasets` finds them: by the card's `configs`, else by their names.

Without configs in the card, tables of one folder are one config of its name, and those of the repository's root or of
`data` are named by what their file names share beside splits and shards: `runs-00000-of-00002.parquet` is `runs`, and
`train.csv` is `default`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from hub.base.errors import FilesError, given, message
from hub.base.markdown import read_card
from hub.record.table import LoadedRows, require_readable, split_rows
from hub.store.base import Store

# Endings of tables that are read.
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
CARD = "README.md"
DEFAULT = "default"
SPLITS = ("train", "test", "validation", "valid", "dev", "eval")
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
# Configs that an error names.
_MAX_NAMES = 20


def load_table(
    store: Store, repo: str, revision: str | None, config: str | None, problems: list[str] | None
) -> LoadedRows:
    """Load the rows of a config of a dataset, those of all its splits.

    Args:
        config: the name of a config, or of a table's file; None for the only one, or the one called default.
        problems: given a list, unreadable rows are left out and their reasons are appended to it.

    Raises:
        NotFoundError: no such dataset or revision.
        FilesError: a dataset without tables, an unknown config, or several and none was named.
    """
    names = store.files("dataset", repo, revision or "main")
    dataset = store.repo_id(repo)
    files = choose_files(names, _card_configs(store, repo, revision, names), config, dataset)
    rows: list[Any] = []
    commit = ""
    for name in files:
        content, commit = store.pinned("dataset", repo, name, revision)
        rows += require_readable(*split_rows(content, name, foreign=True), name, problems)
    label = f"{dataset}@{commit[:12]}"
    if config is not None:
        label += f" ({config})"
    return LoadedRows(rows, label, dataset, commit)


def _card_configs(
    store: Store, repo: str, revision: str | None, names: Iterable[str]
) -> Mapping[str, tuple[str, ...]]:
    """Return the patterns of the files of each config that the card names; none without a card that can be read."""
    if CARD not in names:
        return {}
    text = store.read("dataset", repo, CARD, revision).decode("utf-8", errors="replace")
    try:
        metadata = read_card(text).data.to_dict()
    except FilesError:
        return {}
    configs: dict[str, tuple[str, ...]] = {}
    entries = metadata.get("configs", [])
    if not isinstance(entries, list):
        return {}
    for entry in entries:
        if isinstance(entry, dict):
            patterns = _patterns_of(entry.get("data_files"))
            # `data_dir` is the folder whose files these are.
            if not patterns and "data_dir" in entry:
                patterns = [f"{entry['data_dir']}/*"]
            name = str(entry.get("config_name", DEFAULT))
            configs[name] = tuple(patterns)
    return configs


def _patterns_of(data_files: Any) -> list[str]:
    """Return the patterns in a card's `data_files`: a text, a list of texts, or of splits with a path or several."""
    if isinstance(data_files, str):
        return [data_files]
    if isinstance(data_files, dict):
        return _patterns_of(data_files.get("path"))
    patterns = []
    if isinstance(data_files, list):
        for entry in data_files:
            patterns += _patterns_of(entry)
    return patterns


def choose_files(
    names: Iterable[str], card_configs: Mapping[str, tuple[str, ...]], config: str | None, dataset: str
) -> list[str]:
    """Choose the tables of a config from the files of a dataset, sorted. FilesError says which configs there are."""
    tables = sorted(name for name in names if _is_table(name))
    if not tables:
        raise FilesError(f"{dataset}: no table; allowed are files that end in {', '.join(SUFFIXES)}")
    if config in tables:
        return [str(config)]
    configs: dict[str, list[str]] = {}
    for name, patterns in card_configs.items():
        matches: set[str] = set()
        for pattern in patterns:
            matches.update(fnmatch.filter(tables, pattern))
        if matches:
            configs[name] = sorted(matches)
    if not configs:
        for table in tables:
            configs.setdefault(_guess_config(table), []).append(table)
    if config is None and len(configs) == 1:
        return next(iter(configs.values()))
    name = config or DEFAULT
    if name in configs:
        return configs[name]
    problem = message(f"{dataset} has several configs: name one by ", given("config"))
    if config is not None:
        problem = message(f"{dataset} has no ", given("config", config))
    choices = ", ".join(sorted(configs)[:_MAX_NAMES])
    raise FilesError(problem, f"; there are {choices}")


def _is_table(name: str) -> bool:
    """Return whether a file is a table; hidden files and a dataset's own descriptions are none."""
    path = PurePosixPath(name)
    is_hidden = any(segment.startswith((".", "_")) for segment in path.parts)
    return name.endswith(SUFFIXES) and not is_hidden and path.name != "dataset_infos.json"


def _guess_config(name: str) -> str:
    """Name the config of a table: by its folder, else by its file name without split and shard."""
    path = PurePosixPath(name)
    if len(path.parts) > 1 and path.parts[0] != "data":
        return path.parts[0]
    stem = _SHARD.sub("", path.stem)
    return DEFAULT if stem in SPLITS else stem
