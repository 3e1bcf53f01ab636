"""Sharded processes (gloo on CPU) against one: gradients, shares and, with `memory`, the peaks of steps.

Run by `test_sharding.py` under torchrun; the first process prints one JSON object per case.
"""

import json
import math
import os
import shutil
import sys
import tempfile
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch._C._profiler import _EventType
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from benchmarks import every_class
from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM
from modeling_switch_moe.experts import SWITCH_EXPERTS
from scaling_law import Architecture
from scaling_law.machine import training_memory
from tests.model_classes import CLASSES, DENSE, NOISY, SHARED, TOP_K
from tests.training.run.test_timing import session
from training.configuration.model_classes import ModelClassArguments
from training.run import causal_model, sharding
from training.run.timing import arguments_of_steps, timed_step

LENGTH, VOCABULARY = 12, 64
MIXTRAL = {**NOISY, "attention_dropout": 0.0, "router_jitter_noise": 0.0}


def as_on_gpus() -> None:
    """On CPU Accelerate would train with DDP without saying so; this is what several GPUs would have."""
    PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU


def report(**case) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(case), flush=True)


# -- gradients


def switch(experts: int):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_experts": experts}
    fixed = {"vocab_size": VOCABULARY, "capacity_group_tokens": LENGTH, "experts_implementation": "capacity"}
    return SwitchMoeForCausalLM(SwitchMoeConfig(**shape, **fixed)).train()


def other(section):
    torch.manual_seed(0)
    config = ModelClassArguments.model_validate(section).config(VOCABULARY, LENGTH, 0)
    return causal_model.build(config, group_tokens=LENGTH).train()


def backward(model, rows, tokens: int, half: bool, scale: float = 1.0) -> None:
    """Each row is a micro-batch."""
    for row in rows.split(1):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = model(row, shift_labels=row, num_items_in_batch=tokens, use_cache=False, output_logits=False)
        (scale * (out.lm_loss + 0.01 * out.balance_loss)).backward()


def compare(case: str, build, half: bool, checkpointing: bool = False, tied: bool = False, layout=None) -> None:
    """Two micro-batches on each process, and all of them on one; with a layout, also what is saved of the weights."""
    world, divided = dist.get_world_size(), layout.tensor if layout else 1
    rank, readers = dist.get_rank() // divided, world // divided
    ids = torch.randint(VOCABULARY, (2 * readers, LENGTH), generator=torch.Generator().manual_seed(5))
    one = build()
    backward(one, ids, ids.numel(), half)
    model = sharding.build(build, half, layout, tied=tied)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    rows = ids[2 * rank : 2 * rank + 2]
    once = {}
    if divided == 1:
        # Summed over processes once, after the last micro-batch; with widths divided (`memory.reduces_once`) never so.
        model.set_requires_gradient_sync(False)
        backward(model, rows[:1], ids.numel(), half, readers)
        model.set_requires_gradient_sync(True)
        backward(model, rows[1:], ids.numel(), half, readers)
        sharding.average_gradients(model)
        once = {name: whole_of(weight.grad) for name, weight in model.named_parameters() if weight.grad is not None}
        model.zero_grad()
    backward(model, rows, ids.numel(), half, readers)
    sharding.average_gradients(model)
    off, largest, replicated = 0.0, 0.0, 0
    for (name, parameter), expected in zip(model.named_parameters(), one.parameters(), strict=True):
        is_sharded = isinstance(parameter, DTensor)
        assert torch.equal(whole_of(parameter), expected), name
        assert (parameter.grad is None) == (expected.grad is None), name
        if expected.grad is None:  # an indexer's
            continue
        assert parameter.grad.dtype == torch.float32
        for gradient in (whole_of(parameter.grad), once.get(name, expected.grad)):
            off = max(off, float((gradient - expected.grad).abs().max() / expected.grad.abs().max()))
        if is_sharded:
            largest = max(largest, parameter.to_local().numel() * world / parameter.numel())
        else:
            replicated += parameter.numel()
    if layout:
        assert_norms(model, one)
        assert_saves(model, build())
        case = f"{case}, {layout.replicas} x {layout.shards}, experts over {layout.experts}, widths {layout.tensor}"
    of_all = sum(parameter.numel() for parameter in one.parameters())
    report(case=case, half=half, off=off, largest_share=largest, replicated=replicated / of_all)


