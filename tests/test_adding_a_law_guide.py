"""docs/adding_a_law.md, as a reader follows it: its class, checks, fits and file, in their order."""

import re
import sys
from types import ModuleType

import numpy as np
import pytest

from scaling_law import Law
from scaling_law.law import LAWS
from scaling_law.law_files import loading_code
from tests.answers import is_same_text
from tests.guides import DOCS, blocks, run_python, text_of

PAGE = DOCS / "adding_a_law.md"


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The names that the guide's blocks leave behind; the law is unknown again afterwards."""
    known = dict(LAWS)
    module = ModuleType("my_laws")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("guide"))
        patch.setitem(sys.modules, "my_laws", module)
        yield run_python(PAGE, namespace=vars(module))
    LAWS.clear()
    LAWS.update(known)


def test_the_guide_from_its_class_to_the_answer(followed):
    law, result, again = followed["law"], followed["result"], followed["again"]
    assert result.law.name == law.name == "abnar"
    assert result.status.logarithmic == ("a", "b", "c", "d", "e")
    assert np.sqrt(np.mean(followed["error"] ** 2)) < 0.002
    assert "from my_laws import AbnarLaw" in loading_code(law, "org/law")
    assert type(Law.from_pretrained("my-law")) is followed["AbnarLaw"]
    best = again.optimal(1e21, memory="80GB").best
    own = law.optimal(1e21, memory="80GB", force=True).best
    assert best.experts == own.experts
    assert best.n_active == pytest.approx(own.n_active, rel=0.05)
    assert own.loss == pytest.approx(best.loss, abs=0.01)


def test_the_outputs_shown_are_what_is_printed(followed, capsys):
    shown = re.findall(r"```\n\n```\n(.*?)```", text_of(PAGE), flags=re.DOTALL)
    for word, output in zip(("result.status", "errors_on"), shown, strict=True):
        (code,) = [code for code in blocks(PAGE, "python") if f"print({word})" in code or f".{word}(" in code]
        capsys.readouterr()
        exec(compile(code, "adding_a_law.md", "exec"), followed)
        printed, expected = (re.sub(r"(0\.\d{4})\d+", r"\1", text) for text in (capsys.readouterr().out, output))
        assert is_same_text(expected, printed)


def test_a_law_that_is_not_registered_is_refused_with_the_names_that_are(followed):
    with pytest.raises(ValueError, match=r"kind='other' is unknown.* abnar"):
        followed["fit"](followed["runs"], kind="other")
