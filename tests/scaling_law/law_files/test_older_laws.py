"""Files of laws that commit 6b50b4c4 wrote load, and mean what they meant: a case for each kind, and for fits.

`older_laws.json` has each file with what that version computed from it: the loss of a model, of the same model on
repeated tokens, and under two draws.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import scaling_law.law
from scaling_law import Law

CASES = json.loads(Path(__file__).with_name("older_laws.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_a_file_of_an_older_version_means_what_it_meant(name, tmp_path):
    case = CASES[name]
    (tmp_path / "scaling_law.json").write_text(json.dumps(case["file"]), encoding="utf-8")
    law = getattr(scaling_law.law, case["class"]).from_pretrained(tmp_path)
    assert type(law).__name__ == case["class"]
    assert law.loss(**case["at"]) == pytest.approx(case["loss"], rel=1e-13)
    if "draws" in case:
        np.testing.assert_allclose(
            np.ravel(law.replace(conditions=None).loss_draws(**case["at"])), case["draws"], rtol=1e-12
        )
    if "loss_of_repeated" in case:
        repeated = law.loss(**case["at"], unique_tokens=1e9)
        assert repeated == pytest.approx(case["loss_of_repeated"], rel=1e-9, nan_ok=True)
    law.save_pretrained(tmp_path / "again")
    again = Law.from_pretrained(tmp_path / "again")
    assert (again, again.conditions) == (law, law.conditions)
