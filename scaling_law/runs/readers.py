"""Readers of public tables of runs, as their authors publish them: `load_runs(file, format="step_law")`.

A reader is data, a row of `readers.json`: which columns of the file are which of ours, what the authors left out, and
where the file is from; the files are not shipped. Where the file tells, sizes are counted as the joint law counts them
and `experts` as `Architecture.experts_equivalent`; other columns have the names of `Architecture.variables`. Step
Law's vocabulary is that of which the loss of diverged runs, 11.092, is the logarithm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.base.errors import InputError, unknown
from scaling_law.runs.columns import Column, with_columns
from scaling_law.runs.rows import Row, RunsError, names_of

ROWS = Path(__file__).with_name("readers.json")


@dataclass(frozen=True)
class Reader:
    """A public table of runs, with our columns as expressions of the file's, in order.

    A table may have several `forms`; the first is used whose `needs` are columns of the file. It adds `columns`, and
    keeps only the rows that the authors keep (`where`). `trunks` is the rule of `trunks_of`. Losses cannot be compared
    between values of the column `apart`, so that a filter has to choose one.
    """

    name: str
    # The table in words, such as "the runs of Step Law".
    contents: str
    # Name of the repository on GitHub.
    repository: str
    commit: str
    file: str
    licence: str
    loss: str
    columns: Mapping[str, Column]
    forms: Sequence[Mapping[str, Any]]
    counts: str
    paper: str = ""
    trunks: str = "run"
    apart: str | None = None

    @property
    def place(self) -> str:
        """Origin of the file, in words."""
        return f"{self.file} of github.com/{self.repository} at {self.commit} (licence: {self.licence})"

    def read(self, rows: Sequence[Row], origin: str) -> tuple[list[Row], dict[int, str], str]:
        """Return rows with our columns, problems of single rows, and the authors' filter.

        RunsError for a table that is not this one.
        """
        present = {*names_of(rows)}
        for form in self.forms:
            if present.issuperset(form["needs"]):
                columns = {**_COMPUTED.get(self.name, {}), **self.columns, **form.get("columns", {})}
                select = _SELECTED.get(self.name, list)
                converted, failed = with_columns(select(rows), columns, origin)
                return converted, failed, form.get("where", "")

        forms = " or ".join(", ".join(form["needs"]) for form in self.forms)
        available = ", ".join(sorted(present))
        raise RunsError(f"{origin}: not {self.contents} (columns {forms}), {self.place}; there are: {available}")


def reader(name: str) -> Reader:
    """Find the reader of this name; ValueError lists those there are."""
    if name not in READERS:
        raise InputError(unknown("format=", name, READERS))
    return READERS[name]


def _marin_key_value_heads(row: Row) -> int:
    """Find the greatest divisor of the heads that is at most a quarter of them."""
    heads = row["dim"] // 128
    divisors = [k for k in range(1, int(heads // 4) + 1) if heads % k == 0]
    return max(divisors, default=1)


def _clark_run(row: Row) -> str:
    return f"{int(row['hyper_id'])}-{int(row['step'])}"


# Columns of readers that are no expressions, and come first.
_COMPUTED: Mapping[str, Mapping[str, Column]] = {
    "marin_isoflop": {"n_kv_heads": _marin_key_value_heads},
    "clark": {"run_id": _clark_run},
    "clark_curves": {"run_id": _clark_run},
}


def _last_versions(rows: Sequence[Row]) -> list[Row]:
    """Select the last repeat, such as -v2, of each budget and width, as the authors' README takes."""

    def version(row: Row) -> int:
        match = re.search(r"v(\d+)$", str(row.get("suffix") or row.get("name") or ""))
        return int(match[1]) if match else 1

    last = {(row.get("budget"), row.get("dim")): row for row in sorted(rows, key=version)}
    return [row for row in rows if last[row.get("budget"), row.get("dim")] is row]


# Rows of readers that no filter can select.
_SELECTED: Mapping[str, Callable[[Sequence[Row]], list[Row]]] = {"marin_isoflop": _last_versions}


# A row of the file that is `like` an earlier one overrides its fields.
READERS: dict[str, Reader] = {}
for _row in json.loads(ROWS.read_text(encoding="utf-8")):
    _like = _row.pop("like", None)
    _base = vars(READERS[_like]) if _like else {}
    READERS[_row["name"]] = Reader(**{**_base, **_row})
