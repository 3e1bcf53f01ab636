"""Warnings in a line: the largest factor of each subject, amounts first, and how many there are."""

import copy
import pickle

from hub.base.notices import Notice, about, brief_lines, condense

SIZE = Notice("N_act 3B is outside the fitted 1B…2B (×1.5)", "Extrapolates", "N", "×1.5", 1.5)
LARGER = Notice("N_act 5B is outside the fitted 1B…2B (×2.5)", "Extrapolates", "N", "×2.5", 2.5)
TOKENS = Notice("D 9B is outside the fitted 1B…3B (×3)", "Extrapolates", "D", "×3", 3.0)
ASSUMED = Notice("step times are assumed, not measured", "step times assumed")
SAID_ELSEWHERE = Notice("not trusted: N_act ×2.5")


def test_the_largest_factor_of_each_subject_comes_first():
    assert condense([ASSUMED, SIZE, LARGER, SAID_ELSEWHERE, TOKENS]) == (
        "Extrapolates: N ×2.5, D ×3; step times assumed"
    )
    assert condense([]) == condense([SAID_ELSEWHERE]) == condense(["plain"]) == ""


def test_one_warning_is_shown_in_full_and_several_in_a_line():
    assert brief_lines([SIZE], "-v") == [SIZE]
    assert brief_lines(["plain", SIZE], "-v") == ["plain", SIZE]
    assert brief_lines([SIZE, "plain", TOKENS], "-v") == [
        "plain",
        "Extrapolates: N ×1.5, D ×3 (-v has all 3 warnings)",
    ]
    assert brief_lines([SAID_ELSEWHERE] * 2, "-v") == ["-v has all 2 warnings"]


def test_a_notice_is_its_text_and_keeps_its_short_form():
    prefixed = about("best row", LARGER)
    assert prefixed == f"best row: {LARGER}"
    assert condense([prefixed]) == "Extrapolates: N ×2.5"
    assert condense([about("rate", LARGER, "rate extrapolates")]) == "Rate extrapolates: N ×2.5"
    assert about("best row", "plain") == "best row: plain"
    for same in (copy.deepcopy(LARGER), pickle.loads(pickle.dumps(LARGER))):
        assert same == LARGER
        assert condense([same]) == "Extrapolates: N ×2.5"
