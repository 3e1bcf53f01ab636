"""`python -m training.corpus FOLDER`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from hub.plain.commands import App, Version
from training.corpus import build

app = App(single=True)


@app.command()
def main(
    folder: Path,
    max_bytes: int | None = None,
    workers: int | None = None,
    quiet: bool = False,
    version: Version = False,
) -> None:
    """Build the documentation corpus in FOLDER, or tell what is in the one that is there."""
    Console().print(build(folder, max_bytes=max_bytes, workers=workers, progress=not quiet))


if __name__ == "__main__":
    app()
