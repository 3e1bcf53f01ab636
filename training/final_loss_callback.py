"""The forecast of the final loss in the logs of transformers' Trainer, and of trainers built on it such as TRL's."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from hub.base import atomic
from hub.base.errors import InputError
from hub.base.types import Fields
from scaling_law import Law, LiveEstimate, LiveForecast, TrainingCurve
from scaling_law.forecasting.curves import LAST_SHARE
from scaling_law.forecasting.live import Watch
from scaling_law.forecasting.schedules import PLANNED_STEPS
from scaling_law.law.shelf import choose_law
from scaling_law.size.model_configs import read_model

logger = logging.getLogger(__name__)


class FinalLossCallback(TrainerCallback):
    """Callback that adds `forecast_loss`, `forecast_low` and `forecast_high` (90 %) to the Trainer's logs and state.

    Args:
        curves: a folder of training curves, of runs with the same data and tokenizer and any learning-rate schedule;
            the forecast learns from them, and a run that ends adds its own, one for each output_dir.
        law: a `Law`, or its name as of `scaling-law loss --law`; its losses must be of the same unit.
        tokens_per_step: of all devices together; not needed with `include_num_input_tokens_seen`. Without either, and
            without a law, D is counted in steps.
        decay: the last share of the steps over which the learning rate falls to 0, for schedules that the Trainer does
            not know beforehand; those of transformers are read. Where it is wrong, intervals do not hold.

    Raises InputError for a law without tokens to ask it of, and for curves of another unit than the run's.
    """

    def __init__(
        self,
        curves: str | Path | None = None,
        law: Law | str | None = None,
        tokens_per_step: int | None = None,
        decay: float = 1.0,
    ):
        self.law = choose_law(law, flag="law") if isinstance(law, str) else law
        self.folder = Path(curves) if curves else None
        self.tokens_per_step = tokens_per_step
        self.decay = decay

    @property
    def estimate(self) -> LiveEstimate | None:
        """The newest forecast."""
        return self.watch.estimate

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        lr_scheduler: Any = None,
        **kwargs: Any,
    ) -> None:
        """Read the finished curves, the schedule, and the model as laws see it."""
        has_tokens = self.tokens_per_step or args.include_num_input_tokens_seen not in ("no", False)
        if self.law and not has_tokens:
            raise InputError("tokens_per_step must be given with a law, or include_num_input_tokens_seen be set")
        self.unit = "tokens" if has_tokens else "steps"
        output_dir = Path(args.output_dir).resolve()
        digest = hashlib.sha256(str(output_dir).encode()).hexdigest()
        self.name = f"{output_dir.name}-{digest[:8]}"
        try:
            variables = read_model(model.config).architecture.variables()
        except (ValueError, AttributeError):
            # Laws do not know this class: its size is all that they are asked by.
            variables = {"n_active": float(sum(p.numel() for p in model.parameters()))}
        rates = _read_rates(lr_scheduler, state.max_steps)
        self.plan: Fields = {"model": variables, "decay": self.decay, "rates": rates, "trunk": self.name}
        lines = [self._line(entry, state.max_steps) for entry in state.log_history if "loss" in entry]
        self.watch = Watch(LiveForecast(self._read_curves(), self.law), self.plan, lines)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add the forecast to a line of the training loss, and warn once if the run is off its track."""
        if not logs or "loss" not in logs:
            return
        entry = state.log_history[-1]
        fields = self.watch(self._line(entry, state.max_steps))
        logs.update(fields)
        entry.update(fields)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the curve of a run that reached its end, unless it diverged."""
        has_ended = state.global_step >= state.max_steps and state.is_world_process_zero
        lines = self.watch.lines
        if self.folder is None or not has_ended or not lines:
            return
        last_losses = [line["loss"] for line in lines if line["tokens"] >= (1 - LAST_SHARE) * lines[-1]["tokens"]]
        final = sum(last_losses) / len(last_losses)
        for entry in state.log_history:
            if "eval_loss" in entry and entry["step"] == state.max_steps:
                final = entry["eval_loss"]
        if not all(0 < loss < math.inf for loss in (*last_losses, final)):
            text = "the last losses of %s are not finite and positive: it diverged, and its curve is not added to %s"
            logger.warning(text, args.output_dir, self.folder)
            return
        curve = self.watch.curve
        points = {"tokens": curve.tokens.tolist(), "losses": curve.losses.tolist(), "horizon": float(curve.tokens[-1])}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.name}.json"
        atomic.write_json(path, {**self.plan, **points, "final": final, "unit": self.unit})

    def _line(self, entry: Fields, max_steps: int) -> Fields:
        """Return the loss of an entry of the Trainer's log with its tokens, which tell those of the whole run."""
        step = entry["step"]
        tokens = step * self.tokens_per_step if self.tokens_per_step else entry.get("num_input_tokens_seen") or step
        self.plan["horizon"] = tokens / step * max_steps
        # Trainer logs a loss of 0 for NaN, or the mean of the steps before it; the gradient's norm is then not finite.
        is_sound = math.isfinite(entry.get("grad_norm", 0.0))
        return {**entry, "tokens": tokens, "loss": entry["loss"] if is_sound else math.nan}

    def _read_curves(self) -> list[TrainingCurve]:
        """Read the curves of the folder except this run's.

        Raises InputError for a file that is not a curve, and for a curve of another unit.
        """
        curves = []
        for path in sorted(self.folder.glob("*.json")) if self.folder else ():
            fields = json.loads(path.read_text(encoding="utf-8"))
            unit = fields.pop("unit", None)
            if unit != self.unit:
                raise InputError(
                    f"curves: {path.name} counts {unit}, and this run {self.unit}; give tokens_per_step to both"
                )
            if path.stem != self.name:
                curves.append(TrainingCurve(**fields))
        return curves


def _read_rates(scheduler: Any, max_steps: int) -> list[float] | None:
    """Read learning rates at equal steps of a run; None for a schedule that is not a function of the step."""
    functions = getattr(scheduler, "lr_lambdas", None)
    if not functions:
        return None
    rates = [float(functions[0](step)) for step in np.linspace(0, max_steps, min(max_steps, PLANNED_STEPS) + 1)]
    return rates if min(rates) >= 0 and 0 < max(rates) < math.inf else None
