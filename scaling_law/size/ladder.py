"""Ladders: models of one shape, of every width and E, as a law and a machine see them.

`PaperLadder` is the paper's shape, which has a formula for any width. `size.family` makes ladders of released models.
An E is total over active feed-forward width, as in laws of top-1 models; 1 is dense.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError
from hub.base.types import Fields
from scaling_law.size.architecture import (
    HEAD_DIM,
    VOCAB_SIZE,
    Architecture,
    Span,
    size_in_width,
    width_of_total,
)
from scaling_law.size.arrays import FloatArray
from scaling_law.size.widths import Widths

# A limit may miss the width of a model that exists by rounding.
ROUNDING = 1e-12
# Up to this width all multiples of 64 exist.
FINEST = 32_768


def list_widths(step: int, finest: int, widest: float) -> list[int]:
    """List the multiples of a step up to `finest`, and above it as many in each octave as in the one below."""
    widths = [*range(step, finest + 1, step)]
    while widths[-1] < widest:
        step *= 2
        widths += range(widths[-1] + step, 2 * widths[-1] + 1, step)
    return widths


class Ladder(ABC):
    """Models of one shape. Widths between those that exist, the rungs, are those of models that are interpolated.

    `own_n_active` among the variables is N_act with the model's own vocabulary, of which 6 N D are counted;
    `n_active` is N_act as laws count it.
    """

    @property
    @abstractmethod
    def smallest(self) -> float:
        """The d_model of the smallest model."""

    @property
    @abstractmethod
    def design(self) -> dict[str, float]:
        """Granularity, the shared part of the active width, and the share of blocks with experts."""

    @abstractmethod
    def every_rung(self, largest: float) -> FloatArray:
        """List the d_model that exist, at least up to `largest`."""

    def rungs(self, largest: float) -> FloatArray:
        """List the d_model that exist up to `largest`, the smallest in any case."""
        widths = self.every_rung(largest)
        count = np.searchsorted(widths, largest * (1 + ROUNDING), side="right")
        return widths[: max(1, int(count))]

    @abstractmethod
    def widths(self, d_model: ArrayLike, experts: ArrayLike) -> Widths:
        """Return models of these widths and E as arrays; broadcasts."""

    @abstractmethod
    def variables(self, d_model: ArrayLike, experts: ArrayLike) -> Fields:
        """Return what a law may depend on, named as in `Architecture.variables`, and `own_n_active`; broadcasts."""

    @abstractmethod
    def architecture(self, d_model: float, experts: float) -> Architecture:
        """Return the architecture of a rung. ValueError where there is none."""

    @abstractmethod
    def cache_bytes(self, d_model: ArrayLike, tokens: float, bytes_per_element: float) -> Any:
        """Count the bytes of the KV cache of one sequence of so many tokens; broadcasts."""

    @abstractmethod
    def width_of_active(self, n_active: ArrayLike) -> Any:
        """Find the d_model of this N_act, as laws count it; broadcasts."""

    @abstractmethod
    def beside(self, d_model: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Find the rung at or below each width, the smallest in any case, and the one above."""

    def nearest(self, d_model: float) -> int:
        """Find the rung next to a width."""
        below, above = self.beside(np.array(d_model))
        return round(float(below if d_model - below < above - d_model else above))


