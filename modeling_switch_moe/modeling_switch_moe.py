"""PyTorch Switch-MoE decoder: the model of Ludziejewski et al. 2025 (arXiv 2502.05172) as a transformers model.

Every block is x + Attention(LN(x)), then x + Switch(LN(x)); the last residual stream goes into the head without a norm
(unless `final_norm`). A Switch feed-forward sends each token to one of E SwiGLU experts and scales its output by the
router's probability; `num_experts=1` is a plain SwiGLU block without a router.

Router, rotary positions and (by default) attention run in fp32 whatever the precision around them. In training the
balance and z-losses of all blocks are summed, returned apart and added to the language-model loss.

Shapes: B rows, S positions, T = B * S tokens, H heads of width D, E experts, V vocabulary, L blocks.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.integrations import use_experts_implementation
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.llama.modeling_llama import eager_attention_forward
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple, logging
from transformers.utils.generic import maybe_autocast, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_switch_moe import SwitchMoeConfig
from .experts import SWITCH_EXPERTS
from .losses import IGNORE, SwitchMoeHead
from .outputs import RoutingStatistics, SwitchMoeCausalLMOutputWithPast, SwitchMoeModelOutputWithPast
from .routing import LayerStatistics, dense_statistics, route

logger = logging.get_logger(__name__)


def make_norm(config: SwitchMoeConfig) -> nn.Module:
    """The norm the configuration names; both compute in fp32 inside and return the input's dtype."""
    if config.norm_type == "rms_norm":
        return nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps)


class SwitchMoeRotaryEmbedding(nn.Module):
    """Tables of the rotary positions, always fp32; `forward(x, position_ids [B, S])` gives cos and sin `[B, S, D]`."""

    def __init__(self, config: SwitchMoeConfig):
        super().__init__()
        self.config = config
        self.max_seq_len_cached = config.max_position_embeddings
        self.original_max_seq_len = config.max_position_embeddings
        self.rope_type = config.rope_parameters["rope_type"]
        compute: Callable = self.compute_default_rope_parameters
        if self.rope_type != "default":
            compute = ROPE_INIT_FUNCTIONS[self.rope_type]
        inv_freq, self.attention_scaling = compute(config)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.register_buffer("original_inv_freq", inv_freq.clone(), persistent=False)

    @staticmethod
    def compute_default_rope_parameters(config: SwitchMoeConfig, *_: Any, **__: Any) -> tuple[torch.Tensor, float]:
        """Frequencies `(1 / base)^(2i / D)` for i < D/2, the form of the paper's runs, and the unused scaling 1."""
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        return torch.pow(1.0 / config.rope_parameters["rope_theta"], exponents), 1.0

    def _apply(self, fn: Callable, recurse: bool = True) -> nn.Module:
        """Follow moves between devices but stay fp32: `model.to(torch.bfloat16)` would round the frequencies."""
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            moved = getattr(self, name)
            if moved.dtype != buffer.dtype:
                setattr(self, name, buffer.to(moved.device))
        return self

    @torch.no_grad()
    @dynamic_rope_update
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with maybe_autocast(x.device.type, enabled=False):
            angles = position_ids[..., None].float() * self.inv_freq.to(x.device, torch.float32)
            angles = torch.cat((angles, angles), dim=-1)
            return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling


