"""What a law is: its form, its kinds, and the conditions under which it may be believed. Formulas only, no I/O.

`scaling_law.law_methods` adds what needs the rooms above: optima and files. The published coefficients (`shelf`) are
imported when they are asked for.
"""

from scaling_law.formulas.conditions import Conditions, ExtrapolationError
from scaling_law.formulas.kinds import ClarkLaw, FiveFactorLaw, GranularityLaw, KaplanLaw, SaturationLaw, SparsityLaw
from scaling_law.formulas.law import LAWS, ChinchillaForm, ChinchillaLaw, JointLaw, Law, RoutedLaw, register
from scaling_law.formulas.terms import Form, Parameter, Term, Transform, expert_transform

__all__ = [
    "LAWS",
    "ChinchillaForm",
    "ChinchillaLaw",
    "ClarkLaw",
    "Conditions",
    "ExtrapolationError",
    "FiveFactorLaw",
    "Form",
    "GranularityLaw",
    "JointLaw",
    "KaplanLaw",
    "Law",
    "Parameter",
    "RoutedLaw",
    "SaturationLaw",
    "SparsityLaw",
    "Term",
    "Transform",
    "expert_transform",
    "register",
]
