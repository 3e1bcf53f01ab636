"""Convert a checkpoint of the paper's training code (`<step>.pt`) to a model.

`convert("15258.pt").save_pretrained(folder)` writes a folder for `from_pretrained`. `python -m training.published`
does so for the checkpoints that the authors released. Files are read with `weights_only=True`.
"""

import re
import zipfile
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError

from .configuration_switch_moe import SwitchMoeConfig
from .modeling_switch_moe import SwitchMoeForCausalLM

EMBEDDING = "embedding_layer.layers.0.weight"
HEAD = "head.weight"
BLOCK = "encoder.blocks.block_{}.block."
ATTENTION = "residual_attention.layer."
FEED_FORWARD = "residual_feedforward.layer."
QKV = ATTENTION + "attention.input_projection.weight"
ROPE = ATTENTION + "attention.rope."
EXPERTS = FEED_FORWARD + "feedforward.expert_inner_function."
ROUTER = FEED_FORWARD + "feedforward.gating.gate"
# Tensors of a block that our model has with the same values, and our names for them.
COPIED = {
    ATTENTION + "attention.output_projection.weight": "self_attn.o_proj.weight",
    ATTENTION + "pre_norm.weight": "input_layernorm.weight",
    ATTENTION + "pre_norm.bias": "input_layernorm.bias",
    FEED_FORWARD + "pre_norm.weight": "post_attention_layernorm.weight",
    FEED_FORWARD + "pre_norm.bias": "post_attention_layernorm.bias",
}
# Prefixes that module wrappers put into parameter names, at any position.
WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod|module)\.")
LAYOUT = "The state dict does not have the layout of the runs"


class ConversionError(ValueError):
    """The file is not such a checkpoint; the message names the keys or shapes that do not fit."""


def read_state_dict(file: str | Path) -> dict[str, torch.Tensor]:
    """Read the weights of a training checkpoint or a bare state dict, without wrappers' prefixes; execute nothing.

    Raises FileNotFoundError, and ConversionError where there are no weights in it.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"No checkpoint file {path}.")
    try:
        # Mapped and not read: the optimizer's state, two thirds of the file, is then never touched.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:
        # torch raises many kinds for files that are not checkpoints.
        raise ConversionError(f"{path} cannot be read as a checkpoint of tensors: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        content = content["model"]
    is_state = isinstance(content, dict) and all(isinstance(value, torch.Tensor) for value in content.values())
    if not is_state or not content:
        raise ConversionError(f"{path} holds neither a state dict nor a checkpoint with one under 'model'.")
    state = {WRAPPERS.sub("", name): tensor for name, tensor in content.items()}
    if len(state) < len(content):
        raise ConversionError(f"Entries of {path} have the same name once wrappers' prefixes are off.")
    return state


def infer_config(state: dict[str, torch.Tensor], num_attention_heads: int | None = None) -> SwitchMoeConfig:
    """Infer the configuration from shapes; the number of heads from the width of the rope tables unless given."""
    first_block = BLOCK.format(0)
    try:
        vocab_size, width = state[EMBEDDING].shape
        experts, _, inner_width = state[f"{first_block}{EXPERTS}gate_weight"].shape
        rope_table = state.get(f"{first_block}{ROPE}sin", state.get(f"{first_block}{ROPE}cos"))
        length, head_dim = (512, 0) if rope_table is None else rope_table.shape
    except KeyError as error:
        raise ConversionError(f"{LAYOUT}; missing: {error.args[0]}.") from None
    except ValueError:
        raise ConversionError(f"{LAYOUT}; embedding must have 2 dimensions, gate_weight 3, rope tables 2.") from None
    heads = width // head_dim if head_dim else num_attention_heads
    if heads is None:
        raise ConversionError(
            f"The file has no rope tables, which would tell the number of heads; pass num_attention_heads "
            f"(the runs have {width // 64}, or {width // 128} in the configurations with heads of 128)."
        )
    if num_attention_heads not in (None, heads):
        raise ConversionError(f"num_attention_heads={num_attention_heads} does not fit the file: it has {heads}.")
    matches = [re.match(BLOCK.format(r"(\d+)"), name) for name in state]
    last_block = max(int(match[1]) for match in matches if match)
    try:
        return SwitchMoeConfig(
            vocab_size=vocab_size,
            hidden_size=width,
            intermediate_size=inner_width,
            num_experts=experts,
            num_hidden_layers=last_block + 1,
            num_attention_heads=heads,
            max_position_embeddings=length,
        )
    except StrictDataclassError as error:
        raise ConversionError(f"{LAYOUT}; {error.__cause__ or error}") from None


def layout(config: SwitchMoeConfig) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tensors of a run; its rope tables are buffers, and may be missing."""
    d = config.hidden_size
    inner_width = config.intermediate_size
    experts = config.num_experts
    rope_shape = (config.max_position_embeddings, config.head_dim)
    block_shapes = {
        **{name: (d,) if "norm" in name else (d, d) for name in COPIED},
        f"{EXPERTS}gate_weight": (experts, d, inner_width),
        f"{EXPERTS}lin1_weight": (experts, d, inner_width),
        f"{EXPERTS}lin2_weight": (experts, inner_width, d),
        QKV: (3 * d, d),
        ROUTER: (d, experts),
        f"{ROPE}sin": rope_shape,
        f"{ROPE}cos": rope_shape,
    }
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, d), HEAD: (config.vocab_size, d)}
    for i in range(config.num_hidden_layers):
        for name, shape in block_shapes.items():
            shapes[BLOCK.format(i) + name] = shape
    return shapes


