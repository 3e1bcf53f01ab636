"""Costs of a model: parameters, FLOPs, weights, KV cache and training state.

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
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from hub.base.errors import InputError, given
from hub.base.fields import UNREAD, Whole, reads
from hub.base.types import Fields
from hub.base.units import format_count

# The vocabulary of GPT-2's tokenizer.
VOCAB_SIZE = 50257
# The d / 64 rule gives the number of blocks, and of heads.
HEAD_DIM = 64
# Parameters in units of d²: query, key, value and output of a block, and the three d × 3 d matrices of an expert.
ATTENTION = 4
EXPERT = 9
# Bytes per parameter in training: fp32 master weights and two moments.
ADAM_BYTES = 12.0
GRADIENT_BYTES = 4.0
Size = Annotated[int, Field(ge=1)]
# The default of a size that follows from others.
_COMPUTED: Any = None


def active_parameters(d_model: ArrayLike, n_blocks: ArrayLike | None = None, vocab_size: float = VOCAB_SIZE) -> Any:
    """Count N_act of models of width d_model, which may be fractional; broadcasts. n_blocks None: d_model / 64."""
    return total_parameters(d_model, 1, n_blocks, vocab_size)


def total_parameters(
    d_model: ArrayLike,
    experts: ArrayLike,
    n_blocks: ArrayLike | None = None,
    vocab_size: float = VOCAB_SIZE,
) -> Any:
    """Count N_total of models with `experts` experts, one of them active; broadcasts like `active_parameters`."""
    d = np.asarray(d_model, float)
    blocks = d / HEAD_DIM if n_blocks is None else np.asarray(n_blocks, float)
    return 2.0 * d * vocab_size + (ATTENTION + EXPERT * np.asarray(experts, float)) * blocks * d * d


def training_flops(n_active: ArrayLike, tokens: ArrayLike) -> Any:
    return 6.0 * np.asarray(n_active) * np.asarray(tokens)


def inference_flops(n_active: ArrayLike, tokens: ArrayLike) -> Any:
    return 2.0 * np.asarray(n_active, float) * np.asarray(tokens, float)


def affordable_tokens(flops: ArrayLike, n_active: ArrayLike, inference_tokens: ArrayLike = 0.0) -> Any:
    """Return the training tokens D of 6 N D + 2 N D_inf = F (negative if inference alone exceeds the budget)."""
    return np.asarray(flops) / training_flops(n_active, 1.0) - np.asarray(inference_tokens) / 3.0


def size_in_width(experts: ArrayLike, vocab_size: float = VOCAB_SIZE) -> tuple[float, Any]:
    """Return the coefficients of d and d³ in N_total under the d / 64 rule, for `experts` experts."""
    return 2.0 * vocab_size, (ATTENTION + EXPERT * np.asarray(experts, float)) / HEAD_DIM


# Variables of a law that E decides for a width.
EXPERT_VARIABLES = {"experts", "density", "activation_ratio", "n_total", "n_total_non_embedding"}
# Variables that may differ between runs of one size. A message names the first that does, because later ones often
# follow from it.
DESIGN_VARIABLES = (
    "experts",
    "granularity",
    "shared_ratio",
    "vocab_size",
    "density",
    "activation_ratio",
    "active_experts",
    "experts_per_token",
)
# Shares of a whole, at most 1.
PARTS = {"density", "sparsity", "activation_ratio", "shared_ratio"}


def name_size(experts: float, n_active: float, n_total: float, routed_experts: float | None = None) -> str:
    """Name a model: "E = 8: 1.1B active of 3.4B parameters", or "dense: 1.1B parameters".

    Of a family with the number of its experts: "64 experts, E = 8: …".
    """
    if experts <= 1:
        return f"dense: {format_count(n_total)} parameters"
    routed = "" if routed_experts is None else f"{routed_experts:g} experts, "
    return f"{routed}E = {experts:.5g}: {format_count(n_active)} active of {format_count(n_total)} parameters"


def is_size(variable: str) -> bool:
    """Return whether a variable of a law counts parameters or tokens, with which a loss falls."""
    return variable == "tokens" or is_parameters(variable)


def is_parameters(variable: str) -> bool:
    """Return whether a variable of a law counts parameters."""
    return variable.startswith("n_")


def width_of_total(n_total: ArrayLike, experts: ArrayLike, vocab_size: float = VOCAB_SIZE) -> Any:
    """Find the fractional d_model of this N_total under the d / 64 rule: the one real root of its cubic."""
    linear, cubic = size_in_width(experts, vocab_size)
    scale = np.sqrt(linear / cubic / 3.0)
    return 2.0 * scale * np.sinh(np.arcsinh(np.asarray(n_total) / (2.0 * cubic * scale**3)) / 3.0)


@reads
@dataclass(frozen=True)
class LatentAttention:
    """The ranks and head widths of multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, Section 2.1).

    `query_rank` None: queries are not compressed. The cache holds `kv_rank + rope_dim` elements per token and block.
    """

    kv_rank: Size
    rope_dim: Size
    nope_dim: Size
    value_dim: Size
    query_rank: Size | None = None


@dataclass(frozen=True)
class Span:
    """Entries that a token of some blocks is multiplied with besides weights, and that the cache of a sequence holds.

    There are min(limit, context // stride) entries: the keys of a window or chunk, compressed keys (`stride`), keys
    that an indexer selects (`limit`); or, if `once`, a single one whatever the context: a recurrent state, or weights
    that N leaves out.

    Attributes:
        multiplied: elements that one entry is multiplied with (None: as in the attention of the architecture).
        cached: elements that the cache holds for one entry (None: likewise).
        entry_bytes: bytes of these elements, where the class decides on them and not the type of the cache: a state
            may be kept in fp32 (None: as many as `cached` elements of the cache have).
    """

    blocks: int
    limit: int | None = None
    stride: int = 1
    once: bool = False
    multiplied: int | None = None
    cached: int | None = None
    entry_bytes: int | None = None

    def __post_init__(self) -> None:
        least_values = {"blocks": 1, "limit": 1, "stride": 1, "multiplied": 0, "cached": 0, "entry_bytes": 0}
        for name, least in least_values.items():
            if getattr(self, name) is not None:
                check_size(f"spans: {name}", getattr(self, name), least)

    @property
    def sees_all(self) -> bool:
        """True if there is an entry for every position."""
        return self.limit is None and self.stride == 1 and not self.once

    def bytes_of_entry(self, bytes_per_element: float) -> float:
        """Count the bytes that the cache holds for one entry of all blocks."""
        if self.entry_bytes is not None:
            return self.blocks * self.entry_bytes
        return bytes_per_element * self.blocks * (self.cached or 0)

    def entries(self, context: Any) -> Any:
        """Count the entries that the last token of so many positions sees; broadcasts."""
        if self.once:
            return np.where(np.asarray(context) > 0, 1.0, 0.0)[()]
        available = context if self.stride == 1 else context // self.stride
        return available if self.limit is None else np.minimum(available, float(self.limit))

    def hidden(self, context: float) -> float:
        """Count the entries of so many positions that a limit hides."""
        if self.once or self.limit is None:
            return 0.0
        return context // self.stride - self.entries(context)

    def to_dict(self) -> Fields:
        """Return the arguments that differ from their defaults."""
        defaults = vars(Span(self.blocks))
        return {name: value for name, value in vars(self).items() if name == "blocks" or value != defaults[name]}


def selected_keys(
    attention: Span,
    limit: int,
    index_heads: int = 0,
    index_width: int = 0,
    weights: int = 0,
) -> list[Span]:
    """Describe a block that attends to `limit` keys that an indexer selects (DeepSeek-V3.2, arXiv 2512.02556).

    The indexer compares `index_heads` queries with one key of `index_width` per position; all keys stay in the cache.
    Without heads of its own, the block takes the selection of one before it. `weights` are those of the indexer.
    """
    cached = (attention.cached or 0) + index_width
    spans = [
        replace(attention, limit=limit, cached=0),
        replace(attention, multiplied=index_heads * index_width, cached=cached),
    ]
    if weights:
        spans.append(Span(1, once=True, multiplied=weights, cached=0))
    return spans


class Forward:
    """The forward pass of one model, or of several as arrays."""

    def forward_flops(self: Any, context: float = 0.0) -> Any:
        """Count the FLOPs of one token's forward pass: 2 for each weight, router included, lookups not.

        `context` adds attention at that sequence length, without the causal half: every token counts the keys that the
        last one sees (Chowdhery et al. 2022, arXiv 2204.02311, Appendix B; Hoffmann et al. 2022, Appendix F), in
        windows, chunks and selections no more than these hold, with the products of indexers. A recurrent state counts
        4 FLOPs per element, of its update and its output; kernels that scan in chunks do more.
        """
        router = (self.experts > 1) * self.routed_blocks * self.d_model * self.experts
        weights = self.n_active_non_embedding + router + self.d_model * self.vocab_size
        attended = sum(span.entries(context) * elements for span, elements in self.products)
        return 2.0 * (weights + attended)


@reads
@dataclass(frozen=True)
class Architecture(Forward):
    """A decoder that can be built; by default one of the paper's, for which `d_model` and `experts` are enough.

    These have n_blocks = n_heads = d_model / 64, and one SwiGLU expert of width 3 d_model active per token; a dense
    model has one expert. ValueError names the field, its value and what is allowed.

    Attributes:
        experts: routed experts of a block; `experts_per_token` of them are active.
        d_expert, d_shared, d_ff: inner widths of a routed expert, of a shared one (default: d_expert), and of the
            feed-forward of a dense block (default: as wide as all that is active in a routed block). In a model
            without experts and `dense_blocks`, d_expert and d_ff are the same.
        shared_experts: experts that every token passes, in addition to the routed ones.
        dense_blocks: how many of the n_blocks have a dense feed-forward instead of experts, wherever they stand.
        n_kv_heads: key-value heads; fewer than n_heads for grouped queries.
        head_dim: width of a head (default: d_model / n_heads; with latent attention that of a query).
        gated: three matrices per feed-forward (SwiGLU), else two.
        tied_embeddings: one matrix for embedding and head.
        lookup_parameters: tables beside the embedding of which a token looks up rows, and multiplies none: per-layer
            embeddings, n-grams. They count in N_total and in bytes, not in N_act and FLOPs.
        mixer_parameters: all that is neither feed-forward nor embedding, counted on classes whose blocks are not plain
            attention and feed-forward (None: by the fields above).
        attention_blocks: blocks that attend to every position by the heads above (None: all).
        spans: spans of the other blocks: windows, chunks, selected and compressed keys, and recurrent states.
    """

    d_model: Size
    experts: Size = 1
    n_blocks: Size | None = None
    n_heads: Size | None = None
    vocab_size: Size = VOCAB_SIZE
    _: KW_ONLY
    experts_per_token: Size = 1
    d_expert: Size = _COMPUTED
    shared_experts: Whole = 0
    d_shared: Size = _COMPUTED
    dense_blocks: Whole = 0
    d_ff: Size = _COMPUTED
    n_kv_heads: Size = _COMPUTED
    head_dim: Size = _COMPUTED
    latent_attention: Annotated[LatentAttention | None, UNREAD] = None
    gated: bool = True
    tied_embeddings: bool = False
    lookup_parameters: Whole = 0
    mixer_parameters: Whole | None = None
    attention_blocks: Whole | None = None
    spans: Sequence[Span] = ()

    def __post_init__(self) -> None:
        heads_split_width = self.head_dim is None and self.latent_attention is None
        values: Fields = {"spans": tuple(_read_part(Span, "spans", span) for span in self.spans)}
        if self.latent_attention is not None:
            values["latent_attention"] = _read_part(LatentAttention, "latent_attention", self.latent_attention)
        is_dense = (self.experts, self.shared_experts, self.dense_blocks) == (1, 0, 0)
        if is_dense and self.d_expert is None:
            values["d_expert"] = self.d_ff
        for name, value in values.items():
            object.__setattr__(self, name, value)
        for name, compute in _DEFAULTS.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, compute(self))
        if heads_split_width and self.d_model % self.heads:
            raise InputError(f"d_model={self.d_model} is not divisible by n_heads={self.n_heads}")
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Raise ValueError for sizes that contradict each other."""
        if self.experts_per_token > self.experts:
            raise InputError(f"experts_per_token={self.experts_per_token} must be at most experts={self.experts}")
        if self.dense_blocks >= self.blocks:
            raise InputError(f"dense_blocks={self.dense_blocks} must be below n_blocks={self.blocks}")
        # A width that counts nowhere would be wrong without a word.
        idle_widths = {}
        if not self.dense_blocks:
            idle_widths["d_ff"] = "dense_blocks=0"
        if not self.shared_experts:
            idle_widths["d_shared"] = "shared_experts=0"
        if self.latent_attention is not None:
            idle_widths["n_kv_heads"] = "latent_attention"
            idle_widths["head_dim"] = "latent_attention"
        for name, reason in idle_widths.items():
            default = _DEFAULTS[name](self)
            if getattr(self, name) != default:
                raise InputError(f"{name}={getattr(self, name)} with {reason} must be {default}, or left out")
        if self.heads % self.n_kv_heads:
            raise InputError(f"n_heads={self.heads} is not divisible by n_kv_heads={self.n_kv_heads}")

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

    def to_dict(self) -> Fields:
        """Return the arguments of an equal architecture: shape, vocabulary, and those that are no defaults."""
        values = asdict(self)
        values["spans"] = tuple(span.to_dict() for span in self.spans)
        arguments: Fields = {**self.shape, "vocab_size": self.vocab_size}
        for name, value in values.items():
            if name not in arguments:
                default = _DEFAULTS[name](self) if name in _DEFAULTS else getattr(Architecture, name)
                if value != default:
                    arguments[name] = value
        return arguments

    @property
    def is_of_the_paper(self) -> bool:
        """True if shape and vocabulary define it: unsplit top-1 experts, and plain attention."""
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
        """The span of one block by the heads of the architecture: every position."""
        mla = self.latent_attention
        value_dim = self.head_dim
        cached = 2 * self.n_kv_heads * self.head_dim
        if mla:
            value_dim = mla.value_dim
            cached = mla.kv_rank + mla.rope_dim
        return Span(1, multiplied=self.heads * (self.head_dim + value_dim), cached=cached)

    @property
    def all_spans(self) -> tuple[Span, ...]:
        """Spans of all blocks, with their elements."""
        attention = self.attention
        blocks = self.blocks if self.attention_blocks is None else self.attention_blocks
        spans = [replace(attention, blocks=blocks)] if blocks else []
        for span in self.spans:
            multiplied = attention.multiplied if span.multiplied is None else span.multiplied
            cached = attention.cached if span.cached is None else span.cached
            spans.append(replace(span, multiplied=multiplied, cached=cached))
        return tuple(spans)

    @property
    def products(self) -> list[tuple[Span, float]]:
        """Pair each kind of span with the elements of one of its entries, of all its blocks."""
        elements: Counter[Span] = Counter()
        for span in self.all_spans:
            kind = Span(1, span.limit, span.stride, span.once)
            elements[kind] += span.blocks * (span.multiplied or 0)
        return [(kind, float(count)) for kind, count in elements.items()]

    def attending(self, layers: Iterable[Sequence[Span]]) -> Architecture:
        """Replace the spans of the blocks by those of each layer; equal blocks are counted together."""
        attention = self.attention
        groups: Counter[Span] = Counter()
        for layer in layers:
            groups.update(span for span in layer if span.multiplied or span.cached)
        full_blocks = groups.pop(attention, 0)
        spans = []
        for span, blocks in groups.items():
            multiplied = None if span.multiplied == attention.multiplied else span.multiplied
            cached = None if span.cached == attention.cached else span.cached
            spans.append(replace(span, blocks=blocks, multiplied=multiplied, cached=cached))
        attention_blocks = None if full_blocks == self.blocks else full_blocks
        return replace(self, attention_blocks=attention_blocks, spans=tuple(spans))

    @property
    def embedding_parameters(self) -> int:
        """Parameters of embedding and head: d_model × vocab_size each, once if they are tied."""
        return self.d_model * self.vocab_size * (1 if self.tied_embeddings else 2)

    @property
    def attention_parameters(self) -> int:
        """Query, key, value and output of all blocks; on a counted class all but feed-forward and embedding."""
        if self.mixer_parameters is not None:
            return self.mixer_parameters
        d = self.d_model
        mla = self.latent_attention
        if mla is None:
            return self.blocks * 2 * d * self.head_dim * (self.heads + self.n_kv_heads)
        rank = mla.query_rank
        query_width = self.heads * self.head_dim
        query = d * query_width if rank is None else rank * (d + query_width)
        compression = d * (mla.kv_rank + mla.rope_dim)
        key_value = mla.kv_rank * self.heads * (mla.nope_dim + mla.value_dim)
        output = self.heads * mla.value_dim * d
        return self.blocks * (query + compression + key_value + output)

    def _feed_forward(self, width: int) -> int:
        """Count the matrices of feed-forwards, whose inner widths add up to `width`."""
        return (3 if self.gated else 2) * self.d_model * width

    def _non_embedding(self, width: int) -> int:
        """Count attention and feed-forward, of inner width `width` in routed blocks."""
        widths = self.routed_blocks * width + self.dense_blocks * self.d_ff
        return self.attention_parameters + self._feed_forward(widths)

    @property
    def routed_experts_parameters(self) -> int:
        """Parameters of all experts that a router chooses among."""
        return self._feed_forward(self.routed_blocks * self.experts * self.d_expert) if self.experts > 1 else 0

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
        """All parameters except router, norms and biases."""
        return self.n_total_non_embedding + self.embedding_parameters + self.lookup_parameters

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
        """Return the variables that a law may have of any architecture, by the names that laws use.

        `experts` is `experts_equivalent`, `routed_experts` are counted. `density` K / E and `sparsity` (E - K) / E are
        of routed experts alone (Abnar et al. 2025, arXiv 2501.12370, Eq. 7); `activation_ratio` (K + S) / (E + S) has
        the shared ones (Tian et al. 2025, arXiv 2507.17702). `shared_ratio` is the shared part of the active width.
        """
        k = self.experts_per_token
        e = self.experts
        shared = self.shared_experts
        return {
            **{name: float(getattr(self, name)) for name in _ATTRIBUTE_VARIABLES},
            "experts": self.experts_equivalent,
            "routed_experts": float(e),
            "density": k / e,
            "sparsity": 1 - k / e,
            "active_experts": float(k + shared),
            "activation_ratio": (k + shared) / (e + shared),
            "shared_ratio": shared * self.d_shared / self.active_width,
        }

    def training_flops(self, tokens: float, context: float | None = None) -> float:
        """Count 6 N_act D; with the sequence length as `context`, three forward passes as of `forward_flops`."""
        if context is None:
            return float(training_flops(self.n_active, tokens))
        return float(3 * tokens * self.forward_flops(context))

    def inference_flops(self, tokens: float, context: float | None = None) -> float:
        """Count 2 N_act D; with a `context`, `forward_flops` of tokens after that many positions."""
        if context is None:
            return float(inference_flops(self.n_active, tokens))
        return float(tokens * self.forward_flops(context))

    def weight_bytes(self, bytes_per_parameter: float = 2.0) -> float:
        return bytes_per_parameter * self.n_total

    def kv_cache_bytes(self, tokens: float, bytes_per_element: float = 2.0, context: float | None = None) -> float:
        """Count the bytes of `tokens` positions over all sequences of `context` positions each (None: one sequence).

        Keys and values of every key-value head, or the latent vectors of MLA, for every position that a block may
        still see; the state of recurrent blocks once a sequence.
        """
        if not tokens:
            return 0.0
        length = min(context or tokens, tokens)
        sequence = sum(span.bytes_of_entry(bytes_per_element) * span.entries(length) for span in self.all_spans)
        return sequence * (tokens / length)

    def kv_bytes_per_token(self, bytes_per_element: float = 2.0) -> float:
        """Count the bytes by which each further token makes the cache of a long sequence grow."""
        growing = (span for span in self.all_spans if span.limit is None and not span.once)
        return sum(span.bytes_of_entry(bytes_per_element) / span.stride for span in growing)

    def kv_bytes_per_sequence(self, bytes_per_element: float = 2.0) -> float:
        """Count the bytes that do not grow with a long sequence: full windows and chunks, and states."""
        sequence_bytes = 0.0
        for span in self.all_spans:
            entries = 1 if span.once else span.limit or 0
            sequence_bytes += span.bytes_of_entry(bytes_per_element) * entries
        return sequence_bytes

    @property
    def training_state_bytes(self) -> float:
        """fp32 master weights, AdamW's two moments and fp32 gradients, without activations."""
        return (ADAM_BYTES + GRADIENT_BYTES) * self.n_total


def _by_rule(name: str, a: Architecture) -> int:
    """Compute a field by the d / 64 rule."""
    if a.d_model % HEAD_DIM:
        problem = f" is not a multiple of {HEAD_DIM}: "
        raise InputError(given("d_model", a.d_model), problem, given(name, None), " must be given")
    return a.d_model // HEAD_DIM


def _head_dim(a: Architecture) -> int:
    mla = a.latent_attention
    return mla.nope_dim + mla.rope_dim if mla else a.d_model // a.heads


# Variables of a law that are attributes of an architecture.
_ATTRIBUTE_VARIABLES = (
    "n_active",
    "n_total",
    "n_active_non_embedding",
    "n_total_non_embedding",
    "granularity",
    "d_model",
    "d_expert",
    "n_blocks",
    "n_heads",
    "vocab_size",
    "experts_per_token",
    "shared_experts",
)
# Values of fields that are not given, computed from the fields before them.
_DEFAULTS: Mapping[str, Callable[[Architecture], int]] = {
    "n_blocks": partial(_by_rule, "n_blocks"),
    "n_heads": partial(_by_rule, "n_heads"),
    "d_expert": lambda a: 3 * a.d_model,
    "d_shared": lambda a: a.d_expert,
    "d_ff": lambda a: a.active_width,
    "n_kv_heads": lambda a: a.heads,
    "head_dim": _head_dim,
}


def _read_part(kind: Any, name: str, value: Any) -> Any:
    """Read a part of an architecture, also from a mapping, which JSON has."""
    try:
        instance = kind(**value) if isinstance(value, Mapping) else value
    except TypeError:
        raise InputError(f"{name}={value!r} must have the fields {', '.join(kind.__annotations__)}") from None
    if not isinstance(instance, kind):
        raise InputError(f"{name}={value!r} must be a {kind.__name__}")
    return instance


def check_size(name: str, value: Any, least: int = 1) -> None:
    """Raise ValueError for a value that is no whole number of at least `least`."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise InputError(f"{name}={value!r} must be an integer of at least {least}")
