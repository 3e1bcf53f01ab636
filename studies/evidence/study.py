"""The numbers, tables, verdicts and figures of docs/studies/evidence.md, from the points beside this file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from hub.base import strict_json
from hub.base.errors import InputError
from hub.base.units import format_count, format_flops
from scaling_law import HeldOut
from scaling_law.figures import drawing
from studies.common import FloatArray, Part, fill, rms, write_tables
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
CHOOSING = {WITH: "the law, N with embeddings", "besiroglu": "besiroglu", BESIROGLU: "besiroglu, N without"}


@dataclass(frozen=True)
class Evidence:
    """Everything that the page shows, computed when it is asked for."""

    sources: Mapping[str, Source]
    resamples: int = REFITS
    _forecasts: dict[tuple[str, str], HeldOut | None] = field(default_factory=dict, repr=False)

    @cached_property
    def questions(self) -> dict[str, Question]:
        """The questions by name, in the order of the page."""
        return {question.name: question for question in questions(self.sources)}

    def forecast(self, question: str, law: str) -> HeldOut | None:
        """None where these runs cannot determine the law."""
        key = question, law
        if key not in self._forecasts:
            self._forecasts[key] = self.questions[question].ask(law)
        return self._forecasts[key]

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


def write(page: Path) -> list[Path]:
    """Replace the blocks of the Markdown file `page`, its table and its figures; returns what was written."""
    evidence = Evidence(read_sources(FOLDER))
    drawn = {
        "evidence-gains.png": figures.gains_of_experts(evidence.gains),
        "evidence-forecasts.png": figures.held_out_runs([*evidence.questions], evidence.forecast),
    }
    saved = [drawing.save(figure, page.parent / "figures" / name) for name, figure in drawn.items()]
    return [fill(page, BLOCKS, evidence), *write_tables(page, TABLES, evidence), *saved]


def take(folders: Sequence[Path]) -> list[Path]:
    """Derive the points from public tables, anywhere below these folders."""
    return [path for folder in folders for path in derive(folder, FOLDER)]


def _with_interval(forecast: HeldOut) -> str:
    return "{:.3f} ({:.3f} to {:.3f})".format(forecast.rmse, *forecast.interval)


def _interval(values: tuple[float, float, float], form: str = "{:+.3f}") -> str:
    value, low, high = map(form.format, values)
    return f"{value} ({low} to {high})"


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


# ------------------------------------------------------------------ comparisons that a verdict is made of


def gains_carry_over(evidence: Evidence) -> bool:
    """Whether the law's error is less than half of what is gained, for each router and either count of N."""
    return all(max(g.errors.rmse, g.errors_with.rmse) < 0.5 * rms(g.measured) for g in evidence.clark)


def losses_carry_over(evidence: Evidence) -> bool:
    """Whether the law, moved by a constant, forecasts MoE models better than the alternatives in the account."""
    others = (STEP, NO_E), (STEP, MEAN), (MARIN, REFIT), (MARIN, MEAN)
    return all(evidence.ask(where, JOINT).rmse < evidence.ask(where, law).rmse for where, law in others)


def choices_cost_little(evidence: Evidence) -> bool:
    """Whether Marin's widths that the law picks cost less than the law's forecasts of Marin's losses are off."""
    regrets = [c.regret for c in evidence.choices(JOINT)]
    return bool(np.mean(regrets) < evidence.ask(MARIN, JOINT).rmse)


def slopes_hold(evidence: Evidence) -> bool:
    """Whether the published exponents lie in the intervals of Chinchilla's runs."""
    s = evidence.slopes[-1]
    fitted = zip((s.size, s.tokens), s.published, strict=True)
    return all(low <= published <= high for (_, low, high), published in fitted)


def refit_is_contradicted(evidence: Evidence) -> bool:
    """Whether what a refit has the most experts of Step Law gain lies outside the published law's interval."""
    worst = max(evidence.refits.gain)
    (_, low, high), (_, least, most) = evidence.refits.gain[worst], evidence.refits.published[worst]
    return low > most or high < least


