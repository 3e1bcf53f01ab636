"""A query imports none of the heavy libraries (how quickly it answers: benchmarks/query_speed.py)."""

import subprocess
import sys

import pytest

import scaling_law

QUERY = """
import scaling_law
law = scaling_law.JointLaw.published()
table = law.optimal(1e22, memory=80e9, kv_tokens=16384, integral=True)
law.loss(1e9, 2e10, 8), law.compute_optimal(1e21)
assert table.best.experts == 16
"""
FIT = """
import scaling_law
from scaling_law.size.recipe import published_design
d = published_design()
law = scaling_law.JointLaw.published()
runs = scaling_law.Runs.from_columns(*d[:3], law.loss(*d[:3]), d.trunk)
scaling_law.fit(runs, starts=[law]).bootstrap(2)
"""
SHELL = """
from typer.testing import CliRunner
from scaling_law.commands.cli import app
for words in ("loss --n-active 1e9 --tokens 2e10", "optimal --flops 1e22 --memory 80GB", "plan --flops 1e20"):
    assert CliRunner().invoke(app, words.split()).exit_code == 0, words
others = {f"scaling_law.commands.{name}" for name in ("explore", "fitting", "learning_rate", "release")}
assert not others & {*sys.modules}
"""
HELP = """
from typer.testing import CliRunner
from scaling_law.commands.cli import app
assert "Fit a law to a table of runs" in CliRunner().invoke(app, ["--help"]).output
"""
LEARNING = {"torch", "transformers", "pandas", "matplotlib"}
FITTING = LEARNING | {"datasets", "gradio", "huggingface_hub", "numpy.ma", "plotly", "scipy"}
HEAVY = FITTING | {"rich", "typer"}


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [(QUERY, HEAVY), (SHELL, FITTING), (HELP, FITTING | {"numpy"}), (FIT, LEARNING)],
    ids=["query", "shell", "help", "fit"],
)
def test_nothing_heavy_is_imported(code, unwanted):
    code = f"import sys\n{code}\nprint(sorted({unwanted} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_law_has_its_methods_however_it_was_imported():
    code = "from scaling_law.law import LAWS; assert LAWS['joint'].published().optimal(1e20).best.experts == 32"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_resolves():
    for name in scaling_law.__all__:
        assert getattr(scaling_law, name).__name__ == name
        assert name in dir(scaling_law)
    assert not hasattr(scaling_law, "no_such_name")
