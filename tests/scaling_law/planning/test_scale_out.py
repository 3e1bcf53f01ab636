"""One model on more GPUs: bytes counted by hand, and what limits each."""

import pytest

from scaling_law import Architecture, scale_out
from scaling_law.machine import GPUS
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
    h100, rack = GPUS["H100"], GPUS["GB200"]
    assert sent.seconds(8, h100) == pytest.approx(2)
    assert sent.seconds(64, h100) == pytest.approx(2.25)  # eight cards of 50 GB/s in each node
    assert sent.seconds(64, rack) == sent.seconds(128, rack) == pytest.approx(1)
    tokens_out_and_back = all_to_all_bytes(MODEL, 4096, 64)
    assert tokens_out_and_back == pytest.approx(4 * 63 / 64 * 2 * 4096 * 36 * 2304)
    assert all_to_all_bytes(Architecture(2304), 4096, 64) == 0
    assert all_to_all_seconds(63e9, 64, h100) == pytest.approx(56 / 50)
    assert all_to_all_seconds(45e9, 8, h100) == pytest.approx(0.1)


def test_more_gpus_communicate_more_for_each_token():
    eight, many = scale_out(MODEL, (8, 64), "h100", mfu=0.4).rows
    assert eight.placement.sharding == many.placement.sharding == "fsdp2"
    assert many.mfu_limit < eight.mfu_limit / 2
    assert [row.limited_by for row in (eight, many)] == ["compute", "communication"]
    assert many.step_seconds == many.communication_seconds > many.compute_seconds
    assert many.mfu == pytest.approx(many.mfu_limit)
    large = scale_out(MODEL, (64,), "h100", mfu=0.4, batch_sequences=4096).rows[0]
    assert (large.limited_by, large.mfu) == ("compute", pytest.approx(0.4))


def test_what_does_not_fit_or_is_not_known_says_so():
    (row,) = scale_out(Architecture(4096, 8), (8,), "h100").rows
    assert (row.placement, row.mfu, row.limited_by) == (None, None, "memory")
    assert scale_out(MODEL, (8,), "h100").to_dict()["rows"][0]["limited_by"] == "compute"
    with pytest.raises(ValueError, match="gpu='h900' is unknown"):
        scale_out(MODEL, (8,), "h900")
    with pytest.raises(ValueError, match="gpus=6 cannot share batches of 512 sequences equally"):
        scale_out(MODEL, (6,), "h100")
