"""The tools of all figures: one colour for each E, loss curves with their range and interval, axes, legends, files."""

from __future__ import annotations

import io
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hub.base.atomic import write_bytes
from hub.base.errors import InputError
from hub.base.paths import local_path
from hub.base.units import format_count
from scaling_law.figures.curves import Curve
from scaling_law.size.arrays import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
DARK = "0.25"
DASHED = (0, (4, 2))
OUTSIDE = "outside the fitted range"
INTERVAL = "95 % interval"
BOUNDARY = "95 % interval of the boundary"
EDGE = "edge of the trusted region"
LOSS = "loss (nats per token)"
TOKENS = "training tokens D"
ACTIVE = "active parameters N_act"
FLOPS = "training FLOPs"
# Powers log2 E and their colours: those of Okabe and Ito, from cold to warm, and wine. All three kinds of colour
# blindness tell any two apart; an E between takes a colour between, and from 128 on they darken to brown.
_POWERS = (0, 1, 2, 3, 4, 5, 6, 7, 10)
_COLOURS = ["#1f1f1f", "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#882255", "#4D3000"]
# On a dark page dense is light grey, E = 2 is brighter, and from 128 on colours brighten to sand.
_COLOURS_ON_DARK = ["#C8C8CC", "#2B8CCB", *_COLOURS[2:-2], "#AA4499", "#C9A66B"]


def colour_of(experts: float, dark: bool = False) -> tuple[float, float, float]:
    """Return the colour (red, green, blue) of E in every figure, for E ≥ 1: near-black for dense, then blue to red.

    On a `dark` page the darkest are bright.
    """
    colours = _COLOURS_ON_DARK if dark else _COLOURS
    power = np.log2(max(experts, 1.0))
    # Red, green and blue stand at these places of "#rrggbb".
    channels = []
    for i in (1, 3, 5):
        values = [int(colour[i : i + 2], 16) / 255 for colour in colours]
        channels.append(float(np.interp(power, _POWERS, values)))
    red, green, blue = channels
    return red, green, blue


def log_ticks(low: float, high: float, most: float) -> list[float]:
    """Return round numbers from `low` to `high` on a logarithmic axis with room for about `most`."""
    first = int(np.floor(np.log10(low)))
    last = int(np.ceil(np.log10(high)))
    ticks: list[float] = []
    for digits in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        candidates = [digit * 10.0**power for power, digit in product(range(first, last + 1), digits)]
        ticks = [tick for tick in candidates if low <= tick <= high]
        if len(ticks) <= max(2, most):
            return ticks
    # These are powers of ten.
    return ticks[:: int(np.ceil(len(ticks) / most))]


def label_of(experts: float) -> str:
    """Return the label of E in legends."""
    return "dense" if experts == 1 else f"E = {experts:.5g}"


