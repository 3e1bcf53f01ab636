"""A training step waits for the device once, for its loss and the gradient's norm.

On the meta device there is nothing to wait for: whatever reads a value there raises, backward pass, clipping and
optimizer included. So this holds on a GPU, where tests/gpu measures it too.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from training.run.step import Session, make_session, train_step
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
    data = RandomTokens(300, a.data.sequence_length, a.run.micro_batch_sequences)
    with META:
        made = make_session(a, accelerator, data, data)
    made.model.train()
    return made


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
