"""The laws: joint (dense and MoE), Chinchilla (one E) and routed (Clark et al.), as frozen objects with one interface.

    JointLaw      L = a Ê^δ N^(α + γ ln Ê) + b Ê^ω D^(β + ζ ln Ê) + c      Ludziejewski et al. 2025, Eq. 5
    ChinchillaLaw L = m N^μ + n D^ν + c                                     Eq. 2, exponents negative
    RoutedLaw     L = a Ê^δ N^(α + γ ln Ê)                                  Clark et al. 2022, Eq. 3 of the paper

N is the active parameters with embedding and head, D the training tokens, ln natural. Losses are nats per token.
Another law is one more registered class with its `terms`; see docs/adding_a_law.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_law.laws.conditions import GUARD, Conditions, range_warnings
from scaling_law.laws.experts import expert_transform
from scaling_law.laws.terms import VARIABLES, Term, coefficients_of, differentiate_terms, evaluate_terms
from scaling_law.size.architecture import VOCAB_SIZE
from scaling_law.size.recipe import PAPER

if TYPE_CHECKING:
    from scaling_law.fitting.learning_rate import LearningRateLaw
    from scaling_law.planning.constraints import Quantity
    from scaling_law.planning.optimal_table import OptimalTable
    from scaling_law.planning.optimum import ComputeOptimum

LawT = TypeVar("LawT", bound="Law")
FloatArray = NDArray[np.float64]


class _Draws:
    """The field `draws` of a law: an array, None, or a function that reads the array when it is first needed.

    A descriptor as a dataclass's default: a query that needs no interval then never opens the file of the draws.
    """

    def __get__(self, law: Law, kind: type[Law] | None = None) -> FloatArray | None:
        held = law.__dict__["draws"]
        if callable(held):
            held = self._checked(law, held())
            law.__dict__["draws"] = held
        return cast("FloatArray | None", held)

    def __set__(self, law: Law, value: Any) -> None:
        if value is None or value is self:  # self: the field's default
            law.__dict__["draws"] = None
        else:
            law.__dict__["draws"] = value if callable(value) else self._checked(law, value)

    @staticmethod
    def _checked(law: Law, values: Any) -> FloatArray:
        draws, columns = np.array(values, float), len(law.coefficient_names())
        if draws.ndim != 2 or draws.shape[1] != columns:
            raise ValueError(f"draws have shape {draws.shape}; [n, {columns}] is needed")
        draws.setflags(write=False)
        return draws


@dataclass(frozen=True, repr=False)
class Law:
    """What all laws share. `conditions` say what the law was fitted on; `draws` are coefficients of refits.

    A kind of law has a `name`, a `formula` and its `terms`; value and derivatives follow from these, and a class may
    write them out. `draws` has shape [n_draws, n_coefficients] in the order of `coefficient_names()`, or is None; a
    function without arguments that returns such an array is called when the draws are first needed.
    """

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    terms: ClassVar[tuple[Term, ...]] = ()

    conditions: Conditions | None = field(default=None, kw_only=True, compare=False)
    draws: FloatArray | None = field(default=cast(Any, _Draws()), kw_only=True, compare=False)

    def __post_init__(self) -> None:
        for name, value in self.coefficients.items():
            number = float(value)
            if not np.isfinite(number):
                raise ValueError(f"{name}={value!r} must be finite")
            object.__setattr__(self, name, number)
        known = self.coefficients
        if "e_start" in known and not 1.0 < known["e_start"] < known["e_max"]:
            raise ValueError(f"e_start={known['e_start']!r}, e_max={known['e_max']!r}: needs 1 < e_start < e_max")

    @classmethod
    def coefficient_names(cls) -> tuple[str, ...]:
        """The coefficients in the order of the formula (and of `draws` and `jacobian`)."""
        return tuple(f.name for f in fields(cls) if f.name not in ("conditions", "draws", "experts"))

    @property
    def coefficients(self) -> dict[str, float]:
        """Name → value, in the order of the formula."""
        return {name: getattr(self, name) for name in self.coefficient_names()}

    @property
    def vocab_size(self) -> int:
        """The vocabulary that this law's sizes count: that of its runs, GPT-2's 50,257 where it is unknown."""
        return (self.conditions and self.conditions.vocab_size) or VOCAB_SIZE

    def loss(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> Any:
        """Predicted loss in nats per token. Arguments broadcast. ValueError for N, D ≤ 0, E < 1 or non-finite.

        Never refused, however far the question extrapolates: `warnings` and `beyond_guard` tell.
        """
        return self._evaluate(tuple(self.coefficients.values()), *_inputs(n_active, tokens, experts))

    def warnings(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> list[str]:
        """How far these models lie outside the runs of this law, one sentence for each quantity; [] inside."""
        return range_warnings(self.conditions, n_active, tokens, experts)

    def beyond_guard(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> Any:
        """True where a model is so far from the runs that no one should act on the answer (`conditions.GUARD`)."""
        return False if self.conditions is None else self.conditions.beyond_guard(n_active, tokens, experts)

    def jacobian(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> FloatArray:
        """∂L/∂coefficient, of shape [..., n_coefficients], for arguments that broadcast to [...]."""
        inputs = np.broadcast_arrays(*_inputs(n_active, tokens, experts))
        columns = differentiate_terms(self.terms, self.coefficients, dict(zip(VARIABLES, inputs, strict=True)))
        return np.stack([columns[name] for name in self.coefficient_names()], axis=-1)

    def loss_draws(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> FloatArray:
        """Losses under each of the law's draws, of shape [n_draws, ...]. ValueError if the law has none."""
        if self.draws is None:
            raise ValueError("this law has no draws: fit it and call result.bootstrap(...)")
        shape = np.broadcast_shapes(np.shape(n_active), np.shape(tokens), np.shape(experts))
        columns = self.draws.T.reshape(len(self.coefficients), -1, *([1] * len(shape)))
        return np.asarray(self._evaluate(columns, *_inputs(n_active, tokens, experts)))

    def _evaluate(self, columns: Any, n: FloatArray, d: FloatArray, e: FloatArray) -> Any:
        """The loss for coefficients `columns`, in the order of `coefficient_names()`; all broadcast."""
        values = dict(zip(self.coefficient_names(), columns, strict=True))
        return evaluate_terms(self.terms, values, dict(zip(VARIABLES, (n, d, e), strict=True)))

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write `scaling_law.json` (coefficients at full precision, conditions, draws) into `folder`; its path."""
        from scaling_law.law_files.serialization import save_law

        return save_law(self, folder)

    def push_to_hub(
        self, repo: str, *, token: str | None = None, private: bool = False, license: str | None = None
    ) -> str:
        """Put the law with card and figures into the Hub repo "owner/name", in one commit; returns the commit's id.

        The card names a licence (an identifier of the Hub's list) only if one is given.
        """
        from scaling_law.law_files.serialization import push_law

        return push_law(self, repo, token=token, private=private, license=license)

    @classmethod
    def from_pretrained(cls: type[LawT], source: str | Path, revision: str | None = None) -> LawT:
        """Read a law from a folder, a scaling_law.json, or a Hub repo. ValueError if it is a law of another kind."""
        from scaling_law.law_files.serialization import load_law

        law = load_law(source, revision)
        if not isinstance(law, cls):
            raise ValueError(f"{source}: holds a {type(law).__name__}, not a {cls.__name__}")
        return law

    def replace(self: LawT, **changes: Any) -> LawT:
        """A copy with some fields changed. Other coefficients drop the draws, unless `draws` are given as well."""
        same = all(changes.get(name, value) == value for name, value in self.coefficients.items())
        held = self.__dict__["draws"] if same else None  # as it is held, so that nothing is read here
        return replace(self, **{"draws": held, **changes})

    def __repr__(self) -> str:
        width = 6
        body = ", ".join(f"{name}={value:.{width}g}" for name, value in self.coefficients.items())
        notes = []
        if self.conditions is not None:
            runs = f", {self.conditions.n_runs} runs" if self.conditions.n_runs else ""
            notes.append(f"{self.conditions.provenance}{runs}")
        if self.draws is not None:
            notes.append(f"{len(self.draws)} draws")
        return f"{type(self).__name__}({body})" + (f"  # {'; '.join(notes)}" if notes else "")


LAWS: dict[str, type[Law]] = {}


def register(kind: type[LawT]) -> type[LawT]:
    """Decorator of a law's class: from here on `fit(runs, law=name)` and the files of laws know it by its `name`.

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


class ChinchillaForm(Law):
    """A law that is m N^μ + n D^ν + c for each E, and so can be asked for optima.

    A subclass has a coefficient `c` and gives `chinchilla_coefficients`; everything else follows.
    """

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """(m, μ, n, ν) for each E of `experts`, as arrays of its shape. ValueError for an E it does not hold for."""
        raise NotImplementedError

    def default_experts(self) -> Any:
        """The numbers of experts that a question without any is asked for: the paper's, within the range guard."""
        limits = self.conditions.fitted_limits().get("E") if self.conditions else None
        low, high = limits or (1.0, PAPER.experts[-1])
        return tuple(float(e) for e in PAPER.experts if low / GUARD["E"] <= e <= high * GUARD["E"])

    @property
    def irreducible_loss(self) -> float:
        """c, nats per token."""
        return self.coefficients["c"]

    def compute_optimal(
        self, flops: ArrayLike, experts: ArrayLike | None = None, *, force: bool = False
    ) -> ComputeOptimum:
        """Compute-optimal N_act, D and loss for each E and budget: arrays of shape flops.shape + experts.shape.

        `experts` None asks for those of `default_experts`. Raises ValueError for bad input or where the law has no
        optimum; ExtrapolationError where an answer lies beyond the range guard, unless `force`.
        """
        from scaling_law.planning.optimum import compute_optimal

        return compute_optimal(self, flops, experts, force)

    def optimal(
        self,
        flops: Quantity,
        experts: ArrayLike | None = None,
        *,
        max_parameters: Quantity | None = None,
        max_memory_bytes: Quantity | None = None,
        kv_cache_tokens: Quantity = 0.0,
        bytes_per_parameter: float = 2.0,
        bytes_per_kv: float = 2.0,
        inference_tokens: Quantity = 0.0,
        kv_heads_ratio: float = 1.0,
        vocab_size: int | None = None,
        integral: bool = False,
        learning_rate_law: LearningRateLaw | None = None,
        force: bool = False,
    ) -> OptimalTable:
        """The best model for each E under compute and memory constraints, and the best of all.

        Args:
            flops: FLOPs of training (6 N_act D) and inference (2 N_act D_inf); a number or text such as "1e22".
            experts: one E or several; None asks for those of `default_experts`.
            max_parameters: limit on N_total: 7e9 or "7B".
            max_memory_bytes: limit on weights and key-value cache: 80e9, "80GB" or "80GiB".
            kv_cache_tokens: tokens in the cache over all sequences: 16384 or "16k".
            bytes_per_parameter, bytes_per_kv: 2 for bf16.
            inference_tokens: tokens served over the model's life: 1e11 or "100B".
            kv_heads_ratio: key-value heads / heads.
            vocab_size: of the tokenizer; it sets the size of a width. None for that of the law's runs.
            integral: only architectures that exist, d_model = 64 n_blocks = 64 n_heads.
            learning_rate_law: of the learning rates; None for the published one.
            force: compare and name answers beyond the range guard, too.

        Raises ValueError for bad input, where nothing fits and where the law has no optimum; ExtrapolationError where
        no answer lies within the range guard. Ludziejewski et al. 2025, Section "Compute and Memory Optimality".
        """
        from scaling_law.planning.best_models import best_models
        from scaling_law.planning.constraints import Constraints

        limits: dict[str, Any] = {
            "max_parameters": max_parameters,
            "max_memory_bytes": max_memory_bytes,
            "kv_cache_tokens": kv_cache_tokens,
            "bytes_per_parameter": bytes_per_parameter,
            "bytes_per_kv": bytes_per_kv,
            "inference_tokens": inference_tokens,
            "kv_heads_ratio": kv_heads_ratio,
            "vocab_size": vocab_size,
        }
        return best_models(self, flops, experts, Constraints.of(self, **limits), integral, learning_rate_law, force)


@register
@dataclass(frozen=True, repr=False)
class ChinchillaLaw(ChinchillaForm):
    """L = m N^μ + n D^ν + c with μ, ν < 0, for one number of experts.

    `experts` says for which; None leaves it to the runs of the fit if they have one E, and means dense models else.
    """

    name: ClassVar[str] = "chinchilla"
    formula: ClassVar[str] = "L = m·N^μ + n·D^ν + c"
    terms: ClassVar[tuple[Term, ...]] = (
        Term("n_active", ("m", "mu")),
        Term("tokens", ("n", "nu")),
        Term(None, ("c",)),
    )

    m: float
    mu: float
    n: float
    nu: float
    c: float
    experts: float | None = None

    def loss(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike | None = None) -> Any:
        """Predicted loss; `experts` is not used by this law and may be left out."""
        return self._evaluate(
            tuple(self.coefficients.values()), *_inputs(n_active, tokens, 1 if experts is None else experts)
        )

    def _evaluate(self, columns: Any, n: FloatArray, d: FloatArray, e: FloatArray) -> Any:
        m, mu, big_n, nu, c = columns
        return m * n**mu + big_n * d**nu + c

    def jacobian(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike | None = None) -> FloatArray:
        return super().jacobian(n_active, tokens, 1 if experts is None else experts)

    def default_experts(self) -> float:
        """The one E that this law holds for."""
        own = self.conditions.experts if self.conditions else ()
        return self.experts if self.experts is not None else (own[0] if len(own) == 1 else 1.0)

    def warnings(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike | None = None) -> list[str]:
        own = self.default_experts()
        asked = np.unique(np.asarray(own if experts is None else experts, float))
        found = super().warnings(n_active, tokens, own if experts is None else experts)
        if others := [f"{e:g}" for e in asked.tolist() if e != own]:
            found.append(
                f"this Chinchilla law holds for E = {own:g}: its loss for E = {', '.join(others)} is the same"
            )
        return found

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        e, own = _experts(experts), self.default_experts()
        if np.any(e != own):
            raise ValueError(f"experts={float(e[e != own].flat[0]):g}: this Chinchilla law holds for E = {own:g} only")
        m, mu, n, nu = (np.full(e.shape, value) for value in (self.m, self.mu, self.n, self.nu))
        return m, mu, n, nu


@register
@dataclass(frozen=True, repr=False)
class JointLaw(ChinchillaForm):
    """The joint law of dense and MoE models. `JointLaw.published()` is the paper's."""

    name: ClassVar[str] = "joint"
    formula: ClassVar[str] = "L = a·Ê^δ·N^(α + γ ln Ê) + b·Ê^ω·D^(β + ζ ln Ê) + c"
    terms: ClassVar[tuple[Term, ...]] = (
        Term("n_active", ("a", "alpha", "delta", "gamma"), experts=True),
        Term("tokens", ("b", "beta", "omega", "zeta"), experts=True),
        Term(None, ("c",)),
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

    @classmethod
    def published(cls, rounded: bool = False) -> JointLaw:
        """The paper's law: coefficients recovered at full precision, or (`rounded`) as its table prints them.

        The recovered law has draws, for intervals. They are this package's, not the authors': see
        `scaling_law.paper.published_draws`. The printed coefficients have none.
        """
        from scaling_law.paper.published import published_law

        return published_law(rounded)

    def _evaluate(self, columns: Any, n: FloatArray, d: FloatArray, e: FloatArray) -> Any:
        m, mu, big_n, nu = joint_to_chinchilla(columns, e)
        return m * n**mu + big_n * d**nu + columns[10]

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """(m, μ, n, ν) for each E of `experts`, as arrays of its shape."""
        return joint_to_chinchilla(tuple(self.coefficients.values()), _experts(experts))

    def to_chinchilla(self, experts: float) -> ChinchillaLaw:
        """This law for one number of experts, in closed form; its conditions travel along."""
        m, mu, n, nu = self.chinchilla_coefficients(experts)
        law = ChinchillaLaw(float(m), float(mu), float(n), float(nu), self.c, experts=float(experts))
        if self.draws is not None:
            columns = [*joint_to_chinchilla(self.draws.T, np.asarray(float(experts))), self.draws[:, 10]]
            law = law.replace(draws=np.stack(columns, axis=-1))
        return law.replace(conditions=self.conditions)


def joint_to_chinchilla(columns: Any, experts: FloatArray) -> tuple[Any, Any, Any, Any]:
    """(m, μ, n, ν) of a joint law's coefficients (in the order of JointLaw) at `experts`; broadcasts."""
    a, alpha, delta, gamma, b, beta, omega, zeta, e_start, e_max = columns[:10]
    e_hat = expert_transform(experts, e_start, e_max)
    log_e = np.log(e_hat)
    return a * e_hat**delta, alpha + gamma * log_e, b * e_hat**omega, beta + zeta * log_e


@register
@dataclass(frozen=True, repr=False)
class RoutedLaw(Law):
    """Clark et al.'s law for runs of one data set size: L = a Ê^δ N^(α + γ ln Ê)."""

    name: ClassVar[str] = "routed"
    formula: ClassVar[str] = "L = a·Ê^δ·N^(α + γ ln Ê)"
    terms: ClassVar[tuple[Term, ...]] = (Term("n_active", ("a", "alpha", "delta", "gamma"), experts=True),)

    a: float
    alpha: float
    delta: float
    gamma: float
    e_start: float
    e_max: float

    def loss(self, n_active: ArrayLike, tokens: ArrayLike | None = None, experts: ArrayLike = 1) -> Any:
        """Predicted loss; `tokens` is not used by this law (pass None)."""
        return self._evaluate(
            tuple(self.coefficients.values()), *_inputs(n_active, 1.0 if tokens is None else tokens, experts)
        )

    def _evaluate(self, columns: Any, n: FloatArray, d: FloatArray, e: FloatArray) -> Any:
        a, alpha, delta, gamma, e_start, e_max = columns
        e_hat = expert_transform(e, e_start, e_max)
        return a * e_hat**delta * n ** (alpha + gamma * np.log(e_hat))

    def jacobian(self, n_active: ArrayLike, tokens: ArrayLike | None = None, experts: ArrayLike = 1) -> FloatArray:
        return super().jacobian(n_active, 1.0 if tokens is None else tokens, experts)


def _inputs(n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    n, d = np.asarray(n_active, float), np.asarray(tokens, float)
    for name, values in (("n_active", n), ("tokens", d)):
        if not np.all((values > 0) & (values < np.inf)):
            bad = float(values[~((values > 0) & (values < np.inf))].flat[0])
            raise ValueError(f"{name}={bad:g} must be positive and finite")
    return n, d, _experts(experts)


def _experts(experts: ArrayLike) -> FloatArray:
    e = np.asarray(experts, float)
    if not np.all((e >= 1) & (e < np.inf)):
        raise ValueError(f"experts={float(e[~((e >= 1) & (e < np.inf))].flat[0]):g} must be at least 1 and finite")
    return e
