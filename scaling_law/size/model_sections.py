"""The `model` section of a `train.py` configuration for an architecture, in a class that has it.

Our class has the paper's models. All others use classes of transformers; `size.model_configs` reads the section back
to an architecture of the same counts, and tests build each class and count it.
"""

from __future__ import annotations

from typing import Any

from hub.base.errors import InputError
from scaling_law.size.architecture import Architecture

Section = dict[str, Any]


def model_section(a: Architecture) -> Section:
    """The fields of a model of this architecture; the vocabulary is the tokenizer's.

    Dense models other than the paper's are Llama, routed ones Qwen3-MoE, with shared experts Qwen2-MoE (which has one,
    as wide as all of `a` together), with latent attention DeepSeek-V3. ValueError, with a reason, where none fits.
    """
    if a.is_of_the_paper:
        return dict(a.shape)
    if not a.gated:
        raise InputError("gated=False: no class here has feed-forwards of two matrices")
    if a.latent_attention is not None:
        return _common(a, "deepseek_v3") | _latent(a)
    if a.experts == 1 and not a.shared_experts:
        return _common(a, "llama") | {"intermediate_size": a.d_expert}
    routed = {
        "num_experts": a.experts,
        "num_experts_per_tok": a.experts_per_token,
        "moe_intermediate_size": a.d_expert,
        "intermediate_size": a.d_ff,
        **({"mlp_only_layers": list(range(a.dense_blocks))} if a.dense_blocks else {}),
    }
    if a.shared_experts:
        shared = {"shared_expert_intermediate_size": a.shared_experts * a.d_shared, "qkv_bias": False}
        return _common(a, "qwen2_moe") | routed | shared
    return _common(a, "qwen3_moe") | routed


def _common(a: Architecture, model_type: str) -> Section:
    section = {
        "type": model_type,
        "hidden_size": a.d_model,
        "num_hidden_layers": a.blocks,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.n_kv_heads,
        "tie_word_embeddings": a.tied_embeddings,
    }
    return section if a.latent_attention else section | {"head_dim": a.head_dim}


def _latent(a: Architecture) -> Section:
    mla = a.latent_attention
    if mla is None or a.experts == 1:
        raise InputError("latent_attention with experts=1: no class here has both")
    if a.shared_experts and a.d_shared != a.d_expert:
        raise InputError(f"d_shared={a.d_shared} with latent_attention must be d_expert={a.d_expert}")
    return {
        "n_routed_experts": a.experts,
        "n_shared_experts": a.shared_experts,
        "num_experts_per_tok": a.experts_per_token,
        "moe_intermediate_size": a.d_expert,
        "intermediate_size": a.d_ff,
        "first_k_dense_replace": a.dense_blocks,
        "n_group": 1,
        "topk_group": 1,
        "kv_lora_rank": mla.kv_rank,
        "q_lora_rank": mla.query_rank,
        "qk_rope_head_dim": mla.rope_dim,
        "qk_nope_head_dim": mla.nope_dim,
        "v_head_dim": mla.value_dim,
    }
