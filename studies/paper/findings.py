"""The paper's findings, asked of every draw of a law: confirmed, reversed, or left open.

Finding 4, that more experts want a lower peak learning rate, is asked of grids of rates in `studies/learning_rates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hub.base.tables import Table
from scaling_law import JointLaw
from scaling_law.size import active_parameters, affordable_tokens, width_of_total

# The level of the two-sided interval that confirms or reverses a finding.
LEVEL = 0.95
BUDGETS = (1e20, 1e22)
EXPERTS = (1, 2, 4, 8, 16, 32)
GAIN = "by {:+.4f} nats ({:+.4f} to {:+.4f})"
RATIO = "D/N is {:.2f} times as large ({:.2f} to {:.2f})"


@dataclass(frozen=True)
class Finding:
    """A claim of Ludziejewski et al. 2025, and the share of a law's draws in which it holds."""

    name: str
    claim: str
    share: float
    evidence: str

    @property
    def verdict(self) -> Literal["confirmed", "reversed", "open"]:
        """Confirmed if the claim holds in 97.5 % of the draws, reversed if in 2.5 % or fewer."""
        if self.share >= 0.5 + LEVEL / 2:
            return "confirmed"
        if self.share <= 0.5 - LEVEL / 2:
            return "reversed"
        return "open"


def more_tokens_per_parameter(law: JointLaw, flops: float, experts: Sequence[float]) -> Finding:
    """Finding 1: at a fixed budget, more experts want fewer active parameters and more tokens each."""
    few, many = min(experts), max(experts)
    optima = law.optimum_draws(flops, (few, many), force=True)
    ratio = optima.tokens / optima.n_active
    claim = f"at {flops:.0e} FLOPs the best D/N is larger for E = {many:g} than for E = {few:g}"
    return _judge("Finding 1", claim, ratio[:, 1] / ratio[:, 0], 1.0, RATIO)


def better_with_experts(law: JointLaw, flops: float, experts: float) -> Finding:
    """Finding 2: at a fixed budget, the best model of E experts is better than the best dense one."""
    loss = law.optimum_draws(flops, (1.0, experts), force=True).loss
    claim = f"at {flops:.0e} FLOPs the best model with E = {experts:g} is better than the best dense one"
    return _judge("Finding 2", claim, loss[:, 0] - loss[:, 1], 0.0, GAIN)


def better_in_memory(law: JointLaw, flops: float, experts: float) -> Finding:
    """Finding 3: an MoE with the total parameters and FLOPs of the best dense model beats it."""
    claim = f"E = {experts:g} beats the dense model that is best at {flops:.0e} FLOPs, at its size and FLOPs"
    return _judge("Finding 3", claim, gain_in_memory(law, flops, experts), 0.0, GAIN)


def follows_rule_of_thumb(law: JointLaw, flops: float, experts: float) -> Finding:
    """The rule of thumb: an MoE of the best dense model's total parameters beats it on E times the tokens."""
    claim = f"E = {experts:g} beats the dense model that is best at {flops:.0e} FLOPs, at its size on {experts:g} D"
    return _judge("Rule of thumb", claim, gain_in_memory(law, flops, experts, times_tokens=True), 0.0, GAIN)


def gain_in_memory(law: JointLaw, flops: float, experts: float, *, times_tokens: bool = False) -> NDArray[np.float64]:
    """Return the loss of the best dense model minus that of the MoE of its total parameters, of each draw, [n_draws].

    The MoE has the dense model's FLOPs, or (`times_tokens`) E times its tokens. NaN for a draw without an optimum.
    """
    dense = law.optimum_draws(flops, 1.0, force=True)
    n_total, dense_tokens, dense_loss = (values[:, 0] for values in (dense.n_active, dense.tokens, dense.loss))
    width = width_of_total(n_total, experts, law.vocab_size)
    n_active = active_parameters(width, vocab_size=law.vocab_size)
    tokens = experts * dense_tokens if times_tokens else affordable_tokens(flops, n_active)
    models: dict[str, Any] = {"n_active": n_active, "tokens": tokens, "experts": np.array(float(experts))}
    # Else optimum_draws has refused the law.
    assert law.draws is not None
    return np.asarray(dense_loss - law.evaluate(law.draws.T, models))


def _judge(name: str, claim: str, values: NDArray[np.float64], threshold: float, evidence: str) -> Finding:
    """Count the draws whose value exceeds the threshold; a draw without a value counts as half."""
    finite = values[np.isfinite(values)]
    n_holding = np.sum(finite > threshold)
    n_missing = len(values) - len(finite)
    share = float((n_holding + 0.5 * n_missing) / len(values))
    levels = [0.5 - LEVEL / 2, 0.5, 0.5 + LEVEL / 2]
    low, middle, high = np.quantile(finite, levels)
    return Finding(name, claim, share, evidence.format(middle, low, high))


def find_all(law: JointLaw, budgets: Sequence[float] = BUDGETS, experts: Sequence[int] = EXPERTS) -> list[Finding]:
    """Ask findings 1 to 3 and the rule of thumb, which the paper states up to E = 8."""
    moe = [e for e in experts if e > 1]
    findings = [more_tokens_per_parameter(law, flops, experts) for flops in budgets]
    for flops in budgets:
        findings += [better_with_experts(law, flops, e) for e in moe]
    findings += [better_in_memory(law, budgets[-1], e) for e in moe]
    findings += [follows_rule_of_thumb(law, budgets[-1], e) for e in moe if e <= 8]
    return findings


def findings_table(law: JointLaw) -> Table:
    """Lay out the findings with their verdicts."""
    rows = [(f.name, f.claim, f.verdict, f"{f.share:.1%}", f.evidence) for f in find_all(law)]
    return Table(("", "claim", "verdict", "share of draws", "evidence"), rows, title="Findings")
