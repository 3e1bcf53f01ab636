"""What README and guides show must work: Python blocks run, commands and options exist, links lead somewhere."""

import importlib
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from accelerate.commands.launch import launch_command_parser
from typer.testing import CliRunner

import scaling_law
from hub.base.tables import as_text
from scaling_law import published_design
from scaling_law.commands import cli
from scaling_law.size.recipe import Design
from tests import option_reference
from tests.answers import is_same_text
from tests.guides import DOCS, ROOT, blocks, command_lines, run_python, text_of
from training.configuration.arguments import SECTIONS
from training.configuration.model_classes import fields_of

pytestmark = pytest.mark.usefixtures("shared_searches")

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
GUIDES = [
    str(path.relative_to(DOCS)) for path in [*DOCS.glob("*.md"), *DOCS.glob("studies/*.md")] if path.name != "index.md"
]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
APPS = option_reference.PROGRAMS
ASKS = r"scaling-law (?!fit|learning-rate (?:\w+\.|out/))"  # a law, and reads no runs
LAUNCH = ("accelerate launch", "train.py", "python -m training.run")


def inline_code(path: Path) -> list[str]:
    """What stands in the text between backticks, on one line."""
    text = re.sub(r"```.*?```", "", text_of(path), flags=re.DOTALL)
    return [" ".join(code.split()) for code in re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", text)]


@cache
def command_of(module: str) -> Any:
    """The application of a module as (typer's own copy of) click has it."""
    return typer.main.get_command(importlib.import_module(module).app)


def application(line: str) -> tuple[Any, list[str]] | None:
    """The command of a line's program, and its words after that."""
    for start, module in APPS.items():
        if line == start or line.startswith(start + " "):
            return command_of(module), shlex.split(line[len(start) :])
    return None


def commands_of(command: Any) -> dict[str, Any]:
    """Its commands by name, also those that are imported when they are called; none of a single command."""
    if not hasattr(command, "commands"):
        return {}
    return {name: command.get_command(None, name) for name in command.list_commands(None)}


def parsed(line: str) -> None:
    """Parse a whole command line of ours; click says what is wrong with it."""
    command, words = application(line)
    name = line
    if (commands := commands_of(command)) and words:
        assert words[0] in commands, f"{line}: there is no {words[0]!r}, only {sorted(commands)}"
        command, name, words = commands[words[0]], words[0], words[1:]
    command.make_context(name, words)


def options_of(command: Any) -> set[str]:
    own = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*map(options_of, commands_of(command).values()))


@cache
def train_options() -> set[str]:
    fields = {f"--{section}.{name}" for section, kind in SECTIONS.items() for name in kind.model_fields}
    fields |= {f"--model.{name}" for name in fields_of("qwen3_moe")}  # the class of the guides
    return fields | {"--section.field", "--config", "--preset", "--dry-run", "--push-to-hub", "--help"}


@cache
def launch_options() -> set[str]:
    return {option for action in launch_command_parser()._actions for option in action.option_strings}


def words_with_dashes(line: str) -> set[str]:
    return {word.split("=")[0] for word in shlex.split(line) if re.match(r"--?[a-z]", word)}


# The others have tests of their own.
@pytest.mark.parametrize(
    "guide",
    [
        "index",
        "gpus_for_a_time",
        "planning",
        "answers",
        "rates",
        "fitting",
        "runs",
        "fit_options",
        "hours",
        "scaling",
        "live",
        "diagnose",
        "studies/crossing",
        "studies/paper",
    ],
)
def test_python_blocks_run_and_print_what_is_shown(guide, tmp_path, monkeypatch, capsys):
    guide = f"{guide}.md"
    monkeypatch.chdir(tmp_path)
    # Where a checkout has it, for guides that read its records.
    Path("studies").symlink_to(ROOT / "studies")
    # Every third run of the paper: the fits of the guide, which prints no result of them, are quicker.
    design = Design(*(column[::3] for column in published_design()))
    monkeypatch.setattr(scaling_law, "published_design", lambda: design)
    assert run_python(DOCS / guide)
    shown = blocks(DOCS / guide, "text")
    printed = capsys.readouterr().out
    assert not shown or is_same_text("".join(shown), printed), printed


@pytest.mark.parametrize("page", sorted(DOCS.glob("concepts/*.md")), ids=lambda page: page.stem)
def test_the_page_of_a_concept_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # Every third run of the paper: the fits are quicker.
    design = Design(*(column[::3] for column in published_design()))
    monkeypatch.setattr(scaling_law, "published_design", lambda: design)
    assert run_python(page)
    assert capsys.readouterr().out


def test_the_tour_draws_its_pictures_and_every_result_shows_itself(tmp_path, monkeypatch, capsys):
    page = DOCS / "tour.md"
    monkeypatch.chdir(tmp_path)
    left = run_python(page)
    table, printed = blocks(page, "text")
    lines = [line.rstrip() for line in as_text(left["answer"].summary(), 100).splitlines()]
    assert is_same_text(table, "\n".join([*lines[: table.count("\n")], ""]))
    assert is_same_text(printed, capsys.readouterr().out)
    shown = re.findall(r"\]\(figures/(.+?)\)", text_of(page))
    assert sorted(shown) == sorted(path.name for path in tmp_path.glob("*.png"))
    results = [code.splitlines()[-1] for code in blocks(page, "python") if re.fullmatch(r"\w+", code.splitlines()[-1])]
    assert results == ["answer", "runs", "result"]
    assert all("<table>" in left[name]._repr_html_() for name in results)
    again = left["bootstrap"].law.optimal(1e21, memory="24GB", kv_tokens="16k")
    assert (left["answer"].best.experts, again.best.experts) == (16, 16)


