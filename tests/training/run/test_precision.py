"""Matrices are multiplied in bf16 where the run says so, are cast once a step, and have fp32 gradients."""

import re
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from modeling_switch_moe import SwitchMoeConfig
from tests.gpu.test_device import GRADIENT, LOSS
from tests.model_classes import CLASSES, TOP_K
from tests.training.run.test_causal_model import batch, config_of
from training import Run
from training.run import causal_model
from training.run.model import build_model
from training.run.passes import cast_once, matrices_in_bf16

BOTH = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2}
SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
WIDTH = {"intermediate_size": 32, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
LINEAR = {f"linear_{of}_head_dim": 16 for of in ("key", "value")} | {
    f"linear_num_{of}_heads": 4 for of in ("key", "value")
}
OTHERS = {"vocab_size": 96, "pad_token_id": None, "eos_token_id": None, "bos_token_id": None}
KINDS = {
    **{kind: {} for kind in ("qwen3_moe", "mixtral", "olmoe", "gpt_oss")},
    "qwen3_next": LINEAR | {"layer_types": ["linear_attention", "full_attention"]},
}


class Casts(TorchDispatchMode):
    """Counts casts of fp32 to bf16 by shape, and keeps the precisions of the operands of grouped matmuls."""

    def __init__(self):
        super().__init__()
        self.counts, self.precisions = Counter(), []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._grouped_mm.default:
            self.precisions += [args[0].dtype, args[1].dtype]
        elif function is torch.ops.aten._to_copy.default and args[0].dtype == torch.float32:
            self.counts[tuple(result.shape)] += result.dtype == torch.bfloat16
        return result


def small_switch():
    sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return build_model(SwitchMoeConfig(**sizes, num_experts=4, max_position_embeddings=64), seed=0).train()


def three_passes(model, casts_once, implementation=None, checkpointing=False):
    """Gradients after three micro-batches in bf16, and how often each shape of weight was cast."""
    if implementation:
        model.set_experts_implementation(implementation)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    inputs, targets = batch()
    matrices = matrices_in_bf16(model) if casts_once else []
    with Casts() as casts, cast_once(matrices):
        for rows, goals in zip(inputs.split(1)[:3], targets.split(1)[:3], strict=True):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = model(input_ids=rows, shift_labels=goals, use_cache=False, output_logits=False)
            (output.lm_loss + 0.01 * output.balance_loss).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}, casts.counts


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("implementation", ["capacity", "grouped_mm"])
def test_weights_are_cast_once_for_all_micro_batches(implementation, checkpointing):
    every, once = small_switch(), small_switch()
    expected, before = three_passes(every, False, implementation, checkpointing)
    gradients, after = three_passes(once, True, implementation, checkpointing)
    for name, gradient in expected.items():
        assert torch.equal(gradients[name], gradient), name
    layers = once.config.num_hidden_layers
    for shape, count in {(4, 192, 32): 1, (4, 32, 96): 1, (32, 32): 4}.items():  # gate and up, down, q k v o
        assert before[shape] == 3 * layers * count * (2 if checkpointing else 1)
        assert after[shape] == layers * count
    assert {type(parameter) for parameter in once.parameters()} == {torch.nn.Parameter}


@pytest.mark.parametrize("section", CLASSES.values(), ids=CLASSES)
def test_casting_once_changes_no_gradient_of_a_class(section):
    every, once = (build_model(config_of(section), seed=0).train() for _ in range(2))
    expected, _ = three_passes(every, casts_once=False)
    gradients, _ = three_passes(once, casts_once=True)
    for name, gradient in expected.items():
        assert (gradient is None and gradients[name] is None) or torch.equal(gradients[name], gradient), name


def test_routers_and_the_head_are_not_cast():
    model = small_switch()
    with cast_once(matrices_in_bf16(model)):
        dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()}
    single = {name for name, dtype in dtypes.items() if dtype == torch.float32}
    assert single == {name for name in dtypes if re.search("norm|router|embed|head", name)}


def model_of(kind, implementation="grouped_mm", **changes):
    """As the loop builds one, of its own class: also of types whose parameters are not counted."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SHAPE | WIDTH | BOTH | OTHERS | KINDS[kind] | changes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    model.set_experts_implementation(implementation)
    causal_model.round_grouped_products(model)
    return model


def passed(model, passes=1):
    """Loss and gradients after some micro-batches in bf16, and what was multiplied."""
    (inputs, _), found = batch(), Casts()
    experts = [part for part in model.modules() if hasattr(part, "is_transposed")]
    matrices = [(part, name) for part in experts for name in causal_model.rounded_parameters(part)]
    with found, cast_once(matrices):
        for _ in range(passes):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(input_ids=inputs, labels=inputs, use_cache=False).loss
            loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    return loss.item(), torch.cat([gradient.flatten() for gradient in gradients]), found


@pytest.mark.parametrize("kind", KINDS)
def test_both_operands_of_every_grouped_product_are_bf16(kind):
    """Forward and backward of gate and up, and of down, in two blocks; each weight is cast once for two passes."""
    loss, gradients, found = passed(model_of(kind), passes=2)
    assert found.precisions == [torch.bfloat16] * 2 * (2 * 2 * 3) * 2
    assert sum(count for shape, count in found.counts.items() if len(shape) == 3 and shape[0] == 8) == 2 * 2
    loop, expected, _ = passed(model_of(kind, "eager"), passes=2)
    assert loss == pytest.approx(loop, rel=LOSS["bf16"])
    assert (gradients - expected).norm() < GRADIENT["bf16"] * expected.norm()


@pytest.mark.parametrize(
    ("kind", "sizes", "tolerances"),
    [
        ("mixtral", {"intermediate_size": 20}, (1e-6, 1e-6)),
        ("mixtral", {"hidden_size": 60}, (1e-6, 1e-6)),
        # Its loop keeps products with a bias in fp32.
        ("gpt_oss", {"intermediate_size": 20}, (LOSS["bf16"], GRADIENT["bf16"])),
    ],
)
def test_widths_that_the_kernels_do_not_take_are_padded(kind, sizes, tolerances):
    loss, gradients, found = passed(model_of(kind, **sizes))
    loop, expected, _ = passed(model_of(kind, "eager", **sizes))
    assert found.precisions
    assert loss == pytest.approx(loop, rel=tolerances[0])
    assert (gradients - expected).norm() < tolerances[1] * expected.norm()


def test_without_autocast_nothing_is_cast():
    model, (inputs, targets) = build_model(config_of(TOP_K), seed=0).train(), batch()
    with Casts() as found:
        model(inputs, targets).lm_loss.backward()
    assert {*found.precisions} == {torch.float32}
    assert not found.counts.total()


def test_counting_a_class_leaves_its_kernels_alone():
    config = build_model(config_of(TOP_K), seed=0).config
    assert (config._experts_implementation, config._attn_implementation) == ("grouped_mm", "sdpa")


@pytest.mark.parametrize("name", ["eager", "batched_mm"])
def test_the_configuration_chooses_the_implementation(tiny, name):
    session = Run(tiny(run__experts_implementation=name, model=CLASSES["qwen3_moe"])).session
    assert session.model.config._experts_implementation == name
