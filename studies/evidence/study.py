"""The numbers, claims, tables and figures of docs/studies/evidence.md, from the points beside this file.

Differences of losses of one corpus need no constant: the law is asked as published. N counts no embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hub.base import strict_json
from hub.base.units import format_count, format_flops
from scaling_law import HeldOut, JointLaw, Law, Runs, errors_of, fit
from scaling_law.figures import drawing
from studies.common import LEVEL, FloatArray, Page, Part, Value, interval, rms
from studies.evidence.forecasts import (
    JOINT,
    MEAN,
    NO_E,
    PRIOR,
    REFIT,
    WITH,
    Question,
    as_dense,
    join_tables,
    pair_with_fewest,
    questions,
    without_embeddings,
)
from studies.evidence.points import ISOFLOP, Source, derive, read_sources

FOLDER = Path(__file__).parent
ROUTERS = ("S-Base", "RL-R", "Hash")
STEP = "Step Law: all MoE models"
MARIN = "Marin, isoFLOP: budgets from 1e20"
LONG = "Chinchilla: runs above 30B tokens"
WINS = {
    "count": (JOINT, WITH),
    "mean": (JOINT, MEAN),
    "fresh": (JOINT, REFIT),
    "prior": (PRIOR, JOINT),
    "prior-fresh": (PRIOR, REFIT),
}
# Refits of resampled runs.
REFITS = 200
# N_act and D of the gains that refits see.
AT = (5e8, 1e10)
# E in the legend.
DRAWN = (2, 4, 8, 16, 32, 64, 128, 256, 512)
# Law → its name, colour and marker.
MARKS = {
    JOINT: ("the law, one constant refitted (95 %)", "#D55E00", "o"),
    WITH: ("the same, N with embeddings", "#D55E00", "x"),
    REFIT: ("fresh fit of all coefficients", "#0072B2", "s"),
    MEAN: ("mean of the fitted runs", "0.6", "d"),
}


@dataclass(frozen=True)
class Gains:
    """Losses of MoE models minus that of the model of fewest experts with equal N and D, [n], nats per token.

    `predicted` are those of the joint law as published, `predicted_with` with embeddings in N.
    """

    source: str
    experts: FloatArray
    n_active: FloatArray
    measured: FloatArray
    predicted: FloatArray
    predicted_with: FloatArray

    @property
    def errors(self) -> HeldOut:
        """Errors of the law, N without embeddings."""
        return HeldOut(self.predicted - self.measured)

    @property
    def errors_with(self) -> HeldOut:
        """Errors of the law, N with embeddings."""
        return HeldOut(self.predicted_with - self.measured)


def gains_of(source: str, runs: Runs) -> Gains:
    """Return the gains of every run whose N and D a run of the fewest experts shares."""
    law = JointLaw.published()
    bare = without_embeddings(runs)
    losses = (
        runs.loss,
        law.loss(bare.n_active, bare.tokens, bare.experts),
        law.loss(runs.n_active, runs.tokens, runs.experts),
    )
    rows, references = pair_with_fewest(runs)
    differences = [values[rows] - values[references] for values in losses]
    return Gains(source, runs.experts[rows], runs.n_active[rows], *differences)


class Choice(NamedTuple):
    """The run of one budget that the law would have trained, and what that costs: its loss minus the least, nats."""

    flops: float
    n_runs: int
    best: float
    chosen: float
    regret: float


def choices_of(runs: Runs, flops: FloatArray) -> list[Choice]:
    """Return the sizes (N_act) of the best and of the chosen run, for each budget [n] with at least four runs."""
    choices = []
    for budget in np.unique(flops):
        runs_at_budget = runs.subset(flops == budget)
        if len(runs_at_budget) < 4:
            continue
        loss = runs_at_budget.loss
        predicted = errors_of(JointLaw.published(), runs_at_budget) + loss
        best = int(np.argmin(loss))
        choice = int(np.argmin(predicted))
        n_active = runs_at_budget.n_active
        regret = float(loss[choice] - loss[best])
        choices.append(Choice(float(budget), len(runs_at_budget), n_active[best], n_active[choice], regret))
    return choices


def gain_at(law: Law, experts: float) -> Value:
    """Return the loss at this E and `AT` minus the dense model's, with its 95 % interval over the law's draws."""
    value = float(law.loss(*AT, experts) - law.loss(*AT, 1.0))
    draws = law.loss_draws(*AT, experts) - law.loss_draws(*AT, 1.0)
    low, high = np.quantile(draws[np.isfinite(draws)], LEVEL)
    return value, float(low), float(high)


class Slopes(NamedTuple):
    """Exponents of N and D of a Chinchilla law fitted to runs of about one E, and the published ones at their mean."""

    experts: float
    n_runs: int
    size: Value
    tokens: Value
    published: tuple[float, float]


def slopes_of(runs: Runs, resamples: int = REFITS) -> Slopes:
    """Fit the exponents of runs of about one E."""
    experts = float(np.round(runs.experts.mean()))
    result = fit(as_dense(without_embeddings(runs)), "chinchilla")
    bootstrap = result.bootstrap(resamples)
    coefficients = result.law.coefficients
    size = (coefficients["mu"], *bootstrap.interval("mu"))
    tokens = (coefficients["nu"], *bootstrap.interval("nu"))
    _, mu, _, nu = JointLaw.published().chinchilla_coefficients(experts)
    return Slopes(experts, len(runs), size, tokens, (float(mu), float(nu)))


@dataclass(frozen=True)
class Evidence:
    """Everything that the page shows, computed when it is asked for."""

    sources: Mapping[str, Source]
    resamples: int = REFITS

    @cached_property
    def questions(self) -> dict[str, Question]:
        """The questions by name, in the order of the page."""
        return {question.name: question for question in questions(self.sources)}

    def ask(self, question: str, law: str) -> HeldOut:
        """Return a forecast that there is."""
        return self.questions[question].laws[law]

    @cached_property
    def gains(self) -> list[Gains]:
        """The gains of Clark et al.'s and Marin's models."""
        return [*self.clark, gains_of("Marin", join_tables(self.sources["marin_experts"]["experts"]))]

    @cached_property
    def clark(self) -> list[Gains]:
        """The gains of Clark et al.'s models by router."""
        return [gains_of(f"Clark et al., {router}", self.sources["clark"][router]) for router in ROUTERS]

    @cached_property
    def refitted(self) -> dict[float, tuple[Value, Value]]:
        """The gain of each E of Step Law's MoE models, of the joint law refitted to its points, and as published."""
        step = self.sources["step_law"]
        runs = without_embeddings(join_tables(step["dense"], step["moe"]))
        refitted_law = fit(runs, "joint").bootstrap(self.resamples).law
        gains = {}
        for experts in np.unique(step["moe"].experts):
            gains[float(experts)] = (gain_at(refitted_law, experts), gain_at(JointLaw.published(), experts))
        return gains

    @cached_property
    def slopes(self) -> dict[str, Slopes]:
        """The exponents fitted to the runs of three sources."""
        tables = {
            "Step Law, dense": self.sources["step_law"]["dense"],
            "Marin, isoFLOP": self.sources["marin"]["isoflop"],
            "Chinchilla": self.sources["epoch"]["dense"],
        }
        return {name: slopes_of(join_tables(table), self.resamples) for name, table in tables.items()}

    @cached_property
    def choices(self) -> list[Choice]:
        """The choices at Marin's budgets."""
        isoflop = self.sources["marin"]["isoflop"]
        return choices_of(without_embeddings(join_tables(isoflop)), isoflop["budget"])

    @cached_property
    def isoflop(self) -> dict[str, float]:
        """Median RMSE of the dense experiments, one constant refitted and all coefficients (`isoflop_errors`)."""
        data = strict_json.read(FOLDER / f"{ISOFLOP}.json", ISOFLOP, 1)
        return {law: float(np.median(data[law])) for law in ("constant", "fresh")}


