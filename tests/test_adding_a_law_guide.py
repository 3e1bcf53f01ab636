"""docs/adding_a_law.md, as a reader follows it: its file, checks, fits, commands and class, in their order."""

import contextlib
import csv
import io
import re
import sys
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

from scaling_law import Law
from scaling_law.commands.cli import app
from scaling_law.explorer.programs import tools
from scaling_law.law import LAWS
from scaling_law.law_files import loading_code
from tests.answers import is_same_text
from tests.guides import DOCS, blocks, command_lines, text_of

pytestmark = pytest.mark.usefixtures("shared_searches")

PAGE = DOCS / "adding_a_law.md"


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The names that the page's blocks leave behind, in a folder with its files; its laws are unknown afterwards."""
    known = dict(LAWS)
    folder = tmp_path_factory.mktemp("guide")
    (form,) = blocks(PAGE, "json")
    (module,) = [code for code in blocks(PAGE, "python") if "@register" in code]
    (folder / "my_law.json").write_text(form, encoding="utf-8")
    (folder / "my_laws.py").write_text(module.partition("\n\n\nprint")[0], encoding="utf-8")
    namespace = ModuleType("guide")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(sys.modules, "guide", namespace)
        names = vars(namespace)
        names["printed"] = {}
        for code in blocks(PAGE, "python"):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, PAGE.name, "exec"), names)
            names["printed"][code] = printed.getvalue()
        LAWS.pop("my_dense")
        runs = names["runs"]
        with open("runs.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["run_id", "n_active", "tokens", "experts", "loss"])
            table.writerows(zip(runs.run_id, runs.n_active, runs.tokens, runs.experts, runs.loss, strict=True))
        yield names
    LAWS.clear()
    LAWS.update(known)
    sys.modules.pop("my_laws", None)


def test_the_page_from_its_file_to_the_answer(followed):
    law, result = followed["law"], followed["result"]
    assert result.law.name == law.name == "experts_term"
    assert result.status.logarithmic == ("a", "b", "g", "c")
    assert np.sqrt(np.mean(followed["error"] ** 2)) < 0.001
    assert "from scaling_law import Law" in loading_code(law, "org/law")
    assert law.form.is_chinchilla
    assert law.optimal(1e21, memory="80GB").best.experts == 32


def test_the_outputs_shown_are_what_is_printed(followed):
    shown = re.findall(r"```python\n([^`]*)```\n\n```\n(.*?)```", text_of(PAGE), flags=re.DOTALL)
    assert len(shown) == 2
    for code, output in shown:
        printed, expected = (re.sub(r"(0\.\d{4})\d+", r"\1", text) for text in (followed["printed"][code], output))
        assert is_same_text(expected, printed)


def test_its_commands_and_an_assistant_take_the_file(followed):
    lines = [line for line in command_lines(PAGE) if "my" in line and "explore" not in line]
    lines += ["scaling-law forecast runs.csv --n-active 4B --tokens 1T --experts 8 --kind my_law.json"]
    lines += ["scaling-law fit runs.csv --kind my_laws.py", "scaling-law fit runs.csv --prior my-law"]
    for line in lines:
        words = [*line.split()[1:], *(["--overwrite"] if " -o " in line else [])]
        answered = CliRunner().invoke(app, words)
        assert answered.exit_code in (0, 1), answered.output
    (forecast,) = [line for line in lines if "forecast" in line]
    assert "experts_term" in CliRunner().invoke(app, forecast.split()[1:]).output
    offered = {tool.__name__: tool for tool in tools({"published": followed["law"], "my-law": followed["law"]})}
    fitted = offered["fit"](runs="runs.csv", kind="my_law.json")["coefficients"]
    assert fitted == pytest.approx(followed["result"].law.coefficients, rel=1e-3)
    assert offered["optimal"](flops="1e21", memory="80GB", law="my-law")["best"]["experts"] == 32


def test_a_module_is_run_by_the_shell_alone(followed):
    with pytest.raises(ValueError, match="not valid JSON"):
        followed["fit"](followed["runs"], kind="my_laws.py")
    with pytest.raises(ValueError, match="not valid JSON"):
        Law.from_pretrained("my_laws.py")


def test_a_law_that_is_not_registered_is_refused_with_the_names_that_are(followed):
    with pytest.raises(ValueError, match=r"kind='other' is unknown.* experts_term"):
        followed["fit"](followed["runs"], kind="other")
