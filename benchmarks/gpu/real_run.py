"""One whole run of `train.py`: what bare steps leave out, and what it costs.

It reads real text, logs, saves checkpoints in the background, evaluates, changes its batch, skips a step that is not
finite between captured passes, and ends in two branches.
"""

from __future__ import annotations

import importlib
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.gpu.cases import Options
from benchmarks.gpu.kit import Keep
from benchmarks.gpu.measure import WARM_UP, StepClock, arguments_of, text, train_py, use_backend
from benchmarks.model_speed import DEVICE
from hub import RunRecord
from scaling_law.forecasting.curves import read_lines
from training.configuration.arguments import TrainingArguments
from training.run.step import Session, StepResult
from training.run.timing import finish, release

TRAIN = importlib.import_module("training.run.main")
# The step that is not finite. It belongs to the trunk, after its passes were captured.
SKIPPED = 5
LEAST_STEPS = 24


def run(options: Options, work: Path, keep: Keep) -> None:
    """Measure the speed of a run after its first steps, beside that of bare steps of the same model."""
    use_backend(options)
    bare: dict[str, Any] = {}
    train_py(options, work, StepClock(options, lambda **numbers: bare.update(numbers)))
    release(DEVICE)
    keep(bare_tokens_per_second=bare["tokens_per_second"])
    arguments = arguments_of_run(options, work, bare["tokens_per_second"])
    folder = Path(arguments.run.output_dir)
    shutil.rmtree(folder, ignore_errors=True)
    arguments.save(folder.with_suffix(".yaml"))
    clock = RunClock(TRAIN.train_step)
    with mock.patch.object(TRAIN, "train_step", clock):
        status = TRAIN.main(["--config", str(folder.with_suffix(".yaml"))])
    speed = clock.tokens_per_second()
    keep(tokens_per_second=speed, share_of_bare=speed / bare["tokens_per_second"])
    keep(**events_of(folder))
    if status:
        raise RuntimeError(f"train.py ended with status {status}")


def arguments_of_run(options: Options, work: Path, bare_speed: float) -> TrainingArguments:
    """Return the arguments of a run of about so many seconds: a trunk and two branches, one of half the tokens."""
    batch = options["micro_batch"] * options["passes"]
    step_tokens = batch * options["length"]
    steps = max(LEAST_STEPS, int(bare_speed * options["seconds"] / step_tokens))
    arguments = arguments_of(options)
    return arguments.replaced(
        run={
            "output_dir": str(work / "real-run"),
            "checkpoint_seconds": options["seconds"] / 6,
            "eval_sequences": options["eval_sequences"],
            "eval_tokens": [steps // 4 * step_tokens],
            "progress": False,
        },
        data={**arguments.data.model_dump(), **text(options, work)},
        schedule={
            "tokens": [steps // 2 * step_tokens, steps * step_tokens],
            "batch_ramp": [f"0:{batch // 2}", f"{steps // 8 * step_tokens}:{batch}"],
            "warmup_tokens": 2 * step_tokens,
        },
    )


class RunClock:
    """A `train_step` that notes when steps end, and makes the loss of one of them not a number."""

    def __init__(self, step: Callable[..., StepResult]) -> None:
        self._step = step
        self._ends: list[float] = []
        self._tokens: list[int] = []

    def __call__(self, session: Session, step: int, rate: float) -> StepResult:
        make_step = self._skip if len(self._ends) == SKIPPED else self._step
        result = make_step(session, step, rate)
        self._ends.append(time.perf_counter())
        self._tokens.append(session.schedule.ramp.sequences(step) * session.data.sequence_length)
        return result

    def _skip(self, session: Session, step: int, rate: float) -> StepResult:
        """Make a step of weights that are not numbers, which must change nothing, and give them back."""
        weight = next(session.model.parameters()).detach()
        values = weight.clone()
        weight.fill_(math.nan)
        result = self._step(session, step, rate)
        weight.copy_(values)
        return result

    def tokens_per_second(self) -> float:
        """Return the speed from the end of the first steps, which compile, to the end of the last."""
        finish(DEVICE)
        return sum(self._tokens[WARM_UP:]) / (self._ends[-1] - self._ends[WARM_UP - 1])


def events_of(folder: Path) -> dict[str, Any]:
    """Return what happened in a run, by its records and logs. Raises RuntimeError where a part of it did not."""
    records = [RunRecord.load(model) for model in folder.glob("tokens*/model")]
    lines: list[dict[str, Any]] = []
    for log in folder.glob("*/log.jsonl"):
        lines += [line for _, line in read_lines(log)]
    events = {
        "branches": sum(record.status == "final" for record in records),
        "skipped_steps": sum("skipped_batch" in line for line in lines),
        "evaluations": sum("eval_loss" in line for line in lines),
        "batches": len({line["batch_sequences"] for line in lines if "batch_sequences" in line}),
        "checkpoints": len(list((folder / "trunk").glob("step*"))),
    }
    least = {"branches": 2, "skipped_steps": 1, "evaluations": 1, "batches": 2, "checkpoints": 2}
    missing = [name for name, number in least.items() if events[name] < number]
    if missing:
        raise RuntimeError(f"the run had too few {', '.join(missing)}: {events}")
    return events
