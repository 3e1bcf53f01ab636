"""The tables and figures of docs/studies/evidence.md, from the points beside it.

The prose is written by hand and holds no numbers; each table or sentence with numbers replaces what stands between
`<!-- gains -->` and `<!-- /gains -->`, or the same with another name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from hub.plain.units import UNKNOWN, format_count, format_flops
from scaling_law import JointLaw
from scaling_law.figures import drawing
from studies.common import FloatArray, fill, rms
from studies.evidence import figures
from studies.evidence.forecasts import (
    BARE,
    FREED,
    JOINT,
    MEAN,
    NO_E,
    OTHERS,
    PER_E,
    REFIT,
    WITH,
    Forecast,
    Question,
    counted,
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
    matched_differences,
    refits,
    slopes,
)
from studies.evidence.points import Source, read_sources

ROUTERS = ("S-Base", "RL-R", "Hash")
STEP, MARIN, LONG = (
    "Step Law: all MoE models",
    "Marin, isoFLOP: budgets from 1e20",
    "Chinchilla: runs above 30B tokens",
)
LARGE = "Clark et al., S-Base: largest models (1.3B)"
SHOWN = STEP, MARIN, LONG, LARGE
LAWS = {
    JOINT: "Ludziejewski et al. (joint)",
    FREED: "its a, b and c refitted",
    "chinchilla": "Hoffmann et al.",
    "besiroglu": "Besiroglu et al.",
    "muennighoff": "Muennighoff et al.",
    "kaplan": "Kaplan et al.",
    "abnar": "Abnar et al.",
    "hunyuan": "Zhao et al.",
    "krajewski": "Krajewski et al. (E = 64)",
    "clark_sbase": "Clark et al. (S-Base)",
    NO_E: "Chinchilla, refitted without E",
    REFIT: "joint (Clark: routed), refitted",
    MEAN: "mean of the fitted runs",
}
Rows = Iterator[tuple[object, ...] | str]


@dataclass(frozen=True)
class Evidence:
    """Everything that the page shows, computed when it is asked for."""

    sources: Mapping[str, Source]
    resamples: int = REFITS
    _forecasts: dict[tuple[str, str], Forecast | None] = field(default_factory=dict, repr=False)

    @cached_property
    def questions(self) -> list[Question]:
        return questions(self.sources)

    def forecast(self, question: str, law: str) -> Forecast | None:
        """None where these runs cannot determine the law."""
        key = question, law
        if key not in self._forecasts:
            self._forecasts[key] = next(q for q in self.questions if q.name == question).ask(law)
        return self._forecasts[key]

    @cached_property
    def gains(self) -> list[Gains]:
        return [*self.clark, gains("Marin", joined(self.sources["marin_experts"]["experts"]))]

    @cached_property
    def clark(self) -> list[Gains]:
        """By router."""
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
        return [slopes(name, own, self.resamples) for name, own in runs.items()]

    def ask(self, question: str, law: str) -> Forecast:
        """A forecast that there is; ValueError where these runs cannot determine it."""
        if (found := self.forecast(question, law)) is None:
            raise ValueError(f"{question}: {law} cannot be determined")
        return found

    def choices(self, law: str) -> list[Choice]:
        """Of Marin's budgets, with N counted as in `Question.ask`."""
        runs, flops = joined(self.sources["marin"]["isoflop"]), self.sources["marin"]["isoflop"]["budget"]
        own_count = law in (WITH, *OTHERS)
        return choices({WITH: JOINT, **BARE}.get(law, law), runs if own_count else counted(runs), flops)


def write_page(folder: Path, page: Path) -> list[Path]:
    """Replace the blocks of the Markdown file `page` and draw its figures; returns what was written.

    ValueError if it lacks one of the blocks.
    """
    evidence = Evidence(read_sources(folder))
    written = fill(page, BLOCKS, evidence)
    drawn = [drawing.save(figure, page.parent / "figures" / name) for name, figure in _drawn(evidence)]
    return [written, *drawn]


