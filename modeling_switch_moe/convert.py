"""Convert a checkpoint of the paper's training code (`<step>.pt`) to a folder for `from_pretrained`.

    python -m modeling_switch_moe.convert FILE.pt OUT [--dtype bfloat16]

The training code of Ludziejewski et al. 2025 saves a dict whose "model" entry maps the names below to fp32 tensors.
Linear weights of the feed-forward multiply from the left, (in, out); the rows of the fused attention projection are
grouped by head: q, k, v of head 0, then of head 1, ...

With E = 1 their router multiplies by a softmax over one logit, which is 1: the block is dense and the router is left
out. The file is read with `weights_only=True`: nothing in it is executed.
"""

import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from .configuration_switch_moe import SwitchMoeConfig
from .modeling_switch_moe import SwitchMoeForCausalLM

EMBEDDING, HEAD = "embedding_layer.layers.0.weight", "head.weight"  # both (V, d)
BLOCK = re.compile(r"^encoder\.blocks\.block_(\d+)\.block\.(.+)$")
ATTENTION, FEED_FORWARD = "residual_attention.layer.", "residual_feedforward.layer."
QKV, OUTPUT = ATTENTION + "attention.input_projection.weight", ATTENTION + "attention.output_projection.weight"
EXPERTS, ROUTER = FEED_FORWARD + "feedforward.expert_inner_function.", FEED_FORWARD + "feedforward.gating.gate"
ROPE = ATTENTION + "attention.rope."
# Shapes of what one block holds: width d, inner width i, E experts, context s, head width h. The rope tables are
# buffers and may be missing.
SHAPES = {
    **{layer + f"pre_norm.{kind}": "d" for layer in (ATTENTION, FEED_FORWARD) for kind in ("weight", "bias")},
    QKV: "3d d",
    OUTPUT: "d d",
    EXPERTS + "gate_weight": "E d i",
    EXPERTS + "lin1_weight": "E d i",
    EXPERTS + "lin2_weight": "E i d",
    ROUTER: "d E",
    ROPE + "sin": "s h",
    ROPE + "cos": "s h",
}
# Prefixes that module wrappers put into parameter names, at any position.
WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod|module)\.")


class ConversionError(ValueError):
    """The file is not such a checkpoint; the message names the keys or shapes that do not fit."""


def read_state_dict(file: str | Path) -> dict[str, torch.Tensor]:
    """The weights in `file`, with wrappers' prefixes taken off their names.

    Accepts a whole training checkpoint (the weights under "model", the optimizer's state is not kept) or a bare state
    dict. Raises `FileNotFoundError`, or `ConversionError` if there are no weights in it.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"No checkpoint file {path}.")
    try:
        # Mapped and not read: the optimizer's state, two thirds of the file, is then never touched.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch raises many kinds for files that are not checkpoints
        raise ConversionError(f"{path} cannot be read as a checkpoint of tensors: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        content = content["model"]
    if not isinstance(content, dict) or not content or not all(isinstance(v, torch.Tensor) for v in content.values()):
        raise ConversionError(f"{path} holds neither a state dict nor a checkpoint with one under 'model'.")
    state: dict[str, torch.Tensor] = {}
    for name, tensor in content.items():
        plain = WRAPPERS.sub("", name)
        if plain in state:
            raise ConversionError(f"Two entries of {path} are both {plain!r} once wrappers' prefixes are off.")
        state[plain] = tensor
    return state


def split_blocks(state: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Each block's weights by name within it. Raises `ConversionError` naming every missing or extra key."""
    blocks: dict[int, dict[str, torch.Tensor]] = {}
    extra = []
    for name, tensor in state.items():
        match = BLOCK.match(name)
        if match and match[2] in SHAPES:
            blocks.setdefault(int(match[1]), {})[match[2]] = tensor
        elif name not in (EMBEDDING, HEAD):
            extra.append(name)
    count = max(blocks, default=-1) + 1
    missing = [name for name in (EMBEDDING, HEAD) if name not in state]
    for i in range(max(count, 1)):
        absent = [name for name in SHAPES if name not in blocks.get(i, {}) and not name.startswith(ROPE)]
        missing += [f"encoder.blocks.block_{i}.block.{name}" for name in absent]
    problems = [f"missing: {', '.join(missing)}"] if missing else []
    problems += [f"not understood: {', '.join(sorted(extra))}"] if extra else []
    if problems:
        raise ConversionError("The state dict does not have the layout of the runs; " + "; ".join(problems) + ".")
    return [blocks[i] for i in range(count)]


def infer_config(
    state: dict[str, torch.Tensor], blocks: list[dict[str, torch.Tensor]], num_attention_heads: int | None = None
) -> SwitchMoeConfig:
    """Configuration from shapes; the number of heads from the width of the rope tables unless given."""
    vocab_size, width = state[EMBEDDING].shape
    experts, _, inner = blocks[0][EXPERTS + "gate_weight"].shape
    length = 512
    tables = [blocks[0][ROPE + kind] for kind in ("sin", "cos") if ROPE + kind in blocks[0]]
    if tables:
        length, head_dim = tables[0].shape
        if num_attention_heads is not None and num_attention_heads * head_dim != width:
            raise ConversionError(
                f"num_attention_heads={num_attention_heads} does not fit the file: its rope tables are {head_dim} "
                f"wide, which makes {width // head_dim} heads of a width of {width}."
            )
        num_attention_heads = width // head_dim
    elif num_attention_heads is None:
        raise ConversionError(
            f"The file has no rope tables, which would tell the number of heads; pass num_attention_heads "
            f"(the runs have {width // 64}, or {width // 128} in the configurations with heads of 128)."
        )
    return SwitchMoeConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        num_hidden_layers=len(blocks),
        num_attention_heads=num_attention_heads,
        intermediate_size=inner,
        num_experts=experts,
        max_position_embeddings=length,
    )


