"""Fits and how sure they are: `fitting.fit`, its `fit_result.FitResult`, bootstrap, profiles, splits, learning rates.

A fit goes `problem` (settings, box, `starts`) → `objective` → `solver` → `identifiability`, `outliers` → `fit_result`.
"""
