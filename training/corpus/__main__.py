"""`python -m training.corpus FOLDER`."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from training.corpus import build


def main(folder: Path, max_bytes: int | None = None, workers: int | None = None, quiet: bool = False) -> None:
    """Build the documentation corpus in FOLDER, or tell what is in the one that is there."""
    try:
        report = build(folder, max_bytes=max_bytes, workers=workers, progress=not quiet)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    Console().print(report)


if __name__ == "__main__":
    typer.run(main)
