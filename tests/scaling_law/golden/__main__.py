"""Record the answers again and list the keys that changed: `python -m tests.scaling_law.golden`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.scaling_law.golden.questions import ANSWERS, QUESTIONS, ask_all, differences, write_models


def main() -> None:
    """Ask every question, write the answers, and print what changed."""
    recorded = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        answers = {question: ask_all(question, folder) for question in QUESTIONS}
    for question, answer in answers.items():
        for line in differences(recorded.get(question, {}), answer):
            print(f"{question}: {line}")
    lines = [f"{json.dumps(question)}: {json.dumps(answer)}" for question, answer in answers.items()]
    ANSWERS.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
