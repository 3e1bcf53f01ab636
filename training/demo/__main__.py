"""`python -m training.demo`, or `make demo`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

# Before any Hugging Face library is imported: the demo shows that none of it needs a network.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1")

import typer

from hub.plain.commands import App, Version, Workers
from training.demo.steps import FAST, FULL, Demo

app = App(single=True)
CORES = os.cpu_count() or 1


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help="A smaller sweep: about a minute.")] = False,
    output_dir: Annotated[Path | None, typer.Option(help="Where everything goes.")] = None,
    workers: Workers = CORES,
    version: Version = False,
) -> None:
    """The whole loop, from a corpus to a fitted law, on this machine. Run it again to resume."""
    folder = output_dir or Path("demo-output-fast" if fast else "demo-output")
    Demo(folder, FAST if fast else FULL, workers).run()


if __name__ == "__main__":
    app()
