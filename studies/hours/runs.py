"""Public training runs and benchmarks with their speed: which rows of a table count, and what the model reads of each.

A row of `runs.csv` is a published number with its source. It is kept if its architecture and speed are known, and
nothing else limited the speed: fine-tuning and batches of one or two sequences are out, as are the 8B of Llama 3 and
3.1 (whose published hours imply 13 to 15 % of 6 N D) and Llama 3.2 (distilled). Of several releases of one code base
that timed one model on one GPU, the newest counts.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np

from scaling_law import Architecture
from scaling_law.machine import GPUS, ModelWork
from scaling_law.machine.efficiency import SMALL

LEFT_OUT = re.compile(r"^TRL|^Llama 3 8B|^Llama 3\.[12] [183]B|SFT|124M|a user's run")
RELEASE = re.compile(r"Megatron-Bridge ([\d.]+) ")
LABS = {  # who trained or timed it, by what its name or source contains; the first that fits
    "Pythia": "EleutherAI", "fms": "IBM", "ranite": "IBM", "llm-foundry": "MosaicML", "megablocks": "MosaicML",
    "MPT": "MosaicML", "TinyLlama": "TinyLlama", "Apertus": "Apertus", "GLM-130B": "Tsinghua", "Trinity": "Arcee",
    "PithTrain": "MLC", "halo": "White Circle", "Primus": "AMD", "marin": "Marin", "nanochat": "nanochat",
    "DeepSeek 67B": "DeepSeek", "DeepSeek-V2": "DeepSeek", "DeepSeek-V3 pretraining": "DeepSeek",
    "Megatron": "NVIDIA", "NVIDIA": "NVIDIA", "NeMo": "NVIDIA", "Nemotron": "NVIDIA", "Parallel Folding": "NVIDIA",
    "Llama": "Meta", "OPT": "Meta", "SmolLM2": "Hugging Face", "Phi": "Microsoft",
    "phi": "Microsoft", "Falcon": "TII",
}  # fmt: skip
SHEETS = {"A100-40": "A100 40GB", "A100-80": "A100", "A100-64": "A100"}  # the table's names → those of `GPUS`
MARIN = "marin experiments/grug/fast_track/README.md, 032ccc1: MFU, tokens and FLOPs of a run"
# Width, blocks; then parameters, those multiplied, tokens, FLOPs, MFU: dense, and top-8 of 384 on half the width.
LADDER = (
    (512, 6, 36.8e6, 26.5e6, 0.36175872e9, 9.4e16, 0.166, 483e6, 29.2e6, 1.2504e9, 3.5e17, 0.082),
    (768, 8, 82.3e6, 66.1e6, 1.0695e9, 6.3e17, 0.202, 1.42e9, 73.1e6, 3.6333e9, 2.3e18, 0.103),
    (1024, 12, 185.3e6, 161.5e6, 2.8941e9, 3.9e18, 0.267, 3.75e9, 178.8e6, 9.7203e9, 1.4e19, 0.139),
    (1280, 14, 313.6e6, 282.5e6, 5.2303e9, 1.2e19, 0.288, 6.81e9, 312.3e6, 17.4787e9, 4.3e19, 0.156),
)
WORDS = {"interleaved": "VP", "micro_batch": "MBS"}  # of a layout
GPUS_UNKNOWN = 1024  # of a run that does not say
BATCH_UNKNOWN = 4e6  # tokens, likewise
LAID_OUT = ("tp", "pp", "ep", "cp", "dp", "fsdp", "parallelism_words")  # columns that say how


@dataclass(frozen=True)
class Timed:
    """One row: a model, what it was trained on, and the tokens/s of one GPU. Sizes are as in `Architecture`."""

    name: str
    lab: str
    kind: str  # "run" (hours of a whole run), "run-stage" (its steady state), "benchmark"
    gpu: str
    gpus: int
    precision: str  # "bf16", "fp8", "fp4"
    routing: str  # "", "forced" (balanced by force), "trained"
    d_model: int
    n_blocks: int
    attention_width: int  # heads × head width
    routed_blocks: int
    experts_per_token: int
    n_total: float
    n_multiplied: float  # parameters that a token is multiplied with
    sequence_length: int
    tokens_per_second: float
    source: str
    # The published layout: 1 where a degree is not, 0 tokens of a batch.
    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1
    interleaved: int = 1  # parts of the model on each stage of a pipeline
    micro_batch: int = 1  # sequences
    batch_tokens: float = 0.0
    recomputed: int = 0  # 1 where all activations are
    has_layout: int = 0  # 1 where anything of it is published
    # The rest of the model, as in `Architecture`; 0 where unknown or none.
    n_heads: int = 0
    n_kv_heads: int = 0
    vocab_size: int = 0
    experts: int = 1
    d_ff: int = 0
    d_expert: int = 0
    d_shared: int = 0
    gated: int = 1

    @property
    def blocks(self) -> int:
        """As of an `Architecture`, for `machine.communication`."""
        return self.n_blocks

    @property
    def architecture(self) -> Architecture:
        """The model, whose memory and traffic a layout needs; latent attention counts as plain."""
        widths = {name: getattr(self, name) or None for name in ("d_expert", "d_shared", "d_ff")}
        return Architecture(
            *(self.d_model, self.experts, self.n_blocks, self.n_heads, self.vocab_size),
            experts_per_token=self.experts_per_token,
            shared_experts=int(self.d_shared > 0),
            dense_blocks=self.n_blocks - self.routed_blocks if self.experts > 1 else 0,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.attention_width // self.n_heads,
            gated=bool(self.gated),
            **cast(Any, widths),
        )

    def batch(self, tokens: float) -> int:
        """Sequences of a step that the GPUs can share, of so many tokens where its batch is not published."""
        wanted, unit = (self.batch_tokens or tokens) / self.sequence_length, self.gpus
        while unit > wanted and unit % 2 == 0:
            unit //= 2
        return unit * max(1, round(wanted / unit))

    @property
    def passes(self) -> float:
        """Micro-batches of a step; many where the batch is not published."""
        copies = max(1.0, self.gpus / (self.tp * self.pp * self.cp))
        return max(1.0, (self.batch_tokens or 1e9) / self.sequence_length / self.micro_batch / copies)

    @property
    def work(self) -> dict[str, Any]:
        """The work of one token on one device, by the names of `TERMS`."""
        model = ModelWork(
            weights=self.n_multiplied,
            attention=2.0 * self.n_blocks * self.attention_width,
            activations=float(self.n_blocks * self.d_model),
            routed=float(self.routed_blocks * self.experts_per_token * self.d_model),
            n_total=self.n_total,
            n_active=self.n_multiplied,
            n_blocks=float(self.n_blocks),
        )
        return model.in_step(1.0, None, self.sequence_length, 1)

    @property
    def group(self) -> str:
        """What the goals tell apart."""
        size = "MoE" if self.routed_blocks else "dense"
        size += " below 0.5B" if self.n_total < SMALL else ""
        return f"{size}, {'whole runs' if self.kind == 'run' else 'steady state'}"

    @property
    def cell(self) -> tuple[object, ...]:
        """Rows of one cell share a lab, a model, a GPU and a precision."""
        return self.lab, self.d_model, self.n_blocks, self.routed_blocks, self.gpu, self.precision


def read(path: Path) -> list[Timed]:
    """The rows of `runs.csv`."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_typed(row) for row in csv.DictReader(file)]


