"""Experts divided among processes exchange buffers of the capacity's size: see `expert_parallel_script.py`."""

import json
from types import SimpleNamespace

import pytest
from transformers.distributed import DistributedConfig

from modeling_switch_moe.expert_parallel import rows_to_send
from tests.modeling_switch_moe import expert_parallel_script
from tests.training.ranks import run_together


def test_rows_to_send_hold_what_an_expert_keeps():
    config = SimpleNamespace(capacity_factor=1.5, capacity_group_tokens=32)
    assert rows_to_send(config, 128, 4) == 4 * 12
    assert rows_to_send(config, 128, 4, sharers=5) == 10  # the last one's are not all used
    assert rows_to_send(config, 8, 64) == 1  # an expert keeps none of 8 tokens


@pytest.mark.skipif(
    "ep_implementation" not in DistributedConfig.__annotations__, reason="transformers 5.23 can be told how to divide"
)
def test_a_capacity_bounds_the_rows_of_a_process_and_no_layer_waits(tmp_path):
    """Two processes with two of four experts each have 48 tokens in two blocks; the script compares gradients."""
    assert run_together(expert_parallel_script.main, tmp_path) == [0, 0]
    cases = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert len(cases) == 13
    for case in cases:
        if case["capacity_factor"] is None:
            # transformers' exchange reads its sizes in each of two blocks.
            assert case["waits"] == 2, case
        else:
            assert case["waits"] == 0, case
            # Two experts get the capacity of 12 of their tokens from each group of 12, or that of 48 from half of it.
            assert case["rows"] == [24 * case["capacity_factor"]] * 2, case
