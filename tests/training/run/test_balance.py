"""Balance by the selection bias of classes that have one, which nothing in transformers moves."""

import pytest
import torch

from hub import RunRecord
from hub.record.names import recipe_suffix
from tests.model_classes import BIAS
from tests.training.run.test_causal_model import EVERY, config_of, in_turn
from tests.training.run.test_run import finish, folders, lines_of, weights
from training.configuration.model_classes import SELECTION_BIAS, has_selection_bias
from training.run import causal_model
from training.run.model import build_model


def biases(state):
    found = [value for name, value in state.items() if name.endswith(SELECTION_BIAS)]
    assert found
    return torch.stack(found)


@pytest.mark.parametrize("kind", in_turn(kind for kind in EVERY if has_selection_bias(kind)))
def test_experts_with_few_tokens_gain(kind):
    """In every layer by its own counts, which are those of the batch."""
    model = build_model(config_of(EVERY[kind]), seed=0)
    layers, experts = len(causal_model.routers(model)), biases(model.state_dict()).shape[1]
    tokens = torch.arange(layers * experts, dtype=torch.float64).view(layers, experts)
    tokens[0] = tokens[0].flip(0)
    causal_model.move_biases(model, tokens, 0.01)
    rising = torch.tensor([0.01] * (experts // 2) + [-0.01] * (experts // 2))
    found = biases(model.state_dict())
    torch.testing.assert_close(found[0], rising.flip(0))
    torch.testing.assert_close(found[1:], rising.expand(layers - 1, -1))


def test_each_step_moves_the_bias_by_the_counts_of_its_batch(tiny):
    arguments = tiny(model=BIAS, schedule__tokens=[1280])
    (record,) = finish(arguments).values()
    (branch,) = folders(arguments)
    steps = {line["step"]: line for line in (*lines_of(arguments), *lines_of(arguments, branch.parent.name))}
    counts = [
        torch.tensor(line["tokens_per_expert"], dtype=torch.float64) for line in steps.values() if "loss" in line
    ]
    assert len(counts) == record.steps
    moved = sum(0.05 * torch.sign(one.mean(1, keepdim=True) - one) for one in counts)
    assert moved.any()
    torch.testing.assert_close(biases(weights(arguments, 1280)).double(), moved, rtol=0, atol=1e-6)
    assert recipe_suffix(record).endswith("-bias0.05")
    assert (record.balance_bias_rate, record.balance_loss_coefficient) == (0.05, 0)
    assert RunRecord.load(branch) == record
    assert "balance_bias_rate" not in record.replaced(balance_bias_rate=None).to_dict()
