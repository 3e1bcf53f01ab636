"""Any causal model of transformers in the training loop, with the interface of `SwitchMoeForCausalLM`.

Where the routers of a class are, and which of their outputs the logits, the class says itself
(`_can_record_outputs["router_logits"]`). Hooks there keep logits and choices of one forward pass: routing statistics
and the class's own load-balancing loss come from them, which transformers computes only where `output_router_logits`
is set, and over whatever tokens are in the call.
"""

from __future__ import annotations

import copy
import inspect
import logging
import re
from functools import cache, partial
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.utils.output_capturing import OutputRecorder

from modeling_switch_moe import RoutingStatistics, SwitchMoeCausalLMOutputWithPast
from modeling_switch_moe.experts import autocast_grouped_mm
from modeling_switch_moe.losses import SwitchMoeHead
from training.configuration.class_counts import experts_per_token, generates, without_gradient
from training.configuration.model_classes import SELECTION_BIAS, balance_loss_of, causal_class

logger = logging.getLogger(__name__)


def build(config: Any, group_tokens: int | None = None) -> nn.Module:
    """Build an fp32 model of the configuration's class; its balance loss is a mean over groups of `group_tokens`.

    What is changed is changed in this model alone, with a configuration of its own: other models of the class are as
    transformers builds them. Parameters that no loss moves are frozen and logged.
    """
    model_class = causal_class(config)
    model = _class_in_the_loop(model_class)._from_config(copy.deepcopy(config), dtype=torch.float32)
    frozen = without_gradient(config)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    # No token of a text is padding, also where a class must have one: every embedding is trained.
    model.get_input_embeddings().padding_idx = None
    is_drawn = not next(model.parameters()).is_meta
    if frozen and is_drawn:
        names = ", ".join(sorted({re.sub(r"\.\d+\.", ".*.", name) for name in frozen}))
        logger.warning("no loss moves these parameters of %s, which stay as drawn: %s", config.model_type, names)
    if is_drawn and not generates(config):
        logger.warning(
            "%s: none of these %d blocks has attention, without which transformers' generate fails: set "
            "model.layer_types, or its like, so that one has, or train more blocks",
            config.model_type,
            config.num_hidden_layers,
        )
    change = change_of_logits(model)
    if change is None:
        logger.info("%s: the head is more than a matrix: all logits of a micro-batch are held", model_class.__name__)
    else:
        _replace_head(model, *change)
    round_grouped_products(model)
    model._balance_loss, model._group_tokens = balance_loss_of(model_class), group_tokens
    model._routers = [*routers(model)]
    for router, index in routers(model).items():
        router.register_forward_hook(partial(_keep, index, experts_per_token(config)))
    return model


@cache
def _class_in_the_loop(model_class: type) -> type:
    """Derive the class whose forward pass is the loop's; its name stays the one of transformers."""
    return type(model_class.__name__, (_InTheLoop, model_class), {"__module__": model_class.__module__})


def _replace_head(model: nn.Module, scale: float, cap: float | None) -> None:
    """Put a head around the same weight that computes losses without holding all logits."""
    head = model.get_output_embeddings()
    (name,) = [name for name, part in model.named_children() if part is head]
    replacement = SwitchMoeHead(head.in_features, head.out_features, bias=False, device="meta")
    replacement.weight = head.weight
    replacement.scale, replacement.cap = scale, cap
    setattr(model, name, replacement)


def is_stacked_experts(module: nn.Module) -> bool:
    """Tell whether a module holds the matrices of all experts, and transformers' registry computes them."""
    return hasattr(module, "is_transposed")


def round_grouped_products(model: nn.Module) -> None:
    """Multiply the experts of this model in autocast's precision where they run by "grouped_mm".

    By itself transformers multiplies them in the precision of the weights: fp32, also under autocast.
    """
    for module in model.modules():
        if is_stacked_experts(module):
            module.forward = MethodType(_compute_experts, module)


def _compute_experts(module: nn.Module, *inputs: torch.Tensor, **named_inputs: torch.Tensor) -> torch.Tensor:
    """Run the forward pass of the class, with grouped matmuls in autocast's precision."""
    if module.config._experts_implementation == "grouped_mm":
        return autocast_grouped_mm(module, *inputs, **named_inputs)
    return type(module).forward(module, *inputs, **named_inputs)


