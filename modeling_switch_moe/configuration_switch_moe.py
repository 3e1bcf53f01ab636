"""Configuration of the Switch-MoE decoder of Ludziejewski et al. 2025 (arXiv 2502.05172); the defaults are its runs.

This file travels with released checkpoints, so it imports nothing but transformers and huggingface_hub.
"""

# First of all: an older transformers lacks what follows.
from .versions import TRANSFORMERS  # noqa: F401

# isort: split

import difflib
import hashlib
import math
import re
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.dynamic_module_utils import get_relative_import_files

# A hash of the code that was saved beside this file; `save_pretrained` writes it. transformers knows the code of a
# release by its configuration class, and a local class by the text of its file: releases whose text is the same would
# share their classes, whatever their code.
CODE_SHA256 = ""

SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "num_experts")
COEFFICIENTS = ("router_aux_loss_coef", "router_z_loss_coef", "initializer_range")
# Fields by which trainers tell that a model has experts whose auxiliary losses they may apply.
ROUTER_FIELDS = ("output_router_logits", "router_aux_loss_coef", "router_z_loss_coef")
# Fields, a test of their values, and the range that it allows.
RANGES = (
    ((*SIZES, "max_position_embeddings"), lambda v: v >= 1, "an integer of at least 1"),
    (("capacity_group_tokens",), lambda v: v is None or v >= 1, "an integer of at least 1, or None"),
    (("capacity_factor",), lambda v: v is None or 0 < v < math.inf, "a finite number above 0, or None (dropless)"),
    (COEFFICIENTS, lambda v: 0 <= v < math.inf, "a finite number of at least 0"),
    (("norm_eps", "initializer_scale"), lambda v: 0 < v < math.inf, "a finite number above 0"),
    (("attention_dropout",), lambda v: 0 <= v < 1, "at least 0 and below 1"),
)


