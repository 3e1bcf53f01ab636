"""The README and the guides as tests read them: blocks of code, and the commands in them.

python -m tests.guides PAGE  runs the Python of a page in this folder
"""

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text_of(page), flags=re.DOTALL)


def command_lines(page: Path) -> list[str]:
    """The commands of a page's shell blocks, without prompts, comments and redirections."""
    code = "".join([*blocks(page, "bash"), *blocks(page, "console")])
    lines = [line.removeprefix("$ ").split(" # ")[0].split(" > ")[0].strip() for line in code.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def run_python(page: Path, without: str = "\0", namespace: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a page's Python blocks, but for those with a certain word, in their order; the names that they leave."""
    namespace = {} if namespace is None else namespace
    for code in blocks(page, "python"):
        if without not in code:
            exec(compile(code, page.name, "exec"), namespace)
    return namespace


if __name__ == "__main__":
    run_python(Path(sys.argv[1]))
