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
from collections.abc import Callable
from functools import cache, partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.utils.output_capturing import OutputRecorder

from modeling_switch_moe import RoutingStatistics, SwitchMoeCausalLMOutputWithPast
from modeling_switch_moe.experts import autocast_grouped_mm
from modeling_switch_moe.losses import SwitchMoeHead
from training.configuration.class_counts import experts_per_token, generates, without_gradient
from training.configuration.model_classes import SELECTION_BIAS, balance_loss_of, causal_class

logger = logging.getLogger(__name__)


# Logits [T, E] of a router, and the experts [T, k] that it chose.
Routed = tuple[torch.Tensor, torch.Tensor]


def build(config: Any, group_tokens: int | None = None) -> PreTrainedModel:
    """Build an fp32 model of the configuration's class; its balance loss is a mean over groups of `group_tokens`.

    What is changed is changed in this model alone, with a configuration of its own: other models of the class are as
    transformers builds them. Parameters that no loss moves are frozen and logged.
    """
    model_class: type = causal_class(config)
    model: _InTheLoop = _class_in_the_loop(model_class)._from_config(copy.deepcopy(config), dtype=torch.float32)
    frozen = without_gradient(config)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    # No token of a text is padding, also where a class must have one: every embedding is trained.
    embedding: Any = model.get_input_embeddings()
    embedding.padding_idx = None
    has_weights = not next(model.parameters()).is_meta
    if has_weights:
        _warn_of_limits(config, frozen)
    change = change_of_logits(model)
    if change is None:
        logger.info("%s: the head is more than a matrix: all logits of a micro-batch are held", model_class.__name__)
    else:
        _replace_head(model, *change)
    round_grouped_products(model)
    model._balance_loss = balance_loss_of(model_class)
    model._group_tokens = group_tokens
    indices = routers(model)
    model._routers = [*indices]
    for router, index in indices.items():
        router.register_forward_hook(partial(_keep, index, experts_per_token(config)))
    return model


def _warn_of_limits(config: Any, frozen: list[str]) -> None:
    """Log parameters that are never trained, and models that cannot generate text."""
    if frozen:
        names = ", ".join(sorted({re.sub(r"\.\d+\.", ".*.", name) for name in frozen}))
        logger.warning("no loss moves these parameters of %s, which stay as drawn: %s", config.model_type, names)
    if not generates(config):
        logger.warning(
            "%s: none of these %d blocks has attention, without which transformers' generate fails: set "
            "model.layer_types, or its like, so that one has, or train more blocks",
            config.model_type,
            config.num_hidden_layers,
        )


@cache
def _class_in_the_loop(model_class: type[PreTrainedModel]) -> type[_InTheLoop]:
    """Derive the class whose forward pass is the loop's; its name stays the one of transformers."""
    return type(model_class.__name__, (_InTheLoop, model_class), {"__module__": model_class.__module__})


def _replace_head(model: PreTrainedModel, scale: float, cap: float | None) -> None:
    """Put a head around the same weight that computes losses without holding all logits."""
    head = model.get_output_embeddings()
    (name,) = [name for name, module in model.named_children() if module is head]
    replacement = SwitchMoeHead(head.in_features, head.out_features, bias=False, device="meta")
    replacement.weight = head.weight
    replacement.scale = scale
    replacement.cap = cap
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


def _compute_experts(module: Any, *inputs: torch.Tensor, **named_inputs: torch.Tensor) -> torch.Tensor:
    """Run the forward pass of the class, with grouped matmuls in autocast's precision."""
    is_grouped = module.config._experts_implementation == "grouped_mm"
    compute = autocast_grouped_mm if is_grouped else type(module).forward
    return compute(module, *inputs, **named_inputs)


def _body(model: nn.Module) -> nn.Module | None:
    """Return the module that makes the hidden states for the head, itself a model."""
    return next((module for module in model.children() if isinstance(module, PreTrainedModel)), None)


class _Hidden(tuple):
    """The output of a body: one tensor by any way to ask for it, and nothing else."""

    last_hidden_state = property(lambda self: self[0])

    def __getattr__(self, name: str) -> None:
        return None


