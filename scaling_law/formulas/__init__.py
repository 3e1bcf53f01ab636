"""What laws are made of: forms, coefficients, and the conditions under which they may be believed. No I/O."""

from scaling_law.formulas.answers import Allocation, EfficiencyLeverage, PowerLaw, TrainingRates
from scaling_law.formulas.conditions import Conditions, ExtrapolationError
from scaling_law.formulas.law import ChinchillaForm, Formula
from scaling_law.formulas.repeated import Repetition, effective_tokens
from scaling_law.formulas.terms import Form, Parameter, Term, Transform, expert_transform

__all__ = [
    "Allocation",
    "ChinchillaForm",
    "Conditions",
    "EfficiencyLeverage",
    "ExtrapolationError",
    "Form",
    "Formula",
    "Parameter",
    "PowerLaw",
    "Repetition",
    "Term",
    "TrainingRates",
    "Transform",
    "effective_tokens",
    "expert_transform",
]
