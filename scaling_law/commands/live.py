"""The command of `scaling-law` that forecasts runs while they train."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from scaling_law.answer.answer import Answer
from scaling_law.commands.options import command
from scaling_law.forecasting import running
from scaling_law.law import Law

SOURCE = (
    "A log (.csv, .jsonl), a folder of train.py, trainer_state.json, a TensorBoard folder, an export of W&B, or a "
)
SOURCE += "tracker's project: wandb:ENTITY/PROJECT."


@command("", running.live, without=("source",))
def live(law: Law, log: Annotated[str, typer.Argument(metavar="LOG", help=SOURCE)], **options: Any) -> Answer:
    """Forecast the final loss of a run while it trains, and say whether it is off its track.

        scaling-law live log.csv --n-active 1.1B --tokens 20B

    The forecast follows the run's own curve, its schedule, a law and finished runs (--peers). The size, the end and
    the schedule are read from the log where it has them. The exit status is 1 where nothing can be said yet.

    More examples:

        scaling-law live runs/d512-E8-seed0

        scaling-law live checkpoint-2000/trainer_state.json --batch 0.5M --peers other/trainer_state.json

        scaling-law live log.csv --n-active 190M --batch 0.5M --tokens 4B --schedule wsd:0.2 --json
    """
    return running.live(log, law=law, **options)
