"""Repeated data in a fit: Muennighoff's terms on top of any form of law (`formulas.repeated`).

    L = form(N', D', …)      D' from R*_D,  N' from R*_N and N_opt(U_D), which depends on the law's own coefficients

The coefficients are fitted at given R*, with the derivative of N_opt in the Jacobian; R*_D and R*_N minimise what that
leaves. One that the runs do not tell stays at its published value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError
from scaling_law.fitting.diagnostics import depends
from scaling_law.fitting.objective import Evaluation, FitSettings, Logs, Mask, Objective
from scaling_law.fitting.problem import Problem
from scaling_law.fitting.solver import Solutions
from scaling_law.formulas.law import numbers, positive
from scaling_law.formulas.repeated import Repetition, saturate
from scaling_law.law import Law
from scaling_law.runs.table import Runs
from scaling_law.size.architecture import is_parameters
from scaling_law.size.arrays import FloatArray

REPEATED = ("unique_tokens", "epochs")  # columns that say how often tokens repeat
UNIQUE = "unique_tokens"  # the column of a table in which a fit finds them
# Bounds of both R*; at the upper end nothing is discounted.
BOX = (0.1, 1000.0)
STARTS = (Repetition(), Repetition(100.0, 100.0))
# Steps of derivatives, in ln R* and θ, and in ln N.
STEP, SIZE_STEP = 1e-4, 1e-3
STEEPEST = 1e6  # slope of ln N_opt by a coefficient: beyond, the loss is flat along 6·N·D and N_opt means nothing
FAR = 300.0  # the ln of an excess of parameters that makes no difference any more
TOLD = 0.7  # the standard error of ln R* up to which the runs tell it
ROUNDED = 0.01  # epochs beyond one that are none
CHANCE = 0.05  # probability that runs of the published value speak so much against it


@dataclass(frozen=True)
class RepetitionFit:
    """R*_D (`tokens`) and R*_N (`parameters`) of a fit; `held`: at the published value, as the runs do not tell it.

    `standard_errors` are those of the logarithms of the others.
    """

    value: Repetition
    standard_errors: Mapping[str, float]
    held: tuple[str, ...]

    @property
    def coefficients(self) -> dict[str, float]:
        """The values as coefficients: r_star_tokens, r_star_parameters."""
        return {f"r_star_{name}": value for name, value in asdict(self.value).items()}

    @property
    def errors(self) -> dict[str, float]:
        """The standard errors of those that are not held."""
        return {f"r_star_{name}": error for name, error in self.standard_errors.items()}

    @property
    def at_bound(self) -> tuple[str, ...]:
        """Those at an end of their box."""
        ends = {name: np.isclose(value, BOX, rtol=1e-3).any() for name, value in self.coefficients.items()}
        return tuple(name for name in self.errors if ends[name])

    @property
    def messages(self) -> tuple[str, ...]:
        """What they rest on, in sentences."""
        named = {"tokens": "R*_D of repeated tokens", "parameters": "R*_N of excess parameters"}
        if not self.held:
            return ()
        names = " and ".join(named[name] for name in self.held)
        return (f"Not told by these runs, so as published by Muennighoff et al. 2023: {names}.",)


class RepeatedObjective(Objective):
    """An objective whose tokens are D', and whose sizes are N' under the coefficients themselves."""

    def __init__(
        self,
        settings: FitSettings,
        columns: Mapping[str, FloatArray],
        one_sided: Mask,
        unique_tokens: FloatArray,
        repetition: Repetition,
    ) -> None:
        super().__init__(settings, columns, one_sided)
        self.repetition = repetition
        self.unique = np.minimum(columns["tokens"], unique_tokens)
        self.raw = {name: columns[name] for name in self.form.variables}
        worth = saturate(columns["tokens"], self.unique, repetition.tokens)
        self.logs = {**self.logs, "tokens": np.log(worth)}
        self.sizes = [name for name in self.form.variables if is_parameters(name)]
        self.of_tokens = Objective(settings, columns, one_sided)
        self.of_tokens.logs = self.logs

    def make_law(self, theta: FloatArray) -> Law:
        return super().make_law(theta).replace(repetition=self.repetition)

    def evaluate(
        self,
        theta: FloatArray,
        weight: FloatArray | None = None,
        *,
        hold_transform: bool = False,
        rows: NDArray[np.int64] | None = None,
    ) -> Evaluation:
        """Answer as any objective; the first stage of a search, which is to be quick, discounts tokens alone."""
        if not hold_transform:
            return super().evaluate(theta, weight, rows=rows)
        self.of_tokens.penalty = self.penalty
        weight = self.weight if weight is None else weight
        return self.of_tokens.evaluate(theta, weight, hold_transform=True, rows=rows)

    def _features(self, theta: FloatArray) -> tuple[Logs, list[FloatArray], list[FloatArray]]:
        self._last = None  # features depend on all of θ
        return super()._features(theta)

    def _transforms(self, theta: FloatArray) -> tuple[Logs, list[FloatArray]]:
        logs, slopes = super()._transforms(theta)
        share, _ = self._discount(self._log_called_for(theta))
        return {**logs, **{name: self.logs[name] + share for name in self.sizes}}, slopes

    def _jacobian(
        self,
        theta: FloatArray,
        logs: Logs,
        designs: list[FloatArray],
        slopes: list[FloatArray],
        residual: FloatArray,
        shares: list[FloatArray],
    ) -> FloatArray:
        jacobian = super()._jacobian(theta, logs, designs, slopes, residual, shares)
        natural, by_size = theta @ self.to_natural.T, np.zeros_like(residual)
        for term, share in zip(self.terms, shares, strict=True):
            for name in self.sizes:
                by_size += share * self._exponent_slope(term, natural[:, term.indices], name, logs)
        called_for = self._log_called_for(theta)
        _, slope = self._discount(called_for)
        discounted = by_size * slope
        if discounted.any():
            jacobian += discounted[..., None] * self._called_for_slopes(theta, called_for)
        return jacobian

    def _log_called_for(self, theta: FloatArray) -> FloatArray:
        """ln of N_opt(U_D) over N, [S, n]; NaN where these coefficients have no optimum."""
        if not self.sizes or "tokens" not in self.raw:
            return np.full((len(theta), len(self.target)), np.nan)
        law, columns = super().make_law(theta[0]), np.moveaxis(self.coefficients(theta), -1, 0)[..., None]
        size = law.size_called_for(columns, self.raw, self.unique)
        # Coefficients may lie at the ends of their box.
        with np.errstate(all="ignore"):
            ratio = np.log(size) - np.log(self.raw[self.sizes[0]])
        return np.where(np.isfinite(ratio), ratio, np.nan)

    def _discount(self, called_for: FloatArray) -> tuple[FloatArray, FloatArray]:
        """ln N'/N, and the derivative of ln N' by ln N_opt, where N exceeds it."""
        r = self.repetition.parameters
        log_excess = np.clip(np.nan_to_num(-called_for, nan=0.0), 0.0, FAR)
        excess = np.exp(log_excess)
        left = np.exp(-(excess - 1.0) / r)
        worth = 1.0 + r * (1.0 - left)
        return np.log(worth) - log_excess, np.where(log_excess > 0, 1.0 - left * excess / worth, 0.0)

    def _called_for_slopes(self, theta: FloatArray, called_for: FloatArray) -> FloatArray:
        """∂ ln N_opt / ∂θ, [S, n, p]: N_opt solves an equation in θ, whose derivatives are differences."""
        law = super().make_law(theta[0])
        x = np.nan_to_num(called_for, nan=0.0)

        def turn(moved: FloatArray, log_size: FloatArray) -> FloatArray:
            """Return the difference of ln L along 6·N·D, which is 0 at N_opt, for θ [..., S, p]."""
            columns, losses = np.moveaxis(self.coefficients(moved), -1, 0)[..., None], []
            for step in (-SIZE_STEP, SIZE_STEP):
                at = {name: self.raw[name] * np.exp(log_size + step) for name in self.sizes}
                at = {**self.raw, **at, "tokens": self.unique * np.exp(-step)}
                losses.append(np.log(law.evaluate(columns, at)))
            return np.asarray(losses[1] - losses[0])

        steps = STEP * np.eye(self.size)[:, None, :]
        # Some rows have no turning point.
        with np.errstate(all="ignore"):
            by_size = (turn(theta, x + SIZE_STEP) - turn(theta, x - SIZE_STEP)) * (STEP / SIZE_STEP)
            by_theta = turn(theta + steps, x) - turn(theta - steps, x)  # [p, S, n]
            slopes = np.moveaxis(-by_theta / by_size, 0, -1)
        return np.where(np.abs(slopes) < STEEPEST, slopes, 0.0)  # False for NaN


def unexplained_repetition(problem: Problem, theta: FloatArray, runs: Runs) -> tuple[str, ...]:
    """Say, with what to type, that the `runs` repeat tokens and errors of the law at θ [p] depend on it."""
    name = next((name for name in (UNIQUE, "epochs") if name in runs), None)
    if name is None or isinstance(problem.objective, RepeatedObjective):
        return ()
    values, used = runs[name], problem.measured
    epochs = (runs.tokens / values if name == UNIQUE else values)[used]
    if not np.all(epochs > 0) or not np.any(epochs > 1.0 + ROUNDED):
        return ()
    residual, jacobian = (part[0][used] for part in problem.objective.linearise(theta[None]))
    if not depends(residual, jacobian[:, problem.free(theta)], np.log(np.maximum(epochs, 1.0))):
        return ()
    option = f"{name}={name!r} (--{name.replace('_', '-')} {name})"
    return (
        f"tokens repeat, up to {epochs.max():.3g} epochs, and the errors of this law depend on it: {option} counts "
        "repeated tokens as what they are worth",
    )


def with_unique_tokens(runs: Runs, unique_tokens: Any, epochs: Any) -> Runs:
    """Give the runs a column of unique tokens, read from a column, one number or one for each run; of either name.

    ValueError unless one of the two is given, and for values that are not positive.
    """
    if unique_tokens is not None and epochs is not None:
        raise InputError(f"unique_tokens={unique_tokens!r}, epochs={epochs!r}: give one of them, the other follows")
    name, value = (UNIQUE, unique_tokens) if epochs is None else ("epochs", epochs)
    if isinstance(value, str) and value in runs:
        column = runs.positive(value)
    else:
        column = numbers(name, value) if not isinstance(value, str) else _number_of(name, value, runs)
        column = positive(name, column)
        if column.shape not in ((), (len(runs),)):
            raise InputError(f"{name} must be a column, or positive numbers, one for all {len(runs)} runs or for each")
        column = np.broadcast_to(column, (len(runs),))
    unique = column if name == UNIQUE else runs.tokens / column
    return replace(runs, columns={**runs.columns, UNIQUE: np.asarray(unique, float)})


def _number_of(name: str, text: str, runs: Runs) -> FloatArray:
    """Read the number that a text says, such as "5B"; RunsError lists the columns where it is none."""
    try:
        return numbers(name, text)
    except ValueError:
        return runs.column(text)


def repeated(problem: Problem, unique_tokens: FloatArray, repetition: Repetition) -> Problem:
    """Count tokens and sizes of a problem as what they are worth at these R*; ValueError for a law without D."""
    if "tokens" not in problem.columns:
        raise InputError(f"unique_tokens: the {problem.settings.law} law does not depend on tokens")
    plain = problem.objective
    objective = RepeatedObjective(problem.settings, problem.columns, plain.one_sided, unique_tokens, repetition)
    objective.weight, objective.penalty = plain.weight, plain.penalty
    return replace(problem, objective=objective)


def fit_repetition(
    problem: Problem, unique_tokens: FloatArray, theta: FloatArray
) -> tuple[Problem, Solutions, RepetitionFit]:
    """Find R*_D and R*_N of these runs, from the fit θ [p] at published ones, and fit the law at them.

    One that neither has a standard error below `TOLD` nor lowers the objective much is held.
    """
    from scipy.special import fdtrc

    names = ("tokens", "parameters")
    several = [_profiled(problem, unique_tokens, theta, names, start) for start in STARTS]
    best = min(several, key=lambda profiled: profiled.cost)
    held: list[str] = []
    for name in names:
        free = tuple(other for other in names if other != name and other not in held)
        without = _profiled(problem, unique_tokens, best.theta, free, best.value)
        spare = max(int(problem.measured.sum()) - len(theta) - len(free) - 1, 1)
        gain = (without.cost - best.cost) / max(best.cost / spare, 1e-300)
        inside = BOX[0] * 1.01 < getattr(best.value, name) < BOX[1] / 1.01
        told = inside and best.errors.get(name, np.inf) <= TOLD
        if not told and fdtrc(1, spare, max(gain, 0.0)) >= CHANCE:
            held.append(name)
            best = without
    final = best.problem.solve(best.theta[None], max_iterations=1000, tolerance=1e-12)
    return best.problem, final, RepetitionFit(best.value, best.errors, tuple(held))


@dataclass(frozen=True)
class _Profiled:
    """The best R* with the others at published values, and the fit there."""

    problem: Problem
    theta: FloatArray
    cost: float
    value: Repetition
    errors: Mapping[str, float]


def _profiled(
    problem: Problem, unique_tokens: FloatArray, theta: FloatArray, free: tuple[str, ...], start: Repetition
) -> _Profiled:
    """Minimise over θ and the `free` R*, from a start; the others are the published ones."""
    from scipy.optimize import minimize

    def at(log_r: ArrayLike) -> Problem:
        values = dict(zip(free, np.exp(log_r).tolist(), strict=True))
        return repeated(problem, unique_tokens, replace(Repetition(), **values))

    near = theta

    def profile(log_r: FloatArray) -> tuple[float, FloatArray]:
        """Return Q minimised over θ, and its slopes by ln R*, at θ held: at a minimum θ makes no difference."""
        nonlocal near
        solved = at(log_r).solve(near[None], max_iterations=200, tolerance=1e-9)
        near = solved.theta[0]
        slopes = []
        for step in STEP * np.eye(len(free)):
            low, high = (at(log_r + sign * step).objective.evaluate(near[None]).cost[0] for sign in (-1.0, 1.0))
            slopes.append((high - low) / (2.0 * STEP))
        return float(solved.cost[0]), np.array(slopes)

    log_r = np.log([getattr(start, name) for name in free])
    if free:
        box = [tuple(np.log(BOX))] * len(free)
        log_r = minimize(profile, log_r, jac=True, method="L-BFGS-B", bounds=box, options={"ftol": 1e-9}).x
    cost, _ = profile(log_r)
    best = at(log_r)
    errors = _standard_errors(best, near, [at(log_r + row) for row in STEP * np.eye(len(free))])
    return _Profiled(best, near, cost, best.objective.repetition, dict(zip(free, errors, strict=True)))  # type: ignore[attr-defined]


def _standard_errors(problem: Problem, theta: FloatArray, moved: list[Problem]) -> list[float]:
    """Estimate those of each ln R* that was `moved` by a step, beside the coefficients that are free."""
    if not moved:
        return []
    residual, jacobian = (part[0] for part in problem.objective.linearise(theta[None]))
    by_r = [(other.objective.residuals(theta[None])[0] - residual) / STEP for other in moved]
    columns = np.column_stack([jacobian[:, problem.free(theta)], *by_r])
    influence = problem.objective.influence(residual)
    scale = np.linalg.norm(columns * np.sqrt(influence)[:, None], axis=0)
    if not np.all(scale[-len(moved) :] > 0):
        return [float("inf") if size == 0 else float("nan") for size in scale[-len(moved) :]]
    scaled = columns * np.sqrt(influence)[:, None] / np.where(scale > 0, scale, 1.0)
    spare = max(int(problem.measured.sum()) - columns.shape[1], 1)
    noise, unscaled = float(influence @ residual**2 / spare), np.diag(np.linalg.pinv(scaled.T @ scaled))
    last = slice(-len(moved), None)
    return (np.sqrt(noise * unscaled[last]) / scale[last]).tolist()
