"""Train every causal type of transformers for two steps of train.py's loop, at tiny size; say why some do not train.

    python -m benchmarks.every_class

Writes docs/tables/every_class.csv. A type trains if its parameters are those that were counted, no token changes
logits before it, and two steps have finite losses.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import parser_of
from scaling_law.size.model_configs import Model
from training.configuration.class_counts import read_class
from training.configuration.model_classes import fields_of, list_default_parts, model_types
from training.run.timing import arguments_of_steps, session_on_random_tokens, timed_step

PAGE = Path(__file__).parents[1] / "docs" / "tables" / "every_class.csv"
LAYERS = 4
LENGTH = 32
VOCABULARY = 96
# Sizes by patterns of fields' names, the later ones first.
SIZES = (
    (LAYERS, r"num_hidden_layers|n_layers?|num_layers|num_blocks|(num_)?(decoder|encoder)_layers"),
    (64, r"hidden_size|n_embd|d_model|emb_dim|embedding_(size|dim)|word_embed_proj_dim|.*put_embedding_size"),
    (64, r"attention_hidden_size|lru_width|.*_embed_dim|dim_model_base"),
    (4, r"(num_|n_|swa_|decoder_|encoder_|linear_|mamba_)*(attention_|key_|value_)?heads?|num_query_groups"),
    (2, r"(swa_)?num_key_value_heads|num_kv_heads"),
    (16, r".*head_dim|d_head|dim_head|kv_channels|.*attention_head_(size|dim)|rotary_dim|mamba_d_head"),
    (96, r".*intermediate_size.*|.*ffn_dim|n_inner|dim_ff|dff|.*ffn_hidden_size|d_inner|feed_forward_size"),
    (24, r"moe_intermediate_size"),
    (8, r"num_experts|num_local_experts|n_routed_experts|moe_num_experts"),
    (2, r"num_experts_per_tok(en)?|moe_topk|top_k_experts|moe_k"),
    (12, r"(kv|q|o)_lora_rank"),
    (8, r"qk_rope_head_dim|qk_nope_head_dim|v_head_dim"),
    (VOCABULARY, r".*vocab_size.*"),
    (2, r"n_group|num_expert_group"),
    (1, r"topk_group|(mamba_)?n_?groups"),
    (16, r"(mamba_)?chunk_size|block_size"),
)
# Fields that no default has, or that must fit together.
_MAMBA = {"mamba_d_head": 32}
_INDEXER = {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 16}
OWN: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}},
    "qwen4_exp_text": {**_INDEXER, "indexer_compress_ratio": 4},
    **dict.fromkeys(("bamba", "granitemoehybrid"), _MAMBA),
    "falcon_h1": {"mamba_d_ssm": 128, **_MAMBA},
    "mamba2": {"head_dim": 32},
    "hunyuan_v1_dense": {"head_dim": 16},
    "ministral": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "num_experts": 8, "moe_topk": 2},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 16},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "reformer": {"axial_pos_embds": False},
    "zamba": {"num_hidden_layers": 6, "layers_block_type": ["linear_attention", "linear_attention", "hybrid"] * 2},
}


def section(kind: str) -> dict[str, Any]:
    """Return the section `model` of a tiny model of this type."""
    from transformers import CONFIG_MAPPING

    # Such a type is refused, with whatever fields.
    if list_default_parts(kind):
        return {"type": kind}
    default = CONFIG_MAPPING[kind]()
    known_fields = fields_of(kind)
    fields: dict[str, Any] = {}
    for name, value in default.to_dict().items():
        if name not in known_fields:
            continue
        if isinstance(value, list) and len(value) == getattr(default, "num_hidden_layers", None):
            fields[name] = value[:LAYERS]
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            sizes = [size for size, pattern in SIZES if re.fullmatch(pattern, name)]
            if sizes:
                fields[name] = min(sizes[-1], value)
    if "kv_lora_rank" in fields:
        if "num_key_value_heads" in fields:
            fields["num_key_value_heads"] = fields["num_attention_heads"]
        if "head_dim" in fields:
            fields["head_dim"] = 8
    return {**fields, **OWN.get(kind, {}), "type": kind}


def train_two_steps(kind: str) -> list[float]:
    """Return the losses of two steps. Raises ValueError, or an error of the class, where it does not train."""
    arguments = arguments_of_steps({"micro_batch_sequences": 2, "precision": "fp32"}, section(kind), LENGTH)
    config = arguments.model.config(VOCABULARY, LENGTH, 0)
    counted_parameters = Model(kind, kind, *read_class(config.to_dict())).parameters
    session = session_on_random_tokens(arguments, VOCABULARY)
    parameters = sum(parameter.numel() for parameter in session.model.parameters())
    if counted_parameters != parameters:
        raise ValueError(f"{counted_parameters:,} parameters were counted, the class has {parameters:,}")
    if not _is_causal(session.model.eval()):
        raise ValueError("it is given the tokens that it predicts")
    session.model.train()
    return [timed_step(session)[0].loss for _ in range(2)]


@torch.no_grad()
def _is_causal(model: torch.nn.Module) -> bool:
    """Return whether a change of the last token leaves the logits before it as they are."""
    ids = torch.randint(VOCABULARY - 1, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    other_ids = torch.cat([ids[:, :-1], ids[:, -1:] + 1], dim=1)
    logits = model(ids, ids, output_logits=True).logits[:, :-1]
    other_logits = model(other_ids, other_ids, output_logits=True).logits[:, :-1]
    return torch.allclose(logits, other_logits, atol=1e-4)


def verdict(kind: str) -> str:
    """Return what the guide says of a type: that it trains, or in one line why not."""
    try:
        train_two_steps(kind)
    except Exception as error:
        # Every class has errors of its own.
        reason = " ".join(str(error).removeprefix("invalid configuration:").split()) or type(error).__name__
        return reason.removeprefix("model: ").removeprefix(f"{kind}: ").removeprefix(f"transformers' {kind} ")
    return "trains"


def main() -> None:
    parser_of(__doc__).parse_args()
    with PAGE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["type", "two steps"])
        for kind in model_types():
            writer.writerow([kind, verdict(kind)])
            file.flush()


if __name__ == "__main__":
    main()