def take(folders: Sequence[Path]) -> list[Path]:
    """Derive the points from public tables, anywhere below these folders."""
    return [path for folder in folders for path in derive(folder, FOLDER)]


# ------------------------------------------------------------------ the prose


def with_interval(forecast: HeldOut) -> str:
    """Format the RMSE of a forecast with its interval."""
    return interval((forecast.rmse, *forecast.interval))


def span(values: Sequence[float]) -> str:
    """Format the least and the largest of several values."""
    return f"{min(values):.3f} to {max(values):.3f}"


def values(e: Evidence) -> dict[str, str]:
    """Return the numbers in the page's sentences."""
    return {
        "pairs": f"{sum(len(g.measured) for g in e.clark)}",
        "gain-error": span([g.errors_with.rmse for g in e.clark]),
        "gain-error-without": span([g.errors.rmse for g in e.clark]),
        "gain": span([rms(g.measured) for g in e.clark]),
        "step": with_interval(e.ask(STEP, JOINT)),
        "step-dense": f"{e.ask(STEP, NO_E).rmse:.3f}",
        "marin": with_interval(e.ask(MARIN, JOINT)),
        "marin-fresh": f"{e.ask(MARIN, REFIT).rmse:.3f}",
        "long-bias": f"{abs(e.ask(LONG, JOINT).bias):.3f}",
        **{f"wins-{name}": wins(e, *laws) for name, laws in WINS.items()},
        **{f"isoflop-{law}": f"{median:.2f}" for law, median in e.isoflop.items()},
    }


