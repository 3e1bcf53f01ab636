"""Several laws of the same runs as one law, which answers every question: `stack_laws(runs)` makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hub.base.errors import InputError
from hub.base.tables import Table
from scaling_law.formulas import Form
from scaling_law.law.base import Law, register
from scaling_law.law.kinds import JointLaw
from scaling_law.size.arrays import FloatArray


@register
@dataclass(frozen=True, repr=False)
class StackLaw(Law):
    """Laws as one, whose ln L is the mean of theirs under `weights` of sum 1.

    Laws without E hold for E = `experts`; the published joint law says by what factor the loss at another E differs.
    In a draw one law has all the weight, and drawn coefficients: intervals hold the errors of the laws and how far
    they disagree. ValueError for weights that are none, and for laws of other variables than N_act, D and E.
    """

    name: ClassVar[str] = "stack"
    formula: ClassVar[str] = "ln L = Σ w·ln L_j"
    form: ClassVar[Form] = Form((), reads=("n_active", "tokens", "experts"))

    laws: Sequence[Law]
    weights: Sequence[float]
    experts: float = 1.0

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights, float)
        if weights.shape != (len(self.laws),) or not (np.all(weights >= 0) and np.isclose(weights.sum(), 1.0)):
            raise InputError(f"weights={self.weights!r} must be one for each of {len(self.laws)} laws, of sum 1")
        for law in self.laws:
            if others := {*law.variables} - {*self.form.reads}:
                raise InputError(f"laws: the {law.name} law depends on {min(others)}, which a stack does not have")
        object.__setattr__(self, "laws", tuple(self.laws))
        object.__setattr__(self, "weights", tuple(weights.tolist()))
        self._check_experts_and_draws()

    def coefficient_names(self) -> tuple[str, ...]:  # type: ignore[override]  # they are those of its laws
        """The weights, then the coefficients of each law, numbered."""
        weights = [f"w_{j + 1}" for j in range(len(self.laws))]
        return (*weights, *(f"{name}_{j + 1}" for j, law in enumerate(self.laws) for name in law.coefficients))

    @property
    def coefficients(self) -> dict[str, float]:
        values = [*self.weights, *(value for law in self.laws for value in law.coefficients.values())]
        return dict(zip(self.coefficient_names(), values, strict=True))

    def evaluate(self, coefficients: Any, inputs: Mapping[str, FloatArray]) -> Any:  # type: ignore[override]
        weights, rest = coefficients[: len(self.laws)], coefficients[len(self.laws) :]
        published = JointLaw.published()
        own = tuple(published.coefficients.values())
        gain = published.evaluate(own, inputs) / published.evaluate(own, {**inputs, "experts": np.array(self.experts)})
        total: Any = 0.0
        for law, weight in zip(self.laws, weights, strict=True):
            count = len(law.coefficients)
            loss = law.evaluate(rest[:count], inputs) * (1.0 if "experts" in law.variables else gain)
            total, rest = total + weight * np.log(loss), rest[count:]
        return np.exp(total)

    def summary(self) -> Table:
        """The weight of each law, and the law."""
        rows = [(f"{weight:.2f}", repr(law)) for law, weight in zip(self.laws, self.weights, strict=True)]
        notes = [self.conditions.provenance] if self.conditions else []
        return Table(("weight", "law"), rows, title=self.formula, notes=notes)

    def __repr__(self) -> str:
        parts = ", ".join(f"{weight:.2f} {law.name}" for law, weight in zip(self.laws, self.weights, strict=True))
        draws = "" if self.draws is None else f"  # {len(self.draws)} draws"
        return f"StackLaw({parts}){draws}"

    @classmethod
    def of(cls, laws: Mapping[str, tuple[Law, float]], n_draws: int, seed: int = 0, **options: Any) -> StackLaw:
        """Stack laws with these weights; each draw is one of a law's own, of as many laws as it weighs."""
        used = [(law, weight) for law, weight in laws.values() if weight > 0]
        stack = cls([law.replace(draws=None) for law, _ in used], [w for _, w in used], **options)
        rng, draws, first = np.random.default_rng(seed), [], len(used)
        for j, (law, weight) in enumerate(used):
            own = np.array([[*law.coefficients.values()]]) if law.draws is None else law.draws
            drawn = np.tile([*stack.coefficients.values()], (max(1, round(weight * n_draws)), 1))
            drawn[:, : len(used)] = np.arange(len(used)) == j
            drawn[:, first : first + own.shape[1]] = own[rng.integers(len(own), size=len(drawn))]
            first += own.shape[1]
            draws.append(drawn)
        return stack.replace(draws=np.concatenate(draws))
