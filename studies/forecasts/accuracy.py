"""Accuracy from loss: curves of the 46 tasks of Gadre et al.'s models, judged on corpora and large models left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

import hub
from hub.base import strict_json
from hub.base.tables import enumerated
from scaling_law.formulas import accuracy
from studies.common import FloatArray, Part, fill, rms
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
        small = [fitted(self.loss[~large], y[~large], ceiling) for ceiling in (1.0, None)]
        on_large, free = (curve(at, self.loss[large]) - y[large] for at in small)
        values = (*fitted(self.loss, y)[:3], rms(on_corpora), rms(on_large), float(np.std(y)))
        return Judged(accuracy.Task(name, *(round(float(v), 4) for v in values)), on_corpora, on_large, rms(free))

    @property
    def shift(self) -> float:
        """RMS of ln L on other English text over that on C4: the corpora's part of another unit."""
        return rms(np.log(self.others / self.loss).ravel())

    def held_by_text(self, tasks: Sequence[accuracy.Task]) -> list[float]:
        """Share of accuracies in the 90 % intervals for the loss on each other text, taken as if it were on C4."""
        shares = []
        for losses in self.others:
            inside = [
                told["low"] <= self.accuracies[name][i] <= told["high"]
                for i, loss in enumerate(losses)
                for name, told in (accuracy.expected(tasks, float(loss), None, 0.9) or {}).items()
            ]
            shares.append(float(np.mean(inside)))
        return shares


@dataclass(frozen=True)
class Judged:
    """A task, its errors on corpora left out [models] and on the largest models, and these with a fitted ceiling."""

    task: accuracy.Task
    on_corpora: FloatArray
    on_large: FloatArray
    free_ceiling: float


def curve(at: Sequence[float], loss: FloatArray) -> FloatArray:
    chance, middle, width, ceiling = at
    return np.asarray(chance + (ceiling - chance) / (1.0 + np.exp((loss - middle) / width)))


def fitted(loss: FloatArray, y: FloatArray, ceiling: float | None = 1.0) -> tuple[float, float, float, float]:
    """(chance, middle, width, ceiling) of least squares, the best of nine starts; None fits the ceiling, too."""
    bounds = ([0.0, 1.0, 0.05, 0.0], [0.9, 5.0, 1.5, 1.0])
    least, most = (ends if ceiling is None else ends[:3] for ends in bounds)
    level, solutions = float(np.median(y[loss >= np.quantile(loss, 0.6)])), []
    for middle in (2.0, 2.75, 3.5):
        for width in (0.1, 0.3, 0.6):
            start = np.clip([level, middle, width, 0.9][: len(least)], least, most)
            residuals = (
                (lambda at: curve(at, loss) - y) if ceiling is None else (lambda at: curve((*at, 1.0), loss) - y)
            )
            solutions.append(least_squares(residuals, start, bounds=(least, most)))
    best = min(solutions, key=lambda solution: float(solution.cost)).x
    return (*map(float, best), *(() if ceiling is None else (ceiling,)))


def write(folder: Path, page: Path) -> list[Path]:
    """Fit the curves that the library ships, and fill their section of the page."""
    (path, *_) = sorted(folder.rglob(TABLE))
    models = Models.read(path)
    tasks = {t.task.name: [*vars(t.task).values()][1:] for t in models.tasks}
    fields: dict[str, Any] = {"what": WHAT, "source": SOURCE, "shift": round(models.shift, 3), "tasks": tasks}
    fields["losses"] = [float(models.loss.min()), float(models.loss.max())]
    fits = strict_json.write(accuracy.FITS, accuracy.FORMAT, accuracy.VERSION, fields)
    return [fits, fill(page, {"accuracy": shown}, models)]


def shown(models: Models) -> Iterator[Part]:
    yield "task", "standard deviation", "corpora", "largest", "largest, ceiling fitted", "in 90 %", "chance", ""
    tasks = sorted(models.tasks, key=lambda t: t.task.corpora / t.task.spread)
    for t in tasks:
        errors, task = np.concatenate([t.on_corpora, t.on_large]), t.task
        held = np.mean(np.abs(errors) <= Z * max(task.corpora, task.largest))
        numbers = (f"{x:.3f}" for x in (task.spread, task.corpora, task.largest, t.free_ceiling))
        yield task.name, *numbers, f"{held:.0%}", f"{task.chance:.2f}", "" if task.follows else "refused"
    held = models.held_by_text([t.task for t in tasks if t.task.follows])
    texts = enumerated([f"{share:.0%} on {text}" for share, text in zip(held, OTHER_TEXT, strict=True)])
    off = f"ln L on other English web text is off by {models.shift:.3f} (RMS)"
    yield f"RMSE of accuracies left out. {off}: for the losses there, 90 % intervals hold {texts}."
