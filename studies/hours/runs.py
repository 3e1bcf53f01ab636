"""Public training runs and benchmarks with their speed: the rows of a table that count, and their columns.

A row of `runs.csv` is a published number with its source. It is kept if its architecture and speed are known, and
nothing else limited the speed: fine-tuning and batches of one or two sequences are out, as are the 8B of Llama 3 and
3.1 (whose published hours imply 13 to 15 % of 6 N D) and Llama 3.2 (distilled). Of several releases of one code base
that timed one model on one GPU, the newest counts.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from scaling_law import Architecture
from scaling_law.machine import ModelWork
from scaling_law.machine.efficiency import SMALL
from studies.common import read_csv, rows_of, write_csv

LEFT_OUT = re.compile(r"^TRL|^Llama 3 8B|^Llama 3\.[12] [183]B|SFT|124M|a user's run")
RELEASE = re.compile(r"Megatron-Bridge ([\d.]+) ")
# Who trained or timed a run, by what its name or source contains; the first that fits.
LABS = {
    "Pythia": "EleutherAI", "fms": "IBM", "ranite": "IBM", "llm-foundry": "MosaicML", "megablocks": "MosaicML",
    "MPT": "MosaicML", "TinyLlama": "TinyLlama", "Apertus": "Apertus", "GLM-130B": "Tsinghua", "Trinity": "Arcee",
    "PithTrain": "MLC", "halo": "White Circle", "Primus": "AMD", "marin": "Marin", "nanochat": "nanochat",
    "DeepSeek 67B": "DeepSeek", "DeepSeek-V2": "DeepSeek", "DeepSeek-V3 pretraining": "DeepSeek",
    "Megatron": "NVIDIA", "NVIDIA": "NVIDIA", "NeMo": "NVIDIA", "Nemotron": "NVIDIA", "Parallel Folding": "NVIDIA",
    "Llama": "Meta", "OPT": "Meta", "SmolLM2": "Hugging Face", "Phi": "Microsoft",
    "phi": "Microsoft", "Falcon": "TII",
}  # fmt: skip
# The table's names of GPUs → those of `GPUS`.
SHEETS = {"A100-40": "A100 40GB", "A100-80": "A100", "A100-64": "A100"}
MARIN = "marin experiments/grug/fast_track/README.md, 032ccc1: MFU, tokens and FLOPs of a run"
# GPUs, and tokens of a batch, of a run that does not say.
GPUS_UNKNOWN = 1024
BATCH_UNKNOWN = 4e6
# Our names of the rest of a model → the table's.
SHAPE = {
    "n_heads": "heads",
    "n_kv_heads": "kv_heads",
    "vocab_size": "vocab",
    "gated": "gated_ffn",
    "d_ff": "dense_intermediate",
    "d_expert": "expert_intermediate",
    "d_shared": "shared_expert_width",
}
# Columns that say something of the layout.
LAYOUT_COLUMNS = ("tp", "pp", "ep", "cp", "dp", "fsdp", "parallelism_words")


@dataclass(frozen=True)
class Timed:
    """One row: a model, what it was trained on, and the tokens/s of one GPU. Sizes are as in `Architecture`."""

    name: str
    lab: str
    # "run" (hours of a whole run), "run-stage" (its steady state), "benchmark"
    kind: str
    gpu: str
    gpus: int
    # "bf16", "fp8", "fp4"
    precision: str
    # "", "forced" (balanced by force), "trained"
    routing: str
    d_model: int
    n_blocks: int
    # Heads × head width.
    attention_width: int
    routed_blocks: int
    experts_per_token: int
    n_total: float
    # Parameters that a token is multiplied with.
    n_multiplied: float
    sequence_length: int
    tokens_per_second: float
    source: str
    # 0 where none are published.
    batch_tokens: float = 0.0
    # 1 where anything of the layout is published.
    has_layout: int = 0
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
    def architecture(self) -> Architecture:
        """The model, whose memory and traffic a layout needs; latent attention counts as plain."""
        widths = {name: getattr(self, name) or None for name in ("d_expert", "d_shared", "d_ff")}
        return Architecture(
            self.d_model,
            self.experts,
            self.n_blocks,
            self.n_heads,
            self.vocab_size,
            experts_per_token=self.experts_per_token,
            shared_experts=int(self.d_shared > 0),
            dense_blocks=self.n_blocks - self.routed_blocks if self.experts > 1 else 0,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.attention_width // self.n_heads,
            gated=bool(self.gated),
            **cast(Any, widths),
        )

    def batch(self, tokens: float) -> int:
        """Return the sequences of a step that the GPUs can share, of so many tokens if its batch is not published."""
        sequences = (self.batch_tokens or tokens) / self.sequence_length
        unit = self.gpus
        while unit > sequences and unit % 2 == 0:
            unit //= 2
        return unit * max(1, round(sequences / unit))

    @property
    def work(self) -> dict[str, Any]:
        """The work of one token on one device, by the names of `TERMS`."""
        return self.model_work.in_step(1.0, None, self.sequence_length, 1)

    @property
    def model_work(self) -> ModelWork:
        """Properties of the model that decide its step time."""
        return ModelWork(
            weights=self.n_multiplied,
            attention=2.0 * self.n_blocks * self.attention_width,
            activations=float(self.n_blocks * self.d_model),
            routed=float(self.routed_blocks * self.experts_per_token * self.d_model),
            n_total=self.n_total,
            n_blocks=float(self.n_blocks),
        )

    @property
    def group(self) -> str:
        """The group of rows that a goal is set for."""
        model = "MoE" if self.routed_blocks else "dense"
        size = " below 0.5B" if self.n_total < SMALL else ""
        duration = "whole runs" if self.kind == "run" else "steady state"
        return f"{model}{size}, {duration}"

    @property
    def cell(self) -> tuple[object, ...]:
        """The lab, model, GPU and precision that the rows of one cell share."""
        return self.lab, self.d_model, self.n_blocks, self.routed_blocks, self.gpu, self.precision


def read(path: Path) -> list[Timed]:
    """Read the rows of `runs.csv`."""
    return read_csv(path, Timed)


def derive(table: Path, path: Path) -> Path:
    """Write `runs.csv` from the columns of a public table of runs.

    The rows of Marin's ladder, which the table lacks, stay: transcribed, small models on one node of H100s.
    """
    with table.open(newline="", encoding="utf-8") as file:
        rows = [row for row in map(parse_row, csv.DictReader(file)) if row is not None]
    ladder = [row for row in read(path) if row.source == MARIN] if path.exists() else []
    return write_csv(path, rows_of([*_newest(rows), *ladder], Timed))


def parse_row(row: dict[str, str]) -> Timed | None:
    """Read a row of the public table; None where it does not count."""

    def integer(column: str, default: int = 0) -> int:
        return int(float(row.get(column) or default))

    heads = integer("heads")
    attention_width = heads * integer("head_dim")
    speed = _tokens_per_second(row, attention_width)
    if LEFT_OUT.search(row["name"]) or not (row["hidden"] and heads and speed):
        return None
    name_and_source = f"{row['name']} {row['source']}"
    routed_blocks = 0
    routing = ""
    if row["moe"] == "1":
        blocks_after_dense = integer("layers") - integer("dense_first_layers")
        routed_blocks = int(blocks_after_dense / float(row["moe_every_n_layers"] or 1))
        routing = "forced" if re.search("forced|fake", row["routing"]) else "trained"
    return Timed(
        name=row["name"],
        lab=next((lab for word, lab in LABS.items() if word in name_and_source), "other"),
        kind=row["kind"],
        gpu=SHEETS.get(row["gpu"], row["gpu"]),
        gpus=integer("n_gpus", GPUS_UNKNOWN),
        precision=next((name for name in ("fp4", "fp8") if name in row["precision"]), "bf16"),
        routing=routing,
        d_model=integer("hidden"),
        n_blocks=integer("layers"),
        attention_width=attention_width,
        routed_blocks=routed_blocks,
        experts_per_token=integer("top_k", 1),
        n_total=1e9 * float(row["params_total_calc_B"]),
        n_multiplied=_n_multiplied(row),
        sequence_length=_sequence_length(row),
        tokens_per_second=float(f"{speed:.6g}"),
        source=row["source"],
        batch_tokens=float(row.get("batch_tokens") or 0),
        has_layout=int(any(row.get(name) for name in LAYOUT_COLUMNS)),
        **{name: integer(column) for name, column in SHAPE.items()},
        experts=integer("experts", 1),
    )


def _n_multiplied(row: dict[str, str]) -> float:
    return 1e9 * float(row["params_active_matmul_calc_B"] or 0)


def _sequence_length(row: dict[str, str]) -> int:
    return int(float(row.get("seq_len") or 4096))


def _tokens_per_second(row: dict[str, str], attention_width: int) -> float:
    """Return the tokens/s of one GPU, from the TFLOP/s where the row reports these alone; 0 if unknown."""
    speed = float(row["tokens_per_s_per_gpu"] or 0)
    multiplied = _n_multiplied(row)
    if speed or not row["tflops_per_gpu_reported"] or not multiplied:
        return speed
    n_blocks = int(float(row.get("layers") or 0))
    flops = 6 * multiplied + 6 * _sequence_length(row) * n_blocks * attention_width
    return 1e12 * float(row["tflops_per_gpu_reported"]) / flops


def _newest(rows: Iterable[Timed]) -> list[Timed]:
    """Leave out the older releases of a code base that timed one model on one GPU in one precision."""
    all_rows = list(rows)
    releases = [_release(row) for row in all_rows]
    newest: dict[tuple[object, ...], tuple[int, ...]] = {}
    for row, release in zip(all_rows, releases, strict=True):
        if release:
            newest[row.cell] = max(newest.get(row.cell, release), release)
    return [row for row, release in zip(all_rows, releases, strict=True) if not release or newest[row.cell] == release]


def _release(row: Timed) -> tuple[int, ...]:
    """Return the release that timed a row; () if its name has none."""
    match = RELEASE.search(row.name)
    return tuple(map(int, match[1].split("."))) if match else ()


def seconds(rows: Iterable[Timed]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the published seconds of one token on one GPU, [n]."""
    return np.array([1.0 / row.tokens_per_second for row in rows])
