"""What is forecast from what: the list of splits, written down in splits.csv before any method was tuned.

A split fits the runs at most at a cut (a third, a tenth, a thirtieth of the largest compute C = 6 N D, a third of the
largest N or D) and forecasts those above. It is out unless `FITTED` runs of `SIZES` sizes lie below and `HELD_OUT`
above. The tables that are out altogether stand at the end of the list, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from scaling_law import Runs
from scaling_law.fitting.holdout import count_sizes
from studies.common import read_csv
from studies.forecasts.sets import SETS

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
    splits = []
    for one, (by, divisor) in product((one for one in SETS if one.name in tables), CUTS):
        runs = tables[one.name]
        below = _below(runs, by, divisor)
        parts = len(runs), int(below.sum()), count_sizes(runs.subset(below)), int((~below).sum())
        least = zip(parts[1:], (FITTED, SIZES, HELD_OUT), ("runs below", "sizes below", "runs above"), strict=True)
        wrong = [f"{value} {what}" for value, enough, what in least if value < enough]
        wrong += ["N and E confounded: no law without E"] * (one.name == "step_moe" and by == "n_active")
        splits.append(Split(one.name, one.lab, one.corpus, by, divisor, *parts, "; ".join(wrong)))
    return splits


def read_list(path: Path = LIST) -> list[Split]:
    """All splits, those that are out included."""
    return read_csv(path, Split)
