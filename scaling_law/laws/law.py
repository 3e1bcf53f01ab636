"""The interface of all laws, and the registry by which fits and files know them.

N is the active parameters with embedding and head, D the training tokens, ln natural. Losses are nats per token.
The kinds of laws are in `laws.kinds`; another one is one more registered class with its `terms`
(docs/adding_a_law.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_law.laws.conditions import Conditions, range_warnings
from scaling_law.laws.terms import VARIABLES, Term, coefficients_of, evaluate_terms
from scaling_law.size.architecture import VOCAB_SIZE

if TYPE_CHECKING:
    from pathlib import Path

    from scaling_law import law_methods

LawT = TypeVar("LawT", bound="Law")
FloatArray = NDArray[np.float64]


class _Draws:
    """The field `draws` of a law: an array, None, or a function that reads the array when it is first needed.

    A descriptor as a dataclass's default: a query that needs no interval then never opens the file of the draws.
    """

    def __get__(self, law: Law, kind: type[Law] | None = None) -> FloatArray | None:
        stored = law.__dict__["draws"]
        if callable(stored):
            stored = law.__dict__["draws"] = self._checked(law, stored())
        return cast("FloatArray | None", stored)

    def __set__(self, law: Law, value: Any) -> None:
        if value is self:  # the field's default
            value = None
        law.__dict__["draws"] = value if value is None or callable(value) else self._checked(law, value)

    @staticmethod
    def _checked(law: Law, values: Any) -> FloatArray:
        draws, columns = np.array(values, float), len(law.coefficient_names())
        if draws.ndim != 2 or draws.shape[1] != columns:
            raise ValueError(f"draws have shape {draws.shape}; [n, {columns}] is needed")
        draws.setflags(write=False)
        return draws


@dataclass(frozen=True, repr=False)
class Law:
    """What all laws share. `conditions` describe the fit; `draws` are coefficients of refits.

    A kind of law has a `name`, a `formula` and its `terms`, from which its values follow. `draws` has
    shape [n_draws, n_coefficients] in the order of `coefficient_names()`, or is None; a function without arguments
    that returns such an array is called when the draws are first needed.

    N, D and E broadcast in every method. D may be None where no term depends on it; E left out means dense models.
    """

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    terms: ClassVar[tuple[Term, ...]] = ()

    conditions: Conditions | None = field(default=None, kw_only=True, compare=False)
    draws: FloatArray | None = field(default=cast(Any, _Draws()), kw_only=True, compare=False)

    if TYPE_CHECKING:  # `scaling_law.law_methods` binds these; declared here for type checkers and editors
        save_pretrained = law_methods.save_law
        push_to_hub = law_methods.push_law

        @classmethod
        def from_pretrained(cls: type[LawT], source: str | Path, revision: str | None = None) -> LawT: ...

    def __post_init__(self) -> None:
        for name, value in self.coefficients.items():
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not np.isfinite(value):
                raise ValueError(f"{name}={value!r} must be a finite number")
            object.__setattr__(self, name, float(value))
        known = self.coefficients
        if "e_start" in known and not 1.0 < known["e_start"] < known["e_max"]:
            raise ValueError(f"e_start={known['e_start']!r}, e_max={known['e_max']!r}: needs 1 < e_start < e_max")

    @classmethod
    def coefficient_names(cls) -> tuple[str, ...]:
        """The coefficients in the order of the formula (and of `draws`)."""
        return tuple(f.name for f in fields(cls) if f.name not in ("conditions", "draws", "experts"))

    @property
    def coefficients(self) -> dict[str, float]:
        """Name → value, in the order of the formula."""
        return {name: getattr(self, name) for name in self.coefficient_names()}

    @property
    def vocab_size(self) -> int:
        """The vocabulary that this law's sizes count: that of its runs, GPT-2's 50,257 where it is unknown."""
        return (self.conditions and self.conditions.vocab_size) or VOCAB_SIZE

    def loss(self, n_active: ArrayLike, tokens: ArrayLike | None = None, experts: ArrayLike | None = None) -> Any:
        """Predicted loss in nats per token. ValueError for N, D ≤ 0, E < 1, non-finite or missing values.

        Never refused, however far the question extrapolates: see `warnings` and `beyond_guard`.
        """
        return self.evaluate(tuple(self.coefficients.values()), **self._inputs(n_active, tokens, experts))

    def loss_draws(
        self, n_active: ArrayLike, tokens: ArrayLike | None = None, experts: ArrayLike | None = None
    ) -> FloatArray:
        """Losses under each of the law's draws, of shape [n_draws, ...]. ValueError if the law has none."""
        if self.draws is None:
            raise ValueError("this law has no draws: fit it and call result.bootstrap(...)")
        inputs = self._inputs(n_active, tokens, experts)
        shape = np.broadcast_shapes(*(values.shape for values in inputs.values()))
        columns = self.draws.T.reshape(len(self.coefficients), -1, *([1] * len(shape)))
        return np.asarray(self.evaluate(columns, **inputs))

    @classmethod
    def evaluate(cls, coefficients: Any, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> Any:
        """The loss for any coefficients, in the order of `coefficient_names()`; all broadcast, nothing is checked."""
        values = dict(zip(cls.coefficient_names(), coefficients, strict=True))
        inputs = {"n_active": n_active, "tokens": tokens, "experts": experts}
        return evaluate_terms(cls.terms, values, {name: np.asarray(v, float) for name, v in inputs.items()})

    @classmethod
    def _inputs(
        cls, n_active: ArrayLike, tokens: ArrayLike | None, experts: ArrayLike | None
    ) -> dict[str, FloatArray]:
        """The variables as arrays of allowed values; 1 for what is None."""
        if tokens is None and any(term.variable == "tokens" for term in cls.terms):
            raise ValueError(f"tokens=None must be given: {cls.__name__} depends on it")
        arrays = [np.asarray(1.0 if value is None else value, float) for value in (n_active, tokens, experts)]
        for name, values in zip(VARIABLES[:2], arrays, strict=False):
            if (wrong := values[~((values > 0) & (values < np.inf))]).size:
                raise ValueError(f"{name}={wrong.flat[0]:g} must be positive and finite")
        return dict(zip(VARIABLES, (*arrays[:2], checked_experts(arrays[2])), strict=True))

    def warnings(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike | None = None) -> list[str]:
        """How far these models lie outside the runs of this law, one sentence for each quantity; [] inside."""
        return range_warnings(self.conditions, n_active, tokens, 1 if experts is None else experts)

    def beyond_guard(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> NDArray[np.bool_]:
        """True where a model is so far from the runs that no one should act on the answer (`conditions.GUARD`)."""
        return (self.conditions or Conditions("unknown")).beyond_guard(n_active, tokens, experts)

    def replace(self: LawT, **changes: Any) -> LawT:
        """A copy with some fields changed. Other coefficients drop the draws, unless `draws` are given as well."""
        same = all(changes.get(name, value) == value for name, value in self.coefficients.items())
        stored = self.__dict__["draws"] if same else None  # not `self.draws`, which would read the file
        return replace(self, **{"draws": stored, **changes})

    def __repr__(self) -> str:
        body = ", ".join(f"{name}={value:.6g}" for name, value in self.coefficients.items())
        notes = []
        if self.conditions is not None:
            runs = f", {self.conditions.n_runs} runs" if self.conditions.n_runs else ""
            notes.append(f"{self.conditions.provenance}{runs}")
        if self.draws is not None:
            notes.append(f"{len(self.draws)} draws")
        return f"{type(self).__name__}({body})" + (f"  # {'; '.join(notes)}" if notes else "")


LAWS: dict[str, type[Law]] = {}


def register(kind: type[LawT]) -> type[LawT]:
    """Class decorator: `fit(runs, law=name)` and the files of laws then know the class by its `name`.

    ValueError if the name is missing or another law's, or if the fields are not the coefficients of the terms.
    """
    known = LAWS.get(kind.name)
    if not kind.name or (known and (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__)):
        raise ValueError(f"{kind.__name__}.name={kind.name!r} must be given, and not be another law's: {sorted(LAWS)}")
    wanted = coefficients_of(kind.terms)
    if sorted(wanted) != sorted(kind.coefficient_names()):
        fields_of = ", ".join(kind.coefficient_names())
        raise ValueError(f"{kind.__name__}: its fields ({fields_of}) must be those of its terms ({', '.join(wanted)})")
    LAWS[kind.name] = kind
    return kind


def checked_experts(experts: ArrayLike) -> FloatArray:
    """E as an array. ValueError unless all are finite and at least 1."""
    e = np.asarray(experts, float)
    if (wrong := e[~((e >= 1) & (e < np.inf))]).size:
        raise ValueError(f"experts={wrong.flat[0]:g} must be at least 1 and finite")
    return e
