"""Errors become one line and an exit status; bugs stay visible."""

import errno
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from hub import (
    AccessError,
    ConflictError,
    FilesError,
    IntegrityError,
    NotFoundError,
    PushErrors,
    RecordError,
    UnavailableError,
)
from hub.base.commands import App, Version, parser
from hub.base.errors import InputError
from hub.base.units import parse_bytes


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


class DamagedError(RuntimeError):
    exit_status = 3


ERRORS = {
    1: [ConflictError("x"), IntegrityError("x"), UnavailableError("x"), ConnectionResetError("x"), TimeoutError("x")],
    2: [
        *(InputError("tokens=0 must be positive"), RecordError("x"), FilesError("x"), NotFoundError("x")),
        *(AccessError("x"), FileNotFoundError("x"), PermissionError("x")),
    ],
    3: [OSError(errno.ENOSPC, "no space left on device"), MemoryError(), OutOfMemoryError("x"), DamagedError("x")],
    4: [PushErrors([("run", AccessError("x"))], [])],
    130: [KeyboardInterrupt()],
}


@pytest.fixture
def work():
    """A function: the outcome of a command that raises an error."""

    def run(error):
        app = App(single=True)

        @app.command()
        def main(version: Version = False) -> None:
            raise error

        return CliRunner().invoke(app, [])

    return run


@pytest.mark.parametrize("status", ERRORS)
def test_an_error_is_one_line_on_standard_error_and_a_status(work, status):
    for error in ERRORS[status]:
        result = work(error)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (status, "", 1), error
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("of a library"), RuntimeError("x"), AssertionError()])
def test_a_bug_keeps_its_traceback(work, error):
    assert work(error).exception is error


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--size", "1", "--size", "2"], "--size is given more than once; it takes one value"),
        (["--size=1", "-s", "2"], "--size is given more than once; it takes one value"),
        (["--index", "--no-index"], "--index is given more than once; it takes one value"),
        (["--name", "a", "--name", "b", "--plain", "--plain"], ""),
    ],
)
def test_an_option_with_one_value_is_given_once(words, problem):
    app = App(single=True)

    @app.command()
    def main(
        size: Annotated[int, typer.Option("--size", "-s")] = 0,
        index: bool = True,
        plain: Annotated[bool, typer.Option("--plain")] = False,
        name: Annotated[list[str], typer.Option()] = [],  # noqa: B006
    ) -> None:
        print(name)

    result = CliRunner().invoke(app, words)
    assert result.exit_code == (2 if problem else 0)
    assert problem in result.stderr


def test_a_pipe_whose_reader_has_gone_is_no_error(work):
    result = work(BrokenPipeError(errno.EPIPE, "x"))
    assert (result.exit_code, result.stderr) == (1, "")


def test_a_token_is_never_printed(work):
    assert work(InputError("bad hf_" + "a" * 30)).stderr == "error: bad <token>\n"


@pytest.mark.parametrize("single", [False, True])
def test_options_and_the_version(single):
    app = App(single=single)

    @app.command()
    def work(
        memory: Annotated[float, typer.Option(parser=parser(parse_bytes, "bytes"))] = 0.0, version: Version = False
    ) -> None:
        print(memory)

    command = [] if single else ["work"]
    assert CliRunner().invoke(app, [*command, "--memory", "80GB"]).stdout == "80000000000.0\n"
    wrong = CliRunner().invoke(app, [*command, "--memory", "80 bananas"])
    assert (wrong.exit_code, "--memory" in wrong.stderr, "is not a quantity" in wrong.stderr) == (2, True, True)
    assert "joint-moe-scaling-laws" in CliRunner().invoke(app, ["--version"]).stdout


def test_a_tilde_is_the_home_folder_in_options_and_arguments(monkeypatch):
    """Also where a shell leaves it: after an equals sign, and in quotes."""
    monkeypatch.setenv("HOME", "/home/somebody")
    app = App(single=True)

    @app.command()
    def main(folder: Path, law: str = "", where: str = "", names: list[str] = []) -> None:  # noqa: B006
        print(folder, law, where, *names)

    words = ["~/runs", "--law=~/law", "--where", "name=~x", "--names", "~no_such_user/x", "--names=a~b"]
    done = CliRunner().invoke(app, words)
    assert done.output.split() == ["/home/somebody/runs", "/home/somebody/law", "name=~x", "~no_such_user/x", "a~b"]
