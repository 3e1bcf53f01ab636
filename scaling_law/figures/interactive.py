"""The figures of a law for a web page: the numbers of `figures.curves`, drawn by Plotly in the colours of all figures.

Plotly is imported when a figure is made; the extra `[explorer]` brings it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hub.base.types import Fields
from hub.base.units import format_bytes, format_count, format_flops
from scaling_law.figures import drawing
from scaling_law.figures.curves import BestExperts, Curve, FloatArray, MemoryCurves
from scaling_law.figures.drawing import colour_of, label_of, log_ticks
from scaling_law.size.arrays import BoolArray, Interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Pixels.
HEIGHT = 480
FONT = "system-ui, sans-serif"
# The name of the line around models within the fitted range.
WITHIN = "fitted"
LEGEND = {"entrywidth": 62, "entrywidthmode": "pixels", "itemwidth": 30}
# Digits of a loss at the ticks, which all ticks of an axis share, by the distance between ticks.
LOSS_TICKS = [
    {"dtickrange": [None, 0.0099], "value": ".3f"},
    {"dtickrange": [0.0099, None], "value": ".2f"},
]
# The most ticks on an axis, and the least share of it between two, so that they have room on a phone.
TICKS = 6
TICK_SPACING = 0.21
# Share of the height of a figure between the bars below its curves.
BAR_SPACING = 0.045
# Share of the axis that the label of a bar takes on a phone.
LABEL_ROOM = 0.3
# The axis of memory extends to a limit that lies at most so many times beyond the curves, and a little further.
FURTHEST_LIMIT = 4.0
LIMIT_MARGIN = 1.1
# Opacity of a cell of the map: where the law extrapolates, further than it is trusted, or not at all.
OPACITY_BEYOND = 0.2
OPACITY_EXTRAPOLATED = 0.5
OPACITY_FITTED = 0.9
# Opacity of the part of a curve that is not trusted.
OPACITY_UNTRUSTED = 0.45
_SILENT = {"hoverinfo": "skip"}
_HOVER_TEXT = "%{text}<extra></extra>"


@dataclass(frozen=True)
class Page:
    """The colours of the page around a figure."""

    paper: str
    ink: str
    grid: str
    dark: bool

    def colour(self, experts: float, alpha: float = 1.0) -> str:
        """Return the colour of E on this page, as CSS."""
        red, green, blue = (round(255 * channel) for channel in colour_of(experts, self.dark))
        return f"rgba({red},{green},{blue},{alpha:g})"


LIGHT = Page(paper="#ffffff", ink="#1f2328", grid="#e2e5e9", dark=False)
DARK = Page(paper="#18181b", ink="#e8e8e8", grid="#3f3f46", dark=True)


@dataclass(frozen=True)
class ModelPoint:
    """A model on the map: training FLOPs, bytes of memory, its E, and the text under the pointer."""

    name: str
    flops: float
    memory: float
    experts: float
    text: str


def loss_by_memory(
    by_memory: MemoryCurves,
    page: Page = LIGHT,
    limit: float | None = None,
    answer: Interval | None = None,
) -> Figure:
    """Draw the loss against the memory limit in bytes, shaded where each E has the lowest.

    A line marks the `limit` that is asked, and a star the memory and the loss of the `answer`. The interval of a loss
    is left out: E share most of it, and outside the fitted range it is wider than the figure.
    """
    traces = []
    fades = _has_trusted(by_memory.curves)
    for curve in by_memory.curves:
        limits = [f"within {format_bytes(memory)}" for memory in curve.x.tolist()]
        traces += _lines(curve, page, fades, limits, _dot_of(curve))
    curves_span = (float(by_memory.memory[0]), float(by_memory.memory[-1]))
    span = _span_with(curves_span, limit)
    shapes = []
    for region in by_memory.regions:
        x = by_memory.memory[region.points]
        # The last E is the best of larger limits, too.
        is_last = region is by_memory.regions[-1]
        shapes.append(
            _shape(
                "rect",
                x[0],
                max(x[-1], span[1]) if is_last else x[-1],
                fillcolor=page.colour(region.experts, 0.14),
                line={"width": 0},
                layer="below",
            )
        )
    annotations = []
    for number, boundary in enumerate(by_memory.boundaries, 1):
        height = BAR_SPACING * number
        name = f"{label_of(boundary.smaller)} → {boundary.larger:g}"
        shapes.append(_bar(boundary.interval, curves_span, height, page))
        annotations.append(_bar_label(name, boundary.interval, span, height, page))
    # Every curve has at least its end in sight.
    ends = [float(curve.loss.min()) for curve in by_memory.curves]
    highest = max(float(by_memory.loss[0]), *ends) + 0.02
    lowest = min(float(by_memory.loss.min()), *ends) - 0.03
    # The bars have the lowest part of the figure to themselves.
    bars_share = BAR_SPACING * (len(annotations) + 1) if annotations else 0.0
    losses = (highest - (highest - lowest) / (1 - bars_share), highest)
    if limit is not None and span[0] <= limit <= span[1]:
        traces.append(_limit(limit, losses, page))
    if answer is not None and span[0] <= answer[0] <= span[1]:
        traces.append(_star("answer", *answer))
    x_axis = _log_axis("memory limit", np.array(span), format_bytes, page)
    return _figure(_in_layers(traces), page, x_axis, _loss_axis(page, losses), shapes, annotations)


def _span_with(span: Interval, limit: float | None) -> Interval:
    """Extend the `span` of an axis to a limit near it."""
    low, high = span
    if limit is None or not low / FURTHEST_LIMIT < limit < high * FURTHEST_LIMIT:
        return span
    return min(low, limit / LIMIT_MARGIN), max(high, limit * LIMIT_MARGIN)


def loss_by_tokens(
    curves: Sequence[Curve],
    page: Page = LIGHT,
    losses: Interval | None = None,
    best: float | None = None,
    dots: Mapping[float, Interval] | None = None,
) -> Figure:
    """Draw the loss against training tokens with marks; `losses` bound the axis.

    Only the curve of the `best` E has its interval, None: that of the lowest mark. Several would cover the curves.
    `dots` are tokens and losses of models by their E, instead of the marks of the curves.
    """
    traces = []
    if best is None:
        best = min(curves, key=_lowest_mark).experts
    fades = _has_trusted(curves)
    for curve in curves:
        is_best = curve.experts == best
        traces += _lines(curve if is_best else replace(curve, interval=None), page, fades, dot=_dot_of(curve, dots))
    lowest, highest = (-np.inf, np.inf) if losses is None else losses
    tokens = np.concatenate([curve.x[(lowest <= curve.loss) & (curve.loss <= highest)] for curve in curves])
    x_axis = _log_axis(drawing.TOKENS, tokens, format_count, page)
    return _figure(_in_layers(traces), page, x_axis, _loss_axis(page, losses))


def _has_trusted(curves: Sequence[Curve]) -> bool:
    """True where a figure has models to trust, which others then fade against."""
    return any(curve.trusted.any() for curve in curves)


def _lowest_mark(curve: Curve) -> float:
    """Return the loss of the model that a curve marks, or the lowest of its losses."""
    return float(curve.loss.min() if curve.mark is None else curve.loss[curve.mark])


def _in_layers(traces: Sequence[Fields]) -> list[Fields]:
    """Sort intervals behind all lines, and these behind all marks."""
    return sorted(traces, key=lambda trace: ("fill" not in trace, trace["mode"] == "markers"))


def _limit(limit: float, losses: Interval, page: Page) -> Fields:
    """Draw the memory limit that is asked, from the bottom of the figure to its top."""
    return {
        "type": "scatter",
        "name": "limit",
        "x": [limit, limit],
        "y": losses,
        "mode": "lines",
        "line": {"color": page.ink, "width": 1.5, "dash": "dot"},
        **_SILENT,
    }


def best_by_budget(
    grid: BestExperts,
    page: Page = LIGHT,
    question: tuple[float, float | None] | None = None,
    models: Sequence[ModelPoint] = (),
) -> Figure:
    """Draw the best E over budgets and memory limits, hatched where it ties, with released models as points.

    Colours are full within the fitted range, paler outside, and faint where the law is not trusted.
    A star marks the budget and the memory limit of the `question`.
    """
    traces = []
    for experts in np.unique(grid.experts[np.isfinite(grid.experts)]).tolist():
        traces += _cells(grid, experts, page)
    if grid.tied.any():
        traces.append(_hatch(grid, page))
    if grid.inside.any() and not grid.inside.all():
        traces += _outline(grid, page)
    if models:
        traces.append(_points(models, page))
    if question is not None and question[1] is not None:
        traces.append(_star("question", question[0], question[1]))
    x_axis = _log_axis(drawing.FLOPS, grid.flops, format_flops, page)
    y_axis = _log_axis("memory limit", grid.memory, format_bytes, page)
    return _figure(traces, page, x_axis, y_axis)


def _star(name: str, x: float, y: float) -> Fields:
    marker = {
        "symbol": "star",
        "size": 14,
        "color": "#ffffff",
        "line": {"color": "#000000", "width": 1.5},
    }
    # At an edge of the figure the star is whole.
    return {**_markers(name, [x], [y], marker), "cliponaxis": False}


def _cells(grid: BestExperts, experts: float, page: Page) -> list[Fields]:
    """Draw the region of the map where E is best, and its entry in the legend: a heatmap's has no colour."""
    is_best = grid.experts == experts
    name = label_of(experts)
    levels = (OPACITY_BEYOND, OPACITY_EXTRAPOLATED, OPACITY_FITTED)
    colours = [page.colour(experts, opacity) for opacity in levels]
    remarks = ("<br>not trusted: far outside the fitted range", "<br>outside the fitted range", "")
    level = grid.trusted.astype(int) + (grid.trusted & grid.inside)
    texts = np.full(is_best.shape, "", object)
    for row, column in zip(*np.nonzero(is_best), strict=True):
        tie = ", a tie" if grid.tied[row, column] else ""
        limits = f"{format_flops(grid.flops[column])} FLOPs within {format_bytes(grid.memory[row])}"
        texts[row, column] = f"{name}{tie}: {grid.loss[row, column]:.4f} nats<br>{limits}{remarks[level[row, column]]}"
    cells = {
        "type": "heatmap",
        "name": name,
        "legendgroup": name,
        "x": grid.flops,
        "y": grid.memory,
        "z": np.where(is_best, level / 2, np.nan),
        "zmin": 0.0,
        "zmax": 1.0,
        "text": texts,
        "hovertemplate": _HOVER_TEXT,
        "colorscale": [[0, colours[0]], [0.5, colours[1]], [1, colours[2]]],
        "showscale": False,
    }
    key = _markers(name, [None], [None], {"symbol": "square", "size": 13, "color": colours[-1]})
    key["legendgroup"] = name
    key["showlegend"] = True
    return [cells, key]


