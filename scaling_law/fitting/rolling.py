"""Rolling origin: laws fitted to the runs below several cuts of compute, and judged by what they say of those above.

`fit(runs, kind="all")` ranks kinds of laws by it, and `forecast` weighs laws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hub.base.tables import ResultTable, Table
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

# Predicts losses of held-out runs from the fitted ones.
Losses = Callable[[Runs, Runs], FloatArray]
CUTS = 10.0 ** (np.arange(1, 9) / 4)  # times below the largest compute
# Least runs and sizes below a cut.
RUNS, SIZES = 6, 3
SAME_SIZE = 0.05  # sizes closer than this in ln N are one
TINY = 1e-9


@dataclass(frozen=True)
class Fold:
    """Held-out runs: ln of their compute over the largest fitted [n], their loss [n], errors of each law [n], nats.

    Errors are NaN where the fitted runs do not determine the law; `why` says so.
    """

    ahead: FloatArray
    loss: FloatArray
    errors: Mapping[str, FloatArray]
    why: Mapping[str, str] = field(default_factory=dict)


class Tests(NamedTuple):
    """Errors of laws [J, n] at `cuts` cuts, with the loss and the distance of the held-out runs [n]."""

    errors: FloatArray
    loss: FloatArray
    ahead: FloatArray
    cuts: int


def rolling_origin(runs: Runs, laws: Mapping[str, Losses], tested: Any = True) -> tuple[Fold, ...]:
    """Fit each law below each cut, and predict the runs above it of which `tested` [runs] is true."""
    folds = []
    for below in _cuts(runs):
        fitted, held_out = runs.subset(below), runs.subset(~below & tested)
        if not len(held_out):
            continue
        errors, why = dict[str, FloatArray](), dict[str, str]()
        for name, losses in laws.items():
            try:
                errors[name] = losses(fitted, held_out) - held_out.loss
            except ValueError as error:
                errors[name], why[name] = np.full(len(held_out), np.nan), str(error)
        folds.append(Fold(np.log(held_out.flops / fitted.flops.max()), held_out.loss, errors, why))
    return tuple(folds)


def tests_of(folds: Sequence[Fold], names: Sequence[str]) -> tuple[NDArray[np.intp], Tests]:
    """Of these laws the places of those that half of the cuts determine, or all; and the cuts that determine these."""
    kept, errors = np.arange(len(names)), [np.array([fold.errors[name] for name in names]) for fold in folds]
    if folds:
        often = np.mean([np.isfinite(each).any(axis=1) for each in errors], axis=0) >= 0.5
        kept = np.flatnonzero(often if often.any() else ~often)
    parts = [np.vstack([each[kept], f.loss, f.ahead]) for each, f in zip(errors, folds, strict=True)]
    whole = [part[:, np.isfinite(part).all(axis=0)] for part in parts]
    *both, loss, ahead = np.hstack([np.zeros((len(kept) + 2, 0)), *whole])
    return kept, Tests(np.array(both), loss, ahead, sum(part.shape[1] > 0 for part in whole))


def sizes_of(runs: Runs) -> int:
    """How many sizes there are, those within `SAME_SIZE` of each other counted once."""
    logs = np.sort(np.log(runs.n_active))
    return int(len(logs) > 0) + int(np.sum(np.diff(logs) > SAME_SIZE))


def _cuts(runs: Runs) -> list[Any]:
    """Masks of the runs below each cut that leaves enough of them."""
    masks: dict[int, Any] = {}
    for divisor in CUTS:
        below = runs.flops <= runs.flops.max() / divisor * (1 + TINY)
        if (count := int(below.sum())) >= RUNS and sizes_of(runs.subset(below)) >= SIZES:
            masks.setdefault(count, below)
    return list(masks.values())


@dataclass(frozen=True, repr=False)
class Ranking(ResultTable):
    """Kinds of laws, the one that forecasts best within the runs first.

    `rmse` [J] of the held-out runs in nats, at the `cuts` that determine all of these kinds; `failed` [J] says at how
    many others a kind was not determined. `left_out` says why a kind is not ranked.
    """

    kinds: tuple[str, ...]
    rmse: tuple[float, ...]
    failed: tuple[int, ...]
    cuts: int
    held_out: int
    left_out: Mapping[str, str]

    @classmethod
    def of(cls, folds: Sequence[Fold], kinds: Sequence[str], left_out: Mapping[str, str]) -> Ranking:
        """Rank these kinds by their errors at the cuts."""
        kept, tests = tests_of(folds, kinds)
        rmse = np.sqrt(np.mean(tests.errors**2, axis=1)) if tests.cuts else np.full(len(kept), np.nan)
        order = np.argsort(rmse, kind="stable")
        names = [kinds[kept[i]] for i in order]
        failed = {name: sum(name in fold.why for fold in folds) for name in kinds}
        seldom = {
            name: f"most cuts do not determine it: {next(f.why[name] for f in folds if name in f.why)}"
            for name in kinds
            if name not in names
        }
        counts = tuple(failed[name] for name in names)
        return cls(
            tuple(names), tuple(map(float, rmse[order])), counts, tests.cuts, len(tests.loss), {**left_out, **seldom}
        )

    def to_rows(self) -> list[dict[str, Any]]:
        ranked = zip(self.kinds, self.rmse, self.failed, strict=True)
        return [{"kind": kind, "rmse": rmse, "cuts_failed": failed} for kind, rmse, failed in ranked]

    def to_dict(self) -> dict[str, Any]:
        return {"rows": self.to_rows(), "cuts": self.cuts, "held_out": self.held_out, "left_out": dict(self.left_out)}

    def summary(self) -> Table:
        rows = [(r["kind"], f"{r['rmse']:.4f}", r["cuts_failed"] or "") for r in self.to_rows()]
        notes = [f"left out: {name}: {why}" for name, why in self.left_out.items()]
        title = f"Fitted below {self.cuts} cuts of compute: RMSE above them ({self.held_out} losses, nats)"
        return Table(("kind", "RMSE", "cuts where not determined"), rows, title=title, notes=notes)
