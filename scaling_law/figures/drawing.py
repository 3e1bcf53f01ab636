"""Shared by all figures: one colour for each E, loss curves with their range and interval, axes, legends, files."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.atomic import write_bytes
from hub.base.errors import InputError
from hub.base.paths import local_path
from hub.base.units import format_count
from scaling_law.figures.curves import Curve, loss_curve
from scaling_law.formulas import Formula
from scaling_law.size.arrays import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
DARK, DASHED = "0.25", (0, (4, 2))
OUTSIDE, INTERVAL, BOUNDARY = "outside the fitted range", "95 % interval", "95 % interval of the boundary"
LOSS = "loss (nats per token)"
TOKENS, ACTIVE, FLOPS = "training tokens D", "active parameters N_act", "training FLOPs"
# log2 E → colour: those of Okabe and Ito, from cold to warm, and wine. Any two stay apart for the three kinds of
# colour blindness; an E between takes a colour between, and from 128 on they darken to brown.
_POWERS = (0, 1, 2, 3, 4, 5, 6, 7, 10)
_COLOURS = ["#1f1f1f", "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#882255", "#4D3000"]
_DENSE_ON_DARK = "#E8E8E8"


def colour_of(experts: float, dark: bool = False) -> tuple[float, float, float]:
    """The colour (red, green, blue) of E in every figure, for any E ≥ 1: near-black for dense, then blue to red.

    On a `dark` page dense is near-white.
    """
    colours = [_DENSE_ON_DARK, *_COLOURS[1:]] if dark else _COLOURS
    power = np.log2(max(experts, 1.0))
    channels = zip(*([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in colours), strict=True)
    red, green, blue = (float(np.interp(power, _POWERS, values)) for values in channels)
    return red, green, blue


def log_ticks(low: float, high: float, most: float) -> list[float]:
    """Round numbers from `low` to `high` on a logarithmic axis with room for about `most`."""
    powers, ticks = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1), []
    for digits in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [tick for power in powers for digit in digits if low <= (tick := digit * 10.0**power) <= high]
        if len(ticks) <= max(2, most):
            break
    return ticks


def label_of(experts: float) -> str:
    return "dense" if experts == 1 else f"E = {experts:g}"


def new_figure(
    width: float = 6.4, height: float = 4.4, columns: int = 1, rows: int = 1, dpi: float = 150, **options: Any
) -> tuple[Figure, Any]:
    """A figure and its axes without any global state of pyplot; a notebook shows the figure for either."""
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
    return figure, axes.view(Panels) if isinstance(axes, np.ndarray) else axes


class Panels(np.ndarray):
    """The axes of one new figure, which a notebook shows."""

    def _repr_png_(self) -> bytes:
        return png(self)


def axes_or_new(ax: Any, width: float = 6.4, height: float = 4.4, **options: Any) -> Axes:
    return new_figure(width, height, **options)[1] if ax is None else ax


def panels_or_new(axes: Any, count: int, width: float, height: float, **options: Any) -> NDArray[Any]:
    """`count` axes in a row: those given, or those of a new figure. ValueError for another number of them."""
    if axes is None:
        return cast("NDArray[Any]", new_figure(width, height, columns=count, squeeze=False, **options)[1][0])
    panels = np.atleast_1d(np.asarray(axes, object)).ravel()
    if len(panels) != count:
        raise InputError(f"axes: {len(panels)} given, {count} are needed")
    return panels


def save(drawn: Any, path: str | Path) -> Path:
    """Write what a figure function returned (axes or a figure) in the format of the suffix, one of `SUFFIXES`."""
    target = local_path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise InputError(f"path={str(path)!r}: the suffix must be one of {', '.join(SUFFIXES)}")
    suffix = target.suffix.lower().removeprefix(".")
    write_bytes(target, _rendered(drawn, suffix, {"Date": None} if suffix == "svg" else None))
    return target


def png(drawn: Any) -> bytes:
    """What a figure function returned, as the bytes of a PNG; the same figure gives the same bytes."""
    return _rendered(drawn, "png", {"Software": None})


def _rendered(drawn: Any, suffix: str, metadata: dict[str, None] | None) -> bytes:
    """The figure, or that of the axes, as the content of a file."""
    figure = drawn if hasattr(drawn, "savefig") else np.atleast_1d(np.asarray(drawn, object)).flat[0].figure
    figure.savefig(content := io.BytesIO(), format=suffix, metadata=metadata)
    return content.getvalue()


# ------------------------------------------------------------------ curves


def draw_loss(
    ax: Axes, law: Formula, x: ArrayLike, n_active: ArrayLike, tokens: ArrayLike, experts: float, **style: Any
) -> None:
    """The predicted loss along `x` [k] for N_act and D [k] (or numbers)."""
    draw(ax, loss_curve(law, x, {"n_active": n_active, "tokens": tokens}, experts), **style)


def draw(ax: Axes, curve: Curve, **style: Any) -> None:
    """The losses of a curve with their interval, and its mark."""
    draw_curve(ax, curve.x, curve.loss, curve.inside, curve.experts, curve.interval, **style)
    if curve.mark is not None:
        at = curve.x[curve.mark], curve.loss[curve.mark]
        ax.plot(*at, "o", color=colour_of(curve.experts), markersize=5, markeredgecolor="white")


def draw_curve(
    ax: Axes, x: FloatArray, y: FloatArray, inside: Any, experts: float, interval: Any = None, **style: Any
) -> None:
    """A line in the colour of E: solid where `inside` [k], dashed elsewhere, with the band of its interval."""
    style = {"color": colour_of(experts), "linewidth": 1.4, **style}
    label = style.pop("label", label_of(experts))
    ax.plot([], [], label=label, **style)
    if not inside.all():
        ax.plot(x, y, linestyle=DASHED, label="_" + OUTSIDE, **style)
    if inside.any():
        ax.plot(x, np.where(inside, y, np.nan), **style)
    draw_band(ax, x, interval, experts)


def draw_band(ax: Axes, x: FloatArray, interval: Any, experts: float, alpha: float = 0.18) -> None:
    """A 95 % interval (low [k], high [k]) along `x`, as a band in the colour of E; None draws nothing."""
    if interval is not None:
        ax.fill_between(x, *interval, color=colour_of(experts), alpha=alpha, linewidth=0, label="_" + INTERVAL)


# ------------------------------------------------------------------ axes and legends


def legend(ax: Axes, **options: Any) -> None:
    """The legend of `ax`, with notes on what dashed lines and bands mean where there are such."""
    entries = _entries(ax)
    ax.legend(list(entries.values()), list(entries), **{"frameon": False, **options})


def shared_legend(ax: Axes, loc: str = "outside lower center") -> None:
    """One legend for all panels of the figure, below or above them, in as many rows as its width needs."""
    entries, figure = _entries(ax), ax.figure
    # Widths at this size of the letters.
    inches = sum(0.65 + 0.085 * len(text) for text in entries)
    rows = int(np.ceil(inches * figure.dpi / figure.bbox.width))
    columns = -(-len(entries) // rows)
    figure.legend(list(entries.values()), list(entries), loc=loc, ncols=columns, frameon=False, fontsize=9)


def _entries(ax: Axes) -> dict[str, Any]:
    """Text → handle: the labelled artists of `ax`, then the notes that its hidden labels ask for."""
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
    return entries | {text: handle for text, handle in notes.items() if "_" + text in hidden}


def log_axis(ax: Axes, label: str, which: str = "x") -> None:
    """A logarithmic axis with ticks as counts (2M, 10B), as many as there is room for."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    ax.set(**{f"{which}scale": "log", f"{which}label": label})
    axis, (low, high) = getattr(ax, f"{which}axis"), getattr(ax, f"get_{which}lim")()
    extent = ax.get_window_extent()
    inches = (extent.width if which == "x" else extent.height) / ax.figure.dpi
    axis.set_major_locator(FixedLocator(log_ticks(low, high, inches / 0.45)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: format_count(x) if x >= 1 else f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())
