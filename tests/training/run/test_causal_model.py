"""Classes of transformers in the loop: losses are the class's own, for any micro-batch, and routing is measured."""

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from modeling_switch_moe import losses
from scaling_law.size.model_configs import FAMILIES
from tests.model_classes import CLASSES, DENSE, NOISY, SHARED, TOP_K
from tests.scaling_law.size.test_model_classes import SHAPES, WIDE_HEADS
from training.configuration.model_classes import (
    ModelClassArguments,
    balance_loss_of,
    causal_class,
    fields_of,
    model_types,
)
from training.run import causal_model
from training.run.model import build_model

ROWS, LENGTH, VOCABULARY = 4, 16, 96


def _section(kind, own):
    """Of the shapes that parameters are counted for."""
    return {name: value for name, value in (WIDE_HEADS | own).items() if name in fields_of(kind)} | {"type": kind}


EVERY = {kind: _section(kind, own) for kind, own in reversed(SHAPES)}
# One dense class, one with a balance loss and one with shared experts are tried each time; the others are slow.
OFTEN = ("llama", "qwen3_moe", "deepseek_v3")


def in_turn(kinds):
    """Mark the classes that are not tried each time as slow."""
    return [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


def config_of(section):
    return ModelClassArguments.model_validate(section).config(VOCABULARY, LENGTH, 0)


def batch(seed=0):
    ids = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1], ids[:, 1:].contiguous()


def coefficient(config):
    return config.router_aux_loss_coef if balance_loss_of(causal_class(config)) else 0.0


def gradients(model, inputs, targets, coefficient, micro):
    """Of the loss of a global batch in micro-batches of `micro` rows, as in `train_step`; and the last routing."""
    model.zero_grad()
    torch.manual_seed(0)
    parts = list(zip(inputs.split(micro), targets.split(micro), strict=True))
    for rows, goals in parts:
        out = model(input_ids=rows, shift_labels=goals, num_items_in_batch=targets.numel())
        (out.lm_loss + coefficient * out.balance_loss / len(parts)).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, out.routing


def test_every_table_is_tried():
    assert set(EVERY) == set(FAMILIES) & set(model_types())


@pytest.mark.parametrize("kind", in_turn(EVERY))
def test_losses_and_gradients_are_those_of_the_class(kind):
    """With `output_router_logits`, which is off unless asked for, and a group of the whole batch."""
    config, (inputs, targets) = config_of(EVERY[kind]), batch()
    model = build_model(config, seed=0).train()
    torch.manual_seed(0)
    reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), reference.parameters(), strict=True))

    routed = {"output_router_logits": True} if balance_loss_of(type(reference)) else {}
    expected = reference(input_ids=inputs, labels=inputs, shift_labels=targets, use_cache=False, **routed)
    expected.loss.backward()
    found = model(input_ids=inputs, shift_labels=targets, output_token_losses=True)
    loss = found.lm_loss + coefficient(config) * found.balance_loss
    torch.testing.assert_close(loss, expected.loss)
    torch.testing.assert_close(found.token_losses.mean(), found.lm_loss.detach())
    if routed:
        torch.testing.assert_close(found.balance_loss, expected.aux_loss)
        assert found.balance_loss > 0.9
    loss.backward()
    for (name, one), other in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, msg=name)


def of_other_logits(self, input_ids, use_cache=None, **_):
    """A forward pass of Llama that caps its logits, of which its configuration has no field."""
    hidden = self.model(input_ids=input_ids, use_cache=use_cache).last_hidden_state
    return CausalLMOutputWithPast(logits=30 * (self.lm_head(hidden) / 30).tanh())


