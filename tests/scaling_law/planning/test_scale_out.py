"""One model on more GPUs: bytes counted by hand, and what limits each."""

import pytest

from scaling_law import Architecture, scale_out
from scaling_law.machine.communication import Communication, all_to_all_bytes, all_to_all_seconds, communication

MODEL = Architecture(2304, 8)


def test_communication_is_counted_by_hand():
    head = 50257 * 2304
    blocks = (4 + 9 * 8) * 36 * 2304**2
    found = communication(MODEL, "fsdp2", 8, passes=4)
    # forward and backward in bf16; the embedding twice and the head once in fp32; gradients in fp32
    assert found.all_gather == pytest.approx(4 * 7 / 8 * (2 * 2 * blocks + 4 * 3 * head))
    assert found.reduce_scatter == pytest.approx(4 * 7 / 8 * 4 * (blocks + 2 * head))
    whole = communication(MODEL, "ddp", 8, passes=4)
    assert whole == Communication(all_reduce=2 * 7 / 8 * 4 * (blocks + 2 * head))
    assert communication(MODEL, "none", 1, passes=4).total == communication(MODEL, "fsdp2", 1, passes=4).total == 0
    with pytest.raises(ValueError, match="passes=0 must be at least 1"):
        communication(MODEL, "fsdp2", 8, passes=0)


def test_links_and_network_cards():
    sent = Communication(all_gather=900e9)
    assert sent.seconds(8, 450e9) == pytest.approx(2)
    assert sent.seconds(64, 450e9) == pytest.approx(2.25)  # eight cards of 50 GB/s in each node
    tokens_out_and_back = all_to_all_bytes(MODEL, 4096, 64)
    assert tokens_out_and_back == pytest.approx(4 * 63 / 64 * 2 * 4096 * 36 * 2304)
    assert all_to_all_bytes(Architecture(2304), 4096, 64) == 0
    assert all_to_all_seconds(63e9, 64, 450e9) == pytest.approx(56 / 50)
    assert all_to_all_seconds(45e9, 8, 450e9) == pytest.approx(0.1)


def test_more_gpus_communicate_more_for_each_token():
    found = scale_out(MODEL, (8, 64), "h100")
    eight, many = found.rows
    assert eight.placement.sharding == many.placement.sharding == "fsdp2"
    assert (eight.mfu, many.mfu) == pytest.approx((0.139, 0.139))
    assert many.mfu_limit < eight.mfu_limit / 2
    assert eight.compute_seconds == pytest.approx(8 * many.compute_seconds)
    assert [row.limited_by for row in found.rows] == ["compute", "compute"]
    fast = scale_out(MODEL, (64,), "h100", mfu=0.4).rows[0]
    assert (fast.limited_by, fast.expected_mfu) == ("communication", fast.mfu_limit)
    large = scale_out(MODEL, (64,), "h100", mfu=0.4, batch_sequences=4096).rows[0]
    assert (large.limited_by, large.expected_mfu) == ("compute", pytest.approx(0.4))


def test_what_does_not_fit_or_is_not_known_says_so():
    (row,) = scale_out(Architecture(4096, 8), (8,), "h100").rows
    assert (row.placement, row.expected_mfu, row.limited_by) == (None, None, "memory")
    assert scale_out(MODEL, (8,), "h100").to_dict()["rows"][0]["limited_by"] == "compute"
    with pytest.raises(ValueError, match="gpu='l4': link speed unknown; give one of H200, H100"):
        scale_out(MODEL, (8,), "l4")
    with pytest.raises(ValueError, match="gpus=6 cannot share batches of 512 sequences equally"):
        scale_out(MODEL, (6,), "h100")
