"""The command `diagnose`, and the tool of its name."""

import json

from scaling_law.explorer.programs import tools
from scaling_law.law import JointLaw

WORDS = ("diagnose", "qwen3-30b-a3b", "--gpu", "h100", "--gpus", "64", "--tokens-per-second")


def test_the_command_says_by_its_status_whether_the_speed_is_normal(shell):
    normal = shell(*WORDS, "900K")
    assert normal.exit_code == 0, normal.output
    assert normal.output.startswith("normal: ")
    low = shell(*WORDS, "0.2M", "--layout", "ep=16")
    assert low.exit_code == 1
    assert low.output.startswith("low: ")
    assert "usual cause: EP 16 sends between nodes" in low.output
    wrong = shell(*WORDS, "900K", "--loss", "2.5")
    assert wrong.exit_code == 2
    assert "needs --tokens, and --law or --peers" in " ".join(wrong.output.split())


def test_the_loss_of_a_law_stands_beside(shell):
    words = (*WORDS, "900K", "--loss", "2.5", "--tokens", "100B", "--law", "published", "--json")
    answer = json.loads(shell(*words).output)
    assert answer["loss"] == 2.5
    assert 1.5 < answer["law_loss"] < 2.5


def test_the_tool_answers_what_the_command_prints(shell):
    (tool,) = (tool for tool in tools({"published": JointLaw.published()}) if tool.__name__ == "diagnose")
    answer = tool(model="qwen3-30b-a3b", tokens_per_second="900K", gpu="h100", gpus="64")
    assert answer == json.loads(shell(*WORDS, "900K", "--json").output)
