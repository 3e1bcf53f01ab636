"""Synthetic runs: the paper's design with losses of the published law, and a tiny sweep of laptop-sized models."""

from __future__ import annotations

import numpy as np

from scaling_law import JointLaw, Runs
from scaling_law.size.architecture import active_parameters
from scaling_law.size.recipe import published_design

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


def tiny_runs(sigma: float = 0.01, seed: int = 0) -> Runs:
    """36 runs of 0.3M to 2.2M parameters on 0.2M to 4M tokens, E in 1, 2, 4, 8; twelve trunks."""
    widths, experts, tokens = np.meshgrid([64, 128, 192], [1, 2, 4, 8], [2e5, 1e6, 4e6], indexing="ij")
    n_active = active_parameters(widths, vocab_size=2048)
    loss = JointLaw(**TINY_LAW).loss(n_active, tokens, experts)
    loss = loss * np.exp(np.random.default_rng(seed).normal(0.0, sigma, loss.shape))
    trunk = np.broadcast_to(np.arange(12).reshape(3, 4, 1), loss.shape)
    return Runs.from_columns(n_active.ravel(), tokens.ravel(), experts.ravel(), loss.ravel(), trunk.ravel())
