"""`python -m training.corpus FOLDER`."""

from __future__ import annotations

from pathlib import Path

from hub.plain.commands import App, Version
from training.corpus import build

app = App(single=True)


@app.command()
def main(folder: Path, max_bytes: int | None = None, version: Version = False) -> None:
    """Build the documentation corpus in FOLDER, or tell what is in the one that is there."""
    print(build(folder, max_bytes=max_bytes))


if __name__ == "__main__":
    app()
