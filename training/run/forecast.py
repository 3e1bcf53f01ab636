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
from scaling_law.commands.options import choose_law
from scaling_law.forecasting.live import SAME_DECAY, curve_of, points_of
from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.configuration.schedule import Branch

logger = logging.getLogger(__name__)

NAME = "forecast.json"
MOST_RUNS = 64  # finished, the nearest in N and D
BAND = 0.99  # of the intervals that a run leaves, and beyond which it is hopeless
LEAST_TRUNKS = 3  # that must have finished before a run is called hopeless
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
        self.model = {**architecture.variables()}
        finished = _noted(arguments, self.curve(branches[-1]), folder)
        flops = {folder: record.training_flops for folder, (record, _) in finished.items()}
        self.live = LiveForecast([curve for _, curve in finished.values()], law)
        self.best = {
            branch: min(
                (curve.final or np.inf for folder, (_, curve) in finished.items() if flops[folder] <= budget),
                default=np.inf,
            )
            for branch in branches
            for budget in [architecture.training_flops(branch.tokens) * (1 + 1e-6)]
        }
        self.said, self.hopeless = any("off_track" in line for line in self.lines), ""
        if folder.name == "trunk" and (warnings := self.live.warnings(self.curve(branches[-1]))):
            logger.warning("forecast of the final loss: %s", "; ".join(warnings))

    def __call__(self, line: Mapping[str, Any]) -> dict[str, Any]:
        self.lines.append({name: line[name] for name in ("tokens", "loss", "loss_spike") if name in line})
        estimate = self.estimate(self.branches[-1])
        if estimate is None:
            return {}
        self.text = str(estimate)
        self.hopeless = self._hopeless(line["tokens"]) if self.arguments.run.stop_hopeless else ""
        low, high = estimate.interval()
        fields: dict[str, Any] = {"forecast_loss": estimate.loss, "forecast_low": low, "forecast_high": high}
        fields["law_loss"] = estimate.law
        if estimate.off_track(BAND) and not self.said and not line.get("loss_spike"):
            self.said = fields["off_track"] = True
            aside = (
                f"{abs(estimate.ahead):.1%} {'above' if estimate.ahead > 0 else 'below'} what runs like it had here"
            )
            logger.warning("step %d: off the track: its loss lies %s; %s", line["step"], aside, LOOK_AT)
        return fields

    def estimate(self, branch: Branch) -> LiveEstimate | None:
        return self.live.of(self.curve(branch))

    def curve(self, branch: Branch) -> TrainingCurve:
        """The run so far, as one that ends with this branch."""
        decay = (branch.tokens - branch.branch_point_tokens) / branch.tokens
        tokens, losses = points_of(self.lines)
        warmup = self.arguments.schedule.warmup_tokens
        return TrainingCurve(tokens, losses, branch.tokens, self.model, decay=decay, warmup_tokens=warmup)

    def _hopeless(self, tokens: int) -> str:
        """Why no branch still to come can beat the best finished run of at most its FLOPs; "" if one can."""
        why = ""
        if len({peer.trunk for peer in self.live.finished}) < LEAST_TRUNKS:
            return ""
        for branch in [b for b in self.branches if b.branch_point_tokens >= tokens] or self.branches[-1:]:
            estimate, best = self.estimate(branch), self.best[branch]
            if estimate is None or estimate.interval(BAND)[0] <= best:
                return ""
            low, high = estimate.interval(BAND)
            why = f"hopeless: final loss {low:.3f} to {high:.3f} ({BAND:.0%}), the best at its FLOPs is {best:.3f}"
        return why


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


def _noted(
    arguments: TrainingArguments, run: TrainingCurve, folder: Path
) -> dict[str, tuple[RunRecord, TrainingCurve]]:
    """The finished runs of a part of a run by their folders, relative to the sweep's; noted at its first start."""
    sweep, note = Path(arguments.run.output_dir).parent, folder / NAME
    if note.exists():
        names = json.loads(note.read_text(encoding="utf-8"))["finished"]
        return _read(sweep, names)
    finished = finished_runs(arguments, run)
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_json(note, {"finished": [*finished]})
    return finished


def finished_runs(arguments: TrainingArguments, run: TrainingCurve) -> dict[str, tuple[RunRecord, TrainingCurve]]:
    """The finished runs of this sweep, text, tokenizer and schedule beside this run's folder, the nearest of them."""
    own = Path(arguments.run.output_dir)
    data = own / "data.json"
    if not data.exists():
        return {}
    identity = json.loads(data.read_text(encoding="utf-8"))
    names = sorted(
        str(path.parents[1].relative_to(own.parent)) for path in own.parent.glob("*/tokens*/model/run.json")
    )
    like = {
        name: (record, curve)
        for name, (record, curve) in _read(own.parent, names).items()
        if record.sweep == arguments.run.sweep
        and record.dataset.fingerprint == identity["dataset"].get("fingerprint")
        and record.tokenizer.fingerprint == identity["tokenizer"].get("fingerprint")
        and abs(curve.decay - run.decay) <= SAME_DECAY
    }

    def apart(name: str) -> float:
        record, _ = like[name]
        return abs(np.log(record.tokens / run.horizon)) + abs(np.log(record.n_active / run.model["n_active"]))

    return {name: like[name] for name in sorted(sorted(like, key=apart)[:MOST_RUNS])}


def _read(sweep: Path, names: Iterable[str]) -> dict[str, tuple[RunRecord, TrainingCurve]]:
    """Finished runs with their curves; what cannot be read, or has none, is left out."""
    runs = {}
    for name in names:
        with suppress(OSError, ValueError):
            record = RunRecord.load(sweep / name / "model")
            curve = curve_of(record, read_lines(sweep / name / "model" / "log.jsonl"))
            if curve.final is not None:
                runs[name] = record, curve
    return runs


def read_lines(log: Path) -> list[dict[str, Any]]:
    """The whole lines of a step log; [] where there is none."""
    lines = []
    for text in log.read_bytes().splitlines() if log.exists() else ():
        with suppress(ValueError):  # cut by a kill
            lines.append(json.loads(text))
    return lines
