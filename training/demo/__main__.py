"""`python -m training.demo`, or `make demo`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

# Before any Hugging Face library is imported: the demo shows that none of it needs a network.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1")

import typer
from rich.console import Console

from training.demo.steps import FAST, FULL, Demo, DemoError

app = typer.Typer(add_completion=False)


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help="A smaller sweep: about a minute.")] = False,
    output_dir: Annotated[Path | None, typer.Option(help="Where everything goes.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs that train at the same time.")] = os.cpu_count() or 1,
) -> None:
    """The whole loop, from a corpus to a fitted law, on this machine."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    folder = output_dir or Path("demo-output-fast" if fast else "demo-output")
    demo = Demo(folder, FAST if fast else FULL, workers, console)
    try:
        demo.run()
    except DemoError as error:
        console.print(f"[red]{error}[/]")
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        console.print("Stopped. The same command goes on from here.")
        raise typer.Exit(130) from None


if __name__ == "__main__":
    app()