def _body(model: nn.Module) -> nn.Module | None:
    """The part that makes the hidden states for the head, itself a model."""
    return next((part for part in model.children() if isinstance(part, PreTrainedModel)), None)


class _Hidden(tuple):
    """The output of a body: one tensor by any way to ask for it, and nothing else."""

    last_hidden_state = property(lambda self: self[0])

    def __getattr__(self, name: str) -> None:
        return None


@torch.no_grad()
def change_of_logits(model: nn.Module) -> tuple[float, float | None] | None:
    """(scale, cap) if logits are `cap · tanh(scale · z / cap)` of the head's `z` (no cap: `scale · z`), else None.

    By numbers: the class's `forward` is called with a small body and head, also where the model has no memory. So a
    class that does anything else with hidden states or logits is not taken for one that does not.
    """
    head, names = model.get_output_embeddings(), {part: name for name, part in model.named_children()}
    if type(head) is not nn.Linear or head.bias is not None or not {head, _body(model)} <= {*names}:
        return None
    cap = getattr(model.config, "final_logit_softcapping", None)
    with torch.device("cpu"):
        ids, hidden = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[[0.5, -1.0, 2.0, -1.5]]]).double()
        weight = torch.arange(4 * head.out_features).double().sin().view(-1, 4)
        z = hidden @ weight.mul_((cap or 100.0) / hidden.abs().sum()).T  # far along the bend of a cap

    def body(input_ids: torch.Tensor, **others: Any) -> _Hidden:
        if any(value is not None and not isinstance(value, bool) for value in others.values()):
            raise TypeError("the body gets more than tokens")
        return _Hidden([hidden])

    small, parts = copy.copy(model), {head: lambda states: states.double() @ weight.T, _body(model): body}
    for part, forward in parts.items():
        stand_in = vars(small)[names[part]] = copy.copy(part)  # an attribute, which comes before the part itself
        stand_in.forward = forward
    try:
        forward = inspect.unwrap(causal_class(model.config).forward)
        logits = forward(small, input_ids=ids, use_cache=False).logits
        ratios = (logits if cap is None else cap * torch.atanh(logits / cap)).double() / z
    except Exception:  # whatever a class asks of its body that this one lacks
        return None
    scale = float(f"{float(ratios.median()):.7g}")  # some classes have these logits in fp32
    return (scale, cap) if bool((ratios / scale - 1).abs().max() < 1e-4) else None


def blocks(model: nn.Module) -> list[nn.Module]:
    """List the outermost modules that the class wants whole (Mamba names what is in them, too), without the
    embedding's."""
    outermost: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for part in model.modules():  # those around others come first
        is_whole = type(part).__name__ in model._no_split_modules and part not in inside
        if is_whole and model.get_input_embeddings() not in (within := {*part.modules()}):
            outermost.append(part)
            inside |= within
    return outermost


def rounded_parameters(module: nn.Module) -> list[str]:
    """Name the module's own parameters that autocast is known to round: of projections, and matrices of experts.

    Norms, the decays of recurrences, convolutions, and the biases of experts stay in fp32.
    """
    own = dict(module.named_parameters(recurse=False))
    if isinstance(module, nn.Linear | Conv1D):
        return list(own)
    if is_stacked_experts(module):
        return [name for name, parameter in own.items() if parameter.ndim == 3]
    return []


def routers(model: nn.Module) -> dict[nn.Module, int]:
    """The routers of a model, and which of their outputs are the logits, as its class and those in it record them."""
    indices: dict[nn.Module, int] = {}
    for part in model.modules():
        recorders = (getattr(part, "_can_record_outputs", None) or {}).get("router_logits", [])
        for recorder in recorders if isinstance(recorders, list) else [recorders]:
            if not isinstance(recorder, OutputRecorder):  # a class alone: the logits are its second output
                recorder = OutputRecorder(recorder, index=1)
            of_class = [module for module in part.modules() if isinstance(module, recorder.target_class)]
            indices |= dict.fromkeys(of_class, recorder.index)
    return indices


@torch.no_grad()
def move_biases(model: nn.Module, tokens_per_expert: torch.Tensor, rate: float) -> None:
    """Balance as DeepSeek-V3 does (arXiv 2412.19437): the selection bias of experts with fewer tokens than the mean of
    their layer grows by `rate`, that of experts with more shrinks by it.

    `tokens_per_expert [L, E]` are those of a whole global batch, of all processes.
    """
    biases = [getattr(module, SELECTION_BIAS) for module in model.modules() if hasattr(module, SELECTION_BIAS)]
    for bias, tokens in zip(biases, tokens_per_expert, strict=True):
        bias += rate * torch.sign(tokens.mean() - tokens).to(bias)