@strict
class SwitchMoeConfig(PreTrainedConfig):
    r"""Configuration of [`SwitchMoeModel`] and the classes with a head.

    Every field is keyword-only and type-checked. A wrong type or a value outside its range raises a
    `huggingface_hub.errors.StrictDataclassError` with field, value and what is allowed; a misspelt name a ValueError.
    A dense model has no `router_aux_loss_coef`, `router_z_loss_coef` and `output_router_logits`: they are read and
    left out, since TRL and others take a model that has them for a mixture of experts.

    Args:
        vocab_size: rows of the embedding and of the head. 50257 is the GPT-2 vocabulary of the paper.
        hidden_size: width of the residual stream, the paper's d_model.
        num_hidden_layers: number of blocks, n_blocks.
        num_attention_heads: heads of the attention, n_heads; `hidden_size / num_attention_heads` must be even.
        intermediate_size: inner width of each expert's SwiGLU; `None` means `3 * hidden_size`.
        num_experts: experts per block, E. 1 is a dense block, an ordinary SwiGLU without a router.
        max_position_embeddings: sequence length of training, in tokens. Longer inputs run with one warning.
        capacity_factor: in training an expert takes at most `floor(capacity_factor * G / E)` of the G tokens of a
            capacity group, first come first kept; the others pass by the residual only. `None` trains dropless.
            Evaluation and generation are dropless always.
        capacity_group_tokens: tokens of a capacity group, G: consecutive tokens of a forward call (row after row) that
            compete for an expert's places and that the balance loss is counted over; `None`: all tokens of a call.
            Calls that hold whole groups drop the same tokens however many groups each of them holds.
        router_aux_loss_coef: weight of the load-balancing loss in the training loss.
        router_z_loss_coef: weight of the router z-loss in the training loss.
        norm_type: "layer_norm" (weight and bias) or "rms_norm" (weight only).
        norm_eps: epsilon of every norm.
        final_norm: whether a norm stands between the last block and the head.
        attention_precision: "float32" computes rotation, scores, softmax and weighted values in fp32 under autocast
            and under 16-bit weights, as the paper's text says; "compute" only the rotation, as the paper's runs in
            fact did, and is the fast path on GPUs. Only eager, SDPA and flex attention can do the first: flash
            attention, other kernels, paged caches (`generate_batch`) and vLLM always use "compute".
        initialization: "paper" is a truncated normal of std `sqrt(initializer_scale / fan_in)` cut at +-0.2, with
            fan_in 1 for the embedding, `num_experts * intermediate_size` for the down projections and `hidden_size`
            for the rest; "normal" is a normal of std `initializer_range` for all weights.
        initializer_scale, initializer_range: of the two initialisations.
        attention_dropout: dropout on the attention probabilities in training.
        rope_parameters: rotary parameters in transformers' form; `None` is `rope_theta` 10000, type "default".
        tie_word_embeddings: share one matrix between embedding and head.
        output_router_logits: return every block's router logits by default.
        use_cache: keep keys and values while generating.
    """

    model_type = "switch_moe"
    keys_to_ignore_at_inference = [  # noqa: RUF012
        *("past_key_values", "lm_loss", "token_losses", "balance_loss", "z_loss", "router_logits", "routing")
    ]
    attribute_map = {"num_local_experts": "num_experts"}  # noqa: RUF012
    # A class attribute, not a field: a Switch routes each token to one expert.
    num_experts_per_tok = 1

    base_model_pp_plan = {  # noqa: RUF012
        "embed_tokens": (["input_ids"], ["inputs_embeds"]),
        "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
        "norm": (["hidden_states"], ["hidden_states"]),
    }

    vocab_size: int = 50257
    hidden_size: int = 512
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    intermediate_size: int | None = None
    num_experts: int = 1
    max_position_embeddings: int = 512
    capacity_factor: float | int | None = 1.0
    capacity_group_tokens: int | None = None
    # By a factory, the class itself has no such attribute, and a dense model none either.
    router_aux_loss_coef: float | int = field(default_factory=lambda: 0.01)
    router_z_loss_coef: float | int = field(default_factory=lambda: 0.001)
    norm_type: Literal["layer_norm", "rms_norm"] = "layer_norm"
    norm_eps: float = 1e-5
    final_norm: bool = False
    attention_precision: Literal["float32", "compute"] = "float32"
    initialization: Literal["paper", "normal"] = "paper"
    initializer_scale: float = 0.1
    initializer_range: float = 0.02
    attention_dropout: float | int = 0.0
    rope_parameters: dict | None = None
    tie_word_embeddings: bool = False
    output_router_logits: bool = field(default_factory=lambda: False)
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        # transformers keeps unknown fields silently.
        for name in kwargs:
            guess = difflib.get_close_matches(name, SwitchMoeConfig.__annotations__, n=1, cutoff=0.86)
            if guess and name not in self.attribute_map:
                raise ValueError(f"Unknown field {name!r} of SwitchMoeConfig; did you mean {guess[0]!r}?")
        if kwargs.pop("num_experts_per_tok", 1) != 1:
            raise ValueError("num_experts_per_tok must be 1: a Switch router sends each token to one expert.")
        if self.intermediate_size is None:
            self.intermediate_size = 3 * self.hidden_size
        # Tensor parallelism splits a block by heads, and by inner widths of the feed-forward.
        self.base_model_tp_plan = {
            "layers.*.self_attn.q_proj": "colwise",
            "layers.*.self_attn.k_proj": "colwise",
            "layers.*.self_attn.v_proj": "colwise",
            "layers.*.self_attn.o_proj": "rowwise",
        }
        if self.num_experts > 1:
            self.base_model_tp_plan["layers.*.mlp.experts.gate_up_proj"] = "packed_colwise"
            self.base_model_tp_plan["layers.*.mlp.experts.down_proj"] = "rowwise"
            self.base_model_tp_plan["layers.*.mlp.experts"] = "moe_tp_experts"
        else:
            self.base_model_tp_plan["layers.*.mlp.gate_proj"] = "colwise"
            self.base_model_tp_plan["layers.*.mlp.up_proj"] = "colwise"
            self.base_model_tp_plan["layers.*.mlp.down_proj"] = "rowwise"
        super().__post_init__(**kwargs)

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Save as transformers does; a model's code that lies there, too, is named by its hash."""
        super().save_pretrained(save_directory, **kwargs)
        write_code_hash(Path(save_directory))

    def validate_architecture(self) -> None:
        """Check ranges and divisibility; `@strict` runs it after construction, before the other validators."""
        problems = []
        for names, is_allowed, allowed_range in RANGES:
            for name in names:
                # A dense model lacks the router's fields.
                if hasattr(self, name) and not is_allowed(getattr(self, name)):
                    problems.append(f"{name}={getattr(self, name)!r} must be {allowed_range}")
        if not problems:
            heads = self.num_attention_heads
            if self.hidden_size % heads:
                problems.append(f"num_attention_heads={heads} must divide hidden_size={self.hidden_size}")
            elif self.head_dim % 2:
                problems.append(f"hidden_size/num_attention_heads={self.head_dim} must be even, for rotary positions")
        rotary_factor = (self.rope_parameters or {}).get("partial_rotary_factor")
        if rotary_factor not in (None, 1):
            problems.append(
                f"rope_parameters: partial_rotary_factor={rotary_factor} must be 1: heads are rotated whole"
            )
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            ids = getattr(self, name)
            for token in ids if isinstance(ids, list) else [ids]:
                if token is not None and not 0 <= token < self.vocab_size:
                    problems.append(f"{name}={token} must lie in the vocabulary, 0 to {self.vocab_size - 1}")
        if problems:
            raise ValueError(f"SwitchMoeConfig: {'; '.join(problems)}.")
        if self.num_experts == 1:
            for name in ROUTER_FIELDS:
                self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        """Give experts that were added to a dense configuration the defaults of their router."""
        if name in ROUTER_FIELDS and self.num_experts > 1:
            return self.__dataclass_fields__[name].default_factory()
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def base_model_ep_plan(self) -> dict[str, str] | None:
        """The plan of expert parallelism (transformers 5.19 or newer) for the base model; None for a dense model."""
        if self.num_experts == 1:
            return None
        return {
            "layers.*.mlp.experts.gate_up_proj": "grouped_gemm",
            "layers.*.mlp.experts.down_proj": "grouped_gemm",
            "layers.*.mlp.experts": "ep_dispatch_experts",
        }

    @property
    def head_dim(self) -> int:
        """The width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def num_parameters(self, active: bool = False, exact: bool = False) -> int:
        """Count parameters as the paper does (section on notation), or with `exact` as in `model.parameters()`.

        The paper neglects router and norms: N_total = 2 d V + (4 + 9 E) n_blocks d^2 and, with `active` (one expert
        per block) and an inner width of 3 d, N_act = 2 d V + 13 n_blocks d^2.
        """
        d = self.hidden_size
        blocks = self.num_hidden_layers
        experts = 1 if active else self.num_experts
        count = 2 * d * self.vocab_size + blocks * (4 * d * d + 3 * d * self.intermediate_size * experts)
        if not exact:
            return count
        norm = d if self.norm_type == "rms_norm" else 2 * d
        count += (2 * blocks + self.final_norm) * norm
        if self.num_experts > 1:
            count += blocks * d * self.num_experts
        if self.tie_word_embeddings:
            count -= d * self.vocab_size
        return count


def write_code_hash(folder: Path) -> None:
    """Write the hash of a saved model's code into the configuration file beside it; without code, do nothing."""
    model = folder / "modeling_switch_moe.py"
    configuration = folder / Path(__file__).name
    if not model.is_file() or not configuration.is_file():
        return
    files = {model, *map(Path, get_relative_import_files(model))} - {configuration}
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    text = configuration.read_text(encoding="utf-8")
    line = f'CODE_SHA256 = "{digest.hexdigest()}"'
    configuration.write_text(re.sub(r"^CODE_SHA256 = .*$", line, text, flags=re.MULTILINE), encoding="utf-8")


SwitchMoeConfig.register_for_auto_class()

__all__ = ["SwitchMoeConfig"]