def _hatch(grid: BestExperts, page: Page) -> Fields:
    """Hatch the budgets and limits at which the best E ties with another."""
    flops, memory = np.meshgrid(grid.flops, grid.memory)
    hatch = {
        "symbol": "line-ne-open",
        "size": 9,
        "color": page.ink,
        "opacity": 0.45,
        "line": {"width": 1},
    }
    return _markers("tie", flops[grid.tied], memory[grid.tied], hatch)


def _outline(grid: BestExperts, page: Page) -> list[Fields]:
    """Draw a line around the models within the fitted range, on a wider one that sets it off from dark cells."""
    outline = {
        "type": "contour",
        "showscale": False,
        "name": WITHIN,
        "x": grid.flops,
        "y": grid.memory,
        "z": grid.inside.astype(float),
        "contours": {"start": 0.5, "end": 0.5, "size": 1, "coloring": "none"},
        **_SILENT,
    }
    ground = {**outline, "line": {"color": page.paper, "width": 4}, "showlegend": False}
    return [ground, {**outline, "line": {"color": page.ink, "width": 2, "dash": "dot"}, "showlegend": True}]


def _markers(name: str, x: Any, y: Any, marker: Fields) -> Fields:
    return {
        "type": "scatter",
        "name": name,
        "x": x,
        "y": y,
        "mode": "markers",
        "marker": marker,
        **_SILENT,
    }


