"""`live`: the final losses of runs that train, from any log of theirs and from runs that have finished."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from hub.base import atomic
from hub.base.errors import InputError, given
from hub.base.fields import Names, field, reads
from hub.base.types import Fields
from hub.base.units import format_count
from scaling_law.answer.answer import Answer, columns_of
from scaling_law.forecasting.curves import (
    LAST_SHARE,
    LOG,
    NOTE,
    TrainingCurve,
    curve_of_lines,
    read_finished,
    read_lines,
)
from scaling_law.forecasting.live import FIRST_SHARE, LiveForecast
from scaling_law.forecasting.schedules import FORMS, PLANNED_STEPS, plan_rates, recognize
from scaling_law.law.shelf import choose_law
from scaling_law.planning.question import Count, Level, Parameters, RunTokens, Tokens
from scaling_law.runs.columns import aliases_of
from scaling_law.runs.loading import read_histories
from scaling_law.runs.logged import STEPS
from scaling_law.runs.rows import Row, RunsError, is_loss, number
from scaling_law.size.arrays import FloatArray

# Columns of the training loss, and settings with the steps at which a run ends, by their last word.
LOSSES = ("loss", "train_loss", "training_loss", "lm_loss")
ENDS = ("max_steps", "total_steps", "num_training_steps", "max_iters", "train_iters", "num_iterations")
# What changes along a run; a peak learning rate stays as it is.
RATES = ("learning_rate", "lr")
SCHEDULE = "Learning rates to come: cosine, cosine:0.1 (falls to a tenth of the peak), linear, wsd:0.2 (to 0 over the "
SCHEDULE += "last fifth) or constant. [default: as the rates in the log show it]"
TOO_EARLY = f"no forecast before {FIRST_SHARE:.0%} of the tokens, within twice the warm-up, and without a law or a "
TOO_EARLY += "finished run of about its size and length"


@dataclass(frozen=True, repr=False)
class LiveRuns(Answer):
    """The final losses of runs that train.

    `rows` have for each run

        run_id              its name
        share, tokens       how much of its tokens it has seen, and how many these are at its end
        last_loss           its last logged loss
        loss, low, high     the forecast of its final loss, and the interval that holds it with probability `level`
        law_loss            the forecast without the run's own curve
        track               "on its track", or how far its smoothed loss lies off it: "3.2% above its track"

    Without a forecast, `loss` and what follows is None, and `notes` says why.
    """

    _first = ("loss", "track", "low", "high", "share", "tokens", "last_loss")

    level: float

    @property
    def best(self) -> Fields:
        """The run with the lowest forecast, else the first."""
        return min(self.rows, key=lambda row: row["loss"] or np.inf)

    @property
    def trusted(self) -> bool:
        return all(row["loss"] is not None for row in self.rows)

    @property
    def verdict(self) -> str:
        texts = []
        for row in self.rows:
            text = f"{row['run_id']}: {row['share']:.0%} of {format_count(row['tokens'])} tokens"
            if row["loss"] is not None:
                text += f", final loss {row['loss']:.3f} ({row['low']:.3f} to {row['high']:.3f}); {row['track']}"
            texts.append(text)
        return "\n".join(texts)


@reads
def live(
    source: Any,
    *,
    n_active: Annotated[Parameters | None, field("Active parameters with embeddings: 1.1B.")] = None,
    experts: Annotated[Count | None, field("E of the model: 8. [default: that of the log, else 1]")] = None,
    tokens: Annotated[RunTokens | None, field("Tokens at which it ends: 20B. [default: by its last step]")] = None,
    batch: Annotated[Tokens | None, field("Tokens of a step, for logs without a column of tokens: 4M.")] = None,
    schedule: Annotated[str | None, field(SCHEDULE)] = None,
    peers: Annotated[Names, field("Logs of finished runs with this text, tokenizer and recipe: a.csv,b.csv.")] = (),
    loss: Annotated[str | None, field("The column of the training loss. [default: the only one]")] = None,
    law: Annotated[Any, field("A law, which may be of another corpus: its name or folder.")] = "published",
    level: Level = 0.9,
) -> LiveRuns:
    """Forecast the final losses of runs while they train, and say which are off their track.

    Args:
        source: a log (.csv, .jsonl, …), a folder of `train.py`, trainer_state.json or a folder with it, a folder of
            TensorBoard, an export of W&B, or a tracker's project as of `load_runs`. Of several runs, those that have
            ended are peers of the others.

    What is given counts for runs whose log does not say it. InputError where the size, the end or the schedule of a
    run is neither in its log nor given.
    """
    read_source = partial(
        read_curves,
        n_active=n_active,
        experts=experts,
        tokens=tokens,
        batch=batch,
        schedule=schedule,
        loss=loss,
    )
    curves = read_source(source)
    finished = [curve for curve in curves if curve.final is not None]
    for peer in peers:
        finished += read_source(peer, are_finished=True)
    forecast = LiveForecast(finished, choose_law(law, flag="law") if isinstance(law, str) else law)
    rows = []
    notes: list[str] = []
    for curve in curves:
        if curve.final is None:
            rows.append(_row(curve, forecast, level))
            notes += forecast.warnings(curve)
            if rows[-1]["loss"] is None:
                notes.append(f"{curve.trunk}: {TOO_EARLY}")
    if not rows:
        raise RunsError(f"{source}: all of its {len(finished)} runs have ended: name one of them alone")
    return LiveRuns(level, columns=columns_of(rows), check=None, notes=tuple(dict.fromkeys(notes)))


def _row(curve: TrainingCurve, forecast: LiveForecast, level: float) -> Fields:
    """Return the row of a run."""
    row: Fields = {"run_id": curve.trunk, "share": curve.share, "tokens": curve.horizon}
    row["last_loss"] = float(curve.losses[-1])
    estimate = forecast.of(curve)
    if estimate is None:
        return {**row, **dict.fromkeys(("loss", "low", "high", "law_loss", "track"))}
    low, high = estimate.interval(level)
    track = f"{estimate.distance} its track" if estimate.off_track() else "on its track"
    return {**row, "loss": estimate.loss, "low": low, "high": high, "law_loss": estimate.law, "track": track}


# ------------------------------------------------------------------ logs


def read_curves(source: Any, are_finished: bool = False, **fallbacks: Any) -> list[TrainingCurve]:
    """Read the curves of runs, by fields of `live` where logs are silent; those that have ended have a final loss."""
    path = Path(source if isinstance(source, (str, Path)) else "log")
    if path.is_dir() and any(path.glob(f"*/{NOTE}")):
        return _read_train_py(path)
    logs = read_histories(source)
    curves = []
    for settings, columns in logs:
        has_ended: bool | None = are_finished
        if len(logs) > 1 and not are_finished:
            has_ended = settings["status"] == "final" if "status" in settings else None
        name = str(settings.get("run_id") or path.stem)
        curves.append(_read_log(name, settings, columns, has_ended, fallbacks))
    return curves


def _read_log(
    name: str,
    settings: Row,
    columns: Mapping[str, Sequence[Any]],
    has_ended: bool | None,
    fallbacks: Fields,
) -> TrainingCurve:
    """Make the curve of a run's log, by what was given where it is silent. InputError names all that is missing.

    Where nothing says whether the run has ended, it has unless it is known to be longer.
    """
    series = {column: np.array([*map(number, cells)], float) for column, cells in columns.items()}
    if not series:
        raise InputError(f"{name}: the log has no lines yet")
    losses = series[_loss_column(series, fallbacks.get("loss"), name)]
    nothing = np.full_like(losses, np.nan)
    steps = next((series[column] for column in STEPS if column in series), nothing)
    rates = next((series[column] for column in series if _last_word(column) in RATES), nothing)
    last_step = next((number(settings[column]) for column in settings if _last_word(column) in ENDS), None)
    missing: dict[str, str] = {}
    batch = fallbacks.get("batch")
    tokens = series.get(aliases_of([*series]).get("tokens", "tokens"))
    if tokens is None:
        tokens = steps * (batch or 1.0)
        if not batch:
            missing["batch"] = "the tokens of a step"
    is_line = (losses > 0) & np.isfinite(losses) & (tokens > 0)
    if not is_line.any():
        raise InputError(f"{name}: the log has no lines with a loss after some steps or tokens yet")
    tokens, places = np.unique(tokens[is_line], return_index=True)
    losses, rates, steps = (values[is_line][places] for values in (losses, rates, steps))
    size = number(settings.get("n_active")) or fallbacks.get("n_active") or 0.0
    if not size:
        missing["n_active"] = "its active parameters"
    horizon = fallbacks.get("tokens") or tokens[-1] / steps[-1] * (last_step or np.nan)
    if has_ended is None:
        has_ended = not tokens[-1] < (1 - LAST_SHARE) * horizon
    if has_ended:
        horizon = tokens[-1]
    if not np.isfinite(horizon):
        missing["tokens"] = "at which it ends"
    schedule = fallbacks.get("schedule")
    has_rates = schedule is not None or np.isfinite(rates).any()
    planned = None if "tokens" in missing else _plan_rates(tokens / horizon, rates, schedule, has_ended)
    if planned is None and not ("tokens" in missing and has_rates):
        missing["schedule"] = f"{', '.join(FORMS)}, or cosine:0.1: its rates so far do not show it"
    if missing:
        pieces: list[str] = []
        for option, reason in missing.items():
            pieces += [", " if pieces else " ", given(option), f" ({reason})"]
        raise RunsError(f"{name}: needed besides its log:", *pieces)
    model = {column: x for column, x in settings.items() if isinstance(x, float)}
    model.update(n_active=size, experts=fallbacks.get("experts") or model.get("experts", 1.0))
    final = float(losses[tokens >= (1 - LAST_SHARE) * horizon].mean()) if has_ended else None
    return TrainingCurve(tokens, losses, horizon, model, final=final, trunk=name, rates=planned)


def _loss_column(columns: Collection[str], loss: str | None, name: str) -> str:
    """Find the column of the training loss. InputError where several may be meant."""
    losses = [column for column in columns if column == loss or (loss is None and is_loss(column))]
    of_training = [column for column in losses if _last_word(column) in LOSSES and not re.search("val|test", column)]
    candidates = of_training or losses
    if len(candidates) != 1:
        raise RunsError(f"{name}: choose the training loss with ", given("loss"), f"; there are {', '.join(columns)}")
    return candidates[0]


def _last_word(column: str) -> str:
    return re.split(r"[./]", column.lower())[-1]


def _plan_rates(shares: FloatArray, rates: FloatArray, schedule: str | None, has_ended: bool) -> FloatArray | None:
    """Return the rates of a whole run: of its log where it has ended, else as planned; None if unknown.

    InputError for a schedule of none of the forms.
    """
    is_known = np.isfinite(rates)
    shares = shares[is_known]
    rates = rates[is_known]
    warmup = float(shares[np.argmax(rates)]) if len(rates) else 0.0
    if has_ended and len(rates):
        first = 0.0 if rates[0] < rates.max() else rates[0]
        return np.interp(np.linspace(0, 1, PLANNED_STEPS + 1), np.append(0.0, shares), np.append(first, rates))
    if schedule is not None:
        form, _, text = schedule.partition(":")
        value = number(text) if text else None
        if form not in FORMS or bool(text) != (value is not None and 0 <= value <= 1):
            raise InputError(given("schedule", schedule), f" must be one of {', '.join(FORMS)}, or cosine:0.1")
        return plan_rates(form, value, warmup)
    # A log whose first line has the highest rate may be of a run without a warm-up.
    for possible_warmup in (warmup, 0.0):
        shape = recognize(shares, rates, possible_warmup)
        if shape:
            return plan_rates(*shape, possible_warmup)
    return None


def _read_train_py(run: Path) -> list[TrainingCurve]:
    """Read the trunk or branch of a run of `train.py` that trains now, and the finished runs that it noted."""
    trunk = run / "trunk"
    notes = {path.parent: atomic.read_json(path, {}, dict[str, Any]) for path in sorted(run.glob(f"*/{NOTE}"))}
    ended_plans = [note.get("plan") for folder, note in notes.items() if (folder / "model").exists()]
    running = []
    for folder, note in notes.items():
        if not (folder / "model").exists() and note.get("plan") not in (None, *ended_plans):
            running.append(folder)
    if not running:
        raise RunsError(f"{run}: it has ended, or an earlier version began it: name a {LOG} in it")
    branches = [folder for folder in running if folder != trunk]
    folder = (branches or running)[-1]
    lines = [line for _, line in read_lines(folder / LOG)]
    if folder != trunk and lines:
        lines = [line for _, line in read_lines(trunk / LOG, lines[0]["tokens"])] + lines
    curve = curve_of_lines(lines, trunk=f"{run.resolve().name}/{folder.name}", **notes[folder]["plan"])
    return [curve, *read_finished(run.parent / name for name in notes[folder]["finished"])]