def check_shapes(
    state: dict[str, torch.Tensor], blocks: list[dict[str, torch.Tensor]], config: SwitchMoeConfig
) -> None:
    """Raise `ConversionError` naming each tensor whose shape does not follow from the configuration."""
    d, sizes = config.hidden_size, {"E": config.num_experts, "i": config.intermediate_size, "h": config.head_dim}
    sizes |= {"d": d, "3d": 3 * d, "s": config.max_position_embeddings}
    found = [(name, state[name], (config.vocab_size, d)) for name in (EMBEDDING, HEAD)]
    for i, block in enumerate(blocks):
        for name, tensor in block.items():
            shape = tuple(sizes[symbol] for symbol in SHAPES[name].split())
            found.append((f"encoder.blocks.block_{i}.block.{name}", tensor, shape))
    wrong = [f"{name} is {tuple(t.shape)} and not {shape}" for name, t, shape in found if tuple(t.shape) != shape]
    if wrong:
        raise ConversionError("Shapes do not fit together: " + "; ".join(wrong) + ".")


def convert_block(block: dict[str, torch.Tensor], config: SwitchMoeConfig) -> dict[str, torch.Tensor]:
    """One block's weights under our names, relative to `model.layers.i.`."""
    d = config.hidden_size
    fused = block[QKV].view(config.num_attention_heads, 3, config.head_dim, d)
    converted = {f"self_attn.{name}_proj.weight": fused[:, i].reshape(d, d) for i, name in enumerate("qkv")}
    converted["self_attn.o_proj.weight"] = block[OUTPUT]
    for ours, theirs in (("input_layernorm", ATTENTION), ("post_attention_layernorm", FEED_FORWARD)):
        for kind in ("weight", "bias"):
            converted[f"{ours}.{kind}"] = block[f"{theirs}pre_norm.{kind}"]
    # SiLU acts on the product with gate_weight.
    gate, up, down = (block[f"{EXPERTS}{name}_weight"].transpose(1, 2) for name in ("gate", "lin1", "lin2"))
    if config.num_experts == 1:
        return converted | {
            "mlp.gate_proj.weight": gate[0],
            "mlp.up_proj.weight": up[0],
            "mlp.down_proj.weight": down[0],
        }
    return converted | {
        "mlp.router.weight": block[ROUTER].t(),
        "mlp.experts.gate_up_proj": torch.cat((gate, up), 1),
        "mlp.experts.down_proj": down,
    }


def convert(
    file: str | Path, dtype: torch.dtype = torch.float32, num_attention_heads: int | None = None
) -> SwitchMoeForCausalLM:
    """Read a checkpoint of the paper's runs as a model, in evaluation mode.

    Args:
        file: the `.pt` file.
        dtype: precision of the weights; the router stays fp32 in any case.
        num_attention_heads: only for files without rope tables.

    Raises:
        FileNotFoundError: there is no such file.
        ConversionError: it is not such a checkpoint; every missing, extra or misshapen entry is named.
    """
    state = read_state_dict(file)
    blocks = split_blocks(state)
    config = infer_config(state, blocks, num_attention_heads)
    check_shapes(state, blocks, config)
    weights = {"model.embed_tokens.weight": state[EMBEDDING], "lm_head.weight": state[HEAD]}
    for i, block in enumerate(blocks):
        weights |= {f"model.layers.{i}.{name}": tensor for name, tensor in convert_block(block, config).items()}
    for name, tensor in weights.items():
        weights[name] = tensor.to(torch.float32 if "router" in name else dtype).contiguous()
    return SwitchMoeForCausalLM.from_pretrained(None, config=config, state_dict=weights, dtype=dtype).eval()


def convert_to_folder(file: str | Path, folder: str | Path, **options: Any) -> SwitchMoeForCausalLM:
    """`convert` and write the model with its code to `folder`; see `convert` for options and errors.

    The folder appears whole or not at all. Raises `FileExistsError` if it exists and is not empty.
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
    dtype: Annotated[str, typer.Option(help="Precision of the weights: float32, bfloat16 or float16.")] = "float32",
    num_attention_heads: Annotated[int | None, typer.Option(help="Only for files without rope tables.")] = None,
) -> None:
    """Convert a checkpoint of the paper's runs to a folder for from_pretrained."""
    if dtype not in ("float32", "bfloat16", "float16"):
        raise typer.BadParameter(f"{dtype!r} is not one of float32, bfloat16, float16", param_hint="--dtype")
    try:
        model = convert_to_folder(file, out, dtype=getattr(torch, dtype), num_attention_heads=num_attention_heads)
    except (ConversionError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    config = model.config
    typer.echo(
        f"{out}: d_model {config.hidden_size}, {config.num_hidden_layers} blocks, {config.num_attention_heads} heads, "
        f"E = {config.num_experts}, {config.num_parameters(active=True):,} active and {config.num_parameters():,} "
        f"total parameters ({dtype})."
    )


if __name__ == "__main__":
    typer.run(main)