def _drawn(evidence: Evidence) -> Iterator[tuple[str, object]]:
    asked = [question for question in evidence.questions if question.name in SHOWN]
    forecasts = [(q, evidence.ask(q.name, JOINT)) for q in asked]
    yield "evidence-gains.png", figures.gains_of_experts(evidence.gains)
    yield "evidence-forecasts.png", figures.held_out_runs(forecasts)
    yield "evidence-laws.png", figures.laws_side_by_side(asked, LAWS, evidence.forecast)


def _rmse(forecast: Forecast | None) -> str:
    return UNKNOWN if forecast is None else f"{forecast.rmse:.3f}"


def _with_interval(forecast: Forecast | None) -> str:
    return UNKNOWN if forecast is None else "{:.3f} ({:.3f} to {:.3f})".format(forecast.rmse, *forecast.interval)


def _interval(values: tuple[float, float, float], form: str = "{:+.3f}") -> str:
    value, low, high = map(form.format, values)
    return f"{value} ({low} to {high})"


def short(evidence: Evidence) -> Rows:
    """The result in a few lines."""
    lines = _gains_in_short, _losses_in_short, _choices_in_short, _limits_in_short
    yield "\n".join(f"- {line}" for part in lines for line in part(evidence))


def _gains_in_short(evidence: Evidence) -> Iterator[str]:
    clark = evidence.clark
    pairs, experts = sum(len(g.measured) for g in clark), np.concatenate([g.experts for g in clark])
    errors, gained = _span([g.errors.rmse for g in clark]), _span([rms(g.measured) for g in clark])
    way = "below" if np.concatenate([g.measured for g in clark]).mean() < 0 else "above"
    yield (
        f"**What experts gain {'carries' if gains_carry_over(evidence) else 'does not carry'} over.** The law as "
        f"published, with nothing refitted, predicts how far {pairs} MoE models of Clark et al. (E from "
        f"{experts.min():g} to {experts.max():g}, three routers) lie {way} their dense twins to {errors} nats; the "
        f"gains themselves are {gained} (RMS)."
    )


def gains_carry_over(evidence: Evidence) -> bool:
    """Whether the law's error is less than half of what is gained, for each router."""
    return all(g.errors.rmse < 0.5 * rms(g.measured) for g in evidence.clark)


def _losses_in_short(evidence: Evidence) -> Iterator[str]:
    ask = evidence.ask
    scales = [ask(q.name, FREED).rmse for q in evidence.questions if q.source.startswith("Clark")]
    also = "so do losses" if gains_carry_over(evidence) else "losses do"
    yield (
        f"**With one constant, {also if losses_carry_over(evidence) else 'losses do not'}.** From Step Law's dense "
        f"models alone it forecasts the MoE models to "
        f"{_with_interval(ask(STEP, JOINT))} nats; a Chinchilla law fitted to the dense models misses by "
        f"{_rmse(ask(STEP, NO_E))}, the mean by {_rmse(ask(STEP, MEAN))}. From Marin's budgets below 1e20 FLOPs it "
        f"forecasts the others to {_with_interval(ask(MARIN, JOINT))}; a fresh fit misses by "
        f"{_rmse(ask(MARIN, REFIT))}, the mean by {_rmse(ask(MARIN, MEAN))}. With a, b and c refitted it forecasts "
        f"Clark et al.'s held-out runs to {_span(scales)}. Moved by the constant alone, it beats the mean in "
        f"{_wins(evidence, MEAN)} splits below, a fresh fit in {_wins(evidence, REFIT)} where there can be one."
    )


def losses_carry_over(evidence: Evidence) -> bool:
    """Whether the law, moved by a constant, forecasts better than the alternatives that the account names."""
    others = (STEP, NO_E), (STEP, MEAN), (MARIN, REFIT), (MARIN, MEAN)
    return all(evidence.ask(where, JOINT).rmse < evidence.ask(where, law).rmse for where, law in others)


