"""The cost of serving a model: GPU-seconds of each generated token, from a data sheet.

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

from hub.base.errors import InputError
from scaling_law.machine.gpus import Gpu, named_gpu
from scaling_law.size.architecture import Architecture
from scaling_law.size.missing import refuse_none
from scaling_law.size.widths import Sized


def share_read(density: ArrayLike, batch: float) -> Any:
    """Compute the expected share of the experts that `batch` tokens need, the share `density` each; broadcasts."""
    return 1.0 - (1.0 - np.asarray(density, float)) ** batch


def decode_seconds(
    model: Architecture,
    gpu: Gpu | str,
    batch: float,
    context: float = 0.0,
    bytes_per_parameter: float = 2.0,
    bytes_per_kv: float = 2.0,
) -> float:
    """Compute the GPU-seconds of a generated token, for `batch` sequences of `context` positions, on a GPU as "h100".

    ValueError for an unlisted GPU, and a batch that is not positive.
    """
    refuse_none("model", model)
    if not batch > 0:
        raise InputError(f"batch={batch!r} must be positive")
    sheet = named_gpu(gpu) if isinstance(gpu, str) else gpu
    cache = model.kv_cache_bytes(batch * context, bytes_per_kv, context)
    return float(seconds_of_token(model, sheet, batch, cache, bytes_per_parameter))


def seconds_of_token(
    a: Sized,
    gpu: Gpu,
    batch: float,
    cache_bytes: Any = 0.0,
    bytes_per_parameter: float = 2.0,
) -> Any:
    """Compute the GPU-seconds of a generated token, with `cache_bytes` of all sequences; broadcasts with models."""
    unread_width = (1.0 - share_read(a.experts_per_token / a.experts, batch)) * a.experts * a.d_expert
    # A lookup reads a few rows of the embedding and of other tables.
    lookup = a.lookup_parameters + (0 if a.tied_embeddings else a.d_model * a.vocab_size)
    matrices = 3 if a.gated else 2
    weights = a.n_total - lookup - matrices * a.d_model * a.routed_blocks * unread_width
    compute_seconds = batch * a.forward_flops() / gpu.peak_flops
    weight_seconds = bytes_per_parameter * weights / gpu.bandwidth
    cache_seconds = cache_bytes / gpu.bandwidth
    return (cache_seconds + np.maximum(compute_seconds, weight_seconds)) / batch
