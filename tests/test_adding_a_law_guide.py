"""docs/adding_a_law.md, as a reader follows it: its class, checks, fits and file, in their order."""

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from scaling_law.fitting.uncertainty import profile_interval
from scaling_law.law_files.card import loading_code
from scaling_law.law_files.serialization import load_law
from scaling_law.laws import LAWS

GUIDE = (Path(__file__).parent.parent / "docs" / "adding_a_law.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)


@pytest.fixture
def followed(tmp_path, monkeypatch):
    """What the guide's blocks leave behind; the law is unknown again afterwards."""
    monkeypatch.chdir(tmp_path)
    known = dict(LAWS)
    module = ModuleType("my_laws")
    monkeypatch.setitem(sys.modules, "my_laws", module)
    namespace = vars(module)
    for code in BLOCKS:
        exec(compile(code, "adding_a_law.md", "exec"), namespace)
    yield namespace
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
    np.testing.assert_allclose(followed["joint"].loss(*at), followed["again"].loss(*at), rtol=1e-12)


def test_the_output_shown_is_what_is_printed(followed, capsys):
    (code,) = [code for code in BLOCKS if "errors_on" in code]
    (shown,) = re.findall(r"```\n(joint .*?)```", GUIDE, flags=re.DOTALL)
    exec(compile(code, "adding_a_law.md", "exec"), followed)
    assert capsys.readouterr().out.endswith(shown)


def test_a_law_that_is_not_registered_is_refused_with_the_names_that_are(followed):
    with pytest.raises(ValueError, match=r"law='other' must be one of .*parameters_only"):
        followed["fit"](followed["runs"], law="other")
