"""Tables and figures of docs/studies/crossing.md, from the records here; what is not there yet is said to be missing.

The prose is written by hand and holds no numbers; each table or sentence with numbers replaces what stands between
`<!-- short -->` and `<!-- /short -->`, or the same with another name. Losses are in bits per byte, errors of laws in
nats per byte, as the goals are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hub.plain.tables import enumerated
from hub.plain.units import UNKNOWN, format_count
from scaling_law import Bootstrap, FitResult, JointLaw, Law, Runs, errors_of
from scaling_law.figures import drawing
from studies.common import FloatArray, fill, listed, rms
from studies.crossing import figures
from studies.crossing.figures import BITS
from studies.crossing.gaps import scatter_of
from studies.crossing.goals import Goal, goals_of
from studies.crossing.laws import FITTED, FREE, HALF, KEPT, LAWS, LEAST_CELLS, LEAST_VALUES, PUBLISHED, Results
from studies.crossing.prediction import Predictions, load
from studies.crossing.records import VOCABULARY, read_sweep
from studies.crossing.words import crossing_in_words, interval_in_words, measured_in_words, tokens_in_words

RECORDS, PREDICTION = "runs.jsonl", "prediction.json"
MAIN, OTHERS = 8, "crossing-others.png"  # the E of the first figure, and a figure of the others
Rows = Iterator[tuple[object, ...] | str]


@dataclass(frozen=True)
class Page:
    """What the blocks are written from."""

    results: Results
    predictions: Predictions | None

    @cached_property
    def goals(self) -> list[Goal]:
        return [*goals_of(self.results, self.predictions)]


def read_page(folder: Path) -> Page:
    """Of the records and predictions in a folder."""
    return Page(Results(read_sweep(folder / RECORDS)), load(folder / PREDICTION))


def write_page(folder: Path, page: Path) -> list[Path]:
    """Replace the blocks of the Markdown file `page` and draw its figures; returns what was written.

    ValueError if it lacks one of the blocks.
    """
    content = read_page(folder)
    written = fill(page, BLOCKS, content)
    drawn = [drawing.save(figure, page.parent / "figures" / name) for name, figure in _drawn(content.results)]
    return [written, *drawn]


def _drawn(results: Results) -> Iterator[tuple[str, Any]]:
    experts = sorted({gap.experts for gap in results.gaps})
    if not experts:
        return
    shown = MAIN if MAIN in experts else experts[-1]
    yield "crossing.png", figures.where_experts_pay(results, [shown])
    if others := [e for e in experts if e != shown]:
        yield OTHERS, figures.where_experts_pay(results, others)
    yield "crossing-gaps.png", figures.gaps_by_size(results)
    yield "crossing-losses.png", figures.losses_by_size(results)


# ------------------------------------------------------------------ blocks


def short(page: Page) -> Rows:
    """The result in a few lines."""
    yield "\n".join(f"- {line}" for line in _short(page))


def _short(page: Page) -> Iterator[str]:
    r = page.results
    known = [gap for gap in r.gaps if gap.bracketed]
    if not known:
        yield f"**No crossing is bracketed yet**: {len(r.gaps)} pairs of a size and E were measured, at too few D."
    else:
        tokens, sizes = _span(gap.crossing[0] for gap in known), _span(gap.n_active for gap in known)
        yield (
            f"**Experts begin to pay at {tokens} tokens**, for N_act of {sizes} ({len(known)} of {len(r.gaps)} pairs "
            f"of a size and E; at the others they are ahead, or behind, at every D measured)."
        )
        yield f"**By number of experts**: {'; '.join(_by_experts(r))}."
    for name, law in r.laws.items():
        compared = r.comparison(law)
        if len(compared.ratios):
            way = "late" if compared.middle > 1 else "early"
            times = max(compared.middle, 1 / compared.middle)
            yield (
                f"**The {name}** has them {times:.2g} times too {way} (geometric mean of {len(compared.ratios)}), "
                f"and is off by a factor of {compared.factor:.2g} (root mean square)."
            )
    if r.fitted and r.drawn:
        yield f"**Exponents** of that fit: the 95 % intervals {_exponents(r.fitted.law, r.drawn)}."
    yield level_in_words(r.cells)
    met = [goal.met for goal in page.goals]
    yield f"**Goals**: {met.count(True)} met, {met.count(False)} missed, {met.count(None)} cannot be judged yet."


def level_in_words(cells: Runs) -> str:
    """Whether the published law, moved by a constant, has the losses better than their mean does."""
    moved, spread = np.std(errors_of(JointLaw.published(), cells)), np.std(cells.loss)
    verdict = "The level is another matter" if moved > spread else "The level is the law's, too"
    return (
        f"**{verdict}.** Moved by a constant, the published law misses the losses by {moved:.2f} nats per byte "
        f"(RMSE); their mean misses them by {spread:.2f}."
    )


def _by_experts(r: Results) -> Iterator[str]:
    """Of each E the crossings of its sizes, measured and by the published law."""
    published = r.laws[PUBLISHED]
    for e in sorted({gap.experts for gap in r.gaps}):
        own = sorted((gap for gap in r.gaps if gap.experts == e), key=lambda gap: gap.crossing[0])
        ours = (crossing_in_words(gap) for gap in (own[0], own[-1]))
        asked = np.sort(r.asked(published, [gap.n_active for gap in own], e))
        theirs = (tokens_in_words(asked[k], r.between) for k in (0, -1))
        yield f"E = {e} at {_range(ours)} (published law {_range(theirs)})"


def _range(ends: Iterable[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def _exponents(law: Law, drawn: Bootstrap) -> str:
    """Whose 95 % intervals contain the published value, and whose do not."""
    published, inside, outside = JointLaw.published().coefficients, [], []
    for name in FREE:
        low, high = drawn.interval(name)
        if low <= published[name] <= high:
            inside.append(name)
        else:
            outside.append(f"{name} ({law.coefficients[name]:.2g}, published {published[name]:.2g})")
    parts = (("contain the published", inside), ("not", outside)) if inside else (("do not contain", outside),)
    return " but ".join(f"{verb} {enumerated(names)}" for verb, names in parts if names)


def _span(values: Iterable[float]) -> str:
    """The least and the greatest: 1.3M to 2.4M."""
    ordered = sorted(float(f"{value:.2g}") for value in values)
    return _range(format_count(end) for end in (ordered[0], ordered[-1]))


def counted(page: Page) -> Rows:
    sweep = page.results.sweep
    runs = sweep.counted
    yield "d_model", "N_act", "part of embeddings", "E", "D", "seeds", "runs"
    for d in np.unique(runs["d_model"]):
        own = runs.subset(runs["d_model"] == d)
        n = own.n_active[0]
        experts, tokens = ([format_count(v) for v in np.unique(values)] for values in (own.experts, own.tokens))
        seeds = [len(np.unique(own["seed"][own.tokens == t])) for t in np.unique(own.tokens)]
        share = f"{2 * VOCABULARY * d / n:.0%}"
        yield f"{d:g}", format_count(n), share, listed(experts), listed(tokens), listed(seeds), len(own)
    others = listed(f"{count} {reason}" for reason, count in sweep.left_out.items()) or "none"
    yield f"{len(runs)} runs of {runs.n_trunks} trunks count; others do not: {others}."
    gone = "; ".join(_groups(sweep.missing()))
    yield f"Missing of what was planned: {gone}." if gone else "All planned cells are there."


def _groups(missing: Iterable[tuple[int, int, float]]) -> Iterator[str]:
    """Numbers of experts that lack the same sizes at one D are named together."""
    widths, alike = defaultdict(list), defaultdict(list)
    for e, d, t in missing:
        widths[e, t].append(d)
    for (e, t), lacking in widths.items():
        alike[tuple(lacking), t].append(e)
    for (sizes, t), experts in alike.items():
        yield f"E = {listed(experts)} at d_model {listed(sizes)} and {format_count(t)} tokens"


def rate_rows(page: Page) -> Rows:
    yield "d_model", "E", "loss at each rate of the grid (bits per byte)", "best", "used", "checked at a longer D"
    for rate in page.results.sweep.rates:
        best = UNKNOWN if rate.tuned is None else f"{rate.tuned:.4g}{' (edge)' * rate.at_edge}"
        checked = f"{format_count(rate.checked[0])}: {_tried(rate.checked[1])}" if rate.checked else UNKNOWN
        yield rate.d_model, rate.experts, _tried(rate.tried), best, f"{rate.used:.4g}", checked


def _tried(losses: Mapping[float, float]) -> str:
    return listed(f"{rate:.4g}: {BITS * loss:.3f}" for rate, loss in losses.items()) or UNKNOWN


def scatter_rows(page: Page) -> Rows:
    runs, scatter = page.results.sweep.runs, page.results.scatter
    kinds = [scatter, *(scatter_of(runs.subset(mask)) for mask in (runs.experts == 1, runs.experts > 1))]
    yield "D", "all (nats per byte)", "dense", "with experts", "degrees of freedom"
    for t, freedom in zip(scatter.tokens, scatter.freedom, strict=True):
        values = [kind.deviation[kind.tokens == t] for kind in kinds]
        shown = [f"{v[0]:.4f}" if len(v) and np.isfinite(v[0]) else UNKNOWN for v in values]
        yield format_count(t), *shown, f"{freedom:g}"


def loss_rows(page: Page) -> Rows:
    cells = page.results.cells
    tokens = np.unique(cells.tokens)
    yield "d_model", "E", *map(format_count, tokens)
    for d, e in sorted({*zip(cells["d_model"].tolist(), cells.experts.tolist(), strict=True)}):
        own = cells.subset((cells["d_model"] == d) & (cells.experts == e))
        shown = dict(zip(own.tokens, zip(own.loss, own["standard_error"], strict=True), strict=True))
        yield f"{d:g}", f"{e:g}", *(_loss(*shown[t]) if t in shown else UNKNOWN for t in tokens)


def _loss(loss: float, error: float) -> str:
    return f"{BITS * loss:.3f}" + ("" if np.isnan(error) else f" ± {BITS * error:.3f}")


def crossing_rows(page: Page) -> Rows:
    r = page.results
    if not r.gaps:
        yield "No E shares a size, D and seed with the dense models yet."
        return
    names = [name for name in LAWS if name in r.laws]
    yield "E", "d_model", "N_act", "pairs of seeds", "measured (95 %)", *names
    for gap in r.gaps:
        cells = []
        for name in names:
            asked = float(r.asked(r.laws[name], gap.n_active, gap.experts))
            off = f" (×{asked / gap.crossing[0]:.2g})" if gap.bracketed and 0 < asked < np.inf else ""
            cells.append(tokens_in_words(asked, r.between) + off)
        pairs = listed(f"{n:g}" for n in gap.pairs)
        yield gap.experts, gap.d_model, format_count(gap.n_active), pairs, measured_in_words(gap), *cells
    yield from _growth(r)
    if len({gap.experts for gap in r.gaps}) > 1:
        yield f"![Where other numbers of experts begin to pay](figures/{OTHERS})"
    asked_for = zip(*((gap.n_active, gap.tokens[0], gap.experts) for gap in r.gaps), strict=True)
    yield (
        f"D from which on experts are ahead, and in brackets what a law says over what was measured. The published "
        f"law is {range_in_words(*map(list, asked_for))}."
    )
    if r.calibration:
        chosen, n = r.calibration.chosen, len(r.calibration.fit.runs)
        rest = "" if {*chosen.refitted} == {*JointLaw.published().coefficients} else " and kept the rest as published"
        yield (
            f"The calibration saw the {n} cells of at most {format_count(HALF)} tokens; predicting sizes and E left "
            f"out, it chose to refit {listed(chosen.refitted)}{rest}.{_forecast(r)}"
        )
    else:
        yield (
            f"The calibration needs {LEAST_CELLS} cells of at most {format_count(HALF)} tokens, of {LEAST_VALUES} "
            f"sizes and D."
        )


def range_in_words(n_active: list[float], tokens: list[float], experts: list[float]) -> str:
    warnings = JointLaw.published().warnings(n_active, tokens, experts)
    return f"far outside its range; asked here, it warns: {'; '.join(warnings)}" if warnings else "inside its range"


def _forecast(results: Results) -> str:
    if not len(errors := results.forecast):
        return ""
    return f" The {len(errors)} longer cells it forecasts to {rms(errors):.4f} nats per byte (RMSE)."


def _growth(r: Results) -> Iterator[str]:
    """The slope of ln D* over ln N for each E of which three crossings are bracketed."""
    found = []
    for e in sorted({gap.experts for gap in r.gaps}):
        own = [gap for gap in r.gaps if gap.experts == e and gap.bracketed]
        if len(own) > 2:
            n, measured = np.array([(gap.n_active, gap.crossing[0]) for gap in own]).T
            laws = {name: r.asked(law, n, float(e)) for name, law in r.laws.items()}
            inside = {name: t for name, t in laws.items() if np.all((t > 0) & np.isfinite(t))}
            slopes = listed(f"{_slope(n, t):.2f} for the {name}" for name, t in inside.items())
            found.append(f"E = {e}: {_slope(n, measured):.2f} ({slopes})")
    if found:
        yield f"The crossing grows with N_act to the power: {'; '.join(found)}."


def _slope(sizes: FloatArray, tokens: FloatArray) -> float:
    return float(np.polyfit(np.log(sizes), np.log(tokens), 1)[0])


def coefficient_rows(page: Page) -> Rows:
    r = page.results
    if r.fitted is None or r.drawn is None:
        yield "The runs do not determine a joint law yet."
        return
    yield "coefficient", "fitted", "95 % (trunks resampled)", "published"
    published = JointLaw.published().coefficients
    for name, value in r.fitted.law.coefficients.items():
        interval = "kept" if name in KEPT else "{:.4g} to {:.4g}".format(*r.drawn.interval(name))
        yield name, f"{value:.4g}", interval, f"{published[name]:.4g}"
    status = r.fitted.status
    yield (
        f"Fitted to {len(r.sweep.runs)} runs, from the optimum on their cells: "
        f"{'converged' if status.converged else 'NOT converged'}.{_wide(r.fitted)}"
    )


def _wide(fitted: FitResult[Any]) -> str:
    status = fitted.status
    vague = listed(f"{name} ({status.error_in_words(name)})" for name in status.undetermined)
    return f" Too wide an error to rely on the value, whatever its sign: {vague}." if vague else ""


def goal_rows(page: Page) -> Rows:
    yield "goal", "wanted", "found", ""
    for goal in page.goals:
        yield goal.name, goal.wanted, goal.found, {True: "met", False: "missed", None: "not yet"}[goal.met]
    if lines := [f"- {goal.name}: {goal.why}" for goal in page.goals if goal.met is False and goal.why]:
        yield "\n".join(lines)


def prediction_rows(page: Page) -> Rows:
    if (made := page.predictions) is None:
        yield "No prediction has been made yet: the sweep is not complete."
        return
    others = [name for name in LAWS if name != FITTED]
    yield "d_model", "E", "N_act", f"{FITTED} (95 %)", *others, "measured (95 %)", "pairs of seeds"
    measured = {(gap.d_model, gap.experts): gap for gap in page.results.all_gaps}
    for model in made.models:
        laws = [interval_in_words(model.interval, made.between)]
        laws += [tokens_in_words(model.others[n], made.between) if n in model.others else UNKNOWN for n in others]
        gap = measured.get((model.d_model, model.experts))
        shown = ("not yet", UNKNOWN) if gap is None else (measured_in_words(gap), listed(f"{n:g}" for n in gap.pairs))
        yield model.d_model, model.experts, format_count(model.n_active), *laws, *shown
    yield (
        f"Made from {made.runs} runs, those of a `runs.jsonl` of sha256 {made.sha256[:12]}…, before any run of these "
        f"sizes and E. The prediction that counts is that of the {FITTED}."
    )


BLOCKS: dict[str, Callable[[Page], Rows]] = {
    "short": short,
    "counted": counted,
    "rates": rate_rows,
    "scatter": scatter_rows,
    "losses": loss_rows,
    "crossings": crossing_rows,
    "coefficients": coefficient_rows,
    "goals": goal_rows,
    "predictions": prediction_rows,
}