def whole_of(tensor):
    """The whole of a tensor; what is not sharded has the same bits on every process."""
    if isinstance(tensor, DTensor):
        return tensor.full_tensor()
    copies = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, tensor)
    assert all(torch.equal(copy, tensor) for copy in copies)
    return tensor


def assert_norms(model, one) -> None:
    """All processes have the same bits of the gradients' norm, which is that of one process before and after."""
    expected = float(
        torch.nn.utils.get_total_norm([weight.grad for weight in one.parameters() if weight.grad is not None])
    )
    norms = [None] * dist.get_world_size()
    dist.all_gather_object(norms, sharding.clip_gradients(model, expected / 2).item())
    assert len({*norms}) == 1, norms
    assert abs(norms[0] / expected - 1) < 2**-6, norms  # in bf16 a gradient is rounded
    clipped = sharding.clip_gradients(model, math.inf).item()
    assert abs(2 * clipped / norms[0] - 1) < 1e-3, clipped


def with_ties():
    """Draw a model in whose first block two experts have equal gates but for rounding, and two others do not."""
    model = switch(4)
    weight = next(iter(causal_model.routers(model))).weight
    with torch.no_grad():
        weight[1] = weight[0] * (1 + 2**-22)
    return model


def compare_choices(layout: sharding.Layout) -> None:
    """Report for which tokens the divided model chooses other experts than one process with the same weights.

    Of each such token, on the first process, in the first block: the gates of both experts, by one process and by all.
    """
    rank = dist.get_rank()
    models = {"one": with_ties(), "all": sharding.build(with_ties, False, layout)}
    ids = torch.randint(VOCABULARY, (512, LENGTH), generator=torch.Generator().manual_seed(rank // layout.tensor))
    gates: dict[str, torch.Tensor] = {}

    def keep_gates(name: str, _module, _inputs, outputs) -> None:
        gates[name] = outputs[0].double().softmax(-1)

    for name, model in models.items():
        next(iter(causal_model.routers(model))).register_forward_hook(partial(keep_gates, name))
        with torch.no_grad():
            model(ids, shift_labels=ids, use_cache=False)
    by_one, by_all = gates["one"].argmax(-1), gates["all"].argmax(-1)
    differs = (by_one != by_all).nonzero().squeeze(1)
    experts = torch.stack([by_one[differs], by_all[differs]], 1)
    pairs = {name: gates[name][differs].gather(1, experts).tolist() for name in gates}
    report(tokens=len(by_one), chosen=by_one.bincount(minlength=4).tolist(), **pairs)


def divide_widths(kind: str) -> None:
    """Compare a type whose heads and widths `train.py` divides."""
    two = SimpleNamespace(is_fsdp2=True, parallelism_config=None, num_processes=2, device=torch.device("cpu"))
    try:
        section = every_class.section(kind)
        experts = 1 if ModelClassArguments.model_validate(section).experts == 1 else 2
        run = {"micro_batch_sequences": 1, "expert_parallel": experts, "tensor_parallel": 2}
        sharding.check_layout(arguments_of_steps(run, section, LENGTH), two)
    except Exception:  # this type has no plan, or does not train
        return
    compare(kind, lambda: other(section), False, tied=True, layout=sharding.Layout(1, 2, experts, 2))


def assert_saves(model, whole) -> None:
    """A checkpoint that one process reads, and the state dict of an export, have the bits of the `whole` model."""
    drawn = {name: weight.clone() for name, weight in whole.state_dict().items()}
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save(get_model_state_dict(model), checkpoint_id=folder[0])
    exported = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() > 0:
        return
    for parameter in whole.parameters():
        torch.nn.init.zeros_(parameter)
    dcp.load(loaded := whole.state_dict(), checkpoint_id=folder[0], no_dist=True)
    assert drawn.keys() == exported.keys()
    for name, weight in drawn.items():
        assert torch.equal(loaded[name], weight), name
        assert torch.equal(exported[name], weight), name
    shutil.rmtree(folder[0])


# -- memory

# The vocabularies are so small that on a GPU, too, all logits would be one chunk.
MODEL = Architecture(128, 4, 4, 2, 256)
CASES = [
    (MODEL, 8, 2, "bf16", False),
    (MODEL, 8, 1, "fp32", False),
    (Architecture(128, 1, 4, 2, 500), 8, 2, "bf16", False),
    (Architecture(128, 16, 4, 2, 256), 2, 2, "bf16", True),
    (Architecture(128, 16, 4, 2, 256), 2, 2, "bf16", False),
    (Architecture(128, 4, 2, 2, 4000), 2, 1, "fp32", False),
    # Experts divided between two.
    (Architecture(128, 16, 4, 2, 256), 2, 2, "bf16", False, 2),
    (MODEL, 8, 2, "bf16", False, 2),
    (MODEL, 8, 1, "fp32", False, 2),
]


def peak_of_tensors(work) -> int:
    """The most bytes of tensors at once while it runs, without the copies that gloo makes of what it sends.

    They are made in threads of its own, or inside of its operators; NCCL makes none.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        kept = work()
    changes: list[tuple[int, int, int]] = []

    def visit(event, in_gloo: bool = False) -> None:
        if event.tag == _EventType.Allocation:
            change = event.extra_fields
            if change.alloc_size < 0 or not in_gloo:
                changes.append((event.start_time_ns, change.alloc_size, change.ptr))
        for child in event.children:
            visit(child, in_gloo or event.name.startswith(("c10d::", "gloo:")))

    for root in recorded.profiler.kineto_results.experimental_event_tree():
        visit(root)
    there, now, peak = {}, 0, 0
    for _, size, address in sorted(changes):
        if size > 0:
            there[address] = size
            now += size
        else:
            now -= there.pop(address, 0)
        peak = max(peak, now)
    del kept
    return peak


def measure(
    model: Architecture, micro: int, passes: int, precision: str, checkpointing: bool, parallel: int = 1
) -> None:
    """The most bytes of the tensors of each process, beside the prediction."""
    world, length = dist.get_world_size(), 128
    reduces_once = os.environ.get("REDUCES_ONCE") == "true"
    SWITCH_EXPERTS["auto"] = SWITCH_EXPERTS["capacity"]  # as on a GPU

    def work():
        as_on_gpus()
        how = {"precision": precision, "gradient_checkpointing": checkpointing, "expert_parallel": parallel}
        made = session(model, micro, length, passes * world, **how)
        made.reduces_once = reduces_once
        for _ in range(2):  # the moments are made in the first
            timed_step(made)
        return made

    peaks = [None] * world
    reshard = os.environ.get("FSDP_RESHARD_AFTER_FORWARD") != "false"
    # Gloo holds on to what went to all for longer than to what was summed
    tries = 1 if parallel == 1 and reshard else 4
    dist.all_gather_object(peaks, min(peak_of_tensors(work) for _ in range(tries)))
    batch = {"passes": passes, "precision": precision, "gradient_checkpointing": checkpointing}
    shared = {"sharding": "fsdp2", "devices": world, "ep": parallel, "reshard": reshard}
    shared["reduces_once"] = reduces_once
    predicted = training_memory(model, micro, length, **batch, **shared)
    report(case=str((model, micro, passes, precision, checkpointing, parallel)), measured=peaks, **predicted.to_dict())


def main(what: str) -> None:
    torch.set_num_threads(1)
    as_on_gpus()
    if what == "gradients":
        for experts in (1, 3, 4):
            for half in (False, True):
                compare(f"E = {experts}", lambda experts=experts: switch(experts), half, checkpointing=experts == 3)
        tied = DENSE | {"tie_word_embeddings": True}
        # A recurrence's decays and a block's own weights stay fp32; OLMo's blocks have nothing that must, JetMoE's
        # experts all must. Gemma 3n calls other methods of a module than `forward`.
        kinds = ("mamba", "doge", "olmo", "gpt_oss", "jetmoe", "gemma3n_text")
        precise = (every_class.section(kind) | {"tie_word_embeddings": False} for kind in kinds)
        for section in (*CLASSES.values(), tied, *precise):
            for half in (False, True):
                compare(section["type"], lambda section=section: other(section), half, tied=section is tied)
    elif what == "layouts":
        on_four = [(2, 2, 1), (1, 4, 4), (1, 4, 2), (2, 2, 2), (1, 4, 4, 2), (2, 2, 2, 2)]
        sizes = {2: [(1, 2, 2), (1, 2, 2, 2)], 4: on_four}[dist.get_world_size()]
        for layout in (sharding.Layout(*size) for size in sizes):
            for half in (False, True):
                compare("ours", lambda: switch(4), half, layout=layout)
                for section in (TOP_K, SHARED, MIXTRAL):
                    compare(section["type"], lambda section=section: other(section), half, layout=layout)
    elif what == "choices":
        compare_choices(sharding.Layout(1, 4, 2, 2))
    elif what == "widths":
        for kind in every_class.model_types():
            divide_widths(kind)
    else:
        for case in CASES:
            measure(*case)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
