"""The command of `scaling-law` that puts one model on more and more GPUs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hub.plain.commands import COUNTS, Json
from hub.plain.tables import show
from scaling_law.commands import options
from scaling_law.commands.options import option, quantity
from scaling_law.planning import scale_out as scaling
from scaling_law.size.architecture import Architecture
from scaling_law.size.recipe import PAPER


def scale_out(
    d_model: Annotated[float, typer.Argument(help="Width; blocks and heads follow as d / 64.")],
    experts: Annotated[int, option("Experts, of which one is active.")] = 8,
    gpus: Annotated[Any, quantity(COUNTS, "How many, to compare. [default: 8,64]")] = None,
    gpu: Annotated[str, option("Their kind.")] = "h100",
    mfu: options.Mfu = None,
    batch: Annotated[int, option("Sequences of a step.")] = PAPER.batch_ramp[-1].sequences,
    sequence_length: Annotated[int, option("Tokens of a sequence.")] = PAPER.sequence_length,
    as_json: Json = False,
) -> None:
    """Memory and communication of a model on more and more GPUs, and which of them limits its speed.

    Examples:

        scaling-law scale-out 2304 --experts 8 --gpus 8,64

        scaling-law scale-out 2304 --gpus 64 --batch 4096 --mfu 0.35 --json
    """
    model = Architecture(options.nearest_width(d_model), experts)
    sizes = {"batch_sequences": batch, "sequence_length": sequence_length}
    counts: list[Any] = [int(n) if n.is_integer() else n for n in gpus or (8.0, 64.0)]
    found = scaling.scale_out(model, counts, gpu, mfu=mfu, **sizes)
    show(found.to_dict() if as_json else None, as_json, found)
