"""The fast model against the token-by-token reference: logits, losses, dropped tokens, gradients."""

import functools
import math
from collections import Counter
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modeling_switch_moe import SwitchMoeForCausalLM
from modeling_switch_moe.routing import most_kept, route
from tests.modeling_switch_moe.conftest import IMPLEMENTATIONS, step
from tests.modeling_switch_moe.reference import run

CLOSE = {"rtol": 0, "atol": 1e-5}


def assert_gradients_close(gradients, expected):
    """Within 1e-5 of each tensor's largest entry: gradients here are small, an absolute bound would say little."""
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in gradients.items():
        scale = expected[name].abs().max().item()
        error = (gradient - expected[name]).abs().max().item()
        assert error <= 1e-5 * scale + 1e-7 * largest, f"{name}: error {error:.1e} at scale {scale:.1e}"


EXPECTED = {}


def result_of_reference(model, tokens, labels, training, attention_mask):
    """Run the reference in fp64; returns its result, the loss of the text, the whole loss, and gradients.

    Implementations share them: they are computed once for equal weights, configurations and inputs.
    """
    weights = {name: p.detach().double().requires_grad_() for name, p in model.named_parameters()}
    given = [*weights.values(), tokens] + ([] if attention_mask is None else [attention_mask])
    fields = {name: value for name, value in model.config.to_dict().items() if "implementation" not in name}
    key = repr(fields), training, *(tensor.detach().numpy().tobytes() for tensor in given)
    if key not in EXPECTED:
        expected = run(weights, model.config, tokens, training, attention_mask)
        lm_loss = torch.nn.functional.cross_entropy(expected.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss = lm_loss
        if training:
            loss = loss + 0.01 * expected.balance_loss + 0.001 * expected.z_loss
        loss.backward()
        EXPECTED[key] = expected, lm_loss, loss, {name: weight.grad for name, weight in weights.items()}
    return EXPECTED[key]


def assert_equals_reference(model, tokens, training, attention_mask=None):
    """Compare everything, gradients of the whole training loss included; returns the reference's result (in fp64)."""
    model.train(training)
    labels = tokens if attention_mask is None else tokens.masked_fill(attention_mask == 0, -100)
    output, gradients = step(model, tokens, attention_mask=attention_mask, labels=labels)
    expected, lm_loss, loss, expected_gradients = result_of_reference(model, tokens, labels, training, attention_mask)
    real = torch.ones_like(tokens).bool() if attention_mask is None else attention_mask.bool()
    close = functools.partial(torch.testing.assert_close, check_dtype=False, **CLOSE)
    close(output.logits[real], expected.logits[real])
    close(output.balance_loss, expected.balance_loss)
    close(output.z_loss, expected.z_loss)
    close(output.lm_loss, lm_loss)
    close(output.loss, loss)
    assert output.routing.tokens_per_expert.tolist() == expected.counts
    assert output.routing.dropped_tokens.tolist() == [len(dropped) for dropped in expected.dropped]
    assert_gradients_close(gradients, expected_gradients)
    return expected


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("padded", "group"), [(False, None), (True, None), (True, 12)])
def test_training_drops_tokens_evaluation_none_and_padding_takes_no_part(
    make_model, tokens, implementation, training, padded, group
):
    mask = torch.ones_like(tokens)
    mask[0, 7:], mask[2, 3:] = 0, 0
    if group:
        mask[1, :] = 0  # a group of padding alone
    model = make_model(implementation=implementation, capacity_group_tokens=group)
    expected = assert_equals_reference(model, tokens, training, mask if padded else None)
    if training and (group or not padded):
        assert all(expected.dropped), "the case must drop tokens in every block"
    if not training:
        assert expected.dropped == [[], []]
        assert padded or max(expected.counts[0]) > tokens.numel() / 4


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_experts_that_get_nothing(make_model, tokens, implementation):
    """All positions of a repeated token go to one expert."""
    model = make_model(implementation=implementation, num_experts=8)
    expected = assert_equals_reference(model, torch.full_like(tokens, 7), training=True)
    assert 0 in expected.counts[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_experts": 1},
        {"num_experts": 8, "capacity_factor": 1.5},
        {"capacity_factor": None},
        {"norm_type": "rms_norm", "final_norm": True},
        {"num_attention_heads": 4, "intermediate_size": 42, "final_norm": True},  # rows of no multiple of 16 bytes
    ],
)
def test_training_of_other_configurations(make_model, tokens, changes):
    assert_equals_reference(make_model(**changes), tokens, training=True)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("group", [12, 9, 5])  # a row of the batch, four groups across rows, a last one that is cut
def test_capacity_and_balance_loss_are_counted_within_groups(make_model, tokens, implementation, group):
    model = make_model(capacity_group_tokens=group, implementation=implementation)
    expected = assert_equals_reference(model, tokens, training=True)
    assert all(expected.dropped)
    of_all = run(dict(model.named_parameters()), make_model().config, tokens, training=True)
    assert expected.dropped[0] != of_all.dropped[0], "the groups must decide what is dropped"


