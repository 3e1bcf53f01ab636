"""Joint scaling laws of dense and Mixture-of-Experts models: query, fit, and say how sure (arXiv 2502.05172).

    >>> from scaling_law import JointLaw
    >>> table = JointLaw.published().optimal(1e22, max_memory_bytes=80e9, kv_cache_tokens=16_384)
    >>> table.best.experts
    16.0

Importing this package and asking a law need numpy only; fitting, figures and tables import what they use when used.
"""

# ruff: noqa: E402, F401 - the first check comes first; the imports after it are what users import from here

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before anything imports `hub`: a hub.py beside the user's script would be imported in its place.
_hub = find_spec("hub")
if _hub is not None and _hub.origin is not None and not (Path(_hub.origin).parent / "plain").is_dir():
    raise ImportError(f"{_hub.origin} hides the package `hub` that scaling_law needs: rename or move that file")

import scaling_law.law_methods  # gives every law its methods

if TYPE_CHECKING:
    from scaling_law.figures.law_figures import memory_optimal
    from scaling_law.fitting.fitting import FitResult, fit
    from scaling_law.fitting.learning_rate import LearningRateLaw, fit_learning_rate
    from scaling_law.fitting.splits import split
    from scaling_law.fitting.uncertainty import Bootstrap, profile_interval
    from scaling_law.laws import (
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
    from scaling_law.planning.design import log_optimal_parameters, next_runs
    from scaling_law.planning.inverse import cheapest_budget, flop_savings
    from scaling_law.planning.matched import matched_memory
    from scaling_law.planning.optimal_table import OptimalRow, OptimalTable
    from scaling_law.runs.table import Runs, load_runs
    from scaling_law.size.architecture import Architecture
    from scaling_law.size.listing import published_design

_NAMES = {
    "laws": "JointLaw ChinchillaLaw RoutedLaw Law Term register expert_transform Conditions ExtrapolationError",
    "size.architecture": "Architecture",
    "size.listing": "published_design",
    "runs.table": "Runs load_runs",
    "fitting.fitting": "fit FitResult",
    "fitting.uncertainty": "Bootstrap profile_interval",
    "fitting.splits": "split",
    "fitting.learning_rate": "LearningRateLaw fit_learning_rate",
    "planning.optimal_table": "OptimalRow OptimalTable",
    "planning.inverse": "cheapest_budget flop_savings",
    "planning.matched": "matched_memory",
    "planning.design": "log_optimal_parameters next_runs",
    "figures.law_figures": "memory_optimal",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
