"""Figures of laws, fits and runs; each draws on given axes."""
