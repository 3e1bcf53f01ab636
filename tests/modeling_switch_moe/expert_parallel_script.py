"""Two processes on CPU (gloo) divide experts and exchange buffers of the capacity's size.

Each case appends a line to the file `rows` of its folder: rows that the experts of the first process computed, and how
often its forward and backward passes would have made a host wait for a device. Gradients are those of one process.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.distributed import DistributedConfig

from modeling_switch_moe import SwitchMoeForCausalLM, expert_parallel
from tests.modeling_switch_moe.distributed_script import SPLIT, build, compare, gradients

READING = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)


class Waits(TorchDispatchMode):
    """Counts what reads a value of a tensor, or a number of them that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._originals = {name: getattr(torch.Tensor, name) for name in ("tolist", "cpu", "numpy")}

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.count += function in READING
        return function(*args, **(kwargs or {}))

    def __enter__(self) -> Any:
        for name, original in self._originals.items():  # these are not dispatched on a CPU
            setattr(torch.Tensor, name, self._counting(original))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for name, original in self._originals.items():
            setattr(torch.Tensor, name, original)
        super().__exit__(*error)

    def _counting(self, original: Callable) -> Callable:
        def read(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return original(*args, **kwargs)

        return read


def divide(case: dict[str, Any], ids: torch.Tensor) -> None:
    """Compare the gradients of one process with those of two that share a batch, or have one each."""
    rank = dist.get_rank()
    shares = case["shares"]
    changes = {"capacity_factor": case["capacity_factor"], **({} if shares else SPLIT)}
    if rank == 0:
        build(**changes).save_pretrained(".")
    dist.barrier()
    degrees = {"tp_size": 2} if shares else {"fsdp_size": 2}
    config = DistributedConfig(**degrees, ep_size=2, ep_implementation=expert_parallel.NAME)
    model = SwitchMoeForCausalLM.from_pretrained(".", distributed_config=config).train()
    model.set_experts_implementation(case["experts_implementation"])
    model.model._check_inputs = lambda inputs: None  # which reads ids where they are on a CPU
    rows, multiply = [], expert_parallel.multiply_buffer

    def multiply_and_note(module, buffer):
        rows.append(buffer.shape[:2].numel())
        return multiply(module, buffer)

    expert_parallel.multiply_buffer = multiply_and_note
    with Waits() as waits:
        divided = gradients(model, ids if shares else ids[2 * rank : 2 * rank + 2])
    expert_parallel.multiply_buffer = multiply
    compare(str(case), divided, gradients(build(**changes), ids))
    if rank == 0:
        with open("rows", "a", encoding="utf-8") as file:
            file.write(json.dumps(case | {"rows": rows, "waits": waits.count}) + "\n")


def main(folder: str) -> None:
    os.chdir(folder)
    dist.init_process_group("gloo")
    ids = torch.randint(0, 64, (4, 12), generator=torch.Generator().manual_seed(5))
    equal = torch.full_like(ids, 7)  # all of whose tokens choose the same expert
    for capacity_factor in (None, 1.0, 2.0):
        for shares in (False, True):
            case = {"capacity_factor": capacity_factor, "shares": shares, "experts_implementation": "auto"}
            divide(case | {"equal": False}, ids)
            divide(case | {"equal": True}, equal)
    divide(case | {"experts_implementation": "grouped_mm", "equal": False}, ids)
    dist.barrier()
    dist.destroy_process_group()
