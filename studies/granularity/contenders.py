"""What is compared: models of the same active parameters, and but for the dense one of the same total."""

from __future__ import annotations

from dataclasses import dataclass

from scaling_law import Architecture
from studies.crossing.records import BLOCKS, HEAD, VOCABULARY

D_MODEL, WIDTH = 32, 3 * 32  # of the feed-forward that is active
TOKENS = (1e6, 2e6, 4e6)
OURS, ROUTED, SHARED = None, "qwen3_moe", "qwen2_moe"  # as `size.model_sections` chooses classes
EITHER = "dots1"  # with or without shared experts, and otherwise the same; balanced by bias


@dataclass(frozen=True)
class Contender:
    """A model with its optimizer, and the name of the contender that it is compared with."""

    name: str
    against: str
    architecture: Architecture
    model_type: str | None = OURS
    optimizer: str = "adamw"


def _split(parts: int, shared: int = 0) -> Architecture:
    """E = 8 with each expert split into `parts`, of which as many are active, `shared` of them always."""
    return Architecture(
        *(D_MODEL, 8 * parts - shared, BLOCKS, D_MODEL // HEAD, VOCABULARY),
        experts_per_token=parts - shared,
        d_expert=WIDTH // parts,
        shared_experts=shared,
    )


DENSE, TOP_1, BRIDGE, HALVES, EIGHTHS = "dense", "8, top-1", "8, top-1, Qwen3", "16 halves, top-2", "64 eighths, top-8"
UNSHARED = f"{EIGHTHS}, dots1"
_DENSE, _TOP_1 = Architecture(D_MODEL, 1, BLOCKS, D_MODEL // HEAD, VOCABULARY), _split(1)

CONTENDERS = (
    Contender(DENSE, TOP_1, _DENSE),
    Contender(BRIDGE, TOP_1, _TOP_1, ROUTED),
    Contender(HALVES, BRIDGE, _split(2), ROUTED),
    Contender(EIGHTHS, BRIDGE, _split(8), ROUTED),
    Contender("15 halves, top-1, and 1 shared", HALVES, _split(2, shared=1), SHARED),
    Contender(UNSHARED, EIGHTHS, _split(8), EITHER),
    Contender("63 eighths, top-7, and 1 shared, dots1", UNSHARED, _split(8, shared=1), EITHER),
    Contender("dense, Muon", DENSE, _DENSE, optimizer="muon"),
    Contender("8, top-1, Muon", TOP_1, _TOP_1, optimizer="muon"),
)
ALL = {contender.name: contender for contender in (Contender(TOP_1, "", _TOP_1), *CONTENDERS)}
