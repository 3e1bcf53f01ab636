"""Figures of laws, fits and runs; each draws on given axes."""

from scaling_law.figures.law_figures import isoflop, predicted_against_observed

__all__ = ["isoflop", "predicted_against_observed"]
