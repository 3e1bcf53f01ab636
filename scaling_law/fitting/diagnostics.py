"""Which coefficients the runs determine, which variables the law lacks, and which runs do not follow it.

The Huber loss bounds the pull of one bad run, but a tenth of the runs moves the law. Outliers are therefore judged
against a trimmed fit (Rousseeuw and Van Driessen 2006, "Computing LTS regression for large data sets"), each from the
fit without it, so that high leverage neither hides a bad run nor condemns a distant one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np

from hub.base.tables import join_words
from hub.base.types import Strings
from scaling_law.fitting.objective import Objective
from scaling_law.fitting.problem import Problem
from scaling_law.formulas.terms import BY_DESIGN, CONSTANT, INTERACTION, OUTER, SIZE, SLOPE, TRANSFORM, Form
from scaling_law.runs.settings import unexplained
from scaling_law.runs.table import Runs
from scaling_law.size.architecture import DESIGN_VARIABLES, is_size
from scaling_law.size.arrays import BoolArray, FloatArray

# The standard error up to which a coefficient counts as determined, in the units of `examine`.
RESOLUTION = {SLOPE: 0.05, BY_DESIGN: 0.5, INTERACTION: 0.03, SIZE: 1.0, CONSTANT: 0.7, OUTER: 0.3, TRANSFORM: 0.7}
# Share of a coefficient's variance under a prior that the runs leave where they say less of it than the prior.
LEFT = 0.5
# Singular values this much below the largest count as zero.
RANK_TOLERANCE = 1e-7
# Share of the runs that the trimmed fit rests on.
CORE = 0.7
# The trimmed fit is searched on at most this many runs, and also starts from this many random halves of them.
SAMPLED = 1024
HALVES = 16
# If a larger share of the runs is suspicious, the law or the table is wrong.
MOST = 0.3
# A run is suspicious beyond this two-sided probability in Student's t, but never below this deviation of ln L.
TAIL = 1e-6
SMALLEST = 0.01
# Probability that errors depend so much on a variable that makes no difference.
CHANCE = 1e-3
# Columns that say how often tokens repeat, and epochs beyond one that are none.
UNIQUE = "unique_tokens"
EPOCHS = "epochs"
ROUNDED = 0.01
# Share of a variable's variance that the law's own must leave, to be told apart.
CONFOUNDED = 0.05


def examine(
    objective: Objective,
    theta: FloatArray,
    free: BoolArray,
    at_bound: BoolArray,
) -> tuple[float, dict[str, float], Strings]:
    """Find out how well the runs determine the coefficients `free`, from the scaled Jacobian at θ [p].

    Parameters `at_bound` count as open: where the runs do not tell the constant, whether the fit ends just inside its
    bound or on it says nothing of the exponents. Standard errors are of the logarithm for scales and the outer
    exponent, of that of the distance for parameters of transforms, else absolute; infinite for directions that the
    runs do not see. Under a prior they are those of the posterior (Laplace), and a coefficient is undetermined if the
    runs leave more than `LEFT` of its variance under the prior.

    Returns:
        The condition number, the standard errors by name, and the names of undetermined coefficients.
    """
    if not free.any():
        return 1.0, {}, ()
    is_open = free | at_bound
    names, to_natural = _moving_coefficients(objective, is_open)
    residual, jacobian = objective.linearise_at(theta)
    influence = objective.influence(residual)
    root = np.sqrt(influence)[:, None]
    scale, singular, rotation = _decompose(jacobian[:, is_open] * root)
    condition_number = float("inf")
    if singular[-1] > 0:
        condition_number = float(singular[0] / singular[-1])

    freedom = int(np.sum(influence > 0)) - int(is_open.sum())
    variance = float(influence @ residual**2 / freedom) if freedom > 0 else np.inf
    directions = to_natural @ (rotation.T / scale[:, None])
    errors = _standard_errors(directions, singular, variance)
    is_vague = ~(errors <= [RESOLUTION[objective.form.roles[name]] for name in names])
    if objective.penalty is not None:
        variances = np.diag(to_natural @ objective.covariance(theta, is_open) @ to_natural.T)
        is_vague = variances > LEFT * np.diag(to_natural @ objective.prior_covariance(theta, is_open) @ to_natural.T)
        errors = np.sqrt(variances)

    bound_names = {name for name, is_bound in zip(objective.names, at_bound, strict=True) if is_bound}
    standard_errors = {}
    undetermined = []
    for name, error, vague in zip(names, errors.tolist(), is_vague, strict=True):
        if objective.settings.tied.get(name, name) in bound_names:
            continue
        standard_errors[name] = error
        if vague:
            undetermined.append(name)
    return condition_number, standard_errors, tuple(undetermined)


def _moving_coefficients(objective: Objective, free: BoolArray) -> tuple[list[str], FloatArray]:
    """Return the coefficients that move with the parameters `free`, and the matrix [m, k] from these to them."""
    # A coefficient that is tied to one at a bound does not move.
    is_tied = np.isin(objective.names, [*objective.settings.tied])
    follows = np.any(objective.carry[:, free] != 0, axis=1)
    is_moving = free | (is_tied & follows)
    names = [name for name, moves in zip(objective.names, is_moving, strict=True) if moves]
    return names, objective.basis[np.ix_(is_moving, free)]


def _standard_errors(
    directions: FloatArray,
    singular: FloatArray,
    variance: float,
) -> FloatArray:
    """Compute standard errors [m] of coefficients; infinite where they move along a direction that is not seen.

    Args:
        directions: the coefficients in singular directions of the scaled Jacobian, [m, k].
        singular: its singular values [k].
        variance: that of ln L of one run.
    """
    is_seen = singular > RANK_TOLERANCE * singular.max(initial=1e-300)
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.sum((directions[:, is_seen] / singular[is_seen]) ** 2, axis=1)
        errors = np.sqrt(variance * squares)
    unseen_length = np.linalg.norm(directions[:, ~is_seen], axis=1)
    is_open = unseen_length > 1e-6 * np.linalg.norm(directions, axis=1)
    return np.where(is_open, np.inf, errors)


def _decompose(jacobian: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the norms of the columns, and the singular values and right singular vectors once scaled by these."""
    scale = np.linalg.norm(jacobian, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    # All left vectors would be a matrix of rows × rows; all right ones come without them where there are enough rows.
    _, singular, rotation = np.linalg.svd(jacobian / scale, full_matrices=len(jacobian) < len(scale))
    zeros = np.zeros(len(scale) - len(singular))
    return scale, np.concatenate([singular, zeros]), rotation


def design_problems(problem: Problem) -> list[str]:
    """Say why the design of the runs cannot determine all the coefficients that are not fixed; empty if it can."""
    objective = problem.objective
    form = objective.form
    free = {*problem.settings.fitted(objective.names)}
    columns = problem.columns

    problems = []
    count = len(columns["loss"])
    if count < len(free):
        runs = "1 run" if count == 1 else f"{count} runs"
        names = ", ".join(sorted(free))
        problems.append(f"{runs} cannot determine {len(free)} coefficients ({names})")

    constant = {name for name in form.variables if np.ptp(np.log(columns[name])) < 1e-6}
    slopes = sorted(name for name in free if form.roles[name] not in (SIZE, CONSTANT))
    factors = _factors_by_coefficient(form)
    for variable in sorted(constant):
        # A slope by what is constant does nothing but scale its term.
        affected = [name for name in slopes if any(variable in factor <= constant for factor in factors[name])]
        if affected:
            value = columns[variable][0]
            problems.append(f"all runs have {variable}={value:g}: {', '.join(affected)} are not identifiable")
    if "tokens" in form.variables and count > 1:
        problems += _equal_ratios(form, columns, free)
    return problems


def _equal_ratios(
    form: Form,
    columns: Mapping[str, FloatArray],
    free: set[str],
) -> Iterator[str]:
    """Say which of the `free` coefficients cannot be told apart where tokens are in one ratio to a size."""
    factors = _factors_by_coefficient(form)
    for size in form.variables:
        if not is_size(size) or size == "tokens":
            continue
        ratio = np.log(columns["tokens"] / columns[size])
        if np.ptp(ratio) >= 0.02:
            continue
        names = []
        for name in sorted(free):
            # A coefficient of both, as that of a ladder, is determined.
            variables = set().union(*factors[name])
            is_of_one = len(variables & {size, "tokens"}) == 1
            if is_of_one and form.roles[name] in (SIZE, SLOPE):
                names.append(name)
        if names:
            value = np.exp(ratio.mean())
            yield f"all runs have tokens/{size}={value:.3g}: {', '.join(names)} cannot be told apart"


def _factors_by_coefficient(form: Form) -> dict[str, list[set[str]]]:
    """Return the factors that each coefficient multiplies, or scales, as the variables that each follows from.

    That of a variable is itself, and that of a transform and of its parameters all that it reads.
    """
    inputs = {name: {name} for name in form.variables}
    factors: dict[str, list[set[str]]] = {name: [] for name in form.coefficients}
    for transform in form.transforms:
        inputs[transform.name] = {*transform.variables}
        for p in transform.parameters:
            factors[p.name].append(inputs[transform.name])
    for term in form.terms:
        factors[term.scale] += [inputs[name] for name in term.factors]
        for coefficient, features in term.features.items():
            names = chain.from_iterable(factors_of_feature for _, factors_of_feature in features)
            factors[coefficient] += [inputs[name] for name in names]
    return factors


def omitted_variables(
    problem: Problem,
    theta: FloatArray,
    runs: Runs,
    errors: FloatArray,
) -> Strings:
    """Say which variables vary in the runs, not in the law, and on which of these its `errors` [n], nats, depend.

    That is an F test at `CHANCE` for its logarithm and the square of it, beside the Jacobian at θ [p]. A variable
    whose effect the runs cannot tell from that of the law's own is named, too, but for epochs; one that follows from
    others is not.
    """
    is_point = problem.used
    residual, jacobian = (values[is_point] for values in problem.objective.linearise_at(theta))
    variables = problem.objective.form.variables
    columns = jacobian[:, problem.free(theta)]
    tested = [np.ones(len(columns))]
    tested += [runs[name][is_point] for name in variables if not is_size(name)]
    sentences = []
    for name, column in _omitted_columns(problem, runs).items():
        values = column[is_point]
        follows = _count_distinct(*tested) == _count_distinct(*tested, values)
        if follows or not np.isfinite(values).all():
            continue
        tested.append(values)

        means = _mean_errors(values, errors[is_point])
        x = np.log(values) if min(means) > 0 else values
        x = (x - x.mean()) / max(float(x.std()), 1e-300)
        powers = x[:, None] ** np.arange(1, min(len(means), 3))
        extended = np.column_stack([columns, powers])
        probability, freedom = _test_columns(residual, columns, extended)
        is_confounded = not freedom or unexplained(x, columns, RANK_TOLERANCE)[0] < CONFOUNDED * len(x)
        label = "E" if name == "experts" else name
        sentence = f"{label} varies in the runs but not in this law"
        if is_confounded and name != EPOCHS:
            sentence += f", and the runs cannot tell its effect from that of {join_words(variables)}"
        elif probability < CHANCE:
            low = min(means, key=means.__getitem__)
            high = max(means, key=means.__getitem__)
            sentence += f": its mean error is {means[low]:+.3f} nats at {label} = {low:g}"
            sentence += f" and {means[high]:+.3f} at {label} = {high:g}"
        else:
            continue
        if name == EPOCHS:
            derived = "" if UNIQUE in runs else " with the column unique_tokens = tokens / epochs"
            option = f"unique_tokens={UNIQUE!r} (--unique-tokens {UNIQUE}){derived}"
            sentence += f"; {option} counts repeated tokens as what they are worth"
        columns = extended
        sentences.append(sentence)
    return tuple(sentences)


def _omitted_columns(problem: Problem, runs: Runs) -> dict[str, FloatArray]:
    """Return the variables of designs that the law lacks, and epochs, 1 at least, where it does not count them."""
    variables = problem.objective.form.variables
    columns = {name: runs[name] for name in DESIGN_VARIABLES if name in runs and name not in variables}
    if problem.objective.repetition is None and {UNIQUE, EPOCHS} & {*runs.columns}:
        epochs = runs.tokens / runs[UNIQUE] if UNIQUE in runs else runs[EPOCHS]
        if np.all(epochs > 0) and np.any(epochs > 1.0 + ROUNDED):
            columns[EPOCHS] = np.maximum(epochs, 1.0)
    return columns


def _test_columns(
    residual: FloatArray,
    columns: FloatArray,
    extended: FloatArray,
) -> tuple[float, int]:
    """Test, by an F test, what the further columns of `extended` [n, l] explain of residuals [n].

    Returns the probability that they explain so much by chance, 1 where there is nothing to test, and the degrees of
    freedom that they leave.
    """
    from scipy.special import fdtrc

    squares, rank = unexplained(residual, columns, RANK_TOLERANCE)
    squares_left, rank_extended = unexplained(residual, extended, RANK_TOLERANCE)
    added = rank_extended - rank
    freedom = len(residual) - rank_extended
    if not added or freedom < 1:
        return 1.0, freedom
    ratio = (squares - squares_left) / added / max(squares_left / freedom, 1e-300)
    return float(fdtrc(added, freedom, ratio)), freedom


def _mean_errors(values: FloatArray, errors: FloatArray) -> dict[float, float]:
    """Average the errors [n] of each value [n]."""
    distinct, index = np.unique(values, return_inverse=True)
    means = np.bincount(index, errors) / np.bincount(index)
    return dict(zip(distinct.tolist(), means.tolist(), strict=True))


def _count_distinct(*columns: FloatArray) -> int:
    """Count the different rows of these columns [n]."""
    return len(np.unique(np.column_stack(columns), axis=0))


@dataclass(frozen=True)
class Outliers:
    """Suspicious runs [n], the deviation [n] of ln L from the fit without the run, and the fit to the others, θ [p].

    Where they would be more than `MOST` of the runs used, none is, and `warning` says so.
    """

    suspicious: BoolArray
    deviation: FloatArray
    theta: FloatArray
    warning: str = ""


def find_outliers(problem: Problem, theta: FloatArray) -> Outliers:
    """Find the suspicious runs among those used, from the fit θ [p] to all of them."""
    objective = problem.objective
    is_used = problem.used
    deviation = -objective.residuals(theta[None])[0]
    if np.all(np.abs(deviation[is_used]) <= SMALLEST):
        return Outliers(np.zeros_like(is_used), deviation, theta)

    # A bad run must not limit the constant.
    losses = problem.columns["loss"][is_used]
    problem = problem.with_constant_below(float(np.quantile(losses, MOST)))
    follows, theta = _find_core(problem, theta)
    for _ in range(20):
        deviation, limit = _judge(problem, theta, follows)
        agrees = is_used & (np.abs(deviation) <= limit)
        if np.array_equal(agrees, follows):
            break
        follows = agrees
        theta = _refit(problem, theta[None], (objective.weight * agrees)[None])[0]
    suspicious = is_used & ~follows
    if suspicious.sum() <= MOST * is_used.sum():
        return Outliers(suspicious, deviation, theta)
    warning = (
        f"{suspicious.sum()} of {is_used.sum()} runs lie far from the law that fits the others; with more than "
        f"{MOST:.0%} none is set aside: check the table and the form of the law"
    )
    return Outliers(np.zeros_like(is_used), deviation, theta, warning)


def _find_core(problem: Problem, theta: FloatArray) -> tuple[BoolArray, FloatArray]:
    """Return the runs [n] of the best trimmed fit, and that fit; of many, from a sample."""
    sample = problem.sample(SAMPLED)
    core, theta = _trim(sample, theta)
    if sample is problem:
        return core, theta
    nearest, _ = _nearest(problem, theta[None], int(np.ceil(CORE * problem.used.sum())))
    return nearest[0], theta


def _trim(problem: Problem, theta: FloatArray) -> tuple[BoolArray, FloatArray]:
    """Fit the runs that lie nearest to their own fit, from θ [p] and from random halves.

    Returns these runs [n], and the fit [p].
    """
    weight = problem.objective.weight
    rows = np.flatnonzero(problem.used)
    n_points = len(rows)
    n_free = int(np.sum(problem.lower < problem.upper))
    size = min(n_points, max(int(np.ceil(CORE * n_points)), (n_points + n_free + 1) // 2))
    half_size = max(n_points // 2, min(n_points, n_free + 1))

    rng = np.random.default_rng(0)
    halves = np.zeros((HALVES, len(weight)))
    for half in halves:
        sampled_rows = rng.permutation(rows)[:half_size]
        half[sampled_rows] = 1.0
    # Some halves are free of the bad runs that pulled θ.
    points = _refit(problem, np.tile(theta, (HALVES, 1)), weight * halves, 1e-4)
    points = np.concatenate([theta[None], points])

    core, _ = _nearest(problem, points, size)
    # All move for two steps, then the best few until nothing changes.
    for steps in (2, 30):
        for _ in range(steps):
            points = _refit(problem, points, weight * core, 1e-5)
            previous_core = core
            core, squares = _nearest(problem, points, size)
            if np.array_equal(previous_core, core):
                break
        best = np.argsort(squares, kind="stable")[:4]
        points = points[best]
        core = core[best]
    return core[0], points[0]


def _nearest(
    problem: Problem,
    points: FloatArray,
    size: int,
) -> tuple[BoolArray, FloatArray]:
    """Find the runs nearest to each of several fits.

    Args:
        points: the fits θ [S, p].
        size: how many to choose.

    Returns:
        A mask of the nearest runs [S, n], and the sum of their squared distances [S].
    """
    distance = np.where(problem.used, np.abs(problem.objective.residuals(points)), np.inf)
    order = np.argsort(distance, axis=1, kind="stable")[:, :size]
    is_near = np.zeros(distance.shape, bool)
    np.put_along_axis(is_near, order, True, axis=1)
    return is_near, np.sum(np.take_along_axis(distance, order, axis=1) ** 2, axis=1)


def _judge(
    problem: Problem,
    theta: FloatArray,
    follows: BoolArray,
) -> tuple[FloatArray, FloatArray]:
    """Compare every run with the fit without it.

    Args:
        theta: the fit [p].
        follows: the runs [n] that it was fitted to.

    Returns:
        The deviation of ln L of every run [n], and how large it may be [n].
    """
    from scipy.special import stdtrit

    objective = problem.objective
    free = problem.free(theta)
    residual, jacobian = objective.linearise_at(theta)
    residual = -residual
    jacobian = jacobian[:, free]

    mean_weight = float(objective.weight[follows].mean())
    prior = objective.prior_rows(theta)[:, free] / np.sqrt(mean_weight)
    scale, singular, rotation = _decompose(np.vstack([jacobian[follows], prior]))
    singular = np.maximum(singular, RANK_TOLERANCE * singular.max(initial=1e-300))
    directions = jacobian / scale @ rotation.T
    leverage = np.sum((directions / singular) ** 2, axis=1)
    n_coefficients = float(leverage[follows].sum()) if len(prior) else int(free.sum())
    freedom = int(follows.sum()) - n_coefficients
    if freedom < 1:
        return residual, np.full(len(residual), np.inf)

    # The share of a run's error that is left once it has pulled the fit: a run of leverage 1 predicts itself.
    share_left = np.where(follows, np.maximum(1.0 - leverage, 1e-12), 1.0)
    is_typical = follows & (leverage < 0.9)
    sigma = np.inf
    if is_typical.any():
        sizes = np.abs(residual[is_typical]) / np.sqrt(share_left[is_typical])
        sigma = 1.4826 * float(np.median(sizes))
    spread = sigma * np.where(follows, 1.0 / np.sqrt(share_left), np.sqrt(1.0 + leverage))
    quantile = -float(stdtrit(freedom, TAIL / 2))
    return residual / share_left, np.maximum(quantile * spread, SMALLEST)


def _refit(
    problem: Problem,
    theta: FloatArray,
    weight: FloatArray,
    tolerance: float = 1e-8,
) -> FloatArray:
    """Fit from each θ [S, p] with weights [S, n].

    The fit is stopped early: flat directions do not hide a bad run.
    """
    max_iterations = 100 if tolerance < 1e-6 else 30
    return problem.solve(theta, weight, max_iterations=max_iterations, tolerance=tolerance).theta
