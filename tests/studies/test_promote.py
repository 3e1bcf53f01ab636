"""The study of promotion: what a case may see, scores on cases that are known, and the page."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from studies.promote import study
from studies.promote.pairs import CUTS, GAP_COLUMNS, LIST, Pair
from studies.promote.study import Judged, Results, cases_of, score, sign_brier
from tests.guides import ROOT

PAGE = ROOT / "docs" / "studies" / "promote.md"
SURE = Judged("recipes", "a lab", "a set", "base", "variant", "near", 4.0, 0.01, 0.02, 0.9, 0.6, 0.8)


def pair_of(gaps, flops):
    n_active = np.sqrt(np.array(flops) / 120)
    cells = pd.DataFrame(0.0, index=range(len(gaps)), columns=list(GAP_COLUMNS))
    cells["n_active"] = n_active
    cells["tokens"] = 20 * n_active
    cells["flops"] = flops
    cells["gap"] = gaps
    cells["base_loss"] = 3.0
    return Pair("recipes", "a lab", "a set", "base", "variant", cells)


def test_a_case_sees_nothing_near_its_target():
    pair = pair_of([0.04, 0.03, 0.02, 0.01], [1e18, 1e19, 5e19, 1e20])
    for case, seen in zip(cases_of([pair]), (2, 2), strict=True):
        assert len(case.cells.gaps) == seen
        assert case.target == 0.01
        assert np.exp(case.point.sum()) >= CUTS[case.cut] * 0.99
    assert [case.cut for case in cases_of([pair])] == ["near", "far"]


def test_scores_count_misses_of_decided_cases():
    wrong_sign = replace(SURE, gap_seen=-0.01)
    unsure = replace(SURE, ahead=0.6)
    row = score([SURE, wrong_sign, unsure, replace(SURE, ahead=0.1)])
    assert (row.cases, row.decided, row.sign_misses, row.misses) == (4, 3, 1, 1)
    assert row.brier == pytest.approx((0.01 + 0.01 + 0.16 + 0.81) / 4)


def test_the_sign_has_its_frequency_in_equal_gaps():
    others = [SURE] * 8 + [replace(SURE, gap_seen=-0.01)] * 2
    assert sign_brier([SURE], others) == pytest.approx((9 / 12 - 1) ** 2)


def test_learning_prefers_the_drift_that_there_is():
    generator = np.random.default_rng(0)
    flops = np.geomspace(1e17, 1e20, 7)
    pairs = []
    for number in range(12):
        gaps = np.cumsum(0.02 * generator.standard_normal(7))
        pairs.append(replace(pair_of(gaps, flops), set=f"set {number}"))
    assert study.learn(cases_of(pairs)).drift > study.START.drift


def test_the_list_came_first_and_has_every_case():
    listed = pd.read_csv(LIST)
    judged = study.read().cases
    assert len(judged) == (listed.out.fillna("") != "tie").sum()


def test_the_page_is_that_of_the_cases():
    results = study.read()
    assert study.PAGE.refuted(results) == []
    text = PAGE.read_text(encoding="utf-8")
    for name, value in study.values(results).items():
        assert f"<!-- ={name} -->{value}<!-- = -->" in text
    assert isinstance(results, Results)
