"""What the page shows of a question: the package's own table, plan and figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from hub.base.tables import Table, html
from hub.base.units import format_bytes, format_count, format_flops, parse_count
from scaling_law.explorer.question import HOURS, Question
from scaling_law.figures import curves, interactive
from scaling_law.figures.interactive import ModelPoint, Page
from scaling_law.law import Law
from scaling_law.planning.optimal_table import OptimalTable
from scaling_law.size.architecture import Architecture
from scaling_law.size.model_configs import read_model, released_models

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Draws for a figure's intervals; the table takes all.
DRAWS = 200
# Points of a curve, which a browser draws anew for each change.
POINTS = 120
# FLOPs and bytes of the map, and its points along each.
MAP_FLOPS = (1e18, 1e26)
MAP_MEMORY = (1e9, 1e13)
MAP_COLUMNS = 33
MAP_ROWS = 29


@dataclass(frozen=True)
class Results:
    """The parts of the page, in its order: Markdown, a figure, HTML, a shell's command, and YAML."""

    headline: str
    figure: Figure
    table: str
    command: str
    configuration: str


def answer(question: Question, law: Law, page: Page = interactive.LIGHT) -> Results:
    """Answer a question. ValueError names what is wrong with it, or why the law has no answer."""
    table = best_models(question, law)
    notes = []
    if question.unit == HOURS and question.view == "map":
        flops = format_flops(table.flops)
        notes.append(f"this map is for budgets of FLOPs: the star is at the {flops} of the best row")
    has_plan = True
    try:
        configuration = law.plan(**question.keywords()).to_yaml()
    # The GPUs may be able to train no model.
    except ValueError as error:
        has_plan = False
        configuration = "\n".join(f"# {line}" for line in wrap(f"no plan: {error}", 72))
    return Results(
        "\n\n".join(filter(None, [f"**{table.verdict}**", table.limit_of_trust])),
        draw_figure(question, law, table, page),
        html(_arrange(table.summary(), notes)),
        question.command(has_plan),
        configuration,
    )


def best_models(question: Question, law: Law) -> OptimalTable:
    return law.optimal(integral=True, accuracy=question.accuracy, **question.keywords())


def _arrange(summary: Table, notes: Sequence[str]) -> Table:
    """Put the last column, best or tie, first: a narrow page shows the left."""
    rows = [(row[-1], *row[:-1]) for row in summary.rows]
    return replace(
        summary,
        header=("verdict", *summary.header[:-1]),
        meanings=(summary.meanings[-1], *summary.meanings[:-1]),
        rows=rows,
        title=None,
        notes=[*notes, *summary.notes],
        all_warnings="the list below",
    )


def draw_figure(question: Question, law: Law, table: OptimalTable, page: Page) -> Figure:
    """Draw the figure of the question's view."""
    if law.draws is not None:
        law = law.replace(draws=law.draws[:DRAWS])
    budget = table.budget
    models = table.limits.to_fields()
    memory = models.pop("memory")
    del models["max_parameters"]
    experts = None
    if question.experts.strip():
        experts = [table.limits.to_question(row.experts) for row in table]
    if question.view == "memory":
        by_memory = curves.memory_curves(law, budget, experts, **models, points=POINTS, prefers_trusted=True)
        return interactive.loss_by_memory(by_memory, page, memory, (table.best.memory_bytes, table.best.loss))
    dots = {row.experts: (row.tokens, row.loss) for row in table}
    if question.view == "isoflop":
        by_budget = curves.budget_curves(law, budget, experts, **models, memory=memory, points=POINTS)
        return interactive.loss_by_tokens(by_budget, page, curves.shown_losses(by_budget), table.best.experts, dots)
    if question.view == "tokens":
        by_model = curves.token_curves(law, table, POINTS)
        low, high = curves.shown_losses(by_model)
        # These curves fall on beyond their dots.
        losses = (low - (high - low) / 2, high)
        return interactive.loss_by_tokens(by_model, page, losses, table.best.experts, dots)
    budgets = _grid(MAP_FLOPS, table.flops, MAP_COLUMNS)
    memory_limits = _grid(MAP_MEMORY, memory, MAP_ROWS)
    best = curves.best_experts(law, budgets, memory_limits, experts, **models)
    return interactive.best_by_budget(best, page, (table.flops, memory), locate_models(table.limits.kv_tokens))


def _grid(span: tuple[float, float], marked: float | None, points: int) -> np.ndarray:
    """Make equal steps of the logarithm over `span`, extended to the marked value."""
    low, high = span
    if marked is not None:
        low = min(low, marked)
        high = max(high, marked)
    return np.geomspace(low, high, points)


@cache
def trained_models() -> Sequence[tuple[str, Architecture, float]]:
    """Read (name, architecture, training tokens) of the models of docs/studies/models.md whose tokens are known."""
    models = []
    for model in released_models():
        if "tokens" in model:
            architecture = read_model(model["config"]).architecture
            models.append((model["name"], architecture, parse_count(model["tokens"])))
    return models


def locate_models(kv_tokens: float) -> list[ModelPoint]:
    """Locate released models on the map: bf16 weights and a KV cache of so many tokens."""
    points = []
    for name, a, tokens in trained_models():
        flops = a.training_flops(tokens)
        experts = a.experts_equivalent
        memory = a.weight_bytes(2.0) + a.kv_cache_bytes(kv_tokens)
        size = f"{format_count(a.n_active)} active of {format_count(a.n_total)}, {format_count(tokens)} tokens"
        text = f"{name}: E = {experts:.3g}<br>{size}<br>{format_flops(flops)} FLOPs, {format_bytes(memory)}"
        points.append(ModelPoint(name, flops, memory, experts, text))
    return points