def test_the_options_are_those_of_the_commands():
    assert text_of(option_reference.PAGE) == option_reference.render(), "make reference writes it again"


@every_page
def test_python_imports_the_packages_themselves(page):
    """Or a room of scaling_law that has names of its own; not what is inside of rooms, which may be rearranged."""
    rooms = "|".join(("figures", "fitting", "formulas", "law", "machine", "planning", "runs", "size"))
    room = rf"^\s*(?:from|import) (?:hub|modeling_switch_moe|scaling_law|training)\.(?!(?:{rooms}) import ).*"
    assert re.findall(room, "".join(blocks(page, "python")), flags=re.MULTILINE) == []


@pytest.mark.parametrize(
    "command",
    [
        *(line for line in command_lines(DOCS / "planning.md") if re.match(ASKS, line)),
        *(line for line in command_lines(DOCS / "answers.md") if re.match(ASKS, line)),
        *(line for line in command_lines(DOCS / "rates.md") if re.match(ASKS, line)),
        *(line for line in command_lines(DOCS / "gpus_for_a_time.md") if line.startswith("scaling-law ")),
        *(line for line in command_lines(DOCS / "hours.md") if line.startswith("scaling-law ")),
        *re.findall(r"`(scaling-law [^`]+?)`", text_of(ROOT / "README.md") + text_of(DOCS / "scaling.md")),
    ],
)
def test_shell_commands_answer(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.app, shlex.split(command)[1:], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr


@every_page
def test_command_lines_are_those_of_the_programs(page):
    """Every line of a shell block: ours parse as a whole, those of `accelerate launch` have options that exist."""
    for line in command_lines(page):
        if line.startswith("python -m training.prepare"):  # hands what it does not know to train.py
            assert words_with_dashes(line) <= train_options() | options_of(application(line)[0]) | {"-m"}, line
        elif application(line):
            parsed(line)
        elif launch := re.fullmatch(r"accelerate launch(.*?)(?:train\.py|-m training\.run)(.*)", line):
            assert words_with_dashes(launch[1]) <= launch_options(), line
            assert words_with_dashes(launch[2]) <= train_options(), line
        elif line.startswith("python -m ") and "vllm" not in line:
            source = Path(importlib.util.find_spec(line.split()[2]).origin).read_text(encoding="utf-8")
            assert all(f'"{option}"' in source for option in words_with_dashes(line) - {"-m"}), line
        else:
            others = ("make ", "sbatch ", "pip ", "hf ", "lm_eval ", "python -m vllm.")  # the last: test_vllm.py
            others += ("api=", "event=", "log=", "question=", "curl ", "'{")  # explorer/test_programs.py
            assert f"{line} ".startswith(others), f"{page.name}: no test knows {line!r}"


@every_page
def test_modules_commands_and_options_in_the_text_exist(page):
    """Between backticks, where a command may leave out arguments."""
    known = {*train_options(), *launch_options(), *script_options(), "-m", "--chat-template"}  # the last is vLLM's
    known = known.union(*(options_of(command_of(module)) for module in APPS.values()))
    for code in inline_code(page):
        words = code.split()
        if code.startswith("python -m ") and not words[2].endswith(".NAME"):
            assert importlib.util.find_spec(words[2]), f"{page.name}: {code}"
        app, rest = application(code) or (None, [])
        if rest and hasattr(app, "commands") and rest[0].islower():  # `plan|run` stands for each
            assert {*rest[0].split("|")} <= commands_of(app).keys(), f"{page.name}: {code}"
        if app or code.startswith(("--", *LAUNCH)):
            assert words_with_dashes(code) <= known, f"{page.name}: {code}: {words_with_dashes(code) - known}"


@cache
def script_options() -> set[str]:
    scripts = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "studies").rglob("__main__.py")]
    sources = "".join(map(text_of, scripts))
    return set(re.findall(r'"(--[a-z][\w-]*)"', sources))


@pytest.mark.parametrize("program", ["scaling-law", "python -m hub"])
def test_every_help_begins_with_an_example_and_all_of_them_parse(program):
    for name, command in commands_of(application(program)[0]).items():
        lines = [" ".join(line.split()) for line in command.help.splitlines()]
        examples = [line for line in lines if line.startswith(f"{program} ")]
        assert lines[2] == examples[0]
        for line in examples:
            assert line.startswith(f"{program} {name}")
            parsed(line)


def test_the_reference_lists_every_command_as_its_help_does():
    program = commands_of(application("scaling-law")[0])
    listed = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", text_of(DOCS / "reference" / "commands.md"), flags=re.MULTILINE)
    assert listed == [(name, command.help.splitlines()[0]) for name, command in program.items()]


def anchors(path: Path) -> set[str]:
    """The anchors that a page's headings get."""
    text = re.sub(r"```.*?```", "", text_of(path), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@every_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)]+)\)", text_of(page)):
        name, _, anchor = target.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_the_index_links_every_guide_and_the_readme_names_targets_of_make_that_exist():
    readme, makefile, index = text_of(ROOT / "README.md"), text_of(ROOT / "Makefile"), text_of(DOCS / "index.md")
    assert [name for name in GUIDES if f"]({name})" not in index and name != "index.md"] == []
    targets = re.findall(r"^make ([\w-]+)", readme, flags=re.MULTILINE)
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, flags=re.MULTILINE)] == []


def test_the_guide_of_promote_prints_what_is_shown(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    page = DOCS / "promote.md"
    assert run_python(page)
    assert is_same_text("".join(blocks(page, "text")), capsys.readouterr().out)