def _keep(index: int, n_chosen: int, router: nn.Module, _inputs: Any, outputs: Any) -> None:
    """Leave logits [T, E] and chosen experts [T, k] of this call with the router, in `routed`.

    Each router has a place of its own: a list that grew from block to block would compile each of them anew.
    """
    # Recomputation in the backward pass: what is left now would keep the block's activations in memory.
    if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
        return
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    logits = outputs[index].flatten(0, -2)
    chosen = [output for output in outputs if getattr(output, "dtype", None) == torch.int64 and output.ndim > 1]
    experts = chosen[0].flatten(0, -2) if chosen else logits.topk(n_chosen).indices
    router.routed = (logits, experts)


class _InTheLoop:
    """Mixin before a class of transformers: a forward pass with the losses and statistics of the training loop."""

    def forward(
        self,
        input_ids: torch.Tensor,
        shift_labels: torch.Tensor,
        num_items_in_batch: int | None = None,
        use_cache: bool = False,
        output_logits: bool = False,
        output_token_losses: bool = False,
    ) -> SwitchMoeCausalLMOutputWithPast:
        """Losses of `input_ids [B, S]` for the aligned targets `shift_labels [B, S]`; see `SwitchMoeForCausalLM`.

        The cross-entropy is computed in fp32, in chunks as for ours; from the class's own logits if `output_logits` is
        set or they are more than a matrix times hidden states, scaled and capped.
        """
        logits, head = None, self.get_output_embeddings()
        if isinstance(head, SwitchMoeHead) and not output_logits:
            hidden = _body(self)(input_ids=input_ids, use_cache=use_cache)[0]
            total, losses = head(hidden, targets=shift_labels)
        else:
            logits = super().forward(input_ids=input_ids, use_cache=use_cache).logits
            losses = F.cross_entropy(logits.float().flatten(0, 1), shift_labels.flatten(), reduction="none")
            total = losses.sum()
        routed = self._take_routed()
        out = SwitchMoeCausalLMOutputWithPast(
            logits=logits if output_logits else None,
            lm_loss=total / (num_items_in_batch or losses.numel()),
            token_losses=losses.detach().view(shift_labels.shape) if output_token_losses else None,
            balance_loss=losses.new_zeros(()),
            z_loss=losses.new_zeros(()),
        )
        if self.training and routed:
            out.balance_loss, out.routing = self._balance(routed), _statistics(routed)
        return out

    def _take_routed(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Take what the routers left, in their order."""
        routed = [router.routed for router in self._routers if getattr(router, "routed", None) is not None]
        for router in self._routers:
            router.routed = None
        return routed

    def _balance(self, routed: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """The class's load-balancing loss, without its coefficient: its mean over groups of consecutive tokens.

        It is a product of two means, so it depends on which tokens are counted together, and micro-batches must hold
        whole groups to be as one batch.
        """
        first, experts = routed[0]
        if self._balance_loss is None:
            return first.new_zeros((), dtype=torch.float32)
        size = self._group_tokens or len(first)
        groups = zip(*(logits.float().split(size) for logits, _ in routed), strict=True)
        return torch.stack([self._balance_loss(group, first.shape[-1], experts.shape[-1]) for group in groups]).mean()


@torch.no_grad()
def _statistics(routed: list[tuple[torch.Tensor, torch.Tensor]]) -> RoutingStatistics:
    """Statistics of L routers: tokens per expert [L, E], no dropped tokens [L], entropy [L] of the logits' softmax."""
    counts = [torch.zeros(logits.shape[-1], dtype=torch.int64, device=logits.device) for logits, _ in routed]
    for count, (_, experts) in zip(counts, routed, strict=True):
        count.scatter_add_(0, experts.flatten(), torch.ones_like(experts.flatten()))
    logs = [logits.float().log_softmax(-1) for logits, _ in routed]
    entropy = torch.stack([-(log.exp() * log).sum(-1).mean() for log in logs])
    return RoutingStatistics(torch.stack(counts), torch.zeros_like(entropy, dtype=torch.int64), entropy)
