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
    counted,
    joined,
    questions,
)
from studies.evidence.points import ISOFLOP, Source, derive, read_sources

FOLDER = Path(__file__).parent
ROUTERS = ("S-Base", "RL-R", "Hash")
STEP, MARIN = "Step Law: all MoE models", "Marin, isoFLOP: budgets from 1e20"
LONG = "Chinchilla: runs above 30B tokens"
WINS = {"count": (JOINT, WITH), "mean": (JOINT, MEAN), "fresh": (JOINT, REFIT)}
WINS |= {"prior": (PRIOR, JOINT), "prior-fresh": (PRIOR, REFIT)}
REFITS = 200  # of resampled runs
AT = 5e8, 1e10  # N_act and D of the gains that refits see
DRAWN = (2, 4, 8, 16, 32, 64, 128, 256, 512)  # E in the legend
MARKS = {  # law → its name, colour and marker
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
        return HeldOut(self.predicted - self.measured)

    @property
    def errors_with(self) -> HeldOut:
        return HeldOut(self.predicted_with - self.measured)


def gains_of(source: str, runs: Runs) -> Gains:
    """Gains of every run whose N and D a run of the fewest experts shares."""
    law = JointLaw.published()
    losses = [law.loss(r.n_active, r.tokens, r.experts) for r in (counted(runs), runs)]
    few = runs.experts == runs.experts.min()
    same = (runs.n_active[:, None] == runs.n_active) & np.isclose(runs.tokens[:, None], runs.tokens, rtol=0.01) & few
    pairs = np.flatnonzero(~few & same.any(axis=1))
    reference = same[pairs].argmax(axis=1)
    differences = [values[pairs] - values[reference] for values in (runs.loss, *losses)]
    return Gains(source, runs.experts[pairs], runs.n_active[pairs], *differences)


class Choice(NamedTuple):
    """The run of one budget that the law would have trained, and what that costs: its loss minus the least, nats."""

    flops: float
    n_runs: int
    best: float
    chosen: float
    regret: float


def choices_of(runs: Runs, flops: FloatArray) -> list[Choice]:
    """The sizes (N_act) of the best and of the chosen run, for each budget [n] with at least four runs."""
    picks = []
    for budget in np.unique(flops):
        part = runs.subset(flops == budget)
        if len(part) >= 4:
            predicted = errors_of(JointLaw.published(), part) + part.loss
            best, picked = int(np.argmin(part.loss)), int(np.argmin(predicted))
            regret = float(part.loss[picked] - part.loss[best])
            picks.append(Choice(float(budget), len(part), part.n_active[best], part.n_active[picked], regret))
    return picks


def gain_at(law: Law, experts: float) -> Value:
    """Loss at this E and `AT` minus that of the dense model, with its 95 % interval over the law's draws."""
    value = float(law.loss(*AT, experts) - law.loss(*AT, 1.0))
    drawn = law.loss_draws(*AT, experts) - law.loss_draws(*AT, 1.0)
    low, high = np.quantile(drawn[np.isfinite(drawn)], LEVEL)
    return value, float(low), float(high)


class Slopes(NamedTuple):
    """Exponents of N and D of a Chinchilla law fitted to runs of about one E, and the published ones at their mean."""

    experts: float
    n_runs: int
    size: Value
    tokens: Value
    published: tuple[float, float]


def slopes_of(runs: Runs, resamples: int = REFITS) -> Slopes:
    experts = float(np.round(runs.experts.mean()))
    fitted = fit(as_dense(counted(runs)), "chinchilla")
    drawn, coefficients = fitted.bootstrap(resamples), fitted.law.coefficients
    _, mu, _, nu = JointLaw.published().chinchilla_coefficients(experts)
    size, tokens = ((coefficients[name], *drawn.interval(name)) for name in ("mu", "nu"))
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
        """A forecast that there is."""
        return self.questions[question].laws[law]

    @cached_property
    def gains(self) -> list[Gains]:
        return [*self.clark, gains_of("Marin", joined(self.sources["marin_experts"]["experts"]))]

    @cached_property
    def clark(self) -> list[Gains]:
        """Clark et al. by router."""
        return [gains_of(f"Clark et al., {router}", self.sources["clark"][router]) for router in ROUTERS]

    @cached_property
    def refitted(self) -> dict[float, tuple[Value, Value]]:
        """The gain of each E of Step Law's MoE models, of the joint law refitted to its points, and as published."""
        step = self.sources["step_law"]
        drawn = fit(counted(joined(step["dense"], step["moe"])), "joint").bootstrap(self.resamples).law
        return {
            float(e): (gain_at(drawn, e), gain_at(JointLaw.published(), e)) for e in np.unique(step["moe"].experts)
        }

    @cached_property
    def slopes(self) -> dict[str, Slopes]:
        tables = {"Step Law, dense": ("step_law", "dense"), "Marin, isoFLOP": ("marin", "isoflop")}
        tables |= {"Chinchilla": ("epoch", "dense")}
        runs = {name: joined(self.sources[source][table]) for name, (source, table) in tables.items()}
        return {name: slopes_of(table, self.resamples) for name, table in runs.items()}

    @cached_property
    def choices(self) -> list[Choice]:
        """Choices at Marin's budgets."""
        isoflop = self.sources["marin"]["isoflop"]
        return choices_of(counted(joined(isoflop)), isoflop["budget"])

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
    return interval((forecast.rmse, *forecast.interval))


def span(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


def values(e: Evidence) -> dict[str, str]:
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


def wins(evidence: Evidence, law: str, than: str) -> str:
    """How often `law` forecasts better, where both can and they differ: "5 of 10"."""
    pairs = [(q.laws.get(law), q.laws.get(than)) for q in evidence.questions.values()]
    won = [one.rmse < two.rmse for one, two in pairs if one and two and one.rmse != two.rmse]
    return f"{sum(won)} of {len(won)}"


def gain_by_size(evidence: Evidence, experts: int = 64) -> tuple[float, float]:
    """The gain at this E of the smallest and of the largest of Clark et al.'s models, means over routers."""
    ends = []
    for table in evidence.clark:
        rows = np.flatnonzero(table.experts == experts)
        n_active = table.n_active[rows]
        ends.append(table.measured[rows[[n_active.argmin(), n_active.argmax()]]])
    small, large = np.mean(ends, axis=0)
    return float(small), float(large)


def doubling(evidence: Evidence, experts: int) -> float:
    """The further gain from this E to its double of Clark et al.'s models that have both, mean over routers."""
    means = []
    for table in evidence.clark:
        gains = {(n, e): gain for n, e, gain in zip(table.n_active, table.experts, table.measured, strict=True)}
        sizes = [n for n in np.unique(table.n_active) if {(n, experts), (n, 2 * experts)} <= gains.keys()]
        means.append(np.mean([gains[n, 2 * experts] - gains[n, experts] for n in sizes]))
    return float(np.mean(means))


def losses_carry_over(e: Evidence) -> bool:
    """Whether the law, moved by a constant, forecasts MoE models better than the alternatives in the account."""
    others = (STEP, NO_E), (STEP, MEAN), (MARIN, REFIT), (MARIN, MEAN)
    return all(e.ask(where, JOINT).rmse < e.ask(where, law).rmse for where, law in others)


def exponents_hold(e: Evidence) -> bool:
    """Whether both published exponents lie in the intervals of Chinchilla's runs."""
    slope = e.slopes["Chinchilla"]
    fitted = zip((slope.size, slope.tokens), slope.published, strict=True)
    return all(low <= published <= high for (_, low, high), published in fitted)


def refit_agrees(e: Evidence) -> bool:
    """Whether the intervals of what the most experts of Step Law gain overlap, refitted and published."""
    (_, low, high), (_, least, most) = e.refitted[max(e.refitted)]
    return low <= most and least <= high


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
    yield "", "E", "lower loss", "mean gain", "N with embeddings", "RMSE (95 %)", "N without", "RMSE (95 %)"
    for g in e.gains:
        ends = f"{g.experts.min():.3g} to {g.experts.max():.3g}"
        lower = f"{int((g.measured < 0).sum())} of {len(g.measured)}"
        means = [f"{values.mean():+.3f}" for values in (g.measured, g.predicted_with, g.predicted)]
        yield g.source, ends, lower, *means[:2], with_interval(g.errors_with), means[2], with_interval(g.errors)


def step_law(e: Evidence) -> Iterator[Part]:
    yield "E", "gain over dense, refitted to all points (95 %)", "as published (95 %)"
    for experts, both in e.refitted.items():
        yield f"{experts:.3g}", *(interval(gain, "{:+.3f}".format) for gain in both)


def slopes(e: Evidence) -> Iterator[Part]:
    yield "runs", "n", "E", "exponent of N (95 %)", "published", "exponent of D (95 %)", "published"
    for name, s in e.slopes.items():
        n, d = (f"{value:.3f}" for value in s.published)
        yield name, s.n_runs, f"{s.experts:g}", interval(s.size), n, interval(s.tokens), d


def choices(e: Evidence) -> Iterator[Part]:
    yield "FLOPs", "sizes", "best N_act", "the law's", "regret"
    for c in e.choices:
        yield format_flops(c.flops), c.n_runs, format_count(c.best), format_count(c.chosen), f"{c.regret:.3f}"
    yield "mean", "", "", "", f"{np.mean([c.regret for c in e.choices]):.3f}"


def evidence_held_out(e: Evidence) -> Iterator[Part]:
    yield "held_out", "law", "fitted_runs", "held_out_runs", "rmse", "rmse_low", "rmse_high", "bias"
    for name, q in e.questions.items():
        for law, f in q.laws.items():
            yield name, law, len(q.train), len(q.test), *(f"{v:.4f}" for v in (f.rmse, *f.interval, f.bias))


def evidence_gains(e: Evidence) -> NDArray[Any]:
    """Measured against predicted gain over the model of fewest experts, a panel for each table, coloured by E."""
    axes = drawing.panels_or_new(None, len(e.gains), 2.6 * len(e.gains), 3.5)
    for ax, table in zip(axes, e.gains, strict=True):
        low = 1.06 * min(table.measured.min(), table.predicted.min(), table.predicted_with.min())
        ax.plot([low, 0], [low, 0], color="0.4", linewidth=0.9, zorder=0)
        colours = [drawing.colour_of(experts) for experts in table.experts]
        ax.scatter(table.predicted_with, table.measured, s=18, c=colours, linewidths=0)
        ax.scatter(table.predicted, table.measured, s=14, facecolors="none", edgecolors=colours, linewidths=0.6)
        ax.set(xlabel="predicted (nats)", xlim=(low, 0), ylim=(low, 0), box_aspect=1)
        ax.locator_params(nbins=4)
        ax.set_title(table.source, fontsize=9)
    axes[0].set_ylabel("measured gain (nats)")
    for experts in DRAWN:
        label = drawing.label_of(experts)
        axes[0].plot([], [], "o", color=drawing.colour_of(experts), markersize=4, label=label)
    axes[0].plot([], [], "o", color="0.4", markersize=4, markerfacecolor="none", label="N without embeddings")
    drawing.shared_legend(axes[0])
    return axes


def evidence_forecasts(e: Evidence) -> Any:
    """RMSE of the law moved by one constant beside its alternatives, a row for each question."""
    from matplotlib.ticker import FuncFormatter

    ax = drawing.axes_or_new(None, 8.6, 1.6 + 0.3 * len(e.questions))
    for law, (label, colour, marker) in MARKS.items():
        drawn = [(row, q.laws[law]) for row, q in enumerate(e.questions.values()) if law in q.laws]
        rows, rmse = [row for row, _ in drawn], np.array([f.rmse for _, f in drawn])
        ax.plot(rmse, rows, marker, color=colour, markersize=6, label=label, zorder=3 if law == JOINT else 2)
        if law == JOINT:
            ax.hlines(rows, *zip(*(f.interval for _, f in drawn), strict=True), color=colour, linewidth=1.4)
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
