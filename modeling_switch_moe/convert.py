"""Convert a checkpoint of the paper's training code (`<step>.pt`) to a folder for `from_pretrained`.

`python -m modeling_switch_moe.convert FILE.pt OUT [--dtype bfloat16]` reads it with `weights_only=True`.
"""

import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
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
# The tensors of a block, and the sizes of each, by the names that our configuration has for them.
SHAPES = {
    **{name: ("hidden_size",) if "norm" in name else ("hidden_size", "hidden_size") for name in COPIED},
    f"{EXPERTS}gate_weight": ("num_experts", "hidden_size", "intermediate_size"),
    f"{EXPERTS}lin1_weight": ("num_experts", "hidden_size", "intermediate_size"),
    f"{EXPERTS}lin2_weight": ("num_experts", "intermediate_size", "hidden_size"),
    QKV: ("3 hidden_size", "hidden_size"),
    ROUTER: ("hidden_size", "num_experts"),
    f"{ROPE}sin": ("max_position_embeddings", "head_dim"),
    f"{ROPE}cos": ("max_position_embeddings", "head_dim"),
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


def read_sizes(state: dict[str, torch.Tensor], num_blocks: int) -> dict[str, int]:
    """Read the sizes of a run from the shapes of its tensors.

    Raises ConversionError naming each tensor that is missing, extra, or of a shape that contradicts those before it.
    """
    shapes = {EMBEDDING: ("vocab_size", "hidden_size"), HEAD: ("vocab_size", "hidden_size")}
    for i in range(num_blocks):
        for name, axes in SHAPES.items():
            shapes[BLOCK.format(i) + name] = axes
    sizes: dict[str, int] = {}
    problems: dict[str, list[str]] = {
        "missing": [],
        "not understood": sorted(state.keys() - shapes.keys()),
        "misshapen": [],
    }
    for name, axes in shapes.items():
        if name in state:
            shape = tuple(state[name].shape)
            if len(shape) == len(axes):
                sizes = {**dict(zip(axes, shape, strict=True)), **sizes}
                sizes["3 hidden_size"] = 3 * sizes.get("hidden_size", 0)
            expected = tuple(sizes.get(axis, axis) for axis in axes)
            if shape != expected:
                problems["misshapen"].append(f"{name} is {shape} and not {expected}")
        # The rope tables are buffers.
        elif ROPE not in name:
            problems["missing"].append(name)
    reasons = [f"{label}: {', '.join(names)}" for label, names in problems.items() if names]
    if reasons:
        raise ConversionError(f"{LAYOUT}; {'; '.join(reasons)}.")
    return sizes


def infer_config(state: dict[str, torch.Tensor], num_attention_heads: int | None = None) -> SwitchMoeConfig:
    """Infer the configuration from shapes; the number of heads from the width of the rope tables unless given."""
    matches = [re.match(BLOCK.format(r"(\d+)"), name) for name in state]
    num_blocks = 1 + max((int(match[1]) for match in matches if match), default=0)
    sizes = read_sizes(state, num_blocks)
    width = sizes["hidden_size"]
    heads = width // sizes["head_dim"] if "head_dim" in sizes else num_attention_heads
    if heads is None:
        raise ConversionError(
            f"The file has no rope tables, which would tell the number of heads; pass num_attention_heads "
            f"(the runs have {width // 64}, or {width // 128} in the configurations with heads of 128)."
        )
    if num_attention_heads not in (None, heads):
        raise ConversionError(f"num_attention_heads={num_attention_heads} does not fit the file: it has {heads}.")
    fields = {name: size for name, size in sizes.items() if name in SwitchMoeConfig.__annotations__}
    try:
        return SwitchMoeConfig(**fields, num_hidden_layers=num_blocks, num_attention_heads=heads)
    except StrictDataclassError as error:
        raise ConversionError(f"{LAYOUT}; {error.__cause__ or error}") from None


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
    weights = {"model.embed_tokens.weight": state[EMBEDDING], "lm_head.weight": state[HEAD]}
    for i in range(config.num_hidden_layers):
        prefix = BLOCK.format(i)
        block = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        for name, tensor in convert_block(block, config).items():
            weights[f"model.layers.{i}.{name}"] = tensor
    for name, tensor in weights.items():
        weights[name] = tensor.to(torch.float32 if "router" in name else dtype).contiguous()
    return SwitchMoeForCausalLM.from_pretrained(None, config=config, state_dict=weights, dtype=dtype).eval()


def convert_to_folder(file: str | Path, folder: str | Path, **options: Any) -> SwitchMoeForCausalLM:
    """Convert, and write the model with its code to `folder`, which appears whole or not at all.

    Raises:
        FileExistsError: the folder exists and is not empty; and what `convert` raises.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not an empty folder; nothing was written.")
    model = convert(file, **options)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        written = Path(scratch) / folder.name
        model.save_pretrained(written)
        os.replace(written, folder)
    return model


def main(
    file: Annotated[Path, typer.Argument(help="Checkpoint of the paper's training code.", metavar="FILE.pt")],
    out: Annotated[Path, typer.Argument(help="New or empty folder for config, weights and code.")],
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="Precision of the weights.")
    ] = "float32",
    num_attention_heads: Annotated[int | None, typer.Option(help="Only for files without rope tables.")] = None,
) -> None:
    """Convert a checkpoint of the paper's runs to a folder for from_pretrained."""
    try:
        model = convert_to_folder(file, out, dtype=getattr(torch, dtype), num_attention_heads=num_attention_heads)
    except (ConversionError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    active = model.config.num_parameters(active=True)
    total = model.config.num_parameters()
    typer.echo(f"{out}: E = {model.config.num_experts}, {active:,} active of {total:,} parameters ({dtype})")


if __name__ == "__main__":
    typer.run(main)