def new_figure(
    width: float = 6.4,
    height: float = 4.4,
    columns: int = 1,
    rows: int = 1,
    dpi: float = 150,
    **options: Any,
) -> tuple[Figure, Any]:
    """Make a figure and its axes without any global state of pyplot; a notebook shows the figure for either."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, **options)
    for ax in np.atleast_1d(axes).flat:
        ax._repr_png_ = partial(png, figure)
        ax.grid(True, alpha=0.25, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    figure._repr_png_ = partial(png, figure)  # type: ignore[attr-defined]
    if isinstance(axes, np.ndarray):
        axes = axes.view(Panels)
    return figure, axes


class Panels(np.ndarray):
    """The axes of one new figure, which a notebook shows."""

    def _repr_png_(self) -> bytes:
        return png(self)


def axes_or_new(ax: Any, width: float = 6.4, height: float = 4.4, **options: Any) -> Axes:
    """Return these axes, or those of a new figure for None."""
    if ax is not None:
        return ax
    _, ax = new_figure(width, height, **options)
    return ax


def panels_or_new(axes: Any, count: int, width: float, height: float, **options: Any) -> NDArray[Any]:
    """Return `count` axes in a row: these, or those of a new figure for None. ValueError for another number."""
    if axes is None:
        _, rows = new_figure(width, height, columns=count, squeeze=False, **options)
        return cast("NDArray[Any]", rows[0])
    panels = np.atleast_1d(np.asarray(axes, object)).ravel()
    if len(panels) != count:
        raise InputError(f"axes: {len(panels)} given, {count} are needed")
    return panels


def save(figure: Any, path: str | Path) -> Path:
    """Write a figure, or that of axes, in the format of the suffix, one of `SUFFIXES`."""
    target = local_path(path)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"path={str(path)!r}: the suffix must be one of {', '.join(SUFFIXES)}")
    write_bytes(target, _render(figure, suffix))
    return target


def png(figure: Any) -> bytes:
    """Render a figure, or that of axes, as a PNG; the same figure gives the same bytes."""
    return _render(figure, ".png")


def _render(figure: Any, suffix: str) -> bytes:
    if not hasattr(figure, "savefig"):
        axes = np.atleast_1d(np.asarray(figure, object))
        figure = axes.flat[0].figure
    content = io.BytesIO()
    # What would differ between days and versions is left out.
    metadata = {".png": {"Software": None}, ".svg": {"Date": None}}.get(suffix)
    figure.savefig(content, format=suffix[1:], metadata=metadata)
    return content.getvalue()


# ------------------------------------------------------------------ curves


def draw(ax: Axes, curve: Curve) -> None:
    """Draw the losses of a curve with their interval, and its mark."""
    draw_curve(ax, curve.x, curve.loss, curve.inside, curve.experts, curve.interval)
    ax.plot(*curve.marked, "o", color=colour_of(curve.experts), markersize=5, markeredgecolor="white")


def draw_curve(
    ax: Axes,
    x: FloatArray,
    y: FloatArray,
    inside: Any,
    experts: float,
    interval: Any = None,
    **style: Any,
) -> None:
    """Draw a line in the colour of E: solid where `inside` [k], dashed elsewhere, with the band of a 95 % interval."""
    style = {"color": colour_of(experts), "linewidth": 1.4, **style}
    label = style.pop("label", label_of(experts))
    ax.plot([], [], label=label, **style)
    if not inside.all():
        ax.plot(x, y, linestyle=DASHED, label="_" + OUTSIDE, **style)
    if inside.any():
        ax.plot(x, np.where(inside, y, np.nan), **style)
    if interval is not None:
        low, high = interval
        colour = colour_of(experts)
        ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, label="_" + INTERVAL)


# ------------------------------------------------------------------ axes and legends


def legend(ax: Axes, **options: Any) -> None:
    """Draw the legend of `ax`, with notes on dashed lines and bands where there are any."""
    entries = _entries(ax)
    style = {"frameon": False, **options}
    ax.legend(list(entries.values()), list(entries), **style)


def shared_legend(ax: Axes, loc: str = "outside lower center") -> None:
    """Draw one legend for all panels of the figure, below or above them, in as many rows as its width needs."""
    entries = _entries(ax)
    figure = ax.figure
    # An entry is about this wide with letters of size 9.
    inches = sum(0.65 + 0.085 * len(text) for text in entries)
    rows = int(np.ceil(inches * figure.dpi / figure.bbox.width))
    columns = -(-len(entries) // rows)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc=loc,
        ncols=columns,
        frameon=False,
        fontsize=9,
    )


def _entries(ax: Axes) -> dict[str, Any]:
    """Return the handles of a legend by their texts: the labelled artists, then notes that hidden labels ask for."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, labels = ax.get_legend_handles_labels()
    hidden = {artist.get_label() for artist in ax.get_children()}
    notes = {
        OUTSIDE: Line2D([], [], color="0.4", linestyle=DASHED, linewidth=1.4),
        INTERVAL: Patch(color="0.4", alpha=0.25, linewidth=0),
        BOUNDARY: Line2D([], [], color=DARK, marker="|", markersize=5, linewidth=1.2),
    }
    entries = dict(zip(labels, handles, strict=True))
    for text, handle in notes.items():
        if "_" + text in hidden:
            entries[text] = handle
    return entries


def log_axis(ax: Axes, label: str, name: str = "x") -> None:
    """Make an axis logarithmic, with ticks as counts (2M, 10B), as many as there is room for."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    def format_tick(value: float, _: Any) -> str:
        return format_count(value) if value >= 1 else f"{value:g}"

    ax.set(**{f"{name}scale": "log", f"{name}label": label})
    low, high = getattr(ax, f"get_{name}lim")()
    extent = ax.get_window_extent()
    pixels = extent.width if name == "x" else extent.height
    inches = pixels / ax.figure.dpi
    axis = getattr(ax, f"{name}axis")
    axis.set_major_locator(FixedLocator(log_ticks(low, high, inches / 0.45)))
    axis.set_major_formatter(FuncFormatter(format_tick))
    axis.set_minor_formatter(NullFormatter())