def _wins(evidence: Evidence, law: str) -> str:
    """How often the joint law, moved by its constant, forecasts better than `law`: "5 of 10"."""
    pairs = [(evidence.ask(q.name, JOINT), evidence.forecast(q.name, law)) for q in evidence.questions]
    wins = [own.rmse < other.rmse for own, other in pairs if other is not None]
    return f"{sum(wins)} of {len(wins)}"


def _choices_in_short(evidence: Evidence) -> Iterator[str]:
    own, dense = ([c.regret for c in evidence.choices(law)] for law in (JOINT, _BARE))
    also = "So does the choice of a size" if losses_carry_over(evidence) else "The choice of a size does"
    yield (
        f"**{also if choices_cost_little(evidence) else 'The choice of a size does not'}.** At Marin's budgets the "
        f"width that the law picks costs {np.mean(own):.3f} nats on average, {max(own):.3f} at most (besiroglu with "
        f"the same count of N: {np.mean(dense):.3f} and {max(dense):.3f})."
    )


def choices_cost_little(evidence: Evidence) -> bool:
    """Whether Marin's widths that the law picks cost less than the law's forecasts of Marin's losses are off."""
    regrets = [c.regret for c in evidence.choices(JOINT)]
    return bool(np.mean(regrets) < evidence.ask(MARIN, JOINT).rmse)


def _limits_in_short(evidence: Evidence) -> Iterator[str]:
    long = evidence.ask(LONG, JOINT)
    chinchilla = min(evidence.ask(LONG, law).rmse for law in ("chinchilla", "besiroglu"))
    yield (
        f"**The slopes of dense models {'do' if slopes_hold(evidence) else 'do not'}.** On Chinchilla's corpus losses "
        f"fall {_faster(evidence.slopes[-1])} than the law says: runs above 30B tokens are forecast "
        f"{abs(long.bias):.3f} nats too {'high' if long.bias > 0 else 'low'}, and Chinchilla laws do "
        f"{'better' if chinchilla < long.rmse else 'worse'} there."
    )
    refit = evidence.refits
    worst, gain = max(refit.gain.items())
    yield (
        f"**A good fit {'may know nothing of' if refit_is_contradicted(evidence) else 'can know of'} experts.** "
        f"Refitted to Step Law's points, where N and E are confounded, the joint law has an RMSE of "
        f"{refit.joint.rmse:.4f} nats and says that E = {worst:g} is {abs(gain[0]):.2f} nats "
        f"{'worse' if gain[0] > 0 else 'better'} than dense."
    )
    ratios = count_ratios(evidence)
    matters = np.median(np.abs(np.log(ratios))) > np.log(1.1)
    yield (
        f"**It {'matters' if matters else 'hardly matters'} how N is counted.** These numbers are for N without "
        f"embedding and head, better than with them in {int((ratios < 1).sum())} of {len(ratios)} held-out splits. We "
        f"chose so after asking both ways; both are shown."
    )


def slopes_hold(evidence: Evidence) -> bool:
    """Whether the published exponents lie in the intervals of Chinchilla's runs."""
    s = evidence.slopes[-1]
    fitted = zip((s.size, s.tokens), s.published, strict=True)
    return all(low <= published <= high for (_, low, high), published in fitted)


def _faster(s: Slopes) -> str:
    size, tokens = (
        "faster" if fitted[0] < published else "more slowly"
        for fitted, published in zip((s.size, s.tokens), s.published, strict=True)
    )
    return f"{size} with N and D" if size == tokens else f"{size} with N and {tokens} with D"


def refit_is_contradicted(evidence: Evidence) -> bool:
    """Whether what a refit has the most experts of Step Law gain lies outside the published law's interval."""
    worst = max(evidence.refits.gain)
    (_, low, high), (_, least, most) = evidence.refits.gain[worst], evidence.refits.published[worst]
    return low > most or high < least