@torch.no_grad()
def change_of_logits(model: PreTrainedModel) -> tuple[float, float | None] | None:
    """Return (scale, cap) if logits are `cap · tanh(scale · z / cap)` of the head's `z`, or `scale · z` without a cap.

    None if they are something else. Numbers decide: the class's `forward` is called with a small body and head, also
    where the model has no memory. So a class that does anything else with hidden states or logits is not taken for
    one that does not.
    """
    head = model.get_output_embeddings()
    body = _body(model)
    names = {module: name for name, module in model.named_children()}
    if type(head) is not nn.Linear or head.bias is not None or body is None or not {head, body} <= {*names}:
        return None
    cap = getattr(model.config, "final_logit_softcapping", None)
    hidden, weight = _small_states_and_head(head.out_features, cap)

    def forward_body(input_ids: torch.Tensor, **options: Any) -> _Hidden:
        if any(value is not None and not isinstance(value, bool) for value in options.values()):
            raise TypeError("the body gets more than tokens")
        return _Hidden([hidden])

    def forward_head(states: torch.Tensor) -> torch.Tensor:
        return states.double() @ weight.T

    small = copy.copy(model)
    forwards: dict[nn.Module, Callable[..., Any]] = {head: forward_head, body: forward_body}
    for module, forward in forwards.items():
        stand_in = copy.copy(module)
        stand_in.forward = forward
        # An attribute comes before the module of the same name.
        vars(small)[names[module]] = stand_in
    try:
        ids = torch.zeros(1, 1, dtype=torch.int64, device="cpu")
        logits = inspect.unwrap(causal_class(model.config).forward)(small, input_ids=ids, use_cache=False).logits
        scaled = logits if cap is None else cap * torch.atanh(logits / cap)
        ratios = scaled.double() / (hidden @ weight.T)
    # A class may ask anything of its body that this one lacks.
    except Exception:
        return None
    # Some classes have these logits in fp32.
    scale = float(f"{float(ratios.median()):.7g}")
    is_constant = bool((ratios / scale - 1).abs().max() < 1e-4)
    return (scale, cap) if is_constant else None