def check_layout(state: dict[str, torch.Tensor], config: SwitchMoeConfig) -> None:
    """Raise `ConversionError` naming each tensor that is missing, extra or of a shape that does not follow."""
    expected = layout(config)
    missing = []
    misshapen = []
    for name, shape in expected.items():
        if name in state and tuple(state[name].shape) != shape:
            misshapen.append(f"{name} is {tuple(state[name].shape)} and not {shape}")
        # The rope tables are buffers.
        if name not in state and ROPE not in name:
            missing.append(name)
    unknown = sorted(state.keys() - expected.keys())
    problems = []
    for label, names in (("missing", missing), ("not understood", unknown), ("misshapen", misshapen)):
        if names:
            problems.append(f"{label}: {', '.join(names)}")
    if problems:
        raise ConversionError(f"{LAYOUT}; {'; '.join(problems)}.")


def convert_block(block: dict[str, torch.Tensor], config: SwitchMoeConfig) -> dict[str, torch.Tensor]:
    """Convert one block's weights to our names, relative to `model.layers.i.`.

    Theirs multiply from the left, (in, out), and the fused attention projection has q, k, v of head 0, of head 1 and
    so on. With E = 1 their router multiplies by a softmax over one logit, which is 1, and is left out.
    """
    d = config.hidden_size
    fused = block[QKV].view(config.num_attention_heads, 3, config.head_dim, d)
    converted = {f"self_attn.{name}_proj.weight": fused[:, i].reshape(d, d) for i, name in enumerate("qkv")}
    for their_name, our_name in COPIED.items():
        converted[our_name] = block[their_name]
    # SiLU acts on the product with gate_weight.
    gate = block[f"{EXPERTS}gate_weight"].transpose(1, 2)
    up = block[f"{EXPERTS}lin1_weight"].transpose(1, 2)
    down = block[f"{EXPERTS}lin2_weight"].transpose(1, 2)
    if config.num_experts == 1:
        converted["mlp.gate_proj.weight"] = gate[0]
        converted["mlp.up_proj.weight"] = up[0]
        converted["mlp.down_proj.weight"] = down[0]
    else:
        converted["mlp.router.weight"] = block[ROUTER].t()
        converted["mlp.experts.gate_up_proj"] = torch.cat((gate, up), 1)
        converted["mlp.experts.down_proj"] = down
    return converted


def convert(
    file: str | Path, dtype: torch.dtype = torch.float32, num_attention_heads: int | None = None
) -> SwitchMoeForCausalLM:
    """Convert a checkpoint of the paper's runs to a model in evaluation mode; the router stays fp32 in any `dtype`.

    `num_attention_heads` is only for files without rope tables. Raises FileNotFoundError, and ConversionError naming
    what is missing, extra or misshapen.
    """
    state = read_state_dict(file)
    config = infer_config(state, num_attention_heads)
    check_layout(state, config)
    weights = {"model.embed_tokens.weight": state[EMBEDDING], "lm_head.weight": state[HEAD]}
    for i in range(config.num_hidden_layers):
        prefix = BLOCK.format(i)
        block = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        for name, tensor in convert_block(block, config).items():
            weights[f"model.layers.{i}.{name}"] = tensor
    for name, tensor in weights.items():
        weights[name] = tensor.to(torch.float32 if "router" in name else dtype).contiguous()
    return SwitchMoeForCausalLM.from_pretrained(None, config=config, state_dict=weights, dtype=dtype).eval()
