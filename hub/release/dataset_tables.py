"""Tables of any dataset on the Hub, found as `datasets` finds them: by the card's `configs`, else by their names.

Without configs in the card, tables of one folder are one config of its name, and those of the repository's root or of
`data` are named by what their file names share beside splits and shards: `runs-00000-of-00002.parquet` is `runs`, and
`train.csv` is `default`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any

from hub.base.errors import FilesError, given
from hub.base.markdown import read_card
from hub.record.table import LoadedRows, require_readable, split_rows
from hub.store.base import Store

# Endings of tables that are read.
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
CARD = "README.md"
DEFAULT = "default"
SPLITS = ("train", "test", "validation", "valid", "dev", "eval")
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


def _card_configs(store: Store, repo: str, revision: str | None, names: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return the patterns of the files of each config that the card names; none without a card that can be read."""
    if CARD not in names:
        return {}
    text = store.read("dataset", repo, CARD, revision).decode("utf-8", errors="replace")
    try:
        entries = read_card(text).data.to_dict().get("configs") or []
    except FilesError:
        return {}
    configs = {}
    for entry in entries:
        if isinstance(entry, dict):
            # `data_dir` is the folder whose files these are.
            folder = [f"{entry['data_dir']}/*"] if entry.get("data_dir") else []
            configs[str(entry.get("config_name", DEFAULT))] = _patterns_of(entry.get("data_files")) or folder
    return configs


def _patterns_of(data_files: Any) -> list[str]:
    """Return the patterns in a card's `data_files`: a text, a list of texts, or of splits with a path or several."""
    if isinstance(data_files, str):
        return [data_files]
    if isinstance(data_files, dict):
        return _patterns_of(data_files.get("path"))
    patterns = []
    for entry in data_files or []:
        patterns += _patterns_of(entry)
    return patterns


def choose_files(
    names: Iterable[str], card_configs: Mapping[str, Sequence[str]], config: str | None, dataset: str
) -> list[str]:
    """Choose the tables of a config from the files of a dataset, sorted. FilesError says which configs there are."""
    tables = sorted(filter(_is_table, names))
    if not tables:
        raise FilesError(f"{dataset}: no table; allowed are files that end in {', '.join(SUFFIXES)}")
    if config in tables:
        return [str(config)]
    configs: dict[str, list[str]] = {}
    for table in tables:
        for name, patterns in card_configs.items():
            if any(fnmatch(table, pattern) for pattern in patterns):
                configs.setdefault(name, []).append(table)
    if not configs:
        for table in tables:
            configs.setdefault(_guess_config(table), []).append(table)
    only = next(iter(configs)) if len(configs) == 1 else DEFAULT
    name = only if config is None else config
    if name not in configs:
        present = ", ".join(sorted(configs)[:_MAX_NAMES])
        problem = "has several configs: name one by " if config is None else "has no "
        raise FilesError(f"{dataset} {problem}", given("config", config or ...), f"; there are {present}")
    return configs[name]


def _is_table(name: str) -> bool:
    """Return whether a file is a table; hidden files and a dataset's own descriptions are none."""
    is_hidden = re.search(r"(^|/)[._]", name)
    return name.endswith(SUFFIXES) and not is_hidden and not name.endswith("dataset_infos.json")


def _guess_config(name: str) -> str:
    """Name the config of a table: by its folder, else by its file name without split and shard."""
    folder, _, file_name = name.partition("/")
    if file_name and folder != "data":
        return folder
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", PurePosixPath(name).stem)
    return DEFAULT if stem in SPLITS else stem
