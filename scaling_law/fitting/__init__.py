"""Fits and how sure they are: `fitting.fit`, its `FitResult`, bootstrap, splits.

A fit goes `problem` (settings, box, starts) → `objective` → `solver` → `diagnostics` → `FitResult`.
"""

from scaling_law.fitting.fitting import finite, rms

__all__ = ["finite", "rms"]
