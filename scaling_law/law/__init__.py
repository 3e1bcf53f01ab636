"""Laws as users hold them: with their questions and files (`base`), in their kinds, and as published (`shelf`)."""

from scaling_law.law.base import LAWS, Law, register
from scaling_law.law.kinds import (
    ChinchillaLaw,
    ClarkLaw,
    CrossingLaw,
    FiveFactorLaw,
    GranularityLaw,
    InteractionLaw,
    JointLaw,
    KaplanLaw,
    LadderLaw,
    RoutedLaw,
    SaturationLaw,
    SparsityLaw,
)
from scaling_law.law.stack import StackLaw

__all__ = [
    "LAWS",
    "ChinchillaLaw",
    "ClarkLaw",
    "CrossingLaw",
    "FiveFactorLaw",
    "GranularityLaw",
    "InteractionLaw",
    "JointLaw",
    "KaplanLaw",
    "LadderLaw",
    "Law",
    "RoutedLaw",
    "SaturationLaw",
    "SparsityLaw",
    "StackLaw",
    "register",
]
