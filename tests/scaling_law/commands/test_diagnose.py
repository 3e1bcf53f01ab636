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


def test_the_tool_answers_what_the_command_prints(shell):
    (tool,) = (tool for tool in tools({"published": JointLaw.published()}) if tool.__name__ == "diagnose")
    answer = tool(model="qwen3-30b-a3b", tokens_per_second="900K", gpu="h100", gpus="64")
    assert answer == json.loads(shell(*WORDS, "900K", "--json").output)
