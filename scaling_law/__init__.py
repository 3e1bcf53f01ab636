"""Joint scaling laws of dense and Mixture-of-Experts models: query, fit, and say how sure (arXiv 2502.05172).

    >>> from scaling_law import JointLaw
    >>> table = JointLaw.published().optimal(1e22, max_memory_bytes=80e9, kv_cache_tokens=16_384)
    >>> table.best.experts
    16.0

Importing this package and asking a law need numpy only; fitting, figures and tables import what they use when used.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before anything imports `hub`: a hub.py beside the user's script would be imported in its place.
_hub = find_spec("hub")
if _hub is not None and _hub.origin is not None and not (Path(_hub.origin).parent / "plain").is_dir():
    raise ImportError(f"{_hub.origin} hides the package `hub` that scaling_law needs: rename or move that file")

import scaling_law.law_methods  # noqa: E402, F401 - gives every law its methods
from scaling_law.laws import ChinchillaLaw, Conditions, ExtrapolationError, JointLaw, Law, RoutedLaw  # noqa: E402

if TYPE_CHECKING:
    from scaling_law.fitting.fit_result import FitResult
    from scaling_law.fitting.fitting import fit
    from scaling_law.fitting.learning_rate import LearningRateLaw, fit_learning_rate
    from scaling_law.fitting.profiles import profile_interval
    from scaling_law.fitting.splits import split
    from scaling_law.fitting.uncertainty import Bootstrap
    from scaling_law.planning.design import next_runs
    from scaling_law.planning.optimal_table import OptimalRow, OptimalTable
    from scaling_law.runs.table import Runs, load_runs
    from scaling_law.size.architecture import Architecture

_HOME = {
    "Architecture": "size.architecture",
    "Bootstrap": "fitting.uncertainty",
    "FitResult": "fitting.fit_result",
    "LearningRateLaw": "fitting.learning_rate",
    "OptimalRow": "planning.optimal_table",
    "OptimalTable": "planning.optimal_table",
    "Runs": "runs.table",
    "fit": "fitting.fitting",
    "fit_learning_rate": "fitting.learning_rate",
    "load_runs": "runs.table",
    "next_runs": "planning.design",
    "profile_interval": "fitting.profiles",
    "split": "fitting.splits",
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
