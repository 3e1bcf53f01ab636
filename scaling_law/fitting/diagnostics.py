"""Which coefficients the runs determine, which variables the law lacks, and which runs do not follow it.

The Huber loss bounds the pull of one bad run, but a tenth of the runs moves the law. Outliers are therefore judged
against a trimmed fit (Rousseeuw and Van Driessen 2006, "Computing LTS regression for large data sets"), each from the
fit without it, so that high leverage neither hides a bad run nor condemns a distant one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hub.base.tables import enumerated
from scaling_law.fitting.objective import Objective
from scaling_law.fitting.problem import Problem
from scaling_law.formulas.terms import BY_DESIGN, CONSTANT, INTERACTION, OUTER, SIZE, SLOPE, TRANSFORM, Form
from scaling_law.runs.table import Runs
from scaling_law.size.architecture import DESIGN_VARIABLES, is_size
from scaling_law.size.arrays import FloatArray

Mask = NDArray[np.bool_]

# The standard error up to which a coefficient counts as determined, in the units of `examine`.
RESOLUTION = {SLOPE: 0.05, BY_DESIGN: 0.5, INTERACTION: 0.03, SIZE: 1.0, CONSTANT: 0.7, OUTER: 0.3, TRANSFORM: 0.7}
RANK_TOLERANCE = 1e-7  # singular values this much below the largest count as zero
CORE = 0.7  # the part of the runs that the trimmed fit rests on
SAMPLED = 1024  # runs, at most, that the trimmed fit is searched on
HALVES = 16  # random halves of the runs that the trimmed fit also starts from
MOST = 0.3  # if a larger part of the runs is suspicious, the law or the table is wrong
TAIL = 1e-6  # two-sided probability, in Student's t, beyond which a run is suspicious
CHANCE = 1e-3  # probability that errors depend so much on a variable that makes no difference
CONFOUNDED = 0.05  # part of a variable's variance that the law's own must leave, to be told apart
SMALLEST = 0.01  # deviations of ln L below this are never suspicious


def examine(objective: Objective, theta: FloatArray, free: Mask) -> tuple[float, dict[str, float], tuple[str, ...]]:
    """Condition number, standard errors and undetermined coefficients, from the scaled Jacobian at θ [p] over `free`.

    Standard errors are of the logarithm for scales and the outer exponent, of that of the distance for parameters of
    transforms, else absolute; infinite for directions that the runs do not see. Under a prior they are those of the
    posterior (Laplace), while `undetermined` is what the runs alone leave open.
    """
    if not free.any():
        return 1.0, {}, ()
    tied = np.isin(objective.names, [*objective.tied])
    # What is tied to a coefficient that is fixed at a bound does not move.
    moving = free | (tied & np.any(objective.carry[:, free] != 0, axis=1))
    names = [name for name, moves in zip(objective.names, moving, strict=True) if moves]
    to_natural = (objective.to_natural @ objective.carry)[np.ix_(moving, free)]
    residual, jacobian = (part[0] for part in objective.linearised(theta[None]))
    influence = objective.influence(residual)
    scale, singular, rotation = _decomposed(jacobian[:, free] * np.sqrt(influence)[:, None])
    seen = singular > RANK_TOLERANCE * singular.max(initial=1e-300)
    spare = int(np.sum(influence > 0)) - int(free.sum())
    variance = float(influence @ residual**2 / spare) if spare > 0 else np.inf
    # rows: parameters in the law's own coordinates, columns: singular directions
    back = to_natural @ (rotation.T / scale[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.sqrt(variance * np.sum((back[:, seen] / singular[seen]) ** 2, axis=1))
    unseen = np.linalg.norm(back[:, ~seen], axis=1) > 1e-6 * np.linalg.norm(back, axis=1)
    errors = np.where(unseen, np.inf, errors)
    condition = float(singular[0] / singular[-1]) if singular[-1] > 0 else float("inf")
    table = {name: float(error) for name, error in zip(names, errors, strict=True)}
    roles = objective.form.roles
    vague = tuple(name for name, error in table.items() if not error <= RESOLUTION[roles[name]])
    if objective.penalty is not None:
        rows = np.vstack([jacobian * np.sqrt(influence)[:, None], objective.prior_rows(theta)])[:, free]
        variances = np.diag(to_natural @ np.linalg.inv(rows.T @ rows) @ to_natural.T) * objective.penalty.variance[0]
        table = dict(zip(names, np.sqrt(variances).tolist(), strict=True))
    return condition, table, vague


def _decomposed(jacobian: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The norms of the columns, and the singular values and right singular vectors once scaled by these."""
    scale = np.linalg.norm(jacobian, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    # All left vectors would be a matrix of rows × rows; all right ones come without them where there are enough rows.
    _, singular, rotation = np.linalg.svd(jacobian / scale, full_matrices=len(jacobian) < len(scale))
    return scale, np.concatenate([singular, np.zeros(len(scale) - len(singular))]), rotation


def design_problems(problem: Problem) -> list[str]:
    """Why the design of the runs cannot determine all the coefficients that are not fixed; empty if it can."""
    form, problems = problem.objective.form, []
    settings = problem.settings
    free = {name for name in problem.objective.names if name not in settings.fixed and name not in settings.tied}
    columns = {name: column[~problem.objective.one_sided] for name, column in problem.columns.items()}
    count = len(columns["loss"])
    if count < len(free):
        runs = "1 run" if count == 1 else f"{count} runs"
        problems.append(f"{runs} cannot determine {len(free)} coefficients ({', '.join(sorted(free))})")
    constant = {name for name in form.variables if np.ptp(np.log(columns[name])) < 1e-6}
    still = {t.name: {*t.variables} for t in form.transforms if {*t.variables} <= constant}
    blind = {p.name for t in form.transforms if t.name in still for p in t.parameters}
    for term in form.terms:
        for name, features in term.features.items():
            if any({*factors} & {*constant, *still} for _, factors in features):
                blind.add(name)
    for variable in sorted(constant):
        hit = free & {name for name in blind if variable in _variables(form, name)}
        if hit:
            what = f"{', '.join(sorted(hit))} are not identifiable"
            problems.append(f"all runs have {variable}={columns[variable][0]:g}: {what}")
    sizes = [name for name in form.variables if is_size(name) and name != "tokens"]
    if "tokens" in form.variables and count > 1:
        for size in sizes:
            ratio = np.log(columns["tokens"] / columns[size])
            either = {n for n in free if len(_variables(form, n) & {size, "tokens"}) == 1}  # not both, as of a ladder
            both = sorted(n for n in either if form.roles[n] in (SIZE, SLOPE))
            if np.ptp(ratio) < 0.02 and both:
                value = np.exp(ratio.mean())
                problems.append(f"all runs have tokens/{size}={value:.3g}: {', '.join(both)} cannot be told apart")
    return problems


def _variables(form: Form, coefficient: str) -> set[str]:
    """The variables that a coefficient multiplies, or that its transform reads; those of its term for a scale."""
    variables: set[str] = set()
    of_transform = {transform.name: {*transform.variables} for transform in form.transforms}
    for transform in form.transforms:
        variables |= of_transform[transform.name] if coefficient in {p.name for p in transform.parameters} else set()
    for term in form.terms:
        features = term.features.get(coefficient, ())
        names = term.factors if coefficient == term.scale else [name for _, factors in features for name in factors]
        variables = variables.union(*(of_transform.get(name, {name}) for name in names))
    return variables


def omitted_variables(problem: Problem, theta: FloatArray, runs: Runs, errors: FloatArray) -> tuple[str, ...]:
    """A sentence on each variable that varies in the runs, not in the law, and on which its `errors` [n] depend, nats.

    That is an F test at `CHANCE` for its logarithm and the square of it, beside the Jacobian at θ [p]. A variable
    whose effect the runs cannot tell from that of the law's own is named, too; one that follows from others is not.
    """
    from scipy.special import fdtrc

    used, sentences = problem.measured, []
    residual, jacobian = (part[0][used] for part in problem.objective.linearised(theta[None]))
    variables, columns = problem.objective.form.variables, jacobian[:, problem.free(theta)]
    tested = [np.ones(len(columns)), *(runs[name][used] for name in variables if not is_size(name))]
    for name in [name for name in DESIGN_VARIABLES if name in runs and name not in variables]:
        values = runs[name][used]
        if not np.isfinite(values).all() or _distinct(*tested) == _distinct(*tested, values):
            continue
        tested.append(values)
        means = _means(values, errors[used])
        x = np.log(values) if min(means) > 0 else values
        x = (x - x.mean()) / x.std()
        more = np.column_stack([columns, x[:, None] ** np.arange(1, min(len(means), 3))])
        (before, rank), (after, larger) = _unexplained(residual, columns), _unexplained(residual, more)
        added, spare = larger - rank, len(x) - larger
        label = "E" if name == "experts" else name
        if not spare or _unexplained(x, columns)[0] < CONFOUNDED * len(x):
            said = f", and the runs cannot tell its effect from that of {enumerated(variables)}"
        elif fdtrc(added, spare, (before - after) / added / max(after / spare, 1e-300)) < CHANCE:
            low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
            ends = f"{means[low]:+.3f} nats at {label} = {low:g} and {means[high]:+.3f} at {label} = {high:g}"
            said = f": its mean error is {ends}"
        else:
            continue
        columns = more
        sentences.append(f"{label} varies in the runs but not in this law{said}")
    return tuple(sentences)


def depends(residual: FloatArray, columns: FloatArray, x: FloatArray) -> bool:
    """Whether residuals [n] depend on a variable x [n] or its square beside the `columns` [n, k], by an F test."""
    from scipy.special import fdtrc

    x = (x - x.mean()) / max(float(x.std()), 1e-300)
    (before, rank), (after, larger) = (
        _unexplained(residual, columns),
        _unexplained(residual, np.column_stack([columns, x, x**2])),
    )
    added, spare = larger - rank, len(x) - larger
    if not added or spare < 1:
        return False
    return bool(fdtrc(added, spare, (before - after) / added / max(after / spare, 1e-300)) < CHANCE)


def _means(values: FloatArray, errors: FloatArray) -> dict[float, float]:
    """The mean error of each value [n]."""
    distinct, place = np.unique(values, return_inverse=True)
    means = np.bincount(place, errors) / np.bincount(place)
    return dict(zip(distinct.tolist(), means.tolist(), strict=True))


def _distinct(*columns: FloatArray) -> int:
    """How many different rows these columns [n] have."""
    return len(np.unique(np.column_stack(columns), axis=0))


def _unexplained(residual: FloatArray, columns: FloatArray) -> tuple[float, int]:
    """The sum of squares that no combination of the columns [n, k] explains, and their rank."""
    scaled = columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    solution, _, rank, _ = np.linalg.lstsq(scaled, residual, rcond=RANK_TOLERANCE)
    return float(np.sum((residual - scaled @ solution) ** 2)), int(rank)


@dataclass(frozen=True)
class Outliers:
    """Suspicious runs [n], the deviation [n] of ln L from the fit without the run, and the fit to the others, θ [p].

    `too_many`: more than `MOST` of the runs used are suspicious.
    """

    suspicious: Mask
    deviation: FloatArray
    theta: FloatArray
    too_many: bool


def find_outliers(problem: Problem, theta: FloatArray) -> Outliers:
    """The suspicious runs among those used, from the fit θ [p] to all of them.

    A one-sided run is suspicious only if the law of the others lies above it.
    """
    weight, loss = problem.objective.weight, problem.columns["loss"]
    used, one_sided = problem.used, problem.objective.one_sided
    residual = -problem.objective.residuals(theta[None])[0]
    if np.all((np.abs(residual) <= SMALLEST)[used] | (one_sided & (residual > 0))[used]):
        return Outliers(np.zeros_like(used), residual, theta, False)
    problem = problem.with_constant_below(float(np.quantile(loss[used], MOST)))  # a bad run must not limit it
    sample = problem.sample(SAMPLED)
    kept, theta = _core(sample, theta)
    if sample is not problem:
        measured = problem.measured
        nearest, _ = _nearest(problem, theta[None], measured, int(np.ceil(CORE * measured.sum())))
        kept = nearest[0] | (used & ~measured)
    for _ in range(20):
        deviation, limit = _judge(problem, theta, kept)
        agree = used & ((np.abs(deviation) <= limit) | (one_sided & (deviation > 0)))
        if np.array_equal(agree, kept):
            break
        kept, theta = agree, _refit(problem, theta[None], (weight * agree)[None])[0]
    suspicious = used & ~kept
    return Outliers(suspicious, deviation, theta, bool(suspicious.sum() > MOST * used.sum()))


def _core(problem: Problem, theta: FloatArray) -> tuple[Mask, FloatArray]:
    """The runs [n] of the best trimmed fit, one-sided ones included, and that fit."""
    weight = problem.objective.weight
    used, free = problem.measured, int(np.sum(problem.lower < problem.upper))
    bounds = problem.used & ~used
    count = int(used.sum())
    size = min(count, max(int(np.ceil(CORE * count)), (count + free + 1) // 2))
    rng = np.random.default_rng(0)
    rows = np.flatnonzero(used)
    halves = np.tile(bounds.astype(float), (HALVES, 1))
    for half in halves:
        half[rng.permutation(rows)[: max(count // 2, min(count, free + 1))]] = 1.0
    start = np.tile(theta, (HALVES, 1))  # some halves are free of the bad runs that pulled θ
    points = np.concatenate([theta[None], _refit(problem, start, weight * halves, 1e-4)])
    kept, _ = _nearest(problem, points, used, size)
    for steps in (2, 30):  # all for two steps; then the best few until nothing changes
        for _ in range(steps):
            points = _refit(problem, points, weight * (kept | bounds), 1e-5)
            before, (kept, distance) = kept, _nearest(problem, points, used, size)
            if np.array_equal(before, kept):
                break
        best = np.argsort(distance, kind="stable")[:4]
        points, kept, distance = points[best], kept[best], distance[best]
    return kept[0] | bounds, points[0]


def _nearest(problem: Problem, points: FloatArray, used: Mask, size: int) -> tuple[NDArray[np.bool_], FloatArray]:
    """The `size` used runs nearest to each θ [S, p] as a mask [S, n], and the sum of their squared distances [S]."""
    distance = np.where(used, np.abs(problem.objective.residuals(points)), np.inf)
    order = np.argsort(distance, axis=1, kind="stable")[:, :size]
    kept = np.zeros(distance.shape, bool)
    np.put_along_axis(kept, order, True, axis=1)
    return kept, np.sum(np.take_along_axis(distance, order, axis=1) ** 2, axis=1)


def _judge(problem: Problem, theta: FloatArray, kept: Mask) -> tuple[FloatArray, FloatArray]:
    """Deviation of ln L of every run from the fit without it [n], and how large it may be [n]."""
    from scipy.special import stdtrit

    free = problem.free(theta)
    residual, jacobian = (part[0] for part in problem.objective.linearised(theta[None]))
    active = kept & ~problem.objective.idle(residual)
    residual, jacobian = -residual, jacobian[:, free]
    weight = float(problem.objective.weight[kept].mean())
    prior = problem.objective.prior_rows(theta)[:, free] / np.sqrt(weight)
    scale, singular, rotation = _decomposed(np.vstack([jacobian[active], prior]))
    singular = np.maximum(singular, RANK_TOLERANCE * singular.max(initial=1e-300))
    leverage = np.sum((jacobian / scale @ rotation.T / singular) ** 2, axis=1)
    alone = np.where(active, np.maximum(1.0 - leverage, 1e-12), 1.0)  # a run of leverage 1 is its own prediction
    fitted = float(leverage[active].sum()) if len(prior) else int(free.sum())
    spare = int(active.sum()) - fitted
    if spare < 1:
        return residual, np.full(len(residual), np.inf)
    judged = active & (leverage < 0.9)
    sigma = 1.4826 * float(np.median(np.abs(residual[judged]) / np.sqrt(alone[judged]))) if judged.any() else np.inf
    deviation = residual / alone
    spread = sigma * np.where(active, 1.0 / np.sqrt(alone), np.sqrt(1.0 + leverage))
    limit = np.maximum(-float(stdtrit(spare, TAIL / 2)) * spread, SMALLEST)
    return deviation, limit


def _refit(problem: Problem, theta: FloatArray, weight: FloatArray, tolerance: float = 1e-8) -> FloatArray:
    """Fits from θ [S, p] with weights [S, n], stopped early: flat directions do not hide a bad run."""
    return problem.solve(theta, weight, max_iterations=100 if tolerance < 1e-6 else 30, tolerance=tolerance).theta
