"""Training curves: losses after tokens, with the schedule of the learning rate; and the logs of `train.py`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

# Lazy: the rooms of hub are imported when logs are read.
import hub
from hub.base.errors import InputError, shorten
from hub.base.fields import Field, Positive, reads
from hub.base.types import Fields
from scaling_law.forecasting.schedules import basis, plan_rates
from scaling_law.formulas.law import numbers, one_positive, positive
from scaling_law.size.arrays import FloatArray

# What `train.py` writes: a log, and beside it the finished runs to learn from and the plan of the run.
LOG = "log.jsonl"
NOTE = "forecast.json"
# The final loss is the mean of this last share of the lines.
LAST_SHARE = 0.01


@reads
@dataclass(frozen=True, eq=False)
class TrainingCurve:
    """Training losses [k] after `tokens` [k], of a run that ends at `horizon` tokens.

    `model` holds what laws ask, at least n_active; E is 1 where it has no `experts`. `rates` are the learning rates
    [m], past and planned, at equal steps of tokens from the beginning to the end, warm-up included, in any unit.
    Without them the rate is taken to rise over `warmup_tokens`, be constant, and fall linearly to 0 over the last
    share `decay` of the tokens; where that is not the run's schedule, intervals do not hold (docs/studies/live.md).
    `final` is the loss at the end, held out or the mean of the last 1 % of the training losses; None while it trains.
    Branches of one `trunk` count as one run. InputError for a run without an end, and values that cannot be.
    """

    tokens: FloatArray
    losses: FloatArray
    horizon: Positive
    model: Mapping[str, float]
    decay: Annotated[float, Field(gt=0, le=1)] = 0.2
    final: Positive | None = None
    trunk: str = ""
    warmup_tokens: float = 0.0
    rates: FloatArray | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "losses"):
            object.__setattr__(self, name, np.atleast_1d(positive(name, getattr(self, name))))
        tokens = self.tokens
        losses = self.losses
        if tokens.shape != losses.shape or tokens.ndim != 1:
            raise InputError(f"losses have shape {losses.shape}; tokens have {tokens.shape}, one loss each is needed")
        if not np.all(np.diff(tokens) > 0):
            raise InputError("tokens must increase: a curve is one run")
        one_positive("model: n_active", self.model.get("n_active", 0.0))
        if self.rates is not None:
            rates = np.atleast_1d(numbers("rates", self.rates))
            if rates.ndim != 1 or len(rates) < 2 or not np.all(rates >= 0) or not 0 < rates.max() < np.inf:
                raise InputError(f"rates={shorten(self.rates)} must be two or more learning rates from 0, not all 0")

    def basis(self, shares: ArrayLike) -> FloatArray:
        """Return what ln L is a sum of after `shares` [k] of the tokens, [k, 5]: `schedules.basis`."""
        rates = self.rates
        if rates is None:
            rates = plan_rates("wsd", self.decay, self.warmup_tokens / self.horizon)
        return basis(np.asarray(rates, float), shares)

    @property
    def share(self) -> float:
        """Share of its tokens that it has trained."""
        return float(self.tokens[-1] / self.horizon) if len(self.tokens) else 0.0

    @property
    def position(self) -> FloatArray:
        """ln of D, N and E."""
        return np.log([self.horizon, self.model["n_active"], self.model.get("experts", 1.0)])

    def until(self, share: float) -> TrainingCurve:
        """Return the run as it stood at a share of its tokens."""
        is_trained = self.tokens <= share * self.horizon * (1 + 1e-9)
        return replace(self, tokens=self.tokens[is_trained], losses=self.losses[is_trained], final=None)


# ------------------------------------------------------------------ train.py


def curve_of(record: Any, lines: Iterable[Mapping[str, Any]]) -> TrainingCurve:
    """Make the curve of a `RunRecord` and the lines of its log: trunk up to the branch point, then its branch.

    Lines of spikes and of steps that were skipped do not count. `final` is the held-out loss, else that of training.
    """
    model = {name: value for name, value in record.to_dict().items() if isinstance(value, (int, float))}
    model["experts"] = model.get("experts_equivalent", model["experts"])
    schedule = record.schedule
    final = record.train_loss if record.eval_loss is None else record.eval_loss
    return curve_of_lines(
        lines,
        horizon=schedule.horizon_tokens,
        model=model,
        decay=schedule.decay_tokens / schedule.horizon_tokens,
        final=final if record.status == "final" else None,
        trunk=record.parent_run_id or record.run_id,
        warmup_tokens=schedule.warmup_tokens,
    )


def curve_of_lines(lines: Iterable[Mapping[str, Any]], **fields: Any) -> TrainingCurve:
    """Make a curve with these fields of the lines of a step log, without spikes and skipped steps."""
    losses = {}
    for line in lines:
        # A skipped step's loss is None in a file, not a number while its run goes on, and 0 in the log of a Trainer.
        if 0 < (line.get("loss") or 0) < np.inf and not line.get("loss_spike"):
            losses[line["tokens"]] = line["loss"]
    return TrainingCurve(np.array([*losses], float), np.array([*losses.values()], float), **fields)


def read_lines(log: Path, until: float = np.inf) -> list[tuple[bytes, Fields]]:
    """Read text and values of every line of a step log up to some tokens.

    Incomplete ones, as a killed process leaves them, are skipped.
    """
    lines = []
    for text in log.read_bytes().splitlines() if log.exists() else ():
        with suppress(ValueError, KeyError, TypeError):
            line = json.loads(text)
            if line["step"] >= 0 and line["tokens"] <= until:
                lines.append((text + b"\n", line))
    return lines


def read_finished(models: Iterable[Path]) -> list[TrainingCurve]:
    """Read the curves of these folders of models, each with its record and log; damaged ones are left out."""
    curves = []
    for folder in models:
        with suppress(OSError, ValueError):
            curve = curve_of(hub.RunRecord.load(folder), [line for _, line in read_lines(folder / LOG)])
            if len(curve.tokens) and curve.final is not None:
                curves.append(curve)
    return curves