@pytest.mark.parametrize(
    ("section", "change"),
    [
        (TOP_K, (1.0, None)),
        (EVERY["llama4_text"], (1.0, None)),
        (EVERY["granitemoe"] | {"logits_scaling": 4.0}, (0.25, None)),
        (EVERY["gemma2"], (1.0, 30.0)),
        (EVERY["gemma2"] | {"final_logit_softcapping": 0.25}, (1.0, 0.25)),
        (DENSE, None),
    ],
    ids=["qwen3_moe", "llama4", "granitemoe-scaled", "gemma2-capped", "gemma2-tightly", "llama-changed"],
)
def test_losses_in_chunks_are_those_of_all_logits(section, change, monkeypatch, caplog):
    """Of scaled and capped logits, too; where something else happens to them, there are no chunks."""
    monkeypatch.setattr(losses, "rows_per_chunk", lambda *_: 24)  # of 64 rows
    if change is None:
        monkeypatch.setattr(LlamaForCausalLM, "forward", of_other_logits)
    with caplog.at_level("INFO", logger=causal_model.__name__):
        model, (inputs, targets) = build_model(config_of(section), seed=0).train(), batch()
    head = model.get_output_embeddings()
    assert isinstance(head, losses.SwitchMoeHead) == (change is not None)
    assert change is None or (head.scale, head.cap) == change
    assert ("LlamaForCausalLM: the head is more than a matrix" in caplog.text) == (change is None)
    with torch.no_grad():
        head.weight.mul_(20)  # far enough along the bend of a cap
    found, whole = (model(inputs, targets, 80, output_logits=w, output_token_losses=True) for w in (False, True))
    assert found.logits is None
    torch.testing.assert_close(found.lm_loss, whole.lm_loss)
    torch.testing.assert_close(found.token_losses, whole.token_losses)
    parameters = [p for p in model.parameters() if p.requires_grad]
    for one, other in zip(*(torch.autograd.grad(o.lm_loss, parameters, allow_unused=True) for o in (found, whole)),
                          strict=True):  # fmt: skip
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", in_turn(kind for kind in EVERY if "num_experts_per_tok" in EVERY[kind]))
def test_what_is_routed_is_what_the_experts_get(kind, monkeypatch):
    """Whatever picks the experts (groups, biases, sigmoids), against the indices that reach the experts."""
    config, (inputs, targets) = config_of(EVERY[kind]), batch()
    model, seen = build_model(config, seed=0).train(), []
    experts = [module for name, module in model.named_modules() if name.endswith(".experts")]
    for module in experts:
        module.register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    routing = model(input_ids=inputs, shift_labels=targets).routing
    number = routing.tokens_per_expert.shape[1]
    assert len(experts) == len(seen) == len(routing.tokens_per_expert)
    for counts, chosen in zip(routing.tokens_per_expert, seen, strict=True):
        assert torch.equal(counts, chosen.flatten().bincount(minlength=number))
    assert routing.tokens_per_expert.sum(1).tolist() == [ROWS * LENGTH * config.num_experts_per_tok] * len(experts)
    assert routing.dropped_tokens.tolist() == [0] * len(experts)
    assert ((routing.router_entropy > 0) & (routing.router_entropy <= torch.tensor(float(number)).log() + 1e-6)).all()


def test_the_balance_loss_is_a_mean_over_groups():
    config, (inputs, targets) = config_of(TOP_K), batch()
    losses = [build_model(config, 0, size).train()(inputs, targets).balance_loss for size in (LENGTH, None)]
    rows = build_model(config, 0).train()
    each = [rows(one, goal).balance_loss for one, goal in zip(inputs.split(1), targets.split(1), strict=True)]
    torch.testing.assert_close(losses[0], torch.stack(each).mean())
    assert abs(losses[0] - losses[1]) > 1e-3


@pytest.mark.parametrize(
    ("section", "change"),
    [
        (SHARED, "recomputed"),
        (NOISY, "recomputed"),
        (TOP_K, "traced"),
        *(
            pytest.param(section, "recomputed", marks=pytest.mark.slow)
            for section in CLASSES.values()
            if section is not SHARED
        ),
        pytest.param(SHARED, "traced", marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else value["type"],
)
def test_recomputation_and_tracing_change_nothing_and_count_nothing_twice(section, change):
    """As `run.compile` traces it; what a compiler then makes of it is torch's own."""
    config = config_of(section)
    plain, changed = (build_model(config, seed=0).train() for _ in range(2))
    if change == "traced":
        changed.compile(backend="eager")
    else:
        changed.gradient_checkpointing_enable({"use_reentrant": False})
    (expected, routing), (found, other) = (gradients(model, *batch(), 1.0, 2) for model in (plain, changed))
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=name)
    assert routing is other is None or torch.equal(routing.tokens_per_expert, other.tokens_per_expert)


def test_in_evaluation_nothing_is_measured():
    inputs, targets = batch()
    out = build_model(config_of(TOP_K), seed=0).eval()(inputs, targets, output_token_losses=True, output_logits=True)
    assert out.routing is None
    assert out.balance_loss == 0
    expected = F.cross_entropy(out.logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
    torch.testing.assert_close(out.token_losses, expected.detach())
