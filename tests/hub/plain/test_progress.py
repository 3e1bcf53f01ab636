"""The progress line: what it says on a terminal of 80 columns, and that a pipe gets none."""

import io

import pytest
from rich.console import Console

from hub.plain.progress import format_rate, progress_line


def drawn(terminal: bool) -> str:
    printed = io.StringIO()
    console = Console(file=printed, width=80, force_terminal=terminal, color_system=None)
    with progress_line("fit", 720, "starts", console=console) as advance:
        for _ in range(3):
            advance(240, "objective 0.000594")
    return printed.getvalue()


def test_a_line_says_what_how_far_the_objective_the_rate_and_the_time_left():
    last = drawn(terminal=True).replace("\r", "\n").splitlines()
    lines = [line for line in last if "100%" in line]
    assert lines
    for part in ("fit ", "objective 0.000594", " starts/s", "0:00"):
        assert part in lines[-1]
    assert max(map(len, lines)) <= 80 + len("\x1b[2K")


def test_a_pipe_gets_none():
    assert drawn(terminal=False) == ""


@pytest.mark.parametrize(
    ("rate", "text"), [(None, ""), (0.05, "3 runs/min"), (1.0, "1 runs/s"), (12_340.0, "12.3K runs/s")]
)
def test_rates(rate, text):
    assert format_rate(rate, "runs") == text
