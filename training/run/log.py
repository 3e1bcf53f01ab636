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
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import median

import torch

from hub.base.atomic import write_bytes, write_json
from hub.base.disk import describe_full_disk
from hub.base.errors import secret_in
from hub.base.progress import progress_line
from hub.record.run_record import RunRecord
from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.run.devices import on_main, peak_memory
from training.run.evaluation import HeldOutLoss
from training.run.forecast import RunForecast, read_lines
from training.run.progress import Progress
from training.run.step import Session, StepResult

logger = logging.getLogger(__name__)

NAME = "log.jsonl"
# Largest released log.
MAX_BYTES = 4_000_000
# Calls of trackers that may wait.
_MOST_CALLS = 10_000
# Seconds that the end of a run waits for trackers.
_CLOSE_SECONDS = 30.0
_EVENTS = ("skipped_batch", "loss_spike", "eval_loss", "off_track")  # their lines stay in a thinned log


def balance(tokens_per_expert: list[list[float]]) -> float:
    """Load of the fullest expert over the mean load, mean over layers (layers, experts); from 1 (balance) to E."""
    loads = [max(row) * len(row) / max(sum(row), 1) for row in tokens_per_expert]
    return sum(loads) / len(loads)


class StepLog(ExitStack):
    """Call it after every step; it writes every `log_steps` steps, and after a non-finite one or a spike.

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
        forecast: Callable[[list[dict]], RunForecast] | None = None,
    ):
        super().__init__()
        a, arch, accelerator = session.arguments, session.architecture, session.accelerator
        self.session, self.ramp = session, session.schedule.ramp
        start_tokens = self.ramp.tokens(start_step)
        self.trackers = trackers
        trackers.begin(folder, start_tokens)
        # step, wall seconds and data wait at the last line
        self._since: tuple[int, float | None, float] = (start_step, None, session.data.wait_seconds)
        self.callback(self.trackers.finish)
        self._file = self.forecast = None
        if accelerator.is_main_process:
            path = folder / NAME
            lines = [(text, line) for text, line in read_lines(path) if line["step"] <= start_step]
            content = b"".join(text for text, _ in lines)
            if not path.exists() or path.read_bytes() != content:  # a full disk may not hold it twice
                write_bytes(path, content)
            self.forecast = forecast([line for _, line in lines]) if forecast else None
            self._file = LineFile(path)
            self.callback(self._file.close)
        name = f"d{arch.d_model} E{arch.experts} {folder.name.partition('-')[0]}"
        shown = a.run.progress and accelerator.is_main_process
        bar = progress_line(name, self.ramp.tokens(end_step), "tok", shown, done=start_tokens)
        self._advance = self.enter_context(bar)
        # The text of the last line.
        self._detail = ""

    def __call__(self, progress: Progress, result: StepResult, rate: float) -> None:
        step = progress.step  # already counts this update
        self._advance(self.ramp.tokens(step) - self.ramp.tokens(step - 1), self._detail)
        if step % self.session.arguments.run.log_steps and result.is_finite and not result.is_spike:
            return
        line = self._line(progress, result, rate)
        if not result.is_finite:
            # Where the batch lies in the order of the data, and which sequences of the token cache it has.
            position, count = self.ramp.position(step - 1), self.ramp.sequences(step - 1)
            sequences = self.session.data.indices(position, count).tolist()
            line["skipped_batch"] = {"position": position, "sequences": sequences}
            logger.warning(
                "step %d was skipped: not finite (loss %s, gradient norm %s); its batch is in log.jsonl",
                *(step - 1, result.loss, result.gradient_norm),
            )
        if result.is_spike:
            line["loss_spike"] = True
            before = median(progress.recent_losses[:-1])
            logger.warning("step %d: the loss spiked to %.3f, from %.3f before it", step - 1, result.loss, before)
        utilisation = f", MFU {line['mfu']:.1%}" if line["mfu"] else ""
        self._detail = f"loss {result.loss:.3f}{utilisation}"
        if self.forecast:
            line |= self.forecast(line)
            self._detail += f", {self.forecast.text}" if self.forecast.text else ""
        self._write(line)

    def evaluation(self, progress: Progress, measured: HeldOutLoss) -> None:
        """Record a held-out loss (nats per token, dropless) with its standard error."""
        loss, error = measured.loss, measured.standard_error
        line = {"step": progress.step, "tokens": self.ramp.tokens(progress.step), "eval_loss": loss}
        line["eval_perplexity"] = math.exp(min(loss, 700.0))
        if error is not None:
            line["eval_loss_standard_error"] = error
        logger.info("step %d: held-out loss %.4f%s", progress.step, loss, "" if error is None else f" ± {error:.4f}")
        self._write(line)

    def _write(self, line: dict) -> None:
        not_finite = {name for name, value in line.items() if isinstance(value, float) and not math.isfinite(value)}
        line |= dict.fromkeys(not_finite)  # JSON has no NaN
        if self._file is not None:
            self._file.write(json.dumps(line))
        self.trackers.log(line)

    def _line(self, progress: Progress, result: StepResult, rate: float) -> dict:
        total, peak = self.session.total, self.session.peak_flops
        step, tokens, waited = progress.step, self.ramp.tokens(progress.step), self.session.data.wait_seconds
        since_step, since_seconds, since_waited = self._since
        self._since = (step, progress.wall_seconds, waited)
        seconds = progress.wall_seconds - since_seconds if since_seconds is not None else None
        speed = (tokens - self.ramp.tokens(since_step)) / seconds if seconds else None
        balance_loss, z_loss = total(torch.stack([result.balance_loss, result.z_loss])).tolist()
        line = {
            "step": step,
            "tokens": tokens,
            "loss": result.loss,
            "learning_rate": rate,
            "batch_sequences": self.ramp.sequences(step - 1),
            "gradient_norm": result.gradient_norm,
            "balance_loss": balance_loss,
            "z_loss": z_loss,
            "tokens_per_second": speed,
            "mfu": speed * self.session.flops.multiplied / peak if speed and peak else None,
            "data_wait_seconds": waited - since_waited,
            "memory_bytes": peak_memory(self.session.accelerator.device),
            "wall_seconds": progress.wall_seconds,
            "devices": self.session.accelerator.num_processes,
        }
        if result.tokens_per_expert is not None:
            routed, dropped = total(result.tokens_per_expert), total(result.dropped_tokens)
            line["drop_rate"] = (dropped.sum() / routed.sum()).item()
            line["expert_load_max_over_mean"] = balance(routed.tolist())
            line["router_entropy"] = total(result.router_entropy).mean().item()
            line["tokens_per_expert"] = [[int(n) for n in row] for row in routed.tolist()]
        return line


class LineFile:
    """Appends lines to a file, each at once; what a full disk does not take is written with a later line."""

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
                logger.warning("%s: %s; its lines wait for room, and training goes on", self._path, reason)

    def close(self) -> None:
        if self._waiting:
            logger.warning("%s lacks its last lines: %d bytes could not be written", self._path, len(self._waiting))
        try:
            self._file.close()
        except OSError as error:  # a network's file system may say so only now
            logger.warning("%s: %s", self._path, error)


# -- trackers


def check_trackers(names: list[str]) -> None:
    """Raise ConfigurationError for an unknown or missing tracker, which Accelerate would skip silently."""
    from accelerate.tracking import get_available_trackers

    installed = [str(tracker) for tracker in get_available_trackers()]
    for name in names:
        if name not in installed and (name != "all" or not installed):
            allowed = ", ".join(installed) or "none"
            raise ConfigurationError(f"run.trackers: {name!r}; installed trackers: {allowed}")


class Trackers:
    """The tracker runs of a trunk and its branches, one after the other; on other processes than the main one, none.

    A thread makes all their calls: one that fails or does not return costs the tracker's lines, and no time. Only the
    first start is waited for.
    """

    def __init__(self, accelerator, arguments: TrainingArguments):
        self._accelerator, self._arguments = accelerator, arguments
        # Trackers that the thread has started.
        self._started: list = []
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(_MOST_CALLS)
        self._thread: threading.Thread | None = None
        self._has_dropped = False

    def begin(self, folder: Path, start_tokens: int) -> None:
        """Begin the tracker runs of a trunk or branch; collective.

        Raises ConfigurationError on all processes if one of the first cannot be started, say because its service
        refuses the login. Where training has begun, it is a warning.
        """
        if not self._arguments.run.trackers:
            return
        if self._thread is not None:
            self._call(partial(self._start_again, folder, start_tokens))
            return
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)
        outcome: Future[None] = Future()

        def start() -> None:
            try:
                self._start(self._arguments, folder, start_tokens)
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(None)

        def wait() -> None:
            self._thread.start()
            self._call(start)
            outcome.result()

        on_main(self._accelerator, wait)

    def log(self, line: dict) -> None:
        """Log the numbers of a line of the step log; the load of the experts as its summary for every layer."""
        self._call(partial(self._log, line))

    def finish(self) -> None:
        """End the tracker runs, so that the next branch begins its own."""
        self._call(self._finish)

    def close(self) -> None:
        """Wait a moment for the calls that are not yet made, and make no more."""
        if self._thread is None or not self._thread.is_alive():
            return
        deadline = time.monotonic() + _CLOSE_SECONDS
        with suppress(queue.Full):
            self._calls.put(None, timeout=_CLOSE_SECONDS)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            seconds = f"{_CLOSE_SECONDS:.0f} s"
            logger.warning("run.trackers: not ready after %s, and left alone; log.jsonl has all lines", seconds)

    def _call(self, function: Callable[[], None]) -> None:
        """Have the thread call a function."""
        if self._thread is None:
            return
        try:
            self._calls.put_nowait(function)
        except queue.Full:
            if not self._has_dropped:
                logger.warning("run.trackers: too slow, so that they miss lines; log.jsonl has all of them")
            self._has_dropped = True

    def _work(self) -> None:
        while (function := self._calls.get()) is not None:
            function()

    # -- in the thread

    def _start_again(self, folder: Path, start_tokens: int) -> None:
        try:
            self._start(self._arguments, folder, start_tokens)
        # Its files raise them, as does `begin`.
        except (OSError, ValueError) as error:
            logger.warning("%s; training goes on without it", error)

    def _log(self, line: dict) -> None:
        values = {name: value for name, value in line.items() if isinstance(value, (int, float)) and name != "step"}
        values["updates"] = line["step"]
        for layer, row in enumerate(line.get("tokens_per_expert", ())):
            values[f"expert_load_max_over_mean/layer{layer:02d}"] = balance([row])
        for tracker in [*self._started]:  # wandb counts steps, and is told to draw over the tokens
            try:
                tracker.log(values, step=line["step" if tracker.name == "wandb" else "tokens"])
            except (Exception, SystemExit) as error:  # each service has errors of its own
                self._started.remove(tracker)
                reason = " ".join(str(error).split()) or type(error).__name__
                text = "run.trackers: %s failed and gets no more lines of this run: %s; log.jsonl has all of them"
                logger.warning(text, tracker.name, reason)

    def _finish(self) -> None:
        while self._started:
            tracker = self._started.pop()
            try:
                tracker.finish()
            except (Exception, SystemExit) as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                logger.warning("run.trackers: %s could not finish: %s", tracker.name, reason)

    def _start(self, arguments: TrainingArguments, folder: Path, start_tokens: int) -> None:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, filter_trackers

        output_dir = Path(arguments.run.output_dir)
        group = f"{arguments.model.name}-seed{arguments.run.seed}"
        name = f"{group}-{folder.name.partition('-')[0]}"
        path = folder / "tracker.json"
        if is_new := not path.exists():  # an id that runs of this name in other folders do not share
            write_json(path, {"id": f"{name}-{secrets.token_hex(4)}"})
        run_id = json.loads(path.read_text(encoding="utf-8"))["id"]
        settings = {
            "wandb": {"id": run_id, "name": name, "group": group, "resume": "allow"},
            # trackio continues the latest run of a name, so the name has to be this run's alone.
            "trackio": {"name": run_id, "group": group, "resume": "allow"},
            # Events from beyond the checkpoint that training resumes from are hidden.
            "tensorboard": {"purge_step": start_tokens + 1},
        }
        for tracker_name in map(str, filter_trackers(arguments.run.trackers, output_dir)):
            kind = LOGGER_TYPE_TO_CLASS[tracker_name]
            place = [str(output_dir)] if kind.requires_logging_directory else []
            project = arguments.run.sweep
            if tracker_name == "tensorboard":
                project, place = folder.name, [str(output_dir / "tensorboard")]
            try:
                tracker = kind(project, *place, **settings.get(tracker_name, {}))
                tracker.start()
                self._started.append(tracker)
                # tensorboard would show the configuration as one more run.
                if is_new or tracker_name != "tensorboard":
                    tracker.store_init_configuration(arguments.flat())
            except (Exception, SystemExit) as error:  # each service has errors of its own
                self._finish()
                reason = " ".join(str(error).split()) or type(error).__name__
                raise ConfigurationError(f"run.trackers: {tracker_name} could not be started: {reason}") from error
            if tracker_name == "wandb":
                tracker.tracker.define_metric("*", step_metric="tokens")


# -- the profiler


class StepTrace:
    """A profiler's trace of the steps [first, last) of one process; () for none. Call it before every step."""

    def __init__(self, path: Path, steps: list[int]):
        self.path, (self.first, self.last) = path, steps or (-1, -1)
        self._profile: torch.profiler.profile | None = None

    def __call__(self, step: int) -> None:
        if self._profile is None and step == self.first:
            self._profile = torch.profiler.profile(record_shapes=True, profile_memory=True)
            self._profile.start()
        elif step >= self.last:
            self.close()

    def close(self) -> None:
        """Write the trace, if one was begun."""
        if self._profile is not None:
            profile, self._profile = self._profile, None
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
    if secret := secret_in(content.decode()):
        logger.warning("the log of %s holds what looks like %s, and is not released", record.run_id, secret)
    elif content:
        write_bytes(folder / NAME, content)


def run_log(record: RunRecord, trunk_log: Path, branch_log: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The lines of the trunk up to the branch point and of the branch; an intermediate model has the trunk's alone.

    Beyond `max_bytes` only every 2nd, 4th, … line stays, and those of events.
    """
    parts = [(trunk_log, record.tokens)]
    if record.branch_point_tokens is not None:
        parts = [(trunk_log, record.branch_point_tokens), (branch_log, record.tokens)]
    lines = [(text, line) for log, last in parts for text, line in read_lines(log) if line["tokens"] <= last]
    events = {i for i, (_, line) in enumerate(lines) if any(name in line for name in _EVENTS)}
    kept, every = range(len(lines)), 1
    while every < len(lines) and sum(len(lines[i][0]) for i in kept) > max_bytes:
        every *= 2
        # With more events than there is room for only the first and the last line are left.
        kept = sorted({*range(0, len(lines), every), len(lines) - 1, *(events if every < len(lines) else ())})
    return b"".join(lines[i][0] for i in kept)
