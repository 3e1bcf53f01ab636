"""The figures of a law for a web page: the numbers of `figures.curves`, drawn by Plotly in the colours of all figures.

Plotly is imported when a figure is made; the extra `[explorer]` brings it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hub.base.types import Fields
from hub.base.units import format_bytes, format_count, format_flops
from scaling_law.figures import drawing
from scaling_law.figures.curves import BestExperts, Curve, MemoryCurves, shown_tokens
from scaling_law.figures.drawing import colour_of, label_of, log_ticks
from scaling_law.size.arrays import Interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FONT = "system-ui, sans-serif"
# The names of lines and cells where the law extrapolates, further than it is trusted, or not at all.
FITTED = "fitted"
EXTRAPOLATED = "extrapolated"
UNTRUSTED = "not trusted"
BAND = "95 % interval"
CROSSOVER = "crossover, 95 %"
# Opacity of a cell of the map, and of the part of a curve that is not trusted.
OPACITIES = {UNTRUSTED: 0.2, EXTRAPOLATED: 0.5, FITTED: 0.9}
FAINT = 0.45
DASHED: Fields = {"dash": "dash", "width": 1.6}
LINES: dict[str, Fields] = {UNTRUSTED: DASHED, EXTRAPOLATED: DASHED, FITTED: {"width": 2.4}}
# The most ticks along and up a figure, which have room on a phone.
TICKS = 4
TICKS_UP = 6
# Digits of a loss at the ticks, which all ticks of an axis share, by the distance between ticks.
LOSS_TICKS = [
    {"dtickrange": [None, 0.0099], "value": ".3f"},
    {"dtickrange": [0.0099, None], "value": ".2f"},
]
# Share of the height of a figure between the bars below its curves, and their pixels.
BAR_SPACING = 0.05
BAR_WIDTH = 5
# The axis of memory extends to a limit that lies at most so many times beyond the curves, and a little further.
FURTHEST_LIMIT = 4.0
LIMIT_MARGIN = 1.1


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

    A line marks the `limit` that is asked, and a star the memory and the loss of the `answer`; a bar, in the colour of
    an E, is the 95 % interval of the limit from which this E beats a smaller one. The interval of a loss is left out:
    E share most of it, and outside the fitted range it is wider than the figure.
    """
    curves = by_memory.curves
    low = first = float(by_memory.memory[0])
    high = last = float(by_memory.memory[-1])
    if limit is not None and first / FURTHEST_LIMIT < limit < last * FURTHEST_LIMIT:
        low = min(first, limit / LIMIT_MARGIN)
        high = max(last, limit * LIMIT_MARGIN)
    shapes = []
    for region in by_memory.regions:
        x = by_memory.memory[region.points]
        # The last E is the best of larger limits, too.
        is_last = region is by_memory.regions[-1]
        shapes.append(
            {
                "type": "rect",
                "yref": "paper",
                "x0": x[0],
                "x1": high if is_last else x[-1],
                "y0": 0,
                "y1": 1,
                "fillcolor": page.colour(region.experts, 0.14),
                "line": {"width": 0},
                "layer": "below",
            }
        )
    # Every curve has at least its end in sight.
    dots = {curve.experts: curve.marked for curve in curves}
    end_losses = [loss for _, loss in dots.values()]
    highest = max(float(by_memory.loss[0]), *end_losses) + 0.02
    lowest = min(float(by_memory.loss.min()), *end_losses) - 0.03
    traces = _curves(curves, page, dots, lambda memory: f"within {format_bytes(memory)}: ")
    if by_memory.boundaries:
        traces.append(_line_key(CROSSOVER, page.ink, width=BAR_WIDTH))
    # The bars have the lowest part of the figure to themselves.
    step = BAR_SPACING * (highest - lowest)
    for boundary in by_memory.boundaries:
        from_limit, to_limit = map(format_bytes, boundary.interval)
        bar = _scatter(
            f"{label_of(boundary.smaller)} → {boundary.larger:g}",
            boundary.interval,
            [lowest, lowest],
            "lines",
            line={"color": page.colour(boundary.larger), "width": BAR_WIDTH},
            hoverinfo="text",
            hovertext=f"E = {boundary.larger:g} beats {label_of(boundary.smaller)} from {from_limit} to {to_limit} on",
        )
        traces.append(bar)
        lowest -= step
    if limit is not None and low <= limit <= high:
        line = {"color": page.ink, "width": 1.5, "dash": "dot"}
        traces.append(_scatter("limit", [limit, limit], [lowest, highest], "lines", line=line, showlegend=True))
    if by_memory.edge is not None:
        traces.append(_edge([by_memory.edge] * 2, [lowest, highest], page))
    if answer is not None and low <= answer[0] <= high:
        traces.append(_star("answer", *answer))
    x_axis = _log_axis("memory limit", (low, high), format_bytes, page)
    return _figure(
        traces,
        page,
        x_axis,
        _loss_axis(page, (lowest, highest)),
        shapes,
    )