def _small_states_and_head(out_features: int, cap: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hidden states [1, 1, 4] and the weight [V, 4] of a head, whose logits go far along the bend of a cap."""
    with torch.device("cpu"):
        hidden = torch.tensor([[[0.5, -1.0, 2.0, -1.5]]]).double()
        weight = torch.arange(4 * out_features).double().sin().view(-1, 4)
    return hidden, weight.mul_((cap or 100.0) / hidden.abs().sum())


def blocks(model: PreTrainedModel) -> list[nn.Module]:
    """List the outermost modules that the class wants whole, without that of the embedding.

    Mamba names what is inside of them, too.
    """
    whole_names = model._no_split_modules or ()
    outermost: list[nn.Module] = []
    inside: set[nn.Module] = set()
    # Modules around others come first.
    for module in model.modules():
        # FSDP2 makes a class of its own of a block's.
        name = type(module).__name__.removeprefix("FSDP")
        if module in inside or name not in whole_names:
            continue
        within = {*module.modules()}
        if model.get_input_embeddings() not in within:
            outermost.append(module)
            inside.update(within)
    return outermost


def rounded_parameters(module: nn.Module) -> list[str]:
    """Name the parameters of this very module that autocast is known to round.

    They are those of projections, and matrices of experts. Norms, the decays of recurrences, convolutions, and the
    biases of experts stay in fp32.
    """
    parameters = dict(module.named_parameters(recurse=False))
    if isinstance(module, nn.Linear | Conv1D):
        return list(parameters)
    if is_stacked_experts(module):
        return [name for name, parameter in parameters.items() if parameter.ndim == 3]
    return []


def routers(model: nn.Module) -> dict[nn.Module, int]:
    """Find the routers of a model, and which of their outputs are the logits.

    Its class says so, and those of the modules in it.
    """
    indices: dict[nn.Module, int] = {}
    for module in model.modules():
        recorders = (getattr(module, "_can_record_outputs", None) or {}).get("router_logits", [])
        for recorder in recorders if isinstance(recorders, list) else [recorders]:
            # A class alone means that the logits are its second output.
            if not isinstance(recorder, OutputRecorder):
                recorder = OutputRecorder(recorder, index=1)
            for inner in module.modules():
                if isinstance(inner, recorder.target_class):
                    indices[inner] = recorder.index
    return indices


def router_parameters(model: nn.Module) -> set[torch.Tensor]:
    """Return the parameters of a model's routers."""
    parameters: set[torch.Tensor] = set()
    for router in routers(model):
        parameters.update(router.parameters())
    return parameters


@torch.no_grad()
def move_biases(model: nn.Module, tokens_per_expert: torch.Tensor, rate: float) -> None:
    """Move the selection biases of experts by `rate`, which balances them as in DeepSeek-V3 (arXiv 2412.19437).

    The bias of an expert with fewer tokens than the mean of its layer grows, that of one with more shrinks.
    `tokens_per_expert [L, E]` are those of a whole global batch, of all processes.
    """
    biases = [getattr(module, SELECTION_BIAS) for module in model.modules() if hasattr(module, SELECTION_BIAS)]
    for bias, tokens in zip(biases, tokens_per_expert, strict=True):
        bias += rate * torch.sign(tokens.mean() - tokens).to(bias)


def _keep(index: int, n_chosen: int | None, router: Any, _inputs: Any, outputs: Any) -> None:
    """Leave logits [T, E] and chosen experts [T, k] of this call with the router, in `routed`.

    Each router has a place of its own: a list that grew from block to block would compile each of them anew.
    """
    # In the recomputation of the backward pass they would keep the block's activations in memory.
    if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
        return
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    logits = outputs[index].flatten(0, -2)
    choices = [output for output in outputs if getattr(output, "dtype", None) == torch.int64 and output.ndim > 1]
    experts = choices[0].flatten(0, -2) if choices else logits.topk(n_chosen).indices
    router.routed = (logits, experts)


# The class that a mixin's methods may rely on; there is no such base at run time.
if TYPE_CHECKING:
    _MixinBase = PreTrainedModel
else:
    _MixinBase = object


class _InTheLoop(_MixinBase):
    """Mixin before a class of transformers: a forward pass with the losses and statistics of the training loop."""

    # Modules in whose `routed` a hook leaves what they chose.
    _routers: list[Any]
    _balance_loss: Callable[..., torch.Tensor] | None
    _group_tokens: int | None

    def forward(
        self,
        input_ids: torch.Tensor,
        shift_labels: torch.Tensor,
        num_items_in_batch: int | None = None,
        use_cache: bool = False,
        output_logits: bool = False,
        output_token_losses: bool = False,
    ) -> SwitchMoeCausalLMOutputWithPast:
        """Compute the losses of `input_ids [B, S]` for the aligned targets `shift_labels [B, S]`.

        Arguments and result are those of `SwitchMoeForCausalLM`. The cross-entropy is computed in fp32, in chunks as
        for ours; from the class's own logits if `output_logits` is set or they are more than a matrix times hidden
        states, scaled and capped.
        """
        logits = None
        head = self.get_output_embeddings()
        if isinstance(head, SwitchMoeHead) and not output_logits:
            body = _body(self)
            assert body is not None
            hidden = body(input_ids=input_ids, use_cache=use_cache)[0]
            total, losses = head(hidden, targets=shift_labels)
        else:
            logits = super().forward(input_ids=input_ids, use_cache=use_cache).logits
            losses = F.cross_entropy(logits.float().flatten(0, 1), shift_labels.flatten(), reduction="none")
            total = losses.sum()
        # Take the choices that the routers left, in their order.
        routed = [vars(router).pop("routed", None) for router in self._routers]
        out = SwitchMoeCausalLMOutputWithPast(
            logits=logits if output_logits else None,
            lm_loss=total / (num_items_in_batch or losses.numel()),
            token_losses=losses.detach().view(shift_labels.shape) if output_token_losses else None,
            balance_loss=losses.new_zeros(()),
            z_loss=losses.new_zeros(()),
        )
        if self.training and any(routed):
            logits_by_layer, experts = (torch.stack(values) for values in zip(*filter(None, routed), strict=True))
            router_logits = logits_by_layer.float()
            # transformers writes FloatTensor and LongTensor for tensors of any device and precision.
            out.balance_loss = self._balance(router_logits, experts.shape[-1])  # type: ignore[assignment]
            out.routing = _statistics(router_logits, experts)
        return out

    def _balance(self, logits: torch.Tensor, n_chosen: int) -> torch.Tensor:
        """Average the class's load-balancing loss, without its coefficient, over groups of consecutive tokens.

        It is a product of two means, so it depends on which tokens are counted together, and micro-batches must hold
        whole groups to be as one batch. `logits [L, T, E]` are those of all layers; they chose `n_chosen` experts.
        """
        if self._balance_loss is None:
            return logits.new_zeros(())
        _, n_tokens, n_experts = logits.shape
        groups = logits.split(self._group_tokens or n_tokens, dim=1)
        with _CountsOnDevice():
            # It counts all layers together, so they may be one.
            losses = [self._balance_loss((group.flatten(0, 1),), n_experts, n_chosen) for group in groups]
        return torch.stack(losses).mean()


class _CountsOnDevice(TorchFunctionMode):
    """Counts numbers below `minlength` without waiting for the device, as `bincount` does.

    The balance loss of transformers 5.17 calls it in every layer.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        function = _count if function is torch.bincount else function
        return function(*args, **(kwargs or {}))


def _count(values: torch.Tensor, minlength: int) -> torch.Tensor:
    """Count each of the numbers [n] below `minlength`; there are no others."""
    return values.new_zeros(minlength).scatter_add_(0, values, torch.ones_like(values))


@torch.no_grad()
def _statistics(logits: torch.Tensor, experts: torch.Tensor) -> RoutingStatistics:
    """Count tokens per expert [L, E] and dropped tokens [L], of which there are none, and measure the entropy [L].

    The entropy is that of the softmax of each of the L routers' `logits [L, T, E]`; `experts [L, T, k]` were chosen.
    """
    n_layers, _, n_experts = logits.shape
    choices = experts.flatten(1)
    counts = choices.new_zeros(n_layers, n_experts).scatter_add_(1, choices, torch.ones_like(choices))
    log = logits.log_softmax(-1)
    entropy = -(log.exp() * log).sum(-1).mean(1)
    dropped = torch.zeros_like(entropy, dtype=torch.int64)
    # Annotated as FloatTensor and LongTensor, as by transformers.
    return RoutingStatistics(counts, dropped, entropy)  # type: ignore[arg-type]
