"""The capacity group: what is dropped, and the balance loss, depend on it alone, not on how a batch is computed."""

import json

import pytest
import torch

from tests.model_classes import BIAS, CLASSES
from tests.training.run.test_run import finish, folders
from training import ConfigurationError, Run
from training.run.inputs import check_inputs, resolve_arguments
from training.run.step import train_step

LARGE = {"schedule.batch_ramp": ["0:1024"], "schedule.tokens": ["1M"]}


def steps(arguments, count=3):
    """What `count` updates measure, and the weights after them."""
    run = Run(arguments)
    run.session.model.train()
    assert run.session.model.is_gradient_checkpointing == arguments.run.gradient_checkpointing
    found = []
    for step in range(count):
        r = train_step(run.session, step, 1e-3)
        losses = [r.loss, r.gradient_norm, r.balance_loss.item(), r.z_loss.item()]
        totals = [total.tolist() for total in r.routing[:2]] if r.routing else [None, None]
        found.append((losses, *totals))
    run.data.tokens.close()
    return found, [tensor.clone() for tensor in run.session.model.state_dict().values()]


@pytest.fixture
def even(tiny):
    """Tiny runs whose batch has four sequences from the start."""
    return lambda **changes: tiny(**{"schedule.batch_ramp": ["0:4"], **changes})


CASES = {
    "with drops": {},
    "dropless": {"model.capacity_factor": 0},
    "Muon": {"optimizer.name": "muon"},
    "balanced by a bias": {"model": BIAS},
} | {kind: {"model": section} for kind, section in CLASSES.items()}


# Classes whose experts transformers computes as it does those of qwen3_moe, and without experts.
SLOW_CASES = ("llama", "deepseek_v3", "qwen2_moe")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=name, marks=[pytest.mark.slow] if name in SLOW_CASES else [])
        for name, changes in CASES.items()
    ],
)
def test_the_cut_into_micro_batches_changes_nothing(tiny, monkeypatch, changes):
    """With and without recomputation, in both stages of the batch ramp."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.float)  # Muon's iteration, to the rounding of fp32

    def cut(micro, recompute):
        first = {"model": {**changes["model"]}} if "model" in changes else changes
        common = {"model.capacity_group_tokens": 32, "schedule.batch_ramp": ["0:4", "128:8"]}
        how = {"run.micro_batch_sequences": micro, "run.gradient_checkpointing": recompute}
        return steps(tiny(**{**first, **common, **how}))

    expected, weights = cut(1, False)
    assert changes or min(min(dropped) for _, _, dropped in expected) > 0
    for micro, recompute in ((1, True), (2, False), (4, True)):
        found, other = cut(micro, recompute)
        for (losses, routed, dropped), (same_losses, same_routed, same_dropped) in zip(found, expected, strict=True):
            assert losses == pytest.approx(same_losses, rel=1e-5)
            assert (routed, dropped) == (same_routed, same_dropped)
        torch.testing.assert_close(other, weights, rtol=0, atol=1e-5)


def test_the_first_start_fixes_the_group(even):
    def group(**changes):
        return resolve_arguments(even(**changes)).model.capacity_group_tokens

    assert group() == 2 * 32  # a micro-batch of 2 sequences of 32
    assert group(run__micro_batch_sequences=512, **LARGE) == 16_384
    assert group(run__micro_batch_sequences=1024, **LARGE) == 16_384
    assert group(model__capacity_group_tokens=16) == 16
    with pytest.raises(ConfigurationError, match=r"model.capacity_group_tokens: 16384; a micro-batch \(768 sequences"):
        group(run__micro_batch_sequences=768, schedule__batch_ramp=["0:768"], schedule__tokens=["1M"])
    finish(even(schedule__tokens=[1280]))
    assert group(run__micro_batch_sequences=4) == 64
    with pytest.raises(ConfigurationError, match=r"64; a micro-batch .1 sequences .*sequences a multiple of 2,"):
        group(run__micro_batch_sequences=1)
    with pytest.raises(ConfigurationError, match=r"model.capacity_group_tokens: 32, but .*config.yaml has 64"):
        check_inputs(even(model__capacity_group_tokens=32))
    for harmless in ({"model.capacity_factor": 0, "model.balance_loss": 0}, {"model.experts": 1}):
        even(model__capacity_group_tokens=48, **harmless)
    (model,) = folders(even())
    assert json.loads((model / "config.json").read_text())["capacity_group_tokens"] == 64
