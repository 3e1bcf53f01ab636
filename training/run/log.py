"""Outputs during training: a progress bar, a JSON line every few steps, Accelerate's trackers, a profiler trace.

None of them can end a training that has begun, or delay it: neither a full disk nor a service that does not answer.
Trunk and branches each have a tracker run of their own, in the sweep's project and a group of size and seed, over
tokens: in a shared one a branch's steps would go backwards, and wandb drops such steps.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hub.base.atomic import write_bytes, write_json
from hub.base.disk import describe_full_disk
from hub.base.errors import secret_in
from hub.base.progress import progress_line
from hub.base.types import Fields
from hub.record.run_record import RunRecord
from scaling_law.forecasting.curves import read_lines
from scaling_law.forecasting.live import Watch
from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.run.devices import on_main, peak_memory
from training.run.evaluation import HeldOutLoss
from training.run.progress import Progress
from training.run.step import Routing, Session, StepResult

if TYPE_CHECKING:
    from accelerate import Accelerator

logger = logging.getLogger(__name__)

NAME = "log.jsonl"
# Largest released log.
MAX_BYTES = 4_000_000
# Calls of trackers that may wait.
_MOST_CALLS = 10_000
# Seconds that the end of a run waits for trackers.
_CLOSE_SECONDS = 30.0
# Fields of lines that stay in a thinned log.
_EVENTS = frozenset({"skipped_batch", "loss_spike", "eval_loss", "off_track"})


def balance(tokens_per_expert: list[list[float]]) -> float:
    """Return the load of the fullest expert over the mean load, from 1 (balance) to E: the mean over layers.

    `tokens_per_expert` is (layers, experts).
    """
    loads = [max(row) * len(row) / max(sum(row), 1) for row in tokens_per_expert]
    return sum(loads) / len(loads)


class _LineStart(NamedTuple):
    """The step, wall seconds and seconds of waiting for data at which a line of the log begins."""

    step: int
    wall_seconds: float | None
    wait_seconds: float


class StepLog(ExitStack):
    """Log of a trunk or branch, to be called after every step.

    It writes a line every `log_steps` steps, and after a non-finite one or a spike.

    Lines of `folder/log.jsonl` from beyond `start_step`, left by an interrupted run, are removed; from those before
    it `forecast` makes the forecast of the final loss, on the main process.
    """

    def __init__(
        self,
        session: Session,
        folder: Path,
        start_step: int,
        end_step: int,
        trackers: Trackers,
        forecast: Callable[[list[Fields]], Watch] | None = None,
    ):
        super().__init__()
        self.session = session
        self.ramp = session.schedule.ramp
        self.trackers = trackers
        start_tokens = self.ramp.tokens(start_step)
        trackers.begin(folder, start_tokens)
        self.callback(trackers.finish)
        self._line_start = _LineStart(start_step, None, session.data.wait_seconds)
        self._file: LineFile | None = None
        self.forecast: Watch | None = None
        is_main = session.accelerator.is_main_process
        if is_main:
            lines = self._open(folder / NAME, start_step)
            if forecast:
                self.forecast = forecast(lines)
        arch = session.architecture
        name = f"d{arch.d_model} E{arch.experts} {folder.name.partition('-')[0]}"
        has_bar = session.arguments.run.progress and is_main
        bar = progress_line(name, self.ramp.tokens(end_step), "tok", has_bar, done=start_tokens)
        self._advance = self.enter_context(bar)
        # The text of the last line.
        self._detail = ""

    def _open(self, path: Path, start_step: int) -> list[Fields]:
        """Open the log without lines from beyond a step, and return those before it."""
        lines = [(text, line) for text, line in read_lines(path) if line["step"] <= start_step]
        content = b"".join(text for text, _ in lines)
        # A full disk may not hold it twice.
        if not path.exists() or path.read_bytes() != content:
            write_bytes(path, content)
        self._file = LineFile(path)
        self.callback(self._file.close)
        return [line for _, line in lines]

    def __call__(self, progress: Progress, result: StepResult, rate: float) -> None:
        # It already counts this update.
        step = progress.step
        self._advance(self.ramp.tokens(step) - self.ramp.tokens(step - 1), self._detail)
        if step % self.session.arguments.run.log_steps and result.is_finite and not result.is_spike:
            return
        line = self._line(progress, result, rate)
        if not result.is_finite:
            line["skipped_batch"] = self._describe_batch(step - 1)
            logger.warning(
                "step %d was skipped: not finite (loss %s, gradient norm %s); its batch is in log.jsonl",
                step - 1,
                result.loss,
                result.gradient_norm,
            )
        if result.is_spike:
            line["loss_spike"] = True
            loss_before = median(progress.recent_losses[:-1])
            logger.warning("step %d: the loss spiked to %.3f, from %.3f before it", step - 1, result.loss, loss_before)
        utilisation = f", MFU {line['mfu']:.1%}" if line["mfu"] else ""
        self._detail = f"loss {result.loss:.3f}{utilisation}"
        if self.forecast:
            line.update(self.forecast(line))
            if self.forecast.estimate:
                self._detail += f", {self.forecast.estimate}"
        self._write(line)

    def _describe_batch(self, step: int) -> Fields:
        """Say where a step's batch lies in the order of the data, and which sequences of the token cache it has."""
        position = self.ramp.position(step)
        sequences = self.session.data.indices(position, self.ramp.sequences(step))
        return {"position": position, "sequences": sequences.tolist()}

    def evaluation(self, progress: Progress, held_out: HeldOutLoss) -> None:
        """Record a held-out loss (nats per token, dropless) with its standard error."""
        loss = held_out.loss
        error = held_out.standard_error
        line = {
            "step": progress.step,
            "tokens": self.ramp.tokens(progress.step),
            "eval_loss": loss,
            "eval_perplexity": math.exp(min(loss, 700.0)),
        }
        if error is not None:
            line["eval_loss_standard_error"] = error
        logger.info("step %d: held-out loss %.4f%s", progress.step, loss, "" if error is None else f" ± {error:.4f}")
        self._write(line)

    def _write(self, line: Fields) -> None:
        for name, value in line.items():
            # JSON has no NaN.
            if isinstance(value, float) and not math.isfinite(value):
                line[name] = None
        if self._file is not None:
            self._file.write(json.dumps(line))
        self.trackers.log(line)

    def _line(self, progress: Progress, result: StepResult, rate: float) -> Fields:
        """Return the line of the log that ends with this step. Collective."""
        accelerator = self.session.accelerator
        start = self._line_start
        end = _LineStart(progress.step, progress.wall_seconds, self.session.data.wait_seconds)
        self._line_start = end
        tokens = self.ramp.tokens(end.step)
        speed = None
        if start.wall_seconds is not None and progress.wall_seconds != start.wall_seconds:
            speed = (tokens - self.ramp.tokens(start.step)) / (progress.wall_seconds - start.wall_seconds)
        balance_loss, z_loss = self.session.total(torch.stack([result.balance_loss, result.z_loss])).tolist()
        line = {
            "step": end.step,
            "tokens": tokens,
            "loss": result.loss,
            "learning_rate": rate,
            "batch_sequences": self.ramp.sequences(end.step - 1),
            "gradient_norm": result.gradient_norm,
            "balance_loss": balance_loss,
            "z_loss": z_loss,
            "tokens_per_second": speed,
            "mfu": self.session.mfu(speed) if speed else None,
            "data_wait_seconds": end.wait_seconds - start.wait_seconds,
            "memory_bytes": peak_memory(accelerator.device),
            "wall_seconds": progress.wall_seconds,
            "devices": accelerator.num_processes,
        }
        if result.routing is not None:
            line.update(self._routing(result.routing))
        return line

    def _routing(self, routing: Routing) -> Fields:
        """Return what a line says of the experts. Collective."""
        routed, dropped, entropy = map(self.session.total, routing)
        return {
            "drop_rate": (dropped.sum() / routed.sum()).item(),
            "expert_load_max_over_mean": balance(routed.tolist()),
            "router_entropy": entropy.mean().item(),
            "tokens_per_expert": [list(map(int, row)) for row in routed.tolist()],
        }


