"""The command of `scaling-law` that draws the figures of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hub.base.commands import FLOPS
from hub.base.errors import InputError, unknown
from scaling_law.commands.options import command, exit_untrusted, option, quantity, show_written
from scaling_law.figures.drawing import SUFFIXES, save
from scaling_law.figures.law_figures import memory_optimal
from scaling_law.law import JointLaw
from scaling_law.paper.figures import draw_all


@command("output flops suffix law")
def figures(
    law: JointLaw,
    as_json: bool,
    output: Annotated[Path, typer.Argument(help="Folder to write to; with --flops also a file.")] = Path("figures"),
    flops: Annotated[Any, quantity(FLOPS, "Only the memory-optimal figure, for this budget.")] = None,
    suffix: Annotated[str | None, option("png, svg or pdf. [default: that of a file, else png]")] = None,
) -> None:
    """Draw every figure of the paper that follows from a law; with --flops only the memory-optimal one.

        scaling-law figures docs/figures

    Lines are dashed outside the runs of the law. The exit status is 1 where --flops is too far outside to be trusted.

    More examples:

        scaling-law figures out --law my-law --suffix svg --flops 1e21

        scaling-law figures memory.pdf --flops 1e22
    """
    names_file = output.suffix.lower() in SUFFIXES
    if names_file and (flops is None or suffix not in (None, output.suffix.lower().removeprefix("."))):
        instead = f"for --suffix {suffix}" if flops else "for all figures, or --flops for the one that fits a file"
        raise InputError(f"output={str(output)!r} names a file: give a folder {instead}")
    if suffix is not None and f".{suffix}" not in SUFFIXES:
        raise InputError(unknown("suffix=", suffix, [name.removeprefix(".") for name in SUFFIXES]))
    if flops is None:
        return show_written(draw_all(law, output, suffix or "png"), as_json)
    path = output if names_file else output / f"memory_optimal_{flops:.3g}.{suffix or 'png'}"
    show_written([save(memory_optimal(law, flops), path)], as_json)
    exit_untrusted(any(row.trusted for row in law.optimal(flops, force=True)))
