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
from hub.base.tables import enumerated
from scaling_law.formulas import accuracy as curves
from studies.common import FloatArray, Page, Part, rms
from studies.forecasts.sets import GADRE_LOSS

TABLE = "gadre_overtraining.csv"
WHAT = "OpenLM's dense models in LLM-Foundry's suite, at the loss on C4 in nats per token of GPT-NeoX's tokenizer"
SOURCE = "mlfoundations/scaling at a003c49, MIT; Gadre et al. 2024, arXiv 2403.08540"
OTHER_TEXT = ("openlm", "paloma_c4_en", "paloma_falcon-refinedweb", "paloma_redpajama")  # English text from the web
LARGE = 1e9  # parameters of the largest models, which are left out
Z = 1.645  # of 90 % intervals


@dataclass(frozen=True)
class Models:
    """The models' losses on C4, corpora and sizes, and accuracies by task, NaN where one is missing; [models] each."""

    loss: FloatArray
    corpus: Any
    size: FloatArray
    accuracies: Mapping[str, FloatArray]
    others: FloatArray  # [texts, models]

    @classmethod
    def read(cls, path: Path) -> Models:
        rows = hub.load_rows(path).rows
        column = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        tasks = {name[4:]: np.array(values, float) for name, values in column.items() if name.startswith("acc:")}
        on_text = {name.split("/")[1]: np.array(v, float) for name, v in column.items() if name.startswith("loss:")}
        texts = np.array([on_text[text] for text in OTHER_TEXT])
        return cls(column[GADRE_LOSS].astype(float), column["dataset"], column["params"].astype(float), tasks, texts)

    @cached_property
    def tasks(self) -> list[Judged]:
        return [self.judged(name) for name in self.accuracies]

    def judged(self, name: str) -> Judged:
        """A task's curve and the errors on models left out."""
        y, large = self.accuracies[name], self.size > LARGE
        on_corpora = np.zeros(len(y))
        for corpus in sorted({*self.corpus}):
            out = self.corpus == corpus
            on_corpora[out] = curve(fitted(self.loss[~out], y[~out]), self.loss[out]) - y[out]
        on_large = curve(fitted(self.loss[~large], y[~large]), self.loss[large]) - y[large]
        values = (*fitted(self.loss, y), rms(on_corpora), rms(on_large), float(np.std(y)))
        task = curves.Task(name, *(round(float(v), 4) for v in values))
        inside = np.abs(np.concatenate([on_corpora, on_large])) <= Z * max(task.corpora, task.largest)
        return Judged(task, float(inside.mean()))

    @property
    def shift(self) -> float:
        """RMS of ln L on other English text over that on C4: the corpora's part of another unit."""
        return rms(np.log(self.others / self.loss).ravel())

    def held_by_text(self, tasks: Sequence[curves.Task]) -> list[float]:
        """Share of accuracies in the 90 % intervals for the loss on each other text, taken as if it were on C4."""
        shares = []
        for losses in self.others:
            inside = [
                told["low"] <= self.accuracies[name][i] <= told["high"]
                for i, loss in enumerate(losses)
                for name, told in (curves.predict_accuracies(tasks, float(loss), None, 0.9) or {}).items()
            ]
            shares.append(float(np.mean(inside)))
        return shares


class Judged(NamedTuple):
    """A task, and the part of the accuracies left out that its 90 % intervals hold."""

    task: curves.Task
    held: float


def curve(at: Sequence[float], loss: FloatArray) -> FloatArray:
    """Accuracy by chance, middle and width, with a ceiling of 1."""
    chance, middle, width = at
    return np.asarray(chance + (1.0 - chance) / (1.0 + np.exp((loss - middle) / width)))


def fitted(loss: FloatArray, y: FloatArray) -> tuple[float, float, float]:
    """(chance, middle, width) of least squares, the best of nine starts."""
    bounds = ([0.0, 1.0, 0.05], [0.9, 5.0, 1.5])
    level = float(np.median(y[loss >= np.quantile(loss, 0.6)]))
    starts = [np.clip([level, *start], *bounds) for start in product((2.0, 2.75, 3.5), (0.1, 0.3, 0.6))]
    solutions = [least_squares(lambda at: curve(at, loss) - y, start, bounds=bounds) for start in starts]
    chance, middle, width = min(solutions, key=lambda solution: float(solution.cost)).x
    return float(chance), float(middle), float(width)


def write(folder: Path, page: Path) -> list[Path]:
    """Fit the curves that the library ships, and fill their section of the page."""
    (path, *_) = sorted(folder.rglob(TABLE))
    models = Models.read(path)
    tasks = {t.task.name: [*vars(t.task).values()][1:] for t in models.tasks}
    fields: dict[str, Any] = {"what": WHAT, "source": SOURCE, "shift": round(models.shift, 3), "tasks": tasks}
    fields["losses"] = [float(models.loss.min()), float(models.loss.max())]
    fits = strict_json.write(curves.FITS, curves.FORMAT, curves.VERSION, fields)
    return [fits, *PAGE.write(page, models)]


def accuracies(models: Models) -> Iterator[Part]:
    yield "task", "standard deviation", "corpora", "largest", "in 90 %", "chance", "follows"
    for task, held in sorted(models.tasks, key=lambda t: t.task.corpora / t.task.spread):
        numbers = (f"{x:.3f}" for x in (task.spread, task.corpora, task.largest))
        yield task.name, *numbers, f"{held:.0%}", f"{task.chance:.2f}", "yes" if task.follows else "refused"


def accuracy(models: Models) -> Iterator[Part]:
    """The tasks that follow the loss."""
    head, *rows = accuracies(models)
    yield head[:-1]
    yield from (row[:-1] for row in rows if row[-1] == "yes")
    held = models.held_by_text([t.task for t in models.tasks if t.task.follows])
    texts = enumerated([f"{share:.0%} on {text}" for share, text in zip(held, OTHER_TEXT, strict=True)])
    off = f"ln L on other English web text is off by {models.shift:.3f} (RMS)"
    yield f"RMSE of accuracies left out. {off}: for the losses there, 90 % intervals hold {texts}."


PAGE = Page(Models.read, blocks=(accuracy,), tables=(accuracies,))
