"""What a run shows while it trains: a progress bar, a line of JSON every few steps, and Accelerate's trackers."""

from __future__ import annotations

import json
import logging
import math
from functools import partial
from pathlib import Path

from .checkpoint import Progress
from .loop import StepResult, sum_over_processes

logger = logging.getLogger(__name__)


def balance(tokens_per_expert) -> float:
    """Load of the fullest expert over the mean load, averaged over layers; 1 is perfect balance, E is collapse.

    Args:
        tokens_per_expert: tensor or nested list (layers, experts), counted before dropping.
    """
    rows = tokens_per_expert.tolist() if hasattr(tokens_per_expert, "tolist") else tokens_per_expert
    return sum(max(row) * len(row) / max(sum(row), 1) for row in rows) / len(rows)


class StepLog:
    """Call it after every step; it writes every `log_steps` steps, and after a non-finite one.

    Args:
        path: the JSONL file. Lines from beyond `start_step`, left by a run that was interrupted later than its last
            checkpoint, are removed.
        flops_per_token: training FLOPs per token, for the MFU.
        peak_flops: of all devices together; None where unknown.
    """

    def __init__(
        self,
        path: Path,
        accelerator,
        schedule,
        *,
        start_step: int,
        end_step: int,
        log_steps: int,
        flops_per_token: float,
        peak_flops: float | None,
        label: str,
        progress: bool,
    ):
        from tqdm.auto import tqdm

        self.accelerator, self.schedule, self.log_steps = accelerator, schedule, log_steps
        self.flops_per_token, self.peak_flops = flops_per_token, peak_flops
        self._since = (start_step, None)  # (step, wall seconds) of the last line
        self._file = None
        if accelerator.is_main_process:
            _drop_lines_beyond(path, start_step)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        self._bar = tqdm(
            total=schedule.ramp.tokens(end_step),
            initial=schedule.ramp.tokens(start_step),
            desc=label,
            unit="tok",
            unit_scale=True,
            dynamic_ncols=True,
            disable=not (progress and accelerator.is_main_process),
        )

    def __call__(self, progress: Progress, result: StepResult, rate: float) -> None:
        step = progress.step  # already counts this update
        self._bar.update(self.schedule.ramp.tokens(step) - self.schedule.ramp.tokens(step - 1))
        skipped = bool(progress.skipped_steps) and progress.skipped_steps[-1] == step - 1
        if step % self.log_steps and not skipped:
            return
        line = self._line(progress, result, rate)
        self._bar.set_postfix_str(_postfix(line), refresh=False)
        if self._file is not None:
            if skipped:
                logger.warning("step %d was not finite and was not taken (loss %s)", step - 1, line["loss"])
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        self.accelerator.log({k: v for k, v in line.items() if v is not None}, step=step)

    def _line(self, progress: Progress, result: StepResult, rate: float) -> dict:
        total = partial(sum_over_processes, self.accelerator)
        step, ramp = progress.step, self.schedule.ramp
        tokens = ramp.tokens(step)
        since_step, since_seconds = self._since
        self._since = (step, progress.wall_seconds)
        seconds = progress.wall_seconds - since_seconds if since_seconds is not None else None
        speed = (tokens - ramp.tokens(since_step)) / seconds if seconds else None
        line = {
            "step": step,
            "tokens": tokens,
            "loss": _finite(total(result.loss).item()),
            "learning_rate": rate,
            "batch_sequences": ramp.sequences(step - 1),
            "gradient_norm": _finite(result.grad_norm.item()),
            "balance_loss": _finite(total(result.balance_loss).item()),
            "z_loss": _finite(total(result.z_loss).item()),
            "tokens_per_second": speed,
            "mfu": speed * self.flops_per_token / self.peak_flops if speed and self.peak_flops else None,
            "wall_seconds": progress.wall_seconds,
        }
        if result.tokens_per_expert is not None:
            routed, dropped = total(result.tokens_per_expert), total(result.dropped_tokens)
            entropy = total(result.router_entropy)
            line["drop_rate"] = (dropped.sum() / routed.sum()).item()
            line["expert_load_max_over_mean"] = balance(routed)
            line["router_entropy"] = entropy.mean().item()
            line["tokens_per_expert"] = [[int(n) for n in row] for row in routed.tolist()]
        return line

    def close(self) -> None:
        self._bar.close()
        if self._file is not None:
            self._file.close()


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
