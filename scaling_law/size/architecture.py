"""What a model costs: parameters, FLOPs, weights, KV cache and training state.

The functions are those of the paper's models (Ludziejewski et al. 2025, Appendix "Technical Details"), on arrays:

    N_total = 2 d V + (4 + 9 E) n_blocks d²        N_act = 2 d V + 13 n_blocks d²
    training 6 N_act D FLOPs, inference 2 N_act D FLOPs, KV cache 2 T n_blocks d elements (multi-head attention)

A block has 4 d² of attention and 9 d² per SwiGLU expert of width 3 d, one active per token. Embedding and head are
untied, router and norms neglected. The paper's sizes follow n_blocks = n_heads = d / 64. `Architecture` is any
decoder, with top-k routing, fine-grained and shared experts, dense blocks, grouped queries or latent attention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError, given
from hub.base.inputs import as_it_is, reads

VOCAB_SIZE = 50257  # GPT-2's tokenizer
HEAD_DIM = 64  # the d / 64 rule for the number of blocks and of heads
ATTENTION = 4  # d² units of parameters per block: query, key, value, output
EXPERT = 9  # d² units per expert: three matrices of d × 3 d
# Bytes per parameter in training: fp32 master weights and two moments.
ADAM_BYTES = 12.0
GRADIENT_BYTES = 4.0


def active_parameters(d_model: ArrayLike, n_blocks: ArrayLike | None = None, vocab_size: float = VOCAB_SIZE) -> Any:
    """N_act of models of width d_model (broadcasts; d_model may be fractional). n_blocks None means d_model / 64."""
    return total_parameters(d_model, 1, n_blocks, vocab_size)


def total_parameters(
    d_model: ArrayLike, experts: ArrayLike, n_blocks: ArrayLike | None = None, vocab_size: float = VOCAB_SIZE
) -> Any:
    """N_total of models with `experts` experts of which one is active (broadcasts like `active_parameters`)."""
    d, blocks = _width_and_depth(d_model, n_blocks)
    return 2.0 * d * vocab_size + (ATTENTION + EXPERT * np.asarray(experts, float)) * blocks * d * d


def non_embedding_parameters(d_model: ArrayLike, n_blocks: ArrayLike | None = None) -> Any:
    """13 n_blocks d²."""
    return total_parameters(d_model, 1, n_blocks, 0)


def kv_cache_elements(d_model: ArrayLike, tokens: ArrayLike, n_blocks: ArrayLike | None = None) -> Any:
    """2 T n_blocks d, for multi-head attention."""
    d, blocks = _width_and_depth(d_model, n_blocks)
    return 2.0 * np.asarray(tokens, float) * blocks * d


def training_flops(n_active: ArrayLike, tokens: ArrayLike) -> Any:
    return 6.0 * np.asarray(n_active) * np.asarray(tokens)


def inference_flops(n_active: ArrayLike, tokens: ArrayLike) -> Any:
    return 2.0 * np.asarray(n_active, float) * np.asarray(tokens, float)


def affordable_tokens(flops: ArrayLike, n_active: ArrayLike, inference_tokens: ArrayLike = 0.0) -> Any:
    """Training tokens D that 6 N D + 2 N D_inf = F leaves (negative where inference alone exceeds the budget)."""
    return np.asarray(flops) / training_flops(n_active, 1.0) - np.asarray(inference_tokens) / 3.0


def size_in_width(experts: ArrayLike, vocab_size: float = VOCAB_SIZE) -> tuple[float, Any]:
    """The coefficients of d and d³ in N_total under the d / 64 rule, for `experts` experts."""
    return 2.0 * vocab_size, (ATTENTION + EXPERT * np.asarray(experts, float)) / HEAD_DIM


def variables_of_width(
    d_model: ArrayLike,
    experts: ArrayLike,
    granularity: float = 1.0,
    shared_ratio: float = 0.0,
    vocab_size: float = VOCAB_SIZE,
) -> dict[str, Any]:
    """What laws may depend on, for models under the d / 64 rule, by the names of `Architecture.variables`; broadcasts.

    `experts` is total over active feed-forward width, E; each of the E·G experts has 1/G of the dense width (G =
    `granularity`), and G are active, a part `shared_ratio` of them always: the parameters depend on E alone.
    """
    (linear, active), (_, total) = size_in_width(1.0, vocab_size), size_in_width(experts, vocab_size)
    d = np.asarray(d_model)
    embedding, cube = linear * d, d**3
    return {
        "n_active": embedding + active * cube,
        "n_total": embedding + total * cube,
        "n_active_non_embedding": active * cube,
        "n_total_non_embedding": total * cube,
        "experts": np.asarray(experts, float),
        "density": (1.0 - shared_ratio) / (np.asarray(experts, float) - shared_ratio),
        "activation_ratio": 1.0 / np.asarray(experts, float),
        "granularity": np.asarray(granularity),
        "active_experts": np.asarray(granularity),
        "experts_per_token": np.asarray((1.0 - shared_ratio) * granularity),
        "shared_ratio": np.asarray(shared_ratio),
    }


# Of those, what E decides
EXPERT_VARIABLES = {"experts", "density", "activation_ratio", "n_total", "n_total_non_embedding"}
# What may vary between runs of one size: the first that tells is named, the later ones often follow from it
DESIGN_VARIABLES: tuple[str, ...] = ("experts", "granularity", "shared_ratio", "vocab_size", "density")
DESIGN_VARIABLES += ("activation_ratio", "active_experts", "experts_per_token")
# Parts of a whole.
PARTS = {"density", "sparsity", "activation_ratio", "shared_ratio"}


def is_size(variable: str) -> bool:
    """Whether a variable of a law counts parameters or tokens, with which a loss falls."""
    return variable == "tokens" or is_parameters(variable)


def is_parameters(variable: str) -> bool:
    """Whether a variable of a law counts parameters."""
    return variable.startswith("n_")


def width_of_active(n_active: ArrayLike, vocab_size: float = VOCAB_SIZE) -> Any:
    """The fractional d_model of this N_act under the d / 64 rule."""
    return width_of_total(n_active, 1, vocab_size)


def width_of_total(n_total: ArrayLike, experts: ArrayLike, vocab_size: float = VOCAB_SIZE) -> Any:
    """The fractional d_model of this N_total under the d / 64 rule."""
    linear, cubic = size_in_width(experts, vocab_size)
    return solve_width(linear, 0.0, cubic, n_total)


def solve_width(linear: ArrayLike, quadratic: ArrayLike, cubic: ArrayLike, value: ArrayLike) -> Any:
    """The d > 0 with linear·d + quadratic·d² + cubic·d³ = value (all ≥ 0, broadcasts), as for every size here.

    Newton's method cannot fail: from the right of the root of a convex increasing function it descends monotonically.
    """
    a, b, c, target = np.broadcast_arrays(*(np.asarray(v, float) for v in (linear, quadratic, cubic, value)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        roots = ((a, target / a), (b, np.sqrt(target / b)), (c, np.cbrt(target / c)))
        d = np.min([np.where(factor > 0, root, np.inf) for factor, root in roots], axis=0)
        for _ in range(60):
            step = (d * (a + d * (b + d * c)) - target) / (a + d * (2 * b + 3 * d * c))
            d = d - step
            if not np.any(np.abs(step) > 1e-14 * np.abs(d)):
                break
    return d if d.ndim else float(d)


def _width_and_depth(d_model: ArrayLike, n_blocks: ArrayLike | None) -> tuple[NDArray[Any], NDArray[Any]]:
    d = np.asarray(d_model, float)
    return d, (d / HEAD_DIM if n_blocks is None else np.asarray(n_blocks, float))


@dataclass(frozen=True)
class LatentAttention:
    """The ranks and head widths of multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, Section 2.1).

    `query_rank` None: queries are not compressed. The cache holds `kv_rank + rope_dim` elements per token and block.
    """

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            if (value := getattr(self, f.name)) is not None or f.default is not None:
                check_size(f"latent_attention: {f.name}", value)


@dataclass(frozen=True)
class Span:
    """What a token of some blocks is multiplied with besides weights, and what the cache of a sequence holds for it.

    There are min(limit, context // stride) entries: the keys of a window or chunk, compressed keys (`stride`), keys
    that an indexer selects (`limit`); or, if `once`, a single one whatever the context: a recurrent state, or weights
    that N leaves out.

    Attributes:
        multiplied: elements that one entry is multiplied with (None: as in the attention of the architecture).
        cached: elements that the cache holds for one entry (None: likewise).
    """

    blocks: int
    limit: int | None = None
    stride: int = 1
    once: bool = False
    multiplied: int | None = None
    cached: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("blocks", 1), ("limit", 1), ("stride", 1), ("multiplied", 0), ("cached", 0)):
            if getattr(self, name) is not None:
                check_size(f"spans: {name}", getattr(self, name), least)

    @property
    def sees_all(self) -> bool:
        """Whether there is an entry for every position."""
        return self.limit is None and self.stride == 1 and not self.once

    def entries(self, context: float) -> float:
        """How many entries the last token of so many positions sees."""
        if self.once:
            return float(context > 0)
        available = float(context if self.stride == 1 else context // self.stride)
        return available if self.limit is None else min(available, float(self.limit))

    def hidden(self, context: float) -> float:
        """How many entries of so many positions a limit hides."""
        return 0.0 if self.once or self.limit is None else context // self.stride - self.entries(context)

    def to_dict(self) -> dict[str, Any]:
        """The arguments that differ from their defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


def selected_keys(
    attention: Span, limit: int, index_heads: int = 0, index_width: int = 0, weights: int = 0
) -> list[Span]:
    """Spans of one block that attends to `limit` keys that an indexer selects (DeepSeek-V3.2, arXiv 2512.02556).

    The indexer compares `index_heads` queries with one key of `index_width` per position; all keys stay in the cache.
    Without heads of its own, the block takes the selection of one before it. `weights` are those of the indexer.
    """
    every = replace(attention, multiplied=index_heads * index_width, cached=(attention.cached or 0) + index_width)
    spans = [replace(attention, limit=limit, cached=0), every]
    return [*spans, Span(1, once=True, multiplied=weights, cached=0)] if weights else spans


@reads(latent_attention=as_it_is)
@dataclass(frozen=True)
class Architecture:
    """A decoder that can be built; by default one of the paper's, where `d_model` and `experts` say it all.

    These have n_blocks = n_heads = d_model / 64, and one SwiGLU expert of width 3 d_model active per token; a dense
    model has one expert. ValueError names the field, its value and what is allowed.

    Attributes:
        experts: routed experts of a block; `experts_per_token` of them are active.
        d_expert, d_shared, d_ff: inner widths of a routed expert, of a shared one (default: d_expert), and of the
            feed-forward of a dense block (default: as wide as all that is active in a routed block). A model without
            experts and `dense_blocks` has dense blocks alone: either name says its width.
        shared_experts: experts that every token passes, beside the routed ones.
        dense_blocks: how many of the n_blocks have a dense feed-forward instead of experts, wherever they stand.
        n_kv_heads: key-value heads; fewer than n_heads for grouped queries.
        head_dim: width of a head (default: d_model / n_heads; with latent attention that of a query).
        gated: three matrices per feed-forward (SwiGLU), else two.
        tied_embeddings: one matrix for embedding and head.
        mixer_parameters: all that is neither feed-forward nor embedding, counted on classes whose blocks are not plain
            attention and feed-forward (None: by the fields above).
        attention_blocks: blocks that attend to every position by the heads above (None: all).
        spans: what the other blocks attend to, and states: windows, chunks, selected and compressed keys, recurrence.
    """

    d_model: int
    experts: int = 1
    n_blocks: int | None = None
    n_heads: int | None = None
    vocab_size: int = VOCAB_SIZE
    _: KW_ONLY
    experts_per_token: int = 1
    d_expert: int = cast(int, None)
    shared_experts: int = 0
    d_shared: int = cast(int, None)
    dense_blocks: int = 0
    d_ff: int = cast(int, None)
    n_kv_heads: int = cast(int, None)
    head_dim: int = cast(int, None)
    latent_attention: LatentAttention | None = None
    gated: bool = True
    tied_embeddings: bool = False
    mixer_parameters: int | None = None
    attention_blocks: int | None = None
    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        # JSON has a mapping.
        if isinstance(self.latent_attention, Mapping):
            try:
                object.__setattr__(self, "latent_attention", LatentAttention(**self.latent_attention))
            except TypeError:
                allowed = ", ".join(f.name for f in fields(LatentAttention))
                raise InputError(
                    f"latent_attention={self.latent_attention!r} must have the fields {allowed}"
                ) from None
        if not isinstance(self.latent_attention, LatentAttention | None):
            raise InputError(f"latent_attention={self.latent_attention!r} must be a LatentAttention or None")
        if not isinstance(self.spans, (list, tuple)):
            raise InputError(f"spans={self.spans!r} must be a list of Span")
        spans = [Span(**span) if isinstance(span, Mapping) else span for span in self.spans]
        if others := [span for span in spans if not isinstance(span, Span)]:
            raise InputError(f"spans: {others[0]!r} must be a Span")
        object.__setattr__(self, "spans", tuple(spans))
        heads_split_width = self.head_dim is None and self.latent_attention is None
        for name in ("shared_experts", "dense_blocks", "mixer_parameters", "attention_blocks"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name), least=0)
        if self.d_ff is not None:
            check_size("d_ff", self.d_ff)
            if self.d_expert is None and (self.experts, self.shared_experts, self.dense_blocks) == (1, 0, 0):
                object.__setattr__(self, "d_expert", self.d_ff)
        for name in ("d_model", "experts", "vocab_size", "experts_per_token", *_DEFAULTS):
            value = getattr(self, name)
            value = _DEFAULTS[name](self) if value is None else value
            check_size(name, value)
            object.__setattr__(self, name, int(value))
        if heads_split_width and self.d_model % self.heads:
            raise InputError(f"d_model={self.d_model} is not divisible by n_heads={self.n_heads}")
        if self.experts_per_token > self.experts:
            raise InputError(f"experts_per_token={self.experts_per_token} must be at most experts={self.experts}")
        if self.dense_blocks >= self.blocks:
            raise InputError(f"dense_blocks={self.dense_blocks} must be below n_blocks={self.blocks}")
        idle = {"d_ff": ("dense_blocks=0", self.dense_blocks), "d_shared": ("shared_experts=0", self.shared_experts)}
        idle |= dict.fromkeys(("n_kv_heads", "head_dim"), ("latent_attention", self.latent_attention is None))
        for name, (of, used) in idle.items():  # a width that counts nowhere would be wrong without a word
            if not used and getattr(self, name) != (only := _DEFAULTS[name](self)):
                raise InputError(f"{name}={getattr(self, name)} with {of} must be {only}, or left out")
        if self.heads % self.n_kv_heads:
            raise InputError(f"n_heads={self.heads} is not divisible by n_kv_heads={self.n_kv_heads}")

    @classmethod
    def split(
        cls,
        d_model: int,
        experts: int,
        granularity: float = 1.0,
        shared_ratio: float = 0.0,
        vocab_size: int = VOCAB_SIZE,
    ) -> Architecture:
        """A paper's model, its experts split into G = `granularity`, of whose G active ones the part `shared_ratio` is
        shared (`variables_of_width`). A dense model stays whole.

        ValueError unless G divides 3 d_model, and G · shared_ratio is a whole number below G.
        """
        parts, shared = round(granularity), round(granularity * shared_ratio)
        if parts != granularity or 3 * d_model % parts:
            width = 3 * d_model
            raise InputError(f"granularity={granularity:g} must be a whole number that divides 3 d_model, {width}")
        if abs(shared - granularity * shared_ratio) > 1e-6 or not 0 <= shared < parts:
            share = f"{shared_ratio:g} of granularity={granularity:g} experts"
            raise InputError(f"shared_ratio={share} must be a whole number of them, below all")
        if experts == 1 or parts == 1:
            return cls(d_model, experts, vocab_size=vocab_size)
        return cls(
            *(d_model, experts * parts - shared),
            vocab_size=vocab_size,
            experts_per_token=parts - shared,
            d_expert=3 * d_model // parts,
            shared_experts=shared,
        )

    @property
    def blocks(self) -> int:
        return int(self.n_blocks or 0)

    @property
    def heads(self) -> int:
        return int(self.n_heads or 0)

    @property
    def shape(self) -> dict[str, int]:
        """Width, depth, heads and experts, as records and configurations name them."""
        return {"d_model": self.d_model, "n_blocks": self.blocks, "n_heads": self.heads, "experts": self.experts}

    def to_dict(self) -> dict[str, Any]:
        """The arguments of an equal architecture: shape, vocabulary, and what differs from the paper's models."""
        same = self.shape | {"vocab_size": self.vocab_size}
        plain = {f.name: f.default for f in fields(self) if f.name not in same}
        plain |= {name: default(self) for name, default in _DEFAULTS.items() if name in plain}
        values = asdict(self) | {"spans": tuple(span.to_dict() for span in self.spans)}
        return same | {name: value for name, value in values.items() if name in plain and value != plain[name]}

    @property
    def is_of_the_paper(self) -> bool:
        """Whether shape and vocabulary say it all: unsplit top-1 experts, and plain attention."""
        return set(self.to_dict()) == {*self.shape, "vocab_size"}

    @property
    def routed_blocks(self) -> int:
        """Blocks that have experts."""
        return self.blocks - self.dense_blocks

    @property
    def active_width(self) -> int:
        """Inner width of all that a token passes in a routed block: its routed experts and the shared ones."""
        return self.experts_per_token * self.d_expert + self.shared_experts * self.d_shared

    @property
    def total_width(self) -> int:
        """Inner width of all experts of a routed block."""
        return self.experts * self.d_expert + self.shared_experts * self.d_shared

    @property
    def attention(self) -> Span:
        """What one block attends to by the heads of the architecture: every position."""
        mla = self.latent_attention
        values = mla.value_dim if mla else self.head_dim
        cached = mla.kv_rank + mla.rope_dim if mla else 2 * self.n_kv_heads * self.head_dim
        return Span(1, multiplied=self.heads * (self.head_dim + values), cached=cached)

    @property
    def all_spans(self) -> tuple[Span, ...]:
        """What each block attends to and keeps, with its elements."""
        own = self.attention
        blocks = self.blocks if self.attention_blocks is None else self.attention_blocks
        spans = [replace(own, blocks=blocks)] if blocks else []
        for span in self.spans:
            multiplied = own.multiplied if span.multiplied is None else span.multiplied
            cached = own.cached if span.cached is None else span.cached
            spans.append(replace(span, multiplied=multiplied, cached=cached))
        return tuple(spans)

    def attending(self, layers: Iterable[Sequence[Span]]) -> Architecture:
        """Replace what the blocks attend to by the spans of each of them; equal blocks are counted together."""
        own = self.attention
        each = [span for layer in layers for span in layer if span.multiplied or span.cached]
        groups = Counter(span for span in each if span != own)
        full = len(each) - sum(groups.values())
        spans = []
        for span, blocks in groups.items():
            multiplied = None if span.multiplied == own.multiplied else span.multiplied
            cached = None if span.cached == own.cached else span.cached
            spans.append(replace(span, blocks=blocks, multiplied=multiplied, cached=cached))
        return replace(self, attention_blocks=None if full == self.blocks else full, spans=tuple(spans))

    @property
    def embedding_parameters(self) -> int:
        """Parameters of embedding and head: d_model × vocab_size each, once if they are tied."""
        return self.d_model * self.vocab_size * (1 if self.tied_embeddings else 2)

    @property
    def attention_parameters(self) -> int:
        """Of query, key, value and output of all blocks; on a counted class all but feed-forward and embedding."""
        if self.mixer_parameters is not None:
            return self.mixer_parameters
        d, h, mla = self.d_model, self.heads, self.latent_attention
        if mla is None:
            return self.blocks * 2 * d * self.head_dim * (h + self.n_kv_heads)
        rank, queries = mla.query_rank, h * self.head_dim
        query = d * queries if rank is None else rank * (d + queries)
        key_value = d * (mla.kv_rank + mla.rope_dim) + mla.kv_rank * h * (mla.nope_dim + mla.value_dim)
        return self.blocks * (query + key_value + h * mla.value_dim * d)

    def _non_embedding(self, width: int) -> int:
        """Attention and feed-forward, of inner width `width` in routed blocks."""
        matrices = 3 if self.gated else 2
        widths = self.routed_blocks * width + self.dense_blocks * self.d_ff
        return self.attention_parameters + matrices * self.d_model * widths

    @property
    def n_active_non_embedding(self) -> int:
        return self._non_embedding(self.active_width)

    @property
    def n_total_non_embedding(self) -> int:
        return self._non_embedding(self.total_width)

    @property
    def n_active(self) -> int:
        """Parameters that one token uses; router, norms and biases are neglected, as by laws."""
        return self.n_active_non_embedding + self.embedding_parameters

    @property
    def n_total(self) -> int:
        """All parameters, counted likewise."""
        return self.n_total_non_embedding + self.embedding_parameters

    @property
    def experts_equivalent(self) -> float:
        """The E of a law of top-1 models: total over active inner width of routed blocks, shared experts in both.

        The expansion rate of Krajewski et al. 2024 (arXiv 2402.07871, Section 5).
        """
        return self.total_width / self.active_width

    @property
    def granularity(self) -> float:
        """G = d_ff / d_expert (Krajewski et al. 2024, Section 4), d_ff being the active width of a routed block."""
        return self.active_width / self.d_expert

    def variables(self) -> dict[str, float]:
        """What a law may ask about any architecture, by the names that laws use.

        `experts` is `experts_equivalent`, `routed_experts` are counted. `density` K / E and `sparsity` (E - K) / E are
        of routed experts alone (Abnar et al. 2025, arXiv 2501.12370, Eq. 7); `activation_ratio` (K + S) / (E + S) has
        the shared ones (Tian et al. 2025, arXiv 2507.17702). `shared_ratio` is the shared part of the active width.
        """
        k, e, shared = self.experts_per_token, self.experts, self.shared_experts
        counted = ("n_active", "n_total", "n_active_non_embedding", "n_total_non_embedding", "granularity")
        named = ("d_model", "d_expert", "n_blocks", "n_heads", "vocab_size", "experts_per_token", "shared_experts")
        return {name: float(getattr(self, name)) for name in (*counted, *named)} | {
            "experts": self.experts_equivalent,
            "routed_experts": float(e),
            "density": k / e,
            "sparsity": 1 - k / e,
            "active_experts": float(k + shared),
            "activation_ratio": (k + shared) / (e + shared),
            "shared_ratio": shared * self.d_shared / self.active_width,
        }

    def forward_flops(self, context: float = 0.0) -> float:
        """FLOPs of one token's forward pass: 2 for each weight it is multiplied with, router included, lookups not.

        `context` adds attention at that sequence length, without the causal half: every token counts the keys that the
        last one sees (Chowdhery et al. 2022, arXiv 2204.02311, Appendix B; Hoffmann et al. 2022, Appendix F), in
        windows, chunks and selections no more than these hold, with the products of indexers. A recurrent state counts
        4 FLOPs per element, of its update and its output; kernels that scan in chunks do more.
        """
        router = self.routed_blocks * self.d_model * self.experts if self.experts > 1 else 0
        weights = self.n_active_non_embedding + router + self.d_model * self.vocab_size
        return 2.0 * (weights + self.attention_products(context))

    def attention_products(self, context: float) -> float:
        """Elements that a token is multiplied with besides weights, at this sequence length, in all blocks."""
        return sum(span.blocks * (span.multiplied or 0) * span.entries(context) for span in self.all_spans)

    def training_flops(self, tokens: float, context: float | None = None) -> float:
        """6 N_act D; with the sequence length as `context`, three forward passes as `forward_flops` counts them."""
        if context is None:
            return float(training_flops(self.n_active, tokens))
        return 3 * tokens * self.forward_flops(context)

    def inference_flops(self, tokens: float, context: float | None = None) -> float:
        """2 N_act D; with a `context`, of tokens after that many positions, as `forward_flops` counts them."""
        if context is None:
            return float(inference_flops(self.n_active, tokens))
        return tokens * self.forward_flops(context)

    def weight_bytes(self, bytes_per_parameter: float = 2.0) -> float:
        return bytes_per_parameter * self.n_total

    def kv_cache_bytes(self, tokens: float, bytes_per_element: float = 2.0, context: float | None = None) -> float:
        """Bytes of `tokens` positions over all sequences of `context` positions each (None: one sequence).

        Keys and values of every key-value head, or the latent vectors of MLA, for every position that a block may
        still see; the state of recurrent blocks once a sequence.
        """
        if not tokens:
            return 0.0
        length = min(context or tokens, tokens)
        sequence = sum(span.blocks * (span.cached or 0) * span.entries(length) for span in self.all_spans)
        return bytes_per_element * sequence * (tokens / length)

    def kv_bytes_per_token(self, bytes_per_element: float = 2.0) -> float:
        """Bytes by which each further token makes the cache of a long sequence grow."""
        growing = (span for span in self.all_spans if span.limit is None and not span.once)
        return bytes_per_element * sum(span.blocks * (span.cached or 0) / span.stride for span in growing)

    def kv_bytes_per_sequence(self, bytes_per_element: float = 2.0) -> float:
        """Bytes that do not grow with a long sequence: full windows and chunks, and states."""
        bounded = (span for span in self.all_spans if span.limit is not None or span.once)
        held = sum(span.blocks * (span.cached or 0) * (1 if span.once else span.limit or 0) for span in bounded)
        return bytes_per_element * held

    @property
    def training_state_bytes(self) -> float:
        """fp32 master weights, AdamW's two moments and fp32 gradients, without activations."""
        return (ADAM_BYTES + GRADIENT_BYTES) * self.n_total


def _by_rule(name: str) -> Callable[[Architecture], int]:
    def value(a: Architecture) -> int:
        if a.d_model % HEAD_DIM:
            said = f" is not a multiple of {HEAD_DIM}: "
            raise InputError(given("d_model", a.d_model), said, given(name, None), " must be given")
        return a.d_model // HEAD_DIM

    return value


def _head_dim(a: Architecture) -> int:
    mla = a.latent_attention
    return mla.nope_dim + mla.rope_dim if mla else a.d_model // a.heads


# What a field is where it is not given, from those before it.
_DEFAULTS: Mapping[str, Callable[[Architecture], int]] = {
    "n_blocks": _by_rule("n_blocks"),
    "n_heads": _by_rule("n_heads"),
    "d_expert": lambda a: 3 * a.d_model,
    "d_shared": lambda a: a.d_expert,
    "d_ff": lambda a: a.active_width,
    "n_kv_heads": lambda a: a.heads,
    "head_dim": _head_dim,
}


def check_size(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise InputError(f"{name}={value!r} must be an integer of at least {least}")