def _points(models: Sequence[ModelPoint], page: Page) -> Fields:
    marker = {
        "size": 9,
        "color": [page.colour(model.experts) for model in models],
        "line": {"color": page.paper, "width": 1.5},
    }
    flops = [model.flops for model in models]
    memory = [model.memory for model in models]
    return {
        **_markers("models", flops, memory, marker),
        "text": [model.text for model in models],
        "hoverinfo": None,
        "hovertemplate": _HOVER_TEXT,
    }


def _dot_of(curve: Curve, dots: Mapping[float, Interval] | None = None) -> Interval | None:
    """Return where the dot of a curve lies: that of its E, or its mark."""
    if dots is not None:
        return dots.get(curve.experts)
    if curve.mark is None:
        return None
    return float(curve.x[curve.mark]), float(curve.loss[curve.mark])


def _lines(
    curve: Curve,
    page: Page,
    fades: bool,
    remarks: Sequence[str] = (),
    dot: Interval | None = None,
) -> list[Fields]:
    """Draw a curve: solid within the fitted range, dashed outside, with its interval and its dot.

    If it `fades`, it is faint where it is not trusted. `remarks` [points] are added to what a pointer shows.
    """
    colour = page.colour(curve.experts)
    name = label_of(curve.experts)
    group = {"legendgroup": name, "name": name}
    dashed: Fields = {
        "type": "scatter",
        "x": curve.x,
        "y": curve.loss,
        "line": {"color": colour, "dash": "dash", "width": 1.6},
        **group,
        "mode": "lines",
        "text": _hover(curve, remarks or [""] * len(curve.x)),
        "hovertemplate": _HOVER_TEXT,
    }
    traces = []
    if curve.interval is not None:
        interval = _interval(curve.x, *curve.interval, page.colour(curve.experts, 0.18))
        traces.append({**interval, **group})
    is_faint = ~curve.trusted if fades else np.zeros_like(curve.trusted)
    solid = {**dashed, "line": {"color": colour, "width": 2.4}}
    lines = [
        (is_faint, {**dashed, "opacity": OPACITY_UNTRUSTED}),
        (~is_faint & ~curve.inside, dashed),
        (~is_faint & curve.inside, solid),
    ]
    for is_drawn, line in lines:
        if is_drawn.any():
            losses = np.where(_with_next(is_drawn), curve.loss, np.nan)
            traces.append({**line, "y": losses, "showlegend": False})
    traces[-1]["showlegend"] = True
    if dot is not None:
        marker = {"color": colour, "size": 9, "line": {"color": page.paper, "width": 1.5}}
        mark = _markers(name, dot[:1], dot[1:], marker)
        traces.append({**mark, **group, "showlegend": False})
    return traces


