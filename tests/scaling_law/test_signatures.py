"""What a type checker knows of the questions: every keyword of a budget and of the limits, and every answer's type."""

import re
import subprocess
import sys

import pytest

from tests.guides import ROOT

ASKED = """
from scaling_law import Budget, JointLaw, Limits, compare, describe, fit, load_runs

law = JointLaw.published()
reveal_type(law.optimal("1e22", memory="80GB", kv_tokens="16k"))
reveal_type(law.optimal(hours=72, gpus=8, gpu="h100", experts="1-32", integral=True).best)
reveal_type(law.plan(1e20, gpu="h100", gpus=8))
reveal_type(law.reach(2.3, [1, 8], hours=72, gpus=8, gpu="h100"))
reveal_type(law.speedup(8, flops=1e21, granularity=2.0))
reveal_type(law.speedup(8, n_active=1e9).best)
reveal_type(fit(load_runs("runs.csv"), kind="joint").law.optimal(1e20))
reveal_type(JointLaw.from_pretrained("folder"))
reveal_type(compare(1e22, memory="80GB"))
reveal_type(describe("folder", law=law))
reveal_type(Budget.of("1e22").flops)
reveal_type(Limits.of(memory="80GB").memory)
law.optimal(1e22, max_memory="80GB")
law.plan(1e22, memory=[80e9])
law.reach(2.3, gpus="8")
Limits.of(hours=72)
"""
TYPES = [
    "planning.optimal_table.OptimalTable",
    "planning.optimal_table.OptimalRow",
    "planning.plan.Plan",
    "planning.inverse.Reached",
    "planning.speedup.Speedup",
    "planning.speedup.SpeedupRow | None",
    "planning.optimal_table.OptimalTable",
    "law.kinds.JointLaw",
    "law.compare.LawComparison",
    "law.describe.Description",
]
REFUSED = ["max_memory", '"list[float]"', 'has incompatible type "str"; expected "int | None"', "hours"]


@pytest.mark.slow
def test_every_keyword_and_answer_has_a_type(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "asked.py").write_text(ASKED)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(tmp_path / "asked.py")]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    revealed = re.findall(r'Revealed type is "(.+)"', said)
    assert revealed[:10] == [f"scaling_law.{name}" for name in TYPES]
    assert revealed[10:] == ["float | None"] * 2
    errors = re.findall(r"error: (.+)", said)
    assert len(errors) == len(REFUSED)
    for error, words in zip(errors, REFUSED, strict=True):
        assert words in error
