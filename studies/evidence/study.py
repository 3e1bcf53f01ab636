"""The numbers, claims, tables and figures of docs/studies/evidence.md, from the points beside this file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from hub.base import strict_json
from hub.base.errors import InputError
from hub.base.units import format_count, format_flops
from scaling_law import HeldOut
from studies.common import FloatArray, Part, interval, rms, write_page
from studies.evidence import figures
from studies.evidence.forecasts import (
    FREED,
    JOINT,
    LAWS,
    MEAN,
    NAMES,
    NO_E,
    PRIOR,
    REFIT,
    WITH,
    Question,
    counted_by,
    joined,
    questions,
)
from studies.evidence.measures import (
    REFITS,
    Choice,
    Gains,
    Refits,
    Slopes,
    choices,
    gains,
    matched_losses,
    refits,
    slopes,
)
from studies.evidence.points import ISOFLOP, Source, derive, read_sources

FOLDER = Path(__file__).parent
ROUTERS = ("S-Base", "RL-R", "Hash")
STEP, MARIN = "Step Law: all MoE models", "Marin, isoFLOP: budgets from 1e20"
LONG = "Chinchilla: runs above 30B tokens"
BESIROGLU = "besiroglu, N without embeddings"
WINS = {"count": (JOINT, WITH), "mean": (JOINT, MEAN), "fresh": (JOINT, REFIT)}
WINS |= {"prior": (PRIOR, JOINT), "prior-fresh": (PRIOR, REFIT)}
CHOOSING = {WITH: "the law, N with embeddings", "besiroglu": "besiroglu", BESIROGLU: "besiroglu, N without"}


@dataclass(frozen=True)
class Evidence:
    """Everything that the page shows, computed when it is asked for."""

    sources: Mapping[str, Source]
    resamples: int = REFITS

    @cached_property
    def questions(self) -> dict[str, Question]:
        """The questions by name, in the order of the page."""
        return {question.name: question for question in questions(self.sources)}

    @cached_property
    def forecast(self) -> Callable[[str, str], HeldOut | None]:
        """Forecasts by question and law, each made once; None where these runs cannot determine the law."""
        return cache(lambda question, law: self.questions[question].ask(law))

    def ask(self, question: str, law: str) -> HeldOut:
        """A forecast that there is; ValueError where these runs cannot determine it."""
        if (forecast := self.forecast(question, law)) is None:
            raise InputError(f"{question}: {law} cannot be determined")
        return forecast

    @cached_property
    def gains(self) -> list[Gains]:
        return [*self.clark, gains("Marin", joined(self.sources["marin_experts"]["experts"]))]

    @cached_property
    def clark(self) -> list[Gains]:
        """Clark et al. by router."""
        return [gains(f"Clark et al., {router}", self.sources["clark"][router]) for router in ROUTERS]

    @cached_property
    def refits(self) -> Refits:
        step = self.sources["step_law"]
        return refits(step["dense"], step["moe"], n_resamples=self.resamples)

    @cached_property
    def slopes(self) -> list[Slopes]:
        tables = {"step_law": ("Step Law, dense", "dense"), "marin": ("Marin, isoFLOP", "isoflop")}
        tables |= {"epoch": ("Chinchilla", "dense")}
        runs = {name: joined(self.sources[source][table]) for source, (name, table) in tables.items()}
        return [slopes(name, table, self.resamples) for name, table in runs.items()]

    def choices(self, law: str) -> list[Choice]:
        """Choices at Marin's budgets, with N counted as in `Question.ask`."""
        isoflop = self.sources["marin"]["isoflop"]
        return choices(NAMES.get(law, law), counted_by(law, joined(isoflop)), isoflop["budget"])

    @cached_property
    def dense_isoflop(self) -> dict[str, FloatArray]:
        """RMSE of each dense experiment, one constant refitted and all coefficients (`isoflop_errors`)."""
        data = strict_json.read(FOLDER / f"{ISOFLOP}.json", ISOFLOP, 1)
        return {law: np.array(data[law]) for law in ("constant", "fresh")}

    @property
    def isoflop_medians(self) -> dict[str, float]:
        return {law: float(np.median(errors)) for law, errors in self.dense_isoflop.items()}


def write(page: Path) -> list[Path]:
    """Write the page with its table and its figures; returns what was written."""
    evidence = Evidence(read_sources(FOLDER))
    return write_page(page, evidence, BLOCKS, TABLES, FIGURES, values, CLAIMS)


def take(folders: Sequence[Path]) -> list[Path]:
    """Derive the points from public tables, anywhere below these folders."""
    return [path for folder in folders for path in derive(folder, FOLDER)]


def _with_interval(forecast: HeldOut) -> str:
    return interval((forecast.rmse, *forecast.interval))


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


