"""What a law is: its terms, its kinds, and the conditions under which it may be believed. Formulas only, no I/O.

`scaling_law.law_methods` adds what needs the rooms above: optima, files and the published coefficients.
"""

from scaling_law.formulas.answers import Allocation, EfficiencyLeverage, PowerLaw, TrainingRates
from scaling_law.formulas.conditions import Conditions, ExtrapolationError
from scaling_law.formulas.kinds import ClarkLaw, FiveFactorLaw, GranularityLaw, KaplanLaw, SaturationLaw, SparsityLaw
from scaling_law.formulas.law import LAWS, ChinchillaForm, ChinchillaLaw, JointLaw, Law, RoutedLaw, register
from scaling_law.formulas.publication import PublishedLaw
from scaling_law.formulas.repeated import (
    effective_parameters,
    effective_tokens,
    effective_tokens_slope,
    unique_parameters,
)
from scaling_law.formulas.shelf import published
from scaling_law.formulas.terms import Form, Parameter, Term, Transform, expert_transform

__all__ = [
    "LAWS",
    "Allocation",
    "ChinchillaForm",
    "ChinchillaLaw",
    "ClarkLaw",
    "Conditions",
    "EfficiencyLeverage",
    "ExtrapolationError",
    "FiveFactorLaw",
    "Form",
    "GranularityLaw",
    "JointLaw",
    "KaplanLaw",
    "Law",
    "Parameter",
    "PowerLaw",
    "PublishedLaw",
    "RoutedLaw",
    "SaturationLaw",
    "SparsityLaw",
    "Term",
    "TrainingRates",
    "Transform",
    "effective_parameters",
    "effective_tokens",
    "effective_tokens_slope",
    "expert_transform",
    "published",
    "register",
    "unique_parameters",
]
