"""Families: the shape of released models at any width, for `like=` in questions.

A family has one real model per width: a multiple of 64, or of 128 where the released ones are. It is read from a
configuration, as `describe` reads that of a released model; between two widths every size is interpolated in ln d.

- Heads are in proportion to d / head_dim, in multiples of the released model's key-value heads; depth is in
  proportion to d; widths of feed-forwards are too, in multiples of 64. Of several members these are interpolated.
- Hybrids are counted on their class, at fewer widths; heads of their linear attention follow the width, too.
- All else is that of the member whose width is nearest: widths of heads, latent ranks, experts per token, shared
  experts, leading dense blocks, windows, vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError
from hub.base.types import Fields
from scaling_law.size.architecture import VOCAB_SIZE, Architecture, Span
from scaling_law.size.arrays import FloatArray, Interval
from scaling_law.size.ladder import ROUNDING, Ladder, list_widths
from scaling_law.size.model_configs import (
    EXPERT_FIELDS,
    FAMILIES,
    Config,
    names_of_family,
    read_architecture,
    read_model,
    read_source,
    released_names,
    sizes_left_out,
    text_config,
)
from scaling_law.size.widths import Widths

# Fields in proportion to the width, and what they are multiples of.
SCALED = {
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "intermediate_size_mlp": 64,
    "moe_intermediate_size": 64,
    "linear_num_key_heads": 1,
}
# Hybrids, which are counted on their class, a second a width: their fields are those of a table, and others.
HYBRIDS = {"qwen3_next", "qwen3_5_moe_text", "qwen3_5_text"}
OF_TABLE = "qwen2_moe"
OF_HYBRIDS = {
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    *("linear_conv_kernel_dim", "layer_types", "full_attention_interval", "partial_rotary_factor"),
}
# Widths of a hybrid, relative to that of its first member.
OF_MEMBER = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
# Model types with experts → those of the same blocks with one feed-forward each.
DENSE_TWINS = {
    "mixtral": "mistral",
    "qwen2_moe": "qwen2",
    "qwen3_moe": "qwen3",
}
# Model types → the class of transformers that has their blocks, and types without a class.
TRAINED_AS = {"kimi_k2": "deepseek_v3"}
WITHOUT_CLASS = {"bailing_moe", "deepseek", "qwen2_vl", "qwen2_5_vl"}
# Classes that refuse heads which do not divide the width.
HEADS_DIVIDE_WIDTH = {"deepseek_v2", "gemma2", "llama"}
# Classes whose routers have a selection bias, with which experts are balanced.
BALANCED_BY_BIAS = {"deepseek_v3", "deepseek_v32", "dots1", "glm4_moe", "glm_moe_dsa", "minimax_m2"}
# Up to this width a family has all multiples of its step.
FINEST = 8192
WIDEST = 65_536
# A size that is nearer to a half than this is a half.
TIE = 1e-9
# A size that is none, and how many steps of a ladder its sizes go on beyond its ends.
TINY = 1e-300
FAR = 1e4
# Experts that 2, 4 and 8 GPUs can divide are multiples of this.
STEP = 8


@dataclass(frozen=True, eq=False)
class Family(Ladder):
    """The models of a family.

    An E of a member is (R + s) / (k + s): of R routed experts k are active, and the shared ones are as wide as s of
    them. It depends on the numbers of experts alone, and is the same at every width.

    Args:
        name: what it was read from.
        members: configurations of released models, as in config.json, the narrowest first. They have one model type,
            vocabulary and number of experts per token.
        vocab_size: a vocabulary in the place of theirs, such as that of the tokenizer that a run will have.
        counted_vocab_size: the vocabulary with which laws count N: that of the models that they were fitted to. What
            is asked of them is N without embeddings plus 2 d V (docs/studies/anatomy.md).

    ValueError names the field, its value and what is allowed, where a model does not exist.
    """

    name: str
    members: tuple[Config, ...]
    vocab_size: int | None = None
    counted_vocab_size: int = VOCAB_SIZE

    @classmethod
    def read(cls, sources: Any) -> Family:
        """Read a family from one or several members, each as of `read_model`, or a text with commas between them.

        ValueError where a member cannot be scaled, or is of another type or design than the others.
        """
        if isinstance(sources, Family):
            return sources
        if isinstance(sources, str):
            sources = tuple(name.strip() for name in sources.split(","))
            if {*sources} <= {*released_names()}:
                return _read_released(sources)
        return _read_family(sources if isinstance(sources, (list, tuple)) else [sources])

    def with_vocabulary(self, vocab_size: int | None, counted_vocab_size: int) -> Family:
        """Return the family with a vocabulary of its own (None: as it is), and that with which laws count N."""
        return _replaced(self, vocab_size=vocab_size or self.vocab_size, counted_vocab_size=counted_vocab_size)

    @property
    def own_vocab_size(self) -> int:
        """The vocabulary of the first member, or the one in its place."""
        return self.vocab_size or self.members[0]["vocab_size"]

    def __str__(self) -> str:
        return self.name

    def to_dict(self) -> Fields:
        return {"name": self.name, "members": [*self.members], "vocab_size": self.own_vocab_size}

    # -- models that exist

    def configuration(self, d_model: float, experts: float | None = None) -> Fields:
        """Return the fields of config.json of a rung, with so many routed experts (None: as its member has).

        One is the dense model of the same active width. ValueError where there is no such model.
        """
        config = self._scale(d_model)
        if experts is None or not self.experts:
            return config
        if experts == 1:
            return self._dense_twin(config)
        count_field = next(name for name in EXPERT_FIELDS if name in config)
        config[count_field] = int(experts)
        return config

    def architecture(self, d_model: float, experts: float) -> Architecture:
        return read_architecture(self.configuration(d_model, self._routed(experts)))

    def models(self, widths: Iterable[float], routed_experts: ArrayLike) -> list[Architecture]:
        """Build the models of these widths and numbers of routed experts. ValueError where there are none."""
        expansions = self.read_experts(np.asarray(routed_experts, float)).tolist()
        models = []
        for width in widths:
            nearest = self.nearest(width)
            if nearest != width:
                raise InputError(f"d_model={width:g} is not a width of {self.name}; the nearest is {nearest}")
            models += [self.architecture(nearest, e) for e in expansions]
        return models

    def model_section(self, d_model: float, experts: float) -> Fields:
        """Write the section `model` of a train.py configuration; the vocabulary is the tokenizer's.

        Experts are balanced by a selection bias where the class has one. ValueError for a type without a class.
        """
        config = self.configuration(d_model, self._routed(experts))
        kind = config.pop("model_type")
        del config["vocab_size"]
        if kind in WITHOUT_CLASS:
            raise InputError(f"like={self.name!r}: transformers has no class for {kind}, which train.py could train")
        kind = TRAINED_AS.get(kind, kind)
        section: Fields = {"type": kind, **config}
        if kind in BALANCED_BY_BIAS and experts > 1:
            section["balance"] = "bias"
        return section

    def _routed(self, expansion: float) -> int | None:
        """Return the number of routed experts of this E; None of a dense family."""
        return round(float(self.routed_experts(expansion))) if self.experts else None

    @cached_property
    def experts(self) -> int:
        """Routed experts of the first member; 0 of a dense family."""
        experts = self.rung_models[0].experts
        return experts if experts > 1 else 0

    @property
    def has_dense_twin(self) -> bool:
        """True if a class has the blocks of these models with a dense feed-forward in each."""
        if not self.experts:
            return True
        has_class = self.members[0]["model_type"] in DENSE_TWINS
        return has_class and not self.rung_models[0].dense_blocks

    def expansion(self, routed_experts: ArrayLike) -> Any:
        """Return the E of models with so many routed experts; 1 of a dense one."""
        routed = np.asarray(routed_experts, float)
        shared, active = self._widths_in_experts
        return np.where(routed > 1, (routed + shared) / active, 1.0)

    def routed_experts(self, expansion: ArrayLike) -> Any:
        """Return the number of routed experts of this E; 1 of a dense model."""
        e = np.asarray(expansion, float)
        shared, active = self._widths_in_experts
        return np.where(e > 1, e * active - shared, 1.0)

    def read_experts(self, counts: FloatArray) -> FloatArray:
        """Convert numbers of routed experts to E.

        ValueError for a number that the family does not have: experts of a dense one, no more than a token takes, or
        a dense model of blocks that no class has.
        """
        per_token = self.rung_models[0].experts_per_token
        groups = self.members[0].get("n_group") or 1
        for count in np.unique(counts).tolist():
            if count == 1 and self.has_dense_twin:
                continue
            if not self.experts:
                raise InputError(f"experts={count:g}: {self.name} is a dense family, which has experts=1 alone")
            if count == 1:
                kind = self.members[0]["model_type"]
                raise InputError(f"experts=1: no class has the blocks of {self.name} ({kind}) without experts")
            if count <= per_token or count % groups:
                multiple = f"a multiple of its {groups} groups" if groups > 1 else "a whole number"
                advice = f"{multiple} above the {per_token} that a token of {self.name} takes"
                raise InputError(f"experts={count:g} must be {advice}")
        return np.asarray(self.expansion(counts))

    def list_experts(self, expansions: ArrayLike) -> list[float]:
        """List doublings of routed experts up to these E, which 2, 4 and 8 GPUs divide, and those of the member."""
        e = np.atleast_1d(np.asarray(expansions, float))
        if not self.experts or (np.all(e == 1) and self.has_dense_twin):
            return [1.0]
        most = self.routed_experts(e[e > 1]) * (1 + ROUNDING)
        doublings = np.floor(np.log2(most / STEP))
        multiples = STEP * 2.0**doublings
        fewest = max(STEP, self.rung_models[0].experts_per_token + 1)
        possible = multiples[multiples >= fewest]
        counts = {float(self.experts), *possible.tolist()}
        return [1.0] * self.has_dense_twin + sorted(counts)

    @cached_property
    def _widths_in_experts(self) -> Interval:
        """Widths of the shared experts, and of all that is active, over that of a routed expert."""
        a = self.rung_models[0]
        shared = a.shared_experts * a.d_shared / a.d_expert
        return shared, a.experts_per_token + shared

    # -- the fields of a rung

    def _scale(self, d_model: float) -> Fields:
        """Return the fields of config.json of a width."""

        def distance(member: Config) -> float:
            return abs(math.log(member["hidden_size"] / d_model))

        nearest = min(self.members, key=distance)
        config: Fields = {**nearest, "hidden_size": int(d_model)}
        for name, multiple in SCALED.items():
            if name in nearest:
                config[name] = multiple * _round(self._interpolate(name, d_model) / multiple)
        if "shared_expert_intermediate_size" in nearest:
            ratio = nearest["shared_expert_intermediate_size"] / nearest["moe_intermediate_size"]
            config["shared_expert_intermediate_size"] = _round(ratio * config["moe_intermediate_size"])
        if "linear_num_key_heads" in nearest:
            ratio = nearest["linear_num_value_heads"] // nearest["linear_num_key_heads"]
            config["linear_num_value_heads"] = ratio * config["linear_num_key_heads"]
        config["num_hidden_layers"] = max(config["num_hidden_layers"], self._fewest_blocks)
        config.update(self._heads(nearest, d_model))
        for name, values in nearest.items():
            if isinstance(values, list):
                config[name] = _of_depth(values, nearest["num_hidden_layers"], config["num_hidden_layers"])
        if self.vocab_size is not None:
            config["vocab_size"] = self.vocab_size
        return config

    @cached_property
    def _fewest_blocks(self) -> int:
        """The blocks up to the first that has experts."""
        member = self.members[0]
        steps = [member.get(name) or 1 for name in ("interleave_moe_layer_step", "decoder_sparse_step")]
        return max((member.get("first_k_dense_replace") or 0) + 1, *steps)

    def _heads(self, member: Config, d_model: float) -> Fields:
        """Return the heads of a width, in multiples of key-value heads, which grow only where they are all heads."""
        own_heads = member["num_attention_heads"]
        own_kv_heads = member["num_key_value_heads"]
        heads = self._interpolate("num_attention_heads", d_model)
        if own_kv_heads == own_heads:
            kv_heads = heads = _round(heads)
        else:
            kv_heads = min(own_kv_heads, _round(heads))
            heads = kv_heads * _round(heads / kv_heads)
        return {"num_attention_heads": heads, "num_key_value_heads": kv_heads}

    def _interpolate(self, name: str, d_model: float) -> float:
        """Interpolate a field in ln d between the members that have it, in proportion to d beyond the last."""
        members = [member for member in self.members if name in member]
        widths = np.array([member["hidden_size"] for member in members], float)
        sizes = np.array([member[name] for member in members], float)
        nearest = np.clip(d_model, widths[0], widths[-1])
        log_size = np.interp(math.log(nearest), np.log(widths), np.log(sizes))
        return float(np.exp(log_size) * d_model / nearest)

    def _dense_twin(self, config: Fields) -> Fields:
        """Return the dense model of the same blocks and active width, in the class that has it."""
        a = read_architecture(config)
        dense = dict(config)
        for name in (*EXPERT_FIELDS, *_OF_EXPERTS):
            dense.pop(name, None)
        # The class of some has a window by default.
        dense.setdefault("sliding_window", None)
        dense["model_type"] = DENSE_TWINS[config["model_type"]]
        dense["intermediate_size"] = a.active_width
        return dense

    # -- all models as arrays

    @cached_property
    def rung_models(self) -> tuple[Architecture, ...]:
        """The models of all widths, with the experts of their members; each is larger than the one before."""
        step = 128 if all(member["hidden_size"] % 128 == 0 for member in self.members) else 64
        kind = self.members[0]["model_type"]
        widths = list_widths(step, FINEST, WIDEST)
        if kind in HYBRIDS:
            width = self.members[0]["hidden_size"]
            widths = [step * _round(share * width / step) for share in OF_MEMBER]
        models: list[Architecture] = []
        for d_model in dict.fromkeys(widths):
            a = read_architecture(self.configuration(d_model))
            if kind in HEADS_DIVIDE_WIDTH and d_model % a.heads:
                continue
            if not models or a.n_active_non_embedding > models[-1].n_active_non_embedding:
                models.append(a)
        return tuple(models)

    @cached_property
    def _sizes(self) -> Mapping[str, FloatArray]:
        """Arrays of the fields of `Widths` of these models, without those that E decides."""
        sizes = {}
        for name in _SIZES:
            sizes[name] = np.array([getattr(a, name) for a in self.rung_models], float)
        return sizes

    @cached_property
    def _products(self) -> Mapping[Span, FloatArray]:
        """Spans that some of these models have, and the elements of an entry, of all blocks."""
        products: dict[Span, FloatArray] = {}
        for i, a in enumerate(self.rung_models):
            for span, elements in a.products:
                products.setdefault(span, np.zeros(len(self.rung_models)))[i] = elements
        return products

    def _at(self, sizes: FloatArray, d_model: FloatArray) -> FloatArray:
        """Return the sizes [n] of the rungs at any widths: their own on a rung, between and beyond in ln d."""
        widths = self._sizes["d_model"]
        log_sizes = np.log(np.maximum(sizes, TINY))
        smooth = np.exp(np.interp(np.log(d_model), _extend(np.log(widths)), _extend(log_sizes)))
        place = np.minimum(np.searchsorted(widths, d_model), len(sizes) - 1)
        is_rung = (widths[place] == d_model) | (sizes[place] == 0)
        return np.where(is_rung, sizes[place], smooth)

    @property
    def smallest(self) -> float:
        return float(self._sizes["d_model"][0])

    @cached_property
    def design(self) -> dict[str, float]:
        """Granularity, shared part and share of blocks with experts of the first member; {} of a dense one."""
        a = read_architecture(self._scale(self.members[0]["hidden_size"]))
        if a.experts == 1:
            return {}
        return {
            "granularity": a.granularity,
            "shared_ratio": a.shared_experts * a.d_shared / a.active_width,
            "routed_share": a.routed_blocks / a.blocks,
        }

    def every_rung(self, largest: float) -> FloatArray:
        return self._sizes["d_model"]

    def beside(self, d_model: FloatArray) -> tuple[FloatArray, FloatArray]:
        widths = self._sizes["d_model"]
        last = len(widths) - 1
        above = np.searchsorted(widths, np.asarray(d_model) * (1 + ROUNDING), side="right")
        below = np.maximum(above - 1, 0)
        # The smallest model is below all that are narrower.
        above = np.clip(above, 1, last)
        return widths[below], widths[above]

    def widths(self, d_model: ArrayLike, experts: ArrayLike) -> Widths:
        d, e = np.broadcast_arrays(np.asarray(d_model, float), np.asarray(experts, float))
        a = self.rung_models[0]
        sizes = {name: self._at(values, d) for name, values in self._sizes.items()}
        is_sparse = e > 1
        routed = self.routed_experts(e)
        matrices = 3 if a.gated else 2
        expert = matrices * sizes["routed_blocks"] * d * sizes["d_expert"]
        idle = np.where(is_sparse, expert * (routed - sizes["experts_per_token"]), 0.0)
        return Widths(
            **{
                **sizes,
                "d_model": d,
                "n_total": sizes["n_active"] + sizes["lookup_parameters"] + idle,
                "n_total_non_embedding": sizes["n_active_non_embedding"] + idle,
                "experts": routed,
                "experts_per_token": np.where(is_sparse, sizes["experts_per_token"], 1.0),
                "d_expert": np.where(is_sparse, sizes["d_expert"], sizes["active_width"]),
            },
            vocab_size=a.vocab_size,
            tied_embeddings=a.tied_embeddings,
            gated=a.gated,
            products=tuple((span, self._at(values, d)) for span, values in self._products.items()),
        )

    def variables(self, d_model: ArrayLike, experts: ArrayLike) -> Fields:
        models = self.widths(d_model, experts)
        e = np.broadcast_to(np.asarray(experts, float), models.d_model.shape)
        a = self.rung_models[0]
        active_experts = a.experts_per_token + a.shared_experts
        is_sparse = e > 1
        # As if the vocabulary were that of the models that laws were fitted to.
        embeddings = 2.0 * models.d_model * self.counted_vocab_size

        def where_sparse(value: float, dense_value: float = 1.0) -> FloatArray:
            return np.where(is_sparse, value, dense_value)

        routed = self.routed_experts(e)
        all_experts = routed + where_sparse(a.shared_experts, 0.0)
        return {
            "n_active": models.n_active_non_embedding + embeddings,
            "n_total": models.n_total_non_embedding + embeddings,
            "n_active_non_embedding": models.n_active_non_embedding,
            "n_total_non_embedding": models.n_total_non_embedding,
            "own_n_active": models.n_active,
            "experts": e,
            "density": where_sparse(a.experts_per_token) / routed,
            "activation_ratio": where_sparse(active_experts) / all_experts,
            "granularity": where_sparse(a.granularity),
            "active_experts": where_sparse(active_experts),
            "experts_per_token": where_sparse(a.experts_per_token),
            "shared_ratio": where_sparse(a.shared_experts * a.d_shared / a.active_width, 0.0),
        }

    def cache_bytes(self, d_model: ArrayLike, tokens: float, bytes_per_element: float) -> Any:
        sizes = _cache_bytes(self, tokens, bytes_per_element)
        return self._at(sizes, np.asarray(d_model, float))

    def width_of_active(self, n_active: ArrayLike) -> Any:
        """Find the d_model of this N_act, as laws count it: exactly on rungs, else between the same two."""
        rungs = self._sizes["d_model"]
        log_n = np.log(self.variables(rungs, 1.0)["n_active"])
        # A law without ranges has models of no size.
        with np.errstate(divide="ignore"):
            target = np.log(np.asarray(n_active, float))
        return np.exp(np.interp(target, _extend(log_n), _extend(np.log(rungs))))


# Fields of experts, which a dense model does not have.
_OF_EXPERTS = {
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "decoder_sparse_step",
    "mlp_only_layers",
    "norm_topk_prob",
    "router_aux_loss_coef",
    "qkv_bias",
}


# Fields that decide no size but what a model computes; they are written into its configuration.
_COMPUTED_WITH = {
    "hidden_act",
    "n_group",
    "norm_topk_prob",
    "rms_norm_eps",
    "rope_theta",
    "router_aux_loss_coef",
    "routed_scaling_factor",
    "topk_group",
}
# Fields of config.json that no class reads, or not that of a type.
_UNREAD = {"moe_layer_freq"}
_UNREAD_BY = {"minimax_m2": {"use_qk_norm"}, "gpt_oss": {"hidden_act"}, "glm_moe_dsa": {"mlp_bias"}}
# Fields in which all members must agree: the shape of a feed-forward with experts.
_SAME = ("num_experts_per_tok", "n_shared_experts", "num_shared_experts", "vocab_size")


def _read_member(name: str, config: Config) -> Config:
    """Return the fields of a configuration that its size and computation depend on."""
    config = text_config(config)
    kind = str(config.get("model_type"))
    if kind not in {*FAMILIES, *HYBRIDS}:
        raise InputError(
            f"like={name!r}: models of type {kind} are counted on their class, which takes seconds for each width; "
            f"families are of {', '.join(FAMILIES)} and hybrids of Qwen"
        )
    model = read_model(config)
    if model.unread:
        raise InputError(f"like={name!r}: {model.warnings[0]}")
    table = OF_TABLE if kind in HYBRIDS else kind
    names = {*names_of_family(table), *_COMPUTED_WITH, "vocab_size"}
    if kind in HYBRIDS:
        names |= OF_HYBRIDS
    names -= _UNREAD | _UNREAD_BY.get(kind, set())
    # A class saves the base of RoPE in a section, and the number of experts under a name of many classes.
    config = {**(config.get("rope_parameters") or {}), **config}
    count_field = FAMILIES[table]["architecture"].get("experts")
    fields: Fields = {}
    for field, value in config.items():
        if field in names:
            fields[count_field if count_field and field in EXPERT_FIELDS else field] = value
    # A file may leave sizes to its class.
    if kind in FAMILIES:
        fields.update(sizes_left_out(config))
    a = model.architecture
    fields["num_key_value_heads"] = a.n_kv_heads
    if a.latent_attention is None:
        fields["head_dim"] = a.head_dim
    return {"model_type": kind, **fields, "vocab_size": model.architecture.vocab_size}


def _read_family(sources: Sequence[Any]) -> Family:
    """Read the family of some members. ValueError for members of different designs."""
    if not sources:
        raise InputError("like=[] must have a member")
    configs = [read_source(source, "like") for source in sources]
    name = ", ".join(member_name for member_name, _ in configs)
    members = [_read_member(*config) for config in configs]
    first = members[0]
    for member in members[1:]:
        for field in ("model_type", *_SAME):
            if member.get(field) != first.get(field):
                values = f"{first.get(field)!r} and {member.get(field)!r}"
                raise InputError(f"like={name!r}: members of one family have the same {field}, not {values}")
    ordered = sorted(members, key=lambda member: member["hidden_size"])
    widths = [member["hidden_size"] for member in ordered]
    if len({*widths}) < len(widths):
        raise InputError(f"like={name!r}: two members have the same hidden_size")
    return Family(name, tuple(ordered))


# Families of models that are shipped are read once; a file or a repository may change.
_read_released = lru_cache(maxsize=32)(_read_family)
# So is the ladder of a family with another vocabulary.
_replaced = lru_cache(maxsize=32)(replace)


def _round(size: float) -> int:
    """Round to a whole number of at least 1, halves up, however the size itself was rounded."""
    return max(1, math.floor(size + 0.5 + TIE))


def _of_depth(values: list[Any], depth: int, new_depth: int) -> list[Any]:
    """Shorten or continue the values of each block, or the numbers of some blocks, to another depth."""
    if len(values) != depth:
        is_listed = _of_depth([block in values for block in range(depth)], depth, new_depth)
        return [block for block, listed_block in enumerate(is_listed) if listed_block]
    # What the second half repeats goes on.
    half = depth // 2
    period = depth
    for shift in reversed(range(1, depth - half)):
        if values[half : depth - shift] == values[half + shift :]:
            period = shift
    continued = list(values)
    while len(continued) < new_depth:
        continued.append(continued[-period])
    return continued[:new_depth]


@lru_cache(maxsize=32)
def _cache_bytes(family: Family, tokens: float, bytes_per_element: float) -> FloatArray:
    """Count the KV cache of one sequence of every model, once: a search of widths asks many times."""
    return np.array([a.kv_cache_bytes(tokens, bytes_per_element) for a in family.rung_models])


def _extend(log_values: FloatArray) -> FloatArray:
    """Go on in the direction of the first two and the last two values, far beyond each end."""
    first = log_values[0] + FAR * (log_values[0] - log_values[1])
    last = log_values[-1] + FAR * (log_values[-1] - log_values[-2])
    return np.concatenate([[first], log_values, [last]])


_ALIKE = {"vocab_size", "tied_embeddings", "gated", "products"}
_SIZES = tuple(size.name for size in fields(Widths) if size.name not in _ALIKE)
