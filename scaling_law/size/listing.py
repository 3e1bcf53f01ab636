"""The runs of the paper (Ludziejewski et al. 2025, Appendix "Experiments Listing"): sizes and token counts, no losses.

Fifty-three rows, 270 runs. They give the published law its fitted ranges, and tests and benchmarks a real design.
Eight rows have heads of 128 dimensions (blocks ≠ heads). Token counts are as printed, rounded to two or three digits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling_law.size.architecture import Architecture


class Row(NamedTuple):
    """One line of the listing; `tokens` in billions; n_total and n_active as printed there."""

    n_total: str
    n_heads: int
    n_blocks: int
    d_model: int
    n_active: str
    experts: int
    tokens: tuple[float, ...]

    @property
    def architecture(self) -> Architecture:
        return Architecture(self.d_model, self.experts, self.n_blocks, self.n_heads)


ROWS: tuple[Row, ...] = (
    Row("5.0B", 16, 16, 1024, "321M", 32, (16, 8, 4, 2, 1, 0.5)),
    Row("3.8B", 28, 28, 1792, "1.3B", 4, (11.1, 5.6, 2.8, 2)),
    Row("3.3B", 11, 21, 1408, "683M", 8, (16, 8, 4, 2, 1, 0.5)),
    Row("3.0B", 26, 26, 1664, "1.1B", 4, (80, 64, 48, 32, 16, 8, 4, 2, 1, 0.5)),
    Row("2.7B", 36, 36, 2304, "2.7B", 1, (9.2, 5.5, 2.8, 2, 1.4, 0.98)),
    Row("2.6B", 30, 30, 1920, "1.6B", 2, (5.4, 2.7)),
    Row("2.6B", 16, 16, 1024, "321M", 16, (16, 8, 4, 2, 1, 0.5)),
    Row("2.2B", 28, 28, 1792, "1.3B", 2, (18.6, 11.1, 5.6, 4, 2.8, 2)),
    Row("2.1B", 12, 12, 768, "169M", 32, (8, 4, 2, 1, 0.5)),
    Row("2.1B", 10, 16, 1280, "469M", 8, (32, 16, 8, 4, 2, 1)),
    Row("1.9B", 22, 22, 1408, "709M", 4, (35.3, 12.2, 10.6, 7.7, 5.3, 3.8)),
    Row("1.8B", 11, 21, 1408, "683M", 4, (8, 16, 4, 2, 1, 0.5)),
    Row("1.8B", 26, 26, 1664, "1.1B", 2, (16, 8, 4, 2, 1, 0.5)),
    Row("1.6B", 30, 30, 1920, "1.6B", 1, (5.4, 2.7)),
    Row("1.4B", 16, 16, 1024, "321M", 8, (16, 8, 4, 2, 1, 0.5)),
    Row("1.3B", 28, 28, 1792, "1.3B", 1, (6.5, 3.3, 18.6, 11.1, 5.6, 4, 2.8, 2)),
    Row("1.3B", 10, 10, 640, "118M", 32, (4, 2, 1, 0.5)),
    Row("1.2B", 10, 16, 1280, "469M", 4, (32, 16, 8, 4, 2, 1, 0.5)),
    Row("1.1B", 12, 12, 768, "169M", 16, (8, 4, 2, 1, 0.5)),
    Row("1.1B", 26, 26, 1664, "1.1B", 1, (14, 12, 10, 80, 64, 48, 32)),
    Row("1.1B", 26, 26, 1664, "1.1B", 1, (16, 8, 4, 2, 1, 0.5)),
    Row("1.1B", 22, 22, 1408, "709M", 2, (3.8, 49.8, 24.9, 12.5, 6.2, 3.1, 1.6, 0.778)),
    Row("1.1B", 22, 22, 1408, "709M", 2, (21.8, 18.7, 15.6, 35.3, 12.2, 10.6, 7.7, 5.3)),
    Row("1.1B", 18, 18, 1152, "426M", 4, (31, 25.9, 20.7, 10.4, 5.2, 2.6, 1.3)),
    Row("1.1B", 11, 21, 1408, "683M", 2, (32, 16, 8, 4, 2, 1, 0.5)),
    Row("890M", 24, 24, 1536, "890M", 1, (9.9, 5)),
    Row("850M", 20, 20, 1280, "555M", 2, (16, 8)),
    Row("774M", 16, 16, 1024, "321M", 4, (16, 8, 4, 2, 1, 0.5)),
    Row("709M", 22, 22, 1408, "709M", 1, (35.3, 12.2, 10.6, 7.7, 5.3, 3.8, 12.5, 6.2)),
    Row("705M", 10, 16, 1280, "469M", 2, (32, 16, 8, 4, 2, 1, 0.5)),
    Row("683M", 11, 21, 1408, "683M", 1, (32, 16, 8, 4, 2, 1, 0.5)),
    Row("671M", 10, 10, 640, "118M", 16, (4, 2, 1, 0.5)),
    Row("664M", 8, 8, 512, "79M", 32, (2, 1, 0.5)),
    Row("615M", 12, 12, 768, "169M", 8, (8, 4, 2, 1, 0.5)),
    Row("555M", 20, 20, 1280, "555M", 1, (16, 8)),
    Row("472M", 16, 16, 1024, "321M", 2, (16, 8, 4, 2, 1, 0.5)),
    Row("469M", 10, 16, 1280, "469M", 1, (32, 16, 8, 4, 2, 1, 0.5)),
    Row("376M", 10, 10, 640, "118M", 8, (4, 2, 1, 0.5)),
    Row("362M", 8, 8, 512, "79M", 16, (2, 1, 0.5)),
    Row("360M", 12, 12, 768, "169M", 4, (8, 4, 2, 1, 0.5)),
    Row("321M", 16, 16, 1024, "321M", 1, (16, 8, 4, 2, 1, 0.5)),
    Row("289M", 11, 11, 704, "142M", 4, (4.5, 2.3, 1.1)),
    Row("285M", 9, 9, 576, "97M", 8, (3.3, 1.7)),
    Row("282M", 13, 13, 832, "201M", 2, (6.4, 3.2, 1.6, 0.8)),
    Row("233M", 12, 12, 768, "169M", 2, (8, 4, 2, 1, 0.5)),
    Row("228M", 10, 10, 640, "118M", 4, (4, 2, 1, 0.5)),
    Row("211M", 8, 8, 512, "79M", 8, (2, 1, 0.5)),
    Row("169M", 12, 12, 768, "169M", 1, (8, 4, 2, 1, 0.5)),
    Row("154M", 10, 10, 640, "118M", 2, (4, 2, 1, 0.5)),
    Row("135M", 8, 8, 512, "79M", 4, (2, 1, 0.5)),
    Row("118M", 10, 10, 640, "118M", 1, (4, 2, 1, 0.5)),
    Row("98M", 8, 8, 512, "79M", 2, (2, 1, 0.5)),
    Row("79M", 8, 8, 512, "79M", 1, (2, 1, 0.5)),
)


class Design(NamedTuple):
    """The runs as columns of one entry per run: parameters, tokens, E, and the index of the trunk.

    Runs of one size and E shared a trunk: "longer runs reuse intermediate checkpoints from the shorter ones".
    """

    n_active: NDArray[np.float64]
    tokens: NDArray[np.float64]
    experts: NDArray[np.float64]
    trunk: NDArray[np.int64]


def published_design() -> Design:
    """The 270 runs of the listing."""
    trunks: dict[Architecture, int] = {}
    rows = []
    for row in ROWS:
        trunk = trunks.setdefault(row.architecture, len(trunks))
        rows += [(row.architecture.n_active, tokens * 1e9, row.experts, trunk) for tokens in row.tokens]
    n_active, tokens, experts, trunk_ids = zip(*rows, strict=True)
    return Design(np.array(n_active, float), np.array(tokens), np.array(experts, float), np.array(trunk_ids))
