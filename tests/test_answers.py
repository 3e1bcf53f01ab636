"""What golden answers and printed blocks compare, and what they let pass."""

import pytest

from tests.answers import is_same


@pytest.mark.parametrize(
    ("recorded", "now", "path"),
    [
        (2.107, 2.107 * (1 + 5e-7), "rows/0/loss"),
        (0.4, 0.3999999999999999, "rows/0/mfu"),
        (4488.7, 4489.0, "rows/0/d_model"),
        (0.973, 0.966, "rows/0/win_share"),
        (0.973, 0.966, "comparison/win_shares/8"),
        ("loss 2.107 (2.095 to 2.119)", "loss 2.108 (2.095 to 2.118)", "verdict"),
        ("1T tokens: 405.7 hours", "1T tokens: 405.8 hours", "verdict"),
        ("MFU 19%, 5,136 hours", "MFU 20%, 5,135 hours", "verdict"),
        ("│  2.3 │", "│ 2.31 │", "table"),
        (None, None, "hours"),
    ],
)
def test_what_a_processor_may_change_is_the_same(recorded, now, path):
    assert is_same(recorded, now, path)
    assert is_same(now, recorded, path)


@pytest.mark.parametrize(
    ("recorded", "now", "path"),
    [
        (2.107, 2.10701, "rows/0/loss"),
        (4488.7, 4500.0, "rows/0/d_model"),
        (0.973, 0.95, "rows/0/win_share"),
        (True, False, "trusted"),
        (1, True, "best"),
        (8, None, "experts"),
        ("E = 8: loss 2.107", "E = 9: loss 2.107", "verdict"),
        ("loss 2.107", "loss 2.109", "verdict"),
        ("405.7 hours", "405.7 days", "verdict"),
        ("405.7 hours", "405.7 hours, 2 days", "verdict"),
        ("1e22 FLOPs", "2e22 FLOPs", "verdict"),
        ("on 64 × H100", "on 64 × H200", "verdict"),
    ],
)
def test_another_answer_is_another(recorded, now, path):
    assert not is_same(recorded, now, path)
    assert not is_same(now, recorded, path)
