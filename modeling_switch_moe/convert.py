"""Convert a checkpoint of the paper's training code (`<step>.pt`) to a folder for `from_pretrained`.

`python -m modeling_switch_moe.convert FILE.pt OUT [--dtype bfloat16]` reads it with `weights_only=True`.
"""

import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from huggingface_hub.errors import StrictDataclassError

from .configuration_switch_moe import SwitchMoeConfig
from .modeling_switch_moe import SwitchMoeForCausalLM

EMBEDDING, HEAD = "embedding_layer.layers.0.weight", "head.weight"
BLOCK = "encoder.blocks.block_{}.block."
ATTENTION, FEED_FORWARD = "residual_attention.layer.", "residual_feedforward.layer."
QKV, ROPE = ATTENTION + "attention.input_projection.weight", ATTENTION + "attention.rope."
EXPERTS, ROUTER = FEED_FORWARD + "feedforward.expert_inner_function.", FEED_FORWARD + "feedforward.gating.gate"
# What one block holds under the same values in our model, and our names for it.
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
    """Weights of a training checkpoint or a bare state dict, without wrappers' prefixes; nothing in it is executed.

    Raises FileNotFoundError, and ConversionError where there are no weights in it.
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
    state = {WRAPPERS.sub("", name): tensor for name, tensor in content.items()}
    if len(state) < len(content):
        raise ConversionError(f"Entries of {path} have the same name once wrappers' prefixes are off.")
    return state


def infer_config(state: dict[str, torch.Tensor], num_attention_heads: int | None = None) -> SwitchMoeConfig:
    """Configuration from shapes; the number of heads from the width of the rope tables unless given."""
    blocks = [int(match[1]) for name in state if (match := re.match(BLOCK.format(r"(\d+)"), name))]
    first, heads = BLOCK.format(0), num_attention_heads
    try:
        vocab_size, width = state[EMBEDDING].shape
        experts, _, inner = state[f"{first}{EXPERTS}gate_weight"].shape
        table = state.get(f"{first}{ROPE}sin", state.get(f"{first}{ROPE}cos"))
        length, head_dim = (512, 0) if table is None else table.shape
    except KeyError as error:
        raise ConversionError(f"{LAYOUT}; missing: {error.args[0]}.") from None
    except ValueError:
        raise ConversionError(f"{LAYOUT}; embedding must have 2 dimensions, gate_weight 3, rope tables 2.") from None
    if head_dim:
        heads = width // head_dim
        if num_attention_heads not in (None, heads):
            raise ConversionError(f"num_attention_heads={num_attention_heads} does not fit the file: it has {heads}.")
    elif heads is None:
        raise ConversionError(
            f"The file has no rope tables, which would tell the number of heads; pass num_attention_heads "
            f"(the runs have {width // 64}, or {width // 128} in the configurations with heads of 128)."
        )
    sizes = {"vocab_size": vocab_size, "hidden_size": width, "intermediate_size": inner, "num_experts": experts}
    sizes |= {"num_hidden_layers": max(blocks) + 1, "num_attention_heads": heads, "max_position_embeddings": length}
    try:
        return SwitchMoeConfig(**sizes)
    except StrictDataclassError as error:
        raise ConversionError(f"{LAYOUT}; {error.__cause__ or error}") from None


def layout(config: SwitchMoeConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a run; its rope tables are buffers, and may be missing."""
    d, inner, experts = config.hidden_size, config.intermediate_size, config.num_experts
    block: dict[str, tuple[int, ...]] = {name: (d,) if "norm" in name else (d, d) for name in COPIED}
    block |= {f"{EXPERTS}{name}_weight": (experts, d, inner) for name in ("gate", "lin1")}
    block |= {f"{EXPERTS}lin2_weight": (experts, inner, d), QKV: (3 * d, d), ROUTER: (d, experts)}
    block |= {f"{ROPE}{table}": (config.max_position_embeddings, config.head_dim) for table in ("sin", "cos")}
    blocks = range(config.num_hidden_layers)
    of_blocks = {BLOCK.format(i) + name: shape for i in blocks for name, shape in block.items()}
    return {EMBEDDING: (config.vocab_size, d), HEAD: (config.vocab_size, d), **of_blocks}


def check_layout(state: dict[str, torch.Tensor], config: SwitchMoeConfig) -> None:
    """Raise `ConversionError` naming each tensor that is missing, extra or of a shape that does not follow."""
    expected = layout(config)
    shapes = {name: (tuple(state[name].shape), shape) for name, shape in expected.items() if name in state}
    wrong = {
        "missing": [name for name in expected if name not in state and ROPE not in name],
        "not understood": sorted(state.keys() - expected.keys()),
        "misshapen": [f"{name} is {its} and not {shape}" for name, (its, shape) in shapes.items() if its != shape],
    }
    if problems := [f"{what}: {', '.join(names)}" for what, names in wrong.items() if names]:
        raise ConversionError(f"{LAYOUT}; {'; '.join(problems)}.")


def convert_block(block: dict[str, torch.Tensor], config: SwitchMoeConfig) -> dict[str, torch.Tensor]:
    """One block's weights under our names, relative to `model.layers.i.`.

    Theirs multiply from the left, (in, out), and the fused attention projection has q, k, v of head 0, of head 1 and
    so on. With E = 1 their router multiplies by a softmax over one logit, which is 1, and is left out.
    """
    d = config.hidden_size
    fused = block[QKV].view(config.num_attention_heads, 3, config.head_dim, d)
    converted = {f"self_attn.{name}_proj.weight": fused[:, i].reshape(d, d) for i, name in enumerate("qkv")}
    converted |= {ours: block[theirs] for theirs, ours in COPIED.items()}
    # SiLU acts on the product with gate_weight.
    gate, up, down = (block[f"{EXPERTS}{name}_weight"].transpose(1, 2) for name in ("gate", "lin1", "lin2"))
    if config.num_experts == 1:
        dense = zip(("gate", "up", "down"), (gate, up, down), strict=True)
        return converted | {f"mlp.{name}_proj.weight": weight[0] for name, weight in dense}
    return converted | {
        "mlp.router.weight": block[ROUTER].t(),
        "mlp.experts.gate_up_proj": torch.cat((gate, up), 1),
        "mlp.experts.down_proj": down,
    }


def convert(
    file: str | Path, dtype: torch.dtype = torch.float32, num_attention_heads: int | None = None
) -> SwitchMoeForCausalLM:
    """A checkpoint of the paper's runs as a model, in evaluation mode; the router stays fp32 whatever the `dtype`.

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
        weights |= {f"model.layers.{i}.{name}": tensor for name, tensor in convert_block(block, config).items()}
    for name, tensor in weights.items():
        weights[name] = tensor.to(torch.float32 if "router" in name else dtype).contiguous()
    return SwitchMoeForCausalLM.from_pretrained(None, config=config, state_dict=weights, dtype=dtype).eval()


def convert_to_folder(file: str | Path, folder: str | Path, **options: Any) -> SwitchMoeForCausalLM:
    """`convert` and write the model with its code to `folder`, which appears whole or not at all.

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
    active, total = (model.config.num_parameters(active=active) for active in (True, False))
    typer.echo(f"{out}: E = {model.config.num_experts}, {active:,} active of {total:,} parameters ({dtype})")


if __name__ == "__main__":
    typer.run(main)
