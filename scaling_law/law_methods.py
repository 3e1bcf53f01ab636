"""Methods of laws that need what is above `scaling_law.formulas` in the package: optima, files, the published law.

`scaling_law/__init__` imports this module, so every law has its methods however it was obtained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scaling_law.formulas import JointLaw, Law
from scaling_law.formulas.law import LawT
from scaling_law.law_files import load_law, push_law, save_law
from scaling_law.paper.published import published_law
from scaling_law.planning.optimal_table import optimal
from scaling_law.planning.optimum import compute_optimal, optimum_draws

__all__ = ["compute_optimal", "optimal", "optimum_draws", "push_law", "save_law"]


@classmethod  # type: ignore[misc]
def from_pretrained(cls: type[LawT], source: str | Path, revision: str | None = None) -> LawT:
    """Read a law from a folder, a scaling_law.json, or a Hub repo. ValueError if it is a law of another kind."""
    law = load_law(source, revision)
    if not isinstance(law, cls):
        raise ValueError(f"{source}: holds a {type(law).__name__}, not a {cls.__name__}")
    return law


@classmethod  # type: ignore[misc]
def published(cls: type[JointLaw], rounded: bool = False) -> JointLaw:
    """The paper's law: coefficients recovered at full precision, or (`rounded`) as its table prints them.

    Only the recovered law has draws: this package's, not the authors' (see `scaling_law.paper.published_draws`).
    """
    return published_law(rounded)


METHODS: dict[type[Law], dict[str, Any]] = {
    Law: {
        "compute_optimal": compute_optimal,
        "optimal": optimal,
        "save_pretrained": save_law,
        "push_to_hub": push_law,
        "from_pretrained": from_pretrained,
    },
    JointLaw: {"published": published, "optimum_draws": optimum_draws},
}
for _kind, _methods in METHODS.items():
    for _name, _method in _methods.items():
        setattr(_kind, _name, _method)
