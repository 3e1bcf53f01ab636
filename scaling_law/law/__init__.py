"""Laws as users hold them: with their questions and files (`base`), in their kinds, and as published (`shelf`)."""

from scaling_law.law.base import LAWS, Law, register
from scaling_law.law.kinds import (
    ChinchillaLaw,
    ClarkLaw,
    FiveFactorLaw,
    GranularityLaw,
    JointLaw,
    KaplanLaw,
    LadderLaw,
    RoutedLaw,
    SaturationLaw,
    SparsityLaw,
)

__all__ = [
    "LAWS",
    "ChinchillaLaw",
    "ClarkLaw",
    "FiveFactorLaw",
    "GranularityLaw",
    "JointLaw",
    "KaplanLaw",
    "LadderLaw",
    "Law",
    "RoutedLaw",
    "SaturationLaw",
    "SparsityLaw",
    "register",
]
