"""docs/adding_a_law.md, as a reader follows it: its class, checks, fits and file, in their order."""

import re
import sys
from types import ModuleType

import numpy as np
import pytest

from scaling_law.fitting.uncertainty import profile_interval
from scaling_law.law_files import load_law, loading_code
from scaling_law.laws import LAWS
from tests.guides import DOCS, blocks, run_python, text_of

PAGE = DOCS / "adding_a_law.md"


@pytest.fixture
def followed(tmp_path, monkeypatch):
    """What the guide's blocks leave behind; the law is unknown again afterwards."""
    monkeypatch.chdir(tmp_path)
    known = dict(LAWS)
    module = ModuleType("my_laws")
    monkeypatch.setitem(sys.modules, "my_laws", module)
    yield run_python(PAGE, namespace=vars(module))
    LAWS.clear()
    LAWS.update(known)


def test_the_guide_from_its_class_to_the_answer(followed):
    law, result = followed["law"], followed["result"]
    assert result.law.name == law.name == "parameters_only"
    assert result.status.logarithmic == ("a", "b", "c")
    assert not {"alpha", "beta", "b"} & {*result.status.undetermined}
    assert np.sqrt(np.mean(followed["error"] ** 2)) < 0.002
    profile = profile_interval(result, "beta")
    assert profile.low < law.beta < profile.high
    assert "from my_laws import ParametersOnlyLaw" in loading_code(law, "org/law")
    assert type(load_law("my-law")) is followed["ParametersOnlyLaw"]
    at = 1e9, 2e10, np.array([1, 4, 8])
    with pytest.raises(ValueError, match=r"law='other' must be one of .*parameters_only"):
        followed["fit"](followed["runs"], law="other")
    np.testing.assert_allclose(followed["joint"].loss(*at), followed["again"].loss(*at), rtol=1e-12)


def test_the_output_shown_is_what_is_printed(followed, capsys):
    (code,) = [code for code in blocks(PAGE, "python") if "errors_on" in code]
    (shown,) = re.findall(r"```\n(joint .*?)```", text_of(PAGE), flags=re.DOTALL)
    exec(compile(code, "adding_a_law.md", "exec"), followed)
    assert capsys.readouterr().out.endswith(shown)
