"""Synthetic runs: the paper's design with losses of the published law, and a tiny sweep of laptop-sized models."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np

from scaling_law import Architecture, FitResult, JointLaw, Runs, fit, published_design
from scaling_law.law import InteractionLaw
from scaling_law.size.architecture import active_parameters
from scaling_law.size.recipe import PAPER, BatchRamp

PAPER_RAMP = BatchRamp(PAPER.batch_ramp, PAPER.sequence_length)
TINY_LAW = {
    "a": 25.0,
    "alpha": -0.22,
    "delta": -0.15,
    "gamma": 0.004,
    "b": 60.0,
    "beta": -0.25,
    "omega": 0.15,
    "zeta": -0.015,
    "e_start": 2.0,
    "e_max": 200.0,
    "c": 2.0,
}


def synthetic_runs(sigma: float = 0.006, seed: int = 0, law: JointLaw | None = None) -> Runs:
    """270 runs of the paper's sizes; losses of the (published) law with Gaussian noise of `sigma` nats."""
    design = published_design()
    loss = (law or JointLaw.published()).loss(design.n_active, design.tokens, design.experts)
    noise = np.random.default_rng(seed).normal(0.0, sigma, len(loss))
    return Runs.from_columns(design.n_active, design.tokens, design.experts, loss + noise, design.trunk)


def interaction_law(a, alpha, b, beta, q, c):
    """The interaction law ((A / N^α)^(1/q) + (B / D^β)^(1/q))^q + c."""
    return InteractionLaw(a ** (1 / q), alpha / q, b ** (1 / q), beta / q, q, c)


def tiny_runs(sigma: float = 0.01, seed: int = 0) -> Runs:
    """36 runs of 0.3M to 2.2M parameters on 0.2M to 4M tokens, E in 1, 2, 4, 8; twelve trunks."""
    widths, experts, tokens = np.meshgrid([64, 128, 192], [1, 2, 4, 8], [2e5, 1e6, 4e6], indexing="ij")
    n_active = active_parameters(widths, vocab_size=2048)
    loss = JointLaw(**TINY_LAW).loss(n_active, tokens, experts)
    loss = loss * np.exp(np.random.default_rng(seed).normal(0.0, sigma, loss.shape))
    trunk = np.broadcast_to(np.arange(12).reshape(3, 4, 1), loss.shape)
    return Runs.from_columns(n_active.ravel(), tokens.ravel(), experts.ravel(), loss.ravel(), trunk.ravel())


@cache
def tiny_fit(seed: int = 0) -> FitResult[JointLaw]:
    """The fit to the tiny runs of a seed, which several tests read."""
    return fit(tiny_runs(seed=seed))


def sweep_rows(seeds=(0,), vocab_size=2048, tokens_of=(500_000, 1_000_000, 4_000_000)):
    """Rows of a small sweep with losses of a known law: three widths, four E, branches at three token counts."""
    law = JointLaw(**TINY_LAW)
    for seed, d, e, tokens in product(seeds, (64, 128, 192), (1, 2, 4, 8), tokens_of):
        a, trunk = Architecture(d, e, vocab_size=vocab_size), f"d{d}-E{e}-{seed}"
        loss = float(law.loss(a.n_active, tokens, e)) + 0.01 * (-1) ** seed * (len(seeds) > 1)
        names = {"run_id": f"{trunk}-{tokens}", "parent_run_id": trunk, "branch_point_tokens": int(0.8 * tokens)}
        sizes = a.shape | {"vocab_size": vocab_size, "n_active": a.n_active, "n_total": a.n_total, "tokens": tokens}
        schedule = {"epochs": 0.5, "seed": seed, "schedule": {"peak_learning_rate": 0.01}}
        yield names | sizes | schedule | {"status": "final", "eval_loss": loss}


def checked_gradient(objective, theta, rtol):
    """The objective at θ [S, p], whose gradient is checked against central differences."""
    at = objective.evaluate(theta)
    step = 1e-6
    for j in range(objective.size):
        move = step * np.eye(objective.size)[j]
        slope = (objective.evaluate(theta + move).cost - objective.evaluate(theta - move).cost) / (2 * step)
        np.testing.assert_allclose(at.gradient[:, j], slope, rtol=rtol, atol=1e-6 * np.abs(at.gradient).max())
    return at
