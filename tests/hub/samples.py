"""Sample records and files for the tests of `hub`."""

import json
import struct
from typing import Any

from hub import RunRecord

# Python that hides this project's packages from the process that runs it.
HIDDEN = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("modeling_switch_moe", "training", "hub", "scaling_law"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def record_fields(**changes):
    """The fields of a valid record of a small MoE run."""
    fields: dict[str, Any] = {
        "run_id": "demo-d64-E4-a",
        "sweep": "demo",
        "status": "final",
        "d_model": 64,
        "n_blocks": 1,
        "n_heads": 1,
        "experts": 4,
        "vocab_size": 512,
        "sequence_length": 128,
        "n_active": 118_784,
        "n_total": 229_376,
        "tokens": 1_500_000,
        "steps": 733,
        "train_loss": 4.25,
        "train_loss_window_tokens": 65_536,
        "eval_loss": 4.3125,
        "eval_tokens": 131_072,
        "drop_rate": 0.03,
        "expert_load_max_over_mean": 1.4,
        "schedule": {
            "horizon_tokens": 1_500_000,
            "warmup_tokens": 15_000,
            "decay_tokens": 300_000,
            "batch_ramp": [{"from_tokens": 0, "sequences": 8}, {"from_tokens": 500_000, "sequences": 16}],
            "peak_learning_rate": 0.002,
            "learning_rate_law": "published, code reading",
        },
        "optimizer": {
            "name": "AdamW",
            "beta1": 0.9,
            "beta2": 0.999,
            "epsilon": 1e-8,
            "weight_decay": 0.1,
            "gradient_clip_norm": 0.1,
        },
        "seed": 0,
        "precision": "fp32",
        "dataset": {"id": "machine-documentation", "fingerprint": "9c1e"},
        "tokenizer": {"id": "bpe-512", "fingerprint": "77ab"},
        "training_flops": 6.0 * 118_784 * 1_500_000,
        "tokens_per_second": 21_000.0,
        "hardware": "2 CPU cores",
        "wall_time_seconds": 71.4,
        "versions": {"torch": "2.13.0", "python": "3.11.7"},
    }
    width = changes.get("d_model")
    if isinstance(width, int) and width % 64 == 0:
        fields.update({"n_blocks": width // 64, "n_heads": width // 64})
    fields.update(changes)
    return fields


# What decides a model besides its size, tokens and schedule; records written before these fields were have none of it.
DECIDING: dict[str, Any] = {
    "micro_batch_sequences": 8,
    "capacity_factor": 1.25,
    "capacity_group_tokens": 1024,
    "balance_loss_coefficient": 0.01,
    "z_loss_coefficient": 0.001,
    "initialization": "paper",
    "final_norm": True,
    "attention_precision": "float32",
    "optimizer": {**record_fields()["optimizer"], "weight_decay_on": "matrices"},
}


def make_record(**changes):
    return RunRecord(**record_fields(**changes))


def flip(file, content, bit):
    """Write a file's content with one bit changed."""
    file.write_bytes(content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :])


def write_safetensors(path, values):
    """A safetensors file with one fp32 vector, written by the format's definition."""
    data = struct.pack(f"<{len(values)}f", *values)
    header = json.dumps({"weight": {"dtype": "F32", "shape": [len(values)], "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
