"""Published coefficients (Ludziejewski et al. 2025, arXiv 2502.05172) and the conditions they were fitted under.

The paper prints four decimals; the LaTeX source of its table of per-E Chinchilla coefficients holds sixteen digits.
The joint law solved from those 24 numbers, the default, reproduces each to 5e-9. It rounds to the printed law except
for E_start (printed 2.0732, recovered 2.0830) and the seventh digit of E_max.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scaling_law.formulas.conditions import Conditions, fitted_ranges
from scaling_law.size.architecture import VOCAB_SIZE
from scaling_law.size.recipe import PAPER, published_design

COEFFICIENTS = {  # of `JointLaw`: recovered, printed
    "a": (35.907457274033064, 35.91),
    "alpha": (-0.18892979300642507, -0.1889),
    "delta": (-0.22851301125915688, -0.2285),
    "gamma": (0.009798352439221822, 0.0098),
    "b": (35.97930017454064, 35.98),
    "beta": (-0.17753244076704033, -0.1775),
    "omega": (0.5529159978783609, 0.5529),
    "zeta": (-0.025850291708239905, -0.0259),
    "e_start": (2.083023417040488, 2.0732),
    "e_max": (290.45173376976066, 290.4521),
    "c": (1.3637, 1.3637),
}
RECOVERED = {name: recovered for name, (recovered, _) in COEFFICIENTS.items()}
PRINTED = {name: printed for name, (_, printed) in COEFFICIENTS.items()}
OBJECTIVE = {"loss": "huber", "delta": 0.01, "on": "ln L", "optimizer": "L-BFGS", "weight_decay": 1e-5}
RMSE = 0.0062  # nats, of the paper's fit on the runs it was fitted to
DRAWS_FILE = Path(__file__).with_name("published_draws.npy")
DRAWS = (
    "parametric bootstrap by this package, not the authors': 1,000 refits of the 270 listed runs, with the losses of "
    "this law plus independent Gaussian noise that leaves an RMSE of 0.0062 nats (scaling_law.paper.published_draws)"
)


def conditions(rounded: bool = False) -> Conditions:
    """Conditions of the recovered law with draws, or of the printed one (`rounded`) without.

    The refits scatter about the recovered law, whose losses differ from the printed one's by up to 0.0026 nats.
    """
    design = published_design()
    return Conditions(
        provenance=f"Ludziejewski et al. 2025, {'printed' if rounded else 'recovered'} coefficients",
        objective=OBJECTIVE,
        n_runs=len(design.n_active),
        rmse=RMSE,
        ranges=fitted_ranges(design.n_active, design.tokens, design.experts),
        draws=None if rounded else DRAWS,
        warmup_tokens=PAPER.warmup_tokens,
        vocab_size=VOCAB_SIZE,
    )


def read_draws() -> np.ndarray:
    """The draws that the package ships, [1000, 11], made by `scaling_law.paper.published_draws`."""
    return np.asarray(np.load(DRAWS_FILE, allow_pickle=False))
