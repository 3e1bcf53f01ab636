"""Laws side by side on runs that no fit has seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hub.base.errors import InputError
from hub.base.inputs import reads
from hub.base.tables import Table
from hub.base.types import Fields
from scaling_law.answer.answer import ResultTable
from scaling_law.fitting.fitting import FitResult, describe, errors_of, fit
from scaling_law.fitting.holdout import Backtest, Forecaster, HeldOut, Split, evaluate_forecasters, rms
from scaling_law.law import Law
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray


@reads
def backtest(
    train: Runs,
    test: Runs,
    laws: Mapping[str, Law | str | Forecaster],
) -> Backtest:
    """Forecast the held-out runs `test` from the runs `train` by each of `laws`, under their names.

    A law moves by one constant, its mean error on `train`, since losses of different corpora and tokenizers differ by
    more than a law's form says. A text is a kind of law, fitted to `train`. A function of (train, test) returns the
    losses itself. A law that these runs cannot determine (ValueError) is left out.

    Raises:
        InputError: one of the tables is empty.
    """
    if not (len(train) and len(test)):
        raise InputError(f"train has {len(train)} runs and test {len(test)}: both need at least one")
    return evaluate_forecasters(train, test, {name: _make_forecaster(law) for name, law in laws.items()})


def _make_forecaster(law: Law | str | Forecaster) -> Forecaster:
    if isinstance(law, Law):
        return lambda train, test: test.loss + errors_of(law, test) - errors_of(law, train).mean()
    if isinstance(law, str):
        return lambda train, test: test.loss + fit(train, law).errors_on(test)
    if not callable(law):
        raise InputError(f"laws: {law!r} must be a law, the name of a kind, or a function of (train, test)")
    return law


@dataclass(frozen=True, repr=False)
class Comparison(ResultTable):
    """A joint fit on the training runs beside one Chinchilla fit for each E; those that fail are in `left_out`.

    `errors` maps "joint" and "separate" to their errors on each part that has runs.
    """

    joint: FitResult
    separate: Mapping[float, FitResult]
    split: Split
    errors: Mapping[str, Mapping[str, HeldOut]]
    left_out: tuple[float, ...]

    @property
    def rmse(self) -> dict[str, dict[str, float]]:
        """RMSE of each law on each part, nats per token."""
        return self._by_law_and_part("rmse")

    @property
    def largest(self) -> dict[str, dict[str, float]]:
        """The largest absolute error of each law on each part, nats per token."""
        return self._by_law_and_part("largest")

    def _by_law_and_part(self, measure: str) -> dict[str, dict[str, float]]:
        values: dict[str, dict[str, float]] = {law: {} for law in self.errors}
        for row in self.to_rows():
            values[row["law"]][row["part"]] = row[measure]
        return values

    def to_dict(self) -> Fields:
        return {
            "by": self.split.by,
            "runs": {name: len(runs) for name, runs in self.split.parts.items()},
            "rmse": self.rmse,
            "largest": self.largest,
            "left_out": list(self.left_out),
        }

    def to_rows(self) -> list[Fields]:
        rows = []
        for law, errors_by_part in self.errors.items():
            for name, held_out in errors_by_part.items():
                rows.append({"law": law, "part": name, "rmse": held_out.rmse, "largest": held_out.largest})
        return rows

    def summary(self) -> Table:
        rows = {"joint": ["joint law"], "separate": ["Chinchilla for each E"]}
        for row in self.to_rows():
            rows[row["law"]].append(f"{row['rmse']:.4f} ({row['largest']:.3f})")
        header = [""]
        for name in self.errors["joint"]:
            header.append(f"{name} ({len(self.split.parts[name])} runs)")
        title = f"RMSE (largest error) in nats; held out by {self.split.by}"
        return Table(header, list(rows.values()), title=title, warnings=self.joint.status.doubts)


def compare_with_separate_laws(
    split: Split,
    select: Literal["objective", "rmse"] = "objective",
    starts: Any = "scaled",
    joint_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Comparison:
    """Fit the joint law and one Chinchilla law for each E on `split.train`, and measure all three parts.

    `select="rmse"` chooses among local optima as the paper does (`select_by_rmse`). `options` go to `fit`,
    `joint_options` to the joint fit only.
    """
    joint = fit(split.train, "joint", starts=starts, **{**options, **(joint_options or {})})
    if select == "rmse":
        joint = select_by_rmse(joint, split.validation)
    elif select != "objective":
        raise InputError(f"select={select!r} must be 'objective' or 'rmse'")

    separate: dict[float, FitResult] = {}
    left_out = []
    for e in np.unique(np.concatenate([runs.experts for runs in split.parts.values()])):
        runs_of_e = split.train.subset(split.train.experts == e)
        try:
            separate[float(e)] = fit(runs_of_e, "chinchilla", starts=starts, **options)
        except ValueError:
            left_out.append(float(e))

    tables = {name: runs for name, runs in split.parts.items() if len(runs)}
    errors = {
        "joint": {name: HeldOut(joint.errors_on(runs)) for name, runs in tables.items()},
        "separate": {name: HeldOut(_errors_by_experts(separate, runs)) for name, runs in tables.items()},
    }
    return Comparison(joint, separate, split, errors, tuple(left_out))


def _errors_by_experts(laws: Mapping[float, FitResult], runs: Runs) -> FloatArray:
    """Return the errors on the runs whose E has a law."""
    errors = [law.errors_on(runs.subset(runs.experts == e)) for e, law in laws.items()]
    return np.concatenate(errors) if errors else np.zeros(0)


def select_by_rmse(result: FitResult, validation: Runs) -> FitResult:
    """Choose the finished start of lowest RMSE on training plus validation runs, as the paper does."""
    if not len(validation):
        raise InputError("validation: no runs to select by")
    train = result.runs.subset(result.used)
    laws = [result.problem.objective.make_law(theta) for theta in result.finalists.theta]
    scores = [rms(errors_of(law, train)) + rms(errors_of(law, validation)) for law in laws]
    unchanged = ("n_starts", "prior", "warnings", "suspicious", "deviations", "set_aside")
    search = {name: getattr(result.status, name) for name in unchanged}
    return describe(result.runs, result.problem, result.finalists, search, index=int(np.argmin(scores)))
