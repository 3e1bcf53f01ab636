"""`scaling-law` as a function of its words."""

from __future__ import annotations

from functools import cache

import pytest
from typer import testing
from typer.main import get_command

from scaling_law.commands.cli import app

_command = cache(get_command)  # of 22 commands, which would be made again for every line


@pytest.fixture
def shell(monkeypatch):
    runner = testing.CliRunner()
    monkeypatch.setattr(testing, "_get_command", _command)
    return lambda *words: runner.invoke(app, [str(w) for w in words], env={"COLUMNS": "160", "NO_COLOR": "1"})