class LineFile:
    """File that gets lines, each at once; what a full disk does not take is written with a later line."""

    def __init__(self, path: Path):
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._waiting = b""

    def write(self, line: str) -> None:
        was_waiting = bool(self._waiting)
        self._waiting += line.encode() + b"\n"
        try:
            while self._waiting:
                written = self._file.write(self._waiting)
                self._waiting = self._waiting[written:]
        except OSError as error:
            if not was_waiting:
                reason = describe_full_disk(error, self._path) or error
                logger.warning(
                    "%s: %s; its lines are kept until there is room, and training continues", self._path, reason
                )

    def close(self) -> None:
        if self._waiting:
            logger.warning("%s lacks its last lines: %d bytes could not be written", self._path, len(self._waiting))
        try:
            self._file.close()
        # A network's file system may say so only now.
        except OSError as error:
            logger.warning("%s: %s", self._path, error)


# -- trackers


def check_trackers(names: list[str]) -> None:
    """Raise ConfigurationError for an unknown or missing tracker, which Accelerate would skip silently."""
    from accelerate.tracking import get_available_trackers

    installed = [str(tracker) for tracker in get_available_trackers()]
    for name in names:
        if name not in installed and (name != "all" or not installed):
            names_installed = ", ".join(installed) or "none"
            raise ConfigurationError(f"run.trackers: {name!r}; installed trackers: {names_installed}")


