"""The precision of matrix products, and weights that autocast's precision needs: cast once for many calls.

Autocast keeps the casts of `nn.Linear` until its block ends, and none of stacked weights. A training step opens such a
block for every micro-batch, so that without `keep_casts` each of them casts every weight again.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

_kept: dict[tuple[int, torch.dtype, bool], tuple[torch.Tensor, torch.Tensor]] | None = None  # weights and casts, by id


def compute_dtype(weight: torch.Tensor) -> torch.dtype:
    """The precision of matrix products with this weight: autocast's where it is on, else its own."""
    device = weight.device.type
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else weight.dtype


def cast(weight: torch.Tensor) -> torch.Tensor:
    """The weight in its `compute_dtype`; within `keep_casts` the same tensor for every call."""
    dtype = compute_dtype(weight)
    if _kept is None or dtype == weight.dtype or torch.compiler.is_compiling():
        return weight.to(dtype)
    key = id(weight), dtype, torch.is_grad_enabled()  # what was cast without a gradient cannot pass one on
    if key not in _kept:
        _kept[key] = weight, weight.to(dtype)  # with the weight, so that its id stays its own
    return _kept[key][1]


@contextmanager
def keep_casts(device_type: str) -> Iterator[None]:
    """Cast every weight once in this block, in which none may change: the micro-batches of one training step."""
    global _kept
    _kept = {}
    try:
        # Autocast drops its own casts when its outermost block ends: this one, which is off and changes nothing else.
        has_autocast = torch.amp.is_autocast_available(device_type)
        with torch.autocast(device_type, enabled=False) if has_autocast else nullcontext():
            yield
    finally:
        _kept = None