def derive(table: Path, path: Path) -> Path:
    """Write `runs.csv` from the columns of a public table of runs."""
    with table.open(newline="", encoding="utf-8") as file:
        timed = [*(row for row in map(_timed, csv.DictReader(file)) if row is not None), *_ladder()]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Timed)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(vars(row) for row in _newest(timed))
    return path


def _typed(row: dict[str, str]) -> Timed:
    make = {"int": int, "float": float, "str": str}
    return Timed(**{field.name: make[str(field.type)](row[field.name]) for field in fields(Timed)})


def _timed(row: dict[str, str]) -> Timed | None:
    """A row of the public table; None where it does not count."""
    if LEFT_OUT.search(row["name"]) or not (row["hidden"] and row["heads"] and (speed := _speed(row))):
        return None
    text = f"{row['name']} {row['source']}"
    moe = row["moe"] == "1"
    between = float(row["moe_every_n_layers"] or 1)
    return Timed(
        name=row["name"],
        lab=next((lab for part, lab in LABS.items() if part in text), "other"),
        kind=row["kind"],
        gpu=SHEETS.get(row["gpu"], row["gpu"]),
        gpus=int(float(row["n_gpus"] or GPUS_UNKNOWN)),
        precision="fp4" if "fp4" in row["precision"] else "fp8" if "fp8" in row["precision"] else "bf16",
        routing="" if not moe else "forced" if re.search("forced|fake", row["routing"]) else "trained",
        d_model=int(row["hidden"]),
        n_blocks=int(row["layers"]),
        attention_width=int(row["heads"]) * int(row["head_dim"]),
        routed_blocks=int((int(row["layers"]) - int(row["dense_first_layers"] or 0)) / between) if moe else 0,
        experts_per_token=int(row["top_k"] or 1),
        n_total=1e9 * float(row["params_total_calc_B"]),
        n_multiplied=1e9 * float(row["params_active_matmul_calc_B"]),
        sequence_length=int(row["seq_len"] or 4096),
        tokens_per_second=float(f"{speed:.6g}"),
        source=row["source"],
        **_layout(row),
        **_shape(row),
    )