class Trackers:
    """Accelerate's trackers, with a run each for the trunk and for every branch; on the main process.

    A thread makes their calls, so a tracker that fails or does not answer misses lines and costs no time. Only the
    first start is waited for.
    """

    def __init__(self, accelerator: Accelerator, arguments: TrainingArguments):
        self._accelerator = accelerator
        self._arguments = arguments
        self._trackers: list[Any] = []
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(_MOST_CALLS)
        self._thread: threading.Thread | None = None
        self._has_dropped = False

    def begin(self, folder: Path, start_tokens: int) -> None:
        """Begin the tracker runs of a trunk or branch; collective.

        Raises ConfigurationError on all processes if one of the first cannot be started, say because its service
        refuses the login. Where training has begun, it is a warning.
        """
        start = partial(self._start, folder, start_tokens)
        if self._thread is not None:
            self._call(start)
        elif self._arguments.run.trackers:
            on_main(self._accelerator, start)
            self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)
            self._thread.start()

    def log(self, line: Fields) -> None:
        """Log the numbers of a line of the step log; the load of the experts as its summary for every layer."""
        values = {name: value for name, value in line.items() if isinstance(value, (int, float)) and name != "step"}
        values["updates"] = line["step"]
        for layer, row in enumerate(line.get("tokens_per_expert", ())):
            values[f"expert_load_max_over_mean/layer{layer:02d}"] = balance([row])

        def log_to(tracker: Any) -> None:
            # wandb counts steps, and is told to draw over the tokens.
            tracker.log(values, step=line["step"] if tracker.name == "wandb" else line["tokens"])

        self._call(partial(self._each, log_to))

    def finish(self) -> None:
        """End the tracker runs, so that the next branch begins its own."""
        self._call(self._finish)

    def close(self) -> None:
        """Wait a moment for the calls that are not yet made, and make no more."""
        if self._thread is None:
            return
        deadline = time.monotonic() + _CLOSE_SECONDS
        with suppress(queue.Full):
            self._calls.put(None, timeout=_CLOSE_SECONDS)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            seconds = f"{_CLOSE_SECONDS:.0f} s"
            logger.warning("run.trackers: not ready after %s, and left alone; log.jsonl has all lines", seconds)

    def _call(self, function: Callable[[], None]) -> None:
        """Have the thread call a function, unless too many wait for it."""
        if self._thread is None:
            return
        try:
            self._calls.put_nowait(function)
        except queue.Full:
            if not self._has_dropped:
                logger.warning("run.trackers: too slow, so that they miss lines; log.jsonl has all of them")
            self._has_dropped = True

    def _work(self) -> None:
        # None ends it.
        for function in iter(self._calls.get, None):
            try:
                function()
            # The files of trackers raise them, as does `_start`.
            except (OSError, ValueError) as error:
                logger.warning("%s; training continues without it", error)

    def _each(self, call: Callable[[Any], None]) -> None:
        """Call a function with every tracker, of which those that fail are left alone."""
        for tracker in [*self._trackers]:
            try:
                call(tracker)
            # Each service has errors of its own.
            except (Exception, SystemExit) as error:
                self._trackers.remove(tracker)
                text = "run.trackers: %s failed and gets no more lines of this run: %s; log.jsonl has all of them"
                logger.warning(text, tracker.name, _reason(error))

    def _finish(self) -> None:
        self._each(lambda tracker: tracker.finish())
        self._trackers.clear()

    def _start(self, folder: Path, start_tokens: int) -> None:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, filter_trackers

        run = self._arguments.run
        group = f"{self._arguments.model.name}-seed{run.seed}"
        name = f"{group}-{folder.name.partition('-')[0]}"
        path = folder / "tracker.json"
        is_new = not path.exists()
        if is_new:
            # An id that runs of this name in other folders do not share.
            write_json(path, {"id": f"{name}-{secrets.token_hex(4)}"})
        run_id = json.loads(path.read_text(encoding="utf-8"))["id"]
        settings: dict[str, Fields] = {
            "wandb": {"id": run_id, "name": name, "group": group, "resume": "allow"},
            # trackio continues the latest run of a name, so the name has to be this run's alone.
            "trackio": {"name": run_id, "group": group, "resume": "allow"},
            # Events from beyond the checkpoint that training resumes from are hidden.
            "tensorboard": {"purge_step": start_tokens + 1},
        }
        for kind in map(str, filter_trackers(run.trackers, run.output_dir)):
            is_tensorboard = kind == "tensorboard"
            tracker_class = LOGGER_TYPE_TO_CLASS[kind]
            places = [folder.name, f"{run.output_dir}/tensorboard"] if is_tensorboard else [run.sweep, run.output_dir]
            n_places = 2 if tracker_class.requires_logging_directory else 1
            try:
                tracker = tracker_class(*places[:n_places], **settings.get(kind, {}))
                tracker.start()
                self._trackers.append(tracker)
                # tensorboard would show the configuration of a resumed run as one more run.
                if is_new or not is_tensorboard:
                    tracker.store_init_configuration(self._arguments.flat())
                if kind == "wandb":
                    tracker.tracker.define_metric("*", step_metric="tokens")
            # Each service has errors of its own.
            except (Exception, SystemExit) as error:
                self._finish()
                problem = f"{kind} could not be started: {_reason(error)}"
                raise ConfigurationError(f"run.trackers: {problem}") from error


