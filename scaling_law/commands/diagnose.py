"""The command of `scaling-law` that says whether a run is as fast as it should be."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from scaling_law.answer.answer import Answer
from scaling_law.commands.options import command, option
from scaling_law.forecasting import diagnose as diagnosing

MODEL = "A released model such as qwen3-30b-a3b, a folder, a config.json, or org/model on the Hub."


@command("", diagnosing.diagnose, without=("model",))
def diagnose(
    config: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)],
    law: Annotated[str | None, option("With --loss: a law of this corpus, its name or folder.")] = None,
    **options: Any,
) -> Answer:
    """Say whether a run is as fast as public runs lead to expect: normal, low with usual causes, or cannot say.

        scaling-law diagnose qwen3-30b-a3b --gpu h100 --gpus 64 --tokens-per-second 900K

    The MFU stands beside what is expected of this model on these GPUs, and beside public runs of like size. The exit
    status is 1 where the speed is low or cannot be judged.

    More examples:

        scaling-law diagnose my-model/config.json --gpu a100 --gpus 16 --tokens-per-second 18K --layout tp=4,ep=4

        scaling-law diagnose my-model --gpu h100 --gpus 8 --tokens-per-second 98K --loss 2.61 --tokens 12B --law my-law
    """
    return diagnosing.diagnose(config, law=law, **options)
