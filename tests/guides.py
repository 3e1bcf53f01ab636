"""The README and the guides as tests read them: blocks of code, and the commands in them.

python -m tests.guides PAGE         runs the Python of a page in this folder
python -m tests.guides --fill PAGE  writes what it prints into the page's blocks of text
"""

import contextlib
import io
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


def fill_outputs(page: Path) -> None:
    """Write what each Python block prints into the block of text that follows it."""
    namespace: dict[str, Any] = {}
    text = text_of(page)
    for block in re.finditer(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, flags=re.DOTALL):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block[1], page.name, "exec"), namespace)
        if block[2] is not None:
            text = text.replace(block[0], block[0].removesuffix(f"{block[2]}```") + f"{printed.getvalue()}```")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--fill":
        fill_outputs(Path(sys.argv[2]))
    else:
        run_python(Path(sys.argv[1]))
