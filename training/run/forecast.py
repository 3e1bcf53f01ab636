"""The final loss of a run while it trains, from its step log and from runs of its sweep that have finished.

Which runs these are is noted beside the log when the trunk or a branch begins, so that a resumed run says the same.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hub import RunRecord
from hub.base import atomic
from hub.base.types import Fields
from scaling_law import Architecture, Law, LiveEstimate, LiveForecast, TrainingCurve
from scaling_law.forecasting.live import FOREIGN, curve_of, points_of
from scaling_law.law.shelf import choose_law
from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.configuration.schedule import Branch
from training.data.pins import RunData

logger = logging.getLogger(__name__)

NAME = "forecast.json"
# Most finished runs to learn from, the nearest in N and D.
MOST_RUNS = 32
# Level of the interval outside of which a run is off its track.
BAND = 0.99
LOOK_AT = "look at the learning rate, gradient_norm and skipped steps in log.jsonl, and at the text it reads"


class RunForecast:
    """Forecast of the loss at which a trunk or branch ends.

    Call it with each new line; it returns fields for it, and none where it can forecast nothing. `lines` are those of
    the log so far, of trunk and branch, and `folder` is that of the trunk or branch. `branches` are those that it
    leads to; the last one is shown.
    """

    def __init__(
        self,
        arguments: TrainingArguments,
        architecture: Architecture,
        branches: Sequence[Branch],
        folder: Path,
        lines: Iterable[Mapping[str, Any]],
        law: Law | None = None,
    ):
        self.arguments = arguments
        self.branches = branches
        self.lines = [*lines]
        self.text = ""
        self.model = architecture.variables()
        curve = self.curve(branches[-1])
        self.live = LiveForecast(_record_peers(arguments, curve, folder), law)
        self._has_warned = any("off_track" in line for line in self.lines)
        self._is_law_foreign = any("law_foreign" in line for line in self.lines)
        warnings = self.live.warnings(curve) if folder.name == "trunk" else []
        if warnings:
            logger.warning("forecast of the final loss: %s", "; ".join(warnings))

    def __call__(self, line: Mapping[str, Any]) -> Fields:
        self.lines.append({name: line[name] for name in ("tokens", "loss", "loss_spike") if name in line})
        estimate = self.estimate(self.branches[-1])
        if estimate is None:
            return {}
        self.text = str(estimate)
        low, high = estimate.interval()
        fields: Fields = {
            "forecast_loss": estimate.loss,
            "forecast_low": low,
            "forecast_high": high,
            "law_loss": estimate.law,
        }
        if estimate.is_law_foreign() and not self._is_law_foreign:
            self._is_law_foreign = True
            fields["law_foreign"] = True
            logger.warning("step %d: %s", line["step"], FOREIGN)
        if estimate.off_track(BAND) and not self._has_warned and not line.get("loss_spike"):
            self._has_warned = True
            fields["off_track"] = True
            distance = abs(np.expm1(estimate.ahead))
            side = "above" if estimate.ahead > 0 else "below"
            reference = "runs like it had" if self.live.finished else "the law says"
            position = f"{distance:.1%} {side} what {reference} here"
            logger.warning("step %d: off the track: its loss lies %s; %s", line["step"], position, LOOK_AT)
        return fields

    def estimate(self, branch: Branch) -> LiveEstimate | None:
        return self.live.of(self.curve(branch))

    def curve(self, branch: Branch) -> TrainingCurve:
        """Return the run so far, as one that ends with this branch."""
        tokens, losses = points_of(self.lines)
        return TrainingCurve(
            tokens,
            losses,
            branch.tokens,
            self.model,
            decay=self.arguments.schedule.decay_fraction,
            warmup_tokens=self.arguments.schedule.warmup_tokens,
        )


def law_of(arguments: TrainingArguments, architecture: Architecture) -> Law | None:
    """Read the law of `run.law`.

    Raises ConfigurationError where there is none, or it cannot be asked about this model.
    """
    if arguments.run.law is None:
        return None
    try:
        law: Law = choose_law(arguments.run.law, flag="run.law")
        variables = {**architecture.variables(), "tokens": float(max(arguments.schedule.tokens))}
        law.loss(**{name: value for name, value in variables.items() if name in law.variables})
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"run.law: {error}") from error
    return law


def _record_peers(arguments: TrainingArguments, run: TrainingCurve, folder: Path) -> list[TrainingCurve]:
    """Read the finished runs that count for a part of a run, which notes their folders at its first start."""
    sweep = Path(arguments.run.output_dir).parent
    note = folder / NAME
    if not note.exists():
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write_json(note, {"finished": finished_runs(arguments, run)})
    curves = []
    for name in atomic.read_json(note, {}, dict[str, list[str]]).get("finished", []):
        # It may have been removed since, or damaged.
        with suppress(OSError, ValueError):
            record = RunRecord.load(sweep / name)
            lines = [line for _, line in read_lines(sweep / name / "log.jsonl")]
            curves.append(curve_of(record, lines))
    return [curve for curve in curves if len(curve.tokens)]


def finished_runs(arguments: TrainingArguments, run: TrainingCurve) -> list[str]:
    """List model folders of finished runs of this sweep, text and tokenizer, the nearest to this run."""
    folder = Path(arguments.run.output_dir)
    data = RunData.of(folder)
    if data.dataset is None or data.tokenizer is None:
        return []
    distances: dict[str, float] = {}
    for path in sorted(folder.parent.glob("*/tokens*/model")):
        with suppress(OSError, ValueError):
            record = RunRecord.load(path)
            if (
                record.status == "final"
                and record.sweep == arguments.run.sweep
                and record.dataset.fingerprint == data.dataset.get("fingerprint")
                and record.tokenizer.fingerprint == data.tokenizer.get("fingerprint")
            ):
                ratios = (record.tokens / run.horizon, record.n_active / run.model["n_active"])
                distances[str(path.relative_to(folder.parent))] = float(np.abs(np.log(ratios)).sum())
    nearest = sorted(distances, key=lambda name: distances[name])[:MOST_RUNS]
    return sorted(nearest)


def read_lines(log: Path) -> list[tuple[bytes, Fields]]:
    """Read text and values of every line of a step log.

    Incomplete ones, as a killed process leaves them, are skipped.
    """
    lines = []
    for text in log.read_bytes().splitlines() if log.exists() else ():
        with suppress(ValueError, KeyError, TypeError):
            line = json.loads(text)
            _ = line["step"], line["tokens"]
            lines.append((text + b"\n", line))
    return lines
