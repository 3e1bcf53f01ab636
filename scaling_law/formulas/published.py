"""Published coefficients (Ludziejewski et al. 2025, arXiv 2502.05172) and the conditions they were fitted under.

The paper prints four decimals; the LaTeX source of its table of per-E Chinchilla coefficients holds sixteen digits.
The joint law solved from those 24 numbers, the default, reproduces each to 5e-9. It rounds to the printed law except
for E_start (printed 2.0732, recovered 2.0830) and the seventh digit of E_max.
"""

from __future__ import annotations

import json
from pathlib import Path

from scaling_law.formulas.conditions import Conditions, fitted_ranges
from scaling_law.size.architecture import VOCAB_SIZE
from scaling_law.size.recipe import PAPER, published_design

DATA = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
RECOVERED: dict[str, float] = DATA["recovered"]
PRINTED: dict[str, float] = DATA["printed"]
RMSE: float = DATA["rmse"]  # nats, of the paper's fit on the runs it was fitted to
DRAWS_FILE = Path(__file__).with_name("published_draws.npy")  # [1000, 11], by `scaling_law.paper.published_draws`


def conditions(rounded: bool = False) -> Conditions:
    """Conditions of the recovered law with draws, or of the printed one (`rounded`) without.

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
