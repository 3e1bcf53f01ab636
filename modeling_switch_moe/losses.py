"""Cross-entropy of the head in chunks of rows, whose gradients are formed while their logits are at hand.

The logits of 8192 tokens of the GPT-2 vocabulary and their gradient would take 3.3 GB in fp32.
"""

import torch
from torch import nn

from .precision import cast

IGNORE = -100
CHUNK_BYTES = 2**21  # of fp32 logits: what stays in the caches of a CPU


def rows_per_chunk(vocabulary: int, device: torch.device) -> int:
    """Rows whose fp32 logits fill one chunk; an accelerator gets larger ones (256 MiB), to keep its matmul busy."""
    size = CHUNK_BYTES if device.type == "cpu" else 128 * CHUNK_BYTES
    return max(64, size // (4 * vocabulary))


def scaled_and_capped(
    logits: torch.Tensor, scale: float, cap: float | None
) -> tuple[torch.Tensor, torch.Tensor | float | None]:
    """`scale * logits`, or `cap * tanh(scale * logits / cap)`, in place; and its slopes, None for those of 1."""
    if scale != 1.0:
        logits.mul_(scale)
    if cap is None:
        return logits, None if scale == 1.0 else scale
    shares = logits.div_(cap).tanh_()
    slopes = shares.square().neg_().add_(1.0).mul_(scale)
    return shares.mul_(cap), slopes


class ChunkedCrossEntropy(torch.autograd.Function):
    """-log softmax(scale * hidden @ weight.T)[target]: the sum over targets, and each of them.

    Inputs: `hidden [N, d]`, `weight [V, d]`, `targets [N]` int64 (-100: none), the scale, and null or what caps logits
    before the softmax, by `cap * tanh(logits / cap)`. Outputs, fp32: a scalar, with gradients formed in the forward
    pass and scaled in the backward pass; and `[N]` without any.
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, scale=1.0, cap=None):
        with_grad = any(ctx.needs_input_grad[:2])
        matrix = cast(weight)
        dtype = matrix.dtype
        inputs = hidden.to(dtype)
        grad_hidden = torch.empty_like(inputs) if with_grad else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if with_grad else None
        losses = torch.empty(len(inputs), dtype=torch.float32, device=hidden.device)
        step = rows_per_chunk(weight.shape[0], hidden.device)
        for first in range(0, len(inputs), step):
            chunk = slice(first, first + step)
            rows, goals = inputs[chunk], targets[chunk]
            logits, slopes = scaled_and_capped((rows @ matrix.t()).float(), scale, cap)
            valid = goals != IGNORE
            column = goals.where(valid, 0).unsqueeze(1)
            target_logits = logits.gather(1, column).squeeze(1)
            # Softmax by hand and in place: one exponential per logit serves the loss and the gradient.
            highest = logits.amax(1, keepdim=True)
            exponentials = logits.sub_(highest).exp_()
            mass = exponentials.sum(1)
            losses[chunk] = torch.where(valid, mass.log() + highest.squeeze(1) - target_logits, 0.0)
            if not with_grad:
                continue
            probabilities = exponentials.mul_((valid / mass).unsqueeze(1))
            grad_logits = probabilities.scatter_add_(1, column, -valid.unsqueeze(1).float())
            grad_logits = (grad_logits if slopes is None else grad_logits.mul_(slopes)).to(dtype)
            torch.mm(grad_logits, matrix, out=grad_hidden[chunk])
            if dtype == torch.float32:
                grad_weight.addmm_(grad_logits.t(), rows)
            else:
                grad_weight += grad_logits.t() @ rows
        ctx.mark_non_differentiable(losses)
        if with_grad:
            ctx.save_for_backward(grad_hidden, grad_weight)
            ctx.dtypes = hidden.dtype, weight.dtype
        return losses.sum(), losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_total, _):
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *((gradient * grad_total).to(dtype) for gradient, dtype in gradients), None, None, None


class SwitchMoeHead(nn.Linear):
    """Logits or, given targets, their cross-entropy; both by `__call__`, so that FSDP's hooks gather the weight.

    `scale` and `cap` are those of `ChunkedCrossEntropy`, of classes that change logits after their head.
    """

    scale: float = 1.0
    cap: float | None = None

    def forward(
        self, hidden_states: torch.Tensor, targets: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """`hidden_states [..., d]` to logits `[..., V]`, or with `targets [...]` to their nats: the sum, and each."""
        if targets is None:
            return super().forward(hidden_states)
        rows, goals = hidden_states.flatten(0, -2), targets.to(hidden_states.device).reshape(-1)
        # Inside the function gradients are off always, and a parameter asks for one even under `no_grad`.
        weight = self.weight if torch.is_grad_enabled() else self.weight.detach()
        total, losses = ChunkedCrossEntropy.apply(rows, weight, goals, self.scale, self.cap)
        return total, losses.view(targets.shape)
