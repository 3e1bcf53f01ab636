"""The list of splits, which says what is forecast from what, written down in splits.csv before any method was tuned.

A split fits the runs at most at a cut (a third, a tenth, a thirtieth, a hundredth of the largest compute C = 6 N D, a
third or a tenth of the largest N or D) and forecasts those above. It is out unless `FITTED` runs of `SIZES` sizes lie
below and `HELD_OUT` above. The tables that are out altogether stand at the end of the list, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from scaling_law import Runs
from studies.common import read_csv
from studies.forecasts.sets import SETS, RunSet

FITTED = 8
SIZES = 3
HELD_OUT = 3
CUTS = (
    ("flops", 3),
    ("flops", 10),
    ("flops", 30),
    ("flops", 100),
    ("n_active", 3),
    ("n_active", 10),
    ("tokens", 3),
    ("tokens", 10),
)
SYMBOLS = {"flops": "C", "n_active": "N", "tokens": "D"}
CUT_NAMES = tuple(f"{SYMBOLS[by]}/{divisor}" for by, divisor in CUTS)
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
        """The cut as the page names it: C/10."""
        return f"{SYMBOLS[self.by]}/{self.divisor}"

    def divide(self, runs: Runs) -> tuple[Runs, Runs]:
        """Divide runs into the fitted and the held-out ones.

        Raises ValueError where the runs are not those of the list.
        """
        is_below = _is_below(runs, self.by, self.divisor)
        n_below = int(is_below.sum())
        if (len(runs), n_below) != (self.runs, self.fitted):
            expected = f"{self.runs} runs, {self.fitted} below {self.cut}"
            raise ValueError(f"{self.set}: {len(runs)} runs, {n_below} below; the list has {expected}")
        return runs.subset(is_below), runs.subset(~is_below)


def _is_below(runs: Runs, by: str, divisor: int) -> np.ndarray:
    """Mark the runs at most at a cut."""
    values = getattr(runs, by)
    return np.asarray(values <= values.max() / divisor * (1 + 1e-9))


def make_splits(tables: Mapping[str, Runs]) -> list[Split]:
    """Make the list for these sets, in the order of `SETS`."""
    sets = [run_set for run_set in SETS if run_set.name in tables]
    return [_make_split(run_set, tables[run_set.name], by, divisor) for run_set, (by, divisor) in product(sets, CUTS)]


def _make_split(run_set: RunSet, runs: Runs, by: str, divisor: int) -> Split:
    """Make a split, with the reasons why it is out."""
    is_below = _is_below(runs, by, divisor)
    fitted = int(is_below.sum())
    sizes = runs.subset(is_below).n_sizes
    held_out = int((~is_below).sum())
    reasons = []
    if fitted < FITTED:
        reasons.append(f"{fitted} runs below")
    if sizes < SIZES:
        reasons.append(f"{sizes} sizes below")
    if held_out < HELD_OUT:
        reasons.append(f"{held_out} runs above")
    if run_set.name == "step_moe" and by == "n_active":
        reasons.append("N and E confounded: no law without E")
    return Split(
        run_set.name,
        run_set.lab,
        run_set.corpus,
        by,
        divisor,
        len(runs),
        fitted,
        sizes,
        held_out,
        "; ".join(reasons),
    )


def read_list(path: Path = LIST) -> list[Split]:
    """Read all splits, those that are out included."""
    return read_csv(path, Split)


def splits_of(tables: Mapping[str, Runs]) -> list[Split]:
    """Return the splits of the list that are not out and have a table."""
    return [split for split in read_list() if not split.out and split.set in tables]