def count_ratios(evidence: Evidence) -> FloatArray:
    """RMSE with N counted without embeddings over that with them, where the two differ."""
    both = [q.name for q in evidence.questions if q.train is not counted(q.train)]
    return np.array([evidence.ask(name, JOINT).rmse / evidence.ask(name, WITH).rmse for name in both])


def _span(values: Sequence[float]) -> str:
    low, high = (f"{value:.3f}" for value in (min(values), max(values)))
    return f"{low} to {high}"


def gain_rows(evidence: Evidence) -> Rows:
    yield "", "E", "lower loss", "mean gain", "predicted", "RMSE (95 %)", "N with embeddings", "RMSE"
    for g in evidence.gains:
        ends = f"{g.experts.min():.3g} to {g.experts.max():.3g}"
        lower = f"{int((g.measured < 0).sum())} of {len(g.measured)}"
        means = [f"{values.mean():+.3f}" for values in (g.measured, g.predicted, g.predicted_with)]
        yield g.source, ends, lower, *means[:2], _with_interval(g.errors), means[2], _rmse(g.errors_with)
    conditions, clark = JointLaw.published().conditions, evidence.clark
    assert conditions is not None
    spread = _span([rms(g.predicted_over_all - g.measured) for g in clark])
    most, fewest = max(conditions.experts), evidence.sources["marin_experts"]["experts"].experts.min()
    off, beyond = (
        np.concatenate(values) for values in zip(*((g.relative, g.experts > most) for g in clark), strict=True)
    )
    yield (
        f"Gains over the model of fewest experts with the same N_act and D: a dense one of Clark et al., "
        f"E = {fewest:g} of Marin. The paper's runs end at E = {most:g}; the median gain of Clark et al. is "
        f"predicted to {np.median(off[~beyond]):.0%} up to there and to {np.median(off[beyond]):.0%} beyond. "
        f"Clark et al. route every second block, and E is that of a routed block; averaged over all blocks, "
        f"(E + 1)/2, the RMSE would be {spread}."
    )


def held_out_rows(evidence: Evidence) -> Rows:
    yield (
        *("held out", "fitted / held out", "mean", "law moved by c (95 %)", "N with embeddings"),
        *("a, b, c refitted", "fresh fit", "Chinchilla per E", "best other law, moved by c"),
    )
    for q in evidence.questions:
        found = {law: evidence.forecast(q.name, law) for law in (*LAWS, *BARE, WITH, PER_E)}
        others = {law: f.rmse for law in (*OTHERS, *BARE) if (f := found[law]) is not None}
        best = min(others, key=lambda law: others[law])
        cells = [_rmse(found[MEAN]), _with_interval(found[JOINT]), _rmse(found[WITH])]
        cells += [_rmse(found[law]) for law in (FREED, REFIT, PER_E)]
        yield q.name, f"{len(q.train)} / {len(q.test)}", *cells, f"{others[best]:.3f} {best}"


def step_law_rows(evidence: Evidence) -> Rows:
    r = evidence.refits
    yield "E", "gain over dense, refitted to all points (95 %)", "as published (95 %)"
    for e, gain in r.gain.items():
        yield f"{e:.3g}", _interval(gain), _interval(r.published[e])
    n, d = map(format_count, r.at)
    runs = len(r.joint.runs)
    regret, at_edge = (
        np.concatenate([t[name] for t in evidence.sources["step_law"].tables.values()]) for name in _GRID
    )
    yield (
        f"Gains at N_act = {n} and D = {d}, in nats. RMSE on all {runs} points: {r.joint.rmse:.4f} for the joint law "
        f"refitted ({r.with_embeddings.rmse:.4f} with embeddings in N), {r.freed:.4f} with a, b and c refitted, "
        f"{r.moved:.4f} with c alone. A Chinchilla law that does not know E fits the MoE points alone to "
        f"{r.moe_without_experts.rmse:.4f}. The points are tuned: {int(at_edge.sum())} of {runs} lie at an edge of "
        f"their grid of learning rates and batches, and its spacing costs at most {np.nanmax(regret):.4f}."
    )


