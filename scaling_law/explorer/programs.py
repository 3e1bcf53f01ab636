"""What programs and assistants ask: the API's endpoints, which are also the MCP server's tools.

Their docstrings are what a caller reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from scaling_law.explorer.question import PUBLISHED, Question
from scaling_law.formulas import ChinchillaForm, Law
from scaling_law.planning.plan import plan as plan_run


def chosen(laws: Mapping[str, Law], name: str) -> Law:
    """ValueError for a law that is not offered."""
    if name not in laws:
        raise ValueError(f"law={name[:100]!r} is not one of {', '.join(laws)}")
    return laws[name]


def tools(laws: Mapping[str, Law]) -> list[Callable[..., dict[str, Any]]]:
    """The functions `optimal`, `plan` and `loss` on these laws."""

    def optimal(
        flops: str,
        memory: str = "",
        kv_tokens: str = "0",
        inference_tokens: str = "0",
        experts: str = "",
        law: str = PUBLISHED,
    ) -> dict[str, Any]:
        """The best model for a training budget: how many experts, parameters and tokens, with the predicted loss.

        Args:
            flops: training budget in FLOPs, with those of inference: "1e22"
            memory: memory for weights and KV cache: "80GB"; empty for no limit
            kv_tokens: tokens in the KV cache: "16k"
            inference_tokens: tokens served over the model's life: "100B"
            experts: numbers of experts to compare: "1,2,4,8"; empty for the law's own
            law: name of the scaling law: "published"
        """
        question, own = Question(flops, memory, kv_tokens, inference_tokens, experts, law), chosen(laws, law)
        found = own.optimal(question.budget, question.asked_experts(), integral=True, **question.limits())
        return plain(found.to_dict())

    def plan(
        flops: str,
        memory: str = "",
        kv_tokens: str = "0",
        inference_tokens: str = "0",
        experts: str = "",
        law: str = PUBLISHED,
    ) -> dict[str, Any]:
        """A run to launch for a training budget: architecture, schedule, learning rate, cost, and its YAML.

        Args:
            flops: training budget in FLOPs, with those of inference: "1e22"
            memory: memory for weights and KV cache: "80GB"; empty for no limit
            kv_tokens: tokens in the KV cache: "16k"
            inference_tokens: tokens served over the model's life: "100B"
            experts: numbers of experts to compare: "1,2,4,8"; empty for the law's own
            law: name of the scaling law: "published"
        """
        question, own = Question(flops, memory, kv_tokens, inference_tokens, experts, law), chosen(laws, law)
        if not isinstance(own, ChinchillaForm):
            raise ValueError(f"law={law!r} has no optimum in closed form: ask optimal")
        made = plan_run(own, question.budget, question.asked_experts(), **question.limits())
        return plain(made.to_dict() | {"yaml": made.to_yaml(), "command": question.command(own)})

    def loss(n_active: float, tokens: float, experts: float = 1.0, law: str = PUBLISHED) -> dict[str, Any]:
        """The loss that a law predicts for a model, in nats per token, and how far it extrapolates.

        Args:
            n_active: active parameters with embedding and head: 1.1e9
            tokens: training tokens: 2e10
            experts: number of experts, 1 for a dense model
            law: name of the scaling law: "published"
        """
        own = chosen(laws, law)
        at = {"n_active": n_active, "tokens": tokens, "experts": experts}
        found = {"loss": float(own.loss(**at)), "trusted": not own.beyond_guard(**at), "warnings": own.warnings(**at)}
        return plain(at | found)

    return [optimal, plan, loss]


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """Plain JSON values; what is not finite is None."""
    found: dict[str, Any] = to_jsonable_python(value, inf_nan_mode="null", fallback=lambda array: array.tolist())
    return found
