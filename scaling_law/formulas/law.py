"""Laws as frozen objects with one interface, and the registry by which fits and files know them.

JointLaw      L = a Ê^δ N^(α + γ ln Ê) + b Ê^ω D^(β + ζ ln Ê) + c      Ludziejewski et al. 2025, Eq. 5
ChinchillaLaw L = m N^μ + n D^ν + c                                     Eq. 2, exponents negative
RoutedLaw     L = a Ê^δ N^(α + γ ln Ê)                                  Clark et al. 2022, Eq. 3 of the paper

N is the active parameters with embedding and head, D the training tokens; losses are nats per token.
docs/adding_a_law.md adds another kind, over any variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.plain.tables import Summarised, Table, literal
from hub.plain.units import listed_experts, parse_count, parse_experts
from scaling_law.formulas.conditions import GUARD, Conditions, RangeCheck
from scaling_law.formulas.terms import E_HAT, Form, Term, expert_transform
from scaling_law.size.architecture import EXPERT_VARIABLES, PARTS, VOCAB_SIZE, is_size
from scaling_law.size.arrays import FloatArray
from scaling_law.size.recipe import PAPER

if TYPE_CHECKING:
    from pathlib import Path

    from scaling_law import law_methods

LawT = TypeVar("LawT", bound="Law")


class _Draws:
    """The field `draws` of a law, whose file opens on first use."""

    def __get__(self, law: Law, kind: type[Law] | None = None) -> FloatArray | None:
        if callable(stored := law.__dict__["draws"]):
            self.__set__(law, stored())
        return cast("FloatArray | None", law.__dict__["draws"])

    def __set__(self, law: Law, value: Any) -> None:
        if value is self:  # the field's default
            value = None
        if value is not None and not callable(value):
            value, columns = np.array(value, float), len(law.coefficient_names())
            if value.ndim != 2 or value.shape[1] != columns:
                raise ValueError(f"draws have shape {value.shape}; [n, {columns}] is needed")
            value.setflags(write=False)
        law.__dict__["draws"] = value


@dataclass(frozen=True, repr=False)
class Law(Summarised):
    """What all laws share; a kind of law adds `name`, `formula` and `form`, from which its values follow.

    `conditions` describe the fit. `draws` are coefficients of refits, [n_draws, n_coefficients] in the order of
    `coefficient_names()`, or a function that returns them. The variables of `form`, such as N, D and E, broadcast in
    every method; E left out means dense models.
    """

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    form: ClassVar[Form] = Form(())

    conditions: Conditions | None = field(default=None, kw_only=True, compare=False)
    draws: FloatArray | None = field(default=cast(Any, _Draws()), kw_only=True, compare=False)

    if TYPE_CHECKING:  # `scaling_law.law_methods` binds these; declared here for type checkers and editors
        compute_optimal = law_methods.compute_optimal
        optimal = law_methods.optimal
        save_pretrained = law_methods.save_law
        push_to_hub = law_methods.push_law

        @classmethod
        def from_pretrained(cls: type[LawT], source: str | Path, revision: str | None = None) -> LawT: ...

    def __post_init__(self) -> None:
        for name, value in self.coefficients.items():
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not np.isfinite(value):
                raise ValueError(f"{name}={value!r} must be a finite number")
            least = "not be negative" if name in self.form.constants else "be positive"
            if name in self.form.positive and (value < 0 or (value == 0 and least == "be positive")):
                raise ValueError(f"{name}={value!r} must {least}")
            object.__setattr__(self, name, float(value))
        for transform in self.form.transforms:
            transform.refuse_disorder(self.coefficients)

    @classmethod
    def coefficient_names(cls) -> tuple[str, ...]:
        """In the order of the formula and of `draws`."""
        return tuple(f.name for f in fields(cls) if f.name not in ("conditions", "draws", "experts"))

    @property
    def coefficients(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.coefficient_names()}

    @property
    def variables(self) -> tuple[str, ...]:
        """What the loss depends on: names of columns of runs."""
        return self.form.variables

    @property
    def vocab_size(self) -> int:
        """The vocabulary of this law's runs; GPT-2's 50,257 if unknown."""
        return (self.conditions and self.conditions.vocab_size) or VOCAB_SIZE

    def loss(
        self,
        n_active: ArrayLike | None = None,
        tokens: ArrayLike | None = None,
        experts: ArrayLike | None = None,
        **variables: ArrayLike,
    ) -> Any:
        """Predicted loss in nats per token; `variables` are the law's others, by name.

        Text such as "1B" is read. ValueError for missing or unknown variables, shapes that do not broadcast, values
        ≤ 0 or not finite, and E < 1. Never refused, however far the question extrapolates: see `warnings` and
        `beyond_guard`.
        """
        return self.evaluate(tuple(self.coefficients.values()), self._inputs(n_active, tokens, experts, **variables))

    def loss_draws(
        self,
        n_active: ArrayLike | None = None,
        tokens: ArrayLike | None = None,
        experts: ArrayLike | None = None,
        **variables: ArrayLike,
    ) -> FloatArray:
        """Losses under each of the law's draws, of shape [n_draws, ...]. ValueError if the law has none."""
        if self.draws is None:
            raise ValueError("this law has no draws: fit it and call result.bootstrap(...)")
        inputs = self._inputs(n_active, tokens, experts, **variables)
        shape = np.broadcast_shapes(*(values.shape for values in inputs.values()))
        columns = self.draws.T.reshape(len(self.coefficients), -1, *([1] * len(shape)))
        return np.asarray(self.evaluate(columns, inputs))

    @classmethod
    def evaluate(cls, coefficients: Any, inputs: Mapping[str, FloatArray]) -> Any:
        """The loss for coefficients in the order of `coefficient_names()`; all broadcast, nothing is checked."""
        return cls.form.evaluate(dict(zip(cls.coefficient_names(), coefficients, strict=True)), inputs)

    @classmethod
    def _inputs(cls, n_active: Any, tokens: Any, experts: Any, **variables: Any) -> dict[str, FloatArray]:
        """Checked arrays of all that was given, and E = 1 where it was not."""
        given = {"n_active": n_active, "tokens": tokens, "experts": 1.0 if experts is None else experts, **variables}
        arrays = {name: numbers(name, values) for name, values in given.items() if values is not None}
        own = ", ".join(cls.form.variables)
        if missing := [name for name in cls.form.variables if name not in arrays]:
            raise ValueError(f"{missing[0]}=None must be given: {cls.__name__} depends on {own}")
        if unknown := [name for name in variables if name not in cls.form.variables]:
            raise ValueError(f"{unknown[0]} is no variable of {cls.__name__}: {own}")
        for name, values in arrays.items():
            least = 1.0 if name == "experts" else 0.0
            share = name in cls.form.reads and not is_size(name)  # its logarithm is not taken: it may be 0
            most = 1.0 if name in PARTS else np.finfo(float).max
            if (wrong := values[~((values >= least) & ((values > 0) | share) & (values <= most))]).size:
                low = "at least 1" if least else "at least 0" if share else "positive"
                high = "at most 1" if name in PARTS else "finite"
                raise ValueError(f"{name}={wrong.flat[0]:g} must be {low} and {high}")
        try:
            np.broadcast_shapes(*(values.shape for values in arrays.values()))
        except ValueError:
            shapes = ", ".join(f"{name} of {list(values.shape)}" for name, values in arrays.items() if values.ndim)
            raise ValueError(f"{shapes}: arrays must have one shape, or shapes that broadcast") from None
        return arrays

    def default_experts(self) -> Any:
        """For a question that names no E: the paper's within the range guard, or 1 for a law of dense models."""
        if not {*self.variables} & EXPERT_VARIABLES:
            return (1.0,)
        limits = self.conditions.fitted_limits() if self.conditions else {}
        least, most = limits.get("density", (1.0 / PAPER.experts[-1], 1.0))
        low, high = limits.get("E", (1.0 / most, 1.0 / least))
        if low == high:
            return (low,)
        return tuple(float(e) for e in PAPER.experts if low / GUARD["E"] <= e <= high * GUARD["E"])

    def warnings(
        self, n_active: Any = None, tokens: Any = None, experts: Any = None, **variables: ArrayLike
    ) -> list[str]:
        """How far these models lie outside the runs, or what ranges are unknown, a sentence each; [] inside."""
        return [*self.check(n_active, tokens, experts, **variables).warnings]

    def beyond_guard(
        self, n_active: Any = None, tokens: Any = None, experts: Any = None, **variables: ArrayLike
    ) -> NDArray[np.bool_]:
        """True where a model lies too far from the runs to act on the answer (`conditions.GUARD`)."""
        return self.check(n_active, tokens, experts, **variables).beyond

    def check(
        self, n_active: Any = None, tokens: Any = None, experts: Any = None, **variables: ArrayLike
    ) -> RangeCheck:
        """What an answer about these models is worth. E left out means dense models, or the law's own.

        An E other than its own decides the answer of a law that knows none: it is not trusted.
        """
        given = {"n_active": n_active, "tokens": tokens, "experts": experts, **variables}
        at: dict[str, Any] = {name: None if v is None else numbers(name, v) for name, v in given.items()}
        needs = self.variables
        if experts is None:
            at["experts"] = 1.0 if "experts" in self.form.variables else None
        elif not {*needs} & EXPERT_VARIABLES and np.any(at["experts"] != np.ravel(self.default_experts())[0]):
            needs = (*needs, "experts")
        return RangeCheck(self.conditions, needs, at)

    def replace(self: LawT, **changes: Any) -> LawT:
        """A copy with some fields changed; new coefficients drop the draws unless `draws` are given.

        ValueError for a field that the law lacks, and for values that `Law` refuses.
        """
        base, known = [f.name for f in fields(Law)], [f.name for f in fields(self)]
        known = [*known[len(base) :], *base]  # the coefficients first
        if unknown := [name for name in changes if name not in known]:
            raise ValueError(f"{unknown[0]} is no field of {type(self).__name__}: {', '.join(known)}")
        same = all(changes.get(name, value) == value for name, value in self.coefficients.items())
        stored = self.__dict__["draws"] if same else None  # not `self.draws`, which would read the file
        return replace(self, **{"draws": stored, **changes})

    def summary(self) -> Table:
        """The coefficients, with 95 % intervals where the law has draws; rich and notebooks show it."""
        rows = [[name, f"{value:.5g}"] for name, value in self.coefficients.items()]
        header = ["coefficient", "value"]
        if self.draws is not None:
            header += ["2.5 %", "97.5 %"]
            ends = zip(*percentile_interval(self.draws), strict=True)
            rows = [[*row, f"{low:.5g}", f"{high:.5g}"] for row, (low, high) in zip(rows, ends, strict=True)]
        known = self.conditions
        notes, omitted = ([known.provenance], known.omitted) if known else ([], ())
        return Table(header, rows, title=self.formula, notes=notes, warnings=omitted)

    def __repr__(self) -> str:
        body = ", ".join(f"{name}={value:.6g}" for name, value in self.coefficients.items())
        notes, known = [], self.conditions
        if known is not None:
            notes.append(f"{known.provenance}, {known.n_runs} runs" if known.n_runs else known.provenance)
        if self.draws is not None:
            notes.append(f"{len(self.draws)} draws")
        return f"{type(self).__name__}({body})" + (f"  # {'; '.join(notes)}" if notes else "")


