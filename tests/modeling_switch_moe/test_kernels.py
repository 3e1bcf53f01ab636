"""What a GPU runs instead of autograd's formulas, beside those formulas: experts in buffers, and the padded head."""

import pytest
import torch
import torch.nn.functional as F

from modeling_switch_moe import losses
from modeling_switch_moe.experts import MoveRows, StackedLinear
from modeling_switch_moe.losses import IGNORE, ChunkedCrossEntropy, rows_per_chunk


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_the_gradient_of_stacked_weights_lies_as_the_weights_do():
    rows, weights = leaf(3, 5, 4), leaf(3, 6, 4)
    upstream = torch.randn(3, 5, 6, dtype=torch.float64)
    expected = torch.autograd.grad(rows @ weights.mT, (rows, weights), upstream)
    result = StackedLinear.apply(rows, weights)
    gradients = torch.autograd.grad(result, (rows, weights), upstream)
    torch.testing.assert_close(result, rows @ weights.mT)
    torch.testing.assert_close(gradients, expected)
    assert gradients[1].stride() == weights.stride()
    assert torch.autograd.gradcheck(StackedLinear.apply, (rows, weights))


def test_rows_that_move_take_their_gradients_along():
    """Row 2 goes nowhere; places 1 and 4 repeat a row, and no gradient comes from there."""
    rows = leaf(4, 3)
    sources = torch.tensor([3, 0, 1, 0, 3])
    destinations, is_used = torch.tensor([3, 2, 0, 0]), torch.tensor([True, True, False, True])
    upstream = torch.randn(5, 3, dtype=torch.float64)
    upstream[[1, 4]] = 0.0
    (expected,) = torch.autograd.grad(rows[sources], rows, upstream)
    (gradient,) = torch.autograd.grad(MoveRows.apply(rows, sources, destinations, is_used), rows, upstream)
    torch.testing.assert_close(gradient, expected)
    assert not gradient[2].any()


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Pad vocabulary and rows, and compile chunks, but make no code of them."""
    monkeypatch.setattr(losses, "is_gpu", lambda device: True)
    compiled = torch.compile(losses.cross_entropy_chunk, dynamic=False, backend="aot_eager")
    monkeypatch.setattr(losses, "compiled_chunk", lambda: compiled)
    yield
    torch._dynamo.reset()


def nats_and_gradients(hidden, weight, targets, scale, cap, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        total, each = ChunkedCrossEntropy.apply(hidden, weight, targets, scale, cap)
    return total, each, torch.autograd.grad(total, (hidden, weight))


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("scale", "cap"), [(1.0, None), (0.25, None), (1.0, 2.0)])
def test_the_padded_head_has_the_losses_and_gradients_of_all_logits(as_on_a_gpu, monkeypatch, scale, cap, autocast):
    """An odd vocabulary, rows that fill no whole chunk, and targets that are ignored."""
    monkeypatch.setattr(losses, "rows_per_chunk", lambda *_: 64)
    hidden, weight = torch.randn(150, 16, requires_grad=True), torch.randn(131, 16, requires_grad=True)
    targets = torch.randint(131, (150,))
    targets[3:9] = IGNORE
    total, each, gradients = nats_and_gradients(hidden, weight, targets, scale, cap, autocast)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = scale * (hidden @ weight.t()).float()
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    expected = F.cross_entropy(logits, targets, reduction="none")
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if autocast else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(each, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total, expected.sum(), rtol=1e-5, atol=0)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.sum(), (hidden, weight)), **tolerance)


@pytest.mark.parametrize(
    ("rows", "dtype", "expected"),
    [
        (16_384, torch.bfloat16, 8_192),
        (32_768, torch.bfloat16, 8_192),
        (16_384, torch.float32, 4_096),
        (5_000, torch.bfloat16, 8_192),
        (3, torch.bfloat16, 64),
    ],
)
def test_chunks_of_a_gpu_are_few_and_of_few_shapes(rows, dtype, expected):
    assert rows_per_chunk(rows, 50_257, dtype, on_gpu=True) == expected


def test_a_model_without_any_capacity_trains(make_model, tokens):
    """Every token is dropped, so that blocks add nothing."""
    model = make_model(capacity_factor=1e-3).train()
    model.set_experts_implementation("capacity")
    output = model(tokens, labels=tokens)
    output.loss.backward()
    assert torch.isfinite(output.loss)
    assert output.routing.dropped_tokens.sum() == tokens.numel() * model.config.num_hidden_layers
