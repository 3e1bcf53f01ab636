"""The final loss of a run while it trains, from its step log and from runs of its sweep that have finished.

Which runs these are is noted beside the log when the trunk or a branch begins, so that a resumed run says the same;
the note also has the plan by which `scaling-law live` reads the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from hub import RunRecord
from hub.base import atomic
from hub.base.types import Fields
from scaling_law import Architecture, Law, LiveForecast
from scaling_law.forecasting.curves import NOTE, read_finished
from scaling_law.forecasting.live import MOST_RUNS, Watch
from scaling_law.law.shelf import choose_law
from scaling_law.planning.limits import of_law
from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.configuration.schedule import Branch
from training.data.pins import RunData

logger = logging.getLogger(__name__)
ADVICE = "; look at the learning rate, gradient_norm and skipped steps in log.jsonl, and at the text it reads"


def watch_run(
    arguments: TrainingArguments,
    architecture: Architecture,
    branches: Sequence[Branch],
    folder: Path,
    lines: list[Fields],
    law: Law | None = None,
) -> Watch:
    """Watch the loss at which a trunk or branch ends.

    `lines` are those of the log so far, of trunk and branch, and `folder` is that of the trunk or branch. `branches`
    are those that it leads to; the last one is shown.
    """
    plan: Fields = {
        "horizon": float(branches[-1].tokens),
        "model": architecture.variables(),
        "decay": arguments.schedule.decay_fraction,
        "warmup_tokens": float(arguments.schedule.warmup_tokens),
    }
    note = folder / NOTE
    if not note.exists():
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write_json(note, {"finished": finished_runs(arguments, plan), "plan": plan})
    names = atomic.read_json(note, {}, Fields)["finished"]
    sweep = Path(arguments.run.output_dir).parent
    watch = Watch(LiveForecast(read_finished(sweep / name for name in names), law), plan, lines, ADVICE)
    warnings = watch.live.warnings(watch.curve) if folder.name == "trunk" else []
    if warnings:
        logger.warning("forecast of the final loss: %s", "; ".join(warnings))
    return watch


def law_of(arguments: TrainingArguments, architecture: Architecture) -> Law | None:
    """Read the law of `run.law`.

    Raises ConfigurationError where there is none, or it cannot be asked about this model.
    """
    if arguments.run.law is None:
        return None
    try:
        law: Law = choose_law(arguments.run.law, flag="run.law")
        law.loss(**of_law(law, {**architecture.variables(), "tokens": float(max(arguments.schedule.tokens))}))
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"run.law: {error}") from error
    return law


def finished_runs(arguments: TrainingArguments, plan: Fields) -> list[str]:
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
                ratios = (record.tokens / plan["horizon"], record.n_active / plan["model"]["n_active"])
                distances[str(path.relative_to(folder.parent))] = float(np.abs(np.log(ratios)).sum())
    nearest = sorted(distances, key=lambda name: distances[name])[:MOST_RUNS]
    return sorted(nearest)
