"""The tables and figures of docs/studies/evidence.md, from the points beside it.

The prose is written by hand and holds no numbers; each table or sentence with numbers replaces what stands between
`<!-- gains -->` and `<!-- /gains -->`, or the same with another name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hub.plain.units import UNKNOWN, format_count, format_flops
from scaling_law import JointLaw
from scaling_law.figures import drawing
from studies.common import fill, rms
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
from studies.evidence.measures import Choice, Gains, Refits, Slopes, choices, gains, refits, slopes
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

    @cached_property
    def questions(self) -> list[Question]:
        return questions(self.sources)

    @cached_property
    def forecasts(self) -> dict[tuple[str, str], Forecast | None]:
        """By the name of the question and the law."""
        laws = (*LAWS, *BARE, WITH, PER_E)
        return {(question.name, law): question.ask(law) for question in self.questions for law in laws}

    @cached_property
    def gains(self) -> list[Gains]:
        routed = [gains(f"Clark et al., {router}", self.sources["clark"][router]) for router in ROUTERS]
        return [*routed, gains("Marin", joined(self.sources["marin_experts"]["experts"]))]

    @cached_property
    def refits(self) -> Refits:
        return refits(self.sources["step_law"]["dense"], self.sources["step_law"]["moe"])

    @cached_property
    def slopes(self) -> list[Slopes]:
        tables = {"step_law": ("Step Law, dense", "dense"), "marin": ("Marin, isoFLOP", "isoflop")}
        tables |= {"epoch": ("Chinchilla", "dense")}
        return [slopes(name, joined(self.sources[source][table])) for source, (name, table) in tables.items()]

    def ask(self, question: str, law: str) -> Forecast:
        """A forecast that there is; ValueError where these runs cannot determine it."""
        if (found := self.forecasts[question, law]) is None:
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
    yield "evidence-laws.png", figures.laws_side_by_side(asked, LAWS, evidence.forecasts)


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
    clark = evidence.gains[: len(ROUTERS)]
    pairs, experts = sum(len(g.measured) for g in clark), np.concatenate([g.experts for g in clark])
    errors, gained = _span([g.errors.rmse for g in clark]), _span([rms(g.measured) for g in clark])
    yield (
        f"**What experts gain carries over.** The law as published, with nothing refitted, predicts how far "
        f"{pairs} MoE models of Clark et al. (E from {experts.min():g} to {experts.max():g}, three routers) lie below "
        f"their dense twins to {errors} nats; the gains themselves are {gained} (RMS)."
    )


def _losses_in_short(evidence: Evidence) -> Iterator[str]:
    ask = evidence.ask
    scales = [ask(q.name, FREED).rmse for q in evidence.questions if q.source.startswith("Clark")]
    yield (
        f"**With one constant, so do losses.** From Step Law's dense models alone it forecasts the MoE models to "
        f"{_with_interval(ask(STEP, JOINT))} nats; a Chinchilla law fitted to the dense models misses by "
        f"{_rmse(ask(STEP, NO_E))}, the mean by {_rmse(ask(STEP, MEAN))}. From Marin's budgets below 1e20 FLOPs it "
        f"forecasts the others to {_with_interval(ask(MARIN, JOINT))}; a fresh fit misses by "
        f"{_rmse(ask(MARIN, REFIT))}, the mean by {_rmse(ask(MARIN, MEAN))}. With a, b and c refitted it forecasts "
        f"Clark et al.'s held-out runs to {_span(scales)}. Moved by the constant alone, it beats the mean in "
        f"{_wins(evidence, MEAN)} splits below, a fresh fit in {_wins(evidence, REFIT)} where there can be one."
    )


def _wins(evidence: Evidence, law: str) -> str:
    """How often the joint law, moved by its constant, forecasts better than `law`: "5 of 10"."""
    pairs = [(evidence.ask(q.name, JOINT), evidence.forecasts[q.name, law]) for q in evidence.questions]
    wins = [own.rmse < other.rmse for own, other in pairs if other is not None]
    return f"{sum(wins)} of {len(wins)}"


def _choices_in_short(evidence: Evidence) -> Iterator[str]:
    own, dense = ([c.regret for c in evidence.choices(law)] for law in (JOINT, _BARE))
    yield (
        f"**So does the choice of a size.** At Marin's budgets the width that the law picks costs "
        f"{np.mean(own):.3f} nats on average, {max(own):.3f} at most (besiroglu with the same count of N: "
        f"{np.mean(dense):.3f} and {max(dense):.3f})."
    )


def _limits_in_short(evidence: Evidence) -> Iterator[str]:
    refit = evidence.refits
    worst, gain = max(refit.gain.items())
    yield (
        f"**The slopes of dense models do not.** On Chinchilla's corpus losses fall faster with N and D than the law "
        f"says: runs above 30B tokens are forecast {evidence.ask(LONG, JOINT).bias:.3f} nats too high, and Chinchilla "
        f"laws do better there."
    )
    yield (
        f"**A good fit may know nothing of experts.** Refitted to Step Law's points, where N and E are confounded, "
        f"the joint law has an RMSE of {refit.joint.rmse:.4f} nats and says that E = {worst:g} is {gain[0]:.2f} nats "
        f"worse than dense."
    )
    both = [(q.name, evidence.ask(q.name, JOINT).rmse) for q in evidence.questions if q.train is not counted(q.train)]
    better = sum(rmse < evidence.ask(name, WITH).rmse for name, rmse in both)
    yield (
        f"**It matters how N is counted.** These numbers are for N without embedding and head, better than with them "
        f"in {better} of {len(both)} held-out splits. We chose so after asking both ways; both are shown."
    )


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
    conditions, clark = JointLaw.published().conditions, evidence.gains[: len(ROUTERS)]
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
        found = {law: evidence.forecasts[q.name, law] for law in (*LAWS, *BARE, WITH, PER_E)}
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
    clark = evidence.gains[: len(ROUTERS)]
    lower, n = sum(int((g.measured < 0).sum()) for g in clark), sum(len(g.measured) for g in clark)
    yield "an MoE beats the dense model of equal N_act and D", "holds", f"{lower} of {n} pairs of Clark et al."
    small, large = (np.mean([_gain_at(g, 64, end) for g in clark]) for end in (min, max))
    predicted = [np.mean([_gain_at(g, 64, end, predicted=True) for g in clark]) for end in (min, max)]
    yield (
        "at equal D, experts gain less the larger the model",
        "holds",
        f"E = 64: {small:+.3f} nats at the smallest, {large:+.3f} at the largest N; "
        f"predicted {predicted[0]:+.3f} and {predicted[1]:+.3f}",
    )
    first, last = (np.mean([_doubling(g, e) for g in clark]) for e in (16, 256))
    yield (
        "at large E, each doubling gains less (Ê saturates)",
        "holds",
        f"Clark et al.: {first:+.3f} nats from E = 16 to 32, {last:+.3f} from 256 to 512",
    )
    moe, no_e = (evidence.ask(STEP, law) for law in (JOINT, NO_E))
    yield (
        "one law for dense and MoE models forecasts both",
        "holds, published; not refitted to few shapes",
        f"Step Law's MoE models from dense ones: {moe.rmse:.3f} nats, {no_e.rmse:.3f} without E",
    )
    regrets = [c.regret for c in evidence.choices(JOINT)]
    yield (
        "compute-optimal sizes",
        "usable: too large, at little cost",
        f"Marin: regret {np.mean(regrets):.3f} nats on average, {max(regrets):.3f} at most",
    )
    s = evidence.slopes[-1]
    yield (
        "exponents of N and D for dense models",
        "does not hold on Chinchilla's corpus",
        f"N {s.size[0]:.2f} against {s.published[0]:.2f}, D {s.tokens[0]:.2f} against {s.published[1]:.2f}",
    )
    yield (
        "with the same memory, an MoE trained on E times the tokens beats dense",
        "not tested by these runs",
        "none of the sources has pairs of equal total size",
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
