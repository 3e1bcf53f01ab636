"""The precision of matrix products: autocast's where it is on, also for weights that autocast does not know."""

import torch


def compute_dtype(weight: torch.Tensor) -> torch.dtype:
    """The precision of matrix products with this weight: autocast's where it is on, else its own."""
    device = weight.device.type
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else weight.dtype


def cast(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight in its `compute_dtype`."""
    return weight.to(compute_dtype(weight))
