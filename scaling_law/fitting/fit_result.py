"""The result of a fit: the law, its errors, and the status of convergence and identifiability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hub.plain.tables import ResultTable, Table
from scaling_law.fitting.identifiability import describe_error
from scaling_law.fitting.uncertainty import Bootstrap, bootstrap
from scaling_law.laws import Law

if TYPE_CHECKING:
    from rich.console import RenderableType

    from scaling_law.fitting.problem import Problem
    from scaling_law.fitting.solver import Solutions
    from scaling_law.runs.table import Runs

FloatArray = NDArray[np.float64]
LawT_co = TypeVar("LawT_co", bound=Law, covariant=True)


@dataclass(frozen=True)
class FitStatus:
    """Convergence and identifiability of a fit.

    Attributes:
        n_agree: how many of the `n_released` best of `n_starts` starts ended at the best objective.
        bounds_hit, undetermined: names of coefficients.
        standard_errors: of the logarithm for the `logarithmic` ones (a, b, c), of ln(E_start − 1) and
            ln(E_max − E_start), absolute for the rest.
        suspicious, deviations: runs far from the law of the others, the farthest first, and their loss minus that of
            the fit without them, nats per token. Those of `set_aside` were not fitted.
        n_trunks, trunk_source: trunks of the fitted runs, and how they were identified.
    """

    converged: bool
    n_starts: int
    n_released: int
    n_agree: int
    bounds_hit: tuple[str, ...]
    condition_number: float
    standard_errors: Mapping[str, float]
    undetermined: tuple[str, ...]
    logarithmic: tuple[str, ...] = ()
    suspicious: tuple[str, ...] = ()
    deviations: tuple[float, ...] = ()
    set_aside: tuple[str, ...] = ()
    n_trunks: int | None = None
    trunk_source: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def determined(self) -> bool:
        """True if every coefficient is determined by the data and none sits at a bound."""
        return not self.undetermined and not self.bounds_hit

    @property
    def verdict(self) -> str:
        """One sentence."""
        state = "converged" if self.converged else "NOT converged"
        agreement = f"{self.n_agree} of the {self.n_released} best of {self.n_starts} starts agree"
        vague = [*self.undetermined, *(name for name in self.bounds_hit if name not in self.undetermined)]
        rest = f"not determined by the data: {', '.join(vague)}" if vague else "all coefficients determined"
        return f"{state}, {agreement}; {rest}"

    @property
    def messages(self) -> tuple[str, ...]:
        """The status as sentences, most important first."""
        found = [] if self.converged else ["The best start did not converge: the optimum is not reached."]
        found += [f"{warning[0].upper()}{warning[1:]}." for warning in self.warnings]
        if self.n_agree < max(2, self.n_released // 10) and self.n_released > 1:
            found.append(f"Only {self.n_agree} of {self.n_released} starts reached the best objective.")
        if self.suspicious:
            pairs = zip(self.suspicious[:10], self.deviations, strict=False)
            names = ", ".join(f"{name} ({nats:+.3g} nats)" for name, nats in pairs)
            count = "1 run lies" if len(self.suspicious) == 1 else f"{len(self.suspicious)} runs lie"
            fate = "set aside" if self.set_aside else 'still fitted; outliers="set_aside" leaves them out'
            more = ", …" if len(self.suspicious) > 10 else ""
            found.append(f"{count} far from the law of the others ({fate}): {names}{more}.")
        if self.bounds_hit:
            found.append(f"At a bound, so not determined by these runs: {', '.join(self.bounds_hit)}.")
        if self.undetermined:
            each = [f"{name} ({self.error_in_words(name)})" for name in self.undetermined]
            found.append(f"Not determined by these runs: {', '.join(each)}.")
        if self.bounds_hit or self.undetermined:
            found.append(
                "Other values of these coefficients fit the runs about as well: judge the law by its predictions "
                "inside the range of the runs, and bootstrap it before using any answer outside."
            )
        return tuple(found)

    def error_in_words(self, name: str) -> str:
        """The standard error of a coefficient: ×÷ for what is fitted as a logarithm, ± for the rest."""
        return describe_error(name, self.standard_errors[name], self.logarithmic)

    def __str__(self) -> str:
        return self.verdict


@dataclass(frozen=True, repr=False)
class FitResult(ResultTable, Generic[LawT_co]):
    """A fitted law with what it was fitted on.

    `objective` is the sum of Huber losses on ln L; `rmse` is in nats per token over the fitted runs, `used` [n]
    (positive weight, not set aside). `finalists` are all starts of the second stage.
    """

    law: LawT_co
    objective: float
    rmse: float
    status: FitStatus
    runs: Runs
    problem: Problem
    theta: FloatArray
    finalists: Solutions

    @property
    def used(self) -> NDArray[np.bool_]:
        """Which of `runs` the law was fitted on."""
        return self.problem.used

    @property
    def residuals(self) -> FloatArray:
        """Predicted minus observed loss of every run, nats per token, [n]."""
        return errors_of(self.law, self.runs)

    def errors_on(self, runs: Runs) -> FloatArray:
        """Predicted minus observed loss on other runs."""
        return errors_of(self.law, runs)

    def rmse_by_experts(self) -> dict[float, float]:
        """RMSE in nats for each E."""
        return {e: float(np.sqrt(np.mean(errors**2))) for e, errors in self._errors_by_experts().items()}

    def bias_by_experts(self) -> dict[float, float]:
        """Mean of predicted minus observed for each E: the joint law should favour none."""
        return {e: float(errors.mean()) for e, errors in self._errors_by_experts().items()}

    def _errors_by_experts(self) -> dict[float, FloatArray]:
        errors, experts = self.residuals[self.used], self.runs.experts[self.used]
        return {float(e): errors[experts == e] for e in np.unique(experts)}

    def bootstrap(self, n_resamples: int = 1000, seed: int = 0, progress: bool = False) -> Bootstrap:
        """Refit on resampled trunks; see `scaling_law.fitting.uncertainty.bootstrap`."""
        return bootstrap(self, n_resamples, seed, progress=progress)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values (infinite standard errors as None)."""
        status = asdict(self.status) | {"verdict": self.status.verdict, "messages": list(self.status.messages)}
        status["standard_errors"] = {k: _finite(v) for k, v in self.status.standard_errors.items()}
        status["condition_number"] = _finite(self.status.condition_number)
        return {
            "law": self.law.name,
            "coefficients": self.law.coefficients,
            "objective": self.objective,
            "rmse": self.rmse,
            "runs": int(self.used.sum()),
            "source": self.runs.source,
            "loss": self.runs.loss_name,
            "vocab_size": self.runs.vocab_size,
            "settings": self.problem.settings.to_dict(),
            "rmse_by_experts": {f"{e:g}": value for e, value in self.rmse_by_experts().items()},
            "status": status,
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per coefficient: value, standard error, and its status.

        Standard errors are as in FitStatus; NaN for coefficients that are fixed or at a bound.
        """
        status, fixed = self.status, self.problem.settings.fixed
        vague = {*status.undetermined, *status.bounds_hit}
        return [
            {
                "coefficient": name,
                "value": value,
                "standard_error": status.standard_errors.get(name, float("nan")),
                "of_logarithm": name in status.logarithmic,
                "fixed": name in fixed,
                "at_bound": name in status.bounds_hit,
                "determined": name not in vague and name not in fixed,
            }
            for name, value in self.law.coefficients.items()
        ]

    def summary(self) -> RenderableType:  # type: ignore[override]
        """Coefficients with standard errors, errors per E, and the status, for rich to print."""
        from rich.console import Group
        from rich.text import Text

        status = self.status
        count = f"{int(self.used.sum())} runs of {status.n_trunks} trunks ({status.trunk_source})"
        aside = f", {len(status.set_aside)} set aside" if status.set_aside else ""
        vocabulary = f", vocabulary {self.runs.vocab_size:,}" if self.runs.vocab_size else ""
        head = Text(f"{self.law.formula}\n", style="bold")
        head.append(f"{count}{aside} from {self.runs.source}, {self.runs.loss_name}{vocabulary}; ", style="not bold")
        head.append(f"RMSE {self.rmse:.4f} nats, objective {self.objective:.6g}", style="not bold")
        rows, styles = [], []
        for row in self.to_rows():
            name, doubtful = row["coefficient"], not (row["determined"] or row["fixed"])
            error = status.error_in_words(name) if status.standard_errors.get(name) else ""
            note = "at a bound" if row["at_bound"] else "not determined" if doubtful else ""
            rows.append((name, f"{row['value']:.5g}", "fixed" if row["fixed"] else error, note))
            styles.append("yellow" if doubtful else "")
        coefficients = Table(("", "value", "standard error", ""), rows, title="Coefficients", styles=styles)
        by_experts = Table(
            ("E", "runs", "RMSE", "mean error"),
            [
                (f"{e:g}", len(errors), f"{np.sqrt(np.mean(errors**2)):.4f}", f"{errors.mean():+.4f}")
                for e, errors in self._errors_by_experts().items()
            ],
            title="Errors per number of experts (nats)",
            notes=[status.verdict],
            warnings=status.messages,
        )
        return Group(head, coefficients, by_experts)

    def __repr__(self) -> str:
        return f"FitResult({self.law!r}, rmse={self.rmse:.4g}, objective={self.objective:.6g}, {self.status.verdict})"


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def errors_of(law: Law, runs: Runs) -> FloatArray:
    """Predicted minus observed loss, nats per token, [n]."""
    return np.asarray(law.loss(runs.n_active, runs.tokens, runs.experts) - runs.loss)