def _shape(row: dict[str, str]) -> dict[str, int]:
    """What memory and traffic depend on besides."""
    columns = {"n_heads": "heads", "n_kv_heads": "kv_heads", "vocab_size": "vocab", "gated": "gated_ffn"}
    columns |= {"d_ff": "dense_intermediate", "d_expert": "expert_intermediate", "d_shared": "shared_expert_width"}
    sizes = {name: int(float(row.get(column) or 0)) for name, column in columns.items()}
    return sizes | {"experts": int(float(row.get("experts") or 1))}


def _layout(row: dict[str, str]) -> dict[str, Any]:
    """What a row says of its layout, in its columns and words ("TP2 PP8 VP4 EP32 MBS1")."""
    words = row.get("parallelism_words", "")
    numbers = {name: re.search(rf"\b{short}(\d+)", words, re.I) for name, short in WORDS.items()}
    degrees = {name: int(float(row.get(name) or 1)) for name in ("tp", "pp", "ep", "cp")}
    recomputed = int(bool(re.search(r"checkpointing (True|yes)|recompute full|full recompute", words)))
    said = {name: int(match[1]) for name, match in numbers.items() if match}
    numbers_of = {"recomputed": recomputed, "has_layout": int(any(row.get(name) for name in LAID_OUT))}
    return degrees | said | numbers_of | {"batch_tokens": float(row.get("batch_tokens") or 0)}


def _ladder() -> Iterable[Timed]:
    """Marin's ladder, which the table lacks: small models on one node of H100s."""
    for d_model, n_blocks, *numbers in LADDER:
        for routed, (total, multiplied, tokens, flops, mfu) in enumerate((numbers[:5], numbers[5:])):
            yield Timed(
                name=f"Marin's ladder, d{d_model}, {'MoE' if routed else 'dense'}",
                lab="Marin",
                kind="benchmark",
                gpu="H100",
                gpus=8,
                precision="bf16",
                routing="trained" if routed else "",
                d_model=d_model,
                n_blocks=n_blocks,
                attention_width=d_model,
                routed_blocks=n_blocks if routed else 0,
                experts_per_token=4 if routed else 1,  # 8 on half the width
                n_total=total,
                n_multiplied=multiplied,
                sequence_length=4096,
                tokens_per_second=float(f"{mfu * GPUS['H100'].peak_flops * tokens / flops:.6g}"),
                source=MARIN,
            )


def _speed(row: dict[str, str]) -> float:
    """Tokens/s of one GPU as published, or from the TFLOP/s that a row reports; 0 where it has neither."""
    if row["tokens_per_s_per_gpu"]:
        return float(row["tokens_per_s_per_gpu"])
    if not (row["tflops_per_gpu_reported"] and row["params_active_matmul_calc_B"]):
        return 0.0
    attention = int(row["seq_len"] or 4096) * int(row["layers"]) * int(row["heads"]) * int(row["head_dim"])
    flops = 6e9 * float(row["params_active_matmul_calc_B"]) + 6 * attention
    return 1e12 * float(row["tflops_per_gpu_reported"]) / flops


def _newest(rows: Iterable[Timed]) -> list[Timed]:
    """Without the older releases of a code base that timed one model on one GPU in one precision."""
    kept = list(rows)
    releases = [(match := RELEASE.search(row.name)) and tuple(map(int, match[1].split("."))) for row in kept]
    newest: dict[tuple[object, ...], Any] = {}
    for row, release in zip(kept, releases, strict=True):
        if release:
            newest[row.cell] = max(newest.get(row.cell, release), release)
    return [row for row, release in zip(kept, releases, strict=True) if not release or newest[row.cell] == release]


def seconds(rows: Iterable[Timed]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Published seconds of one token on one GPU, [n]."""
    return np.array([1.0 / row.tokens_per_second for row in rows])