def _with_next(is_drawn: BoolArray) -> BoolArray:
    """Add the point after each of these points [points], at which the next line begins."""
    return is_drawn | np.append(False, is_drawn[:-1])


def _hover(curve: Curve, remarks: Sequence[str]) -> list[str]:
    """Describe the architecture of each point."""
    columns = (curve.loss, curve.d_model, curve.n_active, curve.n_total, curve.tokens)
    rows = zip(*(column.tolist() for column in columns), remarks, strict=True)
    texts = []
    for loss, width, active, total, tokens, remark in rows:
        headline = f"{label_of(curve.experts)} {remark}".rstrip()
        sizes = f"d_model ≈ {width:.0f}, {format_count(active)} active of {format_count(total)}"
        texts.append(f"{headline}: {loss:.4f} nats<br>{sizes}<br>{format_count(tokens)} tokens")
    return texts


def _interval(x: FloatArray, low: FloatArray, high: FloatArray, colour: str) -> Fields:
    return {
        "type": "scatter",
        "x": np.concatenate([x, x[::-1]]),
        "y": np.concatenate([low, high[::-1]]),
        "fill": "toself",
        "fillcolor": colour,
        "line": {"width": 0},
        "mode": "lines",
        "showlegend": False,
        **_SILENT,
    }


def _shape(kind: str, low: float, high: float, **look: Any) -> Fields:
    """Draw a shape from the bottom of the figure to its top."""
    return {
        "type": kind,
        "xref": "x",
        "yref": "paper",
        "x0": low,
        "x1": high,
        "y0": 0,
        "y1": 1,
        **look,
    }


