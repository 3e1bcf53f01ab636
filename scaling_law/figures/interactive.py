"""The figures of a law for a web page: the numbers of `figures.curves`, drawn by Plotly in the colours of all figures.

Plotly is imported when a figure is made; the extra `[explorer]` brings it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hub.base.units import format_bytes, format_count, format_flops
from scaling_law.figures import drawing
from scaling_law.figures.curves import BestExperts, Curve, FloatArray, MemoryCurves
from scaling_law.figures.drawing import colour_of, label_of, log_ticks

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

HEIGHT = 480  # pixels
FONT = "system-ui, sans-serif"
_SILENT = {"hoverinfo": "skip"}
WITHIN = "fitted"
LEGEND = {"entrywidth": 62, "entrywidthmode": "pixels", "itemwidth": 30}
# Ticks on an axis, so that they have room on a phone.
TICKS = 6


@dataclass(frozen=True)
class Page:
    """The colours of the page around a figure."""

    paper: str
    ink: str
    grid: str
    dark: bool

    def colour(self, experts: float, alpha: float = 1.0) -> str:
        red, green, blue = (round(255 * channel) for channel in colour_of(experts, self.dark))
        return f"rgba({red},{green},{blue},{alpha:g})"


LIGHT, DARK = Page("#ffffff", "#1f2328", "#e2e5e9", False), Page("#18181b", "#e8e8e8", "#3f3f46", True)


@dataclass(frozen=True)
class Placed:
    """A model on the map: training FLOPs, bytes of memory, its E, and what the pointer shows."""

    name: str
    flops: float
    memory: float
    experts: float
    text: str


def loss_by_memory(found: MemoryCurves, page: Page = LIGHT, limit: float | None = None) -> Figure:
    """Loss against the memory limit in bytes, shaded where each E wins; `limit` is marked."""
    traces = [trace for curve in found.curves for trace in _lines(curve, page)]
    shapes = []
    for region in found.regions:
        x = found.memory[region.part]
        fill = {"fillcolor": page.colour(region.experts, 0.14), "line": {"width": 0}, "layer": "below"}
        shapes.append(_shape("rect", x[0], x[-1], **fill))
        if found.interval is not None:
            low, high = (end[region.part] for end in found.interval)
            traces.append(_interval(x, low, high, page.colour(region.experts, 0.3)))
    shapes += [_bar(*ends, 0.03 * (i + 1), page) for i, ends in enumerate(found.boundaries)]
    if limit is not None:
        shapes.append(_shape("line", limit, limit, line={"color": page.ink, "width": 1.5, "dash": "dot"}))
    lowest = found.loss.min() - 0.03
    lowest = lowest if found.interval is None else min(lowest, found.interval[0].min())
    y = float(lowest), float(found.loss[0]) + 0.02
    x_axis = _log_axis("memory limit", found.memory, format_bytes, page)
    return _figure(traces, page, x_axis, _axis(drawing.LOSS, page, y), shapes)


def loss_by_tokens(curves: Sequence[Curve], page: Page = LIGHT, losses: tuple[float, float] | None = None) -> Figure:
    """Loss against training tokens with intervals, the marks of the curves as points; `losses` are those shown."""
    traces = [trace for curve in curves for trace in _lines(curve, page)]
    x_axis = _log_axis(drawing.TOKENS, np.concatenate([curve.x for curve in curves]), format_count, page)
    return _figure(traces, page, x_axis, _axis(drawing.LOSS, page, losses))


def best_by_budget(
    found: BestExperts,
    page: Page = LIGHT,
    asked: tuple[float, float | None] | None = None,
    models: Sequence[Placed] = (),
) -> Figure:
    """The best E over budgets and memory limits, hatched where it ties; the question and released models as points."""
    winners = np.unique(found.experts[np.isfinite(found.experts)]).tolist()
    traces = [trace for e in winners for trace in _cells(found, e, page)]
    x, y = np.meshgrid(found.flops, found.memory)
    hatch = {"symbol": "line-ne-open", "size": 9, "color": page.ink, "opacity": 0.45, "line": {"width": 1}}
    if found.tied.any():
        traces.append(_markers("tie", x[found.tied], y[found.tied], hatch))
    if found.inside.any() and not found.inside.all():
        line = {"color": page.ink, "width": 2, "dash": "dot"}
        level = {"start": 0.5, "end": 0.5, "size": 1, "coloring": "none"}
        field = {"x": found.flops, "y": found.memory, "z": found.inside.astype(float), "contours": level, "line": line}
        traces.append({"type": "contour", "showscale": False, "showlegend": True, "name": WITHIN, **field, **_SILENT})
    traces += [_points(models, page)] if models else []
    if asked is not None and asked[1] is not None:
        star = {"symbol": "star", "size": 17, "color": "#ffffff", "line": {"color": "#000000", "width": 1.5}}
        traces.append(_markers("question", [asked[0]], [asked[1]], star))
    x_axis = _log_axis(drawing.FLOPS, found.flops, format_flops, page)
    return _figure(traces, page, x_axis, _log_axis("memory limit", found.memory, format_bytes, page))


def _cells(best: BestExperts, e: float, page: Page) -> list[dict[str, Any]]:
    """The part of the map where E is best, as one colour, and its entry in the legend: a heatmap's has no colour."""
    won = np.where(best.experts == e, 1.0, np.nan)
    colour, text = page.colour(e, 0.8), np.full(won.shape, "", object)
    for i, j in zip(*np.nonzero(best.experts == e), strict=True):
        tie = ", a tie" if best.tied[i, j] else ""
        where = f"{format_flops(best.flops[j])} FLOPs within {format_bytes(best.memory[i])}"
        text[i, j] = f"{label_of(e)}{tie}: {best.loss[i, j]:.4f} nats<br>{where}"
    at = {"x": best.flops, "y": best.memory, "z": won, "text": text, "hovertemplate": "%{text}<extra></extra>"}
    group = {"name": label_of(e), "legendgroup": label_of(e)}
    key = _markers(label_of(e), [None], [None], {"symbol": "square", "size": 13, "color": colour})
    scale = {"colorscale": [[0, colour], [1, colour]], "showscale": False}
    return [{"type": "heatmap", **group, **at, **scale}, {**key, **group, "showlegend": True}]


