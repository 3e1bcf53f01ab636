"""On a terminal of 80 columns: no line is cut or too long, and colours mean something."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from scaling_law.commands.cli import app

MEANINGS = {"0": "end", "1": "header", "2": "note", "33": "warning", "1;32": "best"}
COLOUR = re.compile(r"\x1b\[([\d;]*)m")


@pytest.mark.parametrize(
    "command",
    [
        "loss --n-active 1e9 --tokens 2e10 --experts 8",
        "optimal --gpu h100 --gpus 8 --hours 72 --price 2.5 --decode-batch 32 --kv-tokens 64k",
        "plan --gpu h100 --gpus 8 --hours 72 --max-parameters 10B --branches 4",
        "reach --loss 2.15 --flops 1e22",
        "speedup --flops 1e21 --experts 8 --gpu h100 --gpus 8",
        "learning-rate --d-model 1024 --experts 8 --tokens 20B",
        "speedup --n-active 1e9 --experts 8",
        "compare",
        "compare --flops 1e22",
    ],
)
def test_80_columns_and_colours_by_meaning(command):
    shown = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "80", "FORCE_COLOR": "1"})
    assert shown.exit_code == 0
    assert {*COLOUR.findall(shown.output)} <= MEANINGS.keys()
    assert max(map(len, COLOUR.sub("", shown.output).splitlines())) <= 80


def test_a_comparison_names_each_law_beside_its_optimum():
    shown = CliRunner().invoke(app, ["compare", "--flops", "1e21"], env={"COLUMNS": "80", "FORCE_COLOR": "1"})
    lines = COLOUR.sub("", shown.output).splitlines()
    header = next(line for line in lines if "┃" in line)
    assert [name.strip() for name in header.split("┃")[1:-1]] == ["law", "E", "N_act", "tokens", "loss", ""]