def _bar(bar: Interval, span: Interval, height: float, page: Page) -> Fields:
    """Draw an interval along x at this share of the height of the figure, with a stroke at each end within `span`."""
    low, high = bar
    strokes = [f"M {x},{height - 0.01} L {x},{height + 0.01}" for x in bar if span[0] < x < span[1]]
    return {
        "type": "path",
        "xref": "x",
        "yref": "paper",
        "path": " ".join([*strokes, f"M {low},{height} L {high},{height}"]),
        "line": {"color": page.ink, "width": 1.5},
    }


def _bar_label(
    text: str,
    bar: Interval,
    span: Interval,
    height: float,
    page: Page,
) -> Fields:
    """Write what a bar is of at the end of it that has more room within the `span` of the axis, or upon it."""
    low, high = np.log10(bar).tolist()
    first, last = np.log10(span).tolist()
    label = {
        "text": text,
        "showarrow": False,
        "y": height,
        "yref": "paper",
        "yanchor": "middle",
        "font": {"size": 11},
        # The line of the limit does not run through the text.
        "bgcolor": page.paper,
        "borderpad": 0,
        "opacity": 0.9,
    }
    if max(last - high, low - first) < LABEL_ROOM * (last - first):
        return {**label, "x": (low + high) / 2, "xanchor": "center"}
    if last - high >= low - first:
        return {**label, "x": high, "xanchor": "left", "xshift": 4}
    return {**label, "x": low, "xanchor": "right", "xshift": -4}


def _axis(title: str, page: Page, bounds: Interval | None = None) -> Fields:
    axis: Fields = {
        "title": {"text": title},
        "gridcolor": page.grid,
        "linecolor": page.ink,
        "zeroline": False,
        "ticks": "outside",
        "automargin": True,
    }
    if bounds is not None:
        axis["range"] = bounds
    return axis


def _loss_axis(page: Page, bounds: Interval | None) -> Fields:
    return {**_axis(drawing.LOSS, page, bounds), "tickformatstops": LOSS_TICKS}


def _log_axis(title: str, values: FloatArray, form: Callable[[float], str], page: Page) -> Fields:
    low = float(np.min(values))
    high = float(np.max(values))
    ticks = _spaced_ticks(low, high)
    return {
        **_axis(title, page),
        "type": "log",
        "tickvals": ticks,
        "ticktext": [form(tick) for tick in ticks],
        "range": np.log10([low, high]).tolist(),
    }


def _spaced_ticks(low: float, high: float) -> list[float]:
    """Return the densest round numbers of which each has its share of a logarithmic axis."""
    spacing = TICK_SPACING * np.log10(high / low)
    for most in range(TICKS, 1, -1):
        ticks = log_ticks(low, high, most)
        distances = np.diff(np.log10(ticks))
        if (distances >= spacing).all():
            return ticks
    # These are powers of ten.
    return ticks[:: int(np.ceil(spacing))]


def _figure(
    traces: Sequence[Fields],
    page: Page,
    x: Fields,
    y: Fields,
    shapes: Sequence[Any] = (),
    annotations: Sequence[Any] = (),
) -> Figure:
    from plotly.graph_objects import Figure

    legend = {
        "orientation": "h",
        "yanchor": "bottom",
        "y": 1.01,
        "x": 0,
        "font": {"size": 12},
        **LEGEND,
    }
    layout = {
        "xaxis": x,
        "yaxis": y,
        "shapes": list(shapes),
        "annotations": list(annotations),
        "height": HEIGHT,
        "font": {"family": FONT, "size": 13, "color": page.ink},
        "paper_bgcolor": page.paper,
        "plot_bgcolor": page.paper,
        # Half of a label at the right end of an axis has room in the margin: Plotly leaves out one that has not.
        "margin": {"l": 8, "r": 28, "t": 8, "b": 16},
        "legend": legend,
        "hoverlabel": {
            "font": {"family": FONT, "color": page.ink, "size": 12},
            "bgcolor": page.paper,
            "bordercolor": page.ink,
            "align": "left",
        },
        "template": "none",
    }
    return Figure({"data": list(traces), "layout": layout})
