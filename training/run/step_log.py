"""What a run shows while it trains: a progress bar, a line of JSON every few steps, Accelerate's trackers, a trace."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from statistics import median

import torch
from tqdm.auto import tqdm

from training.run.devices import peak_memory
from training.run.evaluation import HeldOutLoss
from training.run.model import utilisation_flops
from training.run.step import Progress, Session, StepResult
from training.run.trackers import Trackers

logger = logging.getLogger(__name__)


def balance(tokens_per_expert) -> float:
    """Load of the fullest expert over the mean load, averaged over layers; 1 is perfect balance, E is collapse.

    Args:
        tokens_per_expert: tensor or nested list (layers, experts), counted before dropping.
    """
    rows = tokens_per_expert.tolist() if hasattr(tokens_per_expert, "tolist") else tokens_per_expert
    return sum(max(row) * len(row) / max(sum(row), 1) for row in rows) / len(rows)


class StepLog:
    """Call it after every step; it writes every `log_steps` steps, and after a non-finite one or a spike.

    Args:
        folder: of the trunk or branch; gets `log.jsonl`. Lines from beyond `start_step`, left by a run that was
            interrupted later than its last checkpoint, are removed.
    """

    def __init__(self, session: Session, folder: Path, start_step: int, end_step: int):
        a, arch, accelerator = session.arguments, session.architecture, session.accelerator
        self.session, self.ramp = session, session.schedule.ramp
        self.trackers = Trackers(accelerator, a, folder, self.ramp.tokens(start_step))
        # step, wall seconds and data wait at the last line
        self._since: tuple[int, float | None, float] = (start_step, None, session.data.wait_seconds)
        self._file = None
        if accelerator.is_main_process:
            _drop_lines_beyond(folder / "log.jsonl", start_step)
            self._file = open(folder / "log.jsonl", "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        self._bar = tqdm(
            total=self.ramp.tokens(end_step),
            initial=self.ramp.tokens(start_step),
            desc=f"d{arch.d_model} E{arch.experts} {folder.name}",
            unit="tok",
            unit_scale=True,
            dynamic_ncols=True,
            disable=not (a.run.progress and accelerator.is_main_process),
        )

    def __call__(self, progress: Progress, result: StepResult, rate: float) -> None:
        step = progress.step  # already counts this update
        self._bar.update(self.ramp.tokens(step) - self.ramp.tokens(step - 1))
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
        self._bar.set_postfix_str(_postfix(line), refresh=False)
        self._write(line)
        self.trackers.log(_scalars(line), step, line["tokens"])

    def evaluation(self, progress: Progress, measured: HeldOutLoss) -> None:
        """Record a held-out loss (nats per token, dropless) with its standard error."""
        loss, error = measured.loss, measured.standard_error
        values = {"eval_loss": _finite(loss), "eval_perplexity": _finite(math.exp(min(loss, 700.0)))}
        values |= {} if error is None else {"eval_loss_standard_error": _finite(error)}
        logger.info("step %d: held-out loss %.4f%s", progress.step, loss, "" if error is None else f" ± {error:.4f}")
        tokens = self.ramp.tokens(progress.step)
        self._write({"step": progress.step, "tokens": tokens, **values})
        self.trackers.log(_scalars(values), progress.step, tokens)

    def _write(self, line: dict) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

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
            "loss": _finite(result.loss),
            "learning_rate": rate,
            "batch_sequences": self.ramp.sequences(step - 1),
            "gradient_norm": _finite(result.gradient_norm),
            "balance_loss": _finite(balance_loss),
            "z_loss": _finite(z_loss),
            "tokens_per_second": speed,
            "mfu": speed * utilisation_flops(self.session.architecture) / peak if speed and peak else None,
            "data_wait_seconds": waited - since_waited,
            "memory_bytes": peak_memory(self.session.accelerator.device),
            "wall_seconds": progress.wall_seconds,
        }
        if result.tokens_per_expert is not None:
            routed, dropped = total(result.tokens_per_expert), total(result.dropped_tokens)
            line["drop_rate"] = (dropped.sum() / routed.sum()).item()
            line["expert_load_max_over_mean"] = balance(routed)
            line["router_entropy"] = _finite(total(result.router_entropy).mean().item())
            line["tokens_per_expert"] = [[int(n) for n in row] for row in routed.tolist()]
        return line

    def __enter__(self) -> StepLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self.trackers.finish()
        if self._file is not None:
            self._file.close()


class StepTrace:
    """A profiler's trace of the steps `first` to `last - 1` of one process, for chrome://tracing or perfetto.

    Call it before every step, and `close` at the end. Without steps it does nothing.
    """

    def __init__(self, path: Path, steps: list[int]):
        self.path, self.steps = path, range(*steps) if steps else range(0)
        self._profile: torch.profiler.profile | None = None

    def __call__(self, step: int) -> None:
        if self._profile is None and step == self.steps.start and step in self.steps:
            self._profile = torch.profiler.profile(record_shapes=True, profile_memory=True)
            self._profile.start()
        elif step >= self.steps.stop:
            self.close()

    def close(self) -> None:
        """Write the trace, if one was begun."""
        if self._profile is not None:
            profile, self._profile = self._profile, None
            profile.stop()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(self.path))


def _scalars(line: dict) -> dict:
    """What a tracker takes: numbers only; the load of the experts as its summary for every layer."""
    values = {name: value for name, value in line.items() if isinstance(value, (int, float)) and name != "step"}
    for layer, row in enumerate(line.get("tokens_per_expert", ())):
        values[f"expert_load_max_over_mean/layer{layer:02d}"] = balance([row])
    return values


def _postfix(line: dict) -> str:
    parts = [f"loss {line['loss']:.3f}" if line["loss"] is not None else "loss not finite"]
    parts += [f"{line['tokens_per_second']:,.0f} tok/s"] if line["tokens_per_second"] else []
    parts += [f"MFU {line['mfu']:.1%}"] if line["mfu"] else []
    return ", ".join(parts)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no NaN


def _drop_lines_beyond(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except ValueError:
            pass  # the last line of a killed process may be cut short
    path.write_text("".join(kept), encoding="utf-8")
