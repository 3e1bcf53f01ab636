"""Training, validation and test runs, and the joint law beside separate Chinchilla laws for each E.

Held-out runs are the extreme ones: their errors measure extrapolation. The paper (Section "Optimization of Formula
Coefficients") selects by the 30 it holds out, a validation set; the test part is never selected on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hub.base.errors import InputError, given
from hub.base.inputs import reads
from hub.base.tables import ResultTable, Summarised, Table
from hub.base.units import format_count
from scaling_law.fitting.fitting import FitResult, describe, errors_of, fit, rms
from scaling_law.formulas.law import check_count
from scaling_law.runs.table import Runs

if TYPE_CHECKING:
    import pandas

By = Literal["loss", "n_active", "flops", "tokens"]


@dataclass(frozen=True)
class Split(Summarised):
    """Three disjoint tables of runs."""

    train: Runs
    validation: Runs
    test: Runs
    by: str

    @property
    def parts(self) -> dict[str, Runs]:
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def to_dataframe(self) -> pandas.DataFrame:
        """One line per run, with its `part`."""
        import pandas

        return pandas.concat([runs.to_pandas().assign(part=name) for name, runs in self.parts.items()])

    def summary(self) -> Table:
        def span(values: NDArray[Any], form: Callable[[float], str]) -> str:
            return f"{form(values.min())}…{form(values.max())}" if len(values) else ""

        rows = [
            (name, len(r), span(r.n_active, format_count), span(r.tokens, format_count), span(r.loss, "{:.4f}".format))
            for name, r in self.parts.items()
        ]
        return Table(("part", "runs", "N_act", "D", "loss"), rows, title=f"Split by {self.by}")


@reads
def split(runs: Runs, by: By = "loss", validation: int = 30, test: int = 0) -> Split:
    """Hold out the `test` most extreme runs, then the next `validation`: lowest loss, or most N, FLOPs or D.

    ValueError if none is left to train on.
    """
    if by not in ("loss", "n_active", "flops", "tokens"):
        raise InputError(f"by={by!r} must be 'loss', 'n_active', 'flops' or 'tokens'")
    check_count("validation", validation, 0)
    check_count("test", test, 0)
    if validation + test >= len(runs):
        parts = given("validation", validation), ", ", given("test", test)
        raise InputError(*parts, f" must leave some of the {len(runs)} runs")
    values = getattr(runs, by)
    rank = np.argsort(np.argsort(values if by == "loss" else -values, kind="stable"))
    middle = (rank >= test) & (rank < test + validation)
    return Split(runs.subset(rank >= test + validation), runs.subset(middle), runs.subset(rank < test), by)


@dataclass(frozen=True)
class Comparison(ResultTable):
    """A joint fit on the training runs beside one Chinchilla fit for each E; those that fail are in `left_out`.

    `rmse` and `largest` (absolute error) map "joint" and "separate" to each part that has runs, nats per token.
    """

    joint: FitResult
    separate: Mapping[float, FitResult]
    split: Split
    rmse: Mapping[str, Mapping[str, float]]
    largest: Mapping[str, Mapping[str, float]]
    left_out: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "by": self.split.by,
            "runs": {name: len(runs) for name, runs in self.split.parts.items()},
            "rmse": self.rmse,
            "largest": self.largest,
            "left_out": list(self.left_out),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        return [
            {"law": law, "part": part, "rmse": rmse, "largest": self.largest[law][part]}
            for law, by_part in self.rmse.items()
            for part, rmse in by_part.items()
        ]

    def summary(self) -> Table:
        rows = {"joint": ["joint law"], "separate": ["Chinchilla for each E"]}
        for row in self.to_rows():
            rows[row["law"]].append(f"{row['rmse']:.4f} ({row['largest']:.3f})")
        header = ["", *(f"{part} ({len(self.split.parts[part])} runs)" for part in self.rmse["joint"])]
        title = f"RMSE (largest error) in nats; held out by {self.split.by}"
        return Table(header, list(rows.values()), title=title, warnings=self.joint.status.doubts)


def compare(
    parts: Split,
    select: Literal["objective", "rmse"] = "objective",
    starts: Any = "scaled",
    joint_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Comparison:
    """Fit the joint law and separate Chinchilla laws on `parts.train` and measure all three parts.

    `select="rmse"` chooses among local optima as the paper does (`select_by_rmse`). `options` go to `fit`,
    `joint_options` to the joint fit only.
    """
    joint = fit(parts.train, "joint", starts=starts, **{**options, **(joint_options or {})})
    if select == "rmse":
        joint = select_by_rmse(joint, parts.validation)
    elif select != "objective":
        raise InputError(f"select={select!r} must be 'objective' or 'rmse'")
    separate, left_out = {}, []
    for e in np.unique(np.concatenate([runs.experts for runs in parts.parts.values()])):
        runs_of_e = parts.train.subset(parts.train.experts == e)
        try:
            separate[float(e)] = fit(runs_of_e, "chinchilla", starts=starts, **options)
        except ValueError:
            left_out.append(float(e))
    rmse, largest = ({name: dict[str, float]() for name in ("joint", "separate")} for _ in range(2))
    for name, runs in parts.parts.items():
        if not len(runs):
            continue
        of_each_e = [separate[e].errors_on(runs.subset(runs.experts == e)) for e in separate]
        for key, errors in (("joint", joint.errors_on(runs)), ("separate", np.concatenate([*of_each_e, np.zeros(0)]))):
            rmse[key][name] = rms(errors)
            largest[key][name] = float(np.abs(errors).max()) if len(errors) else float("nan")
    return Comparison(joint, separate, parts, rmse, largest, tuple(left_out))


def select_by_rmse(result: FitResult, validation: Runs) -> FitResult:
    """The finished start of lowest RMSE on training plus validation runs, the paper's selection."""
    if not len(validation):
        raise InputError("validation: no runs to select by")
    used = result.runs.subset(result.used)
    laws = [result.problem.objective.make_law(theta) for theta in result.finalists.theta]
    scores = [rms(errors_of(law, used)) + rms(errors_of(law, validation)) for law in laws]
    unchanged = ("n_starts", "prior", "warnings", "suspicious", "deviations", "set_aside")
    search = {name: getattr(result.status, name) for name in unchanged}
    return describe(result.runs, result.problem, result.finalists, search, chosen=int(np.argmin(scores)))
