"""`python -m training.demo`, or `make demo`: the whole loop, from a corpus to a fitted law; see `loop`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from hub.base.commands import App, Version, Workers

CORES = os.cpu_count() or 1

app = App(single=True)


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help="A smaller sweep: about a minute.")] = False,
    output_dir: Annotated[Path | None, typer.Option(help="Where everything goes.")] = None,
    workers: Workers = CORES,
    version: Version = False,
) -> None:
    """Run the whole loop, from a corpus to a fitted law, on this machine. Run it again to resume."""
    # It imports torch, for which --help does not wait.
    from training.demo.loop import FAST, FULL, Demo
    from training.sweep.run import stop_on_signals

    stop_on_signals()
    Demo(output_dir or Path("demo-output-fast" if fast else "demo-output"), FAST if fast else FULL, workers).run()


if __name__ == "__main__":
    app()
