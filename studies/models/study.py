"""docs/studies/models.md: released models in the terms of the published law.

scaling_law/explorer/models.json holds, for each model, the fields of its config.json that sizes depend on and the
address they were read at; and, where one was found, the number of training tokens with its address.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.plain import strict_json
from hub.plain.markdown import escaped
from hub.plain.units import UNKNOWN, format_bytes, format_count, format_flops
from scaling_law import Description, describe
from studies.common import fill

ENTRIES = Path(__file__).parents[2] / "scaling_law" / "explorer" / "models.json"
_FIELDS = {"name", "config", "source"}


@dataclass(frozen=True)
class Entry:
    """A model of the page: where its configuration and its number of training tokens were read."""

    name: str
    description: Description
    source: str
    tokens_source: str | None

    @classmethod
    def of(cls, data: dict[str, Any]) -> Entry:
        """ValueError for a model without configuration or source, or with tokens from nowhere."""
        if missing := _FIELDS - set(data):
            raise ValueError(f"{data.get('name', data)!r}: lacks {', '.join(sorted(missing))}")
        if ("tokens" in data) != ("tokens_source" in data):
            raise ValueError(f"{data['name']!r}: tokens and tokens_source go together")
        description = describe(data["config"], data.get("tokens"))
        return cls(data["name"], description, data["source"], data.get("tokens_source"))


def read_entries(path: str | Path) -> list[Entry]:
    """The models of the page, in order of their active parameters."""
    data = strict_json.loads(Path(path).read_bytes(), what=str(path))
    return sorted(map(Entry.of, data["models"]), key=lambda entry: entry.description.architecture.n_active)


def write(page: Path) -> list[Path]:
    """Replace the blocks of the Markdown file `page`; ValueError if it lacks one of them."""
    return [fill(page, {"sizes": sizes, "predictions": predictions, "sources": sources}, read_entries(ENTRIES))]


def sizes(entries: list[Entry]) -> Iterator[tuple[str, ...]]:
    """What each model is; parameters with embedding and head."""
    yield "model", "N_act", "N_total", "exact", "experts", "granularity", "E of the law", "6 N per token", "KV / token"
    for entry in entries:
        a = entry.description.architecture
        experts = "dense" if a.experts == 1 else f"{a.experts_per_token} of {a.experts}"
        experts += f" + {a.shared_experts}" if a.shared_experts else ""
        yield (
            entry.name,
            format_count(a.n_active),
            format_count(a.n_total),
            f"{entry.description.model.parameters:,}",
            experts,
            f"{a.granularity:.3g}",
            f"{a.experts_equivalent:.3g}",
            format_flops(a.training_flops(1)),
            format_bytes(a.kv_cache_bytes(1)),
        )


def predictions(entries: list[Entry]) -> Iterator[tuple[str, ...]]:
    """What the law says of each model whose training tokens are known, and its own choice for the same cost."""
    yield "model", "tokens D", "D/N_act", "FLOPs", "loss", "the law's E", "N_act", "D", "its loss", "beyond the guard"
    for entry in entries:
        if (p := entry.description.prediction) is None:
            continue
        chosen = (UNKNOWN,) * 4
        if p.optimum is not None:
            best = p.optimum.best
            chosen = f"{best.experts:g}", format_count(best.n_active), format_count(best.tokens), f"{best.loss:.3f}"
        per_parameter = format_count(p.tokens / entry.description.architecture.n_active)
        loss = f"{p.loss:.3f}" if p.trusted else "refused"
        beyond = "" if p.trusted and p.optimum else "the model" if not p.trusted else "the choice"
        yield entry.name, format_count(p.tokens), per_parameter, format_flops(p.training_flops), loss, *chosen, beyond


def sources(entries: list[Entry]) -> Iterator[str]:
    """Where the configuration and the number of tokens of each model were read."""
    lines = []
    for entry in entries:
        tokens = f"[training tokens]({entry.tokens_source})" if entry.tokens_source else "training tokens not found"
        lines.append(f"- {escaped(entry.name)}: [configuration]({entry.source}), {tokens}")
    yield "\n".join(lines)