def slope_rows(evidence: Evidence) -> Rows:
    yield "runs", "n", "E", "exponent of N (95 %)", "published", "exponent of D (95 %)", "published"
    for s in evidence.slopes:
        own = [f"{value:.3f}" for value in s.published]
        size, tokens = _interval(s.size, "{:.3f}"), _interval(s.tokens, "{:.3f}")
        yield s.source, s.n_runs, f"{s.experts:g}", size, own[0], tokens, own[1]


def choice_rows(evidence: Evidence) -> Rows:
    yield "FLOPs", "sizes", "best N_act", "the law's", "regret", *(f"of {name}" for name in _CHOOSING.values())
    own, others = evidence.choices(JOINT), [evidence.choices(law) for law in _CHOOSING]
    for i, c in enumerate(own):
        regrets = [f"{found[i].regret:.3f}" for found in (own, *others)]
        yield format_flops(c.flops), c.n_runs, format_count(c.best), format_count(c.chosen), *regrets
    means = [f"{np.mean([c.regret for c in found]):.3f}" for found in (own, *others)]
    yield "mean", "", "", "", *means


def finding_rows(evidence: Evidence) -> Rows:
    yield "finding of the paper", "at this scale", "evidence"
    for finding in FINDINGS:
        yield finding(evidence)


