"""Joint scaling laws of dense and Mixture-of-Experts models: query, fit, and say how sure (arXiv 2502.05172).

    >>> from scaling_law import JointLaw
    >>> table = JointLaw.published().optimal(1e22, max_memory_bytes=80e9, kv_cache_tokens=16_384)
    >>> table.best.experts
    16.0

Importing this package and asking a law need numpy only; fitting, figures and tables import what they use when used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaling_law.architecture import Architecture
    from scaling_law.conditions import Conditions, ExtrapolationError
    from scaling_law.design import next_runs
    from scaling_law.fit_result import FitResult
    from scaling_law.fitting import fit
    from scaling_law.laws import ChinchillaLaw, JointLaw, Law, RoutedLaw
    from scaling_law.learning_rate import LearningRateLaw, fit_learning_rate
    from scaling_law.optimal_table import OptimalRow, OptimalTable
    from scaling_law.profiles import profile_interval
    from scaling_law.runs import Runs, load_runs
    from scaling_law.splits import split
    from scaling_law.uncertainty import Bootstrap

_HOME = {
    "Architecture": "architecture",
    "Bootstrap": "uncertainty",
    "ChinchillaLaw": "laws",
    "Conditions": "conditions",
    "ExtrapolationError": "conditions",
    "FitResult": "fit_result",
    "JointLaw": "laws",
    "Law": "laws",
    "LearningRateLaw": "learning_rate",
    "OptimalRow": "optimal_table",
    "OptimalTable": "optimal_table",
    "RoutedLaw": "laws",
    "Runs": "runs",
    "fit": "fitting",
    "fit_learning_rate": "learning_rate",
    "load_runs": "runs",
    "next_runs": "design",
    "profile_interval": "profiles",
    "split": "splits",
}

__all__ = [
    "Architecture",
    "Bootstrap",
    "ChinchillaLaw",
    "Conditions",
    "ExtrapolationError",
    "FitResult",
    "JointLaw",
    "Law",
    "LearningRateLaw",
    "OptimalRow",
    "OptimalTable",
    "RoutedLaw",
    "Runs",
    "fit",
    "fit_learning_rate",
    "load_runs",
    "next_runs",
    "profile_interval",
    "split",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
