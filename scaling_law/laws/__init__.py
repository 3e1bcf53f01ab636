"""What a law is: its terms, its kinds, and the conditions under which it may be believed. Formulas only, no I/O.

`scaling_law.law_methods` adds what needs the rooms above: optima, files and the published coefficients.
"""

from scaling_law.laws.conditions import Conditions, ExtrapolationError
from scaling_law.laws.law import LAWS, ChinchillaForm, ChinchillaLaw, JointLaw, Law, RoutedLaw, register
from scaling_law.laws.terms import Form, Parameter, Term, Transform, expert_transform

__all__ = [
    "LAWS",
    "ChinchillaForm",
    "ChinchillaLaw",
    "Conditions",
    "ExtrapolationError",
    "Form",
    "JointLaw",
    "Law",
    "Parameter",
    "RoutedLaw",
    "Term",
    "Transform",
    "expert_transform",
    "register",
]