def _holds(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def experts_beat_dense(evidence: Evidence) -> Finding:
    measured = np.concatenate([g.measured for g in evidence.clark])
    lower, n = int((measured < 0).sum()), len(measured)
    verdict = "holds for most" if n / 2 < lower < n else _holds(lower == n)
    return "an MoE beats the dense model of equal N_act and D", verdict, f"{lower} of {n} pairs of Clark et al."


def larger_gain_less(evidence: Evidence) -> Finding:
    small, large = (float(np.mean([_gain_at(g, 64, end) for g in evidence.clark])) for end in (min, max))
    predicted = [np.mean([_gain_at(g, 64, end, predicted=True) for g in evidence.clark]) for end in (min, max)]
    return (
        "at equal D, experts gain less the larger the model",
        _holds(small < min(large, 0.0)),
        f"E = 64: {small:+.3f} nats at the smallest, {large:+.3f} at the largest N; "
        f"predicted {predicted[0]:+.3f} and {predicted[1]:+.3f}",
    )


def doublings_gain_less(evidence: Evidence) -> Finding:
    first, last = (float(np.mean([_doubling(g, e) for g in evidence.clark])) for e in (16, 256))
    return (
        "at large E, each doubling gains less (Ê saturates)",
        _holds(first < min(last, 0.0)),
        f"Clark et al.: {first:+.3f} nats from E = 16 to 32, {last:+.3f} from 256 to 512",
    )


def one_law_for_both(evidence: Evidence) -> Finding:
    moe, no_e = (evidence.ask(STEP, law) for law in (JOINT, NO_E))
    refitted = "not refitted" if refit_is_contradicted(evidence) else "also refitted"
    return (
        "one law for dense and MoE models forecasts both",
        f"{_holds(moe.rmse < no_e.rmse)}, published; {refitted} to few shapes",
        f"Step Law's MoE models from dense ones: {moe.rmse:.3f} nats, {no_e.rmse:.3f} without E",
    )


def sizes_are_usable(evidence: Evidence) -> Finding:
    choices = evidence.choices(JOINT)
    regrets, larger = [c.regret for c in choices], sum(np.sign(c.chosen - c.best) for c in choices)
    usable, cost = ("usable", "little") if choices_cost_little(evidence) else ("not usable", "much")
    way = "too large" if larger > 0 else "too small" if larger < 0 else "neither too large nor too small"
    return (
        "compute-optimal sizes",
        f"{usable}: {way}, at {cost} cost",
        f"Marin: regret {np.mean(regrets):.3f} nats on average, {max(regrets):.3f} at most",
    )


def exponents_hold(evidence: Evidence) -> Finding:
    s = evidence.slopes[-1]
    return (
        "exponents of N and D for dense models",
        f"{_holds(slopes_hold(evidence))} on Chinchilla's corpus",
        f"N {s.size[0]:.2f} against {s.published[0]:.2f}, D {s.tokens[0]:.2f} against {s.published[1]:.2f}",
    )


def memory_matched(evidence: Evidence) -> Finding:
    differences = np.concatenate([matched_differences(joined(*s.tables.values())) for s in evidence.sources.values()])
    lower, n = int((differences < 0).sum()), len(differences)
    return (
        "with the same memory, an MoE trained on E times the tokens beats dense",
        _holds(lower == n) if n else "not tested by these runs",
        f"{lower} of {n} pairs" if n else "none of the sources has such a pair",
    )


Finding = tuple[str, str, str]  # of the paper, its verdict here, the numbers behind it
FINDINGS: tuple[Callable[[Evidence], Finding], ...] = (
    experts_beat_dense,
    larger_gain_less,
    doublings_gain_less,
    one_law_for_both,
    sizes_are_usable,
    exponents_hold,
    memory_matched,
)


def _gain_at(table: Gains, experts: float, end: object, predicted: bool = False) -> float:
    """The gain at this E of the smallest or largest (`end` is min or max) model that has it."""
    own = np.flatnonzero(table.experts == experts)
    at = own[np.argmin(table.n_active[own])] if end is min else own[np.argmax(table.n_active[own])]
    return float((table.predicted if predicted else table.measured)[at])


def _doubling(table: Gains, experts: float) -> float:
    """The mean further gain from this E to its double, of the models that have both."""
    losses = {(n, e): gain for n, e, gain in zip(table.n_active, table.experts, table.measured, strict=True)}
    sizes = [n for n in np.unique(table.n_active) if {(n, experts), (n, 2 * experts)} <= losses.keys()]
    return float(np.mean([losses[n, 2 * experts] - losses[n, experts] for n in sizes]))


def source_rows(evidence: Evidence) -> Rows:
    """What there is, and where it is from."""
    yield "source", "points", "N_act with embeddings", "tokens D", "E", "loss"
    for source in evidence.sources.values():
        for table, runs in source.tables.items():
            ends = [f"{format_count(v.min())} to {format_count(v.max())}" for v in (runs.n_active, runs.tokens)]
            if np.ptp(runs.tokens) <= 0.02 * runs.tokens.max():
                ends[1] = format_count(float(np.median(runs.tokens)))
            experts = sorted({f"{e:.3g}" for e in runs.experts}, key=float)
            shown = ", ".join(experts) if len(experts) <= 4 else f"{experts[0]} to {experts[-1]}"
            yield f"{source.name}, {table}", len(runs), *ends, shown, source.loss
    yield "\n".join(f"- {s.name}: {s.what}, [{s.place}]({s.address}); {s.derived}." for s in evidence.sources.values())


_BARE = "besiroglu, N without embeddings"
_GRID = "regret", "at_edge"
_CHOOSING = {
    WITH: "the law, N with embeddings",
    "besiroglu": "besiroglu",
    _BARE: "besiroglu, N without",
    "abnar": "abnar",
}
BLOCKS = {
    "short": short,
    "gains": gain_rows,
    "held-out": held_out_rows,
    "step-law": step_law_rows,
    "slopes": slope_rows,
    "choices": choice_rows,
    "findings": finding_rows,
    "sources": source_rows,
}
