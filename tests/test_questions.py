"""The questions of docs/questions.md: the README answers them, and shell, Python and MCP tools agree."""

import json
import re
import shlex
from typing import Any, NamedTuple

import pandas
import pytest
from typer.testing import CliRunner

import scaling_law
from scaling_law import JointLaw
from scaling_law.commands.cli import app
from scaling_law.explorer.programs import tools
from tests.guides import DOCS, ROOT, text_of
from tests.scaling_law.configs import SWITCH
from tests.scaling_law.synthetic import sweep_rows

pytestmark = pytest.mark.usefixtures("shared_searches")

README = text_of(ROOT / "README.md")
LAW = JointLaw.published()
# Where the JSON of the shell, and of a tool, has what the Python of the page gives.
PLACES = {
    1: ("best", "experts"),
    2: ("best", "experts"),
    3: ("rows", 0, "loss"),
    4: ("rows", 0, "trusted"),
    5: ("best", "experts"),
    6: ("best", "flops"),
    7: ("factor",),
    8: ("prediction", "loss"),
    9: ("learning_rate",),
    10: ("rmse",),
    11: ("best", "routed_experts"),
    12: ("best", "serving_share"),
    13: ("interval",),
    14: ("rows", 0, "loss"),
    15: ("mfu",),
}


# The commands run twice, and these write a file.
OVERWRITE = {9: ("--overwrite",), 10: ("--overwrite",)}


class Question(NamedTuple):
    number: int
    text: str
    section: str
    shell: str
    python: str
    tool: str


def questions() -> list[Question]:
    row = r"^\| (\d+) \| (.+?) \| (.+?) \| `(.+?)` \| `(.+?)` \| (?:–|`(.+?)`) \|$"
    rows = re.findall(row, PAGE, flags=re.MULTILINE)
    return [Question(int(number), *texts) for number, *texts in rows]


PAGE = text_of(DOCS / "questions.md")


def pick(answer: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        answer = answer[key]
    return answer


def test_there_are_fifteen_and_the_readme_or_a_page_has_each():
    assert [question.number for question in questions()] == [*range(1, 16)]
    for question in questions():
        section = README.partition(f"# {question.section}\n")[2]
        if question.section != "Joint MoE scaling laws":
            section = section.partition("\n## ")[0]
        if link := re.fullmatch(r"\[.+\]\((\w+\.md).*\)", question.section):
            section = text_of(DOCS / link[1])
        assert question.shell in section, question


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model and runs under the names that the page has."""
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "org" / "model" / "config.json").write_text(json.dumps(SWITCH))
    columns = ["run_id", "n_active", "tokens", "experts", "eval_loss"]
    pandas.DataFrame(sweep_rows())[columns].to_csv(tmp_path / "runs.csv", index=False)
    log = pandas.DataFrame({"step": range(1, 61), "tokens": [1e8 * step for step in range(1, 61)]})
    log.assign(loss=1.03 * LAW.loss(4e8, log.tokens.to_numpy(), 1)).to_csv(tmp_path / "log.csv", index=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("question", questions(), ids=lambda question: str(question.number))
def test_shell_python_and_tools_agree(question, folder):
    answered = CliRunner().invoke(app, [*shlex.split(question.shell)[1:], "--json"])
    assert answered.exit_code in (0, 1), answered.stderr
    answer = json.loads(answered.stdout)
    from_shell = pick(answer, PLACES[question.number])
    from_python = eval(
        question.python, {"law": LAW, **{name: getattr(scaling_law, name) for name in scaling_law.__all__}}
    )
    expected = from_shell if isinstance(from_shell, str) else pytest.approx(from_shell, rel=1e-9)
    assert from_python == expected
    place = PLACES[question.number]
    if question.tool:
        name, _, arguments = question.tool.partition(" ")
        from_tool = {tool.__name__: tool for tool in tools({"published": LAW})}[name](**json.loads(arguments))
        assert pick(from_tool, place if place[0] in from_tool else place[2:]) == expected
    readable = CliRunner().invoke(app, [*shlex.split(question.shell)[1:], *OVERWRITE.get(question.number, ())])
    assert readable.exit_code == answered.exit_code
    assert readable.stdout.count("⚠") <= 1
