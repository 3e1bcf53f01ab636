"""Accuracies of tasks to expect at a loss: chance + (1 − chance) / (1 + e^((L − middle) / width)).

`accuracy.json` is fitted by `python -m studies.forecasts accuracy` to the 104 dense models of Gadre et al. 2024 (arXiv
2403.08540): one suite of tasks, the loss on C4 in nats per token of GPT-NeoX's tokenizer. A loss on other text by
another tokenizer is another number for the same model: ln L may be off by `shift`, the same way for all models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

from hub.base import strict_json
from hub.base.errors import InputError, unknown

FITS = Path(__file__).with_name("accuracy.json")
FORMAT, VERSION = "accuracy_of_loss", 1
FOLLOWS = 0.5  # error on a corpus left out, over the spread of the accuracies, up to which a task follows the loss
REACH = 1.33  # how far beyond the losses measured a loss may lie


@dataclass(frozen=True)
class Task:
    """A task's curve; RMSE on each corpus and on the largest models when left out, and the models' standard deviation.

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
        return self.corpora <= FOLLOWS * self.spread

    def at(self, loss: float) -> float:
        return self.chance + (1.0 - self.chance) / (1.0 + math.exp((loss - self.middle) / self.width))


@cache
def _fits() -> Mapping[str, Any]:
    fits = strict_json.read(FITS, FORMAT, VERSION)
    return fits | {"tasks": {name: Task(name, *values) for name, values in fits["tasks"].items()}}


def tasks_named(accuracy: str | Sequence[str]) -> list[Task]:
    """The tasks of "arc_easy,hellaswag" or a list. InputError for unknown ones and those that do not follow loss."""
    names = accuracy.split(",") if isinstance(accuracy, str) else accuracy
    tasks, wanted = _fits()["tasks"], [name.strip() for name in names if name.strip()]
    follow = [name for name, task in tasks.items() if task.follows]
    for name in wanted:
        if name not in tasks:
            raise InputError(unknown("accuracy=", name, follow))
        if not (task := tasks[name]).follows:
            error = f"error {task.corpora:.3f} on a corpus left out, standard deviation {task.spread:.3f}"
            raise InputError(f"accuracy={name!r} does not follow the loss ({error}); there are {', '.join(follow)}")
    return [tasks[name] for name in wanted]


def expected(
    tasks: Sequence[Task], loss: float, interval: tuple[float, float] | None, level: float
) -> dict[str, dict[str, float]] | None:
    """None for no tasks; task → accuracy, `low` and `high` at `level`, for a loss with its interval of this level.

    InputError for a loss that is far from all those measured, as losses in other units are.
    """
    if not tasks:
        return None
    fits, z = _fits(), NormalDist().inv_cdf(0.5 + level / 2)
    low, high = fits["losses"]
    if not low / REACH <= loss <= high * REACH:
        raise InputError(
            f"accuracy: loss {loss:.3g} is far from those measured, {low:.3g} to {high:.3g} nats per token"
        )
    spread = math.log(interval[1] / interval[0]) / 2 if interval else 0.0
    off = math.exp(math.hypot(spread, z * fits["shift"]))
    answers = {}
    for task in tasks:
        at, error = task.at(loss), z * max(task.corpora, task.largest)
        ends = (at - math.hypot(at - task.at(loss * off), error), at + math.hypot(task.at(loss / off) - at, error))
        answers[task.name] = {"accuracy": at, "low": max(ends[0], 0.0), "high": min(ends[1], 1.0)}
    return answers


def remarks(tasks: Sequence[Task], losses: Sequence[float]) -> tuple[str, ...]:
    """What accuracies are worth, a sentence each."""
    if not tasks:
        return ()
    fits = _fits()
    what = f"accuracies are those of {fits['what']}; a loss on other text or tokens is off by {fits['shift']:.0%}, "
    beyond = f"no model with a loss below {fits['losses'][0]:.2f} was measured: accuracies are extrapolated"
    return (f"{what}alike for all rows", *([beyond] if min(losses) < fits["losses"][0] else []))


def accuracy_cells(accuracy: Mapping[str, Mapping[str, float]] | None) -> dict[str, str]:
    """How a table shows what `expected` answers."""
    return {name: "{accuracy:.2f} ({low:.2f}–{high:.2f})".format(**value) for name, value in (accuracy or {}).items()}
