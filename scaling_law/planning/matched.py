"""Dense and MoE models of the same total parameters: a compute-optimal dense model, and for each E one of its N_total.

As in the paper's Appendix "Compute- & Memory-Matched Models" (the same FLOPs) and rule of thumb (E times the tokens).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError
from hub.base.inputs import instance_of, reads
from hub.base.notices import about
from hub.base.units import format_flops
from scaling_law.answer.answer import Answer, span
from scaling_law.formulas import ChinchillaForm, Formula
from scaling_law.planning.inverse import tokens_needed
from scaling_law.planning.limits import Limits
from scaling_law.planning.optimum import compute_optimal, parse_experts, parse_positive
from scaling_law.size.architecture import active_parameters, affordable_tokens, width_of_total


class MatchedMemory(Answer):
    """E-expert models within the N_total of a compute-optimal dense one: arrays of shape flops.shape + experts.shape.

    `n_active` is that of the same N_total; `token_ratio` the least multiple of the dense model's tokens with which it
    reaches the dense loss; `gain` the dense loss less its own on E times the tokens (the paper's rule of thumb:
    positive for E ≤ 8). `loss` is that of the best model with the same FLOPs and at most this memory.
    """

    @property
    def verdict(self) -> str:
        budget = f"{span(self.flops, format_flops)} FLOPs"
        experts = f"E = {span(self.experts, '{:g}'.format)}"
        gain = span(self.gain, "{:+.3f}".format)
        return f"{budget}, {experts} in the memory of the dense model: {gain} nats better on E times its tokens"


@reads(law=instance_of(Formula))
def matched_memory(
    law: ChinchillaForm,
    flops: ArrayLike,
    experts: ArrayLike = (2, 4, 8),
    vocab_size: int | None = None,
    *,
    force: bool = False,
) -> MatchedMemory:
    """Compare compute-optimal dense models of budgets `flops` with E-expert models of the same total parameters.

    ExtrapolationError where a dense model, or one on E times its tokens, is beyond the range guard, unless `force`.
    """
    if not isinstance(law, ChinchillaForm):
        raise InputError(f"models of the same memory need a law m N^μ + n D^ν + c; the {law.name} law is another")
    budget = parse_positive("flops", flops)
    e = parse_experts(law, experts)
    dense = compute_optimal(law, budget, 1.0, force=force)
    # A column for each E beside the axes of the budgets.
    shape = budget.shape + (1,) * e.ndim
    flops_of_each = budget.reshape(shape)
    dense_n = np.reshape(dense.n_active, shape)
    dense_tokens = np.reshape(dense.tokens, shape)
    dense_loss = np.reshape(dense.loss, shape)
    n_active = n_of_memory(law, dense_n, e, vocab_size)
    check = law.check(n_active, e * dense_tokens, e)
    check.refuse(force)
    variables = {"n_active": n_active, "experts": e}
    tokens = tokens_needed(law, law.columns, dense_loss, variables, Limits())
    best_n = np.minimum(n_active, compute_optimal(law, budget, e, force=True).n_active)
    columns = {
        "flops": flops_of_each,
        "experts": e,
        "n_active": n_active,
        "token_ratio": tokens / dense_tokens,
        "gain": dense_loss - law.loss(n_active, e * dense_tokens, e),
        "loss": law.loss(best_n, affordable_tokens(flops_of_each, best_n), e),
        "dense_n": dense_n,
        "dense_tokens": dense_tokens,
        "dense_loss": dense_loss,
    }
    notes = tuple(about("dense model", warning) for warning in dense.warnings)
    return MatchedMemory(columns=columns, check=check, notes=notes)


def n_of_memory(law: ChinchillaForm, dense_n: ArrayLike, experts: ArrayLike, vocab_size: int | None = None) -> Any:
    """Return N_act of the (fractional) models with E experts and the N_total of dense models; broadcasts."""
    vocabulary = Limits.of(law, vocab_size=vocab_size).vocab_size
    return active_parameters(width_of_total(dense_n, experts, vocabulary), vocab_size=vocabulary)
