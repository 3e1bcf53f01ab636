"""A training step waits for the device once, for its loss and the gradient's norm.

On the meta device there is nothing to wait for: whatever reads a value there raises, backward pass, clipping and
optimizer included. For other classes than ours, whose kernels the meta device lacks, operators that read are counted
on the CPU. So this holds on a GPU, where tests/gpu measures it too.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import sweep
from tests.training.run.host_reads import Launches
from tests.training.run.test_passes import KINDS, session_of
from training.run import causal_model
from training.run.step import Session, add_gradients, make_session, train_step
from training.run.timing import RandomTokens

META = torch.device("meta")


def session(a) -> Session:
    """On the meta device, with what a step asks of an Accelerator."""
    accelerator = SimpleNamespace(
        device=META,
        num_processes=1,
        parallelism_config=None,
        process_index=0,
        is_fsdp2=False,
        autocast=nullcontext,
        no_sync=lambda model: nullcontext(),
        backward=lambda loss: loss.backward(),
        clip_grad_norm_=torch.nn.utils.clip_grad_norm_,
        reduce=lambda value, how: value,
        prepare=lambda *parts: parts,
    )
    data = RandomTokens(300, a.data.sequence_length)
    with META:
        made = make_session(a, accelerator, data, data)
    made.model.train()
    return made


def test_a_loss_counts_as_bincount_does_without_reading():
    """As that of transformers 5.17 does in every layer."""
    values = torch.tensor([3, 0, 3, 1])
    launches = Launches()
    with launches, causal_model._CountsOnDevice():
        counts = torch.bincount(values, minlength=5)
    assert launches.reads == []
    assert counts.tolist() == [1, 1, 0, 2, 0] == torch.bincount(values, minlength=5).tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"model.experts": 1},
        {"model.capacity_group_tokens": 64},
        {"model.capacity_factor": 0},
        {"run.gradient_checkpointing": True},
        {"optimizer.name": "muon"},
    ],
    ids=str,
)
def test_a_step_waits_once(tiny, monkeypatch, changes):
    a = tiny(**changes, schedule__batch_ramp=["0:4"])
    made, waits = session(a), []
    if not a.model.capacity_factor:
        made.model.set_experts_implementation("batched_mm")  # grouped_mm has no meta kernel for fp32

    def wait(tensor):
        waits.append(tensor)
        return [1.0] * tensor.numel()

    monkeypatch.setattr(torch.Tensor, "tolist", wait)
    for _ in range(2):
        assert train_step(made, 0, 1e-3).is_finite
    assert len(waits) == 2
    assert {*waits[0].shape} == {2}
    with pytest.raises(RuntimeError):
        waits[0].sum().item()


# Kernels of the forward and backward pass of one block without a compiler, by torch 2.13 and transformers 5.23.
KERNELS = {
    "ours, E = 1": 107,
    "ours, E = 8": 196,
    "ours, E = 32": 196,
    "qwen3_moe": 210,
    "mixtral": 171,
    "olmoe": 210,
    "gpt_oss": 261,
    "qwen2_moe": 215,
    "deepseek_v3": 326,
}


def small(kind, blocks):
    section = KINDS["ours, E = 8"] | {"experts": 32} if kind == "ours, E = 32" else KINDS[kind]
    return section | {"num_hidden_layers" if "type" in section else "n_blocks": blocks}


@pytest.mark.parametrize(
    "kind", sweep(KERNELS, fast=["ours, E = 1", "ours, E = 8", "qwen3_moe", "gpt_oss", "deepseek_v3"])
)
def test_a_step_of_any_class_reads_nothing_but_its_loss_and_launches_few_kernels(kind):
    """None of them adds rows by index, which a GPU sorts first or adds atomically."""
    kernels = []
    for blocks in (2, 3):
        made = session_of(small(kind, blocks), compiled=False, passes_a_step=1)
        with Launches() as passes:
            add_gradients(made, 0)
        kernels.append(passes.kernels)
    with Launches() as step:
        assert train_step(made, 0, 1e-3).is_finite
    assert step.reads == ["tolist"]
    of_a_block = kernels[1] - kernels[0]
    assert of_a_block.total() <= KERNELS[kind]
    assert not of_a_block.keys() & {"index_put", "index_put_", "index_add", "index_add_", "histc"}


@pytest.mark.parametrize(
    "read",
    [
        lambda rows: rows[rows > 0],
        lambda rows: rows.nonzero(),
        lambda rows: bool((rows > 0).all()),
        lambda rows: rows.sum().item(),
        lambda rows: rows.int().abs().bincount(),
        lambda rows: rows.repeat_interleave(torch.ones(3, dtype=torch.int64)),
    ],
)
def test_reads_are_counted(read):
    with Launches() as launches:
        read(torch.tensor([1.0, 0.0, 3.0]))
    assert launches.reads