@dataclass(frozen=True)
class PaperLadder(Ladder):
    """The paper's shape: n_blocks = n_heads = d_model / 64, and experts of width 3 d_model.

    Each is split into G = `granularity`, of which G are active, a part `shared_ratio` of them shared: the parameters
    depend on E, total over active feed-forward width, alone. Widths may be fractional.
    """

    granularity: float = 1.0
    shared_ratio: float = 0.0
    vocab_size: int = VOCAB_SIZE

    @property
    def smallest(self) -> float:
        return float(HEAD_DIM)

    @property
    def design(self) -> dict[str, float]:
        return {"granularity": self.granularity, "shared_ratio": self.shared_ratio, "routed_share": 1.0}

    def every_rung(self, largest: float) -> FloatArray:
        return np.array(list_widths(HEAD_DIM, FINEST, largest), float)

    def widths(self, d_model: ArrayLike, experts: ArrayLike) -> Widths:
        d, e = np.broadcast_arrays(np.asarray(d_model, float), np.asarray(experts, float))
        sizes = self.variables(d, e)
        blocks = d / HEAD_DIM
        return Widths(
            d_model=d,
            experts=np.where(e > 1, (e - self.shared_ratio) * self.granularity, 1.0),
            experts_per_token=np.where(e > 1, sizes["experts_per_token"], 1.0),
            d_expert=3.0 * d / np.where(e > 1, self.granularity, 1.0),
            active_width=3.0 * d,
            n_active=sizes["n_active"],
            n_total=sizes["n_total"],
            n_active_non_embedding=sizes["n_active_non_embedding"],
            n_total_non_embedding=sizes["n_total_non_embedding"],
            blocks=blocks,
            routed_blocks=blocks,
            heads=blocks,
            n_kv_heads=blocks,
            head_dim=HEAD_DIM,
            embedding_parameters=2.0 * d * self.vocab_size,
            lookup_parameters=0,
            vocab_size=self.vocab_size,
            tied_embeddings=False,
            gated=True,
            products=((Span(1), 2.0 * blocks * d),),
        )

    def variables(self, d_model: ArrayLike, experts: ArrayLike) -> Fields:
        linear, active = size_in_width(1.0, self.vocab_size)
        _, total = size_in_width(experts, self.vocab_size)
        d = np.asarray(d_model)
        e = np.asarray(experts, float)
        embedding = linear * d
        cube = d**3
        n_active = embedding + active * cube
        return {
            "n_active": n_active,
            "n_total": embedding + total * cube,
            "n_active_non_embedding": active * cube,
            "n_total_non_embedding": total * cube,
            "own_n_active": n_active,
            "experts": e,
            "density": (1.0 - self.shared_ratio) / (e - self.shared_ratio),
            "activation_ratio": 1.0 / e,
            "granularity": np.asarray(self.granularity),
            "active_experts": np.asarray(self.granularity),
            "experts_per_token": np.asarray((1.0 - self.shared_ratio) * self.granularity),
            "shared_ratio": np.asarray(self.shared_ratio),
        }

    def architecture(self, d_model: float, experts: float) -> Architecture:
        """Return a model of the paper; a dense one stays whole.

        ValueError unless G divides 3 d_model, and the shared part of G is a whole number below G.
        """
        d = round(d_model)
        expansion = int(experts)
        width = 3 * d
        active = round(self.granularity)
        shared = round(self.granularity * self.shared_ratio)
        if active != self.granularity or width % active:
            raise InputError(
                f"granularity={self.granularity:g} must be a whole number that divides 3 d_model, {width}"
            )
        if abs(shared - self.granularity * self.shared_ratio) > 1e-6 or not 0 <= shared < active:
            share = f"{self.shared_ratio:g} of granularity={self.granularity:g} experts"
            raise InputError(f"shared_ratio={share} must be a whole number of them, below all")
        if expansion == 1:
            return Architecture(d, vocab_size=self.vocab_size)
        return Architecture(
            d,
            expansion * active - shared,
            vocab_size=self.vocab_size,
            experts_per_token=active - shared,
            d_expert=width // active,
            shared_experts=shared,
        )

    def cache_bytes(self, d_model: ArrayLike, tokens: float, bytes_per_element: float) -> Any:
        d = np.asarray(d_model, float)
        return bytes_per_element * (2.0 * tokens * (d / HEAD_DIM) * d)

    def width_of_active(self, n_active: ArrayLike) -> Any:
        return width_of_total(n_active, 1, self.vocab_size)

    def beside(self, d_model: FloatArray) -> tuple[FloatArray, FloatArray]:
        below = HEAD_DIM * np.maximum(np.floor(d_model * (1 + ROUNDING) / HEAD_DIM), 1.0)
        return below, below + HEAD_DIM
