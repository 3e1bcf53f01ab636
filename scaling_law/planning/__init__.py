"""Questions to a fitted law: the best model for a budget, and what follows from it."""

from scaling_law.planning.design import advantage, candidate_grid, log_optimal_parameters, predicted_loss
from scaling_law.planning.optimum import optimal_widths
from scaling_law.planning.speedup import find_crossing, find_crossovers

__all__ = [
    "advantage",
    "candidate_grid",
    "find_crossing",
    "find_crossovers",
    "log_optimal_parameters",
    "optimal_widths",
    "predicted_loss",
]
