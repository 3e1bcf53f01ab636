"""Published coefficients (Ludziejewski et al. 2025, arXiv 2502.05172) and the conditions they were fitted under.

The paper prints four decimals; the LaTeX source of its table of per-E Chinchilla coefficients holds sixteen digits.
The joint law solved from those 24 numbers, the default, reproduces each to 5e-9. It rounds to the printed law except
for E_start (printed 2.0732, recovered 2.0830) and the seventh digit of E_max.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scaling_law.formulas.conditions import Conditions, fitted_ranges
from scaling_law.formulas.terms import expert_transform
from scaling_law.size.architecture import VOCAB_SIZE
from scaling_law.size.recipe import PAPER, published_design

DATA = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
RECOVERED: dict[str, float] = DATA["recovered"]
PRINTED: dict[str, float] = DATA["printed"]
# The error of the paper's fit on its own runs, nats.
RMSE: float = DATA["rmse"]
# Draws [1000, 11], made by `studies.paper.draws`.
DRAWS_FILE = Path(__file__).with_name("published_draws.npy")


def published_loss(n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> Any:
    """Compute the loss of the recovered law, as `JointLaw.published().loss` does, for rooms that know no laws."""
    c = RECOVERED
    e_hat = expert_transform(experts, c["e_start"], c["e_max"])
    log_e = np.log(e_hat)
    of_size = c["a"] * e_hat ** c["delta"] * np.asarray(n_active, float) ** (c["alpha"] + c["gamma"] * log_e)
    of_data = c["b"] * e_hat ** c["omega"] * np.asarray(tokens, float) ** (c["beta"] + c["zeta"] * log_e)
    return of_size + of_data + c["c"]


def conditions(rounded: bool = False) -> Conditions:
    """Return the conditions of the recovered law with draws, or of the printed one (`rounded`) without.

    The refits scatter about the recovered law, whose losses differ from the printed one's by up to 0.0026 nats.
    """
    design = published_design()
    return Conditions(
        provenance=f"Ludziejewski et al. 2025, {'printed' if rounded else 'recovered'} coefficients",
        objective=DATA["objective"],
        n_runs=len(design.n_active),
        rmse=RMSE,
        ranges=fitted_ranges(design.n_active, design.tokens, design.experts),
        draws=None if rounded else DATA["draws"],
        warmup_tokens=PAPER.warmup_tokens,
        vocab_size=VOCAB_SIZE,
    )
