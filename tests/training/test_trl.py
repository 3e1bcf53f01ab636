"""The forecast in a real run of TRL, and our model in its trainers; TRL comes from the environment of
`make test-clients`.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

import training
from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM
from tests.training.test_final_loss_callback import curve_file

pytestmark = pytest.mark.clients
WORDS = ["<eos>", *(f"w{i}" for i in range(31))]


@pytest.fixture
def trl(monkeypatch):
    root = Path(__file__).parents[2] / os.environ.get("CLIENTS", ".venv-clients")
    (packages,) = root.glob("lib/python*/site-packages")
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])  # last: only TRL comes from there
    import trl

    return trl


@pytest.fixture
def tokenizer():
    vocabulary = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<eos>"))
    vocabulary.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=vocabulary, eos_token="<eos>", pad_token="<eos>")


@pytest.fixture
def trainer(trl, tokenizer, tmp_path):
    """A function: TRL's SFTTrainer of a tiny model on sentences that can be learnt, with the callback."""
    texts = [" ".join(WORDS[1 + (start + i) % 31] for i in range(24)) for start in range(64)]

    def build(name, seed, law=None, **changes):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), n_positions=32, n_embd=16, n_layer=1, n_head=2))
        settings = {"learning_rate": 3e-3, "logging_steps": 2, "per_device_train_batch_size": 4, "disable_tqdm": True}
        places = {"output_dir": str(tmp_path / name), "report_to": [], "use_cpu": True, "save_strategy": "no"}
        config = trl.SFTConfig(max_steps=60, seed=seed, bf16=False, max_length=32, **settings | places | changes)
        data, callback = Dataset.from_dict({"text": texts}), training.FinalLossCallback(tmp_path / "curves", law)
        built = trl.SFTTrainer(
            model=model, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[callback]
        )
        return built, callback

    return build


def test_a_run_of_trl_ends_where_its_callback_said(trainer, tmp_path):
    for seed in range(4):
        trainer(f"run{seed}", seed)[0].train()
    run, callback = trainer("new", 9)
    run.train()
    told = [entry for entry in run.state.log_history if "forecast_loss" in entry]
    final = json.loads(curve_file(tmp_path, "new").read_text())["final"]
    half = next(entry for entry in told if entry["step"] >= 30)
    assert told[0]["step"] >= 6
    assert half["forecast_low"] < final < half["forecast_high"]
    assert abs(half["forecast_loss"] - final) < 0.3 * abs(half["loss"] - final)
    assert callback.estimate.loss == told[-1]["forecast_loss"]
    assert not callback.estimate.off_track()


def test_a_law_is_asked_about_the_tokens_that_trl_counts(trainer, tmp_path):
    run, callback = trainer("law", 1, law="published", include_num_input_tokens_seen="non_padding")
    run.train()
    kept = json.loads(curve_file(tmp_path, "law").read_text())
    logged = [entry["num_tokens"] for entry in run.state.log_history if "num_tokens" in entry]
    assert (kept["tokens"], kept["unit"]) == (logged, "tokens")
    assert callback.estimate.basis == "law"


@pytest.fixture(params=[1, 4])
def release(request, tokenizer, tmp_path):
    """The folder of a tiny model of ours, with so many experts."""
    torch.manual_seed(0)
    shape = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = SwitchMoeConfig(num_experts=request.param, max_position_embeddings=64, eos_token_id=0, **shape)
    folder = tmp_path / "release"
    SwitchMoeForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def settings_of(config, tmp_path, **changes):
    """Settings of two short steps."""
    quiet = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "bf16": False}
    size = {"max_steps": 2, "logging_steps": 1, "per_device_train_batch_size": 4}
    return config(output_dir=str(tmp_path / "out"), **quiet | size | changes)


CHOICES = {"prompt": ["w1 w2"] * 8, "chosen": [" w3 w4"] * 8, "rejected": [" w9"] * 8}


@pytest.mark.parametrize("kind", ["SFT", "DPO", "GRPO"])
def test_our_model_in_trainers_of_trl(trl, tokenizer, release, tmp_path, kind):
    """A dense model has no auxiliary loss; one with experts has TRL's own balance loss and no z-loss."""
    model = SwitchMoeForCausalLM.from_pretrained(release, capacity_factor=None)
    data = {"SFT": {"text": ["w1 w2 w3 w4 w5"] * 8}, "DPO": CHOICES, "GRPO": {"prompt": ["w1 w2"] * 8}}[kind]
    own = {
        "SFT": {"max_length": 32},
        "DPO": {"max_length": 32},
        "GRPO": {"num_generations": 2, "max_completion_length": 4},
    }[kind]
    rewards = {"reward_funcs": lambda completions, **_: [float(len(text) % 3) for text in completions]}
    trainer = getattr(trl, f"{kind}Trainer")(
        model=model,
        args=settings_of(getattr(trl, f"{kind}Config"), tmp_path, **own),
        train_dataset=Dataset.from_dict(data),
        processing_class=tokenizer,
        **(rewards if kind == "GRPO" else {}),
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    has_router = model.config.num_experts > 1
    assert len(logged) == 2
    assert all(("aux_loss" in entry) == has_router for entry in logged)
    if kind != "SFT":
        return
    ids = torch.arange(1, 25).view(2, 12)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, dict(batch))
        output = model(**batch, output_router_logits=True)
    expected = output.lm_loss
    if has_router:
        balance = load_balancing_loss_func(output.router_logits, 4, 1, batch["attention_mask"])
        expected = expected + model.config.router_aux_loss_coef * balance
    torch.testing.assert_close(loss, expected)


def test_our_reward_model_in_trl(trl, tokenizer, release, tmp_path):
    pairs = {"chosen": ["w1 w2 w3"] * 8, "rejected": ["w9 w8"] * 8}
    trainer = trl.RewardTrainer(
        model=str(release),
        args=settings_of(trl.RewardConfig, tmp_path, max_length=32),
        train_dataset=Dataset.from_dict(pairs),
        processing_class=tokenizer,
    )
    trainer.train()
    assert type(trainer.model).__name__ == "SwitchMoeForSequenceClassification"
    assert len([entry for entry in trainer.state.log_history if "loss" in entry]) == 2
