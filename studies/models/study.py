"""docs/studies/models.md: released models in the terms of the published law.

scaling_law/size/released.json holds, for each model, the fields of its config.json that sizes depend on and the
address they were read at; and, where one was found, the number of training tokens with its address.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hub.base import strict_json
from hub.base.errors import InputError
from hub.base.markdown import escape_markdown
from scaling_law import Description, describe
from scaling_law.figures import drawing
from studies.common import Page

ENTRIES = Path(__file__).parents[2] / "scaling_law" / "size" / "released.json"


class Entry(NamedTuple):
    """A model of the page: where its configuration and its number of training tokens were read."""

    name: str
    description: Description
    source: str
    tokens_source: str | None


def read_entries(path: str | Path) -> list[Entry]:
    """Read the models of the page, in order of their active parameters.

    Raises InputError for a model without configuration or source, or with tokens from nowhere.
    """
    entries = []
    for data in strict_json.loads(Path(path).read_bytes(), what=str(path))["models"]:
        missing = {"name", "config", "source"} - set(data)
        if missing:
            raise InputError(f"{data.get('name', data)!r}: lacks {', '.join(sorted(missing))}")
        if ("tokens" in data) != ("tokens_source" in data):
            raise InputError(f"{data['name']!r}: tokens and tokens_source go together")
        description = describe(data["config"], data.get("tokens"))
        entries.append(Entry(data["name"], description, data["source"], data.get("tokens_source")))
    return sorted(entries, key=lambda entry: entry.description.architecture.n_active)


def models(entries: list[Entry]) -> Iterator[tuple[object, ...]]:
    """List the sizes and costs of each model; parameters with embedding and head."""
    sizes = ("n_active", "n_total", "exact", "experts", "per_token", "shared", "granularity", "e_of_the_law")
    yield "model", *sizes, "flops_per_token", "kv_bytes_per_token", "kv_bytes_per_sequence"
    for entry in entries:
        a = entry.description.architecture
        yield (
            entry.name,
            a.n_active,
            a.n_total,
            entry.description.model.parameters,
            a.experts,
            a.experts_per_token,
            a.shared_experts,
            f"{a.granularity:.3g}",
            f"{a.experts_equivalent:.3g}",
            f"{a.training_flops(1):.4g}",
            f"{a.kv_bytes_per_token():.10g}",
            f"{a.kv_bytes_per_sequence():.10g}",
        )


def models_predictions(entries: list[Entry]) -> Iterator[tuple[object, ...]]:
    """List the law's loss of each model whose tokens are known, and its own choice; empty where it is refused."""
    yield "model", "tokens", "flops", "loss", "law_experts", "law_n_active", "law_tokens", "law_loss"
    for entry in entries:
        prediction = entry.description.prediction
        if prediction is None:
            continue
        choice = ("",) * 4
        if prediction.optimum:
            best = prediction.optimum.best
            choice = (f"{best.experts:.4g}", f"{best.n_active:.4g}", f"{best.tokens:.4g}", f"{best.loss:.3f}")
        loss = "" if prediction.beyond_guard else f"{prediction.loss:.3f}"
        yield entry.name, f"{prediction.tokens:g}", f"{prediction.training_flops:.4g}", loss, *choice


def models_beside_the_law(entries: list[Entry]) -> Any:
    """Draw active parameters against tokens: each model, and by a line what the law would train at its cost."""
    ax: Any = drawing.axes_or_new(None, 7.6, 5.4)
    for entry in entries:
        _draw_model(ax, entry)
    for e in (1, 2, 4, 8, 16, 32, 64):
        ax.plot([], [], "o", color=drawing.colour_of(e), markersize=5, label=drawing.label_of(e))
    for marker, fill_style, label in (("o", "none", "the law's choice"), ("X", "full", "loss refused")):
        ax.plot([], [], marker, color="0.4", fillstyle=fill_style, markersize=6, linestyle="", label=label)
    drawing.log_axis(ax, drawing.ACTIVE)
    drawing.log_axis(ax, drawing.TOKENS, "y")
    drawing.shared_legend(ax)
    return ax


def _draw_model(ax: Any, entry: Entry) -> None:
    """Draw a model whose training tokens are known, and the law's choice."""
    prediction = entry.description.prediction
    if prediction is None:
        return
    a = entry.description.architecture
    marker = "X" if prediction.beyond_guard else "o"
    colour = drawing.colour_of(a.experts_equivalent)
    ax.plot(a.n_active, prediction.tokens, marker, color=colour, markersize=6, zorder=3)
    if prediction.optimum is None:
        return
    best = prediction.optimum.best
    ax.plot([a.n_active, best.n_active], [prediction.tokens, best.tokens], color="0.7", linewidth=0.8, zorder=1)
    colour = drawing.colour_of(best.experts)
    ax.plot(best.n_active, best.tokens, "o", markerfacecolor="none", color=colour, markersize=6, zorder=2)


def sources(entries: list[Entry]) -> Iterator[str]:
    """List where the configuration and the number of tokens of each model were read."""
    lines = []
    for entry in entries:
        tokens = "training tokens not found"
        if entry.tokens_source:
            tokens = f"[training tokens]({entry.tokens_source})"
        lines.append(f"- {escape_markdown(entry.name)}: [configuration]({entry.source}), {tokens}")
    yield "\n".join(lines)


PAGE = Page(
    read=lambda: read_entries(ENTRIES),
    blocks=(sources,),
    tables=(models, models_predictions),
    figures=(models_beside_the_law,),
)
