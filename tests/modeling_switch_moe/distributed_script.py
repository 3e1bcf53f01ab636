"""Two processes on CPU (gloo): DDP, FSDP2, tensor and expert parallelism give the gradients of one process.

A case that holds becomes a line of the file `cases`; the first that does not ends the process. The rows of the second
process repeat one token, so that whole experts get nothing there.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.distributed import DistributedConfig

from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM


def build(**changes):
    torch.manual_seed(0)
    fields = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_experts": 4}
    return SwitchMoeForCausalLM(SwitchMoeConfig(**fields, **changes)).train()


# Where a batch is split between processes, each holds whole capacity groups: the drops and the balance loss are those
# of one process then.
SPLIT = {"capacity_group_tokens": 12}


def gradients(model, ids, **options):
    model.zero_grad()
    model(ids, labels=ids, use_cache=False, **options).loss.backward()
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        found[name.removeprefix("module.")] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return found


def compare(case, found, expected):
    for name, gradient in expected.items():
        error = (found[name] - gradient).abs().max().item()
        assert error <= 1e-6, f"{case}: {name} differs by {error:.1e}"
    if dist.get_rank() == 0:
        with open("cases", "a", encoding="utf-8") as file:
            file.write(f"{case}\n")


def main(folder):
    os.chdir(folder)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ids = torch.randint(0, 64, (4, 12), generator=torch.Generator().manual_seed(5))
    ids[2:] = 7
    mine = ids[2 * rank : 2 * rank + 2]
    expected = gradients(build(**SPLIT), ids)

    sharded, mesh = build(**SPLIT), init_device_mesh("cpu", (2,))
    for part in (*sharded.model.layers, sharded.lm_head, sharded):
        fully_shard(part, mesh=mesh)
    models = {"DDP": torch.nn.parallel.DistributedDataParallel(build(**SPLIT)), "FSDP2": sharded}
    for kind, model in models.items():
        for output_logits in (True, False):
            found = gradients(model, mine, output_logits=output_logits)
            compare(f"{kind}, output_logits={output_logits}", found, expected)

    if rank == 0:
        build().save_pretrained(folder)
    dist.barrier()
    whole = build()
    expected, logits = gradients(whole, ids), whole.eval()(ids).logits
    cases = {"TP": {"tp_size": 2}}
    if "ep_size" in DistributedConfig.__annotations__:  # transformers 5.19 and newer
        cases["EP"] = {"tp_size": 2, "ep_size": 2}
    for case, sizes in cases.items():
        model = SwitchMoeForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(**sizes)).eval()
        torch.testing.assert_close(model(ids).logits, logits, rtol=0, atol=1e-5)
        for output_logits in (True, False):
            found = gradients(model.train(), ids, output_logits=output_logits)
            compare(f"{case}, output_logits={output_logits}", found, expected)
    if "EP" in cases:
        if rank == 0:
            build(**SPLIT).save_pretrained(folder)
        dist.barrier()
        sizes = DistributedConfig(fsdp_size=2, ep_size=2)
        model = SwitchMoeForCausalLM.from_pretrained(folder, distributed_config=sizes).train()
        compare("EP, a batch each", gradients(model, mine), gradients(build(**SPLIT), ids))
    dist.barrier()
    dist.destroy_process_group()