def wins(evidence: Evidence, law: str, reference: str) -> str:
    """Count how often `law` forecasts better, where both can and they differ: "5 of 10"."""
    is_better = []
    for question in evidence.questions.values():
        forecast = question.laws.get(law)
        reference_forecast = question.laws.get(reference)
        if forecast and reference_forecast and forecast.rmse != reference_forecast.rmse:
            is_better.append(forecast.rmse < reference_forecast.rmse)
    return f"{sum(is_better)} of {len(is_better)}"


def gain_by_size(evidence: Evidence, experts: int = 64) -> tuple[float, float]:
    """Return the gain at this E of the smallest and of the largest of Clark et al.'s models, means over routers."""
    gains = []
    for table in evidence.clark:
        rows = np.flatnonzero(table.experts == experts)
        n_active = table.n_active[rows]
        smallest_and_largest = rows[[n_active.argmin(), n_active.argmax()]]
        gains.append(table.measured[smallest_and_largest])
    small, large = np.mean(gains, axis=0)
    return float(small), float(large)


def doubling(evidence: Evidence, experts: int) -> float:
    """Return the further gain from this E to its double of Clark et al.'s models that have both, mean over routers."""
    means = []
    for table in evidence.clark:
        models = zip(table.n_active, table.experts, strict=True)
        gains = dict(zip(models, table.measured, strict=True))
        differences = []
        for n_active in np.unique(table.n_active):
            if {(n_active, experts), (n_active, 2 * experts)} <= gains.keys():
                differences.append(gains[n_active, 2 * experts] - gains[n_active, experts])
        means.append(np.mean(differences))
    return float(np.mean(means))


def losses_carry_over(e: Evidence) -> bool:
    """Return whether the law, moved by a constant, forecasts MoE models better than the account's alternatives."""
    alternatives = ((STEP, NO_E), (STEP, MEAN), (MARIN, REFIT), (MARIN, MEAN))
    return all(e.ask(question, JOINT).rmse < e.ask(question, law).rmse for question, law in alternatives)


def exponents_hold(e: Evidence) -> bool:
    """Return whether both published exponents lie in the intervals of Chinchilla's runs."""
    slopes = e.slopes["Chinchilla"]
    for (_, low, high), published in zip((slopes.size, slopes.tokens), slopes.published, strict=True):
        if not low <= published <= high:
            return False
    return True


def refit_agrees(e: Evidence) -> bool:
    """Return whether the intervals of what the most experts of Step Law gain overlap, refitted and published."""
    (_, low, high), (_, published_low, published_high) = e.refitted[max(e.refitted)]
    return low <= published_high and published_low <= high


CLAIMS = {
    "MoE gains carry over: by each router and count of N the error is less than half of the gain": lambda e: all(
        max(g.errors.rmse, g.errors_with.rmse) < 0.5 * rms(g.measured) for g in e.clark
    ),
    "losses of MoE models carry over": losses_carry_over,
    "losses of dense models do not": lambda e: e.isoflop["constant"] >= 2 * e.isoflop["fresh"],
    "long runs are forecast too high": lambda e: e.ask(LONG, JOINT).bias > 0,
    "an MoE beats its dense twin in all pairs": lambda e: all((g.measured < 0).all() for g in e.clark),
    "experts gain less the larger the model": lambda e: gain_by_size(e)[0] < min(gain_by_size(e)[1], 0.0),
    "each doubling gains less": lambda e: doubling(e, 16) < min(doubling(e, 256), 0.0),
    "one law forecasts both": lambda e: e.ask(STEP, JOINT).rmse < e.ask(STEP, NO_E).rmse,
    "but not refitted to few shapes": lambda e: not refit_agrees(e),
    "sizes are too large at most budgets": lambda e: sum(np.sign(c.chosen - c.best) for c in e.choices) > 0,
    "at little cost: less than forecasts are off": lambda e: (
        np.mean([choice.regret for choice in e.choices]) < e.ask(MARIN, JOINT).rmse
    ),
    "exponents do not hold on Chinchilla's corpus": lambda e: not exponents_hold(e),
}


# ------------------------------------------------------------------ blocks, the CSV file, figures


def gains(e: Evidence) -> Iterator[Part]:
    """List the mean gain of each table beside the law's."""
    yield "", "E", "lower loss", "mean gain", "N with embeddings", "RMSE (95 %)", "N without", "RMSE (95 %)"
    for g in e.gains:
        n_lower = int((g.measured < 0).sum())
        yield (
            g.source,
            f"{g.experts.min():.3g} to {g.experts.max():.3g}",
            f"{n_lower} of {len(g.measured)}",
            f"{g.measured.mean():+.3f}",
            f"{g.predicted_with.mean():+.3f}",
            with_interval(g.errors_with),
            f"{g.predicted.mean():+.3f}",
            with_interval(g.errors),
        )


