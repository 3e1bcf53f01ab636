"""Errors become one line and an exit status; bugs stay visible."""

from __future__ import annotations

import errno
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from hub.plain.commands import BYTES, App, Version, status_of
from hub.plain.errors import (
    AccessError,
    ConflictError,
    FilesError,
    IntegrityError,
    NotFoundError,
    PushErrors,
    RecordError,
    UnavailableError,
)


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


class DamagedError(RuntimeError):
    exit_status = 3


ERRORS = [
    (ConflictError("x"), 1),
    (IntegrityError("x"), 1),
    (UnavailableError("x"), 1),
    (ConnectionResetError("x"), 1),
    (TimeoutError("x"), 1),
    (ValueError("tokens=0 must be positive"), 2),
    (RecordError("x"), 2),
    (FilesError("x"), 2),
    (NotFoundError("x"), 2),
    (AccessError("x"), 2),
    (FileNotFoundError("x"), 2),
    (PermissionError("x"), 2),
    (OSError(errno.ENOSPC, "no space left on device"), 3),
    (MemoryError(), 3),
    (OutOfMemoryError("x"), 3),
    (DamagedError("x"), 3),
    (PushErrors([("run", AccessError("x"))], []), 4),
    (KeyboardInterrupt(), 130),
]


def app_raising(error: BaseException) -> App:
    app = App()

    @app.command()
    def work() -> None:
        raise error

    @app.command()
    def other(memory: Annotated[float, typer.Option(parser=BYTES)] = 0.0) -> None:
        print(memory)

    return app


# What a test module raises is ours only while its package is named so.
@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.plain.commands._PACKAGES", ("hub", "tests"))


@pytest.mark.parametrize(("error", "status"), ERRORS, ids=[type(error).__name__ for error, _ in ERRORS])
def test_an_error_is_one_line_on_standard_error_and_a_status(error: BaseException, status: int) -> None:
    result = CliRunner().invoke(app_raising(error), ["work"])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (status, "", 1)
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("x"), RuntimeError("x"), AssertionError()])
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    assert CliRunner().invoke(app_raising(error), ["work"]).exception is error


def test_a_pipe_whose_reader_has_gone_is_no_error() -> None:
    result = CliRunner().invoke(app_raising(BrokenPipeError(errno.EPIPE, "x")), ["work"])
    assert (result.exit_code, result.stderr) == (1, "")


def test_a_value_error_from_inside_a_library_is_a_bug() -> None:
    import json

    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert status_of(caught.value) is None


def test_a_token_is_never_printed() -> None:
    result = CliRunner().invoke(app_raising(ValueError("bad hf_" + "a" * 30)), ["work"])
    assert result.stderr == "error: bad <token>\n"


def test_options() -> None:
    app = app_raising(ValueError())
    assert CliRunner().invoke(app, ["other", "--memory", "80GB"]).stdout == "80000000000.0\n"
    wrong = CliRunner().invoke(app, ["other", "--memory", "80 bananas"])
    assert (wrong.exit_code, "--memory" in wrong.stderr, "is not a quantity" in wrong.stderr) == (2, True, True)
    assert "joint-moe-scaling-laws" in CliRunner().invoke(app, ["--version"]).stdout


def test_a_single_command_has_its_version_too() -> None:
    app = App(single=True)

    @app.command()
    def main(word: str, version: Version = False) -> None:
        raise FilesError(word)

    assert CliRunner().invoke(app, ["--version"]).exit_code == 0
    assert CliRunner().invoke(app, ["no folder"]).stderr == "error: no folder\n"
