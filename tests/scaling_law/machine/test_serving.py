"""Serving: the formula by hand, and the sum over experts by simulation."""

import numpy as np
import pytest

from hub.base.tables import as_text
from scaling_law import Architecture, JointLaw
from scaling_law.machine import GPUS, decode_seconds
from scaling_law.machine.serving import seconds_of_token, share_read
from scaling_law.size.ladder import PaperLadder

H100 = GPUS["H100"]


def test_share_of_experts_read():
    assert share_read(1.0, 5) == 1.0
    assert share_read(1 / 8, 1) == pytest.approx(1 / 8)
    drawn = np.random.default_rng(0).integers(0, 16, (20_000, 24))
    seen = np.mean([len(set(tokens)) for tokens in drawn.tolist()]) / 16
    assert share_read(1 / 16, 24) == pytest.approx(seen, rel=0.01)


def test_a_small_batch_reads_the_weights_and_a_large_one_computes():
    dense = Architecture(4096)
    weights = dense.n_total - 4096 * 50257  # without the lookup
    assert decode_seconds(dense, "h100", 1) == pytest.approx(2 * weights / H100.bandwidth)
    assert decode_seconds(dense, H100, 10_000) == pytest.approx(2 * weights / H100.peak_flops)
    cache = dense.kv_cache_bytes(8 * 4096)
    expected = (cache + 2 * weights) / H100.bandwidth / 8
    assert decode_seconds(dense, H100, 8, context=4096) == pytest.approx(expected)
    assert decode_seconds(dense, H100, 8, 4096, bytes_per_parameter=1) < expected


def test_one_token_of_an_moe_reads_what_is_active():
    moe, dense = Architecture(2048, 32), Architecture(2048)
    assert decode_seconds(moe, H100, 1) == pytest.approx(decode_seconds(dense, H100, 1), rel=1e-9)
    ratio = decode_seconds(moe, H100, 64) / decode_seconds(dense, H100, 64)
    assert 10 < ratio < moe.n_total / dense.n_total


@pytest.mark.parametrize("experts", [1, 8, 32])
@pytest.mark.parametrize("batch", [1, 16, 4000])
def test_widths_are_architectures(experts, batch):
    built = decode_seconds(Architecture(1024, experts), H100, batch, 512)
    of_width = seconds_of_token(
        PaperLadder().widths(1024, experts), H100, batch, Architecture(1024).kv_cache_bytes(512 * batch)
    )
    assert of_width == pytest.approx(built, rel=1e-9)


def test_shared_experts_are_always_read():
    a = Architecture(1024, 14, experts_per_token=2, d_expert=768, shared_experts=2)  # E = 4, half of it shared
    built = decode_seconds(a, H100, 4)
    assert seconds_of_token(PaperLadder(4.0, 0.5).widths(1024, 4), H100, 4) == pytest.approx(built, rel=1e-9)


def test_rows_of_an_optimum_say_what_serving_takes():
    law = JointLaw.published()
    asked = {"hours": 72, "gpus": 8, "gpu": "h100", "experts": [1, 8], "decode_batch": 32}
    table = law.optimal(**asked, price=2.5, kv_tokens="64k", integral=True)
    for row in table:
        expected = decode_seconds(row.architecture, H100, 32, context=2048)
        assert row.decode_seconds == pytest.approx(expected, rel=1e-9)
        assert f"{2.5 * 1e6 * row.decode_seconds / 3600:.3g}" in as_text(table, 250)
    assert "GPU-s per M" in as_text(law.optimal(**asked), 250)


def test_serving_goes_with_a_budget_of_flops():
    asked = {"decode_batch": 32, "kv_tokens": "64k", "gpu": "h100", "experts": [1, 8]}
    table = JointLaw.published().optimal(1e21, **asked)
    trained = JointLaw.published().optimal(1e21, **asked, gpus=64, price=2.5)
    for row, other in zip(table, trained, strict=True):
        limits = table.limits
        widths = limits.widths(row.d_model, row.experts)
        assert row.decode_seconds == seconds_of_token(widths, H100, 32, limits.kv_bytes(row.d_model))
        assert row.decode_seconds == other.decode_seconds
        assert (row.hours, row.mfu) == (None, None)
        assert other.hours > 0
    assert "GPU-s per M" in table.summary().header
    assert "price per M" in trained.summary().header
