"""PyTorch Switch-MoE decoder: the model of Ludziejewski et al. 2025 (arXiv 2502.05172) as a transformers model.

Every block is x + Attention(LN(x)), then x + Switch(LN(x)). Router, rotary positions and (by default) attention run in
fp32. Shapes: B rows, S positions, T = B * S tokens, E experts, V vocabulary, D head width, L blocks.
"""

# First of all: an older transformers lacks what follows.
from .versions import TRANSFORMERS  # noqa: F401

# isort: split

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.generation import GenerationMixin
from transformers.integrations import use_experts_implementation
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GenericForSequenceClassification, GradientCheckpointingLayer
from transformers.modeling_outputs import CausalLMOutputWithPast, MoeModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    eager_attention_forward,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, can_return_tuple, logging
from transformers.utils.generic import maybe_autocast, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_switch_moe import SwitchMoeConfig
from .expert_parallel import NAME  # noqa: F401 (registers it, and the file travels with a model)
from .experts import SWITCH_EXPERTS
from .losses import IGNORE, SwitchMoeHead
from .routing import LayerStatistics, dense_statistics, route

logger = logging.get_logger(__name__)


@dataclass
class RoutingStatistics(ModelOutput):
    """Routing of one forward call: the `[L, E]`, `[L]` and `[L]` of all [`LayerStatistics`], detached."""

    tokens_per_expert: torch.LongTensor | None = None
    dropped_tokens: torch.LongTensor | None = None
    router_entropy: torch.FloatTensor | None = None


@dataclass
class SwitchMoeModelOutputWithPast(MoeModelOutputWithPast):
    """Output of [`SwitchMoeModel`]; its `router_logits` are one float32 `[T, E]` per block, empty for a dense model.

    The losses are scalars, summed over blocks before their coefficients; like `routing`, only in training or if asked.
    """

    balance_loss: torch.FloatTensor | None = None
    z_loss: torch.FloatTensor | None = None
    routing: RoutingStatistics | None = None


@dataclass
class SwitchMoeCausalLMOutputWithPast(CausalLMOutputWithPast):
    """Output of [`SwitchMoeForCausalLM`]: `logits [B, S, V]`, the fields of [`SwitchMoeModelOutputWithPast`], and

    Attributes:
        loss: scalar, lm_loss; in training + router_aux_loss_coef * balance_loss + router_z_loss_coef * z_loss.
        lm_loss: scalar, cross-entropy in nats per target.
        token_losses: fp32 `[B, S]`, the cross-entropy of every target, if asked for; without a gradient.
    """

    router_logits: tuple[torch.FloatTensor, ...] | None = None
    lm_loss: torch.FloatTensor | None = None
    token_losses: torch.FloatTensor | None = None
    balance_loss: torch.FloatTensor | None = None
    z_loss: torch.FloatTensor | None = None
    routing: RoutingStatistics | None = None


def make_norm(config: SwitchMoeConfig) -> nn.Module:
    """Make the norm that the configuration names; both compute in fp32 inside and return the input's dtype."""
    norm = nn.RMSNorm if config.norm_type == "rms_norm" else nn.LayerNorm
    return norm(config.hidden_size, eps=config.norm_eps)


class SwitchMoeRotaryEmbedding(LlamaRotaryEmbedding):
    """Tables of the rotary positions, always fp32; `forward(x, position_ids [B, S])` gives cos and sin `[B, S, D]`."""

    @staticmethod
    def compute_default_rope_parameters(config: SwitchMoeConfig, *_: Any, **__: Any) -> tuple[torch.Tensor, float]:
        """Compute frequencies `(1 / base)^(2i / D)` for i < D/2, as in the paper's runs, and the unused scaling 1."""
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        return torch.pow(1.0 / config.rope_parameters["rope_theta"], exponents), 1.0

    def _apply(self, fn: Callable, recurse: bool = True) -> nn.Module:
        """Follow moves between devices but stay fp32: `model.to(torch.bfloat16)` would round the frequencies."""

        def move(buffer: torch.Tensor) -> torch.Tensor:
            result = fn(buffer)
            return result if result.dtype == buffer.dtype else buffer.to(result.device)

        return super()._apply(move, recurse)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x.new_empty(0, dtype=torch.float32), position_ids)


