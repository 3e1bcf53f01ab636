"""The command of `scaling-law` that says whether a variant's win survives scale."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hub.base.errors import InputError
from scaling_law.commands.options import Printed, command, option
from scaling_law.commands.run_options import RUNS, load
from scaling_law.figures import drawing
from scaling_law.forecasting import promote as promoting


@command(
    "baseline variant baseline_where variant_where at_equal beyond level figure where loss best_of columns mapping "
    "status format final trunks skip_invalid",
    promoting.promote,
    load,
)
def promote(
    where: list[str],
    at_equal: Any,
    level: float,
    baseline: Annotated[str, typer.Argument(help=f"Runs of the baseline. {RUNS}")],
    variant: Annotated[str | None, typer.Argument(help="Runs of the variant. [default: --variant-where]")] = None,
    baseline_where: Annotated[list[str], option('Filter for the runs of the baseline: "optimizer = adamw".')] = [],  # noqa: B006
    variant_where: Annotated[list[str], option('Filter for the runs of the variant: "optimizer = muon".')] = [],  # noqa: B006
    beyond: Annotated[list[float], option("Times the compute of the largest size run (repeatable).")] = [10.0, 100.0],  # noqa: B006
    figure: Annotated[Path | None, option("Write the gap against compute: .png, .svg or .pdf.")] = None,
    **options: Any,
) -> Printed:
    """Say whether a small win survives scale: promote, drop, or two more runs decide.

        scaling-law promote baseline.csv variant.csv

    Runs of equal size and tokens are compared, repeated ones averaged; where sizes differ, the best runs of equal
    budgets. The verdict is by the probability that the variant is ahead at ten times the compute.

    More examples:

        scaling-law promote runs.jsonl --baseline-where "experts = 1" --variant-where "experts = 8"

        scaling-law promote baseline.csv variant.csv --at-equal hours --figure gap.png

        scaling-law promote wandb:us/base wandb:us/variant --loss val/loss --final smoothed
    """
    is_divided = baseline_where and variant_where and baseline_where != variant_where
    if variant is None and not is_divided:
        raise InputError(
            "the runs of the variant are needed: a table VARIANT, or --baseline-where and --variant-where"
        )
    sides: list[Any] = []
    for source, side_where in ((baseline, baseline_where), (variant or baseline, variant_where)):
        sides.append(load(runs=source, where=[*where, *side_where], **options))
    answer = promoting.promote(*sides, beyond=beyond, at_equal=at_equal, level=level)
    lines = [f"wrote {drawing.save(answer.figure(), figure)}"] if figure else []
    return Printed(answer, lines=lines, trusted=True)
