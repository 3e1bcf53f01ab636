"""What the page shows of a question: the package's own table, plan and figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from hub.base import strict_json
from hub.base.markdown import escaped
from hub.base.units import format_bytes, format_count, format_flops, parse_count
from scaling_law.explorer.question import HOURS, Question
from scaling_law.figures import curves, interactive
from scaling_law.figures.interactive import ModelPoint, Page
from scaling_law.figures.law_figures import shown_losses
from scaling_law.law import Law
from scaling_law.planning.optimal_table import OptimalTable
from scaling_law.planning.plan import Plan
from scaling_law.size.architecture import Architecture
from scaling_law.size.model_configs import read_model

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Draws for a figure's intervals; the table takes all.
DRAWS = 200
# Points of a curve, which a browser draws anew for each change.
POINTS = 120
MAP_FLOPS, MAP_MEMORY, MAP_POINTS = (1e18, 1e26), (1e9, 1e13), (33, 29)
MODELS = Path(__file__).with_name("models.json")


@dataclass(frozen=True)
class Shown:
    """What the page shows, in its order: `table` is HTML, `configuration` is YAML, the other texts are Markdown."""

    headline: str
    figure: Figure
    table: str
    notes: str
    command: str
    configuration: str


def answer(question: Question, law: Law, page: Page = interactive.LIGHT) -> Shown:
    """ValueError names what is wrong with the question, or why the law has no answer."""
    table = best_models(question, law)
    notes = [*table.warnings, table.rates]
    if question.unit == HOURS and question.view == "map":
        notes.insert(
            0, f"this map is for budgets of FLOPs: the star is at the {format_flops(table.flops)} of the best row"
        )
    plan, configuration = _plan(question, law)
    return Shown(
        f"**{table.verdict}**",
        drawn(question, law, table, page),
        html_of(table),
        "\n".join(f"- {escaped(note, 400)}" for note in notes),
        question.command(plan is not None),
        configuration,
    )


def best_models(question: Question, law: Law) -> OptimalTable:
    return law.optimal(integral=True, accuracy=question.accuracy, **question.keywords())


def planned(question: Question, law: Law) -> Plan:
    """The run of the best of them that the GPUs of the budget can train. ValueError where they can train none."""
    return law.plan(**question.keywords())


def html_of(table: OptimalTable) -> str:
    """The table with its last column, best or tie, at the front: a narrow page shows the left of it."""
    summary = table.summary()
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("verdict", *summary.header[:-1]))
    rows = []
    for row in summary.rows:
        verdict, *cells = map(escape, map(str, (row[-1], *row[:-1])))
        texts = "".join(f"<td>{text}</td>" for text in (verdict, *cells))
        rows.append(f'<tr class="{verdict}">{texts}</tr>')
    region = '<div class="wide" tabindex="0" role="region" aria-label="Best model of each E">'
    return f"{region}<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def _plan(question: Question, law: Law) -> tuple[Plan | None, str]:
    """The plan and its YAML; without one, as where the GPUs can train no model, a comment that says why."""
    try:
        plan = planned(question, law)
        return plan, plan.to_yaml()
    except ValueError as error:
        return None, "\n".join(f"# {line}" for line in wrap(f"no plan: {error}", 72))


def drawn(question: Question, law: Law, table: OptimalTable, page: Page) -> Figure:
    """The figure of the question's view."""
    thin, limits, budget = curves.thin_draws(law, DRAWS), question.limits(), question.budget
    memory = limits.pop("memory")
    experts = [row.experts for row in table] if question.experts.strip() else None
    if question.view == "memory":
        limits |= {"bytes_per_parameter": 2.0, "bytes_per_kv": 2.0}
        return interactive.loss_by_memory(
            curves.memory_curves(thin, budget, experts, **limits, points=POINTS), page, memory
        )
    if question.view == "isoflop":
        served = limits["inference_tokens"]
        along = curves.budget_curves(thin, budget, experts, inference_tokens=served, points=POINTS)
        return interactive.loss_by_tokens(along, page, shown_losses(along))
    if question.view == "tokens":
        return interactive.loss_by_tokens(curves.token_curves(thin, table, POINTS), page)
    budgets, sizes = _grid(MAP_FLOPS, table.flops, MAP_POINTS[0]), _grid(MAP_MEMORY, memory, MAP_POINTS[1])
    best = curves.best_experts(thin, budgets, sizes, experts, **limits)
    return interactive.best_by_budget(best, page, (table.flops, memory), placed(limits["kv_tokens"]))


def _grid(span: tuple[float, float], marked: float | None, points: int) -> np.ndarray:
    """Equal steps of the logarithm over `span`, extended to the marked value."""
    low, high = (span[0], span[1]) if marked is None else (min(span[0], marked), max(span[1], marked))
    return np.geomspace(low, high, points)


@cache
def released_models() -> Sequence[tuple[str, Architecture, float]]:
    """(name, architecture, training tokens) of the models of docs/studies/models.md whose tokens are known."""
    data = strict_json.loads(MODELS.read_bytes(), what=str(MODELS))
    models = (model for model in data["models"] if "tokens" in model)
    return [(m["name"], read_model(m["config"]).architecture, parse_count(m["tokens"])) for m in models]


def placed(kv_tokens: float) -> list[ModelPoint]:
    """Where released models lie on the map: bf16 weights and a KV cache of so many tokens."""
    points = []
    for name, a, tokens in released_models():
        flops, experts = a.training_flops(tokens), a.experts_equivalent
        memory = a.weight_bytes(2.0) + a.kv_cache_bytes(kv_tokens)
        size = f"{format_count(a.n_active)} active of {format_count(a.n_total)}, {format_count(tokens)} tokens"
        text = f"{name}: E = {experts:.3g}<br>{size}<br>{format_flops(flops)} FLOPs, {format_bytes(memory)}"
        points.append(ModelPoint(name, flops, memory, experts, text))
    return points
