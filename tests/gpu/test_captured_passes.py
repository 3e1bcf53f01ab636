"""Passes as CUDA graphs beside the same ones as they are: on a GPU its graphs, on a CPU ones that replay operators."""

import logging
import math
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.gpu.test_device import DEVICE, ON_GPU, session_of, state_of
from training.run import passes
from training.run.step import train_step


class ReplayedGraph:
    """What a CUDA graph does: it runs the captured operators again, from and to the memory that they had."""

    def __init__(self):
        self.calls = []

    def pool(self):
        return self

    def replay(self):
        with torch.no_grad():
            for function, inputs, options, results in self.calls:
                for old, new in zip(tree_leaves(results), tree_leaves(function(*inputs, **options)), strict=True):
                    # A view, and what is changed in place, lies where it lay.
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class Capture(TorchDispatchMode):
    """Operators of the passes that run in it, written into a graph."""

    def __init__(self, graph: ReplayedGraph, pool=None, stream=None, capture_error_mode=None):
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, function, types, inputs=(), options=None):
        results = function(*inputs, **options or {})
        self.graph.calls.append((function, inputs, options or {}, results))
        return results


@pytest.fixture(autouse=True)
def _graphs_of_a_cpu(monkeypatch):
    if ON_GPU:
        return
    for name, stand_in in {
        "CUDAGraph": ReplayedGraph,
        "graph": Capture,
        "Stream": MagicMock,
        "current_stream": MagicMock,
        "stream": MagicMock(),
        "default_generators": [MagicMock()],
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)


class Model(torch.nn.Sequential):
    """Two layers and a pass of them, in bf16 where weights are cast."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
        self.to(DEVICE)
        self.matrices = [(self[0], "weight"), (self[2], "weight")]

    def run_pass(self, inputs, targets):
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            loss = (self(inputs) - targets).float().square().mean()
        loss.backward()
        return SimpleNamespace(loss=loss.detach())

    def gradients(self) -> list[torch.Tensor]:
        return [parameter.grad.clone() for parameter in self.parameters()]

    def update(self) -> None:
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.sub_(0.1 * parameter.grad)


def batches(number: int, seed: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(2, 4, 8, generator=generator).to(DEVICE).unbind()) for _ in range(number)]


def plain_step(model: Model, step_batches) -> list[float]:
    """Losses of a step without graphs, whose gradients are then those of all its passes."""
    model.zero_grad(set_to_none=True)
    with passes.cast_once(model.matrices):
        return [model.run_pass(*batch).loss.item() for batch in step_batches]


def captured(model: Model) -> passes.CapturedPasses:
    """The passes of a model, run before on the stream of the capture, as a capture needs it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    (batch,) = batches(1, seed=7)
    with torch.cuda.stream(stream), passes.cast_once(model.matrices):
        for _ in range(2):
            model.run_pass(*batch)
    torch.cuda.current_stream().wait_stream(stream)
    model.zero_grad(set_to_none=True)
    return passes.CapturedPasses(model.run_pass, model.matrices, *batch, stream)


def replayed_step(run: passes.CapturedPasses, step_batches) -> list[float]:
    return [run(*batch, is_first=number == 0).loss.item() for number, batch in enumerate(step_batches)]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_replayed_passes_have_the_losses_and_gradients_of_plain_ones():
    """Of three steps of one to three passes, between which weights move and other data come."""
    model, plain = Model(), Model()
    run = captured(model)
    for number in (2, 3, 1):
        step_batches = batches(number, seed=number)
        losses = replayed_step(run, step_batches)
        assert losses == pytest.approx(plain_step(plain, step_batches), rel=1e-6)
        assert_equal(model.gradients(), plain.gradients())
        model.update()
        plain.update()


def test_the_first_pass_overwrites_the_gradients_of_the_step_before():
    """Also those of a step that was skipped, which are not numbers."""
    model, plain = Model(), Model()
    run = captured(model)
    step_batches = batches(2)
    replayed_step(run, batches(3, seed=2))
    for parameter in model.parameters():
        parameter.grad.fill_(math.nan)
    replayed_step(run, step_batches)
    plain_step(plain, step_batches)
    assert_equal(model.gradients(), plain.gradients())


