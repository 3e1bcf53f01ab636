"""Fits: objective, solver, result, uncertainty, splits, and learning rates."""