# ------------------------------------------------------------------ numbers in the prose


def values(e: Evidence) -> dict[str, str]:
    tuned = e.sources["step_law"].tables.values()
    spacing, at_edge = (np.concatenate([runs[name] for runs in tuned]) for name in ("regret", "at_edge"))
    two = "{:+.3f} and {:+.3f}".format
    return {
        "pairs": f"{sum(len(g.measured) for g in e.clark)}",
        "gain-error": _span([g.errors_with.rmse for g in e.clark]),
        "gain-error-without": _span([g.errors.rmse for g in e.clark]),
        "gain": _span([rms(g.measured) for g in e.clark]),
        "gain-by-size": two(*gain_by_size(e)),
        "gain-by-size-predicted": two(*gain_by_size(e, "predicted")),
        "doublings": two(doubling(e, 16), doubling(e, 256)),
        "step": _with_interval(e.ask(STEP, JOINT)),
        "step-dense": f"{e.ask(STEP, NO_E).rmse:.3f}",
        "marin": _with_interval(e.ask(MARIN, JOINT)),
        "marin-fresh": f"{e.ask(MARIN, REFIT).rmse:.3f}",
        "long-bias": f"{abs(e.ask(LONG, JOINT).bias):.3f}",
        "scales": _span([e.ask(question, FREED).rmse for question in e.questions if question.startswith("Clark")]),
        **{f"wins-{name}": _wins(e, *laws) for name, laws in WINS.items()},
        **{f"isoflop-{law}": f"{median:.2f}" for law, median in e.isoflop_medians.items()},
        **{f"rmse-{name}": f"{rmse:.4f}" for name, rmse in e.refits.rmse.items()},
        "points": f"{len(spacing)}",
        "at-edge": f"{int(at_edge.sum())}",
        "spacing": f"{np.nanmax(spacing):.4f}",
    }


def _wins(evidence: Evidence, law: str, than: str) -> str:
    """How often `law` forecasts better, where both can and they differ: "5 of 10"."""
    pairs = [(evidence.forecast(q, law), evidence.forecast(q, than)) for q in evidence.questions]
    wins = [one.rmse < two.rmse for one, two in pairs if one and two and one.rmse != two.rmse]
    return f"{sum(wins)} of {len(wins)}"


def gain_by_size(evidence: Evidence, name: str = "measured", experts: int = 64) -> tuple[float, float]:
    """The gain at this E of the smallest and of the largest of Clark et al.'s models, means over routers."""
    ends = []
    for table in evidence.clark:
        rows = np.flatnonzero(table.experts == experts)
        n_active = table.n_active[rows]
        ends.append(getattr(table, name)[rows[[n_active.argmin(), n_active.argmax()]]])
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


# ------------------------------------------------------------------ what the prose says


def losses_carry_over(evidence: Evidence) -> bool:
    """Whether the law, moved by a constant, forecasts MoE models better than the alternatives in the account."""
    others = (STEP, NO_E), (STEP, MEAN), (MARIN, REFIT), (MARIN, MEAN)
    return all(evidence.ask(where, JOINT).rmse < evidence.ask(where, law).rmse for where, law in others)


def exponents_hold(evidence: Evidence) -> bool:
    """Whether both published exponents lie in the intervals of Chinchilla's runs."""
    slope = evidence.slopes[-1]
    fitted = zip((slope.size, slope.tokens), slope.published, strict=True)
    return all(low <= published <= high for (_, low, high), published in fitted)


def refit_agrees(evidence: Evidence) -> bool:
    """Whether the intervals of what the most experts of Step Law gain overlap, refitted and published."""
    (_, low, high), (_, least, most) = evidence.refits.gain[max(evidence.refits.gain)]
    return low <= most and least <= high


CLAIMS: dict[str, Callable[[Evidence], object]] = {
    "MoE gains carry over: by each router and count of N the error is less than half of the gain": lambda e: all(
        max(g.errors.rmse, g.errors_with.rmse) < 0.5 * rms(g.measured) for g in e.clark
    ),
    "losses of MoE models carry over": losses_carry_over,
    "losses of dense models do not": lambda e: e.isoflop_medians["constant"] >= 2 * e.isoflop_medians["fresh"],
    "long runs are forecast too high": lambda e: e.ask(LONG, JOINT).bias > 0,
    "an MoE beats its dense twin in all pairs": lambda e: all((g.measured < 0).all() for g in e.clark),
    "experts gain less the larger the model": lambda e: gain_by_size(e)[0] < min(gain_by_size(e)[1], 0.0),
    "each doubling gains less": lambda e: doubling(e, 16) < min(doubling(e, 256), 0.0),
    "one law forecasts both": lambda e: e.ask(STEP, JOINT).rmse < e.ask(STEP, NO_E).rmse,
    "but not refitted to few shapes": lambda e: not refit_agrees(e),
    "sizes are too large at most budgets": lambda e: sum(np.sign(c.chosen - c.best) for c in e.choices(JOINT)) > 0,
    "at little cost: less than forecasts are off": lambda e: (
        np.mean([choice.regret for choice in e.choices(JOINT)]) < e.ask(MARIN, JOINT).rmse
    ),
    "exponents do not hold on Chinchilla's corpus": lambda e: not exponents_hold(e),
    "equal memory is not tested": lambda e: (
        not any(len(matched_losses(source.tables.values())) for source in e.sources.values())
    ),
}


