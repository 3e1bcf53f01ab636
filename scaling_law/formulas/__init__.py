"""The parts of laws: forms, coefficients, and the conditions under which they can be trusted. No I/O."""

from scaling_law.formulas.conditions import Conditions, ExtrapolationError
from scaling_law.formulas.law import Formula
from scaling_law.formulas.repeated import Repetition, effective_tokens
from scaling_law.formulas.terms import Form, Parameter, Term, Transform, expert_transform

__all__ = [
    "Conditions",
    "ExtrapolationError",
    "Form",
    "Formula",
    "Parameter",
    "Repetition",
    "Term",
    "Transform",
    "effective_tokens",
    "expert_transform",
]
