"""`scaling-law compare` without a budget, and published laws as the --law of other commands."""

import json

from scaling_law import published
from scaling_law.law.shelf import SHELF


def test_laws_lists_them_all(shell):
    rows = json.loads(shell("compare", "--json").output)["laws"]
    assert [row["name"] for row in rows] == [*SHELF]
    assert all(row["source"] for row in rows)
    table = shell("compare").output
    assert all(name in table for name in SHELF)


def test_laws_shows_one(shell):
    (data,) = json.loads(shell("compare", "--laws", "abnar", "--json").output)["laws"]
    assert data["coefficients"] == published("abnar").coefficients
    assert data["kind"] == "sparsity"
    shown = shell("compare", "--laws", "abnar").output
    for text in ("arXiv 2501.12370", "GPT-NeoX", "lambda_ = -0.1666", "density: 0.05 to 1"):
        assert text in shown


def test_an_expert_count_that_nobody_gave_is_not_held_against_the_answer(shell):
    words = ("loss", "--law", "krajewski", "--variable", "n_total_non_embedding=1e9", "--variable", "granularity=8")
    found = shell(*words, "--tokens", "1e11", "--json")
    assert found.exit_code == 0
    (row,) = json.loads(found.output)["rows"]
    assert (row["experts"], row["trusted"], row["warnings"]) == (None, True, [])
    assert shell(*words, "--tokens", "1e11", "--experts", 1).exit_code == 1  # it is a law for 64
