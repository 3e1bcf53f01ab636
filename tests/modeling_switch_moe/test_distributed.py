"""Several processes: see `distributed_script.py`."""

from transformers.distributed import DistributedConfig

from tests.modeling_switch_moe import distributed_script
from tests.training.ranks import run_together


def test_two_processes_give_the_gradients_of_one(tmp_path):
    assert run_together(distributed_script.main, tmp_path) == [0, 0]
    can_split_experts = "ep_size" in DistributedConfig.__annotations__
    kinds = ["DDP", "FSDP2", "TP", *(["EP"] if can_split_experts else [])]
    by_logits = [f"{kind}, output_logits={value}" for kind in kinds for value in (True, False)]
    cases = (tmp_path / "cases").read_text().splitlines()
    assert cases == [*by_logits, *(["EP, a batch each"] if can_split_experts else [])]