def _wins(evidence: Evidence, law: str, than: str) -> str:
    """How often `law` forecasts better, where both can and they differ: "5 of 10"."""
    pairs = [(evidence.forecast(q, law), evidence.forecast(q, than)) for q in evidence.questions]
    wins = [one.rmse < two.rmse for one, two in pairs if one and two and one.rmse != two.rmse]
    return f"{sum(wins)} of {len(wins)}"


# ------------------------------------------------------------------ blocks


def short(evidence: Evidence) -> Iterator[Part]:
    """The result in a few lines."""
    lines = _gains_in_short, _losses_in_short, _dense_in_short
    yield "\n".join(f"- {line(evidence)}" for line in lines)


def _gains_in_short(evidence: Evidence) -> str:
    clark = evidence.clark
    measured, experts = (np.concatenate([getattr(g, name) for g in clark]) for name in ("measured", "experts"))
    errors, without = (_span([getattr(g, name).rmse for g in clark]) for name in ("errors_with", "errors"))
    verb, way = "carry" if gains_carry_over(evidence) else "do not carry", "below" if measured.mean() < 0 else "above"
    return (
        f"**MoE gains {verb} over.** Without refitting, the law predicts how far {len(measured)} MoE models of Clark "
        f"et al. (E from {experts.min():g} to {experts.max():g}, three routers) lie {way} their dense twins to "
        f"{errors} nats (RMSE) with the paper's count of N, and to {without} without embeddings. The RMS gain is "
        f"{_span([rms(g.measured) for g in clark])}."
    )


def _losses_in_short(evidence: Evidence) -> str:
    ask, most = evidence.ask, evidence.questions[STEP].test.experts.max()
    return (
        "**With one constant refitted, losses of MoE models "
        f"{'do, too' if losses_carry_over(evidence) else 'do not'}.** From Step Law's dense models it forecasts the "
        f"MoE models (E up to {most:g}) to {_with_interval(ask(STEP, JOINT))} nats; a Chinchilla law fitted to the "
        f"dense models misses by {ask(STEP, NO_E).rmse:.3f}. From Marin's MoE runs below 1e20 FLOPs it forecasts the "
        f"larger ones to {_with_interval(ask(MARIN, JOINT))}; a fresh fit misses by {ask(MARIN, REFIT).rmse:.3f}. "
        "These errors are for N without embeddings, which forecast better than N with them in "
        f"{_wins(evidence, JOINT, WITH)} splits below; we chose so after asking both ways."
    )


def _dense_in_short(evidence: Evidence) -> str:
    long, errors = evidence.ask(LONG, JOINT), evidence.dense_isoflop
    medians = {law: float(np.median(values)) for law, values in errors.items()}
    holds = medians["constant"] < 2 * medians["fresh"]
    return (
        f"**Losses of dense models {'do' if holds else 'do not'}.** On {len(errors['fresh'])} dense isoFLOP "
        f"experiments of other labs, one constant forecasts the largest budgets to {medians['constant']:.2f} nats "
        f"(median RMSE), a fresh Chinchilla fit to {medians['fresh']:.2f}. On Chinchilla's corpus, runs above 30B "
        f"tokens are forecast {abs(long.bias):.3f} nats too {'high' if long.bias > 0 else 'low'}."
    )


def gain_rows(evidence: Evidence) -> Iterator[Part]:
    yield "", "E", "lower loss", "mean gain", "N with embeddings", "RMSE (95 %)", "N without", "RMSE (95 %)"
    for g in evidence.gains:
        ends = f"{g.experts.min():.3g} to {g.experts.max():.3g}"
        lower = f"{int((g.measured < 0).sum())} of {len(g.measured)}"
        means = [f"{values.mean():+.3f}" for values in (g.measured, g.predicted_with, g.predicted)]
        yield g.source, ends, lower, *means[:2], _with_interval(g.errors_with), means[2], _with_interval(g.errors)
    fewest = evidence.sources["marin_experts"]["experts"].experts.min()
    yield (
        "Gains over the model of fewest experts with the same N_act and D: a dense one of Clark et al., E = "
        f"{fewest:g} of Marin. Clark et al. route every second block, and E is that of a routed block."
    )