def apply_rotary(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn `states [B, H, S, D]` by the angles of `cos, sin [B, 1, S, D]`, pairing dimension i with i + D/2."""
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin


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
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        key = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        implementation = self.config._attn_implementation
        single = self.config.attention_precision == "float32" and "flash" not in (implementation or "")
        dtype = torch.float32 if single else query.dtype
        with maybe_autocast(hidden_states.device.type, enabled=False):
            cos, sin = (table.unsqueeze(1) for table in position_embeddings)
            query = apply_rotary(query.float(), cos, sin).to(dtype)
            key = apply_rotary(key.float(), cos, sin).to(dtype)
            value = value.to(dtype)
            if past_key_values is not None:
                key, value = past_key_values.update(key, value, self.layer_idx)
            attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
            if single and isinstance(attention_mask, torch.Tensor) and attention_mask.is_floating_point():
                attention_mask = attention_mask.float()
            output, probabilities = attend(
                self,
                query,
                key,
                value,
                attention_mask,
                dropout=self.attention_dropout if self.training else 0.0,
                scaling=self.scaling,
                **kwargs,
            )
        output = output.reshape(*hidden_states.shape[:-1], -1).to(hidden_states.dtype)
        return self.o_proj(output), probabilities


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
        """The plain loop ("eager"): `hidden_states [T, hidden_size]`, expert and weight of each token `[T, 1]`."""
        expert, gate = top_k_index.squeeze(1), top_k_weights.squeeze(1)
        result = torch.zeros_like(hidden_states)
        # unbind and not weight[i]: indexing would allocate a gradient of all experts for each one.
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
        """`hidden_states [B, S, hidden_size]`, `token_mask [T]`: output of that shape and the block's statistics."""
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
        """As `SwitchMoeSparseBlock.forward`; both losses are 0."""
        output = self.down_proj(F.silu(self.gate_proj(hidden_states)) * self.up_proj(hidden_states))
        if not with_statistics:
            return output, None
        if token_mask is not None:
            return output, dense_statistics(token_mask.sum())
        count = hidden_states.shape[0] * hidden_states.shape[1]
        return output, dense_statistics(torch.full((), count, dtype=torch.long, device=output.device))


class SwitchMoeDecoderLayer(GradientCheckpointingLayer):
    """One block. Returns the residual stream followed by the five tensors of `LayerStatistics`, if measured.

    The statistics leave the block as plain outputs: their gradients then pass through gradient checkpointing of either
    kind, and recomputation counts nothing twice.
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
        attended, _ = self.self_attn(
            hidden_states=self.input_layernorm(hidden_states),
            position_embeddings=position_embeddings,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            **kwargs,
        )
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
        if config.num_experts == 1:
            self._keep_in_fp32_modules_strict = None  # a dense model has no router

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the parameters that `module` itself holds (transformers calls this for every module, once)."""
        super()._init_weights(module)
        if isinstance(module, nn.Linear):
            self._init_weight(module.weight, module.in_features)
        elif isinstance(module, nn.Embedding):
            self._init_weight(module.weight, 1)
        elif isinstance(module, SwitchMoeRouter):
            self._init_weight(module.weight, self.config.hidden_size)
        elif isinstance(module, SwitchMoeExperts):
            self._init_weight(module.gate_up_proj, module.hidden_dim)
            # The runs count the inner widths of all experts: the output shrinks with sqrt(E).
            self._init_weight(module.down_proj, self.config.num_experts * module.intermediate_dim)

    def _init_weight(self, weight: torch.Tensor, fan_in: int) -> None:
        """Initialise one matrix by the configured preset; does nothing to weights that were loaded."""
        if self.config.initialization == "normal":
            init.normal_(weight, std=self.config.initializer_range)
            return
        std = (self.config.initializer_scale / fan_in) ** 0.5
        if 6 * std < INITIAL_CUT:
            init.normal_(weight, std=std)  # the cut would never act (probability below 2e-9)
        else:
            init.trunc_normal_(weight, std=std, a=-INITIAL_CUT, b=INITIAL_CUT)

    def get_correct_experts_implementation(self, requested_experts: str | None) -> str:
        """As in transformers, with our implementations added and "auto" as the default."""
        chosen = "auto" if requested_experts is None else requested_experts
        allowed = ["eager", *SWITCH_EXPERTS.valid_keys()]
        if chosen not in allowed:
            raise ValueError(f"experts_implementation={chosen!r} is not supported; allowed are {', '.join(allowed)}.")
        return chosen

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As in transformers, which would only warn when the checkpoint is dense and the configuration is not.

        Raises:
            ValueError: the checkpoint has one expert and the configuration several, or the other way round.
            RuntimeError: (from transformers) weights of another width or another number of experts.
        """
        model, loading = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        foreign = r"mlp\.(experts|router)\." if model.config.num_experts == 1 else r"mlp\.(gate|up|down)_proj\."
        for name in sorted(loading["unexpected_keys"]):
            if re.search(foreign, name):
                raise ValueError(
                    f"num_experts={model.config.num_experts} does not fit this checkpoint: it holds {name!r}, "
                    f"which only a model with num_experts{'>' if model.config.num_experts == 1 else '='}1 has."
                )
        return (model, loading) if output_loading_info else model

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """As in transformers; `auto_map` then names config, base model and causal-LM, whichever class is saved."""
        self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, **kwargs)


INITIAL_CUT = 0.2
AUTO_MAP = {
    "AutoConfig": "configuration_switch_moe.SwitchMoeConfig",
    "AutoModel": "modeling_switch_moe.SwitchMoeModel",
    "AutoModelForCausalLM": "modeling_switch_moe.SwitchMoeForCausalLM",
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
            past_key_values: cache of earlier positions.
            use_cache: return the cache.
            output_routing: return losses and routing statistics; default: in training.

        Raises:
            ValueError: both or none of `input_ids` and `inputs_embeds`, no tokens at all, or (where it can be seen
                without waiting for a device) a token id outside the vocabulary.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give exactly one of input_ids and inputs_embeds.")
        self._check_inputs(input_ids if inputs_embeds is None else inputs_embeds, inputs_embeds is None)
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        length = inputs_embeds.shape[1]
        if position_ids is None:
            past = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = (torch.arange(length, device=inputs_embeds.device) + past).unsqueeze(0)
        causal_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        with_statistics = self.training if output_routing is None else output_routing
        token_mask = None
        if (with_statistics or self.training) and attention_mask is not None and attention_mask.dim() == 2:
            token_mask = attention_mask[:, -length:].reshape(-1).bool()

        hidden_states = inputs_embeds
        position_embeddings = self.rotary_emb(hidden_states, position_ids)
        statistics = []
        for layer in self.layers[: self.config.num_hidden_layers]:
            hidden_states, *measured = layer(
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
            statistics.append(measured)
        output = SwitchMoeModelOutputWithPast(
            last_hidden_state=self.norm(hidden_states), past_key_values=past_key_values if use_cache else None
        )
        return self._add_statistics(output, statistics) if with_statistics else output

    def _check_inputs(self, inputs: torch.Tensor, are_ids: bool) -> None:
        if 0 in inputs.shape:
            raise ValueError(f"The input has no tokens: its shape is {tuple(inputs.shape)}.")
        if torch.compiler.is_compiling():
            return
        if inputs.shape[1] > self.config.max_position_embeddings:
            logger.warning_once(
                f"The sequence has {inputs.shape[1]} tokens, more than max_position_embeddings="
                f"{self.config.max_position_embeddings} of the configuration; the model was not trained on that."
            )
        if are_ids and inputs.device.type == "cpu":  # elsewhere looking would wait for the device, which checks itself
            low, high = (int(bound) for bound in inputs.aminmax())
            if low < 0 or high >= self.embed_tokens.num_embeddings:
                raise ValueError(
                    f"input_ids holds {low if low < 0 else high}, but token ids must lie in the vocabulary, "
                    f"0 to {self.embed_tokens.num_embeddings - 1}."
                )

    @staticmethod
    def _add_statistics(
        output: SwitchMoeModelOutputWithPast, statistics: list[list[torch.Tensor]]
    ) -> SwitchMoeModelOutputWithPast:
        """Sum the losses over blocks and stack the rest, all on the device of the last block."""
        device = output.last_hidden_state.device
        columns = [torch.stack([tensor.to(device) for tensor in column]) for column in zip(*statistics, strict=True)]
        balance, z, *rest = columns
        output.balance_loss, output.z_loss = balance.sum(), z.sum()
        output.routing = RoutingStatistics(*(column.detach() for column in rest))
        return output


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
        """Logits and, with `labels` or `shift_labels`, losses.

        Args:
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache: see [`SwitchMoeModel`].
            labels: `[B, S]` targets before shifting (position s is predicted at s - 1); -100 is ignored.
            output_routing: return losses and routing statistics; default: in training or with labels.
            output_logits: with targets, false computes the loss in chunks and returns no logits, which saves most of
                the memory and, on CPU, much of the time of a training step with a large vocabulary.
            logits_to_keep: compute logits of only the last so many positions (0: all), or of the given ones.
            output_token_losses: with targets and without logits, also return the loss of every target; for evaluation:
                no loss has a gradient then.
            shift_labels: `[B, S]` targets already aligned to the inputs, instead of `labels`.
            num_items_in_batch: number of targets of the whole optimizer step; the cross-entropy is then a sum over it,
                and the router losses count by this micro-batch's share, so that micro-batches add up to a mean.
        """
        targets = kwargs.get("shift_labels")
        if targets is not None:
            targets = kwargs["shift_labels"] = targets.contiguous()  # a slice of a batch is a usual argument
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
            if num_items is None:
                num_items = count
            elif isinstance(num_items, torch.Tensor):
                num_items = num_items.to(count.device)
            if logits is None:
                total = self._loss_without_logits(outputs.last_hidden_state, targets, each=output_token_losses)
                if output_token_losses:
                    token_losses, total = total, total.sum()
                lm_loss = total / (num_items.to(total.device) if isinstance(num_items, torch.Tensor) else num_items)
            else:
                lm_loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
            loss = lm_loss
            if self.training and output_routing:
                auxiliary = self.config.router_aux_loss_coef * outputs.balance_loss
                auxiliary = auxiliary + self.config.router_z_loss_coef * outputs.z_loss
                # This micro-batch's share of the targets of the optimizer step: 1 where the loss is a mean by itself.
                loss = lm_loss + (auxiliary * (count / num_items).to(auxiliary.device)).to(lm_loss.device)
        return SwitchMoeCausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            router_logits=outputs.router_logits,
            lm_loss=lm_loss,
            token_losses=token_losses,
            balance_loss=outputs.balance_loss,
            z_loss=outputs.z_loss,
            routing=outputs.routing,
        )

    def _loss_without_logits(self, hidden_states: torch.Tensor, targets: torch.Tensor, each: bool) -> torch.Tensor:
        """Cross-entropy in nats, summed over the targets, or of `each` (`[B, S]`, no gradient).

        A head that was replaced (LoRA, quantised) is asked for its logits.
        """
        reduction = "none" if each else "sum"
        if isinstance(self.lm_head, SwitchMoeHead):
            return self.lm_head(hidden_states, targets=targets, reduction=reduction)
        logits = self.lm_head(hidden_states).float().flatten(0, -2)
        losses = F.cross_entropy(logits, targets.reshape(-1).to(logits.device), reduction=reduction)
        return losses.detach().view(targets.shape) if each else losses


SwitchMoeModel.register_for_auto_class("AutoModel")
SwitchMoeForCausalLM.register_for_auto_class("AutoModelForCausalLM")

__all__ = ["SwitchMoeForCausalLM", "SwitchMoeModel", "SwitchMoePreTrainedModel"]
