"""The `model` section of a `train.py` configuration for an architecture, in a class that has it.

Our class has the paper's models. All others use classes of transformers; `size.model_configs` reads the section back
to an architecture of the same counts, and tests build each class and count it.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from hub.base.errors import InputError
from scaling_law.size.architecture import Architecture
from scaling_law.size.model_configs import FAMILIES, LATENT, PER_TOKEN

Section = dict[str, Any]


def model_section(a: Architecture) -> Section:
    """The fields of a model of this architecture; the vocabulary is the tokenizer's.

    Dense models other than the paper's are Llama, routed ones Qwen3-MoE, with shared experts Qwen2-MoE (which has one,
    as wide as all of `a` together), with latent attention DeepSeek-V3. ValueError, with a reason, where none fits.
    """
    if a.is_of_the_paper:
        return dict(a.shape)
    model_type, mla = _class_of(a), a.latent_attention
    family = FAMILIES[model_type]
    section: Section = {
        "type": model_type,
        "hidden_size": a.d_model,
        "num_hidden_layers": a.blocks,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.n_kv_heads,
        "tie_word_embeddings": a.tied_embeddings,
        **({} if mla else {"head_dim": a.head_dim}),
    }
    if family.experts is None:
        return section | {family.d_expert: a.d_expert}
    section |= {family.experts: a.experts, PER_TOKEN: a.experts_per_token}
    section |= {family.d_expert: a.d_expert, family.d_ff: a.d_ff}
    if mla:
        section |= {str(family.shared): a.shared_experts, "first_k_dense_replace": a.dense_blocks}
        return section | {"n_group": 1, "topk_group": 1} | dict(zip(LATENT, astuple(mla), strict=True))
    section |= {"mlp_only_layers": list(range(a.dense_blocks))} if a.dense_blocks else {}
    if family.d_shared:
        section |= {family.d_shared: a.shared_experts * a.d_shared, "qkv_bias": False}
    return section


def _class_of(a: Architecture) -> str:
    if not a.gated:
        raise InputError("gated=False: no class here has feed-forwards of two matrices")
    if a.latent_attention is None:
        return "qwen2_moe" if a.shared_experts else "qwen3_moe" if a.experts > 1 else "llama"
    if a.experts == 1:
        raise InputError("latent_attention with experts=1: no class here has both")
    if a.shared_experts and a.d_shared != a.d_expert:
        raise InputError(f"d_shared={a.d_shared} with latent_attention must be d_expert={a.d_expert}")
    return "deepseek_v3"
