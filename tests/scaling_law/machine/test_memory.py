"""Memory of training: the state counted by hand, and what changes it; `tests/training` compares it with torch."""

import itertools

import numpy as np
import pytest

from scaling_law import Architecture
from scaling_law.machine import training_memory
from scaling_law.size.ladder import PaperLadder

MODEL = Architecture(512, 8)
PARAMETERS = MODEL.n_total + 8 * 8 * 512  # and the routers'


def test_the_state_is_sixteen_bytes_a_parameter():
    memory = training_memory(MODEL, 8, 512)
    state = (memory.weights, memory.optimizer, memory.gradients)
    assert state == (4 * PARAMETERS, 8 * PARAMETERS, 4 * PARAMETERS)
    assert memory.total == sum(state) + memory.activations + memory.workspace


def test_activations_grow_with_the_micro_batch_and_shrink_with_checkpointing():
    one, two = (training_memory(MODEL, n, 512).activations for n in (8, 16))
    casts = 2 * MODEL.n_total_non_embedding
    assert two - casts == pytest.approx(2 * (one - casts))
    assert training_memory(MODEL, 16, 512, gradient_checkpointing=True).activations < 0.3 * two
    assert training_memory(MODEL, 8, 512, precision="fp32").activations > one - casts
    assert training_memory(MODEL, 8, 512, capacity_factor=2).activations > one


def test_a_single_pass_has_no_gradients_at_its_start():
    long, short = (training_memory(MODEL, n, 512, passes=1) for n in (64, 1))
    assert long.gradients == 0
    assert long.activations > 0
    # Its peak is the end of the backward pass, when only the bf16 copies of the weights are left.
    assert (short.gradients, short.activations) == (4 * PARAMETERS, 2 * MODEL.n_total_non_embedding)
    assert training_memory(MODEL, 64, 512, passes=1, sharding="ddp").gradients == 4 * PARAMETERS


def test_fsdp2_shards_weights_moments_and_gradients():
    sharded = training_memory(MODEL, 8, 512, sharding="fsdp2", devices=8)
    state = (sharded.weights, sharded.optimizer, sharded.gradients)
    assert state == (4 * PARAMETERS / 8, 8 * PARAMETERS / 8, 4 * PARAMETERS / 8)
    one_pass = training_memory(MODEL, 64, 512, passes=1, sharding="fsdp2", devices=8)
    assert 0 <= one_pass.gradients < 4 * PARAMETERS / 8
    assert training_memory(MODEL, 8, 512, sharding="fsdp2") == training_memory(MODEL, 8, 512)
    assert training_memory(MODEL, 8, 512, sharding="ddp", devices=8) == training_memory(MODEL, 8, 512)


def test_fsdp2_gathers_two_blocks_and_has_the_gradients_of_one():
    """Of many experts and few tokens the peak is in a block but the last, when all of these are there."""
    model = Architecture(512, 32)
    few = training_memory(model, 1, 64, sharding="fsdp2", devices=8)
    block = (model.n_total_non_embedding + 8 * 32 * 512) / 8
    assert few.workspace == pytest.approx((2 + 2 + 2 + 4) * block, rel=0.01)
    single = training_memory(model, 1, 64, sharding="fsdp2", devices=8, precision="fp32")
    assert single.workspace == pytest.approx((4 + 4 + 4 + 4) * block, rel=0.01)


def test_widths_and_architectures_take_the_same_memory():
    """Every part at every setting, for models beside each other that peak at different moments."""
    widths, experts = [64, 512, 1024, 2304], [1, 8, 32, 1]
    settings = itertools.product((1, 4), ("bf16", "fp32"), (False, True), ("none", "ddp", "fsdp2"), (1, 8))
    for passes, precision, recompute, sharding, devices in settings:
        asked = {"passes": passes, "precision": precision, "gradient_checkpointing": recompute}
        asked |= {"sharding": sharding, "devices": devices}
        together = training_memory(PaperLadder().widths(widths, experts), 8, 512, **asked)
        for i, (d, e) in enumerate(zip(widths, experts, strict=True)):
            alone = training_memory(Architecture(d, e), 8, 512, **asked)
            for part, size in alone.to_dict().items():
                assert np.broadcast_to(getattr(together, part), 4)[i] == pytest.approx(size, rel=1e-12), part
