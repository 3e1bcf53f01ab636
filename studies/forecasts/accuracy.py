"""Accuracy from loss: curves of the 46 tasks of Gadre et al.'s models, judged on corpora and large models left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

import hub
from hub.base import strict_json
from hub.base.tables import join_words
from scaling_law.formulas import accuracy as curves
from studies.common import FloatArray, Page, Part, rms
from studies.forecasts.sets import GADRE_LOSS

TABLE = "gadre_overtraining.csv"
WHAT = "OpenLM's dense models in LLM-Foundry's suite, at the loss on C4 in nats per token of GPT-NeoX's tokenizer"
SOURCE = "mlfoundations/scaling at a003c49, MIT; Gadre et al. 2024, arXiv 2403.08540"
# English text from the web.
OTHER_TEXT = ("openlm", "paloma_c4_en", "paloma_falcon-refinedweb", "paloma_redpajama")
# Parameters above which models count as the largest, which are left out.
LARGE = 1e9
# Standard deviations of 90 % intervals.
Z = 1.645


@dataclass(frozen=True)
class Models:
    """The models' losses on C4, corpora and sizes, and accuracies by task, NaN where one is missing; [models] each.

    `other_losses` [texts, models] are those on `OTHER_TEXT`.
    """

    loss: FloatArray
    corpus: Any
    size: FloatArray
    accuracies: Mapping[str, FloatArray]
    other_losses: FloatArray

    @classmethod
    def read(cls, path: Path) -> Models:
        """Read the models of the public table."""
        rows = hub.load_rows(path).rows
        columns = {}
        for name in rows[0]:
            columns[name] = np.array([row[name] for row in rows])
        accuracies = {}
        losses = {}
        for name, values in columns.items():
            if name.startswith("acc:"):
                accuracies[name[4:]] = np.array(values, float)
            elif name.startswith("loss:"):
                losses[name.split("/")[1]] = np.array(values, float)
        return cls(
            columns[GADRE_LOSS].astype(float),
            columns["dataset"],
            columns["params"].astype(float),
            accuracies,
            np.array([losses[text] for text in OTHER_TEXT]),
        )

    @cached_property
    def tasks(self) -> list[Judged]:
        """Every task, judged."""
        return [self.judge(name) for name in self.accuracies]

    def judge(self, name: str) -> Judged:
        """Fit a task's curve, and judge it by the errors on models left out."""
        accuracy = self.accuracies[name]
        corpus_errors = np.zeros(len(accuracy))
        for corpus in sorted({*self.corpus}):
            is_left_out = self.corpus == corpus
            corpus_errors[is_left_out] = self._errors_on(accuracy, is_left_out)
        large_errors = self._errors_on(accuracy, self.size > LARGE)
        numbers = (
            *fit_curve(self.loss, accuracy),
            rms(corpus_errors),
            rms(large_errors),
            float(np.std(accuracy)),
        )
        task = curves.Task(name, *(round(float(number), 4) for number in numbers))
        half_width = Z * max(task.corpora, task.largest)
        inside = np.abs(np.concatenate([corpus_errors, large_errors])) <= half_width
        return Judged(task, float(inside.mean()))

    def _errors_on(self, accuracy: FloatArray, is_left_out: Any) -> FloatArray:
        """Return the errors on models left out, by the curve of the other models."""
        parameters = fit_curve(self.loss[~is_left_out], accuracy[~is_left_out])
        return curve(parameters, self.loss[is_left_out]) - accuracy[is_left_out]

    @property
    def shift(self) -> float:
        """RMS of ln L on other English text over that on C4: the corpora's part of another unit."""
        return rms(np.log(self.other_losses / self.loss).ravel())

    def coverage_by_text(self, tasks: Sequence[curves.Task]) -> list[float]:
        """Return the share of accuracies in the 90 % intervals for the loss on each other text, taken as if on C4."""
        shares = []
        for losses in self.other_losses:
            is_inside = []
            for i, loss in enumerate(losses):
                predictions = curves.predict_accuracies(tasks, float(loss), None, 0.9) or {}
                for name, prediction in predictions.items():
                    is_inside.append(prediction["low"] <= self.accuracies[name][i] <= prediction["high"])
            shares.append(float(np.mean(is_inside)))
        return shares


class Judged(NamedTuple):
    """A task, and the share of the accuracies left out that its 90 % intervals hold."""

    task: curves.Task
    coverage: float


def curve(parameters: Sequence[float], loss: FloatArray) -> FloatArray:
    """Return the accuracy by chance, middle and width, with a ceiling of 1."""
    chance, middle, width = parameters
    return np.asarray(chance + (1.0 - chance) / (1.0 + np.exp((loss - middle) / width)))


def fit_curve(loss: FloatArray, accuracy: FloatArray) -> tuple[float, float, float]:
    """Fit (chance, middle, width) by least squares, the best of nine starts."""
    bounds = ([0.0, 1.0, 0.05], [0.9, 5.0, 1.5])
    level = float(np.median(accuracy[loss >= np.quantile(loss, 0.6)]))
    solutions = []
    for middle, width in product((2.0, 2.75, 3.5), (0.1, 0.3, 0.6)):
        start = np.clip([level, middle, width], *bounds)
        solutions.append(least_squares(lambda x: curve(x, loss) - accuracy, start, bounds=bounds))
    chance, middle, width = min(solutions, key=lambda solution: float(solution.cost)).x
    return float(chance), float(middle), float(width)


def write(folder: Path, page: Path) -> list[Path]:
    """Fit the curves that the library ships, and fill their section of the page."""
    path = min(folder.rglob(TABLE))
    models = Models.read(path)
    tasks = {}
    for judged in models.tasks:
        name, *numbers = vars(judged.task).values()
        tasks[name] = numbers
    fields: dict[str, Any] = {
        "what": WHAT,
        "source": SOURCE,
        "shift": round(models.shift, 3),
        "tasks": tasks,
        "losses": [float(models.loss.min()), float(models.loss.max())],
    }
    fits = strict_json.write(curves.FITS, curves.FORMAT, curves.VERSION, fields)
    return [fits, *PAGE.write(page, models)]


def accuracies(models: Models) -> Iterator[Part]:
    """List every task, the one that follows the loss best first."""
    yield "task", "standard deviation", "corpora", "largest", "in 90 %", "chance", "follows"
    for task, coverage in sorted(models.tasks, key=lambda judged: judged.task.corpora / judged.task.spread):
        numbers = (f"{number:.3f}" for number in (task.spread, task.corpora, task.largest))
        verdict = "yes" if task.follows else "refused"
        yield task.name, *numbers, f"{coverage:.0%}", f"{task.chance:.2f}", verdict


def accuracy(models: Models) -> Iterator[Part]:
    """List the tasks that follow the loss."""
    head, *rows = accuracies(models)
    yield head[:-1]
    for row in rows:
        if row[-1] == "yes":
            yield row[:-1]
    coverage = models.coverage_by_text([judged.task for judged in models.tasks if judged.task.follows])
    texts = join_words([f"{share:.0%} on {text}" for share, text in zip(coverage, OTHER_TEXT, strict=True)])
    shift = f"On other English web text ln L differs from that on C4 by {models.shift:.3f} (RMS)"
    yield f"RMSE of held-out accuracies. {shift}; with losses on such text, 90 % intervals hold {texts}."


PAGE = Page(Models.read, blocks=(accuracy,), tables=(accuracies,))
