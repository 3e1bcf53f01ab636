"""The `model` section of a `train.py` configuration for an architecture that laws choose, in a class that has it.

`size.model_configs` reads the section back to an architecture of the same counts; tests build each class and count it.
"""

from __future__ import annotations

from hub.base.types import Fields
from scaling_law.size.architecture import Architecture


def model_section(a: Architecture) -> Fields:
    """Write the fields of a model of `PaperLadder`; the vocabulary is the tokenizer's.

    Split experts make a Qwen3-MoE, with shared ones a Qwen2-MoE, whose single shared expert is as wide as all of them.
    """
    if a.is_of_the_paper:
        return dict(a.shape)
    section = {
        "type": "qwen2_moe" if a.shared_experts else "qwen3_moe",
        "hidden_size": a.d_model,
        "num_hidden_layers": a.blocks,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.n_kv_heads,
        "tie_word_embeddings": False,
        "head_dim": a.head_dim,
        "num_experts": a.experts,
        "num_experts_per_tok": a.experts_per_token,
        "moe_intermediate_size": a.d_expert,
        "intermediate_size": a.d_ff,
    }
    if a.shared_experts:
        section["shared_expert_intermediate_size"] = a.shared_experts * a.d_shared
        section["qkv_bias"] = False
    return section
