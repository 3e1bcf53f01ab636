"""Fits and how sure they are: `fitting.fit`, its `FitResult`, bootstrap, profiles, splits, learning rates.

A fit goes `problem` (settings, box, starts) → `objective` → `solver` → `diagnostics` → `FitResult`.
"""
