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
from scaling_law.laws import (  # noqa: E402
    ChinchillaLaw,
    Conditions,
    ExtrapolationError,
    JointLaw,
    Law,
    RoutedLaw,
    Term,
    expert_transform,
    register,
)

if TYPE_CHECKING:
    from scaling_law.figures.law_figures import memory_optimal
    from scaling_law.fitting.fit_result import FitResult
    from scaling_law.fitting.fitting import fit
    from scaling_law.fitting.learning_rate import LearningRateLaw
    from scaling_law.fitting.learning_rate_grid import fit_learning_rate
    from scaling_law.fitting.profiles import profile_interval
    from scaling_law.fitting.splits import split
    from scaling_law.fitting.uncertainty import Bootstrap
    from scaling_law.planning.design import log_optimal_parameters, next_runs
    from scaling_law.planning.inverse import cheapest_budget, flop_savings
    from scaling_law.planning.matched import matched_memory
    from scaling_law.planning.optimal_table import OptimalRow, OptimalTable
    from scaling_law.runs.table import Runs, load_runs
    from scaling_law.size.architecture import Architecture
    from scaling_law.size.listing import published_design

_HOME = {
    "Architecture": "size.architecture",
    "Bootstrap": "fitting.uncertainty",
    "FitResult": "fitting.fit_result",
    "LearningRateLaw": "fitting.learning_rate",
    "OptimalRow": "planning.optimal_table",
    "OptimalTable": "planning.optimal_table",
    "Runs": "runs.table",
    "cheapest_budget": "planning.inverse",
    "fit": "fitting.fitting",
    "fit_learning_rate": "fitting.learning_rate_grid",
    "flop_savings": "planning.inverse",
    "load_runs": "runs.table",
    "log_optimal_parameters": "planning.design",
    "matched_memory": "planning.matched",
    "memory_optimal": "figures.law_figures",
    "next_runs": "planning.design",
    "profile_interval": "fitting.profiles",
    "published_design": "size.listing",
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
    "Term",
    "cheapest_budget",
    "expert_transform",
    "fit",
    "fit_learning_rate",
    "flop_savings",
    "load_runs",
    "log_optimal_parameters",
    "matched_memory",
    "memory_optimal",
    "next_runs",
    "profile_interval",
    "published_design",
    "register",
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
