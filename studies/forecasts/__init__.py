"""Forecasts from public runs: which runs, which splits, and what a prior from the other labs is worth."""