def _reason(error: BaseException) -> str:
    """Return the text of an error on one line, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


# -- the profiler


class StepTrace:
    """A profiler's trace of the steps [first, last) of one process; () for none. Call it before every step."""

    def __init__(self, path: Path, steps: list[int]):
        self.path = path
        self.first, self.last = steps or (-1, -1)
        self._profile: torch.profiler.profile | None = None

    def __call__(self, step: int) -> None:
        if self._profile is None and step == self.first:
            self._profile = torch.profiler.profile(record_shapes=True, profile_memory=True)
            self._profile.start()
        elif step >= self.last:
            self.close()

    def close(self) -> None:
        """Write the trace, if one was begun."""
        profile = self._profile
        if profile is None:
            return
        self._profile = None
        try:
            profile.stop()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(self.path))
        except (OSError, RuntimeError) as error:
            reason = describe_full_disk(error, self.path) or error
            logger.warning("the trace %s could not be written: %s", self.path, reason)


# -- the log that is released with a model


def write_log(folder: Path, record: RunRecord, trunk_log: Path, branch_log: Path) -> None:
    """Write the run's log beside its model, unless it cannot be read or holds a secret."""
    try:
        content = run_log(record, trunk_log, branch_log)
    except OSError as error:
        logger.warning("the log of %s could not be read: %s", record.run_id, error)
        return
    secret = secret_in(content.decode())
    if secret:
        logger.warning("the log of %s holds what looks like %s, and is not released", record.run_id, secret)
    elif content:
        write_bytes(folder / NAME, content)


def run_log(record: RunRecord, trunk_log: Path, branch_log: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Join the lines of the trunk up to the branch point and those of the branch, which an intermediate model lacks.

    Beyond `max_bytes` only every 2nd, 4th, … line stays, and those of events.
    """
    if record.branch_point_tokens is None:
        lines = read_lines(trunk_log, record.tokens)
    else:
        lines = read_lines(trunk_log, record.branch_point_tokens) + read_lines(branch_log, record.tokens)
    content = b"".join(text for text, _ in lines)
    stride = 1
    while len(content) > max_bytes and stride < len(lines):
        stride *= 2
        content = b""
        for i, (text, line) in enumerate(lines):
            # With more events than there is room for only the first and the last line are left.
            is_event = stride < len(lines) and not _EVENTS.isdisjoint(line)
            if i % stride == 0 or i == len(lines) - 1 or is_event:
                content += text
    return content
