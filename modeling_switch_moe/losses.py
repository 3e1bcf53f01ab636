"""Cross-entropy of the language-model head without ever holding the logits of a whole batch.

With V vocabulary entries and T tokens the logits and their gradient are two `[T, V]` matrices in fp32: 3.3 GB for 8192
tokens of the GPT-2 vocabulary, and on CPU most of the time of a small model's step. Here the rows are taken in chunks,
and the gradients of each chunk are formed while its logits are at hand, so that nothing of size V is kept per token.
"""

import torch
from torch import nn

IGNORE = -100
CHUNK_BYTES = 2**21  # of fp32 logits: what stays in the caches of a CPU


def compute_dtype(weight: torch.Tensor) -> torch.dtype:
    """The precision of matrix products with this weight: autocast's where it is on, else its own."""
    device = weight.device.type
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else weight.dtype


def rows_per_chunk(vocabulary: int, device: torch.device) -> int:
    """Rows whose fp32 logits fill one chunk; an accelerator gets larger ones (256 MiB), to keep its matmul busy."""
    size = CHUNK_BYTES if device.type == "cpu" else 128 * CHUNK_BYTES
    return max(64, size // (4 * vocabulary))


class ChunkedCrossEntropy(torch.autograd.Function):
    """Sum over targets of -log softmax(hidden @ weight.T)[target].

    Inputs: `hidden [N, d]`, `weight [V, d]`, `targets [N]` int64 (-100: none), `dtype` of the matmuls. Output: an fp32
    scalar.
    The gradients are those of the sum and are formed in the forward pass; the backward pass scales them.
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, dtype):
        with_grad = any(ctx.needs_input_grad[:2])
        matrix, inputs = weight.to(dtype), hidden.to(dtype)
        grad_hidden = torch.empty_like(inputs) if with_grad else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if with_grad else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        step = rows_per_chunk(weight.shape[0], hidden.device)
        for rows, goals, first in zip(
            inputs.split(step), targets.split(step), range(0, len(inputs), step), strict=True
        ):
            logits = (rows @ matrix.t()).float()
            valid = goals != IGNORE
            column = goals.where(valid, 0).unsqueeze(1)
            chosen = logits.gather(1, column).squeeze(1)
            # Softmax by hand and in place: one exponential per logit serves the loss and the gradient.
            highest = logits.amax(1, keepdim=True)
            exponentials = logits.sub_(highest).exp_()
            mass = exponentials.sum(1)
            total += torch.where(valid, mass.log() + highest.squeeze(1) - chosen, 0.0).sum()
            if not with_grad:
                continue
            probabilities = exponentials.mul_((valid / mass).unsqueeze(1))
            grad_logits = probabilities.scatter_add_(1, column, -valid.unsqueeze(1).float()).to(dtype)
            torch.mm(grad_logits, matrix, out=grad_hidden[first : first + step])
            if dtype == torch.float32:
                grad_weight.addmm_(grad_logits.t(), rows)
            else:
                grad_weight += grad_logits.t() @ rows
        if with_grad:
            ctx.save_for_backward(grad_hidden, grad_weight)
            ctx.dtypes = hidden.dtype, weight.dtype
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_total):
        grad_hidden, grad_weight = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        return (grad_hidden * grad_total).to(hidden_dtype), (grad_weight * grad_total).to(weight_dtype), None, None


@torch.no_grad()
def token_losses(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """-log softmax(hidden @ weight.T)[target] of every target, fp32 `[N]` (0 where the target is -100).

    Arguments as of `ChunkedCrossEntropy`, whose output is the sum of these; they have no gradient.
    """
    matrix, inputs = weight.to(dtype), hidden.to(dtype)
    losses = torch.empty(len(inputs), dtype=torch.float32, device=hidden.device)
    step = rows_per_chunk(weight.shape[0], hidden.device)
    for rows, goals, out in zip(inputs.split(step), targets.split(step), losses.split(step), strict=True):
        logits = (rows @ matrix.t()).float()
        out.copy_(torch.nn.functional.cross_entropy(logits, goals, ignore_index=IGNORE, reduction="none"))
    return losses


class SwitchMoeHead(nn.Linear):
    """The language-model head: logits, or, given targets, the cross-entropy without the logits.

    Both go through `__call__`, so that what hooks on the module (FSDP's gathering of its weight) acts for both.
    """

    def forward(
        self, hidden_states: torch.Tensor, targets: torch.Tensor | None = None, reduction: str = "sum"
    ) -> torch.Tensor:
        """`hidden_states [..., d]` to logits `[..., V]`, or with `targets [...]` to nats: their sum, a scalar, or with
        `reduction="none"` each, in the shape of the targets and without a gradient."""
        if targets is None:
            return super().forward(hidden_states)
        dtype = compute_dtype(self.weight)
        rows, goals = hidden_states.flatten(0, -2), targets.to(hidden_states.device).reshape(-1)
        if reduction == "none":
            return token_losses(rows, self.weight, goals, dtype).view(targets.shape)
        return ChunkedCrossEntropy.apply(rows, self.weight, goals, dtype)
