"""What a prior adds to the objective: minus its log density at each θ, times the variance of the runs' noise.

The prior is Student's t (a Gaussian at infinite degrees of freedom) of a law's coordinates

    x = (ln m N₀^μ, ln n D₀^ν, ln −μ, ln −ν, ln c)

and in θ's natural coordinates (ln m, μ, ln n, ν, ln c) close to one quadratic term, the same for every run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling_law.size.arrays import FloatArray

LOG_N, LOG_D = float(np.log(1e9)), float(np.log(2e10))  # the reference: 1B parameters, 20B tokens
STEEPEST, FLATTEST = -3.0, -1e-3  # exponents that a law under a prior may have


@dataclass(frozen=True)
class Penalty:
    """Priors [S] of mean [S, 5], precision [S, 5, 5] and degrees of freedom [S]; S = 1 serves every θ.

    `variance` [S] is that of ln L of one run, which weighs the prior against the sum of squares over runs.
    """

    mean: FloatArray
    precision: FloatArray
    dof: FloatArray
    variance: FloatArray

    def take(self, rows: NDArray[np.int64]) -> Penalty:
        """The priors of these rows of θ."""
        if len(self.mean) == 1:
            return self
        return Penalty(self.mean[rows], self.precision[rows], self.dof[rows], self.variance[rows])

    def evaluate(self, natural: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Cost [S], gradient [S, 5] and Gauss-Newton matrix [S, 5, 5] at natural coordinates [S, 5]."""
        jacobian = jacobian_of(natural)
        away = coordinates(natural) - self.mean
        pull = np.matmul(self.precision, away[..., None])[..., 0]
        square = np.sum(away * pull, axis=1)
        size, heavy = natural.shape[1], np.isfinite(self.dof)
        dof = np.where(heavy, self.dof, 1.0)
        cost = np.where(heavy, (dof + size) * np.log1p(square / dof), square)
        weight = self.variance * np.where(heavy, (dof + size) / (dof + square), 1.0)
        gradient = np.matmul(jacobian.swapaxes(1, 2), pull[..., None])[..., 0]
        curvature = jacobian.swapaxes(1, 2) @ self.precision @ jacobian
        return 0.5 * self.variance * cost, weight[:, None] * gradient, weight[:, None, None] * curvature


def coordinates(natural: FloatArray) -> FloatArray:
    """x of (ln m, μ, ln n, ν, ln c), both [..., 5]."""
    log_m, mu, log_n, nu, log_c = np.moveaxis(natural, -1, 0)
    columns = (log_m + mu * LOG_N, log_n + nu * LOG_D, np.log(-mu), np.log(-nu), log_c)
    return np.stack(columns, axis=-1)


def natural_of(x: FloatArray) -> FloatArray:
    """(ln m, μ, ln n, ν, ln c) of x, both [..., 5]."""
    log_a, log_b, log_mu, log_nu, log_c = np.moveaxis(x, -1, 0)
    mu, nu = -np.exp(log_mu), -np.exp(log_nu)
    return np.stack((log_a - mu * LOG_N, mu, log_b - nu * LOG_D, nu, log_c), axis=-1)


def jacobian_of(natural: FloatArray) -> FloatArray:
    """∂x / ∂ natural coordinates, [S, 5, 5], at [S, 5]."""
    jacobian = np.zeros((len(natural), 5, 5))
    jacobian[:, 0, 0] = jacobian[:, 1, 2] = jacobian[:, 4, 4] = 1.0
    jacobian[:, 0, 1], jacobian[:, 1, 3] = LOG_N, LOG_D
    jacobian[:, 2, 1], jacobian[:, 3, 3] = 1.0 / natural[:, 1], 1.0 / natural[:, 3]
    return jacobian
