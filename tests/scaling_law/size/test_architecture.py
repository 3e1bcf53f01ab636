"""Sizes against the paper's listing, and the inverses of the size formulas."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_law import Architecture
from scaling_law.size.architecture import (
    active_parameters,
    affordable_tokens,
    inference_flops,
    kv_cache_elements,
    solve_width,
    total_parameters,
    width_of_active,
    width_of_total,
)
from scaling_law.size.recipe import ROWS, published_design


def printed_value(text: str) -> tuple[float, float]:
    """The value of '1.1B' and half a unit of its last digit."""
    number, scale = float(text[:-1]), {"B": 1e9, "M": 1e6}[text[-1]]
    decimals = len(text[:-1].partition(".")[2])
    return number * scale, 0.5 * scale * 10**-decimals


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.d_model}x{row.n_blocks}-E{row.experts}")
def test_sizes_of_the_listing(row):
    for text, value in ((row.n_total, row.architecture.n_total), (row.n_active, row.architecture.n_active)):
        expected, half_unit = printed_value(text)
        assert abs(value - expected) <= half_unit * (1 + 1e-9)


def test_listing_has_the_counted_runs():
    design = published_design()
    assert (len(ROWS), len(design.tokens), len(np.unique(design.trunk))) == (53, 270, 51)
    ratio = design.tokens / design.n_active
    assert (ratio.min(), ratio.max()) == (pytest.approx(0.36, abs=0.005), pytest.approx(72.7, abs=0.05))
    assert int(np.sum(ratio < 1)) == 13
    assert sum(row.d_model // row.n_heads == 128 for row in ROWS) == 8


def test_flops_and_cache():
    a = Architecture(1024, experts=8)
    assert a.n_active == 2 * 1024 * 50257 + 13 * 16 * 1024**2
    assert a.n_total == 2 * 1024 * 50257 + (4 + 72) * 16 * 1024**2
    assert a.training_flops(1e9) == 6 * a.n_active * 1e9
    assert inference_flops(a.n_active, 1e9) == 2 * a.n_active * 1e9
    assert kv_cache_elements(1024, 8192) == kv_cache_elements(1024, 8192, n_blocks=16) == 2 * 8192 * 16 * 1024


def test_flops_per_token_of_the_1b_family():
    dense = Architecture(1664).n_active
    assert 1 - Architecture(1408, 2).n_active / dense == pytest.approx(0.358, abs=1e-3)
    assert 1 - Architecture(1152, 4).n_active / dense == pytest.approx(0.613, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"d_model": 100}, "d_model=100"),
        ({"d_model": 0}, "d_model=0"),
        ({"d_model": 64, "experts": 0}, "experts=0"),
        ({"d_model": 64, "experts": 1.5}, "experts=1.5"),
        ({"d_model": 192, "n_heads": 5}, "n_heads=5"),
        ({"d_model": 64, "n_blocks": True}, "n_blocks=True"),
        ({"d_model": 64, "vocab_size": -1}, "vocab_size=-1"),
    ],
)
def test_impossible_architectures_are_refused(arguments, field):
    with pytest.raises(ValueError, match=field):
        Architecture(**arguments)


@given(st.floats(16, 2e5), st.integers(1, 512), st.integers(256, 300_000))
def test_widths_invert_sizes(d, experts, vocab):
    assert width_of_active(active_parameters(d, vocab_size=vocab), vocab) == pytest.approx(d, rel=1e-12)
    total = total_parameters(d, experts, vocab_size=vocab)
    assert width_of_total(total, experts, vocab) == pytest.approx(d, rel=1e-12)


@given(*[st.floats(0, 1e9)] * 3, st.floats(1e-3, 1e30))
def test_solve_width_solves(a, b, c, value):
    if a + c < 1e-6:
        a = 1.0
    d = solve_width(a, b, c, value)
    assert math.isfinite(d)
    assert d * (a + d * (b + d * c)) == pytest.approx(value, rel=1e-9)


def test_affordable_tokens_spend_the_budget():
    n, served = 3e9, 1e11
    d = affordable_tokens(1e22, n, served)
    assert 6 * n * d + 2 * n * served == pytest.approx(1e22, rel=1e-12)
