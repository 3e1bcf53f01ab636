"""The progress line: what it says on a terminal of 80 columns, and once a minute in a pipe."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from hub.base import progress
from hub.base.progress import format_rate, progress_bars, progress_line
from tests.conftest import wait_for


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


def test_short_work_leaves_nothing_in_a_pipe():
    assert drawn(terminal=False) == ""


def test_long_work_writes_a_line_now_and_then_into_a_pipe(monkeypatch):
    """Of all visible tasks together, in words; the rate counts from the first update on, not what was done before."""
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.2)
    printed = io.StringIO()
    console = Console(file=printed, width=40)
    with progress_bars(console) as display:
        whole = display.add_task("[bold]sweep demo", total=1e22, completed=5e21, detail="", unit="")
        run = display.add_task("d64-E4", total=1000, detail="loss 3.214", unit="tok")
        display.add_task("d64-E8", total=1000, visible=False, detail="", unit="tok")
        display.update(run, completed=500)

        def go_on():
            display.update(whole, advance=1e19)
            display.update(run, advance=0.01)
            return printed.getvalue().count("left") == 2

        wait_for("a line with rates", go_on, 60)
    line = printed.getvalue().splitlines()[-1]
    rate, left = r"[\d.]+ tok/min", r"\d+:\d\d:\d\d left"  # not what was done before
    assert re.fullmatch(rf"sweep demo: \d\d%, {left}; d64-E4: 50% of 1K tok, loss 3.214, {rate}, {left}", line)


def test_work_of_unknown_length_says_how_much_is_done(monkeypatch):
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0)
    printed = io.StringIO()
    with progress_line("training tokens", None, "tok", console=Console(file=printed), done=1_000_000) as advance:
        advance(500_000, "")
    assert printed.getvalue().startswith("training tokens: 1.5M tok")


def test_there_is_one_way_to_show_progress():
    """So that no long work is silent without a terminal."""
    root = Path(__file__).parents[3]
    sources = [path for room in ("hub", "scaling_law", "training") for path in (root / room).rglob("*.py")]
    drawing = {path.name for path in sources if re.search(r"(import|from) (tqdm|rich.progress)", path.read_text())}
    assert len(sources) > 100
    assert drawing == {"progress.py"}


@pytest.mark.parametrize(
    ("rate", "text"), [(None, ""), (0.05, "3 runs/min"), (1.0, "1 runs/s"), (12_340.0, "12.3K runs/s")]
)
def test_rates(rate, text):
    assert format_rate(rate, "runs") == text
