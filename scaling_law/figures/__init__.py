"""Figures of laws, fits and runs; each draws on given axes."""

from scaling_law.figures.law_figures import predicted_against_observed

__all__ = ["predicted_against_observed"]
