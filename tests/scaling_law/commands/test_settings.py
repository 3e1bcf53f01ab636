"""The shell names settings that one law would blend and units that cannot be, and takes what it says to type."""

import json
import re

import pandas
import pytest

from hub.base.commands import NOT_TRUSTED
from scaling_law import fit, load_runs
from scaling_law.runs import best_of
from tests.scaling_law.runs.test_settings import BOTH, CORPORA, bowl, table
from tests.scaling_law.runs.test_units import rows

pytestmark = pytest.mark.usefixtures("shared_searches")

MODEL = ("--n-active", "2B", "--tokens", "40B")
FIT = ("--kind", "chinchilla")


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, variants in (("corpora", CORPORA), ("rates", bowl), ("both", BOTH)):
        pandas.DataFrame(table(variants)).to_csv(f"{name}.csv", index=False)


def options(output):
    """What a message says to type, in its order."""
    return re.findall(r'--where "[^"]+"|--best-of [\w,]+|--mix [\w,]+', " ".join(output.split()))


def test_two_corpora_are_named_and_one_is_chosen(shell):
    for command in (("fit", "corpora.csv", *FIT), ("forecast", "corpora.csv", *MODEL)):
        blended = shell(*command)
        assert blended.exit_code == NOT_TRUSTED
        expected = ['--where "corpus = web"', '--where "corpus = code"', "--mix corpus"]
        assert options(blended.output) == expected
        assert options(shell(*command, "--mix", "corpus").output) == []
        chosen = shell(*command, "--where", "corpus = web")
        assert (chosen.exit_code, options(chosen.output)) == (0, [])


def test_the_best_rates_are_taken(shell):
    blended = shell("fit", "rates.csv", *FIT)
    assert blended.exit_code == NOT_TRUSTED
    assert options(blended.output) == ["--best-of learning_rate", "--mix learning_rate"]
    tuned = json.loads(shell("fit", "rates.csv", *FIT, "--best-of", "learning_rate", "--json", "-o", "law").output)
    assert (
        tuned["coefficients"] == fit(best_of(load_runs("rates.csv"), "learning_rate"), "chinchilla").law.coefficients
    )
    assert tuned["status"]["doubts"] == []
    answer = json.loads(shell("optimal", "--law", "law", "--flops", "1e20", "--experts", "1", "--json").output)
    assert not any("tells them apart" in text for text in answer["warnings"])
    assert shell("forecast", "rates.csv", *MODEL, "--best-of", "learning_rate").exit_code == 0


def test_both_are_chosen_at_once_and_splits_say_so_too(shell):
    words = ("both.csv", *FIT, "--where", "corpus = code", "--best-of", "learning_rate")
    assert shell("fit", *words).exit_code == 0
    left = shell("fit", "both.csv", *FIT, "--best-of", "learning_rate")
    assert options(left.output)[0] == '--where "corpus = web"'
    parts = ("--split", "flops", "--test", "4", "--allow-unidentifiable")
    assert "corpus (web, code)" in " ".join(shell("fit", "corpora.csv", *parts).output.split())


def test_laws_that_blend_say_so_wherever_they_are_asked(shell):
    shell("fit", "rates.csv", *FIT, "--bootstrap", "100", "-o", "law")
    for command in (
        ("optimal", "--law", "law", "--flops", "1e20", "--experts", "1", "--force"),
        ("next-runs", "--law", "law", "--flops", "1e19", "--ask", "loss:1e9,2e10,1", "--experts", "1", "--force"),
    ):
        assert "learning_rate tells them apart" in " ".join(shell(*command).output.split())


def test_units_are_refused_with_the_options_that_mend_them(shell):
    pandas.DataFrame(rows(1e6, 1e9)).to_csv("runs.csv", index=False)
    refused = shell("fit", "runs.csv", *FIT)
    assert refused.exit_code == 2
    mapping = re.findall(r'--column "([^"]+)"', refused.output)
    assert mapping[:2] == ["n_active = n_active * 1e6", "tokens = tokens * 1e9"]
    mended = [word for text in mapping[:2] for word in ("--column", text)]
    assert shell("fit", "runs.csv", *FIT, *mended).exit_code == 0
    refused = shell("forecast", "runs.csv", *MODEL)
    assert re.findall(r'--column "([^"]+)"', refused.output) == mapping