def held_out_rows(evidence: Evidence) -> Iterator[Part]:
    scales = [evidence.ask(q, FREED).rmse for q in evidence.questions if q.startswith("Clark")]
    yield (
        f"Moved by the constant alone, the law beats the mean of the fitted runs in {_wins(evidence, JOINT, MEAN)} "
        f"splits and a fresh fit in {_wins(evidence, JOINT, REFIT)} where there can be one. With a, b and c refitted "
        f"it forecasts Clark et al.'s held-out runs to {_span(scales)} nats. As the prior of a fit it beats the "
        f"constant alone in {_wins(evidence, PRIOR, JOINT)} splits and a fresh fit in {_wins(evidence, PRIOR, REFIT)}."
    )


def held_out_table(evidence: Evidence) -> Iterator[tuple[object, ...]]:
    yield "held_out", "law", "fitted_runs", "held_out_runs", "rmse", "rmse_low", "rmse_high", "bias"
    for name, q in evidence.questions.items():
        for law in LAWS:
            if (f := evidence.forecast(name, law)) is not None:
                yield name, law, len(q.train), len(q.test), *(f"{v:.4f}" for v in (f.rmse, *f.interval, f.bias))


def step_law_rows(evidence: Evidence) -> Iterator[Part]:
    r = evidence.refits
    yield "E", "gain over dense, refitted to all points (95 %)", "as published (95 %)"
    for e, gain in r.gain.items():
        yield f"{e:.3g}", _interval(gain), _interval(r.published[e])
    n, d = map(format_count, r.at)
    tables = evidence.sources["step_law"].tables.values()
    regret, at_edge = (np.concatenate([t[name] for t in tables]) for name in ("regret", "at_edge"))
    yield (
        f"Gains at N_act = {n} and D = {d}, in nats. RMSE on all {len(regret)} points: {r.joint.rmse:.4f} for the "
        f"joint law refitted, {r.freed:.4f} with a, b and c refitted, {r.moved:.4f} with c alone. A Chinchilla law "
        f"without E fits the MoE points alone to {r.moe_without_experts.rmse:.4f}. The points are tuned: "
        f"{int(at_edge.sum())} lie at an edge of their grid of learning rates and batches, and its spacing costs at "
        f"most {np.nanmax(regret):.4f}."
    )


def slope_rows(evidence: Evidence) -> Iterator[Part]:
    yield "runs", "n", "E", "exponent of N (95 %)", "published", "exponent of D (95 %)", "published"
    for s in evidence.slopes:
        n, d = (f"{value:.3f}" for value in s.published)
        size, tokens = _interval(s.size, "{:.3f}"), _interval(s.tokens, "{:.3f}")
        yield s.source, s.n_runs, f"{s.experts:g}", size, n, tokens, d


def choice_rows(evidence: Evidence) -> Iterator[Part]:
    yield "FLOPs", "sizes", "best N_act", "the law's", "regret", *(f"of {name}" for name in CHOOSING.values())
    joint, others = evidence.choices(JOINT), [evidence.choices(law) for law in CHOOSING]
    for i, c in enumerate(joint):
        regrets = [f"{each[i].regret:.3f}" for each in (joint, *others)]
        yield format_flops(c.flops), c.n_runs, format_count(c.best), format_count(c.chosen), *regrets
    means = [f"{np.mean([c.regret for c in each]):.3f}" for each in (joint, *others)]
    yield "mean", "", "", "", *means


def finding_rows(evidence: Evidence) -> Iterator[Part]:
    yield "finding of the paper", "at this scale", "evidence"
    for finding, judge in FINDINGS.items():
        yield finding, *judge(evidence)


