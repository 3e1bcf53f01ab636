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
from scaling_law import Architecture, Law, LiveEstimate, LiveForecast, TrainingCurve
from scaling_law.forecasting.live import SAME_DECAY, curve_of, points_of
from scaling_law.law.shelf import choose_law
from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.configuration.schedule import Branch
from training.data.pins import RunData

logger = logging.getLogger(__name__)

NAME = "forecast.json"
MOST_RUNS = 32  # finished, the nearest in N and D
BAND = 0.99  # level of the interval outside of which a run is off its track
LOOK_AT = "look at the learning rate, gradient_norm and skipped steps in log.jsonl, and at the text it reads"


class RunForecast:
    """What a trunk or branch is forecast to end at: `lines` of its log so far, of trunk and branch, and its `folder`.

    Call it with each new line; it returns fields for it, and none where nothing can be said. `branches` are those
    that this part of the run leads to; the last one is shown.
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
        self.arguments, self.branches, self.text, self.lines = arguments, branches, "", [*lines]
        self.model = architecture.variables()
        finished = _record_peers(arguments, self.curve(branches[-1]), folder)
        self.live = LiveForecast(finished, law)
        self.said = any("off_track" in line for line in self.lines)
        if folder.name == "trunk" and (warnings := self.live.warnings(self.curve(branches[-1]))):
            logger.warning("forecast of the final loss: %s", "; ".join(warnings))

    def __call__(self, line: Mapping[str, Any]) -> dict[str, Any]:
        self.lines.append({name: line[name] for name in ("tokens", "loss", "loss_spike") if name in line})
        estimate = self.estimate(self.branches[-1])
        if estimate is None:
            return {}
        self.text = str(estimate)
        low, high = estimate.interval()
        fields: dict[str, Any] = {"forecast_loss": estimate.loss, "forecast_low": low, "forecast_high": high}
        fields["law_loss"] = estimate.law
        if estimate.off_track(BAND) and not self.said and not line.get("loss_spike"):
            self.said = fields["off_track"] = True
            apart, side = np.expm1(estimate.ahead), "above" if estimate.ahead > 0 else "below"
            aside = f"{abs(apart):.1%} {side} what {'runs like it had' if self.live.finished else 'the law says'} here"
            logger.warning("step %d: off the track: its loss lies %s; %s", line["step"], aside, LOOK_AT)
        return fields

    def estimate(self, branch: Branch) -> LiveEstimate | None:
        return self.live.of(self.curve(branch))

    def curve(self, branch: Branch) -> TrainingCurve:
        """The run so far, as one that ends with this branch."""
        schedule, (tokens, losses) = self.arguments.schedule, points_of(self.lines)
        settings = {"decay": schedule.decay_fraction, "warmup_tokens": schedule.warmup_tokens}
        return TrainingCurve(tokens, losses, branch.tokens, self.model, **settings)


def law_of(arguments: TrainingArguments, architecture: Architecture) -> Law | None:
    """The law of `run.law`. Raises ConfigurationError where there is none, or it cannot be asked about this model."""
    if arguments.run.law is None:
        return None
    try:
        law = choose_law(arguments.run.law, flag="run.law")
        at = architecture.variables() | {"tokens": float(max(arguments.schedule.tokens))}
        law.loss(**{name: value for name, value in at.items() if name in law.variables})
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"run.law: {error}") from error
    return law


def _record_peers(arguments: TrainingArguments, run: TrainingCurve, folder: Path) -> list[TrainingCurve]:
    """Read the finished runs that count for a part of a run, which notes their folders at its first start."""
    sweep, note = Path(arguments.run.output_dir).parent, folder / NAME
    if not note.exists():
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write_json(note, {"finished": finished_runs(arguments, run)})
    finished = []
    noted = atomic.read_json(note, {}, dict[str, list[str]])
    for name in noted.get("finished", []):
        with suppress(OSError, ValueError):  # removed since, or damaged
            record = RunRecord.load(sweep / name)
            lines = [line for _, line in read_lines(sweep / name / "log.jsonl")]
            finished.append(curve_of(record, lines))
    return [curve for curve in finished if len(curve.tokens)]


def finished_runs(arguments: TrainingArguments, run: TrainingCurve) -> list[str]:
    """Model folders of finished runs of this sweep, text, tokenizer and schedule, the nearest to this run."""
    own = Path(arguments.run.output_dir)
    data = RunData.of(own)
    if data.dataset is None or data.tokenizer is None:
        return []
    apart: dict[str, float] = {}
    for path in sorted(own.parent.glob("*/tokens*/model")):
        with suppress(OSError, ValueError):
            record = RunRecord.load(path)
            decay = record.schedule.decay_tokens / record.schedule.horizon_tokens
            if (
                (record.status, record.sweep) == ("final", arguments.run.sweep)
                and record.dataset.fingerprint == data.dataset.get("fingerprint")
                and record.tokenizer.fingerprint == data.tokenizer.get("fingerprint")
                and abs(decay - run.decay) <= SAME_DECAY / 2
            ):
                ratios = record.tokens / run.horizon, record.n_active / run.model["n_active"]
                apart[str(path.relative_to(own.parent))] = float(np.abs(np.log(ratios)).sum())
    return sorted(sorted(apart, key=lambda name: apart[name])[:MOST_RUNS])


def read_lines(log: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """(text, values) of every line of a step log; incomplete ones, as a killed process leaves them, are skipped."""
    lines = []
    for text in log.read_bytes().splitlines() if log.exists() else ():
        with suppress(ValueError, KeyError, TypeError):
            line = json.loads(text)
            _ = line["step"], line["tokens"]
            lines.append((text + b"\n", line))
    return lines
