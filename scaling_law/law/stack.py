"""Several laws of the same runs as one law, which answers every question: earlier versions of `forecast` made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, ClassVar

import numpy as np

from hub.base.errors import InputError
from hub.base.types import Fields, Strings
from scaling_law.formulas import Form
from scaling_law.law.base import Law
from scaling_law.law.kinds import JointLaw, packaged
from scaling_law.size.arrays import Columns


@packaged
@dataclass(frozen=True, repr=False)
class StackLaw(Law):
    """A weighted mean of laws in ln L, with `weights` of sum 1.

    Laws without E hold for E = `experts`; the published joint law gives the factor by which the loss at another E
    differs. In a draw one law has all the weight, and coefficients of one of its draws: intervals cover the errors of
    the laws and their disagreement. ValueError for weights that are invalid, and for laws of other variables than
    N_act, D and E.
    """

    name: ClassVar[str] = "stack"
    formula: ClassVar[str] = "ln L = Σ w·ln L_j"
    form: ClassVar[Form] = Form((), reads=("n_active", "tokens", "experts"))

    laws: Sequence[Law]
    weights: Sequence[float]
    experts: float = 1.0

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights, float)
        is_one_each = weights.shape == (len(self.laws),)
        are_shares = np.all(weights >= 0) and np.isclose(weights.sum(), 1.0)
        if not (is_one_each and are_shares):
            raise InputError(f"weights={self.weights!r} must be one for each of {len(self.laws)} laws, of sum 1")
        for law in self.laws:
            missing = {*law.variables} - {*self.form.reads}
            if missing:
                raise InputError(f"laws: the {law.name} law depends on {min(missing)}, which a stack does not have")
        object.__setattr__(self, "laws", tuple(self.laws))
        object.__setattr__(self, "weights", tuple(weights.tolist()))
        self._check_experts_and_draws()

    # The names depend on the laws of a stack, not only on its class.
    def coefficient_names(self) -> Strings:  # type: ignore[override]
        """Return the names of the weights, then of the coefficients of each law, numbered."""
        names = [f"w_{number}" for number, _ in enumerate(self.laws, 1)]
        for number, law in enumerate(self.laws, 1):
            names += [f"{name}_{number}" for name in law.coefficients]
        return tuple(names)

    @property
    def coefficients(self) -> dict[str, float]:
        """The weights and the coefficients of all laws, by name."""
        columns = chain.from_iterable(law.columns for law in self.laws)
        return dict(zip(self.coefficient_names(), (*self.weights, *columns), strict=True))

    @property
    def _places(self) -> list[slice]:
        """The slices of each law's coefficients among those of the stack."""
        bounds = np.cumsum([len(self.laws), *(len(law.columns) for law in self.laws)])
        return [slice(first, last) for first, last in pairwise(bounds.tolist())]

    def to_dict(self) -> Fields:
        """Return JSON values of a file, with those of the laws and their weights."""
        laws = [law.to_dict() for law in self.laws]
        return {**super().to_dict(), "laws": laws, "coefficients": {"weights": [*self.weights]}}

    def evaluate(self, coefficients: Any, inputs: Columns) -> Any:  # type: ignore[override]
        """Compute the loss for weights and coefficients in the order of `coefficient_names()`; they broadcast."""
        published = JointLaw.published()
        of_stack = published.evaluate(published.columns, {**inputs, "experts": np.array(self.experts)})
        gain = published.evaluate(published.columns, inputs) / of_stack
        log_loss: Any = 0.0
        for law, weight, place in zip(self.laws, coefficients[: len(self.laws)], self._places, strict=True):
            loss = law.evaluate(coefficients[place], inputs)
            log_loss = log_loss + weight * np.log(loss if "experts" in law.variables else loss * gain)
        return np.exp(log_loss)
