"""What is forecast from what: the list of splits, written down in splits.csv before any method was tuned.

A split fits the runs at most at a cut (a third, a tenth, a thirtieth of the largest compute C = 6 N D, a third of the
largest N or D) and forecasts those above. It is out unless `FITTED` runs of `SIZES` sizes lie below and `HELD_OUT`
above.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scaling_law import Runs
from scaling_law.fitting.rolling import sizes_of
from studies.common import read_csv, rows_of, write_csv
from studies.forecasts.sets import OUT, SETS

FITTED, SIZES, HELD_OUT = 8, 3, 3
CUTS = (("flops", 3), ("flops", 10), ("flops", 30), ("n_active", 3), ("tokens", 3))
LIST = Path(__file__).with_name("splits.csv")


@dataclass(frozen=True)
class Split:
    """One line of the list; `out` says why it is not asked, "" where it is."""

    set: str
    lab: str
    corpus: str
    by: str
    divisor: int
    runs: int
    fitted: int
    sizes: int
    held_out: int
    out: str

    @property
    def cut(self) -> str:
        return {"flops": "C", "n_active": "N", "tokens": "D"}[self.by] + f"/{self.divisor}"

    def parts(self, runs: Runs) -> tuple[Runs, Runs]:
        """The fitted and the held-out runs. ValueError where the runs are not those of the list."""
        below = _below(runs, self.by, self.divisor)
        if (len(runs), int(below.sum())) != (self.runs, self.fitted):
            listed = f"{self.runs} runs, {self.fitted} below {self.cut}"
            raise ValueError(f"{self.set}: {len(runs)} runs, {below.sum()} below; the list has {listed}")
        return runs.subset(below), runs.subset(~below)


def _below(runs: Runs, by: str, divisor: int) -> np.ndarray:
    values = getattr(runs, by)
    return np.asarray(values <= values.max() / divisor * (1 + 1e-9))


def make_splits(tables: Mapping[str, Runs]) -> list[Split]:
    """The list for these sets, in the order of `SETS`."""
    return [
        _split(one.name, one.lab, one.corpus, tables[one.name], by, divisor)
        for one in SETS
        if one.name in tables
        for by, divisor in CUTS
    ]


def _split(name: str, lab: str, corpus: str, runs: Runs, by: str, divisor: int) -> Split:
    below = _below(runs, by, divisor)
    fitted, above = runs.subset(below), int((~below).sum())
    sizes = sizes_of(fitted)
    wrong = [
        f"{value} {what}"
        for value, least, what in ((len(fitted), FITTED, "runs below"), (sizes, SIZES, "sizes below"))
        if value < least
    ]
    wrong += [f"{above} runs above"] * (above < HELD_OUT)
    wrong += ["N and E confounded: no law without E"] * (name == "step_moe" and by == "n_active")
    return Split(name, lab, corpus, by, divisor, len(runs), len(fitted), sizes, above, "; ".join(wrong))


def write_list(splits: Iterable[Split], path: Path = LIST) -> Path:
    """The list as a table, and below it, in comments, the tables that are out and why."""
    return write_csv(path, rows_of(splits, Split), "".join(f"# out: {name}: {why}\n" for name, why in OUT.items()))


def read_list(path: Path = LIST) -> list[Split]:
    """All splits, those that are out included."""
    return read_csv(path, Split)
