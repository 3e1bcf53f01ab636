"""What docs/fine_tuning.md says of capacity, losses and heads; what it says of TRL: tests/training/test_trl.py."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, models

from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM
from tests.guides import DOCS, blocks

PAGE = DOCS / "fine_tuning.md"
SHAPE = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
ROWS = torch.randint(1, 61, (4, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=[1, 4])
def names(request, tmp_path):
    """The names that the page's Python leaves, for a release of so many experts."""
    folder = tmp_path / "release"
    SwitchMoeForCausalLM(SwitchMoeConfig(num_experts=request.param, **SHAPE)).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({str(number): number for number in range(61)}, unk_token="0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="0").save_pretrained(folder)
    namespace = {}
    for code in blocks(PAGE, "python"):
        code = code.replace("my-org/my-sweep-d512-E8", str(folder))
        exec(compile(code, PAGE.name, "exec"), namespace)
    return namespace


def compute_loss(model, tmp_path, function=None, items=None, **settings):
    """The loss that Trainer computes of the rows."""
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], **settings)
    trainer = transformers.Trainer(model, arguments, compute_loss_func=function)
    return trainer.compute_loss(model, {"input_ids": ROWS, "labels": ROWS}, num_items_in_batch=items)


def test_no_token_is_dropped(names):
    model = names["model"].train()
    assert model.config.capacity_factor is None
    assert model(ROWS).routing.dropped_tokens.tolist() == [0, 0]


@pytest.mark.parametrize("items", [None, torch.tensor(90)])
@pytest.mark.parametrize("training", [True, False])
def test_the_smoothed_loss_keeps_the_losses_of_the_router(names, tmp_path, items, training):
    model, function = names["model"].train(training), names["smoothed_loss"]
    plain = compute_loss(model, tmp_path, items=items)
    unsmoothed = compute_loss(
        model, tmp_path, lambda *given, **options: function(*given, **options, smoothing=0.0), items
    )
    torch.testing.assert_close(unsmoothed, plain)
    smoothed = compute_loss(model, tmp_path, function, items)
    with torch.no_grad():
        scores = model(ROWS).logits[:, :-1].log_softmax(-1)
    count = scores[..., 0].numel() if items is None else items
    picked = scores.gather(-1, ROWS[:, 1:, None]).sum()
    difference = 0.1 * (picked - scores.mean(-1).sum()) / count
    torch.testing.assert_close(smoothed, plain + difference)


def test_label_smoothing_of_the_trainer_does_not_shift(names, tmp_path):
    model = names["model"].eval()
    found = compute_loss(model, tmp_path, label_smoothing_factor=0.1)
    with torch.no_grad():
        logits = model(ROWS).logits.flatten(0, 1)
    torch.testing.assert_close(found, F.cross_entropy(logits, ROWS.flatten(), label_smoothing=0.1))


def test_a_reward_model_has_one_number_a_row(names):
    rewards = names["rewards"]
    assert type(rewards).__name__ == "SwitchMoeForSequenceClassification"
    assert rewards(ROWS).logits.shape == (4, 1)
    assert rewards.config.capacity_factor is None
