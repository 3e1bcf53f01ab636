"""What is drawn in a figure of the page, in sentences: nothing that this figure does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scaling_law.explorer.question import HOURS, Question

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LINKED = "This page's address restores this view."
DASHED = "Dashed lines lie outside the known range of the law's runs"
KINKS = (
    "Kinks are where the micro-batch, sharding or gradient checkpointing changes; the bands leave out the uncertainty "
    "of step times."
)


def describe_figure(question: Question, figure: Figure) -> str:
    """Write the caption of the figure of a question."""
    elements = _elements(figure)
    sentences = [*WRITERS[question.view](elements)]
    if question.view == "memory" and question.memory and "limit" not in elements:
        sentences.append("The memory limit lies outside of this figure.")
    if question.view == "isoflop" and question.unit == HOURS:
        sentences.append(KINKS)
    return " ".join([*sentences, LINKED])


def _elements(figure: Figure) -> set[str]:
    """Name what a figure has: its traces, and "band", "bar", "shades", "dashed" and "faint"."""
    elements = {trace.name for trace in figure.data}
    for trace in figure.data:
        line: Any = getattr(trace, "line", None)
        if trace.type == "scatter" and trace.fill == "toself":
            elements.add("band")
        elif trace.type == "scatter" and line.dash == "dash":
            elements.add("faint" if trace.opacity else "dashed")
    kinds = [shape.type for shape in figure.layout.shapes]
    if "path" in kinds:
        elements.add("bar")
    if kinds.count("rect") > 1:
        elements.add("shades")
    return elements


def _lines(elements: set[str]) -> list[str]:
    """Say what dashed and faint lines mean, as far as there are any."""
    if "faint" in elements:
        return [f"{DASHED}, faint ones too far outside to be trusted."]
    return [f"{DASHED}."] if "dashed" in elements else []


def _bands(elements: set[str]) -> list[str]:
    return ["The band is the 95 % interval of the best E."] if "band" in elements else []


def _memory(elements: set[str]) -> list[str]:
    sentences = ["Each curve shows the best model of one E at each memory limit, up to the best size (dot)."]
    if "answer" in elements:
        sentences.append("The star is the best row of the table.")
    if "shades" in elements:
        faint = " that can be trusted" if "faint" in elements else ""
        sentences.append(f"Shading marks the best E{faint}.")
    if "bar" in elements:
        sentences.append("Bars are 95 % intervals of the limit from which one E beats another, open without a stroke.")
    return [*sentences, *_lines(elements)]


def _map(elements: set[str]) -> list[str]:
    sentences = [
        "Colour marks the E of the best row that the table would have for this budget and limit.",
        "It is weaker outside the range of the law's runs, weakest where that row is not trusted, and absent without "
        "an answer.",
    ]
    if "tie" in elements:
        sentences.append("Hatching marks ties.")
    if "models" in elements:
        sentences.append("Dots are released models, in the colour of their E.")
    if "question" in elements:
        sentences.append("The star is this question.")
    return sentences


def _isoflop(elements: set[str]) -> list[str]:
    sentences = [
        "Each curve spends the whole budget on models of one E, the larger ones on fewer tokens, from the largest "
        "that fits.",
        "Dots are the models of the table.",
    ]
    return [*sentences, *_bands(elements), *_lines(elements)]


def _tokens(elements: set[str]) -> list[str]:
    sentences = ["Each curve trains the table's model of one E (dot) on fewer or more tokens."]
    return [*sentences, *_bands(elements), *_lines(elements)]


WRITERS: dict[str, Callable[[set[str]], list[str]]] = {
    "memory": _memory,
    "map": _map,
    "isoflop": _isoflop,
    "tokens": _tokens,
}