def dropped_by_loop(experts: list[int], group: int, num_experts: int, factor: float) -> list[int]:
    """The obviously right way: a counter for each expert, set back at the start of each group."""
    dropped = []
    for start in range(0, len(experts), group):
        part = experts[start : start + group]
        room = [math.floor(factor * len(part) / num_experts)] * num_experts
        for number, expert in enumerate(part, start):
            if room[expert] > 0:
                room[expert] -= 1
            else:
                dropped.append(number)
    return dropped


@given(
    experts=st.lists(st.integers(0, 3), min_size=1, max_size=70),
    group=st.integers(1, 80),
    factor=st.sampled_from([0.3, 1.0, 1.25, 9.0]),
)
def test_the_routing_of_groups_equals_a_plain_loop(experts, group, factor):
    logits = torch.nn.functional.one_hot(torch.tensor(experts), 4).float()
    routing, statistics = route(logits, factor, group_tokens=group)
    expected = dropped_by_loop(experts, group, 4, factor)
    assert (routing.gate == 0).nonzero().flatten().tolist() == expected
    assert statistics.dropped_tokens == len(expected)
    kept = Counter(expert for number, expert in enumerate(experts) if number not in expected)
    assert max(kept.values(), default=0) <= most_kept(len(experts), 4, factor, group)


def test_balance_loss_is_one_when_balanced_and_e_when_collapsed():
    balanced = 50 * torch.nn.functional.one_hot(torch.arange(8) % 4, 4).float()
    collapsed = 50 * torch.nn.functional.one_hot(torch.zeros(8, dtype=torch.long), 4).float()
    assert route(balanced)[1].balance_loss.item() == pytest.approx(1.0)
    assert route(collapsed)[1].balance_loss.item() == pytest.approx(4.0)
    assert route(torch.zeros(8, 4))[1].router_entropy.item() == pytest.approx(torch.tensor(4.0).log().item())


def test_shift_labels_are_targets_as_they_stand(make_model, tokens):
    model = make_model().train()
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    for count in ({}, {"num_items_in_batch": targets.numel()}):
        aligned = model(inputs, shift_labels=targets, **count)
        by_hand = torch.nn.functional.cross_entropy(aligned.logits.flatten(0, 1), targets.flatten())
        torch.testing.assert_close(aligned.lm_loss, by_hand)
        torch.testing.assert_close(aligned.loss, by_hand + 0.01 * aligned.balance_loss + 0.001 * aligned.z_loss)


@pytest.mark.parametrize("kind", ["labels", "shift_labels", "num_items", "autocast", "evaluation"])
def test_loss_in_chunks_equals_the_loss_from_logits(make_model, tokens, monkeypatch, kind):
    monkeypatch.setattr("modeling_switch_moe.losses.rows_per_chunk", lambda *_: 7)
    model = make_model().train(kind != "evaluation")
    targets = tokens.clone()
    targets[1, 2:9] = -100
    arguments = {"shift_labels": targets} if kind == "shift_labels" else {"labels": targets}
    if kind == "num_items":
        arguments["num_items_in_batch"] = torch.tensor(100)
    arguments["autocast"] = kind == "autocast"
    whole, expected = step(model, tokens, **arguments)
    chunked, gradients = step(model, tokens, output_logits=False, **arguments)
    assert chunked.logits is None
    if kind == "autocast":
        torch.testing.assert_close(chunked.loss, whole.loss, rtol=1e-3, atol=0)
        for name, gradient in gradients.items():
            assert torch.cosine_similarity(gradient.flatten(), expected[name].flatten(), dim=0) > 0.99, name
    else:
        torch.testing.assert_close(chunked.loss, whole.loss)
        assert_gradients_close(gradients, expected)


def test_loss_in_chunks_without_gradients_forms_none(make_model, tokens, monkeypatch):
    model = make_model().eval()
    with torch.no_grad():
        whole = model(tokens, labels=tokens)
        monkeypatch.setattr(torch, "mm", Mock(side_effect=AssertionError("a gradient was formed")))
        torch.testing.assert_close(model(tokens, labels=tokens, output_logits=False).loss, whole.loss)


@pytest.mark.parametrize("group", [None, 12, 7])
@pytest.mark.parametrize(("training", "capacity_factor"), [(True, 1.0), (True, None), (False, 1.0)])
def test_nothing_waits_for_the_device(make_config, training, capacity_factor, group):
    """On the meta device reading a value raises: what runs there, backward and statistics included, never waits."""
    config = make_config(capacity_factor=capacity_factor, capacity_group_tokens=group)
    with torch.device("meta"):
        model = SwitchMoeForCausalLM(config).train(training)
        model.set_attn_implementation("eager")  # for sdpa transformers looks into the padding mask
        if capacity_factor is None or not training:
            model.set_experts_implementation("batched_mm")  # grouped_mm has no meta kernel for fp32
        tokens = torch.zeros(3, 12, dtype=torch.long)
        output = model(tokens, attention_mask=torch.ones_like(tokens), labels=tokens, use_cache=False)
        output.loss.backward()
    assert output.routing.tokens_per_expert.shape == (2, 4)
    assert model.model.layers[0].mlp.router.weight.grad.shape == (4, 32)
    with pytest.raises(RuntimeError):
        output.loss.item()
