"""The forecast of the final loss in the logs of transformers' Trainer, and of trainers built on it such as TRL's."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from hub.base import atomic
from hub.base.errors import InputError
from scaling_law import Law, LiveEstimate, LiveForecast, TrainingCurve
from scaling_law.law.shelf import choose_law
from scaling_law.size.model_configs import read_model

logger = logging.getLogger(__name__)
LAST = 0.05  # share of the tokens whose mean training loss is the final one of a run without an evaluation at its end


class FinalLossCallback(TrainerCallback):
    """Adds `forecast_loss`, `forecast_low` and `forecast_high` (90 %) to what the Trainer logs and to its state.

    Args:
        curves: a folder of training curves, of runs with the same data, tokenizer and learning-rate schedule; those
            there are what the forecast learns from, and a run that ends adds its own.
        law: a `Law`, or its name as of `scaling-law loss --law`; its losses must be of the same unit.
        tokens_per_step: of all devices together; not needed with `include_num_input_tokens_seen`. Without either, and
            without a law, D is counted in steps.
        decay: the last share of the steps over which the learning rate falls; 1 for linear and cosine schedules.

    InputError for a law without tokens to ask it of, and for curves of another schedule or unit than this run's.
    """

    def __init__(
        self,
        curves: str | Path | None = None,
        law: Law | str | None = None,
        tokens_per_step: int | None = None,
        decay: float = 1.0,
    ):
        self.law = choose_law(law, flag="law") if isinstance(law, str) else law
        self.folder, self.tokens_per_step, self.decay = curves and Path(curves), tokens_per_step, decay
        self.estimate: LiveEstimate | None = None
        self.live, self.off_track = LiveForecast(law=self.law), False

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        counted = args.include_num_input_tokens_seen not in ("no", False)
        if self.law and not (counted or self.tokens_per_step):
            raise InputError("tokens_per_step must be given with a law, or include_num_input_tokens_seen be set")
        self.unit = "tokens" if counted or self.tokens_per_step else "steps"
        self.name = Path(args.run_name or args.output_dir).name
        try:
            self.model = read_model(model.config).architecture.variables()
        except (ValueError, AttributeError):  # a class that laws do not know: its size alone
            self.model = {"n_active": float(sum(p.numel() for p in model.parameters()))}
        self.live = LiveForecast(self._finished(), self.law)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return
        self.estimate = self.live.of(self._curve(state))
        if self.estimate is None:
            return
        low, high = self.estimate.interval()
        fields = {"forecast_loss": self.estimate.loss, "forecast_low": low, "forecast_high": high}
        for entry in (logs, state.log_history[-1]):
            entry.update(fields)
        if self.estimate.off_track() and not self.off_track:
            self.off_track = True
            logger.warning("step %d: off the track of runs like it: %s", state.global_step, self.estimate)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the curve of a run that reached its end."""
        curve = self._curve(state)
        ended = state.global_step >= state.max_steps and state.is_world_process_zero
        if self.folder is None or not ended or not len(curve.tokens):
            return
        last = [
            entry["eval_loss"]
            for entry in state.log_history
            if "eval_loss" in entry and entry["step"] == state.max_steps
        ]
        final = last[-1] if last else float(np.mean(curve.losses[curve.tokens >= (1 - LAST) * curve.tokens[-1]]))
        points = {"tokens": curve.tokens.tolist(), "losses": curve.losses.tolist(), "horizon": float(curve.tokens[-1])}
        about = {"model": self.model, "decay": self.decay, "final": final, "trunk": self.name, "unit": self.unit}
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic.write_json(self.folder / f"{self.name}.json", points | about)

    def _curve(self, state: Any) -> TrainingCurve:
        """The run so far, from the Trainer's own log, which its checkpoints keep."""
        entries = {entry["step"]: entry for entry in state.log_history if 0 < entry.get("loss", 0) < math.inf}
        at = [self._tokens(step, entry) for step, entry in entries.items()]
        horizon = at[-1] / state.global_step * state.max_steps if at else float(state.max_steps)
        losses = [entry["loss"] for entry in entries.values()]
        return TrainingCurve(at, losses, horizon, self.model, decay=self.decay)  # type: ignore[arg-type]

    def _tokens(self, step: int, entry: dict[str, Any]) -> float:
        return float(step * self.tokens_per_step if self.tokens_per_step else entry.get("num_input_tokens_seen", step))

    def _finished(self) -> list[TrainingCurve]:
        """The curves of the folder but this run's. InputError for one that is none, and one of another unit."""
        curves = []
        for path in sorted(self.folder.glob("*.json")) if self.folder else ():
            fields = json.loads(path.read_text(encoding="utf-8"))
            if (unit := fields.pop("unit", None)) != self.unit:
                counted = f"curves: {path.name} counts {unit}, and this run {self.unit}"
                raise InputError(f"{counted}; give tokens_per_step to both")
            if path.stem != self.name:
                curves.append(TrainingCurve(**fields))
        return curves
