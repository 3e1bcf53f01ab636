"""Cross-entropy of the head in chunks of rows, whose gradients are formed while their logits are at hand.

The logits of 8192 tokens of the GPT-2 vocabulary and their gradient would take 3.3 GB in fp32.
"""

import importlib.util
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from .precision import cast

IGNORE = -100
# Bytes of fp32 logits that stay in the caches of a CPU.
CPU_CHUNK_BYTES = 2**21
# Bytes of logits and their gradient; few chunks, since each adds to the gradient of the head.
GPU_CHUNK_BYTES = 2**31
LEAST_ROWS = 64
# Odd sizes such as GPT-2's 50,257 run on kernels that are eight times slower (an H100, bf16).
VOCABULARY_MULTIPLE = 128


def is_gpu(device: torch.device) -> bool:
    """Tell whether chunks are large, padded and compiled."""
    return device.type == "cuda"


def rows_per_chunk(rows: int, vocabulary: int, dtype: torch.dtype, on_gpu: bool) -> int:
    """Choose how many of `rows` are computed at a time, from sizes alone, so that every machine sums in one order.

    On a GPU it is a power of two: every number of rows compiles one of a few shapes.
    """
    if not on_gpu:
        return max(LEAST_ROWS, CPU_CHUNK_BYTES // (4 * vocabulary))
    largest_chunk = max(LEAST_ROWS, GPU_CHUNK_BYTES // (2 * dtype.itemsize * vocabulary))
    rows = max(LEAST_ROWS, rows)
    return min(1 << (largest_chunk.bit_length() - 1), 1 << (rows - 1).bit_length())


def scale_and_cap(
    logits: torch.Tensor, scale: float, cap: float | None
) -> tuple[torch.Tensor, torch.Tensor | float | None]:
    """Make `scale * logits`, or `cap * tanh(scale * logits / cap)`, in place; and its slopes, None for those of 1."""
    if scale != 1.0:
        logits.mul_(scale)
    if cap is None:
        return logits, None if scale == 1.0 else scale
    shares = logits.div_(cap).tanh_()
    slopes = shares.square().neg_().add_(1.0).mul_(scale)
    return shares.mul_(cap), slopes


def cross_entropy_chunk(
    logits: torch.Tensor, targets: torch.Tensor, vocabulary: int, scale: float, cap: float | None, with_grad: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute the nats of each target, fp32 `[n]`, and the gradient of their sum in the logits' precision.

    `logits [n, width]` may have columns beyond the vocabulary, which belong to no token: they get no probability. fp32
    logits are overwritten.
    """
    values, slopes = scale_and_cap(logits.float(), scale, cap)
    values[:, vocabulary:] = float("-inf")
    valid = targets != IGNORE
    column = targets.where(valid, 0).unsqueeze(1)
    target_logits = values.gather(1, column).squeeze(1)
    # Softmax by hand and in place: one exponential per logit serves the loss and the gradient.
    highest = values.amax(1, keepdim=True)
    exponentials = values.sub_(highest).exp_()
    mass = exponentials.sum(1)
    losses = torch.where(valid, mass.log() + highest.squeeze(1) - target_logits, 0.0)
    if not with_grad:
        return losses, None
    gradient = exponentials.mul_((valid / mass).unsqueeze(1))
    if torch.compiler.is_compiling():
        # A comparison becomes a part of the softmax's kernel, where scattering would need fp32 logits in memory.
        is_target = torch.arange(logits.shape[1], device=logits.device) == column
        gradient = gradient - (is_target & valid.unsqueeze(1)).float()
    else:
        gradient.scatter_add_(1, column, -valid.unsqueeze(1).float())
    if slopes is not None:
        gradient.mul_(slopes)
    return losses, gradient.to(logits.dtype)


@cache
def compiled_chunk() -> Callable:
    """Compile `cross_entropy_chunk`: two passes over the logits in place of ten. Without Triton it stays as it is."""
    if importlib.util.find_spec("triton") is None:
        return cross_entropy_chunk
    return torch.compile(cross_entropy_chunk, dynamic=False)


class ChunkedCrossEntropy(torch.autograd.Function):
    """-log softmax(scale * hidden @ weight.T)[target]: the sum over targets, and each of them.

    Inputs: `hidden [N, d]`, `weight [V, d]`, `targets [N]` int64 (-100: none), the scale, and null or what caps logits
    before the softmax, by `cap * tanh(logits / cap)`. Outputs, fp32: a scalar, with gradients formed in the forward
    pass and scaled in the backward pass; and `[N]` without any.

    On a GPU the rows of the weight are padded to a multiple of 128, and those of the last chunk to a whole one.
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, scale=1.0, cap=None):
        with_grad = any(ctx.needs_input_grad[:2])
        n_rows = len(hidden)
        vocabulary = len(weight)
        on_gpu = is_gpu(hidden.device)
        matrix = cast(weight)
        dtype = matrix.dtype
        rows = hidden.to(dtype)
        step = rows_per_chunk(n_rows, vocabulary, dtype, on_gpu)
        compute = cross_entropy_chunk
        if on_gpu:
            matrix = F.pad(matrix, (0, 0, 0, -vocabulary % VOCABULARY_MULTIPLE))
            rows = F.pad(rows, (0, 0, 0, -n_rows % step))
            targets = F.pad(targets, (0, -n_rows % step), value=IGNORE)
            if not torch.compiler.is_compiling():
                compute = compiled_chunk()
        grad_hidden = torch.empty_like(rows) if with_grad else None
        grad_weight = torch.zeros_like(matrix, dtype=torch.float32) if with_grad else None
        losses = torch.empty(len(rows), dtype=torch.float32, device=hidden.device)
        for first in range(0, len(rows), step):
            chunk = slice(first, first + step)
            logits = rows[chunk] @ matrix.t()
            losses[chunk], grad_logits = compute(logits, targets[chunk], vocabulary, scale, cap, with_grad)
            if not with_grad:
                continue
            torch.mm(grad_logits, matrix, out=grad_hidden[chunk])
            if dtype == torch.float32:
                grad_weight.addmm_(grad_logits.t(), rows[chunk])
            elif rows.is_cuda:
                torch.addmm(grad_weight, grad_logits.t(), rows[chunk], out_dtype=torch.float32, out=grad_weight)
            else:
                grad_weight += grad_logits.t() @ rows[chunk]
        losses = losses[:n_rows]
        ctx.mark_non_differentiable(losses)
        if with_grad:
            # The rows and columns that pad are left out: both are views, without a copy.
            ctx.save_for_backward(grad_hidden[:n_rows], grad_weight[:vocabulary])
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
        """Compute logits `[..., V]` of `hidden_states [..., d]`, or of `targets [...]` the nats: the sum, and each."""
        if targets is None:
            return super().forward(hidden_states)
        rows = hidden_states.flatten(0, -2)
        flat_targets = targets.to(hidden_states.device).reshape(-1)
        # Inside the function gradients are off always, and a parameter asks for one even under `no_grad`.
        weight = self.weight if torch.is_grad_enabled() else self.weight.detach()
        total, losses = ChunkedCrossEntropy.apply(rows, weight, flat_targets, self.scale, self.cap)
        return total, losses.view(targets.shape)
