"""What users ask of a law, bound to the classes of `scaling_law.laws` as methods: optima, files, the published law.

The laws are formulas at the bottom of the package; these verbs need the rooms above them. `scaling_law/__init__`
imports this module, so every law has its methods however it was obtained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from scaling_law.fitting.learning_rate import LearningRateLaw
from scaling_law.law_files.serialization import load_law, push_law, save_law
from scaling_law.laws import ChinchillaForm, JointLaw, Law
from scaling_law.laws.law import LawT
from scaling_law.paper.published import published_law
from scaling_law.planning.best_models import best_models
from scaling_law.planning.constraints import Constraints, Quantity
from scaling_law.planning.optimal_table import OptimalTable
from scaling_law.planning.optimum import compute_optimal

__all__ = ["compute_optimal", "optimal", "push_law", "save_law"]


def optimal(
    law: ChinchillaForm,
    flops: Quantity,
    experts: ArrayLike | None = None,
    *,
    max_parameters: Quantity | None = None,
    max_memory_bytes: Quantity | None = None,
    kv_cache_tokens: Quantity = 0.0,
    bytes_per_parameter: float = 2.0,
    bytes_per_kv: float = 2.0,
    inference_tokens: Quantity = 0.0,
    kv_heads_ratio: float = 1.0,
    vocab_size: int | None = None,
    integral: bool = False,
    learning_rate_law: LearningRateLaw | None = None,
    force: bool = False,
) -> OptimalTable:
    """The best model for each E under compute and memory constraints, and the best of all.

    Args:
        flops: FLOPs of training (6 N_act D) and inference (2 N_act D_inf); a number or text such as "1e22".
        experts: one E or several; None asks for those of `default_experts`.
        max_parameters: limit on N_total: 7e9 or "7B".
        max_memory_bytes: limit on weights and key-value cache: 80e9, "80GB" or "80GiB".
        kv_cache_tokens: tokens in the cache over all sequences: 16384 or "16k".
        bytes_per_parameter, bytes_per_kv: 2 for bf16.
        inference_tokens: tokens served over the model's life: 1e11 or "100B".
        kv_heads_ratio: key-value heads / heads.
        vocab_size: of the tokenizer; it sets the size of a width. None for that of the law's runs.
        integral: only architectures that exist, d_model = 64 n_blocks = 64 n_heads.
        learning_rate_law: of the learning rates; None for the published one.
        force: compare and name answers beyond the range guard, too.

    Raises ValueError for bad input, where nothing fits and where the law has no optimum; ExtrapolationError where
    no answer lies within the range guard. Ludziejewski et al. 2025, Section "Compute and Memory Optimality".
    """
    limits: dict[str, Any] = {
        "max_parameters": max_parameters,
        "max_memory_bytes": max_memory_bytes,
        "kv_cache_tokens": kv_cache_tokens,
        "bytes_per_parameter": bytes_per_parameter,
        "bytes_per_kv": bytes_per_kv,
        "inference_tokens": inference_tokens,
        "kv_heads_ratio": kv_heads_ratio,
        "vocab_size": vocab_size,
    }
    return best_models(law, flops, experts, Constraints.of(law, **limits), integral, learning_rate_law, force)


@classmethod  # type: ignore[misc]
def from_pretrained(cls: type[LawT], source: str | Path, revision: str | None = None) -> LawT:
    """Read a law from a folder, a scaling_law.json, or a Hub repo. ValueError if it is a law of another kind."""
    law = load_law(source, revision)
    if not isinstance(law, cls):
        raise ValueError(f"{source}: holds a {type(law).__name__}, not a {cls.__name__}")
    return law


@classmethod  # type: ignore[misc]
def published(cls: type[JointLaw], rounded: bool = False) -> JointLaw:
    """The paper's law: coefficients recovered at full precision, or (`rounded`) as its table prints them.

    The recovered law has draws, for intervals. They are this package's, not the authors': see
    `scaling_law.paper.published_draws`. The printed coefficients have none.
    """
    return published_law(rounded)


METHODS: dict[type[Law], dict[str, Any]] = {
    Law: {"save_pretrained": save_law, "push_to_hub": push_law, "from_pretrained": from_pretrained},
    ChinchillaForm: {"compute_optimal": compute_optimal, "optimal": optimal},
    JointLaw: {"published": published},
}
for _kind, _methods in METHODS.items():
    for _name, _method in _methods.items():
        setattr(_kind, _name, _method)
