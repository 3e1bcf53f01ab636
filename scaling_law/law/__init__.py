"""Laws as users hold them: with their questions and files (`base`), in their kinds, and as published (`shelf`).

The class of a form that is but a file is here, too, by its name: `KaplanLaw` of `kaplan`.
"""

from typing import Any

from scaling_law.law.base import LAWS, Law, choose_kind, register
from scaling_law.law.kinds import ChinchillaLaw, FiveFactorLaw, JointLaw, RoutedLaw
from scaling_law.law.stack import StackLaw

__all__ = [
    "LAWS",
    "ChinchillaLaw",
    "FiveFactorLaw",
    "JointLaw",
    "Law",
    "RoutedLaw",
    "StackLaw",
    "choose_kind",
    "register",
]


def __getattr__(name: str) -> Any:
    for kind in LAWS.values():
        if kind.__name__ == name:
            return kind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
