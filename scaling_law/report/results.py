"""The records of one folder, and what a report and its figures compute from them, each only once.

With a law, and without one: isoFLOP profiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hub.plain.units import format_count
from scaling_law.fitting.fitting import FitResult, fit
from scaling_law.fitting.learning_rate import LearningRateGrid
from scaling_law.fitting.splits import Comparison, Split, compare
from scaling_law.fitting.uncertainty import Bootstrap
from scaling_law.laws import JointLaw
from scaling_law.planning.matched import MatchedPlan, measured
from scaling_law.runs.table import Runs, load_runs, read_rows
from scaling_law.size.architecture import affordable_tokens

FloatArray = NDArray[np.float64]
RESAMPLES = 1000


@dataclass(frozen=True)
class Results:
    """The records of a folder and results computed from them on first use; `trunks` and `outliers` as in `fit`."""

    folder: Path
    trunks: str = "auto"
    outliers: Any = "keep"

    @cached_property
    def runs(self) -> Runs:
        """The final runs, with their held-out loss. ValueError for runs of several vocabularies."""
        if len(sizes := {str(row.get("vocab_size")) for row in self.rows}) > 1:
            raise ValueError(f"{self.folder}: runs of several vocabularies ({', '.join(sizes)}) have no common loss")
        return load_runs(self.folder / "runs.jsonl", trunks=self.trunks)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The records as they are, of which a few more fields are reported."""
        return [dict(row) for row in read_rows(self.folder / "runs.jsonl").rows]

    @cached_property
    def fitted(self) -> FitResult:
        """The joint law."""
        return fit(self.runs, "joint", outliers=self.outliers)

    @cached_property
    def bootstrap(self) -> Bootstrap:
        """Of the joint law, over trunks."""
        return self.fitted.bootstrap(RESAMPLES)

    @property
    def law(self) -> JointLaw:
        """The joint law with its draws."""
        assert isinstance(self.bootstrap.law, JointLaw)
        return self.bootstrap.law

    @cached_property
    def experts(self) -> list[float]:
        """The numbers of experts of the runs."""
        return sorted(set(self.runs.experts.tolist()))

    @cached_property
    def budgets(self) -> list[float]:
        """Up to three round budgets (1, 2 or 5 times a power of ten) inside the runs: the least, the middle, the most.

        Inside means that every E has two sizes with runs on both sides; else the budget of the median run.
        """
        low, high = np.log10([self.runs.flops.min(), self.runs.flops.max()])
        powers = range(int(np.floor(low)), int(np.ceil(high)) + 1)
        inside = [f for power in powers for digit in (1, 2, 5) if self._inside(f := digit * 10.0**power)]
        if not inside:
            return [float(f"{np.median(self.runs.flops):.0e}")]
        return list(dict.fromkeys((inside[0], inside[len(inside) // 2], inside[-1])))

    def _inside(self, flops: float) -> bool:
        profiles = isoflop_profiles(self.runs, flops)
        return len(profiles) == len(self.experts) and all(len(profile.n_active) > 1 for profile in profiles)

    @cached_property
    def held_out(self) -> list[Comparison]:
        """Fits that hold out the largest width, the longest runs, the lowest losses or the largest E."""
        runs = self.runs
        longest = [runs.tokens[runs.trunk == trunk].max() for trunk in runs.trunk]
        parts = {
            f"the largest size (N_act {format_count(runs.n_active.max())})": runs.n_active == runs.n_active.max(),
            "the longest run of each trunk": runs.tokens == np.array(longest),
            "the tenth of lowest loss": runs.loss <= np.sort(runs.loss)[max(1, len(runs) // 10) - 1],
            f"the largest E ({runs.experts.max():g})": runs.experts == runs.experts.max(),
        }
        empty = runs.subset(np.zeros(len(runs), bool))
        splits = [Split(runs.subset(~mask), runs.subset(mask), empty, name) for name, mask in parts.items()]
        return [compare(split, allow_unidentifiable=True, outliers=self.outliers) for split in splits]

    @cached_property
    def rates(self) -> LearningRateGrid | None:
        """The grid of learning rates, where there is one."""
        path = self.folder / "learning-rates.jsonl"
        return LearningRateGrid.load(path) if path.exists() else None

    @cached_property
    def matched(self) -> tuple[MatchedPlan, list[list[float]]] | None:
        """The matched experiment and the losses measured for each of its models, where there is one."""
        plan, runs = self.folder / "matched-plan.json", self.folder / "matched.jsonl"
        if not plan.exists() or not runs.exists():
            return None
        loaded = MatchedPlan.load(plan)
        return loaded, measured(loaded, load_runs(runs))


@dataclass(frozen=True)
class Profile:
    """Models of one E at one budget, by ascending N_act.

    Attributes:
        n_active, tokens: sizes and the tokens that the budget buys, [n].
        loss: interpolated between the runs of the size, nats per token, [n].
        best_n_active, best_loss: of the parabola through the lowest size and its neighbours; of the lowest size itself
            where it is the smallest or the largest.
        at_edge: whether the lowest size is the smallest or the largest, so that the best one may lie outside.
    """

    experts: float
    n_active: FloatArray
    tokens: FloatArray
    loss: FloatArray
    best_n_active: float
    best_loss: float
    at_edge: bool


def isoflop_profiles(runs: Runs, flops: float) -> list[Profile]:
    """What runs say at a budget without a law, as in Hoffmann et al. 2022: a profile for each E, ascending.

    Of each E at least one size has runs on both sides of the budget. The branches of a trunk measure the loss of one
    model at several token counts; between them it is interpolated at D = F / (6 N_act). The best size is the lowest
    point of a parabola in ln N. Losses of runs with the same N, D and E (seeds) are averaged first.
    """
    found = []
    for experts in np.unique(runs.experts):
        own = runs.subset(runs.experts == experts)
        sizes = np.unique(own.n_active)
        tokens = affordable_tokens(flops, sizes)
        models = (own.subset(own.n_active == n) for n in sizes)
        losses = np.array([_between(model, at) for model, at in zip(models, tokens, strict=True)])
        if (known := np.isfinite(losses)).any():
            sizes, tokens, losses = sizes[known], tokens[known], losses[known]
            found.append(Profile(float(experts), sizes, tokens, losses, *_lowest(sizes, losses)))
    return found


def repeat_scatter(runs: Runs) -> tuple[float, int]:
    """(standard deviation, degrees of freedom) of the loss between runs of the same N, D and E, pooled; nats.

    Runs that differ in their seed only show how far a single loss may be from the mean of its kind. (nan, 0) without
    repeats.
    """
    kinds, kind = np.unique([runs.experts, runs.n_active, runs.tokens], axis=1, return_inverse=True)
    freedom = len(runs) - kinds.shape[1]
    means = np.bincount(kind, runs.loss) / np.bincount(kind)
    squares = float(np.sum((runs.loss - means[kind]) ** 2))
    return (float(np.sqrt(squares / freedom)), freedom) if freedom else (float("nan"), 0)


def _between(runs: Runs, at: float) -> float:
    """Loss at a token count between runs of one model, by a monotone cubic in ln D; NaN outside."""
    tokens, which = np.unique(runs.tokens, return_inverse=True)
    losses = np.bincount(which, runs.loss) / np.bincount(which)
    if not tokens[0] <= at <= tokens[-1]:
        return float("nan")
    if len(tokens) == 1:
        return float(losses[0])
    from scipy.interpolate import PchipInterpolator

    return float(PchipInterpolator(np.log(tokens), losses)(np.log(at)))


def _lowest(n_active: FloatArray, losses: FloatArray) -> tuple[float, float, bool]:
    """(best N_act, its loss, whether it is at an end) of a profile."""
    i = int(np.argmin(losses))
    if not 0 < i < len(losses) - 1:
        return float(n_active[i]), float(losses[i]), True
    x = np.log(n_active[i - 1 : i + 2] / n_active[i])
    a, b, c = np.polyfit(x, losses[i - 1 : i + 2], 2)
    at = -b / (2 * a)
    return float(n_active[i] * np.exp(at)), float(c + at * (b + a * at)), False
