"""Accuracies of tasks to expect at a loss: chance + (1 − chance) / (1 + e^((L − middle) / width)).

`accuracy.json` is fitted by `python -m studies.forecasts accuracy` to the 104 dense models of Gadre et al. 2024 (arXiv
2403.08540): one suite of tasks, the loss on C4 in nats per token of GPT-NeoX's tokenizer. A loss on other text by
another tokenizer is another number for the same model: ln L may be off by `shift`, the same way for all models.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

from hub.base import strict_json
from hub.base.errors import InputError, unknown
from hub.base.fields import parse_names

FITS = Path(__file__).with_name("accuracy.json")
FORMAT = "accuracy_of_loss"
VERSION = 1
# A task follows the loss up to this error on a corpus left out, over the spread of the accuracies.
FOLLOWS = 0.5
# The factor by which a loss may lie beyond the losses measured.
REACH = 1.33


@dataclass(frozen=True)
class Task:
    """The curve of a task, with its errors.

    `corpora` and `largest` are the RMSE of the accuracy on a corpus left out and on the largest models left out,
    `spread` is the standard deviation of the models' accuracies.
    `chance` is fitted, too: small models often score below 1 / choices. The ceiling is 1.
    """

    name: str
    chance: float
    middle: float
    width: float
    corpora: float
    largest: float
    spread: float

    @property
    def follows(self) -> bool:
        """True if the loss on one corpus predicts the accuracy of models trained on another."""
        return self.corpora <= FOLLOWS * self.spread

    def accuracy(self, loss: float) -> float:
        """Compute the accuracy to expect at a loss."""
        power = math.exp((loss - self.middle) / self.width)
        return self.chance + (1.0 - self.chance) / (1.0 + power)


@cache
def _fits() -> Mapping[str, Any]:
    fits = dict(strict_json.read(FITS, FORMAT, VERSION))
    fits["tasks"] = {name: Task(name, *values) for name, values in fits["tasks"].items()}
    return fits


def parse_tasks(accuracy: str | Collection[str]) -> list[Task]:
    """Read "arc_easy,hellaswag" or a list. InputError for unknown tasks and those that do not follow the loss."""
    names = parse_names(accuracy, "accuracy")
    if not names:
        return []
    tasks = _fits()["tasks"]
    available = [name for name, task in tasks.items() if task.follows]
    selected = []
    for name in names:
        if name not in tasks:
            raise InputError(unknown("accuracy=", name, available))
        task = tasks[name]
        if not task.follows:
            error = f"error {task.corpora:.3f} on a corpus left out, standard deviation {task.spread:.3f}"
            raise InputError(f"accuracy={name!r} does not follow the loss ({error}); there are {', '.join(available)}")
        selected.append(task)
    return selected


def predict_accuracies(
    tasks: Sequence[Task], loss: float, interval: tuple[float, float] | None, level: float
) -> dict[str, dict[str, float]] | None:
    """Predict the accuracy of each task, `low` and `high` at `level`, for a loss with its interval of this level.

    None without tasks. InputError for a loss that is far from all those measured, as losses in other units are.
    """
    if not tasks:
        return None
    fits = _fits()
    lowest, highest = fits["losses"]
    if not lowest / REACH <= loss <= highest * REACH:
        raise InputError(
            f"accuracy: loss {loss:.3g} is far from those measured, {lowest:.3g} to {highest:.3g} nats per token"
        )
    z = NormalDist().inv_cdf(0.5 + level / 2)
    half_width = math.log(interval[1] / interval[0]) / 2 if interval else 0.0
    factor = math.exp(math.hypot(half_width, z * fits["shift"]))
    answers = {}
    for task in tasks:
        accuracy = task.accuracy(loss)
        error = z * max(task.corpora, task.largest)
        low = accuracy - math.hypot(accuracy - task.accuracy(loss * factor), error)
        high = accuracy + math.hypot(task.accuracy(loss / factor) - accuracy, error)
        answers[task.name] = {"accuracy": accuracy, "low": max(low, 0.0), "high": min(high, 1.0)}
    return answers


def describe_accuracies(tasks: Sequence[Task], losses: Sequence[float]) -> tuple[str, ...]:
    """Say how far to trust accuracies, a sentence each."""
    if not tasks:
        return ()
    fits = _fits()
    source = f"accuracies are those of {fits['what']}"
    sentences = [f"{source}; a loss on other text or tokens is off by {fits['shift']:.0%}, alike for all rows"]
    lowest = fits["losses"][0]
    if min(losses) < lowest:
        sentences.append(f"no model with a loss below {lowest:.2f} was measured: accuracies are extrapolated")
    return tuple(sentences)


def accuracy_cells(accuracy: Mapping[str, Mapping[str, float]] | None) -> dict[str, str]:
    """Format the answer of `predict_accuracies` for a table."""
    cells = {}
    for name, value in (accuracy or {}).items():
        cells[name] = f"{value['accuracy']:.2f} ({value['low']:.2f}–{value['high']:.2f})"
    return cells
