"""What a causal class does with hidden states to get its logits, found by its own `forward` on small numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel


def bodies(model: nn.Module) -> list[nn.Module]:
    """The parts of a causal model that are models: one, which makes the hidden states for its head."""
    return [part for part in model.children() if isinstance(part, PreTrainedModel)]


class _Hidden(tuple):
    """The output of a body: one tensor by any way to ask for it, and nothing else."""

    last_hidden_state = property(lambda self: self[0])

    def __getattr__(self, name: str) -> None:
        return None


@torch.no_grad()
def change_of_logits(model: nn.Module, forward: Callable[..., Any]) -> tuple[float, float | None] | None:
    """(scale, cap) if logits are `cap · tanh(scale · z / cap)` of the head's `z` (no cap: `scale · z`), else None.

    By numbers: the class's `forward` is called with a small body and head, also where the model has no memory. So a
    class that does anything else with hidden states or logits is not taken for one that does not.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or head.bias is not None or head not in model.children() or len(bodies(model)) != 1:
        return None
    cap = getattr(model.config, "final_logit_softcapping", None)
    with torch.device("cpu"):
        hidden = torch.tensor([[[0.5, -1.0, 2.0, -1.5]]], dtype=torch.float64)
        draws = torch.rand(head.out_features, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        weight = (2 * draws - 1) * (cap or 1.0) / hidden.abs().sum()  # z up to the cap: far along its bend
        ids = torch.zeros(1, 1, dtype=torch.int64)

    def body(input_ids: torch.Tensor, **others: Any) -> _Hidden:
        if any(value is not None and not isinstance(value, bool) for value in others.values()):
            raise TypeError("the body gets more than tokens")
        return _Hidden([hidden])

    (base,) = bodies(model)
    stand_ins = {base: body, head: lambda states: states.double() @ weight.T}
    for part, stand_in in stand_ins.items():
        vars(part)["forward"] = stand_in  # before the class's own
    try:
        logits = forward(model, input_ids=ids, use_cache=False).logits
        ratios = (logits if cap is None else cap * torch.atanh(logits / cap)).double() / (hidden @ weight.T)
    except Exception:  # whatever a class asks of its body that this one lacks
        return None
    finally:
        for part in stand_ins:
            del vars(part)["forward"]
    scale = float(f"{float(ratios.median()):.7g}")  # some classes have these logits in fp32
    return (scale, cap) if bool((ratios / scale - 1).abs().max() < 1e-4) else None
