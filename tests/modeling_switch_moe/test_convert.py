"""Conversion of the training code's checkpoints, against a forward pass written for that layout."""

import runpy

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from modeling_switch_moe.convert import ConversionError, convert, convert_to_folder

BLOCK = "encoder.blocks.block_{}.block."
ATTENTION, FEED_FORWARD = "residual_attention.layer.", "residual_feedforward.layer."
EXPERTS = FEED_FORWARD + "feedforward.expert_inner_function."


def theirs(experts, width=48, heads=3, blocks=2, vocab=37, length=16):
    """A state dict in the layout of the runs, with weights large enough for every part to matter."""
    generator = torch.Generator().manual_seed(experts)

    def random(*shape, scale=1.0):
        return scale * torch.randn(*shape, generator=generator)

    head_dim, inner = width // heads, 3 * width
    angles = torch.arange(length)[:, None] * (1 / 10000) ** (torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.cat([angles, angles], 1)
    state = {"embedding_layer.layers.0.weight": random(vocab, width), "head.weight": random(vocab, width)}
    for i in range(blocks):
        block = {
            ATTENTION + "attention.input_projection.weight": random(3 * width, width, scale=0.3),
            ATTENTION + "attention.output_projection.weight": random(width, width, scale=0.2),
            ATTENTION + "attention.rope.sin": angles.sin(),
            ATTENTION + "attention.rope.cos": angles.cos(),
            FEED_FORWARD + "feedforward.gating.gate": random(width, experts, scale=0.5),
            EXPERTS + "gate_weight": random(experts, width, inner, scale=0.3),
            EXPERTS + "lin1_weight": random(experts, width, inner, scale=0.3),
            EXPERTS + "lin2_weight": random(experts, inner, width, scale=0.3),
        }
        for layer in (ATTENTION, FEED_FORWARD):
            block[layer + "pre_norm.weight"] = 1 + random(width, scale=0.1)
            block[layer + "pre_norm.bias"] = random(width, scale=0.1)
        state |= {BLOCK.format(i) + name: tensor for name, tensor in block.items()}
    return state


def their_attention(x, block):
    """One row `x [S, d]`; rows of the fused projection are q, k, v of head 0, then of head 1, ..."""
    fused = block[ATTENTION + "attention.input_projection.weight"]
    sin, cos = (block[ATTENTION + "attention.rope." + kind][: len(x)] for kind in ("sin", "cos"))
    head_dim, outputs = sin.shape[1], []
    for head in range(x.shape[1] // head_dim):
        rows = fused[3 * head_dim * head : 3 * head_dim * (head + 1)]
        query, key, value = (x @ part.T for part in rows.split(head_dim))
        query, key = (t * cos + torch.cat([-t.chunk(2, 1)[1], t.chunk(2, 1)[0]], 1) * sin for t in (query, key))
        heads = (part[None, None] for part in (query, key, value))
        outputs.append(functional.scaled_dot_product_attention(*heads, is_causal=True)[0, 0])
    return torch.cat(outputs, 1) @ block[ATTENTION + "attention.output_projection.weight"].T


def their_switch(x, block):
    probabilities = torch.softmax(x @ block[FEED_FORWARD + "feedforward.gating.gate"], -1)
    outputs = []
    for token, probability in zip(x, probabilities, strict=True):
        expert = int(probability.argmax())
        gate, up, down = (block[f"{EXPERTS}{name}_weight"][expert] for name in ("gate", "lin1", "lin2"))
        outputs.append(probability[expert] * ((functional.silu(token @ gate) * (token @ up)) @ down))
    return torch.stack(outputs)


def their_forward(state, ids):
    state = {name: tensor.double() for name, tensor in state.items()}
    logits = []
    for row in ids:
        x = state["embedding_layer.layers.0.weight"][row]
        for i in range(2):
            block = {name.removeprefix(BLOCK.format(i)): tensor for name, tensor in state.items()}
            for layer, part in ((ATTENTION, their_attention), (FEED_FORWARD, their_switch)):
                norm = (block[f"{layer}pre_norm.{kind}"] for kind in ("weight", "bias"))
                x = x + part(functional.layer_norm(x, x.shape[1:], *norm), block)
        logits.append(x @ state["head.weight"].T)
    return torch.stack(logits)


@pytest.fixture
def ids():
    return torch.randint(0, 37, (2, 16), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(("experts", "heads"), [(1, 3), (2, 3), (4, 2), (8, 1)])
def test_logits_of_the_converted_model(tmp_path, ids, experts, heads):
    state = theirs(experts, heads=heads)
    checkpoint = {"model": state, "optimizer": {"state": {}}, "step": 7629, "logger": {"run_id": "x"}}
    torch.save(checkpoint, tmp_path / "a.pt")
    convert_to_folder(tmp_path / "a.pt", tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", use_safetensors=True)
    assert (model.config.num_experts, model.config.num_attention_heads) == (experts, heads)
    expected = their_forward(state, ids)
    assert expected.std() > 1
    torch.testing.assert_close(model(ids).logits.double(), expected, rtol=0, atol=1e-5 * expected.abs().max().item())


def test_every_way_to_save_gives_the_same_model(tmp_path, ids):
    state = theirs(4)
    names = [f"module._orig_mod.{name}".replace(".layer.", ".layer._fsdp_wrapped_module.") for name in state]
    wrapped = dict(zip(names, state.values(), strict=True))
    without_rope = {name: tensor for name, tensor in state.items() if ".rope." not in name}
    torch.save({"model": state, "step": 3, "args_override": None}, tmp_path / "a.pt")
    expected = convert(tmp_path / "a.pt")(ids).logits
    for saved, options in ((state, {}), (wrapped, {}), (without_rope, {"num_attention_heads": 3})):
        for zipped in (True, False):
            torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
            assert torch.equal(convert(tmp_path / "a.pt", **options)(ids).logits, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("head.weight"), "missing: head.weight"),
        (lambda s: s.pop(BLOCK.format(1) + EXPERTS + "lin2_weight"), r"missing: encoder.*block_1.*lin2_weight"),
        (lambda s: s.update({BLOCK.format(0) + "extra.bias": torch.ones(1)}), "not understood: .*block_0.*extra.bias"),
        (lambda s: [s.pop(n) for n in list(s) if "block_0" in n], "missing: .*block_0"),
        (lambda s: s.update({"head.weight": torch.ones(37, 47)}), r"head.weight is \(37, 47\) and not \(37, 48\)"),
        (
            lambda s: s.update({BLOCK.format(1) + EXPERTS + "lin1_weight": torch.ones(2, 48, 144)}),
            r"block_1.*lin1_weight is \(2, 48, 144\) and not \(4, 48, 144\)",
        ),
        (lambda s: [s.pop(n) for n in list(s) if ".rope." in n], "pass num_attention_heads"),
        (
            lambda s: s.update({"embedding_layer.layers.0.weight": torch.ones(48)}),
            r"layers.0.weight is \(48,\) and not \('vocab_size', 'hidden_size'\)",
        ),
        (
            lambda s: s.update({BLOCK.format(0) + ATTENTION + "attention.rope.sin": torch.ones(16, 50)}),
            r"block_0.*rope.cos is \(16, 16\) and not \(16, 50\)",
        ),
        (
            lambda s: s.update({name: torch.ones(16, 50) for name in s if ".rope." in name}),
            "num_attention_heads=0 must be an integer of at least 1",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, change, message):
    state = theirs(4)
    change(state)
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(ConversionError, match=message):
        convert_to_folder(tmp_path / "a.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Payload:
    def __reduce__(self):
        return (print, ("executed",))


def test_files_that_are_no_checkpoints_are_refused_and_nothing_in_them_is_executed(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match=r"nothing\.pt"):
        convert(tmp_path / "nothing.pt")
    malicious = {"model": theirs(4), "logger": Payload()}
    for content, message in (({"model": {}}, "neither a state dict"), (malicious, r"a\.pt cannot be read")):
        torch.save(content, tmp_path / "a.pt")
        with pytest.raises(ConversionError, match=message):
            convert(tmp_path / "a.pt")
    assert "executed" not in capsys.readouterr().out


def test_command_line(tmp_path, monkeypatch, capsys):
    torch.save(theirs(4), tmp_path / "a.pt")
    monkeypatch.setattr(
        "sys.argv", ["convert", *map(str, (tmp_path / "a.pt", tmp_path / "out")), "--dtype", "bfloat16"]
    )
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("modeling_switch_moe.convert", run_name="__main__")
    assert not ended.value.code
    assert "E = 4" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    gate = theirs(4)[BLOCK.format(0) + FEED_FORWARD + "feedforward.gating.gate"]
    assert torch.equal(model.model.layers[0].mlp.router.weight, gate.T)  # stays fp32
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("modeling_switch_moe.convert", run_name="__main__")
    assert ended.value.code == 2
    assert "exists and is not an empty folder" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["convert", str(tmp_path / "a.pt"), str(tmp_path / "new"), "--dtype", "int4"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("modeling_switch_moe.convert", run_name="__main__")
    assert ended.value.code == 2
    assert "'int4' is not one of" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
