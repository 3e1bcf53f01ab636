"""The numbers, tables, verdicts and figure of docs/studies/anatomy.md, and what the library quotes of them.

Gains are ln of the loss of the first model over that of the second, in percent: above zero the second is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hub.base import strict_json
from hub.base.units import UNKNOWN, format_count, format_flops
from scaling_law import JointLaw
from scaling_law.figures import drawing
from studies.anatomy.estimate import (
    ASKED_EXPERTS,
    CALIBRATED,
    COUNTS,
    LAW_EXPERTS,
    LEVEL,
    Carried,
    Estimate,
    Laboratory,
    RoutedShare,
    answered,
    carried_by,
    gains_by_law,
    joint_gains,
    laboratories_of,
    laboratory_of,
    routed_share_of,
)
from studies.anatomy.pairs import (
    BLIND,
    DEEPMIND,
    EVIDENCE,
    EXPERTS,
    FIELDS,
    GRANULARITY,
    MARIN,
    ROUTED,
    SHARED,
    STEPFUN,
    TOP_K,
    Pairs,
    derive,
    read_pairs,
)
from studies.anatomy.vocabularies import count_errors
from studies.common import FloatArray, Page, Part, join, rms, round_numbers
from studies.evidence.points import read_sources
from studies.granularity import study as granularity
from studies.granularity.models import ALL, DENSE, EIGHTHS, HALVES, ONE_SHARED, TOKENS

# What commands say of a field that the chosen law ignores.
DESIGNS = Path(__file__).parents[2] / "scaling_law" / "formulas" / "designs.json"
FORMAT = "designs"
PERCENT = 100.0
# Our comparisons of the granularity study: its contender, what is compared, and the field.
OURS = (
    (DENSE, "8, top-1, over dense", EXPERTS),
    (HALVES, f"{HALVES}, over 8, top-1", GRANULARITY),
    (EIGHTHS, f"{EIGHTHS}, over 8, top-1", GRANULARITY),
    (ONE_SHARED, "1 shared of 8 active eighths, over none", SHARED),
)
COLOURS = {DEEPMIND: "#0072B2", MARIN: "#D55E00", STEPFUN: "#009E73"}
MARKERS = {"Clark et al., RL-R": "^", "Clark et al., Hash": "v", "hadasah, SPM": "s"}


@dataclass(frozen=True)
class Anatomy:
    """Everything that the page shows, computed when it is asked for."""

    pairs: Sequence[Pairs]
    ours: granularity.Results

    @property
    def open_pairs(self) -> list[Pairs]:
        """The pairs from which something may be estimated."""
        return [p for p in self.pairs if not p.is_blind]

    @cached_property
    def blind(self) -> list[Laboratory]:
        """The blind sets."""
        return [laboratory_of(p.name, [p]) for p in self.pairs if p.is_blind]

    @cached_property
    def estimate(self) -> Estimate:
        """The verdict of the laboratories that are not blind."""
        return Estimate(laboratories_of(self.open_pairs))

    @cached_property
    def carried(self) -> Carried:
        """The gains above the law's E."""
        return carried_by(self.estimate)

    @cached_property
    def routed_share(self) -> RoutedShare:
        """The gains by the share of blocks with experts."""
        return routed_share_of(self.open_pairs)

    @property
    def helped_by_share(self) -> list[bool]:
        """True where its exponent lowers the error of the law: laboratories and blind sets with dense blocks."""
        is_lower = []
        for laboratory in (*self.estimate.laboratories, *self.blind):
            if laboratory.routed_share.min() < 1.0:
                without, with_share = self.routed_share.errors(laboratory, self.estimate.factor)
                is_lower.append(with_share < without)
        return is_lower

    def blind_within(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which blind gains the interval holds: of runs shorter than all of the law's, and of the others."""
        is_within = [table.is_within(self.estimate.factor, self.estimate.interval) for table in self.blind]
        tokens = [answered(p).after["tokens"] for p in self.pairs if p.is_blind]
        is_short = np.concatenate(tokens) < law_tokens()
        within = np.concatenate(is_within)
        return within[is_short], within[~is_short]

    def of_field(self, field: str) -> list[Pairs]:
        """Return the sets that differ in a field."""
        return [p for p in self.pairs if p.field == field]

    def our_gains(self, contender: str) -> FloatArray:
        """Return our measured gains at each of `TOKENS`; where the contender is dense, those of the experts."""
        mean, _, _ = self.ours.measures.differences[contender]
        return np.log1p(mean) if contender == DENSE else -np.log1p(mean)

    @cached_property
    def top_k(self) -> tuple[float, FloatArray]:
        """The slope of top-2 and top-4 over that of top-1 by the same router, and what exceeds the latter, [n]."""
        (pairs,) = self.of_field(TOP_K)
        top_1 = laboratory_of("S-Base", [self.pairs[0]])
        predicted = joint_gains(pairs)
        slope = float(pairs.gains @ predicted / (predicted @ predicted))
        return slope / top_1.slope, pairs.gains - top_1.slope * predicted

    @cached_property
    def spreads(self) -> dict[str, float]:
        """The error in ln L of a law that ignores a field: the RMS of what was measured."""
        gains = {
            TOP_K: [self.top_k[1]],
            GRANULARITY: [self.our_gains(HALVES), self.our_gains(EIGHTHS)],
            SHARED: [self.our_gains(ONE_SHARED), *(p.gains for p in self.of_field(SHARED))],
            ROUTED: [p.gains - p.twins for p in self.of_field(ROUTED)],
        }
        return {name: rms(np.concatenate(tables)) for name, tables in gains.items()}


def law_tokens() -> float:
    """Return the fewest tokens of the joint law's runs."""
    conditions = JointLaw.published().conditions
    assert conditions is not None
    return conditions.fitted_limits()["D"][0]


def read() -> Anatomy:
    """Read the pairs and our own measures."""
    return Anatomy(read_pairs(), granularity.read())


def take(folders: Sequence[Path]) -> list[Path]:
    """Derive the gains from public tables below these folders."""
    written = []
    for folder in folders:
        written += derive(folder)
    return written


# ------------------------------------------------------------------ what the library quotes


def describe_findings(a: Anatomy) -> dict[str, str]:
    """Return what was found of each field, in a sentence for a warning."""
    ratio, excess = a.top_k
    halves, eighths = (_percent(a.our_gains(name)[-1], 1) for name in (HALVES, EIGHTHS))
    small = f"at {format_count(ALL[DENSE].architecture.n_active)} active parameters"
    shared = _percent(abs(a.our_gains(ONE_SHARED)).max(), 1)
    (half_shared,) = a.of_field(SHARED)
    half = _percent(abs(half_shared.gains).max(), 1)
    sizes = " to ".join(map(format_count, half_shared.after["n_active"][[0, -1]]))
    exponent = a.routed_share.exponent
    n_runs = len(a.routed_share.ratios)
    lab = "of one laboratory"
    helped = _of(np.array(a.helped_by_share))
    return {
        TOP_K: f"top-2 and top-4 gained {ratio:.1f} times what top-1 gained at equal E ({len(excess)} pairs {lab})",
        GRANULARITY: f"experts split into halves gained {halves} of loss, into eighths {eighths}, {small}",
        SHARED: f"a shared expert changed the loss by up to {shared} {small}, half of one by {half} at {sizes}",
        ROUTED: (
            f"gains grew as share^{exponent:.1f} in {n_runs} runs {lab}; a law so corrected errs less on {helped} sets"
        ),
    }


def verdict(a: Anatomy) -> str:
    """Say whether a factor is used, and why."""
    rows = a.estimate.left_out
    worse = a.estimate.worse
    factors = [row.factor for row in rows]
    text = f"The factor of the other laboratories ({min(factors):.2f} to {max(factors):.2f}) beats the law as it is on"
    if not worse:
        return f"{text} all {len(rows)} laboratories left out, so gains are multiplied by {a.estimate.factor:.2f}."
    cases = [f"{row.laboratory.name} ({_percent(row.error)} becomes {_percent(row.error_with)})" for row in worse]
    return f"{text} {len(rows) - len(worse)} of {len(rows)} laboratories left out, not on {join(cases)}: none is used."


def trust(a: Anatomy) -> str:
    """Say whether E of Marin's and Step Law's models enters the trusted region."""
    enters = "enters" if a.carried.holds else "does not enter"
    return (
        f"E up to {ASKED_EXPERTS:g} {enters} the trusted region for such shapes, fine experts beside a shared one: "
        f"intervals hold {_of(a.carried.is_within)} gains above E = {LAW_EXPERTS:g}, where the law errs by "
        f"{_percent(a.carried.error_above)}; up to there it errs by {_percent(a.carried.error_up_to)}."
    )


def ship(a: Anatomy) -> Path:
    """Write what commands quote where a law ignores a field."""
    sets = [p.after for p in a.of_field(EXPERTS) if p.laboratory in (MARIN, STEPFUN)]
    ranges = {}
    for name in (GRANULARITY, SHARED, ROUTED, "n_active", "tokens"):
        values = np.concatenate([side[name][side[EXPERTS] > LAW_EXPERTS] for side in sets])
        ranges[name] = [values.min(), values.max()]
    gain = {
        "factor": a.estimate.factor,
        "spread": a.estimate.interval.spread,
        "noise": a.estimate.interval.noise,
        "level": LEVEL,
        "fewest_tokens": law_tokens(),
        "verdict": verdict(a),
    }
    fields = {}
    for name, finding in describe_findings(a).items():
        fields[name] = {"finding": finding, "spread": a.spreads[name]}
    content = {
        "page": "anatomy.md",
        "gain": gain,
        "routed_share": {"exponent": a.routed_share.exponent, "used": all(a.helped_by_share)},
        "experts": {"most": ASKED_EXPERTS, "trusted": a.carried.holds, **ranges},
        "fields": fields,
    }
    return strict_json.write(DESIGNS, FORMAT, 1, round_numbers(content, 3))


# ------------------------------------------------------------------ blocks


def _percent(value: float, digits: int = 2) -> str:
    return f"{PERCENT * value:.{digits}f} %"


def _of(is_within: NDArray[np.bool_]) -> str:
    return f"{is_within.sum()} of {len(is_within)}"


def _name(p: Pairs) -> str:
    return f"{p.name} (blind)" if p.is_blind else p.name


def _fraction(share: float) -> str:
    return "1" if share == 1 else f"1/{1 / share:.0f}"


def _gain(value: float | None) -> str:
    return UNKNOWN if value is None else f"{PERCENT * value:+.1f}"


def _in_words(name: str) -> str:
    """Write a name so that a narrow column can break it."""
    return name.replace("_", " ")


def gains(a: Anatomy) -> Iterator[Part]:
    """List the mean gain of each set of pairs, measured and by each law that has something to say."""
    laws = [law for law in a.ours.laws if law != "ling"]
    yield "differs in", "pairs", "E", "n", "measured", *map(_in_words, laws)
    for field in FIELDS:
        for p in a.of_field(field):
            for share in np.unique(p.after[ROUTED]) if field == ROUTED else ():
                name = f"{p.name}, {share:.0%} of blocks"
                yield _gain_row(name, p.subset(p.after[ROUTED] == share), laws)
            if field != ROUTED:
                yield _gain_row(_name(p), p, laws)
        for contender, name, our_field in OURS:
            if our_field == field:
                predicted = [_our_prediction(a, law, contender) for law in laws]
                our_gain = _gain(a.our_gains(contender)[-1])
                yield _in_words(field), f"ours: {name}", "8", len(TOKENS), our_gain, *predicted


def _gain_row(name: str, p: Pairs, laws: Sequence[str]) -> Part:
    """Return the row of a set of pairs: means over the pairs."""
    by_law = {law: float(values.mean()) for law, values in gains_by_law(p).items()}
    experts = [f"{value:.3g}" for value in (p.after[EXPERTS].min(), p.after[EXPERTS].max())]
    cells = [_gain(by_law.get(law)) for law in laws]
    return _in_words(p.field), name, " to ".join(dict.fromkeys(experts)), len(p), _gain(p.gains.mean()), *cells


def _our_prediction(a: Anatomy, law: str, contender: str) -> str:
    """Return the gain by a law of one of our comparisons at the longest D."""
    ratio = a.ours.prediction(law, contender, TOKENS[-1]).ratio
    if ratio is None:
        return UNKNOWN
    return _gain(np.log(ratio) if contender == DENSE else -np.log(ratio))


def left_out(a: Anatomy) -> Iterator[Part]:
    """List what the law misses of each laboratory, as it is and with the factor of the others."""
    yield (
        "laboratory",
        "pairs",
        "RMS gain",
        "slope",
        "error of the law",
        "factor of the others",
        "error with it",
        "in the interval",
    )
    for row, is_within in zip(a.estimate.left_out, a.estimate.is_within, strict=True):
        table = row.laboratory
        cells = _laboratory_cells(table, row.error)
        yield *cells, f"{row.factor:.2f}", _percent(row.error_with), f"{is_within.mean():.0%}"
    for table in a.blind:
        is_within = table.is_within(a.estimate.factor, a.estimate.interval)
        cells = _laboratory_cells(table, rms(table.errors(a.estimate.factor)))
        yield *cells, UNKNOWN, UNKNOWN, f"{is_within.mean():.0%}"
    yield verdict(a)
    yield trust(a)


def _laboratory_cells(table: Laboratory, error: float) -> tuple[object, ...]:
    name = f"{table.name} (blind)" if table.name in BLIND else table.name
    return name, len(table), _percent(rms(table.gains)), f"{table.slope:.2f}", _percent(error)


def counts(a: Anatomy) -> Iterator[Part]:
    """List the error of the law as it is by the count of N."""
    yield "N that the law is asked with", *(table.name for table in a.estimate.laboratories), "all", "of the RMS gain"
    for count in COUNTS:
        laboratories = laboratories_of(a.open_pairs, count)
        errors = np.array([rms(table.errors()) for table in laboratories])
        sizes = np.array([rms(table.gains) for table in laboratories])
        yield count, *map(_percent, errors), _percent(rms(errors)), f"{rms(errors / sizes):.0%}"


def losses(a: Anatomy) -> Iterator[Part]:
    """List the errors of losses, and the regret of sizes that the law picks, by the count of N."""
    errors = [*count_errors()]
    yield "N that the law is asked with", *errors[0].errors, "regret of Marin's sizes"
    for row in errors:
        yield row.name, *(f"{error:.3f}" for error in row.errors.values()), f"{row.regret:.3f}"


def fields(a: Anatomy) -> Iterator[Part]:
    """List what was found of each field that laws ignore."""
    yield "field", "what was found", "spread of ln L"
    for name, finding in describe_findings(a).items():
        yield name, finding, _percent(a.spreads[name], 1)


def tokens(a: Anatomy) -> Iterator[Part]:
    """List the loss of Marin's isoFLOP runs at both numbers of tokens beside that of the pairs."""
    yield (
        "width",
        "loss, 64 experts",
        "D used here",
        "isoFLOP runs there",
        "D of issue 6716",
        "isoFLOP runs there",
    )
    for row in marin_tokens(a):
        cells = [f"{loss:.3f}" for loss in row.losses]
        d = [f"{format_count(d)} ({format_flops(d * row.flops_per_token)} FLOPs)" for d in row.tokens]
        yield f"{row.width:g}", f"{row.measured:.3f}", d[0], cells[0], d[1], cells[1]


class MarinTokens(NamedTuple):
    """The loss of a width with 64 experts, the D of both sources, and the losses of isoFLOP runs at these."""

    width: float
    measured: float
    tokens: tuple[float, float]
    losses: tuple[float, float]
    flops_per_token: float

    @property
    def holds(self) -> bool:
        """True if isoFLOP runs at the first D have the nearer loss."""
        first, second = (abs(loss - self.measured) for loss in self.losses)
        return first < second


def marin_tokens(a: Anatomy) -> list[MarinTokens]:
    """Compare both numbers of tokens by isoFLOP runs of equal width: a parabola in ln D of ln L through these."""
    sources = read_sources(EVIDENCE)
    isoflop = sources["marin"]["isoflop"]
    experts = sources["marin_experts"]["experts"]
    (half_shared,) = a.of_field(SHARED)
    rows = []
    for name, other in half_shared.other_tokens.items():
        width = float(name)
        runs = isoflop.subset(isoflop["d_model"] == width)
        parabola = np.polynomial.Polynomial.fit(np.log(runs.tokens), np.log(runs.loss), 2)
        base = experts.subset((experts["d_model"] == width) & (experts["routed_experts"] == 64))
        tokens = (float(base.tokens[0]), other)
        first, second = np.exp(parabola(np.log(tokens)))
        flops_per_token = float(base["budget"][0]) / tokens[0]
        rows.append(MarinTokens(width, float(base.loss[0]), tokens, (first, second), flops_per_token))
    return rows


# ------------------------------------------------------------------ figure, values, claims


def anatomy(a: Anatomy) -> Any:
    """Draw measured gains against the law's with the interval, and gains by the share of blocks with experts."""
    axes = drawing.panels_or_new(None, 2, 9.6, 4.8)
    _draw_gains(axes[0], a)
    _draw_shares(axes[1], a.routed_share)
    drawing.shared_legend(axes[0])
    return axes


def _draw_gains(ax: Any, a: Anatomy) -> None:
    """Draw measured against predicted gains, a marker for each set; blind ones are open."""
    x = np.linspace(-0.02, 0.13, 61)
    middle = a.estimate.factor * x
    half_width = a.estimate.interval.half_width(x)
    ax.plot(PERCENT * x, PERCENT * middle, color="0.4", linewidth=0.9)
    ax.fill_between(
        PERCENT * x,
        PERCENT * (middle - half_width),
        PERCENT * (middle + half_width),
        color="0.4",
        alpha=0.15,
        linewidth=0,
        label=f"{LEVEL:.0%} interval",
    )
    for p in map(answered, a.of_field(EXPERTS)):
        style = {"color": COLOURS.get(p.laboratory, "0.25"), "alpha": 0.75}
        if p.is_blind:
            style = {"color": "0.25", "fillstyle": "none"}
        ax.plot(
            PERCENT * joint_gains(p),
            PERCENT * p.gains,
            MARKERS.get(p.name, "o"),
            markersize=5,
            label=_name(p),
            **style,
        )
    ax.set(xlabel="gain by the law (% of loss)", ylabel="measured gain (% of loss)", xlim=(-2, 13))
    ax.set_title("more experts, at equal N_act and D", fontsize=10)


def _draw_shares(ax: Any, shares: RoutedShare) -> None:
    """Draw the gain over that with experts in every second block, coloured by E."""
    x = np.geomspace(0.075, 1.1, 40)
    ax.plot(x, (x / 0.5) ** shares.exponent, color="0.4", linewidth=0.9, label=f"share^{shares.exponent:.2f}")
    # Points of equal share stand side by side.
    for i, experts in enumerate(np.unique(shares.experts)):
        rows = shares.experts == experts
        style = {"color": drawing.colour_of(experts), "label": f"E = {experts:g}"}
        ax.plot(shares.shares[rows] * 1.03 ** (i - 1), shares.ratios[rows], "o", markersize=5, **style)
    ax.axhline(1.0, color="0.8", linewidth=0.9, zorder=0)
    ax.set(xscale="log", xlabel="share of blocks with experts", ylabel="gain over that with every second block")
    ticks = np.unique(np.append(shares.shares, 0.5))
    ax.set_xticks(ticks, [*map(_fraction, ticks)])
    ax.minorticks_off()
    ax.set_ylim(0, None)
    ax.legend(frameon=False, loc="lower right")
    ax.set_title("Clark et al.: S-Base and Hash", fontsize=10)


def values(a: Anatomy) -> dict[str, str]:
    """Return the numbers in the page's sentences."""
    estimate = a.estimate
    errors = np.array([row.error for row in estimate.left_out])
    errors_with = np.array([row.error_with for row in estimate.left_out])
    coverage_alike = np.mean([is_within.mean() for is_within in estimate.is_within])
    short, long = a.blind_within()
    return {
        "pairs": f"{sum(map(len, estimate.laboratories))}",
        "spread": f"{estimate.interval.spread:.0%}",
        "noise": _percent(estimate.interval.noise, 1),
        "coverage": f"{estimate.coverage:.0%}",
        "coverage-alike": f"{coverage_alike:.0%}",
        "error": _percent(rms(errors)),
        "error-with": _percent(rms(errors_with)),
        "blind-short": _of(short),
        "blind-long": _of(long),
        "top-k": f"{a.top_k[0]:.1f}",
        "exponent": f"{a.routed_share.exponent:.1f}",
        "share-helps": _of(np.array(a.helped_by_share)),
    }


def misses_short_runs(a: Anatomy) -> bool:
    """Return whether intervals miss those blind gains whose runs are shorter than the law's."""
    short, long = a.blind_within()
    return bool(short.mean() < CALIBRATED[0] <= long.mean())


CLAIMS = {
    "give or take a fifth": lambda a: 0.17 < a.estimate.interval.spread < 0.23,
    "no factor is used, since the error on Marin doubles": lambda a: (
        [row.laboratory.name for row in a.estimate.worse] == [MARIN]
        and a.estimate.worse[0].error_with > 1.75 * a.estimate.worse[0].error
    ),
    "intervals are calibrated on laboratories left out": lambda a: (
        CALIBRATED[0] <= a.estimate.coverage <= CALIBRATED[1]
    ),
    "blind gains are missed where runs are shorter than the law's": misses_short_runs,
    "the exponent of the share helps on the blind sets alone": lambda a: (
        a.helped_by_share == [False, False, True, True]
    ),
    "E = 43 is carried": lambda a: a.carried.holds,
    "the tokens used here hold": lambda a: all(row.holds for row in marin_tokens(a)),
}
PAGE = Page(
    read,
    blocks=(gains, left_out, counts, losses, fields, tokens),
    figures=(anatomy,),
    values=values,
    claims=CLAIMS,
)