def loss_by_tokens(
    curves: Sequence[Curve],
    page: Page,
    losses: Interval,
    best: float,
    dots: Mapping[float, Interval],
) -> Figure:
    """Draw the loss against training tokens; `losses` bound the axis, and `dots` are tokens and losses of some E.

    Only the curve of the `best` E has its interval: several would cover the curves.
    """
    traces = []
    for curve in curves:
        if curve.experts == best and curve.interval is not None:
            low, high = curve.interval
            x = np.concatenate([curve.x, curve.x[::-1]])
            y = np.concatenate([low, high[::-1]])
            look = {
                "fill": "toself",
                "fillcolor": page.colour(best, 0.18),
                "line": {"width": 0},
            }
            traces.append(_scatter(BAND, x, y, "lines", showlegend=True, **look))
    traces += _curves(curves, page, dots)
    x_axis = _log_axis(
        drawing.TOKENS,
        shown_tokens(curves, losses),
        format_count,
        page,
    )
    return _figure(traces, page, x_axis, _loss_axis(page, losses))


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
    traces = _cells(grid, page)
    if grid.tied.any():
        columns, rows = np.meshgrid(grid.flops, grid.memory)
        hatch = {
            "symbol": "line-ne-open",
            "size": 9,
            "color": page.ink,
            "opacity": 0.45,
        }
        traces.append(_markers("tie", columns[grid.tied], rows[grid.tied], hatch))
    if models:
        marker = {
            "size": 9,
            "color": [page.colour(model.experts) for model in models],
            "line": {"color": page.paper, "width": 1.5},
        }
        flops = [model.flops for model in models]
        memory = [model.memory for model in models]
        texts = [model.text for model in models]
        traces.append(_markers("models", flops, memory, marker, hoverinfo="text", hovertext=texts))
    budgets, limits = grid.edge
    if np.isfinite(budgets).any():
        traces.append(_edge(budgets, limits, page))
    if question is not None and question[1] is not None:
        traces.append(_star("question", question[0], question[1]))
    x_axis = _log_axis(
        drawing.FLOPS,
        (grid.flops[0], grid.flops[-1]),
        format_flops,
        page,
    )
    y_axis = _log_axis(
        "memory limit",
        (grid.memory[0], grid.memory[-1]),
        format_bytes,
        page,
        TICKS_UP,
    )
    return _figure(traces, page, x_axis, y_axis)


def _cells(grid: BestExperts, page: Page) -> list[Fields]:
    """Draw the region of the map where each E is best, with keys of E and of how far the law extrapolates."""
    names = [*OPACITIES]
    level = grid.trusted.astype(int) + (grid.trusted & grid.inside)
    texts = np.full(grid.experts.shape, "", object)
    for row, column in np.argwhere(np.isfinite(grid.experts)):
        tie = ", a tie" if grid.tied[row, column] else ""
        best = f"{label_of(grid.experts[row, column])}{tie}: {grid.loss[row, column]:.4f} nats"
        limits = f"{format_flops(grid.flops[column])} FLOPs within {format_bytes(grid.memory[row])}"
        texts[row, column] = f"{best}<br>{limits}<br>{names[level[row, column]]}"
    traces = []
    for experts in np.unique(grid.experts[np.isfinite(grid.experts)]).tolist():
        is_best = grid.experts == experts
        group = {"name": label_of(experts), "legendgroup": label_of(experts)}
        colours = [page.colour(experts, opacity) for opacity in OPACITIES.values()]
        traces.append(
            {
                "type": "heatmap",
                **group,
                "x": grid.flops,
                "y": grid.memory,
                "z": np.where(is_best, level / 2, np.nan),
                "zmin": 0.0,
                "zmax": 1.0,
                "colorscale": [[0, colours[0]], [0.5, colours[1]], [1, colours[2]]],
                "showscale": False,
                "hoverinfo": "text",
                "hovertext": texts,
            }
        )
        traces.append({**_square(colours[-1]), **group})
    for number in np.unique(level[np.isfinite(grid.experts)]).tolist():
        traces.append({**_square(page.ink, OPACITIES[names[number]]), "name": names[number]})
    return traces


def _curves(
    curves: Sequence[Curve],
    page: Page,
    dots: Mapping[float, Interval],
    remark: Callable[[float], str] = lambda x: "",
) -> list[Fields]:
    """Draw curves and their dots: solid within the fitted range, dashed outside, faint where they are not trusted.

    All are dashed of a law without ranges. A pointer shows a `remark` on x and the architecture.
    """
    keys = []
    lines = []
    marks = []
    styles = set()
    # Curves fade against those that are trusted.
    fades = any(curve.trusted.any() for curve in curves)
    for curve in curves:
        name = label_of(curve.experts)
        colour = page.colour(curve.experts)
        keys.append(_line_key(name, colour))
        level = np.where(curve.inside, 2, 1)
        if fades:
            level = np.where(curve.trusted, level, 0)
        hover = {"hoverinfo": "text", "hovertext": _describe_models(curve, remark)}
        for number, (style, line) in enumerate(LINES.items()):
            is_drawn = level == number
            if is_drawn.any():
                # A line ends where the next begins.
                is_drawn = is_drawn | np.append(False, is_drawn[:-1])
                losses = np.where(is_drawn, curve.loss, np.nan)
                look = {"line": {"color": colour, **line}, "opacity": 1.0 if number else FAINT}
                lines.append(_scatter(name, curve.x, losses, "lines", legendgroup=name, **look, **hover))
                styles.add(style)
        if curve.experts in dots:
            x, loss = dots[curve.experts]
            marker = {
                "color": colour,
                "size": 9,
                "line": {"color": page.paper, "width": 1.5},
            }
            marks.append(_markers(name, [x], [loss], marker, legendgroup=name, showlegend=False))
    for style, opacity in ((EXTRAPOLATED, 1.0), (UNTRUSTED, FAINT)):
        if style in styles:
            keys.append(_line_key(style, page.ink, opacity, **LINES[style]))
    return [*keys, *lines, *marks]


