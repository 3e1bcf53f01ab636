"""Parts of a design on which no loss of a law depends are named by every question that takes them."""

import pytest

from scaling_law import JointLaw, published
from scaling_law.formulas.designs import read_findings

DESIGN = {"granularity": 8, "shared_ratio": 0.125}
IGNORED = "the joint law ignores granularity 8 and shared_ratio 0.125: no loss depends on it"


def ask(law, question, **design):
    if question == "plan":
        return law.plan(flops=1e20, experts=[8], force=True, **design)
    if question == "reach":
        return law.reach(2.6, [8], force=True, **design)
    if question == "speedup":
        return law.speedup(8, flops=1e20, force=True, **design)
    return law.optimal(1e20, [8], force=True, **design)


@pytest.mark.parametrize("question", ["optimal", "plan", "reach", "speedup"])
def test_a_law_that_ignores_a_design_says_so(question):
    law = JointLaw.published()
    answer = ask(law, question, **DESIGN)
    (warning,) = (text for text in answer.warnings if text.startswith(IGNORED))
    # What was measured of each follows.
    assert all(read_findings()[name]["finding"] in warning for name in DESIGN)
    assert "ignores granularity 8 and shared_ratio 0.125" in " ".join(str(answer).split())
    assert warning in answer.to_dict()["warnings"]
    assert "ignores" not in " ".join(ask(law, question).warnings)


@pytest.mark.parametrize(
    ("name", "design", "ignored"),
    [
        ("krajewski", {"granularity": 8}, ""),
        ("krajewski", DESIGN, "shared_ratio 0.125"),
        ("hunyuan", {"granularity": 8}, ""),
        ("abnar", {"granularity": 8}, "granularity 8"),
    ],
)
def test_only_what_the_law_has_no_variable_for_is_ignored(name, design, ignored):
    warnings = published(name).optimal(1e20, [8], force=True, **design).warnings
    sentences = [warning.partition("ignores ")[2].partition(":")[0] for warning in warnings if "ignores" in warning]
    assert sentences == ([ignored] if ignored else [])


def test_the_shell_says_it(tmp_path):
    from typer.testing import CliRunner

    from scaling_law.commands.cli import app

    done = CliRunner().invoke(app, ["optimal", "--flops", "1e20", "--granularity", "8"])
    assert "ignores granularity 8" in " ".join(done.output.split())
