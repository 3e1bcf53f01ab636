"""`python -m training.sweep`, called in this process."""

import json

from typer.testing import CliRunner

from training.sweep.__main__ import app


def command(file, name, *words, exit_code=0) -> str:
    """What a command prints on a sweep's file."""
    done = CliRunner().invoke(app, [name, str(file), *words])
    assert done.exit_code == exit_code, done.output
    return done.output


def status(file) -> dict[str, dict]:
    """What `status` tells of the runs, by name."""
    return {one["name"]: one for one in json.loads(command(file, "status", "--json"))}
