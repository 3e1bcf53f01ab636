"""`python -m training.demo`, or `make demo`: the whole loop, from a corpus to a fitted law; see `loop`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from hub.base.commands import App, Version, Workers

# They import torch where they are used: --help does not wait for it.
from training import demo
from training import sweep as sweeps

CORES = os.cpu_count() or 1

app = App(single=True)


@app.command()
def main(
    fast: Annotated[bool, typer.Option("--fast", help="A smaller sweep: about two minutes.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights and of the order of the text.")] = 0,
    output_dir: Annotated[Path | None, typer.Option(help="Where everything goes.")] = None,
    workers: Workers = CORES,
    version: Version = False,
) -> None:
    """Run the whole loop, from a corpus to a fitted law, on this machine. Run it again to resume."""
    sweeps.stop_on_signals()
    scale = demo.FAST if fast else demo.FULL
    demo.Demo(output_dir or folder_of(fast, seed), scale, workers, seed).run()


def folder_of(fast: bool, seed: int) -> Path:
    """Return the folder of a demo that was given none; each seed has its own."""
    name = "demo-output-fast" if fast else "demo-output"
    return Path(f"{name}-seed{seed}" if seed else name)


if __name__ == "__main__":
    app()