# ------------------------------------------------------------------ blocks


def gain_rows(evidence: Evidence) -> Iterator[Part]:
    yield "", "E", "lower loss", "mean gain", "N with embeddings", "RMSE (95 %)", "N without", "RMSE (95 %)"
    for g in evidence.gains:
        ends = f"{g.experts.min():.3g} to {g.experts.max():.3g}"
        lower = f"{int((g.measured < 0).sum())} of {len(g.measured)}"
        means = [f"{values.mean():+.3f}" for values in (g.measured, g.predicted_with, g.predicted)]
        yield g.source, ends, lower, *means[:2], _with_interval(g.errors_with), means[2], _with_interval(g.errors)


def held_out_table(evidence: Evidence) -> Iterator[tuple[object, ...]]:
    yield "held_out", "law", "fitted_runs", "held_out_runs", "rmse", "rmse_low", "rmse_high", "bias"
    for name, q in evidence.questions.items():
        for law in LAWS:
            if (f := evidence.forecast(name, law)) is not None:
                yield name, law, len(q.train), len(q.test), *(f"{v:.4f}" for v in (f.rmse, *f.interval, f.bias))


def step_law_rows(evidence: Evidence) -> Iterator[Part]:
    yield "E", "gain over dense, refitted to all points (95 %)", "as published (95 %)"
    for e, both in evidence.refits.gain.items():
        yield f"{e:.3g}", *(interval(gain, "{:+.3f}".format) for gain in both)


def slope_rows(evidence: Evidence) -> Iterator[Part]:
    yield "runs", "n", "E", "exponent of N (95 %)", "published", "exponent of D (95 %)", "published"
    for s in evidence.slopes:
        n, d = (f"{value:.3f}" for value in s.published)
        yield s.source, s.n_runs, f"{s.experts:g}", interval(s.size), n, interval(s.tokens), d


def choice_rows(evidence: Evidence) -> Iterator[Part]:
    yield "FLOPs", "sizes", "best N_act", "the law's", "regret", *(f"of {name}" for name in CHOOSING.values())
    joint, others = evidence.choices(JOINT), [evidence.choices(law) for law in CHOOSING]
    for i, c in enumerate(joint):
        regrets = [f"{each[i].regret:.3f}" for each in (joint, *others)]
        yield format_flops(c.flops), c.n_runs, format_count(c.best), format_count(c.chosen), *regrets
    means = [f"{np.mean([c.regret for c in each]):.3f}" for each in (joint, *others)]
    yield "mean", "", "", "", *means


def source_rows(evidence: Evidence) -> Iterator[Part]:
    """What there is, and where it is from."""
    yield "source", "points", "N_act with embeddings", "tokens D", "E", "loss"
    for source in evidence.sources.values():
        for table, runs in source.tables.items():
            ends = [f"{format_count(v.min())} to {format_count(v.max())}" for v in (runs.n_active, runs.tokens)]
            if np.ptp(runs.tokens) <= 0.02 * runs.tokens.max():
                ends[1] = format_count(float(np.median(runs.tokens)))
            experts = sorted({f"{e:.3g}" for e in runs.experts}, key=float)
            label = ", ".join(experts) if len(experts) <= 4 else f"{experts[0]} to {experts[-1]}"
            yield f"{source.name}, {table}", len(runs), *ends, label, source.loss
    yield "\n".join(f"- {s.name}: {s.what}, [{s.place}]({s.address}); {s.derived}." for s in evidence.sources.values())


BLOCKS: dict[str, Callable[[Evidence], Iterator[Part]]] = {
    "gains": gain_rows,
    "step-law": step_law_rows,
    "slopes": slope_rows,
    "choices": choice_rows,
    "sources": source_rows,
}
TABLES = {"evidence-held-out": held_out_table}
FIGURES: dict[str, Callable[[Evidence], object]] = {
    "evidence-gains": lambda e: figures.gains_of_experts(e.gains),
    "evidence-forecasts": lambda e: figures.held_out_runs([*e.questions], e.forecast),
}
