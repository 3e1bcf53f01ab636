"""Sections `model` of small models of other classes than ours: dense, top-k, and with shared experts."""

from typing import Any

SHAPE = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"kv_lora_rank": 12, "q_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 6, "v_head_dim": 10}
GROUPS = {"n_group": 2, "topk_group": 1}

DENSE: dict[str, Any] = {"type": "llama", "num_key_value_heads": 2, **SHAPE}
TOP_K: dict[str, Any] = {"type": "qwen3_moe", "num_experts": 8, "num_key_value_heads": 2, **ROUTED, **SHAPE}
SHARED: dict[str, Any] = {
    "type": "deepseek_v3",
    **{"n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1, "num_key_value_heads": 4},
    **(ROUTED | SHAPE | LATENT | GROUPS),
}
BALANCED_SHARED: dict[str, Any] = {
    "type": "qwen2_moe",
    **{"num_experts": 8, "num_key_value_heads": 4, "shared_expert_intermediate_size": 32},
    **(ROUTED | SHAPE),
}
CLASSES = {section["type"]: section for section in (DENSE, TOP_K, SHARED, BALANCED_SHARED)}
# Draws masks while it trains: attention dropout, and noise on the router's inputs.
NOISY: dict[str, Any] = {
    "type": "mixtral",
    **{"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2},
    **{"attention_dropout": 0.2, "router_jitter_noise": 0.1},
    **SHAPE,
}
# Balanced by its selection bias, which each step moves by so much.
BIAS = SHARED | {"balance": "bias", "bias_update_rate": 0.05}
