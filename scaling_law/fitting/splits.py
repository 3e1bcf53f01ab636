"""Training, validation and test runs, and the law beside separate Chinchilla laws for each E.

The paper (Ludziejewski et al. 2025, Section "Optimization of Formula Coefficients") holds out the 30 runs of lowest
loss and selects its coefficients by the errors on training and held-out runs, which makes these a validation set. A
split here has a third part that no selection sees. Held-out runs are the extreme ones: their errors are those of
extrapolation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hub.plain.tables import Summarised
from hub.plain.units import format_count
from scaling_law.fitting.fit_result import FitResult
from scaling_law.fitting.fitting import describe, fit
from scaling_law.runs.table import Runs

if TYPE_CHECKING:
    import pandas
    from rich.console import RenderableType

By = Literal["loss", "n_active", "flops", "tokens"]


@dataclass(frozen=True)
class Split(Summarised):
    """Three disjoint tables of runs, and how they were divided."""

    train: Runs
    validation: Runs
    test: Runs
    by: str

    @property
    def parts(self) -> dict[str, Runs]:
        """The tables by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def to_dataframe(self) -> pandas.DataFrame:
        """One line per run (pandas), with the `part` it belongs to."""
        import pandas

        return pandas.concat([runs.to_pandas().assign(part=name) for name, runs in self.parts.items()])

    def summary(self) -> RenderableType:
        """For rich to print."""
        from rich.table import Table

        table = Table(title=f"Split by {self.by}", title_justify="left")
        for name in ("part", "runs", "N_act", "D", "loss"):
            table.add_column(name, justify="left" if name == "part" else "right")
        for name, runs in self.parts.items():
            spans = [
                f"{format_count(v.min())}…{format_count(v.max())}" for v in (runs.n_active, runs.tokens) if len(v)
            ]
            losses = [f"{runs.loss.min():.4f}…{runs.loss.max():.4f}"] if len(runs) else []
            table.add_row(name, str(len(runs)), *spans, *losses)
        return table


def split(runs: Runs, by: By = "loss", validation: int = 30, test: int = 0) -> Split:
    """Hold out the extreme runs: the `test` most extreme, then the `validation` next; the rest trains.

    Extreme are those of lowest loss, or of most parameters, FLOPs or tokens. ValueError if none is left to train on.
    """
    if by not in ("loss", "n_active", "flops", "tokens"):
        raise ValueError(f"by={by!r} must be 'loss', 'n_active', 'flops' or 'tokens'")
    if validation < 0 or test < 0 or validation + test >= len(runs):
        raise ValueError(f"validation={validation}, test={test} must be ≥ 0 and leave some of the {len(runs)} runs")
    values = getattr(runs, by)
    order = np.argsort(values if by == "loss" else -values, kind="stable")
    rank = np.empty(len(runs), int)
    rank[order] = np.arange(len(runs))
    held = (rank >= test) & (rank < test + validation)
    return Split(runs.subset(rank >= test + validation), runs.subset(held), runs.subset(rank < test), by)


@dataclass(frozen=True)
class Comparison(Summarised):
    """A joint fit on the training runs beside one Chinchilla fit for each E. Errors in nats per token.

    `rmse` maps "joint" and "separate" to the RMSE on "train", "validation" and "test" (those that have runs);
    `largest` likewise to the largest absolute error. E that the training runs cannot fit are in `left_out`.
    """

    joint: FitResult
    separate: Mapping[float, FitResult]
    split: Split
    rmse: Mapping[str, Mapping[str, float]]
    largest: Mapping[str, Mapping[str, float]]
    left_out: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        counts = {name: len(runs) for name, runs in self.split.parts.items()}
        errors = {"rmse": self.rmse, "largest": self.largest}
        return {"by": self.split.by, "runs": counts, **errors, "left_out": list(self.left_out)}

    def to_dataframe(self) -> pandas.DataFrame:
        """One line for each law and part (pandas): RMSE and the largest error, nats per token."""
        import pandas

        rows = [
            {"law": law, "part": part, "rmse": rmse, "largest": self.largest[law][part]}
            for law, by_part in self.rmse.items()
            for part, rmse in by_part.items()
        ]
        return pandas.DataFrame(rows)

    def summary(self) -> RenderableType:
        """For rich to print."""
        from rich.table import Table

        table = Table(title=f"RMSE (largest error) in nats; held out by {self.split.by}", title_justify="left")
        parts = list(self.rmse["joint"])
        for name in ("", *(f"{p} ({len(getattr(self.split, p))} runs)" for p in parts)):
            table.add_column(name, justify="right")
        for name, label in (("joint", "joint law"), ("separate", "Chinchilla for each E")):
            cells = [f"{self.rmse[name][p]:.4f} ({self.largest[name][p]:.3f})" for p in parts]
            table.add_row(label, *cells)
        return table


def compare(
    parts: Split,
    select: Literal["objective", "rmse"] = "objective",
    starts: Any = "scaled",
    joint_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Comparison:
    """Fit the joint law and separate Chinchilla laws on `parts.train` and measure all three parts.

    `select="rmse"` is the paper's choice among local optima: the lowest sum of RMSE on training and validation runs.
    The test part is never used. `options` go to `fit`, `joint_options` to the fit of the joint law only.
    """
    joint = fit(parts.train, "joint", starts=starts, **{**options, **(joint_options or {})})
    if select == "rmse":
        joint = select_by_rmse(joint, parts.validation)
    elif select != "objective":
        raise ValueError(f"select={select!r} must be 'objective' or 'rmse'")
    separate, left_out = {}, []
    for e in np.unique(np.concatenate([p.experts for p in (parts.train, parts.validation, parts.test)])):
        try:
            separate[float(e)] = fit(
                parts.train.subset(parts.train.experts == e), "chinchilla", starts=starts, **options
            )
        except ValueError:
            left_out.append(float(e))
    rmse: dict[str, dict[str, float]] = {"joint": {}, "separate": {}}
    largest: dict[str, dict[str, float]] = {"joint": {}, "separate": {}}
    for name in ("train", "validation", "test"):
        runs: Runs = getattr(parts, name)
        if not len(runs):
            continue
        errors = {"joint": joint.errors_on(runs), "separate": _separate_errors(separate, runs)}
        for key, values in errors.items():
            rmse[key][name] = float(np.sqrt(np.mean(values**2))) if len(values) else float("nan")
            largest[key][name] = float(np.abs(values).max()) if len(values) else float("nan")
    return Comparison(joint, separate, parts, rmse, largest, tuple(left_out))


def select_by_rmse(result: FitResult, validation: Runs) -> FitResult:
    """The finished start with the lowest sum of RMSE on training and on validation runs, as the paper selects."""
    if not len(validation):
        raise ValueError("validation: no runs to select by")
    laws = [result.problem.objective.make_law(theta) for theta in result.finalists.theta]
    used = result.runs.subset(result.used)

    def rmse(law: Any, runs: Runs) -> float:
        return float(np.sqrt(np.mean((law.loss(runs.n_active, runs.tokens, runs.experts) - runs.loss) ** 2)))

    scores = [rmse(law, used) + rmse(law, validation) for law in laws]
    unchanged = ("n_starts", "warnings", "suspicious", "deviations", "set_aside")
    search = {name: getattr(result.status, name) for name in unchanged}
    return describe(result.runs, result.problem, result.finalists, search, chosen=int(np.argmin(scores)))


def _separate_errors(separate: Mapping[float, FitResult], runs: Runs) -> Any:
    parts = [separate[e].errors_on(runs.subset(runs.experts == e)) for e in separate]
    return np.concatenate(parts) if parts else np.zeros(0)
