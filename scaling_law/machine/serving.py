"""What it takes to serve a model: GPU-seconds of each generated token, from a data sheet alone.

A step decodes one token for each of B sequences. It reads the whole cache, and the weights once for all of them:

    seconds = cache / bandwidth + max(2 B N / peak FLOP/s, weights read / bandwidth)

(Austin et al. 2025, "How to Scale Your Model", jax-ml.github.io/scaling-book/inference, "Theoretical estimates for LLM
latency and throughput"). Of an MoE's experts those are read that a token is sent to: 1 − (1 − K/E)^B of them, in
expectation, where the router spreads tokens evenly. It is a bound: prompts, networks and idle seconds come on top.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scaling_law.machine.gpus import Gpu, named_gpu
from scaling_law.size.architecture import (
    ATTENTION,
    EXPERT,
    HEAD_DIM,
    VOCAB_SIZE,
    Architecture,
    active_parameters,
    kv_cache_elements,
)


def share_read(density: ArrayLike, batch: float) -> Any:
    """Expected part of the experts that `batch` tokens need, each the part `density` of them; broadcasts."""
    return 1.0 - (1.0 - np.asarray(density, float)) ** batch


def decode_seconds(
    model: Architecture,
    gpu: Gpu | str,
    batch: float,
    context: float = 0.0,
    bytes_per_parameter: float = 2.0,
    bytes_per_kv: float = 2.0,
) -> float:
    """GPU-seconds of one generated token, for `batch` sequences of `context` positions each, on a GPU such as "h100".

    ValueError for an unlisted GPU.
    """
    a, sheet = model, named_gpu(gpu) if isinstance(gpu, str) else gpu
    unread = (1.0 - share_read(a.experts_per_token / a.experts, batch)) * a.experts * a.d_expert
    lookup = 0 if a.tied_embeddings else a.d_model * a.vocab_size  # of a few rows of the embedding
    read = a.n_total - lookup - (3 if a.gated else 2) * a.d_model * a.routed_blocks * unread
    cache = a.kv_cache_bytes(batch * context, bytes_per_kv)
    return float(_seconds(sheet, a.forward_flops() / 2, bytes_per_parameter * read, cache, batch))


def decode_seconds_by_width(
    gpu: Gpu,
    d_model: ArrayLike,
    experts: ArrayLike,
    batch: float,
    cached_tokens: float = 0.0,
    *,
    shared_ratio: float = 0.0,
    vocab_size: float = VOCAB_SIZE,
    bytes_per_parameter: float = 2.0,
    bytes_per_kv: float = 2.0,
) -> Any:
    """GPU-seconds of one generated token under the d / 64 rule; broadcasts. `cached_tokens`: of all sequences."""
    d, e = np.asarray(d_model, float), np.asarray(experts, float)
    routed = e - shared_ratio
    width = shared_ratio + routed * share_read((1.0 - shared_ratio) / np.maximum(routed, 1e-300), batch)
    read = (ATTENTION + EXPERT * width) * d**3 / HEAD_DIM + d * vocab_size
    active = active_parameters(d, vocab_size=vocab_size) - d * vocab_size
    cache = bytes_per_kv * kv_cache_elements(d, cached_tokens)
    return _seconds(gpu, active, bytes_per_parameter * read, cache, batch)


def _seconds(gpu: Gpu, active: Any, weight_bytes: Any, cache_bytes: Any, batch: float) -> Any:
    """GPU-seconds of a step, per token."""
    weights = np.maximum(2.0 * batch * active / gpu.peak_flops, weight_bytes / gpu.bandwidth)
    return (cache_bytes / gpu.bandwidth + weights) / batch