def _holds(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def experts_beat_dense(evidence: Evidence) -> Verdict:
    measured = np.concatenate([g.measured for g in evidence.clark])
    lower, n = int((measured < 0).sum()), len(measured)
    return "holds for most" if n / 2 < lower < n else _holds(lower == n), f"{lower} of {n} pairs of Clark et al."


def larger_gain_less(evidence: Evidence) -> Verdict:
    small, large = (float(np.mean([_gain_at(g, 64, end) for g in evidence.clark])) for end in (min, max))
    predicted = [np.mean([_gain_at(g, 64, end, predicted=True) for g in evidence.clark]) for end in (min, max)]
    numbers = f"E = 64: {small:+.3f} nats at the smallest, {large:+.3f} at the largest N; predicted "
    return _holds(small < min(large, 0.0)), numbers + f"{predicted[0]:+.3f} and {predicted[1]:+.3f}"


def doublings_gain_less(evidence: Evidence) -> Verdict:
    first, last = (float(np.mean([_doubling(g, e) for g in evidence.clark])) for e in (16, 256))
    numbers = f"Clark et al.: {first:+.3f} nats from E = 16 to 32, {last:+.3f} from 256 to 512"
    return _holds(first < min(last, 0.0)), numbers


def one_law_for_both(evidence: Evidence) -> Verdict:
    moe, no_e = (evidence.ask(STEP, law) for law in (JOINT, NO_E))
    refitted = "not refitted" if refit_is_contradicted(evidence) else "also refitted"
    numbers = f"Step Law's MoE models from dense ones: {moe.rmse:.3f} nats, {no_e.rmse:.3f} without E"
    return f"{_holds(moe.rmse < no_e.rmse)}, published; {refitted} to few shapes", numbers


def sizes_are_usable(evidence: Evidence) -> Verdict:
    choices = evidence.choices(JOINT)
    regrets, larger = [c.regret for c in choices], sum(np.sign(c.chosen - c.best) for c in choices)
    usable, cost = ("usable", "little") if choices_cost_little(evidence) else ("not usable", "much")
    way = "too large" if larger > 0 else "too small" if larger < 0 else "neither too large nor too small"
    numbers = f"Marin: regret {np.mean(regrets):.3f} nats on average, {max(regrets):.3f} at most"
    return f"{usable}: {way}, at {cost} cost", numbers


def exponents_hold(evidence: Evidence) -> Verdict:
    s = evidence.slopes[-1]
    numbers = f"N {s.size[0]:.2f} against {s.published[0]:.2f}, D {s.tokens[0]:.2f} against {s.published[1]:.2f}"
    return f"{_holds(slopes_hold(evidence))} on Chinchilla's corpus", numbers


def memory_matched(evidence: Evidence) -> Verdict:
    differences = np.concatenate([matched_losses(joined(*s.tables.values())) for s in evidence.sources.values()])
    if not (n := len(differences)):
        return "not tested by these runs", "none of the sources has such a pair"
    lower = int((differences < 0).sum())
    return _holds(lower == n), f"{lower} of {n} pairs"


Verdict = tuple[str, str]  # and the numbers behind it
FINDINGS: dict[str, Callable[[Evidence], Verdict]] = {  # of the paper
    "an MoE beats the dense model of equal N_act and D": experts_beat_dense,
    "at equal D, experts gain less the larger the model": larger_gain_less,
    "at large E, each doubling gains less (Ê saturates)": doublings_gain_less,
    "one law for dense and MoE models forecasts both": one_law_for_both,
    "compute-optimal sizes": sizes_are_usable,
    "exponents of N and D for dense models": exponents_hold,
    "with the same memory, an MoE trained on E times the tokens beats dense": memory_matched,
}


def _gain_at(table: Gains, experts: float, end: object, predicted: bool = False) -> float:
    """The gain at this E of the smallest or largest (`end` is min or max) model that has it."""
    rows = np.flatnonzero(table.experts == experts)
    at = rows[np.argmin(table.n_active[rows])] if end is min else rows[np.argmax(table.n_active[rows])]
    return float((table.predicted if predicted else table.measured)[at])


def _doubling(table: Gains, experts: float) -> float:
    """The mean further gain from this E to its double, of the models that have both."""
    losses = {(n, e): gain for n, e, gain in zip(table.n_active, table.experts, table.measured, strict=True)}
    sizes = [n for n in np.unique(table.n_active) if {(n, experts), (n, 2 * experts)} <= losses.keys()]
    return float(np.mean([losses[n, 2 * experts] - losses[n, experts] for n in sizes]))


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
    "short": short,
    "gains": gain_rows,
    "held-out": held_out_rows,
    "step-law": step_law_rows,
    "slopes": slope_rows,
    "choices": choice_rows,
    "findings": finding_rows,
    "sources": source_rows,
}
TABLES = {"evidence-held-out": held_out_table}
