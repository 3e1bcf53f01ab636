"""`scaling-law` as a function of its words."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from scaling_law.commands.cli import app


@pytest.fixture
def shell():
    runner = CliRunner()
    return lambda *words: runner.invoke(app, [str(w) for w in words], env={"COLUMNS": "160", "NO_COLOR": "1"})
