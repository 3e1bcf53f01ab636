"""Several processes: see `distributed_script.py`."""

import os
import subprocess
import sys
from pathlib import Path

from transformers.distributed import DistributedConfig

from tests.conftest import free_port


def test_two_processes_give_the_gradients_of_one(tmp_path):
    script = Path(__file__).with_name("distributed_script.py")
    address = ["--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", *address]
    result = subprocess.run(
        [*command, script, tmp_path / "model"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    cases = [line.removeprefix("ok ") for line in result.stdout.splitlines() if line.startswith("ok ")]
    by_logits = [f"{kind}, output_logits={value}" for kind in ("DDP", "FSDP2") for value in (True, False)]
    can_split_experts = "ep_size" in DistributedConfig.__annotations__
    assert cases == [*by_logits, "TP", *(["EP", "EP, a batch each"] if can_split_experts else [])]