def _describe_models(curve: Curve, remark: Callable[[float], str]) -> list[str]:
    """Describe the architecture of each point."""
    texts = []
    for i, x in enumerate(curve.x.tolist()):
        headline = f"{label_of(curve.experts)} {remark(x)}{curve.loss[i]:.4f} nats"
        counts = f"{format_count(curve.n_active[i])} active of {format_count(curve.n_total[i])}"
        sizes = f"d_model ≈ {curve.d_model[i]:.0f}, {counts}"
        texts.append(f"{headline}<br>{sizes}<br>{format_count(curve.tokens[i])} tokens")
    return texts


# ------------------------------------------------------------------ traces


def _scatter(name: str, x: Any, y: Any, mode: str, **look: Any) -> Fields:
    """Make a trace that is silent under the pointer and has no entry in the legend, unless its look says so."""
    trace = {"type": "scatter", "name": name, "x": x, "y": y, "mode": mode}
    return {**trace, "showlegend": False, "hoverinfo": "skip", **look}


def _markers(name: str, x: Any, y: Any, marker: Fields, **look: Any) -> Fields:
    return _scatter(
        name,
        x,
        y,
        "markers",
        **{"marker": marker, "showlegend": True, **look},
    )


def _edge(x: Any, y: Any, page: Page) -> Fields:
    """Make the edge of the trusted region."""
    line = {"color": page.ink, "width": 1.5, "dash": "dashdot"}
    return _scatter(drawing.EDGE, x, y, "lines", line=line, showlegend=True)


def _star(name: str, x: float, y: float) -> Fields:
    marker = {
        "symbol": "star",
        "size": 14,
        "color": "#ffffff",
        "line": {"color": "#000000", "width": 1.5},
    }
    # At an edge of the figure the star is whole.
    return _markers(name, [x], [y], marker, cliponaxis=False)


def _square(colour: str, opacity: float = 1.0) -> Fields:
    """Make a square for the legend: a heatmap's entry has no colour."""
    marker = {"symbol": "square", "size": 13, "color": colour}
    return _markers("", [None], [None], marker, opacity=opacity)


def _line_key(name: str, colour: str, opacity: float = 1.0, **line: Any) -> Fields:
    """Make a line for the legend alone."""
    look = {"line": {"color": colour, "width": 2.4, **line}, "opacity": opacity}
    return _scatter(
        name,
        [None],
        [None],
        "lines",
        showlegend=True,
        legendgroup=name,
        **look,
    )


# ------------------------------------------------------------------ axes and layout


def _axis(title: str, page: Page, **options: Any) -> Fields:
    return {
        "title": {"text": title},
        "gridcolor": page.grid,
        "linecolor": page.ink,
        "zeroline": False,
        "ticks": "outside",
        "automargin": True,
        **options,
    }


def _loss_axis(page: Page, losses: Interval) -> Fields:
    return _axis(drawing.LOSS, page, range=losses, tickformatstops=LOSS_TICKS)


def _log_axis(title: str, span: Interval, form: Callable[[float], str], page: Page, most: int = TICKS) -> Fields:
    ticks = log_ticks(*span, most)
    texts = [form(tick) for tick in ticks]
    return _axis(
        title,
        page,
        type="log",
        tickvals=ticks,
        ticktext=texts,
        range=np.log10(span).tolist(),
    )


def _figure(traces: Sequence[Fields], page: Page, x: Fields, y: Fields, shapes: Sequence[Fields] = ()) -> Figure:
    from plotly.graph_objects import Figure

    font = {"family": FONT, "size": 12, "color": page.ink}
    layout = {
        "xaxis": x,
        "yaxis": y,
        "shapes": shapes,
        "height": 480,
        "font": {**font, "size": 13},
        "paper_bgcolor": page.paper,
        "plot_bgcolor": page.paper,
        # Half of a label at the right end of an axis has room in the margin: Plotly leaves out one that has not.
        "margin": {"l": 8, "r": 28, "t": 8, "b": 16},
        "legend": {"orientation": "h", "yref": "container", "yanchor": "top", "y": 1, "x": 0, "font": font},
        "hoverlabel": {"font": font, "bgcolor": page.paper, "bordercolor": page.ink, "align": "left"},
        "template": "none",
    }
    return Figure({"data": traces, "layout": layout})