# Implementations of attention that compute in fp32 if their inputs are; None is the eager one.
FP32_ATTENTION = (None, "eager", "sdpa", "flex_attention")


def cache_dtype(cache: Cache, layer_idx: int, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the states that a layer of the cache holds; one that holds none yet takes `dtype`."""
    layers = getattr(cache, "layers", [])
    layer = layers[layer_idx] if layer_idx < len(layers) else None
    return layer.dtype if getattr(layer, "is_initialized", False) else dtype


def cast_mask(mask: Any, dtype: torch.dtype) -> Any:
    """Return a mask that is added to scores in their dtype; other kinds stay as they are."""
    if not isinstance(mask, torch.Tensor) or not mask.is_floating_point() or mask.dtype == dtype:
        return mask
    # The lowest number of a wider dtype would become an infinity, and a row of infinities nan.
    return mask.float().clamp(min=torch.finfo(dtype).min).to(dtype)


class SwitchMoeAttention(nn.Module):
    """Causal multi-head attention with rotary positions and no biases."""

    def __init__(self, config: SwitchMoeConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = 1
        self.scaling = config.head_dim**-0.5
        self.attention_dropout = config.attention_dropout
        self.is_causal = True
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query = self._split_heads(self.q_proj(hidden_states))
        key = self._split_heads(self.k_proj(hidden_states))
        value = self._split_heads(self.v_proj(hidden_states))
        implementation = self.config._attn_implementation
        # Other kernels may lack fp32. Paged caches, which attention itself fills, have the model's dtype.
        can_be_single = implementation in FP32_ATTENTION and kwargs.get("cache") is None
        is_single = self.config.attention_precision == "float32" and can_be_single
        dtype = torch.float32 if is_single else query.dtype
        with maybe_autocast(hidden_states.device.type, enabled=False):
            query, key = apply_rotary_pos_emb(query.float(), key.float(), *position_embeddings)
            if past_key_values is not None:
                stored_dtype = cache_dtype(past_key_values, self.layer_idx, dtype)
                key, value = past_key_values.update(key.to(stored_dtype), value.to(stored_dtype), self.layer_idx)
            attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
            output, probabilities = attend(
                self,
                query.to(dtype),
                key.to(dtype),
                value.to(dtype),
                cast_mask(attention_mask, dtype),
                dropout=self.attention_dropout if self.training else 0.0,
                scaling=self.scaling,
                **kwargs,
            )
        output = output.reshape(*hidden_states.shape[:-1], -1).to(hidden_states.dtype)
        return self.o_proj(output), probabilities

    def _split_heads(self, states: torch.Tensor) -> torch.Tensor:
        """Reshape `[B, S, hidden_size]` to `[B, n_heads, S, D]`."""
        return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class SwitchMoeRouter(nn.Module):
    """Top-1 router in fp32: `weight [E, hidden_size]`, no bias, no noise. See `routing.route` for the definitions."""

    def __init__(self, config: SwitchMoeConfig):
        super().__init__()
        self.capacity_factor = config.capacity_factor
        self.group_tokens = config.capacity_group_tokens
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))

    def forward(
        self, hidden_states: torch.Tensor, token_mask: torch.Tensor | None = None, with_statistics: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, LayerStatistics | None]:
        """Route `hidden_states [T, hidden_size]`: logits `[T, E]`, gates and experts `[T, 1]`, statistics."""
        with maybe_autocast(hidden_states.device.type, enabled=False):
            logits = F.linear(hidden_states.float(), self.weight.float())
            capacity_factor = self.capacity_factor if self.training else None
            routing, statistics = route(logits, capacity_factor, token_mask, with_statistics, self.group_tokens)
        return logits, routing.gate.unsqueeze(1), routing.expert.unsqueeze(1), statistics


@use_experts_implementation(experts_interface=SWITCH_EXPERTS)
class SwitchMoeExperts(nn.Module):
    """All experts of a block as stacked SwiGLU weights; `experts_implementation` chooses how they are computed."""

    def __init__(self, config: SwitchMoeConfig):
        super().__init__()
        self.num_experts = config.num_experts
        self.hidden_dim = config.hidden_size
        self.intermediate_dim = config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(self.num_experts, 2 * self.intermediate_dim, self.hidden_dim))
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, self.hidden_dim, self.intermediate_dim))
        self.act_fn = nn.SiLU()

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Loop over experts ("eager"): `hidden_states [T, hidden_size]`, expert and weight of each token `[T, 1]`."""
        expert = top_k_index.squeeze(1)
        gate = top_k_weights.squeeze(1)
        result = torch.zeros_like(hidden_states)
        # unbind and not weight[i]: indexing would allocate a gradient of all experts for each expert.
        weights = zip(self.gate_up_proj.unbind(0), self.down_proj.unbind(0), strict=True)
        for number, (gate_up, down) in enumerate(weights):
            (tokens,) = ((expert == number) & (gate != 0)).nonzero(as_tuple=True)
            inner = self._apply_gate(F.linear(hidden_states[tokens], gate_up))
            output = F.linear(inner, down) * gate[tokens, None]
            result = result.index_add(0, tokens, output.to(result.dtype))
        return result


class SwitchMoeSparseBlock(nn.Module):
    """Router and experts."""

    def __init__(self, config: SwitchMoeConfig):
        super().__init__()
        self.router = SwitchMoeRouter(config)
        self.experts = SwitchMoeExperts(config)

    def forward(
        self, hidden_states: torch.Tensor, token_mask: torch.Tensor | None = None, with_statistics: bool = True
    ) -> tuple[torch.Tensor, LayerStatistics | None]:
        """Map `hidden_states [B, S, hidden_size]`, `token_mask [T]` to an output of the same shape, and statistics."""
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        _, gate, expert, statistics = self.router(tokens, token_mask, with_statistics)
        return self.experts(tokens, expert, gate).view(hidden_states.shape), statistics


class SwitchMoeDenseBlock(nn.Module):
    """The feed-forward of a model with one expert: a SwiGLU, nothing to route."""

    def __init__(self, config: SwitchMoeConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(
        self, hidden_states: torch.Tensor, token_mask: torch.Tensor | None = None, with_statistics: bool = True
    ) -> tuple[torch.Tensor, LayerStatistics | None]:
        """Return the results of `SwitchMoeSparseBlock.forward`; both losses are 0."""
        output = self.down_proj(F.silu(self.gate_proj(hidden_states)) * self.up_proj(hidden_states))
        if not with_statistics:
            return output, None
        # The count is a tensor and not a number, which a compiled step would specialise on.
        if token_mask is None:
            token_mask = output.new_ones(output.shape[:2], dtype=torch.bool)
        return output, dense_statistics(token_mask.sum())


class SwitchMoeDecoderLayer(GradientCheckpointingLayer):
    """One block. Returns the residual stream and, if measured, the five tensors of `LayerStatistics`.

    As plain outputs their gradients pass through gradient checkpointing, and recomputation counts nothing twice.
    """

    def __init__(self, config: SwitchMoeConfig, layer_idx: int):
        super().__init__()
        self.self_attn = SwitchMoeAttention(config, layer_idx)
        self.mlp = SwitchMoeSparseBlock(config) if config.num_experts > 1 else SwitchMoeDenseBlock(config)
        self.input_layernorm = make_norm(config)
        self.post_attention_layernorm = make_norm(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        past_key_values: Cache | None = None,
        token_mask: torch.Tensor | None = None,
        with_statistics: bool = True,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, ...]:
        normed = self.input_layernorm(hidden_states)
        attended, _ = self.self_attn(normed, position_embeddings, attention_mask, past_key_values, **kwargs)
        hidden_states = hidden_states + attended
        switched, statistics = self.mlp(self.post_attention_layernorm(hidden_states), token_mask, with_statistics)
        return (hidden_states + switched, *(statistics or ()))


class SwitchMoePreTrainedModel(PreTrainedModel):
    """Loading, saving and initialisation shared by the models of this file."""

    config: SwitchMoeConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SwitchMoeDecoderLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _keep_in_fp32_modules_strict = ["mlp.router"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {  # noqa: RUF012
        "router_logits": OutputRecorder(SwitchMoeRouter, index=0),
        "hidden_states": OutputRecorder(SwitchMoeDecoderLayer, index=0),
        "attentions": OutputRecorder(SwitchMoeAttention, index=1),
    }

    def __init__(self, config: SwitchMoeConfig, *inputs: Any, **kwargs: Any):
        super().__init__(config, *inputs, **kwargs)
        # A dense model has no router.
        if config.num_experts == 1:
            self._keep_in_fp32_modules_strict = None

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.Embedding):
            self._init_weight(module.weight, 1)
        elif isinstance(module, (nn.Linear, SwitchMoeRouter)):
            self._init_weight(module.weight, module.weight.shape[1])
        elif isinstance(module, SwitchMoeExperts):
            self._init_weight(module.gate_up_proj, module.hidden_dim)
            # The runs count the inner widths of all experts: the output shrinks with sqrt(E).
            self._init_weight(module.down_proj, self.config.num_experts * module.intermediate_dim)

    def _init_weight(self, weight: torch.Tensor, fan_in: int) -> None:
        """Initialise one matrix by the configured preset; do nothing to weights that were loaded."""
        if self.config.initialization == "normal":
            init.normal_(weight, std=self.config.initializer_range)
            return
        std = (self.config.initializer_scale / fan_in) ** 0.5
        # The cut would never act where its probability is below 2e-9.
        if 6 * std < INITIAL_CUT:
            init.normal_(weight, std=std)
        else:
            init.trunc_normal_(weight, std=std, a=-INITIAL_CUT, b=INITIAL_CUT)

    def get_correct_experts_implementation(self, requested_experts: str | None) -> str:
        """Check the name as transformers does, with our implementations added and "auto" as the default."""
        name = "auto" if requested_experts is None else requested_experts
        names = ["eager", *SWITCH_EXPERTS.valid_keys()]
        if name not in names:
            raise ValueError(f"experts_implementation={name!r} is not supported; allowed are {', '.join(names)}.")
        return name

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load as transformers does; raises ValueError, not just a warning, if only checkpoint or config is dense."""
        if args and kwargs.get("trust_remote_code"):
            released = find_class_in_folder(cls, args[0])
            if released is not cls:
                return released.from_pretrained(*args, output_loading_info=output_loading_info, **kwargs)
        model, loading = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        experts = model.config.num_experts
        if experts == 1:
            pattern = r"mlp\.(experts|router)\."
            condition = "num_experts>1"
        else:
            pattern = r"mlp\.(gate|up|down)_proj\."
            condition = "num_experts=1"
        names = [name for name in loading["unexpected_keys"] if re.search(pattern, name)]
        if names:
            raise ValueError(
                f"num_experts={experts} does not fit this checkpoint: it holds {min(names)!r}, which only a model "
                f"with {condition} has."
            )
        return (model, loading) if output_loading_info else model

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Save as transformers does; `auto_map` names all classes, whichever of them is saved."""
        self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, **kwargs)
        # safetensors writes its files with mode 0600, which hides them from others.
        config = Path(save_directory) / "config.json"
        if config.exists():
            for weights in Path(save_directory).glob("*.safetensors"):
                weights.chmod(config.stat().st_mode)


def find_class_in_folder(model_class: type, folder: Any) -> type:
    """Find the class of this name in the code of a release's folder, if `model_class` comes from a release, too.

    transformers calls the class that it loaded first for a configuration file with the same text. Code that was
    edited by hand, so that the file does not have its hash, would not be run.
    """
    is_released = model_class.__module__.startswith("transformers_modules.")
    if not is_released or not Path(folder, "modeling_switch_moe.py").is_file():
        return model_class
    return get_class_from_dynamic_module(f"modeling_switch_moe.{model_class.__name__}", folder)


INITIAL_CUT = 0.2
AUTO_MAP = {
    "AutoConfig": "configuration_switch_moe.SwitchMoeConfig",
    "AutoModel": "modeling_switch_moe.SwitchMoeModel",
    "AutoModelForCausalLM": "modeling_switch_moe.SwitchMoeForCausalLM",
    "AutoModelForSequenceClassification": "modeling_switch_moe.SwitchMoeForSequenceClassification",
}


class SwitchMoeModel(SwitchMoePreTrainedModel):
    """The decoder without a head."""

    def __init__(self, config: SwitchMoeConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList([SwitchMoeDecoderLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = make_norm(config) if config.final_norm else nn.Identity()
        self.rotary_emb = SwitchMoeRotaryEmbedding(config)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        use_cache: bool | None = None,
        output_routing: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SwitchMoeModelOutputWithPast:
        """Run the decoder.

        Args:
            input_ids: `[B, S]` token ids; or give `inputs_embeds [B, S, hidden_size]`.
            attention_mask: `[B, past + S]`, 0 at padding: hidden from attention, losses, capacity and statistics.
            position_ids: `[B, S]`, default counts from the length of the cache.
            output_routing: return losses and routing statistics; default: in training.

        Raises:
            ValueError: both or none of `input_ids` and `inputs_embeds`, no tokens, or (on CPU) an id that is no token.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give exactly one of input_ids and inputs_embeds.")
        self._check_inputs(input_ids if inputs_embeds is None else inputs_embeds)
        if inputs_embeds is None:
            inputs_embeds = self._embed(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        length = inputs_embeds.shape[1]
        positions = position_ids
        if positions is None:
            past = past_key_values.get_seq_length() if past_key_values is not None else 0
            positions = (torch.arange(length, device=inputs_embeds.device) + past).unsqueeze(0)
        causal_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            # Only positions of the caller can pack several sequences in a row; to look waits for the device.
            position_ids=position_ids,
        )
        with_statistics = self.training if output_routing is None else output_routing
        token_mask = None
        if (with_statistics or self.training) and attention_mask is not None and attention_mask.dim() == 2:
            token_mask = attention_mask[:, -length:].reshape(-1).bool()

        hidden_states = inputs_embeds
        position_embeddings = self.rotary_emb(hidden_states, positions)
        statistics = []
        for layer in self.layers[: self.config.num_hidden_layers]:
            hidden_states, *layer_statistics = layer(
                hidden_states,
                attention_mask=causal_mask,
                position_embeddings=position_embeddings,
                past_key_values=past_key_values,
                token_mask=token_mask,
                with_statistics=with_statistics,
                position_ids=position_ids,
                use_cache=use_cache,
                **kwargs,
            )
            statistics.append(layer_statistics)
        output = SwitchMoeModelOutputWithPast(
            last_hidden_state=self.norm(hidden_states), past_key_values=past_key_values if use_cache else None
        )
        if with_statistics:
            # Each field of the blocks' `LayerStatistics`, as [L] or [L, E], on one device.
            fields = []
            for tensors in zip(*statistics, strict=True):
                fields.append(torch.stack([tensor.to(hidden_states.device) for tensor in tensors]))
            balance_losses, z_losses, *counts = fields
            output.balance_loss = balance_losses.sum()
            output.z_loss = z_losses.sum()
            output.routing = RoutingStatistics(*(count.detach() for count in counts))
        return output

    def _check_inputs(self, inputs: torch.Tensor) -> None:
        if 0 in inputs.shape:
            raise ValueError(f"The input has no tokens: its shape is {tuple(inputs.shape)}.")
        if torch.compiler.is_compiling():
            return
        if inputs.shape[1] > self.config.max_position_embeddings:
            logger.warning_once(
                f"The sequence has {inputs.shape[1]} tokens, more than max_position_embeddings="
                f"{self.config.max_position_embeddings}; the model was not trained on that."
            )

    def _embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Look the ids up; on a CPU, where a lookup fails at once, an id that is no token is named."""
        if torch.compiler.is_compiling():
            return self.embed_tokens(input_ids)
        try:
            return self.embed_tokens(input_ids)
        except IndexError as error:
            low, high = (int(bound) for bound in input_ids.aminmax())
            last = self.config.vocab_size - 1
            raise ValueError(
                f"input_ids holds {low if low < 0 else high}, but ids must lie in the vocabulary, 0 to {last}."
            ) from error


class SwitchMoeForCausalLM(SwitchMoePreTrainedModel, GenerationMixin):
    """The decoder with a language-model head."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    _tp_plan = {"lm_head": "colwise_gather_output"}  # noqa: RUF012
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}  # noqa: RUF012
    _fsdp_plan = {"lm_head": "keep_full_weight"}  # noqa: RUF012

    def __init__(self, config: SwitchMoeConfig):
        super().__init__(config)
        self.model = SwitchMoeModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = SwitchMoeHead(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        output_routing: bool | None = None,
        output_logits: bool = True,
        output_token_losses: bool = False,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SwitchMoeCausalLMOutputWithPast:
        """Compute logits and, with `labels` or `shift_labels`, losses; other arguments as in [`SwitchMoeModel`].

        Args:
            labels: `[B, S]` targets before shifting (position s is predicted at s - 1); -100 is ignored.
            output_routing: return losses and routing statistics; default: in training or with labels.
            output_logits: with targets, false computes the loss in chunks without logits: less memory and time.
            logits_to_keep: compute logits of only the last so many positions (0: all), or of the given ones.
            output_token_losses: with targets and without logits, also return the loss of every target.
            shift_labels: `[B, S]` targets already aligned to the inputs, instead of `labels`.
            num_items_in_batch: targets of the whole optimizer step; the losses are then this micro-batch's share.
        """
        targets = kwargs.get("shift_labels")
        if targets is not None:
            # A slice of a batch is a usual argument.
            targets = targets.contiguous()
            kwargs["shift_labels"] = targets
        elif labels is not None:
            targets = F.pad(labels, (0, 1), value=IGNORE)[..., 1:]
        if output_routing is None:
            output_routing = self.training or targets is not None
        outputs: SwitchMoeModelOutputWithPast = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_routing=output_routing,
            **kwargs,
        )
        logits = loss = lm_loss = token_losses = None
        if output_logits or targets is None:
            positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(outputs.last_hidden_state[:, positions, :])
        if targets is not None:
            count = (targets != IGNORE).sum()
            num_items = kwargs.get("num_items_in_batch")
            if not isinstance(num_items, torch.Tensor):
                num_items = count if num_items is None else torch.full_like(count, num_items)
            num_items = num_items.to(count.device)
            if logits is None:
                total, losses = self._loss_without_logits(outputs.last_hidden_state, targets)
                lm_loss = total / num_items.to(total.device)
                token_losses = losses if output_token_losses else None
            else:
                lm_loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
            loss = lm_loss
            if self.training and output_routing and self.config.num_experts > 1:
                # This micro-batch's share of the targets of the optimizer step: 1 where the loss is a mean by itself.
                share = count / num_items
                auxiliary_loss = self.config.router_aux_loss_coef * outputs.balance_loss
                auxiliary_loss = auxiliary_loss + self.config.router_z_loss_coef * outputs.z_loss
                loss = lm_loss + (auxiliary_loss * share.to(auxiliary_loss.device)).to(lm_loss.device)
        shared = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return SwitchMoeCausalLMOutputWithPast(
            loss=loss, logits=logits, lm_loss=lm_loss, token_losses=token_losses, **shared
        )

    def _loss_without_logits(self, hidden_states: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute the cross-entropy in nats, summed over the targets, and each, `[B, S]` without a gradient."""
        if isinstance(self.lm_head, SwitchMoeHead) and (self.tp_size or 1) == 1:
            return self.lm_head(hidden_states, targets=targets)
        # A head that was replaced (LoRA, quantised), or is divided by tensor parallelism, only knows its logits.
        logits = self.lm_head(hidden_states).float().flatten(0, -2)
        losses = F.cross_entropy(logits, targets.reshape(-1).to(logits.device), reduction="none")
        return losses.sum(), losses.detach().view(targets.shape)


class SwitchMoeForSequenceClassification(GenericForSequenceClassification, SwitchMoePreTrainedModel):
    """The decoder with a linear score of each row's last token: a classifier or a reward model.

    Its loss is that of its labels alone; the router's losses are no part of it.
    """

    def __init__(self, config: SwitchMoeConfig):
        # Not by the generic head, which asks AutoModel for the decoder: there a release's own code is not known.
        super(GenericForSequenceClassification, self).__init__(config)
        self.num_labels = config.num_labels
        self.model = SwitchMoeModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)
        self.post_init()


SwitchMoeModel.register_for_auto_class("AutoModel")
SwitchMoeForCausalLM.register_for_auto_class("AutoModelForCausalLM")
SwitchMoeForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")

__all__ = ["SwitchMoeForCausalLM", "SwitchMoeForSequenceClassification", "SwitchMoeModel", "SwitchMoePreTrainedModel"]