def step_law(e: Evidence) -> Iterator[Part]:
    """List the gain of each E of Step Law, refitted and as published."""
    yield "E", "gain over dense, refitted to all points (95 %)", "as published (95 %)"
    form = "{:+.3f}".format
    for experts, (refitted, published) in e.refitted.items():
        yield f"{experts:.3g}", interval(refitted, form), interval(published, form)


def slopes(e: Evidence) -> Iterator[Part]:
    """List the exponents fitted to dense runs beside the published ones."""
    yield "runs", "n", "E", "exponent of N (95 %)", "published", "exponent of D (95 %)", "published"
    for name, s in e.slopes.items():
        mu, nu = s.published
        yield name, s.n_runs, f"{s.experts:g}", interval(s.size), f"{mu:.3f}", interval(s.tokens), f"{nu:.3f}"


def choices(e: Evidence) -> Iterator[Part]:
    """List the choice of the law at each of Marin's budgets."""
    yield "FLOPs", "sizes", "best N_act", "the law's", "regret"
    for c in e.choices:
        yield format_flops(c.flops), c.n_runs, format_count(c.best), format_count(c.chosen), f"{c.regret:.3f}"
    yield "mean", "", "", "", f"{np.mean([c.regret for c in e.choices]):.3f}"


def evidence_held_out(e: Evidence) -> Iterator[Part]:
    """List the forecast of every question by every law."""
    yield "held_out", "law", "fitted_runs", "held_out_runs", "rmse", "rmse_low", "rmse_high", "bias"
    for name, question in e.questions.items():
        for law, forecast in question.laws.items():
            numbers = (forecast.rmse, *forecast.interval, forecast.bias)
            texts = [f"{number:.4f}" for number in numbers]
            yield name, law, len(question.train), len(question.test), *texts


def evidence_gains(e: Evidence) -> NDArray[Any]:
    """Draw measured against predicted gain over the model of fewest experts, a panel for each table."""
    axes = drawing.panels_or_new(None, len(e.gains), 2.6 * len(e.gains), 3.5)
    for ax, table in zip(axes, e.gains, strict=True):
        _draw_gains(ax, table)
    axes[0].set_ylabel("measured gain (nats)")
    for experts in DRAWN:
        label = drawing.label_of(experts)
        axes[0].plot([], [], "o", color=drawing.colour_of(experts), markersize=4, label=label)
    axes[0].plot([], [], "o", color="0.4", markersize=4, markerfacecolor="none", label="N without embeddings")
    drawing.shared_legend(axes[0])
    return axes


def _draw_gains(ax: Any, table: Gains) -> None:
    """Draw measured against predicted gains, coloured by E."""
    low = 1.06 * min(table.measured.min(), table.predicted.min(), table.predicted_with.min())
    ax.plot([low, 0], [low, 0], color="0.4", linewidth=0.9, zorder=0)
    colours = [drawing.colour_of(experts) for experts in table.experts]
    ax.scatter(table.predicted_with, table.measured, s=18, c=colours, linewidths=0)
    ax.scatter(table.predicted, table.measured, s=14, facecolors="none", edgecolors=colours, linewidths=0.6)
    ax.set(xlabel="predicted (nats)", xlim=(low, 0), ylim=(low, 0), box_aspect=1)
    ax.locator_params(nbins=4)
    ax.set_title(table.source, fontsize=9)


def evidence_forecasts(e: Evidence) -> Any:
    """Draw the RMSE of the law moved by one constant beside its alternatives, a row for each question."""
    from matplotlib.ticker import FuncFormatter

    ax = drawing.axes_or_new(None, 8.6, 1.6 + 0.3 * len(e.questions))
    for law, (label, colour, marker) in MARKS.items():
        rows = []
        forecasts = []
        for row, question in enumerate(e.questions.values()):
            if law in question.laws:
                rows.append(row)
                forecasts.append(question.laws[law])
        rmse = np.array([forecast.rmse for forecast in forecasts])
        ax.plot(rmse, rows, marker, color=colour, markersize=6, label=label, zorder=3 if law == JOINT else 2)
        if law == JOINT:
            low, high = zip(*(forecast.interval for forecast in forecasts), strict=True)
            ax.hlines(rows, low, high, color=colour, linewidth=1.4)
    ax.set(xscale="log", xlabel="RMSE on the held-out runs (nats)", ylim=(len(e.questions) - 0.5, -0.5))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.set_yticks(range(len(e.questions)), [*e.questions], fontsize=8)
    drawing.shared_legend(ax)
    return ax


PAGE = Page(
    read=lambda: Evidence(read_sources(FOLDER)),
    blocks=(gains, step_law, slopes, choices),
    tables=(evidence_held_out,),
    figures=(evidence_gains, evidence_forecasts),
    values=values,
    claims=CLAIMS,
)
