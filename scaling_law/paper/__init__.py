"""Ludziejewski et al. 2025: published coefficients, printed tables, figures."""
