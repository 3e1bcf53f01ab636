"""Fits and how sure they are: `fitting.fit`, its `FitResult`, bootstrap, splits, learning rates.

A fit goes `problem` (settings, box, starts) → `objective` → `solver` → `diagnostics` → `FitResult`.
"""

from scaling_law.fitting.fitting import finite
from scaling_law.fitting.holdout import rms
from scaling_law.fitting.rate_surface import SettingsGrid, fit_learning_rate

__all__ = ["SettingsGrid", "finite", "fit_learning_rate", "rms"]
