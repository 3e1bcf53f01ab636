"""What a report says of the runs of one folder, each computed once: fits, isoFLOP profiles, the paper's findings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hub.base.errors import InputError
from hub.base.units import format_count
from scaling_law.fitting.fitting import FitResult, fit
from scaling_law.fitting.learning_rate import LearningRateGrid
from scaling_law.fitting.splits import Comparison, Split, compare
from scaling_law.fitting.uncertainty import Bootstrap
from scaling_law.law import JointLaw
from scaling_law.planning.matched import drawn_gain
from scaling_law.planning.optimum import drawn_optimum
from scaling_law.runs.rows import read_rows
from scaling_law.runs.table import Runs, load_runs
from scaling_law.runs.tuning import tune
from scaling_law.size.architecture import affordable_tokens
from scaling_law.size.arrays import FloatArray

RESAMPLES = 1000
LEVEL = 0.95  # of the two-sided interval by which a finding is confirmed or reversed
GAIN = "by {:+.4f} nats ({:+.4f} to {:+.4f})"
Verdict = Literal["confirmed", "not confirmed: the opposite holds", "cannot be decided"]


@dataclass(frozen=True)
class Results:
    """The records of a folder and results computed from them on first use; other fields as in `fit`."""

    folder: Path
    trunks: str = "auto"
    outliers: Any = "keep"
    mix: Collection[str] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """Options of every fit."""
        return {"outliers": self.outliers, "mix": self.mix}

    @cached_property
    def runs(self) -> Runs:
        """The final runs, with their held-out loss. ValueError for runs of several vocabularies."""
        if len(sizes := {str(row.get("vocab_size")) for row in self.rows}) > 1:
            raise InputError(f"{self.folder}: runs of several vocabularies ({', '.join(sizes)}) have no common loss")
        return load_runs(self.folder / "runs.jsonl", trunks=self.trunks)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The records as they are."""
        return [dict(row) for row in read_rows(self.folder / "runs.jsonl").rows]

    @cached_property
    def fitted(self) -> FitResult:
        return fit(self.runs, "joint", **self.settings)

    @cached_property
    def bootstrap(self) -> Bootstrap:
        return self.fitted.bootstrap(RESAMPLES)

    @property
    def law(self) -> JointLaw:
        assert isinstance(self.bootstrap.law, JointLaw)
        return self.bootstrap.law

    @cached_property
    def experts(self) -> list[float]:
        return sorted(set(self.runs.experts.tolist()))

    @cached_property
    def budgets(self) -> list[float]:
        """The least, middle and largest round budget at which every E has two sizes with runs on both sides of it.

        Round is 1, 2 or 5 times a power of ten. Without such a budget, that of the median run.
        """
        low, high = np.log10([self.runs.flops.min(), self.runs.flops.max()])
        powers, inside = range(int(np.floor(low)), int(np.ceil(high)) + 1), list[float]()
        for flops in (digit * 10.0**power for power in powers for digit in (1, 2, 5)):
            profiles = isoflop_profiles(self.runs, flops)
            if len(profiles) == len(self.experts) and all(len(profile.n_active) > 1 for profile in profiles):
                inside.append(flops)
        if not inside:
            return [float(f"{np.median(self.runs.flops):.0e}")]
        return list(dict.fromkeys((inside[0], inside[len(inside) // 2], inside[-1])))

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
        return [compare(split, allow_unidentifiable=True, **self.settings) for split in splits]

    @cached_property
    def rates(self) -> LearningRateGrid | None:
        path = self.folder / "learning-rates.jsonl"
        return LearningRateGrid.load(path, mix=self.mix) if path.exists() else None


@dataclass(frozen=True)
class Profile:
    """Models of one E at one budget: sizes [n], and losses between the runs of each size [n].

    The best size is the lowest point of the parabola in ln N through the lowest loss and its neighbours; where that
    loss is `at_edge`, of the smallest or the largest size, the best size may lie outside.
    """

    experts: float
    n_active: FloatArray
    loss: FloatArray
    best_n_active: float
    best_loss: float
    at_edge: bool


def isoflop_profiles(runs: Runs, flops: float) -> list[Profile]:
    """What runs say at a budget without a law, as in Hoffmann et al. 2022: a profile for each E, ascending.

    Losses of a size are interpolated at D = F / (6 N_act); an E without runs on both sides of it is left out.
    """
    profiles = []
    for experts in np.unique(runs.experts):
        part = runs.subset(runs.experts == experts)
        sizes = np.unique(part.n_active)
        tokens = affordable_tokens(flops, sizes)
        models = (part.subset(part.n_active == n) for n in sizes)
        losses = np.array([_between(model, at) for model, at in zip(models, tokens, strict=True)])
        if (measured := np.isfinite(losses)).any():
            sizes, losses = sizes[measured], losses[measured]
            best = tune(sizes[:, None], losses)
            profiles.append(Profile(float(experts), sizes, losses, float(best.settings[0]), best.loss, best.at_edge))
    return profiles


def repeat_scatter(runs: Runs) -> tuple[float, int]:
    """(standard deviation in nats, degrees of freedom) of the loss among runs that differ in their seed only."""
    kinds, kind = np.unique([runs.experts, runs.n_active, runs.tokens], axis=1, return_inverse=True)
    freedom = len(runs) - kinds.shape[1]
    means = np.bincount(kind, runs.loss) / np.bincount(kind)
    squares = float(np.sum((runs.loss - means[kind]) ** 2))
    return (float(np.sqrt(squares / freedom)), freedom) if freedom else (float("nan"), 0)


def _between(runs: Runs, at: float) -> float:
    """Loss at a token count between runs of one model, by a monotone cubic in ln D; NaN outside."""
    tokens, which = np.unique(runs.tokens, return_inverse=True)
    losses = np.bincount(which, runs.loss) / np.bincount(which)
    if len(tokens) == 1:
        return float(losses[0]) if at == tokens[0] else float("nan")
    from scipy.interpolate import PchipInterpolator

    return float(PchipInterpolator(np.log(tokens), losses, extrapolate=False)(np.log(at)))


@dataclass(frozen=True)
class Finding:
    """A claim of Ludziejewski et al. 2025, asked of any runs: confirmed, reversed, or undecided by them.

    `share` is the part of the bootstrap draws in which it holds; for a coefficient, the probability of its sign.
    """

    name: str
    claim: str
    share: float
    evidence: str

    @property
    def verdict(self) -> Verdict:
        """What the share says at the level of 95 %."""
        if self.share >= 0.5 + LEVEL / 2:
            return "confirmed"
        return "not confirmed: the opposite holds" if self.share <= 0.5 - LEVEL / 2 else "cannot be decided"


def more_tokens_per_parameter(law: JointLaw, flops: float, experts: Sequence[float]) -> Finding:
    """Finding 1: at a fixed budget, more experts want fewer active parameters and more tokens each."""
    few, many = min(experts), max(experts)
    n_active, tokens, _ = drawn_optimum(law, flops, (few, many))
    claim = f"at {flops:.0e} FLOPs the best D/N is larger for E = {many:g} than for E = {few:g}"
    ratio = tokens / n_active
    return _judged("Finding 1", claim, ratio[:, 1] / ratio[:, 0], 1, "D/N is {:.2f} times as large ({:.2f} to {:.2f})")


def better_with_experts(law: JointLaw, flops: float, experts: float) -> Finding:
    """Finding 2: at a fixed budget, the best model of E experts is better than the best dense one."""
    _, _, loss = drawn_optimum(law, flops, (1.0, experts))
    claim = f"at {flops:.0e} FLOPs the best model with E = {experts:g} is better than the best dense one"
    return _judged("Finding 2", claim, loss[:, 0] - loss[:, 1], 0, GAIN)


def better_in_memory(law: JointLaw, flops: float, experts: float, *, times_tokens: bool = False) -> Finding:
    """Finding 3: an MoE with the N_total and FLOPs (rule of thumb: E times the D) of the best dense model wins."""
    name, spent = "Finding 3", "and the same FLOPs"
    if times_tokens:
        name, spent = "Rule of thumb", f"on {experts:g} times the tokens"
    model, dense = f"a model with E = {experts:g}", f"the dense model that is best at {flops:.0e} FLOPs"
    claim = f"{model} of the same total parameters {spent} beats {dense}"
    return _judged(name, claim, drawn_gain(law, flops, experts, times_tokens), 0, GAIN)


def _judged(name: str, claim: str, values: FloatArray, threshold: float, evidence: str) -> Finding:
    """The share of the draws whose value exceeds the threshold; one without a value counts as half."""
    finite = np.isfinite(values)
    share = float((np.sum(values[finite] > threshold) + 0.5 * np.sum(~finite)) / len(values))
    low, middle, high = np.quantile(values[finite], [0.5 - LEVEL / 2, 0.5, 0.5 + LEVEL / 2])
    return Finding(name, claim, share, evidence.format(middle, low, high))


def lower_learning_rate(grid: LearningRateGrid) -> Finding:
    """Finding 4: slope_e of the grid's law is negative, by Student's t of the least-squares fit."""
    from scipy.stats import t

    law, models = grid.fit(), grid.models
    design = np.array([[1.0, np.log(m.counted_by(law.reading)), np.log(m.experts)] for m in models])
    freedom = len(models) - design.shape[1]
    if freedom < 1:
        raise InputError(f"{len(models)} models; the error of the learning-rate law needs at least four")
    residual = grid.errors(law)
    covariance = np.linalg.inv(design.T @ design) * float(residual @ residual) / freedom
    error = float(np.sqrt(covariance[2, 2]))
    half = error * float(t.ppf(0.5 + LEVEL / 2, freedom))
    share = float(t.cdf(-law.slope_e / error, freedom)) if error else float(law.slope_e < 0)
    interval = f"{law.slope_e:+.2f} ({law.slope_e - half:+.2f} to {law.slope_e + half:+.2f})"
    evidence = f"the best rate goes with E to the power {interval}, over {len(models)} models"
    return Finding("Finding 4", "more experts want a lower peak learning rate", share, evidence)


def all_findings(results: Results) -> list[Finding]:
    """The paper's four findings and its rule of thumb, at budgets inside the runs."""
    law, low, high = results.law, results.budgets[0], results.budgets[-1]
    moe = [e for e in results.experts if e > 1]
    findings = [more_tokens_per_parameter(law, flops, results.experts) for flops in (low, high)]
    findings += [better_with_experts(law, flops, e) for flops in (low, high) for e in moe]
    findings += [better_in_memory(law, high, e) for e in moe]
    if results.rates is not None:
        findings.append(lower_learning_rate(results.rates))
    return findings + [better_in_memory(law, high, e, times_tokens=True) for e in moe if e <= 8]