def _markers(name: str, x: Any, y: Any, marker: dict[str, Any]) -> dict[str, Any]:
    return {"type": "scatter", "name": name, "x": x, "y": y, "mode": "markers", "marker": marker, **_SILENT}


def _points(models: Sequence[Placed], page: Page) -> dict[str, Any]:
    marker = {
        "size": 9,
        "color": [page.colour(model.experts) for model in models],
        "line": {"color": page.paper, "width": 1.5},
    }
    at = [model.flops for model in models], [model.memory for model in models]
    text = {"text": [model.text for model in models], "hoverinfo": None, "hovertemplate": "%{text}<extra></extra>"}
    return _markers("models", *at, marker) | text


def _lines(curve: Curve, page: Page) -> list[dict[str, Any]]:
    """A curve: solid within the fitted range, dashed outside, with its interval and its mark."""
    colour, name = page.colour(curve.experts), label_of(curve.experts)
    group = {"legendgroup": name, "name": name}
    options = {"mode": "lines", "text": _hover(curve), "hovertemplate": "%{text}<extra></extra>"}
    traces = []
    if curve.interval is not None:
        traces.append(_interval(curve.x, *curve.interval, page.colour(curve.experts, 0.18)) | group)
    line = {"type": "scatter", "x": curve.x, "y": curve.loss, "line": {"color": colour, "dash": "dash", "width": 1.6}}
    if not curve.inside.all():
        traces.append({**line, **group, **options, "showlegend": not curve.inside.any()})
    if curve.inside.any():
        solid = {"y": np.where(curve.inside, curve.loss, np.nan), "line": {"color": colour, "width": 2.4}}
        traces.append({**line, **group, **options, **solid})
    if curve.mark is not None:
        at, marker = [curve.mark], {"color": colour, "size": 9, "line": {"color": page.paper, "width": 1.5}}
        traces.append({**_markers(name, curve.x[at], curve.loss[at], marker), **group, "showlegend": False})
    return traces


def _hover(curve: Curve) -> list[str]:
    """The architecture of each point."""
    columns = (curve.loss, curve.d_model, curve.n_active, curve.n_total, curve.tokens)
    return [
        f"{label_of(curve.experts)}: {loss:.4f} nats<br>d_model {width:.0f}, {format_count(active)} active of "
        f"{format_count(total)}<br>{format_count(tokens)} tokens"
        for loss, width, active, total, tokens in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _interval(x: FloatArray, low: FloatArray, high: FloatArray, colour: str) -> dict[str, Any]:
    outline = {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([low, high[::-1]])}
    fill = {"fill": "toself", "fillcolor": colour, "line": {"width": 0}, "mode": "lines"}
    return {"type": "scatter", **outline, **fill, "showlegend": False, **_SILENT}


def _shape(kind: str, left: float, right: float, **look: Any) -> dict[str, Any]:
    """From the bottom of the figure to its top."""
    return {"type": kind, "xref": "x", "yref": "paper", "x0": left, "x1": right, "y0": 0, "y1": 1, **look}


def _bar(left: float, right: float, height: float, page: Page) -> dict[str, Any]:
    """An interval along x at this share of the height, with its ends."""
    path = " ".join(f"M {x},{height - 0.01} L {x},{height + 0.01}" for x in (left, right))
    path += f" M {left},{height} L {right},{height}"
    return {"type": "path", "xref": "x", "yref": "paper", "path": path, "line": {"color": page.ink, "width": 1.5}}


def _axis(title: str, page: Page, ends: tuple[float, float] | None = None) -> dict[str, Any]:
    style = {"gridcolor": page.grid, "linecolor": page.ink, "zeroline": False, "ticks": "outside", "automargin": True}
    return {"title": {"text": title}, **style, **({} if ends is None else {"range": ends})}


def _log_axis(title: str, values: FloatArray, form: Callable[[float], str], page: Page) -> dict[str, Any]:
    low, high = float(np.min(values)), float(np.max(values))
    ticks = log_ticks(low, high, TICKS)
    ticks = ticks[:: -(-len(ticks) // (TICKS + 2))]
    scale = {"tickvals": ticks, "ticktext": [form(tick) for tick in ticks], "range": np.log10([low, high]).tolist()}
    return _axis(title, page) | {"type": "log", **scale}


def _figure(
    traces: Sequence[dict[str, Any]], page: Page, x: dict[str, Any], y: dict[str, Any], shapes: Sequence[Any] = ()
) -> Figure:
    from plotly.graph_objects import Figure

    layout = {
        "xaxis": x,
        "yaxis": y,
        "shapes": list(shapes),
        "height": HEIGHT,
        "font": {"family": FONT, "size": 13, "color": page.ink},
        "paper_bgcolor": page.paper,
        "plot_bgcolor": page.paper,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0, "font": {"size": 12}, **LEGEND},
        "hoverlabel": {"font": {"family": FONT}},
        "template": "none",
    }
    return Figure({"data": list(traces), "layout": layout})
