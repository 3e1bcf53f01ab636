"""docs/studies/models.md: released models in the terms of the published law.

scaling_law/explorer/models.json holds, for each model, the fields of its config.json that sizes depend on and the
address they were read at; and, where one was found, the number of training tokens with its address.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hub.base import strict_json
from hub.base.errors import InputError
from hub.base.markdown import escaped
from scaling_law import Description, describe
from scaling_law.figures import drawing
from studies.common import Page

ENTRIES = Path(__file__).parents[2] / "scaling_law" / "explorer" / "models.json"


class Entry(NamedTuple):
    """A model of the page: where its configuration and its number of training tokens were read."""

    name: str
    description: Description
    source: str
    tokens_source: str | None


def read_entries(path: str | Path) -> list[Entry]:
    """The models of the page, in order of their active parameters.

    ValueError for a model without configuration or source, or with tokens from nowhere.
    """
    entries = []
    for data in strict_json.loads(Path(path).read_bytes(), what=str(path))["models"]:
        if missing := {"name", "config", "source"} - set(data):
            raise InputError(f"{data.get('name', data)!r}: lacks {', '.join(sorted(missing))}")
        if ("tokens" in data) != ("tokens_source" in data):
            raise InputError(f"{data['name']!r}: tokens and tokens_source go together")
        description = describe(data["config"], data.get("tokens"))
        entries.append(Entry(data["name"], description, data["source"], data.get("tokens_source")))
    return sorted(entries, key=lambda entry: entry.description.architecture.n_active)


def models(entries: list[Entry]) -> Iterator[tuple[object, ...]]:
    """What each model is; parameters with embedding and head."""
    head = "n_active", "n_total", "exact", "experts", "per_token", "shared", "granularity", "e_of_the_law"
    yield "model", *head, "flops_per_token", "kv_bytes_per_token", "kv_bytes_per_sequence"
    for entry in entries:
        a = entry.description.architecture
        ratios = f"{a.granularity:.3g}", f"{a.experts_equivalent:.3g}"
        experts = a.experts, a.experts_per_token, a.shared_experts, *ratios
        caches = f"{a.kv_bytes_per_token():.10g}", f"{a.kv_bytes_per_sequence():.10g}"
        costs = f"{a.training_flops(1):.4g}", *caches
        yield entry.name, a.n_active, a.n_total, entry.description.model.parameters, *experts, *costs


def models_predictions(entries: list[Entry]) -> Iterator[tuple[object, ...]]:
    """What the law says of each model whose training tokens are known, and its own choice; empty where refused."""
    yield "model", "tokens", "flops", "loss", "law_experts", "law_n_active", "law_tokens", "law_loss"
    for entry in entries:
        if (p := entry.description.prediction) is not None:
            best = p.optimum.best if p.optimum else None
            choice = (best.experts, best.n_active, best.tokens) if best else ("",) * 3
            losses = "" if p.beyond_guard else f"{p.loss:.3f}", f"{best.loss:.3f}" if best else ""
            law = (f"{value:.4g}" if best else "" for value in choice)
            yield entry.name, f"{p.tokens:g}", f"{p.training_flops:.4g}", losses[0], *law, losses[1]


def models_beside_the_law(entries: list[Entry]) -> Any:
    """Active parameters against training tokens: each model, and by a line what the law would train at its cost."""
    ax: Any = drawing.axes_or_new(None, 7.6, 5.4)
    for entry in entries:
        if (p := entry.description.prediction) is not None:
            a = entry.description.architecture
            colour = drawing.colour_of(a.experts_equivalent)
            ax.plot(a.n_active, p.tokens, "X" if p.beyond_guard else "o", color=colour, markersize=6, zorder=3)
            if p.optimum is not None:
                best = p.optimum.best
                ax.plot([a.n_active, best.n_active], [p.tokens, best.tokens], color="0.7", linewidth=0.8, zorder=1)
                style = {"markerfacecolor": "none", "color": drawing.colour_of(best.experts), "markersize": 6}
                ax.plot(best.n_active, best.tokens, "o", **style, zorder=2)
    for e in (1, 2, 4, 8, 16, 32, 64):
        ax.plot([], [], "o", color=drawing.colour_of(e), markersize=5, label=drawing.label_of(e))
    for marker, fill_style, label in (("o", "none", "the law's choice"), ("X", "full", "loss refused")):
        ax.plot([], [], marker, color="0.4", fillstyle=fill_style, markersize=6, linestyle="", label=label)
    drawing.log_axis(ax, drawing.ACTIVE)
    drawing.log_axis(ax, drawing.TOKENS, "y")
    drawing.shared_legend(ax)
    return ax


def sources(entries: list[Entry]) -> Iterator[str]:
    """Where the configuration and the number of tokens of each model were read."""
    lines = []
    for entry in entries:
        tokens = f"[training tokens]({entry.tokens_source})" if entry.tokens_source else "training tokens not found"
        lines.append(f"- {escaped(entry.name)}: [configuration]({entry.source}), {tokens}")
    yield "\n".join(lines)


PAGE = Page(
    read=lambda: read_entries(ENTRIES),
    blocks=(sources,),
    tables=(models, models_predictions),
    figures=(models_beside_the_law,),
)