def test_weights_are_cast_by_the_first_pass_alone():
    model = Model()
    run = captured(model)
    (batch,) = batches(1)
    before = run(*batch, is_first=True).loss.item()
    with torch.no_grad():
        for module, name in model.matrices:
            getattr(module, name).zero_()
    assert run(*batch, is_first=False).loss.item() == before
    assert run(*batch, is_first=True).loss.item() != before


def test_a_capture_leaves_weights_and_batch_to_the_model_and_the_caller():
    model = Model()
    weights = [*model.parameters()]
    run = captured(model)
    first, second = batches(2)
    copies = [tensor.clone() for tensor in first]
    run(*first, is_first=True)
    run(*second, is_first=False)
    assert all(map(torch.equal, first, copies))
    assert [*model.parameters()] == weights
    assert all(isinstance(getattr(module, name), torch.nn.Parameter) for module, name in model.matrices)


def test_a_result_is_overwritten_by_the_next():
    model = Model()
    run = captured(model)
    first, second, third = batches(3)
    run(*first, is_first=True)
    result = run(*second, is_first=False)
    loss = result.loss.item()
    assert run(*third, is_first=False) is result
    assert result.loss.item() != loss


@contextmanager
def counted(monkeypatch):
    """The captures that are made meanwhile, by the shape of their inputs."""
    shapes = []
    capture = passes.CapturedPasses

    def count(run_pass, matrices, inputs, *others):
        shapes.append(tuple(inputs.shape))
        return capture(run_pass, matrices, inputs, *others)

    with monkeypatch.context() as patch:
        patch.setattr(passes, "CapturedPasses", count)
        yield shapes


def runner_step(runner: passes.PassRunner, model: Model, step_batches, key) -> None:
    with runner.step(model.run_pass, key) as run:
        for batch in step_batches:
            run(*batch, nullcontext())


def test_passes_are_captured_once_for_a_key_and_again_for_another(monkeypatch):
    """A batch ramp changes the key; gradients of either are those of plain passes."""
    model, plain = Model(), Model()
    runner = passes.PassRunner(model, model.matrices, is_compiled=True, captures=True)
    with counted(monkeypatch) as shapes:
        for key in ("small", "small", "large", "large"):
            step_batches = [tuple(tensor.repeat(1 + (key == "large"), 1) for tensor in batch) for batch in batches(2)]
            runner_step(runner, model, step_batches, key)
            plain_step(plain, step_batches)
            assert_equal(model.gradients(), plain.gradients())
    assert shapes == [(4, 8), (8, 8)]
    assert runner.keeps_gradients


def test_passes_that_cannot_be_captured_run_as_they_are(monkeypatch, caplog):
    """It is said once and not tried again."""

    def fail(*_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    if not ON_GPU:
        monkeypatch.setattr(torch, "Generator", MagicMock())
    step_batches, plain, model = [(torch.ones(4, 8, device=DEVICE),) * 2] * 2, Model(), Model()
    runner = passes.PassRunner(model, model.matrices, is_compiled=True, captures=True)
    monkeypatch.setattr(passes, "CapturedPasses", fail)
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        runner_step(runner, model, step_batches, "key")
        plain_step(plain, step_batches)
        assert_equal(model.gradients(), plain.gradients())
    said = "steps run without CUDA graphs: operation not permitted when stream is capturing"
    assert [record.getMessage() for record in caplog.records] == [said]
    assert not runner.keeps_gradients


@pytest.mark.slow
def test_a_skipped_step_between_captured_passes_changes_nothing():
    """Weights that are not numbers for one step, in a session of `train.py`; it goes on from the same state."""
    torch._dynamo.reset()
    session = session_of(4, "bf16", DEVICE, compiled=True)
    for _ in range(2):
        train_step(session, 0, 1e-3)
    before = state_of(session)
    weight = next(session.model.parameters()).detach()
    values = weight.clone()
    weight.fill_(math.nan)
    assert not train_step(session, 0, 1e-3).is_finite
    weight.copy_(values)
    assert all(map(torch.equal, state_of(session), before))
    losses = [train_step(session, 0, 1e-3).loss for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]
    assert session.runner.keeps_gradients == ON_GPU