LAWS: dict[str, type[Law]] = {}


def register(kind: type[LawT]) -> type[LawT]:
    """Class decorator: `fit` and law files then know the class by its `name`.

    ValueError if the name is missing or taken, or if the fields are not the coefficients of the form.
    """
    known = LAWS.get(kind.name, kind)
    if not kind.name or (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ValueError(f"{kind.__name__}.name={kind.name!r} must be given, and not be another law's: {sorted(LAWS)}")
    wanted = kind.form.coefficients
    if kind.form.terms and sorted(wanted) != sorted(kind.coefficient_names()):
        fields_of = ", ".join(kind.coefficient_names())
        raise ValueError(f"{kind.__name__}: its fields ({fields_of}) must be those of its form ({', '.join(wanted)})")
    LAWS[kind.name] = kind
    return kind


def numbers(name: str, values: Any) -> FloatArray:
    """An array of what was given: numbers, or text such as "1B" and, for experts, "1,2,4-8".

    ValueError names the field and the value.
    """
    if isinstance(values, str):
        read = [float(e) for e in parse_experts(values)] if name == "experts" else [parse_count(values, name)]
        return np.array(read if len(read) > 1 else read[0])
    if isinstance(values, (list, tuple)):
        values = [parse_count(value, name) if isinstance(value, str) else value for value in values]
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={literal(values)} must be numbers, or text such as '1B'") from None


def checked_experts(experts: ArrayLike) -> FloatArray:
    """ValueError unless all are finite and at least 1."""
    e = np.asarray(experts, float)
    if (wrong := e[~((e >= 1) & (e < np.inf))]).size:
        raise ValueError(f"experts={wrong.flat[0]:g} must be at least 1 and finite")
    return e


def percentile_interval(draws: FloatArray, level: float = 0.95) -> tuple[Any, Any]:
    """The (low, high) between which `level` of the draws lie, over the first axis."""
    check_level(level)
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    return (float(low), float(high)) if np.ndim(low) == 0 else (low, high)


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must be above 0 and below 1")


class ChinchillaForm(Law):
    """A law that is m N^μ + n D^ν + c for each E, and so has optima."""

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """(m, μ, n, ν) for each E of `experts`, as arrays of its shape. ValueError for an E outside the law."""
        raise NotImplementedError

    @property
    def irreducible_loss(self) -> float:
        """Nats per token."""
        return self.coefficients["c"]


@register
@dataclass(frozen=True, repr=False)
class ChinchillaLaw(ChinchillaForm):
    """L = m N^μ + n D^ν + c with μ, ν < 0, for one E, which questions may leave out.

    `experts=None` means the E of the fitted runs if they share one, else dense models.
    """

    name: ClassVar[str] = "chinchilla"
    formula: ClassVar[str] = "L = m·N^μ + n·D^ν + c"
    form: ClassVar[Form] = Form((Term("m", {"n_active": "mu"}), Term("n", {"tokens": "nu"}), Term("c")))

    m: float
    mu: float
    n: float
    nu: float
    c: float
    experts: float | None = None

    def default_experts(self) -> float:
        own = self.conditions.experts if self.conditions else ()
        return self.experts if self.experts is not None else (own[0] if len(own) == 1 else 1.0)

    def warnings(
        self, n_active: Any = None, tokens: Any = None, experts: Any = None, **variables: ArrayLike
    ) -> list[str]:
        own, found = self.default_experts(), super().warnings(n_active, tokens, experts, **variables)
        asked = numbers("experts", own if experts is None else experts)
        if others := ", ".join(listed_experts(e for e in np.unique(asked).tolist() if e != own)):
            found.append(f"this Chinchilla law holds for E = {own:g}: its loss for E = {others} is the same")
        return found

    def check(
        self, n_active: Any = None, tokens: Any = None, experts: Any = None, **variables: ArrayLike
    ) -> RangeCheck:
        return super().check(n_active, tokens, self.default_experts() if experts is None else experts, **variables)

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        e, own = checked_experts(experts), self.default_experts()
        if np.any(e != own):
            raise ValueError(f"experts={float(e[e != own].flat[0]):g}: this Chinchilla law holds for E = {own:g} only")
        m, mu, n, nu = (np.full(e.shape, value) for value in (self.m, self.mu, self.n, self.nu))
        return m, mu, n, nu


@register
@dataclass(frozen=True, repr=False)
class JointLaw(ChinchillaForm):
    """L = a Ê^δ N^(α + γ ln Ê) + b Ê^ω D^(β + ζ ln Ê) + c (Eq. 5); `JointLaw.published()` is the paper's."""

    name: ClassVar[str] = "joint"
    formula: ClassVar[str] = "L = a·Ê^δ·N^(α + γ ln Ê) + b·Ê^ω·D^(β + ζ ln Ê) + c"
    form: ClassVar[Form] = Form(
        (
            Term("a", {"n_active": "alpha", "e_hat": "delta", "n_active*e_hat": "gamma"}),
            Term("b", {"tokens": "beta", "e_hat": "omega", "tokens*e_hat": "zeta"}),
            Term("c"),
        ),
        (E_HAT,),
    )

    a: float
    alpha: float
    delta: float
    gamma: float
    b: float
    beta: float
    omega: float
    zeta: float
    e_start: float
    e_max: float
    c: float

    if TYPE_CHECKING:  # bound by `scaling_law.law_methods`
        optimum_draws = law_methods.optimum_draws

        @classmethod
        def published(cls, rounded: bool = False) -> JointLaw: ...

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        return joint_to_chinchilla(tuple(self.coefficients.values()), checked_experts(experts))

    def to_chinchilla(self, experts: float) -> ChinchillaLaw:
        """This law for one E, in closed form, with the same conditions."""
        m, mu, n, nu = self.chinchilla_coefficients(experts)
        law = ChinchillaLaw(float(m), float(mu), float(n), float(nu), self.c, experts=float(experts))
        if self.draws is not None:
            columns = [*joint_to_chinchilla(self.draws.T, float(experts)), self.draws[:, 10]]
            law = law.replace(draws=np.stack(columns, axis=-1))
        return law.replace(conditions=self.conditions)


def joint_to_chinchilla(coefficients: Any, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
    """(m, μ, n, ν) of a joint law's coefficients (in the order of JointLaw) at `experts`; broadcasts."""
    a, alpha, delta, gamma, b, beta, omega, zeta, e_start, e_max = coefficients[:10]
    e_hat = expert_transform(experts, e_start, e_max)
    log_e = np.log(e_hat)
    return a * e_hat**delta, alpha + gamma * log_e, b * e_hat**omega, beta + zeta * log_e


@register
@dataclass(frozen=True, repr=False)
class RoutedLaw(Law):
    """Clark et al.'s law for runs of one dataset size: L = a Ê^δ N^(α + γ ln Ê). D may be left out as None."""

    name: ClassVar[str] = "routed"
    formula: ClassVar[str] = "L = a·Ê^δ·N^(α + γ ln Ê)"
    form: ClassVar[Form] = Form(
        (Term("a", {"n_active": "alpha", "e_hat": "delta", "n_active*e_hat": "gamma"}),), (E_HAT,)
    )

    a: float
    alpha: float
    delta: float
    gamma: float
    e_start: float
    e_max: float
